"""Estimates of location and scale of columns from a sample of rows, with standard errors.

Each kind of scaling has three functions: `describe` estimates from values, `merge` combines the
estimates of two samples, and `center_spread` gives what to subtract and to divide by. All work on
many series at once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.progress import report_progress
from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Bools, is_bits
from windeck.columns.elements import decode_elements
from windeck.table.streamed import StreamedColumn
from windeck.table.table import StreamedTable, Table

Float64 = npt.NDArray[np.float64]
# A series is named by a str, int, float, bool, None, or a tuple of these.
SeriesName = Any


# Rows of whole series that are estimated at a time, at least.
ROWS_AT_A_TIME = 1 << 20

# Memory for the sampled rows of a streamed table, if its budget is less, and of a row.
SAMPLE_BYTES, BYTES_PER_SAMPLE = 1 << 25, 64

# By name: estimates of k series, and their standard errors in an infinite population.
Values = dict[str, Float64]


@dataclass(frozen=True)
class ScalingKind:
    """The names of the estimates of a kind of scaling, and its functions.

    `describe` takes values of shape (k, n), n of each of k series, and returns estimates of shape
    (k,); with False as second argument the errors are left out.
    """

    names: tuple[str, ...]
    describe: Callable[[Float64, bool], tuple[Values, Values]]
    merge: Callable[[Estimates, Estimates], tuple[Values, Values]] | None
    center_spread: Callable[[Values], tuple[Float64, Float64]]


@dataclass(frozen=True)
class Estimates:
    """Estimates of C columns in S series: arrays of shape (S, C).

    `counts` values were observed; `weights` is the number of values they represent in the data.
    """

    statistics: Values
    errors: Values
    counts: Int64
    weights: Float64

    @classmethod
    def empty(cls, kind: str, shape: tuple[int, ...]) -> Estimates:
        """Return estimates without observed values."""
        statistics, errors = ({n: np.zeros(shape) for n in KINDS[kind].names} for _ in range(2))
        return cls(statistics, errors, np.zeros(shape, dtype=np.int64), np.zeros(shape))

    def put(self, at: Any, other: Estimates) -> None:
        """Write `other` to the places `at` of the arrays."""
        for name, values in other.statistics.items():
            self.statistics[name][at] = values
            self.errors[name][at] = other.errors[name]
        self.counts[at], self.weights[at] = other.counts, other.weights

    def take(self, at: Any) -> Estimates:
        """Return the estimates at the places `at` of the arrays."""
        statistics, errors = (
            {name: values[at] for name, values in one.items()}
            for one in (self.statistics, self.errors)
        )
        return Estimates(statistics, errors, self.counts[at], self.weights[at])


def _standard(x: Float64, wants_errors: bool) -> tuple[Values, Values]:
    """Estimate mean and standard deviation."""
    n = x.shape[1]
    mean = x.mean(axis=1)
    # In floating point the mean of equal numbers need not equal them.
    equal = x.min(axis=1) == x.max(axis=1)
    mean[equal] = x[equal, 0]
    deviation = x - mean[:, None]
    # Divide by the largest deviation: squares of tiny or huge ones leave the range of floats.
    unit = np.where(equal, 1.0, np.abs(deviation).max(axis=1))
    std = unit * np.sqrt(np.mean((deviation / unit[:, None]) ** 2, axis=1))
    values = {"mean": mean, "std": std}
    if not wants_errors:
        return values, {}
    # The error of the standard deviation by the delta method, for any distribution.
    fourth = np.mean((deviation / np.where(equal, 1.0, std)[:, None]) ** 4, axis=1)
    std_error = std * np.sqrt(np.maximum(fourth - 1.0, 0.0) / n) / 2
    return values, {"mean": std / math.sqrt(n), "std": std_error}


def _hypot(*arrays: Float64) -> Float64:
    """Return Python's hypotenuse of numbers; NumPy's may differ from it in the last bit."""
    found = map(math.hypot, *(array.tolist() for array in arrays))
    return np.fromiter(found, np.float64, len(arrays[0]))


def _shares(a: Estimates, b: Estimates) -> tuple[Float64, Float64]:
    total = a.weights + b.weights
    return a.weights / total, b.weights / total


def _merge_standard(a: Estimates, b: Estimates) -> tuple[Values, Values]:
    """Merge as Chan, Golub & LeVeque 1983, with weights."""
    pa, pb = _shares(a, b)
    mean_a, mean_b = a.statistics["mean"], b.statistics["mean"]
    std_a, std_b = a.statistics["std"], b.statistics["std"]
    delta = mean_b - mean_a
    mean = mean_a + delta * pb
    std = _hypot(np.sqrt(pa) * std_a, np.sqrt(pb) * std_b, np.sqrt(pa * pb) * delta)
    mean_error = _hypot(pa * a.errors["mean"], pb * b.errors["mean"])
    parts = [
        2 * p * term
        for p, one in ((pa, a), (pb, b))
        for term in (
            one.statistics["std"] * one.errors["std"],
            (one.statistics["mean"] - mean) * one.errors["mean"],
        )
    ]
    std_error = np.where(std > 0.0, _hypot(*parts) / (2 * np.where(std > 0.0, std, 1.0)), 0.0)
    return {"mean": mean, "std": std}, {"mean": mean_error, "std": std_error}


def _minmax(x: Float64, wants_errors: bool) -> tuple[Values, Values]:
    """Estimate the extremes; errors by the jackknife (Quenouille 1956).

    The error is the difference between the extreme and the second most extreme value.
    """
    n = x.shape[1]
    last = n - 1
    if n > 1 and (wants_errors or (np.signbit(x) & (x == 0.0)).any()):
        # With zeros of both signs the result depends on the algorithm: take that of `partition`.
        x = np.partition(x, sorted({0, 1, last - 1, last}), axis=1)
        values = {"min": x[:, 0], "max": x[:, last]}
    else:
        values = {"min": x.min(axis=1), "max": x.max(axis=1)}
    if not wants_errors:
        return values, {}
    if n == 1:
        return values, {"min": np.zeros(len(x)), "max": np.zeros(len(x))}
    factor = last / n
    low, high = x[:, 1] - x[:, 0], x[:, last] - x[:, last - 1]
    return values, {"min": factor * low, "max": factor * high}


def _merge_minmax(a: Estimates, b: Estimates) -> tuple[Values, Values]:
    lower = b.statistics["min"] < a.statistics["min"]
    higher = b.statistics["max"] > a.statistics["max"]
    chosen = (("min", lower), ("max", higher))
    values = {n: np.where(of_b, b.statistics[n], a.statistics[n]) for n, of_b in chosen}
    return values, {n: np.where(of_b, b.errors[n], a.errors[n]) for n, of_b in chosen}


def _robust(x: Float64, wants_errors: bool) -> tuple[Values, Values]:
    """Estimate quartiles; errors by Woodruff 1952.

    The error is half the distance between the order statistics one standard deviation of the
    binomial count below and above.
    """
    x = np.sort(x, axis=1)
    quartiles = {"q25": 0.25, "median": 0.5, "q75": 0.75}
    values = dict(zip(quartiles, np.quantile(x, [*quartiles.values()], axis=1), strict=True))
    if not wants_errors:
        return values, {}
    errors = {}
    for name, p in quartiles.items():
        sigma = math.sqrt(p * (1 - p) / x.shape[1])
        low, high = np.quantile(x, np.clip([p - sigma, p + sigma], 0, 1), axis=1)
        errors[name] = (high - low) / 2
    return values, errors


def _mean_abs(x: Float64, wants_errors: bool) -> tuple[Values, Values]:
    """Estimate the mean of absolute values."""
    size = np.abs(x)
    values = {"mean_abs": size.mean(axis=1)}
    if not wants_errors:
        return values, {}
    return values, {"mean_abs": size.std(axis=1) / math.sqrt(x.shape[1])}


def _merge_mean_abs(a: Estimates, b: Estimates) -> tuple[Values, Values]:
    pa, pb = _shares(a, b)
    first, second = a.statistics["mean_abs"], b.statistics["mean_abs"]
    error = _hypot(pa * a.errors["mean_abs"], pb * b.errors["mean_abs"])
    return {"mean_abs": first + (second - first) * pb}, {"mean_abs": error}


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
    if _is_tensor(array):
        wide = array if array.is_floating_point() and array.element_size() >= 4 else array.float()
        return wide * wide.new_tensor(factor.tolist()) + wide.new_tensor(addend.tolist())
    values = np.asarray(array)
    dtype = np.result_type(values.dtype, np.float32) if values.dtype.kind == "f" else np.float64
    return (values.astype(np.float64) * factor + addend).astype(dtype)


def is_numeric(column: ColumnData) -> bool:
    """Return true for a column of numbers, false for flags and for the codes of a category."""
    return column.categories is None and column.dtype != "bool"


def as_array(values: Any) -> Any:
    """Return an array or a tensor on any device as an array; bfloat16 as float32."""
    if _is_tensor(values):
        values = values.detach().cpu()
        if values.dtype == sys.modules["torch"].bfloat16:
            values = values.float()
    return np.asarray(values)


def _is_tensor(values: object) -> bool:
    torch = sys.modules.get("torch")  # It is loaded where there are tensors.
    return torch is not None and isinstance(values, torch.Tensor)


def choose_columns(
    table: Table, used: Sequence[str], columns: str | Sequence[str] | None
) -> tuple[str, ...]:
    """Return the names given after a check, or those of the numeric columns among `used`."""
    if columns is None:
        names = tuple(name for name in used if is_numeric(table.column(name)))
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


class RowStretches(NamedTuple):
    """Contiguous rows ``[begin[i], end[i])`` of series ``series[i]``, none of them empty."""

    begin: Int64
    end: Int64
    series: Int64

    @classmethod
    def of_table(cls, table: Table) -> RowStretches:
        """Return all rows of a table: one stretch for each series that has some."""
        begin, end = table.offsets[:-1], table.offsets[1:]
        live = np.flatnonzero(begin < end).astype(np.int64)
        return cls(begin[live], end[live], live)

    def rows(self, sample: int | None, seed: int, epoch: int) -> slice | Int64:
        """Draw rows without replacement; return them ascending.

        All rows are returned if `sample` is None or at least their number: contiguous ones as a
        slice.
        """
        sizes = self.end - self.begin
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        if sample is not None and sample < total:
            places = np.sort(_core.Permutation(total, seed=seed, epoch=epoch).slice(0, sample))
            stretches = np.searchsorted(ends, places, side="right")
            drawn: Int64 = places + (self.end - ends)[stretches]
            return drawn
        if total == 0 or (self.begin[1:] == self.end[:-1]).all():
            return slice(int(self.begin[0]), int(self.end[-1])) if total else slice(0, 0)
        every: Int64 = np.arange(total) + np.repeat(self.end - ends, sizes)
        return every

    def between(self, first: int, stop: int) -> RowStretches:
        """Return some of the stretches."""
        return RowStretches(self.begin[first:stop], self.end[first:stop], self.series[first:stop])


def _observed_values(column: ColumnData, rows: slice | Int64) -> tuple[Bools, Float64]:
    """Return which of `rows` have a value, and the values as float64.

    Raises
    ------
    ValueError
        If a value is infinite.
    """
    if isinstance(column, StreamedColumn):
        column, rows = column.read(rows), slice(None)
    observed = column.observed(rows)
    values: npt.NDArray[Any] = column.values[rows]
    if not observed.all():
        values = values[observed]
    if is_bits(column.dtype):
        values = decode_elements(column.dtype, values)
    found = np.ascontiguousarray(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise ValueError(
            f"column {column.name!r} holds {int(np.isinf(found).sum())} infinite values among "
            f"{len(found)} sampled rows, expected finite ones to fit a scaler to"
        )
    return observed, found


def estimate_columns(
    table: Table,
    stretches: RowStretches,
    columns: Sequence[str],
    kind: str,
    sample: int | None,
    per_series: bool,
    seed: int,
) -> tuple[Estimates, Estimates | None]:
    """Estimate columns for all series together, and for each series if `per_series`.

    Parameters
    ----------
    stretches
        The rows that are read, or drawn from.

    Returns
    -------
    pooled, by_series
        Estimates of shape (1, columns) and of shape (series of the table, columns), or None.
    """
    found = [table.column(name) for name in columns]
    limit = None
    if isinstance(table, StreamedTable):
        limit = int(max(table.memory_budget or 0, SAMPLE_BYTES)) // BYTES_PER_SAMPLE
    pooled = Estimates.empty(kind, (1, len(columns)))
    together = stretches._replace(series=np.zeros_like(stretches.series))
    _estimate_all(pooled, together, found, kind, sample, seed, limit)
    if not per_series:
        return pooled, None
    by_series = Estimates.empty(kind, (table.num_series, len(columns)))
    _estimate_all(by_series, stretches, found, kind, sample, seed, limit)
    return pooled, by_series


def estimate_sample(table: Table, columns: Sequence[str], kind: str, total: int) -> Estimates:
    """Estimate columns from all rows of a table, which were drawn of `total` rows.

    Returns
    -------
    Estimates
        Arrays of shape (1, columns): those of `estimate_columns` for the same sample.
    """
    out = Estimates.empty(kind, (1, len(columns)))
    sampled, totals = np.array([table.num_rows]), np.array([total])
    for number, name in enumerate(columns):
        observed, values = _observed_values(table.column(name), slice(0, table.num_rows))
        counts = np.array([np.count_nonzero(observed)], dtype=np.int64)
        out.put(([0], number), _estimate(kind, name, values, counts, sampled, totals))
    return out


def _estimate_all(
    out: Estimates,
    stretches: RowStretches,
    columns: Sequence[ColumnData],
    kind: str,
    sample: int | None,
    seed: int,
    limit: int | None,
) -> None:
    """Write the estimates of every series; some whole series are read at a time."""
    if not len(stretches.series):
        return
    first = np.flatnonzero(np.diff(stretches.series, prepend=-1))
    totals: Int64 = np.add.reduceat(stretches.end - stretches.begin, first)
    taken = totals if sample is None else np.minimum(totals, sample)
    if limit is not None and int(taken.max()) > limit:
        raise ValueError(
            f"`sample` must be at most {limit} rows of this streamed table, whose values are read "
            f"into memory, got {sample} of {int(taken.max())} rows"
        )
    part_of = (np.cumsum(taken) - taken) // ROWS_AT_A_TIME
    parts = np.flatnonzero(np.diff(part_of, prepend=-1)).tolist()
    ends = np.append(first, len(stretches.series))
    bounds = [*pairwise([*parts, len(first)])]
    with report_progress(None, "fitting a scaler", len(bounds) * len(columns)) as advance:
        for start, stop in bounds:
            series = stretches.series[first[start:stop]]
            if (taken[start:stop] == totals[start:stop]).all():
                rows = stretches.between(ends[start], ends[stop]).rows(None, seed, 0)
            else:
                drawn = [
                    stretches.between(ends[i], ends[i + 1]).rows(sample, seed, int(one))
                    for i, one in enumerate(series.tolist(), start)
                ]
                rows = drawn[0] if len(drawn) == 1 else _joined(drawn)
            for number, column in enumerate(columns):
                observed, values = _observed_values(column, rows)
                counts = taken[start:stop]
                if len(values) < len(observed):
                    begins = np.cumsum(counts) - counts
                    counts = np.add.reduceat(observed, begins, dtype=np.int64)
                estimates = _estimate(
                    kind, column.name, values, counts, taken[start:stop], totals[start:stop]
                )
                out.put((series, number), estimates)
                advance(1)


def _joined(parts: Sequence[slice | Int64]) -> Int64:
    """Return rows given in parts as one array."""
    arrays = [np.arange(p.start, p.stop) if isinstance(p, slice) else p for p in parts]
    rows: Int64 = np.concatenate(arrays)
    return rows


def _estimate(
    kind: str, name: str, values: Float64, counts: Int64, sampled: Int64, totals: Int64
) -> Estimates:
    """Estimate from the first ``counts[0]`` values, the next ``counts[1]``, and so on.

    They are those of `sampled` of `totals` rows, drawn without replacement. Series with the same
    number of values are the rows of one matrix: NumPy adds each row as it would add the row alone,
    so an estimate does not depend on the other series.
    """
    out = Estimates.empty(kind, counts.shape)
    # The finite population correction; the errors are 0 when all rows were read.
    correction = np.sqrt((totals - sampled) / np.maximum(totals - 1, 1))
    begins = np.cumsum(counts) - counts
    order = np.argsort(counts, kind="stable")
    lengths, first = np.unique(counts[order], return_index=True)
    for n, where in zip(lengths.tolist(), np.split(order, first[1:]), strict=True):
        if n == 0:
            continue
        if len(where) == len(counts):
            x = values.reshape(-1, n)
        else:
            x = values[begins[where][:, None] + np.arange(n)]
        wants_errors = bool(correction[where].any())
        with np.errstate(over="ignore", invalid="ignore"):
            statistics, errors = KINDS[kind].describe(x, wants_errors)
        for key, found in statistics.items():
            out.statistics[key][where] = found
            if wants_errors:
                out.errors[key][where] = errors[key] * correction[where]
    with np.errstate(over="ignore", invalid="ignore"):
        center, spread = KINDS[kind].center_spread(out.statistics)
    if not (np.isfinite(center).all() and np.isfinite(spread).all()):
        raise ValueError(f"column {name!r} holds values too large to fit a scaler to in float64")
    return Estimates(out.statistics, out.errors, counts, counts * (totals / sampled))


def merge_estimates(
    kind: str, parts: Sequence[tuple[tuple[SeriesName, ...], Estimates]]
) -> tuple[tuple[SeriesName, ...], Estimates]:
    """Merge two estimates, each given with the names of its series; series match by name."""
    merge = KINDS[kind].merge
    assert merge is not None
    names = tuple(dict.fromkeys(name for series, _ in parts for name in series))
    row_of = {name: row for row, name in enumerate(names)}
    shape = (len(names), parts[0][1].counts.shape[1])
    a, b = (Estimates.empty(kind, shape) for _ in parts)
    for out, (series, estimates) in zip((a, b), parts, strict=True):
        out.put(np.array([row_of[name] for name in series], dtype=np.int64), estimates)
    both = (a.counts > 0) & (b.counts > 0)
    only_b = (a.counts == 0) & (b.counts > 0)
    a.put(only_b, b.take(only_b))
    first, second = a.take(both), b.take(both)
    counts, weights = first.counts + second.counts, first.weights + second.weights
    a.put(both, Estimates(*merge(first, second), counts, weights))
    return names, a
