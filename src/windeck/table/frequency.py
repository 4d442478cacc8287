"""Timestamps of regular series: a start and a frequency."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import numpy as np

from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import add_steps, arrow_times, cast_times, parse_duration, ticks_of

#: Months of the aliases of pandas and polars whose length is not fixed.
_MONTHS = {
    **dict.fromkeys(("Y", "YE", "YS", "A", "AS"), 12),
    **dict.fromkeys(("Q", "QE", "QS"), 3),
    **dict.fromkeys(("M", "ME", "MS", "mo"), 1),
}
#: Days of a month, a quarter, half a year and a year, by their number of months.
MONTH_DAYS = {1: range(28, 32), 3: range(90, 93), 6: range(181, 185), 12: range(365, 367)}
_ALIAS = re.compile(r"(\d*)([A-Za-z]+)(?:-([A-Za-z]+))?")
_WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
# fmt: off
_MONTH_NAMES = (
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
)
# fmt: on


def text_of(freq: object) -> str:
    """Return an alias, also that of an offset of pandas, without blanks around it."""
    return str(getattr(freq, "freqstr", freq)).strip()


def step_of(freq: Any, argument: str = "freq") -> np.timedelta64 | int:
    """Return the step of a frequency: an integer, a duration, or an alias such as "15min".

    Errors are about `argument`.

    The anchor of an alias ("W-SUN") is no part of its step; see `phase_of`.

    Raises
    ------
    ValueError
        The alias or its anchor is unknown, or it is not of a fixed number of units ("B", business
        days).

    Examples
    --------
    >>> step_of("15min"), step_of("QS"), step_of(2)
    (np.timedelta64(15,'m'), np.timedelta64(3,'M'), 2)
    """
    if isinstance(freq, (int, np.integer)) and not isinstance(freq, (bool, np.timedelta64)):
        step: np.timedelta64 | int = int(freq)
    elif isinstance(freq, (np.timedelta64, dt.timedelta)):
        step = np.timedelta64(freq)
    else:
        step = _step_of_alias(text_of(freq), argument)
    if not step > type(step)(0):
        raise ValueError(f"`{argument}` must be a positive step, got {freq!r}")
    return step


def phase_of(freq: Any, argument: str = "freq") -> int | None:
    """Return where an anchored alias begins, for a grid; None without an anchor.

    Of weeks the day, 0 for Monday; of quarters and years the month, counted from 0 in each of them:
    "QS-FEB" is 1, as "QS-MAY" is, and "Q-DEC", which ends in December, is 0.

    Raises
    ------
    ValueError
        The alias is of last days ("ME").

    Examples
    --------
    >>> phase_of("W-WED"), phase_of("QS-MAY"), phase_of("Y-DEC"), phase_of("D")
    (2, 1, 0, None)
    """
    found = _ALIAS.fullmatch(text_of(freq))
    if found is None:
        return None
    unit, anchor = found[2], found[3]
    if unit in ("ME", "QE", "YE"):
        raise ValueError(
            f"`{argument}` is {freq!r}, of last days; expected first days, such as "
            f"'{found[1]}{unit[0]}S' (off_grid='floor' moves the last days of months to the first)"
        )
    if anchor is None:
        return None
    if unit == "W":
        return _WEEKDAYS.index(anchor.upper())
    return (_MONTH_NAMES.index(anchor.upper()) + (not unit.endswith("S"))) % _MONTHS[unit]


def _step_of_alias(alias: str, argument: str) -> np.timedelta64:
    found = _ALIAS.fullmatch(alias.strip())
    unit, anchor = (None, None) if found is None else (found[2], found[3])
    try:
        if anchor is not None and anchor.upper() not in _anchors(unit):
            raise ValueError(anchor)
        if found is not None and unit in _MONTHS:
            return np.timedelta64(int(found[1] or 1) * _MONTHS[unit], "M")
        return parse_duration(alias.strip().partition("-")[0] if anchor else alias)
    except ValueError:
        raise ValueError(
            f"`{argument}` must be an integer, a duration, or an alias such as '15min', 'D', "
            f"'W-SUN', 'MS' or '2Q', got {alias!r}"
        ) from None


def _anchors(unit: str | None) -> tuple[str, ...]:
    """Return the anchors that the alias of a unit may have."""
    if unit == "W":
        return _WEEKDAYS
    return _MONTH_NAMES if _MONTHS.get(unit or "", 1) > 1 else ()


def regular_timestamps(starts: Array, freq: Any, offsets: Int64s) -> Array:
    """Return the timestamps of the rows of all series. O(rows) time and memory.

    Parameters
    ----------
    starts : datetime64 or integer ndarray, shape (series,)
        Timestamp of the first row of each series.
    freq
        As for `step_of`. Months, quarters and years give the first day of the month.
    offsets : int64 ndarray, shape (series + 1,)

    Returns
    -------
    datetime64 or int64 ndarray, shape (rows,)

    Examples
    --------
    >>> starts = np.array(["2024-01-31", "2024-05-01"], "datetime64[D]")
    >>> regular_timestamps(starts, "M", np.array([0, 2, 3])).astype(str).tolist()
    ['2024-01-01', '2024-02-01', '2024-05-01']
    """
    step = step_of(freq)
    lengths = np.diff(offsets)
    number = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    if starts.dtype.kind != "M":
        if not isinstance(step, int) or starts.dtype.kind not in "iu":
            raise TypeError(
                f"`start` is {starts.dtype} and `freq` is {freq!r}; expected timestamps with a "
                "duration, or integers with an integer"
            )
        return add_steps(np.repeat(starts.astype(np.int64), lengths), number, step)
    if isinstance(step, int):
        raise TypeError(f"`start` has timestamps and `freq` is {freq!r}; expected a duration")
    if np.isnat(starts).any():
        raise ValueError(f"the start of series {int(np.argmax(np.isnat(starts)))} is missing")
    if np.datetime_data(step.dtype)[0] in "MY":
        months = np.repeat(starts.astype("datetime64[M]"), lengths)
        return arrow_times((months + number * step).astype("datetime64[D]"))
    dtype = np.promote_types(starts.dtype, f"M8[{np.datetime_data(step.dtype)[0]}]")
    first = cast_times(starts, dtype, "the start of a series")
    return arrow_times(add_steps(np.repeat(first, lengths), number, ticks_of(step, dtype)))
