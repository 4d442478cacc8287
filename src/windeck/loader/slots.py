"""Weights -> a table of slots: which part of a mixture is served at which place of a period.

Everything here is exact arithmetic on integers, so that a table is the same on every machine. A
published table is an API: it decides what is served at a position.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np

from windeck._util.validation import LIMIT
from windeck.sources import Indices

__all__ = ["PERIOD", "Schedule", "Slots", "chairman", "exact_shares", "slot_counts"]


#: Slots in a period at most; weights with a smaller common denominator take that instead.
PERIOD = 4096


@dataclass(frozen=True, eq=False)
class Slots:
    """One period: a table of parts, and the same table turned around.

    Parameters
    ----------
    counts
        Slots of each part; their sum is the period.
    table
        int64 array of shape (period,): the part at each slot.
    ranks
        int64 array of shape (period,): how many slots of the same part come before.
    places
        int64 array of shape (period,): the slots of part 0 ascending, then those of part 1, ...
    """

    counts: Indices
    table: Indices
    ranks: Indices
    places: Indices

    @classmethod
    def of(cls, counts: Sequence[int]) -> Slots:
        """Lay out a period. O(period * log(parts))."""
        sizes = np.array(counts, np.int64)
        table = np.array(chairman(counts), np.int64)
        places = np.argsort(table, kind="stable")
        ranks = np.empty_like(places)
        ranks[places] = np.arange(len(table)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(sizes, table, ranks, places)

    @property
    def period(self) -> int:
        """Slots there are."""
        return len(self.table)

    def before(self, places: int) -> Indices:
        """How many samples of each part the first `places` places hold, over any periods."""
        periods, rest = divmod(places, self.period)
        within = np.bincount(self.table[:rest], minlength=len(self.counts))
        return self.counts * periods + within

    def locate(self, places: Indices) -> tuple[Indices, Indices]:
        """Places -> parts, and which of its samples each is counted from the first place. O(1)."""
        periods, slots = np.divmod(places, self.period)
        part = self.table[slots]
        return part, periods * self.counts[part] + self.ranks[slots]

    def place_of(self, part: int, numbers: Indices) -> tuple[Indices, Indices]:
        """The inverse of `locate` for a part with slots: periods before, and the slot. O(1)."""
        periods, rest = np.divmod(numbers, self.counts[part])
        return periods, self.places[int(self.counts[:part].sum()) + rest]


def exact_shares(weights: Mapping[str, object], where: str = "") -> list[Fraction]:
    """Weights as shares that add up to 1, exactly.

    Parameters
    ----------
    weights
        Numbers by part, at least 0; floats count as the decimals they are written as, so that
        0.1 is a tenth.
    where
        What to add to an error's sentence.

    Raises
    ------
    TypeError
        For what is no number.
    ValueError
        For a weight that is negative, infinite or NaN, and where all are 0.

    Examples
    --------
    >>> exact_shares({"c4": 0.7, "wiki": 0.3})
    [Fraction(7, 10), Fraction(3, 10)]
    """
    exact = [_exact(name, weight, where) for name, weight in weights.items()]
    total = sum(exact)
    if not total:
        raise ValueError(f"all weights are 0{where}, expected one above 0 at least")
    return [weight / total for weight in exact]


def _exact(name: str, weight: object, where: str) -> Fraction:
    if isinstance(weight, (float, np.floating, Decimal)):
        text = str(weight)
        if not math.isfinite(weight):
            raise ValueError(
                f"the weight of {name!r} is {text}{where}, expected a finite number of at least 0"
            )
        exact = Fraction(text)
    elif isinstance(weight, Fraction):
        exact = weight
    else:
        try:
            number = operator.index(weight)  # type: ignore[arg-type]
        except TypeError:
            number = None
        if number is None or isinstance(weight, (bool, np.bool_)):
            raise TypeError(
                f"the weight of {name!r} has to be a number{where}, got {type(weight).__name__} "
                f"{weight!r}"
            )
        exact = Fraction(number)
    if exact < 0:
        raise ValueError(
            f"the weight of {name!r} is {weight}{where}, expected a finite number of at least 0"
        )
    return exact


def slot_counts(shares: Sequence[Fraction], limit: int = PERIOD) -> list[int]:
    """How many slots of a period each part gets; their sum is the period.

    Exact where the shares have a common denominator of at most `limit`. Otherwise the period is
    `limit`, rounded by largest remainders, and no share above 0 gets no slot at all.

    Raises
    ------
    ValueError
        For more shares above 0 than slots.

    Examples
    --------
    >>> slot_counts([Fraction(7, 10), Fraction(3, 10)])
    [7, 3]
    >>> slot_counts([Fraction(99999, 100000), Fraction(1, 100000)])
    [4095, 1]
    """
    served = sum(share > 0 for share in shares)
    if served > limit:
        raise ValueError(f"{served} parts are to be served, a mixture has {limit} slots for them")
    common = math.lcm(*(share.denominator for share in shares))
    wanted = [share.numerator * (common // share.denominator) for share in shares]
    if common <= limit:
        return wanted
    counts = [max(1, size * limit // common) if size else 0 for size in wanted]

    def owed(part: int) -> int:
        """How far below its exact share a part is, in units of 1 / common slots."""
        return wanted[part] * limit - counts[part] * common

    missing = limit - sum(counts)
    # The sort is stable: of equals the first part gets the slot.
    for part in sorted(range(len(counts)), key=owed, reverse=True)[: max(0, missing)]:
        counts[part] += 1
    for _ in range(-missing):  # Parts that were lifted to one slot took it from others.
        counts[min((p for p in range(len(counts)) if counts[p] > 1), key=owed)] -= 1
    return counts


def chairman(counts: Sequence[int]) -> list[int]:
    """Lay parts out so that every prefix has each part within one sample of its exact share.

    Tijdeman's chairman assignment (1980): of k parts with slots, n slots hold part i within
    1 - 1/(2k - 2) of n * counts[i] / period. Its j-th sample may be served once that many slots
    ask for it, has to be before they ask for too much, and the earliest deadline goes first.

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
    >>> chairman([3, 2, 1])
    [0, 1, 0, 2, 0, 1]
    """
    period = sum(counts)
    slack = max(1, 2 * sum(count > 0 for count in counts) - 2)
    released: list[list[tuple[int, int]]] = [[] for _ in range(period + 1)]

    def release(part: int, number: int, after: int) -> None:
        """Let sample `number` of a part wait for the first slot that may serve it."""
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


class Schedule:
    """Which slots are served from which position on. Immutable.

    Parameters
    ----------
    entries
        Pairs (position, slots), ascending, the first at position 0, all of equally many parts.
    """

    def __init__(self, entries: Sequence[tuple[int, Slots]]) -> None:
        self.starts = [start for start, _ in entries]
        self.slots = [slots for _, slots in entries]
        base = [np.zeros(len(self.slots[0].counts), np.int64)]
        for number, start in enumerate(self.starts[1:]):
            base.append(base[-1] + self.slots[number].before(start - self.starts[number]))
        #: base[e][i]: samples of part i served before entry e.
        self._base = np.stack(base)

    def entry(self, position: int) -> int:
        """The entry that a position is served by. O(log entries)."""
        return bisect_right(self.starts, position) - 1

    def before(self, position: int) -> Indices:
        """Samples of each part served before a position: int64 of shape (parts,). O(parts)."""
        entry = self.entry(position)
        slots, start = self.slots[entry], self.starts[entry]
        found: Indices = self._base[entry] + slots.before(position - start)
        return found

    def locate(self, positions: Indices) -> tuple[Indices, Indices]:
        """Positions -> parts, and the part's own positions; O(1) each but for the entry."""
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
        """A part's own positions -> positions, or -1 where none serves them before 2^63 - 1."""
        base = self._base[:, part]
        # Of entries with equal counts the last one is meant: the others serve nothing of the part.
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
        # Compared before they are multiplied, which may leave 64 bits.
        whole, rest = divmod(LIMIT - 1 - start, slots.period)
        inside = (periods < whole) | ((periods == whole) & (slot <= rest))
        places = np.where(inside, periods, 0) * slots.period + slot
        return np.where(inside, start + places, -1)
