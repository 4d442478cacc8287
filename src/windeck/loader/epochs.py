"""Epochs of a stream: the source and the order of each, and the positions that it has.

How the positions are divided into steps, the last partial batch too: `windeck.loader.sharding`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from windeck._core import Permutation
from windeck._util.fingerprints import order_name
from windeck._util.validation import LIMIT, check_integer
from windeck.orders import Sequential
from windeck.sources import Indices, Order, OrderFactory, Source
from windeck.sources.layouts import common_layout
from windeck.sources.members import SourceMembers, source_members

__all__ = ["EpochMap", "EpochRange", "default_order"]

#: Cached orders and per-epoch sources: batches of neighbouring epochs alternate at a border.
CACHED_EPOCHS = 4


@dataclass(frozen=True)
class EpochRange:
    """The epochs of one source: from `epoch` on, which begins at position `start`."""

    start: int
    epoch: int
    length: int
    source: SourceMembers

    def epoch_at(self, position: int) -> int:
        """Return the epoch of a position of this range."""
        return self.epoch + (position - self.start) // self.length

    def epoch_start(self, epoch: int) -> int:
        """Return the position at which an epoch of this range begins."""
        return self.start + (epoch - self.epoch) * self.length


class EpochMap:
    """Maps positions of a stream to epochs, their sources and their orders.

    Parameters
    ----------
    source
        The source from position 0 on.
    order
        An order factory; None for the default of each source.
    seed
        Seed of the orders.
    grown
        Pairs (position, source): the source of all epochs that begin at the position or later.
    """

    def __init__(
        self,
        source: Source,
        order: OrderFactory | None,
        seed: int,
        grown: Sequence[tuple[int, Source]],
    ) -> None:
        first = _range_from(0, 0, source)
        self.ranges = _epoch_ranges(first, grown)
        #: The order factory of each range: blocks of one source do not fit another one.
        self.orders: list[OrderFactory] = [
            order or default_order(one.source) for one in self.ranges
        ]
        self._starts = [one.start for one in self.ranges]
        self._first_epochs = [one.epoch for one in self.ranges]
        # No bound methods in the caches: such a cycle would keep the data alive until the garbage
        # collector runs.
        self.order_at: Callable[[int], Order] = lru_cache(CACHED_EPOCHS)(
            partial(_make_order, self.orders, self.ranges, seed)
        )
        self.source_at: Callable[[int], SourceMembers] = lru_cache(CACHED_EPOCHS)(
            partial(_make_epoch_source, self.ranges, seed)
        )
        # Errors are raised here, not in a background thread in the middle of training.
        for one in self.ranges:
            self.order_at(one.epoch)
        if len(self.ranges) > 1:
            common_layout(
                {
                    f"the source from position {one.start}": self.source_at(one.epoch).methods
                    for one in self.ranges
                }
            )

    def range_at(self, position: int) -> EpochRange:
        """Return the range of a position."""
        return self.ranges[bisect_right(self._starts, position) - 1]

    def range_of(self, epoch: int) -> EpochRange:
        """Return the range of an epoch."""
        return self.ranges[bisect_right(self._first_epochs, epoch) - 1]

    def split(self, positions: Indices) -> Iterator[tuple[slice, int, Indices]]:
        """Split positions at borders of epochs; yield (rows, epoch, places within the epoch)."""
        first = positions.item(0) if len(positions) else 0
        here = self.range_at(first)
        epoch = here.epoch_at(first)
        places = positions - here.epoch_start(epoch)
        # Negative ones are large as unsigned numbers.
        if not len(places) or np.maximum.reduce(places.view(np.uint64)) < here.length:
            yield slice(0, len(places)), epoch, places  # The usual case: one epoch.
            return
        epochs = self._epochs_of(positions)
        borders = np.flatnonzero(np.diff(epochs)) + 1
        for start, stop in zip([0, *borders], [*borders, len(positions)], strict=True):
            epoch = int(epochs[start])
            epoch_start = self.range_of(epoch).epoch_start(epoch)
            yield slice(start, stop), epoch, positions[start:stop] - epoch_start

    def _epochs_of(self, positions: Indices) -> Indices:
        if len(self.ranges) == 1:
            return positions // self.ranges[0].length
        which = np.searchsorted(self._starts, positions, side="right") - 1
        starts, first_epochs = np.array(self._starts), np.array(self._first_epochs)
        lengths = np.array([one.length for one in self.ranges])
        found: Indices = first_epochs[which] + (positions - starts[which]) // lengths[which]
        return found


def default_order(source: SourceMembers) -> OrderFactory:
    """Return the order factory of a source if none is given."""
    return Sequential if source.is_shuffled_inside else source.default_order(Permutation)


def _range_from(start: int, epoch: int, source: object) -> EpochRange:
    members = source_members(source)
    length = len(members)
    if length < 1:
        raise ValueError("the source has no samples")
    return EpochRange(start, epoch, length, members)


def _epoch_ranges(first: EpochRange, grown: Sequence[tuple[int, Source]]) -> list[EpochRange]:
    """Return the ranges of epochs; of several entries in one epoch only the last one counts."""
    ranges, before = [first], -1
    for item in grown:
        try:
            position, source = item
        except (TypeError, ValueError):
            raise TypeError(
                f"`grown` must be a list of pairs (position, source), got {item!r}"
            ) from None
        position = check_integer("a position in grown", position, most=LIMIT - 1)
        if position <= before:
            raise ValueError(
                f"the positions in `grown` must be ascending, got {position} after {before}"
            )
        before, last = position, ranges[-1]
        if position <= last.start:  # The last entry's epochs have not begun by then.
            start, epoch = last.start, last.epoch
            ranges.pop()
        else:
            epochs = -((last.start - position) // last.length)
            start, epoch = last.start + epochs * last.length, last.epoch + epochs
        if ranges:
            ranges[-1].source.check_growth(source)
        added = _range_from(start, epoch, source)
        if start < LIMIT:  # Otherwise positions end before its first epoch.
            ranges.append(added)
        shuffles = first.source.is_shuffled_inside
        if added.source.is_shuffled_inside != shuffles:
            raise TypeError(
                f"the source in `grown` at {position} must {'' if shuffles else 'not '}have "
                "at_epoch(), like the first one"
            )
    return ranges


def _number_of_range(ranges: list[EpochRange], epoch: int) -> int:
    return bisect_right([one.epoch for one in ranges], epoch) - 1


def _make_order(
    factories: list[OrderFactory], ranges: list[EpochRange], seed: int, epoch: int
) -> Order:
    number = _number_of_range(ranges, epoch)
    factory, size = factories[number], ranges[number].length
    order = factory(size, seed=seed, epoch=epoch)
    if len(order) != size:
        raise ValueError(
            f"order {order_name(factory)} has {len(order)} places, but the source {size} samples"
        )
    return order


def _make_epoch_source(ranges: list[EpochRange], seed: int, epoch: int) -> SourceMembers:
    here = ranges[_number_of_range(ranges, epoch)]
    if not here.source.is_shuffled_inside:
        return here.source
    at_epoch = here.source.at_epoch(epoch, seed=seed)
    if len(at_epoch) != here.length:
        raise ValueError(
            f"every epoch of a source must have the same length, got {here.length} samples, but "
            f"{len(at_epoch)} in epoch {epoch}"
        )
    return at_epoch
