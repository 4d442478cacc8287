"""How an order written in Python is read: the item, slice, take and index of every order.

An order gives two vectorised functions, ``_samples(positions)`` and ``_positions(samples)``, for
int64 arrays that were checked already; the functions here check, and call them. The checks are
the native ones, so all orders refuse the same things in the same words.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._core import Permutation, hash_words
from windeck._util.validation import check_integer

__all__ = ["BlockPermutation", "Lanes", "Sequential"]


IndexArray = npt.NDArray[np.int64]


class Arithmetic(Protocol):
    """Both directions of an order, for checked arrays."""

    @property
    def size(self) -> int: ...
    def _samples(self, positions: IndexArray) -> IndexArray: ...
    def _positions(self, samples: IndexArray) -> IndexArray: ...


def item(order: Arithmetic, key: SupportsIndex | slice) -> Any:
    """order[key]: an int for an integer, an array for a slice; negative ones as in sequences."""
    if not isinstance(key, slice):
        position = _core.checked_one(key, order.size, "position", from_end=True)
        return int(order._samples(np.array([position], dtype=np.int64))[0])
    return order._samples(np.arange(*key.indices(order.size), dtype=np.int64))


def slice_(
    order: Arithmetic, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None
) -> IndexArray:
    """The samples at positions start to stop, stop excluded."""
    first, last, into = _core.checked_range(start, stop, order.size, out)
    into[:] = order._samples(np.arange(first, last, dtype=np.int64))
    return into


def take(order: Arithmetic, positions: object, out: IndexArray | None) -> IndexArray:
    """The samples at the given positions."""
    checked, into = _core.checked_bulk(positions, order.size, "position", out)
    into[:] = order._samples(checked)
    return into


def index(order: Arithmetic, samples: object, out: IndexArray | None) -> Any:
    """The positions of the given samples; an int for an int."""
    if isinstance(samples, SupportsIndex) and not isinstance(samples, np.ndarray):
        sample = _core.checked_one(samples, order.size, "sample")
        return int(order._positions(np.array([sample], dtype=np.int64))[0])
    checked, into = _core.checked_bulk(samples, order.size, "sample", out)
    into[:] = order._positions(checked)
    return into


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
        return item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """The samples at positions start to stop; see `Permutation.slice`."""
        return slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """The samples at the given positions; see `Permutation.take`."""
        return take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """The positions of the given samples; see `Permutation.index`."""
        return index(self, samples, out)

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
        check_integer("blocks_in_buffer", self.blocks_in_buffer)
        object.__setattr__(self, "_blocks", self._laid_out())

    def _laid_out(self) -> Blocks:
        key = hash_words(self.seed, self.epoch, _BLOCKS)
        if self.block_offsets is not None:
            return GivenBlocks(self.size, self.block_offsets, key=key)
        assert self.block_size is not None
        length = min(check_integer("block_size", self.block_size, least=1), self.size)
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
        return item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """The samples at positions start to stop; see `Permutation.slice`."""
        return slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """The samples at the given positions; see `Permutation.take`."""
        return take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """The positions of the given samples; see `Permutation.index`."""
        return index(self, samples, out)

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
        check_integer("lanes", self.lanes, least=1)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        return item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """The samples at positions start to stop; see `Permutation.slice`."""
        return slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """The samples at the given positions; see `Permutation.take`."""
        return take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """The positions of the given samples; see `Permutation.index`."""
        return index(self, samples, out)

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
