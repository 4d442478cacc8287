"""Reading of tensors, or boxes of them, into existing tensors, many chunks at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch

from windeck._util.parallel import parallel_map
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, intersections, shape_of, whole
from windeck.checkpoint.format.chunks import (
    chunk_elements,
    target_memory,
    wait_for_device,
    write_chunk,
)
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, header
from windeck.checkpoint.stores import DirectView, Store
from windeck.checkpoint.stores.protocol import read_bytes
from windeck.columns.dtypes import torch_dtype

__all__ = ["Job", "ChunkRun", "group_runs", "read_many", "chunk_runs"]


#: Least bytes of a chunk that is read directly into its target, if the store can do so.
LARGE_BYTES = 64 << 10
#: Bytes of a group of large chunks for one thread: 32 chunks of the default size and their keys, so
#: that the time to hand over a group is negligible.
LARGE_GROUP_BYTES = (32 << 20) + (128 << 10)
#: Bytes of a group of other chunks: one chunk of the default size.
GROUP_BYTES = (1 << 20) + (64 << 10)
#: Bytes that a chunk counts in addition to its own: a group has at most a thousand chunks.
KEY_BYTES = 1 << 10

#: The name of the data, the tensors to write them to, and the box of these (None: all elements).
Job: TypeAlias = tuple[str, Sequence[torch.Tensor], Box | None]


class ChunkRun(NamedTuple):
    """Chunks [first, stop) of a part of a tensor, and their targets.

    Attributes
    ----------
    box
        The box of the tensor that the targets hold.
    items, size
        Elements of a full chunk, and of the part.
    place
        The result of `target_memory` for a single target that is read directly, otherwise None.
    """

    name: str
    dtype: torch.dtype
    targets: Sequence[torch.Tensor]
    box: Box
    part: TensorPart
    first: int
    stop: int
    items: int
    size: int
    place: tuple[memoryview, int] | None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the largest chunk."""
        return min(self.items, self.size) * self.dtype.itemsize

    def bytes_of(self, number: int) -> int:
        """Return the bytes of one chunk."""
        return min(self.items, self.size - number * self.items) * self.dtype.itemsize

    def wanted(self, namespace: str, number: int) -> tuple[bytes, Label]:
        """Return the key of a chunk and its expected label."""
        generation, save, writer, item = self.part.source(number)
        key = keys.chunk(namespace, generation, writer, item, number)
        return key, Label(Kind.CHUNK, generation, save, item, writer, number)

    def memory(self, number: int) -> memoryview | None:
        """Return the memory of a chunk in the target, or None unless all of it is there."""
        if self.place is None:
            return None
        memory, offset = self.place
        start, width = number * self.items, self.dtype.itemsize
        first = (start + offset) * width
        end = (min(start + self.items, self.size) + offset) * width
        return memory[first:end] if 0 <= first <= end <= len(memory) else None

    def write(self, number: int, payload: memoryview) -> None:
        """Copy the elements of a chunk into the targets."""
        start = number * self.items
        for target in self.targets:
            write_chunk(
                payload, target, self.box, dtype=self.dtype, part=self.part.box, start=start
            )


def chunk_runs(
    entries: Mapping[str, TensorEntry], jobs: Iterable[Job], *, direct: bool
) -> Iterator[ChunkRun]:
    """Iterate over the chunks that intersect the boxes; with `direct`, with their `place`."""
    for name, targets, wanted in jobs:
        for target in targets:
            wait_for_device(target.device)
        entry = entries[name]
        dtype, box = torch_dtype(entry.dtype), whole(entry.shape) if wanted is None else wanted
        items = chunk_elements(dtype, entry.chunk_bytes)
        for part in entry.parts:
            size = math.prod(shape_of(part.box))
            place = None
            if direct and len(targets) == 1 and min(items, size) * dtype.itemsize >= LARGE_BYTES:
                place = target_memory(targets[0], box, dtype=dtype, part=part.box)
            for first, stop in _intersecting(part.box, box, items, size):
                yield ChunkRun(name, dtype, targets, box, part, first, stop, items, size, place)


def _intersecting(part: Box, box: Box, items: int, size: int) -> Iterator[tuple[int, int]]:
    """Iterate over ranges of the numbers of the chunks of a part that intersect a box."""
    first, end = _element_range(part, box)
    numbers = range(first // items, -(-end // items))
    if part == box:
        if numbers:
            yield numbers.start, numbers.stop
        return

    def intersects(number: int) -> bool:
        return any(intersections(part, number * items, min((number + 1) * items, size), box))

    for wanted, some in groupby(numbers, intersects):
        if wanted:
            found = list(some)
            yield found[0], found[-1] + 1


def _element_range(part: Box, box: Box) -> tuple[int, int]:
    """Return the smallest range of elements of a part that has all that are in a box."""
    low = high = 0
    for (first, end), (wanted, wanted_end) in zip(part, box, strict=True):
        a, b = max(first, wanted), min(end, wanted_end)
        if a >= b:
            return 0, 0
        low = low * (end - first) + a - first
        high = high * (end - first) + b - 1 - first
    return low, high + 1


def group_runs(
    some: Iterable[ChunkRun], *, direct: bool, group_bytes: int = GROUP_BYTES
) -> Iterator[tuple[bool, list[ChunkRun]]]:
    """Group and split runs into groups that are read together, each with a flag.

    The flag is True for groups of large chunks, which are read directly if `direct` is True.
    `group_bytes` are those of other groups.
    """
    # The last small chunks come before the last large ones: both are read at the same time, and a
    # small group at the end would leave one of the threads idle.
    groups = {False: _RunGroup(group_bytes), True: _RunGroup(LARGE_GROUP_BYTES)}
    for run in some:
        large = direct and run.chunk_bytes >= LARGE_BYTES
        for full in groups[large].add(run):
            yield large, full
    for large, group in groups.items():
        if group.runs:
            yield large, group.runs


class _RunGroup:
    """Collects runs until they have enough bytes for a group."""

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self.runs = list[ChunkRun]()

    def add(self, run: ChunkRun) -> Iterator[list[ChunkRun]]:
        """Add a run, and iterate over the groups that it fills."""
        cost, first = run.chunk_bytes + KEY_BYTES, run.first
        while first < run.stop:
            if self.runs and self._free < cost:
                yield self.runs
                self.runs, self._free = [], self._limit
            stop = min(run.stop, first + max(1, self._free // cost))
            self.runs.append(run._replace(first=first, stop=stop))
            self._free -= (stop - first) * cost
            first = stop


def read_many(
    store: Store,
    namespace: str,
    entries: Mapping[str, TensorEntry],
    jobs: Iterable[Job],
) -> Iterator[tuple[str, int]]:
    """Read tensors into existing ones; see `windeck.checkpoint.Checkpoint.read_many`."""
    reader = _GroupReader(store, namespace)
    direct = reader.direct is not None
    group_bytes = max(GROUP_BYTES, read_bytes(store))
    runs = chunk_runs(entries, jobs, direct=direct)
    groups = group_runs(runs, direct=direct, group_bytes=group_bytes)
    # Reads through `get_many` hold the interpreter's lock: threads do not help, but for requests.
    if not direct and group_bytes == GROUP_BYTES:
        for group in groups:
            yield from reader.read(group)
    else:
        for done, error in parallel_map(groups, reader.attempt):
            yield from done
            if error is not None:
                raise error


class _GroupReader:
    """Reads groups of chunks; large ones directly into the targets, if the store can do so."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self.direct = store if isinstance(store, DirectView) else None
        self._own = threading.local()

    def read(self, group: tuple[bool, list[ChunkRun]]) -> Iterator[tuple[str, int]]:
        large, some = group
        if large and self.direct is not None:
            return self._read_direct(self.direct, some)
        return self._read_by_key(
            [(run, number) for run in some for number in range(run.first, run.stop)]
        )

    def attempt(
        self, group: tuple[bool, list[ChunkRun]]
    ) -> tuple[list[tuple[str, int]], Exception | None]:
        """Read a group; return the results before an error, and the error."""
        done: list[tuple[str, int]] = []
        try:
            done.extend(self.read(group))  # results before an error stay
        except Exception as error:
            return done, error
        return done, None

    def _read_by_key(self, chunks: Sequence[tuple[ChunkRun, int]]) -> Iterator[tuple[str, int]]:
        wanted = [run.wanted(self._namespace, number) for run, number in chunks]
        values = self._store.get_many([key for key, _ in wanted])
        for i, ((run, number), (key, label)) in enumerate(zip(chunks, wanted, strict=True)):
            value, values[i] = values[i], None  # release its memory after use
            size = run.bytes_of(number)
            run.write(number, decode(key, value, label, length=size))
            yield run.name, size

    def _read_direct(
        self, store: DirectView, some: Sequence[ChunkRun]
    ) -> Iterator[tuple[str, int]]:
        """Read the chunks with a place together, then the others, one by one through a buffer."""
        placed, others = list[tuple[ChunkRun, int, memoryview]](), list[tuple[ChunkRun, int]]()
        for run in some:
            for number in range(run.first, run.stop):
                memory = run.memory(number)
                if memory is None:
                    others.append((run, number))
                else:
                    placed.append((run, number, memory))
        yield from self._read_into(store, placed, cached=False)
        if read_bytes(store) > GROUP_BYTES:  # one call for each would be one round trip for each
            yield from self._read_by_key(others)
            return
        for run, number in others:
            buffer = self._buffer(run, run.bytes_of(number))
            yield from self._read_into(store, [(run, number, buffer)], cached=True)

    def _read_into(
        self, store: DirectView, chunks: Sequence[tuple[ChunkRun, int, memoryview]], *, cached: bool
    ) -> Iterator[tuple[str, int]]:
        """Read chunks into memory: their place or, with `cached`, a buffer to copy them from."""
        named = [run.wanted(self._namespace, number) for run, number, _ in chunks]
        heads = [bytearray(HEADER_BYTES) for _ in chunks]
        wanted = [
            (key, memoryview(head), body)
            for (key, _), head, (_, _, body) in zip(named, heads, chunks, strict=True)
        ]
        results = zip(store.get_many_into(wanted, cached=cached), heads, strict=True)
        for (run, number, body), (key, label), (crc, head) in zip(
            chunks, named, results, strict=True
        ):
            size = len(body)
            if crc is None or head != header(label, size, crc):
                run.write(number, decode(key, store.get(key), label, length=size))
            elif cached:
                run.write(number, body)
            yield run.name, size

    def _buffer(self, run: ChunkRun, size: int) -> memoryview:
        """Return a buffer of this thread, pinned if a target is on a device."""
        held: torch.Tensor | None = getattr(self._own, "held", None)
        if held is None or held.numel() < size:
            pinned = any(target.is_cuda for target in run.targets)
            held = self._own.held = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        memory: memoryview = held[:size].numpy().data
        return memory
