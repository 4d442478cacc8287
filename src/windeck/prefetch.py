"""Work ahead in one background thread, and leave nothing behind.

Threads suffice, and processes would only copy: the work is one native call a batch that releases
the GIL. What takes care is the end. A consumer may stop in the middle (break, an exception, Ctrl-C,
the garbage collector, fork, the interpreter's exit), and each of these has to end the thread.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Inline", "Prefetcher", "ahead"]

T = TypeVar("T")


def ahead(items: Iterator[T], depth: int) -> Prefetcher[T] | Inline[T]:
    """Iterate `items` up to `depth` ahead in a thread, or here and now where `depth` is 0."""
    return Prefetcher(items, depth) if depth else Inline(items)


class Inline(Generic[T]):
    """What `Prefetcher` is, without a thread."""

    alive_here = True

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def get(self) -> T:
        """The next item; StopIteration when there are no more."""
        return next(self._items)

    def close(self) -> None:
        """Let go of the items."""
        self._items = iter(())


class Prefetcher(Generic[T]):
    """Iterates `items` in a background thread, at most `depth` of them ahead.

    Parameters
    ----------
    items
        Advanced in the thread only. It must not refer to the prefetcher: dropping the last
        reference to that is what ends the thread.
    depth
        How many items may be ready or in the making, at least 1.

    Notes
    -----
    Errors of `items` are raised by `get`, with their own type and traceback. After a fork the
    child has no thread: `alive_here` is False there, and the parent goes on undisturbed.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._channel: _Channel[T] = _Channel(depth)
        self._pid = os.getpid()
        # A daemon, so that a full queue cannot hold up the interpreter's exit; it is stopped
        # and joined by atexit, before threads that come back from native code would hang.
        self._thread = threading.Thread(
            target=_work, args=(items, self._channel), name="windeck-prefetch", daemon=True
        )
        _running.add(self)
        self._thread.start()

    @property
    def alive_here(self) -> bool:
        """Whether this process is the one that runs the thread."""
        return self._pid == os.getpid()

    def get(self) -> T:
        """The next item, waiting for it; StopIteration when there are no more."""
        return self._channel.get()

    def close(self) -> None:
        """Stop the thread and wait until it has finished the item it is at. May be repeated."""
        if not self.alive_here:
            return  # The locks may be held for ever here: the thread that holds them is not.
        self._channel.close()
        # The garbage collector may have come upon us in the thread itself.
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


class _Channel(Generic[T]):
    """A bounded queue of one producer and one consumer that either side can end."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._ready: deque[T] = deque()
        self._closed = False
        self._finished = False
        self._error: BaseException | None = None
        # On a re-entrant lock: a collection during a wait may call `close` in the same thread.
        self._changed = threading.Condition(threading.RLock())

    def wait_for_room(self) -> bool:
        """Wait until another item may be made. False when none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            return not self._closed

    def put(self, item: T) -> None:
        with self._changed:
            if not self._closed:
                self._ready.append(item)
                self._changed.notify_all()

    def finish(self, error: BaseException | None = None) -> None:
        """The producer's last word."""
        with self._changed:
            self._finished, self._error = True, error
            self._changed.notify_all()

    def get(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._finished or self._closed)
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            del error  # Its traceback holds this frame: no cycle to wait for the collector.

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()


def _work(items: Iterator[T], channel: _Channel[T]) -> None:
    try:
        while channel.wait_for_room():
            try:
                item = next(items)
            except StopIteration:
                break
            channel.put(item)
            del item  # A batch is the consumer's alone, or its memory cannot return.
        channel.finish()
    except BaseException as error:  # Whatever it is, the consumer waits for it.
        channel.finish(error)


_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for prefetcher in list(_running):
        prefetcher.close()
