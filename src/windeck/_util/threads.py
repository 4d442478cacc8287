"""Calls in other threads, without locks that a signal handler may find taken by its own thread.

Python calls handlers of signals in the main thread, between any two of its instructions. Events,
queues, pools and threads of `threading` and `concurrent.futures` take plain locks for some of them,
and so does the start of a thread: a handler that needs such a lock waits for itself. Here every
step is one call of a function in C, which no handler interrupts, and no two waits share a lock.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = [
    "Cancelled",
    "Pool",
    "Task",
    "holds_lock",
    "is_held",
    "reentrant_lock",
    "start",
    "unheld",
]

R = TypeVar("R")
_Queue: TypeAlias = "SimpleQueue[Task[Any] | None]"


class Cancelled(RuntimeError):
    """Raised for the result of a call that was cancelled."""


class Task(Generic[R]):
    """A call that is made once, by the first thread that runs it, and its result.

    Examples
    --------
    >>> task = Task(lambda: 6 * 7)
    >>> task.run(), task.run(), task.result()
    (True, False, 42)
    """

    def __init__(self, call: Callable[[], R]) -> None:
        self._call: Callable[[], R] | None = call
        #: The claim of the thread that makes the call, with its number; None if it is cancelled.
        self._claims: dict[str, list[int | None]] = {}
        self._waiting: list[Any] = []
        self._outcome: tuple[R] | BaseException | None = None

    def run(self) -> bool:
        """Make the call, unless another `run` or `cancel` came first; return whether it was made.

        An error is raised by `result`; KeyboardInterrupt and the like by this as well.
        """
        claim: list[int | None] = [_thread.get_ident()]  # a new object, like no other
        outcome: tuple[R] | BaseException = Cancelled("a call was interrupted before it began")
        try:
            if self._claims.setdefault("by", claim) is not claim:
                return False
            assert self._call is not None
            outcome = (self._call(),)
        except Exception as error:
            outcome = error
        except BaseException as error:
            outcome = error
            raise
        finally:
            if self._claims.get("by") is claim:
                self._end(outcome)
            del self, outcome  # the traceback of an error refers to this frame
        return True

    def cancel(self) -> bool:
        """Prevent the call; return False if it has begun, or was cancelled before."""
        claim: list[int | None] = [None]
        if self._claims.setdefault("by", claim) is not claim:
            return False
        self._end(Cancelled("the call was cancelled"))
        return True

    def _end(self, outcome: tuple[R] | BaseException) -> None:
        self._call = None
        self._outcome = outcome  # from here on no other thread begins to wait
        for lock in tuple(self._waiting):
            lock.release()

    def done(self) -> bool:
        """Return whether the call has ended, or was cancelled."""
        return self._outcome is not None

    def error(self) -> BaseException | None:
        """Wait for the end of the call, and return its error."""
        self.wait()
        return None if isinstance(self._outcome, tuple) else self._outcome

    def is_mine(self) -> bool:
        """Return whether this thread is in the call: it must not wait for it."""
        return self._claims.get("by") == [_thread.get_ident()] and not self.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the call, for `timeout` seconds at most; return whether it ended."""
        if self._outcome is None:
            lock = _thread.allocate_lock()
            lock.acquire()
            self._waiting.append(lock)  # before the outcome is looked at again
            if self._outcome is None:
                lock.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        return self.done()

    def result(self) -> R:
        """Wait for the call, and return its result or raise its error.

        Raises
        ------
        Cancelled
            If it was cancelled.
        """
        self.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, tuple):
            return self._outcome[0]
        try:
            raise self._outcome
        finally:
            del self  # the traceback refers to this frame


def start(call: Callable[[], R], queue: _Queue | None = None) -> Task[R]:
    """Make a call in a new thread, which the exit of the interpreter waits for.

    Parameters
    ----------
    queue
        A queue that is given a None at the exit, to end the call.

    Raises
    ------
    RuntimeError
        If no thread can be started, as at the exit of the interpreter.
    """
    task = Task(call)
    _running[task] = queue
    try:
        _thread.start_new_thread(_run, (task,))
    except RuntimeError:
        del _running[task]
        raise
    return task


def _run(task: Task[Any]) -> None:
    with suppress(BaseException):
        task.run()
    _running.pop(task, None)


class Pool:
    """Up to `threads` threads, which make calls in the order in which they are submitted.

    The threads are started as they are needed, and end after `close` or with the last reference to
    the pool. At the exit of the interpreter calls are made by the threads that submit them.

    Examples
    --------
    >>> with Pool(2) as pool:
    ...     [task.result() for task in [pool.submit(lambda: 1), pool.submit(lambda: 2)]]
    [1, 2]
    """

    def __init__(self, threads: int) -> None:
        self._limit, self._process = threads, os.getpid()
        self._queue: _Queue = SimpleQueue()
        self._idle: deque[None] = deque()  # an entry for each thread that waits for a call
        self._threads: list[Task[None]] = []
        weakref.finalize(self, self._queue.put, None).atexit = False

    def submit(self, call: Callable[[], R]) -> Task[R]:
        """Make a call in one of the threads."""
        task = Task(call)
        if _is_ending:
            task.run()
            return task
        self._queue.put(task)
        try:
            self._idle.pop()
        except IndexError:
            self._start()
        return task

    def _start(self) -> None:
        if len(self._threads) < self._limit:
            queue, idle = self._queue, self._idle
            try:
                # Counted when it runs: a handler that is called before may need it.
                self._threads.append(start(lambda: _serve(queue, idle), queue))
            except RuntimeError:  # the interpreter ends, or the system has no more threads
                if not self._threads:
                    for task in _drain(queue):
                        task.run()

    def close(self) -> None:
        """Cancel the calls that have not begun, and wait for the others."""
        if self._process != os.getpid():
            return  # a forked child does not have the threads
        for task in _drain(self._queue):
            task.cancel()
        self._queue.put(None)
        for thread in tuple(self._threads):
            thread.wait()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(queue: _Queue, idle: deque[None]) -> None:
    """Make the calls of a queue, until it has a None for all threads."""
    while (task := queue.get()) is not None:
        with suppress(BaseException):
            task.run()
        del task  # otherwise this reference would keep the result
        idle.append(None)
    queue.put(None)  # for the other threads


def _drain(queue: _Queue) -> Iterator[Task[Any]]:
    """Yield the calls in a queue."""
    with suppress(Empty):
        while True:
            if (task := queue.get_nowait()) is not None:
                yield task


def reentrant_lock() -> threading.RLock:
    """Return a lock which `holds_lock` knows; for what other threads may need in a call."""
    lock = threading.RLock()
    _locks.append(weakref.ref(lock, _locks.remove))
    return lock


def is_held(lock: Any) -> bool:
    """Return whether this thread holds a lock: in a signal handler, the call that it interrupts."""
    held: bool = lock._is_owned()
    return held


def unheld(lock: threading.RLock, work: str) -> threading.RLock:
    """Return a lock for work that a signal handler cannot do in the middle of the same work.

    Every batch of a loop passes here.

    Raises
    ------
    RuntimeError
        If this thread holds the lock; the message names the work.
    """
    if lock._is_owned():  # type: ignore[attr-defined]  # `is_held` without its call
        raise RuntimeError(
            f"{work} in a signal handler interrupts the same work, expected to be called after it: "
            "let the handler set a flag, and do it where the training loop finds the flag set"
        )
    return lock


def holds_lock() -> bool:
    """Return whether this thread holds a `reentrant_lock`.

    Then a thread that it waits for could wait for the lock, so it must not wait for any. Outside of
    calls under such a lock, that is so in a handler of a signal only.
    """
    return any(lock is not None and is_held(lock) for lock in [ref() for ref in tuple(_locks)])


_locks: list[weakref.ref[Any]] = []
#: Calls of threads that run, and the queues that end them.
_running: dict[Task[Any], _Queue | None] = {}
#: The interpreter ends: there are no more threads.
_is_ending = False


@atexit.register
def _end_threads() -> None:
    """Let all threads end: one that ran on in native code would abort the process."""
    global _is_ending
    _is_ending = True
    for queue in tuple(_running.values()):
        if queue is not None:
            queue.put(None)
    for task in tuple(_running):
        if not task.cancel():  # which prevents one that has not begun
            task.wait()


#: Forks between the process that imported this module and this one. Unlike the process's id it is
#: read without a system call.
forks = 0


def _start_anew() -> None:
    """Forget the threads of the parent process after a fork."""
    global forks
    forks += 1
    _running.clear()


os.register_at_fork(after_in_child=_start_anew)
