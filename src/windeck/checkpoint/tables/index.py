"""The index of a table's blocks: where each begins and ends, and how much it holds.

32 bytes a block, little-endian; a value holds up to 65,536 of them::

    key i64, first bucket u32, last bucket u32, entries u32, rows u32, dead u32, 0 u32

`key` and the first bucket are those of the first entry. So the block of an id is found by binary
search, and a block's length is known before it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of
from windeck.checkpoint.stores import CorruptStoreError
from windeck.checkpoint.tables.blocks import Block
from windeck.checkpoint.tables.entries import Entries, Int64s, last_not_after
from windeck.checkpoint.tables.shapes import Size

__all__ = ["LINES", "Index", "line", "parse"]

#: Blocks in one value of the index.
LINES = 1 << 16
_LAYOUT = np.dtype(
    [("key", "<i8")]
    + [(name, "<u4") for name in ("first", "last", "entries", "rows", "dead", "zero")]
)
LINE_BYTES = _LAYOUT.itemsize
_LINE = struct.Struct("<qIIIIII")  # the same, for one at a time


class Index:
    """The lines of an index, checked; made by `parse`."""

    def __init__(self, lines: npt.NDArray[np.void]) -> None:
        self._lines = lines
        self.keys: Int64s = lines["key"].astype(np.int64)
        self.first: Int64s = lines["first"].astype(np.int64)
        self.last: Int64s = lines["last"].astype(np.int64)

    def __len__(self) -> int:
        return len(self._lines)

    def size(self, number: int) -> Size:
        """What a block holds."""
        line = self._lines[number]
        return Size(int(line["entries"]), int(line["rows"]), int(line["dead"]))

    def check(self, name: str, number: int, entries: Entries) -> Entries:
        """The entries of a block, if they are in order and begin and end as its line says."""
        buckets, keys = entries.buckets, entries.keys
        later = buckets[1:] > buckets[:-1]
        later |= (buckets[1:] == buckets[:-1]) & (keys[1:] > keys[:-1])
        if not later.all():
            at = int(np.argmin(later)) + 1
            raise CorruptStoreError(
                f"{name} is damaged: found id {int(keys[at])} after {int(keys[at - 1])}, expected "
                "each id once, in order of buckets and ids"
            )
        ends = int(keys[0]), int(buckets[0]), int(buckets[-1])
        stated = int(self.keys[number]), int(self.first[number]), int(self.last[number])
        if ends != stated:
            raise CorruptStoreError(
                f"{name} is damaged: found id {ends[0]} first and buckets {ends[1]} to {ends[2]}, "
                f"expected {stated[0]} and {stated[1]} to {stated[2]} as its index says"
            )
        return entries

    def total(self) -> Size:
        """What all of them hold."""
        names = ("entries", "rows", "dead")
        return Size(*(int(self._lines[name].sum(dtype=np.int64)) for name in names))

    def touching(self, first: int, end: int) -> range:
        """The blocks with something of the buckets [first, end)."""
        start = int(np.searchsorted(self.last, first, "left"))
        return range(start, max(start, int(np.searchsorted(self.first, end, "left"))))

    def find(self, keys: Int64s) -> Int64s:
        """Of each id the one block it can be in; -1 for none."""
        buckets = bucket_of(keys)
        found = last_not_after(self.first, self.keys, buckets, keys)
        outside = (found < 0) | (self.last[found] < buckets) if len(self) else found < 0
        return np.where(outside, -1, found)


def line(block: Block) -> bytes:
    """The line of a block."""
    return _LINE.pack(block.key, block.first, block.last, block.entries, block.rows, block.dead, 0)


def parse(name: str, payloads: Sequence[memoryview], buckets: tuple[int, int]) -> Index:
    """The index of some values, every line of it checked.

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
    parts = [np.frombuffer(payload, _LAYOUT) for payload in payloads]
    lines = np.concatenate(parts) if parts else np.empty(0, _LAYOUT)
    found = Index(lines)
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
        raise CorruptStoreError(
            f"{name} is damaged: found block {int(np.argmax(wrong))} out of place, expected it "
            f"after the one before, in the buckets {low} to {end - 1}"
        )
    return found
