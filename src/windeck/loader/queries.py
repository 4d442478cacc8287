"""What is served where, of streams made of several: samples and documents, and back.

Nothing is logged. A document's sequences are asked of the source, their places of the order, and
the positions of these follow by arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from windeck._util.validation import check_integer
from windeck.loader.slots import Schedule
from windeck.sources import Indices

if TYPE_CHECKING:
    from windeck.loader.loader import Loader

__all__ = [
    "Contents",
    "Run",
    "Visit",
    "asked_of",
    "by_part",
    "handed_out",
    "is_document",
    "place_of",
    "positions_of",
    "step_at",
    "visit",
]


class Run(NamedTuple):
    """Positions of one epoch of one source, unsorted; -1 where a sequence is never served."""

    epoch: int
    positions: Indices


def positions_of(runs: Sequence[Run]) -> Indices:
    """The positions of several runs, ascending, without those that are never served."""
    found = np.concatenate([np.empty(0, np.int64), *(run.positions for run in runs)])
    return np.sort(found[found >= 0])


def asked_of(data: Any, method: str) -> Any:
    """A method that is optional for sources and streams.

    Raises
    ------
    TypeError
        When it is not there.
    """
    found = getattr(data, method, None)
    if found is None:
        raise TypeError(f"{type(data).__name__} has no {method}()")
    return found


def by_part(part: Indices) -> Iterator[tuple[int, Indices]]:
    """The rows of each part that occurs, ascending."""
    rows = np.argsort(part, kind="stable")
    borders = np.flatnonzero(np.diff(part[rows])) + 1
    for run in np.split(rows, borders) if len(rows) else ():
        yield int(part[run[0]]), run


class Contents:
    """Samples and documents of the parts of a mixture, by the positions of the mixture."""

    def __init__(self, streams: dict[str, Any], schedule: Schedule) -> None:
        self._names = list(streams)
        self._streams = list(streams.values())
        self._schedule = schedule

    @cached_property
    def _widths(self) -> list[int]:
        """Columns of each part's samples."""
        none = np.empty(0, np.int64)
        shapes = [asked_of(stream, "samples")(none).shape for stream in self._streams]
        return [shape[1] if len(shape) > 1 else 1 for shape in shapes]

    def samples(self, positions: Indices) -> Indices:
        part, numbers = self._schedule.locate(positions)
        found = np.full((len(part), 1 + max(self._widths)), -1, np.int64)
        found[:, 0] = part
        for which, rows in by_part(part):
            own = asked_of(self._streams[which], "samples")(numbers[rows])
            found[rows, 1 : 1 + self._widths[which]] = own.reshape(len(rows), -1)
        return found

    def position_of(self, samples: ArrayLike, epoch: int) -> Indices:
        wanted = self._checked(samples)
        found = np.empty(len(wanted), np.int64)
        for which, rows in by_part(wanted[:, 0]):
            ask = asked_of(self._streams[which], "position_of")
            found[rows] = self._outside(which, ask(self._own(wanted[rows], which), epoch=epoch))
        return found

    def epoch_of(self, sample: Any, at: int) -> int:
        row = self._checked(np.asarray([sample]))
        part = int(row[0, 0])
        own = self._own(row, part)[0]
        return int(asked_of(self._streams[part], "epoch_of")(own, at=self._before(at)[part]))

    def documents_at(self, positions: Indices) -> list[list[Any]]:
        part, numbers = self._schedule.locate(positions)
        found: list[list[Any]] = [[] for _ in positions]
        for which, rows in by_part(part):
            pieces = asked_of(self._streams[which], "documents_at")(numbers[rows])
            for row, of_row in zip(rows.tolist(), pieces, strict=True):
                found[row] = of_row
        return found

    def document_runs(self, document: Any, at: int, epoch: int | None) -> list[Run]:
        before, runs, errors = self._before(at), [], []
        numbers, document = self._looked_in(document)
        for part in numbers:
            find = getattr(self._streams[part], "document_runs", None)
            if find is None:
                continue
            try:
                own = find(document, at=before[part], epoch=epoch)
            except (KeyError, IndexError, TypeError) as error:
                errors.append(error)
            else:
                runs += [Run(run.epoch, self._outside(part, run.positions)) for run in own]
        if not runs:
            # That a document is missing says more than that another part has no documents.
            errors.sort(key=lambda error: isinstance(error, TypeError))
            raise errors[0] if errors else TypeError("no part of the mixture knows of documents")
        return runs

    def _looked_in(self, document: Any) -> tuple[Sequence[int], Any]:
        """The parts to look in, and for what: ``(name, document)`` means one part alone."""
        if isinstance(document, tuple) and len(document) == 2 and document[0] in self._names:
            return [self._names.index(document[0])], document[1]
        return range(len(self._names)), document

    def _before(self, position: int) -> list[int]:
        """Samples of each part served before a position."""
        found: list[int] = self._schedule.before(position).tolist()
        return found

    def _checked(self, samples: ArrayLike) -> Indices:
        array = np.asarray(samples)
        columns = 1 + max(self._widths)
        if array.ndim != 2 or array.shape[1] != columns or array.dtype.kind not in "iu":
            raise TypeError(
                f"samples of a mixture are rows of {columns} integers, the part first, got "
                f"{array.dtype} of shape {array.shape}"
            )
        for part in (array[:, 0].min(), array[:, 0].max()) if len(array) else ():
            if not 0 <= part < len(self._names):
                raise IndexError(f"part {part} is out of range of {len(self._names)} parts")
        return array.astype(np.int64)

    def _own(self, samples: Indices, part: int) -> Indices:
        """The columns that are the part's."""
        width = self._widths[part]
        return samples[:, 1] if width == 1 else samples[:, 1 : 1 + width]

    def _outside(self, part: int, positions: Indices) -> Indices:
        """Positions of a part -> positions of the mixture; -1 stays -1."""
        outside = self._schedule.position_of(part, np.maximum(positions, 0))
        return np.where(positions < 0, -1, outside)


@dataclass(frozen=True)
class Visit:
    """Where the sequences of a document lie in one epoch, and which of them were handed out.

    True when all of them were. A document without sequences in the epoch (it is filtered out, or
    lies in the tail that fills none) was not visited.

    Attributes
    ----------
    document
        As asked for.
    epoch
        The epoch of the document's source; None when parts of a mixture that have the document
        are in different ones.
    positions
        Positions in the stream that serve it, ascending.
    steps
        For each position the step that has dealt it, or will as things stand; None where it is
        excluded or dropped, or lies before the loader's own record.
    sequences
        How many sequences of the epoch hold some of it; more than positions where the weight of
        its part has become 0.
    served
        How many of these were handed out to some rank.
    """

    document: tuple[Any, ...]
    epoch: int | None
    positions: tuple[int, ...]
    steps: tuple[int | None, ...]
    sequences: int
    served: int

    def __bool__(self) -> bool:
        return 0 < self.sequences == self.served

    def __str__(self) -> str:
        """One line, however many sequences there are.

        Examples
        --------
        >>> print(Visit(("c4", 3, 110), 0, (7, 9), (3, 4), 2, 1))
        ('c4', 3, 110) in epoch 0: 1 of 2 sequences served, dealt at steps 3, 4
        """
        steps = sorted({step for step in self.steps if step is not None})
        told = ", ".join(map(str, steps)) if len(steps) < 8 else f"{steps[0]} to {steps[-1]}"
        epoch = "several epochs" if self.epoch is None else f"epoch {self.epoch}"
        at = f"dealt at step{'s' * (len(steps) != 1)} {told}" if steps else "dealt at no step"
        return (
            f"{self.document} in {epoch}: {self.served} of {self.sequences} "
            f"sequence{'s' * (self.sequences != 1)} served, {at}"
        )


def is_document(value: object) -> bool:
    """Whether this is a document, ``(dataset_id, ...)``, and no sample: a name comes first."""
    return isinstance(value, (tuple, list)) and len(value) > 1 and isinstance(value[0], str)


def place_of(loader: Loader, sample: Any, epoch: int | None) -> int:
    """The position of a sample in an epoch, the current one by default; -1 where there is none."""
    stream = loader.stream
    if not (isinstance(sample, (tuple, list, np.ndarray)) and np.ndim(sample) == 1):
        sample = check_integer("sample", sample)
    if epoch is not None:
        number = check_integer("epoch", epoch)
    elif stream.epoch_length is None and hasattr(stream, "epoch_of"):
        number = stream.epoch_of(sample, at=_next(loader))
    else:
        number = loader.epoch
    return int(asked_of(stream, "position_of")([sample], epoch=number)[0])


def step_at(loader: Loader, place: int) -> int | None:
    """The step that deals a position, or None where none does."""
    loader._note()
    return loader._history.step_of(place, loader._exclusions)


def handed_out(loader: Loader, place: int) -> bool:
    """Whether a position was handed out to some rank: not excluded, and not dropped either."""
    if not 0 <= place < loader.position or place in loader._exclusions:
        return False
    step = step_at(loader, place)
    return step is not None or place < loader._history.begin


def visit(loader: Loader, document: tuple[Any, ...], epoch: int | None) -> Visit:
    """Where a document is served in an epoch of its source, and how much of that has happened."""
    runs = asked_of(loader.stream, "document_runs")(document, at=_next(loader), epoch=epoch)
    epochs = {run.epoch for run in runs}
    positions = positions_of(runs).tolist()
    return Visit(
        document,
        epochs.pop() if len(epochs) == 1 else None,
        tuple(positions),
        tuple(step_at(loader, place) for place in positions),
        sum(len(run.positions) for run in runs),
        sum(handed_out(loader, place) for place in positions),
    )


def _next(loader: Loader) -> int:
    """The position that the next batch begins at, which decides what the current epoch is."""
    return loader._deal().begin(loader.position)
