"""Shares of a mixture: the part that is served at each position, and the inverse.

`Slots` is a periodic table, for periods of some thousand positions; `windeck._core.ShareTree` does
without one, for any period. All arithmetic is exact, on integers, so it is the same on every
machine. Published tables and trees must not change: they determine the sample at a position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from windeck._util.validation import LIMIT
from windeck.sources import Indices

__all__ = ["Shares", "Slots", "SlotSchedule", "assign_slots"]


class Shares(Protocol):
    """An endless sequence of places divided among parts: `Slots` or `windeck._core.ShareTree`.

    Part i has `counts[i]` of each `period` places.
    """

    @property
    def counts(self) -> Indices: ...
    @property
    def period(self) -> int: ...
    def count_before(self, place: int, /) -> Indices: ...
    def locate(self, places: Indices, /) -> tuple[Indices, Indices]: ...
    def position_of(self, part: int, numbers: Indices, most: int, /) -> Indices: ...


@dataclass(frozen=True, eq=False)
class Slots:
    """One period of a mixture: a table of parts, and its inverse.

    Parameters
    ----------
    counts
        Slots of each part; their sum is the period.
    table
        int64 array of shape (period,): the part at each slot.
    ranks
        int64 array of shape (period,): the number of earlier slots of the same part.
    places
        int64 array of shape (period,): the slots of part 0 ascending, then those of part 1, ...
    """

    counts: Indices
    table: Indices
    ranks: Indices
    places: Indices

    @classmethod
    def from_counts(cls, counts: Sequence[int]) -> Slots:
        """Assign the slots of a period. O(period * log(parts))."""
        sizes = np.array(counts, np.int64)
        table = np.array(assign_slots(counts), np.int64)
        places = np.argsort(table, kind="stable")
        ranks = np.empty_like(places)
        ranks[places] = np.arange(len(table)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(sizes, table, ranks, places)

    @property
    def period(self) -> int:
        """The number of slots."""
        return len(self.table)

    def count_before(self, place: int) -> Indices:
        """Return the number of samples of each part before a place, over any number of periods."""
        periods, rest = divmod(place, self.period)
        within = np.bincount(self.table[:rest], minlength=len(self.counts))
        return self.counts * periods + within

    def locate(self, places: Indices) -> tuple[Indices, Indices]:
        """Return the part at each place, and the number of its earlier samples. O(1) each."""
        periods, slots = np.divmod(places, self.period)
        part = self.table[slots]
        return part, periods * self.counts[part] + self.ranks[slots]

    def position_of(self, part: int, numbers: Indices, most: int) -> Indices:
        """Return the places of a part's samples, the inverse of `locate`; -1 above `most`.

        O(1) each. The part must have slots.
        """
        periods, rest = np.divmod(numbers, self.counts[part])
        slots = self.places[int(self.counts[:part].sum()) + rest]
        # Compare before multiplying: the product may exceed 64 bits.
        whole, last = divmod(most, self.period)
        inside = (periods < whole) | ((periods == whole) & (slots <= last))
        return np.where(inside, np.where(inside, periods, 0) * self.period + slots, -1)


def assign_slots(counts: Sequence[int]) -> list[int]:
    """Assign slots so that every prefix has each part within one sample of its exact share.

    Tijdeman's chairman assignment (1980): of k parts with slots, the first n slots contain part i
    within 1 - 1/(2k - 2) of n * counts[i] / period times. Each sample of a part has a first slot
    and a deadline, so that the part is never ahead or behind by more; among the samples that may
    be served, the earliest deadline is served first.

    Parameters
    ----------
    counts
        Slots of each part, at least 0 and not all 0.

    Returns
    -------
    list of int
        The part of each slot. O(period * log(parts)) time.

    Examples
    --------
    >>> assign_slots([3, 2, 1])
    [0, 1, 0, 2, 0, 1]
    """
    period = sum(counts)
    slack = max(1, 2 * sum(count > 0 for count in counts) - 2)
    released: list[list[tuple[int, int]]] = [[] for _ in range(period + 1)]

    def release(part: int, number: int, after: int) -> None:
        """Add sample `number` of a part to the first slot that may serve it."""
        each = counts[part] * slack
        first = -((number * slack + 1) * period // -each)
        deadline = (number * slack + slack - 1) * period // each
        if number < counts[part]:
            released[max(first, after)].append((deadline, part))

    for part in range(len(counts)):
        if counts[part]:
            release(part, 0, 1)
    ready: list[tuple[int, int]] = []
    served = [0] * len(counts)
    table = []
    for slot in range(1, period + 1):
        for waiting in released[slot]:
            heappush(ready, waiting)
        part = heappop(ready)[1]
        table.append(part)
        served[part] += 1
        release(part, served[part], slot + 1)
    return table


class SlotSchedule:
    """Slots, or shares without slots, that change at given positions. Immutable.

    Parameters
    ----------
    entries
        Pairs (position, shares), ascending, the first at position 0, all with the same parts.
    """

    def __init__(self, entries: Sequence[tuple[int, Shares]]) -> None:
        self.starts = [start for start, _ in entries]
        self.shares = [shares for _, shares in entries]
        #: served[e][i]: whether entry e serves part i.
        self.served = np.stack([shares.counts > 0 for shares in self.shares])
        base = [np.zeros(self.served.shape[1], np.int64)]
        for number, start in enumerate(self.starts[1:]):
            base.append(base[-1] + self.shares[number].count_before(start - self.starts[number]))
        #: base[e][i]: samples of part i served before entry e.
        self._base = np.stack(base)

    def entry(self, position: int) -> int:
        """Return the index of the entry that applies at a position. O(log entries)."""
        return bisect_right(self.starts, position) - 1

    def count_before(self, position: int) -> Indices:
        """Return the samples of each part before a position: int64 of shape (parts,). O(parts)."""
        entry = self.entry(position)
        found: Indices = self._base[entry] + self.shares[entry].count_before(
            position - self.starts[entry]
        )
        return found

    def end_of(self, part: int) -> int | None:
        """Return the position after the last sample of a part; None if the last entry serves it.

        0 if no entry serves it.
        """
        if self.served[-1, part]:
            return None
        total = self._base[-1, part]
        return int(self.position_of(part, np.array([total - 1]))[0]) + 1 if total else 0

    def locate(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part at each position, and the position in that part. O(log entries) each."""
        if not len(positions):
            return positions.copy(), positions.copy()
        first, last = (self.entry(int(end)) for end in (positions.min(), positions.max()))
        if first == last:
            return self._locate(first, positions)
        part, number = np.empty_like(positions), np.empty_like(positions)
        entries = np.searchsorted(self.starts, positions, side="right") - 1
        for entry in range(first, last + 1):
            here = entries == entry
            part[here], number[here] = self._locate(entry, positions[here])
        return part, number

    def _locate(self, entry: int, positions: Indices) -> tuple[Indices, Indices]:
        part, number = self.shares[entry].locate(positions - self.starts[entry])
        return part, number + self._base[entry, part]

    def position_of(self, part: int, numbers: Indices) -> Indices:
        """Return the position of each of a part's positions; -1 if none serves it.

        A part without a share in the last entry is never served again, and positions end at
        2^63 - 2.
        """
        base = self._base[:, part]
        # Entries with equal counts serve nothing of the part, except the last of them.
        entries = np.searchsorted(base, numbers, side="right") - 1
        found = np.full_like(numbers, -1)
        for entry in np.unique(entries).tolist():
            if self.served[entry, part]:
                here, start = entries == entry, self.starts[entry]
                places = self.shares[entry].position_of(
                    part, numbers[here] - base[entry], LIMIT - 1 - start
                )
                found[here] = np.where(places < 0, -1, places + start)
        return found
