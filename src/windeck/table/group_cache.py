"""Groups of blocks of rows in memory, the next of which are read in the background."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeAlias

__all__ = ["Blocks", "GroupCache", "GroupSource"]

#: Numbers of blocks, ascending.
Blocks: TypeAlias = "tuple[int, ...]"


#: Groups that are read ahead at most, and the threads that read them.
AHEAD = 8


class GroupSource(Protocol):
    """Reads groups of blocks."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of two groups at most, with the rows behind them."""

    @property
    def reading_bytes(self) -> int:
        """Bytes that are resident while a group is read, beside the groups."""

    def bytes_of(self, blocks: Blocks) -> int:
        """Return the bytes of a group at most."""

    def load(self, blocks: Blocks, queued: Callable[[], None]) -> Any:
        """Read a group. Calls `queued` when another one can be loaded without delaying this one."""


_Key: TypeAlias = tuple[GroupSource, Blocks]


def _bytes_of(key: _Key) -> int:
    return key[0].bytes_of(key[1])


class GroupCache:
    """The groups in memory of all readers of a table; the least recently used are dropped first.

    Thread-safe. A group that is dropped stays in memory as long as a batch is made of it.

    Parameters
    ----------
    limit
        Bytes that are resident at most; None for two groups of the reader that was used last.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._lock, self._process = threading.Lock(), os.getpid()
        self._groups: OrderedDict[_Key, Future[Any]] = OrderedDict()
        #: Set when the last group that is read ahead is queued.
        self._queued = _set_event()
        #: Groups that were dropped while they were read, until they have been, and their bytes.
        self._dropped: dict[Future[Any], int] = {}
        self._pool: ThreadPoolExecutor | None = None
        #: Number of groups read.
        self.reads = 0

    def _reset_after_fork(self) -> None:
        """Replace locks and threads in a forked child, which does not have those of the parent."""
        self._lock = threading.Lock()
        self._groups, self._dropped, self._pool = OrderedDict(), {}, None
        self._process, self._queued = os.getpid(), _set_event()

    def held(self, reader: GroupSource) -> list[Blocks]:
        """Return the groups of a reader, the one used last first."""
        if self._process != os.getpid():
            self._reset_after_fork()
        with self._lock:
            return [blocks for one, blocks in reversed(self._groups) if one is reader]

    def ahead(self, reader: GroupSource, groups: int, group_bytes: int) -> int:
        """Return how many groups to read ahead of each of some groups in use; 1 or more."""
        most = self._limit_of(reader) // max(groups * group_bytes, 1) - 1
        return max(1, min(most, AHEAD))

    def _limit_of(self, reader: GroupSource) -> int:
        if self._limit is None:
            return reader.resident_bytes
        return self._limit - reader.reading_bytes

    def get(
        self,
        reader: GroupSource,
        blocks: Blocks,
        following: Sequence[Blocks] = (),
        needed: Collection[Blocks] = (),
    ) -> Any:
        """Return a group, and begin to read the `following` ones.

        The first of them is read in any case, the others as far as nothing else that is needed has
        to be dropped for them. Groups of the reader that are `needed` next are dropped last.
        """
        if self._process != os.getpid():
            self._reset_after_fork()
        key, needed = (reader, blocks), {*following, *needed}
        with self._lock:
            future = self._groups.get(key)
            task = None
            if future is None:
                task = self._add(key, self._by_use(reader, needed))
                future = task[0]
            else:
                self._groups.move_to_end(key)
        if task is not None:
            self._fill(key, *task)
        try:
            found = future.result()
        except CancelledError:  # Another thread dropped it before it was read.
            return self.get(reader, blocks, following, needed)
        except BaseException:
            with self._lock:
                if self._groups.get(key) is future:
                    del self._groups[key]
            raise
        with self._lock:
            for place, one in enumerate(following):
                self._read_ahead((reader, one), key, needed, optional=place > 0)
        return found

    def drop(self, reader: GroupSource) -> None:
        """Drop the groups of a reader."""
        for blocks in self.held(reader):
            with self._lock:
                self._drop((reader, blocks))

    def _drop(self, key: _Key) -> None:
        future = self._groups.pop(key, None)
        if future is not None and not future.cancel() and not future.done():
            self._dropped[future] = _bytes_of(key)
            future.add_done_callback(lambda done: self._dropped.pop(done, None))

    def _read_ahead(
        self, key: _Key, current: _Key, needed: Collection[Blocks], *, optional: bool
    ) -> None:
        """Begin to read a group. The lock is held."""
        if key in self._groups:
            if not optional:
                self._groups.move_to_end(key)
            return
        others = [one for one in self._by_use(key[0], needed) if one != current]
        if optional:
            others = [one for one in others if one[0] is key[0] and one[1] not in needed]
            if self._used(key) - sum(map(_bytes_of, others)) > self._limit_of(key[0]):
                return
        task = self._add(key, others)
        if optional:  # It is dropped before the groups in use of other readers.
            self._groups.move_to_end(key, last=False)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="windeck-groups")
        before, self._queued = self._queued, threading.Event()
        try:
            self._pool.submit(self._fill_in_turn, before, self._queued, key, *task)
        except RuntimeError:  # The interpreter is shutting down.
            self._queued.set()
            del self._groups[key]

    def _used(self, added: _Key) -> int:
        return sum(map(_bytes_of, (*self._groups, added)))

    def _by_use(self, reader: GroupSource, needed: Collection[Blocks]) -> list[_Key]:
        """Return all groups in the order in which they are dropped for one of a reader."""
        # A stable sort: among equals the least recently used comes first.
        return sorted(self._groups, key=lambda one: one[0] is reader and one[1] in needed)

    def _add(self, key: _Key, others: Sequence[_Key]) -> tuple[Future[Any], list[Future[Any]]]:
        """Add a group that is not read yet, and drop others in their order until it fits.

        Returns it and the reads of dropped groups that must end before it is read.
        """
        limit, used = self._limit_of(key[0]), self._used(key)
        for other in others:
            if used <= limit:
                break
            self._drop(other)
            used -= _bytes_of(other)
        future: Future[Any] = Future()
        self._groups[key] = future
        self.reads += 1
        dropped = dict(self._dropped)
        return future, list(dropped) if used + sum(dropped.values()) > limit else []

    def _fill_in_turn(
        self,
        turn: threading.Event,
        queued: threading.Event,
        key: _Key,
        future: Future[Any],
        before: list[Future[Any]],
    ) -> None:
        """Read a group when the one before it is queued, which is needed first."""
        turn.wait()
        try:
            self._fill(key, future, before, queued.set)
        finally:
            queued.set()

    def _fill(
        self,
        key: _Key,
        future: Future[Any],
        before: list[Future[Any]],
        queued: Callable[[], None] = lambda: None,
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        wait(before)
        before.clear()
        try:
            future.set_result(key[0].load(key[1], queued))
        except BaseException as error:
            future.set_exception(error)


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def cover(
    blocks: Sequence[int], groups: Sequence[Blocks], most: int
) -> list[tuple[Blocks, list[int]]]:
    """Return groups to read for some ascending blocks, and which of the blocks each is for.

    Parameters
    ----------
    groups
        Groups to prefer, such as those in memory.
    most
        Number of blocks of any other group, at most.
    """
    left, found = list(blocks), []
    for group in groups:
        inside = set(group)
        taken = [block for block in left if block in inside]
        if taken:
            found.append((group, taken))
            left = [block for block in left if block not in inside]
        if not left:
            break
    pieces = [left[at : at + most] for at in range(0, len(left), most)]
    return [*found, *((tuple(piece), piece) for piece in pieces)]
