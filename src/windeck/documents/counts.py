"""Counts of documents and tokens as a corpus brings them along: ``meta/*counts*.csv``.

Such a file has the columns ``dataset/filename``, ``documents`` and ``tokens``, others beside them
as they like, and a row for each shard: ``/dataset=c4/x.part3.arrow,1200,845113``.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from windeck._core import default_threads
from windeck._util.fingerprints import digest
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck.documents.checking import Seen
from windeck.documents.discovery import PREFIX, Listing
from windeck.documents.protocol import Int64s
from windeck.documents.readers import Reading
from windeck.io import filesystem
from windeck.io.filesystem import natural
from windeck.io.footers import parquet_footer

__all__ = [
    "CountCache",
    "Counts",
    "OWN",
    "Stated",
    "Totals",
    "cache_path",
    "check_totals",
    "count",
    "count_files",
    "normal_path",
    "read_counts",
    "read_rows",
]


COLUMNS = ("dataset/filename", "documents", "tokens")
#: How the files begin in which we keep what we have counted ourselves.
OWN = "windeck-counts-"


class Stated(NamedTuple):
    """What a row says of a shard, and where it stands: for messages."""

    documents: int
    tokens: int
    where: str


def count_files(root: str) -> list[str]:
    """Paths of the count files of a corpus, in natural order; our own are not among them."""
    found = filesystem.list_matching(os.path.join(root, "meta"), "*counts*.csv")
    return sorted(
        (path for path in found if not os.path.basename(path).startswith(OWN)), key=natural
    )


def read_counts(
    root: str, chosen: Iterable[str], means: Callable[[str], bool]
) -> dict[str, Stated]:
    """What the count files of a corpus say of its shards, by path relative to the root.

    Parameters
    ----------
    root
        The folder of the corpus.
    chosen
        The shards there are. Rows on other files are left aside if these exist, if their dataset
        does not, or if nobody asked for them.
    means
        Tells whether a path was asked for.

    Raises
    ------
    ValueError
        A column is missing or there twice, a number is none, or negative, or a file has two rows.
    FileNotFoundError
        A row speaks of a file that is not there, in a dataset that is.
    """
    known = set(chosen)
    stated: dict[str, Stated] = {}
    for file in count_files(root):
        for line, name, numbers in read_rows(file, COLUMNS):
            path = normal_path(name)
            where = f"{file!r}, line {line:,}"
            if path in stated:
                raise ValueError(
                    f"{where}: a second row for {path!r}, the first is {stated[path].where}"
                )
            if path not in known:
                _check_gone(root, path, where, means)
                continue
            documents, tokens = numbers
            stated[path] = Stated(documents, tokens, where)
    return stated


def read_rows(file: str, columns: tuple[str, ...]) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Rows of a CSV as (line, text of the first column, numbers of the others).

    Raises
    ------
    ValueError
        A column is missing or there twice, a row is too short or too long, a number is none, is
        negative or beyond 64 bits, or the file is no CSV.
    """
    # Names of files may be no UTF-8.
    text = filesystem.read_bytes(file).decode("utf-8-sig", "surrogateescape")
    with io.StringIO(text, newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            head = [name.strip() for name in next(reader, [])]
            places = [_place(file, head, name) for name in columns]
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
                    tuple(_number(value, name, where) for value, name in numbers),
                )
        except csv.Error as error:
            raise ValueError(f"{file!r} cannot be read as CSV: {error}") from error


def _place(file: str, head: list[str], name: str) -> int:
    if head.count(name) != 1:
        found = f"has {head.count(name)} columns" if name in head else "has no column"
        listed = ", ".join(map(repr, head[:8])) or "nothing"
        raise ValueError(
            f"{file!r} {found} {name!r}; its first line has {listed}, expected "
            f"{', '.join(map(repr, COLUMNS))}"
        )
    return head.index(name)


def _number(text: str, name: str, where: str) -> int:
    # Not int() alone, which takes "1_000" and digits of any script.
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{where}: {name} is {text!r}, expected a whole number")
    number = int(text) if len(text) < 32 else 2**63
    if not 0 <= number < 2**63:
        raise ValueError(f"{where}: {name} is {text}, expected 0 to 2^63 - 1")
    return number


def normal_path(name: str) -> str:
    """A path relative to the root, whatever stands before the dataset in the row.

    Examples
    --------
    >>> normal_path("/dataset=c4/x.part3.arrow"), normal_path("/old/root/dataset=c4/en/y.arrow")
    ('dataset=c4/x.part3.arrow', 'dataset=c4/en/y.arrow')
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    starts = [place for place, part in enumerate(parts) if part.startswith(PREFIX)]
    return "/".join(parts[starts[0] :] if starts else parts)


def _check_gone(root: str, path: str, where: str, means: Callable[[str], bool]) -> None:
    """A row for a shard that is not among the chosen ones: fine, unless it has gone missing."""
    dataset = path.split("/", maxsplit=1)[0]
    if not dataset.startswith(PREFIX) or not means(path):
        return
    full = f"{root}/{path}"
    gone = not filesystem.exists(full) and filesystem.link_target(full) is None
    if gone and filesystem.is_directory(f"{root}/{dataset}"):
        raise FileNotFoundError(
            f"{where}: a row for {path!r}, and there is no such file below {root!r}; expected the "
            "file, or no row for it"
        )


_COLUMNS = (*COLUMNS, "kept_documents", "kept_tokens", "bytes", "modified")


def cache_path(cache: bool | str | os.PathLike[str], root: str, reading: Reading) -> str | None:
    """Where counts are kept: nowhere, beside the data, or in a file or folder of one's own.

    Raises
    ------
    TypeError
        For what is neither a flag nor a path.
    """
    if cache is False:
        return None
    name = f"{OWN}{digest(reading.fingerprint)[:16]}.csv"
    if cache is True:
        return os.path.join(root, "meta", name)
    if not isinstance(cache, (str, os.PathLike)):
        raise TypeError(f"cache is {cache!r}; expected True, False or a path")
    path = filesystem.absolute(cache)
    return os.path.join(path, name) if filesystem.is_directory(path) else path


class CountCache:
    """Counts of shards in a file, as far as they still hold.

    Parameters
    ----------
    path
        The file. One that is not there, or is damaged, holds nothing.
    paths
        The shards asked about, relative to their root.
    seen
        Size of each, and time of its last change.
    """

    def __init__(self, path: str, paths: Sequence[str], seen: Sequence[Seen]) -> None:
        self.path = path
        self._paths, self._state = paths, [(one.size, one.modified) for one in seen]
        self._rows: dict[str, tuple[int, ...]] = {}
        # One that is not there, or is damaged, is written anew.
        with contextlib.suppress(ValueError, FileNotFoundError):
            self._rows = {name: numbers for _, name, numbers in read_rows(path, _COLUMNS)}

    def get(self, shard: int) -> tuple[int, ...] | None:
        """The four counts of a shard, if they are known and it has not changed since."""
        row = self._rows.get(self._paths[shard])
        return row[:4] if row is not None and row[4:] == self._state[shard] else None

    def prepare(self) -> None:
        """Make sure that the file can be written, before hours are spent on counting.

        Raises
        ------
        OSError
            It cannot.
        """
        filesystem.check_writable(self.path)

    def write(self, counts: Sequence[tuple[int, ...]]) -> None:
        """Write the counts of all shards, and keep the rows of others, in one step for readers."""
        rows = dict(self._rows)
        for path, numbers, state in zip(self._paths, counts, self._state, strict=True):
            rows[path] = (*numbers, *state)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([path, *row] for path, row in rows.items())
        filesystem.write_bytes(self.path, text.getvalue().encode("utf-8", "surrogateescape"))


class Totals(NamedTuple):
    """What one shard holds: as stored, and what filters leave of it."""

    documents: int
    tokens: int
    kept: int
    kept_tokens: int


@dataclass(frozen=True, eq=False)
class Counts:
    """What S shards hold. Arrays are int64 of shape (S,) and read-only.

    Attributes
    ----------
    documents, tokens
        As stored; of text, tokens as the tokenizer makes them.
    kept, kept_tokens
        What filters leave of them.
    stated
        bool: a count file says so. The others have been counted.
    source
        Of these: the count file, or where there are several.
    """

    documents: Int64s
    tokens: Int64s
    kept: Int64s
    kept_tokens: Int64s
    stated: np.ndarray[Any, np.dtype[np.bool_]]
    source: str = ""

    def of(self, shard: int) -> Totals:
        """The counts of one shard."""
        arrays = (self.documents, self.tokens, self.kept, self.kept_tokens)
        return Totals(*(int(array[shard]) for array in arrays))

    def who(self, shard: int) -> str:
        """Who says so: the subject and verb of a sentence that goes on with a number."""
        return f"{self.source} says" if self.stated[shard] else "when it was counted it held"


def count(
    listing: Listing,
    reading: Reading,
    means: Callable[[str], bool],
    *,
    seen: Sequence[Seen] = (),
    cache: CountCache | None = None,
    progress: Progress = False,
    threads: int | None = None,
    open_files: int = 64,
) -> Counts:
    """The counts of all shards, from the cheapest source that knows them; see `Documents`.

    A count file's are taken where nothing is filtered or tokenized, and compared with what a look
    at the shards has shown (`seen`), else with what is counted. What no count file says is
    counted, in threads; `cache` spares that for shards that are as they were.

    Raises
    ------
    ValueError
        A count file disagrees with a shard, with both numbers; a shard is damaged; more tokens
        than 64 bits count.
    """
    stated = read_counts(listing.root, listing.paths, means)
    _check_seen(listing, stated, seen)
    found: list[Totals | None] = [None] * len(listing.paths)
    for shard, path in enumerate(listing.paths) if reading.plain else ():
        if path in stated:
            said = stated[path]
            found[shard] = Totals(said.documents, said.tokens, said.documents, said.tokens)
    taken = np.array([one is not None for one in found], dtype=bool)
    if cache is not None:
        for shard in np.flatnonzero(~taken).tolist():
            numbers = cache.get(shard)
            found[shard] = None if numbers is None else Totals(*numbers)
    left = [shard for shard, one in enumerate(found) if one is None]
    if left and cache is not None:
        cache.prepare()
    with report_progress(progress if left else False, "counting documents", len(left)) as advance:
        counted = run_in_threads(
            lambda place: count_shard(listing.path(left[place]), reading),
            len(left),
            min(threads or default_threads(), open_files),
            advance,
            portion=1,
        )
    for shard, totals in zip(left, counted, strict=True):
        found[shard] = totals
    if left and cache is not None:
        cache.write([one for one in found if one is not None])
    for shard, path in enumerate(listing.paths):
        if path in stated and not taken[shard]:
            _check_stated(listing.path(shard), found[shard], stated[path], reading)
    return _arrays([one for one in found if one is not None], taken, _source(listing.root))


def count_shard(path: str, reading: Reading) -> Totals:
    """Count one shard: from the footer where it tells, else by opening it."""
    if reading.plain and path.lower().endswith((".parquet", ".pq")):
        told = footer_counts(path, reading.column)
        if told is not None:
            return Totals(*told, *told)
    return Totals(*reading.open(path).totals())


#: Writers whose footers count empty and null lists as nulls; others may count otherwise.
_KNOWN_WRITER = re.compile(rb"parquet-cpp-arrow version (\d{1,9})\.")
_SINCE = 16


def footer_counts(path: str, column: str) -> tuple[int, int] | None:
    """Documents, and tokens in the lists of a column; None where the footer is not certain.

    A list that is empty or null takes a place among the values, and counts as one null. A damaged
    footer gives None; the error comes when the file is read. O(column chunks) time.
    """
    footer = parquet_footer(path)
    writer = None if footer is None else _KNOWN_WRITER.match(footer.writer)
    if footer is None or writer is None or int(writer[1]) < _SINCE:
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


def check_totals(path: str, found: Totals, expected: Totals, who: str) -> None:
    """Compare what a shard holds with what was said of it.

    Raises
    ------
    ValueError
        With the first pair of numbers that differ.
    """
    for what, here, there in zip(_WHAT, found, expected, strict=True):
        if here != there:
            raise ValueError(f"{path!r} holds {here:,} {what}, but {who} {there:,}")


_WHAT = ("documents", "tokens", "documents after filters", "tokens after filters")


def _check_seen(listing: Listing, stated: dict[str, Stated], seen: Sequence[Seen]) -> None:
    """A count file against the documents that a look at the shards has shown, where it has."""
    for shard, one in enumerate(seen):
        said = stated.get(listing.paths[shard])
        if said is not None and one.documents not in (-1, said.documents):
            raise _disagreement(listing.path(shard), "documents", one.documents, said)


def _check_stated(path: str, found: Totals | None, stated: Stated, reading: Reading) -> None:
    """A count file against what was counted. Of text it may count another tokenizer's tokens."""
    assert found is not None
    if found.documents != stated.documents:
        raise _disagreement(path, "documents", found.documents, stated)
    if found.tokens != stated.tokens and reading.tokenizer is None:
        raise _disagreement(path, "tokens", found.tokens, stated)


def _disagreement(path: str, what: str, found: int, stated: Stated) -> ValueError:
    numbers = stated._asdict()
    return ValueError(f"{path!r} holds {found:,} {what}, but {stated.where} says {numbers[what]:,}")


def _source(root: str) -> str:
    files = count_files(root)
    return repr(files[0]) if len(files) == 1 else f"a count file in '{root}/meta'"


def _arrays(found: list[Totals], taken: Any, source: str) -> Counts:
    for numbers, what in zip(zip(*found, strict=True), _WHAT, strict=False):
        if sum(numbers) >= 2**63:
            raise ValueError(f"the corpus has {sum(numbers)} {what}; expected fewer than 2^63")
    table = np.array(found, dtype=np.int64).reshape(len(found), len(Totals._fields))
    documents, tokens, kept, kept_tokens = np.ascontiguousarray(table.T)
    for array in (documents, tokens, kept, kept_tokens, taken):
        array.setflags(write=False)
    return Counts(documents, tokens, kept, kept_tokens, taken, source)
