"""Fetching chunks: which of them a job needs, under what keys, and into which tensors they go."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, shape_of, whole
from windeck.checkpoint.format.chunks import chunk_items, memory_of, named_dtype, put, touches
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, header
from windeck.checkpoint.stores import DirectView, Store
from windeck.checkpoint.writers.ahead import in_order

__all__ = ["Job", "read_many"]

#: Bytes asked for at once.
_READ_BYTES = 1 << 20
#: And keys: each has a header, which counts for small tensors.
_READ_KEYS = 1000
#: A chunk of so many bytes is read by itself, where a store can read it to its place.
_LARGE_BYTES = 64 << 10
#: So many of them at a time for a thread, so that handing them over does not count.
_LARGE_CHUNKS = 8

#: The name data are under, the tensors to write them to, and the box these stand for (None: all).
Job: TypeAlias = tuple[str, Sequence[torch.Tensor], Box | None]


class _Chunk(NamedTuple):
    """One to be read, and where to: elements [start, stop) of a part, so many bytes.

    `memory` is that of the only target, where the elements are to lie in it in a row.
    """

    name: str
    dtype: torch.dtype
    targets: Sequence[torch.Tensor]
    box: Box
    part: Part
    number: int
    start: int
    stop: int
    bytes: int
    memory: memoryview | None


def read_many(
    store: Store,
    namespace: str,
    entries: Mapping[str, Entry],
    jobs: Iterable[Job],
) -> Iterator[tuple[str, int]]:
    """Read tensors in place; see `windeck.checkpoint.Checkpoint.read_many`."""
    reader = _Reader(store, namespace)
    straight = reader.straight is not None
    groups = _groups(_chunks(entries, jobs, straight=straight), straight=straight)
    if not straight:  # other ways hold the interpreter's lock: no use for threads
        for group in groups:
            yield from reader.read(group)
    else:
        for done, error in in_order(groups, reader.attempt):
            yield from done
            if error is not None:
                raise error


class _Reader:
    """Reads groups of chunks: large ones, where the store can, to where their elements belong."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self.straight = store if isinstance(store, DirectView) else None
        self._own = threading.local()

    def read(self, group: list[_Chunk]) -> Iterator[tuple[str, int]]:
        if self.straight is not None and group[0].bytes >= _LARGE_BYTES:
            for chunk in group:
                self._read_straight(self.straight, chunk)
                yield chunk.name, chunk.bytes
            return
        wanted = [_wanted(self._namespace, chunk) for chunk in group]
        values = self._store.get_many([key for key, _ in wanted])
        for i, (chunk, (key, label)) in enumerate(zip(group, wanted, strict=True)):
            value, values[i] = values[i], None  # let go of as soon as it is used
            _use(chunk, decode(key, value, label, length=chunk.bytes))
            yield chunk.name, chunk.bytes

    def attempt(self, group: list[_Chunk]) -> tuple[list[tuple[str, int]], Exception | None]:
        """What of a group was read before an error, and the error."""
        done: list[tuple[str, int]] = []
        try:
            done.extend(self.read(group))  # what came before an error stays
        except Exception as error:
            return done, error
        return done, None

    def _read_straight(self, store: DirectView, chunk: _Chunk) -> None:
        key, label = _wanted(self._namespace, chunk)
        body = self._scratch(chunk) if chunk.memory is None else chunk.memory
        head = bytearray(HEADER_BYTES)
        crc = store.get_into(key, memoryview(head), body)
        if crc is None or head != header(label, chunk.bytes, crc):
            _use(chunk, decode(key, store.get(key), label, length=chunk.bytes))
        elif chunk.memory is None:
            _use(chunk, body)

    def _scratch(self, chunk: _Chunk) -> memoryview:
        """Memory of this thread; what a device copies from it, it copies from pinned memory."""
        held: torch.Tensor | None = getattr(self._own, "held", None)
        if held is None or held.numel() < chunk.bytes:
            pinned = any(target.is_cuda for target in chunk.targets)
            held = self._own.held = torch.empty(chunk.bytes, dtype=torch.uint8, pin_memory=pinned)
        memory: memoryview = held[: chunk.bytes].numpy().data
        return memory


def _use(chunk: _Chunk, payload: memoryview) -> None:
    for target in chunk.targets:
        put(payload, target, chunk.box, dtype=chunk.dtype, part=chunk.part.box, start=chunk.start)


def _chunks(
    entries: Mapping[str, Entry], jobs: Iterable[Job], *, straight: bool
) -> Iterator[_Chunk]:
    """The chunks with something of the boxes in them; with `straight`, where they are to lie."""
    for name, targets, wanted in jobs:
        entry = entries[name]
        dtype, box = named_dtype(entry.dtype), whole(entry.shape) if wanted is None else wanted
        items, width = chunk_items(dtype, entry.chunk_bytes), dtype.itemsize
        for part in entry.parts:
            size = math.prod(shape_of(part.box))
            first, end = _span(part.box, box)
            place = None
            if straight and len(targets) == 1 and min(items, size) * width >= _LARGE_BYTES:
                place = memory_of(targets[0], box, dtype=dtype, part=part.box)
            for number in range(first // items, -(-end // items)):
                start, stop = number * items, min((number + 1) * items, size)
                if part.box == box or touches(part.box, start, stop, box):
                    memory = None if place is None else _stretch(*place, start, stop, width)
                    yield _Chunk(
                        name, dtype, targets, box, part, number, start, stop,
                        (stop - start) * width, memory,
                    )  # fmt: skip


def _stretch(
    memory: memoryview, moved: int, start: int, stop: int, width: int
) -> memoryview | None:
    """Where in a target's memory a part's elements lie; None where not all of them do."""
    first, end = (start + moved) * width, (stop + moved) * width
    return memory[first:end] if 0 <= first <= end <= len(memory) else None


def _wanted(namespace: str, chunk: _Chunk) -> tuple[bytes, Label]:
    """The key of a chunk, and what the value has to be."""
    generation, save, writer, item = chunk.part.source(chunk.number)
    key = keys.chunk(namespace, generation, writer, item, chunk.number)
    return key, Label(Kind.CHUNK, generation, save, item, writer, chunk.number)


def _groups(chunks: Iterator[_Chunk], *, straight: bool) -> Iterator[list[_Chunk]]:
    """Chunks to be read together; with `straight`, large ones apart from small ones."""
    large: list[_Chunk] = []
    group: list[_Chunk] = []
    held = 0
    for chunk in chunks:
        if straight and chunk.bytes >= _LARGE_BYTES:
            large.append(chunk)
            if len(large) == _LARGE_CHUNKS:
                yield large
                large = []
            continue
        if group and (held + chunk.bytes > _READ_BYTES or len(group) == _READ_KEYS):
            yield group
            group, held = [], 0
        group.append(chunk)
        held += chunk.bytes
    yield from (some for some in (large, group) if some)


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
