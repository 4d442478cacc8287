"""A model of packing in plain Python lists, which computes every token of every row.

It shares no code with the library; the orders come from `reference_permutation`.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.reference_permutation import ReferencePermutation, hashed
from windeck import _core

Array = np.ndarray[Any, Any]
Row = list[tuple[int, int, int, int]]  # (shard, document, start, stop) of the framed document


@dataclass
class ModelCorpus:
    """Documents as lists, which the library can read as a corpus too.

    A document is what is stored; `strip` and `min_length` filter it.
    """

    shards: list[list[list[int]]]
    dtypes: list[str]
    strip: list[int] = field(default_factory=list)
    min_length: int = 0

    def __post_init__(self) -> None:
        self.opened: list[int] = []
        kept = [[self.kept(doc) for doc in shard] for shard in self.shards]
        self.shard_documents = np.array([len(shard) for shard in kept], np.int64)
        self.shard_kept = np.array([sum(d is not None for d in s) for s in kept], np.int64)
        self.shard_tokens = np.array([sum(len(d or []) for d in s) for s in kept], np.int64)
        self.fingerprint = {"shards": len(kept), "tokens": int(self.shard_tokens.sum())}

    def kept(self, document: list[int]) -> list[int] | None:
        """Return a document after the filters, or None if they drop it."""
        start, stop = 0, len(document)
        while start < stop and document[start] in self.strip:
            start += 1
        while stop > start and document[stop - 1] in self.strip:
            stop -= 1
        return document[start:stop] if stop - start >= self.min_length else None

    def shard_name(self, shard: int) -> tuple[str, int]:
        return ("even" if shard % 2 == 0 else "odd", shard // 2)

    def shard_index(self, dataset_id: str, shard_id: int) -> int:
        shard = 2 * shard_id + ("even", "odd").index(dataset_id)
        if not 0 <= shard < len(self.shards):
            raise KeyError(f"there is no shard {shard_id} of {dataset_id!r}")
        return shard

    def open(self, shard: int) -> Any:
        self.opened.append(shard)
        documents = self.shards[shard]
        values = np.array([t for d in documents for t in d], dtype=self.dtypes[shard])
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        strip = np.array(self.strip, np.int64) if self.strip else None
        return _core.TokenShard.from_arrays(
            values, offsets, strip=strip, min_length=self.min_length, name=f"shard{shard}"
        )

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        return f"{field} was {was} and is {now}" if field == "tokens" else None


@dataclass
class Model:
    """A model of `PackedSequences`."""

    corpus: ModelCorpus
    length: int
    bos: int | None = None
    eos: int | None = None
    order: str = "shards"
    padded: bool = False
    pad: int = 0
    mixed_shards: int = 8
    sequence_bos: int | None = None
    sequence_eos: int | None = None
    _framed: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def extra(self) -> int:
        """Return the number of tokens in a row that belong to no document."""
        return sum(token is not None for token in (self.sequence_bos, self.sequence_eos))

    def held(self) -> int:
        """Return the number of document tokens in a full row."""
        return self.length + 1 - self.extra()

    def stride(self) -> int:
        """Return the number of document tokens by which a row advances.

        The next row repeats the last token as an input, unless rows begin with `sequence_bos`.
        """
        return self.held() - 1 if self.sequence_bos is None else self.held()

    def framed(self, shard: int, document: int) -> list[int]:
        """Return a document with its `bos` and `eos`; [] if a filter drops it."""
        if (shard, document) not in self._framed:
            self._framed[shard, document] = self._frame(shard, document)
        return self._framed[shard, document]

    def _frame(self, shard: int, document: int) -> list[int]:
        tokens = self.corpus.kept(self.corpus.shards[shard][document])
        if tokens is None:
            return []
        before = [] if self.bos is None else [self.bos]
        after = [] if self.eos is None else [self.eos]
        return [*before, *tokens, *after]

    def total(self) -> int:
        shards = self.corpus.shards
        return sum(
            len(self.framed(s, d)) for s, held in enumerate(shards) for d, _ in enumerate(held)
        )

    # --- the order of documents --------------------------------------------------------------

    def document_order(self, epoch: int, seed: int) -> list[tuple[int, int]]:
        """Return (shard, document) in the order of an epoch, dropped documents included."""
        if self.order in ("global", "mixed-global"):
            return self._global_order(epoch, seed)
        return [
            (shard, document)
            for shard in _shuffled(len(self.corpus.shards), hashed(seed, 1), epoch)
            for document in _shuffled(len(self.corpus.shards[shard]), hashed(seed, 2, shard), epoch)
        ]

    def _global_order(self, epoch: int, seed: int) -> list[tuple[int, int]]:
        stored = [(s, d) for s, shard in enumerate(self.corpus.shards) for d in range(len(shard))]
        base = _shuffled(len(stored), hashed(seed, 3), 0)
        blocks = [base[i : i + 1024] for i in range(0, len(base), 1024)]
        return [
            stored[blocks[b][place]]
            for b in _shuffled(len(blocks), hashed(seed, 4), epoch)
            for place in _shuffled(len(blocks[b]), hashed(seed, 5, b), epoch)
        ]

    # --- rows, as pieces of documents --------------------------------------------------------

    def rows(self, epoch: int, seed: int) -> list[Row]:
        """Return all rows of an epoch."""
        rows = self._padded_rows(epoch, seed) if self.padded else self._cut_rows(epoch, seed)
        return self._mixed(rows, epoch, seed) if self.order.startswith("mixed") else rows

    def _mixed(self, rows: list[Row], epoch: int, seed: int) -> list[Row]:
        """Permute groups of shards or blocks, and shuffle the rows within each group."""
        sizes, stride = self._part_sizes(epoch, seed)
        count = -(-len(sizes) // self.mixed_shards)
        firsts = [sum(sizes[: g * len(sizes) // count]) for g in range(count)]
        starts = sorted({min(-(-first // stride), len(rows)) for first in firsts} | {len(rows)})
        groups = [rows[a:b] for a, b in itertools.pairwise(starts)]
        key = hashed(seed, 7)
        found: list[Row] = []
        for g in _shuffled(len(groups), hashed(key, epoch, 1), 0):
            order = _shuffled(len(groups[g]), hashed(key, epoch, 3, len(found)), 0)
            found += [groups[g][row] for row in order]
        return found

    def _part_sizes(self, epoch: int, seed: int) -> tuple[list[int], int]:
        """Return the sizes of shards or blocks in their order, and the size of a row.

        Sizes are in tokens, or in rows if padded.
        """
        shards = _shuffled(len(self.corpus.shards), hashed(seed, 1), epoch)
        if self.padded:
            return [len(self.bins(shard)) for shard in shards], 1
        if self.order == "mixed":
            held = [range(len(self.corpus.shards[shard])) for shard in shards]
            documents = [[(s, d) for d in numbers] for s, numbers in zip(shards, held, strict=True)]
        else:
            ordered = self._global_order(epoch, seed)
            stored = [
                (s, d) for s, shard in enumerate(self.corpus.shards) for d in range(len(shard))
            ]
            base = _shuffled(len(stored), hashed(seed, 3), 0)
            block_of = {stored[at]: place // 1024 for place, at in enumerate(base)}
            documents = [
                list(block) for _, block in itertools.groupby(ordered, key=lambda at: block_of[at])
            ]
        sizes = [sum(len(self.framed(*document)) for document in part) for part in documents]
        return sizes, self.stride()

    def _cut_rows(self, epoch: int, seed: int) -> list[Row]:
        stream = [
            (shard, document, i)
            for shard, document in self.document_order(epoch, seed)
            for i in range(len(self.framed(shard, document)))
        ]
        rows = []
        for start in range(0, len(stream) - self.held() + 1, self.stride()):
            row: Row = []
            for shard, document, i in stream[start : start + self.held()]:
                if row and row[-1][:2] == (shard, document) and row[-1][3] == i:
                    row[-1] = (*row[-1][:3], i + 1)
                else:
                    row.append((shard, document, i, i + 1))
            rows.append(row)
        return rows

    def bins(self, shard: int) -> list[Row]:
        """Return the sequences of a shard in the order they are opened, by trying all open ones."""
        capacity = self.held()
        shared = capacity - self.stride()
        bins: list[Row] = []
        for document in range(len(self.corpus.shards[shard])):
            size = len(self.framed(shard, document))
            start = 0
            while size - start >= capacity:
                bins.append([(shard, document, start, start + capacity)])
                start += self.stride()
            if size - start <= (shared if start else 0):
                continue
            best = None
            for number, pieces in enumerate(bins):
                room = capacity - sum(stop - begin for _, _, begin, stop in pieces)
                if room >= size - start and (best is None or room <= best[0]):
                    best = (room, number)
            if best is None:
                bins.append([])
            bins[-1 if best is None else best[1]].append((shard, document, start, size))
        return bins

    def _padded_rows(self, epoch: int, seed: int) -> list[Row]:
        rows = []
        for shard in _shuffled(len(self.corpus.shards), hashed(seed, 1), epoch):
            bins = self.bins(shard)
            rows += [bins[b] for b in _shuffled(len(bins), hashed(seed, 6, shard), epoch)]
        return rows

    # --- batches -----------------------------------------------------------------------------

    def batch(self, rows: list[Row], dtype: str) -> dict[str, Array]:
        """Return the batch of some rows."""
        tokens = np.full((len(rows), self.length + 1), self.pad, dtype)
        ids = np.zeros((len(rows), self.length + 1), dtype)
        mask = np.zeros((len(rows), self.length + 1), bool)
        for r, row in enumerate(rows):
            column = 0
            pieces = [self.framed(shard, doc)[start:stop] for shard, doc, start, stop in row]
            # The frame of the row is of its first and of its last document.
            if self.sequence_bos is not None:
                pieces[0] = [self.sequence_bos, *pieces[0]]
            if self.sequence_eos is not None:
                pieces[-1] = [*pieces[-1], self.sequence_eos]
            for piece in pieces:
                for i, token in enumerate(piece):
                    tokens[r, column], ids[r, column] = token, i
                    mask[r, column] = i < len(piece) - 1
                    column += 1
            ids[r, column:] = np.arange(self.length + 1 - column)
        ids = np.ascontiguousarray(ids[:, :-1])
        starts = [place for place in range(ids.size) if ids.reshape(-1)[place] == 0 and place]
        ends = [ids.size] if ids.size else []
        batch = {
            "inputs": tokens[:, :-1],
            "targets": tokens[:, 1:],
            "position_ids": ids,
            "cu_seqlens": np.array([0, *starts, *ends], np.int32),
        }
        return {**batch, "targets_mask": mask[:, :-1]} if self.padded else batch


@functools.cache
def _shuffled(size: int, seed: int, epoch: int) -> list[int]:
    if size < 2:
        return list(range(size))
    order: list[int] = ReferencePermutation(size, seed, epoch).slice(0, size).tolist()
    return order
