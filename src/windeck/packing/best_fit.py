"""padded=True: whole documents in sequences that are filled up, made once and shuffled after."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.locations import Piece, Place, pieces_of
from windeck.packing.options import Options, framed_sizes
from windeck.packing.passes import Passes
from windeck.packing.shard_shuffle import SHARDS, Rows, check_parts, checked_run

__all__ = ["Padded"]

# What a key is derived for; published with the packed order.
_SEQUENCES = 6


class Fitted(NamedTuple):
    """A shard's documents as stored, and the sequences they make."""

    run: _core.DocumentRun
    fit: _core.BestFit


class Padded:
    """Sequences of whole documents, of any epoch.

    O(shards) memory, and for every live shard 8 bytes a document and 16 a piece: sequences are
    the same in all epochs, and so are live shards.
    """

    def __init__(
        self, documents: Corpus, options: Options, live: LRUCache, passes: Passes, threads: int
    ) -> None:
        self.documents, self.options = documents, options
        self.live, self.threads = live, threads
        self.sizes = framed_sizes(documents, options.frame)
        self.tokens = int(self.sizes.sum())
        self.counts, filled = passes.sequences()
        self.parts = _core.PartOrder(self.counts)
        self.samples = self.parts.total
        self.padding = self.samples * (options.length + 1) - int(filled.sum())

    def at(self, epoch: int, seed: int) -> PaddedEpoch:
        """One epoch. O(shards)."""
        return PaddedEpoch(self, epoch, seed)

    def fitted(self, shard: int) -> Fitted:
        """The sequences of a shard."""
        found: Fitted = self.live.get(shard, partial(self._made, shard))
        return found

    def _made(self, shard: int) -> Fitted:
        options = self.options
        run = _core.DocumentRun(
            self.documents.open(shard), bos=options.bos, eos=options.eos, threads=self.threads
        )
        checked_run(self.documents, shard, run, int(self.sizes[shard]))
        fit = _core.BestFit(run, options.length + 1)
        if len(fit) != self.counts[shard]:
            dataset_id, shard_id = self.documents.shard_name(shard)
            raise ValueError(
                f"shard {shard_id} of {dataset_id!r} makes {len(fit)} sequences, expected "
                f"{self.counts[shard]} as counted at the start"
            )
        return Fitted(run, fit)


class PaddedEpoch:
    """Sequences of one epoch: where their tokens are, and the inverse."""

    def __init__(self, layout: Padded, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        key = _core.hash_words(seed, SHARDS)
        self._order = layout.parts.reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s) -> Rows:
        """The pieces of a batch."""
        shards, shard_of, sequences = self._sequences(indices)
        check_parts(len(shards), len(indices))
        fitted = [self._layout.fitted(int(shard)) for shard in shards]
        pieces = _core.fit_pieces([each.fit for each in fitted], shard_of, sequences)
        return Rows([each.run for each in fitted], *pieces)

    def documents(self, sample: int) -> list[Piece]:
        """The pieces of a sequence, in its order."""
        shards, _, _ = self._sequences(np.array([sample]))
        shard = int(shards[0])
        rows = self.rows(np.array([sample]))
        found = []
        for start, length in zip(rows.starts, rows.lengths, strict=True):
            found += pieces_of(self._layout.documents, shard, *rows.runs[0].spans(start, length))
        return found

    def sequences_of(self, place: Place) -> Int64s:
        """The sequences that hold some of a document, ascending."""
        run, fit = self._layout.fitted(place.shard)
        held = fit.sequences_with(*run.extent(place.document))
        if not len(held):
            return held
        before = self._order.before(self._order.index(place.shard))
        return np.sort(self._shuffle(place.shard).index(held) + before)

    def _sequences(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Shards, which of them each row lies in, and which of the shard's sequences it is."""
        shards, _, shard_of, places, _ = self._order.pieces(indices, 1, 1, self._layout.samples)
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
