"""A wait that is longer than a limit is logged once, with what it is for."""

from __future__ import annotations

import logging
import threading
from time import sleep
from typing import Any

import numpy as np
import pytest

import windeck as wd


class Slow:
    """A source whose sample 8 comes once it is allowed to."""

    def __init__(self) -> None:
        self.fingerprint = {"slow": 1}
        self.allowed = threading.Event()

    def __len__(self) -> int:
        return 100

    def gather(self, indices: Any, out: Any = None) -> dict[str, Any]:
        if 8 in indices:
            assert self.allowed.wait(60)
        return {"x": np.array(indices)}

    def __repr__(self) -> str:
        return "Slow()"


class Allow(logging.Handler):
    """Lets a source go on once a warning is logged, and keeps the messages."""

    def __init__(self, source: Slow) -> None:
        super().__init__()
        self.source, self.messages = source, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.name} {record.levelname}: {record.getMessage()}")
        self.source.allowed.set()


def run(stall_timeout: float | None) -> tuple[list[int], list[str]]:
    """Return the samples of an epoch with steps of a millisecond, and what was logged."""
    source = Slow()
    handler = Allow(source)
    if stall_timeout is None:
        source.allowed.set()
    logging.getLogger("windeck").addHandler(handler)
    found = []
    try:
        loader = wd.Loader(source, batch_size=2, prefetch=2, stall_timeout=stall_timeout)
        for batch in loader:
            found += batch["x"].tolist()
            sleep(0.001)
    finally:
        logging.getLogger("windeck").removeHandler(handler)
    return found, handler.messages


def test_a_long_wait_is_logged_once_and_nothing_is_lost() -> None:
    samples, messages = run(2.5)
    assert samples == list(range(100))
    (message,) = messages
    assert message == (
        "windeck WARNING: rank 0 has waited 2.5 s for the batch of step 4, from position 8 on "
        "of Stream(Slow(), order=Sequential, seed=0)"
    )


def test_no_limit_is_no_warning() -> None:
    assert run(None) == (list(range(100)), [])


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [
        (0, ValueError, "`stall_timeout` must be above 0, got 0"),
        (float("nan"), ValueError, "`stall_timeout` must be above 0, got nan"),
        ("60", TypeError, "`stall_timeout` must be seconds or None, got str"),
        (True, TypeError, "`stall_timeout` must be seconds or None, got bool"),
    ],
)
def test_errors(limit: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wd.Loader(Slow(), batch_size=2, stall_timeout=limit)
