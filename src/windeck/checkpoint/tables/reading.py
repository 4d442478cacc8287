"""A saved table, read without a table in memory: some ids, or all in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of
from windeck.checkpoint.stores import View
from windeck.checkpoint.tables.chains import chained
from windeck.checkpoint.tables.entries import DEAD, ROW, Entries, Int64s, last_not_after
from windeck.checkpoint.tables.fetching import Blocks
from windeck.checkpoint.tables.infos import info_of
from windeck.checkpoint.tables.links import Link, Piece, Shard, TableEntry, pieces
from windeck.checkpoint.tables.shapes import BUCKETS

__all__ = ["SavedTable", "TableRows"]


@dataclass(frozen=True)
class TableRows:
    """Ids, and what is known of them.

    Attributes
    ----------
    keys : int64[n]
    found : bool[n]
        Whether anything is known; where not, the rest is 0.
    versions, frequencies, seen : int64[n]
        The clock of the last update, how often it was looked up in training, the clock of the
        last time.
    admitted : bool[n]
        Whether it has a row.
    values : float32[admitted.sum(), (1 + slots) * dim]
        Of those that have one, in order: the embedding, then the optimizer's slots.
    """

    keys: Int64s
    found: npt.NDArray[np.bool_]
    versions: Int64s
    frequencies: Int64s
    seen: Int64s
    admitted: npt.NDArray[np.bool_]
    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.keys)


class SavedTable:
    """A table in a generation, made by `Checkpoint.table`.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> from windeck import checkpoint
    >>> table = wd.EmbeddingTable(2, optimizer="sgd", lr=0.1, seed=1)
    >>> found = table.core.lookup(np.array([5, -7, 5]), insert=True)
    >>> store = checkpoint.stores.open_store("memory://")
    >>> generation = checkpoint.save(store, step=1, embeddings={"user": table})
    >>> with checkpoint.open(store) as saved:
    ...     rows = saved.table("user").rows([-7, 8, 5])
    >>> rows.found.tolist(), rows.frequencies.tolist(), rows.values.shape
    ([True, False, True], [1, 0, 2], (2, 2))
    """

    def __init__(
        self, view: View, namespace: str, entry: TableEntry, opener: object = None
    ) -> None:
        self._view, self._namespace, self._entry = view, namespace, entry
        self._opener = opener  # kept: who opened the view closes it when nobody has it any more
        self._blocks: dict[tuple[Link, Shard], Blocks] = {}
        self.info = info_of(entry)

    def __repr__(self) -> str:
        return f"<saved table {self.info.name}, {self.info.rows:,} rows of {self.info.dim}>"

    def rows(self, ids: Sequence[int] | Int64s) -> TableRows:
        """What is known of some ids, in their order.

        Parameters
        ----------
        ids
            int64 of one dimension, in any order, as often as they like.

        Raises
        ------
        TypeError, ValueError
            For ids of another dtype or shape.
        OSError
            For what is damaged or missing.

        Notes
        -----
        One value is read for an id and link, besides the index, which is read once: newest link
        first, until one knows the id.
        """
        keys = _ids(ids)
        wanted, back = np.unique(keys, return_inverse=True)
        found = _Answer(wanted, self._entry.shape.width)
        buckets, known = bucket_of(wanted), np.zeros(len(wanted), bool)
        for own in pieces(self._entry.links):
            for piece in own:
                inside = (buckets >= piece.first) & (buckets < piece.end) & ~known
                self._look(piece, np.flatnonzero(inside), wanted, known, found)
        return found.rows(keys, back.reshape(-1))

    def scan(self, first_bucket: int = 0, end_bucket: int = BUCKETS) -> Iterator[TableRows]:
        """All there is of some buckets, some MiB at a time.

        Yields
        ------
        TableRows
            In order of (bucket, id), each id once, removed ones left out; arrays may be views.

        Raises
        ------
        ValueError
            For a range that is none.
        OSError
            For what is damaged or missing.
        """
        return map(_as_rows, self.entries(first_bucket, end_bucket))

    def entries(
        self, first_bucket: int = 0, end_bucket: int = BUCKETS, *, reuse: bool = False
    ) -> Iterator[Entries]:
        """As `scan`, as they are stored; with `reuse` good only until the next are asked for."""
        if not 0 <= first_bucket <= end_bucket <= BUCKETS:
            raise ValueError(
                f"the buckets are {first_bucket} to {end_bucket}, expected a range within 0 to "
                f"{BUCKETS}"
            )
        chain = [own for own in pieces(self._entry.links, first_bucket, end_bucket) if own]
        return chained([self._stream(own, reuse) for own in chain]) if chain else iter(())

    def _stream(self, own: Sequence[Piece], reuse: bool) -> Iterator[Entries]:
        for piece in own:
            yield from self._of(piece).of_piece(piece, reuse=reuse)

    def _of(self, piece: Piece) -> Blocks:
        which = piece.link, piece.shard
        if which not in self._blocks:
            shape = self._entry.shape
            self._blocks[which] = Blocks(self._view, self._namespace, *which, shape)
        return self._blocks[which]

    def _look(
        self, piece: Piece, places: Int64s, wanted: Int64s, known: npt.NDArray[np.bool_],
        answer: _Answer,
    ) -> None:  # fmt: skip
        """Look for some of the ids in one shard of a link."""
        if not len(places):
            return
        blocks = self._of(piece)
        numbers = blocks.index.find(wanted[places])
        for number, entries in blocks.read(n for n in np.unique(numbers).tolist() if n >= 0):
            asked = places[numbers == number]
            at = _places(entries, wanted[asked])
            there = at >= 0
            known[asked[there]] = True
            answer.put(asked[there], entries.take(at[there]))


class _Answer:
    """What was found of distinct ids so far."""

    def __init__(self, wanted: Int64s, width: int) -> None:
        self._columns = [np.zeros(len(wanted), np.int64) for _ in range(3)]
        self._found = np.zeros(len(wanted), bool)
        self._row = np.full(len(wanted), -1, np.int64)
        self._values = [np.empty((0, width), np.float32)]
        self._rows = 0

    def put(self, places: Int64s, entries: Entries) -> None:
        alive = entries.states != DEAD
        self._found[places] = alive
        columns = (entries.versions, entries.frequencies, entries.seen)
        for column, found in zip(self._columns, columns, strict=True):
            column[places] = np.where(alive, found, 0)
        with_row = places[entries.states == ROW]
        self._row[with_row] = np.arange(self._rows, self._rows + len(with_row))
        self._rows += len(with_row)
        self._values.append(entries.values)

    def rows(self, keys: Int64s, back: npt.NDArray[np.intp]) -> TableRows:
        """For ids as they were asked for; `back` is their places among the distinct ones."""
        row = self._row[back]
        values = np.concatenate(self._values)[row[row >= 0]]
        versions, frequencies, seen = (column[back] for column in self._columns)
        return TableRows(keys, self._found[back], versions, frequencies, seen, row >= 0, values)


def _places(entries: Entries, keys: Int64s) -> Int64s:
    """Where ids are among sorted entries; -1 for those that are not."""
    found = last_not_after(entries.buckets, entries.keys, bucket_of(keys), keys)
    there = (found >= 0) & (entries.keys[found] == keys)
    return np.where(there, found, -1)


def _as_rows(found: Entries) -> TableRows:
    return TableRows(
        found.keys, np.ones(len(found), bool), found.versions, found.frequencies, found.seen,
        found.states == ROW, found.values,
    )  # fmt: skip


def _ids(ids: Any) -> Int64s:
    keys = np.asarray(ids)
    if keys.size == 0 and not isinstance(ids, np.ndarray):
        keys = keys.astype(np.int64)
    if keys.dtype != np.int64:
        raise TypeError(f"the ids have dtype {keys.dtype}, expected int64")
    if keys.ndim != 1:
        raise ValueError(f"the ids have shape {keys.shape}, expected one dimension")
    return keys
