"""Runs: the batches of several steps, made together by one gather, and iteration over them.

Every batch is a function of its position, so the order, the gather and the hand-over from thread
to thread need not be done for each of them. A run ends where an epoch, an exclusion or a partial
batch does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Protocol

from windeck._util.threads import unheld
from windeck._util.validation import LIMIT
from windeck.loader.batch import PendingBatches, Tensors, in_span
from windeck.loader.prefetch import Prefetcher
from windeck.loader.sharding import Sharding
from windeck.sources import Indices

__all__ = ["EpochIterator", "IteratedLoader", "Run", "build_runs", "next_count"]

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

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self.positions) - 1


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


class IteratedLoader(Protocol):
    """The members of a `windeck.Loader` that its iterators use.

    Attributes
    ----------
    _position, _step
        Its position and step, which an iterator moves.
    _version
        A number that changes when the loader is moved by anything else.
    _waited
        Seconds that loops waited.
    _prefetch_bytes
        Bytes that are made ahead at most; None for a number of runs.
    """

    _position: int
    _step: int
    _version: int
    _waited: SimpleNamespace
    _prefetch_bytes: int | None

    def _begin_runs(self, epoch: int | None) -> tuple[int, Prefetcher[Run]]:
        """Return an epoch, by default the current one, and its runs from the position on."""
        ...


class EpochIterator:
    """The iterator of one ``for`` loop: the batches of one epoch, from the loader's position on.

    Batches made ahead are discarded if the loader was moved meanwhile by a loaded state, an
    exclusion or another loop. The iterator stays in its epoch even if the loader is moved to
    another. In a forked child, which has no thread, it begins to make batches anew.
    """

    def __init__(self, loader: IteratedLoader) -> None:
        self._loader, self._taking = loader, threading.RLock()
        self._ahead: Prefetcher[Run] | None = None
        self._epoch: int | None = None
        self._version = -1  # None of the loader: the first batch starts the iterator.
        self._place = 0  # Of the next batch in the run.
        self._take(PendingBatches([], 0), [0])

    def __iter__(self) -> Iterator[Tensors]:
        return self

    def __next__(self) -> Tensors:
        with unheld(self._taking, "taking a batch"):
            loader, place = self._loader, self._place
            if self._positions[place] != loader._position or self._version != loader._version:
                self.close()  # Another loop took this batch, or the loader was moved.
                place = 0
            waited = 0.0
            if place == len(self._batches):
                waited = self._next_run()
                place = 0
            batch = self._batches[place]
            if self._pending.event is not None:
                self._pending.wait()
            # In this order: Ctrl-C may come in between.
            loader._position = self._positions[place + 1]
            loader._step += 1
            self._place = place + 1
            self._batches[place] = NO_BATCH  # The user's reference is the only one.
            loader._waited.step = waited
            loader._waited.total += waited
            return batch

    def close(self) -> None:
        """Stop prefetching. The position stays; another `next` starts again from it."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._take(PendingBatches([], 0), [self._loader._position])

    def _take(self, pending: PendingBatches, positions: list[int]) -> None:
        self._pending, self._batches, self._positions = pending, pending.batches, positions
        self._place = 0

    def _next_run(self) -> float:
        """Take the next run; return the seconds waited for it."""
        loader = self._loader
        while True:
            if self._ahead is None or not self._ahead.is_alive:
                self._ahead = self._start()
            try:
                run = in_span("windeck.wait", self._ahead.get)
            except BaseException:  # The end, an error of the source, or Ctrl-C: end the thread.
                self.close()
                raise
            if run.positions[0] == loader._position:
                break
            self.close()  # Ctrl-C came after a run was taken.
        self._take(run.pending, run.positions)
        if loader._prefetch_bytes is not None:
            self._ahead.depth = max(1, loader._prefetch_bytes // max(1, run.pending.nbytes))
        return self._ahead.waited

    def _start(self) -> Prefetcher[Run]:
        self.close()
        # First: what is read after it may be moved meanwhile.
        self._version = self._loader._version
        self._epoch, ahead = self._loader._begin_runs(self._epoch)
        return ahead


#: Takes the place of a batch that was handed out.
NO_BATCH: Tensors = {}
