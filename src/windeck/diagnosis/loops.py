"""Loops over a loader: of batches alone, with the step, and of the step with one batch."""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from windeck.diagnosis.measurements import LoopTimes
from windeck.diagnosis.processes import ProcessUsage, children, snapshot

__all__ = ["END", "Feed", "Limit", "Step", "copies_of", "run_feed", "run_step", "settle"]
__all__ += ["synchronize", "uses_gpu"]

Step = Callable[[Any], object]

#: Batches that a timeline holds.
_TIMELINE = 120
#: Returned instead of a batch where there is none.
END = object()


@dataclass(frozen=True)
class Limit:
    """The end of a loop: batches or seconds, whichever is reached first. One batch is made."""

    batches: int
    seconds: float


class Feed:
    """Batches of an iterable, from a new iterator whenever one ends and another can be had.

    Attributes
    ----------
    restartable
        False for an iterator or generator, which gives every batch once.
    consumed
        Batches taken.
    restarts
        Iterators made after the first.
    ended
        Whether there are no more batches.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.iterator: Iterator[Any] | None = iter(loader)
        self.restartable = self.iterator is not loader
        self.consumed = 0
        self.restarts = 0
        self.ended = False

    def take(self) -> Any:
        """Return the next batch, or `END` if there is none."""
        spans, batch = self.run(None, Limit(1, 0.0), keep=True)
        return batch if spans else END

    def run(
        self, step: Step | None, limit: Limit, *, keep: bool = False
    ) -> tuple[list[tuple[float, float, float]], Any]:
        """Request batches up to a limit; return the times of each, and with `keep` the last one."""
        spans, batch = list[tuple[float, float, float]](), None
        end = time.perf_counter() + limit.seconds
        while not self.ended and len(spans) < limit.batches:
            new = self.iterator is None
            if self.iterator is None:
                self.iterator = iter(self.loader)
                self.restarts += 1
            before = len(spans)
            batch = request(self.iterator, step, limit.batches - before, end, spans)
            self.consumed += len(spans) - before
            if batch is not END:
                break
            self.iterator = None
            self.ended = not self.restartable or (new and len(spans) == before)
        return spans, batch if keep else None

    def close(self) -> None:
        """End the iterator, with its threads and processes; one that is the user's own stays."""
        iterator, self.iterator = self.iterator, None
        close = getattr(iterator, "close", None)
        if self.restartable and close is not None:
            close()


def request(
    batches: Iterator[Any],
    step: Step | None,
    count: int,
    end: float,
    spans: list[tuple[float, float, float]],
) -> Any:
    """Request batches and call the step with each; append the three times of each to `spans`.

    Returns the last batch, or `END` when the iterator has ended. Beside `next` and the step it
    calls the clock twice and appends once for each batch.
    """
    clock, append = time.perf_counter, spans.append
    batch, began = None, clock()
    for _ in range(count):
        batch = next(batches, END)
        got = done = clock()
        if batch is END:
            break
        if step is not None:
            step(batch)
            done = clock()
        append((began, got, done))
        if done >= end:
            break
        began = done
    return batch


def run_feed(feed: Feed, step: Step | None, limit: Limit) -> LoopTimes | None:
    """Measure a loop over a loader's batches; None if there are no more."""
    synchronize()
    before = snapshot()
    start = time.perf_counter()
    spans, _ = feed.run(step, limit)
    synchronize()
    seconds = time.perf_counter() - start
    return _loop(spans, start, seconds, before) if spans else None


def run_step(step: Step, batch: Any, limit: Limit) -> LoopTimes:
    """Measure the step with one batch again and again; a dict is copied for each call."""
    again, spans = copies_of(batch), list[tuple[float, float, float]]()
    synchronize()
    before = snapshot()
    start = time.perf_counter()
    request(again, step, limit.batches, start + limit.seconds, spans)
    synchronize()
    seconds = time.perf_counter() - start
    return _loop(spans, start, seconds, before)


def copies_of(batch: Any) -> Iterator[Any]:
    """Return an endless iterator of a batch; of a mapping new ones, which a step may change."""
    return map(copy.copy, repeat(batch)) if isinstance(batch, MutableMapping) else repeat(batch)


def _loop(
    spans: list[tuple[float, float, float]], start: float, seconds: float, before: ProcessUsage
) -> LoopTimes:
    after = snapshot()
    process, workers = before.until(after)
    waits = [got - began for began, got, _ in spans]
    steps = [done - got for _, got, done in spans]
    received = queued = others = None
    if after.received is not None and before.received is not None:
        received = max(after.received - before.received, 0)
    if after.queued is not None and before.queued is not None:
        queued = max(after.queued - before.queued, 0.0)
    if after.machine is not None and before.machine is not None:
        own = sum(usage.cpu_seconds for usage in (process, *workers))
        others = max(after.machine - before.machine - own, 0.0)
    timeline = [
        (round(began - start, 7), round(got - start, 7), round(done - start, 7))
        for began, got, done in spans[:_TIMELINE]
    ]
    return LoopTimes(
        batches=len(spans),
        seconds=max(seconds, 1e-9),
        waited=sum(waits),
        stepped=sum(steps),
        wait_median=statistics.median(waits),
        step_median=statistics.median(steps),
        process=process,
        workers=workers,
        received_bytes=received,
        queued_seconds=queued,
        others_seconds=others,
        timeline=tuple(timeline),
    )


def settle(*, seconds: float = 2.0) -> None:
    """Wait until the children of this process ended or do not compute; at most some seconds."""
    end, before = time.perf_counter() + seconds, None
    while children() and time.perf_counter() < end:
        busy = {pid: replace(use, switches=0) for pid, use in snapshot().alive.items()}
        if busy == before:
            break
        before = busy
        time.sleep(0.05)


def uses_gpu() -> bool:
    """Return whether this process has used a CUDA device with torch."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def synchronize() -> None:
    """Wait for the work that is queued on CUDA devices, if any is used."""
    if uses_gpu():
        sys.modules["torch"].cuda.synchronize()
