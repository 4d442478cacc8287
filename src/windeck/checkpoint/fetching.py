"""Fetching chunks: which of them a job needs, under what keys, and into which tensors they go."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import torch

from windeck.checkpoint import keys
from windeck.checkpoint.ahead import in_order
from windeck.checkpoint.boxes import Box, shape_of, whole
from windeck.checkpoint.chunks import chunk_items, named_dtype, place, put, touches
from windeck.checkpoint.entries import Entry, Part
from windeck.checkpoint.stores import DirectView, Store
from windeck.checkpoint.values import HEADER_BYTES, Kind, Label, decode, header

__all__ = ["Job", "read_many"]

#: Bytes asked for at once.
_READ_BYTES = 1 << 20
#: And keys: each has a header, which counts for small tensors.
_READ_KEYS = 1000
#: A chunk of so many bytes is read by itself, where a store can read it to its place.
_LARGE_BYTES = 64 << 10

#: The name data are under, the tensors to write them to, and the box these stand for (None: all).
Job: TypeAlias = tuple[str, Sequence[torch.Tensor], Box | None]


@dataclass(frozen=True)
class _Chunk:
    """One to be read, and where to: elements [start, stop) of a part."""

    name: str
    dtype: torch.dtype
    targets: Sequence[torch.Tensor]
    box: Box
    part: Part
    number: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        return (self.stop - self.start) * self.dtype.itemsize


def read_many(
    store: Store,
    namespace: str,
    entries: Mapping[str, Entry],
    jobs: Iterable[Job],
) -> Iterator[tuple[str, int]]:
    """Read tensors in place; see `windeck.checkpoint.Checkpoint.read_many`."""
    direct = store if isinstance(store, DirectView) else None
    chunks = _chunks(entries, jobs)
    for large, run in groupby(chunks, lambda chunk: chunk.bytes >= _LARGE_BYTES):
        if direct is not None and large:
            reader = _Straight(direct, namespace)
            for chunk in in_order(run, reader.read):
                yield chunk.name, chunk.bytes
        else:
            yield from _read_groups(store, namespace, run)


def _read_groups(
    store: Store, namespace: str, chunks: Iterator[_Chunk]
) -> Iterator[tuple[str, int]]:
    """Read chunks by `get_many`."""
    for group in _groups(chunks):
        names = [_key(namespace, chunk) for chunk in group]
        values = store.get_many(names)
        for i, chunk in enumerate(group):
            value, values[i] = values[i], None  # let go of as soon as it is used
            _use(chunk, decode(names[i], value, _label(chunk), length=chunk.bytes))
            yield chunk.name, chunk.bytes


class _Straight:
    """Reads large chunks to where their elements belong, or to memory that is used again."""

    def __init__(self, store: DirectView, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self._own = threading.local()

    def read(self, chunk: _Chunk) -> _Chunk:
        key, label = _key(self._namespace, chunk), _label(chunk)
        place = self._place(chunk)
        body = self._scratch(chunk) if place is None else place
        head = bytearray(HEADER_BYTES)
        crc = self._store.get_into(key, memoryview(head), body)
        if crc is None or head != header(label, chunk.bytes, crc):
            _use(chunk, decode(key, self._store.get(key), label, length=chunk.bytes))
        elif place is None:
            _use(chunk, body)
        return chunk

    def _place(self, chunk: _Chunk) -> memoryview | None:
        """The memory of the only target, when the chunk's elements are to lie there in a row."""
        if len(chunk.targets) != 1:
            return None
        target, part = chunk.targets[0], chunk.part.box
        return place(
            target, chunk.box, dtype=chunk.dtype, part=part, start=chunk.start, stop=chunk.stop
        )

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


def _chunks(entries: Mapping[str, Entry], jobs: Iterable[Job]) -> Iterator[_Chunk]:
    """The chunks with something of the boxes in them."""
    for name, targets, wanted in jobs:
        entry = entries[name]
        dtype, box = named_dtype(entry.dtype), whole(entry.shape) if wanted is None else wanted
        items = chunk_items(dtype, entry.chunk_bytes)
        for part in entry.parts:
            size = math.prod(shape_of(part.box))
            first, end = _span(part.box, box)
            for number in range(first // items, -(-end // items)):
                start, stop = number * items, min((number + 1) * items, size)
                if part.box == box or touches(part.box, start, stop, box):
                    yield _Chunk(name, dtype, targets, box, part, number, start, stop)


def _key(namespace: str, chunk: _Chunk) -> bytes:
    generation, _, writer, item = chunk.part.source(chunk.number)
    return keys.chunk(namespace, generation, writer, item, chunk.number)


def _label(chunk: _Chunk) -> Label:
    generation, save, writer, item = chunk.part.source(chunk.number)
    return Label(Kind.CHUNK, generation, save, item, writer, chunk.number)


def _groups(chunks: Iterator[_Chunk]) -> Iterator[list[_Chunk]]:
    group: list[_Chunk] = []
    held = 0
    for chunk in chunks:
        if group and (held + chunk.bytes > _READ_BYTES or len(group) == _READ_KEYS):
            yield group
            group, held = [], 0
        group.append(chunk)
        held += chunk.bytes
    if group:
        yield group


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
