"""Padded packing (``padded=True``): whole documents in padded sequences, by best fit.

The sequences of a shard are created once and permuted in every epoch.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.counting import CorpusPasses
from windeck.packing.layout import (
    DocumentLocation,
    Piece,
    RowPieces,
    check_parts,
    check_run,
    name_pieces,
)
from windeck.packing.options import Options, framed_sizes
from windeck.packing.shard_shuffle import SHARDS

__all__ = ["BestFitPacking"]

# Purpose in the hash that seeds are derived with; published with the packed order.
_SEQUENCES = 6


class FittedShard(NamedTuple):
    """The documents of a shard as stored, and the sequences that contain them."""

    run: _core.DocumentRun
    fit: _core.BestFit


class BestFitPacking:
    """Sequences of whole documents, in any epoch.

    O(shards) memory, and for every live shard 8 bytes per document and 16 per piece. Live shards
    serve all epochs, because their sequences do not depend on the epoch.
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
        self.sizes = framed_sizes(documents, options.frame)
        self.tokens = int(self.sizes.sum())
        self.counts, filled = passes.sequence_counts()
        self.parts = _core.PartOrder(self.counts)
        self.positions_per_sequence = 1
        self.samples = self.parts.total
        self.padding = self.samples * (options.length + 1) - int(filled.sum())

    def at_epoch(self, epoch: int, seed: int) -> BestFitEpoch:
        """Return the layout of one epoch. O(shards) time."""
        return BestFitEpoch(self, epoch, seed)

    def fitted(self, shard: int) -> FittedShard:
        """Return the sequences of a shard."""
        found: FittedShard = self.live.get(shard, partial(self._fit, shard))
        return found

    def _fit(self, shard: int) -> FittedShard:
        options = self.options
        run = _core.DocumentRun(
            self.documents.open(shard), bos=options.bos, eos=options.eos, threads=self.threads
        )
        check_run(self.documents, shard, run, int(self.sizes[shard]))
        fit = _core.BestFit(run, options.length + 1)
        if len(fit) != self.counts[shard]:
            dataset_id, shard_id = self.documents.shard_name(shard)
            raise ValueError(
                f"shard {shard_id} of {dataset_id!r} has {len(fit)} sequences, expected "
                f"{self.counts[shard]} as counted at the start"
            )
        return FittedShard(run, fit)


class BestFitEpoch:
    """Sequences of one epoch: the location of their tokens, and the inverse."""

    def __init__(self, layout: BestFitPacking, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        key = _core.hash_words(seed, SHARDS)
        self.order = layout.parts.reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s) -> RowPieces:
        """Return the pieces of a batch."""
        shards, shard_of, sequences = self._sequences(indices)
        check_parts(len(shards), len(indices))
        fitted = [self._layout.fitted(int(shard)) for shard in shards]
        pieces = _core.fit_pieces([each.fit for each in fitted], shard_of, sequences)
        return RowPieces([each.run for each in fitted], *pieces)

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence, in its order."""
        shards, _, _ = self._sequences(np.array([sample]))
        shard = int(shards[0])
        rows = self.rows(np.array([sample]))
        found = []
        for start, length in zip(rows.starts, rows.lengths, strict=True):
            found += name_pieces(self._layout.documents, shard, *rows.runs[0].spans(start, length))
        return found

    def sequences_of(self, location: DocumentLocation) -> Int64s:
        """Return the sequences that contain tokens of a document, ascending."""
        run, fit = self._layout.fitted(location.shard)
        held = fit.sequences_with(*run.extent(location.document))
        if not len(held):
            return held
        before = self.order.before(self.order.index(location.shard))
        return np.sort(self._shuffle(location.shard).index(held) + before)

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
