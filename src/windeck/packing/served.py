"""Counts of the tokens and documents in any sequences of an epoch, from the sizes of its parts.

Sequences are given as ranges, int64 of shape (k, 2): ascending, disjoint, and not adjacent. A part
is a shard or a block of documents. Parts whose sequences are all in one range are counted by their
totals; the lengths of documents are read for the other parts only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from windeck import _core
from windeck.documents.protocol import Int64s
from windeck.packing.options import Options

__all__ = [
    "Counts",
    "PlacedDocuments",
    "as_ranges",
    "count_cut_documents",
    "kept_lengths",
    "place_documents",
    "ranges_of",
]


class Counts(NamedTuple):
    """Tokens that are targets, and documents of which a token or all tokens are served."""

    tokens: int
    begun: int | None
    finished: int | None


class PlacedDocuments(NamedTuple):
    """The first and the last token of each kept document of a part, counted from its first token.

    Both ascending, int64. An empty document without a frame has the token before it, or the first.
    """

    firsts: Int64s
    lasts: Int64s


def as_ranges(pairs: ArrayLike) -> Int64s:
    """Return disjoint ranges sorted, with adjacent ones merged, and without empty ones."""
    ranges = np.asarray(pairs, np.int64).reshape(-1, 2)
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    ranges = ranges[np.argsort(ranges[:, 0])]
    if not len(ranges):
        return ranges
    apart = ranges[1:, 0] > ranges[:-1, 1]
    starts = ranges[np.concatenate([[True], apart]), 0]
    stops = ranges[np.concatenate([apart, [True]]), 1]
    return np.stack([starts, stops], axis=1)


def ranges_of(sequences: Int64s) -> Int64s:
    """Return the ranges of different sequences in any order. O(k log k)."""
    return as_ranges(np.stack([sequences, sequences + 1], axis=1))


def kept_lengths(document_run: _core.DocumentRun, frame: int) -> Int64s:
    """Return the framed lengths of the kept documents of a part, in its order.

    Parameters
    ----------
    document_run
        The documents with a `bos` and no `eos`, so that a kept document has at least one token.
    frame
        Number of tokens that frame a document.
    """
    lengths: Int64s = document_run.spans(0, document_run.total)[2] + (frame - 1)
    return lengths


def place_documents(lengths: Int64s) -> PlacedDocuments:
    """Return the tokens of documents of the given framed lengths, one after the other."""
    stops = np.cumsum(lengths)
    lasts = np.maximum(stops - 1, 0)
    return PlacedDocuments(np.minimum(stops - lengths, lasts), lasts)


def count_cut_documents(
    ranges: Int64s,
    samples: int,
    options: Options,
    order: _core.PartOrder,
    kept: _core.PartOrder,
    documents_of: Callable[[int], PlacedDocuments],
) -> Counts:
    """Return the tokens and documents in ranges of sequences.

    For sequences that are cut from one stream of tokens.

    Parameters
    ----------
    ranges, samples
        Sequences, and the number of all.
    options
        The options of packing.
    order, kept
        The parts in the order of the epoch: their tokens, and their kept documents.
    documents_of
        Returns the documents of a part, for the parts at borders of ranges.
    """
    bounds = np.unique(np.concatenate([ranges.reshape(-1), [0, samples]]))

    def documents_until(tokens: Int64s, names: str) -> Int64s:
        """Return the number of documents whose first or last token is at most each token."""
        parts, _, part_of, within, _ = order.pieces(tokens, 1, 1, order.total)
        found = np.empty(len(tokens), np.int64)
        for number, part in enumerate(parts.tolist()):
            mine = part_of == number
            ends: Int64s = getattr(documents_of(part), names)
            before = kept.before(kept.index(part))
            found[mine] = before + np.searchsorted(ends, within[mine], side="right")
        return found

    # Documents with a sequence before each bound, and those with all sequences before it.
    begun, finished = np.zeros((2, len(bounds)), np.int64)
    begun[1:] = documents_until(bounds[1:] * options.stride + options.overlap - 1, "firsts")
    finished[1:] = documents_until(bounds[1:] * options.stride - 1, "lasts")
    finished[-1] = begun[-1]  # No sequence has the tail.

    def inside(pairs: Int64s) -> int:
        """Return the documents with all sequences in one of the ranges."""
        starts, stops = np.searchsorted(bounds, pairs).T
        return int(np.maximum(finished[stops] - begun[starts], 0).sum())

    gaps = np.concatenate([[0], ranges.reshape(-1), [samples]]).reshape(-1, 2)
    # A document that is in no gap only is in the ranges.
    tokens = int(np.diff(ranges).sum()) * options.length
    return Counts(tokens, int(begun[-1]) - inside(as_ranges(gaps)), inside(ranges))
