"""Table files of RocksDB (SST), written and read without its engine.

The tables are uncompressed block-based tables of format version 5, as RocksDB 6.6 and later write
and read them; see "Rocksdb BlockBasedTable Format" in its wiki. A table is a sequence of blocks,
each followed by five bytes: the compression (0: none) and the masked CRC32C of the block and that
byte. The parts of a table are, in this order: the data blocks, by key; the index, with the last key
and the offset and size of each data block; the properties; the metaindex, with their offset and
size; and the footer, 53 bytes with the offsets and sizes of metaindex and index.

A block is a sequence of entries, each a key and a value; a key may share a prefix with the key
before it. The restarts follow: the offsets of entries that share no prefix, as uint32, and their
number. A stored key is the user's key and eight bytes: a sequence number and, in the lowest byte,
the kind, 1 for a value.

`docs/design/removed.md` has the measurements for which this module is kept: rocksdict's writer
computes checksums without the processor's instruction, and its `get` copies each value three times.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from windeck._core import crc32c, crc32c_joined, read_values
from windeck._util.threads import reentrant_lock
from windeck.checkpoint.stores.protocol import Pieces, Wanted
from windeck.io.local_files import create_file

__all__ = ["LiveTables", "TableWriter"]

#: The bytes after each block.
TRAILER_BYTES = 5
FOOTER_BYTES = 53
#: Last bytes of a stored key in a table to be ingested: sequence number 0, kind 1.
VALUE = (1).to_bytes(8, "little")
_FOOTER = struct.Struct("<B40sIQ")
_CRC32C, _VERSION, _MAGIC = 1, 5, 0x88E241B785F4CFF7

#: Bytes of a block of small pairs, and bytes that are buffered before a write.
BLOCK_BYTES = 4096
GATHER_BYTES = 256 << 10
#: Bytes after which the disk begins with them, while the next ones are written.
BEGIN_BYTES = 2 << 20
#: Least bytes of a value that gets its own block and is not copied.
LARGE_BYTES = 16 << 10
#: Entries of a block for each restart.
RESTART_EVERY = 16

#: Limit for the bytes of an index. A table with a larger one has small values.
INDEX_BYTES = 4 << 20
#: Limit for the bytes of a block that is read to check that it has a key.
SMALL_BYTES = 64 << 10
#: Tables kept open.
OPEN_TABLES = 64
_MEMORY = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")


def varint(number: int) -> bytes:
    """Encode a number in groups of seven bits, the lowest first.

    Examples
    --------
    >>> varint(5), varint(300)
    (b'\\x05', b'\\xac\\x02')
    """
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number; return it and the offset after it, or raise ValueError.

    Examples
    --------
    >>> varint_at(b"\\xac\\x02", 0)
    (300, 2)
    """
    number = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        if byte < 128:
            return number | byte << shift, at
        number |= (byte & 127) << shift
        shift += 7
    raise ValueError("a number does not end")


def handle(offset: int, size: int) -> bytes:
    """Encode offset and size of a block."""
    return varint(offset) + varint(size)


def masked(crc: int) -> int:
    """Return a CRC as RocksDB stores it, so that data with embedded CRCs can be checksummed.

    Examples
    --------
    >>> hex(masked(0))
    '0xa282ead8'
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def make_block(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a block of few pairs with its trailer, without shared prefixes."""
    parts, starts, at = list[bytes](), list[int](), 0
    for key, value in pairs:
        head = b"\0" + varint(len(key)) + varint(len(value))
        starts.append(at)
        parts += (head, key, value)
        at += len(head) + len(key) + len(value)
    return add_trailer(b"".join(parts) + encode_restarts(starts))


def encode_restarts(starts: Sequence[int]) -> bytes:
    """Encode the restarts at the end of a block; an empty block has one, too."""
    starts = starts or (0,)
    return struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))


def add_trailer(block: bytes) -> bytes:
    """Return a block with its trailer."""
    block += b"\0"
    return block + masked(crc32c(block)).to_bytes(4, "little")


def entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Decode the pairs of a block of data or properties; raise ValueError for other bytes."""
    at, end = 0, _end(block)
    key = b""
    while at < end:
        shared, at = varint_at(block, at)
        more, at = varint_at(block, at)
        size, at = varint_at(block, at)
        if shared > len(key) or at + more + size > end:
            raise ValueError("an entry reaches past its block")
        key = key[:shared] + block[at : at + more]
        at += more + size
        yield key, block[at - size : at]


def index_entries(block: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Decode an index: a key at or after the last key of each data block, its offset and its size.

    The keys are user keys, and the values are not delta-encoded, as by default in RocksDB.
    """
    at, end = 0, _end(block)
    while at < end:
        shared, at = varint_at(block, at)
        more, at = varint_at(block, at)
        if shared or at + more > end:
            raise ValueError("an entry of an index is incomplete")
        key = block[at : at + more]
        offset, at = varint_at(block, at + more)
        size, at = varint_at(block, at)
        if at > end:
            raise ValueError("an entry reaches past its block")
        yield key, offset, size


def _end(block: bytes) -> int:
    """Return the offset after the entries of a block."""
    if len(block) < 4:
        raise ValueError("a block is too short")
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise ValueError("a block has more restarts than bytes")
    return end


def footer(metaindex: bytes, index: bytes) -> bytes:
    """Encode the footer, from the encoded offsets and sizes of metaindex and index."""
    return _FOOTER.pack(_CRC32C, metaindex + index, _VERSION, _MAGIC)


def read_footer(data: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Decode offsets and sizes of metaindex and index; raise ValueError for another format."""
    kind, handles, version, magic = _FOOTER.unpack(data)
    if (kind, version, magic) != (_CRC32C, _VERSION, _MAGIC):
        raise ValueError("the file is not a table of version 5 with CRC32C sums")
    meta_offset, at = varint_at(handles, 0)
    meta_size, at = varint_at(handles, at)
    index_offset, at = varint_at(handles, at)
    index_size, at = varint_at(handles, at)
    return (meta_offset, meta_size), (index_offset, index_size)


#: The end of a block of one entry: its restarts and the byte for no compression.
_ALONE = encode_restarts((0,)) + b"\0"


@cache
def _sync_file_range() -> Any:
    """Return the system call of this name, None where the system has none."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)  # of Linux
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


def begin_writing(file: int, offset: int, size: int) -> None:
    """Have the disk begin with a range of a file, where the system can: `fsync` waits for less."""
    if (call := _sync_file_range()) is not None:
        call(file, offset, size, 2)  # SYNC_FILE_RANGE_WRITE


class TableWriter:
    """Writer of a table file; add keys in ascending order, then call `finish` or `abandon`.

    A large value is written from the caller's memory in one system call. The checksum of its block
    is combined from the CRC32C of its body, which is known already.

    Raises
    ------
    OSError
        From any method, with the errno of the file system, such as ENOSPC for a full disk.
    """

    def __init__(self, path: Path) -> None:
        self._file = create_file(path)
        self._out = bytearray()  # not written yet
        self._size = 0  # bytes of the file, including those not written yet
        self._written = self._begun = 0  # bytes in the file, and of them those the disk began with
        self._block: list[bytes] = []  # small pairs of the next block
        self._restarts: list[int] = []
        self._in_block = self._held = 0  # pairs and bytes of the next block
        self._last = b""
        self._index, self._index_restarts = bytearray(), array("I")
        self._count = self._key_bytes = self._value_bytes = 0

    def add(self, key: bytes, value: bytes | Pieces) -> None:
        """Append a pair. The memory of the value may change after the call."""
        size = len(value)
        self._count += 1
        self._key_bytes += len(key) + len(VALUE)
        self._value_bytes += size
        head = b"\0" + varint(len(key) + len(VALUE)) + varint(size) + key + VALUE
        if size >= LARGE_BYTES:
            self._end_block()
            self._write_alone(head, value)
            self._add_to_index(key, len(head) + size + len(_ALONE) - 1)
            return
        if self._in_block % RESTART_EVERY == 0:
            self._restarts.append(self._held)
        self._block += (head, bytes(value))
        self._in_block += 1
        self._held += len(head) + size
        self._last = key
        if self._held >= BLOCK_BYTES:
            self._end_block()

    def finish(self) -> None:
        """Write index, properties and footer, make the file durable, close it."""
        self._end_block()
        data_bytes = self._size
        starts = self._index_restarts if self._index_restarts else array("I", [0])
        tail = starts.tobytes() + len(starts).to_bytes(4, "little")
        index = self._append(add_trailer(bytes(self._index) + tail))
        properties = self._append(make_block(self._properties(data_bytes)))
        meta = self._append(make_block([(b"rocksdb.properties", handle(*properties))]))
        self._out += footer(handle(*meta), handle(*index))
        self._write([])
        os.fsync(self._file)
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; closing twice is no error."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write_alone(self, head: bytes, value: bytes | Pieces) -> None:
        """Write a block of one entry."""
        before, body = (value.head, value.body) if isinstance(value, Pieces) else (b"", value)
        body_crc = value.body_crc if isinstance(value, Pieces) else crc32c(value)
        before = head + before
        crc = crc32c(_ALONE, crc32c_joined(crc32c(before), body_crc, len(body)))
        self._out += before
        self._write([body])
        self._out += _ALONE + masked(crc).to_bytes(4, "little")

    def _end_block(self) -> None:
        """Append a block of the small pairs added so far."""
        if not self._block:
            return
        block = add_trailer(b"".join(self._block) + encode_restarts(self._restarts))
        self._out += block
        self._add_to_index(self._last, len(block) - TRAILER_BYTES)
        self._block, self._restarts, self._in_block, self._held = [], [], 0, 0
        if len(self._out) >= GATHER_BYTES:
            self._write([])

    def _add_to_index(self, key: bytes, size: int) -> None:
        """Add the block appended last to the index."""
        self._index_restarts.append(len(self._index))
        self._index += b"\0" + varint(len(key)) + key + handle(self._size, size)
        self._size += size + TRAILER_BYTES

    def _append(self, block: bytes) -> tuple[int, int]:
        """Append a block without data; return its offset and size."""
        at, size = self._size, len(block) - TRAILER_BYTES
        self._out += block
        self._size += len(block)
        return at, size

    def _write(self, bodies: Sequence[bytes | memoryview]) -> None:
        """Write the buffer and then `bodies`, without joining them."""
        parts = [memoryview(part) for part in (self._out, *bodies) if len(part)]
        while parts:
            done = os.writev(self._file, parts)
            self._written += done
            while parts and done >= len(parts[0]):
                done -= len(parts.pop(0))
            if done:
                parts[0] = parts[0][done:]
        parts.clear()
        self._out = bytearray()
        if self._written - self._begun >= BEGIN_BYTES:
            whole = self._written - self._written % 4096  # the last page is not full yet
            begin_writing(self._file, self._begun, whole - self._begun)
            self._begun = whole

    def _properties(self, data_bytes: int) -> list[tuple[bytes, bytes]]:
        """Return the properties that the engine's writer gives such a table, sorted by name."""
        zero = varint(0)
        index_bytes = self._size - data_bytes
        found = {
            "block.based.table.index.type": bytes(4),
            "block.based.table.prefix.filtering": b"0",
            "block.based.table.whole.key.filtering": b"1",
            # The name of the default family: a repair of the database drops tables without family.
            "column.family.id": zero,
            "column.family.name": b"default",
            "comparator": b"leveldb.BytewiseComparator",
            "compression": b"NoCompression",
            "compression_options": b"written by windeck; ",  # a note, never read back
            "creating.db.identity": b"SST Writer",
            "creating.host.identity": socket.gethostname().encode()[:64],
            "creating.session.identity": _session(),
            "creation.time": zero,
            "data.size": varint(data_bytes),
            "deleted.keys": zero,
            "external_sst_file.global_seqno": bytes(8),
            "external_sst_file.version": (2).to_bytes(4, "little"),
            "filter.size": zero,
            "fixed.key.length": zero,
            "format.version": varint(5),
            "index.key.is.user.key": varint(1),
            "index.size": varint(index_bytes),
            "index.value.is.delta.encoded": varint(1),
            "key.largest.seqno": zero,
            "merge.operands": zero,
            "merge.operator": b"nullptr",
            "num.data.blocks": varint(len(self._index_restarts)),
            "num.entries": varint(self._count),
            "num.filter_entries": zero,
            "num.range-deletions": zero,
            "oldest.key.time": zero,
            "original.file.number": varint(1),
            "prefix.extractor.name": b"nullptr",
            "property.collectors": b"[]",
            "raw.key.size": varint(self._key_bytes),
            "raw.value.size": varint(self._value_bytes),
            "tail.start.offset": varint(data_bytes),
        }
        return [(f"rocksdb.{name}".encode(), value) for name, value in found.items()]


def _session() -> bytes:
    """Return a unique name, which the engine's block cache uses to identify blocks."""
    letters = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return bytes(secrets.choice(letters) for _ in range(20))


class LiveTables:
    """Reader of values from the table files of an open database, without the engine. Thread-safe.

    The engine's `get` copies a value into a cache, from there into a string, and from there into
    `bytes`. This class reads it from the file into the caller's memory. That is correct only if the
    entry of the table is the one that `get` returns, so a value is read only when

    * nothing has been written through this store since the tables were listed, and the memtables of
      the engine are empty;
    * exactly one of the tables has the key, and none has a range deletion that contains it;
    * it is the only entry of an uncompressed block, as large values are;
    * the checksum of the block is right.

    In every other case, and for any unexpected file, the result is None. Then use the engine, which
    finds the value elsewhere or reports the damage.
    """

    def __init__(self, db: Any, path: Path) -> None:
        self._db, self._path = db, path
        # Reentrant: a signal handler may find it taken.
        self._lock = reentrant_lock()
        self._writes = 0
        #: Number of writes before the tables were listed, and the tables.
        self._listed: tuple[int, _TableFiles | None] = -1, None

    def note_write(self) -> None:
        """Note a write, so that the tables are listed again before the next read."""
        self._writes += 1

    def close(self) -> None:
        self._db, self._listed = None, (-1, None)

    def get_many_into(
        self, wanted: Sequence[Wanted], *, cached: bool = True, threads: int = 1
    ) -> list[int | None]:
        """See `windeck.checkpoint.stores.DirectView.get_many_into`."""
        listed_at, tables = self._listed
        if listed_at != self._writes:
            tables = self._list()
        answers: list[int | None] = [None] * len(wanted)
        if tables is None:
            return answers
        places = dict[_TableFile, list[_BlockRead]]()
        for number, one in enumerate(wanted):
            with suppress(OSError, ValueError):
                found = tables.find(one[0])
                if found is not None:
                    table, offset, size = found
                    places.setdefault(table, []).append((number, one, offset, size))
        for table, some in places.items():
            with suppress(OSError, ValueError):
                for number, crc in table.read(some, streamed=not cached, threads=threads):
                    answers[number] = crc
        return answers

    def _list(self) -> _TableFiles | None:
        with self._lock:
            writes, db = self._writes, self._db
            if db is None:
                return None
            listed_at, tables = self._listed
            if listed_at == writes:
                return tables
            try:
                waiting = any(db.property_int_value(name) != 0 for name in _MEMORY)
                tables = None if waiting else _TableFiles(self._path, db.live_files())
            except Exception:  # the engine raises plain Exception, and will report it again
                return None
            self._listed = writes, tables
            return tables


#: A wanted value: its number, the memory for it, and offset and size of its block.
_BlockRead: TypeAlias = tuple[int, Wanted, int, int]


class _TableFiles:
    """The table files at one moment."""

    def __init__(self, path: Path, files: Sequence[Mapping[str, Any]]) -> None:
        self._path = path
        self._files = [(file["start_key"], file["end_key"], file["name"]) for file in files]
        self._open: dict[str, _TableFile | None] = {}
        self._lock = reentrant_lock()

    def find(self, key: bytes) -> tuple[_TableFile, int, int] | None:
        """Return the only table that has a key, and offset and size of its block, or None."""
        found: list[tuple[_TableFile, int, int]] = []
        for first, last, name in self._files:
            if first <= key <= last:
                table = self._table(name)
                if table is None or (table.gone and table.deletes(key)):
                    return None
                block = table.block_of(key)
                if block is not None:
                    found.append((table, *block))
        if len(found) > 1:  # usually one has the key, the others only span it
            found = [place for place in found if place[0].may_hold(key, *place[1:])]
        if len(found) > 1:
            found = [place for place in found if place[0].holds(key, *place[1:])]
        return found[0] if len(found) == 1 else None

    def _table(self, name: str) -> _TableFile | None:
        """Return an open table, or None (cached) for a table that cannot be read here."""
        with self._lock:
            if name in self._open:
                table = self._open.pop(name, None)
            else:
                if len(self._open) >= OPEN_TABLES:  # threads that read from it keep it open
                    self._open.pop(next(iter(self._open)), None)
                try:
                    table = _TableFile(self._path / name.lstrip("/"))
                except (OSError, ValueError):
                    table = None
            self._open[name] = table
            return table


class _TableFile:
    """A table file that is open for reading, and closed with its last reference.

    Raises
    ------
    ValueError, OSError
        From any method, for an unexpected format.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
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
        # Offset and keys of the small block that was looked at last: keys are asked for in order.
        self._small: tuple[int, set[bytes]] = -1, set()

    _close = staticmethod(os.close)  # `os` may be gone at the exit of the interpreter

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._close(self._file)

    def deletes(self, key: bytes) -> bool:
        """Return True if a range deletion of this table contains a key, older or newer."""
        return any(first <= key < end for first, end in self.gone)

    def block_of(self, key: bytes) -> tuple[int, int] | None:
        """Return offset and size of the only block that may have a key, or None."""
        at = bisect_left(self._last_keys, key)
        return self._places[at] if at < len(self._places) else None

    def may_hold(self, key: bytes, offset: int, size: int) -> bool:
        """Return True if a block is large, or a small one that has a key."""
        if size > SMALL_BYTES:
            return True
        if self._small[0] != offset:
            keys = {found[:-8] for found, _ in entries(self._block(offset, size))}
            self._small = offset, keys
        return key in self._small[1]

    def holds(self, key: bytes, offset: int, size: int) -> bool:
        """Return True if a block has a key; a large block has one entry."""
        if size <= SMALL_BYTES:
            return self.may_hold(key, offset, size)
        begin = self._bytes(offset, min(size, 20 + len(key) + 8))
        shared, at = varint_at(begin, 0)
        length, at = varint_at(begin, at)
        value, at = varint_at(begin, at)
        if shared or at + length + value + len(_ALONE) - 1 != size:
            raise ValueError("a large block has more than one entry")
        return length == len(key) + 8 and begin[at:][: len(key)] == key

    def read(
        self, places: Sequence[_BlockRead], *, streamed: bool, threads: int
    ) -> Iterable[tuple[int, int | None]]:
        """Read values of blocks of one entry; return numbers and CRC32C of bodies, None if bad."""
        numbers, reads = [], []
        for number, (key, head, body), offset, size in places:
            # The kind (1: a value, not a deletion) comes before seven bytes of a sequence number.
            begin = _begin(len(key), len(head) + len(body)) + key + b"\1"
            if len(begin) + 7 + len(head) + len(body) + len(_ALONE) - 1 == size:
                numbers.append(number)
                reads.append((offset, begin, head, body))
        sums = read_values(self._file, reads, end=_ALONE, streamed=streamed, threads=threads)
        return zip(numbers, sums, strict=True)

    def _entries(self, where: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the pairs of the block whose encoded offset and size are given."""
        offset, at = varint_at(where, 0)
        size, _ = varint_at(where, at)
        return entries(self._block(offset, size))

    def _block(self, offset: int, size: int) -> bytes:
        """Read an uncompressed block and verify its checksum."""
        if size > INDEX_BYTES:
            raise ValueError(f"a block has more than {INDEX_BYTES:,} bytes")
        data = self._bytes(offset, size + TRAILER_BYTES)
        if data[size] != 0 or masked(crc32c(data[: size + 1])).to_bytes(4, "little") != data[-4:]:
            raise ValueError("a block is compressed or damaged")
        return data[:size]

    def _bytes(self, offset: int, size: int) -> bytes:
        if not 0 <= offset <= offset + size <= self._size:
            raise ValueError("an offset is outside the file")
        data = os.pread(self._file, size, offset)
        if len(data) != size:
            raise ValueError("the file ends too early")
        return data


@lru_cache(16)
def _begin(key: int, value: int) -> bytes:
    """Return the first bytes of a block of one entry, from the sizes of key and value."""
    return b"\0" + varint(key + 8) + varint(value)


def _check_properties(found: Mapping[bytes, bytes]) -> None:
    """Raise ValueError unless the table has a supported format."""
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
