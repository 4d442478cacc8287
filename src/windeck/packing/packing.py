"""Packing of documents into sequences of fixed length: `PackedSequences`.

Which documents are in which sequence is decided by a layout; see `windeck.packing.layout`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from windeck._core import default_threads
from windeck._util.html import html_table
from windeck._util.imports import needs_torch
from windeck._util.lru_cache import LRUCache
from windeck._util.options import explain_options
from windeck._util.progress import Progress, check_progress
from windeck._util.text import format_bytes, plural
from windeck._util.validation import check_integer
from windeck._util.warning import warn
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.best_fit import BestFitPacking
from windeck.packing.corpora import CorpusMembers, check_corpus
from windeck.packing.counting import CorpusPasses
from windeck.packing.epochs import PackedEpoch, PackedRows, fingerprint_of
from windeck.packing.global_shuffle import GlobalShuffle
from windeck.packing.layout import PackingLayout, Piece
from windeck.packing.options import (
    DEVICE_EPOCHS,
    MIXED,
    Options,
    dtype_name,
    key_names,
)
from windeck.packing.served import Counts
from windeck.packing.shard_shuffle import ShardShuffle
from windeck.sources import Batch, Fingerprint

if TYPE_CHECKING:
    from windeck.packing.device import DevicePackedSequences

__all__ = ["PackedSequences", "PackingReport", "Piece"]


@dataclass(frozen=True)
class PackingReport:
    """Numbers of sequences, documents, tokens and padding tokens in an epoch.

    Attributes
    ----------
    sequences, sequence_length
        Number of sequences, and of inputs in each.
    documents, filtered
        Number of packed documents, and of those that a filter removed.
    tokens, frames
        Number of tokens with frames, and of frame tokens among them.
    tail
        Number of tokens at the end of an epoch that do not fill a sequence, fewer than
        `sequence_length`. They belong to other documents in every epoch.
    padding
        Number of padding tokens in all sequences.
    sequence_frames
        Number of tokens in all sequences that are `sequence_bos` or `sequence_eos`.
    device_bytes
        Bytes that ``packed.to(device)`` takes there, at most: fewer where shards have a narrower
        dtype than batches. None if it is not known.

    Examples
    --------
    >>> print(PackingReport(3, 4, 5, 1, 15, 5, 2, 0))
    3 sequences of 4 tokens and their targets
      15 tokens of 5 documents, 5 of them BOS or EOS
      1 document filtered
      2 tokens at the end of an epoch are not served
    """

    sequences: int
    sequence_length: int
    documents: int
    filtered: int
    tokens: int
    frames: int
    tail: int
    padding: int
    sequence_frames: int = 0
    device_bytes: int | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.sequences:,} sequences of {self.sequence_length:,} tokens and their targets",
            f"  {self.tokens:,} tokens of {self.documents:,} documents, "
            f"{self.frames:,} of them BOS or EOS",
        ]
        if self.filtered:
            lines.append(f"  {plural(self.filtered, 'document')} filtered")
        if self.sequence_frames:
            lines.append(f"  {plural(self.sequence_frames, 'token')} more, BOS or EOS of sequences")
        if self.tail:
            verb = "is" if self.tail == 1 else "are"
            lines.append(f"  {plural(self.tail, 'token')} at the end of an epoch {verb} not served")
        if self.padding:
            share = self.padding / (self.sequences * (self.sequence_length + 1))
            lines.append(f"  {self.padding:,} tokens of padding, {share:.1%} of all")
        if self.device_bytes is not None:
            lines.append(f"  at most {format_bytes(self.device_bytes)} on a device")
        return "\n".join(lines)


#: Epochs in the cache: at the border of two epochs, batches alternate between them.
_CACHED_EPOCHS = 4


@explain_options
class PackedSequences(PackedRows):
    """The documents of a corpus, framed, concatenated, and split into sequences of length L.

    Every document is framed as ``[bos] + tokens + [eos]``, without those that are None. An epoch is
    the concatenation of all framed documents, and sequence s consists of its tokens
    ``[s * L, s * L + L + 1)``: L inputs, and L targets shifted by one. All tokens are served except
    the tail; see `report`. Every epoch has its own order of documents. `sequence_bos` and
    `sequence_eos` take the place of tokens in a sequence, and the next one begins earlier.

    Parameters
    ----------
    documents
        `windeck.Documents`, or another `windeck.documents.protocol.Corpus`.
    sequence_length
        L, 1 or more.
    bos, eos
        Tokens before and after every document; None for no token.
    order
        ``"shards"``: shards are permuted, and documents within their shard, so that few files are
        open at a time. ``"global"``: documents are shuffled across all shards, with an index that
        takes one pass over the corpus; see `build_index`. ``"mixed"``, recommended: as "shards",
        and the sequences of `mixed_shards` shards at a time are shuffled, so that a batch has
        pieces of many documents. ``"mixed-global"``: as "global", likewise for blocks of 1,024
        documents.
    padded
        Put whole documents into sequences of at most L + 1 tokens (best fit, within a shard) and
        pad them with `pad`. Only longer documents are split. Sequences are created once, in
        stored order, and shuffled in every epoch.
    pad
        The padding token.
    dtype
        Dtype of tokens and position_ids: ``"int64"`` or ``"int32"``.
    live_shards
        Number of shards that are kept in use, with their document offsets, in addition to those
        that the corpus keeps open: mapped files, or tokens in memory where the corpus decodes them
        (order="global": number of blocks of 1,024 documents).
    cache
        Folder in which results of passes over the corpus are cached, or True for ``meta`` in the
        root of the corpus. Files are checked when they are read, and never unpickled.
    progress
        Whether such a pass shows a progress bar (if rich is installed), or a function
        ``(done, total)``. None: a bar at a terminal, if the pass takes more than two seconds.
    threads
        Threads that read document lengths; by default one per processor.
    mixed_shards
        Number of shards whose sequences are shuffled together by a mixed order, at least 1.
        This number plus one are kept in memory. For "mixed-global" a number of blocks.
    keys
        Keys to add to a batch: some of "targets_mask", "document_ids" and "max_seqlen".
    sequence_bos, sequence_eos
        The first and the last token of every sequence (before its padding), besides those of
        documents; None for no token. They belong to the first and the last document of the
        sequence there, in all keys. With `sequence_bos` sequences share no token: every token of
        a document is a target once, and with neither padding nor a tail in one sequence only.

    Notes
    -----
    **Keys** of a batch of k sequences: ``inputs`` and ``targets`` (k, L), two views of one
    (k, L + 1) buffer; ``position_ids`` (k, L), counted from 0 at the start of each row and of each
    document; ``cu_seqlens``, int32: the offsets in the flattened batch at which position_ids
    restart, and its length, as variable-length attention takes them. With padding, and on request,
    ``targets_mask`` (k, L), True where input and target belong to the same document. On request
    ``document_ids`` (k, L), int32: the number of the piece between two offsets, counted through
    the batch; and ``max_seqlen``, int32 of shape (): the length of the longest piece.

    **Cost**: O(shards) time and memory for the object and for each epoch; 8 bytes per document of
    a shard when it is first used. order="global": 8 bytes per 1,024 documents, and half a byte
    more for each epoch in use. padded: one pass over all lengths, and 16 bytes per shard.

    Raises
    ------
    TypeError
        If `documents` is not a corpus, or an option has the wrong type.
    ValueError
        If `sequence_length` is below 1, or below 2 with `sequence_eos`, if `dtype` cannot hold
        bos, eos, pad, sequence_bos or sequence_eos, if the documents have fewer tokens than one
        sequence, or for padded with order="global".

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> from windeck._core import TokenShard
    >>> class Counting:  # a corpus of 3 shards of 4 documents of 5 tokens
    ...     shard_documents = shard_kept = np.full(3, 4)
    ...     shard_tokens = np.full(3, 20)
    ...     fingerprint = {"counting": 3}
    ...     def shard_name(self, shard):
    ...         return "count", shard
    ...     def shard_index(self, dataset_id, shard_id):
    ...         return shard_id
    ...     def open(self, shard):
    ...         return TokenShard.from_arrays(np.arange(20) + 20 * shard, np.arange(5) * 5)
    >>> packed = wd.PackedSequences(Counting(), sequence_length=10, eos=99)
    >>> print(packed.explain())
    7 sequences of 10 tokens and their targets
      72 tokens of 12 documents, 12 of them BOS or EOS
      1 token at the end of an epoch is not served
      at most 976 bytes on a device
    >>> batch = packed.gather([0, 1])
    >>> batch["inputs"].shape, batch["cu_seqlens"].tolist()
    ((2, 10), [0, 6, 10, 12, 18, 20])
    >>> all(0 in packed.sequences_of(piece[:3]) for piece in packed.documents(0))
    True
    """

    #: `gather` accepts ``threads=``.
    supports_threads = True
    independent_rows = True

    def __init__(
        self,
        documents: Corpus,
        *,
        sequence_length: int,
        bos: int | None = None,
        eos: int | None = None,
        order: Literal["shards", "global", "mixed", "mixed-global"] = "shards",
        padded: bool = False,
        pad: int = 0,
        dtype: Any = "int64",
        live_shards: int = 8,
        cache: bool | str | os.PathLike[str] = False,
        progress: Progress = None,
        threads: int | None = None,
        mixed_shards: int = 8,
        keys: Sequence[str] = (),
        sequence_bos: int | None = None,
        sequence_eos: int | None = None,
    ) -> None:
        check_corpus(documents)
        check_progress(progress)
        self.corpus = documents
        self.options = Options(
            sequence_length,
            bos,
            eos,
            order,
            bool(padded),
            pad,
            dtype_name(dtype),
            mixed_shards,
            key_names(keys),
            sequence_bos,
            sequence_eos,
        )
        self._resources: dict[str, Any] = {
            "live_shards": check_integer("live_shards", live_shards, least=1),
            "cache": cache,
            "progress": progress,
            "threads": threads,
        }
        self._create_layout(None, {})
        if self.options.is_global:
            self._warn_of_reopening()

    def _warn_of_reopening(self) -> None:
        """Warn if the shards of a block cannot stay open until the next block."""
        reason = self._members.explain_reopening()
        if reason:
            warn(
                f"order={self.options.order!r} reads every block of 1,024 documents from all "
                f"shards, and opens many of them again for every block: {reason}; or use "
                "order='shards' or 'mixed'",
            )

    def _create_layout(self, counted: Int64s | None, indexed: dict[int, Int64s]) -> None:
        """Create the layout from the options and from the results of earlier passes."""
        self._members = CorpusMembers(self.corpus)
        threads = self._resources["threads"]
        crew = default_threads() if threads is None else check_integer("threads", threads, least=1)
        cache, progress = self._resources["cache"], self._resources["progress"]
        passes = CorpusPasses(self.corpus, self.options, cache, progress, crew)
        passes.known_counts, passes.known_sums = counted, indexed
        self._passes = passes
        # The last sequence of a group may end in the first shard of the next one.
        least = self.options.mixed_shards + 1 if self.options.is_mixed else 1
        live = LRUCache(max(self._resources["live_shards"], least))
        if self.options.padded:
            self._layout: PackingLayout = BestFitPacking(
                self.corpus, self.options, live, passes, crew
            )
        elif self.options.is_global:
            self._layout = GlobalShuffle(self.corpus, self.options, live, passes)
        else:
            self._layout = ShardShuffle(self.corpus, self.options, live, crew)
        self._epochs = LRUCache(_CACHED_EPOCHS)

    @property
    def _first(self) -> PackedEpoch:
        # Not an attribute: the reference cycle would keep both objects alive until a collection.
        return self.at_epoch(0, seed=0)

    def __getstate__(self) -> dict[str, Any]:
        kept = {"corpus": self.corpus, "options": self.options, "_resources": self._resources}
        counted, indexed = self._passes.known_counts, self._layout.known_sums()
        return {**kept, "counted": counted, "indexed": indexed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = [state.pop(name) for name in ("counted", "indexed")]
        self.__dict__.update(state)
        self._create_layout(*found)

    # --- epochs ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of sequences in an epoch."""
        return self._layout.samples

    if not TYPE_CHECKING:

        def __getitems__(self, indices: object) -> NoReturn:
            # Called by a DataLoader that takes the sequences for a dataset of samples.
            raise TypeError(
                "packed sequences change from epoch to epoch, and a DataLoader asks for samples of "
                "one; expected wd.Loader(packed, batch_size=...), or for a DataLoader with "
                "batch_size=None wd.IterDataset(wd.Stream(packed), batch_size=...)"
            )

    def at_epoch(self, epoch: int, *, seed: int = 0) -> PackedEpoch:
        """Return the sequences of one epoch, as a source.

        Parameters
        ----------
        epoch, seed
            Integers in [0, 2^64).

        Returns
        -------
        PackedEpoch
            The first batch takes O(shards) time (order="global": O(blocks), and a pass over the
            corpus for a seed without an index). The last four epochs are cached.
        """
        return PackedEpoch(self, self._layout, self._epochs, epoch, seed)

    def shuffled(self) -> PackedSequences:
        """Return the same documents in the mixed order of this order; see `order`.

        ``Loader(packed, shuffle=True)`` serves it. An object in a mixed order returns itself.

        Returns
        -------
        PackedSequences
            With order="mixed", or "mixed-global" for order="global".
        """
        if self.options.is_mixed:
            return self
        again = PackedSequences.__new__(type(self))
        order = MIXED[self.options.order]
        again.__setstate__({**self.__getstate__(), "options": replace(self.options, order=order)})
        return again

    def build_index(self, seed: int = 0) -> None:
        """Create the index for order="global"; otherwise the first batch creates it.

        One pass over the lengths of all documents, in parallel, with a progress bar if `progress`
        is given. 8 bytes per 1,024 documents. With `cache`, an existing index is read instead.
        """
        self._layout.build_index(check_integer("seed", seed, most=2**64 - 1))

    # --- batches -----------------------------------------------------------------------------

    def gather(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """Return a batch of epoch 0 with seed 0: row k of every array is sequence ``indices[k]``.

        Parameters
        ----------
        indices
            Integers of shape (k,), in any order; repetitions are allowed.
        out
            Arrays to write into, with the keys of `gather_rows`; None for new arrays.
        threads
            Number of threads that copy; None for one per processor.

        Returns
        -------
        dict of arrays
            See the keys above. Writable; inputs and targets are views of one buffer.

        Raises
        ------
        IndexError
            If an index is outside ``[0, len)``.
        ValueError
            If the dtype cannot hold a token (the message names it and its document), or if the
            contents of a shard differ from its counts.
        OSError
            If a file was truncated while it is mapped.
        """
        return self._first.gather(indices, out, threads)

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """Return ``tokens`` (k, L + 1), ``position_ids`` and, if it is made, ``targets_mask``."""
        return self._first.gather_rows(indices, out, threads)

    def to(self, device: Any) -> DevicePackedSequences[PackedSequences]:
        """Return these sequences as a source on a device: its batches are tensors, made there.

        The framed tokens are copied once, in as few bytes as their stored dtype allows. A `Loader`
        over the result gives the batches of these sequences, bit for bit and in the same order;
        states of either resume with the other. ``shuffle=True`` selects the mixed order as usual.

        Parameters
        ----------
        device
            A `torch.device` or its name, such as ``"cuda"``.

        Returns
        -------
        DevicePackedSequences
            O(tokens) time and `device_bytes` of memory on the device. The first batch of every
            epoch takes O(documents + sequences) time on the host, and copies the order.

        Raises
        ------
        MemoryError
            If the device has less memory free. Nothing has been copied then.
        RuntimeError
            If torch has no such device.
        ValueError
            If the dtype cannot hold a token.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> from windeck._core import TokenShard
        >>> class Counting:  # a corpus of 3 shards of 4 documents of 5 tokens
        ...     shard_documents = shard_kept = np.full(3, 4)
        ...     shard_tokens = np.full(3, 20)
        ...     fingerprint = {"counting": 3}
        ...     def shard_name(self, shard):
        ...         return "count", shard
        ...     def shard_index(self, dataset_id, shard_id):
        ...         return shard_id
        ...     def open(self, shard):
        ...         return TokenShard.from_arrays(np.arange(20) + 20 * shard, np.arange(5) * 5)
        >>> packed = wd.PackedSequences(Counting(), sequence_length=10, eos=99).to("cpu")
        >>> next(iter(wd.Loader(packed, batch_size=2, shuffle=True)))["inputs"].shape
        torch.Size([2, 10])
        """
        with needs_torch("PackedSequences.to"):
            from windeck.packing.device import DevicePackedSequences

        return DevicePackedSequences(self, device)

    def device_bytes(self) -> int:
        """Return the bytes that `to` takes on a device, with the orders of two epochs.

        Opens every shard to learn its dtype, and reads no tokens.
        """
        with needs_torch("PackedSequences.device_bytes"):
            from windeck.packing.device import device_bytes

        return device_bytes(self)

    def _device_bytes(self, dtype: str) -> int:
        """Return the bytes on a device if tokens are stored there in this dtype."""
        stored, orders = self._layout.device_numbers(int(self.corpus.shard_documents.sum()))
        tokens = self._layout.tokens * np.dtype(dtype).itemsize
        return tokens + 8 * (stored + DEVICE_EPOCHS * orders)

    # --- documents and sequences -------------------------------------------------------------

    def documents(self, sample: int, *, epoch: int = 0, seed: int = 0) -> list[Piece]:
        """Return the documents in a sequence, and the range of tokens of each.

        Parameters
        ----------
        sample
            A sequence of the epoch, in [0, len).
        epoch, seed
            The epoch.

        Returns
        -------
        list of Piece
            ``(dataset_id, shard_id, doc_id, start, stop)`` in the order of the sequence. `start`
            and `stop` count tokens of the framed document. The pieces cover all L + 1 tokens,
            including the last target, except padding, `sequence_bos` and `sequence_eos`.

        Raises
        ------
        IndexError
            If `sample` is outside [0, len).
        """
        return self.at_epoch(epoch, seed=seed).documents(sample)

    def blocks_of(self, indices: Any, *, epoch: int = 0, seed: int = 0) -> tuple[Int64s, Int64s]:
        """Return the shards of sequences of an epoch. Opens none.

        Returns
        -------
        two int64 arrays of shape (j,)
            Pairs (row, shard): sequence ``indices[row]`` has tokens of the shard.

        Raises
        ------
        ValueError
            With order="global" or "mixed-global".
        """
        return self.at_epoch(epoch, seed=seed).blocks_of(indices)

    @property
    def block_bytes(self) -> Int64s:
        """Bytes of each shard: of its file, or of its tokens as int32 for a corpus without files.

        int64 of shape (S,).
        """
        return self._members.shard_bytes

    def sequences_of(
        self, document: tuple[str, int, int], *, epoch: int = 0, seed: int = 0
    ) -> Int64s:
        """Return the sequences that contain tokens of a document: the inverse of `documents`.

        Parameters
        ----------
        document
            ``(dataset_id, shard_id, doc_id)``.
        epoch, seed
            The epoch.

        Returns
        -------
        int64 array
            Samples of the epoch, ascending; empty for a document without tokens or in the tail.

        Raises
        ------
        TypeError
            If `document` is not such a triple.
        KeyError
            If the shard does not exist.
        IndexError
            If the shard has fewer documents.
        """
        return self.at_epoch(epoch, seed=seed).sequences_of(document)

    def count_served(
        self, ranges: Any, *, epoch: int = 0, seed: int = 0, documents: bool = True
    ) -> Counts:
        """Return the tokens and documents in ranges of sequences of an epoch.

        Parameters
        ----------
        ranges
            Pairs [start, stop) in [0, len), disjoint: integers of shape (k, 2).
        epoch, seed
            The epoch.
        documents
            Whether documents are counted. They, and tokens with padding, take the lengths of the
            documents in the shards or blocks at the ends of ranges.

        Returns
        -------
        Counts
            ``(tokens, begun, finished)``: the targets that are not padding; the documents with a
            sequence in a range, and those with all sequences in ranges. None without `documents`.
            An empty document without `bos` and `eos` counts as one token.
        """
        return self.at_epoch(epoch, seed=seed).count_served(ranges, documents=documents)

    @property
    def tokens_per_sample(self) -> int | None:
        """Targets of every sequence, without padding; None if they differ because of it."""
        return self._layout.tokens_per_sample

    # --- configuration and reports -----------------------------------------------------------

    @property
    def fingerprint(self) -> Fingerprint:
        """Fields of the corpus (``documents.<field>``), options except dtype, and the length."""
        return fingerprint_of(self._layout)

    def check_growth(self, larger: object) -> None:
        """Raise a ValueError if documents have other names in a larger source; see `Documents`."""
        if isinstance(larger, PackedSequences):
            self._members.check_growth(larger.corpus)

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        """Return an explanation of a field that differs from a saved one, if any."""
        if not field.startswith("documents."):
            return None
        return self._members.explain_change(field.removeprefix("documents."), was, now)

    @cached_property
    def report(self) -> PackingReport:
        """Numbers of sequences, documents, tokens and padding tokens in an epoch."""
        layout, options = self._layout, self.options
        stored, kept = int(self.corpus.shard_documents.sum()), int(self.corpus.shard_kept.sum())
        return PackingReport(
            sequences=layout.samples,
            sequence_length=options.length,
            documents=kept,
            filtered=stored - kept,
            tokens=layout.tokens,
            frames=kept * options.frame,
            tail=layout.tail,
            padding=layout.padding,
            sequence_frames=layout.samples * options.sequence_frame,
            device_bytes=self._device_bytes(options.dtype),
        )

    def explain(self) -> PackingReport:
        """Return the report; ``print(packed.explain())`` shows it."""
        return self.report

    def _repr_html_(self) -> str:
        rows = [(name, repr(value)) for name, value in self._shown().items()]
        caption = f"PackedSequences: {len(self):,} sequences"
        return html_table(caption, ("option", "value"), rows, f"{self.corpus!r}\n{self.report}")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._shown().items())
        return f"PackedSequences({self.corpus!r}, {shown})"

    def _shown(self) -> dict[str, Any]:
        """Return the options that texts have, by name."""
        options = self.options
        shown: dict[str, Any] = {
            "sequence_length": options.length,
            "bos": options.bos,
            "eos": options.eos,
        }
        shown |= {"order": options.order, "padded": options.padded}
        shown |= {"pad": options.pad} if options.padded else {}
        frame = {"sequence_bos": options.sequence_bos, "sequence_eos": options.sequence_eos}
        return shown | {name: token for name, token in frame.items() if token is not None}
