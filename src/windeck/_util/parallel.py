"""Ordered parallel map and read-ahead in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from windeck._util.threads import Pool, Task, holds_lock

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
    pool: Pool | None = None,
    submitted: Callable[[], None] = lambda: None,
) -> list[T]:
    """Return ``[work(0), work(1), ..., work(count - 1)]``, computed by several threads.

    After an error no new portions are started; of several errors that of the lowest number is
    raised. `advance` is called with the number of items of each finished portion. The threads are
    those of `pool`, which does the work of several calls in turn, or new ones. `submitted` is
    called when it is the turn of other calls.
    """
    workers = min(threads or min(16, 4 * (os.cpu_count() or 1)), -(-count // portion))
    firsts = deque(range(0, count, portion))
    found: dict[int, list[T]] = {}
    errors: dict[int, BaseException] = {}

    def take() -> None:
        # Portions are started in order, and those that are started are finished. So the error of
        # the lowest number is among those caught.
        while firsts and not errors:
            try:
                first = firsts.popleft()
            except IndexError:  # another thread took the last one
                return
            items = range(first, min(first + portion, count))
            try:
                found[first] = [work(item) for item in items]
                advance(len(items))
            except BaseException as error:
                errors[first] = error

    def run(pool: Pool) -> None:
        tasks: list[Task[None]] = []
        try:
            tasks += (pool.submit(take) for _ in range(workers))
            submitted()
            _wait(tasks)
        except BaseException as error:  # such as KeyboardInterrupt: let the threads end
            errors[-1] = error
            _wait(tasks)

    if (workers <= 1 and pool is None) or holds_lock():
        take()
    elif pool is not None:
        run(pool)
    else:
        with Pool(workers) as own:
            run(own)
    if errors:
        raise errors[min(errors)]
    return [one for first in sorted(found) for one in found[first]]


def _wait(tasks: Iterable[Task[None]]) -> None:
    for task in tasks:
        task.wait()


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
    if len(first) < 2 or threads < 2 or holds_lock():
        yield from map(call, chain(first, left))
        return
    waiting: deque[Task[R]] = deque()
    others: deque[Task[R]] = deque()  # of the waiting ones, those given to the other threads
    with Pool(threads - 1) as pool:
        for item in chain(first, left):
            while others and others[0].done():
                others.popleft()
            if len(others) < 2 * (threads - 1):  # one running, and the next one queued
                others.append(pool.submit(partial(call, item)))
                waiting.append(others[-1])
            else:
                waiting.append(_done(call, item))
            while waiting and (len(waiting) > 2 * threads or waiting[0].done()):
                yield waiting.popleft().result()
        for task in waiting:
            task.run()  # unless a thread has started it
        while waiting:
            yield waiting.popleft().result()


def _done(call: Callable[[T], R], item: T) -> Task[R]:
    """Return a call that this thread has made."""
    task = Task(partial(call, item))
    task.run()
    return task


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
    if len(first) < 2 or THREADS < 2 or holds_lock():
        yield from (call() for _, call in chain(first, left))
        return
    waiting: deque[tuple[int, Task[R]]] = deque()
    held = 0
    with Pool(1) as pool:
        for size, call in chain(first, left):
            while waiting and held + size > limit:
                before, made = waiting.popleft()
                yield made.result()
                held -= before
            waiting.append((size, pool.submit(call)))
            held += size
        while waiting:
            yield waiting.popleft()[1].result()
