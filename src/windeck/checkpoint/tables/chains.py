"""Links of a chain read as one: of each id what the newest link says, the dead left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from windeck.checkpoint.tables.entries import DEAD, Entries, merged

__all__ = ["chained"]


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
