"""A thread-safe LRU cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from windeck._util import threads

__all__ = ["LRUCache"]


class _Entry:
    """One value, created under a lock of its own, and its size."""

    __slots__ = ("lock", "size", "value")

    def __init__(self, size: int) -> None:
        self.lock = threading.RLock()  # a signal handler may need the value that is created
        self.size = size
        self.value: Any = None


class LRUCache:
    """Values by key; the least recently used are dropped first.

    Thread-safe: threads that need the same missing value create it once, and do not block threads
    that need others.

    Parameters
    ----------
    limit
        Maximum number of values, 1 or more.
    keep_after_fork
        Keep the values in a forked child. Only for values without locks, which another thread of
        the parent may have held.
    total_size, size_of
        Maximum sum of the sizes of the values, and a function from a key to the size of its value.
        Others are dropped before a value is created; a single larger value is kept alone.

    Examples
    --------
    >>> cache = LRUCache(1)
    >>> cache.get("a", lambda: [1]), cache.get("a", lambda: [2]), cache.misses
    ([1], [1], 1)
    """

    def __init__(
        self,
        limit: int,
        *,
        keep_after_fork: bool = False,
        total_size: int = 0,
        size_of: Callable[[Any], int] = lambda key: 0,
    ) -> None:
        self.limit, self._keep_after_fork = limit, keep_after_fork
        self._total_size, self._size_of = total_size, size_of
        #: Number of values created.
        self.misses = 0
        # Reentrant: a signal handler may find it taken, so each step leaves the entries whole.
        self._lock, self._forks = threading.RLock(), threads.forks
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def _reset_after_fork(self) -> None:
        """Replace locks in a forked child: threads that held them do not exist there."""
        self._lock = threading.RLock()
        for key, entry in list(self._entries.items()):
            if entry.value is None or not self._keep_after_fork:
                self._entries.pop(key, None)
        # Last: other threads of the child may check it at the same time.
        self._forks = threads.forks

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[Any, Any]]:
        """Return the keys and values that have been created."""
        if self._forks != threads.forks:
            self._reset_after_fork()
        with self._lock:
            entries = list(self._entries.items())
        return [(key, entry.value) for key, entry in entries if entry.value is not None]

    def get(self, key: Hashable, create: Callable[[], Any]) -> Any:
        """Return the value of a key, or store and return `create()`, whose errors are raised."""
        if self._forks != threads.forks:
            self._reset_after_fork()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._add(key, self._size_of(key))
            else:
                try:  # noqa: SIM105 - a context manager takes longer than all the rest
                    self._entries.move_to_end(key)
                except KeyError:  # a signal handler dropped it
                    pass
        if entry.value is None:
            with entry.lock:
                made = create() if entry.value is None else None
                if entry.value is None:
                    entry.value = made
                    self.misses += 1
        return entry.value

    def _add(self, key: Hashable, size: int) -> _Entry:
        """Add an entry without a value, and drop others until the limits hold."""
        entry = self._entries[key] = _Entry(size)
        while len(self._entries) > self.limit:
            self._entries.popitem(last=False)
        if size:
            entries = list(self._entries.items())
            total = sum(held.size for _, held in entries)
            for other, held in entries[:-1]:
                if total <= self._total_size:
                    break
                if held.size:
                    self._entries.pop(other, None)
                    total -= held.size
        return entry
