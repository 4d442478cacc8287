"""Runs of chunks: which of them a job needs, where they go, and which are read together."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch

from windeck._util.parallel import parallel_map
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, shape_of, whole
from windeck.checkpoint.format.chunks import chunk_items, memory_of, put, touches
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, header
from windeck.checkpoint.stores import DirectView, Store
from windeck.columns.dtypes import torch_dtype

__all__ = ["Job", "Run", "grouped", "read_many", "runs"]


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
        dtype, box = torch_dtype(entry.dtype), whole(entry.shape) if wanted is None else wanted
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


def read_many(
    store: Store,
    namespace: str,
    entries: Mapping[str, Entry],
    jobs: Iterable[Job],
) -> Iterator[tuple[str, int]]:
    """Read tensors in place; see `windeck.checkpoint.Checkpoint.read_many`."""
    reader = _Reader(store, namespace)
    straight = reader.straight is not None
    groups = grouped(runs(entries, jobs, straight=straight), straight=straight)
    if not straight:  # other ways hold the interpreter's lock: no use for threads
        for group in groups:
            yield from reader.read(group)
    else:
        for done, error in parallel_map(groups, reader.attempt):
            yield from done
            if error is not None:
                raise error


class _Reader:
    """Reads groups of chunks: large ones, where the store can, to where their elements belong."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self.straight = store if isinstance(store, DirectView) else None
        self._own = threading.local()

    def read(self, group: tuple[bool, list[Run]]) -> Iterator[tuple[str, int]]:
        large, some = group
        if large and self.straight is not None:
            return self._read_straight(self.straight, some)
        return self._read_by_key(some)

    def attempt(
        self, group: tuple[bool, list[Run]]
    ) -> tuple[list[tuple[str, int]], Exception | None]:
        """What of a group was read before an error, and the error."""
        done: list[tuple[str, int]] = []
        try:
            done.extend(self.read(group))  # what came before an error stays
        except Exception as error:
            return done, error
        return done, None

    def _read_by_key(self, some: Sequence[Run]) -> Iterator[tuple[str, int]]:
        chunks = [(run, number) for run in some for number in range(run.first, run.stop)]
        wanted = [run.wanted(self._namespace, number) for run, number in chunks]
        values = self._store.get_many([key for key, _ in wanted])
        for i, ((run, number), (key, label)) in enumerate(zip(chunks, wanted, strict=True)):
            value, values[i] = values[i], None  # let go of as soon as it is used
            size = run.bytes_of(number)
            run.use(number, decode(key, value, label, length=size))
            yield run.name, size

    def _read_straight(self, store: DirectView, some: Sequence[Run]) -> Iterator[tuple[str, int]]:
        """Those with a place at once, then the others, which share this thread's memory."""
        placed, others = list[tuple[Run, int, memoryview]](), list[tuple[Run, int]]()
        for run in some:
            for number in range(run.first, run.stop):
                memory = run.memory(number)
                if memory is None:
                    others.append((run, number))
                else:
                    placed.append((run, number, memory))
        yield from self._read_into(store, placed, cached=False)
        for run, number in others:
            scratch = self._scratch(run, run.bytes_of(number))
            yield from self._read_into(store, [(run, number, scratch)], cached=True)

    def _read_into(
        self, store: DirectView, chunks: Sequence[tuple[Run, int, memoryview]], *, cached: bool
    ) -> Iterator[tuple[str, int]]:
        """Chunks, read to memory: their place, or with `cached` such as they are put from there."""
        named = [run.wanted(self._namespace, number) for run, number, _ in chunks]
        heads = [bytearray(HEADER_BYTES) for _ in chunks]
        wanted = [
            (key, memoryview(head), body)
            for (key, _), head, (_, _, body) in zip(named, heads, chunks, strict=True)
        ]
        answers = zip(store.get_many_into(wanted, cached=cached), heads, strict=True)
        for (run, number, body), (key, label), (crc, head) in zip(
            chunks, named, answers, strict=True
        ):
            size = len(body)
            if crc is None or head != header(label, size, crc):
                run.use(number, decode(key, store.get(key), label, length=size))
            elif cached:
                run.use(number, body)
            yield run.name, size

    def _scratch(self, run: Run, size: int) -> memoryview:
        """Memory of this thread; what a device copies from it, it copies from pinned memory."""
        held: torch.Tensor | None = getattr(self._own, "held", None)
        if held is None or held.numel() < size:
            pinned = any(target.is_cuda for target in run.targets)
            held = self._own.held = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        memory: memoryview = held[:size].numpy().data
        return memory
