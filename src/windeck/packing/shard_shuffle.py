"""The packing order ``order="shards"``: shards are permuted, and documents within their shard."""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.corpora import CorpusMembers
from windeck.packing.layout import (
    DocumentLocation,
    PackingLayout,
    Piece,
    RowPieces,
    TooManyParts,
    check_document_run,
    name_pieces,
    overlapping_samples,
    too_few_tokens,
)
from windeck.packing.options import Options, framed_sizes
from windeck.packing.served import (
    Counts,
    PlacedDocuments,
    count_cut_documents,
    kept_lengths,
    place_documents,
)

__all__ = ["SHARDS", "ShardShuffle", "ShardShuffleEpoch"]

# Purposes in the hashes that seeds are derived with; published with the packed order.
SHARDS, _DOCUMENTS = 1, 2


class ShardShuffle(PackingLayout):
    """Sequences of a corpus in any epoch, with documents shuffled within their shard.

    O(shards) memory, and 8 bytes per document of every live shard.
    """

    def __init__(self, documents: Corpus, options: Options, live: LRUCache, threads: int) -> None:
        self.documents, self.options = documents, options
        self.live, self.threads = live, threads
        self.plan_reads = CorpusMembers(documents).plan_reads
        self.reads_ahead = self.plan_reads is not None
        self._placed = LRUCache(live.limit)
        self.sizes = framed_sizes(documents, options.frame)
        self.parts = _core.PartOrder(self.sizes)
        self.tokens = self.parts.total
        self.positions_per_sequence, self.content = options.stride, options.content
        self.samples = (self.tokens - options.overlap) // options.stride
        if self.samples < 1:
            raise too_few_tokens(self.tokens, options)

    def at_epoch(self, epoch: int, seed: int) -> ShardShuffleEpoch:
        """Return the layout of one epoch. O(shards) time."""
        return ShardShuffleEpoch(self, epoch, seed)

    def document_run(self, shard: int, epoch: int, seed: int) -> _core.DocumentRun:
        """Return the documents of a shard in the order of an epoch."""
        make = partial(self._create_document_run, shard, epoch, seed)
        document_run: _core.DocumentRun = self.live.get((epoch, seed, shard), make)
        return document_run

    def _create_document_run(self, shard: int, epoch: int, seed: int) -> _core.DocumentRun:
        document_run = self._read(shard, epoch, seed, self.options.bos, self.options.eos)
        return check_document_run(self.documents, shard, document_run, int(self.sizes[shard]))

    def _read(
        self, shard: int, epoch: int, seed: int, bos: int | None, eos: int | None
    ) -> _core.DocumentRun:
        return _core.DocumentRun(
            self.documents.open(shard),
            seed=_core.hash_words(seed, _DOCUMENTS, shard),
            epoch=epoch,
            bos=bos,
            eos=eos,
            threads=self.threads,
        )

    @cached_property
    def kept(self) -> _core.PartOrder:
        """The kept documents of each shard."""
        return _core.PartOrder(self.documents.shard_kept)

    def placed(self, shard: int, epoch: int, seed: int) -> PlacedDocuments:
        """Return the first and the last token of each kept document of a shard."""

        def create() -> PlacedDocuments:
            document_run = self._read(shard, epoch, seed, 0, None)
            return place_documents(kept_lengths(document_run, self.options.frame))

        found: PlacedDocuments = self._placed.get((epoch, seed, shard), create)
        return found


class ShardShuffleEpoch:
    """Sequences of one epoch: the location of their tokens, and the inverse."""

    def __init__(self, layout: ShardShuffle, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        #: True if sequences are served in lanes: after the end of a lane comes another shard.
        self.in_lanes = False
        key = _core.hash_words(seed, SHARDS)
        self.order = layout.parts.reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s, most_parts: int) -> RowPieces:
        """Return the row pieces of a batch."""
        layout = self._layout
        stride, content = layout.positions_per_sequence, layout.content
        found = self.order.pieces(indices, stride, content, layout.samples)
        if len(found[0]) > most_parts:
            raise TooManyParts
        if layout.plan_reads is not None and len(found[0]):
            is_range = int(indices[-1]) - int(indices[0]) == len(indices) - 1
            layout.plan_reads(self.order, int(found[0][0]), is_range and not self.in_lanes)
        return RowPieces([self._document_run(shard) for shard in found[0].tolist()], *found[1:])

    def shards_of(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return pairs (row, shard)."""
        layout = self._layout
        shards, offsets, part_of, _, _ = self.order.pieces(
            indices, layout.positions_per_sequence, layout.content, layout.samples
        )
        rows = np.repeat(np.arange(len(indices)), np.diff(offsets))
        return rows, shards[part_of]

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence, in its order."""
        options = self._layout.options
        shards, _, shard_of, starts, lengths = self.order.pieces(
            [sample], options.stride, options.content, self._layout.samples
        )
        found = []
        for part, start, count in zip(shard_of, starts, lengths, strict=True):
            shard = int(shards[part])
            spans = self._document_run(shard).spans(start, count)
            found += name_pieces(self._layout.documents, shard, *spans)
        return found

    def sequences_of(self, location: DocumentLocation) -> Int64s:
        """Return the sequences that contain tokens of a document, ascending."""
        before = self.order.before(self.order.index(location.shard))
        start, stop = self._document_run(location.shard).extent(location.document)
        layout = self._layout
        return overlapping_samples(before + start, before + stop, layout.options, layout.samples)

    def count(self, ranges: Int64s) -> Counts:
        """Return the tokens and documents in ranges of sequences."""
        layout = self._layout
        return count_cut_documents(
            ranges, layout.samples, layout.options, self.order, self._kept, self._placed
        )

    @cached_property
    def _kept(self) -> _core.PartOrder:
        """The kept documents of each shard, in the order of the epoch."""
        key = _core.hash_words(self._seed, SHARDS)
        return self._layout.kept.reordered(seed=key, epoch=self._epoch)

    def _placed(self, shard: int) -> PlacedDocuments:
        return self._layout.placed(shard, self._epoch, self._seed)

    def document_order(self) -> Int64s:
        """Return the numbers of all documents of the corpus, in the order of the epoch.

        O(documents) time and memory.
        """
        counts = self._layout.documents.shard_documents
        first = np.cumsum(counts) - counts
        found = [np.empty(0, np.int64)]
        for shard in map(self.order.at, range(len(self.order))):
            if counts[shard]:
                key = _core.hash_words(self._seed, _DOCUMENTS, shard)
                order = _core.Permutation(int(counts[shard]), seed=key, epoch=self._epoch)
                found.append(order[:] + first[shard])
        return np.concatenate(found)

    def _document_run(self, shard: int) -> _core.DocumentRun:
        return self._layout.document_run(shard, self._epoch, self._seed)
