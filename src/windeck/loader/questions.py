"""Samples, documents, counts and reads of a loader, computed from its position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windeck._util.validation import check_integer
from windeck.loader.history import StepHistory
from windeck.loader.read_report import ReadReport, count_reads
from windeck.loader.served import Served, serve
from windeck.loader.sharding import Exclusions, Sharding, check_ranks
from windeck.loader.transforms import MappedStream
from windeck.loader.visits import Visit, sort_positions
from windeck.sources import Indices
from windeck.sources.members import StreamMembers, stream_members

__all__ = [
    "LoaderPoint",
    "count_served",
    "explain_io",
    "step_of",
    "step_positions",
    "visit_document",
    "was_visited",
]


@dataclass(frozen=True)
class LoaderPoint:
    """The point that a loader has reached, with its data and the record of its steps.

    Attributes
    ----------
    stream
        The members of the stream.
    sharding
        The assignment of positions to steps from now on.
    history
        The steps before, the configuration of the next step included.
    exclusions
        The excluded positions.
    position
        The position after the samples handed out.
    rank
        The rank of this process.
    """

    stream: StreamMembers
    sharding: Sharding
    history: StepHistory
    exclusions: Exclusions
    position: int
    rank: int

    @property
    def next_start(self) -> int:
        """The position at which the next batch begins."""
        return self.sharding.step_start(self.position)

    def step_at(self, position: int) -> int | None:
        """Return the step that contains a position, or None."""
        return self.history.step_of(position, self.exclusions)

    def was_served(self, position: int) -> bool:
        """Return True if a position was handed out to any rank: not excluded and not dropped."""
        if not 0 <= position < self.position or position in self.exclusions:
            return False
        return self.step_at(position) is not None or position < self.history.first_position


def step_positions(point: LoaderPoint, step: int, rank: int | None) -> Indices:
    """Return the positions of a rank in a step; see `Loader.samples`."""
    sharding, start = point.history.find(check_integer("step", step), point.exclusions)
    number = point.rank if rank is None else check_integer("rank", rank)
    if rank is None and number >= sharding.world_size:
        return np.empty(0, np.int64)
    check_ranks(number, sharding.world_size)
    return sharding.positions(start, number)


def step_of(point: LoaderPoint, sample: Any, epoch: int | None) -> int | None:
    """Return the step of a sample in an epoch, or None; see `Loader.step_of`."""
    return point.step_at(_position_of(point, sample, epoch))


def was_visited(point: LoaderPoint, sample: Any, epoch: int | None) -> bool:
    """Return True if a sample was handed out to any rank; see `Loader.visited`."""
    return point.was_served(_position_of(point, sample, epoch))


def _position_of(point: LoaderPoint, sample: Any, epoch: int | None) -> int:
    """Return the position of a sample in an epoch, by default the current one; -1 if none."""
    if not (isinstance(sample, (tuple, list, np.ndarray)) and np.ndim(sample) == 1):
        sample = check_integer("sample", sample)
    if epoch is not None:
        number = check_integer("epoch", epoch)
    elif point.stream.epoch_length is None and _finds_epochs(point.stream):
        number = point.stream.epoch_of(sample, at=point.next_start)
    else:
        number = point.next_start // point.sharding.epoch_length
    return int(point.stream.position_of([sample], epoch=number)[0])


def _finds_epochs(stream: StreamMembers) -> bool:
    """Return True if a stream has `epoch_of`: a mapped one, if the stream inside it has it."""
    while isinstance(stream.stream, MappedStream):
        stream = stream_members(stream.stream.stream)
    return stream.finds_epochs


def visit_document(point: LoaderPoint, document: tuple[Any, ...], epoch: int | None) -> Visit:
    """Return the positions of a document in an epoch of its source, and those served."""
    found = point.stream.document_runs(document, at=point.next_start, epoch=epoch)
    epochs = {one.epoch for one in found}
    positions = sort_positions(found).tolist()
    return Visit(
        document,
        epochs.pop() if len(epochs) == 1 else None,
        tuple(positions),
        tuple(point.step_at(position) for position in positions),
        sum(len(one.positions) for one in found),
        sum(point.was_served(position) for position in positions),
    )


def count_served(point: LoaderPoint, step: int, position: int, documents: bool) -> Served:
    """Return the counts of samples, tokens and documents before a step; see `Loader.served`.

    Parameters
    ----------
    point
        The point of the loader.
    step, position
        The step, and the position before it.
    documents
        Whether documents are counted.
    """
    skipped = point.history.until(step).skipped(position, point.exclusions)
    return serve(point.stream, position, skipped, documents)


def explain_io(
    point: LoaderPoint,
    *,
    world_size: int | None,
    batch_size: int | None,
    steps: int | None,
    ranks: Iterable[int] | None,
    resident_bytes: int | None,
) -> ReadReport:
    """Return how many bytes each rank will read; see `Loader.explain_io`.

    Parameters
    ----------
    point
        The point of the loader.
    world_size, batch_size
        Ranks and batch size of a planned run; by default those of the point.
    steps
        Steps from the beginning of the current epoch on, the whole epoch by default; for a stream
        without epochs from the current position on.
    ranks, resident_bytes
        As for `Loader.explain_io`.
    """
    sharding = point.sharding
    number_of_ranks = sharding.world_size if world_size is None else world_size
    size = sharding.batch_size if batch_size is None else batch_size
    planned = replace(
        sharding,
        world_size=check_integer("world_size", number_of_ranks, least=1),
        batch_size=check_integer("batch_size", size, least=1),
    )
    start = point.position
    if point.stream.epoch_length is not None:
        start = point.next_start // sharding.epoch_length * sharding.epoch_length
        most = planned.steps_left(start)
        steps = most if steps is None else min(check_integer("steps", steps, least=1), most)
    elif steps is None:
        name = type(point.stream.stream).__name__
        raise ValueError(f"`steps` must be given: {name} has no epochs")
    count = check_integer("steps", steps, least=1)
    chosen = range(planned.world_size) if ranks is None else list(ranks)
    for rank in chosen:
        check_ranks(rank, planned.world_size)
    return count_reads(point.stream, planned, start, count, chosen, resident_bytes)
