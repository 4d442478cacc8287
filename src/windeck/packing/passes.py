"""What a pass found, kept in a file: numbers under a digest, checked before they are believed."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from windeck import _core
from windeck._util.fingerprints import digest
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck.documents.protocol import Corpus, Int64s
from windeck.io import filesystem
from windeck.packing.options import Options
from windeck.packing.shard_shuffle import checked_run

__all__ = ["BLOCK", "CacheFolder", "Passes", "base_order"]


_MAGIC = b"WDPACK1\n"


class CacheFolder:
    """Arrays of int64 by name, in a folder or nowhere.

    A file is 8 bytes that say what it is, the 32 letters of its name's digest, the number of
    values (8 bytes), the BLAKE2b of the values (16 bytes), and the values, little-endian.

    Parameters
    ----------
    folder
        Where the files are; None keeps nothing.

    Examples
    --------
    >>> CacheFolder(None).get("blocks", str, lambda: np.arange(2), lambda values: True)
    array([0, 1])
    """

    def __init__(self, folder: str | None) -> None:
        self.folder = folder

    @classmethod
    def of(cls, cache: Any, documents: object) -> CacheFolder:
        """The folder that ``cache=`` means: a path, ``meta`` beside the data, or none.

        Raises
        ------
        TypeError
            For what is no flag or path.
        ValueError
            For True with documents that lie in no folder.
        """
        if cache is False or cache is None:
            return cls(None)
        if cache is not True:
            try:
                return cls(os.fspath(cache))
            except TypeError:
                raise TypeError(f"cache is {cache!r}, expected True, False or a folder") from None
        root = getattr(documents, "root", None)
        if not isinstance(root, (str, os.PathLike)):
            raise ValueError(
                f"cache is True and {type(documents).__name__} lies in no folder, expected a path"
            )
        return cls(os.path.join(os.fspath(root), "meta"))

    def get(
        self,
        kind: str,
        name: Callable[[], str],
        make: Callable[[], Int64s],
        good: Callable[[Int64s], bool],
    ) -> Int64s:
        """The values of that name: read where they are good, else made and written.

        Parameters
        ----------
        kind
            What they are, for the file's name.
        name
            Gives 32 hexadecimal digits: the digest of all that they depend on. Only asked where
            there is a folder, since a fingerprint may take a look at every file.
        make
            Makes them.
        good
            Whether values that were read can be these.
        """
        if self.folder is None:
            return make()
        digest = name()
        path = os.path.join(self.folder, f"windeck-{kind}-{digest}.bin")
        values = _read(path, digest)
        if values is not None and good(values):
            return values
        values = make()
        try:
            content = np.ascontiguousarray(values, dtype="<i8").tobytes()
            filesystem.write_bytes(path, _header(digest, content) + content)
        except OSError as error:
            warnings.warn(
                f"what a pass over the documents found could not be kept in {path!r}: {error}",
                UserWarning,
                stacklevel=2,
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
        return None  # Cut short, or of something else: made anew.
    numbers: Int64s = np.frombuffer(values, "<i8").astype(np.int64)
    return numbers


#: Documents in a block of the global order.
BLOCK = 1024

# What a key is derived for; published with the packed order.
_BASE = 3


def base_order(documents: int, seed: int) -> _core.Permutation:
    """The global order of a seed, before epochs permute its blocks."""
    return _core.Permutation(documents, seed=_core.hash_words(seed, _BASE))


class Passes:
    """What passes over a corpus found, or a cache of it.

    Parameters
    ----------
    documents, options
        What is packed, and how.
    cache
        As for `PackedSequences`.
    progress
        Who is told how far a pass has come.
    threads
        Shards read at a time.
    """

    def __init__(
        self, documents: Corpus, options: Options, cache: Any, progress: Progress, threads: int
    ) -> None:
        self._documents, self._options = documents, options
        self._cache = CacheFolder.of(cache, documents)
        self._progress, self._threads = progress, threads
        #: Sequences and their tokens for each shard, where padded; handed on by pickle.
        self.counted: Int64s | None = None
        #: Sums of blocks by seed, as a pickle brought them; each until it is first asked for.
        self.indexed: dict[int, Int64s] = {}

    def block_sums(self, seed: int, total: int) -> Int64s:
        """Framed tokens in each block of the global order: int64 of shape (blocks,).

        Raises
        ------
        ValueError
            When the documents do not hold `total` tokens, as their counts say.
        """
        if seed in self.indexed:
            return self.indexed.pop(seed)
        held = self._documents.shard_documents
        count = int(held.sum())
        size = -(-count // BLOCK)

        def name() -> str:
            return digest(self._fields(), "blocks", count, BLOCK, seed, _core.ORDER_VERSION)

        def good(sums: Int64s) -> bool:
            return len(sums) == size and int(sums.min()) >= 0 and int(sums.sum()) == total

        def make() -> Int64s:
            sums = np.zeros(size, np.int64)
            first = np.concatenate([[0], np.cumsum(held)])

            def add(shard: int, threads: int) -> None:
                opened = self._documents.open(shard)
                if isinstance(opened, _core.TokenShard) and len(opened) != held[shard]:
                    dataset_id, shard_id = self._documents.shard_name(shard)
                    raise ValueError(
                        f"shard {shard_id} of {dataset_id!r} holds {len(opened)} documents, "
                        f"expected {held[shard]} as counted at the start"
                    )
                _core.add_block_sums(
                    opened,
                    size=count,
                    seed=_core.hash_words(seed, _BASE),
                    first=int(first[shard]),
                    block_size=BLOCK,
                    frame=self._options.frame,
                    sums=sums,
                    threads=threads,
                )

            self._each_shard("indexing documents", add)
            if not good(sums):
                raise ValueError(
                    f"the documents hold {sums.sum()} tokens with their frames, expected {total} "
                    "as counted at the start"
                )
            return sums

        return self._cache.get("blocks", name, make, good)

    def sequences(self) -> tuple[Int64s, Int64s]:
        """Padded sequences of each shard and the tokens in them: int64 of shape (S,) each."""
        shards = len(self._documents.shard_documents)

        def make() -> Int64s:
            found = np.zeros((2, shards), np.int64)

            def count(shard: int, threads: int) -> None:
                found[:, shard] = self._fitted(shard, threads)

            self._each_shard("fitting documents", count)
            return found.reshape(-1)

        def good(found: Int64s) -> bool:
            return len(found) == 2 * shards and int(found.min()) >= 0

        def name() -> str:
            return digest(self._fields(), "padded", self._options.length, _core.ORDER_VERSION)

        if self.counted is None:
            self.counted = self._cache.get("padded", name, make, good)
        sequences, tokens = self.counted.reshape(2, shards)
        return sequences, tokens

    def _fitted(self, shard: int, threads: int) -> tuple[int, int]:
        options = self._options
        run = _core.DocumentRun(
            self._documents.open(shard), bos=options.bos, eos=options.eos, threads=threads
        )
        held = self._documents
        expected = int(held.shard_tokens[shard]) + options.frame * int(held.shard_kept[shard])
        fit = _core.BestFit(checked_run(held, shard, run, expected), options.length + 1)
        return len(fit), fit.tokens

    def _each_shard(self, what: str, work: Callable[[int, int], None]) -> None:
        """Call ``work(shard, threads)`` for every shard; the first error is the caller's."""
        documents = self._documents.shard_documents
        wanted = np.flatnonzero(documents > 0).tolist()
        # Few shards: threads go to the documents of one instead.
        each = 1 if len(wanted) >= 2 * self._threads else self._threads

        with report_progress(self._progress, what, int(documents.sum())) as advance:

            def one(number: int) -> None:
                shard = wanted[number]
                work(shard, each)
                advance(int(documents[shard]))

            run_in_threads(one, len(wanted), self._threads, portion=1)

    def _fields(self) -> dict[str, str | int]:
        """What every pass depends on."""
        return {**self._documents.fingerprint, "frame": self._options.frame}
