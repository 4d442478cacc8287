"""Arrow IPC files that pyarrow reads and does not write: another byte order, mixed compression."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def write(
    table: Any,
    options: Any = None,
    *,
    rows: int | None = None,
    stream: bool = False,
) -> bytes:
    """Return the bytes of an Arrow IPC file or stream, batches of `rows` rows."""
    sink = pa.BufferOutputStream()
    writer = (pa.ipc.new_stream if stream else pa.ipc.new_file)(
        sink, table.schema, options=options or pa.ipc.IpcWriteOptions()
    )
    with writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue().to_pybytes())


def swapped(table: Any) -> Any:
    """Return a table of fixed-width columns with the bytes of each value reversed."""
    columns = []
    for column in table.combine_chunks().columns:
        array = column.chunk(0)
        width = array.type.bit_width // 8
        validity, values = array.buffers()
        if width > 1:
            raw = np.frombuffer(values, np.uint8)[: len(array) * width].reshape(-1, width)
            values = pa.py_buffer(np.ascontiguousarray(raw[:, ::-1]))
        columns.append(
            pa.Array.from_buffers(array.type, len(array), [validity, values], array.null_count)
        )
    return pa.table(columns, names=table.column_names)


def big_endian(
    table: Any, options: Any = None, *, rows: int | None = None, stream: bool = False
) -> bytes:
    """Return a file of the other byte order: swapped values, and schemas that say so."""
    content = bytearray(write(swapped(table), options, rows=rows, stream=stream))
    start = 0 if stream else 8
    start += 8 if content[start : start + 4] == b"\xff\xff\xff\xff" else 4
    message = start + struct.unpack_from("<I", content, start)[0]
    _mark(content, _table(content, message, 2))
    if not stream:
        length = int.from_bytes(content[-10:-6], "little")
        footer = len(content) - 10 - length
        root = footer + struct.unpack_from("<I", content, footer)[0]
        _mark(content, _table(content, root, 1))
    return bytes(content)


def _entry(content: bytes | bytearray, table: int, field: int) -> int:
    """Return the place of the vtable's entry of a field."""
    found: int = table - struct.unpack_from("<i", content, table)[0] + 4 + 2 * field
    return found


def _table(content: bytes | bytearray, table: int, field: int) -> int:
    place = table + struct.unpack_from("<H", content, _entry(content, table, field))[0]
    found: int = place + struct.unpack_from("<I", content, place)[0]
    return found


def _mark(content: bytearray, schema: int) -> None:
    """Let the byte order of a schema, which is absent, be any int16 nearby that is 1 (big)."""
    entry = _entry(content, schema, 0)
    assert content[entry : entry + 2] == b"\0\0"
    places = range(schema + 4 + schema % 2, min(len(content) - 1, schema + 60_000), 2)
    place = next(one for one in places if content[one : one + 2] == b"\1\0")
    content[entry : entry + 2] = struct.pack("<H", place - schema)


def mixed(contents: Sequence[bytes]) -> bytes:
    """Return a file whose batch number i is that of file number i, all of one schema and count."""
    found = bytearray(contents[0])
    places = [blocks(content)[0] for content in contents]
    added = b""
    length = int.from_bytes(found[-10:-6], "little")
    footer = len(found) - 10 - length
    tail = bytearray(found[footer:])
    place = places[0] - footer
    for number, content in enumerate(contents):
        start, metadata, body = struct.unpack_from("<qi4xq", content, places[number] + 24 * number)
        struct.pack_into("<qi4xq", tail, place + 24 * number, footer + len(added), metadata, body)
        added += content[start : start + metadata + body]
        added += bytes(-len(added) % 8)
    return bytes(found[:footer]) + added + bytes(tail)


def blocks(content: bytes | bytearray, field: int = 3) -> tuple[int, int]:
    """Return the place of the first block in a field of a footer, and their number.

    Field 2 are the dictionaries, field 3 the record batches.
    """
    length = int.from_bytes(content[-10:-6], "little")
    footer = len(content) - 10 - length
    root = footer + struct.unpack_from("<I", content, footer)[0]
    vector = _table(content, root, field)
    return vector + 4, struct.unpack_from("<I", content, vector)[0]


def of_arrow_0_17(table: Any, rows: int) -> bytes:
    """Return a file in which the compression is text beside each record batch."""
    version = pa.ipc.MetadataVersion.V4
    options = pa.ipc.IpcWriteOptions(compression="zstd", metadata_version=version)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=options) as file:
        for batch in table.to_batches(max_chunksize=rows):
            file.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    content = bytearray(sink.getvalue().to_pybytes())
    first, count = blocks(content)
    for number in range(count):
        (start,) = struct.unpack_from("<q", content, first + 24 * number)
        message = start + 8 + struct.unpack_from("<I", content, start + 8)[0]
        entry = _entry(content, _table(content, message, 2), 3)
        content[entry : entry + 2] = b"\0\0"
    return bytes(content)


def with_buffer(table: Any, size: int, content: bytes, *, in_dictionary: bool = False) -> bytes:
    """Return a compressed file of one batch, whose last buffer is other compressed bytes.

    The buffer is moved to the end of the body, and the body to the end of the file.

    Parameters
    ----------
    table
    size
        Bytes that the buffer states to have when it is decompressed.
    content
        Its compressed bytes.
    in_dictionary
        Change the last buffer of the dictionary.
    """
    written = write(table, pa.ipc.IpcWriteOptions(compression="zstd"))
    first, _ = blocks(written, 2 if in_dictionary else 3)
    start, metadata, body = struct.unpack_from("<qi4xq", written, first)
    message = bytearray(written[start : start + metadata + body])
    root = 8 + struct.unpack_from("<I", message, 8)[0]
    batch = _table(message, root, 2)
    if in_dictionary:
        batch = _table(message, batch, 1)
    vector = _table(message, batch, 2)
    (count,) = struct.unpack_from("<I", message, vector)
    place = vector + 4 + 16 * (count - 1)
    packed = struct.pack("<q", size) + content
    struct.pack_into("<qq", message, place, body, len(packed))
    message += packed + bytes(-len(packed) % 8)
    length = root + struct.unpack_from("<H", message, _entry(message, root, 3))[0]
    struct.pack_into("<q", message, length, len(message) - metadata)
    footer_bytes = int.from_bytes(written[-10:-6], "little")
    footer = len(written) - 10 - footer_bytes
    tail = bytearray(written[footer:])
    struct.pack_into("<qi4xq", tail, first - footer, footer, metadata, len(message) - metadata)
    return written[:footer] + bytes(message) + bytes(tail)
