"""How an Arrow IPC file is laid out: rows of its record batches, and whether it is compressed.

pyarrow tells neither without reading batches. Both matter: batches outside a range of rows need
not be touched, and of an uncompressed file batches are views of the mapped file, at no cost, while
of a compressed one only the columns asked for should be decompressed.

A message is a marker of four 0xFF, the length of its metadata, the metadata, and its body. The
metadata is a flatbuffer (Message.fbs of the Arrow format): a table begins with the distance back
to its vtable, which holds its own size and the place of each field, 0 for an absent one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

_KIND, _HEADER, _BODY_LENGTH = 1, 2, 3
_BATCH_ROWS, _BATCH_COMPRESSION = 0, 3
_RECORD_BATCH = 3
_FILE_MAGIC_BYTES = 8
_MARKER = 0xFFFFFFFF


class Layout(NamedTuple):
    """Rows of each record batch, in order, and whether any of them is compressed."""

    rows: tuple[int, ...]
    compressed: bool


def layout(path: str, *, stream: bool) -> Layout:
    """Read the metadata of all record batches of an IPC file or stream; O(batches).

    Raises
    ------
    ValueError
        The metadata are damaged, or the last message is cut short.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        try:
            batches = list(_batches(data, 0 if stream else _FILE_MAGIC_BYTES))
        except struct.error as error:
            raise ValueError(f"{path!r} cannot be read as Arrow IPC: {error}") from error
    return Layout(tuple(rows for rows, _ in batches), any(packed for _, packed in batches))


def _batches(data: mmap.mmap, place: int) -> Iterator[tuple[int, bool]]:
    """Rows of each record batch from `place` on, and whether it is compressed."""
    while place + 8 <= len(data) and _unpack("<I", data, place) == _MARKER:
        length = _unpack("<i", data, place + 4)
        if length <= 0:
            return
        message = _followed(data, place + 8)
        if _value("<B", data, message, _KIND) == _RECORD_BATCH:
            batch = _followed(data, _field(data, message, _HEADER))
            rows = _value("<q", data, batch, _BATCH_ROWS)
            yield max(rows, 0), _field(data, batch, _BATCH_COMPRESSION) != 0
        place += 8 + length + max(_value("<q", data, message, _BODY_LENGTH), 0)
        if place > len(data):
            raise struct.error(f"its last message ends at {place}, the file at {len(data)}")


def _value(kind: str, data: mmap.mmap, table: int, number: int) -> int:
    """The value of a field of a table; 0 if it is absent."""
    place = _field(data, table, number)
    return _unpack(kind, data, place) if place else 0


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
