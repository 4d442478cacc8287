"""Documents: token corpora in files, each document with a number, and none of them in memory.

The door to the room `corpus`: a folder of shards -> how many documents each has -> where document
i is -> its tokens, out of a mapped file.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windeck._core import TokenShard, checked_bulk, checked_one
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, check_progress
from windeck._util.validation import check_integer
from windeck.documents import description, verification
from windeck.documents.checking import Look
from windeck.documents.counts import CountCache, cache_path, count
from windeck.documents.discovery import Patterns, as_patterns, discover, selector
from windeck.documents.locations import Places
from windeck.documents.protocol import Int64s
from windeck.documents.readers import OpenFiles, Reading, Tokenizer
from windeck.documents.verification import explained, file_digest, sums

__all__ = ["Documents"]

#: (dataset_id, shard_id, doc_id): ("c4", 3, 110) is document 110, from 0, of part 3 of c4.
Name: TypeAlias = tuple[str, int, int]
#: The same of many: the number of the dataset among `dataset_ids`, shard_id, doc_id.
Names: TypeAlias = tuple[Int64s, Int64s, Int64s]


class Documents:
    """The documents of a folder of Arrow or Parquet files, numbered 0, 1, 2, ...

    Below `root` lie folders ``dataset=NAME``, in them at any depth shards ``*.partN.arrow`` or
    ``*.partN.parquet``. A column holds the documents: a list of integers in each row; or integers
    of which each record batch is a document (Arrow only); or text, with a tokenizer. Documents
    are numbered by dataset (in natural order of names), by part number, and as stored. Without
    part numbers the shards of a dataset are numbered in natural order of their paths.

    Files are mapped when a document of theirs is first asked for, `open_files` at a time. How many
    documents each has is read from ``meta/*counts*.csv`` if it is there, else from the files.

    Parameters
    ----------
    root
        The folder.
    column
        The column that holds the documents.
    tokenizer
        For a column of text: a function from a text to its tokens, such as ``str.encode``.
        Shards are tokenized whole, once for their counts and then when they are opened.
    files
        Globs relative to `root`, to take only some files: ``"dataset=c4"``,
        ``"dataset=*/**/*.part[0-4].arrow"``.
    min_length
        Documents with fewer tokens are filtered: they keep their numbers and have no tokens.
    strip_tokens
        Token ids left out at both ends of a document, before `min_length` is looked at.
    open_files
        Files mapped at a time, at most; least recently used first out. Parquet, compressed files
        and text are held decoded instead.
    cache
        Whether counts read from files are kept in ``meta/windeck-counts-*.csv`` for the next
        start; or a path where to keep them.
    progress
        Whether to show a bar while files are counted (where rich is installed), or a function
        ``(done, total)``.
    threads
        Threads that look at files and count; default: by the number of processors.

    Attributes
    ----------
    root : str
        The folder, as an absolute path.
    dataset_ids : tuple of str
        Names of the datasets, in natural order.
    shard_documents, shard_kept, shard_tokens : int64 arrays of shape (S,)
        Of each of the S shards: documents, those not filtered, and their tokens. Read-only.

    Raises
    ------
    FileNotFoundError, NotADirectoryError
        `root` is no folder, holds no dataset, or `files` matches nothing; a count file has a row
        for a file that is not there.
    ValueError
        A file is cut short or foreign; two files have one part number; a count file is damaged
        or disagrees with a file; no document has a token.
    KeyError, TypeError
        A file has no such column, or it holds no documents.

    Notes
    -----
    O(S) memory and start-up time, however many documents there are: some 10 us a file with a count
    file. All methods may be called from several threads. Pickles in O(S); files are opened anew.

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
        progress: Progress = False,
        threads: int | None = None,
    ) -> None:
        check_progress(progress)
        patterns = as_patterns(files)
        self._reading = Reading.of(column, tokenizer, min_length, strip_tokens)
        self._limit = check_integer("open_files", open_files, least=1)
        self._threads = None if threads is None else check_integer("threads", threads, least=1)
        self._listing = listing = discover(root, patterns)
        kept_in = cache_path(cache, listing.root, self._reading)

        look = Look(column, tokenizes=tokenizer is not None)
        seen = run_in_threads(
            lambda shard: look(listing.path(shard)), len(listing.paths), self._threads
        )
        self._sizes = np.array([one.size for one in seen], dtype=np.int64)
        self._counts = count(
            listing,
            self._reading,
            selector(patterns),
            seen=seen,
            cache=CountCache(kept_in, listing.paths, seen) if kept_in else None,
            progress=progress,
            threads=self._threads,
            open_files=self._limit,
        )
        description.check_some_tokens(self._listing, self._counts, self._reading)
        self._fingerprint: dict[str, str | int] = {}
        self._prepare()

    def _prepare(self) -> None:
        """What a pickle leaves out: it is soon made again, or belongs to a process."""
        self._places = Places(self._listing, self._counts.documents)
        self._files = OpenFiles(self._limit)

    @property
    def root(self) -> str:
        return self._listing.root

    @property
    def dataset_ids(self) -> tuple[str, ...]:
        return self._listing.dataset_ids

    @property
    def shard_documents(self) -> Int64s:
        return self._counts.documents

    @property
    def shard_kept(self) -> Int64s:
        return self._counts.kept

    @property
    def shard_tokens(self) -> Int64s:
        return self._counts.kept_tokens

    def __len__(self) -> int:
        return self._places.total

    @overload
    def locate(self, document: int) -> Name: ...

    @overload
    def locate(self, document: ArrayLike) -> Names: ...

    def locate(self, document: Any) -> Name | Names:
        """Where documents are: ``("c4", 3, 110)`` is document 110, from 0, of part 3 of c4.

        Parameters
        ----------
        document
            A number in [0, len), or an array of k of them.

        Returns
        -------
        (dataset_id, shard_id, doc_id) for a number. Three int64 arrays of shape (k,) for an array,
        with the dataset as its number in `dataset_ids`.

        Raises
        ------
        IndexError
            For a number out of range.
        """
        if not isinstance(document, np.ndarray) and hasattr(type(document), "__index__"):
            document = checked_one(document, len(self), "document")
            shard, within = self._places.locate(np.array([document]))
            return (*self.shard_name(int(shard[0])), int(within[0]))
        numbers, _ = checked_bulk(document, len(self), "document", None)
        dataset, part, within = self._places.names(numbers)
        return dataset, part, within

    @overload
    def index(self, document: Name) -> int: ...

    @overload
    def index(self, document: tuple[ArrayLike, ArrayLike, ArrayLike]) -> Int64s: ...

    def index(self, document: Any) -> int | Int64s:
        """Numbers of documents: the inverse of `locate`.

        Parameters
        ----------
        document
            ``("c4", 3, 110)``, or three arrays of k datasets (names or numbers), shard_ids and
            doc_ids.

        Returns
        -------
        int, or int64 array of shape (k,).

        Raises
        ------
        KeyError
            There is no such dataset or shard.
        IndexError
            The shard has fewer documents.
        """
        try:
            dataset, part, number = document
        except (TypeError, ValueError):
            raise TypeError(
                f"document is {document!r}; expected (dataset_id, shard_id, doc_id)"
            ) from None
        fields = (
            self._places.dataset(dataset),
            _integers("shard_id", part),
            _integers("doc_id", number),
        )
        shape = np.broadcast_shapes(*(field.shape for field in fields))
        flat = [np.broadcast_to(field, shape).ravel() for field in fields]
        found = self._places.index(self._places.shards(flat[0], flat[1]), flat[2])
        return found.reshape(shape) if shape else int(found[0])

    def __getitem__(self, document: int) -> NDArray[Any]:
        """The tokens of a document, a new array of the stored dtype; empty if it is filtered."""
        number = checked_one(operator.index(document), len(self), "document", from_end=True)
        shard, within = self._places.locate(np.array([number]))
        tokens: NDArray[Any] = self.open(int(shard[0])).document(int(within[0]))
        return tokens

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[document] for document in range(len(self)))

    def shard_name(self, shard: int) -> tuple[str, int]:
        """(dataset_id, shard_id) of shard s in [0, S)."""
        shard = checked_one(shard, len(self._listing.paths), "shard")
        name = self._listing.dataset_ids[int(self._listing.dataset[shard])]
        return name, int(self._listing.part[shard])

    def shard_index(self, dataset_id: str, shard_id: int) -> int:
        """The number of a shard in [0, S); KeyError if there is none of that name."""
        dataset = self._places.dataset([dataset_id])
        return int(self._places.shards(dataset, _integers("shard_id", [shard_id]))[0])

    def open(self, shard: int) -> TokenShard:
        """The documents of shard s, mapped now or still.

        Raises
        ------
        ValueError
            The file is not what it was when the corpus was made, or what its count file says.
        OSError
            It is gone, or cannot be read.
        """
        number = checked_one(shard, len(self._listing.paths), "shard")
        return self._files.get(number, lambda: self._opened(number))

    def _opened(self, shard: int) -> TokenShard:
        return verification.open_checked(
            self._listing, self._reading, self._counts, int(self._sizes[shard]), shard
        )

    def verify(self, *, progress: Progress = False) -> None:
        """Read every file to its end, and compare what it holds with the counts.

        Parameters
        ----------
        progress
            As for the class.

        Raises
        ------
        ValueError
            For the first file that is damaged, has changed, or holds other counts.
        OSError
            For one that cannot be read.
        """
        check_progress(progress)
        verification.verify(
            self._listing,
            self._reading,
            self._counts,
            self._sizes,
            progress=progress,
            threads=self._threads,
            open_files=self._limit,
        )

    @property
    def fingerprint(self) -> dict[str, str | int]:
        """Options, sizes, and two sums over digests of all files.

        Eight pages of each file are read when it is first asked for, in threads.
        """
        if not self._fingerprint:
            digests = run_in_threads(self._digest, len(self._listing.paths), self._threads)
            self._fingerprint = {
                **self._reading.fingerprint,
                "datasets": description.short(", ".join(self.dataset_ids)),
                "files": len(digests),
                # Before the sums of counts, which change with it and say less.
                "contents": sums(digests),
                "documents": len(self),
                "tokens": int(self.shard_tokens.sum()),
            }
        return dict(self._fingerprint)

    def _digest(self, shard: int) -> int:
        name = (int(self._listing.dataset[shard]), int(self._listing.part[shard]))
        return file_digest(self._listing.path(shard), (*name, *self._counts.of(shard)[:2]))

    def explain_change(self, field: str, was: object, now: object) -> str | None:
        """Explain why a field of a saved fingerprint differs from ours.

        Returns
        -------
        str or None
            One sentence; None where the values themselves say it all.
        """
        return explained(field, was, now, self._reading.fingerprint, self._listing)

    def explain(self) -> str:
        """A few lines on what there is: datasets, shards, documents, tokens, bytes, filtered."""
        return description.explain(self._listing, self._counts, self._reading, self._sizes)

    def __repr__(self) -> str:
        return f"<Documents: {description.summary(self._listing, self._counts)}>"

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_places", "_files")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()


def _integers(what: str, values: Any) -> Int64s:
    """Integers of any shape as int64."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{what} has dtype {array.dtype}, expected integers")
    return array.astype(np.int64)
