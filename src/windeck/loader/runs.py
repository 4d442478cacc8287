"""Runs: the batches of several steps, made together by one gather.

Every batch is a function of its position, so the order, the gather and the hand-over from thread
to thread need not be done for each of them. A run ends where an epoch, an exclusion or a partial
batch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from windeck._util.validation import LIMIT
from windeck.loader.batch import PendingBatches
from windeck.loader.sharding import Sharding
from windeck.sources import Indices

__all__ = ["Run", "build_runs", "next_count"]

#: Bytes of a run: small enough for the caches, and to throw away. A larger batch is a run.
RUN_BYTES = 1 << 20
#: Batches of a run.
RUN_BATCHES = 64


def next_count(count: int, nbytes: int) -> int:
    """Return the number of batches in the run after one of `count` batches and `nbytes` bytes."""
    nearest = (RUN_BYTES * count + nbytes // 2) // max(1, nbytes)
    return max(1, min(2 * count, nearest, RUN_BATCHES))


@dataclass
class Run:
    """Consecutive batches of one rank.

    Attributes
    ----------
    pending
        The batches.
    positions
        The loader's position before the first batch, and after each of them.
    """

    pending: PendingBatches
    positions: list[int]


def build_runs(
    sharding: Sharding,
    position: int,
    epoch: int,
    most_steps: int | None,
    rank: int,
    build: Callable[[Indices, int], PendingBatches],
    makes_runs: bool,
) -> Iterator[Run]:
    """Yield the batches of an epoch from `position` on, in runs that grow from one batch.

    An error of `build` is raised in place of the batch that it belongs to. Not a method: it runs in
    the prefetching thread, which must not refer to the iterator.

    Parameters
    ----------
    sharding, rank
        The assignment of positions to steps, and the rank whose batches are built.
    position, epoch
        The loader's position, and the epoch that ends the iteration.
    most_steps
        Number of steps after which the iteration ends; None for no such limit.
    build
        Builds the batches of positions: `windeck.loader.batch.BatchBuilder`.
    makes_runs
        Whether it can build several batches at once.
    """
    left = LIMIT if most_steps is None else most_steps
    wanted, full, size = 1, 0, sharding.step_size
    failed_until = -1  # Positions before this one are built batch by batch.
    while left > 0:
        start = position
        if not full:
            start = sharding.step_start(position)
            if start // sharding.epoch_length != epoch:
                return
            full = sharding.full_steps(start, left)
        count = max(1, min(wanted, full)) if start >= failed_until else 1
        if full:
            positions = sharding.run_positions(start, rank, range(count))
            ends = list(range(start + size, start + (count + 1) * size, size))
        else:
            positions, ends = sharding.positions(start, rank), [sharding.step_end(start)]
        try:
            pending = build(positions, count)
        except Exception:
            if count == 1:
                raise
            failed_until = ends[-1]
            continue
        if makes_runs:
            wanted = next_count(count, pending.nbytes)
        yield Run(pending, [position, *ends])
        position = ends[-1]
        left, full = left - count, max(0, full - count)
        del pending  # Otherwise this reference would keep the memory of a run from the pool.
