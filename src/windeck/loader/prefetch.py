"""Work ahead in one background thread, and leave nothing behind.

Threads suffice, and processes would only copy: the work is one native call a batch that releases
the GIL. What takes care is the end. A consumer may stop in the middle (break, an exception, Ctrl-C,
the garbage collector, fork, the interpreter's exit), and each of these has to end the thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from windeck.loader.batch import Assembler, Ready, Tensors, span
from windeck.loader.sharding import Deal

if TYPE_CHECKING:
    from windeck.loader.loader import Loader

__all__ = ["Inline", "Loop", "Prefetcher", "ahead"]


T = TypeVar("T")
#: What travels: an item, the end (None), or the error that ended it.
_Item: TypeAlias = "tuple[T] | BaseException | None"


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
            self._channel.drain()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self.close()


class _Channel(Generic[T]):
    """A bounded queue of one producer and one consumer that either side can end.

    Two `SimpleQueue`: items that are ready, and room for more, a token for each. They block in C
    and may be entered again by the garbage collector; a condition variable of `threading`, all
    Python, took as long as the gather of a batch.
    """

    def __init__(self, depth: int) -> None:
        self._room: SimpleQueue[None] = SimpleQueue()
        self._ready: SimpleQueue[_Item[T]] = SimpleQueue()
        self._closed = False
        self._ended = False
        for _ in range(depth):
            self._room.put(None)

    def wait_for_room(self) -> bool:
        """Wait until another item may be made. False when none is wanted any more."""
        self._room.get()
        return not self._closed

    def put(self, item: T) -> None:
        self._ready.put((item,))

    def finish(self, error: BaseException | None = None) -> None:
        """The producer's last word."""
        self._ready.put(error)

    def get(self) -> T:
        if self._ended or self._closed:
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, tuple):
            self._room.put(None)
            return item[0]
        self._ended = True
        if item is None:
            raise StopIteration
        try:
            raise item
        finally:
            del item  # Its traceback holds this frame: no cycle to wait for the collector.

    def close(self) -> None:
        """Let the producer see that nothing more is wanted, and a waiting consumer too."""
        self._closed = True
        self._room.put(None)
        self.drain()
        self._ready.put(None)

    def drain(self) -> None:
        """Let go of what is ready."""
        with contextlib.suppress(Empty):
            while True:
                self._ready.get_nowait()


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


Ahead: TypeAlias = "Prefetcher[tuple[Ready, int, int]] | Inline[tuple[Ready, int, int]]"


class Loop:
    """One ``for`` loop: the batches of one epoch, from the loader's position on.

    Batches made ahead are thrown away when the loader was moved meanwhile: by a loaded state,
    an exclusion, another loop; and in a child process, which has no thread, after a fork.
    The loop stays that of one epoch, wherever the loader is moved.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._ahead: Ahead | None = None
        self._epoch: int | None = None
        self._version = -1

    def __iter__(self) -> Iterator[Tensors]:
        return self

    def __next__(self) -> Tensors:
        loader = self._loader
        while True:
            source = self._ahead
            if source is None or self._version != loader._version or not source.alive_here:
                source = self._start()
            try:
                with span("windeck.wait"):
                    ready, before, after = source.get()
            except BaseException:  # The end, an error of the source, or Ctrl-C: no thread stays.
                self.close()
                raise
            if before == loader._position:
                break
            self.close()  # Another loop took this batch, or Ctrl-C came when one was taken.
        loader._position = after
        loader._step += 1
        return ready.hand_over()

    def close(self) -> None:
        """Stop working ahead. The position stays; a further `next` starts again from it."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _start(self) -> Ahead:
        self.close()
        loader = self._loader
        loader._note()
        if self._epoch is None:
            self._epoch = loader.epoch
        self._version = loader._version
        if loader.epochs is None or self._epoch < loader.epochs:
            steps = loader._deal().steps(loader.position, self._epoch)
        else:
            steps = iter(())
        made = _made(steps, loader._deal(), loader.position, loader.rank, loader._assemble)
        self._ahead = ahead(made, loader.prefetch)
        return self._ahead


def _made(
    steps: Iterator[tuple[int, int]], deal: Deal, position: int, rank: int, assemble: Assembler
) -> Iterator[tuple[Ready, int, int]]:
    """The batches of `steps`, each with the loader's position before and after it.

    Advanced in another thread, which must keep no reference to the loop.
    """
    for start, stop in steps:
        yield assemble(deal.positions(start, rank)), position, stop
        position = stop
