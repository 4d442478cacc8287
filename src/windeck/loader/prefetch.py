"""Background prefetching of items in one thread.

One thread is enough, and processes would copy: the work is one native call per batch that releases
the GIL. A consumer may stop early (break, an exception, Ctrl-C, the garbage collector, a fork, the
interpreter's exit), and each of these must end the thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["InlineIterator", "Prefetcher", "iterate_ahead"]


T = TypeVar("T")
#: A message to the consumer: an item, the end (None), or the error that ended the iteration.
_Message: TypeAlias = "tuple[T] | BaseException | None"


def iterate_ahead(items: Iterator[T], depth: int) -> Prefetcher[T] | InlineIterator[T]:
    """Return an iterator that computes `depth` items ahead; without a thread if `depth` is 0."""
    return Prefetcher(items, depth) if depth else InlineIterator(items)


class InlineIterator(Generic[T]):
    """An iterator with the interface of `Prefetcher` and without a thread."""

    is_alive = True
    #: Seconds that the last `get` took.
    waited = 0.0

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def get(self) -> T:
        """Return the next item; raise StopIteration if there are no more."""
        began = perf_counter()
        item = next(self._items)
        self.waited = perf_counter() - began
        return item

    def close(self) -> None:
        """Release the items."""
        self._items = iter(())


class Prefetcher(Generic[T]):
    """Iterates `items` in a background thread, at most `depth` items ahead.

    Parameters
    ----------
    items
        Advanced in the thread only. It must not refer to the prefetcher: the thread ends when the
        last reference to the prefetcher is dropped.
    depth
        Maximum number of items that are ready or being computed, at least 1.

    Notes
    -----
    Errors of `items` are raised by `get`, with their type and traceback. A forked child has no
    thread: `is_alive` is False in it, and the parent is not affected.
    """

    #: True before the thread starts, and after `close`. `__del__` may run when the interpreter has
    #: removed the globals of this module: then `atexit` has closed the prefetcher.
    _closed = True
    #: Seconds that the last `get` waited for its item; 0 if it was ready.
    waited = 0.0

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._queue: _BoundedQueue[T] = _BoundedQueue(depth)
        self._pid = os.getpid()
        # A daemon thread, so that a full queue cannot block the interpreter's exit. `atexit`
        # stops and joins it before threads that return from native code would hang.
        self._thread = threading.Thread(
            target=_work, args=(items, self._queue), name="windeck-prefetch", daemon=True
        )
        _running.add(self)
        self._thread.start()
        self._closed = False

    @property
    def is_alive(self) -> bool:
        """True in the process that runs the thread, False in its forked children."""
        return self._pid == os.getpid()

    def get(self) -> T:
        """Wait for the next item and return it; raise StopIteration if there are no more."""
        item = self._queue.get()
        self.waited = self._queue.waited
        return item

    def close(self) -> None:
        """Stop the thread and wait for the item it is computing. May be called again."""
        self._closed = True
        if not self.is_alive:
            return  # A forked child: its copies of locks may be held by the thread it lacks.
        self._queue.close()
        # The garbage collector may run `__del__` in the thread itself.
        if self._thread is not threading.current_thread() and self._thread.ident is not None:
            self._thread.join()
            self._queue.drain()

    def __del__(self) -> None:
        if not self._closed:
            self.close()


class _BoundedQueue(Generic[T]):
    """A bounded queue of one producer and one consumer that either of them can end.

    It consists of two `SimpleQueue`: messages that are ready, and a token for each free slot. They
    block in C and are reentrant, so the garbage collector may call `close`. A condition variable
    of `threading`, which is Python code, took as long as the gather of a batch.
    """

    def __init__(self, depth: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        self._ready: SimpleQueue[_Message[T]] = SimpleQueue()
        self._closed = False
        self._ended = False
        self.waited = 0.0
        for _ in range(depth):
            self._free.put(None)

    def wait_for_slot(self) -> bool:
        """Wait for a free slot; return False if the consumer wants no more items."""
        self._free.get()
        return not self._closed

    def put(self, item: T) -> None:
        self._ready.put((item,))

    def finish(self, error: BaseException | None = None) -> None:
        """Tell the consumer that no more items follow, or the error that ended them."""
        self._ready.put(error)

    def get(self) -> T:
        if self._ended or self._closed:
            raise StopIteration
        if self._ready.empty():
            began = perf_counter()
            item = self._ready.get()
            self.waited = perf_counter() - began
        else:
            item = self._ready.get()
            self.waited = 0.0
        if isinstance(item, tuple):
            self._free.put(None)
            return item[0]
        self._ended = True
        if item is None:
            raise StopIteration
        try:
            raise item
        finally:
            del item  # Its traceback refers to this frame; without this they would be a cycle.

    def close(self) -> None:
        """End the producer, and a consumer that waits."""
        self._closed = True
        self._free.put(None)
        self.drain()
        self._ready.put(None)

    def drain(self) -> None:
        """Release the items that are ready."""
        with contextlib.suppress(Empty):
            while True:
                self._ready.get_nowait()


def _work(items: Iterator[T], queue: _BoundedQueue[T]) -> None:
    try:
        while queue.wait_for_slot():
            try:
                item = next(items)
            except StopIteration:
                break
            queue.put(item)
            del item  # Otherwise this reference would keep the memory of a batch from the pool.
        queue.finish()
    except BaseException as error:  # The consumer waits: it must get errors of every type.
        queue.finish(error)


_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for prefetcher in list(_running):
        prefetcher.close()
