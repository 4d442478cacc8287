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
from itertools import accumulate, pairwise

import numpy as np

from windeck._core import crc32c_slices
from windeck.checkpoint.format.values import HEADER_BYTES, LARGEST_PAYLOAD, Label, header
from windeck.checkpoint.stores import CorruptStoreError, Pieces
from windeck.checkpoint.tables.entries import DEAD, ROW, Entries
from windeck.checkpoint.tables.shapes import PRELUDE_BYTES, Shape, Size

__all__ = ["BLOCK_BYTES", "pack", "unpack"]

_PRELUDE = struct.Struct("<IIIIII")
#: Bytes for entries in a block, so that a value has up to 256 KiB.
BLOCK_BYTES = (256 << 10) - HEADER_BYTES - PRELUDE_BYTES - 8


def pack(
    labels: Sequence[Label], entries: Entries, stops: Sequence[int], shape: Shape
) -> list[tuple[Pieces, Size]]:
    """The values of blocks, their rows where they are, and their sizes.

    Parameters
    ----------
    labels
        Of each block.
    entries
        Of all of them, in order.
    stops
        Where each block ends; the first begins at 0.

    Raises
    ------
    ValueError
        For a row that no store takes.
    """
    sizes = _sizes(entries, stops)
    lengths = [size.bytes(shape) for size in sizes]
    if (longest := max(lengths, default=0)) > LARGEST_PAYLOAD:
        raise ValueError(
            f"a row of {shape.width:,} numbers has {longest:,} bytes, expected at most "
            f"{LARGEST_PAYLOAD:,}"
        )
    columns = (entries.keys, entries.versions, entries.frequencies, entries.seen, entries.states)
    rows = np.ascontiguousarray(entries.values).reshape(-1).view(np.uint8).data
    # One call for all: while another thread sends, the interpreter's lock is what is dear.
    sums = crc32c_slices(
        [_PRELUDE.pack(s.entries, s.rows, s.dead, shape.dim, shape.slots, 0) for s in sizes],
        [np.ascontiguousarray(column) for column in columns],
        stops,
        rows,
        list(accumulate(size.rows for size in sizes)),
    )
    found, at = [], 0
    for label, size, length, (head, total, rows_sum) in zip(
        labels, sizes, lengths, sums, strict=True
    ):
        end = at + 4 * shape.width * size.rows
        found.append((Pieces(header(label, length, total) + head, rows[at:end], rows_sum), size))
        at = end
    return found


def _sizes(entries: Entries, stops: Sequence[int]) -> list[Size]:
    """How many there are of what in each block."""
    if len(entries.values) == len(entries):
        return [Size(stop - start, stop - start, 0) for start, stop in pairwise([0, *stops])]
    lasts = np.array(stops) - 1
    counts = [stops] + [np.cumsum(entries.states == s)[lasts].tolist() for s in (ROW, DEAD)]
    return [Size(*size) for size in np.diff(counts, prepend=0).T.tolist()]


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
