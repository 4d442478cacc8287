"""Batch groups: the batches of several steps, made by one gather, and iteration over them.

Every batch is a function of its position, so the order, the gather and the hand-over from thread
to thread need not be done for each of them. A group ends where an epoch, an exclusion or a partial
batch does. What is the same for all groups of an epoch is looked up at its beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Protocol

from windeck._util import threads
from windeck._util.threads import unheld
from windeck._util.validation import LIMIT
from windeck.loader.batch import BatchBuilder, BatchGroup, Tensors, in_span, profiler
from windeck.loader.device import DeviceBatchBuilder
from windeck.loader.prefetch import Prefetcher
from windeck.loader.sharding import Sharding

__all__ = ["EpochIterator", "IteratedLoader", "build_groups", "next_count"]

#: Bytes of a group: small enough for the caches, and to throw away. A larger batch is a group.
GROUP_BYTES = 3 << 19
#: The same where each batch has a slab of the pool of its own, which is used again as soon as that
#: batch is dropped.
GROUP_BYTES_APART = 1 << 19
#: Batches of a group.
GROUP_BATCHES = 64


def next_count(count: int, nbytes: int, *, apart: bool = False) -> int:
    """Return the number of batches in the group after one of `count` batches and `nbytes` bytes.

    `apart` says whether each batch has a slab of the pool of its own.
    """
    wanted = GROUP_BYTES_APART if apart else GROUP_BYTES
    nearest = (wanted * count + nbytes // 2) // max(1, nbytes)
    return max(1, min(2 * count, nearest, GROUP_BATCHES))


def build_groups(
    sharding: Sharding,
    position: int,
    epoch: int,
    most_steps: int | None,
    rank: int,
    build: BatchBuilder | DeviceBatchBuilder,
) -> Iterator[BatchGroup]:
    """Yield the batches of an epoch from `position` on, in groups that grow from one batch.

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
        Builds the batches of positions.
    """
    left = LIMIT if most_steps is None else most_steps
    wanted, full, size, makes_groups = 1, 0, sharding.step_size, build.makes_groups
    counted = (0, 0)  # The number and bytes of batches that `wanted` is computed from.
    failed_until = -1  # Positions before this one are built batch by batch.
    while left > 0:
        start = position
        if not full:
            start = sharding.step_start(position)
            if start // sharding.epoch_length != epoch:
                return
            full = sharding.full_steps(start, left)
            build_full = build.in_epoch(sharding, rank, start) if full else None
        count = max(1, min(wanted, full)) if start >= failed_until else 1
        end = start + count * size if full else sharding.step_end(start)
        try:
            if build_full is None:
                group = build(sharding.positions(start, rank))
            else:
                group = build_full(start, count)
        except Exception:
            if count == 1:
                raise
            failed_until = end
            continue
        if makes_groups and (count, group.nbytes) != counted:
            wanted = next_count(count, group.nbytes, apart=group.apart)
            counted = (count, group.nbytes)
        group.positions = [position, end]
        if count > 1:
            group.positions = [position, *range(start + size, end, size), end]
        yield group
        position = end
        left, full = left - count, max(0, full - count)
        del group  # Otherwise this reference would keep the memory of a group from the pool.


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
        Bytes that are made ahead at most; None for a number of groups.
    """

    _position: int
    _step: int
    _version: int
    _waited: SimpleNamespace
    _prefetch_bytes: int | None

    def _begin_groups(self, epoch: int | None) -> tuple[int, Prefetcher[BatchGroup]]:
        """Return an epoch, by default the current one, and its groups from the position on."""
        ...


class EpochIterator:
    """The iterator of one ``for`` loop: the batches of one epoch, from the loader's position on.

    Batches made ahead are discarded if the loader was moved meanwhile by a loaded state, an
    exclusion or another loop. The iterator stays in its epoch even if the loader is moved to
    another. In a forked child, which has no thread, it begins to make batches anew.
    """

    #: A group without batches. A generator may be closed when the interpreter has removed the
    #: globals of this module.
    _NOTHING = BatchGroup([], 0)

    def __init__(self, loader: IteratedLoader) -> None:
        self._loader, self._taking = loader, threading.RLock()
        self._ahead: Prefetcher[BatchGroup] | None = None
        self._epoch: int | None = None
        self._forks = 0  # Of the process that started it.
        self._version = -1  # None of the loader: the first batch starts the iterator.
        self._batches: list[Tensors]
        self._positions: Sequence[int]
        self._place: int  # Of the next batch in the group.
        self._drop()

    def __iter__(self) -> Iterator[Tensors]:
        return self

    def __next__(self) -> Tensors:
        taking = self._taking
        if taking._is_owned():  # type: ignore[attr-defined]  # `unheld` without its call
            unheld(taking, "taking a batch")  # Raises.
        with taking:
            loader, place = self._loader, self._place
            if self._positions[place] != loader._position or self._version != loader._version:
                self.close()  # Another loop took this batch, or the loader was moved.
                place = 0
            waited = 0.0
            if place == len(self._batches):
                waited = self._next_group()
                place = 0
            batch = self._batches[place]
            if self._group.event is not None:
                self._group.wait()
            # In this order: Ctrl-C may come in between.
            loader._position = self._positions[place + 1]
            loader._step += 1
            self._place = place + 1
            self._batches[place] = NO_BATCH  # The user's reference is the only one.
            waits = loader._waited
            waits.step = waited
            waits.total += waited
            return batch

    def close(self) -> None:
        """Stop prefetching. The position stays; another `next` starts again from it."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._drop()

    def _drop(self) -> None:
        """Forget the group: the next batch comes from the loader's position."""
        self._group = self._NOTHING
        self._batches, self._positions, self._place = [], [self._loader._position], 0

    def _next_group(self) -> float:
        """Take the next group; return the seconds waited for it."""
        loader = self._loader
        while True:
            if self._ahead is None or self._forks != threads.forks:
                self._ahead = self._start()
            try:
                if getattr(profiler, "_is_profiler_enabled", True):
                    group = in_span("windeck.wait", self._ahead.get)
                else:
                    group = self._ahead.get()
            except BaseException:  # The end, an error of the source, or Ctrl-C: end the thread.
                self.close()
                raise
            if group.positions[0] == loader._position:
                break
            self.close()  # Ctrl-C came after a group was taken.
        self._group, self._batches = group, group.batches
        self._positions, self._place = group.positions, 0
        if loader._prefetch_bytes is not None:
            self._ahead.depth = max(1, loader._prefetch_bytes // max(1, group.nbytes))
        return self._ahead.waited

    def _start(self) -> Prefetcher[BatchGroup]:
        self.close()
        version = self._loader._version  # Read first: the loader may be moved meanwhile.
        self._epoch, ahead = self._loader._begin_groups(self._epoch)
        self._version, self._forks = version, threads.forks
        return ahead


#: Takes the place of a batch that was handed out.
NO_BATCH: Tensors = {}
