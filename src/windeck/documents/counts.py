"""Counts of documents and tokens in the shards of a corpus.

Counts come from count files ``meta/*counts*.csv`` of the corpus, from a cache, or from the shards.
A count file has the columns ``dataset/filename``, ``documents`` and ``tokens``, and a row for each
shard: ``/dataset=c4/x.part3.arrow,1200,845113``. Other columns are ignored.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from windeck._core import TokenShard, default_threads
from windeck._util.fingerprints import digest
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck._util.text import plural
from windeck._util.warning import warn
from windeck.documents.checking import FileSummary
from windeck.documents.discovery import PREFIX, ShardList
from windeck.documents.protocol import Int64s
from windeck.documents.readers import DocumentOptions
from windeck.io import filesystem
from windeck.io.data_files import list_matching, natural
from windeck.io.footers import parquet_footer

__all__ = [
    "CorpusCounts",
    "CacheFile",
    "CountCache",
    "DeclaredCounts",
    "ShardCounts",
    "cache_file",
    "check_counts",
    "count_corpus",
]


COLUMNS = ("dataset/filename", "documents", "tokens")
#: Prefix of the names of cache files.
_OWN = "windeck-counts-"


class DeclaredCounts(NamedTuple):
    """Counts of a shard in a count file, with file and line for messages."""

    documents: int
    tokens: int
    where: str


def count_files(root: str) -> list[str]:
    """Return the paths of the count files of a corpus, in natural order, without cache files."""
    found = list_matching(filesystem.join(root, "meta"), "*counts*.csv")
    return sorted(
        (path for path in found if not os.path.basename(path).startswith(_OWN)),
        key=natural,
    )


def read_counts(
    root: str, paths: Iterable[str], is_selected: Callable[[str], bool]
) -> dict[str, DeclaredCounts]:
    """Return the rows of the count files of a corpus, by path relative to the root.

    Parameters
    ----------
    root
        The folder of the corpus.
    paths
        The shards. Rows for other files are ignored if the file exists, if its dataset does not,
        or if the file is not selected. Rows that name neither a shard nor a dataset are reported
        by one warning.
    is_selected
        Function that returns True for a path that the user has selected.

    Raises
    ------
    ValueError
        If a column is missing or duplicated, if a number is invalid, or if a file has two rows.
    FileNotFoundError
        If a dataset exists and a selected file in it, which has a row, does not.
    """
    known = set(paths)
    declared: dict[str, DeclaredCounts] = {}
    foreign: list[str] = []
    rows = 0
    for file in count_files(root):
        for line, name, numbers in read_rows(file, COLUMNS):
            path, rows = normal_path(name), rows + 1
            where = f"{file!r}, line {line:,}"
            if path in declared:
                raise ValueError(
                    f"{where}: duplicate row for {path!r}, the first is {declared[path].where}"
                )
            if path not in known:
                if not path.startswith(PREFIX) and not filesystem.exists(
                    filesystem.join(root, path)
                ):
                    foreign.append(f"{name!r} in {where}")
                _check_missing(root, path, where, is_selected)
                continue
            documents, tokens = numbers
            declared[path] = DeclaredCounts(documents, tokens, where)
    if foreign:
        warn(
            f"{len(foreign):,} of {plural(rows, 'row')} in count files name no file of the corpus "
            f"{root!r} and are ignored, such as {foreign[0]}; expected paths relative to the root",
        )
    return declared


def read_rows(file: str, columns: tuple[str, ...]) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Yield the rows of a CSV as (line, text of the first column, numbers of the others).

    Raises
    ------
    ValueError
        If a column is missing or duplicated, if a row has too few or too many fields, if a number
        is not in [0, 2^63), or if the file is not CSV.
    """
    # File names may not be valid UTF-8.
    text = filesystem.read_bytes(file).decode("utf-8-sig", "surrogateescape")
    with io.StringIO(text, newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            head = [name.strip() for name in next(reader, [])]
            places = [_find_column(file, head, name) for name in columns]
            for row in reader:
                if not any(map(str.strip, row)):
                    continue
                where = f"{file!r}, line {reader.line_num:,}"
                if len(row) != len(head):
                    raise ValueError(f"{where}: {len(row)} fields, expected {len(head)}")
                fields = [row[place].strip() for place in places]
                numbers = zip(fields[1:], columns[1:], strict=True)
                yield (
                    reader.line_num,
                    fields[0],
                    tuple(_parse_number(value, name, where) for value, name in numbers),
                )
        except csv.Error as error:
            raise ValueError(f"{file!r} cannot be read as CSV: {error}") from error


def _find_column(file: str, head: list[str], name: str) -> int:
    if head.count(name) != 1:
        found = f"has {head.count(name)} columns" if name in head else "has no column"
        listed = ", ".join(map(repr, head[:8])) or "empty"
        raise ValueError(
            f"{file!r} {found} {name!r}; the header is {listed}, expected "
            f"{', '.join(map(repr, COLUMNS))}"
        )
    return head.index(name)


def _parse_number(text: str, name: str, where: str) -> int:
    # Not int() alone, which accepts "1_000" and digits of any script.
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{where}: `{name}` must be an integer, got {text!r}")
    number = int(text) if len(text) < 32 else 2**63
    if not 0 <= number < 2**63:
        raise ValueError(f"{where}: `{name}` must be in [0, 2^63), got {text}")
    return number


def normal_path(name: str) -> str:
    """Return the path relative to the root; any prefix before the dataset is removed.

    Examples
    --------
    >>> normal_path("/dataset=c4/x.part3.arrow"), normal_path("/old/root/dataset=c4/en/y.arrow")
    ('dataset=c4/x.part3.arrow', 'dataset=c4/en/y.arrow')
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    starts = [place for place, part in enumerate(parts) if part.startswith(PREFIX)]
    return "/".join(parts[starts[0] :] if starts else parts)


def _check_missing(root: str, path: str, where: str, is_selected: Callable[[str], bool]) -> None:
    """Raise an error if a row belongs to a selected file that does not exist."""
    dataset = path.split("/", maxsplit=1)[0]
    if not dataset.startswith(PREFIX) or not is_selected(path):
        return
    full = filesystem.join(root, path)
    gone = not filesystem.exists(full) and filesystem.link_target(full) is None
    if gone and filesystem.is_directory(filesystem.join(root, dataset)):
        raise FileNotFoundError(
            f"{where}: row for {path!r}, which does not exist below {root!r}; expected the file or "
            "no row for it"
        )


#: Format of cache files, in the hash of the options.
_FORMAT = 1
_CACHE_COLUMNS = (*COLUMNS, "kept_documents", "kept_tokens", "options", "bytes", "modified")


class CacheFile(NamedTuple):
    """A cache file, and the hash of the options that its rows have in the column ``options``."""

    path: str
    options: int


def cache_file(
    cache: bool | str | os.PathLike[str], root: str, options: DocumentOptions
) -> CacheFile | None:
    """Return the cache file for the argument ``cache=``; None for no cache.

    Raises
    ------
    TypeError
        If `cache` is neither a bool nor a path.
    """
    if cache is False:
        return None
    used = digest(_FORMAT, options.fingerprint)
    name, number = f"{_OWN}{used[:16]}.csv", int(used[:15], 16)
    if cache is True:
        return CacheFile(filesystem.join(root, "meta", name), number)
    if not isinstance(cache, (str, os.PathLike)):
        raise TypeError(f"`cache` must be True, False or a path, got {cache!r}")
    path = filesystem.absolute(cache)
    if filesystem.is_directory(path):
        return CacheFile(os.path.join(path, name), number)
    return CacheFile(path, number)


class CountCache:
    """Cache of the counts of shards in a CSV file, valid while size and time of a shard match.

    Parameters
    ----------
    file
        The cache file. If it is missing or damaged, the cache is empty.
    paths
        The shards, relative to their root.
    summaries
        Size and modification time of each.
    """

    def __init__(
        self, file: CacheFile, paths: Sequence[str], summaries: Sequence[FileSummary]
    ) -> None:
        self.path, self._options = file
        self._paths, self._versions = paths, [(one.size, one.modified) for one in summaries]
        self._rows: dict[tuple[str, int], tuple[int, ...]] = {}
        # A missing or damaged file is written again.
        with contextlib.suppress(ValueError, FileNotFoundError):
            for _, name, row in read_rows(self.path, _CACHE_COLUMNS):
                self._rows[name, row[4]] = row

    def get(self, shard: int) -> tuple[int, ...] | None:
        """Return the four counts of a shard; None if it is not cached or has changed."""
        row = self._rows.get((self._paths[shard], self._options))
        return row[:4] if row is not None and row[5:] == self._versions[shard] else None

    def prepare(self) -> None:
        """Check that the file can be written, before a long count starts.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        filesystem.check_writable(self.path)

    def write(self, counts: Sequence[tuple[int, ...]]) -> None:
        """Write the counts of all shards atomically, and keep the rows of other files."""
        rows = dict(self._rows)
        for path, numbers, version in zip(self._paths, counts, self._versions, strict=True):
            rows[path, self._options] = (*numbers, self._options, *version)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CACHE_COLUMNS)
        writer.writerows([path, *row] for (path, _), row in rows.items())
        filesystem.write_bytes(self.path, text.getvalue().encode("utf-8", "surrogateescape"))


class ShardCounts(NamedTuple):
    """Documents and tokens of one shard, as stored and after filters."""

    documents: int
    tokens: int
    kept: int
    kept_tokens: int


@dataclass(frozen=True, eq=False)
class CorpusCounts:
    """Counts of S shards. Arrays have shape (S,) and are read-only.

    Attributes
    ----------
    documents, tokens
        int64: documents and tokens as stored; of text, tokens that the tokenizer returns.
    kept, kept_tokens
        int64: documents and tokens after filters.
    declared
        bool: True if the counts come from a count file.
    cached
        bool: True if they come from the cache.
    source
        Name of the count file or of the folder of several, for messages.
    """

    documents: Int64s
    tokens: Int64s
    kept: Int64s
    kept_tokens: Int64s
    declared: np.ndarray[Any, np.dtype[np.bool_]]
    cached: np.ndarray[Any, np.dtype[np.bool_]]
    source: str = ""

    def shard(self, shard: int) -> ShardCounts:
        """Return the counts of one shard."""
        arrays = (self.documents, self.tokens, self.kept, self.kept_tokens)
        return ShardCounts(*(int(array[shard]) for array in arrays))

    def origin(self, shard: int) -> str:
        """Return the origin of a shard's counts, for messages."""
        return self.source if self.declared[shard] else "an earlier count"


def count_corpus(
    shards: ShardList,
    options: DocumentOptions,
    is_selected: Callable[[str], bool],
    *,
    summaries: Sequence[FileSummary] = (),
    cache: CountCache | None = None,
    progress: Progress = None,
    threads: int | None = None,
    open_files: int = 64,
    keep: Callable[[int, TokenShard], None] | None = None,
) -> CorpusCounts:
    """Return the counts of all shards, each from the cheapest source; see `Documents`.

    Counts of a count file are used if nothing is filtered or tokenized, and compared with the
    document counts of `summaries`; else they are compared with the counts of the shards. Shards
    without a row are counted in threads, except those in `cache`. So are shards that have no
    document or no token by their row: they would never be opened, and a wrong row would lose them.
    `keep` is called with every shard that was opened to count it.

    Raises
    ------
    ValueError
        If a count file and a shard have different counts, if a shard is damaged, or if the corpus
        has 2^63 tokens or more.
    """
    declared = read_counts(shards.root, shards.paths, is_selected)
    _check_summaries(shards, declared, summaries)
    counts: list[ShardCounts | None] = [None] * len(shards.paths)
    is_declared = np.zeros(len(counts), dtype=bool)
    is_cached = np.zeros(len(counts), dtype=bool)
    for shard, path in enumerate(shards.paths) if options.is_unfiltered else ():
        row = declared.get(path)
        is_declared[shard] = row is not None
        if row is not None and (
            (row.documents and row.tokens) or (summaries and not summaries[shard].documents)
        ):
            counts[shard] = ShardCounts(row.documents, row.tokens, row.documents, row.tokens)
    if cache is not None:
        for shard in np.flatnonzero(~is_declared).tolist():
            numbers = cache.get(shard)
            counts[shard] = None if numbers is None else ShardCounts(*numbers)
            is_cached[shard] = numbers is not None
    uncounted = [shard for shard, one in enumerate(counts) if one is None]
    if uncounted and cache is not None:
        cache.prepare()
    with report_progress(
        progress if uncounted else False, "counting documents", len(uncounted)
    ) as advance:
        results = run_in_threads(
            lambda place: count_shard(
                shards.path(uncounted[place]), options, keep and partial(keep, uncounted[place])
            ),
            len(uncounted),
            min(threads or default_threads(), open_files),
            advance,
            portion=1,
        )
    for shard, result in zip(uncounted, results, strict=True):
        counts[shard] = result
    complete = [one for one in counts if one is not None]
    if uncounted and cache is not None:
        cache.write(complete)
    for shard, path in enumerate(shards.paths):
        if path in declared:
            _check_declared(shards.path(shard), complete[shard], declared[path], options)
    return _as_arrays(complete, is_declared, is_cached, _count_source(shards.root))


def count_shard(
    path: str, options: DocumentOptions, keep: Callable[[TokenShard], None] | None = None
) -> ShardCounts:
    """Count one shard, from its metadata if possible, else by opening it."""
    if options.is_unfiltered:
        counts = options.count(path)
        if counts is None and path.lower().endswith((".parquet", ".pq")):
            counts = footer_counts(path, options.column)
        if counts is not None:
            return ShardCounts(*counts, *counts)
    opened = options.open(path)
    if keep is not None:
        keep(opened)
    return ShardCounts(*opened.totals())


#: Writers whose footers count empty and null lists as nulls. Others may count differently.
_KNOWN_WRITER = re.compile(rb"parquet-cpp-arrow version (\d{1,9})\.")
_MIN_VERSION = 16


def footer_counts(path: str, column: str) -> tuple[int, int] | None:
    """Return documents, and tokens in the lists of a column; None if the footer may be inexact.

    An empty or null list is stored as one value and counts as one null. A damaged footer gives
    None; the error is raised when the file is read. O(column chunks) time.
    """
    footer = parquet_footer(path)
    writer = None if footer is None else _KNOWN_WRITER.match(footer.writer)
    if footer is None or writer is None or int(writer[1]) < _MIN_VERSION:
        return None
    tokens = 0
    for group in footer.groups:
        mine = [chunk for chunk in group if chunk.path[:1] == (column.encode(),)]
        if len(mine) != 1:
            return None
        values, nulls = mine[0].values, mine[0].nulls
        if nulls is None or not 0 <= nulls <= values:
            return None
        tokens += values - nulls
    return (footer.rows, tokens) if 0 <= footer.rows < 2**63 > tokens else None


def check_counts(path: str, found: ShardCounts, expected: ShardCounts, origin: str) -> None:
    """Compare the counts of a shard with those of a count file or an earlier count.

    Raises
    ------
    ValueError
        If they differ; the message has the first pair of different numbers.
    """
    for noun, here, there in zip(_NOUNS, found, expected, strict=True):
        if here != there:
            raise ValueError(f"{path!r} has {here:,} {noun}, expected {there:,} from {origin}")


_NOUNS = ("documents", "tokens", "documents after filters", "tokens after filters")


def _check_summaries(
    shards: ShardList, declared: dict[str, DeclaredCounts], summaries: Sequence[FileSummary]
) -> None:
    """Compare count files with the document counts of file summaries that have one."""
    for shard, summary in enumerate(summaries):
        row = declared.get(shards.paths[shard])
        if row is not None and summary.documents not in (-1, row.documents):
            raise _mismatch(shards.path(shard), "documents", summary.documents, row)


def _check_declared(
    path: str, found: ShardCounts, declared: DeclaredCounts, options: DocumentOptions
) -> None:
    """Compare a count file with the counts of a shard; tokens only if there is no tokenizer."""
    if found.documents != declared.documents:
        raise _mismatch(path, "documents", found.documents, declared)
    if found.tokens != declared.tokens and options.tokenizer is None:
        raise _mismatch(path, "tokens", found.tokens, declared)


def _mismatch(path: str, noun: str, found: int, declared: DeclaredCounts) -> ValueError:
    expected = declared._asdict()[noun]
    return ValueError(f"{path!r} has {found:,} {noun}, expected {expected:,} from {declared.where}")


def _count_source(root: str) -> str:
    files = count_files(root)
    return repr(files[0]) if len(files) == 1 else f"a count file in '{root}/meta'"


def _as_arrays(
    counts: list[ShardCounts], is_declared: Any, is_cached: Any, source: str
) -> CorpusCounts:
    for numbers, noun in zip(zip(*counts, strict=True), _NOUNS, strict=False):
        if sum(numbers) >= 2**63:
            raise ValueError(f"the corpus has {sum(numbers)} {noun}, expected fewer than 2^63")
    table = np.array(counts, dtype=np.int64).reshape(len(counts), len(ShardCounts._fields))
    documents, tokens, kept, kept_tokens = np.ascontiguousarray(table.T)
    for array in (documents, tokens, kept, kept_tokens, is_declared, is_cached):
        array.setflags(write=False)
    return CorpusCounts(documents, tokens, kept, kept_tokens, is_declared, is_cached, source)
