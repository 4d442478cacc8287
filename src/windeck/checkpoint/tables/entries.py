"""Entries of a table: arrays with the state of each id, sorted by (bucket, id).

An id has a row; or it is only counted, because it was not seen often enough yet; or it is dead:
removed since the save that a delta is based on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of
from windeck.checkpoint.format.table_blocks import DEAD, ROW, TableShape

__all__ = [
    "Entries",
    "Int64s",
    "concatenate",
    "convert_values",
    "entries_from_removed",
    "entries_from_snapshot",
    "merge_entries",
    "merge_streams",
    "search_pairs",
]


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """States of ids, and the rows of ids that have one.

    Attributes
    ----------
    keys, versions, frequencies, seen : int64[n]
        For dead entries `versions` is the clock of their removal, and the others are 0.
    states : uint8[n]
    values : float32[rows, width]
        Of the entries whose state is ROW, in order; uint16, the bits, of a table of bfloat16.
    """

    keys: Int64s
    versions: Int64s
    frequencies: Int64s
    seen: Int64s
    states: npt.NDArray[np.uint8]
    values: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def buckets(self) -> Int64s:
        """The bucket of each id, computed on each access."""
        return bucket_of(self.keys)

    def slice(self, start: int, stop: int) -> Entries:
        """Return the entries [start, stop) as views."""
        if (start, stop) == (0, len(self)):
            return self
        before, inside = start, stop - start
        if len(self.values) != len(self):
            before = int(np.count_nonzero(self.states[:start] == ROW))
            inside = int(np.count_nonzero(self.states[start:stop] == ROW))
        return Entries(
            self.keys[start:stop], self.versions[start:stop], self.frequencies[start:stop],
            self.seen[start:stop], self.states[start:stop], self.values[before : before + inside],
        )  # fmt: skip

    def take(self, places: npt.NDArray[np.integer[Any]]) -> Entries:
        """Return copies of the entries at `places`."""
        states = self.states[places]
        rows = places[states == ROW]
        if len(self.values) != len(self):
            rows = (np.cumsum(self.states == ROW) - 1)[rows]
        return Entries(
            self.keys[places], self.versions[places], self.frequencies[places], self.seen[places],
            states, self.values[rows],
        )  # fmt: skip

    def in_buckets(self, first: int, end: int) -> Entries:
        """Return the entries in the buckets [first, end) as views."""
        start, stop = np.searchsorted(self.buckets, [first, end])
        return self.slice(int(start), int(stop))


def convert_values(values: npt.NDArray[Any], shape: TableShape) -> npt.NDArray[Any]:
    """Return rows in the format of a table of another dtype.

    float32 is rounded to bfloat16 to nearest, ties to even; the other way is exact.
    """
    if values.dtype == shape.storage:
        return values
    if shape.dtype == "float32":
        found: npt.NDArray[Any] = (values.astype(np.uint32) << 16).view(np.float32)
        return found
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def entries_from_snapshot(found: Mapping[str, Any]) -> Entries:
    """Return the arrays of `EmbeddingSnapshot.read` as entries."""
    return Entries(
        found["keys"], found["versions"], found["frequencies"], found["seen"],
        found["admitted"].view(np.uint8), found["values"],
    )  # fmt: skip


def entries_from_removed(keys: Int64s, clocks: Int64s, shape: TableShape) -> Entries:
    """Return sorted removed ids and the clocks of their removal as entries."""
    none = np.zeros(len(keys), np.int64)
    states = np.full(len(keys), DEAD, np.uint8)
    return Entries(keys, clocks, none, none, states, np.empty((0, shape.width), shape.storage))


def concatenate(batches: Sequence[Entries]) -> Entries:
    """Concatenate entries."""
    if len(batches) == 1:
        return batches[0]
    return Entries(
        np.concatenate([batch.keys for batch in batches]),
        np.concatenate([batch.versions for batch in batches]),
        np.concatenate([batch.frequencies for batch in batches]),
        np.concatenate([batch.seen for batch in batches]),
        np.concatenate([batch.states for batch in batches]),
        np.concatenate([batch.values for batch in batches]),
    )


def merge_entries(newest_first: Iterable[Entries]) -> Entries:
    """Merge sorted entries; of an id in several of them, keep the first entry.

    O(n log n) time.
    """
    batches = [batch for batch in newest_first if len(batch)]
    if len(batches) == 1:
        return batches[0]
    every = concatenate(batches)
    age = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    order = np.lexsort((age, every.keys, every.buckets))
    keys = every.keys[order]
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return every.take(order[first])


def search_pairs(buckets: Int64s, keys: Int64s, bucket: Int64s, key: Int64s) -> Int64s:
    """Return for each (bucket, key) the place of the last pair that is not greater; -1 for none.

    Parameters
    ----------
    buckets, keys : int64[n]
        Pairs to search in, ascending.
    bucket, key : int64[m]
        Pairs to search for, in any order.

    Notes
    -----
    One binary search for all pairs together: O(m log n).
    """
    low = np.searchsorted(buckets, bucket, "left")
    high = np.searchsorted(buckets, bucket, "right")
    while (open_ := low < high).any():
        middle = (low + high) // 2
        after = keys[np.minimum(middle, len(keys) - 1)] > key
        high = np.where(open_ & after, middle, high)
        low = np.where(open_ & ~after, middle + 1, low)
    found: Int64s = low - 1
    return found


def merge_streams(newest_first: Sequence[Iterator[Entries]]) -> Iterator[Entries]:
    """Merge sorted streams of entries; of an id in several of them, keep the first entry.

    Parameters
    ----------
    newest_first
        Each yields entries in order of (bucket, id), some at a time.

    Yields
    ------
    Entries
        In order, without dead ones.

    Notes
    -----
    Holds the entries that each stream yielded last.
    """
    if len(newest_first) == 1:
        yield from (_drop_dead(found) for found in newest_first[0])
        return
    held = [next(stream, None) for stream in newest_first]
    while any(entries is not None for entries in held):
        yield from _merge_held(held)
        for i, stream in enumerate(newest_first):
            entries = held[i]
            if entries is not None and not len(entries):
                held[i] = next(stream, None)


def _merge_held(held: list[Entries | None]) -> Iterator[Entries]:
    """Yield the held entries up to the least of the streams' last ids, and remove them."""
    end = min(
        (int(entries.buckets[-1]), int(entries.keys[-1])) for entries in held if entries is not None
    )
    batches = []
    for i, entries in enumerate(held):
        if entries is not None:
            count = _count_up_to(entries, end)
            batches.append(entries.slice(0, count))
            held[i] = entries.slice(count, len(entries))
    found = _drop_dead(merge_entries(batches))
    if len(found):
        yield found


def _count_up_to(entries: Entries, end: tuple[int, int]) -> int:
    """Return the number of entries that are not after the (bucket, id) `end`."""
    buckets = entries.buckets
    low = int(np.searchsorted(buckets, end[0], "left"))
    high = int(np.searchsorted(buckets, end[0], "right"))
    return low + int(np.searchsorted(entries.keys[low:high], end[1], "right"))


def _drop_dead(entries: Entries) -> Entries:
    dead = entries.states == DEAD
    return entries.take(np.flatnonzero(~dead)) if dead.any() else entries
