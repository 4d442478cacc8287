"""order="shards": shards permuted, documents permuted within theirs, sequences cut from that."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.locations import Piece, Place, overlapping, pieces_of
from windeck.packing.options import Options, framed_sizes

__all__ = ["SHARDS", "ByShards", "Rows", "TooManyParts", "check_parts", "checked_run", "too_short"]

#: Parts (shards, or blocks of the global order) that rows are written from at a time: a mapped
#: shard has two descriptors, of which a process often may have 1,024; a block has its tokens.
MOST_PARTS = 64

# What a key is derived for; published with the packed order.
SHARDS, _DOCUMENTS = 1, 2


class Rows(NamedTuple):
    """The rows of a batch as pieces of runs; see `windeck._core.pack`."""

    runs: list[_core.DocumentRun]
    row_offsets: Int64s
    run_of: Int64s
    starts: Int64s
    lengths: Int64s


class TooManyParts(Exception):
    """Rows are of so many parts that they had better be written a few at a time."""


def check_parts(parts: int, rows: int) -> None:
    """Tell of too many parts, unless they are those of a single row.

    Raises
    ------
    TooManyParts
        There are.
    """
    if parts > MOST_PARTS and rows > 1:
        raise TooManyParts


class ByShards:
    """Sequences of a corpus in shards, of any epoch.

    O(shards) memory, and for every live shard 8 bytes a document.
    """

    def __init__(self, documents: Corpus, options: Options, live: LRUCache, threads: int) -> None:
        self.documents, self.options = documents, options
        self.live, self.threads = live, threads
        self.sizes = framed_sizes(documents, options.frame)
        self.parts = _core.PartOrder(self.sizes)
        self.tokens = self.parts.total
        self.samples = (self.tokens - 1) // options.length
        if self.samples < 1:
            raise too_short(self.tokens, options)

    def at(self, epoch: int, seed: int) -> ShardEpoch:
        """One epoch. O(shards)."""
        return ShardEpoch(self, epoch, seed)

    def run(self, shard: int, epoch: int, seed: int) -> _core.DocumentRun:
        """The documents of a shard in the order of an epoch."""
        make = partial(self._made, shard, epoch, seed)
        run: _core.DocumentRun = self.live.get((epoch, seed, shard), make)
        return run

    def _made(self, shard: int, epoch: int, seed: int) -> _core.DocumentRun:
        options = self.options
        run = _core.DocumentRun(
            self.documents.open(shard),
            seed=_core.hash_words(seed, _DOCUMENTS, shard),
            epoch=epoch,
            bos=options.bos,
            eos=options.eos,
            threads=self.threads,
        )
        return checked_run(self.documents, shard, run, int(self.sizes[shard]))


class ShardEpoch:
    """Sequences of one epoch: where their tokens are, and the inverse."""

    def __init__(self, layout: ByShards, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        key = _core.hash_words(seed, SHARDS)
        self._order = layout.parts.reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s) -> Rows:
        """The pieces of a batch."""
        layout = self._layout
        length = layout.options.length
        found = self._order.pieces(indices, length, length + 1, layout.samples)
        check_parts(len(found[0]), len(indices))
        return Rows([self._run(shard) for shard in found[0].tolist()], *found[1:])

    def documents(self, sample: int) -> list[Piece]:
        """The pieces of a sequence, in its order."""
        length = self._layout.options.length
        shards, _, shard_of, starts, lengths = self._order.pieces(
            [sample], length, length + 1, self._layout.samples
        )
        found = []
        for part, start, count in zip(shard_of, starts, lengths, strict=True):
            shard = int(shards[part])
            spans = self._run(shard).spans(start, count)
            found += pieces_of(self._layout.documents, shard, *spans)
        return found

    def sequences_of(self, place: Place) -> Int64s:
        """The sequences that hold some of a document, ascending."""
        before = self._order.before(self._order.index(place.shard))
        start, stop = self._run(place.shard).extent(place.document)
        layout = self._layout
        return overlapping(before + start, before + stop, layout.options.length, layout.samples)

    def _run(self, shard: int) -> _core.DocumentRun:
        return self._layout.run(shard, self._epoch, self._seed)


def too_short(tokens: int, options: Options) -> ValueError:
    """What is said of documents that do not fill a sequence."""
    return ValueError(
        f"the documents hold {tokens} tokens with their frames, expected {options.length + 1} or "
        f"more for a sequence of sequence_length {options.length} and its targets"
    )


def checked_run(
    documents: Corpus, shard: int, run: _core.DocumentRun, expected: int
) -> _core.DocumentRun:
    """The run, or an error when the shard does not hold what was counted."""
    counted = int(documents.shard_documents[shard])
    if (len(run), run.total) != (counted, expected):
        dataset_id, shard_id = documents.shard_name(shard)
        raise ValueError(
            f"shard {shard_id} of {dataset_id!r} holds {len(run)} documents of {run.total} tokens "
            f"with their frames, expected {counted} of {expected} as counted at the start"
        )
    return run
