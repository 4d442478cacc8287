"""Reading of tensors, or boxes of them, into existing tensors, many chunks at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch

from windeck._util.parallel import parallel_map
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, intersections, shape_of, whole
from windeck.checkpoint.format.chunks import chunk_elements, wait_for_device, write_chunk
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.format.values import KEY_BYTES, Kind, Label, Wanted, read_payloads
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.protocol import READ_BYTES, read_bytes
from windeck.columns.dtypes import torch_dtype

__all__ = ["Job", "ChunkRange", "split_ranges", "read_many", "chunk_ranges"]


#: Bytes of chunks for one thread: 32 chunks of the default size and their keys, so that the time to
#: hand over a portion is negligible.
PORTION_BYTES = (32 << 20) + (128 << 10)

#: Bytes of freed memory that stay with the process during reads.
KEPT_BYTES = 16 << 20

#: The name of the data, the tensors to write them to, and the box of these (None: all elements).
Job: TypeAlias = tuple[str, Sequence[torch.Tensor], Box | None]


class ChunkRange(NamedTuple):
    """Chunks [first, stop) of a part of a tensor, and their targets.

    Attributes
    ----------
    box
        The box of the tensor that the targets hold.
    items, size
        Elements of a full chunk, and of the part.
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

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the largest chunk."""
        return min(self.items, self.size) * self.dtype.itemsize

    def bytes_of(self, number: int) -> int:
        """Return the bytes of one chunk."""
        return min(self.items, self.size - number * self.items) * self.dtype.itemsize

    def wanted(self, namespace: str, number: int) -> Wanted:
        """Return the key of a chunk, its expected label, and its bytes."""
        generation, save, writer, item = self.part.source(number)
        key = keys.chunk(namespace, generation, writer, item, number)
        label = Label(Kind.CHUNK, generation, save, item, writer, number)
        return key, label, self.bytes_of(number)

    def write(self, number: int, payload: memoryview) -> None:
        """Copy the elements of a chunk into the targets."""
        start = number * self.items
        for target in self.targets:
            write_chunk(
                payload, target, self.box, dtype=self.dtype, part=self.part.box, start=start
            )


def chunk_ranges(entries: Mapping[str, TensorEntry], jobs: Iterable[Job]) -> Iterator[ChunkRange]:
    """Iterate over the chunks that intersect the boxes."""
    for name, targets, wanted in jobs:
        for target in targets:
            wait_for_device(target.device)
        entry = entries[name]
        dtype, box = torch_dtype(entry.dtype), whole(entry.shape) if wanted is None else wanted
        items = chunk_elements(dtype, entry.chunk_bytes)
        for part in entry.parts:
            size = math.prod(shape_of(part.box))
            for first, stop in _intersecting(part.box, box, items, size):
                yield ChunkRange(name, dtype, targets, box, part, first, stop, items, size)


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


def split_ranges(some: Iterable[ChunkRange]) -> Iterator[list[ChunkRange]]:
    """Collect and split ranges into portions of `PORTION_BYTES`, each read by one thread."""
    portion, free = list[ChunkRange](), PORTION_BYTES
    for span in some:
        cost, first = span.chunk_bytes + KEY_BYTES, span.first
        while first < span.stop:
            if portion and free < cost:
                yield portion
                portion, free = [], PORTION_BYTES
            stop = min(span.stop, first + max(1, free // cost))
            portion.append(span._replace(first=first, stop=stop))
            free -= (stop - first) * cost
            first = stop
    if portion:
        yield portion


def read_many(
    store: Store,
    namespace: str,
    entries: Mapping[str, TensorEntry],
    jobs: Iterable[Job],
) -> Iterator[tuple[str, int]]:
    """Read tensors into existing ones; see `windeck.checkpoint.Checkpoint.read_many`."""
    portions = split_ranges(chunk_ranges(entries, jobs))
    _keep_freed_memory()
    # Where `get_many` takes most of the time, with the interpreter's lock, threads do not help.
    if not hasattr(store, "get_unchecked") and read_bytes(store) == READ_BYTES:
        for portion in portions:
            yield from _read_portion(store, namespace, portion)
        return
    for done, error in parallel_map(portions, partial(_attempt, store, namespace)):
        yield from done
        if error is not None:
            raise error


def _keep_freed_memory() -> None:
    """Let the C library use the memory of a chunk again for the next one.

    glibc returns freed memory beyond a limit to the system: twice the largest block that was freed
    so far. With a lower limit than the chunks in use, each gets new pages from the system, which
    takes longer than reading it.
    """
    bytearray(KEPT_BYTES // 2)  # from the system, untouched, and freed at once


def _attempt(
    store: Store, namespace: str, portion: Sequence[ChunkRange]
) -> tuple[list[tuple[str, int]], Exception | None]:
    """Read a portion; return the results before an error, and the error."""
    done: list[tuple[str, int]] = []
    try:
        done.extend(_read_portion(store, namespace, portion))  # results before an error stay
    except Exception as error:
        return done, error
    return done, None


def _read_portion(
    store: Store, namespace: str, portion: Sequence[ChunkRange]
) -> Iterator[tuple[str, int]]:
    chunks = [(span, number) for span in portion for number in range(span.first, span.stop)]
    wanted = (span.wanted(namespace, number) for span, number in chunks)
    for (span, number), payload in zip(chunks, read_payloads(store, wanted), strict=True):
        span.write(number, payload)
        yield span.name, len(payload)
