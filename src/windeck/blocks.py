"""Blocks of neighbouring samples in a shuffled sequence: what `BlockPermutation` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from windeck._core import Permutation
from windeck.order_access import IndexArray


class Blocks(Protocol):
    """A bijection that moves whole blocks; arrays in, arrays out, all within [0, size)."""

    def samples(self, positions: IndexArray) -> IndexArray:
        """The samples at positions of the shuffled sequence of blocks."""

    def positions(self, samples: IndexArray) -> IndexArray:
        """The inverse of `samples`."""

    def group_bounds(
        self, positions: IndexArray, blocks_in_group: int
    ) -> tuple[IndexArray, IndexArray]:
        """First and one-past-last position of the group of blocks that each position lies in."""


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks of one length, the first beginning at `phase`; the short ends come last. O(1)."""

    size: int
    length: int
    phase: int
    key: int

    @property
    def _full(self) -> int:
        return (self.size - self.phase) // self.length

    @property
    def _order(self) -> Permutation:
        # Without full blocks it is never asked.
        return Permutation(max(self._full, 1), seed=self.key)

    def samples(self, positions: IndexArray) -> IndexArray:
        """Full blocks, then the head [0, phase), then the tail, which is in place."""
        body = self._full * self.length
        result = np.where(positions < body + self.phase, positions - body, positions)
        in_body = positions < body
        block, row = np.divmod(positions[in_body], self.length)
        result[in_body] = self._order.take(block) * self.length + row + self.phase
        return result

    def positions(self, samples: IndexArray) -> IndexArray:
        """The inverse of `samples`."""
        body = self._full * self.length
        result = np.where(samples < self.phase, samples + body, samples)
        in_body = (samples >= self.phase) & (samples < self.phase + body)
        block, row = np.divmod(samples[in_body] - self.phase, self.length)
        result[in_body] = self._order.index(block) * self.length + row
        return result

    def group_bounds(
        self, positions: IndexArray, blocks_in_group: int
    ) -> tuple[IndexArray, IndexArray]:
        """Groups are equally long; the short ends count to the last of them."""
        group = min(blocks_in_group * self.length, self.size)
        starts = positions - positions % group
        return starts, starts + np.minimum(group, self.size - starts)


class GivenBlocks:
    """Blocks between given offsets, empty ones left out. O(blocks) memory.

    Raises
    ------
    TypeError
        Offsets that are not an int64 array.
    ValueError
        Offsets that are not of one dimension, do not lead from 0 to size, or decrease.
    """

    def __init__(self, size: int, offsets: IndexArray, *, key: int) -> None:
        self._offsets = np.unique(_checked_offsets(size, offsets))
        self._order = Permutation(len(self._offsets) - 1, seed=key)
        lengths = np.diff(self._offsets)[self._order[:]]
        self._starts = np.concatenate(([0], np.cumsum(lengths)))

    def samples(self, positions: IndexArray) -> IndexArray:
        """Each position in its block, wherever that is."""
        place = np.searchsorted(self._starts, positions, side="right") - 1
        moved: IndexArray = self._offsets[self._order.take(place)] - self._starts[place]
        return positions + moved

    def positions(self, samples: IndexArray) -> IndexArray:
        """The inverse of `samples`."""
        block = np.searchsorted(self._offsets, samples, side="right") - 1
        moved: IndexArray = self._starts[self._order.index(block)] - self._offsets[block]
        return samples + moved

    def group_bounds(
        self, positions: IndexArray, blocks_in_group: int
    ) -> tuple[IndexArray, IndexArray]:
        """Groups of so many shuffled blocks, the last one perhaps smaller."""
        blocks = len(self._starts) - 1
        span = min(blocks_in_group, blocks)
        place = np.searchsorted(self._starts, positions, side="right") - 1
        first = place - place % span
        return self._starts[first], self._starts[np.minimum(first + span, blocks)]


def _checked_offsets(size: int, offsets: IndexArray) -> IndexArray:
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64:
        found = getattr(offsets, "dtype", type(offsets).__name__)
        raise TypeError(f"block_offsets is {found}, expected an int64 array")
    if offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            f"block_offsets has shape {offsets.shape}, expected one dimension of at least 2"
        )
    if offsets[0] != 0 or offsets[-1] != size:
        raise ValueError(
            f"block_offsets lead from {offsets[0]} to {offsets[-1]}, expected from 0 to the size, "
            f"{size}"
        )
    (drops,) = np.nonzero(np.diff(offsets) < 0)
    if len(drops):
        at = int(drops[0])
        raise ValueError(
            f"block_offsets decrease from {offsets[at]} to {offsets[at + 1]} at [{at + 1}], "
            f"expected them not to"
        )
    return offsets
