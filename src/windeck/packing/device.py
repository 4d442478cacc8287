"""Packed sequences on a device: the batches of `PackedSequences`, made there by torch operations.

The framed tokens of all documents are copied to the device once, in stored order. An epoch adds the
order of its documents: the position of each in the epoch's stream of tokens, computed on the host
when the epoch begins. A token of a batch is then found by a binary search and one addition. Padded
sequences do not depend on the epoch: in their stream each takes as many places as a full one, and
an epoch adds the order of sequences.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch

from windeck import _core
from windeck._util.indices import as_indices
from windeck._util.lru_cache import LRUCache
from windeck._util.validation import check_integer
from windeck.columns.device import as_bits, check_room, empty_bits, resolve_device
from windeck.columns.dtypes import torch_dtype
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.epochs import PackedEpoch
from windeck.packing.layout import (
    DocumentOrder,
    PackingLayout,
    Piece,
    SequenceOrder,
    check_document_run,
)
from windeck.packing.mixed import MixedEpoch, epoch_layout
from windeck.packing.options import DEVICE_EPOCHS, Options, framed_sizes
from windeck.packing.served import Counts
from windeck.sources import Batch, Fingerprint, Source

__all__ = ["DevicePackedEpoch", "DevicePackedSequences", "device_bytes"]

Tensors = dict[str, torch.Tensor]

# Tokens that are copied at a time.
TOKENS_AT_A_TIME = 1 << 22

#: Dtypes that tokens are stored in; uint16 as the bits of int16.
_STORED = ("uint8", "uint16", "int32", "int64")


class HostSequences(Source, Protocol):
    """The members of `windeck.PackedSequences` that are used on a device."""

    options: Options
    corpus: Corpus
    _layout: PackingLayout

    @property
    def tokens_per_sample(self) -> int | None: ...

    def at_epoch(self, epoch: int, *, seed: int = 0) -> PackedEpoch: ...

    def shuffled(self) -> HostSequences: ...

    def gather_rows(self, indices: Any, out: Batch | None = None) -> Batch: ...

    def present(self, batch: dict[str, Any]) -> dict[str, Any]: ...

    def check_growth(self, larger: object) -> None: ...

    def explain_change(self, field: str, was: object, now: object) -> str | None: ...

    def _device_bytes(self, dtype: str) -> int: ...


SequencesT = TypeVar("SequencesT", bound=HostSequences)


class DevicePackedSequences(Generic[SequencesT]):
    """The sequences of `PackedSequences.to`: a source whose batches are tensors on a device.

    Attributes
    ----------
    packed : PackedSequences
        The sequences in host memory, whose methods answer questions and give NumPy arrays.
    device : torch.device
    """

    def __init__(
        self,
        packed: SequencesT,
        device: torch.device | str,
        *,
        tokens: _FramedTokens | None = None,
        padded: _PaddedSequences | None = None,
    ) -> None:
        self.packed = packed
        self.device = resolve_device(device)
        if tokens is None:
            check_room("the tokens", device_bytes(packed), self.device)
        self._tokens = tokens or _move(packed, self.device)
        self._padded = padded
        if packed.options.padded and padded is None:
            self._padded = _padded_sequences(packed, self._tokens, self.device)
        self._epochs = LRUCache(DEVICE_EPOCHS)

    def __len__(self) -> int:
        """Return the number of sequences in an epoch."""
        return len(self.packed)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the sequences: states of either source resume with the other."""
        return self.packed.fingerprint

    @property
    def tokens_per_sample(self) -> int | None:
        """Targets of every sequence; see `PackedSequences.tokens_per_sample`."""
        return self.packed.tokens_per_sample

    def at_epoch(self, epoch: int, /, *, seed: int = 0) -> DevicePackedEpoch:
        """Return the sequences of one epoch; see `PackedSequences.at_epoch`.

        The first batch of an epoch takes O(documents) time on the host, and copies 16 bytes for
        each document to the device; in a mixed order also 8 bytes for each sequence. Of padded
        sequences it takes O(sequences) time and copies 8 bytes for each. The last two epochs are
        kept.
        """
        return DevicePackedEpoch(self, epoch, seed)

    def shuffled(self) -> DevicePackedSequences[Any]:
        """Return the same documents in the mixed order, on the same tokens."""
        other = self.packed.shuffled()
        if other is self.packed:
            return self
        return DevicePackedSequences(other, self.device, tokens=self._tokens, padded=self._padded)

    def gather(self, indices: Any, out: Any = None) -> Any:
        """Return a batch of no rows, as arrays; raise a TypeError for any other one.

        Batches of this source are tensors, made by `gather_tensors`.
        """
        self._check_empty(indices)
        return self.packed.gather(indices, out)

    def gather_rows(self, indices: Any, out: Any = None) -> Any:
        """Return arrays of no rows; see `gather`."""
        self._check_empty(indices)
        return self.packed.gather_rows(indices, out)

    def _check_empty(self, indices: Any) -> None:
        if not len(as_indices(indices)):
            return
        raise TypeError(
            f"sequences on {self.device} give tensors, not NumPy arrays: expected a Loader over "
            "them, `gather_tensors`, or the sequences in host memory, which are `.packed`"
        )

    def gather_tensors(self, samples: Any) -> Tensors:
        """Return a batch of epoch 0 with seed 0; see `DevicePackedEpoch.gather_tensors`."""
        return self.at_epoch(0).gather_tensors(samples)

    def whole_tensors(self, rows: Tensors) -> Tensors:
        """Return ``cu_seqlens`` of a batch, and the keys on request that follow from it.

        Waits for the device: the number of pieces depends on the tokens.
        """
        return _whole(rows, self.packed.options.keys)

    def present(self, batch: Tensors) -> Tensors:
        """Return the batch with ``inputs`` and ``targets``, views of ``tokens``, in its place."""
        return self.packed.present(batch)

    def check_growth(self, larger: object) -> None:
        """Check documents of a larger source; see `PackedSequences.check_growth`."""
        if isinstance(larger, DevicePackedSequences):
            larger = larger.packed
        self.packed.check_growth(larger)

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        """Return an explanation of a field; see `PackedSequences.explain_change`."""
        return self.packed.explain_change(field, was, now)

    def __repr__(self) -> str:
        return f"{self.packed!r} on {self.device}"

    def __reduce__(self) -> tuple[Any, ...]:
        return DevicePackedSequences, (self.packed, str(self.device))


class DevicePackedEpoch:
    """The sequences of one epoch on a device, returned by `DevicePackedSequences.at_epoch`."""

    def __init__(self, source: DevicePackedSequences[Any], epoch: int, seed: int) -> None:
        self._source = source
        self.epoch = check_integer("epoch", epoch, most=2**64 - 1)
        self.seed = check_integer("seed", seed, most=2**64 - 1)

    @property
    def device(self) -> torch.device:
        """The device of the tokens."""
        return self._source.device

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self._source)

    @property
    def _host(self) -> PackedEpoch:
        packed: HostSequences = self._source.packed
        return packed.at_epoch(self.epoch, seed=self.seed)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the epoch in host memory."""
        return self._host.fingerprint

    def documents(self, sample: int) -> list[Piece]:
        """Return the pieces of a sequence; see `PackedSequences.documents`."""
        return self._host.documents(sample)

    def sequences_of(self, document: tuple[str, int, int]) -> Int64s:
        """Return the sequences with a document; see `PackedSequences.sequences_of`."""
        return self._host.sequences_of(document)

    def count_served(self, ranges: Any, *, documents: bool = True) -> Counts:
        """Return tokens and documents in ranges; see `PackedSequences.count_served`."""
        return self._host.count_served(ranges, documents=documents)

    @property
    def tokens_per_sample(self) -> int | None:
        """Targets of every sequence; see `PackedSequences.tokens_per_sample`."""
        return self._source.tokens_per_sample

    def gather(self, indices: Any, out: Any = None) -> Any:
        """Return a batch of no rows; see `DevicePackedSequences.gather`."""
        return self._source.gather(indices, out)

    def gather_rows(self, indices: Any, out: Any = None) -> Any:
        """Return arrays of no rows; see `DevicePackedSequences.gather`."""
        return self._source.gather_rows(indices, out)

    def gather_tensors(self, samples: Any) -> Tensors:
        """Return a batch: row k of every tensor is sequence ``samples[k]`` of the epoch.

        Parameters
        ----------
        samples
            int64 tensor of shape (batch,) on the device; or other integers, which are copied there.

        Returns
        -------
        dict of tensors
            On the device, with the keys, dtypes, shapes and values of `PackedSequences.gather`.

        Raises
        ------
        IndexError
            For a sample outside ``[0, len)``; CUDA reports it as a device-side assertion.
        """
        rows = self.gather_row_tensors(samples)
        return self._source.present({**rows, **self._source.whole_tensors(rows)})

    def gather_row_tensors(self, samples: Any) -> Tensors:
        """Return ``tokens``, ``position_ids`` and, if it is made, ``targets_mask``."""
        if not isinstance(samples, torch.Tensor):
            samples = torch.from_numpy(as_indices(samples)).to(self.device)
        source, options = self._source, self._source.packed.options
        order, dtype = self._order(), torch_dtype(options.dtype)
        if order.sequences is not None:
            samples = order.sequences.index_select(0, samples)
        columns = torch.arange(options.length + 1, device=self.device)
        # Places among the tokens of documents. Columns of the sequence's own frame, and of padding,
        # are those of the tokens beside them.
        lead = int(options.sequence_bos is not None)
        places = columns - lead
        stride: int = options.stride
        held: Any = options.content
        if source._padded is not None:
            stride, held = held, source._padded.held.index_select(0, samples)[:, None]
        start = (samples * stride)[:, None]
        at = start + places.clamp(min=0).clamp(max=held - 1)
        # -1 for a negative position, which `index_select` refuses.
        piece = torch.searchsorted(order.borders, at, right=True) - 1
        flat = piece.view(-1)
        tokens = source._tokens.at(at.view(-1) + order.shift.index_select(0, flat), dtype)
        tokens = tokens.view(at.shape)
        if options.sequence_bos is not None:
            tokens[:, 0] = options.sequence_bos
        if options.sequence_eos is not None:
            tokens = torch.where(places == held, options.sequence_eos, tokens)
        # The column that each token's document begins in.
        begin = order.borders.index_select(0, flat).view(at.shape) - start
        begin = torch.where(begin > 0, begin + lead, 0)
        adjacent = piece[:, 1:] == piece[:, :-1]
        if source._padded is not None:
            end = held + int(options.sequence_eos is not None)
            outside = places >= end
            tokens = torch.where(outside, options.pad, tokens)
            begin = torch.where(outside, end + lead, begin)
            adjacent &= ~outside[:, 1:]
        rows = {
            "tokens": tokens,
            "position_ids": (columns - begin)[:, :-1].to(dtype).contiguous(),
        }
        if options.has_mask:
            rows["targets_mask"] = adjacent
        return rows

    def _order(self) -> _EpochOrder:
        make = partial(_epoch_order, self._source, self.epoch, self.seed)
        found: _EpochOrder = self._source._epochs.get((self.epoch, self.seed), make)
        return found


def device_bytes(packed: HostSequences) -> int:
    """Return the bytes that `packed` takes on a device, with the orders of two epochs."""
    return packed._device_bytes(_stored_dtype(packed))


# --- tokens ----------------------------------------------------------------------------------


class _FramedTokens(NamedTuple):
    """The framed tokens of all documents, on a device, and where each document is."""

    bits: torch.Tensor
    dtype: str
    #: The first framed token of each document of the corpus, and the number of them, on the host.
    first: Int64s
    lengths: Int64s

    def at(self, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the tokens at some places."""
        found = self.bits.index_select(0, index)
        if self.dtype == "uint8":
            return found.view(torch.uint8).to(dtype)
        return found.to(dtype) & 0xFFFF if self.dtype == "uint16" else found.to(dtype)


def _stored_dtype(packed: HostSequences) -> str:
    """Return the narrowest dtype that holds the tokens of all shards, by their dtypes."""
    options, corpus = packed.options, packed.corpus
    frame = [token for token in (options.bos, options.eos) if token is not None]
    low, high = min([0, *frame]), max([0, *frame])
    for shard in np.flatnonzero(corpus.shard_tokens).tolist():
        limits = np.iinfo(corpus.open(shard).dtype)
        low, high = min(low, int(limits.min)), max(high, int(limits.max))
    for name in _STORED:
        limits = np.iinfo(name)
        # A token that the dtype of batches cannot hold is an error when it is copied.
        if (limits.min <= low and high <= limits.max) or name == options.dtype:
            return name
    return "int64"


def _move(packed: HostSequences, device: torch.device) -> _FramedTokens:
    """Copy the framed tokens of all shards to a device, some at a time."""
    options, corpus = packed.options, packed.corpus
    sizes, stored = framed_sizes(corpus, options.frame), _stored_dtype(packed)
    bits = empty_bits((int(sizes.sum()),), stored, device)
    lengths = []
    at = 0
    for shard, size in enumerate(sizes.tolist()):
        tokens = corpus.open(shard)
        document_run = _core.DocumentRun(tokens, bos=options.bos, eos=options.eos)
        check_document_run(corpus, shard, document_run, size)
        of_documents = tokens.lengths()
        lengths.append(np.where(of_documents < 0, 0, of_documents + options.frame))
        for begin in range(0, size, TOKENS_AT_A_TIME):
            count = min(TOKENS_AT_A_TIME, size - begin)
            found = _framed(document_run, begin, count, options.dtype).astype(stored)
            bits[at : at + count] = as_bits(found).to(device)
            at += count
    all_lengths = np.concatenate(lengths)
    return _FramedTokens(bits, stored, np.cumsum(all_lengths) - all_lengths, all_lengths)


def _framed(document_run: _core.DocumentRun, start: int, count: int, dtype: str) -> Any:
    """Return framed tokens of a document run, as the native packing writes them."""
    none, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    batch = _core.pack(
        [document_run],
        np.concatenate([none, one]),
        none,
        start * one,
        count * one,
        sequence_length=max(count - 1, 1),
        dtype=dtype,
        pad=0,
        threads=None,
    )
    return batch["tokens"][0, :count]


# --- padded sequences ------------------------------------------------------------------------


class _PaddedSequences(NamedTuple):
    """The stored order of padded sequences, on a device.

    Sequence s has `held[s]` tokens of documents, from place ``s * content`` on in the stream of
    sequences. Each stretch of adjacent tokens of a document there is a piece: piece j begins at
    `borders[j]`, and its tokens are `shift[j]` further in the tokens of the corpus.
    """

    borders: torch.Tensor
    shift: torch.Tensor
    held: torch.Tensor


def _padded_sequences(
    packed: HostSequences, tokens: _FramedTokens, device: torch.device
) -> _PaddedSequences:
    """Copy the pieces of all sequences. O(documents + sequences) time and memory."""
    layout: Any = packed._layout
    content = packed.options.content
    before = np.cumsum(layout.sizes) - layout.sizes
    full = tokens.lengths > 0
    documents = tokens.first[full]
    borders, shifts, held = [], [], []
    first = 0
    for shard in np.flatnonzero(layout.counts).tolist():
        offsets, starts, lengths = layout.all_row_pieces(shard)
        starts = starts + before[shard]
        # Tokens before each row piece; and where its sequence begins in the stream.
        passed = np.concatenate([[0], np.cumsum(lengths)])
        of_row_piece = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        places = (first + of_row_piece) * content + passed[:-1] - passed[offsets[of_row_piece]]
        # A row piece of several documents is as many pieces.
        low = np.searchsorted(documents, starts, side="right") - 1
        counts = np.searchsorted(documents, starts + lengths, side="left") - low
        row_piece = np.repeat(np.arange(len(starts)), counts)
        nth = np.arange(len(row_piece)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = np.maximum(documents[low[row_piece] + nth], starts[row_piece])
        borders.append(places[row_piece] + begins - starts[row_piece])
        shifts.append(begins - borders[-1])
        held.append(np.diff(passed[offsets]))
        first += len(offsets) - 1
    moved = (torch.from_numpy(np.concatenate(one)).to(device) for one in (borders, shifts, held))
    return _PaddedSequences(*moved)


# --- epochs ----------------------------------------------------------------------------------


class _EpochOrder(NamedTuple):
    """The documents of an epoch in its order, on a device.

    The document at place p has the tokens [borders[p], borders[p + 1]) of the epoch, and these are
    `shift[p]` further in the tokens of the corpus. `sequences` are those of a mixed order. For
    padded sequences, borders and shifts are those of `_PaddedSequences`, in every epoch, and
    `sequences` are the stored numbers of the sequences of the epoch.
    """

    borders: torch.Tensor
    shift: torch.Tensor
    sequences: torch.Tensor | None


def _epoch_order(source: DevicePackedSequences[Any], epoch: int, seed: int) -> _EpochOrder:
    layout = epoch_layout(source.packed._layout, epoch, seed)
    tokens, device = source._tokens, source.device
    if source._padded is not None:
        order = torch.from_numpy(cast(SequenceOrder, layout).stored_sequences()).to(device)
        return _EpochOrder(source._padded.borders, source._padded.shift, order)
    documents = cast(DocumentOrder, layout).document_order()
    borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens.lengths[documents])])
    shift = tokens.first[documents] - borders[:-1]
    sequences = None
    if isinstance(layout, MixedEpoch):
        sequences = torch.from_numpy(layout.sequence_order()).to(device)
    return _EpochOrder(
        torch.from_numpy(borders).to(device), torch.from_numpy(shift).to(device), sequences
    )


def _whole(rows: Tensors, keys: tuple[str, ...]) -> Tensors:
    """Return the offsets of the documents in a flattened batch, and what follows from them."""
    ids = rows["position_ids"]
    count = ids.numel()
    if count >= 2**31:
        raise ValueError(
            f"a batch of {count} tokens has no int32 cu_seqlens, expected less than 2^31"
        )
    begins = ids.reshape(-1) == 0
    end = torch.full((1,), count, dtype=torch.int64, device=ids.device)
    offsets = torch.cat([begins.nonzero()[:, 0], end]).to(torch.int32)
    batch = {"cu_seqlens": offsets}
    if "document_ids" in keys:
        numbers = begins.cumsum(0, dtype=torch.int32) - 1
        batch["document_ids"] = numbers.view(ids.shape)
    if "max_seqlen" in keys:
        lengths = torch.cat([offsets.new_zeros(1), offsets[1:] - offsets[:-1]])
        batch["max_seqlen"] = lengths.max()
    return batch
