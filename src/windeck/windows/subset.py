"""Subsets of windows: by series, by rows and by time. O(series) time and memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util import fingerprints
from windeck._util.indices import Int64, as_indices
from windeck._util.text import NAMED, plural, some_names
from windeck._util.validation import check_integer
from windeck._util.warning import warn
from windeck.columns import bitmaps
from windeck.columns.dtypes import Bits, Bools
from windeck.columns.times import parse_time, time_tick
from windeck.table.streamed import StreamedTimes
from windeck.table.table import Table
from windeck.windows.filters import (
    FILTERS,
    WindowFilter,
    WindowReport,
    apply_filter,
    as_integers,
    describe_steps,
)
from windeck.windows.index import PADS, WindowRuns, WindowSpan

Timestamps = npt.NDArray[Any]

# Bits of a subset's bitmap that are copied at a time.
BITS_AT_A_TIME = 1 << 18


@dataclass(frozen=True)
class RunSubset:
    """Window runs, each of them a contiguous part of a window run of a larger set.

    Attributes
    ----------
    runs
        The window runs of the subset.
    skipped
        int64 of shape (window runs,): windows of the larger window run before the first one of
        the subset.
    parents
        int64 of shape (window runs,): numbers of the larger window runs.
    """

    runs: WindowRuns
    skipped: Int64
    parents: Int64


def take_runs(runs: WindowRuns, numbers: Int64) -> RunSubset:
    """Return whole window runs with these numbers."""
    return RunSubset(runs.take(numbers), np.zeros(len(numbers), dtype=np.int64), numbers)


def clip_runs(
    runs: WindowRuns, span: WindowSpan, lowest: Int64, low: Int64, high: Int64
) -> RunSubset:
    """Return the windows with start rows from `lowest` on that end within the rows below `high`.

    The rows of the new window runs are ``[low, high)``. Where `high` is that of the window run, its
    windows end in time, and padded ones stay.
    """
    clipped, skipped = runs.clip(lowest, np.where(high < runs.high, high - span.rows, high))
    clipped = replace(clipped, low=low, high=high)
    return RunSubset(clipped, skipped, np.arange(len(skipped), dtype=np.int64))


@dataclass(frozen=True)
class WindowSelection:
    """The windows of a table that are kept: window runs, and a bitmap of the windows in them.

    Attributes
    ----------
    offsets
        int64 of shape (series + 1,): first rows of the series of the table, and its row count.
    keep
        One bit for each window of `runs`; None where all are kept.
    report
        The numbers of windows kept and dropped.
    """

    offsets: Int64
    span: WindowSpan
    runs: WindowRuns
    keep: Bits | None
    report: WindowReport

    @classmethod
    def of_table(
        cls, offsets: Int64, span: WindowSpan, conditions: WindowFilter, names: Sequence[Any]
    ) -> WindowSelection:
        """Select all windows that fit into their series and pass the filter.

        `names` are those of the series, for the report.

        Raises
        ------
        ValueError
            If no window is left.

        Warns
        -----
        UserWarning
            If some series are shorter than a window, or lose every window to the filter.
        """
        runs = span.runs(offsets)
        series, fitting, short = len(runs.count), runs.total, int((runs.count == 0).sum())
        steps = describe_steps(span)
        if fitting == 0:
            padded = replace(span, pad=PADS["both"]) if span.prediction_length else span
            raise ValueError(
                f"no window fits: a window spans {plural(span.rows, 'row')} ({steps}), the longest "
                f"of {series} series has {plural(int(np.diff(offsets).max(initial=0)), 'row')}"
                + "; expected longer series, or pad='both' to forecast these"
                * (padded.runs(offsets).total > 0)
            )
        if short:
            warn(
                f"{short} of {series} series are shorter than a window of "
                f"{plural(span.rows, 'row')} and have no windows",
            )
        result = apply_filter(conditions, span, runs, offsets)
        dropped = result.dropped
        if sum(dropped.values()) == fitting:
            observed = "".join(
                f"{dropped[part]} have too few observed {part} values, "
                for part in ("past", "future")
                if part in dropped
            )
            raise ValueError(
                f"no window is left: of {fitting} that fit, {observed}{dropped['missing']} have "
                f"too many missing target values and {dropped['gap']} span a break in time"
                + (f" of more than max_gap={conditions.gap}" if conditions.gap else "")
            )
        report = WindowReport(
            fitting, series, short, fitting, {}, span.rows, steps, gap=conditions.gap
        )
        selection = cls(offsets, span, runs, result.keep, report.drop(**dropped))
        lost = np.flatnonzero((runs.count > 0) & (selection.window_counts() == 0))
        if not len(lost):
            return selection
        series_names = tuple(names[number] for number in runs.series[lost[:NAMED]].tolist())
        report = replace(selection.report, lost_series=len(lost), lost_names=series_names)
        warn(f"{report.describe_lost()}; `explain()` has the reasons")
        return replace(selection, report=report)

    @cached_property
    def count(self) -> int:
        """Number of windows. O(series), or O(windows / 8) with a bitmap."""
        return self.runs.total if self.keep is None else bitmaps.count(self.keep)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.runs.nbytes + (0 if self.keep is None else self.keep.nbytes)

    def window_counts(self) -> Int64:
        """Count the windows of each window run. O(series), or O(windows / 8) with a bitmap."""
        if self.keep is None:
            return self.runs.count
        return np.diff(bitmaps.count_before(self.keep, np.cumsum(self.runs.count)), prepend=0)

    def index(self) -> _core.WindowIndex:
        """Make the native index."""
        runs = self.runs
        return _core.WindowIndex(
            runs.first, runs.count, runs.stride, series=runs.series, keep=self.keep
        )

    def digest(self) -> str:
        """Return a digest of the start rows."""
        return fingerprints.digest(self.runs.first, self.runs.count, self.runs.series, self.keep)

    def report_dropped(self, **dropped: int) -> WindowSelection:
        """Return the same selection, with windows dropped added to its report by reason."""
        return replace(self, report=self.report.drop(**dropped))

    def restrict(self, subset: RunSubset) -> WindowSelection:
        """Return the windows of this selection in a subset of its window runs; the report stays."""
        return replace(self, runs=subset.runs, keep=self._bitmap_of(subset))

    def _bitmap_of(self, subset: RunSubset) -> Bits | None:
        """Copy the bits of a subset's windows into a bitmap of their own."""
        if self.keep is None:
            return None
        total, count = subset.runs.total, subset.runs.count
        ends = np.cumsum(count)
        first = (np.cumsum(self.runs.count) - self.runs.count)[subset.parents] + subset.skipped
        move: Int64 = first - (ends - count)
        keep = np.zeros((total + 7) // 8, dtype=np.uint8)
        for start in range(0, total, BITS_AT_A_TIME):
            numbers = np.arange(start, min(start + BITS_AT_A_TIME, total), dtype=np.int64)
            run = np.searchsorted(ends, numbers, side="right")
            bitmaps.write(keep, start, bitmaps.take(self.keep, numbers + move[run]))
        return keep


# --- subsets ---------------------------------------------------------------------------------


def select(
    selection: WindowSelection,
    table: Table,
    series: Any = None,
    rows: Any = None,
    time: Any = None,
    indices: Any = None,
    mask: Any = None,
    last: int | None = None,
) -> WindowSelection:
    """Return the windows that meet all conditions given; see `Windows.subset`.

    Raises
    ------
    KeyError, IndexError
        If a series or a window does not exist.
    ValueError
        If no window is left.
    """
    found, stamps = selection, table.timestamps
    if mask is not None:
        found = _take_windows(found, np.flatnonzero(_check_mask(mask, found.count)))
    if indices is not None:
        if mask is not None:
            raise ValueError("`indices` and `mask` must not both be given")
        found = _take_windows(found, _check_numbers(indices, found.count))
    if series is not None:
        numbers = _series_numbers(table.series_names, series)
        chosen = np.flatnonzero(np.isin(found.runs.series, numbers)).astype(np.int64)
        found = found.restrict(take_runs(found.runs, chosen))
    if rows is not None:
        start, stop = _row_range(rows, table.num_rows)
        found = found.restrict(_within_rows(found, np.int64(start), np.int64(stop)))
    if time is not None:
        if stamps is None:
            raise ValueError(f"`time` is {time!r}, but the table has no timestamp column")
        start, stop = _start_stop("time", time)
        runs, begin = found.runs, found.offsets[found.runs.series]
        low = begin if start is None else rows_at(replace(runs, low=begin), stamps, start)
        high = runs.high if stop is None else rows_at(runs, stamps, stop)
        found = found.restrict(_within_rows(found, low, high))
    if last is not None:
        found = found.restrict(_last_windows(found, check_integer("last", last, least=1)))
        if mask is None and indices is None:
            _warn_of_earlier_ends(found, table.series_names)
    if found.count == 0:
        raise ValueError("the subset holds no window")
    if found is selection:
        return selection
    return found.report_dropped(subset=selection.count - found.count)


def _check_mask(mask: Any, windows: int) -> Bools:
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (windows,):
        raise ValueError(
            f"`mask` must be bool of shape ({windows},), one for each window, got {array.dtype} of "
            f"shape {array.shape}"
        )
    return array


def _check_numbers(indices: Any, windows: int) -> Int64:
    """Return window numbers in ascending order; they must exist and differ."""
    numbers = np.sort(as_indices(indices))
    if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < windows:
        wrong = numbers[0] if numbers[0] < 0 else numbers[-1]
        raise IndexError(f"window {wrong} is out of range, expected [0, {windows})")
    repeated = np.flatnonzero(numbers[1:] == numbers[:-1])
    if len(repeated):
        raise ValueError(
            f"`indices` must name each window once, got {numbers[repeated[0]]} more than once"
        )
    return numbers


def _take_windows(selection: WindowSelection, numbers: Int64) -> WindowSelection:
    """Keep the windows with these ascending numbers: a bitmap for each window run."""
    runs = selection.runs
    series, rows = selection.index().locate(numbers)
    run = np.searchsorted(runs.series, series)
    place = (rows - runs.first[run]) // runs.stride
    live, at, run = np.unique(run, return_index=True, return_inverse=True)
    runs = runs.take(live)
    skipped = place[at]
    count = place[np.append(at[1:], len(place)) - 1] + 1 - skipped if len(live) else skipped
    kept = replace(runs, first=runs.first + skipped * runs.stride, count=count)
    if kept.total == len(numbers):
        return replace(selection, runs=kept, keep=None)
    bit = place - skipped[run] + (np.cumsum(count) - count)[run]
    keep = np.zeros((kept.total + 7) // 8, dtype=np.uint8)
    np.bitwise_or.at(keep, bit >> 3, np.left_shift(1, bit & 7).astype(np.uint8))
    return replace(selection, runs=kept, keep=keep)


def _last_windows(selection: WindowSelection, number: int) -> RunSubset:
    """Return the last windows of each window run. O(window runs * log(windows)) time."""
    runs, index = selection.runs, selection.index()
    # Windows are numbered window run by window run: find the number after the last of each.
    low: Int64 = np.zeros(len(runs.count), dtype=np.int64)
    high: Int64 = np.full(len(runs.count), len(index), dtype=np.int64)
    while len(searching := np.flatnonzero(low < high)):
        middle = (low[searching] + high[searching]) // 2
        inside = index.locate(middle)[0] <= runs.series[searching]
        low[searching[inside]] = middle[inside] + 1
        high[searching[~inside]] = middle[~inside]
    first = np.maximum(low - number, np.concatenate([[0], low[:-1]])) if len(low) else low
    live = np.flatnonzero(first < low)
    lowest = np.full(len(low), np.iinfo(np.int64).max // 2, dtype=np.int64)
    lowest[live] = index.locate(first[live])[1]
    clipped, skipped = runs.clip(lowest, runs.high)
    return RunSubset(clipped, skipped, np.arange(len(skipped), dtype=np.int64))


def _warn_of_earlier_ends(selection: WindowSelection, names: Sequence[Any]) -> None:
    """Warn of series the last windows of which a filter dropped, so that others are the last."""
    options = [o for reason, o in FILTERS.items() if selection.report.dropped.get(reason)]
    if selection.keep is None or not options:
        return
    runs, counts = selection.runs, selection.window_counts()
    kept = counts > 0
    last = runs.first + (runs.count - 1) * runs.stride
    earlier = ~kept & (runs.count > 0)
    earlier[kept] = selection.index().locate(np.cumsum(counts)[kept] - 1)[1] < last[kept]
    if earlier.any():
        warn(
            f"the last windows of {int(earlier.sum())} series were dropped by "
            f"{', '.join(options)}: {some_names(names, runs.series[earlier].tolist())}; those that "
            "are kept begin earlier; a forecast, which no filter drops, is of latest(future=True)",
        )


def _series_numbers(names: Sequence[Any], wanted: Any) -> Int64:
    """Return the numbers of series given by a name, a number, or several of either."""
    several = isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes, tuple))
    numbers = {name: number for number, name in enumerate(names)}
    names_are_integers = bool(names) and isinstance(names[0], int)
    found = []
    for one in wanted if several else [wanted]:
        if one in numbers:
            found.append(numbers[one])
        elif isinstance(one, (int, np.integer)) and not names_are_integers:
            if not 0 <= one < len(names):
                raise IndexError(f"series {one} is out of range, the table has {len(names)} series")
            found.append(int(one))
        else:
            texts = [str(name) for name in names]
            near = difflib.get_close_matches(str(one), texts, n=3) or texts[:3]
            raise KeyError(f"no series {one!r} among {len(names)}; near matches: {', '.join(near)}")
    return np.array(found, dtype=np.int64)


def _within_rows(selection: WindowSelection, low: Int64, high: Int64) -> RunSubset:
    """Return the windows that lie entirely, padding left out, in rows ``[low, high)``."""
    runs = selection.runs
    # A range with the first row of a series keeps its padded windows, which begin before that row.
    # The first row of a window run is no such limit: contexts of a split part reach back before it.
    lowest = np.where(low <= selection.offsets[runs.series], runs.first, low)
    low = np.clip(low, runs.low, runs.high)
    high = np.clip(high, low, runs.high)
    return clip_runs(runs, selection.span, lowest, low, high)


def _row_range(rows: Any, total: int) -> tuple[int, int]:
    """Return first row and last row + 1 of a pair or a slice, with either end possibly None."""
    if isinstance(rows, slice):
        if rows.step not in (None, 1):
            raise ValueError(f"`rows` must be a range without a step, got {rows}")
        rows = (rows.start, rows.stop)
    start, stop = _start_stop("rows", rows)
    start = 0 if start is None else check_integer("rows", start, least=0)
    stop = total if stop is None else check_integer("rows", stop, least=0)
    if not start <= stop <= total:
        raise ValueError(
            f"`rows` must be a range within {plural(total, 'row')}, got ({start}, {stop})"
        )
    return start, stop


def _start_stop(name: str, value: Any) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"`{name}` must be a pair (start, stop), None for no limit, got {value!r}")
    return value[0], value[1]


# --- time stamps -----------------------------------------------------------------------------


def parse_timestamp(value: Any, stamps: Timestamps) -> int:
    """Return the first tick of the table's time stamps that is not before a time stamp.

    Datetimes with a zone count as UTC. The result is outside of int64 for a time stamp that the
    unit of the table cannot hold.
    """
    if stamps.dtype.kind != "M":
        if not isinstance(value, (int, np.integer)):
            raise TypeError(
                f"a time stamp must be an integer, as the table's are {stamps.dtype}, got {value!r}"
            )
        return int(value)
    if isinstance(value, (int, np.integer, float)):
        raise TypeError(
            f"a time stamp must be a date or a time, as the table's are {stamps.dtype}, "
            f"got {value!r}"
        )
    try:
        stamp = parse_time(value)
    except (TypeError, ValueError):
        stamp = np.datetime64("NaT")
    if np.isnat(stamp):
        raise ValueError(f"a time stamp must be one such as '2014-03-01', got {value!r}")
    return time_tick(stamp, stamps.dtype)


def rows_at(runs: WindowRuns, stamps: Timestamps, time: Any) -> Int64:
    """Return for each window run the first row of ``[low, high)`` at or after `time`, else `high`.

    One binary search for all window runs: O(window runs * log(rows)).
    """
    tick = parse_timestamp(time, stamps)
    in_files: Any = stamps
    if isinstance(in_files, StreamedTimes):
        return in_files.first_rows(runs.low, runs.high, tick)
    ticks = as_integers(stamps)
    low: Int64 = runs.low.copy()
    high: Int64 = runs.high.copy()
    while True:
        searching = np.flatnonzero(low < high)
        if len(searching) == 0:
            return low
        middle: Int64 = low[searching] + (high[searching] - low[searching]) // 2
        before = ticks[middle] < tick
        low[searching[before]] = middle[before] + 1
        high[searching[~before]] = middle[~before]
