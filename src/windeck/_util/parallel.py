"""Ordered parallel map and read-ahead in threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import TypeVar

__all__ = ["parallel_map", "run_in_threads", "read_ahead"]


#: Items that a thread takes at a time: handing them over one by one costs more than a small file.
PORTION = 64

T = TypeVar("T")


def run_in_threads(
    work: Callable[[int], T],
    count: int,
    threads: int | None,
    advance: Callable[[int], None] = lambda portions: None,
    *,
    portion: int = PORTION,
    pool: ThreadPoolExecutor | None = None,
    submitted: Callable[[], None] = lambda: None,
) -> list[T]:
    """Return ``[work(0), work(1), ..., work(count - 1)]``, computed by several threads.

    After an error no new portions are started; of several errors that of the lowest number is
    raised. `advance` is called with the number of items of each finished portion. The threads are
    those of `pool`, which does the work of several calls in turn, or new ones. `submitted` is
    called when it is the turn of other calls.
    """
    workers = min(threads or min(16, 4 * (os.cpu_count() or 1)), -(-count // portion))
    firsts, lock = iter(range(0, count, portion)), threading.Lock()
    found: dict[int, list[T]] = {}
    errors: dict[int, BaseException] = {}

    def take() -> None:
        # Portions are started in order, and those that are started are finished. So the error of
        # the lowest number is among those caught.
        while not errors:
            with lock:
                first = next(firsts, count)
            if first == count:
                return
            items = range(first, min(first + portion, count))
            try:
                found[first] = [work(item) for item in items]
                advance(len(items))
            except BaseException as error:
                errors[first] = error

    def run(pool: ThreadPoolExecutor) -> None:
        tasks: list[Future[None]] = []
        try:
            tasks += (pool.submit(take) for _ in range(workers))
            submitted()
            wait(tasks)
        except BaseException as error:  # such as KeyboardInterrupt: let the threads end
            errors[-1] = error
            wait(tasks)

    if pool is not None:
        run(pool)
    elif workers <= 1:
        take()
    else:
        with ThreadPoolExecutor(workers, thread_name_prefix="windeck-files") as own:
            run(own)
    if errors:
        raise errors[min(errors)]
    return [one for first in sorted(found) for one in found[first]]


#: Reading and hashing release the interpreter's lock, so two threads are nearly twice as fast.
THREADS = min(2, os.cpu_count() or 1)

R = TypeVar("R")


def parallel_map(
    items: Iterable[T], call: Callable[[T], R], *, threads: int = THREADS
) -> Iterator[R]:
    """Yield ``map(call, items)``, computed by several threads a few items ahead of the consumer.

    The caller's thread computes too: waking it for each result would cost more. No call is running
    once the iterator ends: at the end, by an error of a call, which is raised in its turn, or
    because it was closed.

    Examples
    --------
    >>> list(parallel_map(range(5), lambda n: n * n))
    [0, 1, 4, 9, 16]
    """
    left = iter(items)
    first = list(islice(left, 2))
    if len(first) < 2 or threads < 2:
        yield from map(call, chain(first, left))
        return
    waiting: deque[tuple[T, Future[R]]] = deque()
    others: deque[Future[R]] = deque()  # of the waiting ones, those given to the other threads
    pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="windeck-read")
    try:
        for item in chain(first, left):
            while others and others[0].done():
                others.popleft()
            if len(others) < 2 * (threads - 1):  # one running, and the next one queued
                others.append(pool.submit(call, item))
                waiting.append((item, others[-1]))
            else:
                waiting.append((item, _done(call, item)))
            while waiting and (len(waiting) > 2 * threads or waiting[0][1].done()):
                yield waiting.popleft()[1].result()
        for place, (item, made) in enumerate(waiting):
            if made.cancel():  # no thread had started it
                waiting[place] = item, _done(call, item)
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done(call: Callable[[T], R], item: T) -> Future[R]:
    """Return a future with the result of a call, made in this thread."""
    made: Future[R] = Future()
    try:
        made.set_result(call(item))
    except Exception as error:
        made.set_exception(error)
    return made


def read_ahead(calls: Iterable[tuple[int, Callable[[], R]]], *, limit: int) -> Iterator[R]:
    """Yield the results of calls in order, computed by one other thread ahead of the consumer.

    Parameters
    ----------
    calls
        Each with the size of its result in bytes.
    limit
        Total bytes of results that may wait; a larger result waits alone.

    Notes
    -----
    It ends as `parallel_map` does. A single call is made in the caller's thread.

    Examples
    --------
    >>> list(read_ahead([(8, lambda: "a"), (8, lambda: "b")], limit=64))
    ['a', 'b']
    """
    left = iter(calls)
    first = list(islice(left, 2))
    if len(first) < 2 or THREADS < 2:
        yield from (call() for _, call in chain(first, left))
        return
    waiting: deque[tuple[int, Future[R]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(1, thread_name_prefix="windeck-ahead")
    try:
        for size, call in chain(first, left):
            while waiting and held + size > limit:
                before, made = waiting.popleft()
                yield made.result()
                held -= before
            waiting.append((size, pool.submit(call)))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
