"""Local times without a zone, and the hour that they have twice when clocks are set back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windeck.columns.calendar import local_times
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import arrow_times, cast_times, ticks_of, time_text

__all__ = ["TimeSteps", "clock_changes", "in_utc", "is_utc", "skipped_days", "utc_times"]

_DAY, _LONGEST_CHANGE = np.timedelta64(1, "D"), np.timedelta64(2, "h")
#: Names of UTC, as of Arrow, pandas and polars.
_UTC = {"UTC", "Etc/UTC", "Z", "+00:00", "GMT", "Etc/GMT"}
#: Months in which no country sets clocks back, and days between two such changes, at least.
_NO_CHANGES, _BETWEEN_CHANGES = (1, 6, 7, 8, 12), 150


def is_utc(zone: str) -> bool:
    """Return True if local times of a zone are those of UTC."""
    return zone in _UTC


@dataclass(frozen=True)
class TimeSteps:
    """Differences of time stamps, in their unit; whole days of local time count as such.

    Between two midnights of local time are 23 or 25 hours where clocks change, which are one day.

    Attributes
    ----------
    dtype : str
        datetime64 of the time stamps, or "int64".
    zone : str or None
        The time zone of the time stamps, which are in UTC.
    """

    dtype: str = "int64"
    zone: str | None = None

    def between(self, before: Int64s, after: Int64s) -> Int64s:
        """Return the difference of each pair of ticks; modulo 2**64. O(n)."""
        steps = after - before
        day = self._ticks_of(_DAY)
        if not day:
            return steps
        change, rest = self._ticks_of(_LONGEST_CHANGE), steps % day
        near = (steps > change) & (rest != 0) & ((rest <= change) | (rest >= day - change))
        rows = np.flatnonzero(near)
        if len(rows):
            try:
                local = self._local(after[rows]) - self._local(before[rows])
            except pa.ArrowInvalid:  # The machine does not know the zone.
                return steps
            whole = (local % day == 0) & (np.abs(local - steps[rows]) <= change)
            steps[rows[whole]] = local[whole]
        return steps

    def _ticks_of(self, duration: np.timedelta64) -> int:
        """Return a duration in ticks, 0 where local times are those of UTC or have no hours."""
        kind = np.dtype(self.dtype)
        if self.zone is None or is_utc(self.zone) or kind.kind != "M":
            return 0
        if np.datetime_data(kind)[0] not in ("h", "m", "s", "ms", "us", "ns"):
            return 0
        return ticks_of(duration, kind)

    def _local(self, ticks: Int64s) -> Int64s:
        return local_times(ticks.view(self.dtype), str(self.zone)).view(np.int64)


def utc_times(local: Array, zone: str) -> Array:
    """Return local times of a zone in UTC: the first of two, and the end of a time that is skipped.

    The inverse of `columns.calendar.local_times`. O(n).

    Examples
    --------
    >>> utc_times(np.array(["2024-03-31T02:30"], "M8[s]"), "Europe/Berlin")
    array(['2024-03-31T01:00:00'], dtype='datetime64[s]')
    """
    times = pa.array(arrow_times(local))
    found = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest")
    return np.array(found.cast(pa.int64())).view(local.dtype)


@lru_cache(maxsize=16)
def skipped_days(zone: str) -> tuple[int, ...]:
    """Return the days, from 1970-01-01, that clocks of a zone leave out: few zones have any.

    Examples
    --------
    >>> np.array(skipped_days("Pacific/Apia")).astype("M8[D]")
    array(['2011-12-30'], dtype='datetime64[D]')
    """
    days = np.arange("1800-01-01", "2100-01-01", dtype="M8[D]")
    midnights = utc_times(days.astype("M8[s]"), zone)
    return tuple(days[:-1][midnights[1:] == midnights[:-1]].astype(np.int64).tolist())


def in_utc(time: ColumnData, offsets: Int64s, zone: str, names: Sequence[Any]) -> ColumnData:
    """Return local times of a zone in UTC; rows of a series are in the order of their file.

    Of the times that a change of clocks repeats, those before a step back are before the change.
    Without a step back, a time that is there twice is before the change first, and then after it.
    A time that is there once is before the change.

    Raises
    ------
    TypeError, ValueError, OverflowError
        The times are integers. Clocks skip a time. The order does not tell on which side of a
        change times are.
    """
    if time.values.dtype.kind != "M":
        raise TypeError(
            f"`time_zone` is {zone!r}, and timestamp column {time.name!r} has integers; expected "
            "local dates and times"
        )
    local = arrow_times(time.values)
    if local.dtype == "M8[D]":
        local = cast_times(local, "M8[s]")
    if time.validity is not None and not time.observed().all():
        return time  # Which is an error of missing times.
    most = (1 << 63) - 2 * ticks_of(_DAY, local.dtype)
    ticks = local.view(np.int64)[~np.isnat(local)]
    if (ticks > most).any() or (ticks < -most).any():
        raise OverflowError(
            f"timestamp column {time.name!r} has times at the ends of {local.dtype}, which cannot "
            "hold them in UTC"
        )
    early, late = (_assumed(local, zone, which) for which in ("earliest", "latest"))
    rows = np.flatnonzero(early != late).astype(np.int64)
    if len(rows):
        rows = rows[~np.isnat(local[rows])]
    if len(rows):
        series = np.searchsorted(offsets, rows, side="right") - 1
        _check_skipped(time.name, local[rows], early[rows], zone)
        later = _after_change(local, rows, series, offsets, zone, names)
        early[rows[later]] = late[rows[later]]
    found = early.view(local.dtype)
    return replace(time, values=found, dtype=local.dtype.name, time_zone=zone)


def _assumed(local: Array, zone: str, which: str) -> Int64s:
    found = pc.assume_timezone(pa.array(local), zone, ambiguous=which, nonexistent=which)
    ticks = np.asarray(found.cast(pa.int64()).fill_null(0))
    return np.where(np.isnat(local), local.view(np.int64), ticks)


def _check_skipped(name: str, local: Array, early: Int64s, zone: str) -> None:
    """Raise ValueError for a local time that clocks skip."""
    unit = np.datetime_data(local.dtype)[0]
    moments = pa.array(early).cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit, zone))
    skipped = np.asarray(pc.local_timestamp(moments)) != local
    if skipped.any():
        found = time_text(local[np.argmax(skipped)])
        raise ValueError(
            f"timestamp column {name!r} has {found}, which clocks of "
            f"{zone!r} skip when they are set forward; expected local times of time_zone="
        )


def _after_change(
    local: Array, rows: Int64s, series: Int64s, offsets: Int64s, zone: str, names: Sequence[Any]
) -> Any:
    """Return True for each of some rows, whose time is there twice, that is after the change."""
    times = local[rows]
    borders = np.flatnonzero(
        (np.diff(rows) > 1) | (np.diff(series) > 0) | (np.abs(np.diff(times)) > _DAY)
    )
    later = np.zeros(len(rows), dtype=np.bool_)
    done: dict[int, Any] = {}
    for start, stop in zip([0, *(borders + 1)], [*(borders + 1), len(rows)], strict=True):
        number, change = int(series[start]), times[start:stop].min()
        before, after = rows[start] - 1, rows[stop - 1] + 1
        falls = before >= offsets[number] and local[before] > change
        falls |= after < offsets[number + 1] and local[after] < change
        found = None if falls else _second_times(times[start:stop])
        if found is None or abs(change - done.get(number, change - 9 * _DAY)) < _DAY:
            raise ValueError(
                f"series {names[number]!r} has times from {time_text(change)} on, which clocks of "
                f"{zone!r} show twice, in an order that does not tell which are after the change; "
                "expected rows that ascend in time, or times in UTC"
            )
        later[start:stop], done[number] = found, change
    return later


def _second_times(times: Array) -> Any:
    """Return True for times after a change of clocks; None if their order does not tell."""
    steps = np.diff(times).astype(np.int64)
    back, equal = np.flatnonzero(steps < 0), np.flatnonzero(steps == 0)
    if len(back) + len(equal) <= 1:
        first = [*back, *equal, len(times)][0] + 1
        return np.arange(len(times)) >= first
    pairs = np.arange(0, len(times) - len(times) % 2, 2)
    paired = not len(back) and not len(times) % 2 and np.array_equal(equal, pairs)
    return np.arange(len(times)) % 2 == 1 if paired else None


def clock_changes(stamps: Array, offsets: Int64s) -> Array:
    """Return the repeated time stamps of sorted series, if all are as of clocks that are set back.

    That is in the small hours of Sundays, half a year apart or more, and within one hour.
    """
    none = stamps[:0]
    if stamps.dtype.kind != "M" or np.datetime_data(stamps.dtype)[0] in ("Y", "M", "W", "D"):
        return none
    rows = np.flatnonzero(stamps[1:] == stamps[:-1]) + 1
    series = np.searchsorted(offsets, rows, side="right") - 1
    rows, series = rows[rows > offsets[series]], series[rows > offsets[series]]
    found = stamps[rows]
    # An hour later, so that the hour before midnight counts as one of Sunday.
    days = (found + np.timedelta64(1, "h")).astype("M8[D]")
    hours = (found + np.timedelta64(1, "h") - days) // np.timedelta64(1, "h")
    sunday = (days.astype(np.int64) + 4) % 7 == 0
    months = days.astype("M8[M]").astype(np.int64) % 12 + 1
    if not (sunday & (hours < 5) & ~np.isin(months, _NO_CHANGES)).all():
        return none
    same_series, apart = np.diff(series) == 0, np.diff(days).astype(np.int64)
    same_day = same_series & (apart == 0)
    if (same_series & ~same_day & (apart < _BETWEEN_CHANGES)).any():
        return none
    if not len(found):
        return none
    starts = np.flatnonzero(np.append(True, ~same_day))
    spans = np.maximum.reduceat(found, starts) - np.minimum.reduceat(found, starts)
    return found if (spans < np.timedelta64(1, "h")).all() else none
