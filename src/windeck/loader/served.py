"""Counters of the samples, tokens and documents served so far, computed from the position.

Nothing is counted while training. Samples and tokens of complete epochs follow by arithmetic; for
the rest the source adds up what it has in ranges of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from windeck._util.validation import check_integer
from windeck.loader.epochs import EpochMap
from windeck.loader.sharding import Exclusions
from windeck.loader.weights import quote_name
from windeck.orders import Sequential
from windeck.sources.members import StreamMembers
from windeck.sources.protocols import Counts

__all__ = ["Served", "add_up", "count_epochs", "count_places", "kept_ranges", "serve"]

#: Ranges [start, stop), ascending and disjoint.
Ranges: TypeAlias = "tuple[tuple[int, int], ...]"

_UNKNOWN: Counts = (None, None, None)


@dataclass(frozen=True)
class Served:
    """Counts of what was handed out to all ranks since the run began.

    Attributes
    ----------
    samples
        Samples, without excluded and dropped ones.
    tokens
        Tokens that were targets, without padding: `sequence_length` for a full sequence of
        `PackedSequences`. None for data without tokens.
    documents_begun, documents_finished
        Documents of which any, or all, sequences were handed out, again in every epoch. None if
        they were not asked for, and for data without documents.
    epoch
        Epochs passed, with the fraction of the current one; None for a stream without epochs.
    parts
        The same counts for each part of a mixture, by name.

    Examples
    --------
    >>> Served(samples=10, tokens=640, epoch=0.5).as_dict()
    {'samples': 10, 'tokens': 640, 'epoch': 0.5}
    """

    samples: int
    tokens: int | None = None
    documents_begun: int | None = None
    documents_finished: int | None = None
    epoch: float | None = None
    parts: dict[str, Served] = field(default_factory=dict)

    def as_dict(self) -> dict[str, int | float]:
        """Return the known counts as one flat dict of numbers, as loggers take them.

        Counts of a part have its name before them: ``"web/tokens"``.

        Examples
        --------
        >>> Served(samples=3, parts={"web": Served(samples=2), "books": Served(1)}).as_dict()
        {'samples': 3, 'web/samples': 2, 'books/samples': 1}
        """
        names = ("samples", "tokens", "documents_begun", "documents_finished", "epoch")
        found = {name: getattr(self, name) for name in names}
        for part, counts in self.parts.items():
            prefix = quote_name(part)
            found |= {f"{prefix}/{name}": value for name, value in counts.as_dict().items()}
        return {name: value for name, value in found.items() if value is not None}


def kept_ranges(position: int, skipped: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of [0, position) without those skipped, adjacent ones merged.

    Raises
    ------
    TypeError, ValueError
        For a position or a range that is not of integers, and for a range that ends before it
        begins.
    """
    ranges = []
    for start, stop in skipped:
        first = check_integer("start", start)
        last = check_integer("stop", stop, least=first)
        ranges += [(first, last)] * (first < last)
    return tuple(Exclusions(ranges).kept_ranges(0, check_integer("position", position)))


def serve(
    stream: StreamMembers, position: int, skipped: Sequence[tuple[int, int]], documents: bool
) -> Served:
    """Return the counts of any stream; only samples, if it has no method `served`."""
    if stream.served is not None:
        found: Served = stream.served(position, skipped=skipped, documents=documents)
        return found
    samples = sum(stop - start for start, stop in kept_ranges(position, skipped))
    length = stream.epoch_length
    return Served(samples, epoch=None if length is None else position / length)


def add_up(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if any of them is unknown."""
    numbers = list(counts)
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def count_epochs(
    epochs: EpochMap,
    ranges: Ranges,
    documents: bool,
    count: Callable[[int, Ranges, bool], Counts],
) -> Counts:
    """Return the counts in ranges of positions of a stream.

    Parameters
    ----------
    epochs
        The `EpochMap` of the stream.
    ranges
        The positions.
    documents
        Whether documents are counted, which takes every epoch by itself.
    count
        Returns the counts in ranges of places of an epoch; see `count_places`.
    """
    if not any(epochs.source_at(one.epoch).counts_served for one in epochs.ranges):
        return _UNKNOWN
    found: list[Counts] = []
    borders = [one.start for one in epochs.ranges[1:]]
    for here, end in zip(epochs.ranges, [*borders, None], strict=True):
        places: dict[int, list[tuple[int, int]]] = {}
        whole: list[range] = []
        for start, stop in ranges:
            low, high = max(start, here.start), stop if end is None else min(stop, end)
            if low >= high:
                continue
            first, last = here.epoch_at(low), here.epoch_at(high - 1)
            # Epochs of which the range has all places.
            full = range(
                first + (low > here.epoch_start(first)),
                last + (high == here.epoch_start(last) + here.length),
            )
            whole.append(full)
            for epoch in sorted({first, last} - set(full[:1]) - set(full[-1:])):
                begin = here.epoch_start(epoch)
                pair = (max(low - begin, 0), min(high - begin, here.length))
                places.setdefault(epoch, []).append(pair)
        complete: Ranges = ((0, here.length),)
        for full in whole:
            if documents:
                found += (count(epoch, complete, True) for epoch in full)
            elif full:  # The tokens of complete epochs are the same in all.
                tokens = count(full[0], complete, False)[0]
                found.append((tokens and tokens * len(full), None, None))
        found += (count(epoch, tuple(pairs), documents) for epoch, pairs in places.items())
    if not found:
        return (0, 0, 0) if documents else (0, None, None)
    tokens, begun, finished = (add_up(column) for column in zip(*found, strict=True))
    return tokens, begun, finished


def count_places(epochs: EpochMap, epoch: int, places: Ranges, documents: bool) -> Counts:
    """Return the counts in ranges of places of an epoch, which its order maps to samples.

    O(places log places) for an order other than `Sequential`, besides the counting of the source.
    """
    source = epochs.source_at(epoch)
    if not source.counts_served:
        return _UNKNOWN
    order = epochs.order_at(epoch)
    ranges = np.array(places, np.int64)
    if not isinstance(order, Sequential) and places != ((0, len(order)),):
        samples = np.sort(np.concatenate([order.slice(*pair) for pair in places]))
        ranges = np.stack([samples, samples + 1], axis=1)
    return source.count_served(ranges, documents=documents)
