"""Random tables and options of windows, for the library and for the reference alike."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from models import reference as ref
from windeck import Scaler, Table, Windows
from windeck.columns import ColumnData

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "bool")


class PlainTable(Table):
    """A table of columns as files and arrays do not have them, such as with shifted bitmaps."""

    def __init__(
        self,
        columns: dict[str, ColumnData],
        offsets: npt.NDArray[np.int64],
        timestamps: npt.NDArray[Any] | None,
    ) -> None:
        rows = np.arange(float(offsets[-1]))
        vars(self).update(vars(Table.from_columns({"row": rows}, offsets=offsets.tolist())))
        self._columns, self.timestamps = columns, timestamps
        self.fingerprint = {}


@dataclass
class Drawn:
    """One random case, for the reference and for the library."""

    case: ref.Case
    table: PlainTable
    options: dict[str, Any]

    def windows(self) -> Windows:
        """Return the library's windows of the case."""
        case = self.case
        return Windows(
            self.table,
            context_length=case.context_length,
            prediction_length=case.prediction_length,
            gap=case.gap,
            stride=case.stride,
            dilation=case.dilation,
            target_columns=case.target,
            known_covariates=case.known,
            past_covariates=case.past,
            static_covariates=case.static,
            pad=cast(Any, case.pad),
            fill=case.fill,
            max_missing=case.max_missing,
            max_gap=case.max_gap,
            min_context_length=case.min_context_length,
            min_prediction_length=case.min_prediction_length,
            anchor=cast(Any, case.anchor),
            min_observed_past=case.min_observed_past,
            min_observed_future=case.min_observed_future,
            **self.options,
        )


@st.composite
def drawn_cases(draw: st.DrawFn) -> Drawn:
    """Draw a table of a few short series, and options of all kinds."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    offsets = [0, *np.cumsum(sizes).tolist()]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = {
        "target": draw(st.integers(1, 3)),
        "known": draw(st.integers(0, 2)),
        "past": draw(st.integers(0, 2)),
        "static": draw(st.integers(0, 2)),
    }
    asked = draw(st.sampled_from([None, None, *FLOATS]))
    layout = draw(st.sampled_from(["btc", "bct", "columns"]))
    scaled = draw(st.sampled_from([None, None, "all", "series"]))
    specs: dict[str, ColumnData] = {}
    columns: dict[str, ref.Column] = {}
    names: dict[str, list[str]] = {}
    for role, count in counts.items():
        stored = draw(st.sampled_from(FLOATS + INTEGERS))
        names[role] = [f"{role}{i}" for i in range(count)]
        for name in names[role]:
            first = np.repeat(offsets[:-1], sizes) if role == "static" else slice(None)
            data, column = random_column(rng, name, stored, offsets[-1], first)
            column.dtype = leaving_dtype(stored, asked, scaled is not None)
            specs[name], columns[name] = data, column
    scaler = None if scaled is None else random_scaler(rng, columns, len(sizes), scaled == "series")
    stamps = draw(st.booleans())
    context, prediction, dilation = (draw(st.integers(*ends)) for ends in ((1, 6), (0, 4), (1, 4)))
    sides: list[bool | str] = [False, True, "start", "end", *["both"] * (prediction > 0)]
    case = ref.Case(
        columns,
        offsets,
        context_length=context,
        prediction_length=prediction,
        gap=draw(st.sampled_from([0, 1, 2, 3, -1, -2, -dilation, -context * dilation])),
        stride=draw(st.integers(1, 5)),
        dilation=dilation,
        target=names["target"],
        known=names["known"],
        past=names["past"],
        static=names["static"],
        pad=draw(st.sampled_from(sides)),
        fill=draw(st.sampled_from([0.0, 1.0])),
        max_missing=draw(st.sampled_from([1.0, 1.0, 0.5, 0.3, 0.1, 0.0])),
        stamps=random_stamps(rng, offsets) if stamps else None,
        max_gap=draw(st.sampled_from([None, 1, 2])) if stamps else None,
        layout=layout,
        anchor=draw(st.sampled_from(["start", "start", "end"])),
    )
    case.gap = max(case.gap, -context * dilation, 1 - prediction * dilation if prediction else -99)
    if case.pad in (True, "start", "both") or (case.pad == "end" and not prediction):
        case.min_context_length = draw(st.sampled_from([None, None, 1, context]))
    if case.pad in ("end", "both") and prediction:
        least = ref.least_future(case)
        case.min_prediction_length = draw(st.sampled_from([None, None, least, prediction]))
    values = [length * len(case.target) for length in (context, prediction)]
    case.min_observed_past, case.min_observed_future = (
        draw(st.one_of(st.none(), st.none(), st.integers(0, most))) for most in values
    )
    times = None if case.stamps is None else np.array(case.stamps, dtype="M8[m]")
    table = PlainTable(specs, np.array(offsets, dtype=np.int64), times)
    return Drawn(case, table, {"layout": layout, "dtype": asked, "scaler": scaler})


def leaving_dtype(stored: str, asked: str | None, scaled: bool) -> str:
    """Return the dtype of a column in batches, computed without the library."""
    if "float" in stored:
        return asked or stored
    return (asked or "float32") if scaled else stored


def random_column(
    rng: np.random.Generator, name: str, dtype: str, rows: int, first: Any = slice(None)
) -> tuple[ColumnData, ref.Column]:
    """Return a strided column with a shifted bitmap, with or without nulls and NaN.

    `first` has the row of which each row has the value; by default its own.
    """
    wide = (rng.normal(size=(rows, 3)) * 50)[first]
    if dtype == "bfloat16":
        matrix = (wide.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        matrix = np.abs(wide).astype(dtype) if dtype[0] == "u" else wide.astype(dtype)
    values = matrix[:, 1]
    valid = np.ones(rows, dtype=bool)
    if "float" in dtype and rng.random() < 0.5:
        valid &= (rng.random(rows) > 0.2)[first]
        values[~valid] = 0x7FC0 if dtype == "bfloat16" else np.nan
    validity, shift = None, 0
    if rng.random() < 0.5:
        present = (rng.random(rows) > 0.2)[first]
        shift = int(rng.integers(0, 20))
        noise = rng.random(shift + rows + 9) > 0.5
        noise[shift : shift + rows] = present
        validity = np.packbits(noise, bitorder="little")
        valid &= present
    missing = None if rng.random() < 0.5 else int((~valid).sum())
    data = ColumnData(name, values, validity, shift, None, missing, dtype)
    plain = values
    if dtype == "bfloat16":
        plain = (values.astype(np.uint32) << 16).view(np.float32)
    return data, ref.Column(plain, valid.tolist(), dtype)


def random_stamps(rng: np.random.Generator, offsets: list[int]) -> list[int]:
    """Return time stamps that ascend inside each series, with duplicates and breaks."""
    stamps = np.concatenate([[0], rng.choice([0, 1, 1, 1, 1, 1, 1, 2, 7], size=offsets[-1])])
    found = np.cumsum(stamps)[1:].astype(np.int64)
    for series, (a, b) in enumerate(pairwise(offsets)):
        found[a:b] -= 100 * series
    return [int(one) for one in found]


def random_scaler(
    rng: np.random.Generator, columns: dict[str, ref.Column], series: int, per_series: bool
) -> Scaler:
    """Return a scaler of every column, and set the same factors in the reference."""
    shape = (series if per_series else 1, len(columns))
    mean, std = rng.normal(size=shape) * 10, rng.random(shape) * 5 + 0.5
    zeros = {"mean": np.zeros(shape), "std": np.zeros(shape)}
    counts = np.ones(shape, dtype=np.int64)
    names = tuple(range(series)) if per_series else None
    for place, column in enumerate(columns.values()):
        inverse = 1.0 / std[:, place]
        moved = -mean[:, place] * inverse
        repeat = 1 if per_series else series
        column.scale, column.shift = inverse.tolist() * repeat, moved.tolist() * repeat
    statistics = {"mean": mean, "std": std}
    every = statistics, zeros, counts, np.ones(shape)

    def first(arrays: Any) -> Any:
        is_dict = isinstance(arrays, dict)
        return {name: a[:1] for name, a in arrays.items()} if is_dict else arrays[:1]

    pooled = Scaler("standard", tuple(columns), *map(first, every)) if per_series else None
    return Scaler("standard", tuple(columns), *every, names, pooled=pooled)
