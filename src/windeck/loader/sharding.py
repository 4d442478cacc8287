"""Where batches lie in the stream: pure arithmetic on positions, batches, ranks and exclusions.

Everything the loader promises about resuming is decided here, without torch and without data. A
stream is numbered 0, 1, 2, ...; epoch e is [e * n, (e + 1) * n). A step begins at a position P and
deals the next W * B positions that are not excluded to W ranks, B each, in rank order:

    rank r gets [P + r*B, P + (r+1)*B), then P += W*B

Steps never cross the end of an epoch. Of a remainder of R < W * B positions rank r gets
[r*R//W, (r+1)*R//W), or nobody gets any where the last step is dropped. So each position is dealt
to exactly one rank, the number of steps is the same for all of them, and both follow from P alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from windeck._util.validation import LIMIT, check_integer

__all__ = ["Deal", "Exclusions", "check_ranks", "current_ranks"]


class Exclusions:
    """Ranges of positions left out. Immutable; every question is O(log ranges).

    Parameters
    ----------
    ranges
        Pairs [start, stop). They may overlap; `ranges` holds them sorted and joined.

    Examples
    --------
    >>> skip = Exclusions([(2, 4), (3, 5)])
    >>> skip.ranges, skip.kept(0, 10), skip.nth(0, 2)
    (((2, 5),), 7, 5)
    """

    __slots__ = ("_kept", "_left_out", "_starts", "ranges")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
            else:
                joined.append((start, stop))
        self.ranges = tuple(joined)
        self._starts = [start for start, _ in joined]
        # _left_out[j]: positions in the first j ranges; _kept[j]: kept ones before range j.
        self._left_out = [0]
        for start, stop in joined:
            self._left_out.append(self._left_out[-1] + stop - start)
        self._kept = [start - out for start, out in zip(self._starts, self._left_out, strict=False)]

    @classmethod
    def of(cls, saved: object) -> Exclusions:
        """Exclusions from the pairs of a state.

        Raises
        ------
        ValueError
            When they are no pairs of positions.
        """
        ranges = []
        try:
            for start, stop in saved:  # type: ignore[attr-defined]
                first = check_integer("start", start)
                ranges.append((first, check_integer("stop", stop, least=first + 1)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the state's excluded ranges are damaged: {error}") from None
        return cls(ranges)

    def _before(self, position: int) -> int:
        """Excluded positions below `position`."""
        j = bisect_right(self._starts, position) - 1
        if j < 0:
            return 0
        start, stop = self.ranges[j]
        return self._left_out[j] + min(position, stop) - start

    def kept(self, start: int, stop: int) -> int:
        """How many positions of [start, stop) are not excluded."""
        return stop - start - (self._before(stop) - self._before(start))

    def nth(self, start: int, n: int) -> int:
        """The n-th (from 0) position at or after `start` that is not excluded."""
        place = start - self._before(start) + n
        return place + self._left_out[bisect_right(self._kept, place)]

    def first(self, position: int) -> int:
        """The first position at or after `position` that is not excluded."""
        return self.nth(position, 0)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The pieces of [start, stop) that are not excluded, ascending."""
        j = max(0, bisect_right(self._starts, start) - 1)
        for left, right in self.ranges[j:]:
            if left >= stop:
                break
            if start < left:
                yield start, left
            start = max(start, right)
        if start < stop:
            yield start, stop

    def __contains__(self, position: int) -> bool:
        return self.kept(position, position + 1) == 0


#: Excludes no position.
NOTHING = Exclusions()


@dataclass(frozen=True)
class Deal:
    """How positions are dealt into steps.

    Parameters
    ----------
    epoch_length
        Positions in an epoch, n; `LIMIT` where there are no epochs.
    batch_size
        Samples of one rank in one full step, B.
    world_size
        Ranks, W.
    drop_last
        Whether what is left of an epoch after its full steps is dropped.
    exclusions
        Positions left out.
    """

    epoch_length: int
    batch_size: int
    world_size: int = 1
    drop_last: bool = False
    exclusions: Exclusions = NOTHING

    def __post_init__(self) -> None:
        """
        Raises
        ------
        ValueError
            For a batch that no epoch fills, and for `drop_last` where it drops all.
        """
        n = self.epoch_length
        if self.batch_size > n:
            raise ValueError(
                f"batch_size {self.batch_size} is larger than the epoch of {n} samples"
            )
        if self.drop_last and self.full > n:
            raise ValueError(
                f"drop_last would drop everything: {self.world_size} ranks of batch_size "
                f"{self.batch_size} take {self.full} samples a step, an epoch has {n}"
            )

    @property
    def full(self) -> int:
        """Positions in a full step, over all ranks."""
        return self.batch_size * self.world_size

    def epoch_end(self, position: int) -> int:
        """The first position after the epoch of `position`."""
        return (position // self.epoch_length + 1) * self.epoch_length

    def begin(self, position: int) -> int:
        """Where the next step begins: at `position`, or in a later epoch where nothing is left.

        O(ranges) at most, however many epochs are excluded as a whole.
        """
        needed = self.full if self.drop_last else 1
        while self.exclusions.kept(position, self.epoch_end(position)) < needed:
            position = self.exclusions.first(self.epoch_end(position))
        return position

    def advance(self, start: int) -> int:
        """Where the position stands after the step that begins at `start`."""
        end = self.epoch_end(start)
        if self.exclusions.kept(start, end) < self.full:
            return end
        return self.exclusions.nth(start, self.full - 1) + 1

    def steps(self, position: int, epoch: int) -> Iterator[tuple[int, int]]:
        """The steps of an epoch from `position` on: (where it begins, where it ends)."""
        start = self.begin(position)
        while start // self.epoch_length == epoch:
            stop = self.advance(start)
            yield start, stop
            start = self.begin(stop)

    def positions(self, start: int, rank: int) -> NDArray[np.int64]:
        """What `rank` gets in the step that begins at `start`: ascending, possibly empty.

        Raises
        ------
        IndexError
            For a step that would reach beyond the last of all positions.
        """
        size, ranks = self.batch_size, self.world_size
        left = self.exclusions.kept(start, self.epoch_end(start))
        if left >= self.full:
            low, high = rank * size, (rank + 1) * size
        else:
            low, high = rank * left // ranks, (rank + 1) * left // ranks
        if low == high:
            return np.empty(0, np.int64)
        first, last = self.exclusions.nth(start, low), self.exclusions.nth(start, high - 1)
        if last >= LIMIT:
            raise IndexError(
                f"the stream ends at position 2^63 - 1, which the step at {start} would pass"
            )
        spans = [np.arange(a, b) for a, b in self.exclusions.spans(first, last + 1)]
        return spans[0] if len(spans) == 1 else np.concatenate(spans)

    def steps_left(self, start: int) -> int:
        """Steps from `start` to the end of its epoch."""
        left = self.exclusions.kept(start, self.epoch_end(start))
        return left // self.full if self.drop_last else -(-left // self.full)

    def jump(self, start: int, steps: int) -> int:
        """Where the step begins that comes `steps` after the one beginning at or after `start`.

        O(ranges), at any distance.
        """
        start = self.begin(start)
        here = self.steps_left(start)
        if steps < here:
            return self.exclusions.nth(start, steps * self.full)
        steps -= here
        for first, epochs, each in self._stretches(start // self.epoch_length + 1):
            if each and (epochs is None or steps < each * epochs):
                epoch, steps = first + steps // each, steps % each
                return self.exclusions.nth(epoch * self.epoch_length, steps * self.full)
            steps -= each * (epochs or 0)
        raise AssertionError("the last stretch has no end")

    def steps_to(self, start: int, position: int) -> int | None:
        """How many steps after `start` the one is that deals `position`; the inverse of `jump`.

        None for positions before `start`, excluded, or dropped at the end of an epoch.
        """
        start = self.begin(start)
        if position < start or position in self.exclusions:
            return None
        epoch, steps, each = start // self.epoch_length, 0, self.steps_left(start)
        if position >= self.epoch_end(start):
            steps, each = self._steps_before(start, epoch + 1, position // self.epoch_length)
            start = position - position % self.epoch_length
        within = self.exclusions.kept(start, position) // self.full
        return steps + within if within < each else None

    def _steps_before(self, start: int, first: int, epoch: int) -> tuple[int, int]:
        """Steps from `start` to the beginning of `epoch`, and the steps of `epoch` itself."""
        steps = self.steps_left(start)
        for low, epochs, each in self._stretches(first):
            if epochs is None or epoch < low + epochs:
                return steps + each * (epoch - low), each
            steps += each * epochs
        raise AssertionError("the last stretch has no end")

    def _stretches(self, epoch: int) -> Iterator[tuple[int, int | None, int]]:
        """Runs of epochs with equally many steps, from `epoch` on: (first, how many, steps each).

        Only the two epochs at the ends of an excluded range can differ from their neighbours.
        """
        n = self.epoch_length
        cuts = {epoch}
        for start, stop in self.exclusions.ranges:
            cuts |= {start // n, start // n + 1, (stop - 1) // n, (stop - 1) // n + 1}
        ordered = sorted(cut for cut in cuts if cut >= epoch)
        for cut, following in zip(ordered, [*ordered[1:], None], strict=True):
            epochs = None if following is None else following - cut
            yield cut, epochs, self.steps_left(cut * n)


def check_ranks(rank: object, world_size: object) -> tuple[int, int] | None:
    """The pair a user gave, or None where it is left to torch.distributed.

    Raises
    ------
    TypeError
        For ranks that are no integers, or one of the two without the other.
    ValueError
        For a rank that is negative or not below the world size.
    """
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise TypeError(
            f"rank and world_size go together, got rank={rank} and world_size={world_size}"
        )
    ranks = check_integer("world_size", world_size, least=1)
    number = check_integer("rank", rank)
    if number >= ranks:
        raise ValueError(f"`rank` must be below the world size of {ranks}, got {number}")
    return number, ranks


def current_ranks(given: tuple[int, int] | None) -> tuple[int, int]:
    """(rank, world size): what was given, or torch.distributed's once it is initialised."""
    if given is not None:
        return given
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
