"""Runs of chunks: which of them a job needs, where they go, and which are read together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, shape_of, whole
from windeck.checkpoint.format.chunks import chunk_items, memory_of, named_dtype, put, touches
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.values import Kind, Label

__all__ = ["Job", "Run", "grouped", "runs"]

#: A chunk of so many bytes is read by itself, where a store can read it to its place.
LARGE_BYTES = 64 << 10
#: Bytes of large chunks at a time for a thread, so that handing them over does not count: 32 of the
#: usual size, and their keys.
LARGE_GROUP_BYTES = (32 << 20) + (128 << 10)
#: And of others: one of the usual size.
GROUP_BYTES = (1 << 20) + (64 << 10)
#: What a key counts for beside its bytes: of the smallest tensors some thousand are asked for.
KEY_BYTES = 1 << 10

#: The name data are under, the tensors to write them to, and the box these stand for (None: all).
Job: TypeAlias = tuple[str, Sequence[torch.Tensor], Box | None]


class Run(NamedTuple):
    """Chunks [first, stop) of a part, and where they go.

    Attributes
    ----------
    box
        What of the tensor the targets stand for.
    items, size
        Elements of a full chunk, and of the part.
    place
        The memory of the only target, if runs of the part's elements are to be runs there, and how
        many elements later they are.
    """

    name: str
    dtype: torch.dtype
    targets: Sequence[torch.Tensor]
    box: Box
    part: Part
    first: int
    stop: int
    items: int
    size: int
    place: tuple[memoryview, int] | None

    @property
    def chunk_bytes(self) -> int:
        """Of the largest chunk."""
        return min(self.items, self.size) * self.dtype.itemsize

    def bytes_of(self, number: int) -> int:
        """Of one chunk."""
        return min(self.items, self.size - number * self.items) * self.dtype.itemsize

    def wanted(self, namespace: str, number: int) -> tuple[bytes, Label]:
        """The key of a chunk, and what the value has to be."""
        generation, save, writer, item = self.part.source(number)
        key = keys.chunk(namespace, generation, writer, item, number)
        return key, Label(Kind.CHUNK, generation, save, item, writer, number)

    def memory(self, number: int) -> memoryview | None:
        """Where in the target's memory a chunk lies; None where not all of it does."""
        if self.place is None:
            return None
        memory, moved = self.place
        start, width = number * self.items, self.dtype.itemsize
        first = (start + moved) * width
        end = (min(start + self.items, self.size) + moved) * width
        return memory[first:end] if 0 <= first <= end <= len(memory) else None

    def use(self, number: int, payload: memoryview) -> None:
        """Put a chunk's elements where they belong."""
        start = number * self.items
        for target in self.targets:
            put(payload, target, self.box, dtype=self.dtype, part=self.part.box, start=start)


def runs(entries: Mapping[str, Entry], jobs: Iterable[Job], *, straight: bool) -> Iterator[Run]:
    """The chunks with something of the boxes in them; with `straight`, where they are to lie."""
    for name, targets, wanted in jobs:
        entry = entries[name]
        dtype, box = named_dtype(entry.dtype), whole(entry.shape) if wanted is None else wanted
        items = chunk_items(dtype, entry.chunk_bytes)
        for part in entry.parts:
            size = math.prod(shape_of(part.box))
            place = None
            if straight and len(targets) == 1 and min(items, size) * dtype.itemsize >= LARGE_BYTES:
                place = memory_of(targets[0], box, dtype=dtype, part=part.box)
            for first, stop in _touching(part.box, box, items, size):
                yield Run(name, dtype, targets, box, part, first, stop, items, size, place)


def _touching(part: Box, box: Box, items: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of the numbers of a part's chunks that have something of a box in them."""
    first, end = _span(part, box)
    numbers = range(first // items, -(-end // items))
    if part == box:
        if numbers:
            yield numbers.start, numbers.stop
        return

    def touching(number: int) -> bool:
        return touches(part, number * items, min((number + 1) * items, size), box)

    for wanted, some in groupby(numbers, touching):
        if wanted:
            found = list(some)
            yield found[0], found[-1] + 1


def _span(part: Box, box: Box) -> tuple[int, int]:
    """The least run of a part's elements with all in it that lies in a box; (0, 0) for none."""
    low = high = 0
    for (first, end), (wanted, wanted_end) in zip(part, box, strict=True):
        a, b = max(first, wanted), min(end, wanted_end)
        if a >= b:
            return 0, 0
        low = low * (end - first) + a - first
        high = high * (end - first) + b - 1 - first
    return low, high + 1


def grouped(some: Iterable[Run], *, straight: bool) -> Iterator[tuple[bool, list[Run]]]:
    """Runs to be read together, cut where they are long; with `straight`, those of large chunks
    apart, which the first item says."""
    # The last small ones come before the last large ones: they are read at the same time, and
    # those alone would keep one thread waiting for the other.
    groups = {False: _Group(GROUP_BYTES), True: _Group(LARGE_GROUP_BYTES)}
    for run in some:
        large = straight and run.chunk_bytes >= LARGE_BYTES
        for full in groups[large].add(run):
            yield large, full
    for large, group in groups.items():
        if group.runs:
            yield large, group.runs


class _Group:
    """Runs that wait until there are enough."""

    def __init__(self, most: int) -> None:
        self._most = self._room = most
        self.runs = list[Run]()

    def add(self, run: Run) -> Iterator[list[Run]]:
        """The groups that are full by a run."""
        cost, first = run.chunk_bytes + KEY_BYTES, run.first
        while first < run.stop:
            if self.runs and self._room < cost:
                yield self.runs
                self.runs, self._room = [], self._most
            stop = min(run.stop, first + max(1, self._room // cost))
            self.runs.append(run._replace(first=first, stop=stop))
            self._room -= (stop - first) * cost
            first = stop
