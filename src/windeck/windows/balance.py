"""The number of windows that each series has in an epoch of balanced windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.validation import LIMIT, check_integer
from windeck.orders import BlockPermutation
from windeck.table.table import Table
from windeck.windows.filters import gap_in_units

__all__ = ["CELLS", "SERIES", "SLOTS", "Balance"]

Float64s: TypeAlias = npt.NDArray[np.float64]

# Purposes that keys are derived for; part of the published orders.
SLOTS, SERIES, CELLS = 11, 12, 13

#: The golden ratio's fraction of 2^64.
GOLDEN = 0x9E3779B97F4A7C15

#: The largest weight is less than two to this power: the sum of 2^63 of them is finite.
_WEIGHT_EXPONENT = 960


@dataclass(frozen=True, eq=False)
class Balance:
    """The windows of each series in every epoch, and the blocks that they are dealt in.

    Attributes
    ----------
    counts
        int64 of shape (series,): windows of each series of the table in an epoch; read-only. With a
        half-life of shape (ages,): those of each age of each series, from the oldest.
    starts
        int64 of shape (len(counts) + 1,): the first window of each, and the number of windows.
    series_counts
        Windows of each series of the table in an epoch; read-only.
    blocks
        Offsets of blocks of windows that are dealt together, and the blocks of a group; or None.
    in_read_blocks
        Whether these are the blocks in which the windows are read.
    cumulative
        float64 of shape (windows,), with weights of windows: the sum of the quotas up to each
        window; a quota is the number of times that an epoch has a window, on average. Or None.
    """

    counts: Int64
    starts: Int64
    series_counts: Int64
    blocks: tuple[Int64, int] | None = None
    in_read_blocks: bool = False
    cumulative: Float64s | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Pickles of earlier versions lack them, and have no ages.
        vars(self).update({"series_counts": state["counts"], **state})

    @classmethod
    def of(
        cls,
        table: Table,
        index: _core.WindowIndex,
        weights: Any,
        epoch_length: int | None,
        blocks: Any,
        read: tuple[Int64, int] | None,
        half_life: Any = None,
        window_weights: Any = None,
    ) -> Balance:
        """Return the balance of windows; see `Windows.balanced`.

        Parameters
        ----------
        read
            The blocks in which the windows are read, and those of a group; None in memory.
        half_life
            Rows or duration after which a window counts half as much.
        window_weights
            A weight of each window, instead of `weights` and `half_life`; of windows in memory.
        """
        names = table.series_names
        rows = None if half_life is None else _rows_of(half_life, table, index)
        if not len(index):
            raise ValueError("there are no windows, expected at least one window to serve")
        starts = _first_windows(len(names), index)
        sizes: Int64 = np.diff(starts)
        if window_weights is not None:
            if weights is not None or half_life is not None:
                raise ValueError("`window_weights` is given with `weights` or `half_life`")
            if blocks is not None or read is not None:
                raise TypeError(
                    "`window_weights` is of windows that are not dealt in blocks, expected a table "
                    "in memory"
                )
            window_weights = _checked_weights(
                "window_weights", window_weights, len(index), "windows"
            )
            weights = _sums(window_weights, starts)
        shares = _shares(names, sizes, weights)
        if epoch_length is None:
            live = int(np.count_nonzero(shares))
            equal = weights is None
            epoch_length = round(len(index) / live) * live if equal else len(index)
        length = check_integer("epoch_length", epoch_length, least=1)
        counts = _apportion(length, shares)
        for series in np.flatnonzero((counts == 0) & (shares > 0))[:1]:
            raise ValueError(
                f"series {names[series]!r} would have no window in an epoch of {length}; expected "
                "a larger `epoch_length`, or the weight 0 for it"
            )
        series_counts = counts
        if rows is not None:
            counts, starts = by_age(index, counts, starts, rows)
        counts.flags.writeable = series_counts.flags.writeable = False
        chosen = read if blocks is None else _checked_blocks(len(index), blocks)
        known = None
        if window_weights is not None:
            known = _cumulative(window_weights, counts, starts)
        return cls(counts, starts, series_counts, chosen, _are_equal(chosen, read), known)

    @cached_property
    def sizes(self) -> Int64:
        """The number of windows of each series, or age of it: int64 of shape (len(counts),)."""
        return np.diff(self.starts)


def epoch_shift(seed: int, epoch: int) -> int:
    """Return how far the places of quotas are moved in an epoch, as a fraction of 2^64."""
    return (_core.hash_words(seed, SERIES) + epoch * GOLDEN) % (1 << 64)


def _are_equal(one: tuple[Int64, int] | None, other: tuple[Int64, int] | None) -> bool:
    """Return True for the same blocks in groups of the same number."""
    if one is None or other is None:
        return False
    return one[1] == other[1] and np.array_equal(one[0], other[0])


def _checked_blocks(windows: int, blocks: Any) -> tuple[Int64, int]:
    """Return the blocks that a user gave: those of windows with the same order."""
    try:
        offsets, number = blocks
    except (TypeError, ValueError):
        raise TypeError(f"`blocks` must be a pair as of `blocks`, got {blocks!r}") from None
    number = check_integer("the blocks of a group", number, least=1)
    BlockPermutation(windows, block_offsets=offsets, blocks_in_buffer=number)
    return offsets, number


def _first_windows(num_series: int, index: _core.WindowIndex) -> Int64:
    """Return the first window of each series, and the number of windows; by binary search."""
    series = np.arange(num_series, dtype=np.int64)
    low = np.zeros(len(series), np.int64)
    high = np.full(len(series), len(index), np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        # Where low == high the window may not exist; the result is not used there.
        found, _ = index.locate(np.minimum(middle, len(index) - 1))
        before = (low < high) & (found < series)
        high = np.where((low < high) & ~before, middle, high)
        low = np.where(before, middle + 1, low)
    return np.append(low, len(index))


def _checked_weights(name: str, given: Any, many: int, noun: str) -> Float64s:
    """Return weights that a user gave, checked, and scaled by a power of two."""
    found = np.asarray(given)
    if found.dtype.kind in "cSU":
        raise TypeError(f"`{name}` must be real numbers, got {found.dtype}")
    weights = found.astype(np.float64)
    if weights.shape != (many,):
        raise ValueError(
            f"`{name}` must have one number for each of {many} {noun}, got shape {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError(f"`{name}` must be finite, not negative, and not all 0")
    # No sum of them is infinite then, nor is a quotient; the scale changes no ratio.
    _, exponent = np.frexp(weights.max())
    scaled: Float64s = np.ldexp(weights, _WEIGHT_EXPONENT - int(exponent))
    return scaled


def _sums(weights: Float64s, starts: Int64) -> Float64s:
    """Return the sum of the weights of each series, 0 for a series without windows."""
    sums = np.zeros(len(starts) - 1)
    used = np.flatnonzero(np.diff(starts))
    sums[used] = np.add.reduceat(weights, starts[used])
    return sums


def _cumulative(weights: Float64s, counts: Int64, starts: Int64) -> Float64s:
    """Return the sums of the quotas of windows, whose sum in a series is its count.

    They are the counts of the series before, and a share of the count of its own. In place of sums,
    windows after the last one with a weight have the count itself, so that none of them is found.
    """
    found = np.empty(len(weights))
    ends = np.cumsum(counts)
    for series in np.flatnonzero(np.diff(starts)):
        here = slice(starts[series], starts[series + 1])
        sums = np.cumsum(weights[here])
        shares = sums / sums[-1] if sums[-1] else sums
        found[here] = ends[series] - counts[series] + counts[series] * shares
    found.flags.writeable = False
    return found


#: Ages of a series, at most: the weight of the oldest one is 2**-40 of the newest.
_AGES = 41


def by_age(
    index: _core.WindowIndex, counts: Int64, starts: Int64, half_life: Int64
) -> tuple[Int64, Int64]:
    """Divide the windows of each series by their age: counts and first windows of each age.

    Windows that begin less than `half_life` rows before the last one of their series have the
    weight 1, those of the next `half_life` rows 1/2, and so on. The oldest ages are one, such that
    each has a window in every epoch; its weight is the sum of theirs. O(series) time and memory.
    """
    sizes = np.diff(starts)
    live = np.flatnonzero((counts > 0) & (sizes > 0))
    _, newest = index.locate(starts[live + 1] - 1)
    _, oldest = index.locate(starts[live])
    number = np.minimum((newest - oldest) // half_life[live] + 1, _AGES)
    series = np.repeat(np.arange(len(live)), number)
    age = np.arange(len(series)) - np.repeat(np.cumsum(number) - number, number)
    border = newest[series] - age * half_life[live[series]]
    low, high = starts[live[series]], starts[live[series] + 1]
    # Windows of age k begin after border k + 1 and not after border k.
    stop = _windows_until(index, low, high, border)
    start = np.where(age + 1 < number[series], np.append(stop[1:], 0), low)
    weights = (stop - start) * np.exp2(-age.astype(np.float64))
    kept = stop > start
    return _whole_counts(counts, starts, live[series[kept]], start[kept], weights[kept])


def _windows_until(index: _core.WindowIndex, low: Int64, high: Int64, rows: Int64) -> Int64:
    """Return the end of the windows in [low, high) that begin at a row or before it."""
    low, high = low.copy(), high.copy()
    while (low < high).any():
        middle = (low + high) // 2
        _, begin = index.locate(np.minimum(middle, len(index) - 1))
        before = (low < high) & (begin <= rows)
        high = np.where((low < high) & ~before, middle, high)
        low = np.where(before, middle + 1, low)
    return low


def _whole_counts(
    counts: Int64, starts: Int64, series: Int64, first: Int64, weights: np.ndarray[Any, Any]
) -> tuple[Int64, Int64]:
    """Return the windows of ages of series in an epoch, and their first windows.

    Ages are given from the newest one of each series on, and returned in the order of windows.
    """
    begins = np.flatnonzero(np.append(True, series[1:] != series[:-1])[: len(series)])
    lengths = np.diff(np.append(begins, len(series)))
    of_series = np.repeat(np.arange(len(begins)), lengths)
    place = np.arange(len(series)) - begins[of_series]
    # The weight of an age and of all older ones: sums of one series alone, which is as exact.
    left = weights.copy()
    for number in range(int(lengths.max()) - 1, 0, -1):
        rows = np.flatnonzero(place == number)
        left[rows - 1] += left[rows]
    scale = (counts[series[begins]] / left[begins])[of_series]
    quotas, older = weights * scale, (left - weights) * scale
    few = (quotas < 1) | (older < 1)
    passed = np.cumsum(few) - few
    merged = passed - passed[begins][of_series]
    is_kept = merged == 0
    # The first age with too few windows takes all older ones.
    quotas = np.where(few, quotas + older, quotas)[is_kept]
    owner, ends = of_series[is_kept], np.append(begins[1:], len(series)) - 1
    begin = np.where(few, first[ends][of_series], first)[is_kept]
    whole = np.floor(quotas).astype(np.int64)
    total = counts[series[begins]]
    lacking = total - np.bincount(owner, whole, len(begins)).astype(np.int64)
    order = np.lexsort((whole - quotas, owner))
    sizes = np.bincount(owner, minlength=len(begins))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    whole += rank < lacking[owner]
    everywhere = np.concatenate([starts[:-1], begin])
    found = np.concatenate([np.zeros(len(starts) - 1, np.int64), whole])
    # A series with ages has one that begins with it; any other series has a count of 0.
    used = np.ones(len(found), dtype=np.bool_)
    used[series] = False
    everywhere, found = everywhere[used], found[used]
    order = np.argsort(everywhere, kind="stable")
    return found[order], np.append(everywhere[order], starts[-1])


def _shares(names: tuple[Any, ...], sizes: Int64, weights: Any) -> np.ndarray[Any, Any]:
    """Return the weight of each series of the table, 0 for a series without windows."""
    if weights is None:
        return (sizes > 0).astype(np.float64)
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in names:
                raise KeyError(f"`weights` has {name!r}, which is not a series of the table")
        weights = [weights.get(name, 0) for name in names]
    shares = _checked_weights("weights", weights, len(names), "series")
    for series in np.flatnonzero((shares > 0) & (sizes == 0))[:1]:
        raise ValueError(f"series {names[series]!r} has a weight, but no windows; expected 0")
    return shares


def _apportion(length: int, shares: np.ndarray[Any, Any]) -> Int64:
    """Return whole numbers in proportion to the shares, of sum `length`, by largest remainder."""
    if length > LIMIT >> 10:
        raise ValueError(f"`epoch_length` must be at most 2^53, got {length}")
    quotas = shares * (length / math.fsum(shares))
    counts = np.floor(quotas).astype(np.int64)
    left = length - int(counts.sum())
    if left < 0:  # Rounding of floats may exceed a whole number by one.
        counts[np.argsort(quotas - counts, kind="stable")[:-left]] -= 1
        left = 0
    # A series of weight 0 gets nothing.
    remainders = np.where(shares > 0, quotas - counts, -1.0)
    counts[np.argsort(-remainders, kind="stable")[:left]] += 1
    return counts


def _rows_of(half_life: Any, table: Table, index: _core.WindowIndex) -> Int64:
    """Return a half-life as a number of rows of each series, from rows or a duration.

    Only series with windows need a usual step.
    """
    names, report = table.series_names, table.report
    if not isinstance(half_life, (str, timedelta, np.timedelta64)):
        rows = check_integer("half_life", half_life, least=1)
        return np.full(len(names), rows, dtype=np.int64)
    ticks = gap_in_units(half_life, table.timestamps, "half_life")
    live = np.diff(_first_windows(len(names), index)) > 0
    uneven = np.flatnonzero((report.irregular > 0) & live)
    if len(uneven):
        raise ValueError(
            f"`half_life` is {half_life!r}, and series {names[uneven[0]]!r} is irregular; expected "
            "a number of rows, or series of table.regularize()"
        )
    found: Int64 = ticks // np.maximum(report.steps, 1)
    short = np.flatnonzero((found < 1) & (report.steps > 0) & live)
    if len(short):
        raise ValueError(
            f"`half_life` must be a step or longer, got {half_life!r} for series "
            f"{names[short[0]]!r}"
        )
    return np.maximum(found, 1)
