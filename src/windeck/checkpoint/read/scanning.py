"""Sequential reading of the values that a manifest refers to, without torch.

Verifying, copying, comparing and searching iterate over the same ranges of values.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box, intersections, shape_of, shift_back, slices
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.format.table_blocks import INDEX_LINES, VALUE_BYTES
from windeck.checkpoint.format.values import Kind, Label, decode
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.checkpoint.stores.protocol import read_bytes
from windeck.columns.dtypes import item_bytes

__all__ = ["ElementRange", "ExpectedKey", "StoredValue", "ValueRange", "chunk_elements"]
__all__ += ["expected_keys", "read_box", "read_chunks", "read_values", "referenced_ranges"]

_KINDS = {"t": Kind.CHUNK, "e": Kind.BLOCK, "i": Kind.INDEX}
#: Keys of one read.
_READ_KEYS = 1000


class ValueRange(NamedTuple):
    """Values [first, stop) of one item of a writer: a part of the tensor or table `name`."""

    letter: str
    generation: int
    writer: int
    item: int
    first: int
    stop: int
    save: int
    name: str
    #: Bytes of a full value, and of the last value of the item; 0 if unknown.
    full: int
    last: int
    #: Number of values of the item.
    total: int

    def key(self, namespace: str, number: int) -> bytes:
        """Return the key of a value."""
        ids = self.writer, self.item, number
        return keys.make(namespace, self.letter, self.generation, *ids)

    def label(self, number: int) -> Label:
        """Return the expected label of a value."""
        kind = _KINDS[self.letter]
        return Label(kind, self.generation, self.save, self.item, self.writer, number)

    def length(self, number: int) -> int | None:
        """Return the bytes of the payload of a value, or None if unknown."""
        return (self.last if number == self.total - 1 else self.full) or None


class StoredValue(NamedTuple):
    """A value that was read, or the error of reading it."""

    range: ValueRange
    number: int
    key: bytes
    stored: bytes
    payload: memoryview
    error: OSError | ValueError | None


class ElementRange(NamedTuple):
    """Bytes of the elements [start, stop) of a part of a tensor."""

    part: TensorPart
    start: int
    stop: int
    payload: memoryview


def referenced_ranges(manifest: Mapping[str, Any]) -> Iterator[ValueRange]:
    """Iterate over all values that a manifest of `read_manifest` refers to.

    Raises
    ------
    ValueError
        For a dtype of unknown size.
    """
    for entry in manifest["tensors"].values():
        for part in entry.parts:
            yield from _part_ranges(entry, part)
    for table in manifest["tables"].values():
        for link in table.links:
            for shard in link.shards:
                ids = link.generation, shard.writer, shard.item
                for letter, count in (("e", shard.blocks), ("i", -(-shard.blocks // INDEX_LINES))):
                    rest = (link.save, table.name, 0, 0, count)
                    if count:
                        yield ValueRange(letter, *ids, 0, count, *rest)


#: A key, the newest generation that refers to it, its range and its number there.
ExpectedKey: TypeAlias = tuple[bytes, int, ValueRange, int]


def expected_keys(
    namespace: str, ranges: Iterable[tuple[int, ValueRange]]
) -> Iterator[ExpectedKey]:
    """Iterate over the keys of some ranges, ascending, each with the newest generation."""
    sequences = (_range_keys(namespace, generation, values) for generation, values in ranges)
    last = b""
    for found in heapq.merge(*sequences, key=lambda found: (found[0], -found[1])):
        if found[0] != last:
            last = found[0]
            yield found


def _range_keys(namespace: str, generation: int, values: ValueRange) -> Iterator[ExpectedKey]:
    for number in range(values.first, values.stop):
        yield values.key(namespace, number), generation, values, number


def _part_ranges(entry: TensorEntry, part: TensorPart) -> Iterator[ValueRange]:
    width, size, items = _width(entry), math.prod(shape_of(part.box)), chunk_elements(entry)
    count = -(-size // items)
    sizes = items * width, (size - (count - 1) * items) * width, count
    at = 0
    for span in (*part.kept, None):
        first, stop = (span.first, min(span.stop, count)) if span else (count, count)
        if at < first:
            ids = part.generation, part.writer, part.item, at, first, part.save
            yield ValueRange("t", *ids, entry.name, *sizes)
        if span and first < stop:
            ids = span.generation, span.writer, span.item, first, stop, span.save
            yield ValueRange("t", *ids, entry.name, *sizes)
        at = stop


def _width(entry: TensorEntry) -> int:
    width = item_bytes(entry.dtype)
    if width is None:
        raise ValueError(
            f"{entry.name} has dtype {entry.dtype!r}, expected one that this windeck knows"
        )
    return width


def read_values(
    view: View, namespace: str, wanted: Iterable[tuple[ValueRange, int]]
) -> Iterator[StoredValue]:
    """Read values in batches, each with its payload or its error.

    Parameters
    ----------
    wanted
        Ranges, and the numbers of the values in them.

    Raises
    ------
    OSError
        When the store cannot be reached; `StoredValue.error` names what is damaged.
    """
    for batch in _batches(wanted, read_bytes(view)):
        names = [values.key(namespace, number) for values, number in batch]
        found = _get_many(view, names)
        for i, (values, number) in enumerate(batch):
            value, found[i] = found[i], None  # release its memory after use
            if isinstance(value, CorruptStoreError):
                yield StoredValue(values, number, names[i], b"", memoryview(b""), value)
                continue
            try:
                label, length = values.label(number), values.length(number)
                payload = decode(names[i], value, label, length=length)
            except (CorruptStoreError, ValueError) as error:
                yield StoredValue(values, number, names[i], b"", memoryview(b""), error)
            else:
                yield StoredValue(values, number, names[i], value or b"", payload, None)


def _get_many(view: View, names: list[bytes]) -> list[bytes | CorruptStoreError | None]:
    try:
        return [*view.get_many(names)]
    except CorruptStoreError as error:
        if len(names) == 1:
            return [error]
    return [_get_many(view, [name])[0] for name in names]  # find the damaged one


def _batches(
    wanted: Iterable[tuple[ValueRange, int]], limit: int
) -> Iterator[list[tuple[ValueRange, int]]]:
    batch: list[tuple[ValueRange, int]] = []
    held = 0
    for values, number in wanted:
        size = values.length(number) or VALUE_BYTES
        if batch and (held + size > limit or len(batch) == _READ_KEYS):
            yield batch
            batch, held = [], 0
        batch.append((values, number))
        held += size
    if batch:
        yield batch


def read_chunks(
    view: View,
    namespace: str,
    entry: TensorEntry,
    wanted: Callable[[TensorPart, int], bool] | None = None,
) -> Iterator[ElementRange]:
    """Read the chunks of a tensor as bytes.

    Parameters
    ----------
    wanted
        A function of a part and the number of a chunk that selects chunks; None selects all.

    Raises
    ------
    OSError
        When the store cannot be reached; `CorruptStoreError` for damaged or missing values.
    ValueError
        For a dtype of unknown size.
    """
    width = _width(entry)
    items = chunk_elements(entry)
    for part in entry.parts:
        numbers = (
            (values, number)
            for values in _part_ranges(entry, part)
            for number in range(values.first, values.stop)
            if wanted is None or wanted(part, number)
        )
        for value in read_values(view, namespace, numbers):
            if value.error is not None:
                raise value.error
            start = value.number * items
            yield ElementRange(part, start, start + len(value.payload) // width, value.payload)


def chunk_elements(entry: TensorEntry) -> int:
    """Return the number of elements of a full chunk."""
    return max(1, entry.chunk_bytes // _width(entry))


def read_box(view: View, namespace: str, entry: TensorEntry, box: Box) -> npt.NDArray[np.void]:
    """Read a box of a tensor as an array of raw elements; only chunks that intersect it are read.

    Errors are those of `read_chunks`.
    """
    raw, items = np.dtype(f"V{_width(entry)}"), chunk_elements(entry)
    found = np.zeros(shape_of(box), raw)

    def touches(part: TensorPart, number: int) -> bool:
        stop = min((number + 1) * items, math.prod(shape_of(part.box)))
        return any(intersections(part.box, number * items, stop, box))

    for span in read_chunks(view, namespace, entry, touches) if found.size else ():
        held = np.frombuffer(span.payload, raw)
        for inner, shared, position in intersections(span.part.box, span.start, span.stop, box):
            shape = shape_of(inner)
            values = held[position - span.start :][: math.prod(shape)].reshape(shape)
            found[slices(shift_back(shared, box))] = values[slices(shift_back(shared, inner))]
    return found
