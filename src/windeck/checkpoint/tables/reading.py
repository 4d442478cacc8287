"""Blocks of a table out of a store: indexes once, blocks some at a time, everything checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.table_entries import (
    BUCKETS,
    BlockSize,
    ShardRange,
    TableEntry,
    TableLink,
    TableShape,
    TableShard,
    ranges_to_read,
    table_info,
)
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, header
from windeck.checkpoint.stores import CorruptStoreError, DirectView, View
from windeck.checkpoint.tables.blocks import LINE_BYTES, LINES, Index, parse, unpack
from windeck.checkpoint.tables.entries import DEAD, ROW, Entries, Int64s, chained, last_not_after

__all__ = ["Blocks", "SavedTable", "TableRows"]


#: Bytes of blocks asked for at once: what was received is still in the processor's cache when the
#: rows are put in.
READ_BYTES = 1 << 20
#: Of a block that is read into memory used again.
_SCRATCH_BYTES = 256 << 10


class Blocks:
    """The blocks of one shard of a link."""

    def __init__(
        self, view: View, namespace: str, link: TableLink, shard: TableShard, shape: TableShape
    ) -> None:
        self._view, self._namespace = view, namespace
        self._link, self._shard, self._shape = link, shard, shape
        self._index: Index | None = None
        self._scratch = np.empty(0, np.uint8)

    @property
    def index(self) -> Index:
        """The index, read when it is first asked for."""
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def read(self, numbers: Iterable[int], *, reuse: bool = False) -> Iterator[tuple[int, Entries]]:
        """Blocks by number, some read at a time.

        Parameters
        ----------
        reuse
            Whether what is given may lie in memory that the next block is read into.
        """
        if reuse and isinstance(self._view, DirectView):
            numbers = list(numbers)
            if all(self._size(number) <= _SCRATCH_BYTES for number in numbers):
                yield from self._straight(self._view, numbers)
                return
        for group in self._groups(numbers):
            names = [self._key(number) for number in group]
            values = self._view.get_many(names)
            for i, number in enumerate(group):
                value, values[i] = values[i], None  # let go of as soon as it is used
                yield number, self._block(number, self._decoded(number, value))

    def of_piece(self, piece: ShardRange, *, reuse: bool = False) -> Iterator[Entries]:
        """The entries of a piece's buckets, in order, block by block."""
        before: tuple[int, int] | None = None
        numbers = self.index.touching(piece.first, piece.end)
        for number, found in self.read(numbers, reuse=reuse):
            first = int(self.index.first[number]), int(found.keys[0])
            if before is not None and first <= before:
                raise CorruptStoreError(
                    f"{self._key(number).decode()} is damaged: found id {first[1]} first, expected "
                    "one after the last of the block before"
                )
            before = int(self.index.last[number]), int(found.keys[-1])
            if self.index.first[number] < piece.first or self.index.last[number] >= piece.end:
                found = found.in_buckets(piece.first, piece.end)
            if len(found):
                yield found

    def _groups(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        group: list[int] = []
        held = 0
        for number in numbers:
            size = self.index.size(number).bytes(self._shape)
            if group and held + size > READ_BYTES:
                yield group
                group, held = [], 0
            group.append(number)
            held += size
        if group:
            yield group

    def _straight(self, view: DirectView, numbers: Iterable[int]) -> Iterator[tuple[int, Entries]]:
        """Blocks, read into memory that is used again."""
        if not len(self._scratch):
            self._scratch = np.empty(_SCRATCH_BYTES, np.uint8)
        head = bytearray(HEADER_BYTES)
        for number in numbers:
            key, body = self._key(number), self._scratch[: self._size(number)].data
            (crc,) = view.get_many_into([(key, memoryview(head), body)])
            if crc is None or head != header(self._label(Kind.BLOCK, number), len(body), crc):
                body = self._decoded(number, self._view.get(key))
            yield number, self._block(number, body)

    def _size(self, number: int) -> int:
        return self.index.size(number).bytes(self._shape)

    def _decoded(self, number: int, value: bytes | None) -> memoryview:
        size = self.index.size(number).bytes(self._shape)
        return decode(self._key(number), value, self._label(Kind.BLOCK, number), length=size)

    def _block(self, number: int, payload: memoryview) -> Entries:
        name = self._key(number).decode()
        found = unpack(name, payload, self._shape, self.index.size(number))
        if self._shard.since == -1 and self.index.size(number).dead:
            raise CorruptStoreError(
                f"{name} is damaged: found a removed id, expected none in what is no delta"
            )
        return self.index.check(name, number, found)

    def _read_index(self) -> Index:
        shard, link = self._shard, self._link
        payloads = []
        # One after the other: what the manifest says may be anything, what is there is not.
        for number in range(-(-shard.blocks // LINES)):
            key = self._index_key(number)
            lines = min(LINES, shard.blocks - number * LINES)
            label = self._label(Kind.INDEX, number)
            payloads.append(decode(key, self._view.get(key), label, length=lines * LINE_BYTES))
        name = self._index_key(0).decode()
        found = parse(name, payloads, shard.buckets)
        stated = BlockSize(shard.entries, shard.rows, shard.dead)
        if found.total() != stated:
            raise CorruptStoreError(
                f"{name} is damaged: found {found.total()}, expected {stated} as the manifest of "
                f"generation {link.generation} or a later one says"
            )
        return found

    def _label(self, kind: Kind, number: int) -> Label:
        link, shard = self._link, self._shard
        return Label(kind, link.generation, link.save, shard.item, shard.writer, number)

    def _key(self, number: int) -> bytes:
        shard = self._shard
        return keys.block(self._namespace, self._link.generation, shard.writer, shard.item, number)

    def _index_key(self, number: int) -> bytes:
        shard = self._shard
        return keys.index(self._namespace, self._link.generation, shard.writer, shard.item, number)


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
        self._blocks: dict[tuple[TableLink, TableShard], Blocks] = {}
        self.info = table_info(entry)

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
        for own in ranges_to_read(self._entry.links):
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
        chain = [own for own in ranges_to_read(self._entry.links, first_bucket, end_bucket) if own]
        return chained([self._stream(own, reuse) for own in chain]) if chain else iter(())

    def _stream(self, own: Sequence[ShardRange], reuse: bool) -> Iterator[Entries]:
        for piece in own:
            yield from self._of(piece).of_piece(piece, reuse=reuse)

    def _of(self, piece: ShardRange) -> Blocks:
        which = piece.link, piece.shard
        if which not in self._blocks:
            shape = self._entry.shape
            self._blocks[which] = Blocks(self._view, self._namespace, *which, shape)
        return self._blocks[which]

    def _look(
        self, piece: ShardRange, places: Int64s, wanted: Int64s, known: npt.NDArray[np.bool_],
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
