"""Time stamps and durations in other units, exactly or not at all.

NumPy converts between units without a check: 9999-12-31 in nanoseconds is a day of 1816.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
import sys
import zoneinfo
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from windeck.columns.dtypes import Array, Int64s

__all__ = ["add_steps", "arrow_times", "cast_times", "check_zone", "common_times"]
__all__ += ["parse_duration", "parse_time", "ticks_of", "time_text", "time_tick"]

#: Attoseconds of the units that have a fixed length.
_UNITS: dict[str, int] = {
    **{unit: 1000**power for power, unit in enumerate(("as", "fs", "ps", "ns", "us", "ms", "s"))},
    **{unit: count * 10**18 for unit, count in (("m", 60), ("h", 3600), ("D", 86400))},
    "W": 7 * 86400 * 10**18,
}
#: Units of durations by their names in NumPy, pandas and polars, in lower case.
_NAMES = {
    name: unit
    for unit, names in {
        "W": "w week weeks",
        "D": "d day days",
        "h": "h hr hour hours",
        "m": "m min mins minute minutes t",
        "s": "s sec secs second seconds",
        "ms": "ms milli millis millisecond milliseconds l",
        "us": "us \u00b5s \u03bcs micro micros microsecond microseconds u",
        "ns": "ns nano nanos nanosecond nanoseconds n",
        "ps": "ps",
        "fs": "fs",
        "as": "as",
    }.items()
    for name in names.split()
}
#: Units that differ in length; in lower case some of them are others.
_CALENDAR_UNITS = {"M", "MS", "AS"}
_CALENDAR_NAMES = {
    *("me", "mo", "mon", "month", "months", "q", "qs", "qe", "quarter", "quarters"),
    *("y", "ys", "ye", "a", "year", "years", "b", "bd", "bday"),
}
_TERMS = re.compile(r"\s*(\d+(?:\.\d+)?|)\s*([A-Za-z\u00b5\u03bc]+)\s*")
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_ARROW_UNITS = {("s", 1), ("ms", 1), ("us", 1), ("ns", 1), ("D", 1)}
_LEAST_INT32, _MOST_INT32 = -(1 << 31), (1 << 31) - 1


def cast_times(
    stamps: Array, dtype: Any, what: str = "a time stamp", *, floor: bool = False
) -> Array:
    """Return time stamps in another unit; missing ones stay missing. O(n).

    Parameters
    ----------
    stamps : datetime64 ndarray
    dtype : dtype of datetime64
    what : str
        What the stamps are, for messages.
    floor : bool
        Round down to a coarser unit. Otherwise a rest is an error.

    Raises
    ------
    OverflowError
        A stamp is outside of the range of the unit, or has a rest.

    Examples
    --------
    >>> cast_times(np.array(["9999-12-31"], "M8[D]"), "M8[us]")
    array(['9999-12-31T00:00:00.000000'], dtype='datetime64[us]')
    >>> cast_times(np.array(["9999-12-31"], "M8[D]"), "M8[ns]")
    Traceback (most recent call last):
    OverflowError: a time stamp is 9999-12-31 in row 0, which datetime64[ns] cannot hold
    """
    found = stamps.astype(dtype)
    if floor and np.promote_types(found.dtype, stamps.dtype) != found.dtype:
        return found
    # A product that wraps is never the product of the same number again: dividing shows it.
    lost = (found.astype(stamps.dtype) != stamps) & ~np.isnat(stamps)
    if lost.any():
        row = int(np.argmax(lost))
        raise OverflowError(
            f"{what} is {time_text(stamps.reshape(-1)[row])} in row {row}, which {found.dtype} "
            "cannot hold"
        )
    return found


def time_text(stamp: Any) -> str:
    """Return a time stamp as text for messages, without parts of the time that are 0.

    >>> time_text(np.datetime64("2024-01-01T05:00:00.000000"))
    '2024-01-01 05:00'
    """
    if not isinstance(stamp, np.datetime64):
        return str(stamp)
    return str(np.datetime_as_string(stamp, unit="auto")).replace("T", " ")


def parse_time(value: Any) -> Any:
    """Return a text, date, time or time stamp as a scalar of datetime64; one with a zone in UTC.

    NumPy takes "20240131" for the year 20240131 and "24-01-31" for the year 24, has no zones, and
    drops the nanoseconds of pandas.

    Raises
    ------
    TypeError, ValueError
        It is none of these.

    Examples
    --------
    >>> parse_time("2024-01-31T08:30+01:00")
    np.datetime64('2024-01-31T07:30')
    >>> parse_time("20240131")
    Traceback (most recent call last):
    ValueError: a time stamp must be one such as '2014-03-01', got '20240131'
    """
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Period):
        value = value.to_timestamp()
    if pandas is not None and isinstance(value, pandas.Timestamp):
        return np.datetime64(value.to_datetime64())
    if isinstance(value, str):
        text = value.strip()
        zone = _ZONE.search(text)
        begins = re.match(r"[+-]?(\d{4}$|\d{4,}-)", text) or not re.match(r"[+-]?\d", text)
        if not begins or (zone is None and re.search(r"\d[T ].*[+-]", text)):
            raise ValueError(f"a time stamp must be one such as '2014-03-01', got {value!r}")
        if zone is not None:
            minutes = 0 if zone[0] == "Z" else 60 * int(zone[0][1:3]) + int(zone[0][-2:])
            offset = np.timedelta64(-minutes if zone[0][0] == "-" else minutes, "m")
            return np.datetime64(text[: zone.start()]) - offset
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return np.datetime64(value)


def check_zone(zone: Any) -> str:
    """Return the name of a time zone.

    Raises
    ------
    ValueError
        There is no such zone.

    Examples
    --------
    >>> check_zone("Berlin")
    Traceback (most recent call last):
    ValueError: `time_zone` must be the name of a time zone such as 'Europe/Berlin', got 'Berlin'
    """
    try:
        zoneinfo.ZoneInfo(zone)
    except (OSError, TypeError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError(
            f"`time_zone` must be the name of a time zone such as 'Europe/Berlin', got {zone!r}"
        ) from None
    return str(zone)


def common_times(stamps: Sequence[Any], what: str = "a time stamp") -> Array:
    """Return time stamps, or what `parse_time` makes one of, in the finest of their units.

    Raises
    ------
    OverflowError, ValueError
        A stamp is outside of the range of the finest unit; it is none.

    Examples
    --------
    >>> common_times(["2024-01-31", "2024-02-01T06"]).tolist()[1]
    datetime.datetime(2024, 2, 1, 6, 0)
    """
    parsed = [parse_time(stamp) for stamp in stamps]
    kinds = sorted({stamp.dtype for stamp in parsed}, key=str)
    if not kinds:
        return np.zeros(0, dtype="M8[us]")
    dtype = kinds[0]
    for kind in kinds[1:]:
        dtype = np.promote_types(dtype, kind)
    found = np.empty(len(parsed), dtype)
    for kind in kinds:
        places = [place for place, stamp in enumerate(parsed) if stamp.dtype == kind]
        found[places] = cast_times(np.array([parsed[place] for place in places], kind), dtype, what)
    return found


def parse_duration(text: str) -> np.timedelta64:
    """Parse a text such as ``"15min"``, ``"1h"``, ``"1h30m"``, ``"1.5h"`` or ``"2D"``.

    Units are those of NumPy, pandas and polars, but for months and longer ones, which differ in
    length. One "m" is a minute.

    Raises
    ------
    ValueError
        The text is anything else.

    Examples
    --------
    >>> parse_duration("1h30m"), parse_duration("2D")
    (np.timedelta64(90,'m'), np.timedelta64(2,'D'))
    """
    terms = _TERMS.findall(text)
    message = f"a duration must be a number and a unit such as '15min', '1h' or '2D', got {text!r}"
    names = [unit for _, unit in terms]
    if _CALENDAR_UNITS & set(names) or _CALENDAR_NAMES & {name.lower() for name in names}:
        raise ValueError(f"{message}: months, years and business days differ in length; give days")
    whole = len(terms) == 1 or all(number for number, _ in terms)  # "h" is an hour, "1hm" nothing
    if not terms or not whole or _TERMS.sub("", text) or {n.lower() for n in names} - _NAMES.keys():
        raise ValueError(message)
    try:
        return reduce(operator.add, (_one_duration(*term) for term in terms))
    except OverflowError:
        raise ValueError(message) from None


def _one_duration(number: str, unit: str) -> np.timedelta64:
    span: Any = np.timedelta64(1, _NAMES[unit.lower()])  # type: ignore[call-overload]
    if "." not in number:
        found: np.timedelta64 = int(number or 1) * span
        return found
    return np.timedelta64(round(Fraction(number) * int(span // np.timedelta64(1, "ns"))), "ns")


def ticks_of(duration: np.timedelta64, dtype: Any) -> int:
    """Return how often the unit of a dtype of datetime64 is in a duration, rounded down.

    Both are of months or years, or neither is.

    Examples
    --------
    >>> ticks_of(np.timedelta64(90, "s"), "M8[m]"), ticks_of(np.timedelta64(1, "Y"), "M8[M]")
    (1, 12)
    """
    given, number = np.datetime_data(duration.dtype)
    unit, count = np.datetime_data(np.dtype(dtype))
    sizes: dict[str, int] = {"Y": 12, "M": 1} if unit in ("Y", "M") else _UNITS
    size = sizes[unit if given == "generic" else given]
    return int(duration.astype(np.int64)) * number * size // (count * sizes[unit])


def duration_text(ticks: int, dtype: Any) -> str:
    """Return a number of units of a dtype of datetime64 as a text; of another dtype the number.

    Examples
    --------
    >>> duration_text(1, "M8[us]"), duration_text(5_400_000, "M8[ms]"), duration_text(7, "int64")
    ('1us', '90min', '7')
    """
    if np.dtype(dtype).kind != "M":
        return str(ticks)
    unit, count = np.datetime_data(np.dtype(dtype))
    number = ticks * count
    for larger in ("D", "h", "m", "s", "ms", "us"):
        if unit in _UNITS and number * _UNITS[unit] % _UNITS[larger] == 0:
            number, unit = number * _UNITS[unit] // _UNITS[larger], larger
            break
    return f"{number}{'min' if unit == 'm' else unit}"


def time_tick(stamp: np.datetime64, dtype: Any) -> int:
    """Return the first tick of a dtype of datetime64 that is not before a time stamp.

    An integer of any size: it compares with ticks where the stamp itself would wrap.

    Examples
    --------
    >>> time_tick(np.datetime64("1970-01-02T00:00:01"), "M8[D]")
    2
    >>> time_tick(np.datetime64("9999-12-31"), "M8[ns]") > 2**63
    True
    """
    unit, count = np.datetime_data(np.dtype(dtype))
    if unit not in ("Y", "M"):
        size: int = count * _UNITS[unit]
        return -(-_attoseconds(stamp) // size)
    before: Any = stamp.astype(dtype)
    return int(before.astype(np.int64)) + int(_attoseconds(before) < _attoseconds(stamp))


def _attoseconds(stamp: Any) -> int:
    unit, count = np.datetime_data(stamp.dtype)
    if unit in ("Y", "M"):
        return _attoseconds(stamp.astype("M8[D]"))
    size: int = count * _UNITS[unit]
    return int(stamp.astype(np.int64)) * size


def add_steps(first: Array, counts: Int64s, steps: Any, what: str = "a time stamp") -> Array:
    """Return ``first + counts * steps`` of time stamps or integers, `steps` in their unit.

    Raises
    ------
    OverflowError
        A result is outside of the range of 64 bits.

    Examples
    --------
    >>> add_steps(np.array(["2262-04-11"], "M8[ns]"), np.array([1]), 86400 * 10**9)
    Traceback (most recent call last):
    OverflowError: a time stamp is 1 steps of 86400000000000 after 2262-04-11, which \
datetime64[ns] cannot hold
    """
    begin = np.ascontiguousarray(first).view(np.int64)
    steps = np.broadcast_to(np.asarray(steps, dtype=np.int64), begin.shape)
    moved = counts * steps
    found: Array = begin + moved
    lost = (np.floor_divide(moved, np.where(steps == 0, 1, steps)) != counts) & (steps != 0)
    lost |= (moved >= 0) != (found >= begin)
    if lost.any():
        row = int(np.argmax(lost))
        raise OverflowError(
            f"{what} is {counts[row]} steps of {steps[row]} after {time_text(first[row])}, "
            f"which {first.dtype} cannot hold"
        )
    return found.view(first.dtype)


def arrow_times(stamps: Array) -> Array:
    """Return time stamps in a unit that Arrow has, whose days have 32 bits; integers as they are.

    Raises
    ------
    OverflowError
        A stamp is outside of the range of that unit, or finer than nanoseconds.
    """
    if stamps.dtype.kind != "M":
        return stamps
    unit, count = np.datetime_data(stamps.dtype)
    if unit == "D" and count == 1:
        days = stamps.view(np.int64)[~np.isnat(stamps)]
        wide = ((days < _LEAST_INT32) | (days > _MOST_INT32)).any()
        return cast_times(stamps, "M8[s]") if wide else stamps
    if (unit, count) in _ARROW_UNITS:
        return stamps
    fine = next((name for name in ("ms", "us", "ns") if name == unit), None)
    return cast_times(stamps, f"M8[{fine or ('ns' if unit in ('ps', 'fs', 'as') else 's')}]")
