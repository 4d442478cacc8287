"""Reading of saved tables: rows of some ids, or scans, with every block checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of
from windeck._util.parallel import THREADS
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.table_blocks import (
    DEAD,
    INDEX_LINE,
    INDEX_LINES,
    ROW,
    BlockSize,
    TableShape,
    last_key,
)
from windeck.checkpoint.format.table_entries import (
    BUCKETS,
    ShardRange,
    TableEntry,
    TableLink,
    TableShard,
    ranges_to_read,
    table_info,
)
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, decode, read_payloads
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.checkpoint.stores.protocol import portions_by_bytes, read_bytes
from windeck.checkpoint.tables.blocks import (
    BlockIndex,
    parse_index,
    unpack_block,
)
from windeck.checkpoint.tables.entries import (
    Entries,
    Int64s,
    convert_values,
    merge_streams,
    search_pairs,
)

__all__ = ["BlockReader", "SavedTable", "TableRows"]


#: Bytes of blocks that are read and then inserted by several threads.
INSERT_BYTES = 4 << 20


class BlockReader:
    """Reads the blocks of one shard of a link."""

    def __init__(
        self, view: View, namespace: str, link: TableLink, shard: TableShard, shape: TableShape
    ) -> None:
        self._view, self._namespace = view, namespace
        self._link, self._shard, self._shape = link, shard, shape
        self._index: BlockIndex | None = None
        self._sizes: list[int] = []  # of the payloads, with the index

    @property
    def index(self) -> BlockIndex:
        """The index, read on first access."""
        if self._index is None:
            index = self._read_index()
            self._sizes = index.payload_bytes(self._shape).tolist()
            if (longest := max(self._sizes, default=0)) > LARGEST_PAYLOAD:
                raise CorruptStoreError(
                    f"{self._key(self._sizes.index(longest)).decode()} has {longest:,} bytes by "
                    f"its index, expected at most {LARGEST_PAYLOAD:,}"
                )
            self._index = index
        return self._index

    def read(self, numbers: Iterable[int]) -> Iterator[tuple[int, Entries]]:
        """Yield blocks by number, reading some at a time."""
        wanted = [*numbers]
        for number, payload in zip(wanted, self._payloads(wanted), strict=True):
            yield number, self._block(number, payload)

    def read_range(self, buckets: ShardRange) -> Iterator[Entries]:
        """Yield the entries of a range of buckets, in order, block by block."""
        before: tuple[int, int] | None = None
        numbers = self.index.touching(buckets.first, buckets.end)
        for number, found in self.read(numbers):
            first = int(self.index.first[number]), int(found.keys[0])
            if before is not None and first <= before:
                raise CorruptStoreError(
                    f"{self._key(number).decode()} is damaged: found id {first[1]} first, expected "
                    "one after the last of the block before"
                )
            before = int(self.index.last[number]), int(found.keys[-1])
            if self.index.first[number] < buckets.first or self.index.last[number] >= buckets.end:
                found = found.in_buckets(buckets.first, buckets.end)
            if len(found):
                yield found

    def insert(self, core: Any, buckets: ShardRange) -> None:
        """Insert the entries of a range of buckets, which have to be new, into a native table."""
        numbers = self.index.touching(buckets.first, buckets.end)
        limit = max(INSERT_BYTES, read_bytes(self._view))
        portions = portions_by_bytes(numbers, self._sizes.__getitem__, limit)
        before = len(core) + core.counted
        every = self.index.total(numbers.start, numbers.stop).entries
        after: int | None = None
        for portion in portions:
            payloads = list(self._payloads(portion))
            # Few resizes, but no memory for entries that the index claims and the blocks lack.
            read = self.index.total(numbers.start, portion[-1] + 1).entries
            core.reserve(before + min(every, 64 * read))
            lines = self.index.lines(portion[0], portion[-1] + 1)
            wrong = core.insert_blocks(
                payloads, lines, buckets.first, buckets.end, after=after, threads=THREADS
            )
            if wrong is not None:
                self._block(portion[wrong], payloads[wrong])  # raises an error that says what
                raise CorruptStoreError(
                    f"{self._key(portion[wrong]).decode()} is damaged: found an id first that is "
                    "not after the last of the block before"
                )
            after = last_key(payloads[-1])

    def _payloads(self, numbers: Sequence[int]) -> Iterator[memoryview]:
        """Yield the payloads of blocks."""
        wanted = (
            (self._key(number), self._label(Kind.BLOCK, number), self._sizes[number])
            for number in numbers
        )
        return read_payloads(self._view, wanted)

    def _block(self, number: int, payload: memoryview) -> Entries:
        name, size = self._key(number).decode(), self.index.size(number)
        found = unpack_block(name, payload, self._shape, size)
        if self._shard.since == -1 and size.dead:
            raise CorruptStoreError(
                f"{name} is damaged: found a removed id, expected none outside of a delta"
            )
        return self.index.check(name, number, found)

    def _read_index(self) -> BlockIndex:
        shard, link = self._shard, self._link
        payloads = []
        # One after the other: the number of blocks in the manifest may be wrong.
        for number in range(-(-shard.blocks // INDEX_LINES)):
            key = self._index_key(number)
            lines = min(INDEX_LINES, shard.blocks - number * INDEX_LINES)
            label, length = self._label(Kind.INDEX, number), lines * INDEX_LINE.itemsize
            payloads.append(decode(key, self._view.get(key), label, length=length))
        name = self._index_key(0).decode()
        found = parse_index(name, payloads, shard.buckets)
        expected = BlockSize(shard.entries, shard.rows, shard.dead)
        if found.total() != expected:
            raise CorruptStoreError(
                f"{name} is damaged: found {found.total()}, expected {expected} as in the manifest "
                f"of generation {link.generation} or a later one"
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
    """Ids of a saved table with their counters and rows.

    Attributes
    ----------
    keys : int64[n]
    found : bool[n]
        Whether the table has the id; where it has not, the rest is 0.
    versions, frequencies, seen : int64[n]
        The clock of the last update, the number of lookups in training, the clock of the last
        lookup.
    admitted : bool[n]
        Whether the id has a row.
    values : float32[admitted.sum(), (1 + slots) * dim]
        The rows of ids that have one, in order: the embedding, then the optimizer's slots. Values
        of bfloat16 are converted, which is exact.
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
        self._opener = opener  # keeps the view open: its opener closes it when deleted
        self._readers: dict[tuple[TableLink, TableShard], BlockReader] = {}
        self.info, self.shape = table_info(entry), entry.shape

    def __repr__(self) -> str:
        return f"<saved table {self.info.name}, {self.info.rows:,} rows of {self.info.dim}>"

    def rows(self, ids: Sequence[int] | Int64s) -> TableRows:
        """Return counters and rows of some ids, in their order.

        Parameters
        ----------
        ids
            int64 or int32 of one dimension, in any order, with or without duplicates.

        Raises
        ------
        TypeError, ValueError
            For ids of another dtype or shape.
        OSError
            For damaged or missing values.

        Notes
        -----
        Reads one value for each id and link, newest link first, until a link has the id; and the
        index, once.
        """
        keys = _check_ids(ids)
        wanted, inverse = np.unique(keys, return_inverse=True)
        found = _RowCollector(wanted, self._entry.shape)
        buckets, known = bucket_of(wanted), np.zeros(len(wanted), bool)
        for of_link in ranges_to_read(self._entry.links):
            for shard_range in of_link:
                inside = (buckets >= shard_range.first) & (buckets < shard_range.end) & ~known
                self._find(shard_range, np.flatnonzero(inside), wanted, known, found)
        return found.rows(keys, inverse.reshape(-1))

    def scan(self, first_bucket: int = 0, end_bucket: int = BUCKETS) -> Iterator[TableRows]:
        """Yield all rows of some buckets, some MiB at a time.

        Yields
        ------
        TableRows
            In order of (bucket, id), each id once, without removed ones; arrays may be views.

        Raises
        ------
        ValueError
            For an invalid range.
        OSError
            For damaged or missing values.
        """
        shape = replace(self._entry.shape, dtype="float32")
        return (_to_rows(found, shape) for found in self.entries(first_bucket, end_bucket))

    def entries(self, first_bucket: int = 0, end_bucket: int = BUCKETS) -> Iterator[Entries]:
        """Yield entries as `scan` does."""
        if not 0 <= first_bucket <= end_bucket <= BUCKETS:
            raise ValueError(
                f"the buckets are {first_bucket} to {end_bucket}, expected a range within 0 to "
                f"{BUCKETS}"
            )
        chain = [own for own in ranges_to_read(self._entry.links, first_bucket, end_bucket) if own]
        return merge_streams([self._read_link(own) for own in chain]) if chain else iter(())

    def insert_blocks(self, core: Any) -> bool:
        """Insert the entries of a table's buckets, which have to be new, into its native core.

        Return False, with nothing inserted, if they are not blocks of one generation.
        """
        chain = ranges_to_read(self._entry.links, core.first_bucket, core.end_bucket)
        if len(chain) != 1 or not hasattr(core, "insert_blocks"):
            return False
        for shard_range in chain[0]:
            self._reader(shard_range).insert(core, shard_range)
        return True

    def _read_link(self, of_link: Sequence[ShardRange]) -> Iterator[Entries]:
        for shard_range in of_link:
            yield from self._reader(shard_range).read_range(shard_range)

    def _reader(self, shard_range: ShardRange) -> BlockReader:
        key = shard_range.link, shard_range.shard
        if key not in self._readers:
            shape = self._entry.shape
            self._readers[key] = BlockReader(self._view, self._namespace, *key, shape)
        return self._readers[key]

    def _find(
        self, shard_range: ShardRange, places: Int64s, wanted: Int64s, known: npt.NDArray[np.bool_],
        result: _RowCollector,
    ) -> None:  # fmt: skip
        """Find the ids at some places of `wanted` in one shard of a link."""
        if not len(places):
            return
        reader = self._reader(shard_range)
        numbers = reader.index.find(wanted[places])
        for number, entries in reader.read(n for n in np.unique(numbers).tolist() if n >= 0):
            asked = places[numbers == number]
            at = _find_ids(entries, wanted[asked])
            there = at >= 0
            known[asked[there]] = True
            result.add(asked[there], entries.take(at[there]))


class _RowCollector:
    """Collects the entries found of distinct ids."""

    def __init__(self, wanted: Int64s, shape: TableShape) -> None:
        self._columns = [np.zeros(len(wanted), np.int64) for _ in range(3)]
        self._found = np.zeros(len(wanted), bool)
        self._row = np.full(len(wanted), -1, np.int64)
        self._values = [np.empty((0, shape.width), shape.storage)]
        self._shape = replace(shape, dtype="float32")
        self._rows = 0

    def add(self, places: Int64s, entries: Entries) -> None:
        """Add the entries of the ids at `places`."""
        alive = entries.states != DEAD
        self._found[places] = alive
        columns = (entries.versions, entries.frequencies, entries.seen)
        for column, found in zip(self._columns, columns, strict=True):
            column[places] = np.where(alive, found, 0)
        with_row = places[entries.states == ROW]
        self._row[with_row] = np.arange(self._rows, self._rows + len(with_row))
        self._rows += len(with_row)
        self._values.append(entries.values)

    def rows(self, keys: Int64s, inverse: npt.NDArray[np.intp]) -> TableRows:
        """Return the rows of `keys`; `inverse` is their places among the distinct ids."""
        row = self._row[inverse]
        values = convert_values(np.concatenate(self._values)[row[row >= 0]], self._shape)
        versions, frequencies, seen = (column[inverse] for column in self._columns)
        return TableRows(keys, self._found[inverse], versions, frequencies, seen, row >= 0, values)


def _find_ids(entries: Entries, keys: Int64s) -> Int64s:
    """Return the places of ids among sorted entries; -1 for missing ones."""
    found = search_pairs(entries.buckets, entries.keys, bucket_of(keys), keys)
    there = (found >= 0) & (entries.keys[found] == keys)
    return np.where(there, found, -1)


def _to_rows(found: Entries, shape: TableShape) -> TableRows:
    return TableRows(
        found.keys, np.ones(len(found), bool), found.versions, found.frequencies, found.seen,
        found.states == ROW, convert_values(found.values, shape),
    )  # fmt: skip


def _check_ids(ids: Any) -> Int64s:
    keys = np.asarray(ids)
    if keys.dtype == np.int32 or (keys.size == 0 and not isinstance(ids, np.ndarray)):
        keys = keys.astype(np.int64)
    if keys.dtype != np.int64:
        raise TypeError(f"the ids have dtype {keys.dtype}, expected int64")
    if keys.ndim != 1:
        raise ValueError(f"the ids have shape {keys.shape}, expected one dimension")
    return keys
