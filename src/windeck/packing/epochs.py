"""The packed sequences of one epoch, as a source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windeck import _core
from windeck._util.indices import as_indices
from windeck._util.lru_cache import LRUCache
from windeck._util.validation import LIMIT, check_integer
from windeck.columns.columns import aligned_empty
from windeck.documents.protocol import Int64s
from windeck.orders import Lanes
from windeck.packing.layout import (
    EpochLayout,
    PackingLayout,
    Piece,
    RowPieces,
    TooManyParts,
    locate_document,
)
from windeck.packing.mixed import epoch_layout
from windeck.packing.served import Counts, as_ranges
from windeck.packing.shard_shuffle import ShardShuffleEpoch
from windeck.sources import Batch, Fingerprint, Order, empty_rows
from windeck.sources.protocols import Expect

__all__ = ["PackedEpoch", "PackedRows", "fingerprint_of"]

#: Parts (shards, or blocks of the global order) that rows are written from at a time. A mapped
#: shard takes two descriptors, of which a process often may have 1,024; a block holds its tokens.
MAX_PARTS = 64

_EMPTY = np.empty(0, np.int64)
#: The row pieces of no rows.
_NONE = RowPieces([], np.zeros(1, np.int64), _EMPTY, _EMPTY, _EMPTY)


class PackedRows:
    """The arrays of whole batches of packed rows, and the batches as users see them."""

    _layout: PackingLayout

    def whole(self, rows: Batch) -> Batch:
        """Return the arrays of a batch of these rows as a whole: ``cu_seqlens``, and on request
        ``document_ids`` and ``max_seqlen``.

        Raises
        ------
        ValueError
            If the batch has 2^31 tokens or more, which exceeds int32, or for ``position_ids`` that
            do not count from 0 in each piece, as those of `gather_rows` do.
        """
        return {key: arrays[0] for key, arrays in self.wholes(rows, 1).items()}

    def wholes(self, rows: Batch, count: int) -> dict[str, list[NDArray[Any]]]:
        """Return the arrays of `whole` of each of `count` batches of equally many rows, by key."""
        keys, ids = self._layout.options.keys, rows["position_ids"]
        offsets: list[NDArray[Any]] = _core.cu_seqlens(ids, count)
        batches = {"cu_seqlens": offsets}
        if "document_ids" in keys:
            shape = (len(ids) // count, *ids.shape[1:])
            batches["document_ids"] = [_document_ids(one, shape) for one in offsets]
        if "max_seqlen" in keys:
            batches["max_seqlen"] = [_max_seqlen(one) for one in offsets]
        return batches

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with ``inputs`` and ``targets``, views of ``tokens``, in its place.

        The values are NumPy arrays or torch tensors.
        """
        tokens = batch["tokens"]
        shown = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], **batch}
        del shown["tokens"]
        return shown


class PackedEpoch(PackedRows):
    """The sequences of one epoch, returned by `PackedSequences.at_epoch`.

    It has the methods of `PackedSequences`, without the arguments `epoch` and `seed`.
    """

    #: `gather` accepts ``threads=``.
    supports_threads = True

    def __init__(
        self, packed: Any, layout: PackingLayout, live: LRUCache, epoch: int, seed: int
    ) -> None:
        self._packed, self._layout, self._live = packed, layout, live
        self._epoch_layout: EpochLayout | None = None
        self.epoch = check_integer("epoch", epoch, most=2**64 - 1)
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        options = layout.options
        self._pack_options: dict[str, Any] = {
            "sequence_length": options.length,
            "dtype": options.dtype,
            "pad": options.pad if options.has_mask else None,
            "bos": options.sequence_bos,
            "eos": options.sequence_eos,
        }

    @property
    def _contents(self) -> EpochLayout:
        # Created by the first batch, so that the length of an epoch costs nothing. Kept here in
        # addition to the cache, because more seeds may be in use than the cache holds epochs.
        if self._epoch_layout is None:
            self._epoch_layout = self._live.get(
                (self.epoch, self.seed), lambda: epoch_layout(self._layout, self.epoch, self.seed)
            )
        return self._epoch_layout

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self._layout.samples

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the `PackedSequences`, with epoch and seed."""
        return {**fingerprint_of(self._layout), "epoch": self.epoch, "seed": self.seed}

    @property
    def expect(self) -> Expect | None:
        """The function that notes whether sequences are in lanes; None if no shard is read ahead.

        A stream calls it before it gathers them.
        """
        return self._expect if self._layout.reads_ahead else None

    def _expect(self, epochs: Sequence[tuple[Order, Int64s]], following: object) -> None:
        contents = self._contents
        if isinstance(contents, ShardShuffleEpoch):
            contents.in_lanes = any(isinstance(order, Lanes) for order, _ in epochs)

    def gather(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """Return a batch; see `PackedSequences.gather`."""
        rows = self.gather_rows(indices, out, threads)
        return self.present({**rows, **self.whole(rows)})

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """Return the rows of a batch; see `PackedSequences.gather_rows`."""
        return self._write(as_indices(indices), out, threads)

    def _write(self, indices: Int64s, out: Batch | None, threads: int | None) -> Batch:
        """Write rows with one native call, or with several if they are from too many parts."""
        try:
            most = MAX_PARTS if len(indices) > 1 else LIMIT
            rows = self._contents.rows(indices, most) if len(indices) else _NONE
        except TooManyParts:
            return self._write_halves(indices, out, threads)
        batch: Batch = _core.pack(*rows, **self._pack_options, out=out, threads=threads)
        return batch

    def _write_halves(self, indices: Int64s, out: Batch | None, threads: int | None) -> Batch:
        batch = self._allocate(len(indices)) if out is None else out
        if not isinstance(batch, dict):
            raise TypeError(f"`out` must be a dict of arrays, got {type(batch).__name__}")
        for key, array in batch.items():
            if np.shape(array)[:1] != (len(indices),):
                raise ValueError(
                    f"out[{key!r}] has shape {np.shape(array)}, expected {len(indices)} rows"
                )
        middle = len(indices) // 2
        for half in (slice(0, middle), slice(middle, None)):
            self._write(indices[half], {key: a[half] for key, a in batch.items()}, threads)
        return batch

    def _allocate(self, count: int) -> Batch:
        """Return arrays for `count` rows."""
        empty = self._write(_EMPTY, None, 1)
        return empty_rows({key: (a.dtype, a.shape[1:]) for key, a in empty.items()}, count)

    def blocks_of(self, indices: Any) -> tuple[Int64s, Int64s]:
        """Return pairs (row, shard); see `PackedSequences.blocks_of`."""
        return self._contents.shards_of(as_indices(indices))

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence; see `PackedSequences.documents`."""
        number = check_integer("sample", sample, least=-(2**63))
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} is out of range for {len(self)} sequences")
        return self._contents.documents(number)

    def sequences_of(self, document: tuple[str, int, int]) -> Int64s:
        """Return the sequences with a document; see `PackedSequences.sequences_of`."""
        return self._contents.sequences_of(locate_document(self._layout.documents, document))

    def count_served(self, ranges: Any, *, documents: bool = True) -> Counts:
        """Return tokens and documents in ranges; see `PackedSequences.count_served`."""
        wanted, each = as_ranges(ranges), self.tokens_per_sample
        if not documents and each is not None:
            return Counts(int(np.diff(wanted).sum()) * each, None, None)
        found = self._contents.count(wanted)
        return found if documents else Counts(found.tokens, None, None)

    @property
    def tokens_per_sample(self) -> int | None:
        """Targets of every sequence; see `PackedSequences.tokens_per_sample`."""
        return self._layout.tokens_per_sample

    def __repr__(self) -> str:
        return f"PackedEpoch({len(self):,} sequences, epoch={self.epoch}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._packed, self.epoch, self.seed)


def _unpickle(packed: Any, epoch: int, seed: int) -> PackedEpoch:
    found: PackedEpoch = packed.at_epoch(epoch, seed=seed)
    return found


def fingerprint_of(layout: PackingLayout) -> dict[str, str | int]:
    """Return the fields that determine the sequences of all epochs."""
    inner = {f"documents.{name}": value for name, value in layout.documents.fingerprint.items()}
    return {**inner, **layout.options.fields, "samples": layout.samples}


def _document_ids(offsets: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    numbers = np.arange(len(offsets) - 1, dtype=np.int32)
    found = aligned_empty(shape, numbers.dtype)
    found.reshape(-1)[:] = np.repeat(numbers, np.diff(offsets))
    return found


def _max_seqlen(offsets: NDArray[Any]) -> NDArray[Any]:
    found = aligned_empty((), np.dtype(np.int32))
    found[...] = np.diff(offsets).max(initial=0)
    return found
