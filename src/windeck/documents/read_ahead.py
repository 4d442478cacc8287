"""Read-ahead of remote shards into the local cache, in the order in which an epoch opens them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import Protocol

from windeck.documents.discovery import ShardList
from windeck.documents.protocol import Int64s
from windeck.io import filesystem

__all__ = ["PlannedOrder", "ReadAhead", "read_ahead_of"]

#: Largest number of bytes that are read ahead.
AHEAD_BYTES = 1 << 30


class PlannedOrder(Protocol):
    """An order of S shards."""

    def __len__(self) -> int: ...

    def at(self, place: int) -> int:
        """Return the shard at a place."""

    def index(self, part: int) -> int:
        """Return the place of a shard."""


class ReadAhead:
    """Downloads of the shards that are opened next, in one background thread. Thread-safe.

    Parameters
    ----------
    shards
        The shards, on a remote file system with a cache.
    sizes
        int64 of shape (S,): bytes of each shard.
    limit
        Bytes that are read ahead.
    """

    def __init__(self, shards: ShardList, sizes: Int64s, limit: int) -> None:
        self._shards, self._sizes, self._limit = shards, sizes, limit
        self._plan: tuple[PlannedOrder, int] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._task: Future[None] | None = None
        self._process = 0

    def plan(self, order: PlannedOrder, shard: int) -> None:
        """Note that shards are opened in an order from `shard` on, and start reading ahead."""
        plan = (order, order.index(shard))
        if self._plan is not None and self._plan[0] is order and self._plan[1] == plan[1]:
            return
        self._plan = plan
        if self._process != os.getpid():  # Threads do not survive a fork.
            self._process, self._task = os.getpid(), None
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="windeck-ahead")
        if self._pool is not None and (self._task is None or self._task.done()):
            with suppress(RuntimeError):  # at the end of the interpreter
                self._task = self._pool.submit(self._run)

    def _run(self) -> None:
        """Download the next shards until they are `limit` bytes, as the plan changes."""
        done: set[int] = set()
        while (shard := self._next(done)) is not None and not _is_ending():
            done.add(shard)
            # An error is raised again where the shard is opened.
            with suppress(Exception):
                filesystem.load(self._shards.path(shard), self.needed_at, _is_ending)

    def _next(self, done: set[int]) -> int | None:
        if self._plan is None:
            return None
        order, place = self._plan
        total = 0
        for ahead in range(place + 1, len(order)):
            shard = order.at(ahead)
            total += int(self._sizes[shard])
            if total > self._limit:
                break
            if shard not in done:
                return shard
        return None

    def needed_at(self, key: str) -> int | None:
        """Return after how many other shards an object is opened; None for another object.

        Shards that come before the present one are needed in the next epoch.
        """
        shard, plan = self._numbers.get(key), self._plan
        if shard is None or plan is None:
            return None
        order, place = plan
        return (order.index(shard) - place) % len(order)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The shard of each key of the cache."""
        paths = map(self._shards.path, range(len(self._shards.paths)))
        return {filesystem.cache_key(path): shard for shard, path in enumerate(paths)}


def read_ahead_of(shards: ShardList, sizes: Int64s) -> ReadAhead | None:
    """Return the read-ahead of shards, None for those that are local or have no cache."""
    limit = filesystem.cache_limit(shards.root)
    if limit is None:
        return None
    return ReadAhead(shards, sizes, min(AHEAD_BYTES, limit // 2))


def _is_ending() -> bool:
    """Return True once the program ends, and waits for threads."""
    return not threading.main_thread().is_alive()
