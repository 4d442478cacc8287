"""The bytes of a saved embedding table: rows, blocks of entries, and lines of the index.

The only Python module that knows offsets, widths and the order of fields; in C++ it is
``cpp/include/windeck/table/block_layout.hpp``. After the header that every value has, a block is,
little-endian, without gaps::

    entries u32, rows u32, dead u32, dim u32, slots u32, dtype u32: 0 float32, 1 bfloat16
    keys          int64[entries]    ascending by (bucket, key)
    versions      int64[entries]    the clock of the last update; of dead entries, of the removal
    frequencies   int64[entries]
    seen          int64[entries]    the clock of the last lookup in training
    states        uint8[entries]    0 counted only, 1 has a row, 2 dead; 0s up to a multiple of 8
    values        dtype[rows, (1 + slots) * dim]      embedding, then slots, of those with a row

A line of the index describes a block::

    key i64, first u32, last u32, entries u32, rows u32, dead u32, 0 u32

with the id and the bucket of its first entry, and the bucket of its last. A value of the index has
up to `INDEX_LINES` lines.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windeck.checkpoint.format.values import HEADER_BYTES

__all__ = ["BLOCK_BYTES", "COUNTED", "DEAD", "DTYPE_CODES", "INDEX_LINE", "INDEX_LINES", "ROW"]
__all__ += ["VALUE_BYTES", "BlockSize", "Prelude", "TableShape", "block_bytes", "entry_columns"]
__all__ += ["index_line", "last_key", "parse_prelude", "row_values"]

#: States of an entry.
COUNTED, ROW, DEAD = 0, 1, 2
#: Codes of the dtypes of rows.
DTYPE_CODES = {"float32": 0, "bfloat16": 1}

_PRELUDE = struct.Struct("<IIIIII")
#: Arrays of one number for each entry, in order.
_COLUMNS: dict[str, np.dtype[Any]] = {
    "keys": np.dtype("<i8"),
    "versions": np.dtype("<i8"),
    "frequencies": np.dtype("<i8"),
    "seen": np.dtype("<i8"),
    "states": np.dtype("u1"),
}
_ENTRY_BYTES = sum(dtype.itemsize for dtype in _COLUMNS.values())
#: Bytes of the value of a block; an entry that is larger is a block of its own.
VALUE_BYTES = 512 << 10
#: Bytes for entries in such a block.
BLOCK_BYTES = VALUE_BYTES - HEADER_BYTES - _PRELUDE.size - 8

_LINE_FIELDS = {"key": "q", "first": "I", "last": "I"}
_LINE_FIELDS |= {"entries": "I", "rows": "I", "dead": "I", "zero": "I"}
_LINE = struct.Struct("<" + "".join(_LINE_FIELDS.values()))
#: Dtype of a line of the index.
INDEX_LINE = np.dtype([(name, "<" + code) for name, code in _LINE_FIELDS.items()])
#: Lines in one value of the index.
INDEX_LINES = 1 << 16


@dataclass(frozen=True)
class TableShape:
    """Shape of a row: an embedding of `dim` numbers, and `slots` optimizer slots of that size.

    All of them have the dtype, float32 or bfloat16.
    """

    dim: int
    slots: int
    dtype: str = "float32"

    @property
    def width(self) -> int:
        """Number of elements of a row."""
        return (1 + self.slots) * self.dim

    @property
    def storage(self) -> np.dtype[Any]:
        """Dtype of the arrays of rows; uint16 for the bits of bfloat16."""
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else np.float32)

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row."""
        return self.width * self.storage.itemsize

    @property
    def entry_bytes(self) -> int:
        """Number of bytes of an entry with a row."""
        return _ENTRY_BYTES + self.row_bytes

    def columns_of(self, number: int) -> slice:
        """Return the columns of a vector in a row: 0 is the embedding, from 1 on the slots."""
        return slice(number * self.dim, (number + 1) * self.dim)


@dataclass(frozen=True)
class BlockSize:
    """Number of entries of a block, of entries with a row, and of dead entries."""

    entries: int
    rows: int
    dead: int

    def bytes(self, shape: TableShape) -> int:
        """Return the bytes of the payload of the block."""
        return int(block_bytes(self.entries, self.rows, shape))


class Prelude(NamedTuple):
    """The fields of a block before its columns; `dtype` is a code of `DTYPE_CODES`."""

    size: BlockSize
    dim: int
    slots: int
    dtype: int


def block_bytes(entries: Any, rows: Any, shape: TableShape) -> Any:
    """Return the bytes of the payload of a block, or of each of several as arrays."""
    return _rows_at(entries) + shape.row_bytes * rows


def _rows_at(entries: Any) -> Any:
    head = _PRELUDE.size + _ENTRY_BYTES * entries
    return head + -head % 8


def parse_prelude(payload: memoryview) -> Prelude:
    """Return the fields of a block before its columns, unchecked."""
    entries, rows, dead, dim, slots, dtype = _PRELUDE.unpack_from(payload)
    return Prelude(BlockSize(entries, rows, dead), dim, slots, dtype)


def entry_columns(payload: memoryview, entries: int) -> list[npt.NDArray[Any]]:
    """Return views of the columns of a block in order: keys to states."""
    at, found = _PRELUDE.size, []
    for dtype in _COLUMNS.values():
        found.append(np.frombuffer(payload, dtype, entries, at))
        at += dtype.itemsize * entries
    return found


def row_values(payload: memoryview, size: BlockSize, shape: TableShape) -> npt.NDArray[Any]:
    """Return a view of the rows of a block, of shape (rows, width)."""
    at = int(_rows_at(size.entries))
    values = np.frombuffer(payload, shape.storage, size.rows * shape.width, at)
    return values.reshape(size.rows, shape.width)


def last_key(payload: memoryview) -> int:
    """Return the id of the last entry of a block that was checked."""
    return int(entry_columns(payload, parse_prelude(payload).size.entries)[0][-1])


def index_line(key: int, first: int, last: int, size: BlockSize) -> bytes:
    """Return the line of a block in the index."""
    return _LINE.pack(key, first, last, size.entries, size.rows, size.dead, 0)
