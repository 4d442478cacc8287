"""Which documents a sequence holds, and which sequences hold a document: in words of users."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windeck._util.validation import check_integer
from windeck.documents.protocol import Corpus, Int64s

__all__ = ["Piece", "Place", "document_place", "overlapping", "pieces_of"]


class Piece(NamedTuple):
    """Tokens [start, stop) of a document with its frame, as a sequence holds them.

    Token 0 is the BOS, where there is one.
    """

    dataset_id: str
    shard_id: int
    doc_id: int
    start: int
    stop: int


class Place(NamedTuple):
    """Where a document is stored: shard s of the corpus, and its number in it."""

    shard: int
    document: int


def document_place(documents: Corpus, document: object) -> Place:
    """Where the document ``(dataset_id, shard_id, doc_id)`` is stored.

    Raises
    ------
    TypeError
        For what is no such triple.
    KeyError
        For a shard that does not exist.
    IndexError
        For a document that its shard does not have.
    """
    if not isinstance(document, tuple) or len(document) < 3 or not isinstance(document[0], str):
        raise TypeError(f"document is {document!r}, expected (dataset_id, shard_id, doc_id)")
    dataset_id, shard_id, doc_id = document[:3]
    shard = documents.shard_index(dataset_id, check_integer("shard_id", shard_id))
    number = check_integer("doc_id", doc_id, least=-(2**63))
    count = int(documents.shard_documents[shard])
    if not 0 <= number < count:
        raise IndexError(
            f"document {number} is out of range for the {count} documents of shard {shard_id} of "
            f"{dataset_id!r}"
        )
    return Place(shard, number)


def pieces_of(
    documents: Corpus, shard: int, numbers: Int64s, starts: Int64s, stops: Int64s
) -> list[Piece]:
    """Ranges of documents of one shard, named."""
    dataset_id, shard_id = documents.shard_name(shard)
    spans = zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)
    return [Piece(dataset_id, shard_id, *span) for span in spans]


def overlapping(start: int, stop: int, length: int, samples: int) -> Int64s:
    """The samples that hold some of the epoch's tokens [start, stop), ascending.

    Sample s is the tokens [s * length, s * length + length + 1).
    """
    if start >= stop:
        return np.empty(0, np.int64)
    first = max(start - 1, 0) // length
    return np.arange(first, min((stop - 1) // length, samples - 1) + 1, dtype=np.int64)
