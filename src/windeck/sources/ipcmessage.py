"""Whether an Arrow IPC file is compressed: read off its first record batch's own metadata.

pyarrow does not say. It matters, because of an uncompressed file batches are views of the mapped
file, whole and at no cost, while of a compressed one only the columns asked for may be touched.

A message is a marker of four 0xFF, the length of its metadata, the metadata, and its body. The
metadata is a flatbuffer (Message.fbs of the Arrow format): a table begins with the distance back
to its vtable, which holds its own size and the place of each field, 0 for an absent one.
"""

from __future__ import annotations

import mmap
import struct

_KIND, _HEADER, _BODY_LENGTH = 1, 2, 3
_BATCH_COMPRESSION = 3
_RECORD_BATCH = 3
_FILE_MAGIC_BYTES = 8
_MARKER = 0xFFFFFFFF


def is_compressed(path: str, *, stream: bool) -> bool:
    """Tell whether the first record batch of an IPC file or stream is compressed.

    Raises
    ------
    ValueError
        The metadata point outside the file.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        try:
            return _first_batch_has_compression(data, 0 if stream else _FILE_MAGIC_BYTES)
        except struct.error as error:
            raise ValueError(f"{path!r} cannot be read as Arrow IPC: {error}") from error


def _first_batch_has_compression(data: mmap.mmap, place: int) -> bool:
    while place + 8 <= len(data) and _unpack("<I", data, place) == _MARKER:
        length = _unpack("<i", data, place + 4)
        message = _followed(data, place + 8)
        kind = _field(data, message, _KIND)
        if length <= 0:
            break
        if kind and _unpack("<B", data, kind) == _RECORD_BATCH:
            batch = _followed(data, _field(data, message, _HEADER))
            return _field(data, batch, _BATCH_COMPRESSION) != 0
        body = _field(data, message, _BODY_LENGTH)
        place += 8 + length + max(_unpack("<q", data, body) if body else 0, 0)
    return False


def _field(data: mmap.mmap, table: int, number: int) -> int:
    """Where a field of a table lies; 0 if it is absent."""
    vtable = table - _unpack("<i", data, table)
    entry = 4 + 2 * number
    if entry >= _unpack("<H", data, vtable):
        return 0
    place = _unpack("<H", data, vtable + entry)
    return table + place if place else 0


def _followed(data: mmap.mmap, place: int) -> int:
    return place + _unpack("<I", data, place)


def _unpack(kind: str, data: mmap.mmap, place: int) -> int:
    if place < 0:
        raise struct.error(f"a field at {place}")
    return int(struct.unpack_from(kind, data, place)[0])
