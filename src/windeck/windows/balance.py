"""The number of windows that each series has in an epoch of balanced windows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.validation import LIMIT, check_integer
from windeck.orders import BlockPermutation

__all__ = ["CELLS", "SERIES", "SLOTS", "Balance"]

# Purposes that keys are derived for; part of the published orders.
SLOTS, SERIES, CELLS = 11, 12, 13


@dataclass(frozen=True, eq=False)
class Balance:
    """The windows of each series in every epoch, and the blocks that they are dealt in.

    Attributes
    ----------
    counts
        int64 of shape (series,): windows of each series of the table in an epoch; read-only.
    starts
        int64 of shape (series + 1,): the first window of each series, and the number of windows.
    blocks
        Offsets of blocks of windows that are dealt together, and the blocks of a group; or None.
    in_read_blocks
        Whether these are the blocks in which the windows are read.
    """

    counts: Int64
    starts: Int64
    blocks: tuple[Int64, int] | None = None
    in_read_blocks: bool = False

    @classmethod
    def of(
        cls,
        names: tuple[Any, ...],
        index: _core.WindowIndex,
        weights: Any,
        epoch_length: int | None,
        blocks: Any,
        read: tuple[Int64, int] | None,
    ) -> Balance:
        """Return the balance of windows; see `Windows.balanced`.

        Parameters
        ----------
        names
            Names of the series of the table.
        read
            The blocks in which the windows are read, and those of a group; None in memory.
        """
        if not len(index):
            raise ValueError("there are no windows, expected at least one window to serve")
        starts = _first_windows(len(names), index)
        sizes: Int64 = np.diff(starts)
        shares = _shares(names, sizes, weights)
        if epoch_length is None:
            live = int(np.count_nonzero(shares))
            equal = weights is None
            epoch_length = max(round(len(index) / live), 1) * live if equal else len(index)
        length = check_integer("epoch_length", epoch_length, least=1)
        counts = _apportion(length, shares)
        for series in np.flatnonzero((counts == 0) & (shares > 0))[:1]:
            raise ValueError(
                f"series {names[series]!r} would have no window in an epoch of {length}; expected "
                "a larger `epoch_length`, or the weight 0 for it"
            )
        counts.flags.writeable = False
        chosen = read if blocks is None else _checked_blocks(len(index), blocks)
        return cls(counts, starts, chosen, _are_equal(chosen, read))

    @cached_property
    def sizes(self) -> Int64:
        """The number of windows of each series: int64 of shape (series,)."""
        return np.diff(self.starts)


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


def _shares(names: tuple[Any, ...], sizes: Int64, weights: Any) -> np.ndarray[Any, Any]:
    """Return the weight of each series of the table, 0 for a series without windows."""
    if weights is None:
        return (sizes > 0).astype(np.float64)
    if isinstance(weights, Mapping):
        for name in weights:
            if name not in names:
                raise KeyError(f"`weights` has {name!r}, which is not a series of the table")
        weights = [weights.get(name, 0) for name in names]
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (len(names),):
        raise ValueError(
            f"`weights` must have one number for each of {len(names)} series, got shape "
            f"{shares.shape}"
        )
    if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.any()):
        raise ValueError("`weights` must be finite, not negative, and not all 0")
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
