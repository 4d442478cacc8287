"""Parts of a set of windows: some of its series, or those within some rows or some time."""

from __future__ import annotations

import datetime as dt
import difflib
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util import fingerprints
from windeck._util.indices import Int64
from windeck._util.validation import check_integer
from windeck.columns import bitmaps
from windeck.columns.dtypes import Bits
from windeck.windows.filters import Filter, WindowReport, describe_steps, judge
from windeck.windows.index import Runs, Span

if TYPE_CHECKING:
    from windeck.windows.scaler import Scaler
    from windeck.windows.windows import Windows


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
    start = 0 if start is None else check_integer("rows", start)
    stop = total if stop is None else check_integer("rows", stop)
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


# Windows looked at in one go when a bitmap is carved.
CHUNK = 1 << 18


@dataclass(frozen=True)
class Cut:
    """Windows of a table whose series have `offsets`; `keep` is None where all are kept."""

    offsets: Int64
    span: Span
    runs: Runs
    keep: Bits | None
    report: WindowReport

    @classmethod
    def of(cls, offsets: Int64, span: Span, rules: Filter) -> Cut:
        """All windows that fit and pass the filter.

        Raises
        ------
        ValueError
            There is none.

        Warns
        -----
        UserWarning
            Some series are shorter than a window.
        """
        runs = span.runs(offsets)
        series, fitting, short = len(runs.count), runs.total, int((runs.count == 0).sum())
        steps = describe_steps(span)
        if fitting == 0:
            raise ValueError(
                f"no window fits: a window spans {span.rows} rows ({steps}), the longest of "
                f"{series} series has {int(np.diff(offsets).max(initial=0))} rows"
            )
        if short:
            warnings.warn(
                f"{short} of {series} series are shorter than a window of {span.rows} rows and "
                "give none",
                stacklevel=3,
            )
        verdict = judge(rules, span, runs, offsets)
        if verdict.missing + verdict.gap == fitting:
            raise ValueError(
                f"no window is left: of {fitting} that fit, {verdict.missing} have too many "
                f"missing target values and {verdict.gap} span a break in time"
            )
        report = WindowReport(fitting, series, short, fitting, {}, span.rows, steps)
        report = report.drop(missing=verdict.missing, gap=verdict.gap)
        return cls(offsets, span, runs, verdict.keep, report)

    @cached_property
    def kept(self) -> int:
        """The number of windows. O(series), or O(windows / 8) with a bitmap."""
        return self.runs.total if self.keep is None else bitmaps.count(self.keep)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.runs.nbytes + (0 if self.keep is None else self.keep.nbytes)

    def index(self) -> _core.WindowIndex:
        """The native index."""
        runs = self.runs
        return _core.WindowIndex(
            runs.first, runs.count, runs.stride, series=runs.series, keep=self.keep
        )

    def digest(self) -> str:
        """What tells these windows from others."""
        return fingerprints.digest(self.runs.first, self.runs.count, self.runs.series, self.keep)

    def drop(self, **dropped: int) -> Cut:
        """The same with a report of windows dropped on the way."""
        return replace(self, report=self.report.drop(**dropped))

    def part(self, part: Part) -> Cut:
        """A part of these windows; the report stays that of the whole."""
        return replace(self, runs=part.runs, keep=self._carve(part))

    def _carve(self, part: Part) -> Bits | None:
        """The bits of a part out of the bitmap of the whole."""
        if self.keep is None:
            return None
        total, count = part.runs.total, part.runs.count
        ends = np.cumsum(count)
        first = (np.cumsum(self.runs.count) - self.runs.count)[part.parents] + part.skipped
        move: npt.NDArray[np.int64] = first - (ends - count)
        keep = np.zeros((total + 7) // 8, dtype=np.uint8)
        for start in range(0, total, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, total), dtype=np.int64)
            run = np.searchsorted(ends, numbers, side="right")
            bitmaps.write(keep, start, bitmaps.take(self.keep, numbers + move[run]))
        return keep

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """First rows, last rows + 1 and series of the stretches of rows the windows touch."""
        begin, end = self.runs.hull(self.span, self.offsets)
        return begin, end, self.runs.series[self.runs.count > 0]


class Split(NamedTuple):
    """Three parts of one set of windows. A part whose share is 0 has no windows."""

    train: Windows
    validation: Windows
    test: Windows

    def with_scaler(self, scaler: Scaler | None) -> Split:
        """All three parts, scaled alike."""
        return Split(*(part.with_scaler(scaler) for part in self))


def by_time(
    runs: Runs, span: Span, stamps: npt.NDArray[Any] | None, borders: list[Any]
) -> list[Part]:
    """Cut every series at two borders, given as shares of its rows or as time stamps."""
    shares = [_is_share(border, stamps) for border in borders]
    if all(shares):
        first, second = _rows_by_share(runs, *map(float, borders))
    else:
        first, second = _rows_by_stamp(runs, stamps, borders, shares)
    edges = (runs.low, first, second, runs.high)
    parts = []
    for number in range(3):
        low, high = edges[number], edges[number + 1]
        # Nothing lies before the first part: padded windows may begin before their series.
        lowest = runs.first if number == 0 else low - span.judged_first
        clipped, skipped = runs.clip(lowest, high - span.rows)
        parts.append(Part.narrowed(clipped.within(low, high), skipped))
    return parts


def _is_share(border: Any, stamps: npt.NDArray[Any] | None) -> bool:
    """Whether a border is a share of rows and not a time stamp; 0 always is: no such part."""
    if isinstance(border, (bool, np.bool_)) or border is None:
        raise TypeError(f"a part of a split is {border!r}, expected a share or a time stamp")
    if isinstance(border, (float, np.floating)):
        return True
    if isinstance(border, (int, np.integer)):
        return border == 0 or stamps is None or stamps.dtype.kind == "M"
    if isinstance(border, (str, dt.date, np.datetime64)):
        return False
    raise TypeError(
        f"a part of a split is {border!r} ({type(border).__name__}), expected a share such as 0.1 "
        "or a time stamp"
    )


def check_shares(validation: float, test: float) -> None:
    """Shares must leave something for training."""
    for name, share in (("validation", validation), ("test", test)):
        if not 0.0 <= share < 1.0:
            raise ValueError(f"{name} is {share!r}, expected a share in [0, 1)")
    if validation + test >= 1.0:
        raise ValueError(
            f"validation {validation!r} and test {test!r} leave nothing to train on, "
            "expected shares of a sum below 1"
        )


def _rows_by_share(runs: Runs, validation: float, test: float) -> tuple[Int64, Int64]:
    """First rows of validation and of test: shares of the rows, rounded, taken from the end."""
    check_shares(validation, test)
    rows = runs.high - runs.low
    second = runs.high - np.rint(rows * test).astype(np.int64)
    return second - np.rint(rows * validation).astype(np.int64), second


def _rows_by_stamp(
    runs: Runs, stamps: npt.NDArray[Any] | None, borders: list[Any], shares: list[bool]
) -> tuple[Int64, Int64]:
    """First rows at or after the two stamps, in every series; a share of 0 is no part at all."""
    if stamps is None:
        raise ValueError("the split is by time stamps, but the table has no timestamp column")
    if any(share and border != 0 for share, border in zip(shares, borders, strict=True)):
        raise ValueError(
            f"validation is {borders[0]!r} and test is {borders[1]!r}, expected two shares, or two "
            "time stamps (0 for a part that is not wanted)"
        )
    second = runs.high if shares[1] else rows_at(runs, stamps, to_stamp(borders[1], stamps))
    first = second if shares[0] else rows_at(runs, stamps, to_stamp(borders[0], stamps))
    if not any(shares) and to_stamp(borders[0], stamps) > to_stamp(borders[1], stamps):
        raise ValueError(
            f"validation begins at {borders[0]!r}, after test at {borders[1]!r}, expected it before"
        )
    return first, second


def by_series(runs: Runs, validation: Any, test: Any, seed: int) -> list[Part]:
    """Deal the series that have windows out to the three parts, by a permutation of `seed`."""
    for border in (validation, test):
        if not isinstance(border, (int, float, np.integer, np.floating)):
            raise TypeError(f"a split by series takes shares, not {border!r}")
    check_shares(validation, test)
    live = np.flatnonzero(runs.count > 0)
    # A share that is asked for gets a series at least.
    sizes = [max(1, round(len(live) * share)) if share else 0 for share in (validation, test)]
    if sum(sizes) >= len(live):
        raise ValueError(
            f"validation {validation!r} and test {test!r} take {sum(sizes)} of {len(live)} series "
            "and leave none to train on"
        )
    dealt = live[_core.Permutation(len(live), seed=seed).slice(0, len(live))]
    cuts = [0, sizes[1], sum(sizes), len(live)]
    chosen = [np.sort(dealt[a:b]) for a, b in pairwise(cuts)]
    return [Part.of_runs(runs, numbers) for numbers in (chosen[2], chosen[1], chosen[0])]


def check_some(kept: list[int], span: Span, validation: Any, test: Any, by: str) -> None:
    """Every part that was asked for must have windows."""
    for name, count, asked in zip(Split._fields, kept, (1, validation, test), strict=True):
        if count == 0 and not (isinstance(asked, (int, float)) and asked == 0):
            raise ValueError(
                f"the {name} part of the split holds no window (validation={validation!r}, "
                f"test={test!r}, by={by!r}), expected {span.judged_rows} rows or more of some "
                "series in it"
            )
