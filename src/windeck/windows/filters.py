"""Filters on the contents of windows: missing target values and gaps in time.

The result is one bit for each window that fits. Rows are read once, in order, a bounded number at a
time. Each window is tested by the difference of two prefix sums, so the time is O(rows) and does
not depend on the length of the windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.text import format_bytes, plural, some_names, verb
from windeck._util.validation import check_integer
from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Bits, Bools
from windeck.columns.times import parse_duration, ticks_of
from windeck.table.local_times import TimeSteps
from windeck.windows.index import WindowRuns, WindowSpan

# Rows read at a time, at least. A longer window reads as many rows as it spans.
ROWS_AT_A_TIME = 1 << 18

_MOST_GAP = (1 << 63) - 1


@dataclass(frozen=True)
class WindowFilter:
    """Conditions on the rows of a window.

    Parameters
    ----------
    targets
        The target columns, whose missing values count.
    allowed_missing, allowed_past, allowed_future
        Largest number of missing target values of a window, of its past and of its future; None:
        any number.
    timestamps, max_gap
        Time stamps as int64, and the largest difference of neighbouring rows; None: any difference.
    gap
        That difference as a text with its unit.
    steps
        The rule for differences of time stamps, by which days of local time are whole.
    """

    targets: Sequence[ColumnData] = ()
    allowed_missing: int | None = None
    timestamps: Int64 | None = field(default=None, repr=False)
    max_gap: int | None = None
    allowed_past: int | None = None
    allowed_future: int | None = None
    gap: str = ""
    steps: TimeSteps = field(default=TimeSteps(), repr=False)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons to report: those of `max_missing` and `max_gap` always."""
        own = {"past": self.allowed_past, "future": self.allowed_future}
        return ("missing", *(name for name, allowed in own.items() if allowed is not None), "gap")


@dataclass(frozen=True)
class FilterResult:
    """A bitmap of the windows kept (None: all), and the numbers dropped, by reason."""

    keep: Bits | None
    dropped: dict[str, int]


def apply_filter(
    conditions: WindowFilter, span: WindowSpan, runs: WindowRuns, offsets: Int64
) -> FilterResult:
    """Test all windows. O(rows) time; O(`ROWS_AT_A_TIME`) memory and one bit a window."""
    dropped = dict.fromkeys(conditions.reasons, 0)
    asked = {
        "missing": conditions.allowed_missing,
        "past": conditions.allowed_past,
        "future": conditions.allowed_future,
    }
    limits = {reason: allowed for reason, allowed in asked.items() if allowed is not None}
    if not limits and conditions.max_gap is None:
        return FilterResult(None, dropped)
    keep = np.zeros((runs.total + 7) // 8, dtype=np.uint8)
    for at, starts, begin, end in _stretches(span, runs, offsets):
        bad = np.zeros(len(starts), dtype=np.bool_)
        if limits:
            past, future = _count_missing(conditions.targets, span, starts, begin, end)
            counts = {"missing": past + future, "past": past, "future": future}
            for reason, allowed in limits.items():
                too_many = (counts[reason] > allowed) & ~bad
                dropped[reason] += int(too_many.sum())
                bad |= too_many
        if conditions.max_gap is not None and conditions.timestamps is not None:
            spans_gap = _spans_gap(
                conditions.timestamps,
                conditions.max_gap,
                span,
                starts,
                begin,
                end,
                steps=conditions.steps,
            )
            spans_gap &= ~bad
            dropped["gap"] += int(spans_gap.sum())
            bad |= spans_gap
        bitmaps.write(keep, at, ~bad)
    return FilterResult(keep if any(dropped.values()) else None, dropped)


def _stretches(
    span: WindowSpan, runs: WindowRuns, offsets: Int64
) -> Iterator[tuple[int, Int64, Int64, Int64]]:
    """Yield windows by stretches of rows: number of the first, start rows, bounds of series."""
    index = _core.WindowIndex(runs.first, runs.count, runs.stride, series=runs.series)
    total = len(index)
    length = max(ROWS_AT_A_TIME, span.rows)
    at = 0
    while at < total:
        _, (row,) = index.slice(at, at + 1)
        stop = runs.count_before(int(row) + length)
        series, starts = index.slice(at, stop)
        yield at, starts, offsets[series], offsets[series + 1]
        at = stop


def _count_missing(
    columns: Sequence[ColumnData], span: WindowSpan, starts: Int64, begin: Int64, end: Int64
) -> tuple[Int64, Int64]:
    """Count the missing target values of past and of future, steps of padding included."""
    # A window of one step may have a dilation larger than memory, which is not used.
    d = span.dilation if span.steps > 1 else 1
    low = max(int(starts[0]), 0)
    stop = min(int(starts[-1]) + span.rows, int(end[-1]))
    counts = np.zeros(stop - low, dtype=np.int64)
    for column in columns:
        if column.missing != 0:
            counts += ~column.observed(slice(low, stop))
    sums = _dilated_sums(counts, d)
    # Past steps before the series are missing in every column.
    padded = np.maximum(-((starts - begin) // d), 0)
    first = starts + padded * d - low
    # Steps after the series are missing too.
    inside = np.minimum(-((starts - end) // d), span.context_length)
    past: Int64 = (padded + span.context_length - inside) * len(columns)
    past += sums[starts + inside * d - low] - sums[first]
    if not span.prediction_length:
        return past, np.zeros_like(past)
    first = starts + span.future_first
    inside = np.minimum(-((first - end) // d), span.prediction_length)
    future: Int64 = (span.prediction_length - inside) * len(columns)
    future += sums[first + inside * d - low] - sums[first - low]
    return past, future


def _dilated_sums(counts: Int64, dilation: int) -> Int64:
    """Return prefix sums in steps of `dilation`.

    ``sums[i + dilation]`` is ``counts[i] + counts[i - dilation] + ...``; the first `dilation`
    elements are 0.
    """
    lines = -(-len(counts) // dilation) + 1
    padded = np.zeros(lines * dilation, dtype=np.int64)
    padded[dilation : dilation + len(counts)] = counts
    if dilation == 1:
        return np.cumsum(padded)
    return np.cumsum(padded.reshape(lines, dilation), axis=0).ravel()


def _spans_gap(
    stamps: Int64,
    max_gap: int,
    span: WindowSpan,
    starts: Int64,
    begin: Int64,
    end: Int64,
    *,
    steps: TimeSteps,
) -> Bools:
    """Return true for windows with neighbouring rows more than `max_gap` apart."""
    low = max(int(starts[0]), 0)
    stretch = stamps[low : int(starts[-1]) + span.rows]
    gaps = np.zeros(len(stretch), dtype=np.int64)
    # Of rows that ascend a difference beyond int64 is right as an unsigned number.
    apart = steps.between(stretch[:-1], stretch[1:])
    np.cumsum(apart.view(np.uint64) > np.uint64(max_gap), out=gaps[1:])
    last = np.minimum(starts + span.last, end - 1)
    found: Bools = gaps[last - low] > gaps[np.maximum(starts, begin) - low]
    return found


def allowed_missing(max_missing: float, values: int) -> int | None:
    """Return the largest number of `values` whose share is at most `max_missing`; None: any."""
    if not 0.0 <= max_missing <= 1.0:
        raise ValueError(f"`max_missing` must be a share between 0 and 1, got {max_missing!r}")
    if max_missing == 1.0:
        return None
    allowed = int(max_missing * values)
    # Compare quotients, not products: 3 of 10 is not more than 0.3.
    while (allowed + 1) / values <= max_missing:
        allowed += 1
    while allowed and allowed / values > max_missing:
        allowed -= 1
    return allowed


def allowed_unobserved(name: str, least: int | None, values: int) -> int | None:
    """Return the largest number of missing values with `least` observed; None: any number."""
    if least is None or check_integer(name, least, most=values) == 0:
        return None
    return values - least


def as_integers(stamps: npt.NDArray[Any]) -> Int64:
    """Return time stamps as int64 in their own unit: a view where they have 64 bits."""
    if stamps.dtype.kind == "M":
        return stamps.view(np.int64)
    return stamps.astype(np.int64, copy=False)


def gap_in_units(max_gap: Any, stamps: npt.NDArray[Any] | None, name: str = "max_gap") -> int:
    """Convert a duration, argument `name`, to the unit of the time stamps, rounded down."""
    if stamps is None:
        raise ValueError(f"`{name}` is {max_gap!r}, but the table has no timestamp column")
    duration = parse_duration(max_gap) if isinstance(max_gap, str) else max_gap
    # `np.timedelta64` is a subclass of `np.integer`, so look for it first.
    is_duration = isinstance(duration, (np.timedelta64, timedelta))
    if not is_duration and not isinstance(duration, (int, np.integer)):
        raise TypeError(
            f"`{name}` must be a timedelta64, a timedelta, a text such as '1h', or an integer, "
            f"got {max_gap!r} ({type(max_gap).__name__})"
        )
    if is_duration and stamps.dtype.kind != "M":
        raise TypeError(
            f"`{name}` must be an integer, as the timestamps are {stamps.dtype}, got {max_gap!r}"
        )
    if not duration > type(duration)(0):
        raise ValueError(f"`{name}` must be a positive duration, got {max_gap!r}")
    if not is_duration:
        return min(int(duration), _MOST_GAP)
    unit = np.datetime_data(stamps.dtype)[0]
    span: Any = np.timedelta64(duration)
    given = np.datetime_data(span.dtype)[0]
    if given != "generic" and (given in "MY") != (unit in "MY"):  # months differ in length
        example = "np.timedelta64(1, 'M')" if unit in "MY" else "np.timedelta64(31, 'D')"
        raise ValueError(
            f"`{name}` is {max_gap!r}, and the timestamps are {stamps.dtype}; expected a duration "
            f"such as {example}"
        )
    return min(ticks_of(span, stamps.dtype), _MOST_GAP)


#: The option that drops windows for a reason.
FILTERS = {
    "missing": "max_missing",
    "past": "min_observed_past",
    "future": "min_observed_future",
    "gap": "max_gap",
}
REASONS = {
    "missing": "with too many missing target values",
    "past": "with too few observed past values",
    "future": "with too few observed future values",
    "gap": "across a break in time",
    "border": "across a border of the split",
    "others": "in the other parts of the split",
    "subset": "outside the subset",
    "fold": "outside the fold or across one of its borders",
}


@dataclass(frozen=True)
class WindowReport:
    """The number of windows, and the numbers dropped by reason. ``str()`` gives it as text.

    Attributes
    ----------
    windows
        Number of windows: `fitting` less all that were dropped.
    series, short_series
        Number of series of the table, and of those shorter than a window.
    fitting
        Number of windows that fit into the series.
    dropped
        Number of windows dropped, by reason: ``"missing"``, ``"past"``, ``"future"``, ``"gap"``,
        ``"border"``, ``"others"``, ``"subset"``, ``"fold"``.
    rows, steps
        Number of rows that a window spans, and a text that describes its steps.
    reading
        Of windows of a streamed table: a text that describes the groups that are read.
    gap
        The largest difference of neighbouring time stamps, with its unit.
    lost_series, lost_names
        Number of series that had windows and lost all of them to the filters, and the names of the
        first ten.
    unseen_categories
        Of windows of a table in memory: rows with a value that has no code, by categorical column.
    breaks
        Number of breaks in time of the table, which windows may cross: 0 with `max_gap`.
    device_bytes
        Bytes that ``windows.to(device)`` takes there, at most; None if they are not known.
    """

    windows: int
    series: int
    short_series: int
    fitting: int
    dropped: dict[str, int]
    rows: int
    steps: str
    reading: str = ""
    device_bytes: int | None = None
    lost_series: int = 0
    lost_names: tuple[Any, ...] = ()
    gap: str = ""
    unseen_categories: dict[str, int] = field(default_factory=dict)
    breaks: int = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of earlier versions lack it; dataclasses have no class attribute for a factory.
        vars(self).update({"unseen_categories": {}, **state})

    def drop(self, **dropped: int) -> WindowReport:
        """Return the report after dropping more windows, given by reason."""
        merged = {
            reason: self.dropped.get(reason, 0) + dropped.get(reason, 0)
            for reason in REASONS
            if reason in self.dropped or reason in dropped
        }
        return replace(self, windows=self.windows - sum(dropped.values()), dropped=merged)

    def __str__(self) -> str:
        lines = [f"{plural(self.windows, 'window')} of {plural(self.rows, 'row')} ({self.steps})"]
        lines.append(f"  {self.fitting:,} fit into {self.series - self.short_series:,} series")
        if self.short_series:
            are = verb(self.short_series, "are")
            lines.append(f"  {self.short_series:,} series {are} shorter than a window")
        for reason, count in self.dropped.items():
            if count:
                more = f" of more than {self.gap}" if reason == "gap" and self.gap else ""
                lines.append(f"  {count:,} dropped {REASONS[reason]}{more}")
        if self.lost_series:
            lines.append(f"  {self.describe_lost()}")
        if self.breaks:
            breaks = plural(self.breaks, "break")
            lines.append(f"  {breaks} in time, which windows cross unless max_gap= is given")
        for name, count in self.unseen_categories.items():
            if count:
                lines.append(f"  {name!r} has values without a code in {plural(count, 'row')}")
        lines += [f"  {line}" for line in self.reading.splitlines()]
        if self.device_bytes is not None:
            lines.append(f"  at most {format_bytes(self.device_bytes)} on a device")
        return "\n".join(lines)

    def describe_lost(self) -> str:
        """Return a text that names the series that lost all their windows to the filters."""
        names = some_names(self.lost_names, range(self.lost_series))
        return f"{self.lost_series:,} series lost every window to a filter: {names}"


def describe_steps(span: WindowSpan) -> str:
    """Describe the steps of a window as text, such as ``"168 past, 24 future"``."""
    text = f"{span.context_length:,} past"
    if span.prediction_length:
        gap = f", gap {span.gap:,}" if span.gap > 0 else ""
        gap = f", overlap {-span.gap:,}" if span.gap < 0 else gap
        text += f"{gap}, {span.prediction_length:,} future"
    if span.dilation > 1:
        text += f", every {span.dilation:,} rows"
    return text + (f"; stride {span.stride:,}" if span.stride > 1 else "")
