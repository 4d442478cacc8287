"""Answers of streams about samples and documents.

Nothing is logged. The source knows the sequences of a document, the order their places in an
epoch, and their positions follow by arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from windeck.sources import Fingerprint, Indices

__all__ = [
    "AmbiguousDocumentError",
    "EpochPositions",
    "Visit",
    "data_fields",
    "is_document",
    "sort_positions",
]


class AmbiguousDocumentError(KeyError):
    """Error for a document's name that several parts of a mixture have for different documents."""


class EpochPositions(NamedTuple):
    """Positions in one epoch of one source, unsorted; -1 for a sequence that is never served."""

    epoch: int
    positions: Indices


def data_fields(fields: Fingerprint) -> Fingerprint:
    """Return the fields of the source in the fingerprint of a stream, or all without a source."""
    return {name: fields[name] for name in fields if str(name).startswith("source.")} or fields


def sort_positions(epochs: Sequence[EpochPositions]) -> Indices:
    """Return all positions, ascending, without those of sequences that are never served."""
    found = np.concatenate([np.empty(0, np.int64), *(one.positions for one in epochs)])
    return np.sort(found[found >= 0])


def is_document(value: object) -> bool:
    """Return True for a document ``(dataset_id, ...)`` and False for a sample.

    Only a document begins with a string.
    """
    return isinstance(value, (tuple, list)) and len(value) > 1 and isinstance(value[0], str)


@dataclass(frozen=True)
class Visit:
    """The positions of a document in one epoch, and the number of its sequences served so far.

    It is true if all sequences were served. A document without sequences in the epoch was not
    visited: it is filtered out, or in the tail that does not fill a sequence.

    Attributes
    ----------
    document
        The document asked for.
    epoch
        The epoch of the document's source; None if several parts of a mixture have the document
        and are in different epochs.
    positions
        Positions of the stream that serve the document, ascending.
    steps
        The past or future step of each position; None if the position is excluded, dropped, or
        before the first step that the loader has a record of.
    sequences
        Sequences of the epoch that contain tokens of the document. More than the positions if the
        weight of its part has become 0.
    served
        Number of these sequences that were handed out to any rank.
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
        """Return one line, for any number of sequences.

        Examples
        --------
        >>> print(Visit(("c4", 3, 110), 0, (7, 9), (3, 4), 2, 1))
        ('c4', 3, 110) in epoch 0: 1 of 2 sequences served, dealt at steps 3, 4
        """
        steps = sorted({step for step in self.steps if step is not None})
        listed = ", ".join(map(str, steps)) if len(steps) < 8 else f"{steps[0]} to {steps[-1]}"
        epoch = "several epochs" if self.epoch is None else f"epoch {self.epoch}"
        at = f"dealt at step{'s' * (len(steps) != 1)} {listed}" if steps else "dealt at no step"
        return (
            f"{self.document} in {epoch}: {self.served} of {self.sequences} "
            f"sequence{'s' * (self.sequences != 1)} served, {at}"
        )
