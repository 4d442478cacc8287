"""A model of a mixture of streams, computed slot by slot: see `text_oracle`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from models import mixture_model
from models.mixture_model import Shared
from models.text_oracle import AnyStream, Place

#: Slots of a period at most: of a table, and of any.
LONGEST_TABLE, LONGEST_PERIOD = 4096, 2**62


def slot_counts(weights: Mapping[str, float]) -> dict[str, int]:
    """Return the slots of a period for each part.

    They are exact where 2^62 slots suffice, else rounded by largest remainders.
    """
    exact = dict(zip(weights, shares_of(weights), strict=True))
    length = min(period(weights), LONGEST_PERIOD)
    counts = {name: int(share * length) or int(share > 0) for name, share in exact.items()}

    def lacks(name: str) -> Fraction:
        return exact[name] * length - counts[name]

    while sum(counts.values()) < length:
        counts[max(counts, key=lacks)] += 1
    while sum(counts.values()) > length:
        counts[min((name for name in counts if counts[name] > 1), key=lacks)] -= 1
    return counts


def slots(weights: Mapping[str, float]) -> list[str]:
    """Return the names of the parts in one period."""
    names = list(weights)
    return [names[part] for part in mixture_model.slots([*slot_counts(weights).values()])]


def shares_of(weights: Mapping[str, float]) -> list[Fraction]:
    exact = [Fraction(str(weight)) for weight in weights.values()]
    return [weight / sum(exact) for weight in exact]


def period(weights: Mapping[str, float]) -> int:
    """Return the common denominator of the shares."""
    return lcm(*(share.denominator for share in shares_of(weights)))


def shared(weights: Mapping[str, float]) -> Shared:
    """Return the tree of the shares; `weights` have the order of the parts."""
    return Shared([*slot_counts(weights).values()])


class Mixed:
    """A model of `Mixture`: streams that alternate by their weights, slot by slot."""

    def __init__(
        self,
        parts: Mapping[str, tuple[AnyStream, float]],
        schedule: Sequence[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        self.parts = {name: stream for name, (stream, _) in parts.items()}
        first = {name: weight for name, (_, weight) in parts.items()}
        self.segments = [
            (at, shared(weights) if period(weights) > LONGEST_TABLE else slots(weights))
            for at, weights in [(0, first), *schedule]
        ]
        self.period = period(first)
        self.dealt: list[tuple[str, int]] = []
        self.counts = dict.fromkeys(self.parts, 0)

    def slot(self, position: int) -> tuple[str, int]:
        """Return the part that is served at a position, and the index of its sample."""
        while len(self.dealt) <= position:
            begun, table = [each for each in self.segments if each[0] <= len(self.dealt)][-1]
            place, name = len(self.dealt) - begun, ""
            if isinstance(table, Shared):
                name = list(self.parts)[table.part(place)[0]]
            else:
                name = table[place % len(table)]
            self.dealt.append((name, self.counts[name]))
            self.counts[name] += 1
        return self.dealt[position]

    def at(self, position: int) -> Place:
        name, place = self.slot(position)
        return self.parts[name].at(place)
