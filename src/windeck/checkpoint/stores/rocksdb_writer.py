"""Writing a table file of RocksDB straight from where the values are.

The engine's own writer wants each value as one `bytes`, copies it into a block, the block into a
buffer and the buffer into the file, and sums it anew. Here a value goes from the tensor into the
file in one system call, and the sum of its bytes, which its header needs anyway, becomes that of
the block by arithmetic: the bytes are read twice, by the sum and by the kernel, and copied once.
"""

from __future__ import annotations

import os
import secrets
import socket
from array import array
from collections.abc import Sequence
from pathlib import Path

from windeck._core import crc32c, crc32c_joined
from windeck.checkpoint.stores.protocol import Pieces
from windeck.checkpoint.stores.rocksdb_format import (
    TRAILER_BYTES,
    VALUE,
    footer,
    handle,
    make_block,
    masked,
    seal,
    starts_of,
    varint,
)
from windeck.checkpoint.stores.writeback import Writeback

__all__ = ["TableFile"]

#: Bytes of a block of small pairs, and of what is gathered before it is written.
BLOCK_BYTES = 4096
GATHER_BYTES = 256 << 10
#: A value of so many bytes is a block of its own and is not copied.
LARGE_BYTES = 16 << 10
#: One start for so many entries, where a search within a block may begin.
START_EVERY = 16
#: The end of a block of one entry: its start and the number of starts, and no compression.
_ALONE = starts_of((0,)) + b"\0"


class TableFile:
    """A table file being written, keys in ascending order; `finish` or `abandon` ends it.

    Raises
    ------
    OSError
        From any method, as the file system means it: ENOSPC for a full disk.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self._writeback = Writeback(self._file)
        self._out = bytearray()  # what comes next in the file and was not written
        self._written = 0  # bytes in the file
        self._size = 0  # bytes of the file, with what was not written
        self._block: list[bytes] = []  # of the small pairs that are to be a block
        self._starts: list[int] = []
        self._in_block = self._held = 0  # pairs, bytes
        self._last = b""
        self._index, self._index_starts = bytearray(), array("I")
        self._count = self._key_bytes = self._value_bytes = 0

    def add(self, key: bytes, value: bytes | Pieces) -> None:
        """Append a pair. What it refers to may change once this returns."""
        size = len(value)
        self._count += 1
        self._key_bytes += len(key) + len(VALUE)
        self._value_bytes += size
        head = b"\0" + varint(len(key) + len(VALUE)) + varint(size) + key + VALUE
        if size >= LARGE_BYTES:
            self._end_block()
            self._write_alone(head, value)
            self._note(key, len(head) + size + len(_ALONE) - 1)
            return
        if self._in_block % START_EVERY == 0:
            self._starts.append(self._held)
        self._block += (head, bytes(value))
        self._in_block += 1
        self._held += len(head) + size
        self._last = key
        if self._held >= BLOCK_BYTES:
            self._end_block()

    def finish(self) -> None:
        """Write what comes after the data, make it durable, close the file."""
        self._end_block()
        data_bytes = self._size
        starts = self._index_starts if self._index_starts else array("I", [0])
        tail = starts.tobytes() + len(starts).to_bytes(4, "little")
        index = self._append(seal(bytes(self._index) + tail))
        properties = self._append(make_block(self._properties(data_bytes)))
        meta = self._append(make_block([(b"rocksdb.properties", handle(*properties))]))
        self._out += footer(handle(*meta), handle(*index))
        self._write([])
        os.fsync(self._file)
        self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; doing so twice is no error."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write_alone(self, head: bytes, value: bytes | Pieces) -> None:
        """A block of one entry."""
        before, body = (value.head, value.body) if isinstance(value, Pieces) else (b"", value)
        body_crc = value.body_crc if isinstance(value, Pieces) else crc32c(value)
        before = head + before
        crc = crc32c(_ALONE, crc32c_joined(crc32c(before), body_crc, len(body)))
        self._out += before
        self._write([body])
        self._out += _ALONE + masked(crc).to_bytes(4, "little")

    def _end_block(self) -> None:
        """Make a block of the small pairs held."""
        if not self._block:
            return
        block = seal(b"".join(self._block) + starts_of(self._starts))
        self._out += block
        self._note(self._last, len(block) - TRAILER_BYTES)
        self._block, self._starts, self._in_block, self._held = [], [], 0, 0
        if len(self._out) >= GATHER_BYTES:
            self._write([])

    def _note(self, key: bytes, size: int) -> None:
        """Put a block, appended just now, into the index."""
        self._index_starts.append(len(self._index))
        self._index += b"\0" + varint(len(key)) + key + handle(self._size, size)
        self._size += size + TRAILER_BYTES

    def _append(self, block: bytes) -> tuple[int, int]:
        """Append a block that is not one of data: where it lies."""
        at, size = self._size, len(block) - TRAILER_BYTES
        self._out += block
        self._size += len(block)
        return at, size

    def _write(self, bodies: Sequence[bytes | memoryview]) -> None:
        """Write what is held, and what comes after it, without putting them together."""
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
        self._writeback.reached(self._written)

    def _properties(self, data_bytes: int) -> list[tuple[bytes, bytes]]:
        """What the engine's own writer says of such a table, and in the same order."""
        zero = varint(0)
        index_bytes = self._size - data_bytes
        found = {
            "block.based.table.index.type": bytes(4),
            "block.based.table.prefix.filtering": b"0",
            "block.based.table.whole.key.filtering": b"1",
            "column.family.id": varint(0x7FFFFFFF),
            "comparator": b"leveldb.BytewiseComparator",
            "compression": b"NoCompression",
            "compression_options": b"written by windeck; ",  # a note, which nobody reads back
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
            "num.data.blocks": varint(len(self._index_starts)),
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
    """A name nobody else gives: the engine's cache knows blocks by it and the file's number."""
    letters = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return bytes(secrets.choice(letters) for _ in range(20))
