"""Groups of blocks of rows in memory, the next of which are read in the background."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

from windeck._util.threads import Cancelled, Pool, Task

__all__ = ["Blocks", "GroupCache", "GroupSource"]

#: Numbers of blocks, ascending.
Blocks: TypeAlias = "tuple[int, ...]"


#: Groups that are read ahead at most, and the threads that read them.
AHEAD = 8


class GroupSource(Protocol):
    """Reads groups of blocks."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of two groups at most, with the rows after them."""

    @property
    def reading_bytes(self) -> int:
        """Bytes that are resident while a group is read, in addition to both groups."""

    def bytes_of(self, blocks: Blocks) -> int:
        """Return the bytes of a group at most."""

    def load(self, blocks: Blocks, queued: Callable[[], None]) -> Any:
        """Read a group; call `queued` once the next group can be loaded without delay to it."""


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
        # Reentrant: a signal handler may find it taken, so each step leaves the groups whole.
        self._lock, self._process = threading.RLock(), os.getpid()
        self._groups: OrderedDict[_Key, Task[Any]] = OrderedDict()
        #: Ends when the last group that is read ahead is queued.
        self._queued = Task(_nothing)
        self._queued.run()
        #: Groups that were dropped while they were read, until they have been, and their bytes.
        self._dropped: dict[Task[Any], int] = {}
        #: Groups that threads of the pool read, or will read.
        self._ahead: set[Task[Any]] = set()
        self._pool = Pool(AHEAD)
        #: Number of groups read.
        self.reads = 0

    def _reset_after_fork(self) -> None:
        """Replace locks and threads in a forked child, which does not have those of the parent."""
        self._lock, self._queued = threading.RLock(), Task(_nothing)
        self._queued.run()
        self._groups, self._dropped, self._pool = OrderedDict(), {}, Pool(AHEAD)
        self._ahead = set()
        self._process = os.getpid()

    def held(self, reader: GroupSource) -> list[Blocks]:
        """Return the groups of a reader, the most recently used first."""
        if self._process != os.getpid():
            self._reset_after_fork()
        return [blocks for one, blocks in reversed(tuple(self._groups)) if one is reader]

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
            task = self._groups.get(key)
            if (task is None or not task.done()) and self._is_interrupted():
                return reader.load(blocks, _nothing)
            if task is None:
                task = self._add(key, self._by_use(reader, needed))
            else:
                self._move_to_end(key)
        try:
            if task not in self._ahead:
                self._run(task)
            found = task.result()
        except Cancelled:  # Another thread dropped it before it was read.
            return self.get(reader, blocks, following, needed)
        except BaseException:
            with self._lock:
                if self._groups.get(key) is task:
                    self._groups.pop(key, None)
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
        task = self._groups.pop(key, None)
        if task is not None and not task.cancel():
            self._dropped[task] = _bytes_of(key)
            if task.done():
                self._dropped.pop(task, None)

    def _run(self, task: Task[Any]) -> None:
        """Read a group, unless another thread does."""
        try:
            task.run()
        finally:
            self._dropped.pop(task, None)
            self._ahead.discard(task)

    def _is_interrupted(self) -> bool:
        """Return whether a signal handler calls this, which interrupted the reading of a group.

        It must not wait for groups: they may wait for that one.
        """
        return any(task.is_mine() for task in (*self._groups.values(), *self._dropped))

    def _move_to_end(self, key: _Key, *, last: bool = True) -> None:
        with suppress(KeyError):  # a signal handler dropped it
            self._groups.move_to_end(key, last=last)

    def _read_ahead(
        self, key: _Key, current: _Key, needed: Collection[Blocks], *, optional: bool
    ) -> None:
        """Begin to read a group. The lock is held."""
        if key in self._groups:
            if not optional:
                self._move_to_end(key)
            return
        others = [one for one in self._by_use(key[0], needed) if one != current]
        if optional:
            others = [one for one in others if one[0] is key[0] and one[1] not in needed]
            if self._used(key) - sum(map(_bytes_of, others)) > self._limit_of(key[0]):
                return
        queued = Task(_nothing)
        task = self._add(key, others, lambda: _end(queued))
        if optional:  # It is dropped before the groups in use of other readers.
            self._move_to_end(key, last=False)
        self._pool.submit(partial(self._run_in_turn, self._queued, queued, task))
        # Only now: a signal handler that comes before reads the group itself.
        self._queued = queued
        self._ahead.add(task)
        if task.done():
            self._ahead.discard(task)

    def _used(self, added: _Key) -> int:
        return sum(map(_bytes_of, (*self._groups, added)))

    def _by_use(self, reader: GroupSource, needed: Collection[Blocks]) -> list[_Key]:
        """Return all groups in the order in which they are dropped for a new group of a reader."""
        # A stable sort: among equals the least recently used comes first.
        return sorted(self._groups, key=lambda one: one[0] is reader and one[1] in needed)

    def _add(
        self, key: _Key, others: Sequence[_Key], queued: Callable[[], None] = lambda: None
    ) -> Task[Any]:
        """Add a group that is not read yet, and drop others in their order until it fits."""
        limit, used = self._limit_of(key[0]), self._used(key)
        for other in others:
            if used <= limit:
                break
            self._drop(other)
            used -= _bytes_of(other)
        dropped = dict(self._dropped)
        before = list(dropped) if used + sum(dropped.values()) > limit else []
        task = self._groups[key] = Task(partial(_read, key, before, queued))
        self.reads += 1
        return task

    def _run_in_turn(self, turn: Task[None], queued: Task[None], task: Task[Any]) -> None:
        """Read a group when the one before it is queued, which is needed first."""
        turn.wait()
        try:
            self._run(task)
        finally:
            queued.run()


def _read(key: _Key, before: list[Task[Any]], queued: Callable[[], None]) -> Any:
    """Read a group after the reads of dropped groups have ended."""
    for task in before:
        task.wait()
    before.clear()
    return key[0].load(key[1], queued)


def _end(task: Task[None]) -> None:
    task.run()


def _nothing() -> None:
    pass


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
    batches = [left[at : at + most] for at in range(0, len(left), most)]
    return [*found, *((tuple(batch), batch) for batch in batches)]
