"""Metadata of Arrow IPC and Parquet files that pyarrow does not provide, or not safely.

pyarrow does not say whether a record batch is compressed without decompressing it. Asked for a
column chunk of a damaged Parquet file, it may abort the process (`RowGroupMetaData.column` lets
C++ exceptions through), so Parquet footers are decoded here.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from windeck.columns.dtypes import Bools, Int64s
from windeck.io.filesystem import DECOMPRESSED_BYTES, DECOMPRESSED_RATIO, RangeReader

__all__ = [
    "DICTIONARIES",
    "BatchLayout",
    "ColumnChunk",
    "ParquetFooter",
    "batch_layout",
    "check_chunks",
    "check_contents",
    "check_lengths",
    "footer_bytes",
    "has_native_order",
    "ipc_blocks",
    "ipc_layout",
    "parquet_footer",
]

_T = TypeVar("_T")
#: Numbers of the fields of a footer that list dictionaries and record batches.
DICTIONARIES, _RECORD_BATCHES = 2, 3
_BLOCK_BYTES = 24
_NO_COLUMNS = pa.schema([])


def ipc_layout(contents: Any, batches: int | None) -> tuple[list[int], bool]:
    """Return the rows of each record batch, and True if values are not those of the file.

    Values of a compressed batch, or of another byte order than that of the machine, are decoded.

    O(batches) time. Raises the errors of pyarrow for damaged metadata and truncated messages.

    Parameters
    ----------
    contents
        pyarrow buffer of the whole file.
    batches
        Number of record batches in the footer of a file, which pyarrow has opened; None for a
        stream.
    """
    rows: list[int] = []
    decoded = False
    if batches is None:
        messages: Iterator[Any] = iter(pa.ipc.MessageReader.open_stream(pa.BufferReader(contents)))
    else:
        footer = _footer_of(contents)
        decoded = not has_native_order(footer, _FOOTER_SCHEMA)
        messages = _record_batches(contents, footer)
    for message in messages:
        if message.type == "schema":
            decoded = not has_native_order(message.metadata, _MESSAGE_HEADER)
        if message.type == "record batch":
            rows.append(max(pa.ipc.read_record_batch(message, _NO_COLUMNS).num_rows, 0))
            decoded = decoded or _is_compressed(message.metadata)
    return rows, decoded


def _record_batches(contents: Any, footer: Any, entry: int = _RECORD_BATCHES) -> Iterator[Any]:
    """Yield the messages of the record batches that the footer of a file lists."""
    for number, (start, metadata, body) in enumerate(ipc_blocks(footer, contents.size, entry)):
        yield _message(contents.slice(start, metadata + body), number)


#: Number of the field of a schema: in a footer, and in a message.
_FOOTER_SCHEMA, _MESSAGE_HEADER = 1, 2


def has_native_order(data: Any, entry: int = _FOOTER_SCHEMA) -> bool:
    """Return True if the values of a file have the byte order of this machine.

    In Schema.fbs of the Arrow format, field 0 of a schema is its byte order, 0 for little-endian.

    Parameters
    ----------
    data
        Flatbuffer of a footer, or of a message, which pyarrow has verified.
    entry
        Number of the field that is the schema.
    """
    (root,) = struct.unpack_from("<I", data, 0)
    place = _field(data, root, entry)
    schema = place + struct.unpack_from("<I", data, place)[0]
    order = _field(data, schema, 0)
    is_little = not (order and struct.unpack_from("<h", data, order)[0])
    return is_little == (sys.byteorder == "little")


def _message(data: Any, number: int) -> Any:
    try:
        return pa.ipc.read_message(data)
    except EOFError as error:  # of pyarrow, for a message of no bytes
        raise pa.ArrowInvalid(f"record batch {number} of its footer is empty") from error


def ipc_blocks(footer: Any, size: int, entry: int = _RECORD_BATCHES) -> list[tuple[int, int, int]]:
    """Return offset, bytes of metadata and bytes of body of each record batch of a file.

    Only the footer says where they are: writers differ in what precedes them. In File.fbs of the
    Arrow format, field 3 of a footer is the vector of record batches, each an offset in the file
    (8 bytes), the bytes of its metadata (4, and 4 of padding) and the bytes of its body (8).

    Parameters
    ----------
    footer
        Bytes of the footer.
    size
        Bytes of the file.
    entry
        Number of the field that lists them.

    Raises
    ------
    pyarrow.ArrowInvalid
        A record batch is outside of the file.
    """
    (root,) = struct.unpack_from("<I", footer, 0)
    place = _field(footer, root, entry)
    if not place:
        return []
    vector = place + struct.unpack_from("<I", footer, place)[0]
    (count,) = struct.unpack_from("<I", footer, vector)
    blocks = []
    for number in range(count):
        block = struct.unpack_from("<qi4xq", footer, vector + 4 + _BLOCK_BYTES * number)
        if min(block) < 0 or sum(block) > size:
            raise pa.ArrowInvalid(f"record batch {number} of its footer is outside of the file")
        blocks.append(block)
    return blocks


class BatchLayout(NamedTuple):
    """Places of the contents of a record batch.

    `nodes` are pairs (rows, nulls), `buffers` pairs (offset in the body, bytes), int64 of shape
    (n, 2), both in the order of the schema, depth first.
    """

    rows: int
    nodes: Int64s
    buffers: Int64s
    compressed: bool


def batch_layout(metadata: bytes) -> BatchLayout:
    """Return the layout of a record batch from the metadata of its message.

    In Message.fbs of the Arrow format, field 1 of a message is its type (3 for a record batch) and
    field 2 the record batch, whose fields are rows, nodes, buffers and compression. A message
    begins with its size, since version 0.15 after four bytes of ones.

    Raises
    ------
    pyarrow.ArrowInvalid
        It is not the metadata of a record batch.
    """
    try:
        data = metadata[8 if metadata[:4] == b"\xff\xff\xff\xff" else 4 :]
        (message,) = struct.unpack_from("<I", data, 0)
        kind, header = _field(data, message, 1), _field(data, message, 2)
        if not kind or data[kind] not in (_DICTIONARY, _RECORD_BATCH) or not header:
            raise pa.ArrowInvalid("a message is not a record batch")
        batch = _batch(data, message)
        length = _field(data, batch, 0)
        rows = struct.unpack_from("<q", data, length)[0] if length else 0
        pairs = _pairs(data, batch, 1), _pairs(data, batch, 2)
        return BatchLayout(rows, *pairs, _is_compressed(data))
    except (struct.error, IndexError, ValueError) as error:
        raise pa.ArrowInvalid(f"the metadata of a record batch is damaged: {error}") from error


def _is_compressed(metadata: Any) -> bool:
    """Return True if a record batch is compressed, by the flatbuffer of its message.

    In Message.fbs of the Arrow format, field 0 of a message is the version of the metadata, field 2
    the record batch, and field 4 a vector of pairs of text. Field 3 of a record batch is its
    compression, which pyarrow 0.17 wrote among the pairs, in version 4.
    """
    (message,) = struct.unpack_from("<I", metadata, 0)
    if _field(metadata, _batch(metadata, message), 3):
        return True
    version = _field(metadata, message, 0)
    is_old = not version or struct.unpack_from("<h", metadata, version)[0] <= _V4
    return is_old and _field(metadata, message, 4) != 0


#: The version of metadata that is read, as enumerated in Arrow's format.
_V4 = 3
#: Types of messages with a record batch: a dictionary, and a record batch.
_DICTIONARY, _RECORD_BATCH = 2, 3


def _batch(data: Any, message: int) -> int:
    """Return the table of a message's record batch; of a dictionary, it is in field 1."""
    header = _field(data, message, 2)
    table: int = header + struct.unpack_from("<I", data, header)[0]
    if data[_field(data, message, 1)] == _DICTIONARY:
        place = _field(data, table, 1)
        table = place + struct.unpack_from("<I", data, place)[0]
    return table


def most_bytes(stored: int, values: int) -> int:
    """Return how many bytes some compressed bytes may have: 64 for each value, or as a file."""
    return max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * stored, 64 * values)


def check_lengths(layout: BatchLayout, heads: Sequence[bytes]) -> None:
    """Raise pyarrow.ArrowInvalid if compressed buffers state too many bytes for their own.

    See `most_bytes`. pyarrow takes memory for what a buffer states, and decompresses it.

    Parameters
    ----------
    layout
    heads
        The first 8 bytes of buffers, in which they state their bytes; fewer of an empty one.
    """
    stated = [int.from_bytes(head, "little", signed=True) for head in heads if len(head) == 8]
    stored = int(layout.buffers[:, 1].max(initial=0))
    most = most_bytes(stored, layout.rows)
    if stated and max(stated) > most:
        raise pa.ArrowInvalid(
            f"a compressed buffer states {max(stated):,} bytes, expected no more than {most:,} of "
            f"{layout.rows:,} rows and {stored:,} compressed bytes"
        )


def check_contents(contents: Any, batches: int | None) -> None:
    """Check the lengths of all compressed buffers of a file or a stream; see `check_lengths`.

    About 3 us for a batch of a file that is not compressed. For the arguments see `ipc_layout`.
    """
    if batches is None:
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(contents)):
            if message.type in ("dictionary", "record batch") and _is_compressed(message.metadata):
                metadata = bytes(4) + message.metadata.to_pybytes()
                _check_body(metadata, memoryview(message.body))
        return
    footer = _footer_of(contents)
    blocks = [
        block
        for entry in (DICTIONARIES, _RECORD_BATCHES)
        for block in ipc_blocks(footer, contents.size, entry)
    ]
    view = memoryview(contents)
    for number in np.flatnonzero(_are_compressed(contents, blocks)).tolist():
        start, metadata, body = blocks[number]
        middle = start + metadata
        _check_body(bytes(view[start:middle]), view[middle : middle + body])


def _check_body(metadata: bytes, body: memoryview) -> None:
    layout = batch_layout(metadata)
    places = layout.buffers[layout.buffers[:, 1] >= 8, 0].tolist()
    check_lengths(layout, [bytes(body[place : place + 8]) for place in places])


def _are_compressed(contents: Any, blocks: Sequence[tuple[int, int, int]]) -> Bools:
    """Return `_is_compressed` of the messages of a file, all at once."""
    data = np.frombuffer(contents, np.uint8)

    def load(places: Int64s, kind: str) -> Int64s:
        width = np.dtype(kind).itemsize
        if ((places < 0) | (places > len(data) - width)).any():
            raise pa.ArrowInvalid("the metadata of a record batch is damaged")
        found: Int64s = data[places[:, None] + np.arange(width)].view(kind)[:, 0].astype(np.int64)
        return found

    def field(table: Int64s, entry: int) -> Int64s:
        """Return the places of a field of tables, 0 where it is absent."""
        vtable = table - load(table, "<i4")
        inside = 4 + 2 * entry < load(vtable, "<u2")
        offset = np.where(inside, load(np.where(inside, vtable + 4 + 2 * entry, 0), "<u2"), 0)
        return np.where(offset > 0, table + offset, 0)

    def follow(place: Int64s) -> Int64s:
        return place + load(place, "<u4")

    start = np.array([block[0] for block in blocks], np.int64)
    start += np.where(load(start, "<u4") == 2**32 - 1, 8, 4)
    message = follow(start)
    batch = follow(field(message, 2))
    is_dictionary = load(field(message, 1), "u1") == _DICTIONARY
    batch = np.where(is_dictionary, follow(np.where(is_dictionary, field(batch, 1), 0)), batch)
    version = field(message, 0)
    is_old = (version == 0) | (load(version, "<i2") <= _V4)
    found: Bools = (field(batch, 3) > 0) | (is_old & (field(message, 4) > 0))
    return found


def _footer_of(contents: Any) -> Any:
    length = int.from_bytes(contents.slice(contents.size - 10, 4), "little")
    return contents.slice(contents.size - 10 - length, length)


def _pairs(data: bytes, table: int, entry: int) -> Int64s:
    """Return a vector of pairs of int64, shape (n, 2)."""
    place = _field(data, table, entry)
    if not place:
        return np.zeros((0, 2), dtype=np.int64)
    vector = place + struct.unpack_from("<I", data, place)[0]
    (count,) = struct.unpack_from("<I", data, vector)
    found = np.frombuffer(data, "<i8", 2 * count, vector + 4)
    return found.reshape(-1, 2).astype(np.int64)


def _field(data: Any, table: int, entry: int) -> int:
    """Return the offset of a field of a flatbuffer table, 0 if it is absent.

    A table begins with the distance back to its vtable. A vtable holds its own size, the size of
    the table, and the offset of each field in the table, 0 for an absent field.
    """
    vtable = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * entry
    if place >= struct.unpack_from("<H", data, vtable)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return table + offset if offset else 0


class ColumnChunk(NamedTuple):
    """A column chunk. `values` includes nulls and empty lists; `nulls` is None if unknown.

    Its pages are the `compressed_bytes` at `start`, the first `dictionary_bytes` of them those of
    the dictionary. `encodings` are numbers of parquet.thrift.
    """

    path: tuple[bytes, ...]
    values: int
    nulls: int | None
    uncompressed_bytes: int
    compressed_bytes: int
    start: int
    dictionary_bytes: int
    encodings: tuple[int, ...]


def check_chunks(chunks: Iterable[ColumnChunk]) -> None:
    """Raise pyarrow.ArrowInvalid for column chunks that state too many bytes for their own."""
    for chunk in chunks:
        most = most_bytes(chunk.compressed_bytes, chunk.values)
        if chunk.uncompressed_bytes > most:
            raise pa.ArrowInvalid(
                f"a chunk of column {chunk.path[0].decode(errors='replace')!r} states "
                f"{chunk.uncompressed_bytes:,} bytes, expected no more than {most:,} of "
                f"{chunk.values:,} values and {chunk.compressed_bytes:,} compressed bytes"
            )


class ParquetFooter(NamedTuple):
    """Number of rows, name of the writer, and column chunks of each row group."""

    rows: int
    writer: bytes
    groups: list[list[ColumnChunk]]


def parquet_footer(path: str) -> ParquetFooter | None:
    """Read the footer of a Parquet file; None if it is damaged. O(column chunks) time."""
    data = footer_bytes(path)
    try:
        footer = _Thrift(data).struct(_DEEPEST)
        # Keys are the field numbers of parquet.thrift.
        groups = [[_chunk(chunk) for chunk in group[1]] for group in footer[4]]
        rows, writer = _checked(int, footer[3]), _checked(bytes, footer.get(6, b""))
        return ParquetFooter(rows, writer, groups)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None  # A field is missing or has another type.


def footer_bytes(path: str) -> bytes:
    """Return the bytes of the footer of a Parquet file, as it is."""
    with RangeReader(path) as file:
        length = int.from_bytes(file.read(max(file.size - 8, 0), 4), "little")
        return file.read(max(file.size - 8 - length, 0), length)


def _chunk(column: dict[int, Any]) -> ColumnChunk:
    data = column[3]
    path = tuple(_checked(bytes, name) for name in data[3])
    nulls = data.get(12, {}).get(3)
    nulls = None if nulls is None else _checked(int, nulls)
    # The dictionary, if there is one, precedes the pages of data. Some writers state 0 for none.
    start = min(_checked(int, data[9]), _checked(int, data.get(11, 0)) or data[9])
    values, uncompressed, compressed = (_checked(int, data[field]) for field in (5, 6, 7))
    dictionary = min(data[9] - start, compressed)
    encodings = tuple(_checked(int, one) for one in data[2])
    return ColumnChunk(path, values, nulls, uncompressed, compressed, start, dictionary, encodings)


def _checked(kind: type[_T], value: Any) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"a field is {value!r}, expected {kind.__name__}")
    return value


_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_VARINTS = (4, 5, 6)
_DEEPEST = 16


class _Thrift:
    """A reader of Thrift's compact protocol (thrift-compact-protocol.md of Apache Thrift).

    A field begins with a byte: four bits are the difference to the number of the previous field,
    four are the type. Integers are zigzag varints. Damaged data raise IndexError or ValueError.
    Time and memory are O(bytes), also for damaged data.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Return the fields of a struct by number."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            # The type of a boolean field is its value.
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _VARINTS:
            return self._integer()
        if kind in (_BINARY, _DOUBLE):
            return self._bytes(self._varint() if kind == _BINARY else 8)
        if kind in (_TRUE, _FALSE, _BYTE):  # In a list these take a byte each.
            return self._byte()
        if not depth or kind not in (_LIST, _SET, _STRUCT):
            raise ValueError(
                f"a value is nested too deeply, or of type {kind}, which Parquet does not use"
            )
        if kind == _STRUCT:
            return self.struct(depth - 1)
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._data) - self._place:  # Every element takes at least a byte.
            raise ValueError("a list extends beyond the end")
        return [self._value(head & 15, depth - 1) for _ in range(count)]

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _bytes(self, count: int) -> bytes:
        self._place += count
        if self._place > len(self._data):
            raise ValueError("a string extends beyond the end")
        return self._data[self._place - count : self._place]

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("an integer of more than 64 bits")
