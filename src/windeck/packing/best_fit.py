"""Padded packing (``padded=True``): whole documents in padded sequences, by best fit.

The sequences of a shard are created once and permuted in every epoch.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.counting import CorpusPasses
from windeck.packing.layout import (
    DocumentLocation,
    PackingLayout,
    Piece,
    RowPieces,
    TooManyParts,
    check_document_run,
    name_pieces,
)
from windeck.packing.options import Options, framed_sizes
from windeck.packing.served import Counts, kept_lengths, place_documents
from windeck.packing.shard_shuffle import SHARDS

__all__ = ["BestFitPacking"]

# Purpose in the hash that seeds are derived with; published with the packed order.
_SEQUENCES = 6


class FittedShard(NamedTuple):
    """The documents of a shard as stored, and the sequences that contain them."""

    document_run: _core.DocumentRun
    fit: _core.BestFit


class Bins(NamedTuple):
    """Tokens of documents in each sequence of a shard, and pairs (kept document, sequence)."""

    tokens: Int64s
    document_of: Int64s
    sequence_of: Int64s


class BestFitPacking(PackingLayout):
    """Sequences of whole documents, in any epoch.

    O(shards) memory, and for every live shard 8 bytes per document and 16 per row piece. Live
    shards serve all epochs, because their sequences do not depend on the epoch.
    """

    def __init__(
        self,
        documents: Corpus,
        options: Options,
        live: LRUCache,
        passes: CorpusPasses,
        threads: int,
    ) -> None:
        self.documents, self.options = documents, options
        self.live, self.threads = live, threads
        self._bins = LRUCache(live.limit)
        self.sizes = framed_sizes(documents, options.frame)
        self.tokens = int(self.sizes.sum())
        self.counts, self.filled = passes.sequence_counts()
        self.parts = _core.PartOrder(self.counts)
        self.positions_per_sequence = 1
        self.samples = self.parts.total
        self.padding = self.samples * options.content - int(self.filled.sum())

    def at_epoch(self, epoch: int, seed: int) -> BestFitEpoch:
        """Return the layout of one epoch. O(shards) time."""
        return BestFitEpoch(self, epoch, seed)

    @property
    def tokens_per_sample(self) -> None:
        """None: sequences have different numbers of padding tokens."""
        return None

    @property
    def tail(self) -> int:
        """0: the last sequence is padded."""
        return 0

    def device_numbers(self, documents: int) -> tuple[int, int]:
        """Return the int64 numbers on a device: those of all pieces, and the order of sequences."""
        # A document has one piece more each time that it is cut, which fills a sequence.
        return 2 * (documents + self.samples) + self.samples, self.samples

    def fitted(self, shard: int) -> FittedShard:
        """Return the sequences of a shard."""
        found: FittedShard = self.live.get(shard, partial(self._fit, shard))
        return found

    def _fit(self, shard: int) -> FittedShard:
        options = self.options
        document_run = _core.DocumentRun(
            self.documents.open(shard), bos=options.bos, eos=options.eos, threads=self.threads
        )
        check_document_run(self.documents, shard, document_run, int(self.sizes[shard]))
        fit = _core.BestFit(document_run, options.content, options.overlap)
        if len(fit) != self.counts[shard]:
            dataset_id, shard_id = self.documents.shard_name(shard)
            raise ValueError(
                f"shard {shard_id} of {dataset_id!r} has {len(fit)} sequences, expected "
                f"{self.counts[shard]} as counted at the start"
            )
        return FittedShard(document_run, fit)

    def all_row_pieces(self, shard: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the row pieces in the sequences of a shard that has sequences, in stored order.

        Offsets of the sequences among the row pieces; and of each row piece its first token among
        the framed tokens of the shard, and the number of them.
        """
        fit = self.fitted(shard).fit
        numbers = np.arange(len(fit))
        offsets, _, starts, sizes = _core.fit_pieces([fit], np.zeros_like(numbers), numbers)
        return offsets, starts, sizes

    @cached_property
    def totals(self) -> tuple[_core.PartOrder, _core.PartOrder]:
        """The tokens that are targets and the kept documents in the sequences of each shard."""
        kept = np.where(self.counts > 0, self.documents.shard_kept, 0)
        targets = self.filled + self.counts * (self.options.sequence_frame - 1)
        return _core.PartOrder(targets), _core.PartOrder(kept)

    def bins(self, shard: int) -> Bins:
        """Return the tokens and the documents in the sequences of a shard that has sequences."""
        found: Bins = self._bins.get(shard, partial(self._create_bins, shard))
        return found

    def _create_bins(self, shard: int) -> Bins:
        offsets, starts, sizes = self.all_row_pieces(shard)
        tokens = np.diff(np.concatenate([[0], np.cumsum(sizes)])[offsets])
        sequence_of = np.repeat(np.arange(len(tokens)), np.diff(offsets))
        document_run = _core.DocumentRun(self.documents.open(shard), bos=0, threads=self.threads)
        lengths = kept_lengths(document_run, self.options.frame)
        firsts = place_documents(lengths).firsts
        full, empty = np.flatnonzero(lengths), np.flatnonzero(lengths == 0)
        document_of = full[np.searchsorted(firsts[full], starts, side="right") - 1]
        # An empty document is in the sequence of the token that it is placed at.
        ascending = np.argsort(starts)
        beside = np.searchsorted(starts[ascending], firsts[empty], side="right") - 1
        return Bins(
            tokens,
            np.concatenate([document_of, empty]),
            np.concatenate([sequence_of, sequence_of[ascending[beside]]]),
        )


class BestFitEpoch:
    """Sequences of one epoch: the location of their tokens, and the inverse."""

    def __init__(self, layout: BestFitPacking, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        key = _core.hash_words(seed, SHARDS)
        self.order = layout.parts.reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s, most_parts: int) -> RowPieces:
        """Return the row pieces of a batch."""
        shards, shard_of, sequences = self._sequences(indices)
        if len(shards) > most_parts:
            raise TooManyParts
        fitted = [self._layout.fitted(int(shard)) for shard in shards]
        pieces = _core.fit_pieces([each.fit for each in fitted], shard_of, sequences)
        return RowPieces([each.document_run for each in fitted], *pieces)

    def stored_sequences(self) -> Int64s:
        """Return the stored numbers of all sequences, in the order of the epoch.

        O(sequences) time and memory.
        """
        counts = self._layout.counts
        first = np.cumsum(counts) - counts
        shards = [shard for shard in map(self.order.at, range(len(self.order))) if counts[shard]]
        return np.concatenate([self._shuffle(shard)[:] + first[shard] for shard in shards])

    def shards_of(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Return pairs (row, shard): a padded sequence has tokens of one shard."""
        shards, _, shard_of, _, _ = self.order.pieces(indices, 1, 1, self._layout.samples)
        return np.arange(len(indices)), shards[shard_of]

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence, in its order."""
        shards, _, _ = self._sequences(np.array([sample]))
        shard = int(shards[0])
        rows = self.rows(np.array([sample]), 1)
        found = []
        for start, length in zip(rows.starts, rows.lengths, strict=True):
            found += name_pieces(
                self._layout.documents, shard, *rows.document_runs[0].spans(start, length)
            )
        return found

    def sequences_of(self, location: DocumentLocation) -> Int64s:
        """Return the sequences that contain tokens of a document, ascending."""
        document_run, fit = self._layout.fitted(location.shard)
        held = fit.sequences_with(*document_run.extent(location.document))
        if not len(held):
            return held
        before = self.order.before(self.order.index(location.shard))
        return np.sort(self._shuffle(location.shard).index(held) + before)

    def count(self, ranges: Int64s) -> Counts:
        """Return the tokens and documents in ranges of sequences."""
        layout, found = self._layout, np.zeros(3, np.int64)
        served: dict[int, list[tuple[int, int]]] = {}
        for start, stop in ranges.tolist():
            ends = np.array([start, stop - 1])
            parts, _, part_of, within, _ = self.order.pieces(ends, 1, 1, layout.samples)
            first, last = parts[part_of].tolist()
            count = int(layout.counts[first])
            low, high = int(within[0]), int(within[1]) + 1
            if first == last:
                served.setdefault(first, []).append((low, high))
                continue
            served.setdefault(first, []).append((low, count))
            served.setdefault(last, []).append((0, high))
            places = [self.order.index(first) + 1, self.order.index(last)]
            for number, totals in enumerate(self._totals):
                found[number] += totals.before(places[1]) - totals.before(places[0])
        for shard, pairs in served.items():
            if pairs == [(0, layout.counts[shard])]:
                found += [totals.size(shard) for totals in self._totals]
            else:
                found += self._count_shard(shard, pairs)
        return Counts(*found.tolist())

    @cached_property
    def _totals(self) -> list[_core.PartOrder]:
        """Tokens, and twice the documents, of each shard in the order of the epoch."""
        key = _core.hash_words(self._seed, SHARDS)
        tokens, kept = (
            totals.reordered(seed=key, epoch=self._epoch) for totals in self._layout.totals
        )
        return [tokens, kept, kept]

    def _count_shard(self, shard: int, pairs: list[tuple[int, int]]) -> Int64s:
        """Return tokens and documents in ranges of the sequences of a shard."""
        served = np.zeros(int(self._layout.counts[shard]), bool)
        for start, stop in pairs:
            served[self._shuffle(shard).take(np.arange(start, stop))] = True
        bins = self._layout.bins(shard)
        targets = bins.tokens[served] + (self._layout.options.sequence_frame - 1)
        visited = np.bincount(bins.document_of, weights=served[bins.sequence_of])
        every = np.bincount(bins.document_of)
        return np.array([targets.sum(), (visited > 0).sum(), (visited == every).sum()])

    def _sequences(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the shards, the index of each row's shard among them, and its sequence there."""
        shards, _, shard_of, places, _ = self.order.pieces(indices, 1, 1, self._layout.samples)
        sequences = np.empty_like(places)
        for number, shard in enumerate(shards.tolist()):
            mine = shard_of == number
            sequences[mine] = self._shuffle(shard).take(places[mine])
        return shards, shard_of, sequences

    def _shuffle(self, shard: int) -> _core.Permutation:
        return _core.Permutation(
            int(self._layout.counts[shard]),
            seed=_core.hash_words(self._seed, _SEQUENCES, shard),
            epoch=self._epoch,
        )
