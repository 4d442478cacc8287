"""Seconds that a loop waits for batches, with a clock that ticks at every look."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from models.oracle import Numbers
from support.internals import plant
from windeck import Loader


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Make the clock tick once at every look; return functions to call then."""
    calls: list[Callable[[], object]] = []
    ticks = itertools.count()

    def look() -> float:
        for call in calls:
            call()
        return float(next(ticks))

    plant(monkeypatch, "prefetch.perf_counter", look)
    return calls


@pytest.mark.usefixtures("looks")
def test_without_prefetching_making_a_batch_is_waiting() -> None:
    loader = Loader(Numbers(10), batch_size=4, prefetch=0)
    assert (loader.waited_seconds, loader.step_waited_seconds) == (0, 0)
    for step, _ in enumerate(loader, 1):
        assert loader.step_waited_seconds == 1
        assert loader.waited_seconds == step
    assert loader.waited_seconds == 3


@pytest.mark.usefixtures("looks")
def test_a_batch_that_is_ready_costs_no_look_at_the_clock() -> None:
    """The second batch is ready once the third is being made."""
    source, third = Numbers(12), threading.Event()

    def watch(indices: NDArray[np.int64]) -> None:
        if indices[0] == 8:
            third.set()

    source.watch = watch
    loader = Loader(source, batch_size=4, prefetch=3)
    loop = iter(loader)
    next(loop)  # the thread starts: whether the first batch is ready is chance
    third.wait()
    before = loader.waited_seconds
    next(loop)
    assert (loader.step_waited_seconds, loader.waited_seconds) == (0, before)


def test_a_batch_that_is_not_ready_is_waited_for(looks: list[Callable[[], object]]) -> None:
    source, waiting = Numbers(4), threading.Event()

    def watch(_: NDArray[np.int64]) -> None:
        waiting.wait()

    source.watch = watch
    looks.append(waiting.set)
    loader = Loader(source, batch_size=4, prefetch=1)
    next(iter(loader))
    assert loader.step_waited_seconds == loader.waited_seconds == 1
    assert "waited" not in str(loader.state_dict())


def test_loops_of_a_loader_that_restarts_count() -> None:
    loader = Loader(Numbers(10), batch_size=2, prefetch=0, restart=True)
    next(iter(loader))
    assert loader.waited_seconds >= loader.step_waited_seconds > 0
