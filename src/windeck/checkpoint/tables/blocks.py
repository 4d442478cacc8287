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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from windeck._core import pack_blocks
from windeck.checkpoint.format.values import HEADER_BYTES, Label, header
from windeck.checkpoint.stores import CorruptStoreError, Pieces
from windeck.checkpoint.tables.entries import DEAD, ROW, Entries
from windeck.checkpoint.tables.shapes import PRELUDE_BYTES, Shape, Size

__all__ = ["BLOCK_BYTES", "Block", "pack", "unpack"]

_PRELUDE = struct.Struct("<IIIIII")
#: Bytes for entries in a block, so that a value has up to 256 KiB.
BLOCK_BYTES = (256 << 10) - HEADER_BYTES - PRELUDE_BYTES - 8


class Block(NamedTuple):
    """A block that was packed, as `pack_blocks` and a snapshot of native code give it.

    Attributes
    ----------
    payload, payload_crc
        Its bytes but for the header, and their CRC32C.
    entries, rows, dead
        How many it has.
    key, first, last
        The id and the bucket of its first entry, and the bucket of its last.
    """

    payload: memoryview
    payload_crc: int
    entries: int
    rows: int
    dead: int
    key: int
    first: int
    last: int

    @property
    def size(self) -> Size:
        return Size(self.entries, self.rows, self.dead)

    def value(self, label: Label) -> Pieces:
        """What is stored, its payload where it is."""
        head = header(label, len(self.payload), self.payload_crc)
        return Pieces(head, self.payload, self.payload_crc)


def pack(entries: Entries, shape: Shape, borders: Sequence[int]) -> list[Block]:
    """Entries in order as blocks.

    Parameters
    ----------
    borders
        Buckets before which a block ends, so that readers of others need not read it too.
    """
    found = pack_blocks(
        entries.keys, entries.versions, entries.frequencies, entries.seen, entries.states,
        entries.values, dim=shape.dim, slots=shape.slots, most=BLOCK_BYTES, borders=borders,
    )  # fmt: skip
    return [Block(*block) for block in found]


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
