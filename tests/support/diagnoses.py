"""Measurements with round numbers, for tests of the verdict and the reports."""

from __future__ import annotations

from typing import Any

from windeck.diagnosis import Disk, LoopTimes, Machine, Measurements, Stage, Subject, Usage

#: 10,000 random reads and 1 GB in sequence per second, 8 cores.
MACHINE = Machine("a machine", 8, 64 << 30, 32 << 30, 10e9, Disk("rows.bin", 1e9, 1e4, True))


def loop(
    batch: float, *, wait: float | None = None, step: float = 0.0, batches: int = 100, **more: Any
) -> LoopTimes:
    """Return a loop of `batch` seconds a batch, of which `wait` are spent waiting."""
    waiting = batch - step if wait is None else wait
    spans = [(n * batch, n * batch + waiting, n * batch + waiting + step) for n in range(batches)]
    return LoopTimes(batches, batch * batches, waiting * batches, step * batches, waiting, step,
                timeline=tuple(spans), **more)  # fmt: skip


def measured(
    loader: float,
    step: float | None = None,
    *,
    beside: float | None = None,
    cpu: float = 0.0,
    workers: int = 0,
    stages: dict[str, float] | None = None,
    use: dict[str, Any] | None = None,
    machine: Machine = MACHINE,
    received: int = 0,
    **subject: Any,
) -> Measurements:
    """Return measurements of a loader and a step, for batches of 32 samples and 1 MB.

    Parameters
    ----------
    loader, step
        Seconds of a batch alone, and of the step alone.
    beside
        Seconds of the step beside the loader.
    cpu
        Share of the loader's processes on a core.
    use
        Further counters of the loader's processes, over 100 batches.
    """
    seconds = 100 * loader
    one = Usage(cpu_seconds=cpu * seconds, switches=100, **(use or {}))
    children = tuple([one] * workers)
    alone = loop(
        loader,
        process=Usage() if workers else one,
        workers=children,
        received_bytes=received,
    )
    both = stepped = None
    if step is not None:
        slowed = step if beside is None else beside
        wait = max(loader - slowed, 0.0) if workers or subject.get("ahead") else loader
        busy = Usage(cpu_seconds=100 * step)
        together = busy.plus(Usage() if workers else one)
        both = loop(wait + slowed, wait=wait, step=slowed, process=together, workers=children)
        stepped = loop(step, wait=0.0, step=step, process=busy)
    facts = {"samples": 32.0, "nbytes": 1e6, "ahead": 2 * workers, **subject}
    return Measurements(
        Subject("torch.utils.data.dataloader.DataLoader", workers=workers, **facts),
        machine,
        0.5,
        alone,
        both,
        stepped,
        tuple(Stage(name, took, took) for name, took in (stages or {}).items()),
    )
