"""The live ones: a few values, made when first asked for, least recently used first out."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["LiveRuns"]


class _Slot:
    """One value, made by whoever asks first."""

    __slots__ = ("lock", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None


class LiveRuns:
    """Values by key, at most `limit` of them. Thread-safe; two that ask for one key make it once.

    Parameters
    ----------
    limit
        Values kept, 1 or more.
    lasting
        Whether a forked child keeps what was made. Only for values without locks of their own,
        which a thread of the parent may have held.

    Examples
    --------
    >>> live = LiveRuns(1)
    >>> live.get("a", lambda: [1]), live.get("a", lambda: [2]), live.made
    ([1], [1], 1)
    """

    def __init__(self, limit: int, *, lasting: bool = False) -> None:
        self.limit, self._lasting = limit, lasting
        #: Values ever made.
        self.made = 0
        self._lock, self._process = threading.Lock(), os.getpid()
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()

    def _forget_parent(self) -> None:
        """After fork: locks may be held by threads that are no more, and will never be free."""
        self._lock = threading.Lock()
        for key, slot in list(self._slots.items()):
            if slot.value is None or not self._lasting:
                self._slots.pop(key, None)
        # Last, as other threads of the child may be looking.
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._slots)

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values, those that are made."""
        if self._process != os.getpid():
            self._forget_parent()
        with self._lock:
            slots = list(self._slots.items())
        return [(key, slot.value) for key, slot in slots if slot.value is not None]

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key; `make()` where there is none, whose errors are the caller's."""
        if self._process != os.getpid():
            self._forget_parent()
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot()
                while len(self._slots) > self.limit:
                    self._slots.popitem(last=False)
            else:
                self._slots.move_to_end(key)
        if slot.value is None:
            with slot.lock:
                if slot.value is None:
                    slot.value = make()
                    self.made += 1
        return slot.value
