"""The packing order ``order="global"``: documents are shuffled across all shards.

A permutation of all documents, the same for every epoch of a seed, is split into blocks of 1,024
documents. One pass over the corpus adds up the tokens of each block; these sums are the index. An
epoch permutes the blocks, and the documents within each block.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Literal, NamedTuple

import numpy as np

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck._util.parallel import run_in_threads
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.counting import BLOCK_SIZE, CorpusPasses, base_order
from windeck.packing.layout import (
    DocumentLocation,
    PackingLayout,
    Piece,
    RowPieces,
    TooManyParts,
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

__all__ = ["GlobalShuffle"]

# Purposes in the hashes that seeds are derived with; published with the packed order.
_BLOCKS, _WITHIN = 4, 5

#: Blocks per cumulative sum that an epoch keeps.
_BLOCKS_PER_SUM = 16

#: Tokens above which a block is not copied: a batch then maps the documents that it needs.
LARGE_BLOCK = 2**22

#: Shards that one thread opens in sequence for a block of many shards.
_SHARDS_PER_TASK = 16


class ShuffledBlock(NamedTuple):
    """A block of an epoch: its documents in their order, and the shard and number of each.

    The document run of a large block has lengths only.
    """

    document_run: _core.DocumentRun
    documents: _core.DocumentBlock
    shards: Int64s
    numbers: Int64s
    is_large: bool


class GlobalShuffle(PackingLayout):
    """Sequences of a corpus in any epoch, with documents shuffled across all shards.

    Memory is 8 bytes per 1,024 documents for each seed, half a byte more for each epoch, and the
    tokens of the live blocks, which are copied from the shards.
    """

    def __init__(
        self, documents: Corpus, options: Options, live: LRUCache, passes: CorpusPasses
    ) -> None:
        self.documents, self.options = documents, options
        self.live, self._passes = live, passes
        self.tokens = int(framed_sizes(documents, options.frame).sum())
        self.positions_per_sequence, self.content = options.stride, options.content
        self.samples = (self.tokens - options.overlap) // options.stride
        if self.samples < 1:
            raise too_few_tokens(self.tokens, options)
        self.first: Int64s = np.concatenate([[0], np.cumsum(documents.shard_documents)])
        self.count = int(self.first[-1])
        # The index of every seed is kept, because creating one takes a pass over the corpus.
        self._indices = LRUCache(2**62, keep_after_fork=True)
        self._kept = LRUCache(2**62, keep_after_fork=True)

    def index(self, seed: int) -> _core.PartOrder:
        """Return the sums of the blocks of a seed; the first call creates them."""

        def create() -> _core.PartOrder:
            sums = self._passes.block_sums(seed, self.tokens)
            return _core.PartOrder(sums, every=_BLOCKS_PER_SUM)

        found: _core.PartOrder = self._indices.get(seed, create)
        return found

    def build_index(self, seed: int) -> None:
        """Create the sums of the blocks of a seed, by a pass over the lengths of all documents."""
        self.index(seed)

    def kept(self, seed: int) -> _core.PartOrder:
        """Return the kept documents of the blocks of a seed.

        With filters the first call takes a pass over the lengths of all documents.
        """

        def create() -> _core.PartOrder:
            sums = _sizes(self.index(seed))
            return _core.PartOrder(self._passes.block_kept(seed, sums))

        found: _core.PartOrder = self._kept.get(seed, create)
        return found

    def known_sums(self) -> dict[int, Int64s]:
        """Return the block sums of every seed that has an index, for pickles. O(blocks) time."""
        found: dict[int, Int64s] = dict(self._passes.known_sums)
        for seed, index in self._indices.items():
            found[seed] = _sizes(index)
        return found

    def at_epoch(self, epoch: int, seed: int) -> GlobalShuffleEpoch:
        """Return the layout of one epoch. O(blocks) time, and a pass if the index is missing."""
        return GlobalShuffleEpoch(self, epoch, seed)

    def block(self, number: int, epoch: int, seed: int) -> ShuffledBlock:
        """Return a block of an epoch, with its tokens."""
        found: ShuffledBlock = self.live.get(
            (epoch, seed, number), partial(self._create_block, number, epoch, seed)
        )
        return found

    def within(self, number: int, epoch: int, seed: int) -> _core.Permutation:
        """Return the order of the documents within a block."""
        size = min(BLOCK_SIZE, self.count - number * BLOCK_SIZE)
        return _core.Permutation(size, seed=_core.hash_words(seed, _WITHIN, number), epoch=epoch)

    def _create_block(self, number: int, epoch: int, seed: int) -> ShuffledBlock:
        places = self.within(number, epoch, seed)[:] + number * BLOCK_SIZE
        documents = base_order(self.count, seed).take(places)
        shards = np.searchsorted(self.first, documents, side="right") - 1
        numbers = documents - self.first[shards]
        expected = self.index(seed).size(number)
        is_large = expected > LARGE_BLOCK
        block = _core.DocumentBlock(len(places))
        all_places = np.arange(len(places))
        self._read(block, shards, numbers, all_places, "lengths" if is_large else "copies")
        document_run = self._document_run(block)
        if document_run.total != expected:
            raise ValueError(
                f"block {number} of the global order has {document_run.total} tokens with their "
                f"frames, expected {expected} from the index; the files have changed since it was "
                "created"
            )
        return ShuffledBlock(document_run, block, shards, numbers, is_large)

    def mapped_document_run(self, block: ShuffledBlock, places: Int64s) -> _core.DocumentRun:
        """Return the document run of a large block, with some documents mapped from files."""
        part = block.documents.bare()
        self._read(part, block.shards, block.numbers, places, "addresses")
        return self._document_run(part)

    def _read(
        self,
        block: _core.DocumentBlock,
        shards: Int64s,
        numbers: Int64s,
        places: Int64s,
        take: Literal["copies", "addresses", "lengths"],
    ) -> None:
        """Read the documents at some places of a block, shard by shard."""
        order = places[np.argsort(shards[places], kind="stable")]
        by_shard = np.split(order, np.flatnonzero(np.diff(shards[order])) + 1)

        def read(number: int) -> None:
            members = by_shard[number]
            shard = self.documents.open(int(shards[members[0]]))
            block.read(shard, numbers[members], members, take=take)

        run_in_threads(read, len(by_shard), None, portion=_SHARDS_PER_TASK)

    def _document_run(self, block: _core.DocumentBlock) -> _core.DocumentRun:
        return _core.DocumentRun(block, bos=self.options.bos, eos=self.options.eos)


def _sizes(order: _core.PartOrder) -> Int64s:
    """Return the sizes of all parts."""
    return np.fromiter(map(order.size, range(len(order))), np.int64, len(order))


class GlobalShuffleEpoch:
    """Sequences of one epoch: the location of their tokens, and the inverse."""

    def __init__(self, layout: GlobalShuffle, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        key = _core.hash_words(seed, _BLOCKS)
        self.order = layout.index(seed).reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s, most_parts: int) -> RowPieces:
        """Return the row pieces of a batch."""
        layout = self._layout
        stride, content = layout.positions_per_sequence, layout.content
        numbers, *pieces = self.order.pieces(indices, stride, content, layout.samples)
        if len(numbers) > most_parts:
            raise TooManyParts
        blocks = [self._block(number) for number in numbers.tolist()]
        rows = RowPieces([block.document_run for block in blocks], *pieces)
        large = {
            number: _used_places(rows, number) for number, b in enumerate(blocks) if b.is_large
        }
        shards = [blocks[number].shards[places] for number, places in large.items()]
        if shards and len(np.unique(np.concatenate(shards))) > most_parts:
            raise TooManyParts
        for number, places in large.items():
            rows.document_runs[number] = layout.mapped_document_run(blocks[number], places)
        return rows

    def shards_of(self, indices: Int64s) -> tuple[Int64s, Int64s]:
        """Raise ValueError: sequences have documents of any shards."""
        raise ValueError(
            "the shards of a sequence are known in the orders 'shards' and 'mixed', and not in "
            "order='global', in which every block of 1,024 documents is read from all shards"
        )

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence, in its order."""
        options, shard_name = self._layout.options, self._layout.documents.shard_name
        numbers, _, number_of, starts, lengths = self.order.pieces(
            [sample], options.stride, options.content, self._layout.samples
        )
        found = []
        for part, start, count in zip(number_of, starts, lengths, strict=True):
            block = self._block(int(numbers[part]))
            for place, begin, end in zip(*block.document_run.spans(start, count), strict=True):
                name = shard_name(int(block.shards[place]))
                found.append(Piece(*name, int(block.numbers[place]), int(begin), int(end)))
        return found

    def sequences_of(self, location: DocumentLocation) -> Int64s:
        """Return the sequences that contain tokens of a document, ascending."""
        layout = self._layout
        document = int(layout.first[location.shard]) + location.document
        number, rest = divmod(base_order(layout.count, self._seed).index(document), BLOCK_SIZE)
        before = self.order.before(self.order.index(number))
        within = layout.within(number, self._epoch, self._seed).index(rest)
        start, stop = self._block(number).document_run.extent(within)
        return overlapping_samples(before + start, before + stop, layout.options, layout.samples)

    def count(self, ranges: Int64s) -> Counts:
        """Return the tokens and documents in ranges of sequences."""
        layout = self._layout
        return count_cut_documents(
            ranges, layout.samples, layout.options, self.order, self._kept, self._placed
        )

    @cached_property
    def _kept(self) -> _core.PartOrder:
        """The kept documents of each block, in the order of the epoch."""
        key = _core.hash_words(self._seed, _BLOCKS)
        return self._layout.kept(self._seed).reordered(seed=key, epoch=self._epoch)

    def _placed(self, number: int) -> PlacedDocuments:
        """Return the first and the last token of each kept document of a block."""
        document_run = _core.DocumentRun(self._block(number).documents, bos=0)
        return place_documents(kept_lengths(document_run, self._layout.options.frame))

    def document_order(self) -> Int64s:
        """Return the numbers of all documents of the corpus, in the order of the epoch.

        O(documents) time and memory.
        """
        layout = self._layout
        places = [
            layout.within(number, self._epoch, self._seed)[:] + number * BLOCK_SIZE
            for number in map(self.order.at, range(len(self.order)))
        ]
        documents: Int64s = base_order(layout.count, self._seed).take(np.concatenate(places))
        return documents

    def _block(self, number: int) -> ShuffledBlock:
        return self._layout.block(number, self._epoch, self._seed)


def _used_places(rows: RowPieces, number: int) -> Int64s:
    """Return the places of a block whose tokens are in the rows."""
    document_run, mine = rows.document_runs[number], rows.document_run_of == number
    spans = zip(rows.starts[mine].tolist(), rows.lengths[mine].tolist(), strict=True)
    places: Int64s = np.unique(np.concatenate([document_run.spans(*span)[0] for span in spans]))
    return places
