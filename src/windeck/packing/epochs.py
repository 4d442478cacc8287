"""The sequences of one epoch, as a source."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from windeck import _core
from windeck._util.indices import as_indices
from windeck._util.lru_cache import LRUCache
from windeck._util.validation import check_integer
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.locations import Piece, Place, document_place
from windeck.packing.options import Options
from windeck.packing.shard_shuffle import Rows, TooManyParts
from windeck.sources import Batch, Fingerprint, empty_rows

__all__ = ["EpochLayout", "Layout", "PackedEpoch", "fingerprint_of", "present", "whole"]

_NONE = np.empty(0, np.int64)


class EpochLayout(Protocol):
    """Which documents the sequences of one epoch are made of."""

    def rows(self, indices: Int64s, /) -> Rows:
        """The pieces of a batch; TooManyParts where it had better be taken apart."""
        ...

    def documents(self, sample: int, /) -> list[Piece]:
        """The pieces of a sequence, in its order."""
        ...

    def sequences_of(self, place: Place, /) -> Int64s:
        """The sequences that hold some of a document, ascending."""
        ...


class Layout(Protocol):
    """Which documents the sequences of any epoch are made of."""

    samples: int
    tokens: int
    documents: Corpus
    options: Options

    def at(self, epoch: int, seed: int, /) -> EpochLayout:
        """One epoch."""
        ...


class PackedEpoch:
    """The sequences of one epoch; what `PackedSequences.at_epoch` returns.

    It has the methods of `PackedSequences` that need no epoch to be named.
    """

    #: `gather` takes ``threads=``.
    supports_threads = True

    def __init__(self, packed: Any, layout: Layout, live: LRUCache, epoch: int, seed: int) -> None:
        self._packed, self._layout, self._live = packed, layout, live
        self._made: EpochLayout | None = None
        self.epoch = check_integer("epoch", epoch, most=2**64 - 1)
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        options = layout.options
        self._form: dict[str, Any] = {
            "sequence_length": options.length,
            "dtype": options.dtype,
            "pad": options.pad if options.padded else None,
        }

    @property
    def _contents(self) -> EpochLayout:
        # Made by the first batch: an epoch of which only the length is asked costs nothing.
        # Kept here as well: one object may serve more seeds at a time than it remembers epochs.
        if self._made is None:
            self._made = self._live.get(
                (self.epoch, self.seed), lambda: self._layout.at(self.epoch, self.seed)
            )
        return self._made

    def __len__(self) -> int:
        """Sequences of an epoch."""
        return self._layout.samples

    @property
    def fingerprint(self) -> Fingerprint:
        """That of the `PackedSequences`, and which epoch of it this is."""
        return {**fingerprint_of(self._layout), "epoch": self.epoch, "seed": self.seed}

    def gather(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """One batch; see `PackedSequences.gather`."""
        rows = self.gather_rows(indices, out, threads)
        return present({**rows, **whole(rows)})

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """The rows of a batch; see `PackedSequences.gather_rows`."""
        return self._written(as_indices(indices), out, threads)

    def _written(self, indices: Int64s, out: Batch | None, threads: int | None) -> Batch:
        """The rows, by one native call; by two and more where they are of very many shards."""
        try:
            rows = self._contents.rows(indices) if len(indices) else _no_rows()
        except TooManyParts:
            return self._halved(indices, out, threads)
        batch: Batch = _core.pack(*rows, **self._form, out=out, threads=threads)
        return batch

    def _halved(self, indices: Int64s, out: Batch | None, threads: int | None) -> Batch:
        batch = self._room(len(indices)) if out is None else out
        if not isinstance(batch, dict):
            raise TypeError(f"out is of type {type(batch).__name__}, expected a dict of arrays")
        for key, array in batch.items():
            if np.shape(array)[:1] != (len(indices),):
                raise ValueError(
                    f"out[{key!r}] has shape {np.shape(array)}, expected {len(indices)} rows"
                )
        middle = len(indices) // 2
        for half in (slice(0, middle), slice(middle, None)):
            self._written(indices[half], {key: a[half] for key, a in batch.items()}, threads)
        return batch

    def _room(self, count: int) -> Batch:
        """Arrays to write `count` rows into."""
        none = self._written(_NONE, None, 1)
        return empty_rows({key: (a.dtype, a.shape[1:]) for key, a in none.items()}, count)

    def whole(self, rows: Batch) -> Batch:
        """See `PackedSequences.whole`."""
        return whole(rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """See `PackedSequences.present`."""
        return present(batch)

    def documents(self, sample: int) -> list[Piece]:
        """The pieces of documents that a sequence holds; see `PackedSequences.documents`."""
        number = check_integer("sample", sample, least=-(2**63))
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} is out of range for {len(self)} sequences")
        return self._contents.documents(number)

    def sequences_of(self, document: tuple[str, int, int]) -> Int64s:
        """The sequences that hold some of a document; see `PackedSequences.sequences_of`."""
        return self._contents.sequences_of(document_place(self._layout.documents, document))

    def __repr__(self) -> str:
        return f"PackedEpoch({len(self):,} sequences, epoch={self.epoch}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _epoch_of, (self._packed, self.epoch, self.seed)


def _epoch_of(packed: Any, epoch: int, seed: int) -> PackedEpoch:
    found: PackedEpoch = packed.at_epoch(epoch, seed=seed)
    return found


def fingerprint_of(layout: Layout) -> dict[str, str | int]:
    """What decides which sequences any epoch has."""
    inner = {f"documents.{name}": value for name, value in layout.documents.fingerprint.items()}
    return {**inner, **layout.options.fields, "samples": layout.samples}


def whole(rows: Batch) -> Batch:
    """Where the documents of a flattened batch begin."""
    return {"cu_seqlens": _core.cu_seqlens(rows["position_ids"])}


def present(batch: dict[str, Any]) -> dict[str, Any]:
    """Inputs and targets as views of the tokens; arrays or tensors alike."""
    shown = dict(batch)
    tokens = shown.pop("tokens")
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], **shown}


def _no_rows() -> Rows:
    return Rows([], np.zeros(1, np.int64), _NONE, _NONE, _NONE)
