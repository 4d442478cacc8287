"""Random access to the documents of a corpus in files."""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from windeck._core import TokenShard, checked_bulk, checked_one, default_threads
from windeck._util.file_limit import file_limit
from windeck._util.fingerprints import digest
from windeck._util.html import html_table
from windeck._util.lru_cache import LRUCache
from windeck._util.options import explain_options
from windeck._util.parallel import PORTION, run_in_threads
from windeck._util.progress import Progress, check_progress, report_progress
from windeck._util.terminal import escaped
from windeck._util.text import format_bytes, plural
from windeck._util.validation import check_bytes, check_integer
from windeck.documents import verification
from windeck.documents.checking import FileSummary
from windeck.documents.counts import CorpusCounts, CountCache, cache_file, count_corpus
from windeck.documents.discovery import Format, Patterns, discover, parse_patterns, path_filter
from windeck.documents.locations import DocumentLocator
from windeck.documents.protocol import Int64s
from windeck.documents.read_ahead import ReadAhead, ShardSequence, read_ahead_of
from windeck.documents.readers import DocumentOptions
from windeck.documents.splitting import HashRange, splits_of, take_splits
from windeck.documents.token_files import DOCUMENT_BYTES
from windeck.documents.tokenization import Tokenizer
from windeck.io import filesystem as files_io

__all__ = ["Documents"]

T = TypeVar("T")

#: (dataset_id, shard_id, doc_id): ("c4", 3, 110) is document 110, counted from 0, of c4's part 3.
DocumentName: TypeAlias = tuple[str, int, int]
#: Arrays for several documents: index of the dataset in `dataset_ids`, shard_id, doc_id.
DocumentNames: TypeAlias = tuple[Int64s, Int64s, Int64s]

#: Remote files that are checked at the same time: each takes a few round trips.
_REMOTE_THREADS = 32
#: Datasets that `explain` lists.
_MAX_LISTED = 12


class DocumentSplit(NamedTuple):
    """Training, validation and test documents. A split whose share is 0 has no tokens."""

    train: Documents
    validation: Documents
    test: Documents


@explain_options
class Documents:
    """The documents of a folder of files, numbered 0, 1, 2, ...

    `root` contains folders ``dataset=NAME``, which contain at any depth shards ``*.partN.arrow`` or
    ``*.partN.parquet``. A folder of shards alone is one dataset ``default``; JSON lines and folders
    that Hugging Face datasets saved are read, too, and so are files of bare tokens, of nanoGPT,
    Megatron-LM and MosaicML (see `format`). One column holds the documents: a list of
    integers per row; or integers, with a document per record batch (Arrow only); or text, with a
    tokenizer. Documents are ordered by dataset (natural order of names), then by part number, then
    as stored. Without part numbers the shards of a dataset are ordered by their paths (natural
    order).

    A file is mapped when one of its documents is first read, at most `open_files` at a time.
    Files that are decoded into memory take at most `open_bytes` together.
    Document counts are read from ``meta/*counts*.csv`` if it exists, else from the files.

    Parameters
    ----------
    root
        The folder; also as a URL: ``s3://bucket/corpus``.
    column
        The column that holds the documents.
    tokenizer
        For a column of text: a function from a text to its tokens, such as ``str.encode``; or a
        tokenizer of tokenizers or transformers, or another object with ``encode_batch``, which is
        called with many texts at a time. Shards are tokenized as a whole when tokens are counted
        and when they are opened; those that were counted last are kept within `open_bytes`.
    files
        Globs relative to `root` that select some of the files: ``"dataset=c4"``,
        ``"dataset=*/**/*.part[0-4].arrow"``.
    min_length
        Documents with fewer tokens are filtered: they keep their numbers and have no tokens.
    strip_tokens
        Token ids removed at both ends of a document, before `min_length` is applied.
    open_files
        Maximum number of files mapped at a time; the least recently used one is closed first.
        Parquet files, compressed files and text are kept decoded in memory instead, and are bounded
        by `open_bytes` first.
    cache
        Whether counts read from files are cached in ``meta/windeck-counts-*.csv`` for the next
        start; or the path of a file or folder for the cache.
    progress
        Whether to show a progress bar while files are counted (if rich is installed), or a
        function ``(done, total)``. None: a bar at a terminal, if it takes more than two seconds.
    threads
        Threads that check and count files; by default it depends on the number of processors.
    open_bytes
        Maximum memory of the files that are kept decoded, in bytes or as ``"2GB"``; the least
        recently used one is dropped first. A larger file is kept alone. 512 MiB by default.
    part_pattern
        Regular expression with one group of digits, which is searched in the names of files and
        gives their part numbers: ``"-([0-9]+)-of-"`` for ``train-00003-of-00128.parquet``. By
        default ``.partN.``.
    filesystem
        A file system of pyarrow.fs or fsspec, on which `root` is.
    storage_options
        Options for the file system of a URL, such as credentials and endpoint.
    cache_dir
        Local folder where remote files are kept, for later reads and for other processes. Without
        it an open remote file is in memory, within `open_bytes`, and the next ones of an epoch are
        read ahead, within half of `open_bytes` more.
    cache_bytes
        Maximum size of the files in `cache_dir` together, in bytes; not limited by default.
    format
        ``"nanogpt"``: flat ``.bin`` files of tokens, with or without the header of llm.c.
        ``"megatron"``: ``.bin`` files with ``.idx`` files of Megatron-LM. ``"mds"``: MDS shards
        that ``index.json`` lists, not compressed or zstd, whose column is ``ndarray`` or ``bytes``.
        By default the format is found by the names and contents of files, except nanoGPT's.
    end_token
        The token between documents in files of nanoGPT, for example 50256. It is not part of a
        document.
    dtype
        Dtype of the tokens in files that do not state it: nanoGPT's without a header, and MDS
        columns of ``bytes``.

    Attributes
    ----------
    root : str
        The folder, as an absolute path.
    dataset_ids : tuple of str
        Names of the datasets, in natural order.
    shard_documents, shard_kept, shard_tokens : int64 arrays of shape (S,)
        For each of the S shards: documents, documents that are not filtered, and their tokens.
        Read-only.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        If `root` is not a folder or has no dataset, if `files` matches nothing, or if a count file
        has a row for a file that does not exist.
    ValueError
        If a file is truncated or has another format, if two files have one part number, if a count
        file is damaged or contradicts a file, if no document has a token, or if `part_pattern` is
        not such an expression or matches no file.
    KeyError, TypeError
        If a file has no such column, or the type of the column is not supported.
    ValueError, TypeError
        If `format`, `end_token` or `dtype` is invalid, missing, or does not apply to the files.

    Notes
    -----
    O(S) memory and start-up time for any number of documents: about 10 us a file with a count
    file. All methods are thread-safe. A pickle has O(S) bytes; files are opened again.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import pyarrow as pa
    >>> from pyarrow import feather
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> (root / "dataset=c4").mkdir()
    >>> for part, lists in ((2, [[1, 2, 3]]), (10, [[4], [], [5, 6]])):
    ...     table = pa.table({"tokens": pa.array(lists, pa.list_(pa.uint16()))})
    ...     path = root / f"dataset=c4/x.part{part}.arrow"
    ...     feather.write_feather(table, path, compression="uncompressed")
    >>> documents = Documents(root)
    >>> documents
    <Documents: 1 dataset, 2 shards, 4 documents, 6 tokens>
    >>> documents[3], documents.locate(3), documents.index(("c4", 10, 2))
    (array([5, 6], dtype=uint16), ('c4', 10, 2), 3)
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        column: str = "tokens",
        tokenizer: Tokenizer | None = None,
        files: Patterns = None,
        min_length: int = 0,
        strip_tokens: Iterable[int] = (),
        open_files: int = 64,
        cache: bool | str | os.PathLike[str] = False,
        progress: Progress = None,
        threads: int | None = None,
        open_bytes: float | str = 2**29,
        part_pattern: str | None = None,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: float | str | None = None,
        format: Format | None = None,
        end_token: int | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        check_progress(progress)
        patterns = parse_patterns(files)
        self._options = DocumentOptions.validated(
            column, tokenizer, min_length, strip_tokens, format, end_token, dtype
        )
        self._open_files = check_integer("open_files", open_files, least=1)
        self._open_bytes = check_bytes("open_bytes", open_bytes)
        self._threads = None if threads is None else check_integer("threads", threads, least=1)
        self._shards = shards = discover(
            root,
            patterns,
            part_pattern,
            {
                "filesystem": filesystem,
                "storage_options": storage_options,
                "cache_dir": cache_dir,
                "cache_bytes": cache_bytes,
            },
            format,
        )
        cached = cache_file(cache, shards.root, self._options)

        check = self._options.checker()
        summaries = self._for_all_files(lambda shard: check(shards.path(shard)))
        self._sizes = np.array([one.size for one in summaries], dtype=np.int64)
        self._decoded = np.zeros(len(shards.paths), dtype=np.int64)
        self._create_cache()
        self._counts = count_corpus(
            shards,
            self._options,
            path_filter(patterns),
            summaries=summaries,
            cache=CountCache(cached, shards.paths, summaries) if cached else None,
            progress=progress,
            threads=self._threads,
            open_files=self._open_files,
            keep=self._keep if any(map(self._options.is_read_to_count, summaries)) else None,
        )
        self._check_tokens()
        memory, self._is_mapped = _open_bytes(summaries, self._counts)
        if files_io.is_in_memory(shards.root):
            memory = memory + np.where(self._is_mapped, self._sizes, 0)
            self._is_mapped = np.zeros(len(shards.paths), dtype=bool)
        np.copyto(self._decoded, memory, where=self._decoded == 0)
        self._fingerprint: dict[str, str | int] = {}
        self._locator = DocumentLocator(self._shards, self._counts.documents)
        self._ahead = self._read_ahead()

    def _for_all_files(self, work: Callable[[int], T]) -> list[T]:
        """Return ``work(shard)`` for all shards, computed in threads; it reads little of each."""
        threads, portion = self._threads, PORTION
        if files_io.is_remote(self._shards.root):
            threads, portion = threads or _REMOTE_THREADS, 1
        return run_in_threads(work, len(self._shards.paths), threads, portion=portion)

    def _keep(self, shard: int, opened: TokenShard) -> None:
        """Keep a shard that was read as a whole to count it: it need not be read again."""
        width = np.dtype(opened.dtype).itemsize
        tokens, places = (0, DOCUMENT_BYTES) if opened.mapped else (opened.totals()[1], 8)
        contents = opened.mapped and files_io.is_in_memory(self._shards.root)
        file_bytes = int(self._sizes[shard]) if contents else 0
        self._decoded[shard] = width * tokens + places * len(opened) + file_bytes
        self._opened.get(shard, lambda: opened)

    def _create_cache(self) -> None:
        """Create the cache of open files."""
        # Shards have no locks, so a forked child may keep those that are open.
        self._opened = LRUCache(
            self._open_files,
            keep_after_fork=True,
            total_size=self._open_bytes,
            size_of=self._decoded.__getitem__,
        )

    def _check_tokens(self) -> None:
        """Raise a ValueError if no document has a token."""
        counts = self._counts
        if counts.kept_tokens.any():
            return
        documents, kept = int(counts.documents.sum()), int(counts.kept.sum())
        filtered = ""
        if documents > kept:
            filtered = f"{documents - kept:,} are filtered ({self._describe_filters()}), "
        raise ValueError(
            f"none of the {plural(documents, 'document')} in "
            f"{plural(len(self._shards.paths), 'shard')} below {self.root!r} has a token: "
            f"{filtered}{kept:,} are empty; expected at least one token"
        )

    @property
    def root(self) -> str:
        return self._shards.root

    @property
    def dataset_ids(self) -> tuple[str, ...]:
        return self._shards.dataset_ids

    @property
    def shard_documents(self) -> Int64s:
        return self._counts.documents

    @property
    def shard_kept(self) -> Int64s:
        return self._counts.kept

    @property
    def shard_tokens(self) -> Int64s:
        return self._counts.kept_tokens

    @property
    def shard_bytes(self) -> Int64s:
        """Bytes of the file of each shard: int64 of shape (S,)."""
        return self._sizes

    def __len__(self) -> int:
        return self._locator.total

    @overload
    def locate(self, document: int) -> DocumentName: ...

    @overload
    def locate(self, document: ArrayLike) -> DocumentNames: ...

    def locate(self, document: Any) -> DocumentName | DocumentNames:
        """Return the location of documents: ``("c4", 3, 110)`` is document 110 of part 3 of c4.

        Parameters
        ----------
        document
            A number in [0, len), or an array of shape (k,).

        Returns
        -------
        (dataset_id, shard_id, doc_id) for a number, with doc_id counted from 0. Three int64 arrays
        of shape (k,) for an array, with the dataset as its index in `dataset_ids`.

        Raises
        ------
        IndexError
            If a number is out of range.
        """
        if not isinstance(document, np.ndarray) and hasattr(type(document), "__index__"):
            document = checked_one(document, len(self), "document")
            shard, within = self._locator.find_shards(np.array([document]))
            return (*self.shard_name(int(shard[0])), int(within[0]))
        numbers, _ = checked_bulk(document, len(self), "document", None)
        dataset, part, within = self._locator.locate(numbers)
        return dataset, part, within

    @overload
    def index(self, document: DocumentName) -> int: ...

    @overload
    def index(self, document: tuple[ArrayLike, ArrayLike, ArrayLike]) -> Int64s: ...

    def index(self, document: Any) -> int | Int64s:
        """Return the numbers of documents: the inverse of `locate`.

        Parameters
        ----------
        document
            ``("c4", 3, 110)``, or three arrays of shape (k,): datasets (names or numbers),
            shard_ids and doc_ids.

        Returns
        -------
        int, or int64 array of shape (k,).

        Raises
        ------
        KeyError
            If there is no such dataset or shard.
        IndexError
            If the shard has fewer documents.
        """
        try:
            dataset, part, number = document
        except (TypeError, ValueError):
            raise TypeError(
                f"`document` must be (dataset_id, shard_id, doc_id), got {document!r}"
            ) from None
        fields = (
            self._locator.dataset_numbers(dataset),
            _as_int64("shard_id", part),
            _as_int64("doc_id", number),
        )
        shape = np.broadcast_shapes(*(field.shape for field in fields))
        flat = [np.broadcast_to(field, shape).ravel() for field in fields]
        found = self._locator.index(self._locator.shard_numbers(flat[0], flat[1]), flat[2])
        return found.reshape(shape) if shape else int(found[0])

    def __getitem__(self, document: int) -> NDArray[Any]:
        """Return a copy of a document's tokens, in the stored dtype; empty if it is filtered."""
        number = checked_one(operator.index(document), len(self), "document", from_end=True)
        shard, within = self._locator.find_shards(np.array([number]))
        tokens: NDArray[Any] = self.open(int(shard[0])).document(int(within[0]))
        return tokens

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[document] for document in range(len(self)))

    def shard_name(self, shard: int) -> tuple[str, int]:
        """Return (dataset_id, shard_id) of shard s in [0, S)."""
        shard = checked_one(shard, len(self._shards.paths), "shard")
        name = self._shards.dataset_ids[int(self._shards.dataset[shard])]
        return name, int(self._shards.part[shard])

    def shard_index(self, dataset_id: str, shard_id: int) -> int:
        """Return the number of a shard in [0, S); raise a KeyError if it does not exist."""
        dataset = self._locator.dataset_numbers([dataset_id])
        return int(self._locator.shard_numbers(dataset, _as_int64("shard_id", [shard_id]))[0])

    def shard_path(self, shard: int) -> str:
        """Return the path or URL of the file of a shard, counted from 0 in the order of the corpus.

        Document `d` of a shard is row `d` of its file, where rows are documents.

        Raises
        ------
        IndexError
            If the number is out of range.
        """
        return str(self._shards.path(checked_one(shard, len(self._shards.paths), "shard")))

    def open(self, shard: int) -> TokenShard:
        """Return the documents of shard s; the file is opened if it is not open.

        Raises
        ------
        ValueError
            If the file has changed since the corpus was created, or contradicts its count file.
        OSError
            If it does not exist or cannot be read.
        """
        number = checked_one(shard, len(self._shards.paths), "shard")
        opened: TokenShard = self._opened.get(number, lambda: self._open(number))
        return opened

    def _read_ahead(self) -> ReadAhead | None:
        shards, options, counts, sizes = self._shards, self._options, self._counts, self._sizes
        opened = self._opened

        # Neither of them has a reference to this object.
        def open_shard(shard: int) -> TokenShard:
            return verification.open_checked(shards, options, counts, int(sizes[shard]), shard)

        def is_open(shard: int) -> bool:
            return any(one == shard for one, _ in opened.items())

        return read_ahead_of(shards, sizes, self._decoded, self._open_bytes, open_shard, is_open)

    def _open(self, shard: int) -> TokenShard:
        if self._ahead is not None and (found := self._ahead.take(shard)) is not None:
            return found
        needed_at = {} if self._ahead is None else {"needed_at": self._ahead.needed_at}
        return verification.open_checked(
            self._shards, self._options, self._counts, int(self._sizes[shard]), shard, **needed_at
        )

    @property
    def reads_ahead(self) -> bool:
        """True if shards are read ahead, as remote ones are; see `plan_reads`."""
        return self._ahead is not None

    def plan_reads(self, order: ShardSequence, shard: int, follows: bool = True) -> None:
        """Say that shards are opened in an order from `shard` on, as packing does.

        Remote shards are then read ahead in the background: with a `cache_dir` they are downloaded,
        up to half of `cache_bytes` and 1 GiB, and the cache drops first what is needed last.
        Without one they are opened in memory, up to half of `open_bytes` and 1 GiB beside those
        that are open. Without any effect on local shards.

        Parameters
        ----------
        order
            Object with ``len(order)``, ``order.at(place)`` and ``order.index(shard)``.
        shard
            Shard s that is opened now.
        follows
            Whether the next shards of the order are opened next; otherwise none is opened ahead.
        """
        if self._ahead is not None:
            self._ahead.expect(order, shard, follows)

    def split(
        self,
        validation: float = 0.01,
        test: float = 0.0,
        *,
        seed: int = 0,
        progress: Progress = None,
    ) -> DocumentSplit:
        """Split into training, validation and test documents by a hash of each document.

        The hash depends on `seed` and on the name ``("c4", 3, 110)`` alone (of files without part
        numbers, on their paths), so that documents stay in their split when the corpus grows, is
        filtered, or when a share changes. All splits number documents as this object does; those of
        other splits are filtered. A split may be split again, with the same seed too: the hash then
        depends on the number of splits with this seed.

        Parameters
        ----------
        validation, test
            Shares of the documents, in [0, 1). The sizes of splits are random: n documents and a
            share p give n * p on average, with a standard deviation of sqrt(n * p * (1 - p)).
        seed
            An int in [0, 2^64).
        progress
            As for the class, while documents are counted.

        Returns
        -------
        DocumentSplit
            A named tuple ``(train, validation, test)`` of `Documents`. A split with share 0 has no
            tokens.

        Raises
        ------
        TypeError, ValueError
            If a share or the seed is invalid, or if a split with a share above 0 has no token.

        Notes
        -----
        One pass over the lengths of all documents, in threads: Parquet files, compressed files and
        text are decoded once.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from pyarrow import feather
        >>> import pyarrow as pa
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> (root / "dataset=c4").mkdir()
        >>> table = pa.table({"tokens": [[number] for number in range(1000)]})
        >>> feather.write_feather(table, root / "dataset=c4/x.part0.arrow", "uncompressed")
        >>> train, validation, _ = Documents(root).split(validation=0.1, seed=7)
        >>> train.shard_kept, validation.shard_kept
        (array([900]), array([100]))
        """
        check_progress(progress)
        seed = check_integer("seed", seed, most=2**64 - 1)
        splits = splits_of(validation, test, seed, self._options.splits)
        with report_progress(progress, "splitting documents", len(self._shards.paths)) as advance:
            counted = run_in_threads(
                lambda shard: self._count_splits(shard, splits[1:]),
                len(self._shards.paths),
                min(self._threads or default_threads(), self._open_files),
                advance,
                portion=1,
            )
        # (validation or test, kept or kept_tokens, S)
        kept = np.array(counted, dtype=np.int64).transpose(1, 2, 0)
        all_kept = np.stack([self._counts.kept, self._counts.kept_tokens])
        found = [all_kept - kept.sum(axis=0), *kept]
        for name, share, numbers in zip(
            DocumentSplit._fields, (1, validation, test), found, strict=True
        ):
            if share and not numbers[1].any():
                raise ValueError(
                    f"`{name}` has no token: {plural(int(numbers[0].sum()), 'document')} of "
                    f"{int(all_kept[0].sum()):,} with seed {seed}"
                )
        return DocumentSplit(*map(self._of_split, splits, found))

    def _count_splits(self, shard: int, splits: Sequence[HashRange]) -> list[tuple[int, int]]:
        """Return the kept documents and tokens of a shard in each split."""
        opened = self.open(shard)
        totals = [take_splits(opened, self._shards, shard, (split,)).totals() for split in splits]
        return [(kept, tokens) for _, _, kept, tokens in totals]

    def _of_split(self, split: HashRange, kept: Int64s) -> Documents:
        """Return the documents of one split, with its counts of shape (2, S)."""
        found = copy.copy(self)
        found._options = replace(self._options, splits=(*self._options.splits, split))
        for array in kept:
            array.setflags(write=False)
        nothing = np.zeros(len(self._shards.paths), dtype=bool)
        found._counts = replace(
            self._counts, kept=kept[0], kept_tokens=kept[1], declared=nothing, source=""
        )
        found._fingerprint = {}
        return found

    def verify(self, *, progress: Progress = None) -> None:
        """Read every file completely and compare its documents and tokens with the counts.

        Parameters
        ----------
        progress
            As for the class.

        Raises
        ------
        ValueError
            For the first file that is damaged, has changed, or has different counts.
        OSError
            If a file cannot be read.
        """
        check_progress(progress)
        verification.verify(
            self._shards,
            self._options,
            self._counts,
            self._sizes,
            progress=progress,
            threads=self._threads,
            open_files=self._open_files,
        )

    @property
    def fingerprint(self) -> dict[str, str | int]:
        """Options, sizes, and two sums over the digests of all files.

        The first access reads eight pages of each file, in threads.
        """
        if not self._fingerprint:
            digests = self._for_all_files(self._digest)
            datasets = ", ".join(self.dataset_ids)
            if len(datasets) > 1000:
                datasets = f"{datasets[:60]}... #{digest(datasets)}"
            self._fingerprint = {
                **self._options.fingerprint,
                "datasets": datasets,
                "files": len(digests),
                # Before the counts: a change of contents is reported first, and says more.
                "contents": verification.combine_digests(digests),
                "documents": len(self),
                "tokens": int(self.shard_tokens.sum()),
            }
        return dict(self._fingerprint)

    def _digest(self, shard: int) -> int:
        name = (int(self._shards.dataset[shard]), int(self._shards.part[shard]))
        numbers = (*name, *self._counts.shard(shard)[:2])
        path = self._shards.path(shard)
        others = [verification.file_digest(one, ()) for one in self._options.companions(path)]
        return verification.file_digest(path, (*numbers, *others))

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        """Explain why a field of a saved fingerprint differs from the current one.

        Parameters
        ----------
        field
            Name of the field.
        was, now
            The saved and the current value; None if there is none.

        Returns
        -------
        str or None
            One sentence; None if the two values suffice as an explanation.
        """
        if was is None or now is None:
            return None
        if field in self._options.fingerprint:
            return (
                f"documents were read with {field} = {was!r} when the state was saved, and are "
                f"read with {field} = {now!r} now"
            )
        if field == "datasets":
            return f"the datasets were {was} when the state was saved, and are {now} now"
        if field == "files":
            return (
                f"the corpus had {was} files when the state was saved and has {now} now; "
                "`files` can select the same ones"
            )
        if field == "contents":
            return (
                f"one or more of the {len(self._shards.paths):,} files below {self.root!r} have "
                "changed since the state was saved"
            )
        return None

    def explain_reopening(self) -> str | None:
        """Explain why not all shards can be open at a time, with the options that allow it.

        Returns
        -------
        str or None
            The numbers and the cure; None if `open_files` and `open_bytes` suffice.
        """
        used = self._counts.kept > 0
        shards, decoded = int(used.sum()), int(self._decoded[used].sum())
        cures = []
        if shards > self._open_files:
            cures.append(f"open_files={shards}")
        if decoded > self._open_bytes:
            cures.append(f"open_bytes={decoded}")
        if not cures:
            return None
        mapped, limit = int(self._is_mapped[used].sum()), file_limit()
        descriptors = ""
        if 2 * mapped > limit:
            descriptors = (
                f" and {2 * mapped:,} file descriptors, of which this process may have {limit:,}"
            )
        return (
            f"{plural(shards, 'shard')} ({format_bytes(float(decoded))} decoded) do not all stay "
            f"open with open_files={self._open_files} and open_bytes={self._open_bytes}; they need "
            f"{' and '.join(cures)}{descriptors}"
        )

    def check_growth(self, larger: object) -> None:
        """Check that documents keep their names in a larger corpus, as `Stream` with `grown=` does.

        Raises
        ------
        ValueError
            If a file without a part number has another number there, so that ``("c4", 3, 110)``
            would be another document.
        """
        if isinstance(larger, Documents):
            self._shards.check_growth(larger._shards)

    def explain(self) -> str:
        """Return a summary: datasets, shards, documents, tokens, bytes, filters, and sources.

        Documents and tokens are those that are left by the filters; ``len(documents)`` counts all.
        """
        shards, counts = self._shards, self._counts
        lines = [f"{self._summary()}, {format_bytes(float(self._sizes.sum()))}, from {self.root!r}"]
        for number, name in enumerate(shards.dataset_ids[:_MAX_LISTED]):
            mine = shards.dataset == number
            lines.append(
                f"  {name}: {plural(int(mine.sum()), 'shard')}, {self._totals(mine)}, "
                f"{format_bytes(float(self._sizes[mine].sum()))}"
            )
        if len(shards.dataset_ids) > _MAX_LISTED:
            lines.append(f"  and {len(shards.dataset_ids) - _MAX_LISTED:,} more")
        if self._options.min_length or self._options.strip or self._options.splits:
            documents = int((counts.documents - counts.kept).sum())
            tokens = int((counts.tokens - counts.kept_tokens).sum())
            lines.append(
                f"{plural(documents, 'document')} and {plural(tokens, 'token')} filtered "
                f"({self._describe_filters()})"
            )
        declared, cached = int(counts.declared.sum()), int(counts.cached.sum())
        opened = len(counts.declared) - declared - cached
        origins = ((declared, counts.source), (cached, "the cache"), (opened, "the shards"))
        lines += [
            f"counts of {plural(one, 'shard')} from {origin}" for one, origin in origins if one
        ]
        if shards.ignored:
            lines.append(f"{plural(shards.ignored, 'other file')} ignored")
        return "\n".join(map(escaped, lines))

    def _summary(self) -> str:
        return (
            f"{plural(len(self.dataset_ids), 'dataset')}, "
            f"{plural(len(self._shards.paths), 'shard')}, {self._totals(slice(None))}"
        )

    def _totals(self, shards: Any) -> str:
        documents = int(self._counts.kept[shards].sum())
        tokens = int(self._counts.kept_tokens[shards].sum())
        return f"{plural(documents, 'document')}, {plural(tokens, 'token')}"

    def _describe_filters(self) -> str:
        options, filters = self._options, []
        if options.strip:
            filters.append(f"{plural(len(options.strip), 'token id')} stripped at both ends")
        if options.min_length:
            filters.append(f"fewer than {options.min_length:,} tokens")
        if options.splits:
            filters.append("other splits")
        return ", ".join(filters)

    def __repr__(self) -> str:
        return f"<Documents: {self._summary()}>"

    def _repr_html_(self) -> str:
        rows = []
        for number, name in enumerate(self.dataset_ids[:_MAX_LISTED]):
            mine = self._shards.dataset == number
            documents = int(self._counts.kept[mine].sum())
            tokens = int(self._counts.kept_tokens[mine].sum())
            size = format_bytes(float(self._sizes[mine].sum()))
            rows.append((name, f"{int(mine.sum()):,}", f"{documents:,}", f"{tokens:,}", size))
        header = ("dataset", "shards", "documents", "tokens", "bytes")
        return html_table(f"Documents: {self._summary()}", header, rows, self.explain())

    def __getstate__(self) -> dict[str, Any]:
        transient = ("_ahead", "_locator", "_opened")
        return {name: value for name, value in vars(self).items() if name not in transient}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._locator = DocumentLocator(self._shards, self._counts.documents)
        self._create_cache()
        self._ahead = self._read_ahead()


def _open_bytes(
    summaries: Sequence[FileSummary], counts: CorpusCounts
) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return the memory that each shard takes while it is open, and whether it is mapped: (S,).

    Decoded shards take their tokens and 8 bytes a document, mapped ones the places of documents.
    Of text the dtype is not known before, 4 bytes a token are assumed. An Arrow file with more
    bytes of tokens than bytes is compressed.
    """
    widths, decoded, sizes, places = (
        np.array([getattr(one, name) for one in summaries], dtype=np.int64)
        for name in ("token_bytes", "is_decoded", "size", "document_bytes")
    )
    tokens = counts.tokens * widths
    is_decoded = (decoded > 0) | ((tokens > sizes) & (places == 0))
    return np.where(
        is_decoded, tokens + 8 * counts.documents, places * counts.documents
    ), ~is_decoded


def _as_int64(name: str, values: Any) -> Int64s:
    """Return integers of any shape as int64; raise a TypeError for another dtype."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"`{name}` must be integers, got dtype {array.dtype}")
    return array.astype(np.int64)
