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

__all__ = ["Shares", "Slots", "SlotSchedule", "assign_slots", "own_ranges"]


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
        periods, slots = np.divmod(places, len(self.table))
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
    and a deadline, so that the part is never early or late by more; among the samples that may
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

    Unit u = p // unit of the positions p after an entry's first belongs to lane l = u % lanes. It
    is served as unit u // lanes + l of the entry's places: each lane has the shares, and so has
    every step of lanes * unit positions. Sample m of a part in lane l is its own position
    m * lanes + l, so each lane has every lanes-th of them. One lane serves the places in turn.

    Parameters
    ----------
    entries
        Pairs (position, shares), ascending, the first at position 0, all with the same parts.
        Positions are multiples of lanes * unit.
    lanes
        Number of lanes.
    unit
        Adjacent positions of one lane.
    """

    def __init__(
        self, entries: Sequence[tuple[int, Shares]], lanes: int = 1, unit: int = 1
    ) -> None:
        self.starts = [start for start, _ in entries]
        self.shares = [shares for _, shares in entries]
        self.lanes, self.unit = lanes, unit if lanes > 1 else 1
        #: served[e][i]: whether entry e serves part i.
        self.served = np.stack([shares.counts > 0 for shares in self.shares])
        #: _base[e][l, i]: samples of part i in lane l before entry e.
        self._base = [np.zeros((lanes, self.served.shape[1]), np.int64)]
        #: _heads[e][l, i]: samples of part i before the first place of lane l.
        self._heads = [_before_units(shares, self.unit, 0, lanes) for shares in self.shares]
        for number, start in enumerate(self.starts[1:]):
            self._base.append(self._lanes_before(number, start))

    def entry(self, position: int) -> int:
        """Return the index of the entry that applies at a position. O(log entries)."""
        return bisect_right(self.starts, position) - 1

    def lanes_before(self, position: int) -> Indices:
        """Return the samples of each lane and part before a position: int64 (lanes, parts).

        O(lanes * (unit + parts)) time and memory.
        """
        return self._lanes_before(self.entry(position), position)

    def _lanes_before(self, entry: int, position: int) -> Indices:
        shares, unit = self.shares[entry], self.unit
        units, within = divmod(position - self.starts[entry], unit)
        cycle, lane = divmod(units, self.lanes)
        edges = _before_units(shares, unit, cycle, self.lanes + bool(lane))
        found: Indices = edges[: self.lanes].copy()
        found[:lane] = edges[1 : lane + 1]
        if within:
            found[lane] = shares.count_before((cycle + lane) * unit + within)
        found += self._base[entry] - self._heads[entry]
        return found

    def count_before(self, position: int) -> Indices:
        """Return the samples of each part before a position: int64 of shape (parts,)."""
        found: Indices = self.lanes_before(position).sum(axis=0)
        return found

    def ends_before(self, position: int) -> Indices:
        """Return the end of each part's own positions that are served before a position.

        With one lane that is `count_before`. With more lanes some of the last few own positions
        before the end may be served later.
        """
        served, lane = self.lanes_before(position), np.arange(self.lanes)[:, None]
        found: Indices = np.where(served > 0, (served - 1) * self.lanes + lane + 1, 0).max(axis=0)
        return found

    def first_after(self, position: int) -> Indices:
        """Return the first of each part's own positions that is not served before a position."""
        lane = np.arange(self.lanes)[:, None]
        found: Indices = (self.lanes_before(position) * self.lanes + lane).min(axis=0)
        return found

    def end_of(self, part: int) -> int | None:
        """Return the position after the last sample of a part; None if the last entry serves it.

        0 if no entry serves it.
        """
        if self.served[-1, part]:
            return None
        total = self._base[-1][:, part]
        (lane,) = np.nonzero(total)
        last = self.position_of(part, (total[lane] - 1) * self.lanes + lane)
        return int(last.max()) + 1 if len(last) else 0

    def locate(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part at each position, and the position in that part. O(log entries) each."""
        if not len(positions):
            return positions.copy(), positions.copy()
        if len(self.starts) == 1:
            return self._locate(0, positions)
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
        places = positions - self.starts[entry]
        if self.lanes == 1:
            part, number = self.shares[entry].locate(places)
            return part, number + self._base[entry][0, part]
        units, within = np.divmod(places, self.unit)
        cycle, lane = np.divmod(units, self.lanes)
        part, number = self.shares[entry].locate((cycle + lane) * self.unit + within)
        number += self._base[entry][lane, part] - self._heads[entry][lane, part]
        return part, number * self.lanes + lane

    def position_of(self, part: int, numbers: Indices) -> Indices:
        """Return the position of each of a part's positions; -1 if none serves it.

        A part without a share in the last entry is never served again. Positions end at 2^63 - 2,
        with lanes at the last multiple of lanes * unit before it.
        """
        own, lane = np.divmod(numbers, self.lanes)
        entries = np.empty_like(numbers)
        for one in np.unique(lane).tolist():
            # Entries with equal counts serve nothing of the part, except the last of them.
            base = [of_lanes[one, part] for of_lanes in self._base]
            entries[lane == one] = np.searchsorted(base, own[lane == one], side="right") - 1
        found = np.full_like(numbers, -1)
        for entry in np.unique(entries).tolist():
            if self.served[entry, part]:
                here = entries == entry
                before = self._base[entry] - self._heads[entry]
                wanted = own[here] - before[lane[here], part]
                found[here] = self._position_of(entry, part, wanted, lane[here])
        return found

    def _position_of(self, entry: int, part: int, numbers: Indices, lane: Indices) -> Indices:
        """Return the positions of samples of a part, counted by the shares of an entry."""
        unit, lanes, start = self.unit, self.lanes, self.starts[entry]
        cycles = (LIMIT - start) // (lanes * unit)
        most = (cycles + lanes - 1) * unit - 1
        places = self.shares[entry].position_of(part, numbers, most)
        units, within = np.divmod(places, unit)
        # Compare before multiplying: the product may exceed 64 bits.
        inside = (places >= 0) & (units - lane < cycles)
        units = np.where(inside, units - lane, 0) * lanes + lane
        return np.where(inside, units * unit + within + start, -1)


def _before_units(shares: Shares, unit: int, first: int, count: int) -> Indices:
    """Return the samples of each part before unit `first` of the places, and before those after.

    int64 of shape (count, parts).
    """
    before: Indices = shares.count_before(first * unit)[None]
    if count == 1:
        return before
    parts, between = len(shares.counts), (count - 1) * unit
    part, _ = shares.locate(first * unit + np.arange(between, dtype=np.int64))
    cells = np.arange(between) // unit * parts + part
    each = np.bincount(cells, minlength=(count - 1) * parts).reshape(count - 1, parts)
    return np.concatenate([before, before + np.cumsum(each, axis=0)])


def own_ranges(low: Indices, high: Indices) -> list[tuple[int, int]]:
    """Return ranges of a part's own positions between two counts of its samples in each lane.

    Parameters
    ----------
    low, high
        int64 of shape (lanes,): lane l has the samples low[l] to high[l] - 1.

    Examples
    --------
    >>> own_ranges(np.array([0, 1]), np.array([4, 3]))
    [(0, 1), (2, 6), (6, 7)]
    """
    lanes = len(low)
    first, last = int(low.max()), int(high.min())
    if first >= last:
        return _ragged(low, high)
    whole = (first * lanes, last * lanes)
    after = _ragged(np.full(lanes, last), high)
    return [*_ragged(low, np.full(lanes, first)), whole, *after]


def _ragged(low: Indices, high: Indices) -> list[tuple[int, int]]:
    """Return the ranges of `own_ranges`, in time of the number of samples."""
    counts = high - low
    lane = np.repeat(np.arange(len(low)), counts)
    begin = np.repeat(low - (np.cumsum(counts) - counts), counts)
    own = np.sort((begin + np.arange(len(lane))) * len(low) + lane)
    stretches = np.split(own, np.flatnonzero(np.diff(own) != 1) + 1)
    return [(int(stretch[0]), int(stretch[-1]) + 1) for stretch in stretches if len(stretch)]
