"""Time order: sorting series that are not sorted, and reporting duplicates and breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck._util.text import plural
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Bools, Int64s
from windeck.columns.times import ticks_of
from windeck.table.frequency import MONTH_DAYS
from windeck.table.local_times import TimeSteps
from windeck.table.series import ROWS_AT_A_TIME, Reordering, reorder

_MAX_STEPS_COUNTED = 1024


@dataclass(frozen=True)
class GridReport:
    """Report on rows that were put on a grid of time.

    Attributes
    ----------
    added : int
        Rows of missing values at steps without a row.
    moved : int
        Rows that were between two steps (`off_grid`).
    merged : int
        Rows that are left out, or part of a mean, as another row has their step (`duplicates`).
    duplicates : "error", "first", "last" or "mean"
    first_moved, first_merged : str or None
        Series and time stamp of the first such row, as before it was moved; in UTC, and marked so,
        if the time stamps have a zone.
    """

    added: int = 0
    moved: int = 0
    merged: int = 0
    duplicates: str = "error"
    first_moved: str | None = None
    first_merged: str | None = None

    @classmethod
    def of_files(cls, reports: Sequence[GridReport], duplicates: str) -> GridReport:
        """Return the report of all files, in their order."""
        return cls(
            sum(one.added for one in reports),
            sum(one.moved for one in reports),
            sum(one.merged for one in reports),
            duplicates,
            next((one.first_moved for one in reports if one.moved), None),
            next((one.first_merged for one in reports if one.merged), None),
        )

    def lines(self) -> list[str]:
        """Return the report as text: a line each for rows added, moved, and dropped or merged."""
        lines = []
        if self.added:
            lines.append(f"{plural(self.added, 'row')} of missing values added to the grid")
        if self.moved:
            moved = f"{plural(self.moved, 'row')} moved to the grid"
            lines.append(f"{moved}, the first of {self.first_moved}")
        if self.merged:
            done = f"dropped for the {self.duplicates} row of the step"
            if self.duplicates == "mean":
                done = "merged into the mean of a step"
            lines.append(f"{plural(self.merged, 'row')} {done}, the first of {self.first_merged}")
        return lines


@dataclass(frozen=True, eq=False)
class OrderReport:
    """Report on the order of rows. Arrays have one entry for each series.

    Attributes
    ----------
    regrouped : bool
        Rows were grouped by series (`sort=True`).
    sorted_series : tuple of int
        Numbers of the series that were not sorted by time, and are now.
    backward : int64 ndarray, shape (series,)
        Steps back in time, as stored.
    duplicates : int64 ndarray, shape (series,)
        Rows with the timestamp of the previous row, as stored.
    duplicates_sorted : int64 ndarray, shape (series,)
        The same after sorting.
    irregular : int64 ndarray, shape (series,)
        Steps that differ from the usual one of the series, after sorting.
    breaks : int64 ndarray, shape (series,)
        Steps larger than the usual one of the series, after sorting; where that is the length of a
        month, a quarter, half a year or a year, larger than the longest of these.
    steps : int64 ndarray, shape (series,)
        Usual step of each series in `unit`: the most frequent one, 0 if there is none. Where the
        time stamps have a time zone, whole days are those of local time: 24 hours in `unit`.
    unit : str or None
        Unit of `steps` ("us", "D", ...); None for integer timestamps, or without timestamps.
    span : (int, int) or None
        First and last timestamp of all series in `unit`; None without timestamps.
    grids : tuple of GridReport
        Rows added, moved and merged by each `Table.regularize`; empty without one.
    """

    regrouped: bool
    sorted_series: tuple[int, ...]
    backward: Int64s
    duplicates: Int64s
    duplicates_sorted: Int64s
    irregular: Int64s
    breaks: Int64s
    steps: Int64s
    unit: str | None = None
    span: tuple[int, int] | None = None
    grids: tuple[GridReport, ...] = ()

    @classmethod
    def without_time(cls, series: int, *, regrouped: bool) -> OrderReport:
        """Return the report of a table without timestamps."""
        none = np.zeros(series, dtype=np.int64)
        return cls(regrouped, (), none, none, none, none, none, none)

    @property
    def step(self) -> np.timedelta64 | int | None:
        """The usual step of most series; None if no series has two different timestamps."""
        known = self.steps[self.steps > 0]
        if not len(known):
            return None
        steps, counts = np.unique(known, return_counts=True)
        step = int(steps[np.argmax(counts)])
        return step if self.unit is None else np.timedelta64(step, self.unit)  # type: ignore[call-overload]

    @property
    def clean(self) -> bool:
        """True if rows are grouped and sorted as stored, with regular steps."""
        return not (self.regrouped or self.backward.any() or self.irregular.any())

    def lines(self) -> list[str]:
        """Return the findings as text, one line each."""
        lines = ["rows grouped by series"] if self.regrouped else []
        lines += [line for grid in self.grids for line in grid.lines()]
        if self.sorted_series:
            back, many = int(self.backward.sum()), len(self.sorted_series)
            lines.append(f"{_series(many)} sorted by time ({_count(back, 'backward step')})")
        if self.duplicates_sorted.any():
            after = int(self.duplicates_sorted.sum())
            more = f", {after:,} after sorting" if after != self.duplicates.sum() else ""
            lines.append(_where(self.duplicates, "duplicate stamp") + more)
        if self.breaks.any():
            lines.append(f"{_where(self.breaks, 'break')} (steps larger than the usual one)")
        if self.irregular.any():
            lines.append(f"{_series(int(np.count_nonzero(self.irregular)))} with irregular steps")
        return lines


def _where(counts: Int64s, what: str) -> str:
    return f"{_count(int(counts.sum()), what)} in {_series(int(np.count_nonzero(counts)))}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _series(number: int) -> str:
    return f"{number:,} series"


def sort_by_time(
    stamps: ColumnData, offsets: Int64s, *, owned: bool, regrouped: bool
) -> tuple[ColumnData, list[Reordering], OrderReport]:
    """Sort each series by time (stable) if it is not sorted, and report on its steps.

    Returns
    -------
    stamps : ColumnData
        Sorted timestamps.
    reorderings : list of Reordering
        Reorderings to apply to every other column.
    report : OrderReport

    Raises
    ------
    ValueError
        A timestamp is missing.
    """
    ticks = _ticks(stamps)
    backward = _per_series(ticks, offsets, np.less)
    duplicates = doubled = _per_series(ticks, offsets, np.equal)
    late = np.flatnonzero(backward)
    reorderings = [_sorting(ticks, int(offsets[s]), int(offsets[s + 1])) for s in late]
    if reorderings:
        stamps = reorder(stamps, reorderings, owned=owned)
        ticks = _ticks(stamps)
        doubled = _per_series(ticks, offsets, np.equal)
    rule = TimeSteps(str(stamps.values.dtype), stamps.time_zone)
    steps = usual_steps(ticks, offsets, rule)
    irregular, breaks = _unusual(ticks, offsets, steps, rule)
    series = tuple(int(s) for s in late)
    found = backward, duplicates, doubled, irregular, breaks, steps
    report = OrderReport(regrouped, series, *found, _unit(stamps), _span(ticks, offsets))
    return stamps, reorderings, report


def _span(ticks: Array, offsets: Int64s) -> tuple[int, int] | None:
    """Return the first and the last timestamp of sorted series, None without rows."""
    used = np.flatnonzero(np.diff(offsets))
    if not len(used):
        return None
    return int(ticks[offsets[used]].min()), int(ticks[offsets[used + 1] - 1].max())


def _unit(stamps: ColumnData) -> str | None:
    if stamps.values.dtype.kind != "M":
        return None
    unit, count = np.datetime_data(stamps.values.dtype)
    return unit if count == 1 else f"{count}{unit}"


def _ticks(stamps: ColumnData) -> Array:
    """Return timestamps as integers; ValueError if one is missing."""
    values = stamps.values
    if values.dtype.kind == "M":
        missing = ~stamps.observed() if stamps.validity is not None else np.isnat(values)
        values = values.view(np.int64)
    else:
        missing = ~stamps.observed() if stamps.validity is not None else np.zeros(1, dtype=bool)
    if missing.any():
        raise ValueError(
            f"timestamp column {stamps.name!r} is missing in row {int(np.argmax(missing))}; "
            "expected a timestamp in every row"
        )
    return values


def _sorting(ticks: Array, start: int, stop: int) -> Reordering:
    order = np.argsort(ticks[start:stop], kind="stable").astype(np.int64)
    return Reordering(start, order + start)


def _row_ranges(rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of adjacent rows, so that temporary memory does not grow with the table."""
    for start in range(0, rows - 1, ROWS_AT_A_TIME):
        yield start, min(start + ROWS_AT_A_TIME, rows - 1)


def _pairs(ticks: Array, offsets: Int64s) -> Iterator[tuple[int, Array, Array, Bools]]:
    """Yield first row, timestamps, next timestamps and a mask of pairs within a series."""
    for start, stop in _row_ranges(len(ticks)):
        within = np.ones(stop - start, dtype=np.bool_)
        first, last = np.searchsorted(offsets, [start + 1, stop + 1])
        within[offsets[first:last] - 1 - start] = False
        yield start, ticks[start:stop], ticks[start + 1 : stop + 1], within


def _per_series(ticks: Array, offsets: Int64s, test: np.ufunc) -> Int64s:
    """Return for each series the number of adjacent rows with ``test(later, earlier)``."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    for start, before, after, within in _pairs(ticks, offsets):
        _add(counts, offsets, start + np.flatnonzero(test(after, before) & within))
    return counts


def _unusual(
    ticks: Array, offsets: Int64s, steps: Int64s, rule: TimeSteps
) -> tuple[Int64s, Int64s]:
    """Return for each series the numbers of steps unlike its usual one, and larger than it."""
    longest = longest_steps(steps, rule.dtype)
    irregular, breaks = np.zeros((2, len(offsets) - 1), dtype=np.int64)
    for start, before, after, within in _pairs(ticks, offsets):
        inside = np.flatnonzero(within)
        step = rule.between(before, after)[inside]
        usual = np.repeat(*_steps_of_rows(offsets, steps, start, len(within)))[inside]
        most = usual
        if longest is not steps:
            most = np.repeat(*_steps_of_rows(offsets, longest, start, len(within)))[inside]
        _add(irregular, offsets, start + inside[step != usual])
        # Rows ascend: a difference beyond int64 is right as an unsigned number.
        larger = step.view(np.uint64) > most.view(np.uint64)
        _add(breaks, offsets, start + inside[larger & (usual > 0)])
    return irregular, breaks


def _steps_of_rows(offsets: Int64s, steps: Int64s, start: int, rows: int) -> tuple[Int64s, Int64s]:
    """Return the usual steps of series that overlap rows [start, start + rows), and their rows."""
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, start + rows, side="left"))
    ends = np.clip(offsets[first : last + 1], start, start + rows)
    return steps[first:last], np.diff(ends)


def _add(counts: Int64s, offsets: Int64s, rows: Array) -> None:
    if len(rows):
        series = np.searchsorted(offsets, rows, side="right") - 1
        counts += np.bincount(series, minlength=len(counts))


def longest_steps(usual: Int64s, dtype: str) -> Int64s:
    """Return the longest step that is no break, for usual steps in the ticks of `dtype`.

    That is the usual step, but for the lengths of months: a quarter has 90 to 92 days.

    Examples
    --------
    >>> longest_steps(np.array([1, 30, 365]), "M8[D]").tolist()
    [1, 31, 366]
    """
    kind = np.dtype(dtype)
    if kind.kind != "M" or np.datetime_data(kind)[0] in ("Y", "M", "W"):
        return usual
    day = ticks_of(np.timedelta64(1, "D"), kind)
    longest = usual
    for lengths in MONTH_DAYS.values():
        if lengths.stop * day >= 1 << 63:
            break
        inside = (usual >= lengths.start * day) & (usual < lengths.stop * day) & (usual % day == 0)
        if inside.any():
            longest = np.where(inside, (lengths.stop - 1) * day, longest)
    return longest


def usual_steps(ticks: Array, offsets: Int64s, rule: TimeSteps) -> Int64s:
    """Return the most frequent positive step of each series, the smallest of equals, 0 if none.

    Of a series of more than 1,024 steps, 1,024 evenly spaced ones are counted.
    """
    usual = np.zeros(len(offsets) - 1, dtype=np.int64)
    lengths = np.maximum(np.diff(offsets) - 1, 0)
    taken = np.minimum(lengths, _MAX_STEPS_COUNTED)
    for first, last in _series_ranges(taken):
        series = np.repeat(np.arange(first, last), taken[first:last])
        place = np.arange(len(series)) - np.repeat(
            np.cumsum(taken[first:last]) - taken[first:last], taken[first:last]
        )
        spread = place * lengths[series] // np.maximum(taken[series], 1)
        rows = offsets[series] + spread
        _most_frequent(usual, series, rule.between(ticks[rows], ticks[rows + 1]))
    return usual


def _series_ranges(taken: Int64s) -> Iterator[tuple[int, int]]:
    """Yield ranges of series that have about `ROWS_AT_A_TIME` counted steps together."""
    ends = np.cumsum(taken)
    first = 0
    while first < len(taken):
        done = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, done + ROWS_AT_A_TIME, side="right")), first + 1)
        yield first, last
        first = last


def _most_frequent(usual: Int64s, series: Any, steps: Int64s) -> None:
    """Write the most frequent positive step of each series into `usual`."""
    positive = steps > 0
    series, steps = series[positive], steps[positive]
    if not len(steps):
        return
    order = np.lexsort((steps, series))
    series, steps = series[order], steps[order]
    starts = np.flatnonzero(
        np.append(True, (series[1:] != series[:-1]) | (steps[1:] != steps[:-1]))
    )
    counts = np.diff(np.append(starts, len(steps)))
    ranked = np.lexsort((-steps[starts], counts, series[starts]))
    usual[series[starts][ranked]] = steps[starts][ranked]
