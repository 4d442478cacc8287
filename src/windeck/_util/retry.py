"""Retries: which calls are repeated how often, and the pauses between attempts.

All policies of the package are here; `windeck.io.remote` repeats reads by them. Clients of other
libraries make a request once, where they can be told to: see `windeck.io.clients` and
`windeck.checkpoint.stores.redis_settings`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

__all__ = [
    "COMMANDS",
    "FIRST_ANSWER_SECONDS",
    "OPENING",
    "POLLING",
    "REQUESTS",
    "SETTLING",
    "RetryPolicy",
    "retry",
]

T = TypeVar("T")


class RetryPolicy(NamedTuple):
    """Attempts of a call, and the pauses between them in seconds.

    Parameters
    ----------
    first_pause, growth, longest_pause
        Each pause is `growth` times the one before it, up to the longest.
    jitter
        A pause is multiplied by a random factor in [1 - jitter, 1 + jitter).
    most_attempts
        Largest number of attempts.
    most_seconds
        There is no other attempt after one that ends so long after the first began.
    """

    first_pause: float
    growth: float = 2.0
    longest_pause: float = math.inf
    jitter: float = 0.0
    most_attempts: float = math.inf
    most_seconds: float = math.inf

    def attempts(self) -> Iterator[int]:
        """Yield the number of each attempt, from 1, after the pause before it.

        Examples
        --------
        >>> list(RetryPolicy(first_pause=0.001, most_attempts=3).attempts())
        [1, 2, 3]
        """
        began, number, pause = time.monotonic(), 1, self.first_pause
        while True:
            yield number
            if number >= self.most_attempts or time.monotonic() - began >= self.most_seconds:
                return
            time.sleep(pause * self._factor())
            number, pause = number + 1, min(pause * self.growth, self.longest_pause)

    def _factor(self) -> float:
        if not self.jitter:
            return 1.0
        import random  # takes longer than opening a small store

        return random.uniform(1 - self.jitter, 1 + self.jitter)


def retry(call: Callable[[], T], policy: RetryPolicy, is_passing: Callable[[Exception], bool]) -> T:
    """Return the result of a call, repeated while it raises errors that may pass.

    Raises
    ------
    Exception
        The error of the last attempt, or one that `is_passing` does not accept.

    Examples
    --------
    >>> left = iter([0, 0, 4])
    >>> policy = RetryPolicy(first_pause=0.001)
    >>> retry(lambda: 12 // next(left), policy, lambda error: isinstance(error, ZeroDivisionError))
    3
    """
    attempts = policy.attempts()
    next(attempts)
    while True:
        try:
            return call()
        except Exception as error:  # noqa: PERF203
            # Waits for the next attempt, if there is one.
            if not is_passing(error) or next(attempts, None) is None:
                raise


#: A request to a server of files, or the list of a store in objects.
REQUESTS = RetryPolicy(first_pause=0.25, longest_pause=10.0, jitter=0.5, most_attempts=6)
#: A request is not repeated after so long while no server has answered yet.
FIRST_ANSWER_SECONDS = 3.0
#: A command to a database server that drops the connection or is starting.
COMMANDS = RetryPolicy(first_pause=0.025, growth=4.0, most_attempts=4)
#: Opening an embedded database that another process has open, such as a second trainer that is
#: about to be refused.
OPENING = RetryPolicy(first_pause=0.01, longest_pause=0.2, most_seconds=10.0)
#: Opening or closing a RocksDB while its writer syncs or compacts it, or another thread reads.
SETTLING = RetryPolicy(first_pause=0.001, longest_pause=0.01, most_seconds=10.0)
#: Questions whether a server has ended its work; there is no limit, since it may take any time.
POLLING = RetryPolicy(first_pause=0.001, longest_pause=0.1)
