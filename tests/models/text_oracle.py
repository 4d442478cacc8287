"""A model of streams of packed documents, in plain Python without code of the library.

A corpus is a list of shards, a shard a list of documents, a document a list of ints. Every epoch is
built as a whole, token by token, and every slot of a mixture is assigned in turn from the first, so
this is slow and simple. Only the permutation and its hashing come from elsewhere: from their own
model, `reference_permutation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

from models.reference_permutation import ReferencePermutation, hashed

Document = list[int]
Shard = list[Document]
Corpus = list[Shard]

#: Documents in a block of the order "global".
BLOCK = 1024


class Row(NamedTuple):
    """One sequence: L + 1 tokens, L position ids, and for padded packing the mask of targets."""

    tokens: list[int]
    position_ids: list[int]
    mask: list[bool] | None


class Piece(NamedTuple):
    """A range of a framed document: document `doc` of shard `shard`, both counted from 0."""

    shard: int
    doc: int
    start: int
    stop: int


def shuffled(size: int, epoch: int, *seeds: int) -> list[int]:
    """Return 0 to size - 1 in the order of an epoch; `seeds` are hashed into one."""
    if not size:
        return []
    order: list[int] = ReferencePermutation(size, hashed(*seeds), epoch).slice(0, size).tolist()
    return order


@dataclass(frozen=True)
class Packing:
    """The options of packing."""

    length: int
    bos: int | None = None
    eos: int | None = None
    order: Literal["shards", "global"] = "shards"
    padded: bool = False
    pad: int = 0
    strip: tuple[int, ...] = ()
    min_length: int = 0

    def framed(self, document: Document) -> Document | None:
        """Return a document with its `bos` and `eos`, or None if a filter drops it."""
        low, high = 0, len(document)
        while low < high and document[low] in self.strip:
            low += 1
        while low < high and document[high - 1] in self.strip:
            high -= 1
        if high - low < self.min_length:
            return None
        begin = [] if self.bos is None else [self.bos]
        end = [] if self.eos is None else [self.eos]
        return begin + document[low:high] + end


class Epochs(Protocol):
    """Sequences that are built anew in every epoch."""

    def __len__(self) -> int: ...

    def row(self, epoch: int, seed: int, sample: int) -> Row: ...

    def pieces(self, epoch: int, seed: int, sample: int) -> list[Piece]: ...


class Packed:
    """`PackedSequences` with order="shards" or "global", unpadded."""

    def __init__(self, corpus: Corpus, packing: Packing) -> None:
        self.packing = packing
        self.shards = [[packing.framed(document) for document in shard] for shard in corpus]
        self.total = sum(len(frame or ()) for shard in self.shards for frame in shard)
        self.stream = lru_cache(4)(self._stream)

    def __len__(self) -> int:
        return max(0, (self.total - 1) // self.packing.length)

    def documents(self, epoch: int, seed: int) -> list[tuple[int, int]]:
        """Return (shard, document) in the order of an epoch, dropped documents included."""
        if self.packing.order == "global":
            return self._across(epoch, seed)
        return [
            (shard, doc)
            for shard in shuffled(len(self.shards), epoch, seed, 1)
            for doc in shuffled(len(self.shards[shard]), epoch, seed, 2, shard)
        ]

    def _across(self, epoch: int, seed: int) -> list[tuple[int, int]]:
        stored = [(s, d) for s, shard in enumerate(self.shards) for d in range(len(shard))]
        base = [stored[number] for number in shuffled(len(stored), 0, seed, 3)]
        blocks = [base[low : low + BLOCK] for low in range(0, len(base), BLOCK)]
        return [
            blocks[number][within]
            for number in shuffled(len(blocks), epoch, seed, 4)
            for within in shuffled(len(blocks[number]), epoch, seed, 5, number)
        ]

    def _stream(self, epoch: int, seed: int) -> list[tuple[int, int, int, int]]:
        """Return an epoch's tokens as (token, shard, document, index in the framed document)."""
        return [
            (token, shard, doc, place)
            for shard, doc in self.documents(epoch, seed)
            for place, token in enumerate(self.shards[shard][doc] or ())
        ]

    def row(self, epoch: int, seed: int, sample: int) -> Row:
        low = sample * self.packing.length
        cut = self.stream(epoch, seed)[low : low + self.packing.length + 1]
        assert len(cut) == self.packing.length + 1
        ids: list[int] = []
        for _, _, _, place in cut[:-1]:
            ids.append(0 if place == 0 or not ids else ids[-1] + 1)
        return Row([token for token, *_ in cut], ids, None)

    def pieces(self, epoch: int, seed: int, sample: int) -> list[Piece]:
        low = sample * self.packing.length
        found: list[Piece] = []
        for _, shard, doc, place in self.stream(epoch, seed)[low : low + self.packing.length + 1]:
            if found and found[-1][:2] == (shard, doc) and found[-1].stop == place:
                found[-1] = found[-1]._replace(stop=place + 1)
            else:
                found.append(Piece(shard, doc, place, place + 1))
        return found


class Padded:
    """`PackedSequences` with padded=True: best fit within a shard, in stored order."""

    def __init__(self, corpus: Corpus, packing: Packing) -> None:
        self.packing = packing
        self.shards = [[packing.framed(document) for document in shard] for shard in corpus]
        self.bins = [self._fitted(number) for number in range(len(self.shards))]
        self.places = lru_cache(4)(self._places)

    def __len__(self) -> int:
        return sum(len(bins) for bins in self.bins)

    def _fitted(self, shard: int) -> list[list[Piece]]:
        """Return the sequences of a shard as lists of pieces, in the order they were opened."""
        capacity = self.packing.length + 1
        bins: list[list[Piece]] = []
        for doc, frame in enumerate(self.shards[shard]):
            for low in self._cuts(len(frame or ())):
                piece = Piece(shard, doc, low, min(low + capacity, len(frame or ())))
                rooms = [capacity - sum(p.stop - p.start for p in held) for held in bins]
                fitting = [
                    (room, -number)
                    for number, room in enumerate(rooms)
                    if room >= piece.stop - piece.start
                ]
                if fitting:
                    bins[-min(fitting)[1]].append(piece)
                else:
                    bins.append([piece])
        return bins

    def _cuts(self, size: int) -> list[int]:
        """Return the starts of the pieces of a framed document; neighbours share one token."""
        if size <= self.packing.length + 1:
            return [0] if size else []
        return list(range(0, size - 1, self.packing.length))

    def _places(self, epoch: int, seed: int) -> list[list[Piece]]:
        return [
            self.bins[shard][within]
            for shard in shuffled(len(self.bins), epoch, seed, 1)
            for within in shuffled(len(self.bins[shard]), epoch, seed, 6, shard)
        ]

    def pieces(self, epoch: int, seed: int, sample: int) -> list[Piece]:
        return self.places(epoch, seed)[sample]

    def row(self, epoch: int, seed: int, sample: int) -> Row:
        tokens: list[int] = []
        ids: list[int] = []
        mask: list[bool] = []
        for shard, doc, start, stop in self.pieces(epoch, seed, sample):
            tokens += (self.shards[shard][doc] or [])[start:stop]
            ids += range(stop - start)
            mask += [True] * (stop - start - 1) + [False]
        left = self.packing.length + 1 - len(tokens)
        tokens += [self.packing.pad] * left
        ids += range(left)
        mask += [False] * left
        return Row(tokens, ids[:-1], mask[:-1])


def pack(corpus: Corpus, packing: Packing) -> Packed | Padded:
    return Padded(corpus, packing) if packing.padded else Packed(corpus, packing)


@dataclass(frozen=True)
class Place:
    """The contents of a position: stream, corpus (0, or a later grown one), epoch and sample."""

    stream: Streamed
    corpus: int
    epoch: int
    sample: int

    def row(self) -> Row:
        return self.stream.corpora[self.corpus].row(self.epoch, self.stream.seed, self.sample)

    def pieces(self) -> list[Piece]:
        return self.stream.corpora[self.corpus].pieces(self.epoch, self.stream.seed, self.sample)


class AnyStream(Protocol):
    def at(self, position: int) -> Place: ...


@dataclass(frozen=True, eq=False)
class Streamed:
    """A model of `Stream`: one epoch after another.

    A grown corpus is used from the first epoch that begins at its position or later.
    """

    source: Epochs
    seed: int = 0
    permuted: bool = False
    grown: Sequence[tuple[int, Epochs]] = ()

    @property
    def corpora(self) -> list[Epochs]:
        return [self.source, *(source for _, source in self.grown)]

    def epochs(self, position: int) -> tuple[int, int, int]:
        """Return corpus, number and first position of the epoch that holds a position."""
        corpus, epoch, first = 0, 0, 0
        while True:
            while corpus < len(self.grown) and self.grown[corpus][0] <= first:
                corpus += 1
            size = len(self.corpora[corpus])
            if position < first + size:
                return corpus, epoch, first
            epoch, first = epoch + 1, first + size

    def at(self, position: int) -> Place:
        corpus, epoch, first = self.epochs(position)
        sample = position - first
        if self.permuted:
            order = ReferencePermutation(len(self.corpora[corpus]), self.seed, epoch)
            sample = int(order.take([sample])[0])
        return Place(self, corpus, epoch, sample)
