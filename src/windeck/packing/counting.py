"""Passes over a corpus before packing, and a cache of their results in files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from windeck import _core
from windeck._util.fingerprints import digest
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck._util.warning import warn
from windeck.documents.protocol import Corpus, Int64s
from windeck.io import filesystem
from windeck.packing.corpora import CorpusMembers
from windeck.packing.layout import check_document_run
from windeck.packing.options import Options

__all__ = ["BLOCK_SIZE", "CacheFolder", "CorpusPasses", "base_order"]


_MAGIC = b"WDPACK1\n"


class CacheFolder:
    """Cache of int64 arrays in the files of a folder.

    A file consists of 8 bytes of magic, the 32 hexadecimal digits of its key, the number of values
    (8 bytes), the BLAKE2b digest of the values (16 bytes), and the values, little-endian.

    Parameters
    ----------
    folder
        Path of the folder; None disables the cache.

    Examples
    --------
    >>> CacheFolder(None).get("blocks", str, lambda: np.arange(2), lambda values: True)
    array([0, 1])
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = folder

    @classmethod
    def of(cls, cache: Any, documents: Corpus) -> CacheFolder:
        """Create the cache for the argument ``cache=``: a folder, or True for ``meta`` in the root.

        Raises
        ------
        TypeError
            If `cache` is neither a bool nor a path.
        ValueError
            If `cache` is True and the documents have no root folder.
        """
        if cache is False or cache is None:
            return cls(None)
        if cache is not True:
            try:
                return cls(os.fspath(cache))
            except TypeError:
                raise TypeError(f"`cache` must be True, False or a folder, got {cache!r}") from None
        root = CorpusMembers(documents).root
        if not isinstance(root, (str, os.PathLike)):
            raise ValueError(
                f"`cache` must be a path for {type(documents).__name__}, which has no folder"
            )
        return cls(filesystem.join(os.fspath(root), "meta"))

    def get(
        self,
        kind: str,
        key: Callable[[], str],
        compute: Callable[[], Int64s],
        is_valid: Callable[[Int64s], bool],
    ) -> Int64s:
        """Return cached values; compute and cache them if they are missing or invalid.

        Parameters
        ----------
        kind
            Kind of the values, for the name of the file.
        key
            Returns 32 hexadecimal digits: a digest of everything that the values depend on. Called
            only if there is a folder, because a fingerprint may read from every file.
        compute
            Computes the values.
        is_valid
            Returns True for plausible values.
        """
        if self.folder is None:
            return compute()
        digest = key()
        path = filesystem.join(self.folder, f"windeck-{kind}-{digest}.bin")
        values = _read(path, digest)
        if values is not None and is_valid(values):
            return values
        values = compute()
        try:
            content = np.ascontiguousarray(values, dtype="<i8").tobytes()
            filesystem.write_bytes(path, _header(digest, content) + content)
        except OSError as error:
            warn(
                f"the result of a pass over the documents cannot be cached in {path!r}: {error}",
            )
        return values


def _header(name: str, values: bytes) -> bytes:
    digest = hashlib.blake2b(values, digest_size=16).digest()
    return _MAGIC + name.encode() + (len(values) // 8).to_bytes(8, "little") + digest


def _read(path: str, name: str) -> Int64s | None:
    try:
        content = filesystem.read_bytes(path)
    except OSError:
        return None
    values = content[len(_header(name, b"")) :]
    if not content.startswith(_header(name, values)):
        return None  # Truncated, damaged, or another kind of file.
    numbers: Int64s = np.frombuffer(values, "<i8").astype(np.int64)
    return numbers


#: Documents in a block of the global order.
BLOCK_SIZE = 1024

# Purpose in the hash that seeds are derived with; published with the packed order.
_BASE = 3


def base_order(documents: int, seed: int) -> _core.Permutation:
    """Return the global order of a seed, before an epoch permutes its blocks."""
    return _core.Permutation(documents, seed=_core.hash_words(seed, _BASE))


class CorpusPasses:
    """Results of passes over a corpus: block sums and sequence counts, cached if requested.

    Parameters
    ----------
    documents, options
        The corpus and the packing options.
    cache, progress
        As for `PackedSequences`.
    threads
        Shards read at a time.
    """

    def __init__(
        self, documents: Corpus, options: Options, cache: Any, progress: Progress, threads: int
    ) -> None:
        self._documents, self._options = documents, options
        self._cache = CacheFolder.of(cache, documents)
        self._progress, self._threads = progress, threads
        #: Sequences and their tokens for each shard, if padded; part of pickles.
        self.known_counts: Int64s | None = None
        #: Block sums by seed from a pickle, each until it is first used.
        self.known_sums: dict[int, Int64s] = {}

    def block_sums(self, seed: int, total: int) -> Int64s:
        """Return the framed tokens in each block of the global order: int64 of shape (blocks,).

        Raises
        ------
        ValueError
            If the documents do not have `total` framed tokens.
        """
        if seed in self.known_sums:
            return self.known_sums.pop(seed)
        held = self._documents.shard_documents
        count = int(held.sum())
        size = -(-count // BLOCK_SIZE)

        def key() -> str:
            return digest(self._fields(), "blocks", count, BLOCK_SIZE, seed, _core.ORDER_VERSION)

        def is_valid(sums: Int64s) -> bool:
            return len(sums) == size and int(sums.min()) >= 0 and int(sums.sum()) == total

        def compute() -> Int64s:
            sums = self._sum_blocks(seed, self._options.frame)
            if not is_valid(sums):
                raise ValueError(
                    f"the documents have {sums.sum()} tokens with their frames, expected {total} "
                    "as counted at the start"
                )
            return sums

        return self._cache.get("blocks", key, compute, is_valid)

    def _sum_blocks(self, seed: int, frame: int) -> Int64s:
        """Return the tokens in each block of the global order, with `frame` more a document."""
        held = self._documents.shard_documents
        count = int(held.sum())
        sums = np.zeros(-(-count // BLOCK_SIZE), np.int64)
        first = np.concatenate([[0], np.cumsum(held)])

        def add(shard: int, threads: int) -> None:
            opened = self._documents.open(shard)
            if isinstance(opened, _core.TokenShard) and len(opened) != held[shard]:
                dataset_id, shard_id = self._documents.shard_name(shard)
                raise ValueError(
                    f"shard {shard_id} of {dataset_id!r} has {len(opened)} documents, "
                    f"expected {held[shard]} as counted at the start"
                )
            _core.add_block_sums(
                opened,
                size=count,
                seed=_core.hash_words(seed, _BASE),
                first=int(first[shard]),
                block_size=BLOCK_SIZE,
                frame=frame,
                sums=sums,
                threads=threads,
            )

        self._for_each_shard("indexing documents", add)
        return sums

    def block_kept(self, seed: int, sums: Int64s) -> Int64s:
        """Return the kept documents in each block of the global order: int64 of shape (blocks,).

        Parameters
        ----------
        seed
            The seed of the order.
        sums
            The framed tokens in each block.
        """
        held, kept = self._documents.shard_documents, self._documents.shard_kept
        count = int(held.sum())
        if int(kept.sum()) == count:
            borders = np.append(np.arange(0, count, BLOCK_SIZE), count)
            return np.diff(borders)

        def key() -> str:
            fields = self._documents.fingerprint
            return digest(fields, "kept", count, BLOCK_SIZE, seed, _core.ORDER_VERSION)

        def is_valid(found: Int64s) -> bool:
            return len(found) == len(sums) and int(found.sum()) == int(kept.sum())

        def compute() -> Int64s:
            # The frames of documents are what differs between two sums.
            frame = self._options.frame
            other = self._sum_blocks(seed, 0 if frame else 1)
            return (sums - other) // frame if frame else other - sums

        return self._cache.get("kept", key, compute, is_valid)

    def sequence_counts(self) -> tuple[Int64s, Int64s]:
        """Return the padded sequences of each shard, and their tokens: int64 of shape (S,) each."""
        shards = len(self._documents.shard_documents)

        def compute() -> Int64s:
            found = np.zeros((2, shards), np.int64)

            def count(shard: int, threads: int) -> None:
                found[:, shard] = self._count_sequences(shard, threads)

            self._for_each_shard("fitting documents", count)
            return found.reshape(-1)

        def is_valid(found: Int64s) -> bool:
            return len(found) == 2 * shards and int(found.min()) >= 0

        def key() -> str:
            options = self._options
            lengths = options.length, options.content, options.overlap
            return digest(self._fields(), "padded", lengths, _core.ORDER_VERSION)

        if self.known_counts is None:
            self.known_counts = self._cache.get("padded", key, compute, is_valid)
        sequences, tokens = self.known_counts.reshape(2, shards)
        return sequences, tokens

    def _count_sequences(self, shard: int, threads: int) -> tuple[int, int]:
        options = self._options
        document_run = _core.DocumentRun(
            self._documents.open(shard), bos=options.bos, eos=options.eos, threads=threads
        )
        corpus = self._documents
        expected = int(corpus.shard_tokens[shard]) + options.frame * int(corpus.shard_kept[shard])
        checked = check_document_run(corpus, shard, document_run, expected)
        fit = _core.BestFit(checked, options.content, options.overlap)
        return len(fit), fit.tokens

    def _for_each_shard(self, what: str, work: Callable[[int, int], None]) -> None:
        """Call ``work(shard, threads)`` for every non-empty shard; raise the first error."""
        documents = self._documents.shard_documents
        shards = np.flatnonzero(documents > 0).tolist()
        # With few shards, the threads share the documents of each shard instead.
        threads_per_shard = 1 if len(shards) >= 2 * self._threads else self._threads

        with report_progress(self._progress, what, int(documents.sum())) as advance:

            def process(number: int) -> None:
                shard = shards[number]
                work(shard, threads_per_shard)
                advance(int(documents[shard]))

            run_in_threads(process, len(shards), self._threads, portion=1)

    def _fields(self) -> dict[str, str | int]:
        """Return the fields that the results of all passes depend on."""
        return {**self._documents.fingerprint, "frame": self._options.frame}
