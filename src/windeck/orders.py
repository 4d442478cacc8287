"""Orders besides `Permutation`: sequential, by blocks, by lanes.

An order implements two vectorised methods, ``_samples(positions)`` and ``_positions(samples)``, for
validated int64 arrays. The functions `item`, `slice_`, `take` and `index` validate their arguments
with the checks of the C++ core, so that all orders raise the same errors, and call these methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._core import Permutation, hash_words
from windeck._util.options import explain_options
from windeck._util.plots import new_axes
from windeck._util.validation import check_integer

__all__ = ["BlockPermutation", "Lanes", "Sequential", "plot_order"]


IndexArray = npt.NDArray[np.int64]


class Arithmetic(Protocol):
    """Both directions of an order, for checked arrays."""

    @property
    def size(self) -> int: ...
    def _samples(self, positions: IndexArray) -> IndexArray: ...
    def _positions(self, samples: IndexArray) -> IndexArray: ...


def item(order: Arithmetic, key: SupportsIndex | slice) -> Any:
    """Return order[key]: an int for an integer, an array for a slice."""
    if not isinstance(key, slice):
        position = _core.checked_one(key, order.size, "position", from_end=True)
        return int(order._samples(np.array([position], dtype=np.int64))[0])
    return order._samples(np.arange(*key.indices(order.size), dtype=np.int64))


def slice_(
    order: Arithmetic, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None
) -> IndexArray:
    """Return the samples at positions [start, stop)."""
    first, last, into = _core.checked_range(start, stop, order.size, out)
    into[:] = order._samples(np.arange(first, last, dtype=np.int64))
    return into


def take(order: Arithmetic, positions: object, out: IndexArray | None) -> IndexArray:
    """Return the samples at the given positions."""
    checked, into = _core.checked_bulk(positions, order.size, "position", out)
    into[:] = order._samples(checked)
    return into


def index(order: Arithmetic, samples: object, out: IndexArray | None) -> Any:
    """Return the positions of the given samples; an int for an int."""
    if isinstance(samples, SupportsIndex) and not isinstance(samples, np.ndarray):
        sample = _core.checked_one(samples, order.size, "sample")
        return int(order._positions(np.array([sample], dtype=np.int64))[0])
    checked, into = _core.checked_bulk(samples, order.size, "sample", out)
    into[:] = order._positions(checked)
    return into


def plot_order(order: Any, *, ax: Any = None) -> Any:
    """Draw which sample an order has at each position: 2,000 positions at equal distances.

    Needs matplotlib: ``pip install 'windeck[plot]'``. O(1) time.

    Parameters
    ----------
    order
        A `Permutation`, or another order with `take` and a length.
    ax : matplotlib Axes, optional
        Axes to draw on. By default those of a new figure of pyplot, which is not shown.

    Returns
    -------
    Axes

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.
    """
    ax = new_axes(ax)
    size = len(order)
    points = min(size, _POINTS)
    last = max(1, points - 1)
    places = np.array([(size - 1) * point // last for point in range(points)], np.int64)
    ax.plot(places, order.take(places), ".", markersize=3)
    ax.set_xlabel("position")
    ax.set_ylabel("sample")
    name = type(order).__name__
    ax.set_title(f"{name} of {size:,} samples")
    return ax


#: Positions that are drawn.
_POINTS = 2000


class Blocks(Protocol):
    """A bijection of [0, size) that moves whole blocks."""

    def samples(self, positions: IndexArray) -> IndexArray:
        """Return the samples at positions of the shuffled sequence of blocks."""

    def positions(self, samples: IndexArray) -> IndexArray:
        """Return the positions of samples: the inverse of `samples`."""

    def group_bounds(
        self, positions: IndexArray, blocks_in_group: int
    ) -> tuple[IndexArray, IndexArray]:
        """Return start and end of the group of blocks that contains each position."""


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks of equal length from `phase` on; the short ends come last. O(1) memory."""

    size: int
    length: int
    phase: int
    key: int

    @property
    def _full(self) -> int:
        return (self.size - self.phase) // self.length

    @property
    def _order(self) -> Permutation:
        # Not used if there are no full blocks.
        return Permutation(max(self._full, 1), seed=self.key)

    def samples(self, positions: IndexArray) -> IndexArray:
        """Return the samples at positions: full blocks, the head [0, phase), the tail in place."""
        body = self._full * self.length
        result = np.where(positions < body + self.phase, positions - body, positions)
        in_body = positions < body
        block, row = np.divmod(positions[in_body], self.length)
        result[in_body] = self._order.take(block) * self.length + row + self.phase
        return result

    def positions(self, samples: IndexArray) -> IndexArray:
        """Return the positions of samples: the inverse of `samples`."""
        body = self._full * self.length
        result = np.where(samples < self.phase, samples + body, samples)
        in_body = (samples >= self.phase) & (samples < self.phase + body)
        block, row = np.divmod(samples[in_body] - self.phase, self.length)
        result[in_body] = self._order.index(block) * self.length + row
        return result

    def group_bounds(
        self, positions: IndexArray, blocks_in_group: int
    ) -> tuple[IndexArray, IndexArray]:
        """Return start and end of groups of equal length; the short ends are in the last group."""
        group = min(blocks_in_group * self.length, self.size)
        starts = positions - positions % group
        return starts, starts + np.minimum(group, self.size - starts)


class GivenBlocks:
    """Blocks between given offsets, without empty ones. O(blocks) memory.

    Raises
    ------
    TypeError
        If the offsets are not an int64 array.
    ValueError
        If they are not one-dimensional, do not lead from 0 to size, or decrease.
    """

    def __init__(self, size: int, offsets: IndexArray, *, key: int) -> None:
        self.offsets = np.unique(_checked_offsets(size, offsets))
        self._order = Permutation(len(self.offsets) - 1, seed=key)
        lengths = np.diff(self.offsets)[self._order[:]]
        self._starts = np.concatenate(([0], np.cumsum(lengths)))

    def samples(self, positions: IndexArray) -> IndexArray:
        """Return the samples at positions of the shuffled blocks."""
        place = np.searchsorted(self._starts, positions, side="right") - 1
        moved: IndexArray = self.offsets[self._order.take(place)] - self._starts[place]
        return positions + moved

    def positions(self, samples: IndexArray) -> IndexArray:
        """Return the positions of samples: the inverse of `samples`."""
        block = np.searchsorted(self.offsets, samples, side="right") - 1
        moved: IndexArray = self._starts[self._order.index(block)] - self.offsets[block]
        return samples + moved

    def group_bounds(
        self, positions: IndexArray, blocks_in_group: int
    ) -> tuple[IndexArray, IndexArray]:
        """Return start and end of groups of shuffled blocks; the last group may be smaller."""
        blocks = len(self._starts) - 1
        span = min(blocks_in_group, blocks)
        place = np.searchsorted(self._starts, positions, side="right") - 1
        first = place - place % span
        return self._starts[first], self._starts[np.minimum(first + span, blocks)]

    def group_at(self, position: int, blocks_in_group: int) -> tuple[int, int, IndexArray]:
        """Return start, end and the ascending numbers of the blocks of the group at a position.

        Blocks are numbered without empty ones.
        """
        (start,), (stop,) = self.group_bounds(np.array([position], np.int64), blocks_in_group)
        first, last = np.searchsorted(self._starts, [start, stop])
        return int(start), int(stop), np.sort(self._order.slice(int(first), int(last)))


def _checked_offsets(size: int, offsets: IndexArray) -> IndexArray:
    if not isinstance(offsets, np.ndarray) or offsets.dtype != np.int64:
        found = getattr(offsets, "dtype", type(offsets).__name__)
        raise TypeError(f"`block_offsets` must be an int64 array, got {found}")
    if offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            "`block_offsets` must be one-dimensional with 2 or more elements, got shape "
            f"{offsets.shape}"
        )
    if offsets[0] != 0 or offsets[-1] != size:
        raise ValueError(
            f"`block_offsets` must lead from 0 to the size, {size}, got {offsets[0]} to "
            f"{offsets[-1]}"
        )
    (drops,) = np.nonzero(np.diff(offsets) < 0)
    if len(drops):
        at = int(drops[0])
        raise ValueError(
            f"`block_offsets` must not decrease, got {offsets[at]} before {offsets[at + 1]} "
            f"at [{at + 1}]"
        )
    return offsets


# Purposes that keys are derived for; part of the published orders (see ORDER_VERSION).
_BLOCKS, _PHASE, _ROWS, _LONG_LANES, _SHORT_LANES = 1, 2, 3, 4, 5


@explain_options
@dataclass(frozen=True)
class Sequential:
    """The samples as they are stored. `seed` and `epoch` are validated and otherwise ignored.

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
        """Return the samples at positions [start, stop); see `Permutation.slice`."""
        return slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """Return the samples at the given positions; see `Permutation.take`."""
        return take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """Return the positions of the given samples; see `Permutation.index`."""
        return index(self, samples, out)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw which sample is at each position; see `plot_order`."""
        return plot_order(self, ax=ax)

    def _samples(self, positions: IndexArray) -> IndexArray:
        return positions

    def _positions(self, samples: IndexArray) -> IndexArray:
        return samples


@explain_options
@dataclass(frozen=True, eq=False, repr=False)
class BlockPermutation:
    """Shuffled blocks of adjacent samples, for data whose adjacent samples are cheap to read.

    Parameters
    ----------
    size : int
        Number of samples, 1 to 2**63 - 1.
    block_size : int
        Samples in a block. The start of the first block, its phase, differs between epochs; the
        short blocks at both ends come last.
    block_offsets : ndarray
        Instead of `block_size`: int64, shape (blocks + 1,), ascending from 0 to size. Block b is
        the samples [block_offsets[b], block_offsets[b + 1]).
    blocks_in_buffer : int
        0: samples of a block stay in sequence. If `block_size` is the batch size, every full batch
        is one contiguous block. (The phase is then at most size % block_size.)
        M: samples are shuffled within groups of M shuffled blocks, so that at most M blocks are
        read at a time.
    seed, epoch : int
        0 to 2**64 - 1 each, hashed.

    Raises
    ------
    ValueError
        If a number is out of range, if neither or both of `block_size` and `block_offsets` are
        given, or if offsets do not lead from 0 to size or decrease.
    TypeError
        If a number is not an integer, or offsets are not int64.

    Notes
    -----
    O(1) memory, with `block_offsets` O(blocks). With `blocks_in_buffer`, the time of a call also
    grows with the number of groups it reads.

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
            raise ValueError(
                f"exactly one of `block_size` and `block_offsets` must be given, got {found}"
            )
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
        """Return the samples at positions [start, stop); see `Permutation.slice`."""
        return slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """Return the samples at the given positions; see `Permutation.take`."""
        return take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """Return the positions of the given samples; see `Permutation.index`."""
        return index(self, samples, out)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw which sample is at each position; see `plot_order`."""
        return plot_order(self, ax=ax)

    def _samples(self, positions: IndexArray) -> IndexArray:
        return self._blocks.samples(self._within_groups(positions, inverse=False))

    def _positions(self, samples: IndexArray) -> IndexArray:
        return self._within_groups(self._blocks.positions(samples), inverse=True)

    def _within_groups(self, positions: IndexArray, *, inverse: bool) -> IndexArray:
        """Return positions shuffled within their groups of blocks."""
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


def block_group(
    order: object, offsets: IndexArray, position: int
) -> tuple[int, int, IndexArray] | None:
    """Return start, end and ascending blocks of the group of an order at a position.

    Parameters
    ----------
    order
        An order of `offsets[-1]` samples.
    offsets
        Block b has the samples [offsets[b], offsets[b + 1]); none is empty.

    Returns
    -------
    tuple, or None
        None for an order that does not shuffle these blocks. Each block is a group of its own if
        samples of a block stay in sequence.
    """
    if not isinstance(order, BlockPermutation) or order.block_offsets is None:
        return None
    blocks = order._blocks
    assert isinstance(blocks, GivenBlocks)
    if not np.array_equal(blocks.offsets, offsets):
        return None
    return blocks.group_at(position, max(order.blocks_in_buffer, 1))


@explain_options
@dataclass(frozen=True)
class Lanes:
    """Position p is in lane (p // unit) % lanes; each lane goes through a stretch of its own.

    The samples, in the order of `order`, are cut into one stretch for each lane. Position p is
    number p % unit of unit p // unit, and the units are dealt to the lanes in turn. For U =
    ceil(size / unit) units the first U % lanes lanes have one unit more than the others, and the
    last unit, which may be short, ends lane (U - 1) % lanes.

    With ``unit=1`` and as many lanes as samples in a step, row j of batch t + 1 continues row j of
    batch t, for recurrent state kept over batches. With larger units each rank reads stretches of
    its own: W ranks with batch size B, where W * B == lanes * unit and W divides `lanes`, read
    lanes / W lanes each, the same ones in every step but the last of an epoch.

    Parameters
    ----------
    size : int
        Number of samples, 1 to 2**63 - 1.
    lanes : int
        Number of lanes, 1 to 2**63 - 1.
    unit : int
        Adjacent positions of one lane, 1 or more.
    order : order factory, optional
        The order that is cut into stretches, such as ``functools.partial(BlockPermutation, ...)``;
        it gets `seed` and `epoch`. By default samples are taken as stored, and `seed` and `epoch`
        determine the stretch of each lane.
    seed, epoch : int
        0 to 2**64 - 1 each, hashed.

    Raises
    ------
    ValueError
        If a number is out of range.
    TypeError
        If a number is not an integer, or `order` is not callable.

    Notes
    -----
    O(1) time for each position and O(1) memory, besides those of `order`.

    Examples
    --------
    >>> order = Lanes(10, lanes=4, seed=1)
    >>> order[4:8] - order[0:4]
    array([1, 1, 1, 1])
    >>> Lanes(14, lanes=2, unit=3, order=Sequential)[:]
    array([ 0,  1,  2,  8,  9, 10,  3,  4,  5, 11, 12, 13,  6,  7])
    """

    size: int
    _: KW_ONLY
    lanes: int
    unit: int = 1
    order: Callable[..., Any] | None = field(default=None, compare=False)
    seed: int = 0
    epoch: int = 0
    _inner: Any = field(init=False, repr=False)  # equal for equal orders, as partials are not

    def __post_init__(self) -> None:
        Permutation(self.size, seed=self.seed, epoch=self.epoch)
        check_integer("lanes", self.lanes, least=1, most=2**63 - 1)
        check_integer("unit", self.unit, least=1)
        if self.order is not None and not callable(self.order):
            raise TypeError(
                "`order` must be a factory f(size, *, seed, epoch), got "
                f"{type(self.order).__name__}"
            )
        inner = self.order and self.order(self.size, seed=self.seed, epoch=self.epoch)
        object.__setattr__(self, "_inner", inner)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        return item(self, key)

    def slice(
        self, start: SupportsIndex, stop: SupportsIndex, out: IndexArray | None = None
    ) -> IndexArray:
        """Return the samples at positions [start, stop); see `Permutation.slice`."""
        return slice_(self, start, stop, out)

    def take(self, positions: Any, out: IndexArray | None = None) -> IndexArray:
        """Return the samples at the given positions; see `Permutation.take`."""
        return take(self, positions, out)

    def index(self, samples: Any, out: IndexArray | None = None) -> Any:
        """Return the positions of the given samples; see `Permutation.index`."""
        return index(self, samples, out)

    def _division(self) -> tuple[int, int, int, int, int]:
        """Return the samples of a unit, of a longer lane and of another, and the longer lanes.

        Last, the samples of all longer lanes together. No number is above the size, which a lane
        that lacks a part of its last unit may exceed otherwise.
        """
        unit = min(self.unit, self.size)
        units = -(-self.size // unit)
        length, longer = divmod(units, self.lanes)
        missing = units * unit - self.size
        end = longer * (length + 1) * unit - missing if longer else 0
        long, short = ((length + 1) * unit, length * unit)
        return unit, min(long, self.size), min(short, self.size), longer, end

    def _moved(self, lanes: IndexArray, *, inverse: bool = False) -> IndexArray:
        """Return the stretch of each lane, or the lane of each stretch.

        Lanes of equal length are shuffled among each other, if there is no `order`.
        """
        if self.order is not None:
            return lanes
        unit, _, _, longer, _ = self._division()
        fixed = int(self.size % unit > 0)  # The lane with the short unit keeps its stretch.
        found: IndexArray = lanes.copy()
        for start, stop, purpose in (
            (0, longer - fixed, _LONG_LANES),
            (longer, self.lanes - (0 if longer else fixed), _SHORT_LANES),
        ):
            here = (lanes >= start) & (lanes < stop)
            if here.any():
                among = Permutation(stop - start, seed=hash_words(self.seed, self.epoch, purpose))
                move = among.index if inverse else among.take
                found[here] = move(lanes[here] - start) + start
        return found

    def inner_positions(self, positions: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the positions in the inner order, and the end of the stretch of each."""
        unit, *_ = self._division()
        number, within = np.divmod(positions, unit)
        step, lane = np.divmod(number, self.lanes)
        stretch = self._moved(lane)
        return self._start(stretch) + step * unit + within, self._start(stretch + 1)

    @property
    def inner(self) -> Any:
        """The order that is cut into stretches."""
        return Sequential(self.size) if self._inner is None else self._inner

    def _start(self, stretch: IndexArray) -> IndexArray:
        _, long, short, longer, end = self._division()
        return np.where(stretch < longer, stretch * long, end + (stretch - longer) * short)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw which sample is at each position; see `plot_order`."""
        return plot_order(self, ax=ax)

    def _samples(self, positions: IndexArray) -> IndexArray:
        samples, _ = self.inner_positions(positions)
        if self._inner is not None:
            samples = self._inner.take(samples)
        return samples

    def _positions(self, samples: IndexArray) -> IndexArray:
        unit, long, short, longer, end = self._division()
        if self._inner is not None:
            samples = self._inner.index(samples)
        in_shorter = samples >= end
        stretch, place = np.divmod(samples, long)
        # If there are no units in shorter lanes, no sample is in one.
        rest, place[in_shorter] = np.divmod(samples[in_shorter] - end, max(short, 1))
        stretch[in_shorter] = rest + longer
        step, within = np.divmod(place, unit)
        positions: IndexArray = (step * self.lanes + self._moved(stretch, inverse=True)) * unit
        return positions + within


def inner_positions(order: Any, positions: IndexArray) -> tuple[Any, IndexArray, IndexArray]:
    """Return the order that lanes cut, positions in it, and the end of the stretch of each.

    Any other order is itself one stretch.
    """
    if isinstance(order, Lanes):
        return order.inner, *order.inner_positions(positions)
    return order, positions, np.full(len(positions), len(order), dtype=np.int64)
