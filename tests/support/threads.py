"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Return the results of `work(number)` for the numbers [0, count), each in an own thread.

    All threads begin together. After all have ended, the first error of any of them is raised.
    """
    together = threading.Barrier(count)

    def begin(number: int) -> T:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))
