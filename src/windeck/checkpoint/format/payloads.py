"""Values of a checkpoint as they are stored: which there are, and their bytes, without torch.

A holding is a row of values under one writer's item, with what each has to be. All that a
generation refers to is told in holdings: to verify, copy, compare and search is to walk over them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from windeck.checkpoint.format.boxes import Box, common, pieces, shape_of, slices
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.values import Kind, Label, decode
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.columns.dtypes import item_bytes

__all__ = [
    "ExpectedKey",
    "Holding",
    "Run",
    "Value",
    "expected_keys",
    "holdings_of",
    "items_of",
    "read_box",
    "runs_of",
]
__all__ += ["values_of"]

_KINDS = {"t": Kind.CHUNK, "e": Kind.BLOCK, "i": Kind.INDEX}
#: Bytes and keys asked for at once.
_READ_BYTES, _READ_KEYS = 1 << 20, 1000
#: What a block of a table may have, and how many lines a value of its index.
_BLOCK_BYTES, _LINES = 256 << 10, 1 << 16


class Holding(NamedTuple):
    """Values [first, stop) of a writer's item, of a tensor or a table called `name`."""

    letter: str
    generation: int
    writer: int
    item: int
    first: int
    stop: int
    save: int
    name: str
    #: Bytes of a full value, and of the last one of the item; 0 where that is not known.
    full: int
    last: int
    #: How many values the item has.
    total: int

    def key(self, namespace: str, number: int) -> bytes:
        """The key of one of the values."""
        ids = f"{self.writer:08x}/{self.item:08x}/{number:08x}"
        return f"{namespace}/{self.letter}/{self.generation:016x}/{ids}".encode()

    def label(self, number: int) -> Label:
        """What its header has to say."""
        kind = _KINDS[self.letter]
        return Label(kind, self.generation, self.save, self.item, self.writer, number)

    def length(self, number: int) -> int | None:
        """Bytes of its payload, where that is known."""
        return (self.last if number == self.total - 1 else self.full) or None


class Value(NamedTuple):
    """One value that was read, or why it could not be."""

    holding: Holding
    number: int
    key: bytes
    stored: bytes
    payload: memoryview
    error: OSError | ValueError | None


class Run(NamedTuple):
    """Elements [start, stop) of a part of a tensor, and their bytes."""

    part: Part
    start: int
    stop: int
    payload: memoryview


def holdings_of(manifest: Mapping[str, Any]) -> Iterator[Holding]:
    """All that a manifest from `read_manifest` refers to.

    Raises
    ------
    ValueError
        For a dtype of unknown size.
    """
    for entry in manifest["tensors"].values():
        for part in entry.parts:
            yield from _of_part(entry, part)
    tables = manifest["tables"]
    for table in tables.values() if isinstance(tables, Mapping) else ():
        for link in table.links:
            for shard in link.shards:
                ids = link.generation, shard.writer, shard.item
                for letter, count in (("e", shard.blocks), ("i", -(-shard.blocks // _LINES))):
                    rest = (link.save, table.name, 0, 0, count)
                    if count:
                        yield Holding(letter, *ids, 0, count, *rest)


#: A key, the newest generation that refers to it, the holding that it is in and its number there.
ExpectedKey: TypeAlias = tuple[bytes, int, Holding, int]


def expected_keys(namespace: str, holdings: Iterable[tuple[int, Holding]]) -> Iterator[ExpectedKey]:
    """Each key referred to, ascending, with the newest generation that does."""
    rows = (_row(namespace, generation, holding) for generation, holding in holdings)
    last = b""
    for one in heapq.merge(*rows, key=lambda one: (one[0], -one[1])):
        if one[0] != last:
            last = one[0]
            yield one


def _row(namespace: str, generation: int, holding: Holding) -> Iterator[ExpectedKey]:
    for number in range(holding.first, holding.stop):
        yield holding.key(namespace, number), generation, holding, number


def _of_part(entry: Entry, part: Part) -> Iterator[Holding]:
    width, size, items = _width(entry), math.prod(shape_of(part.box)), items_of(entry)
    count = -(-size // items)
    sizes = items * width, (size - (count - 1) * items) * width, count
    at = 0
    for run in (*part.kept, None):
        first, stop = (run.first, min(run.stop, count)) if run else (count, count)
        if at < first:
            ids = part.generation, part.writer, part.item, at, first, part.save
            yield Holding("t", *ids, entry.name, *sizes)
        if run and first < stop:
            ids = run.generation, run.writer, run.item, first, stop, run.save
            yield Holding("t", *ids, entry.name, *sizes)
        at = stop


def _width(entry: Entry) -> int:
    width = item_bytes(entry.dtype)
    if width is None:
        raise ValueError(
            f"{entry.name} has dtype {entry.dtype!r}, expected one that this windeck knows"
        )
    return width


def values_of(view: View, namespace: str, wanted: Iterable[tuple[Holding, int]]) -> Iterator[Value]:
    """Values, some at a time, each with its payload, or with what is wrong with it.

    Parameters
    ----------
    wanted
        Holdings and numbers of values in them.

    Raises
    ------
    OSError
        When the store cannot be reached; what is damaged is told in `Value.error`.
    """
    for group in _groups(wanted):
        names = [holding.key(namespace, number) for holding, number in group]
        found = _fetched(view, names)
        for i, (holding, number) in enumerate(group):
            value, found[i] = found[i], None  # let go of as soon as it is used
            if isinstance(value, CorruptStoreError):
                yield Value(holding, number, names[i], b"", memoryview(b""), value)
                continue
            try:
                label, length = holding.label(number), holding.length(number)
                payload = decode(names[i], value, label, length=length)
            except (CorruptStoreError, ValueError) as error:
                yield Value(holding, number, names[i], b"", memoryview(b""), error)
            else:
                yield Value(holding, number, names[i], value or b"", payload, None)


def _fetched(view: View, names: list[bytes]) -> list[bytes | CorruptStoreError | None]:
    try:
        return [*view.get_many(names)]
    except CorruptStoreError as error:
        if len(names) == 1:
            return [error]
    return [_fetched(view, [name])[0] for name in names]  # which of them it is


def _groups(
    wanted: Iterable[tuple[Holding, int]],
) -> Iterator[list[tuple[Holding, int]]]:
    group: list[tuple[Holding, int]] = []
    held = 0
    for holding, number in wanted:
        size = holding.length(number) or _BLOCK_BYTES
        if group and (held + size > _READ_BYTES or len(group) == _READ_KEYS):
            yield group
            group, held = [], 0
        group.append((holding, number))
        held += size
    if group:
        yield group


def runs_of(
    view: View,
    namespace: str,
    entry: Entry,
    wanted: Callable[[Part, int], bool] | None = None,
) -> Iterator[Run]:
    """The elements of a tensor, a chunk at a time, as bytes.

    Parameters
    ----------
    wanted
        Whether a part's chunk of a number is; None: all are.

    Raises
    ------
    OSError
        `CorruptStoreError` for what is damaged or missing.
    ValueError
        For a dtype of unknown size.
    """
    width = _width(entry)
    items = items_of(entry)
    for part in entry.parts:
        numbers = (
            (holding, number)
            for holding in _of_part(entry, part)
            for number in range(holding.first, holding.stop)
            if wanted is None or wanted(part, number)
        )
        for value in values_of(view, namespace, numbers):
            if value.error is not None:
                raise value.error
            start = value.number * items
            yield Run(part, start, start + len(value.payload) // width, value.payload)


def items_of(entry: Entry) -> int:
    """Elements of a full chunk."""
    return max(1, entry.chunk_bytes // _width(entry))


def _inside(part: Part, start: int, stop: int, box: Box) -> Iterator[tuple[Box, Box, int]]:
    """What elements [start, stop) of a part have of a box: pieces, what is shared, their places."""
    shape = shape_of(part.box)
    for inner, place in pieces(shape, start, min(stop, math.prod(shape))):
        moved = _moved(inner, [first for first, _ in part.box])
        shared = common(moved, box)
        if shared is not None:
            yield moved, shared, place


def read_box(view: View, namespace: str, entry: Entry, box: Box) -> npt.NDArray[np.void]:
    """A box of a tensor: its shape, elements as raw bytes; only chunks with some of it are read.

    Raises as `runs_of` does.
    """
    raw, items = np.dtype(f"V{_width(entry)}"), items_of(entry)
    found = np.zeros(shape_of(box), raw)

    def touches(part: Part, number: int) -> bool:
        return any(_inside(part, number * items, (number + 1) * items, box))

    for run in runs_of(view, namespace, entry, touches) if found.size else ():
        held = np.frombuffer(run.payload, raw)
        for piece, shared, place in _inside(run.part, run.start, run.stop, box):
            shape = shape_of(piece)
            values = held[place - run.start :][: math.prod(shape)].reshape(shape)
            into = slices(_moved(shared, [-first for first, _ in box]))
            found[into] = values[slices(_moved(shared, [-first for first, _ in piece]))]
    return found


def _moved(box: Box, by: list[int]) -> Box:
    return tuple((first + d, end + d) for (first, end), d in zip(box, by, strict=True))
