"""Random configurations of the gather, as native objects and as objects of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import gather_model as model
from windeck import _core

Array = np.ndarray[Any, Any]

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
]


@dataclass(frozen=True)
class Case:
    gather: Any
    index: Any
    bounds: list[int]
    fields: dict[str, model.ModelField]
    indices: Array
    index_keys: Sequence[str] = ("series_id", "start")


def random_values(rng: np.random.Generator, size: int, dtype: str) -> Array:
    """Return small numbers or extremes; for floating types also any bits, NaN and infinities."""
    wild = rng.random() < 0.4
    if dtype == "bool":
        return rng.random(size) < 0.5
    if dtype == "bfloat16":
        small = rng.normal(size=size).astype(np.float32).view(np.uint32) >> 16
        return (rng.integers(0, 65536, size) if wild else small).astype(np.uint16)
    if dtype.startswith("float"):
        itemsize = np.dtype(dtype).itemsize
        if wild:
            bits: Array = np.frombuffer(rng.bytes(size * itemsize), dtype=dtype).copy()
            return bits
        with np.errstate(over="ignore"):
            values: Array = (rng.normal(size=size) * 10.0 ** rng.integers(-8, 8, size)).astype(
                dtype
            )
        values[rng.random(size) < 0.1] = np.nan
        return values
    info = np.iinfo(dtype)
    if wild:
        return rng.integers(info.min, info.max, size, dtype=dtype, endpoint=True)
    return rng.integers(0, 100, size).astype(dtype)


def random_matrix(rng: np.random.Generator, rows: int, columns: int, dtype: str) -> Array:
    """Return columns of a matrix stored by rows or by columns, some omitted or reversed."""
    width = columns + int(rng.integers(0, 3))
    left = int(rng.integers(0, width - columns + 1))
    matrix = random_values(rng, rows * width, dtype).reshape(rows, width)
    if rng.random() < 0.3:
        matrix = np.asfortranarray(matrix)
    matrix = matrix[:, left : left + columns]
    return matrix[:, ::-1] if rng.random() < 0.2 else matrix


def random_columns(
    rng: np.random.Generator, rows: int, count: int, out: str
) -> tuple[list[Any], list[model.ModelColumn]]:
    same = rng.random() < 0.6
    dtype = out if rng.random() < 0.4 else str(rng.choice(DTYPES))
    matrix = random_matrix(rng, rows, count, dtype)
    with_validity = rng.random() < 0.3
    native, expected = [], []
    for c in range(count):
        kind = dtype if same else str(rng.choice(DTYPES))
        values = matrix[:, c] if same else random_values(rng, rows, kind)
        valid, options = None, {}
        if with_validity and rng.random() < 0.6:
            offset = int(rng.integers(0, 20))
            valid = rng.random(rows) < rng.choice([0.8, 1.0])
            bits = np.concatenate([rng.random(offset) < 0.5, valid])
            options = {
                "validity": np.packbits(bits, bitorder="little"),
                "validity_offset": offset,
            }
        nan_is_missing = same or bool(rng.random() < 0.8)
        named = kind if kind == "bfloat16" else None
        native.append(
            _core.Column(
                values, name=f"c{c}", dtype=named, nan_is_missing=nan_is_missing, **options
            )
        )
        expected.append(model.ModelColumn(values, kind, valid, nan_is_missing))
    return native, expected


def random_step_spans(rng: np.random.Generator, layout: str) -> list[tuple[int, int]]:
    if layout in ("bc", "b"):
        return [(int(rng.integers(-3, 4)), 1)]
    count = int(rng.integers(1, 4))
    step_spans = [(int(rng.integers(-5, 9)), int(rng.integers(0, 9))) for _ in range(count)]
    if rng.random() < 0.15:
        step_spans.append((0, int(rng.integers(20, 300))))
    return [*step_spans, (1, 1)] if sum(n for _, n in step_spans) == 0 else step_spans


def random_field(
    rng: np.random.Generator, name: str, rows: int, series: int
) -> tuple[Any, model.ModelField]:
    count = int(rng.integers(1, 12)) if rng.random() < 0.9 else int(rng.integers(60, 140))
    out = str(rng.choice(DTYPES if rng.random() < 0.6 else ["float32", "float64"]))
    native, expected = random_columns(rng, rows, count, out)
    layout = str(rng.choice(["btc", "bct", "bc", *(["bt", "b"] if count == 1 else [])]))
    floating = out in model.FLOATS

    def coefficients() -> Array | None:
        shape = [None, (count,), (series, count)][int(rng.choice(3, p=[0.5, 0.25, 0.25]))]
        return None if shape is None else rng.normal(size=shape)

    options: dict[str, Any] = {
        "step_spans": random_step_spans(rng, layout),
        "dilation": int(rng.integers(1, 4)),
        "layout": layout,
        "dtype": out,
        "mask": bool(rng.random() < 0.6),
        "fill": float(rng.choice([0, 1, np.nan, 1e30, -0.1] if floating else [0, 1])),
        "scale": coefficients(),
        "shift": coefficients(),
        "anchor": "series" if rng.random() < 0.15 else "window",
        "fill_nan": bool(rng.random() < 0.3),
    }
    return _core.Field(name, native, **options), model.ModelField(columns=expected, **options)


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    series = int(rng.integers(1, 5))
    bounds = np.cumsum([rng.integers(0, 5), *rng.integers(0, 60, series)])
    rows = int(bounds[-1] + rng.integers(0, 4))
    first = bounds[:-1] - rng.integers(0, 6, series)
    index = _core.WindowIndex(first, rng.integers(0, 12, series), int(rng.integers(1, 4)))
    names = [f"field{f}" for f in range(int(rng.integers(1, 4)))]
    pairs = [random_field(rng, name, rows, series) for name in names]
    fields = [native for native, _ in pairs]
    index_keys = [key for key in ("series_id", "start") if rng.random() < 0.8]
    gather = _core.Gather(index, bounds, fields, index_keys=index_keys)
    batch = int(rng.integers(0, 9)) if len(index) else 0
    indices = rng.integers(0, max(len(index), 1), batch)
    expected = {name: field for name, (_, field) in zip(names, pairs, strict=True)}
    return Case(gather, index, [int(b) for b in bounds], expected, indices, index_keys)


def expected_batch(case: Case) -> dict[str, Array]:
    """Return the batch computed by the model; raise model.DoesNotFit."""
    series, starts = (list(map(int, found)) for found in case.index.locate(case.indices))
    batch: dict[str, Array] = {}
    for name, field in case.fields.items():
        values, mask = model.gather_field(field, series, starts, case.bounds)
        batch[name] = values
        if field.mask:
            batch[f"{name}_mask"] = mask
    for key, found in (("series_id", series), ("start", starts)):
        if key in case.index_keys:
            batch[key] = np.array(found, dtype=np.int64)
    return batch


def same_bits(found: Array, expected: Array, dtype: str) -> bool:
    """Return True if the bits are equal, where any two NaN count as equal."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    unsigned = f"u{found.itemsize}"
    equal = found.view(unsigned) == expected.view(unsigned)
    if dtype == "bfloat16":
        equal |= ((found & 0x7FFF) > 0x7F80) & ((expected & 0x7FFF) > 0x7F80)
    elif dtype in model.FLOATS:
        equal |= np.isnan(found) & np.isnan(expected)
    return bool(equal.all())


def assert_equals_model(case: Case, batch: dict[str, Array] | ValueError) -> str:
    """Compare a batch with the model; return "equal", or "does not fit" if both fail so."""
    with np.errstate(all="ignore"):
        try:
            expected = expected_batch(case)
        except model.DoesNotFit:
            assert isinstance(batch, ValueError), "a value does not fit, and no error was raised"
            assert "cannot hold" in str(batch)
            return "does not fit"
    assert not isinstance(batch, ValueError), batch
    assert list(batch) == list(expected)
    for key, values in expected.items():
        dtype = case.fields[key].dtype if key in case.fields else str(values.dtype)
        assert same_bits(batch[key], values, dtype), (key, case.fields)
    return "equal"


def run(case: Case, **options: Any) -> dict[str, Array] | ValueError:
    try:
        batch: dict[str, Array] = case.gather.gather(case.indices, **options)
    except ValueError as error:
        return error
    return batch
