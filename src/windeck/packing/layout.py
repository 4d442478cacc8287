"""Types and helpers that the packing orders share: layouts, pieces of rows, pieces of documents.

The options choose a layout in `windeck.packing.packing`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from windeck import _core
from windeck._util.validation import check_integer
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.options import Options
from windeck.packing.served import Counts

__all__ = [
    "DocumentLocation",
    "DocumentOrder",
    "EpochLayout",
    "PackingLayout",
    "Piece",
    "RowPieces",
    "SequenceOrder",
    "TooManyParts",
    "check_document_run",
    "locate_document",
    "name_pieces",
    "overlapping_samples",
    "too_few_tokens",
]


class Piece(NamedTuple):
    """Tokens [start, stop) of a framed document, as a sequence contains them.

    Token 0 is the BOS token, if there is one.
    """

    dataset_id: str
    shard_id: int
    doc_id: int
    start: int
    stop: int


class DocumentLocation(NamedTuple):
    """Location of a document: shard s of the corpus, and its number in the shard."""

    shard: int
    document: int


class RowPieces(NamedTuple):
    """The rows of a batch as row pieces: ranges of document runs; see `windeck._core.pack`."""

    document_runs: list[_core.DocumentRun]
    row_offsets: Int64s
    document_run_of: Int64s
    starts: Int64s
    lengths: Int64s


class EpochLayout(Protocol):
    """The documents in the sequences of one epoch."""

    #: The shards or blocks of the epoch, in its order.
    order: _core.PartOrder

    def rows(self, indices: Int64s, most_parts: int, /) -> RowPieces:
        """Return the row pieces of a batch; raise TooManyParts for more than `most_parts` parts."""
        ...

    def shards_of(self, indices: Int64s, /) -> tuple[Int64s, Int64s]:
        """Return pairs (row, shard): sequence ``indices[row]`` has tokens of the shard."""
        ...

    def documents(self, sample: int, /) -> list[Piece]:
        """Return the pieces of a sequence, in its order."""
        ...

    def sequences_of(self, location: DocumentLocation, /) -> Int64s:
        """Return the sequences that contain tokens of a document, ascending."""
        ...

    def count(self, ranges: Int64s, /) -> Counts:
        """Return the tokens and documents in ranges of sequences."""
        ...


class DocumentOrder(EpochLayout, Protocol):
    """An epoch whose sequences are cut from its documents, as a device needs it."""

    def document_order(self) -> Int64s:
        """Return the numbers of all documents, in the order in which they are cut."""
        ...


class SequenceOrder(EpochLayout, Protocol):
    """An epoch whose padded sequences are the same in every epoch, as a device needs it."""

    def stored_sequences(self) -> Int64s:
        """Return the stored numbers of all sequences, in the order of the epoch."""
        ...


class PackingLayout(Protocol):
    """The documents in the sequences of any epoch.

    Packing strategies inherit what they do not change: sequences of equally many tokens.
    """

    samples: int
    tokens: int
    #: Positions of the orders of shards or blocks from one sequence to the next.
    positions_per_sequence: int
    documents: Corpus
    options: Options
    #: Tokens of padding in an epoch.
    padding: int = 0
    #: True if shards are read ahead in the order of an epoch.
    reads_ahead: bool = False

    def at_epoch(self, epoch: int, seed: int, /) -> EpochLayout:
        """Return the layout of one epoch."""
        ...

    @property
    def tokens_per_sample(self) -> int | None:
        """Targets of every sequence, without padding; None if they differ."""
        return self.options.length

    @property
    def tail(self) -> int:
        """Tokens at the end of an epoch that fill no sequence."""
        return self.tokens - self.samples * self.options.stride - self.options.overlap

    def build_index(self, seed: int) -> None:
        """Create what epochs of a seed need, if that takes a pass over the corpus."""
        return

    def known_sums(self) -> dict[int, Int64s]:
        """Return what such passes found, by seed, for pickles."""
        return {}

    def device_numbers(self, documents: int) -> tuple[int, int]:
        """Return the int64 numbers that documents take on a device: once, and for each epoch."""
        return 0, 2 * documents + 1 + self.samples * self.options.is_mixed


class TooManyParts(Exception):
    """Raised for rows of more shards, or blocks of the global order, than may be open at a time."""


def too_few_tokens(tokens: int, options: Options) -> ValueError:
    """Return the error for documents that do not fill one sequence."""
    return ValueError(
        f"the documents have {tokens} tokens with their frames, expected {options.content} or "
        f"more for a sequence of `sequence_length` {options.length} and its targets"
    )


def check_document_run(
    documents: Corpus, shard: int, document_run: _core.DocumentRun, expected: int
) -> _core.DocumentRun:
    """Return the document run; raise a ValueError if its counts differ from those of the corpus."""
    counted = int(documents.shard_documents[shard])
    if (len(document_run), document_run.total) != (counted, expected):
        dataset_id, shard_id = documents.shard_name(shard)
        raise ValueError(
            f"shard {shard_id} of {dataset_id!r} has {len(document_run)} documents of "
            f"{document_run.total} tokens with their frames, expected {counted} of "
            f"{expected} as counted at the start"
        )
    return document_run


def locate_document(documents: Corpus, document: object) -> DocumentLocation:
    """Return the location of the document ``(dataset_id, shard_id, doc_id)``.

    Raises
    ------
    TypeError
        If `document` is not such a triple.
    KeyError
        If the shard does not exist.
    IndexError
        If the shard has fewer documents.
    """
    if not isinstance(document, tuple) or len(document) < 3 or not isinstance(document[0], str):
        raise TypeError(f"`document` must be (dataset_id, shard_id, doc_id), got {document!r}")
    dataset_id, shard_id, doc_id = document[:3]
    shard = documents.shard_index(dataset_id, check_integer("shard_id", shard_id))
    number = check_integer("doc_id", doc_id, least=-(2**63))
    count = int(documents.shard_documents[shard])
    if not 0 <= number < count:
        raise IndexError(
            f"document {number} is out of range for the {count} documents of shard {shard_id} of "
            f"{dataset_id!r}"
        )
    return DocumentLocation(shard, number)


def name_pieces(
    documents: Corpus, shard: int, numbers: Int64s, starts: Int64s, stops: Int64s
) -> list[Piece]:
    """Return token ranges of documents of one shard as pieces."""
    dataset_id, shard_id = documents.shard_name(shard)
    spans = zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return [Piece(dataset_id, shard_id, *span) for span in spans]


def overlapping_samples(start: int, stop: int, options: Options, samples: int) -> Int64s:
    """Return the samples that contain any of the epoch's tokens [start, stop), ascending.

    Sample s consists of the tokens [s * stride, s * stride + content).
    """
    if start >= stop:
        return np.empty(0, np.int64)
    first = max(start - options.overlap, 0) // options.stride
    return np.arange(first, min((stop - 1) // options.stride, samples - 1) + 1, dtype=np.int64)
