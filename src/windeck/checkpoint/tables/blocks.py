"""A block: up to 256 KiB of a table's entries as one value.

After the header that every value has, little-endian, without gaps::

    entries u32, rows u32, dead u32, dim u32, slots u32, 0 u32
    keys          int64[entries]    ascending by (bucket, key)
    versions      int64[entries]    the clock of the last update; of the dead, of the removal
    frequencies   int64[entries]
    seen          int64[entries]    the clock when it was last looked up in training
    states        uint8[entries]    0 counted only, 1 has a row, 2 dead; 0s up to a multiple of 8
    values        float32[rows, (1 + slots) * dim]    embedding, then slots, of those with a row
"""

from __future__ import annotations

import struct

import numpy as np

from windeck._core import crc32c, crc32c_joined
from windeck.checkpoint.format.values import HEADER_BYTES, LARGEST_PAYLOAD, Label, header
from windeck.checkpoint.stores import CorruptStoreError, Pieces
from windeck.checkpoint.tables.entries import DEAD, ROW, Entries
from windeck.checkpoint.tables.shapes import ENTRY_BYTES, PRELUDE_BYTES, Shape, Size

__all__ = ["BLOCK_BYTES", "pack", "unpack"]

_PRELUDE = struct.Struct("<IIIIII")
#: Bytes for entries in a block, so that a value has up to 256 KiB.
BLOCK_BYTES = (256 << 10) - HEADER_BYTES - PRELUDE_BYTES - 8


def size_of(entries: Entries) -> Size:
    """How many there are of what."""
    count = len(entries)
    dead = int(np.count_nonzero(entries.states == DEAD)) if len(entries.values) < count else 0
    return Size(len(entries), len(entries.values), dead)


def pack(label: Label, entries: Entries, shape: Shape) -> tuple[Pieces, Size]:
    """The value of a block, its rows where they are, and its size.

    Raises
    ------
    ValueError
        For a row that no store takes.
    """
    size = size_of(entries)
    prelude = _PRELUDE.pack(size.entries, size.rows, size.dead, shape.dim, shape.slots, 0)
    pad = bytes(-(PRELUDE_BYTES + ENTRY_BYTES * size.entries) % 8)
    length = size.bytes(shape)
    if length > LARGEST_PAYLOAD:
        raise ValueError(
            f"a row of {shape.width:,} numbers has {length:,} bytes, expected at most "
            f"{LARGEST_PAYLOAD:,}"
        )
    columns = (entries.keys, entries.versions, entries.frequencies, entries.seen, entries.states)
    before = b"".join((prelude, *(np.ascontiguousarray(column).data for column in columns), pad))
    rows = np.ascontiguousarray(entries.values).reshape(-1).view(np.uint8).data
    rows_sum = crc32c(rows)
    head = header(label, length, crc32c_joined(crc32c(before), rows_sum, len(rows)))
    return Pieces(head + before, rows, rows_sum), size


def unpack(name: str, payload: memoryview, shape: Shape, size: Size) -> Entries:
    """The entries of a block, as views of its payload, after its lengths were checked.

    Parameters
    ----------
    name
        Of the key, for messages.
    size
        What the index says; the payload has as many bytes.

    Raises
    ------
    CorruptStoreError
        Naming the key, what was found and what was expected.

    Notes
    -----
    O(entries). Nothing is allocated. That the entries are in order, the index checks.
    """
    count, rows, dead, dim, slots, zero = _PRELUDE.unpack_from(payload)
    if (dim, slots, zero) != (shape.dim, shape.slots, 0):
        raise _wrong(
            name, f"rows of dim {dim} with {slots} slots", f"{shape.dim} with {shape.slots}"
        )
    if Size(count, rows, dead) != size:
        raise _wrong(name, f"{Size(count, rows, dead)}", f"{size} as its index says")
    found = _views(payload, size, shape)
    counts = np.bincount(found.states, minlength=3)
    if (int(counts[ROW]), int(counts[DEAD])) != (rows, dead) or len(counts) > 3:
        raise _wrong(name, f"{counts[ROW]} rows and {counts[DEAD]} dead", f"{rows} and {dead}")
    return found


def _views(payload: memoryview, size: Size, shape: Shape) -> Entries:
    count, at = size.entries, PRELUDE_BYTES
    numbers = [np.frombuffer(payload, "<i8", count, at + 8 * count * i) for i in range(4)]
    keys, versions, frequencies, seen = numbers
    at += 32 * count
    states = np.frombuffer(payload, np.uint8, count, at)
    at += count + -(at + count) % 8
    values = np.frombuffer(payload, "<f4", size.rows * shape.width, at)
    values = values.reshape(size.rows, shape.width)
    return Entries(keys, versions, frequencies, seen, states, values)


def _wrong(name: str, found: str, expected: str) -> CorruptStoreError:
    return CorruptStoreError(f"{name} is damaged: found {found}, expected {expected}")
