"""A snapshot of a table, some MiB at a time: as entries, and as blocks for a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from windeck._core import bucket_of
from windeck.checkpoint.tables.blocks import BLOCK_BYTES, Block, pack
from windeck.checkpoint.tables.entries import Entries, Int64s, merged, of_dead, of_snapshot
from windeck.checkpoint.tables.shapes import BUCKETS, ENTRY_BYTES, Shape

__all__ = ["TableSnapshot", "blocks_of", "entries_of"]

#: Bytes of entries read from a snapshot at once: so few that they are still in the cache when they
#: are sent.
READ_BYTES = 1 << 20
# Where ranges of buckets begin when 2 to 8 shards share them: blocks end there, so that readers of
# other shards do not read them too. A table smaller than this is not worth as many blocks.
_BORDERS = sorted({rank * BUCKETS // n for n in range(2, 9) for rank in range(1, n)})
_SMALL_BYTES = 1 << 20
T = TypeVar("T")


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
    for _, read in _reads(snapshot, buckets, since, shape, partial(_read, snapshot, since)):
        yield read()


def blocks_of(
    snapshot: TableSnapshot, buckets: tuple[int, int], since: int, shape: Shape
) -> Iterator[tuple[int, Callable[[], list[Block]]]]:
    """The same as blocks: calls that make some, each with about the bytes that it gives. Any
    thread may call them, one after the other."""
    whole = int(snapshot.counts(since).sum()) * _entry_bytes(shape)
    borders = _BORDERS if whole >= _SMALL_BYTES else ()
    return _reads(
        snapshot, buckets, since, shape, partial(_packed, snapshot, since, shape, borders)
    )


def _reads(
    snapshot: TableSnapshot,
    buckets: tuple[int, int],
    since: int,
    shape: Shape,
    read: Callable[[int, int, Entries], T],
) -> Iterator[tuple[int, Callable[[], T]]]:
    """Calls of `read` with ranges of buckets, none without entries, and with the dead of each."""
    keys, clocks = snapshot.dead(since) if since >= 0 else (np.empty(0, np.int64),) * 2
    dead, where = of_dead(keys, clocks, shape.width), bucket_of(keys)
    counts = snapshot.counts(since)
    counts = counts + np.bincount(where, minlength=BUCKETS)
    for first, end, size in _ranges(counts.tolist(), buckets, _entry_bytes(shape)):
        start, stop = (int(place) for place in np.searchsorted(where, [first, end]))
        yield size, partial(read, first, end, dead.part(start, stop))


def _read(snapshot: TableSnapshot, since: int, first: int, end: int, dead: Entries) -> Entries:
    found = of_snapshot(snapshot.read(first, end, since))
    return merged([found, dead]) if len(dead) else found


def _packed(
    snapshot: TableSnapshot,
    since: int,
    shape: Shape,
    borders: Sequence[int],
    first: int,
    end: int,
    dead: Entries,
) -> list[Block]:
    direct = getattr(snapshot, "blocks", None)  # of native code: rows are copied once
    if len(dead) or direct is None:
        return pack(_read(snapshot, since, first, end, dead), shape, borders)
    found = direct(
        first, end, since, dim=shape.dim, slots=shape.slots, most=BLOCK_BYTES, borders=borders
    )
    return [Block(*block) for block in found]


def _entry_bytes(shape: Shape) -> int:
    return ENTRY_BYTES + 4 * shape.width


def _ranges(
    counts: Sequence[int], buckets: tuple[int, int], entry: int
) -> Iterator[tuple[int, int, int]]:
    """Ranges of buckets with at most `READ_BYTES`, or of one bucket, and their bytes; none is
    empty."""
    first, end = buckets
    held = 0
    for bucket in range(*buckets):
        size = counts[bucket] * entry
        if held and held + size > READ_BYTES:
            yield first, bucket, held
            first, held = bucket, 0
        held += size
    if held:
        yield first, end, held
