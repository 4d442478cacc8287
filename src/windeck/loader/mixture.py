"""What a mixture is made of: names, weights, and when they change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from numpy.typing import ArrayLike

from windeck._util.fingerprints import digest
from windeck._util.indices import as_positions
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.queries import Contents, Run, by_part, positions_of
from windeck.loader.slots import Schedule, Slots, exact_shares, slot_counts
from windeck.loader.state import explain_change, fingerprint_at
from windeck.loader.stream import Stream
from windeck.sources import (
    Batch,
    Fingerprint,
    Indices,
    check_out,
    common_layout,
    complete_batch,
    empty_rows,
    gather_into,
    gather_rows,
    present,
    whole,
)

__all__ = ["Mixture", "Recipe", "checked_parts", "explain_recipe_change", "tag"]


@dataclass(frozen=True)
class Entry:
    """From `start` on parts have these shares: those asked for, and those of the slots."""

    start: int
    asked: list[Fraction]
    slots: Slots


class Recipe:
    """Names and entries of a mixture.

    Parameters
    ----------
    weights
        From position 0 on, by part.
    schedule
        Pairs (position, weights by part), ascending.

    Raises
    ------
    TypeError, ValueError
        As `exact_shares`; for positions that do not ascend from above 0, and for names that an
        entry leaves out or no part has.
    """

    def __init__(self, weights: Mapping[str, object], schedule: Sequence[Any] = ()) -> None:
        self.names = tuple(weights)
        self.entries = [self._entry(0, weights, "")]
        for item in schedule:
            try:
                position, changed = item
            except (TypeError, ValueError):
                raise TypeError(
                    f"the schedule has to be pairs (position, weights), got {item!r}"
                ) from None
            start = check_integer("a position in the schedule", position, most=LIMIT - 1)
            if start <= self.entries[-1].start:
                raise ValueError(
                    f"the schedule's positions have to ascend from above 0, got {start} after "
                    f"{self.entries[-1].start}"
                )
            self.entries.append(self._entry(start, changed, f" in the schedule at {start}"))
        self.schedule = Schedule([(entry.start, entry.slots) for entry in self.entries])

    def _entry(self, start: int, weights: Any, where: str) -> Entry:
        if not isinstance(weights, Mapping):
            raise TypeError(
                f"weights have to be a mapping of parts{where}, got {type(weights).__name__}"
            )
        for names, others, said in (
            (self.names, weights, "leave out part"),
            (weights, self.names, "are for an unknown part"),
        ):
            for name in names:
                if name not in others:
                    raise ValueError(
                        f"the weights{where} {said} {name!r}, expected {', '.join(self.names)}"
                    )
        asked = exact_shares({name: weights[name] for name in self.names}, where)
        return Entry(start, asked, Slots.of(slot_counts(asked)))

    def shares_at(self, position: int) -> dict[str, float]:
        """The shares that are served at a position, as the slots have them."""
        slots = self.entries[self.schedule.entry(position)].slots
        return {
            name: int(count) / slots.period
            for name, count in zip(self.names, slots.counts, strict=True)
        }

    def _begun(self, position: int) -> list[Entry]:
        """The entries that decided what was served before a position; the first one always."""
        return [entry for entry in self.entries if entry.start < position or not entry.start]

    def parts_before(self, position: int) -> list[int]:
        """The parts that any of these entries serves."""
        entries = self._begun(position)
        counts = [sum(int(e.slots.counts[part]) for e in entries) for part in range(self.size)]
        return [part for part in range(self.size) if counts[part]]

    @property
    def size(self) -> int:
        """Parts there are."""
        return len(self.names)

    def fields(self, position: int) -> dict[str, str | int]:
        """Fields of a fingerprint: what of the recipe took effect before a position.

        An entry of the future is not in them, so it may be added or changed later; and neither
        is a part that only such an entry serves.
        """
        first, *later = self._begun(position)
        parts = ", ".join(tag(self.names[part]) for part in self.parts_before(position))
        told = {f"schedule.{entry.start}": self._said(entry) for entry in later}
        return {"shares": self._said(first), **told, "mixture": parts}

    def _said(self, entry: Entry) -> str:
        period = entry.slots.period
        return ", ".join(
            f"{tag(name)}={count}/{period}"
            for name, count in zip(self.names, entry.slots.counts.tolist(), strict=True)
            if count
        )

    def explain(self) -> str:
        """What was asked for and what is served, and how far apart they are at most."""
        lines = []
        for entry in self.entries:
            period, off = entry.slots.period, Fraction(0)
            lines.append(f"from position {entry.start:,}, in periods of {period:,} samples:")
            for name, share, count in zip(
                self.names, entry.asked, entry.slots.counts.tolist(), strict=True
            ):
                off = max(off, abs(share - Fraction(count, period)))
                lines.append(
                    f"  {name}: {float(share):.6f} asked for, "
                    f"{count:,} slot{'' if count == 1 else 's'} = {count / period:.6f}"
                )
            exact = f"rounded by at most {float(off):.2g}" if off else "exact"
            lines.append(f"  shares are {exact}")
        return "\n".join(lines)


def explain_recipe_change(field: str, was: object, now: object) -> str | None:
    """A sentence for a field of `Recipe.fields` that differs, or None for others."""
    if not field.startswith("schedule."):
        return None
    where = f"position {field.removeprefix('schedule.')}"
    if now is None:
        return (
            f"when it was saved, the schedule had an entry at {where} ({was}), which has taken "
            "effect and is missing here"
        )
    if was is None:
        return (
            f"the schedule has an entry at {where} ({now}), which the run that saved it did not "
            "have there: entries may be added for the future only"
        )
    return (
        f"the schedule's entry at {where} has taken effect and may not change: it was {was}, "
        f"here it is {now}"
    )


def checked_parts(parts: Any) -> dict[str, tuple[Any, Any]]:
    """The parts as given, each a pair by a name."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"a mixture is made of a dict of parts by name, got {type(parts).__name__}")
    if not parts:
        raise ValueError("a mixture needs one part at least, got none")
    for name, part in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"names of parts have to be strings, got {name!r}")
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise TypeError(
                f"part {name!r} has to be a pair (source or stream, weight), got "
                f"{type(part).__name__}"
            )
    return {name: (part[0], part[1]) for name, part in parts.items()}


def tag(name: str) -> str:
    """A part's name as fields hold it: quoted, unless it is plain, so that no two run together."""
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


class Mixture:
    """Several sources or streams, dealt out by weights.

    Position p is served by one part, and by that part's next sample in its own sequence. The
    shares of any stretch from position 0 on are kept to within one sample, and each part has its
    own epochs: a small one begins anew while a large one goes on.

    Parameters
    ----------
    parts
        Pairs (source or stream, weight) by name. A source becomes a `Stream` whose seed is made
        of `seed` and its name. A weight is an int, float, `Fraction` or `Decimal` of at least 0;
        floats count as the decimals they are written as. Shares count samples.
    seed
        An int in [0, 2^64), for parts given as sources.
    schedule
        Pairs (position, weights by name), ascending: from this position on these weights. What
        was served stays served, and every part goes on where it was. An entry may be added later,
        as long as its position has not been passed. A weight of 0 means: not served meanwhile.

    Raises
    ------
    TypeError
        For what is no source or stream, for weights that are no numbers.
    ValueError
        For weights that are negative, NaN, infinite or all 0; for a schedule that does not ascend
        or that does not name exactly the parts; and for parts whose batches differ in keys, dtypes
        or shapes.

    Notes
    -----
    Shares with a common denominator of at most 4,096 are exact; others are rounded to slots of
    4,096, which `explain` tells. A part may be a mixture. Construction takes a batch without
    rows from each part, O(4,096) time for each entry, and that of a table of slots in memory.

    Examples
    --------
    >>> class Count:
    ...     fingerprint = {"count": 100}
    ...     def __len__(self):
    ...         return 100
    ...     def gather(self, indices, out=None):
    ...         return {"x": indices.copy()}
    >>> mixture = Mixture({"web": (Count(), 0.75), "books": (Count(), 0.25)}, seed=7)
    >>> part, number = mixture.locate(range(8))
    >>> [mixture.names[i] for i in part]
    ['web', 'web', 'books', 'web', 'web', 'web', 'books', 'web']
    >>> number
    array([0, 1, 0, 2, 3, 4, 1, 5])
    >>> mixture.shares
    {'web': 0.75, 'books': 0.25}
    """

    #: A mixture has no epochs; its parts do.
    epoch_length: None = None

    def __init__(
        self,
        parts: Mapping[str, tuple[Any, Any]],
        *,
        seed: int = 0,
        schedule: Sequence[tuple[int, Mapping[str, Any]]] = (),
    ) -> None:
        self.seed = check_integer("seed", seed, most=2**64 - 1)
        self._given = checked_parts(parts)
        self._schedule = list(schedule)
        weights = {name: weight for name, (_, weight) in self._given.items()}
        self._recipe = Recipe(weights, self._schedule)
        self.parts: dict[str, Any] = {
            name: _as_part(name, data, self.seed) for name, (data, _) in self._given.items()
        }
        self._streams = list(self.parts.values())
        self._layout = common_layout({f"part {name!r}": part for name, part in self.parts.items()})
        self._contents = Contents(self.parts, self._recipe.schedule)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts; `locate` and `samples` give their places in here."""
        return self._recipe.names

    @property
    def shares(self) -> dict[str, float]:
        """The share of each part at position 0, as it is served after rounding."""
        return self.shares_at(0)

    def shares_at(self, position: int) -> dict[str, float]:
        """The share of each part at a position, as it is served after rounding."""
        return self._recipe.shares_at(check_integer("position", position))

    def explain(self) -> str:
        """For people: the shares asked for and served, for every entry of the schedule."""
        return self._recipe.explain()

    # Positions and parts.

    def locate(self, positions: ArrayLike) -> tuple[Indices, Indices]:
        """Which part serves positions, and at which of its own. O(1) each, vectorised.

        Parameters
        ----------
        positions
            Integers in [0, 2^63) of shape (k,).

        Returns
        -------
        two int64 arrays of shape (k,)
            The part, as its place in `names`; and the position in that part's stream.

        Raises
        ------
        TypeError, IndexError
            For positions that are no integers, or negative.
        """
        return self._recipe.schedule.locate(as_positions(positions))

    def position_of_part(self, name: str, positions: ArrayLike) -> Indices:
        """Where a part's own positions are served: the inverse of `locate`. O(1) each.

        Returns
        -------
        int64 array of shape (k,)
            Positions of the mixture; -1 where none is, because the part has no weight any more.

        Raises
        ------
        KeyError
            For a name that no part has.
        """
        wanted = as_positions(positions)
        return self._recipe.schedule.position_of(self._number(name), wanted)

    def position_in_part(self, name: str, position: int) -> int:
        """How many samples of a part are served before a position: where the part stands."""
        before = self._recipe.schedule.before(check_integer("position", position))
        return int(before[self._number(name)])

    def _number(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"the mixture has no part {name!r}, only {', '.join(self.names)}")
        return self.names.index(name)

    def samples(self, positions: ArrayLike) -> Indices:
        """Which samples are served.

        Returns
        -------
        int64 array of shape (k, 2)
            The part, as its place in `names`, and its sample. Of a part that is a mixture the
            second column is its part, and so on; rows that need fewer columns end in -1.

        Raises
        ------
        TypeError
            When a part cannot tell.
        """
        return self._contents.samples(as_positions(positions))

    def position_of(self, samples: ArrayLike, *, epoch: int = 0) -> Indices:
        """At which positions samples are served in an epoch of their part.

        Parameters
        ----------
        samples
            Integers of shape (k, 2), as from `samples`.
        epoch
            That of the part.

        Returns
        -------
        int64 array of shape (k,)
            Positions; -1 where none serves the sample, because its part has no weight any more.
        """
        return self._contents.position_of(samples, check_integer("epoch", epoch))

    def epoch_of(self, sample: Any, *, at: int) -> int:
        """The epoch that a sample's part is in when the mixture is at a position."""
        return self._contents.epoch_of(sample, check_integer("at", at))

    def documents_at(self, positions: ArrayLike) -> list[list[Any]]:
        """The pieces of documents at each of some positions, for parts that know of documents."""
        return self._contents.documents_at(as_positions(positions))

    def document_runs(self, document: Any, *, at: int, epoch: int | None = None) -> list[Run]:
        """Where a document is served, for each part that has it; see `document_positions`."""
        number = None if epoch is None else check_integer("epoch", epoch)
        return self._contents.document_runs(document, check_integer("at", at), number)

    def document_positions(self, document: Any, *, at: int, epoch: int | None = None) -> Indices:
        """At which positions sequences of a document are served in an epoch of their part.

        Parameters
        ----------
        document
            ``(dataset_id, shard_id, doc_id)``, looked for in all parts; or ``(name, document)``
            for that part alone.
        at
            A position of the mixture: the epochs meant are those the parts are in there.
        epoch
            Another epoch of the parts instead.

        Returns
        -------
        int64 array
            Ascending. O(sequences of the document) beside what the parts need.

        Raises
        ------
        KeyError, IndexError
            For a document that no part has.
        TypeError
            When no part knows of documents.
        """
        return positions_of(self.document_runs(document, at=at, epoch=epoch))

    # Batches.

    @property
    def supports_threads(self) -> bool:
        """Whether any part takes ``threads=``."""
        return any(getattr(stream, "supports_threads", False) for stream in self._streams)

    @property
    def torch_dtypes(self) -> Mapping[str, str]:
        """Keys whose arrays hold the bits of a type NumPy lacks, and that type."""
        types: Mapping[str, str] = getattr(self._streams[0], "torch_dtypes", {})
        return types

    def gather(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """One batch: row k of every array belongs to ``positions[k]``.

        Each part is asked once for all of its rows; parameters as for `Stream.gather`.
        """
        return complete_batch(self._streams[0], self.gather_rows(positions, out, threads=threads))

    def gather_rows(
        self, positions: ArrayLike, out: Batch | None = None, *, threads: int | None = None
    ) -> Batch:
        """The rows of a batch, before `whole` and `present`; parameters as for `gather`."""
        part, numbers = self.locate(positions)
        if out is not None:
            check_out(out, self._layout, len(part))
        runs = list(by_part(part))
        if len(runs) == 1:  # Its rows are the batch.
            which = runs[0][0]
            return gather_rows(self._streams[which], numbers, out, **self._extra(which, threads))
        batch = empty_rows(self._layout, len(part)) if out is None else out
        for which, rows in runs:
            extra = self._extra(which, threads)
            gather_into(self._streams[which], numbers[rows], rows, batch, **extra)
        return batch

    def _extra(self, part: int, threads: int | None) -> dict[str, Any]:
        takes = threads is not None and getattr(self._streams[part], "supports_threads", False)
        return {"threads": threads} if takes else {}

    def whole(self, rows: Batch) -> Batch:
        """What the parts say of a batch of these rows as a whole; see `RowSource`."""
        return whole(self._streams[0], rows)

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch as the parts show it; see `RowSource`."""
        return present(self._streams[0], batch)

    # What it is.

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """All of it: parts, shares, the whole schedule, and the fields of every part."""
        return self.fingerprint_at(LIMIT)

    def fingerprint_at(self, position: int) -> Fingerprint:
        """What decided the samples before a position, which is what a state there depends on.

        Entries of the schedule that begin at the position or later are not in it, and neither are
        parts that only these serve: they may be added or changed while a run goes on.
        """
        before = self._recipe.schedule.before(position)
        fields = {"seed": self.seed, **self._recipe.fields(position)}
        for part in self._recipe.parts_before(position):
            inner = fingerprint_at(self._streams[part], int(before[part]))
            prefix = f"part.{tag(self.names[part])}."
            fields |= {f"{prefix}{field}": value for field, value in inner.items()}
        return fields

    def explain_change(self, field: str, was: Any, now: Any) -> str | None:
        """A sentence for a field of the fingerprint that differs, or None where it says enough."""
        for name, stream in self.parts.items():
            prefix = f"part.{tag(name)}."
            if field.startswith(prefix):
                told = explain_change(stream, field.removeprefix(prefix), was, now)
                return told and f"in part {name!r}, {told}"
        return explain_recipe_change(field, was, now)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name!r}: {self.parts[name]!r}" for name in self.names)
        return f"Mixture({{{parts}}}, shares={self.shares}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Mixture, seed=self.seed, schedule=self._schedule), (self._given,)


def _as_part(name: str, data: Any, seed: int) -> Any:
    """A part as a stream; sources are shuffled by seeds that have nothing to do with each other."""
    if hasattr(data, "epoch_length"):
        return data
    try:
        return Stream(data, seed=int(digest("part of a mixture", seed, name)[:16], 16))
    except (TypeError, ValueError) as error:
        raise type(error)(f"part {name!r} cannot be mixed: {error}") from None
