"""Groups of blocks of rows in memory, the next of which is read in the background."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeAlias

__all__ = ["Blocks", "GroupCache", "GroupSource"]

#: Numbers of blocks, ascending.
Blocks: TypeAlias = "tuple[int, ...]"


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

    def load(self, blocks: Blocks) -> Any:
        """Read a group."""


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
        self._groups: OrderedDict[tuple[GroupSource, Blocks], Future[Any]] = OrderedDict()
        #: Groups that were dropped while they were read, until they have been, and their bytes.
        self._dropped: dict[Future[Any], int] = {}
        self._pool: ThreadPoolExecutor | None = None
        #: Number of groups read.
        self.reads = 0

    def _reset_after_fork(self) -> None:
        """Replace locks and threads in a forked child, which does not have those of the parent."""
        self._lock = threading.Lock()
        self._groups, self._dropped, self._pool = OrderedDict(), {}, None
        self._process = os.getpid()

    def held(self, reader: GroupSource) -> list[Blocks]:
        """Return the groups of a reader, the one used last first."""
        if self._process != os.getpid():
            self._reset_after_fork()
        with self._lock:
            return [blocks for one, blocks in reversed(self._groups) if one is reader]

    def get(
        self,
        reader: GroupSource,
        blocks: Blocks,
        following: Blocks | None = None,
        needed: Collection[Blocks | None] = (),
    ) -> Any:
        """Return a group, and begin to read the `following` one.

        Groups that are `needed` next are dropped last.
        """
        if self._process != os.getpid():
            self._reset_after_fork()
        key = (reader, blocks)
        with self._lock:
            future = self._groups.get(key)
            mine = future is None
            if future is None:
                future, before = self._add(key, None, needed)
            else:
                self._groups.move_to_end(key)
        if mine:
            self._fill(key, future, before)
        try:
            found = future.result()
        except CancelledError:  # Another thread dropped it before it was read.
            return self.get(reader, blocks, following, needed)
        except BaseException:
            with self._lock:
                if self._groups.get(key) is future:
                    del self._groups[key]
            raise
        if following is not None:
            self._read_ahead((reader, following), key, needed)
        return found

    def drop(self, reader: GroupSource) -> None:
        """Drop the groups of a reader."""
        for blocks in self.held(reader):
            with self._lock:
                self._drop((reader, blocks))

    def _drop(self, key: tuple[GroupSource, Blocks]) -> None:
        future = self._groups.pop(key, None)
        if future is not None and not future.cancel() and not future.done():
            self._dropped[future] = key[0].bytes_of(key[1])
            future.add_done_callback(lambda done: self._dropped.pop(done, None))

    def _read_ahead(
        self,
        key: tuple[GroupSource, Blocks],
        keep: tuple[GroupSource, Blocks],
        needed: Collection[Blocks | None],
    ) -> None:
        with self._lock:
            if key in self._groups:
                return
            future, before = self._add(key, keep, needed)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="windeck-groups")
            try:
                self._pool.submit(self._fill, key, future, before)
            except RuntimeError:  # The interpreter is shutting down.
                del self._groups[key]

    def _add(
        self,
        key: tuple[GroupSource, Blocks],
        keep: tuple[GroupSource, Blocks] | None,
        needed: Collection[Blocks | None],
    ) -> tuple[Future[Any], list[Future[Any]]]:
        """Add a group that is not read yet, and drop others until it fits.

        Returns it and reads of dropped groups that must end before it is read.
        """
        limit = key[0].resident_bytes
        if self._limit is not None:
            limit = self._limit - key[0].reading_bytes
        used = sum(reader.bytes_of(blocks) for reader, blocks in (*self._groups, key))
        # A stable sort: among equals the least recently used comes first.
        for other in sorted(self._groups, key=lambda one: one[0] is key[0] and one[1] in needed):
            if used <= limit:
                break
            if other != keep:
                self._drop(other)
                used -= other[0].bytes_of(other[1])
        future: Future[Any] = Future()
        self._groups[key] = future
        self.reads += 1
        dropped = dict(self._dropped)
        return future, list(dropped) if used + sum(dropped.values()) > limit else []

    def _fill(
        self, key: tuple[GroupSource, Blocks], future: Future[Any], before: list[Future[Any]]
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        wait(before)
        before.clear()
        try:
            future.set_result(key[0].load(key[1]))
        except BaseException as error:
            future.set_exception(error)


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
