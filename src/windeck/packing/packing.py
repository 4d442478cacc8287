"""What packing makes of the documents, in numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from windeck._core import default_threads
from windeck._util.lru_cache import LRUCache
from windeck._util.progress import Progress, check_progress
from windeck._util.validation import check_integer
from windeck.documents.protocol import Corpus, Int64s
from windeck.packing.best_fit import Padded
from windeck.packing.epochs import Layout, PackedEpoch, fingerprint_of, present, whole
from windeck.packing.global_shuffle import ByBlocks
from windeck.packing.locations import Piece
from windeck.packing.options import Options, check_corpus, checked_dtype
from windeck.packing.passes import Passes
from windeck.packing.shard_shuffle import ByShards
from windeck.sources import Batch, Fingerprint

__all__ = ["PackedSequences", "PackingReport", "Piece"]


@dataclass(frozen=True)
class PackingReport:
    """How many sequences there are, and what of the documents is in them.

    Attributes
    ----------
    sequences, sequence_length
        Sequences of an epoch, and inputs in each.
    documents, filtered
        Documents that are packed, and those that a filter left out.
    tokens, frames
        Tokens of an epoch with their frames, and how many of these are frames.
    tail
        Tokens at the end of an epoch that fill no sequence: less than `sequence_length`. In every
        epoch they are of other documents.
    padding
        Tokens of padding in all sequences.

    Examples
    --------
    >>> print(PackingReport(3, 4, 5, 1, 15, 5, 2, 0))
    3 sequences of 4 tokens and their targets
      15 tokens of 5 documents, 5 of them BOS or EOS
      1 document is filtered
      2 tokens at the end of an epoch fill no sequence
    """

    sequences: int
    sequence_length: int
    documents: int
    filtered: int
    tokens: int
    frames: int
    tail: int
    padding: int

    def __str__(self) -> str:
        lines = [
            f"{self.sequences:,} sequences of {self.sequence_length:,} tokens and their targets",
            f"  {self.tokens:,} tokens of {self.documents:,} documents, "
            f"{self.frames:,} of them BOS or EOS",
        ]
        if self.filtered:
            lines.append(
                f"  {self.filtered:,} document{_many(self.filtered, ' is', 's are')} filtered"
            )
        if self.tail:
            lines.append(
                f"  {self.tail:,} token{_many(self.tail, '', 's')} at the end of an epoch "
                f"fill{_many(self.tail, 's', '')} no sequence"
            )
        if self.padding:
            share = self.padding / (self.sequences * (self.sequence_length + 1))
            lines.append(f"  {self.padding:,} tokens of padding, {share:.1%} of all")
        return "\n".join(lines)


def _many(count: int, one: str, more: str) -> str:
    return one if count == 1 else more


#: Epochs remembered: batches of neighbouring epochs alternate at a border.
EPOCHS_KEPT = 4


class PackedSequences:
    """The documents of a corpus, framed, laid end to end and cut into sequences of one length.

    Every document is framed as ``[bos] + tokens + [eos]``, as far as these are given. An epoch is
    all framed documents one after the other, and sequence s is its tokens
    ``[s * L, s * L + L + 1)``: L inputs, and as targets the same moved on by one. Nothing is lost
    but the tail, which `report` tells. Every epoch has its own order of documents.

    Parameters
    ----------
    documents
        `windeck.Documents`, or another `windeck.documents.protocol.Corpus`.
    sequence_length
        L, 1 or more.
    bos, eos
        Tokens before and after every document; None for none.
    order
        ``"shards"``: shards are permuted, and documents within theirs, so that few files are open
        at a time. ``"global"``: documents are shuffled over all shards, by an index that one pass
        over the corpus makes; see `build_index`.
    padded
        Put whole documents into sequences of at most L + 1 tokens (best fit, within a shard) and
        fill up with `pad`. Only documents that are longer than that are cut. Sequences are made
        once, in stored order, and shuffled in every epoch.
    pad
        The token to fill up with.
    dtype
        ``"int64"`` or ``"int32"``, of tokens and position_ids.
    live_shards
        Shards whose sums are kept at a time (order="global": blocks of 1,024 documents).
    cache
        Where what a pass over the corpus found is kept: a folder, or True for ``meta`` beside the
        data. Files there belong to one fingerprint, are checked and never unpickled.
    progress
        Whether such a pass shows a bar (if rich is installed), or a function (done, total).
    threads
        Threads that read lengths; default: as many as there are processors.

    Notes
    -----
    **Keys** of a batch of k sequences: ``inputs`` and ``targets`` (k, L), two views of one
    (k, L + 1) buffer; ``position_ids`` (k, L), from 0 at each document's and each row's begin;
    with padding ``targets_mask`` (k, L), True where input and target belong to one document;
    ``cu_seqlens``, int32: where the stretches of position_ids begin in the flattened batch, and
    its end, as variable-length attention takes it.

    **Cost**: O(shards) time and memory to begin with and for an epoch; a shard's sums, 8 bytes a
    document, when it is first touched. order="global": 8 bytes for 1,024 documents, and half a
    byte more for each epoch in use. padded: one pass over all lengths, 8 bytes a shard.

    Raises
    ------
    TypeError
        For documents that are no corpus, and options of wrong types.
    ValueError
        For a sequence_length below 1, bos, eos or pad that dtype cannot hold, documents without a
        token, fewer tokens than one sequence takes, and padded with order="global".

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
      1 token at the end of an epoch fills no sequence
    >>> batch = packed.gather([0, 1])
    >>> batch["inputs"].shape, batch["cu_seqlens"].tolist()
    ((2, 10), [0, 6, 10, 12, 18, 20])
    >>> all(0 in packed.sequences_of(piece[:3]) for piece in packed.documents(0))
    True
    """

    #: `gather` takes ``threads=``.
    supports_threads = True

    def __init__(
        self,
        documents: Corpus,
        *,
        sequence_length: int,
        bos: int | None = None,
        eos: int | None = None,
        order: Literal["shards", "global"] = "shards",
        padded: bool = False,
        pad: int = 0,
        dtype: Any = "int64",
        live_shards: int = 8,
        cache: bool | str | os.PathLike[str] = False,
        progress: Progress = False,
        threads: int | None = None,
    ) -> None:
        check_corpus(documents)
        check_progress(progress)
        self.corpus = documents
        self.options = Options(
            sequence_length, bos, eos, order, bool(padded), pad, checked_dtype(dtype)
        )
        self._how: dict[str, Any] = {
            "live_shards": check_integer("live_shards", live_shards, least=1),
            "cache": cache,
            "progress": progress,
            "threads": threads,
        }
        self._begin(None, {})

    def _begin(self, counted: Int64s | None, indexed: dict[int, Int64s]) -> None:
        """All that is made of documents and options, and of what earlier passes found."""
        threads = self._how["threads"]
        crew = default_threads() if threads is None else check_integer("threads", threads, least=1)
        passes = Passes(self.corpus, self.options, self._how["cache"], self._how["progress"], crew)
        passes.counted, passes.indexed = counted, indexed
        self._passes = passes
        live = LRUCache(self._how["live_shards"])
        if self.options.padded:
            self._layout: Layout = Padded(self.corpus, self.options, live, passes, crew)
        elif self.options.order == "global":
            self._layout = ByBlocks(self.corpus, self.options, live, passes)
        else:
            self._layout = ByShards(self.corpus, self.options, live, crew)
        self._epochs = LRUCache(EPOCHS_KEPT)

    @property
    def _first(self) -> PackedEpoch:
        # Made anew each time: it holds this object, and kept here both would outlive their users.
        return self.at_epoch(0, seed=0)

    def __getstate__(self) -> dict[str, Any]:
        kept = {"corpus": self.corpus, "options": self.options, "_how": self._how}
        indexed = self._layout.indexed() if isinstance(self._layout, ByBlocks) else {}
        return {**kept, "counted": self._passes.counted, "indexed": indexed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found = [state.pop(name) for name in ("counted", "indexed")]
        self.__dict__.update(state)
        self._begin(*found)

    # --- epochs ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Sequences of an epoch."""
        return self._layout.samples

    def at_epoch(self, epoch: int, *, seed: int = 0) -> PackedEpoch:
        """The sequences of one epoch, as a source.

        Parameters
        ----------
        epoch, seed
            Integers in [0, 2^64).

        Returns
        -------
        PackedEpoch
            Its first batch takes O(shards) time (order="global": O(blocks), and a pass over the
            corpus for a seed without an index). The last four epochs are remembered.
        """
        return PackedEpoch(self, self._layout, self._epochs, epoch, seed)

    def build_index(self, seed: int = 0) -> None:
        """Make the index that order="global" needs, which the first batch would do otherwise.

        One pass over the lengths of all documents, in parallel and with the progress bar asked
        for; 8 bytes for 1,024 documents. With `cache` it is read where it was made before.
        """
        if isinstance(self._layout, ByBlocks):
            self._layout.index(check_integer("seed", seed, most=2**64 - 1))

    # --- batches -----------------------------------------------------------------------------

    def gather(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """One batch of epoch 0 with seed 0: row k of every array is sequence ``indices[k]``.

        Parameters
        ----------
        indices
            Integers of shape (k,), in any order, repeated or not.
        out
            Arrays to write into, by key, as `gather_rows` has them; new ones if None.
        threads
            How many threads may copy; None for as many as there are processors.

        Returns
        -------
        dict of arrays
            See the keys above. Writable; inputs and targets are views of one buffer.

        Raises
        ------
        IndexError
            For an index outside ``[0, len)``.
        ValueError
            For a token that the dtype cannot hold, with its document; and when a shard does not
            hold what was counted.
        OSError
            When a file became shorter while it was mapped.
        """
        return self._first.gather(indices, out, threads)

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int | None = 1) -> Batch:
        """The rows of `gather`: ``tokens`` (k, L + 1), ``position_ids`` and ``targets_mask``."""
        return self._first.gather_rows(indices, out, threads)

    def whole(self, rows: Batch) -> Batch:
        """What a batch of these rows has as a whole: ``cu_seqlens``.

        Raises
        ------
        ValueError
            For 2^31 tokens or more, which int32 cannot count.
        """
        return whole(rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with ``inputs`` and ``targets``, views of ``tokens``, in place of these.

        The values are NumPy arrays or torch tensors.
        """
        return present(batch)

    # --- who was served when -----------------------------------------------------------------

    def documents(self, sample: int, *, epoch: int = 0, seed: int = 0) -> list[Piece]:
        """Which documents a sequence holds, and which of their tokens.

        Parameters
        ----------
        sample
            A sequence of the epoch, in [0, len).
        epoch, seed
            Which epoch.

        Returns
        -------
        list of Piece
            ``(dataset_id, shard_id, doc_id, start, stop)`` in the order of the sequence, counting
            tokens of the document with its frame. They cover all L + 1 tokens, the last target
            among them; with padding, all but that.

        Raises
        ------
        IndexError
            For a sample outside [0, len).
        """
        return self.at_epoch(epoch, seed=seed).documents(sample)

    def sequences_of(
        self, document: tuple[str, int, int], *, epoch: int = 0, seed: int = 0
    ) -> Int64s:
        """Which sequences hold some of a document: the inverse of `documents`.

        Parameters
        ----------
        document
            ``(dataset_id, shard_id, doc_id)``.
        epoch, seed
            Which epoch.

        Returns
        -------
        int64 array
            Samples of the epoch, ascending; empty for a document without tokens, and for one that
            lies in the tail.

        Raises
        ------
        TypeError, KeyError, IndexError
            For what is no such triple, a shard and a document that do not exist.
        """
        return self.at_epoch(epoch, seed=seed).sequences_of(document)

    # --- what it is --------------------------------------------------------------------------

    @property
    def fingerprint(self) -> Fingerprint:
        """The corpus's fields (as ``documents.<field>``), the options but dtype, and the length."""
        return fingerprint_of(self._layout)

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        """A sentence on why a field differs from a saved fingerprint, if the corpus knows one."""
        explain = getattr(self.corpus, "explain_change", None)
        if explain is None or not field.startswith("documents."):
            return None
        sentence: str | None = explain(field.removeprefix("documents."), was, now)
        return sentence

    @cached_property
    def report(self) -> PackingReport:
        """How many sequences there are, and what of the documents is in them."""
        layout, options = self._layout, self.options
        held, kept = (
            int(numbers.sum()) for numbers in (self.corpus.shard_documents, self.corpus.shard_kept)
        )
        tail = 0 if options.padded else layout.tokens - layout.samples * options.length - 1
        return PackingReport(
            sequences=layout.samples,
            sequence_length=options.length,
            documents=kept,
            filtered=held - kept,
            tokens=layout.tokens,
            frames=kept * options.frame,
            tail=tail,
            padding=getattr(layout, "padding", 0),
        )

    def explain(self) -> PackingReport:
        """The report; ``print(packed.explain())`` tells."""
        return self.report

    def __repr__(self) -> str:
        options = self.options
        shown: dict[str, Any] = {
            "sequence_length": options.length,
            "bos": options.bos,
            "eos": options.eos,
        }
        shown |= {"order": options.order, "padded": options.padded}
        shown |= {"pad": options.pad} if options.padded else {}
        return (
            f"PackedSequences({self.corpus!r}, {', '.join(f'{n}={v!r}' for n, v in shown.items())})"
        )
