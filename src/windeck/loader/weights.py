"""Weights of the parts of a mixture: exact shares as places of a period, and their schedule."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from windeck._core import ShareTree
from windeck._util.fingerprints import digest
from windeck._util.terminal import escaped
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.schedule import Shares, Slots, SlotSchedule
from windeck.sources import Source, Stream

__all__ = [
    "LONGEST_PERIOD",
    "LONGEST_STEP",
    "LONGEST_TABLE",
    "MixtureWeights",
    "check_parts",
    "check_schedule",
    "exact_shares",
    "explain_part_seed",
    "explain_weights_change",
    "part_seed",
    "quote_name",
    "slot_counts",
]


#: Maximum number of slots in a period. The period of shares with a smaller common denominator is
#: that denominator.
LONGEST_PERIOD = 2**62

#: Maximum period of a table of slots; a tree serves longer ones.
LONGEST_TABLE = 4096

#: Maximum number of positions in a step of all lanes.
LONGEST_STEP = 2**24


def exact_shares(weights: Mapping[str, object], where: str = "") -> list[Fraction]:
    """Return weights as exact shares, which add up to 1.

    Parameters
    ----------
    weights
        Numbers by part, at least 0; a float means the decimal it is written as, so 0.1 is a
        tenth.
    where
        Text to add to the message of an error.

    Raises
    ------
    TypeError
        For a weight that is not a number.
    ValueError
        For a weight that is negative, infinite or NaN, and if all are 0.

    Examples
    --------
    >>> exact_shares({"c4": 0.7, "wiki": 0.3})
    [Fraction(7, 10), Fraction(3, 10)]
    """
    exact = [_exact(name, weight, where) for name, weight in weights.items()]
    total = sum(exact)
    if not total:
        raise ValueError(f"at least one weight must be above 0{where}, got only zeros")
    return [weight / total for weight in exact]


def _exact(name: str, weight: object, where: str) -> Fraction:
    if isinstance(weight, (float, np.floating, Decimal)):
        if not math.isfinite(weight):
            raise ValueError(
                f"the weight of {name!r} must be finite and at least 0{where}, got {weight!s}"
            )
        exact = Fraction(str(weight))
    elif isinstance(weight, Fraction):
        exact = weight
    else:
        try:
            number = operator.index(weight)  # type: ignore[arg-type]
        except TypeError:
            number = None
        if number is None or isinstance(weight, (bool, np.bool_)):
            raise TypeError(
                f"the weight of {name!r} must be a number{where}, got {type(weight).__name__} "
                f"{weight!r}"
            )
        exact = Fraction(number)
    if exact < 0:
        raise ValueError(
            f"the weight of {name!r} must be finite and at least 0{where}, got {weight}"
        )
    return exact


def slot_counts(shares: Sequence[Fraction]) -> list[int]:
    """Return the number of slots of each part in a period; their sum is the period.

    The counts are exact if the shares have a common denominator of at most `LONGEST_PERIOD`.
    Otherwise that is the period, shares are rounded by largest remainders, and each share above 0
    gets at least one slot.

    Examples
    --------
    >>> slot_counts([Fraction(7, 10), Fraction(3, 10)])
    [7, 3]
    >>> tiny = Fraction(1, 10**30)
    >>> slot_counts([1 - tiny, tiny])
    [4611686018427387903, 1]
    """
    limit = LONGEST_PERIOD
    common = math.lcm(*(share.denominator for share in shares))
    wanted = [share.numerator * (common // share.denominator) for share in shares]
    if common <= limit:
        return wanted
    counts = [max(1, size * limit // common) if size else 0 for size in wanted]

    def deficit(part: int) -> int:
        """Return the exact share of a part less its slots, in units of 1 / common slots."""
        return wanted[part] * limit - counts[part] * common

    missing = limit - sum(counts)
    # The sort is stable: among equal parts the first gets the slot.
    for part in sorted(range(len(counts)), key=deficit, reverse=True)[: max(0, missing)]:
        counts[part] += 1
    for _ in range(-missing):  # Parts that were raised to one slot took it from others.
        counts[min((p for p in range(len(counts)) if counts[p] > 1), key=deficit)] -= 1
    return counts


def _divide(shares: Sequence[Fraction]) -> Shares:
    """Return the arithmetic of shares: a table of slots for short periods, a tree for long ones."""
    counts = slot_counts(shares)
    if sum(counts) <= LONGEST_TABLE:
        return Slots.from_counts(counts)
    return ShareTree(np.array(counts, np.int64))


@dataclass(frozen=True)
class WeightsEntry:
    """The shares from position `start` on: those requested, and those served."""

    start: int
    requested: list[Fraction]
    served: Shares


class MixtureWeights:
    """The weights of the parts of a mixture, from position 0 on and in its schedule.

    Parameters
    ----------
    weights
        Weights by part, from position 0 on.
    schedule
        Pairs (position, weights by part), ascending.
    lanes, unit
        See `SlotSchedule`.

    Raises
    ------
    TypeError, ValueError
        As `exact_shares`; for positions that are not ascending and above 0, or in the middle of a
        step of all lanes, and for entries whose names are not exactly those of the parts.
    """

    def __init__(
        self,
        weights: Mapping[str, object],
        schedule: Sequence[Any] = (),
        lanes: int = 1,
        unit: int = 1,
    ) -> None:
        self.names = tuple(weights)
        self.lanes = check_integer("lanes", lanes, least=1)
        self.unit = check_integer("unit", unit, least=1)
        if lanes > 1 and lanes * unit > LONGEST_STEP:
            raise ValueError(
                f"`lanes` * `unit` must be at most {LONGEST_STEP:,}, got {lanes} * {unit}"
            )
        self.entries = [self._entry(0, weights, "")]
        for item in schedule:
            try:
                position, changed = item
            except (TypeError, ValueError):
                raise TypeError(
                    f"`schedule` must be a list of pairs (position, weights), got {item!r}"
                ) from None
            start = check_integer("a position in the schedule", position, most=LIMIT - 1)
            if start <= self.entries[-1].start:
                raise ValueError(
                    f"the positions in `schedule` must be ascending and above 0, got {start} "
                    f"after {self.entries[-1].start}"
                )
            if lanes > 1 and start % (lanes * unit):
                step = lanes * unit
                raise ValueError(
                    f"positions in `schedule` must be multiples of lanes * unit = {step}, as all "
                    f"lanes change together, got {start}; expected {start // step * step} or "
                    f"{-(-start // step) * step}"
                )
            self.entries.append(self._entry(start, changed, f" in the schedule at {start}"))
        entries = [(entry.start, entry.served) for entry in self.entries]
        self.schedule = SlotSchedule(entries, self.lanes, self.unit)

    def _entry(self, start: int, weights: Any, where: str) -> WeightsEntry:
        if not isinstance(weights, Mapping):
            raise TypeError(
                f"the weights must be a mapping by part{where}, got {type(weights).__name__}"
            )
        for names, others, fault in (
            (self.names, weights, "have no part"),
            (weights, self.names, "have an unknown part"),
        ):
            for name in names:
                if name not in others:
                    raise ValueError(
                        f"the weights{where} {fault} {name!r}, expected {', '.join(self.names)}"
                    )
        requested = exact_shares({name: weights[name] for name in self.names}, where)
        return WeightsEntry(start, requested, _divide(requested))

    def shares_at(self, position: int) -> dict[str, float]:
        """Return the shares at a position, after rounding."""
        shares = self.entries[self.schedule.entry(position)].served
        return {
            name: int(count) / shares.period
            for name, count in zip(self.names, shares.counts, strict=True)
        }

    def _begun(self, position: int) -> list[WeightsEntry]:
        """Return the first entry, and those that begin before a position."""
        return [entry for entry in self.entries if entry.start < position or not entry.start]

    def parts_before(self, position: int) -> list[int]:
        """Return the parts that any of these entries serves."""
        begun = len(self._begun(position))
        parts: list[int] = np.flatnonzero(self.schedule.served[:begun].any(axis=0)).tolist()
        return parts

    def fields(self, position: int) -> dict[str, str | int]:
        """Return the fields of the fingerprint that took effect before a position.

        Later entries are not in them, so they may be added or changed during a run. Neither are
        parts that only such an entry serves.
        """
        first, *later = self._begun(position)
        parts = ", ".join(quote_name(self.names[part]) for part in self.parts_before(position))
        scheduled = {f"schedule.{entry.start}": self._format(entry) for entry in later}
        lanes = {"lanes": f"{self.lanes} of {self.unit}"} if self.lanes > 1 else {}
        return {"shares": self._format(first), **scheduled, **lanes, "mixture": parts}

    def _format(self, entry: WeightsEntry) -> str:
        period = entry.served.period
        return ", ".join(
            f"{quote_name(name)}={count}/{period}"
            for name, count in zip(self.names, entry.served.counts.tolist(), strict=True)
            if count
        )

    def explain(self) -> str:
        """Return the requested and the rounded shares, and the largest difference, as text."""
        lines = []
        for entry in self.entries:
            period, error = entry.served.period, Fraction(0)
            lines.append(f"from position {entry.start:,}, in periods of {period:,} samples:")
            for name, share, count in zip(
                self.names, entry.requested, entry.served.counts.tolist(), strict=True
            ):
                error = max(error, abs(share - Fraction(count, period)))
                lines.append(
                    f"  {name}: {float(share):.6f} requested, "
                    f"{count:,} slot{'' if count == 1 else 's'} = {count / period:.6f}"
                )
            exact = f"rounded by at most {float(error):.2g}" if error else "exact"
            lines.append(f"  shares are {exact}")
        return "\n".join(map(escaped, lines))


def check_schedule(schedule: object) -> list[Any]:
    """Return the entries of a schedule; raise a TypeError for a mapping or no sequence of them."""
    if isinstance(schedule, Mapping) or not isinstance(schedule, Iterable):
        cure = "; list(schedule.items()) is one" if isinstance(schedule, Mapping) else ""
        raise TypeError(
            "`schedule` must be a list of pairs (position, weights), got "
            f"{type(schedule).__name__}{cure}"
        )
    return list(schedule)


def check_parts(parts: object) -> dict[str, tuple[Source | Stream | None, Any]]:
    """Return the pairs (source or stream, weight) by name, or raise for anything else."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"`parts` must be a dict by name, got {type(parts).__name__}")
    if not parts:
        raise ValueError("a mixture must have at least one part, got none")
    for name, part in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"the names of parts must be strings, got {name!r}")
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise TypeError(
                f"part {name!r} must be a pair (source or stream, weight), got "
                f"{type(part).__name__}"
            )
    if all(part[0] is None for part in parts.values()):
        raise ValueError("at least one part must have a source, got None for all")
    return {name: (part[0], part[1]) for name, part in parts.items()}


def part_seed(seed: int, name: str) -> int:
    """Return the seed of a part of a mixture that is given as a source."""
    return int(digest("part of a mixture", seed, name)[:16], 16)


def explain_part_seed(name: str, was: object, now: object) -> str:
    """Return a sentence for a part that was given as a source, and is a stream."""
    return (
        f"part {name!r} had seed {was}, as a part that is given as a source has, here it is {now}; "
        f"pass Stream(..., seed={was}), the value of `mixture.parts[{name!r}].seed` there"
    )


def explain_weights_change(field: str, was: object, now: object) -> str | None:
    """Return a sentence that explains changed shares; None for other fields."""
    if field == "lanes":
        return (
            f"the mixture had {_describe_lanes(was)} when it was saved and has "
            f"{_describe_lanes(now)} here; expected the same `lanes` and `unit`"
        )
    if not field.startswith("schedule."):
        return None
    where = f"position {field.removeprefix('schedule.')}"
    if now is None:
        return (
            f"it was saved with a schedule entry at {where} ({was}), which has taken effect and "
            "is missing here"
        )
    if was is None:
        return (
            f"the schedule has an entry at {where} ({now}), but the position had been passed "
            "without it when the state was saved: entries may be added for later positions only"
        )
    return (
        f"the schedule entry at {where} has taken effect and must not change: it was {was}, here "
        f"it is {now}"
    )


def _describe_lanes(value: object) -> str:
    return "no lanes" if value is None else f"lanes ({value})"


def quote_name(name: str) -> str:
    """Return a part's name for a fingerprint field, quoted unless it is plain."""
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)
