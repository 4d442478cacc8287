"""Blocks of table entries, up to 512 KiB as one value, and the index of blocks.

Packs, unpacks and checks them; `windeck.checkpoint.format.table_blocks` has their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of, pack_blocks
from windeck.checkpoint.format.table_blocks import (
    BLOCK_BYTES,
    DEAD,
    DTYPE_CODES,
    INDEX_LINE,
    ROW,
    BlockSize,
    TableShape,
    block_bytes,
    entry_columns,
    index_line,
    parse_prelude,
    row_values,
)
from windeck.checkpoint.format.values import Label, header
from windeck.checkpoint.stores import CorruptStoreError, Pieces
from windeck.checkpoint.tables.entries import Entries, Int64s, search_pairs

__all__ = ["Block", "BlockIndex", "pack_entries", "parse_index", "unpack_block"]


class Block(NamedTuple):
    """A packed block, in the fields that `pack_blocks` and native snapshots return.

    Attributes
    ----------
    payload, payload_crc
        Its bytes without the header, and their CRC32C.
    entries, rows, dead
        Numbers of entries, of those with a row, and of dead ones.
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

    def value(self, label: Label) -> Pieces:
        """Return the value to store; the payload is not copied."""
        head = header(label, len(self.payload), self.payload_crc)
        return Pieces(head, self.payload, self.payload_crc)

    def line(self) -> bytes:
        """Return its line of the index."""
        size = BlockSize(self.entries, self.rows, self.dead)
        return index_line(self.key, self.first, self.last, size)


def pack_entries(entries: Entries, shape: TableShape, borders: Sequence[int]) -> list[Block]:
    """Pack sorted entries into blocks.

    Parameters
    ----------
    borders
        Buckets before which a block ends, so that readers of other buckets need not read it.
    """
    found = pack_blocks(
        entries.keys, entries.versions, entries.frequencies, entries.seen, entries.states,
        entries.values, dim=shape.dim, slots=shape.slots, most=BLOCK_BYTES, borders=borders,
    )  # fmt: skip
    return [Block(*block) for block in found]


def unpack_block(name: str, payload: memoryview, shape: TableShape, size: BlockSize) -> Entries:
    """Return the entries of a block as views of its payload, after checking its lengths.

    Parameters
    ----------
    name
        Of the key, for messages.
    size
        From the index; the payload has as many bytes.

    Raises
    ------
    CorruptStoreError
        Naming the key, what was found and what was expected.

    Notes
    -----
    O(entries) time. Nothing is allocated. The order of the entries is checked by the index.
    """
    prelude = parse_prelude(payload)
    if (prelude.dim, prelude.slots) != (shape.dim, shape.slots):
        raise _damaged(
            name, f"rows of dim {prelude.dim} with {prelude.slots} slots",
            f"{shape.dim} with {shape.slots}",
        )  # fmt: skip
    if prelude.dtype != DTYPE_CODES[shape.dtype]:
        expected = f"{DTYPE_CODES[shape.dtype]}, {shape.dtype}"
        raise _damaged(name, f"rows of dtype {prelude.dtype}", expected)
    if prelude.size != size:
        raise _damaged(name, f"{prelude.size}", f"{size} as in its index")
    rows, dead = size.rows, size.dead
    keys, versions, frequencies, seen, states = entry_columns(payload, size.entries)
    values = row_values(payload, size, shape)
    found = Entries(keys, versions, frequencies, seen, states, values)
    counts = np.bincount(found.states, minlength=3)
    if (int(counts[ROW]), int(counts[DEAD])) != (rows, dead) or len(counts) > 3:
        raise _damaged(name, f"{counts[ROW]} rows and {counts[DEAD]} dead", f"{rows} and {dead}")
    return found


def _damaged(name: str, found: str, expected: str) -> CorruptStoreError:
    return CorruptStoreError(f"{name} is damaged: found {found}, expected {expected}")


class BlockIndex:
    """The checked index of a shard's blocks; made by `parse_index`.

    Attributes
    ----------
    keys, first, last : int64[blocks]
        Of each block the id and the bucket of its first entry, and the bucket of its last.
    """

    def __init__(self, lines: npt.NDArray[np.void]) -> None:
        self._lines = lines
        self.keys: Int64s = lines["key"].astype(np.int64)
        self.first: Int64s = lines["first"].astype(np.int64)
        self.last: Int64s = lines["last"].astype(np.int64)

    def __len__(self) -> int:
        return len(self._lines)

    def size(self, number: int) -> BlockSize:
        """Return the numbers of entries of a block."""
        line = self._lines[number]
        return BlockSize(int(line["entries"]), int(line["rows"]), int(line["dead"]))

    def payload_bytes(self, shape: TableShape) -> Int64s:
        """Return the bytes of the payload of each block."""
        entries, rows = (self._lines[name].astype(np.int64) for name in ("entries", "rows"))
        found: Int64s = block_bytes(entries, rows, shape)
        return found

    def lines(self, first: int, stop: int) -> bytes:
        """Return the lines of the blocks [first, stop), as `EmbeddingCore.insert_blocks` asks."""
        return self._lines[first:stop].tobytes()

    def check(self, name: str, number: int, entries: Entries) -> Entries:
        """Return the entries of a block, after checking their order and ends against the index."""
        buckets, keys = entries.buckets, entries.keys
        later = buckets[1:] > buckets[:-1]
        later |= (buckets[1:] == buckets[:-1]) & (keys[1:] > keys[:-1])
        if not later.all():
            at = int(np.argmin(later)) + 1
            raise _damaged(
                name, f"id {int(keys[at])} after {int(keys[at - 1])}",
                "each id once, in order of buckets and ids",
            )  # fmt: skip
        ends = int(keys[0]), int(buckets[0]), int(buckets[-1])
        expected = int(self.keys[number]), int(self.first[number]), int(self.last[number])
        if ends != expected:
            raise _damaged(
                name, f"id {ends[0]} first and buckets {ends[1]} to {ends[2]}",
                f"{expected[0]} and {expected[1]} to {expected[2]} as in its index",
            )  # fmt: skip
        return entries

    def total(self, first: int = 0, stop: int | None = None) -> BlockSize:
        """Return the numbers of entries of the blocks [first, stop), by default of all."""
        lines, names = self._lines[first:stop], ("entries", "rows", "dead")
        return BlockSize(*(int(lines[name].sum(dtype=np.int64)) for name in names))

    def touching(self, first: int, end: int) -> range:
        """Return the numbers of the blocks with entries in the buckets [first, end)."""
        start = int(np.searchsorted(self.last, first, "left"))
        return range(start, max(start, int(np.searchsorted(self.first, end, "left"))))

    def find(self, keys: Int64s) -> Int64s:
        """Return for each id the number of the block that may hold it; -1 for none."""
        buckets = bucket_of(keys)
        found = search_pairs(self.first, self.keys, buckets, keys)
        outside = (found < 0) | (self.last[found] < buckets) if len(self) else found < 0
        return np.where(outside, -1, found)


def parse_index(name: str, payloads: Sequence[memoryview], buckets: tuple[int, int]) -> BlockIndex:
    """Parse the values of an index, and check every line.

    Parameters
    ----------
    name
        For messages.
    payloads
        In order.
    buckets
        The range that all blocks have to be in.

    Raises
    ------
    CorruptStoreError
        Naming the block.
    """
    arrays = [np.frombuffer(payload, INDEX_LINE) for payload in payloads]
    lines = np.concatenate(arrays) if arrays else np.empty(0, INDEX_LINE)
    found = BlockIndex(lines)
    low, end = buckets
    entries, rows, dead = (lines[n].astype(np.int64) for n in ("entries", "rows", "dead"))
    wrong = (found.first > found.last) | (found.first < low) | (found.last >= end)
    wrong |= (bucket_of(found.keys) != found.first) | (lines["zero"] != 0)
    wrong |= (entries < 1) | (rows + dead > entries)
    if len(lines) > 1:
        same = found.first[1:] == found.first[:-1]
        wrong[1:] |= (found.first[1:] < found.last[:-1]) | (
            same & (found.keys[1:] <= found.keys[:-1])
        )
    if wrong.any():
        raise _damaged(
            name, f"block {int(np.argmax(wrong))} out of order",
            f"it after the block before, in the buckets {low} to {end - 1}",
        )  # fmt: skip
    return found
