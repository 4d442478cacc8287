"""Prefetching of items in one background thread, where that saves time.

One thread is enough, and processes would copy: the work is one native call for many batches, which
releases the GIL. Handing an item from thread to thread costs two wake-ups, often more than a short
training step takes, and a thread beside a step that uses all processors costs more than it saves:
`windeck.loader.pace` decides from item to item whether the thread makes the next ones, or the
consumer. A consumer may stop early (break, an exception, Ctrl-C, the garbage collector, a fork, the
interpreter's exit), and each of these must end the thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

from windeck._util.threads import Task, start
from windeck.loader.pace import COMPARED, SHORT_STEP_AND_ITEM, Pace

__all__ = ["Prefetcher"]


T = TypeVar("T")
#: Sizes of two items whose times are not compared.
_UNLIKE = (0, -1)
#: A message to the consumer: an item, or the error that ended the iteration.
_Message: TypeAlias = "tuple[T] | BaseException"


class Prefetcher(Generic[T]):
    """Iterates `items`, up to `depth` items ahead of a consumer that is busy between them.

    Parameters
    ----------
    items
        Advanced by the consumer or by the thread, never by both at a time. It must not refer to
        the prefetcher: the thread ends when the last reference to the prefetcher is dropped.
    depth
        Maximum number of items that are ready or being made ahead; 0 for no thread. May be changed
        between two items.
    pace
        What is known of the consumer, from earlier loops too.
    size
        Function that returns the size of an item. Times are compared between items of one size.

    Notes
    -----
    Errors of `items` are raised by `get`, with their type and traceback. A forked child has no
    thread: `is_alive` is False in it, and the parent is not affected.
    """

    #: True before the first item, and after `close`. `__del__` may run when the interpreter has
    #: removed the globals of this module: then `atexit` has closed a prefetcher with a thread.
    _closed = True
    #: Seconds of waiting for an item after which `on_stall` is called once; None for never.
    patience: float | None = None
    #: Called by `get`. It must not refer to the prefetcher.
    on_stall: Callable[[], object]
    #: Seconds that the last `get` took to wait for its item, or to make it; 0 if it was ready.
    waited = 0.0

    def __init__(
        self,
        items: Iterator[T],
        depth: int,
        pace: Pace | None = None,
        size: Callable[[T], int] = lambda _: 1,
    ) -> None:
        self.depth = depth
        self._pace = Pace() if pace is None else pace
        self._size = size
        self._items = items
        # They block in C and are reentrant, so the garbage collector may call `close`.
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._ready: SimpleQueue[_Message[T]] = SimpleQueue()
        self._pending = 0  # Items that were requested and not yet taken.
        # When the consumer asked for the last item and was given it.
        self._asked: float | None = None
        self._left = 0.0
        self._sizes = (0, 0)  # Of the last two items.
        self._was_taken = False  # The last item, from the thread.
        self._in_row = 0  # Items taken one after the other while others were requested.
        self._pid = os.getpid()
        self._thread: Task[None] | None = None
        self._closed = False

    @property
    def is_alive(self) -> bool:
        """True in the process that made the prefetcher, False in its forked children."""
        return self._pid == os.getpid()

    def get(self) -> T:
        """Return the next item; raise StopIteration if there are no more."""
        if self._closed:
            raise StopIteration
        began, pace = perf_counter(), self._pace
        if not self.depth or (pace.unseen and not self._pending):
            item = next(self._items)
            self.waited = perf_counter() - began
            pace.unseen -= pace.unseen > 0
            self._asked = None  # No time is noted until the next item was asked for.
            return item
        if self._asked is not None:
            away = began - self._left
            if away < SHORT_STEP_AND_ITEM and not self._pending:
                # The consumer makes the next items too, and calls take time: no more is noted.
                item = next(self._items)
                self._asked, self._left = began, perf_counter()
                self.waited = self._left - began
                self._sizes, pace.away = _UNLIKE, away
                return item
            self._record_cycle(began - self._asked)
            pace.saw_consumer_away(away)
        self._was_taken = self._pending > 0
        if self._was_taken:
            item = self._take()
        else:
            item = next(self._items)
            self.waited = perf_counter() - began
            pace.saw_item_made(self.waited)
        if pace.makes_ahead:
            self._request()
            self._in_row += 1
        else:
            self._in_row = 0
        self._sizes = self._sizes[1], self._size(item)
        self._asked, self._left = began, perf_counter()
        return item

    def _record_cycle(self, seconds: float) -> None:
        """Record the time from one request of the consumer to the next.

        Unless the thread was starting or ending, or the items were of different sizes.
        """
        if self._sizes[0] != self._sizes[1]:
            return
        if not self._was_taken and not self._pending:
            self._pace.saw_cycle(seconds, ahead=False)
        elif self._was_taken and self._in_row > min(self.depth, COMPARED):
            self._pace.saw_cycle(seconds, ahead=True)

    def _take(self) -> T:
        """Take an item from the thread."""
        if self._ready.empty():
            began = perf_counter()
            try:
                message = self._ready.get(timeout=self.patience)
            except Empty:
                self.on_stall()
                message = self._ready.get()
            self.waited = perf_counter() - began
        else:
            message = self._ready.get()
            self.waited = 0.0
        self._pending -= 1
        if isinstance(message, tuple):
            return message[0]
        self._items, self._pending, self.depth = iter(()), 0, 0
        try:
            raise message
        finally:
            del message  # Its traceback refers to this frame; without this they would be a cycle.

    def _request(self) -> None:
        """Request items from the thread, which starts with the first of them."""
        while self._pending < self.depth:
            if self._thread is None:
                # Nothing can block the interpreter's exit: `atexit` stops and joins the thread.
                _running.add(self)
                self._thread = start(partial(_work, self._items, self._requests, self._ready))
            self._requests.put(True)
            self._pending += 1

    def close(self) -> None:
        """Stop the thread and wait for the item it is making. May be called again."""
        if self._closed:
            return
        self._closed, thread = True, self._thread
        if thread is not None:
            if not self.is_alive:
                return  # The copies of locks of a forked child may be held by the thread it lacks.
            _drain(self._requests)
            self._requests.put(False)
            # The garbage collector may run `__del__` in the thread itself.
            if not (thread.cancel() or thread.is_mine()):
                thread.wait()
            _drain(self._ready)
        self._items = iter(())

    def __del__(self) -> None:
        if not self._closed:
            self.close()


def _drain(queue: SimpleQueue[Any]) -> None:
    with contextlib.suppress(Empty):
        while True:
            queue.get_nowait()


def _work(items: Iterator[T], requests: SimpleQueue[bool], ready: SimpleQueue[_Message[T]]) -> None:
    while requests.get():
        try:
            item = next(items)
        except BaseException as error:  # The consumer waits: it must get errors of every type.
            ready.put(error)
            return
        ready.put((item,))
        del item  # Otherwise this reference would keep the memory of a batch from the pool.


_running: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for prefetcher in list(_running):
        prefetcher.close()
