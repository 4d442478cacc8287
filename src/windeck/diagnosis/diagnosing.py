"""`doctor`: measure a loader and a step on this machine, and say where the time goes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from windeck._util.options import explain_options
from windeck._util.text import plural
from windeck._util.validation import check_integer, check_number
from windeck.diagnosis.loops import (
    END,
    Feed,
    Limit,
    Step,
    copies_of,
    run_feed,
    run_step,
    settle,
    uses_gpu,
)
from windeck.diagnosis.machine import check_url, measure_machine
from windeck.diagnosis.measurements import Machine, Measurements, Stage, Subject
from windeck.diagnosis.processes import children, data_files
from windeck.diagnosis.report import Diagnosis
from windeck.diagnosis.stages import measure_stages
from windeck.diagnosis.subjects import (
    column_facts,
    is_windeck_loader,
    kind_of,
    queued_batches,
    restored,
    size_of,
    unit_of,
)
from windeck.diagnosis.verdict import others_share

__all__ = ["doctor"]

#: Batches whose sizes are looked at, and calls of the step before it is measured.
_SIZED, _WARM = 4, 2


@explain_options
def doctor(
    loader: Iterable[Any],
    step: Step | None = None,
    *,
    seconds: float = 2.0,
    batches: int = 100_000,
    samples: int | Callable[[Any], int] | None = None,
    files: Sequence[str] = (),
    stages: bool = True,
    disk: bool = True,
    network: str | None = None,
) -> Diagnosis:
    """Measure a loader beside a training step, and say where the time goes.

    Four loops are run, each for `seconds`: batches alone; batches with the step; the step alone
    with one batch again and again, which is the rate that no loader can exceed; and the stages of
    making a batch. Then the machine is measured: copying in memory, and reading a file of the data
    in sequence and at random.

    Parameters
    ----------
    loader
        Any iterable of batches: a `DataLoader` of torch, a `windeck.Loader`, a dataset of Hugging
        Face, a generator.
    step
        A function of one batch that trains, as the loop does: it is called, so the model changes.
        None measures the loader alone.
    seconds
        Seconds of each loop; one batch is taken in any case.
    batches
        Most batches of each loop.
    samples
        Samples of a batch, or a function of a batch that returns them. By default the length of
        its first array.
    files
        Files of the data, of which the first is read to measure the disk. By default a file that
        the loader's processes map or hold open, else a temporary one. It is dropped from the page
        cache.
    stages
        Whether the stages of a `DataLoader` are measured, for which items of its dataset are read
        in this process.
    disk
        Whether the disk is measured.
    network
        An http address of something large, to measure the rate at which it is received.

    Returns
    -------
    Diagnosis
        Printed, it is a verdict in one sentence and tables. `verdict`, `findings`, `to_json()`,
        `to_html()`, `compare(other)`.

    Raises
    ------
    TypeError
        If `loader` is not iterable, or `step` is not a function.
    ValueError
        If the loader has no batches, or too few, and for numbers out of range.
    OSError
        If a file of `files` does not exist, or `network` cannot be reached.

    Notes
    -----
    The state of a `windeck.Loader`, of samplers and datasets with `state_dict`, and of random
    numbers is restored. An iterator or generator is consumed, and the report says by how many
    batches. Two readings of the clock and one `append` are added to each batch. Work queued on a
    GPU is waited for at the end of a loop, not after each batch.

    Examples
    --------
    >>> import numpy as np, time
    >>> batches = [np.zeros((8, 4)) for _ in range(10)]
    >>> found = doctor(batches, lambda batch: time.sleep(0.001), seconds=0.05, disk=False)
    >>> found.findings[0].kind
    'step'
    """
    limit = Limit(check_integer("batches", batches, least=1), check_number("seconds", seconds))
    if not 0 < limit.seconds < 3600:
        raise ValueError(f"`seconds` must be above 0 and below 3600, got {seconds}")
    if step is not None and not callable(step):
        raise TypeError(f"`step` must be a function of a batch, got {type(step).__name__}")
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"`loader` must be an iterable of batches, got {type(loader).__name__}")
    if network is not None:
        check_url(network)
    if samples is None and is_windeck_loader(loader):
        samples = loader.batch_size
    given = [(path, os.path.getsize(path)) for path in files]
    notes = list[str]()
    with restored(loader, notes):
        measured, paths = _run_loops(loader, step, limit, samples, given, notes)
        parts: tuple[Stage, ...] = ()
        if stages:
            size = max(round(measured.subject.samples), 1)
            parts = measure_stages(loader, seconds=min(limit.seconds / 2, 1.0), samples=size)
    machine, more = measure_machine(
        paths, disk=disk, network=network, seconds=min(limit.seconds, 1.0)
    )
    measured = replace(measured, machine=machine, stages=parts)
    if (busy := others_share(measured)) >= 0.1:
        more.append(
            f"other programs used {busy * machine.cores:.1f} of {plural(machine.cores, 'core')} "
            "during the loops: without them rates may be higher"
        )
    return Diagnosis(replace(measured, notes=(*notes, *more)))


def _run_loops(
    loader: Iterable[Any],
    step: Step | None,
    limit: Limit,
    samples: int | Callable[[Any], int] | None,
    files: Sequence[tuple[str, int]],
    notes: list[str],
) -> tuple[Measurements, list[str]]:
    """Run the loops; return what they measured, and the paths of the data's files."""
    before, began = set(children()), time.perf_counter()
    feed = Feed(loader)
    first = feed.take()
    first_batch_seconds = time.perf_counter() - began
    try:
        if first is END:
            raise ValueError("the loader has no batches, expected at least 2")
        sizes, again = [size_of(first, samples)], copies_of(first)
        for _ in range(_WARM if step is not None else 0):
            step(next(again))  # type: ignore[misc]
        more = (feed.take() for _ in range(_SIZED - 1))
        sizes += [size_of(batch, samples) for batch in more if batch is not END]
        ahead = queued_batches(loader)
        feed.run(None, Limit(ahead, limit.seconds))  # ready before: no measure of the loader
        alone = run_feed(feed, None, limit)
        if alone is None:
            raise ValueError(
                f"the loader ended after {feed.consumed:,} batches, before the "
                "first loop: expected an iterable that can begin anew, or that has more"
            )
        both = None if step is None else run_feed(feed, step, limit)
        started = set(children()) - before
        found = files or data_files(["self", *started])
    finally:
        feed.close()
    settle()
    stepped = None if step is None or both is None else run_step(step, first, limit)
    notes += _notes(feed, step is not None and both is None)
    workers = getattr(loader, "num_workers", None)
    columns, column_bytes = column_facts(loader)
    subject = Subject(
        kind=kind_of(loader),
        unit=unit_of(loader),
        samples=statistics.mean(count for count, _ in sizes),
        nbytes=statistics.mean(nbytes for _, nbytes in sizes),
        workers=workers if isinstance(workers, int) else len(started),
        ahead=ahead,
        mapped=tuple((os.path.basename(path), nbytes) for path, nbytes in found),
        columns=columns,
        column_bytes=column_bytes,
        restartable=feed.restartable,
        consumed=feed.consumed,
    )
    measured = Measurements(
        subject, Machine(), first_batch_seconds, alone, both, stepped, asynchronous=uses_gpu()
    )
    return measured, [path for path, _ in found]


def _notes(feed: Feed, without_step: bool) -> list[str]:
    notes = []
    consumed = f"{feed.consumed:,} batches"
    if not feed.restartable:
        notes.append(f"the loader cannot begin anew: {consumed} were taken from it, and are gone")
    if without_step:
        notes.append(
            f"the loader ended after {consumed}, before the loop with the step, which was not "
            "measured: give more, or a smaller `batches`"
        )
    if feed.restarts:
        notes.append(
            f"the loader ended and began anew {plural(feed.restarts, 'time')}: starts are counted "
            "as waiting, as a training with so many epochs would"
        )
    if uses_gpu():
        notes.append("a GPU is used: waiting is the time of the loop beyond that of the step alone")
    return notes
