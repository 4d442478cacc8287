"""How many documents and tokens every shard has: told by a count file, or by the shards."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from windeck._core import default_threads
from windeck.sources.corpus.checking import Seen
from windeck.sources.corpus.countcache import CountCache
from windeck.sources.corpus.countfile import Stated, count_files, read_counts
from windeck.sources.corpus.discovery import Listing
from windeck.sources.corpus.progress import Progress, reporting
from windeck.sources.corpus.protocol import Int64s
from windeck.sources.corpus.reading import Reading
from windeck.sources.corpus.threads import in_threads
from windeck.sources.files.footers import parquet_footer

__all__ = ["Counts", "Totals", "check_totals", "count"]


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
    with reporting(progress if left else False, "counting documents", len(left)) as advance:
        counted = in_threads(
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
