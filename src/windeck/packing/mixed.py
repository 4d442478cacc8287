"""The mixed packing orders: sequences are shuffled in groups of shards, or of blocks of documents.

Neighbouring sequences of an epoch often are pieces of one document. A mixed order takes the shards
(``"mixed"``) or the blocks (``"mixed-global"``) of an epoch in groups, and shuffles the sequences
of each group, so that a batch has pieces of many documents, while few files are in use.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from windeck import _core
from windeck.documents.protocol import Int64s
from windeck.orders import BlockPermutation
from windeck.packing.layout import (
    DocumentLocation,
    DocumentOrder,
    EpochLayout,
    PackingLayout,
    Piece,
    RowPieces,
    SequenceOrder,
)
from windeck.packing.served import Counts, as_ranges, ranges_of

__all__ = ["MixedEpoch", "epoch_layout"]

# Purpose in the hash that seeds are derived with; published with the packed order.
_GROUPS = 7


def epoch_layout(layout: PackingLayout, epoch: int, seed: int) -> EpochLayout:
    """Return the layout of one epoch, mixed if the options say so."""
    found = layout.at_epoch(epoch, seed)
    return MixedEpoch(layout, found, epoch, seed) if layout.options.is_mixed else found


class MixedEpoch:
    """Sequences of one epoch, shuffled in groups: the location of their tokens, and the inverse.

    8 bytes for each group besides those of the epoch.
    """

    def __init__(self, layout: PackingLayout, inner: EpochLayout, epoch: int, seed: int) -> None:
        self.order, self._inner = inner.order, inner
        borders = _group_borders(layout, inner.order)
        self._borders = np.unique(borders)
        self._sequences = BlockPermutation(
            layout.samples,
            block_offsets=borders,
            blocks_in_buffer=1,
            seed=_core.hash_words(seed, _GROUPS),
            epoch=epoch,
        )

    def document_order(self) -> Int64s:
        """Return the numbers of all documents, in the order before sequences are shuffled."""
        return cast(DocumentOrder, self._inner).document_order()

    def sequence_order(self) -> Int64s:
        """Return the sequences of that order, as the epoch serves them. O(sequences) time."""
        found: Int64s = self._sequences[:]
        return found

    def stored_sequences(self) -> Int64s:
        """Return the stored numbers of padded sequences, as the epoch serves them."""
        stored = cast(SequenceOrder, self._inner).stored_sequences()
        found: Int64s = stored.take(self._sequences[:])
        return found

    def rows(self, indices: Int64s, most_parts: int) -> RowPieces:
        """Return the row pieces of a batch."""
        return self._inner.rows(self._sequences.take(indices), most_parts)

    def shards_of(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return pairs (row, shard)."""
        return self._inner.shards_of(self._sequences.take(indices))

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence, in its order."""
        return self._inner.documents(self._sequences[sample])

    def sequences_of(self, location: DocumentLocation) -> Int64s:
        """Return the sequences that contain tokens of a document, ascending."""
        found: Int64s = np.sort(self._sequences.index(self._inner.sequences_of(location)))
        return found

    def count(self, ranges: Int64s) -> Counts:
        """Return the tokens and documents in ranges of sequences.

        O(groups), and O(sequences log sequences) of the groups that a range has a part of.
        """
        return self._inner.count(self._inner_ranges(ranges))

    def _inner_ranges(self, ranges: Int64s) -> Int64s:
        """Return ranges of sequences before they were shuffled in groups."""
        borders = self._borders
        # Every group is shuffled in itself, and they are in the order of any of their sequences.
        order = np.argsort(self._sequences.index(borders[:-1]))
        starts = np.concatenate([[0], np.cumsum(np.diff(borders)[order])])
        found = []
        for start, stop in ranges.tolist():
            first, last = np.searchsorted(starts, [start, stop - 1], side="right") - 1
            for place in {first, last}:
                low, high = max(start, starts[place]), min(stop, starts[place + 1])
                if low > starts[place] or high < starts[place + 1]:
                    found.append(ranges_of(self._sequences.slice(low, high)))
                else:
                    found.append(borders[order[place] :][:2].reshape(1, 2))
            whole = order[first + 1 : last]
            found.append(np.stack([borders[whole], borders[whole + 1]], axis=1))
        return as_ranges(np.concatenate(found)) if found else ranges


def _group_borders(layout: PackingLayout, order: _core.PartOrder) -> Int64s:
    """Return the first sequence of each group, and the number of all: int64 of shape (groups + 1,).

    Groups of nearly equal numbers of adjacent parts, at most `mixed_shards` each. A sequence
    belongs to the group of its first token. O(groups) time.
    """
    parts = len(order)
    groups = -(-parts // layout.options.mixed_shards)
    before = [order.before(group * parts // groups) for group in range(groups + 1)]
    # Rounded up: a sequence that begins in a group ends in the next one.
    borders = -(-np.array(before, np.int64) // layout.positions_per_sequence)
    borders[-1] = layout.samples
    found: Int64s = np.minimum(borders, layout.samples)
    return found
