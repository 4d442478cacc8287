"""What a scaler knows of a column: estimates from a sample, their standard errors, and how the
estimates of two samples make one.

Each kind is a triple of functions: `describe` a sample, `merge` two descriptions, and
`center_spread`, what to subtract and divide by. A description is a dict of named floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import bfloat16_as_float32
from windeck.table.table import Table

Float64 = npt.NDArray[np.float64]
Description = dict[str, float]


@dataclass(frozen=True)
class Estimate:
    """Estimates of one column, and the standard error of each as if drawn from endless data."""

    value: Description
    error: Description


@dataclass(frozen=True)
class Kind:
    """One way of scaling."""

    names: tuple[str, ...]
    describe: Callable[[Float64], Estimate]
    merge: Callable[[Estimate, float, Estimate, float], Estimate] | None
    center_spread: Callable[[dict[str, Float64]], tuple[Float64, Float64]]


def _standard(x: Float64) -> Estimate:
    n = len(x)
    if x.min() == x.max():
        # Said exactly: a mean of equal numbers need not equal them in floating point.
        return Estimate({"mean": float(x[0]), "std": 0.0}, {"mean": 0.0, "std": 0.0})
    mean = float(x.mean())
    deviation = x - mean
    # Squares of tiny or huge deviations would leave the range of floats: take out the largest.
    unit = float(np.abs(deviation).max())
    std = unit * math.sqrt(float(np.mean((deviation / unit) ** 2)))
    # Of the standard deviation by the delta method, no normal distribution supposed.
    fourth = float(np.mean((deviation / std) ** 4))
    std_error = std * math.sqrt(max(fourth - 1.0, 0.0) / n) / 2
    return Estimate({"mean": mean, "std": std}, {"mean": std / math.sqrt(n), "std": std_error})


def _merge_standard(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    """Chan, Golub & LeVeque 1983, with weights."""
    pa, pb = wa / (wa + wb), wb / (wa + wb)
    delta = b.value["mean"] - a.value["mean"]
    mean = a.value["mean"] + delta * pb
    within = math.sqrt(pa) * a.value["std"], math.sqrt(pb) * b.value["std"]
    std = math.hypot(*within, math.sqrt(pa * pb) * delta)
    mean_error = math.hypot(pa * a.error["mean"], pb * b.error["mean"])
    std_error = 0.0
    if std > 0.0:
        parts = [
            2 * p * term
            for p, one in ((pa, a), (pb, b))
            for term in (
                one.value["std"] * one.error["std"],
                (one.value["mean"] - mean) * one.error["mean"],
            )
        ]
        std_error = math.hypot(*parts) / (2 * std)
    return Estimate({"mean": mean, "std": std}, {"mean": mean_error, "std": std_error})


def _minmax(x: Float64) -> Estimate:
    """Errors by the jackknife (Quenouille 1956): the gap to the next to extreme observation."""
    if len(x) == 1:
        only = float(x[0])
        return Estimate({"min": only, "max": only}, {"min": 0.0, "max": 0.0})
    last = len(x) - 1
    x = np.partition(x, sorted({0, 1, last - 1, last}))
    factor = last / len(x)
    errors = {"min": factor * float(x[1] - x[0]), "max": factor * float(x[last] - x[last - 1])}
    return Estimate({"min": float(x[0]), "max": float(x[last])}, errors)


def _merge_minmax(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    low = min(a, b, key=lambda e: e.value["min"])
    high = max(a, b, key=lambda e: e.value["max"])
    return Estimate(
        {"min": low.value["min"], "max": high.value["max"]},
        {"min": low.error["min"], "max": high.error["max"]},
    )


def _robust(x: Float64) -> Estimate:
    """Errors of quantiles by Woodruff 1952: half the width between order statistics one sigma
    of the binomial count away."""
    x = np.sort(x)
    value, error = {}, {}
    for name, p in (("q25", 0.25), ("median", 0.5), ("q75", 0.75)):
        sigma = math.sqrt(p * (1 - p) / len(x))
        low, value[name], high = (
            float(q) for q in np.quantile(x, np.clip([p - sigma, p, p + sigma], 0, 1))
        )
        error[name] = (high - low) / 2
    return Estimate(value, error)


def _mean_abs(x: Float64) -> Estimate:
    size = np.abs(x)
    mean = float(size.mean())
    return Estimate({"mean_abs": mean}, {"mean_abs": float(size.std()) / math.sqrt(len(x))})


def _merge_mean_abs(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    pa, pb = wa / (wa + wb), wb / (wa + wb)
    first, second = a.value["mean_abs"], b.value["mean_abs"]
    error = math.hypot(pa * a.error["mean_abs"], pb * b.error["mean_abs"])
    return Estimate({"mean_abs": first + (second - first) * pb}, {"mean_abs": error})


KINDS: dict[str, Kind] = {
    "standard": Kind(("mean", "std"), _standard, _merge_standard, lambda s: (s["mean"], s["std"])),
    "minmax": Kind(
        ("min", "max"), _minmax, _merge_minmax, lambda s: (s["min"], s["max"] - s["min"])
    ),
    # Medians of parts do not give the median of the whole: no merge.
    "robust": Kind(
        ("q25", "median", "q75"), _robust, None, lambda s: (s["median"], s["q75"] - s["q25"])
    ),
    "mean_abs": Kind(
        ("mean_abs",), _mean_abs, _merge_mean_abs, lambda s: (0.0 * s["mean_abs"], s["mean_abs"])
    ),
}


def affine(array: Any, factor: Float64, addend: Float64) -> Any:
    """``array * factor + addend``, for an ndarray or, by duck typing, a tensor on any device."""
    if hasattr(array, "new_tensor"):
        wide = array if array.is_floating_point() and array.element_size() >= 4 else array.float()
        return wide * wide.new_tensor(factor.tolist()) + wide.new_tensor(addend.tolist())
    values = np.asarray(array)
    dtype = np.result_type(values.dtype, np.float32) if values.dtype.kind == "f" else np.float64
    return (values.astype(np.float64) * factor + addend).astype(dtype)


Int64 = npt.NDArray[np.int64]


class WindowSet(Protocol):
    """What a scaler asks of `Windows`."""

    @property
    def table(self) -> Table:
        """The table the windows are cut from."""
        ...

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns used."""
        ...

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Row ranges the windows touch: first rows, last rows + 1, series."""
        ...


Name = Any  # a series' identity: str, int, float, bool, None, or a tuple of these


@dataclass(frozen=True)
class Cell:
    """Estimates of one column of one series (or of all), and the values they rest on."""

    estimate: Estimate
    count: int
    weight: float


Cells = dict[tuple[int, int], Cell]  # by (series, column)
Named = tuple[tuple[Name, ...] | None, Cells]  # the names of the series, and their cells


def numeric(column: ColumnData) -> bool:
    """Whether a column is a quantity: a number, not a flag and not the code of a category."""
    return column.categories is None and column.dtype != "bool"


def table_of(data: Table | WindowSet) -> Table:
    """The table itself, or the one the windows are cut from."""
    if isinstance(data, Table):
        return data
    if not hasattr(data, "covered_rows"):
        raise TypeError(f"data is a {type(data).__name__}, expected a Table or Windows")
    return data.table


def chosen_columns(data: Table | WindowSet, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns named, or else every quantity among those of `data`."""
    table = table_of(data)
    if columns is None:
        names = tuple(c for c in data.column_names if numeric(table.column(c)))
        if not names:
            raise ValueError("no column holds numbers, expected at least one to fit a scaler to")
        return names
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in table.column_names:
            raise unknown_column(name, table.column_names)
        if not numeric(table.column(name)):
            kind = "a category" if table.column(name).categories is not None else "bool"
            raise TypeError(f"column {name!r} is {kind}, expected numbers to fit a scaler to")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"columns are {names}, expected at least one, and each once")
    return names


def row_ranges(data: Table | WindowSet) -> tuple[Int64, Int64, Int64]:
    """First rows, last rows + 1 and series of the stretches of rows to sample."""
    if isinstance(data, Table):
        offsets = data.offsets
        return offsets[:-1], offsets[1:], np.arange(data.num_series, dtype=np.int64)
    return data.covered_rows()


def sampled_rows(begin: Int64, end: Int64, sample: int | None, seed: int, epoch: int) -> Int64:
    """Rows out of the ranges, without replacement, ascending; all of them if `sample` allows."""
    sizes = end - begin
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    if sample is None or sample >= total:
        places = np.arange(total, dtype=np.int64)
    else:
        places = np.sort(_core.Permutation(total, seed=seed, epoch=epoch).slice(0, sample))
    which = np.searchsorted(ends, places, side="right")
    rows: Int64 = places + (end - ends)[which]
    return rows


def observed_values(column: ColumnData, rows: Int64) -> Float64:
    """The values of `rows` that are not missing, as float64.

    Raises
    ------
    ValueError
        If one of them is infinite.
    """
    rows = rows[column.observed(rows)]
    values: npt.NDArray[Any] = column.values[rows]
    if column.dtype == "bfloat16":
        values = bfloat16_as_float32(values)
    found = values.astype(np.float64)
    if np.isinf(found).any():
        raise ValueError(
            f"column {column.name!r} holds {int(np.isinf(found).sum())} infinite values among "
            f"{len(rows)} sampled rows, expected finite ones to fit a scaler to"
        )
    return found


def fitted(
    data: Table | WindowSet,
    columns: Sequence[str],
    kind: str,
    sample: int | None,
    per_series: bool,
    seed: int,
) -> Iterator[tuple[int, int, Cell]]:
    """Estimate every (series, column) with an observed value; series is 0 for all together."""
    table = table_of(data)
    begin, end, series = row_ranges(data)
    parts = [(int(s), slice(i, i + 1)) for i, s in enumerate(series)] if per_series else []
    for number, part in parts or [(0, slice(None))]:
        total = int((end[part] - begin[part]).sum())
        rows = sampled_rows(begin[part], end[part], sample, seed, number)
        for place, name in enumerate(columns):
            found = observed_values(table.column(name), rows)
            if len(found):
                yield number, place, _cell(kind, name, found, len(rows), total)


def _cell(kind: str, name: str, found: Float64, sampled: int, total: int) -> Cell:
    """Describe values; errors of a sample without replacement are none when all rows were read."""
    with np.errstate(over="ignore", invalid="ignore"):
        estimate = KINDS[kind].describe(found)
        values = {key: np.array([one]) for key, one in estimate.value.items()}
        center, spread = KINDS[kind].center_spread(values)
    if not (np.isfinite(center).all() and np.isfinite(spread).all()):
        raise ValueError(f"column {name!r} holds values too large to fit a scaler to in float64")
    left = math.sqrt((total - sampled) / max(total - 1, 1))
    error = {key: one * left for key, one in estimate.error.items()}
    return Cell(Estimate(estimate.value, error), len(found), len(found) * (total / sampled))


def merged(kind: str, one: Named, other: Named) -> Named:
    """Both sets of cells together: series meet by name, cells by the rows they stand for."""
    merge = KINDS[kind].merge
    assert merge is not None
    alone: tuple[Name, ...] = (None,)
    names = [alone if series is None else series for series, _ in (one, other)]
    together = tuple(dict.fromkeys(names[0] + names[1]))
    rows = {name: row for row, name in enumerate(together)}
    found: Cells = {}
    for known, (_, cells) in zip(names, (one, other), strict=True):
        for (series, column), cell in cells.items():
            at = (rows[known[series]], column)
            before = found.get(at)
            if before is not None:
                estimate = merge(before.estimate, before.weight, cell.estimate, cell.weight)
                cell = Cell(estimate, before.count + cell.count, before.weight + cell.weight)
            found[at] = cell
    return (None if one[0] is None else together), found
