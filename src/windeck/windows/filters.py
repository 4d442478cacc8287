"""Windows left out for what they hold: too much missing, or a break in time.

One bit for each window that fits. Rows are read once, in order, a bounded stretch at a time, and
every window is judged by the difference of two prefix sums, however long it is.
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
from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Bits, Bools
from windeck.windows.index import Runs, Span

# Rows read in one go, at least; a longer window reads as many rows as it spans.
STRETCH = 1 << 18

_UNITS = {"min": "m", "d": "D", "w": "W", "day": "D", "days": "D", "hour": "h", "hours": "h"}


@dataclass(frozen=True)
class Filter:
    """What a window must be to be kept.

    Parameters
    ----------
    targets
        The target columns; their missing values count.
    allowed_missing
        Missing target values a window may have; None when it does not matter.
    timestamps, max_gap
        Time stamps as int64, and the largest difference of neighbouring rows; None likewise.
    """

    targets: Sequence[ColumnData] = ()
    allowed_missing: int | None = None
    timestamps: Int64 | None = field(default=None, repr=False)
    max_gap: int | None = None

    @property
    def idle(self) -> bool:
        """Whether every window passes unseen."""
        return self.allowed_missing is None and self.max_gap is None


@dataclass(frozen=True)
class Verdict:
    """The bitmap of windows kept (None: all of them), and how many were dropped for what."""

    keep: Bits | None
    missing: int
    gap: int


def judge(rules: Filter, span: Span, runs: Runs, offsets: Int64) -> Verdict:
    """Which windows pass `rules`. O(rows) time, O(stretch) memory beside the bitmap."""
    if rules.idle:
        return Verdict(None, 0, 0)
    keep = np.zeros((runs.total + 7) // 8, dtype=np.uint8)
    missing = gap = 0
    for at, starts, begin in _stretches(span, runs, offsets):
        bad = np.zeros(len(starts), dtype=np.bool_)
        if rules.allowed_missing is not None:
            bad |= _missing(rules.targets, span, starts, begin) > rules.allowed_missing
            missing += int(bad.sum())
        if rules.max_gap is not None and rules.timestamps is not None:
            broken = ~bad & _broken(rules.timestamps, rules.max_gap, span, starts, begin)
            gap += int(broken.sum())
            bad |= broken
        bitmaps.write(keep, at, ~bad)
    return Verdict(keep if missing or gap else None, missing, gap)


def _stretches(span: Span, runs: Runs, offsets: Int64) -> Iterator[tuple[int, Int64, Int64]]:
    """Windows by stretches of rows: (number of the first, start rows, first rows of series)."""
    index = _core.WindowIndex(runs.first, runs.count, runs.stride, series=runs.series)
    total = len(index)
    length = max(STRETCH, span.rows)
    at = 0
    while at < total:
        _, (row,) = index.slice(at, at + 1)
        stop = runs.before(int(row) + length)
        series, starts = index.slice(at, stop)
        yield at, starts, offsets[series]
        at = stop


def _missing(columns: Sequence[ColumnData], span: Span, starts: Int64, begin: Int64) -> Int64:
    """Missing target values of each window, padded steps included."""
    # A single step has no next one: its dilation may be larger than any memory.
    d = span.dilation if span.steps > 1 else 1
    low = max(int(starts[0]), 0)
    counts = missing_values(columns, low, int(starts[-1]) + span.rows)
    sums = _dilated_sums(counts, d)
    # Past steps before the series are missing in every column.
    padded = np.maximum(-((starts - begin) // d), 0)
    first = starts + padded * d - low
    result: Int64 = padded * len(columns)
    result += sums[starts + (span.past_last + d - low)] - sums[first]
    if span.prediction_length:
        result += sums[starts + (span.last + d - low)] - sums[starts + (span.future_first - low)]
    return result


def _dilated_sums(counts: Int64, dilation: int) -> Int64:
    """``sums[i + dilation]`` is ``counts[i] + counts[i - dilation] + ...``, and zeros before."""
    blocks = -(-len(counts) // dilation) + 1
    padded = np.zeros(blocks * dilation, dtype=np.int64)
    padded[dilation : dilation + len(counts)] = counts
    if dilation == 1:
        return np.cumsum(padded)
    return np.cumsum(padded.reshape(blocks, dilation), axis=0).ravel()


def _broken(stamps: Int64, max_gap: int, span: Span, starts: Int64, begin: Int64) -> Bools:
    """Whether rows next to each other in a window lie further apart than `max_gap`."""
    low = max(int(starts[0]), 0)
    stretch = stamps[low : int(starts[-1]) + span.rows]
    breaks = np.zeros(len(stretch), dtype=np.int64)
    np.cumsum(np.diff(stretch) > max_gap, out=breaks[1:])
    broken: Bools = breaks[starts + (span.last - low)] > breaks[np.maximum(starts, begin) - low]
    return broken


def missing_values(columns: Sequence[ColumnData], start: int, stop: int) -> Int64:
    """For each of the rows ``[start, stop)``, how many of `columns` are missing there."""
    counts = np.zeros(stop - start, dtype=np.int64)
    for column in columns:
        if column.missing != 0:
            counts += ~column.observed(slice(start, stop))
    return counts


def allowed_missing(max_missing: float, values: int) -> int | None:
    """The most missing values among `values` that are a share of at most `max_missing`."""
    if not 0.0 <= max_missing <= 1.0:
        raise ValueError(f"max_missing is {max_missing!r}, expected a share between 0 and 1")
    if max_missing == 1.0:
        return None
    allowed = int(max_missing * values)
    # Compare quotients, as a reader would: 3 of 10 is not more than 0.3.
    while (allowed + 1) / values <= max_missing:
        allowed += 1
    while allowed and allowed / values > max_missing:
        allowed -= 1
    return allowed


def as_integers(stamps: npt.NDArray[Any]) -> Int64:
    """Time stamps as whole numbers of their unit; a view where they have 64 bits."""
    if stamps.dtype.kind == "M":
        return stamps.view(np.int64)
    return stamps.astype(np.int64, copy=False)


def gap_in_units(max_gap: Any, stamps: npt.NDArray[Any] | None) -> int:
    """`max_gap` as a whole number of the time stamps' own units, rounded down."""
    if stamps is None:
        raise ValueError(f"max_gap is {max_gap!r}, but the table has no timestamp column")
    given = parse_duration(max_gap) if isinstance(max_gap, str) else max_gap
    # NumPy counts timedelta64 among its integers.
    timed = isinstance(given, (np.timedelta64, timedelta))
    if not timed and not isinstance(given, (int, np.integer)):
        raise TypeError(
            f"max_gap is {max_gap!r} ({type(max_gap).__name__}), expected a timedelta64, "
            "a timedelta, a text such as '1h', or an integer"
        )
    if timed and stamps.dtype.kind != "M":
        raise TypeError(
            f"max_gap is {max_gap!r}, but the timestamps are {stamps.dtype}: expected an integer"
        )
    if not given > type(given)(0):
        raise ValueError(f"max_gap is {max_gap!r}, expected a positive duration")
    return int(np.timedelta64(given) // _unit(stamps.dtype)) if timed else int(given)


def _unit(dtype: np.dtype[Any]) -> np.timedelta64:
    unit, step = np.datetime_data(dtype)
    return np.timedelta64(step, unit)  # type: ignore[call-overload, no-any-return]


def parse_duration(text: str) -> np.timedelta64:
    """A duration such as ``"15min"``, ``"1h"`` or ``"2D"``, in NumPy's units (and min, d, w)."""
    stripped = text.strip()
    digits = len(stripped) - len(stripped.lstrip("0123456789"))
    unit = stripped[digits:].strip()
    try:
        if unit in ("", "Y", "M"):
            raise TypeError
        return np.timedelta64(int(stripped[:digits] or 1), _UNITS.get(unit, unit))  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise ValueError(
            f"{text!r} is no duration, expected a number and a unit such as '15min', '1h' or '2D'"
        ) from None


REASONS = {
    "missing": "with too many missing target values",
    "gap": "across a break in time",
    "border": "across a border of the split",
    "others": "in the other parts of the split",
    "subset": "outside the subset",
}


@dataclass(frozen=True)
class WindowReport:
    """How many windows there are and how it came to that; ``print(w.explain())`` tells.

    Attributes
    ----------
    windows
        Windows there are: `fitting` less all that were dropped.
    series, short_series
        Series of the table, and those shorter than a window.
    fitting
        Windows that fit into the series.
    dropped
        Windows left out, by reason: ``"missing"``, ``"gap"``, ``"border"``, ``"others"``,
        ``"subset"``.
    rows, steps
        Rows a window spans, and a text on its steps.
    """

    windows: int
    series: int
    short_series: int
    fitting: int
    dropped: dict[str, int]
    rows: int
    steps: str

    def drop(self, **dropped: int) -> WindowReport:
        """The report after dropping more windows."""
        merged = {
            reason: self.dropped.get(reason, 0) + dropped.get(reason, 0)
            for reason in REASONS
            if reason in self.dropped or reason in dropped
        }
        return replace(self, windows=self.windows - sum(dropped.values()), dropped=merged)

    def __str__(self) -> str:
        lines = [f"{self.windows:,} windows of {self.rows:,} rows ({self.steps})"]
        lines.append(f"  {self.fitting:,} fit into {self.series - self.short_series:,} series")
        if self.short_series:
            lines.append(f"  {self.short_series:,} series are shorter than a window")
        for reason, count in self.dropped.items():
            if count:
                lines.append(f"  {count:,} dropped {REASONS[reason]}")
        return "\n".join(lines)


def describe_steps(span: Span) -> str:
    """One window in words."""
    text = f"{span.context_length:,} past"
    if span.prediction_length:
        gap = f", gap {span.gap:,}" if span.gap else ""
        text += f"{gap}, {span.prediction_length:,} future"
    if span.dilation > 1:
        text += f", every {span.dilation:,} rows"
    return text + (f"; stride {span.stride:,}" if span.stride > 1 else "")
