"""Entries of a table: what is known of each id, as arrays sorted by (bucket, id).

An id has a row, or is only counted because it was not seen often enough yet, or is dead: removed
since the save that a delta is based on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._core import bucket_of

__all__ = [
    "COUNTED",
    "DEAD",
    "Entries",
    "ROW",
    "chained",
    "joined",
    "last_not_after",
    "merged",
    "of_dead",
    "of_snapshot",
]


#: States of an entry.
COUNTED, ROW, DEAD = 0, 1, 2

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """Of each id its state, and of those that have one the row.

    Attributes
    ----------
    keys, versions, frequencies, seen : int64[n]
        Of the dead `versions` says when they were removed, the others are 0.
    states : uint8[n]
    values : float32[rows, width]
        Of the entries whose state is ROW, in order.
    """

    keys: Int64s
    versions: Int64s
    frequencies: Int64s
    seen: Int64s
    states: npt.NDArray[np.uint8]
    values: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def buckets(self) -> Int64s:
        return bucket_of(self.keys)

    def part(self, start: int, stop: int) -> Entries:
        """Entries [start, stop), as views."""
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
        """Entries at places, copied."""
        states = self.states[places]
        rows = places[states == ROW]
        if len(self.values) != len(self):
            rows = (np.cumsum(self.states == ROW) - 1)[rows]
        return Entries(
            self.keys[places], self.versions[places], self.frequencies[places], self.seen[places],
            states, self.values[rows],
        )  # fmt: skip

    def in_buckets(self, first: int, end: int) -> Entries:
        """Those in the buckets [first, end), as views."""
        start, stop = np.searchsorted(self.buckets, [first, end])
        return self.part(int(start), int(stop))


def of_snapshot(found: Mapping[str, Any]) -> Entries:
    """What `EmbeddingSnapshot.read` gives, as entries."""
    return Entries(
        found["keys"], found["versions"], found["frequencies"], found["seen"],
        found["admitted"].view(np.uint8), found["values"],
    )  # fmt: skip


def of_dead(keys: Int64s, clocks: Int64s, width: int) -> Entries:
    """Removed ids, sorted, as entries."""
    none = np.zeros(len(keys), np.int64)
    states = np.full(len(keys), DEAD, np.uint8)
    return Entries(keys, clocks, none, none, states, np.empty((0, width), np.float32))


def joined(parts: Sequence[Entries]) -> Entries:
    """Entries one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Entries(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.versions for part in parts]),
        np.concatenate([part.frequencies for part in parts]),
        np.concatenate([part.seen for part in parts]),
        np.concatenate([part.states for part in parts]),
        np.concatenate([part.values for part in parts]),
    )


def merged(newest_first: Iterable[Entries]) -> Entries:
    """Sorted entries as one; of an id that several have, the first one's.

    O(n log n) time.
    """
    parts = [part for part in newest_first if len(part)]
    if len(parts) == 1:
        return parts[0]
    every = joined(parts)
    age = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.lexsort((age, every.keys, every.buckets))
    keys = every.keys[order]
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return every.take(order[first])


def last_not_after(buckets: Int64s, keys: Int64s, bucket: Int64s, key: Int64s) -> Int64s:
    """Of each (bucket, key) asked for, the place of the last pair not after it; -1 for none.

    Parameters
    ----------
    buckets, keys : int64[n]
        Pairs, ascending.
    bucket, key : int64[m]
        Those asked for, in any order.

    Notes
    -----
    A binary search, all steps of it over all that were asked for at once: O(m log n).
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


def chained(newest_first: Sequence[Iterator[Entries]]) -> Iterator[Entries]:
    """The entries of several sorted streams in order, of an id the first stream's.

    Parameters
    ----------
    newest_first
        Each gives entries in order of (bucket, id), some at a time.

    Yields
    ------
    Entries
        In order; without those that are dead.

    Notes
    -----
    Holds what each stream gave last, no more.
    """
    if len(newest_first) == 1:
        yield from (_alive(found) for found in newest_first[0])
        return
    held = [next(stream, None) for stream in newest_first]
    while any(entries is not None for entries in held):
        yield from _step(held)
        for i, stream in enumerate(newest_first):
            entries = held[i]
            if entries is not None and not len(entries):
                held[i] = next(stream, None)


def _step(held: list[Entries | None]) -> Iterator[Entries]:
    """What may be given now: all up to where the first of the streams ends for now."""
    ends = [
        (int(entries.buckets[-1]), int(entries.keys[-1])) for entries in held if entries is not None
    ]
    end = min(ends)
    parts = []
    for i, entries in enumerate(held):
        if entries is not None:
            count = _not_after(entries, end)
            parts.append(entries.part(0, count))
            held[i] = entries.part(count, len(entries))
    found = _alive(merged(parts))
    if len(found):
        yield found


def _not_after(entries: Entries, end: tuple[int, int]) -> int:
    buckets = entries.buckets
    low = int(np.searchsorted(buckets, end[0], "left"))
    high = int(np.searchsorted(buckets, end[0], "right"))
    return low + int(np.searchsorted(entries.keys[low:high], end[1], "right"))


def _alive(entries: Entries) -> Entries:
    dead = entries.states == DEAD
    return entries.take(np.flatnonzero(~dead)) if dead.any() else entries
