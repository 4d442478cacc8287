"""Reading large values straight from RocksDB's table files into the memory they are wanted in.

The engine's `get` copies a value into a cache, from there into a string, and from there into
`bytes`; all of it fresh memory, whose first touch costs more than the copies. Here it goes from the
file to where it is wanted. That is right only where the table's entry is what `get` would give, so
a value is read here only when

* nothing has been written through this store since the tables were listed, and no write waits in
  the engine's memory: what counts is in the tables;
* exactly one of the tables has the key, and none deletes a range that it lies in;
* it lies there alone in a block that is not compressed, as large values do;
* the block's checksum agrees.

In every other case, and whenever a file is not as expected, the answer is None: ask the engine,
which finds the value elsewhere or says what is wrong.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from windeck._core import crc32c, read_summed
from windeck.checkpoint.stores.protocol import Wanted
from windeck.checkpoint.stores.rocksdb_format import (
    FOOTER_BYTES,
    TRAILER_BYTES,
    entries,
    index_entries,
    masked,
    read_footer,
    varint,
    varint_at,
)

__all__ = ["DirectReading"]

#: An index of more bytes is not read: such a table has small values.
INDEX_BYTES = 4 << 20
#: A block of up to so many bytes is read to see whether a key is in it.
SMALL_BYTES = 64 << 10
#: Tables kept open.
OPEN_TABLES = 64
_MEMORY = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
#: The end of a block of one entry: its start and the number of starts, and no compression.
_ALONE = bytes(4) + (1).to_bytes(4, "little") + b"\0"


class DirectReading:
    """Values of a database, read past the engine. For several threads."""

    def __init__(self, db: Any, path: Path) -> None:
        self._db, self._path = db, path
        self._lock = threading.Lock()
        self._writes = 0
        self._tables: _Tables | None = None
        self._listed_at = -1  # after how many writes

    def changed(self) -> None:
        """Said after each write through the database."""
        self._writes += 1

    def close(self) -> None:
        self._db = self._tables = None

    def get_many_into(self, wanted: Sequence[Wanted], *, cached: bool) -> list[int | None]:
        """See `windeck.checkpoint.stores.DirectView.get_many_into`."""
        tables = self._tables if self._listed_at == self._writes else self._list()
        answers: list[int | None] = [None] * len(wanted)
        if tables is None:
            return answers
        places = dict[_Table, list[_Place]]()
        for number, one in enumerate(wanted):
            with suppress(OSError, ValueError):
                found = tables.find(one[0])
                if found is not None:
                    table, offset, size = found
                    places.setdefault(table, []).append((number, one, offset, size))
        for table, some in places.items():
            with suppress(OSError, ValueError):
                for number, crc in table.read(some, cached=cached):
                    answers[number] = crc
        return answers

    def _list(self) -> _Tables | None:
        with self._lock:
            writes, db = self._writes, self._db
            if db is None:
                return None
            if self._listed_at == writes:
                return self._tables
            try:
                waiting = any(db.property_int_value(name) != 0 for name in _MEMORY)
                self._tables = None if waiting else _Tables(self._path, db.live_files())
            except Exception:  # the engine's errors have no type; it will say so when asked
                return None
            self._listed_at = writes
            return self._tables


#: A value that is asked for: which it is, what of it is wanted where, where its block lies.
_Place: TypeAlias = tuple[int, Wanted, int, int]


class _Tables:
    """The table files of one moment."""

    def __init__(self, path: Path, files: Sequence[Mapping[str, Any]]) -> None:
        self._path = path
        self._files = [(file["start_key"], file["end_key"], file["name"]) for file in files]
        self._open: dict[str, _Table | None] = {}
        self._lock = threading.Lock()

    def find(self, key: bytes) -> tuple[_Table, int, int] | None:
        """The only table that has a key, or may have it, and where its block lies."""
        found: list[tuple[_Table, int, int]] = []
        for first, last, name in self._files:
            if first <= key <= last:
                table = self._table(name)
                if table is None or (table.gone and table.deletes(key)):
                    return None
                block = table.block_of(key)
                if block is not None:
                    found.append((table, *block))
        if len(found) > 1:  # it is in one of them as a rule, the others reach from before to after
            found = [place for place in found if place[0].holds(key, *place[1:])]
        return found[0] if len(found) == 1 else None

    def _table(self, name: str) -> _Table | None:
        """An open table; None for one that cannot be read here, which is not tried twice."""
        with self._lock:
            if name in self._open:
                table = self._open.pop(name)
            else:
                if len(self._open) >= OPEN_TABLES:  # threads that read from it keep it open
                    del self._open[next(iter(self._open))]
                try:
                    table = _Table(self._path / name.lstrip("/"))
                except (OSError, ValueError):
                    table = None
            self._open[name] = table
            return table


class _Table:
    """One table file; closed when the last who reads from it lets go.

    Raises
    ------
    ValueError, OSError
        From any method, for what is not as expected.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._file).st_size
        metaindex, index = read_footer(self._bytes(self._size - FOOTER_BYTES, FOOTER_BYTES))
        meta = dict(entries(self._block(*metaindex)))
        _check_properties(dict(self._entries(meta.get(b"rocksdb.properties", b""))))
        gone = meta.get(b"rocksdb.range_del")
        #: Ranges that are deleted.
        self.gone = [] if gone is None else [(a[:-8], b) for a, b in self._entries(gone)]
        blocks = list(index_entries(self._block(*index)))
        self._last_keys = [key for key, _, _ in blocks]
        self._places = [(offset, size) for _, offset, size in blocks]

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def deletes(self, key: bytes) -> bool:
        """Whether a key lies in a range that is deleted here: by what was written before or after
        it, is not looked at."""
        return any(first <= key < end for first, end in self.gone)

    def block_of(self, key: bytes) -> tuple[int, int] | None:
        """Where the block lies that a key is in if it is in the table at all."""
        at = bisect_left(self._last_keys, key)
        return self._places[at] if at < len(self._places) else None

    def holds(self, key: bytes, offset: int, size: int) -> bool:
        """Whether a key is in a block; a large block is taken to have one."""
        if size <= SMALL_BYTES:
            return any(found[:-8] == key for found, _ in entries(self._block(offset, size)))
        begin = self._bytes(offset, min(size, 20 + len(key) + 8))
        shared, at = varint_at(begin, 0)
        length, at = varint_at(begin, at)
        value, at = varint_at(begin, at)
        if shared or at + length + value + len(_ALONE) - 1 != size:
            raise ValueError("a large block has more than one entry")
        return length == len(key) + 8 and begin[at:][: len(key)] == key

    def read(self, places: Sequence[_Place], *, cached: bool) -> Iterator[tuple[int, int]]:
        """Of those whose block has one entry, is read and agrees: which, and the body's CRC32C."""
        asked = list[tuple[int, bytes, memoryview]]()
        stretches = list[tuple[int, int, memoryview, int]]()
        for number, (key, head, body), offset, size in places:
            begin = _begin(len(key), len(head) + len(body)) + key
            front = len(begin) + 8 + len(head)
            if front + len(body) + len(_ALONE) - 1 == size:
                asked.append((number, begin, head))
                stretches.append((offset, front, body, len(_ALONE) + 4))
        found = read_summed(self._file, stretches, cached=cached)
        for (number, begin, head), (first, crc, body_crc, end) in zip(asked, found, strict=True):
            # The last byte but seven: a value, not a deletion; the others number the write.
            if not first.startswith(begin) or first[len(begin)] != 1:
                continue
            head[:] = first[len(begin) + 8 :]
            if end == _ALONE + masked(crc32c(_ALONE, crc)).to_bytes(4, "little"):
                yield number, body_crc

    def _entries(self, where: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The pairs of the block that a handle means."""
        offset, at = varint_at(where, 0)
        size, _ = varint_at(where, at)
        return entries(self._block(offset, size))

    def _block(self, offset: int, size: int) -> bytes:
        """A block that is not compressed, its checksum looked at."""
        if size > INDEX_BYTES:
            raise ValueError("a block is larger than is read here")
        data = self._bytes(offset, size + TRAILER_BYTES)
        if data[size] != 0 or masked(crc32c(data[: size + 1])).to_bytes(4, "little") != data[-4:]:
            raise ValueError("a block is compressed or damaged")
        return data[:size]

    def _bytes(self, offset: int, size: int) -> bytes:
        if not 0 <= offset <= offset + size <= self._size:
            raise ValueError("a place lies outside the file")
        data = bytearray(size)
        read_summed(self._file, [(offset, 0, memoryview(data), 0)])
        return bytes(data)


@lru_cache(16)
def _begin(key: int, value: int) -> bytes:
    """What a block of one entry begins with, by the bytes of its key and its value."""
    return b"\0" + varint(key + 8) + varint(value)


def _check_properties(found: Mapping[bytes, bytes]) -> None:
    """ValueError unless blocks and keys are as they are read here."""
    expected = {
        b"rocksdb.block.based.table.index.type": bytes(4),
        b"rocksdb.comparator": b"leveldb.BytewiseComparator",
        b"rocksdb.compression": b"NoCompression",
        b"rocksdb.index.key.is.user.key": b"\1",
        b"rocksdb.index.value.is.delta.encoded": b"\1",
    }
    for name, value in expected.items():
        if found.get(name) != value:
            raise ValueError(f"the table has another {name!r}")
