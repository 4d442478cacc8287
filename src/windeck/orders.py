"""Orders made of arithmetic and of `Permutation`: position -> sample, and back.

Every order is a bijection of [0, size) with random access both ways, and an order factory is any
``f(size, *, seed, epoch)``. Options go in through ``functools.partial``:

>>> from functools import partial
>>> factory = partial(BlockPermutation, block_size=256)
>>> factory(1000, seed=42, epoch=3)
BlockPermutation(1000, block_size=256, blocks_in_buffer=0, seed=42, epoch=3)

All have the methods of `Permutation`: ``len(o)``, ``o[i]``, ``o[a:b]``, ``o.slice(start, stop)``,
``o.take(positions)``, ``o.index(samples)``. They take O(1) memory beside what they return
(`BlockPermutation` with ``block_offsets``: O(blocks)), and constant time for a sample.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, SupportsIndex

import numpy as np

from windeck import order_access
from windeck._core import Permutation, checked_integer, hash_words
from windeck.blocks import Blocks, EqualBlocks, GivenBlocks
from windeck.order_access import IndexArray

__all__ = ["BlockPermutation", "Lanes", "Sequential"]

# What a key is derived for; published with the orders (see ORDER_VERSION).
_BLOCKS, _PHASE, _ROWS, _LONG_LANES, _SHORT_LANES = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Sequential:
    """The samples as they are stored. `seed` and `epoch` are checked and otherwise ignored.

    Parameters
    ----------
    size : int
        Number of samples, 1 to 2**63 - 1.

    Raises
    ------
    ValueError, TypeError
        As `Permutation`.

    Examples
    --------
    >>> Sequential(5)[1:4]
    array([1, 2, 3])
    """

    size: int
    _: KW_ONLY
    seed: int = field(default=0, compare=False, repr=False)
    epoch: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        Permutation(self.size, seed=self.seed, epoch=self.epoch)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"Sequential({self.size})"

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        return order_access.item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """The samples at positions start to stop; see `Permutation.slice`."""
        return order_access.slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """The samples at the given positions; see `Permutation.take`."""
        return order_access.take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """The positions of the given samples; see `Permutation.index`."""
        return order_access.index(self, samples, out)

    def _samples(self, positions: IndexArray) -> IndexArray:
        return positions

    def _positions(self, samples: IndexArray) -> IndexArray:
        return samples


@dataclass(frozen=True, eq=False, repr=False)
class BlockPermutation:
    """Blocks of neighbouring samples, shuffled: for data where neighbours are cheap to read.

    Parameters
    ----------
    size : int
        Number of samples, 1 to 2**63 - 1.
    block_size : int
        Samples in a block. Where the blocks begin, their phase, is another in each epoch; the
        short blocks at both ends come last.
    block_offsets : ndarray
        Instead of `block_size`: int64, shape (blocks + 1,), block b being the samples
        [block_offsets[b], block_offsets[b + 1]); from 0 to size, not decreasing.
    blocks_in_buffer : int
        0: samples of a block stay in sequence. With `block_size` the batch size, every full batch
        is one contiguous block (so the phase is at most size % block_size, and 0 for a size that
        is a multiple of it).
        M: samples are shuffled inside groups of M shuffled blocks, so that no more than M blocks
        are read from at a time.
    seed, epoch : int
        0 to 2**64 - 1 each, hashed.

    Raises
    ------
    ValueError
        A number out of its range; neither or both of `block_size` and `block_offsets`; offsets
        that do not lead from 0 to size or that decrease.
    TypeError
        No integer; offsets that are not int64.

    Notes
    -----
    O(1) memory, with `block_offsets` O(blocks). With `blocks_in_buffer` a call takes time for
    every group it touches, beside that for its samples.

    Examples
    --------
    >>> order = BlockPermutation(12, block_size=3, seed=7)
    >>> order[:].reshape(4, 3) % 3
    array([[0, 1, 2],
           [0, 1, 2],
           [0, 1, 2],
           [0, 1, 2]])
    """

    size: int
    _: KW_ONLY
    block_size: int | None = None
    block_offsets: IndexArray | None = None
    blocks_in_buffer: int = 0
    seed: int = 0
    epoch: int = 0
    _blocks: Blocks = field(init=False)

    def __post_init__(self) -> None:
        Permutation(self.size, seed=self.seed, epoch=self.epoch)
        if (self.block_size is None) == (self.block_offsets is None):
            found = "neither" if self.block_size is None else "both"
            raise ValueError(f"{found} of block_size and block_offsets given, expected one of them")
        checked_integer(self.blocks_in_buffer, "blocks_in_buffer", 0)
        object.__setattr__(self, "_blocks", self._laid_out())

    def _laid_out(self) -> Blocks:
        key = hash_words(self.seed, self.epoch, _BLOCKS)
        if self.block_offsets is not None:
            return GivenBlocks(self.size, self.block_offsets, key=key)
        assert self.block_size is not None
        length = min(checked_integer(self.block_size, "block_size", 1), self.size)
        phases = length if self.blocks_in_buffer else self.size % length + 1
        phase = hash_words(self.seed, self.epoch, _PHASE) % phases
        return EqualBlocks(self.size, length, phase=phase, key=key)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        blocks = f"block_size={self.block_size}"
        if self.block_offsets is not None:
            blocks = f"block_offsets=<{len(self.block_offsets)} offsets>"
        return (
            f"BlockPermutation({self.size}, {blocks}, blocks_in_buffer={self.blocks_in_buffer}, "
            f"seed={self.seed}, epoch={self.epoch})"
        )

    def _numbers(self) -> tuple[int | None, ...]:
        return self.size, self.block_size, self.blocks_in_buffer, self.seed, self.epoch

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BlockPermutation)
            and self._numbers() == other._numbers()
            and np.array_equal(self.block_offsets, other.block_offsets)  # type: ignore[arg-type]
        )

    def __hash__(self) -> int:
        return hash(self._numbers())

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        return order_access.item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """The samples at positions start to stop; see `Permutation.slice`."""
        return order_access.slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """The samples at the given positions; see `Permutation.take`."""
        return order_access.take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """The positions of the given samples; see `Permutation.index`."""
        return order_access.index(self, samples, out)

    def _samples(self, positions: IndexArray) -> IndexArray:
        return self._blocks.samples(self._within_groups(positions, inverse=False))

    def _positions(self, samples: IndexArray) -> IndexArray:
        return self._within_groups(self._blocks.positions(samples), inverse=True)

    def _within_groups(self, positions: IndexArray, *, inverse: bool) -> IndexArray:
        """Positions moved within their groups of blocks, as the groups' own orders say."""
        if not self.blocks_in_buffer or not len(positions):
            return positions
        starts, stops = self._blocks.group_bounds(positions, self.blocks_in_buffer)
        result = np.empty_like(positions)
        by_group = np.argsort(starts, kind="stable")
        borders = np.flatnonzero(np.diff(starts[by_group])) + 1
        for members in np.split(by_group, borders):
            start, stop = int(starts[members[0]]), int(stops[members[0]])
            key = hash_words(self.seed, self.epoch, _ROWS, start)
            rows = Permutation(stop - start, seed=key)
            move = rows.index if inverse else rows.take
            result[members] = move(positions[members] - start) + start
        return result


@dataclass(frozen=True)
class Lanes:
    """Row j of batch t + 1 continues row j of batch t: for recurrent state kept over batches.

    The samples are cut into `lanes` stretches of equal length (the first ones longer by 1 where
    it does not come out even), and position t * lanes + j is sample t of the stretch in row j.
    `seed` and `epoch` decide which stretch is in which row.

    Parameters
    ----------
    size : int
        Number of samples, 1 to 2**63 - 1.
    lanes : int
        Rows: the batch size, over all ranks.
    seed, epoch : int
        0 to 2**64 - 1 each, hashed.

    Raises
    ------
    ValueError
        A number out of its range.
    TypeError
        No integer.

    Examples
    --------
    >>> order = Lanes(10, lanes=4, seed=1)
    >>> order[4:8] - order[0:4]
    array([1, 1, 1, 1])
    """

    size: int
    _: KW_ONLY
    lanes: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        Permutation(self.size, seed=self.seed, epoch=self.epoch)
        checked_integer(self.lanes, "lanes", 1)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        return order_access.item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """The samples at positions start to stop; see `Permutation.slice`."""
        return order_access.slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """The samples at the given positions; see `Permutation.take`."""
        return order_access.take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """The positions of the given samples; see `Permutation.index`."""
        return order_access.index(self, samples, out)

    def _rows(self) -> tuple[Permutation, Permutation]:
        """The rows of the longer stretches, and those of the others behind them."""
        longer = self.size % self.lanes
        return (
            # Without longer stretches this one is never asked.
            Permutation(max(longer, 1), seed=hash_words(self.seed, self.epoch, _LONG_LANES)),
            Permutation(self.lanes - longer, seed=hash_words(self.seed, self.epoch, _SHORT_LANES)),
        )

    def _samples(self, positions: IndexArray) -> IndexArray:
        length, longer = divmod(self.size, self.lanes)
        step, row = np.divmod(positions, self.lanes)
        long, short = self._rows()
        stretch: IndexArray = row.copy()
        is_long = row < longer
        stretch[is_long] = long.take(row[is_long])
        stretch[~is_long] = longer + short.take(row[~is_long] - longer)
        return stretch * length + np.minimum(stretch, longer) + step

    def _positions(self, samples: IndexArray) -> IndexArray:
        length, longer = divmod(self.size, self.lanes)
        long, short = self._rows()
        # What is divided by is at most the size: no longer stretches, no 1 more.
        longest = length + (longer > 0)
        is_long = samples < longer * longest
        row, step = np.divmod(samples, longest)
        row[is_long] = long.index(row[is_long])
        rest = samples[~is_long] - longer * longest
        # Where the length is 0 there is no rest to divide.
        stretch, step[~is_long] = np.divmod(rest, max(length, 1))
        row[~is_long] = longer + short.index(stretch)
        positions: IndexArray = step * self.lanes + row
        return positions
