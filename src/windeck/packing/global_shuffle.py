"""order="global": documents shuffled over all shards, in blocks whose sums are known.

A permutation of all documents, the same for every epoch of a seed, is cut into blocks of 1,024.
One pass over the corpus adds up what the documents of each block hold: that is the whole index.
An epoch permutes the blocks, and the documents within each.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from windeck import _core
from windeck._util.lru_cache import LRUCache
from windeck._util.parallel import run_in_threads
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.locations import Piece, Place, overlapping
from windeck.packing.options import Options, framed_sizes
from windeck.packing.passes import BLOCK, Passes, base_order
from windeck.packing.shard_shuffle import Rows, check_parts, too_short

__all__ = ["ByBlocks"]

# What a key is derived for; published with the packed order.
_BLOCKS, _WITHIN = 4, 5

#: Sums of an epoch are kept for every so many blocks.
EVERY = 16

#: Blocks of more tokens are not copied together: of these a batch maps the documents it needs.
LARGE = 2**22

#: Shards opened by one thread at a time, where a block needs many: opening is waiting.
_PORTION = 16


class Block(NamedTuple):
    """A block of an epoch: its documents in their order, and where each is stored.

    The run of a large block knows the lengths alone.
    """

    run: _core.DocumentRun
    documents: _core.DocumentBlock
    shards: Int64s
    numbers: Int64s
    is_large: bool


class ByBlocks:
    """Sequences of documents from all over a corpus, of any epoch.

    8 bytes for 1,024 documents and seed, half a byte more for an epoch; and the tokens of the live
    blocks, whose documents are copied together from wherever they are stored.
    """

    def __init__(self, documents: Corpus, options: Options, live: LRUCache, passes: Passes) -> None:
        self.documents, self.options = documents, options
        self.live, self._passes = live, passes
        self.tokens = int(framed_sizes(documents, options.frame).sum())
        self.samples = (self.tokens - 1) // options.length
        if self.samples < 1:
            raise too_short(self.tokens, options)
        self.first: Int64s = np.concatenate([[0], np.cumsum(documents.shard_documents)])
        self.count = int(self.first[-1])
        # An index for each seed that was asked for, for ever: making one takes a pass.
        self._indices = LRUCache(2**62, keep_after_fork=True)

    def index(self, seed: int) -> _core.PartOrder:
        """The sums of the blocks of a seed, made when first asked for."""
        found: _core.PartOrder = self._indices.get(
            seed, lambda: _core.PartOrder(self._passes.block_sums(seed, self.tokens), every=EVERY)
        )
        return found

    def indexed(self) -> dict[int, Int64s]:
        """The sums of the blocks of every seed that has an index: for pickles. O(blocks)."""
        found: dict[int, Int64s] = dict(self._passes.indexed)
        for seed, index in self._indices.items():
            found[seed] = np.fromiter(map(index.size, range(len(index))), np.int64, len(index))
        return found

    def at(self, epoch: int, seed: int) -> BlockEpoch:
        """One epoch. O(blocks), and the index where it is not there yet."""
        return BlockEpoch(self, epoch, seed)

    def block(self, number: int, epoch: int, seed: int) -> Block:
        """A block of an epoch, with its tokens."""
        found: Block = self.live.get(
            (epoch, seed, number), partial(self._made, number, epoch, seed)
        )
        return found

    def within(self, number: int, epoch: int, seed: int) -> _core.Permutation:
        """The order of the documents of a block."""
        size = min(BLOCK, self.count - number * BLOCK)
        return _core.Permutation(size, seed=_core.hash_words(seed, _WITHIN, number), epoch=epoch)

    def _made(self, number: int, epoch: int, seed: int) -> Block:
        places = self.within(number, epoch, seed)[:] + number * BLOCK
        documents = base_order(self.count, seed).take(places)
        shards = np.searchsorted(self.first, documents, side="right") - 1
        numbers = documents - self.first[shards]
        expected = self.index(seed).size(number)
        is_large = expected > LARGE
        block = _core.DocumentBlock(len(places))
        everywhere = np.arange(len(places))
        self._read(block, shards, numbers, everywhere, "lengths" if is_large else "copies")
        run = self._run(block)
        if run.total != expected:
            raise ValueError(
                f"block {number} of the global order holds {run.total} tokens with their frames, "
                f"expected {expected} as in its index; the files have changed since it was made"
            )
        return Block(run, block, shards, numbers, is_large)

    def mapped(self, block: Block, places: Int64s) -> _core.DocumentRun:
        """The run of a large block, with the tokens of some places where they lie in files."""
        part = block.documents.bare()
        self._read(part, block.shards, block.numbers, places, "addresses")
        return self._run(part)

    def _read(
        self,
        block: _core.DocumentBlock,
        shards: Int64s,
        numbers: Int64s,
        places: Int64s,
        take: Literal["copies", "addresses", "lengths"],
    ) -> None:
        """Take the documents at some places, shard by shard."""
        by_shard = places[np.argsort(shards[places], kind="stable")]
        groups = np.split(by_shard, np.flatnonzero(np.diff(shards[by_shard])) + 1)

        def read(group: int) -> None:
            members = groups[group]
            shard = self.documents.open(int(shards[members[0]]))
            block.read(shard, numbers[members], members, take=take)

        run_in_threads(read, len(groups), None, portion=_PORTION)

    def _run(self, block: _core.DocumentBlock) -> _core.DocumentRun:
        return _core.DocumentRun(block, bos=self.options.bos, eos=self.options.eos)


class BlockEpoch:
    """Sequences of one epoch: where their tokens are, and the inverse."""

    def __init__(self, layout: ByBlocks, epoch: int, seed: int) -> None:
        self._layout, self._epoch, self._seed = layout, epoch, seed
        key = _core.hash_words(seed, _BLOCKS)
        self._order = layout.index(seed).reordered(seed=key, epoch=epoch)

    def rows(self, indices: Int64s) -> Rows:
        """The pieces of a batch."""
        layout = self._layout
        length = layout.options.length
        numbers, *pieces = self._order.pieces(indices, length, length + 1, layout.samples)
        check_parts(len(numbers), len(indices))
        blocks = [self._block(number) for number in numbers.tolist()]
        rows = Rows([block.run for block in blocks], *pieces)
        large = {number: _places_in(rows, number) for number, b in enumerate(blocks) if b.is_large}
        shards = [blocks[number].shards[places] for number, places in large.items()]
        check_parts(len(np.unique(np.concatenate(shards))) if shards else 0, len(indices))
        for number, places in large.items():
            rows.runs[number] = layout.mapped(blocks[number], places)
        return rows

    def documents(self, sample: int) -> list[Piece]:
        """The pieces of a sequence, in its order."""
        length, named = self._layout.options.length, self._layout.documents.shard_name
        numbers, _, number_of, starts, lengths = self._order.pieces(
            [sample], length, length + 1, self._layout.samples
        )
        found = []
        for part, start, count in zip(number_of, starts, lengths, strict=True):
            block = self._block(int(numbers[part]))
            for place, begin, end in zip(*block.run.spans(start, count), strict=True):
                name = named(int(block.shards[place]))
                found.append(Piece(*name, int(block.numbers[place]), int(begin), int(end)))
        return found

    def sequences_of(self, place: Place) -> Int64s:
        """The sequences that hold some of a document, ascending."""
        layout = self._layout
        document = int(layout.first[place.shard]) + place.document
        number, rest = divmod(base_order(layout.count, self._seed).index(document), BLOCK)
        before = self._order.before(self._order.index(number))
        within = layout.within(number, self._epoch, self._seed).index(rest)
        start, stop = self._block(number).run.extent(within)
        return overlapping(before + start, before + stop, layout.options.length, layout.samples)

    def _block(self, number: int) -> Block:
        return self._layout.block(number, self._epoch, self._seed)


def _places_in(rows: Rows, number: int) -> Int64s:
    """The places of a block that rows have tokens of."""
    run, mine = rows.runs[number], rows.run_of == number
    spans = zip(rows.starts[mine].tolist(), rows.lengths[mine].tolist(), strict=True)
    places: Int64s = np.unique(np.concatenate([run.spans(*span)[0] for span in spans]))
    return places
