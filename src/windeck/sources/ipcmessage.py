"""Whether an Arrow IPC file is compressed: read off its first record batch's own metadata.

pyarrow does not say. It matters, because of an uncompressed file batches are views of the mapped
file, whole and at no cost, while of a compressed one only the columns asked for may be touched.
The metadata is a flatbuffer (Message.fbs of the Arrow format): a table begins with the distance
back to its vtable, which holds its own size and the place of each field, 0 for an absent one.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

_MESSAGE_HEADER, _BATCH_COMPRESSION = 2, 3
_FILE_MAGIC_BYTES = 8


def is_compressed(source: Any, *, stream: bool) -> bool:
    """Tell whether the first record batch of an IPC file or stream is compressed.

    Raises
    ------
    ValueError
        The metadata point outside themselves.
    """
    source.seek(0 if stream else _FILE_MAGIC_BYTES)
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type == "record batch":
            return _has_compression(message.metadata.to_pybytes())
    return False


def _has_compression(data: bytes) -> bool:
    try:
        message = _followed(data, 0)
        batch = _followed(data, _field(data, message, _MESSAGE_HEADER))
        return _field(data, batch, _BATCH_COMPRESSION) != 0
    except struct.error as error:
        raise ValueError(f"a message of {len(data)} bytes is damaged: {error}") from error


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies; 0 if it is absent."""
    vtable = table - _unpack("<i", data, table)
    entry = 4 + 2 * number
    if entry >= _unpack("<H", data, vtable):
        return 0
    place = _unpack("<H", data, vtable + entry)
    return table + place if place else 0


def _followed(data: bytes, place: int) -> int:
    return place + _unpack("<I", data, place)


def _unpack(kind: str, data: bytes, place: int) -> int:
    if place < 0:
        raise struct.error(f"a field at {place}")
    return int(struct.unpack_from(kind, data, place)[0])
