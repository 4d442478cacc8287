"""Estimates of location and scale of columns from a sample of rows, with standard errors.

Each kind of scaling has three functions: `describe` estimates from values, `merge` combines the
estimates of two samples, and `center_spread` gives what to subtract and to divide by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import is_bits
from windeck.columns.elements import decode_elements
from windeck.table.table import Table

if TYPE_CHECKING:
    from windeck.windows.windows import Windows

Float64 = npt.NDArray[np.float64]
# A series is named by a str, int, float, bool, None, or a tuple of these.
SeriesName = Any


@dataclass(frozen=True)
class Estimate:
    """Estimates of one column by name, and the standard errors of an infinite population."""

    value: dict[str, float]
    error: dict[str, float]


@dataclass(frozen=True)
class ScalingKind:
    """The names of the estimates of a kind of scaling, and its functions."""

    names: tuple[str, ...]
    describe: Callable[[Float64], Estimate]
    merge: Callable[[Estimate, float, Estimate, float], Estimate] | None
    center_spread: Callable[[dict[str, Float64]], tuple[Float64, Float64]]


def _standard(x: Float64) -> Estimate:
    """Estimate mean and standard deviation."""
    n = len(x)
    if x.min() == x.max():
        # In floating point the mean of equal numbers need not equal them.
        return Estimate({"mean": float(x[0]), "std": 0.0}, {"mean": 0.0, "std": 0.0})
    mean = float(x.mean())
    deviation = x - mean
    # Divide by the largest deviation: squares of tiny or huge ones leave the range of floats.
    unit = float(np.abs(deviation).max())
    std = unit * math.sqrt(float(np.mean((deviation / unit) ** 2)))
    # The error of the standard deviation by the delta method, for any distribution.
    fourth = float(np.mean((deviation / std) ** 4))
    std_error = std * math.sqrt(max(fourth - 1.0, 0.0) / n) / 2
    return Estimate({"mean": mean, "std": std}, {"mean": std / math.sqrt(n), "std": std_error})


def _merge_standard(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    """Merge as Chan, Golub & LeVeque 1983, with weights."""
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
    """Estimate the extremes; errors by the jackknife (Quenouille 1956).

    The error is the difference between the extreme and the second most extreme value.
    """
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
    """Estimate quartiles; errors by Woodruff 1952.

    The error is half the distance between the order statistics one standard deviation of the
    binomial count below and above.
    """
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
    """Estimate the mean of absolute values."""
    size = np.abs(x)
    mean = float(size.mean())
    return Estimate({"mean_abs": mean}, {"mean_abs": float(size.std()) / math.sqrt(len(x))})


def _merge_mean_abs(a: Estimate, wa: float, b: Estimate, wb: float) -> Estimate:
    pa, pb = wa / (wa + wb), wb / (wa + wb)
    first, second = a.value["mean_abs"], b.value["mean_abs"]
    error = math.hypot(pa * a.error["mean_abs"], pb * b.error["mean_abs"])
    return Estimate({"mean_abs": first + (second - first) * pb}, {"mean_abs": error})


KINDS: dict[str, ScalingKind] = {
    "standard": ScalingKind(
        ("mean", "std"), _standard, _merge_standard, lambda s: (s["mean"], s["std"])
    ),
    "minmax": ScalingKind(
        ("min", "max"), _minmax, _merge_minmax, lambda s: (s["min"], s["max"] - s["min"])
    ),
    # The medians of two parts do not determine the median of the whole.
    "robust": ScalingKind(
        ("q25", "median", "q75"), _robust, None, lambda s: (s["median"], s["q75"] - s["q25"])
    ),
    "mean_abs": ScalingKind(
        ("mean_abs",), _mean_abs, _merge_mean_abs, lambda s: (0.0 * s["mean_abs"], s["mean_abs"])
    ),
}


def affine(array: Any, factor: Float64, addend: Float64) -> Any:
    """Return ``array * factor + addend`` for an array or a tensor on any device."""
    # Do not import torch: only tensors have `new_tensor`.
    if hasattr(array, "new_tensor"):
        wide = array if array.is_floating_point() and array.element_size() >= 4 else array.float()
        return wide * wide.new_tensor(factor.tolist()) + wide.new_tensor(addend.tolist())
    values = np.asarray(array)
    dtype = np.result_type(values.dtype, np.float32) if values.dtype.kind == "f" else np.float64
    return (values.astype(np.float64) * factor + addend).astype(dtype)


@dataclass(frozen=True)
class ColumnEstimate:
    """Estimates of one column of one series, or of all series together.

    `count` values were observed; `weight` is the number of values they represent in the data.
    """

    estimate: Estimate
    count: int
    weight: float


# By (row of the series, number of the column).
ColumnEstimates = dict[tuple[int, int], ColumnEstimate]


def is_numeric(column: ColumnData) -> bool:
    """Return true for a column of numbers, false for flags and for the codes of a category."""
    return column.categories is None and column.dtype != "bool"


def table_of(data: Table | Windows) -> Table:
    """Return the table itself, or that of the windows."""
    if isinstance(data, Table):
        return data
    if not hasattr(data, "covered_rows"):
        raise TypeError(f"`data` must be a Table or Windows, got a {type(data).__name__}")
    return data.table


def choose_columns(data: Table | Windows, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names given after a check, or those of all numeric columns of `data`."""
    table = table_of(data)
    if columns is None:
        names = tuple(c for c in data.column_names if is_numeric(table.column(c)))
        if not names:
            raise ValueError("no column holds numbers, expected at least one to fit a scaler to")
        return names
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in table.column_names:
            raise unknown_column(name, table.column_names)
        if not is_numeric(table.column(name)):
            kind = "a category" if table.column(name).categories is not None else "bool"
            raise TypeError(f"column {name!r} is {kind}, expected numbers to fit a scaler to")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"`columns` must name at least one column, and each once, got {names}")
    return names


def _sample_rows(begin: Int64, end: Int64, sample: int | None, seed: int, epoch: int) -> Int64:
    """Draw rows from the ranges ``[begin, end)`` without replacement; return them ascending.

    All rows are returned if `sample` is None or at least their number.
    """
    sizes = end - begin
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    if sample is None or sample >= total:
        places = np.arange(total, dtype=np.int64)
    else:
        places = np.sort(_core.Permutation(total, seed=seed, epoch=epoch).slice(0, sample))
    ranges = np.searchsorted(ends, places, side="right")
    rows: Int64 = places + (end - ends)[ranges]
    return rows


def _observed_values(column: ColumnData, rows: Int64) -> Float64:
    """Return the values of `rows` that are not missing, as float64.

    Raises
    ------
    ValueError
        If a value is infinite.
    """
    rows = rows[column.observed(rows)]
    values: npt.NDArray[Any] = column.values[rows]
    found = decode_elements(column.dtype, values) if is_bits(column.dtype) else values
    found = found.astype(np.float64)
    if np.isinf(found).any():
        raise ValueError(
            f"column {column.name!r} holds {int(np.isinf(found).sum())} infinite values among "
            f"{len(rows)} sampled rows, expected finite ones to fit a scaler to"
        )
    return found


def estimate_columns(
    data: Table | Windows,
    columns: Sequence[str],
    kind: str,
    sample: int | None,
    per_series: bool,
    seed: int,
) -> Iterator[tuple[tuple[int, int], ColumnEstimate]]:
    """Estimate every (series, column) that has an observed value; series is 0 for all together."""
    table = table_of(data)
    if isinstance(data, Table):
        begin, end = data.offsets[:-1], data.offsets[1:]
        series = np.arange(data.num_series, dtype=np.int64)
    else:
        begin, end, series = data.covered_rows()
    parts = [(int(s), slice(i, i + 1)) for i, s in enumerate(series)] if per_series else []
    for row, part in parts or [(0, slice(None))]:
        total = int((end[part] - begin[part]).sum())
        rows = _sample_rows(begin[part], end[part], sample, seed, row)
        for column, name in enumerate(columns):
            values = _observed_values(table.column(name), rows)
            if len(values):
                yield (row, column), _estimate(kind, name, values, len(rows), total)


def _estimate(kind: str, name: str, found: Float64, sampled: int, total: int) -> ColumnEstimate:
    """Estimate from the values of `sampled` of `total` rows, drawn without replacement."""
    with np.errstate(over="ignore", invalid="ignore"):
        estimate = KINDS[kind].describe(found)
        values = {key: np.array([one]) for key, one in estimate.value.items()}
        center, spread = KINDS[kind].center_spread(values)
    if not (np.isfinite(center).all() and np.isfinite(spread).all()):
        raise ValueError(f"column {name!r} holds values too large to fit a scaler to in float64")
    # The finite population correction; the errors are 0 when all rows were read.
    correction = math.sqrt((total - sampled) / max(total - 1, 1))
    error = {key: one * correction for key, one in estimate.error.items()}
    return ColumnEstimate(
        Estimate(estimate.value, error), len(found), len(found) * (total / sampled)
    )


def merge_estimates(
    kind: str,
    parts: Sequence[tuple[tuple[SeriesName, ...], ColumnEstimates]],
) -> tuple[tuple[SeriesName, ...], ColumnEstimates]:
    """Merge estimates, each given with the names of its series; series are matched by name."""
    merge = KINDS[kind].merge
    assert merge is not None
    names = tuple(dict.fromkeys(name for series, _ in parts for name in series))
    rows = {name: row for row, name in enumerate(names)}
    merged: ColumnEstimates = {}
    for series, estimates in parts:
        for (row, column), new in estimates.items():
            at = (rows[series[row]], column)
            old = merged.get(at)
            if old is not None:
                estimate = merge(old.estimate, old.weight, new.estimate, new.weight)
                new = ColumnEstimate(estimate, old.count + new.count, old.weight + new.weight)
            merged[at] = new
    return names, merged
