"""Slots: a periodic table of the part of a mixture that is served at each position.

All arithmetic is exact, on integers, so a table is the same on every machine. Published tables
must not change: they determine the sample at a position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from windeck._util.validation import LIMIT
from windeck.sources import Indices

__all__ = ["Slots", "SlotSchedule", "assign_slots"]


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

    def place_of(self, part: int, numbers: Indices) -> tuple[Indices, Indices]:
        """Return (periods before, slot) of a part's samples; the inverse of `locate`. O(1) each."""
        periods, rest = np.divmod(numbers, self.counts[part])
        return periods, self.places[int(self.counts[:part].sum()) + rest]


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
    """Slots that change at given positions. Immutable.

    Parameters
    ----------
    entries
        Pairs (position, slots), ascending, the first at position 0, all with the same parts.
    """

    def __init__(self, entries: Sequence[tuple[int, Slots]]) -> None:
        self.starts = [start for start, _ in entries]
        self.slots = [slots for _, slots in entries]
        base = [np.zeros(len(self.slots[0].counts), np.int64)]
        for number, start in enumerate(self.starts[1:]):
            base.append(base[-1] + self.slots[number].count_before(start - self.starts[number]))
        #: base[e][i]: samples of part i served before entry e.
        self._base = np.stack(base)

    def entry(self, position: int) -> int:
        """Return the index of the entry that applies at a position. O(log entries)."""
        return bisect_right(self.starts, position) - 1

    def count_before(self, position: int) -> Indices:
        """Return the samples of each part before a position: int64 of shape (parts,). O(parts)."""
        entry = self.entry(position)
        slots, start = self.slots[entry], self.starts[entry]
        found: Indices = self._base[entry] + slots.count_before(position - start)
        return found

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
        part, number = self.slots[entry].locate(positions - self.starts[entry])
        return part, number + self._base[entry, part]

    def position_of(self, part: int, numbers: Indices) -> Indices:
        """Return the position of each of a part's positions; -1 if none serves it.

        A part without slots in the last entry is never served again, and positions end at
        2^63 - 2.
        """
        base = self._base[:, part]
        # Entries with equal counts serve nothing of the part, except the last of them.
        entries = np.searchsorted(base, numbers, side="right") - 1
        found = np.full_like(numbers, -1)
        for entry in np.unique(entries).tolist():
            if self.slots[entry].counts[part]:
                here = entries == entry
                found[here] = self._position_of(entry, part, numbers[here] - base[entry])
        return found

    def _position_of(self, entry: int, part: int, numbers: Indices) -> Indices:
        slots, start = self.slots[entry], self.starts[entry]
        periods, slot = slots.place_of(part, numbers)
        # Compare before multiplying: the product may exceed 64 bits.
        whole, rest = divmod(LIMIT - 1 - start, slots.period)
        inside = (periods < whole) | ((periods == whole) & (slot <= rest))
        places = np.where(inside, periods, 0) * slots.period + slot
        return np.where(inside, start + places, -1)
