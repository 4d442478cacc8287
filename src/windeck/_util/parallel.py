"""Ordered parallel map and read-ahead in threads."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import TypeVar

__all__ = ["in_order", "in_threads", "one_ahead"]


#: Files a thread takes at a time: handing over one by one would cost more than looking at one.
PORTION = 64

T = TypeVar("T")


def in_threads(
    work: Callable[[int], T],
    count: int,
    threads: int | None,
    advance: Callable[[int], None] = lambda portions: None,
    *,
    portion: int = PORTION,
) -> list[T]:
    """``[work(0), work(1), ..., work(count - 1)]``, made by several threads.

    Of several errors the one of the lowest number is raised; what has not begun when the first
    one comes is left undone. `advance` is told of items as they are done.
    """
    workers = min(threads or min(16, 4 * (os.cpu_count() or 1)), -(-count // portion))
    firsts, lock = iter(range(0, count, portion)), threading.Lock()
    found: dict[int, list[T]] = {}
    errors: dict[int, BaseException] = {}

    def take() -> None:
        # Portions are begun in their order, and those begun are finished: so the error of the
        # lowest number is among those caught.
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

    if workers <= 1:
        take()
    else:
        with ThreadPoolExecutor(workers, thread_name_prefix="windeck-files") as pool:
            try:
                wait([pool.submit(take) for _ in range(workers)])
            except BaseException as error:  # Somebody gave up: let the threads do so, too.
                errors[-1] = error
    if errors:
        raise errors[min(errors)]
    return [one for first in sorted(found) for one in found[first]]


#: Reading and summing leave the interpreter's lock alone, so two threads are nearly twice as fast.
THREADS = min(2, os.cpu_count() or 1)

R = TypeVar("R")


def in_order(items: Iterable[T], call: Callable[[T], R], *, threads: int = THREADS) -> Iterator[R]:
    """``map(call, items)``, by some threads at once, few items ahead of who asks for the results.

    The caller's thread is one of them: to wait for others it would have to be woken for each. No
    call goes on when this ends, whether at the end, by an error of a call, which is raised in its
    turn, or because nobody asks any more.

    Examples
    --------
    >>> list(in_order(range(5), lambda n: n * n))
    [0, 1, 4, 9, 16]
    """
    left = iter(items)
    first = list(islice(left, 2))
    if len(first) < 2 or threads < 2:
        yield from map(call, chain(first, left))
        return
    waiting: deque[tuple[T, Future[R]]] = deque()
    others: deque[Future[R]] = deque()  # of the waiting ones, those the other threads are at
    pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="windeck-read")
    try:
        for item in chain(first, left):
            while others and others[0].done():
                others.popleft()
            if len(others) < 2 * (threads - 1):  # one under way, and the next one at hand
                others.append(pool.submit(call, item))
                waiting.append((item, others[-1]))
            else:
                waiting.append((item, _done(call, item)))
            while waiting and (len(waiting) > 2 * threads or waiting[0][1].done()):
                yield waiting.popleft()[1].result()
        for place, (item, made) in enumerate(waiting):
            if made.cancel():  # none of the others was at it yet
                waiting[place] = item, _done(call, item)
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done(call: Callable[[T], R], item: T) -> Future[R]:
    """A call, made here and now."""
    made: Future[R] = Future()
    try:
        made.set_result(call(item))
    except Exception as error:
        made.set_exception(error)
    return made


def one_ahead(calls: Iterable[tuple[int, Callable[[], R]]], *, limit: int) -> Iterator[R]:
    """What calls give, in order, each made by one other thread while this one is at those before.

    Parameters
    ----------
    calls
        Each with the bytes of what it gives.
    limit
        Bytes that may wait; what has more waits alone.

    Notes
    -----
    It ends as `in_order` does. A single call needs no thread.

    Examples
    --------
    >>> list(one_ahead([(8, lambda: "a"), (8, lambda: "b")], limit=64))
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
