"""Table files of RocksDB (SST), written without its engine. Nothing else knows their format.

The writer of rocksdict 0.3.29 is not used, for two reasons:

* It holds the interpreter's lock in each call, and computes checksums without the processor's
  instruction: a training thread ran at a third of its speed next to a save. This module computes
  the checksum of a block from the CRC32C of the value, which is known, and writes the memory of the
  value without the lock.
* It names no column family in its files. A repair of the database (``ldb repair``) loses them.

When a later rocksdict mends both, this module goes and `rocksdb_bulk` uses its writer for all
tables. `test_whether_the_writer_of_rocksdict_suffices` fails then; it is skipped until then.

The tables are uncompressed block-based tables of format version 5, as RocksDB 6.6 and later write
and read them; see "Rocksdb BlockBasedTable Format" in its wiki. A table is a sequence of blocks,
each followed by five bytes: the compression (0: none) and the masked CRC32C of the block and that
byte. The parts of a table are, in this order: the data blocks, by key; the index, with the last
key, the offset and size and the first key of each data block; the properties; the metaindex, with
their offset and size; and the footer, 53 bytes with the offsets and sizes of metaindex and index.

A block is a sequence of entries, each a key and a value; a key may share a prefix with the key
before it, which is not used here. The restarts follow: the offsets of every n-th entry, as
uint32, and their number. A stored key is the user's key and eight bytes: a sequence number and, in
the lowest byte, the kind, 1 for a value.

A table that removes a range of keys has no data blocks, and before the properties a block of one
entry: the first key of the range, of kind 15, and the key after the range.
"""

from __future__ import annotations

import io
import os
import struct
from array import array
from pathlib import Path

from windeck._core import crc32c, crc32c_joined
from windeck.checkpoint.stores.protocol import Pieces
from windeck.io.local_files import create_file

__all__ = ["TableWriter"]

#: The bytes after each block.
TRAILER_BYTES = 5
#: Last bytes of a stored key in a table to be ingested: sequence number 0, kind 1.
VALUE = (1).to_bytes(8, "little")
#: The same in a table that removes a range of keys.
RANGE_DELETION = (15).to_bytes(8, "little")
#: The kind of index that has the first key of each block. With it, the engine finds the next key of
#: a table without reading a block of data.
_FIRST_KEYS = (3).to_bytes(4, "little")
#: The kind of checksums (CRC32C), the places of metaindex and index, the version, a constant.
_FOOTER = struct.Struct("<B40sIQ")
_CRC32C, _VERSION, _MAGIC = 1, 5, 0x88E241B785F4CFF7

#: Bytes of a block of small pairs, and bytes that are buffered before a write.
BLOCK_BYTES = 4096
BUFFER_BYTES = 256 << 10
#: Least bytes of a value that gets its own block and is not copied.
LARGE_BYTES = 16 << 10
#: Entries of a block of data for each restart.
RESTART_EVERY = 16
#: The end of a block of one entry: its only restart, their number, and the byte for no compression.
_ALONE = struct.pack("<IIB", 0, 1, 0)


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


def masked(crc: int) -> bytes:
    """Return a CRC as RocksDB stores it, so that data with embedded CRCs can be checksummed.

    Examples
    --------
    >>> masked(0).hex()
    'd8ea82a2'
    """
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def entry_head(key: bytes, size: int) -> bytes:
    """Encode an entry up to its value of `size` bytes, with no prefix shared."""
    return b"\0" + varint(len(key)) + varint(size) + key


class _BlockOfEntries:
    """The entries of a block."""

    def __init__(self, restart_every: int = 1) -> None:
        self.data = bytearray()
        self.first = self.last = b""
        self._every, self._count, self._restarts = restart_every, 0, array("I")

    def add(self, key: bytes, value: bytes) -> None:
        """Append an entry."""
        if self._count % self._every == 0:
            self._restarts.append(len(self.data))
        self.data += entry_head(key, len(value)) + value
        self._count += 1
        self.first, self.last = self.first or key, key

    def encode(self) -> bytes:
        """Return the block with its trailer."""
        restarts = self._restarts or array("I", [0])  # an empty block has one, too
        end = restarts.tobytes() + struct.pack("<IB", len(restarts), 0)
        block = bytes(self.data) + end
        return block + masked(crc32c(block))


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
        self._raw = io.FileIO(create_file(path), "wb")
        self._file = io.BufferedWriter(self._raw, BUFFER_BYTES)
        self._size = 0  # bytes of the file, including those not written yet
        self._block, self._index = _BlockOfEntries(RESTART_EVERY), _BlockOfEntries()
        self._removed: _BlockOfEntries | None = None
        self._count = self._blocks = self._key_bytes = self._value_bytes = 0

    def add(self, key: bytes, value: bytes | Pieces) -> None:
        """Append a pair. The memory of the value may change after the call."""
        self._count += 1
        self._key_bytes += len(key) + len(VALUE)
        self._value_bytes += len(value)
        if len(value) >= LARGE_BYTES:
            self._end_block()
            self._write_alone(key + VALUE, value)
            return
        self._block.add(key + VALUE, bytes(value))
        if len(self._block.data) >= BLOCK_BYTES:
            self._end_block()

    def remove_range(self, first: bytes, stop: bytes) -> None:
        """Make a table that removes the keys [first, stop) of older tables, in place of `add`."""
        self._removed, self._count = _BlockOfEntries(), 1
        self._removed.add(first + RANGE_DELETION, stop)
        self._key_bytes, self._value_bytes = len(first) + len(RANGE_DELETION), len(stop)

    def finish(self) -> None:
        """Write index, properties and footer, make the file durable, close it."""
        self._end_block()
        data_bytes = self._size
        index = self._append(self._index.encode())
        removed = self._append(self._removed.encode()) if self._removed else None
        properties = _BlockOfEntries()
        for name, value in sorted(self._properties(data_bytes).items()):
            properties.add(b"rocksdb." + name.encode(), value)
        metaindex = _BlockOfEntries()
        metaindex.add(b"rocksdb.properties", self._append(properties.encode()))
        if removed is not None:
            metaindex.add(b"rocksdb.range_del", removed)
        places = self._append(metaindex.encode()) + index
        self._file.write(_FOOTER.pack(_CRC32C, places, _VERSION, _MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is; closing twice is no error."""
        self._raw.close()  # without writing the buffer, which may not fit on the disk

    def _write_alone(self, key: bytes, value: bytes | Pieces) -> None:
        """Write a block of one entry."""
        before, body = (value.head, value.body) if isinstance(value, Pieces) else (b"", value)
        body_crc = value.body_crc if isinstance(value, Pieces) else crc32c(value)
        before = entry_head(key, len(value)) + before
        crc = crc32c(_ALONE, crc32c_joined(crc32c(before), body_crc, len(body)))
        for data in (before, body, _ALONE + masked(crc)):
            self._file.write(data)
        self._add_to_index(key, key, len(before) + len(body) + len(_ALONE) - 1)

    def _end_block(self) -> None:
        """Append a block of the small pairs added so far."""
        if self._block.data:
            block = self._block.encode()
            self._file.write(block)
            self._add_to_index(self._block.first, self._block.last, len(block) - TRAILER_BYTES)
            self._block = _BlockOfEntries(RESTART_EVERY)

    def _add_to_index(self, first: bytes, last: bytes, size: int) -> None:
        """Add the data block that was written last to the index, by its first and last keys."""
        place = varint(self._size) + varint(size)
        self._index.add(last, place + varint(len(first)) + first)
        self._size += size + TRAILER_BYTES
        self._blocks += 1

    def _append(self, block: bytes) -> bytes:
        """Append a block without data; return its place, the encoded offset and size."""
        place = varint(self._size) + varint(len(block) - TRAILER_BYTES)
        self._file.write(block)
        self._size += len(block)
        return place

    def _properties(self, data_bytes: int) -> dict[str, bytes]:
        """Return the properties of the engine's writer that RocksDB or its tools use, by name."""
        return {
            "block.based.table.index.type": _FIRST_KEYS,
            # The default column family: a repair of the database loses tables without one.
            "column.family.id": varint(0),
            "column.family.name": b"default",
            "comparator": b"leveldb.BytewiseComparator",
            "compression": b"NoCompression",
            "data.size": varint(data_bytes),
            "deleted.keys": varint(int(self._removed is not None)),
            # Of a table to be ingested: its sequence number, to be filled in, and its version.
            "external_sst_file.global_seqno": bytes(8),
            "external_sst_file.version": (2).to_bytes(4, "little"),
            "format.version": varint(_VERSION),
            "index.size": varint(self._size - data_bytes),
            "num.data.blocks": varint(self._blocks),
            "num.entries": varint(self._count),
            "num.range-deletions": varint(int(self._removed is not None)),
            "raw.key.size": varint(self._key_bytes),
            "raw.value.size": varint(self._value_bytes),
            "tail.start.offset": varint(data_bytes),
        }
