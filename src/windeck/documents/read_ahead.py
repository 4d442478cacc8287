"""Read-ahead of remote shards, in the order in which an epoch opens them.

With a local cache they are downloaded into it. Without one they are opened, in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Protocol

from windeck._core import TokenShard
from windeck._util.threads import Pool, Task
from windeck.documents.discovery import ShardList
from windeck.documents.protocol import Int64s
from windeck.io import filesystem

__all__ = ["ShardSequence", "ReadAhead", "read_ahead_of"]

#: Largest number of bytes that are read ahead.
AHEAD_BYTES = 1 << 30
#: Shards that may be opened ahead in vain, beside as many as were not.
_MOST_DROPPED = 8


class ShardSequence(Protocol):
    """An order of S shards."""

    def __len__(self) -> int: ...

    def at(self, place: int) -> int:
        """Return the shard at a place."""

    def index(self, shard: int, /) -> int:
        """Return the place of a shard."""


class ReadAhead:
    """Reading of the shards that are opened next, in one background thread. Thread-safe.

    Parameters
    ----------
    shards
        The shards, on a remote file system.
    sizes
        int64 of shape (S,): bytes of each shard, as `limit` counts them.
    limit
        Bytes that are read ahead.
    open_shard
        Function that opens a shard, if shards are kept open until `take`. Without it they are
        downloaded into the cache of the file system.
    is_open
        Returns True for a shard that is open already.
    """

    def __init__(
        self,
        shards: ShardList,
        sizes: Int64s,
        limit: int,
        open_shard: Callable[[int], TokenShard] | None = None,
        is_open: Callable[[int], bool] = lambda shard: False,
    ) -> None:
        self._shards, self._sizes, self._limit = shards, sizes, limit
        self._open, self._is_open = open_shard, is_open
        self._expected: tuple[ShardSequence, int] | None = None
        self._pool: Pool | None = None
        self._task: Task[None] | None = None
        self._process = 0
        #: Shards that are open, or being opened, until they are taken.
        self._held: dict[int, Task[TokenShard]] = {}
        #: Shards of this order that were asked for before they were opened ahead.
        self._late: set[int] = set()
        self._taken = self._dropped = 0

    def expect(self, order: ShardSequence, shard: int, follows: bool = True) -> None:
        """Note that shards are opened in an order from `shard` on, and start reading ahead.

        If other shards than the next ones follow, nothing is opened ahead.
        """
        if self._open is not None and not follows:
            return
        place, known = order.index(shard), self._expected
        if known is not None and known[0] is order and known[1] == place:
            return
        if self._process != os.getpid():  # Threads do not survive a fork.
            self._process, self._task, self._held = os.getpid(), None, {}
            self._pool = Pool(1)
        if known is None or known[0] is not order:
            self._late.clear()
        self._expected = order, place
        self._drop({shard, *self._window()})
        if self._pool is not None and (self._task is None or self._task.done()):
            self._task = self._pool.submit(self._run)

    def take(self, shard: int) -> TokenShard | None:
        """Return a shard that was opened ahead, after waiting for it; None for others.

        An error is not raised: it is found again where the shard is opened.
        """
        if self._process != os.getpid():
            return None
        self._late.add(shard)  # First, so that the thread does not open it from now on.
        made = self._held.pop(shard, None)
        if made is None:
            return None
        self._late.discard(shard)
        self._taken += 1
        with suppress(Exception):
            return made.result()
        return None

    def _drop(self, wanted: set[int]) -> None:
        """Drop open shards that are not among the next ones."""
        for shard in tuple(self._held):
            if shard not in wanted and self._held.pop(shard, None) is not None:
                self._dropped += 1

    def _run(self) -> None:
        """Read the next shards until they are `limit` bytes, as the expected order changes."""
        done: set[int] = set()
        while (shard := self._next(done)) is not None and not _is_ending():
            done.add(shard)
            if self._open is None:
                self._download(shard)
                continue
            made = self._held[shard] = Task(partial(self._open, shard))
            if shard in self._late and self._held.pop(shard, None) is not None:
                continue
            made.run()

    def _download(self, shard: int) -> None:
        """Download a shard into the cache, unless it has been opened and passed in the meantime."""
        before = self._expected

        def is_useless() -> bool:
            order, place = self._expected or (None, 0)
            passed = before is not None and order is before[0] and order.index(shard) < place
            return passed or _is_ending()

        # An error is raised again where the shard is opened.
        with suppress(Exception):
            filesystem.load(self._shards.path(shard), self.needed_at, is_useless)

    def _next(self, done: set[int]) -> int | None:
        # Two users of a corpus with different orders would drop what the other one reads.
        if self._dropped > self._taken + _MOST_DROPPED:
            return None
        for shard in self._window():
            if not (shard in done or shard in self._held or self._is_open(shard)):
                return shard
        return None

    def _window(self) -> Iterator[int]:
        """Yield the next shards, which together are at most `limit` bytes."""
        if self._expected is None:
            return
        order, place = self._expected
        total = 0
        for ahead in range(place + 1, len(order)):
            shard = order.at(ahead)
            total += int(self._sizes[shard])
            if total > self._limit:
                return
            yield shard

    def needed_at(self, key: str) -> int | None:
        """Return after how many other shards an object is opened; None for another object.

        Shards that come before the present one are needed in the next epoch.
        """
        shard, expected = self._numbers.get(key), self._expected
        if shard is None or expected is None:
            return None
        order, place = expected
        return (order.index(shard) - place) % len(order)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The shard of each key of the cache."""
        paths = map(self._shards.path, range(len(self._shards.paths)))
        return {filesystem.cache_key(path): shard for shard, path in enumerate(paths)}


def read_ahead_of(
    shards: ShardList,
    sizes: Int64s,
    open_bytes: Int64s,
    most_open: int,
    open_shard: Callable[[int], TokenShard],
    is_open: Callable[[int], bool],
) -> ReadAhead | None:
    """Return the read-ahead of remote shards, None for local ones.

    Parameters
    ----------
    sizes, open_bytes
        int64 of shape (S,): bytes of each shard, in its file and in memory while it is open.
    most_open
        Bytes of all open shards.
    open_shard, is_open
        See `ReadAhead`, for shards that have no cache.
    """
    if not filesystem.is_remote(shards.root):
        return None
    limit = filesystem.cache_limit(shards.root)
    if limit is not None:
        return ReadAhead(shards, sizes, min(AHEAD_BYTES, limit // 2))
    return ReadAhead(shards, open_bytes, min(AHEAD_BYTES, most_open // 2), open_shard, is_open)


def _is_ending() -> bool:
    """Return True once the program ends, and waits for threads."""
    return not threading.main_thread().is_alive()
