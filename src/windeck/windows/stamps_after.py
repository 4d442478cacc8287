"""Time stamps after the end of a series: steps of one length, local days, business days, months."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np

from windeck._util.indices import Int64
from windeck.columns.calendar import local_times
from windeck.columns.dtypes import Array, Bools
from windeck.columns.times import add_steps, cast_times, ticks_of
from windeck.table.frequency import MONTH_DAYS, step_of, text_of
from windeck.table.local_times import is_utc, skipped_days, utc_times
from windeck.table.table import Table
from windeck.windows.filters import gap_in_units

__all__ = ["stamps_at"]

#: The number of months that some days are.
_CALENDAR_DAYS = {days: months for months, lengths in MONTH_DAYS.items() for days in lengths}
#: Rows at the end of a series, and how many of them are compared, to tell local days from others.
#: Of days these are more than a year, with all changes of clocks.
_ROWS, _COMPARED = 384, 24
#: Rows at the end of a series that tell business days, and the share of its weekdays that has rows.
_BUSINESS_ROWS, _BUSINESS_SHARE = 32, 0.8
#: Rows at the end of a series that tell months from equal steps of days.
_MONTH_ROWS = 6
#: The alias of pandas for days from Monday to Friday; of more days int64 has no nanoseconds.
_BUSINESS = re.compile(r"0*([1-9][0-9]{0,4})?B")
#: Types of steps that are no aliases.
_STEPS = (type(None), int, float, timedelta, np.integer, np.timedelta64)
_DAY, _LONGEST_CHANGE = np.timedelta64(1, "D"), np.timedelta64(2, "h")


def stamps_at(table: Table, series: Int64, rows: Int64, step: Any) -> Array:
    """Return the time stamps of rows; those after a series are continued by its step.

    In a time zone other than UTC whole days and months are added to local times. A local day that
    does not exist is left out. Series of business days go on with them.

    Raises
    ------
    TypeError, ValueError
        `step` is wrong, or None where the steps of a series are unknown or those of a calendar.
    OverflowError
        A stamp is out of range.
    """
    stamps = table.timestamps
    assert stamps is not None
    last = table.offsets[series + 1] - 1
    after = np.flatnonzero(rows > last)
    found = stamps[np.minimum(rows, last)]
    if not len(after):
        return found
    used, place = np.unique(series[after], return_inverse=True)
    number = (rows - last)[after]
    if isinstance(step, (bool, np.bool_)):
        raise TypeError(f"`step` must be a duration or an alias, got {step}")
    days = business_step(step)
    if days is None and not isinstance(step, _STEPS):
        # An alias, or an offset of pandas.
        try:
            step = step_of(step, "step")
        except ValueError:
            raise ValueError(
                "`step` must be an integer, a duration, or an alias such as '15min', 'D', 'B' (up "
                f"to '99999B'), 'W-SUN', 'MS' or '2Q', all of them positive, got {step!r}"
            ) from None
    if isinstance(step, np.timedelta64) and np.datetime_data(step.dtype)[0] in "MY":
        months = int(step.astype("m8[M]").astype(np.int64))
        found[after] = _add_months(table, used, place, number * months)
        return found
    steps = _steps_of(table, used, step) if days is None else _business_steps(table, used, days)
    found[after] = add_steps(found[after], number, steps.ticks[place])
    zone = _zone_of(table)
    for is_used, of_zone in ((steps.local, zone), (steps.business & ~steps.local, None)):
        places = np.flatnonzero(is_used[place])
        if len(places):
            one = place[places]
            found[after[places]] = _days_later(
                table, of_zone, used, one, number[places], steps.ticks[one], steps.business[one]
            )
    return found


class _StepsAfter(NamedTuple):
    """The steps of series after their ends.

    Attributes
    ----------
    ticks
        Steps in the unit of the time stamps; of business days as many days.
    local, business
        Which steps are of days of a time zone other than UTC, and which of business days.
    """

    ticks: Int64
    local: Bools
    business: Bools


def business_step(step: Any) -> int | None:
    """Return the number of business days of an alias ("B", "2B"), or None for another step."""
    found = _BUSINESS.fullmatch(text_of(step))
    if found is None or (found[1] is None and found[0] != "B"):
        return None
    return int(found[1] or 1)


def _business_steps(table: Table, series: Int64, days: int) -> _StepsAfter:
    """Return steps of a number of business days, for all series."""
    assert table.timestamps is not None
    dtype = table.timestamps.dtype
    if dtype.kind != "M" or np.datetime_data(dtype)[0] in "YMW":
        raise TypeError(f"`step` is of business days, expected days or times, got {dtype} stamps")
    ticks = np.full(len(series), days * ticks_of(_DAY, dtype), dtype=np.int64)
    every = np.ones(len(series), dtype=np.bool_)
    zone = _zone_of(table)
    if zone is None:
        return _StepsAfter(ticks, ~every, every)
    in_zone, in_utc = _rows_at_one_time(table, zone, series)
    return _StepsAfter(ticks, (2 * in_utc <= _COMPARED) | (in_zone >= in_utc), every)


def _days_later(
    table: Table,
    zone: str | None,
    series: Int64,
    place: Int64,
    number: Int64,
    ticks: Int64,
    business: Bools,
) -> Array:
    """Return the last stamps of ``series[place]`` after a number of steps of days, local ones."""
    stamps = table.timestamps
    assert stamps is not None
    if zone is None:
        ends = stamps[table.offsets[series + 1] - 1][place]
    else:
        ends = _local_ends(table, zone, series)[0][place]
    moved = _moved(ends, number, ticks, business)
    if zone is None:
        return moved
    for day in np.array(skipped_days(zone), "M8[D]"):
        # This day, and each after it, is one step later: no stamp is of a day that is skipped.
        late = _moved(ends, number, ticks, business).astype("M8[D]") >= day
        hit = late & _is_on(ends, day, ticks, business)
        number = number + hit
        moved = _moved(ends, number, ticks, business)
    return utc_times(moved, zone)


def _moved(ends: Array, number: Int64, ticks: Int64, business: Bools) -> Array:
    """Return local times after a number of steps of days, or of business days."""
    moved = add_steps(ends, number, ticks)
    rows = np.flatnonzero(business)
    if len(rows):
        days = ends[rows].astype("M8[D]")
        count = number[rows] * (ticks[rows] // ticks_of(_DAY, ends.dtype))
        later = np.busday_offset(days, count, roll="backward")
        moved[rows] = cast_times(later, ends.dtype) + _time_of_day(ends[rows])
    return moved


def _zone_of(table: Table) -> str | None:
    """Return the time zone of a table whose local times are not those of UTC."""
    zone = table.time_zone
    return None if zone is None or is_utc(zone) else zone


def _steps_of(table: Table, series: Int64, step: Any) -> _StepsAfter:
    """Return steps of series that go on by `step`, or by their usual steps."""
    if step is None:
        return _usual_steps(table, series)
    assert table.timestamps is not None
    dtype = table.timestamps.dtype
    step = np.timedelta64(step) if isinstance(step, timedelta) else step
    ticks = gap_in_units(step, table.timestamps, name="step")
    days = _zone_of(table) is not None and ticks % ticks_of(_DAY, dtype) == 0
    none = np.zeros(len(series), dtype=np.bool_)
    return _StepsAfter(np.full(len(series), ticks, dtype=np.int64), none | days, none)


def _usual_steps(table: Table, series: Int64) -> _StepsAfter:
    """Return the usual steps of series, else that of all.

    Raises
    ------
    ValueError
        If no series has a step, or steps are those of a calendar, or may be.
    """
    known, common, stamps = table.report.steps, table.step, table.timestamps
    assert stamps is not None
    if common is None:
        raise ValueError("no series has two different time stamps, expected `step`")
    typical = int(np.argmax(known == np.asarray(common).astype(np.int64)))
    alike = np.where(known[series] > 0, series, typical)
    steps, local = known[alike], np.zeros(len(series), dtype=np.bool_)
    business = local.copy()
    if stamps.dtype.kind != "M" or np.datetime_data(stamps.dtype)[0] in "MY":
        return _StepsAfter(steps, local, business)
    day = ticks_of(_DAY, stamps.dtype)
    zone = _zone_of(table)
    if zone is not None:
        days = (steps + day // 2) // day
        change = ticks_of(_LONGEST_CHANGE, stamps.dtype)
        near = np.flatnonzero((days > 0) & (np.abs(steps - days * day) <= change))
        local[near] = _has_local_days(table, zone, alike[near])
        steps = np.where(local, days * day, steps)
    _check_even(table, series, alike, steps, day)
    for is_used, of_zone in ((local, zone), (~local, None)):
        daily = np.flatnonzero((steps == day) & is_used)
        business[daily] = _has_business_days(table, of_zone, alike[daily])
    return _StepsAfter(steps, local, business)


def _check_even(table: Table, series: Int64, alike: Int64, steps: Int64, day: int) -> None:
    """Raise ValueError for series whose usual step is a month or some months, or may be.

    The steps are those of `alike`: a series of one row has none of its own.
    """
    lengths = [days * day for days in _CALENDAR_DAYS if days * day < 1 << 63]
    of_months = np.flatnonzero(np.isin(steps, lengths)) if day >= 1 else np.zeros(0, np.int64)
    uneven = table.report.irregular[series[of_months]] > 0
    found = of_months[uneven | _is_on_one_day_of_months(table, alike[of_months])]
    if len(found):
        days = int(steps[found[0]] // day)
        months = f"np.timedelta64({_CALENDAR_DAYS[days]}, 'M')"
        if table.report.irregular[series[found[0]]] > 0:
            what = f"of about {days} days that differ in length, expected `step`, such as {months}"
        else:
            what = f"of {days} days, which may be months; expected `step`: {months}, or in days"
        raise ValueError(f"series {table.series_names[series[found[0]]]!r} has steps {what}")


def _is_on_one_day_of_months(table: Table, series: Int64) -> Bools:
    """Return which series end with rows on one day of their months, or on the last days of them.

    Of equal steps no more than four are months or years, such as those of 2021 to 2024.
    """
    stamps, zone = table.timestamps, _zone_of(table)
    assert stamps is not None
    first, end = table.offsets[series], table.offsets[series + 1]
    rows = np.maximum(end[:, None] - 1 - np.arange(_MONTH_ROWS), first[:, None])
    times = stamps[rows.ravel()]
    days = (times if zone is None else local_times(times, zone)).astype("M8[D]")
    of_month = (days - days.astype("M8[M]").astype("M8[D]")).reshape(rows.shape)
    is_last = _is_last_day(days).reshape(rows.shape)
    found: Bools = (of_month == of_month[:, :1]).all(axis=1) | is_last.all(axis=1)
    return found


def _has_local_days(table: Table, zone: str, series: Int64) -> Bools:
    """Return which series have rows at one local time; O(series) time and memory.

    Those whose rows are at one time of UTC as well, without a change of clocks, are among them.
    """
    in_zone, in_utc = _rows_at_one_time(table, zone, series)
    found: Bools = (2 * in_zone > _COMPARED) & (in_zone >= in_utc)
    return found


def _rows_at_one_time(table: Table, zone: str, series: Int64) -> tuple[Int64, Int64]:
    """Return how many of the rows compared are at the local time of the last one, and of UTC."""
    stamps = table.timestamps
    assert stamps is not None
    local, last = _local_ends(table, zone, series)
    first, end = table.offsets[series], table.offsets[series + 1] - 1
    back = -(-np.minimum(end - first, _ROWS)[:, None] * np.arange(1, _COMPARED + 1) // _COMPARED)
    rows = stamps[(end[:, None] - back).ravel()]
    day = _DAY.astype(f"m8[{np.datetime_data(stamps.dtype)[0]}]")
    none = np.timedelta64(0)
    shape = back.shape
    in_zone = (local[:, None] - local_times(rows, zone).reshape(shape)) % day == none
    in_utc = (last[:, None] - rows.reshape(shape)) % day == none
    return in_zone.sum(axis=1), in_utc.sum(axis=1)


def _has_business_days(table: Table, zone: str | None, series: Int64) -> Bools:
    """Return which series have rows from Monday to Friday alone; O(series) time and memory.

    Their last rows have each of these days, and leave out two weekends or more and few other days.
    """
    stamps = table.timestamps
    assert stamps is not None
    first, end = table.offsets[series], table.offsets[series + 1]
    rows = np.maximum(end[:, None] - 1 - np.arange(_BUSINESS_ROWS), first[:, None])
    times = stamps[rows.ravel()]
    local = times if zone is None else local_times(times, zone)
    days = local.astype("M8[D]").reshape(rows.shape)
    begin, last = days[:, -1], days[:, 0]  # not the day after it, which the last of all has not
    count = np.minimum(end - first, _BUSINESS_ROWS)
    weekdays = np.busday_count(begin, last) + np.is_busday(last)
    skipped = (last - begin).astype(np.int64) + 1 - weekdays
    weekday = (days.astype(np.int64) + 3) % 7  # 0 is Monday
    found: Bools = (np.bitwise_or.reduce(1 << weekday, axis=1) == 0b11111) & (skipped >= 4)
    found &= (count <= weekdays) & (count >= _BUSINESS_SHARE * weekdays)
    return found


def _is_on(ends: Array, day: Any, ticks: Int64, business: Bools) -> Bools:
    """Return which stamps have a day among those of the steps after them."""
    steps = ticks // ticks_of(_DAY, ends.dtype)
    first = ends.astype("M8[D]")
    passed = (day - first).astype(np.int64)
    rolled = np.busday_offset(first, 0, roll="backward")
    weekdays = np.where(np.is_busday(day), np.busday_count(rolled, day), -1)
    passed = np.where(business, weekdays, passed)
    found: Bools = (passed > 0) & (passed % steps == 0)
    return found


def _local_ends(table: Table, zone: str, series: Int64) -> tuple[Array, Array]:
    """Return the last stamps of series in local time, and in UTC.

    A last stamp that clocks moved, as they skipped its time of the day, is at this time again.
    """
    stamps, offsets = table.timestamps, table.offsets
    assert stamps is not None
    row = offsets[series + 1] - 1
    last = stamps[row]
    local = local_times(last, zone)
    before = local_times(stamps[np.maximum(row - 1, offsets[series])], zone)
    usual = local.astype("M8[D]").astype(local.dtype) + _time_of_day(before)
    return np.where(utc_times(usual, zone) == last, usual, local), last


def _time_of_day(stamps: Array) -> Array:
    found: Array = stamps - stamps.astype("M8[D]").astype(stamps.dtype)
    return found


def _add_months(table: Table, series: Int64, place: Int64, months: Int64) -> Array:
    """Return the last stamps of series, months later: on the same day, or the months' last days."""
    stamps, offsets = table.timestamps, table.offsets
    assert stamps is not None
    if stamps.dtype.kind != "M":
        raise TypeError(f"`step` must be an integer, as the timestamps are {stamps.dtype}")
    row = offsets[series + 1] - 1
    before = stamps[np.maximum(row - 1, offsets[series])]
    zone = _zone_of(table)
    if zone is None:
        return _months_later(stamps[row][place], before[place], months)
    last = _local_ends(table, zone, series)[0][place]
    return utc_times(_months_later(last, local_times(before, zone)[place], months), zone)


def _months_later(last: Array, before: Array, months: Int64) -> Array:
    """Return stamps months later; those that are last days, with those before, stay last days."""
    month = last.astype("M8[M]")
    at_end = _is_last_day(last) & _is_last_day(before)
    days = last.astype("M8[D]") - month.astype("M8[D]")
    if ((days >= np.timedelta64(28, "D")) & ~at_end).any():
        raise ValueError(
            "a series ends after the 28th of a month but not on its last day, expected time stamps "
            "that every month has"
        )
    later = cast_times(month + months, last.dtype) + (last - month.astype(last.dtype))
    to_next = (month + 1).astype(last.dtype) - last
    ends = cast_times(month + months + 1, last.dtype) - to_next
    found: Array = np.where(at_end, ends, later)
    return found


def _is_last_day(stamps: Array) -> Bools:
    day = stamps.astype("M8[D]")
    found: Bools = (day + 1).astype("M8[M]") != day.astype("M8[M]")
    return found
