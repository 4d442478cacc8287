"""Parts of a set of windows: some of its series, or those within some rows or some time."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck.sources.cutting.spans import Int64, Runs, Span, checked_integer

_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


@dataclass(frozen=True)
class Part:
    """Runs of windows that lie in the runs of a larger set.

    `parents` are the numbers of the runs they lie in, `skipped` how many windows of that run come
    before the first one here.
    """

    runs: Runs
    skipped: Int64
    parents: Int64

    @classmethod
    def narrowed(cls, runs: Runs, skipped: Int64) -> Part:
        """A part of every run."""
        return cls(runs, skipped, np.arange(len(skipped), dtype=np.int64))

    @classmethod
    def of_runs(cls, runs: Runs, numbers: Int64) -> Part:
        """Some runs, whole."""
        return cls(runs.take(numbers), np.zeros(len(numbers), dtype=np.int64), numbers)


def of_series(runs: Runs, names: Sequence[Any], wanted: Any) -> Part:
    """The runs of the series named, in the order of the table."""
    numbers = series_numbers(names, wanted)
    return Part.of_runs(runs, np.flatnonzero(np.isin(runs.series, numbers)).astype(np.int64))


def series_numbers(names: Sequence[Any], wanted: Any) -> Int64:
    """Numbers of the series meant by a name, a number, or several of either."""
    several = isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes, tuple))
    known = {name: number for number, name in enumerate(names)}
    found = []
    for one in wanted if several else [wanted]:
        if one in known:
            found.append(known[one])
        elif isinstance(one, (int, np.integer)) and not any(isinstance(n, int) for n in names[:1]):
            if not 0 <= one < len(names):
                raise IndexError(f"series {one} is out of range, the table has {len(names)} series")
            found.append(int(one))
        else:
            texts = [str(name) for name in names]
            near = difflib.get_close_matches(str(one), texts, n=3) or texts[:3]
            raise KeyError(f"no series {one!r} among {len(names)}; near matches: {', '.join(near)}")
    return np.array(found, dtype=np.int64)


def within_rows(runs: Runs, span: Span, low: Int64, high: Int64) -> Part:
    """The windows that lie in rows ``[low, high)`` of their run whole, padding left out."""
    low = np.clip(low, runs.low, runs.high)
    high = np.clip(high, low, runs.high)
    # Where nothing is cut off in front, a padded window may begin before its series as it did.
    lowest = np.where(low == runs.low, runs.first, low)
    clipped, skipped = runs.clip(lowest, high - span.rows)
    return Part.narrowed(clipped.within(low, high), skipped)


def within_time(runs: Runs, span: Span, stamps: npt.NDArray[Any] | None, time: Any) -> Part:
    """The windows whose rows all have stamps in ``[start, stop)``."""
    if stamps is None:
        raise ValueError(f"time is {time!r}, but the table has no timestamp column")
    start, stop = pair("time", time)
    low = runs.low if start is None else rows_at(runs, stamps, to_stamp(start, stamps))
    high = runs.high if stop is None else rows_at(runs, stamps, to_stamp(stop, stamps))
    return within_rows(runs, span, low, high)


def row_range(rows: Any, total: int) -> tuple[int, int]:
    """The rows meant by a pair or a slice, either end open."""
    if isinstance(rows, slice):
        if rows.step not in (None, 1):
            raise ValueError(f"rows are {rows}, expected a range without a step")
        rows = (rows.start, rows.stop)
    start, stop = pair("rows", rows)
    start = 0 if start is None else checked_integer("rows", start, 0)
    stop = total if stop is None else checked_integer("rows", stop, 0)
    if not start <= stop <= total:
        raise ValueError(f"rows are ({start}, {stop}), expected a range within {total} rows")
    return start, stop


def pair(what: str, given: Any) -> tuple[Any, Any]:
    """Two values, a start and a stop."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(f"{what} is {given!r}, expected a pair (start, stop); None is open")
    return given[0], given[1]


def to_stamp(value: Any, stamps: npt.NDArray[Any]) -> Any:
    """A time stamp comparable with those of the table. Aware datetimes are taken to UTC."""
    if stamps.dtype.kind != "M":
        if not isinstance(value, (int, np.integer)):
            raise TypeError(f"time stamp is {value!r}, but the table's are {stamps.dtype}")
        return np.int64(value)
    if isinstance(value, (int, np.integer, float)):
        raise TypeError(f"time stamp is {value!r}, but the table's are {stamps.dtype}")
    try:
        if isinstance(value, str):
            value = _with_zone(value)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        stamp = np.datetime64(value)
    except ValueError:
        raise ValueError(f"{value!r} is no time stamp, expected one such as '2014-03-01'") from None
    if np.isnat(stamp):
        raise ValueError(f"{value!r} is no time stamp, expected one such as '2014-03-01'")
    return stamp


def _with_zone(text: str) -> str | dt.datetime:
    """A text that ends in a time zone as a datetime: NumPy has no zones, and only warns of them."""
    zone = _ZONE.search(text)
    if zone is None:
        return text
    offset = "+00:00" if zone[0] == "Z" else f"{zone[0][:3]}:{zone[0][-2:]}"
    return dt.datetime.fromisoformat(text[: zone.start()] + offset)


def rows_at(runs: Runs, stamps: npt.NDArray[Any], stamp: Any) -> Int64:
    """For each run the first row of ``[low, high)`` at or after `stamp`; `high` if there is none.

    One binary search for all runs together: O(runs * log(rows)).
    """
    low: Int64 = runs.low.copy()
    high: Int64 = runs.high.copy()
    while True:
        searching = np.flatnonzero(low < high)
        if len(searching) == 0:
            return low
        middle: Int64 = low[searching] + (high[searching] - low[searching]) // 2
        before = stamps[middle] < stamp
        low[searching[before]] = middle[before] + 1
        high[searching[~before]] = middle[~before]
