"""Time order: sorting series that are not sorted, and reporting duplicates and breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Bools, Int64s
from windeck.table.series import BLOCK, Move, moved

_STEPS_LOOKED_AT = 1024


@dataclass(frozen=True, eq=False)
class OrderReport:
    """What was found about the order of rows. Arrays have one entry a series.

    Attributes
    ----------
    regrouped : bool
        Rows of scattered series were brought together (`sort=True`).
    sorted_series : tuple of int
        Series (their numbers) that were not in order of time, and are now.
    backward : int64 ndarray, shape (series,)
        Steps back in time, as stored.
    duplicates : int64 ndarray, shape (series,)
        Rows with the time stamp of the row before, as stored.
    duplicates_sorted : int64 ndarray, shape (series,)
        The same after sorting, which may bring more of them together.
    irregular : int64 ndarray, shape (series,)
        Steps other than the usual one, of whatever kind, after sorting.
    breaks : int64 ndarray, shape (series,)
        Steps larger than the usual one of the series, after sorting.
    steps : int64 ndarray, shape (series,)
        The usual step of each series in `unit`: the most frequent one; 0 where there is none.
    unit : str or None
        Unit of `steps` ("us", "D", ...); None where stamps are plain integers, or absent.
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

    @classmethod
    def without_time(cls, series: int, *, regrouped: bool) -> OrderReport:
        """For a table with no time stamps."""
        none = np.zeros(series, dtype=np.int64)
        return cls(regrouped, (), none, none, none, none, none, none)

    @property
    def step(self) -> np.timedelta64 | int | None:
        """The usual step of most rows' series: None if no series has two different stamps."""
        known = self.steps[self.steps > 0]
        if not len(known):
            return None
        steps, counts = np.unique(known, return_counts=True)
        step = int(steps[np.argmax(counts)])
        return step if self.unit is None else np.timedelta64(step, self.unit)  # type: ignore[call-overload]

    @property
    def clean(self) -> bool:
        """Nothing to report."""
        return not (self.regrouped or self.backward.any() or self.irregular.any())

    def lines(self) -> list[str]:
        """The findings in words, a line each; none if there are none."""
        said = ["rows grouped by series"] if self.regrouped else []
        if self.sorted_series:
            back, many = int(self.backward.sum()), len(self.sorted_series)
            said.append(f"{_series(many)} sorted by time ({_count(back, 'backward step')})")
        if self.duplicates_sorted.any():
            after = int(self.duplicates_sorted.sum())
            more = f", {after:,} after sorting" if after != self.duplicates.sum() else ""
            said.append(_where(self.duplicates, "duplicate stamp") + more)
        if self.breaks.any():
            said.append(f"{_where(self.breaks, 'break')} (steps larger than the usual one)")
        if self.irregular.any():
            said.append(f"{_series(int(np.count_nonzero(self.irregular)))} with irregular steps")
        return said


def _where(counts: Int64s, what: str) -> str:
    return f"{_count(int(counts.sum()), what)} in {_series(int(np.count_nonzero(counts)))}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _series(number: int) -> str:
    return f"{number:,} series"


def put_in_order(
    stamps: ColumnData, offsets: Int64s, *, owned: bool, regrouped: bool
) -> tuple[ColumnData, list[Move], OrderReport]:
    """Sort each series by time (stable) if it is not, and look at its steps.

    Returns
    -------
    stamps : ColumnData, sorted
    moves : what has to happen to every other column
    report : OrderReport

    Raises
    ------
    ValueError
        A stamp is missing.
    """
    ticks = _ticks(stamps)
    backward = _per_series(ticks, offsets, np.less)
    duplicates = doubled = _per_series(ticks, offsets, np.equal)
    late = np.flatnonzero(backward)
    moves = [_sorting(ticks, int(offsets[s]), int(offsets[s + 1])) for s in late]
    if moves:
        stamps = moved(stamps, moves, owned=owned)
        ticks = _ticks(stamps)
        doubled = _per_series(ticks, offsets, np.equal)
    steps = usual_steps(ticks, offsets)
    irregular, breaks = _unusual(ticks, offsets, steps)
    series = tuple(int(s) for s in late)
    report = OrderReport(
        regrouped, series, backward, duplicates, doubled, irregular, breaks, steps, _unit(stamps)
    )
    return stamps, moves, report


def _unit(stamps: ColumnData) -> str | None:
    if stamps.values.dtype.kind != "M":
        return None
    unit, count = np.datetime_data(stamps.values.dtype)
    return unit if count == 1 else f"{count}{unit}"


def _ticks(stamps: ColumnData) -> Array:
    """Stamps as integers, none of them missing."""
    values = stamps.values
    if values.dtype.kind == "M":
        missing = ~stamps.observed() if stamps.validity is not None else np.isnat(values)
        values = values.view(np.int64)
    else:
        missing = ~stamps.observed() if stamps.validity is not None else np.zeros(1, dtype=bool)
    if missing.any():
        raise ValueError(
            f"timestamp column {stamps.name!r} is missing in row {int(np.argmax(missing))}; "
            "expected a stamp in every row"
        )
    return values


def _sorting(ticks: Array, start: int, stop: int) -> Move:
    order = np.argsort(ticks[start:stop], kind="stable").astype(np.int64)
    return Move(start, order + start)


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    """Stretches of neighbouring pairs, so that no temporary grows with the table."""
    for start in range(0, rows - 1, BLOCK):
        yield start, min(start + BLOCK, rows - 1)


def _pairs(ticks: Array, offsets: Int64s) -> Iterator[tuple[int, Array, Array, Bools]]:
    """Blocks of (row, stamps, next rows' stamps, whether the pair lies within one series)."""
    for start, stop in _blocks(len(ticks)):
        within = np.ones(stop - start, dtype=np.bool_)
        first, last = np.searchsorted(offsets, [start + 1, stop + 1])
        within[offsets[first:last] - 1 - start] = False
        yield start, ticks[start:stop], ticks[start + 1 : stop + 1], within


def _per_series(ticks: Array, offsets: Int64s, test: np.ufunc) -> Int64s:
    """In how many neighbouring rows of each series ``test(later, earlier)`` holds."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    for start, before, after, within in _pairs(ticks, offsets):
        _add(counts, offsets, start + np.flatnonzero(test(after, before) & within))
    return counts


def _unusual(ticks: Array, offsets: Int64s, steps: Int64s) -> tuple[Int64s, Int64s]:
    """How many steps of each series differ from its usual one, and how many are larger."""
    irregular, breaks = np.zeros((2, len(offsets) - 1), dtype=np.int64)
    for start, before, after, within in _pairs(ticks, offsets):
        inside = np.flatnonzero(within)
        step = (after - before)[inside]
        usual = np.repeat(*_usual_of(offsets, steps, start, len(within)))[inside]
        _add(irregular, offsets, start + inside[step != usual])
        _add(breaks, offsets, start + inside[(step > usual) & (usual > 0)])
    return irregular, breaks


def _usual_of(offsets: Int64s, steps: Int64s, start: int, rows: int) -> tuple[Int64s, Int64s]:
    """Usual steps of the series that cross rows [start, start + rows), and their rows there."""
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, start + rows, side="left"))
    ends = np.clip(offsets[first : last + 1], start, start + rows)
    return steps[first:last], np.diff(ends)


def _add(counts: Int64s, offsets: Int64s, rows: Array) -> None:
    if len(rows):
        series = np.searchsorted(offsets, rows, side="right") - 1
        counts += np.bincount(series, minlength=len(counts))


def usual_steps(ticks: Array, offsets: Int64s) -> Int64s:
    """The most frequent positive step of each series, the smallest if several are; 0 if none.

    Of a series longer than 1,024 steps, that many evenly spread ones are looked at.
    """
    usual = np.zeros(len(offsets) - 1, dtype=np.int64)
    lengths = np.maximum(np.diff(offsets) - 1, 0)
    taken = np.minimum(lengths, _STEPS_LOOKED_AT)
    for first, last in _shares(taken):
        series = np.repeat(np.arange(first, last), taken[first:last])
        place = np.arange(len(series)) - np.repeat(
            np.cumsum(taken[first:last]) - taken[first:last], taken[first:last]
        )
        spread = place * lengths[series] // np.maximum(taken[series], 1)
        rows = offsets[series] + spread
        _most_frequent(usual, series, (ticks[rows + 1] - ticks[rows]).astype(np.int64))
    return usual


def _shares(taken: Int64s) -> Iterator[tuple[int, int]]:
    """Stretches of series that together have about a block of steps to look at."""
    ends = np.cumsum(taken)
    first = 0
    while first < len(taken):
        done = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, done + BLOCK, side="right")), first + 1)
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
