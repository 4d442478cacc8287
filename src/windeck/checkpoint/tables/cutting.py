"""A snapshot of a table, cut into blocks: in bounded memory, at borders that suit its readers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from windeck._core import bucket_of
from windeck.checkpoint.tables.blocks import BLOCK_BYTES
from windeck.checkpoint.tables.entries import (
    ROW,
    Entries,
    Int64s,
    merged,
    of_dead,
    of_snapshot,
)  # fmt: skip
from windeck.checkpoint.tables.shapes import BUCKETS, ENTRY_BYTES, Shape

__all__ = ["TableSnapshot", "cut", "entries_of", "reads_of"]

#: Bytes of entries read from a snapshot at once.
READ_BYTES = 2 << 20
# Where ranges of buckets begin when 2 to 8 shards share them: blocks end there, so that readers of
# other shards do not read them too. A table smaller than this is not worth as many blocks.
_BORDERS = np.unique([rank * BUCKETS // n for n in range(2, 9) for rank in range(1, n)])
_CROSSED = np.searchsorted(_BORDERS, np.arange(BUCKETS), "right")  # by each bucket
_SMALL_BYTES = 1 << 20


class TableSnapshot(Protocol):
    """One moment of a table, as `EmbeddingCore.snapshot` gives it."""

    @property
    def clock(self) -> int: ...

    def counts(self, since: int = -1) -> Int64s: ...

    def read(self, first_bucket: int, end_bucket: int, since: int = -1) -> dict[str, Any]: ...

    def dead(self, since: int) -> tuple[Int64s, Int64s]: ...


def entries_of(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: Shape
) -> Iterator[Entries]:
    """The entries of some buckets in order, some MiB at a time; what changed, or all for -1."""
    for _, read in reads_of(snapshot, buckets, since, shape):
        yield read()


def reads_of(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: Shape
) -> Iterator[tuple[int, Callable[[], Entries]]]:
    """The same as calls that read, each with about the bytes that it gives: entries, at least one.
    Any thread may call them, one after the other."""
    keys, clocks = snapshot.dead(since) if since >= 0 else (np.empty(0, np.int64),) * 2
    dead, where = of_dead(keys, clocks, shape.width), bucket_of(keys)
    counts = snapshot.counts(since)
    counts = counts + np.bincount(where, minlength=BUCKETS)
    for first, end, size in _ranges(counts, buckets, ENTRY_BYTES + 4 * shape.width):
        start, stop = (int(place) for place in np.searchsorted(where, [first, end]))
        yield size, partial(_read, snapshot, first, end, since, dead.part(start, stop))


def _read(snapshot: TableSnapshot, first: int, end: int, since: int, dead: Entries) -> Entries:
    found = of_snapshot(snapshot.read(first, end, since))
    return merged([found, dead]) if len(dead) else found


def cut(entries: Entries, shape: Shape, whole: int) -> list[int]:
    """Where the blocks of some entries end: between buckets where they fit.

    Parameters
    ----------
    whole
        How many entries there are in all.
    """
    count, entry = len(entries), ENTRY_BYTES + 4 * shape.width
    before: Sequence[int] = range(0, (count + 1) * entry, entry)
    if len(entries.values) != count:
        held = np.arange(count + 1, dtype=np.int64) * ENTRY_BYTES
        held[1:] += np.cumsum(entries.states == ROW, dtype=np.int64) * (4 * shape.width)
        before = held.data
    buckets = entries.buckets
    starts = np.flatnonzero(buckets[1:] != buckets[:-1]) + 1
    passed = [False] * len(starts)
    if whole * entry >= _SMALL_BYTES:
        crossed = _CROSSED[buckets[starts]] != _CROSSED[buckets[starts - 1]]
        passed = crossed.tolist()
    return list(_stops(before, [0, *starts.tolist(), count], [False, *passed]))


def _stops(before: Sequence[int], edges: Sequence[int], passed: Sequence[bool]) -> Iterator[int]:
    """Where blocks end. Entries [edges[i], edges[i + 1]) are of one bucket, `before[j]` is the
    bytes of all entries before j, and `passed[i]` whether a border lies just before bucket i."""
    start = 0
    for border, (first, end) in zip(passed, pairwise(edges), strict=True):
        held = before[first] - before[start]
        if held and (border or before[end] - before[start] > BLOCK_BYTES):
            yield first
            start = first
        while before[end] - before[start] > BLOCK_BYTES and end - start > 1:
            start = max(start + 1, bisect_right(before, before[start] + BLOCK_BYTES) - 1)
            yield start
    if start < edges[-1]:
        yield edges[-1]


def _ranges(counts: Int64s, buckets: tuple[int, int], entry: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of buckets with at most `READ_BYTES`, or of one bucket, and their bytes; none is
    empty."""
    first, end = buckets
    held = 0
    for bucket in range(*buckets):
        size = int(counts[bucket]) * entry
        if held and held + size > READ_BYTES:
            yield first, bucket, held
            first, held = bucket, 0
        held += size
    if held:
        yield first, end, held
