"""Sharding: which positions of a stream each rank reads in each step.

Pure arithmetic on positions, batch sizes, ranks and exclusions, without data. Positions are
numbered 0, 1, 2, ...; epoch e is [e * n, (e + 1) * n). A step begins at a position P and assigns
the next W * B positions that are not excluded to W ranks, B each, in the order of ranks:

    rank r gets [P + r*B, P + (r+1)*B), then P += W*B

A step never crosses the end of an epoch. Of a remainder of R < W * B positions rank r gets
[r*R//W, (r+1)*R//W); with `drop_last` the remainder is dropped. Each position is assigned to
exactly one rank, and all ranks make the same number of steps.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from torch.utils.data import get_worker_info

from windeck._util.validation import LIMIT, check_integer
from windeck._util.warning import warn
from windeck.loader.mesh_axes import check_mesh_axes
from windeck.sources import Indices

__all__ = ["Exclusions", "Sharding", "check_ranks", "current_ranks", "warn_of_launcher"]


class Exclusions:
    """Ranges of excluded positions. Immutable; every query is O(log ranges).

    Parameters
    ----------
    ranges
        Pairs [start, stop). They may overlap; `ranges` holds them sorted and merged.

    Examples
    --------
    >>> skip = Exclusions([(2, 4), (3, 5)])
    >>> skip.ranges, skip.kept(0, 10), skip.nth(0, 2)
    (((2, 5),), 7, 5)
    """

    __slots__ = ("_excluded_before", "_kept_before", "_starts", "ranges")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self.ranges = tuple(merged)
        self._starts = [start for start, _ in merged]
        # Of the positions before range j: the number of excluded ones, and of the others.
        self._excluded_before = [0]
        for start, stop in merged:
            self._excluded_before.append(self._excluded_before[-1] + stop - start)
        self._kept_before = [
            start - excluded
            for start, excluded in zip(self._starts, self._excluded_before, strict=False)
        ]

    @classmethod
    def from_state(cls, saved: object) -> Exclusions:
        """Return the exclusions that a state holds as pairs.

        Raises
        ------
        ValueError
            If they are not pairs of positions.
        """
        ranges = []
        try:
            for start, stop in saved:  # type: ignore[attr-defined]
                first = check_integer("start", start)
                ranges.append((first, check_integer("stop", stop, least=first + 1)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`excluded` of the state is invalid: {error}") from None
        return cls(ranges)

    def _before(self, position: int) -> int:
        """Return the number of excluded positions below `position`."""
        j = bisect_right(self._starts, position) - 1
        if j < 0:
            return 0
        start, stop = self.ranges[j]
        return self._excluded_before[j] + min(position, stop) - start

    def kept(self, start: int, stop: int) -> int:
        """Return the number of positions in [start, stop) that are not excluded."""
        return stop - start - (self._before(stop) - self._before(start))

    def nth(self, start: int, n: int) -> int:
        """Return the n-th (from 0) position at or after `start` that is not excluded."""
        index = start - self._before(start) + n
        return index + self._excluded_before[bisect_right(self._kept_before, index)]

    def kept_ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, stop) that are not excluded, ascending."""
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
NO_EXCLUSIONS = Exclusions()


@dataclass(frozen=True)
class Sharding:
    """The assignment of positions to steps and ranks.

    Parameters
    ----------
    epoch_length
        Positions in an epoch, n; `LIMIT` for a stream without epochs.
    batch_size
        Samples of one rank in one full step, B.
    world_size
        Number of ranks, W.
    drop_last
        Whether the remainder of an epoch after its full steps is dropped.
    exclusions
        Excluded positions.

    Raises
    ------
    ValueError
        If `drop_last` would drop every sample.
    """

    epoch_length: int
    batch_size: int
    world_size: int = 1
    drop_last: bool = False
    exclusions: Exclusions = NO_EXCLUSIONS

    def __post_init__(self) -> None:
        n = self.epoch_length
        if self.drop_last and self.step_size > n:
            raise ValueError(
                f"`drop_last` would drop every sample: {self.world_size} ranks with a batch size "
                f"of {self.batch_size} take {self.step_size} samples per step, but an epoch has {n}"
            )

    @property
    def step_size(self) -> int:
        """Positions in a full step, over all ranks."""
        return self.batch_size * self.world_size

    def epoch_end(self, position: int) -> int:
        """Return the first position after the epoch of `position`."""
        return (position // self.epoch_length + 1) * self.epoch_length

    def step_start(self, position: int) -> int:
        """Return the start of the first step at or after `position`.

        It is in a later epoch if the rest of this one is excluded or dropped. O(ranges) at most,
        for any number of excluded epochs.
        """
        needed = self.step_size if self.drop_last else 1
        while self.exclusions.kept(position, self.epoch_end(position)) < needed:
            position = self.exclusions.nth(self.epoch_end(position), 0)
        return position

    def step_end(self, start: int) -> int:
        """Return the position after the step that begins at `start`."""
        end = self.epoch_end(start)
        if self.exclusions.kept(start, end) < self.step_size:
            return end
        return self.exclusions.nth(start, self.step_size - 1) + 1

    def full_steps(self, start: int, most: int) -> int:
        """Return the number of full steps from `start` on, without exclusions in between.

        They begin at start, start + step_size and so on, within one epoch. At most `most`.
        """
        stop = min(self.epoch_end(start), LIMIT)
        first, last = next(self.exclusions.kept_ranges(start, stop), (start, start))
        return min(most, (last - start) // self.step_size) if first == start else 0

    def samples_left(self, start: int, rank: int) -> int:
        """Return the number of samples of `rank` from a step's start to the end of its epoch."""
        left = self.exclusions.kept(start, self.epoch_end(start))
        steps, remainder = divmod(left, self.step_size)
        share = range(0) if self.drop_last else self._share(remainder, rank)
        return steps * self.batch_size + len(share)

    def _share(self, remainder: int, rank: int) -> range:
        """Return the share of a remainder that `rank` gets."""
        ranks = self.world_size
        return range(rank * remainder // ranks, (rank + 1) * remainder // ranks)

    def positions_of_steps(self, start: int, rank: int, steps: range) -> Indices:
        """Return the positions of `rank` in some of the full steps from `start` on, end to end.

        Parameters
        ----------
        steps
            Numbers of steps after the one at `start`, below those of `full_steps`.
        """
        size, first = self.batch_size, start + rank * self.batch_size
        if self.world_size == steps.step == 1:
            return np.arange(first + steps.start * size, first + steps.stop * size)
        starts = np.arange(steps.start, steps.stop, steps.step) * self.step_size
        of_rank = np.arange(first, first + size)
        positions: Indices = (starts[:, None] + of_rank).ravel()
        return positions

    def positions(self, start: int, rank: int) -> Indices:
        """Return the positions of `rank` in the step at `start`: ascending, possibly none.

        Raises
        ------
        IndexError
            If the step would pass the last position.
        """
        size = self.batch_size
        left = self.exclusions.kept(start, self.epoch_end(start))
        is_full = left >= self.step_size
        share = range(rank * size, (rank + 1) * size) if is_full else self._share(left, rank)
        if not share:
            return np.empty(0, np.int64)
        first, last = self.exclusions.nth(start, share[0]), self.exclusions.nth(start, share[-1])
        if last >= LIMIT:
            raise IndexError(
                f"the step at position {start} would pass the end of the stream, 2^63 - 1"
            )
        ranges = [np.arange(a, b) for a, b in self.exclusions.kept_ranges(first, last + 1)]
        return ranges[0] if len(ranges) == 1 else np.concatenate(ranges)

    def steps_left(self, start: int) -> int:
        """Return the number of steps from `start` to the end of its epoch."""
        left = self.exclusions.kept(start, self.epoch_end(start))
        return left // self.step_size if self.drop_last else -(-left // self.step_size)

    def jump(self, start: int, steps: int) -> int:
        """Return the start of the step that is `steps` after the first at or after `start`.

        O(ranges), at any distance.
        """
        start = self.step_start(start)
        here = self.steps_left(start)
        if steps < here:
            return self.exclusions.nth(start, steps * self.step_size)
        steps -= here
        for first, epochs, each in self._equal_epochs(start // self.epoch_length + 1):
            if each and (epochs is None or steps < each * epochs):
                epoch, steps = first + steps // each, steps % each
                return self.exclusions.nth(epoch * self.epoch_length, steps * self.step_size)
            steps -= each * (epochs or 0)
        raise AssertionError("the last range of epochs is unbounded")

    def steps_to(self, start: int, position: int) -> int | None:
        """Return the number of steps between `start` and the step that contains `position`.

        The inverse of `jump`. None for a position that is before `start`, excluded, or dropped at
        the end of an epoch.
        """
        start = self.step_start(start)
        if position < start or position in self.exclusions:
            return None
        epoch, steps, each = start // self.epoch_length, 0, self.steps_left(start)
        if position >= self.epoch_end(start):
            steps, each = self._steps_before(start, epoch + 1, position // self.epoch_length)
            start = position - position % self.epoch_length
        within = self.exclusions.kept(start, position) // self.step_size
        return steps + within if within < each else None

    def _steps_before(self, start: int, first: int, epoch: int) -> tuple[int, int]:
        """Return the steps from `start` to the beginning of `epoch`, and the steps of `epoch`."""
        steps = self.steps_left(start)
        for low, epochs, each in self._equal_epochs(first):
            if epochs is None or epoch < low + epochs:
                return steps + each * (epoch - low), each
            steps += each * epochs
        raise AssertionError("the last range of epochs is unbounded")

    def _equal_epochs(self, epoch: int) -> Iterator[tuple[int, int | None, int]]:
        """Yield ranges of epochs with equally many steps: (first epoch, epochs, steps in each).

        From `epoch` on; the last range is unbounded (None). Only the two epochs at the ends of an
        excluded range can differ from their neighbours.
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
    """Return the given (rank, world size), or None if both are left to torch.distributed.

    Raises
    ------
    TypeError
        If they are not integers, or only one of them is given.
    ValueError
        For a rank that is negative or not below the world size.
    """
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise TypeError(
            f"`rank` and `world_size` must be given together, got rank={rank} and "
            f"world_size={world_size}"
        )
    ranks = check_integer("world_size", world_size, least=1)
    number = check_integer("rank", rank)
    if number >= ranks:
        raise ValueError(f"`rank` must be below `world_size` = {ranks}, got {number}")
    return number, ranks


def current_ranks(given: tuple[int, int] | None) -> tuple[int, int]:
    """Return (rank, world size): those given, or torch.distributed's once it is initialised.

    Raises
    ------
    ValueError
        If none are given and a device mesh has ranks that share batches.
    """
    if given is not None:
        return given
    if dist.is_available() and dist.is_initialized():
        check_mesh_axes()
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def warn_of_launcher(given: tuple[int, int] | None, *, is_forked_worker: bool = False) -> None:
    """Warn at a loop that does not know the rank that a launcher has set, such as `torchrun`.

    Of the workers of a DataLoader only in the first one, if it is known to be forked: others need
    not have the process group of their parent.
    """
    rank, ranks = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if given is not None or not (rank.isdecimal() and ranks.isdecimal() and int(ranks) > 1):
        return
    worker = get_worker_info()
    if worker is not None and (worker.id > 0 or not is_forked_worker):
        return
    if dist.is_available() and dist.is_initialized():
        return
    warn(
        f"RANK={rank} and WORLD_SIZE={ranks} are set, but torch.distributed has no process group "
        "and `rank` is not given, so that this process reads the samples of all ranks; call "
        "torch.distributed.init_process_group() before the loop, or pass "
        f"rank={rank}, world_size={ranks}"
    )
