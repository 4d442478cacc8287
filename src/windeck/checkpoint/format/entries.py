"""The tensors of a manifest: their parts, and under which save's keys each chunk lies."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from windeck.checkpoint.format.boxes import Box, overlapping, shape_of, whole
from windeck.checkpoint.format.manifests import Catalog, check_size

__all__ = ["Entry", "Part", "Run", "check_tiles", "parse_entries"]

_first = itemgetter(0)


# Named tuples: a manifest may have 100,000 of them, and they cost a third of a frozen dataclass.
class Run(NamedTuple):
    """Chunks [first, stop) of a part: they lie where an older save put them, under its numbers."""

    first: int
    stop: int
    generation: int
    save: int
    writer: int
    item: int


class Part(NamedTuple):
    """A box of a tensor, and where its chunks are.

    Attributes
    ----------
    box
        What of the tensor it is.
    writer, item
        Who of the save wrote it, and as its how-manieth tensor.
    generation, save
        Of the save.
    kept
        The chunks that were not written anew, ascending.
    """

    box: Box
    writer: int
    item: int
    generation: int
    save: int
    kept: tuple[Run, ...] = ()

    def source(self, number: int) -> tuple[int, int, int, int]:
        """The generation, save, writer and item in the key and the header of chunk `number`.

        Examples
        --------
        >>> part = Part(((0, 9),), 0, 3, 7, 77, kept=(Run(1, 3, 5, 55, 0, 2),))
        >>> part.source(0), part.source(2)
        ((7, 77, 0, 3), (5, 55, 0, 2))
        """
        place = bisect_right(self.kept, number, key=_first) - 1
        if place >= 0 and number < self.kept[place].stop:
            return self.kept[place][2:]
        return self.generation, self.save, self.writer, self.item


class Entry(NamedTuple):
    """A tensor in a manifest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    chunk_bytes: int


def parse_entries(catalog: Catalog, parts: Any, generation: int, save: int) -> dict[str, Entry]:
    """The tensors of a manifest by name, their boxes checked.

    Parameters
    ----------
    catalog
        Its first line.
    parts
        Its second line, as it was read: nothing in it is trusted.
    generation, save
        Of the save whose manifest it is.

    Raises
    ------
    TypeError, ValueError
        Naming the tensor where there is one: for parts that overlap or leave gaps, runs of kept
        chunks that cannot be.
    """
    if type(parts) is not list or len(parts) != len(catalog.tensors):
        raise ValueError(
            f"it has {len(catalog.tensors):,} tensors, expected the parts of as many, found "
            f"{str(parts)[:80]!r}"
        )
    entries: dict[str, Entry] = {}
    wholes = [whole(kind.shape) for kind in catalog.kinds]
    for (name, number), stated in zip(catalog.tensors.items(), parts, strict=True):
        (dtype, shape, chunk_bytes), outer = catalog.kinds[number], wholes[number]
        own = tuple([_part(part, name, outer, generation, save) for part in stated])
        if len(own) != 1 or own[0].box is not outer:
            check_tiles(name, shape, [part.box for part in own])
        entries[name] = Entry(name, dtype, shape, own, chunk_bytes)
    return entries


def check_tiles(name: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """ValueError unless boxes, each inside the shape, cover every element once.

    Notes
    -----
    O(boxes): the sum of the boxes' indicator functions is that of the shape exactly if the same
    holds for their mixed differences, which are +1 and -1 at corners.

    Examples
    --------
    >>> check_tiles("w", (4, 2), [((0, 1), (0, 2)), ((1, 4), (0, 1)), ((1, 4), (1, 2))])
    >>> check_tiles("w", (4,), [((0, 2),), ((1, 3),)])
    Traceback (most recent call last):
    ...
    ValueError: w has parts ((0, 2),) and ((1, 3),), which overlap
    """
    if len(boxes) == 1 and all(
        a == 0 and b == n for (a, b), n in zip(boxes[0], shape, strict=True)
    ):
        return
    held, total = sum(math.prod(shape_of(box)) for box in boxes), math.prod(shape)
    # Dimensions that no box cuts have the same corners in all of them.
    axes = [i for i, n in enumerate(shape) if any(box[i] != (0, n) for box in boxes)]
    if held == total and len(boxes) >> len(axes):
        outer = whole([shape[i] for i in axes])
        if _corners([tuple(box[i] for i in axes) for box in boxes]) == _corners([outer]):
            return
    pair = overlapping(boxes)
    if pair is not None:
        one, two = (boxes[i] for i in pair)
        raise ValueError(f"{name} has parts {one} and {two}, which overlap")
    if held != total:
        raise ValueError(
            f"{name} has {held:,} elements in its parts, expected {total:,} of shape {tuple(shape)}"
        )


def _corners(boxes: Iterable[Box]) -> dict[tuple[int, ...], int]:
    """The signed corners of boxes, added up, those that cancel left out."""
    signed: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        for ends in itertools.product((0, 1), repeat=len(box)):
            place = tuple(side[end] for side, end in zip(box, ends, strict=True))
            signed[place] += 1 if sum(ends) % 2 == 0 else -1
    return {place: sign for place, sign in signed.items() if sign}


def _part(found: Any, name: str, outer: Box, generation: int, save: int) -> Part:
    if type(found) is not list or not 2 <= len(found) <= 4:
        raise ValueError(
            f"{name} has a part {str(found)[:80]!r}, expected a writer, an item, a box and runs"
        )
    writer, item = check_size(found[0]), check_size(found[1])
    box = outer if len(found) == 2 or found[2] is None else _box(found[2], name, outer)
    if len(found) < 4:
        return Part(box, writer, item, generation, save)
    kept = tuple(Run(*map(check_size, run)) for run in found[3])
    _check_kept(kept, f"{name} {box}", math.prod(shape_of(box)), generation)
    return Part(box, writer, item, generation, save, kept)


def _box(found: Any, name: str, outer: Box) -> Box:
    box = tuple((check_size(first), check_size(end)) for first, end in found)
    if len(box) != len(outer) or any(
        not first <= end <= size for (first, end), (_, size) in zip(box, outer, strict=False)
    ):
        raise ValueError(f"{name} has a part {box}, which does not lie in {outer}")
    return outer if box == outer else box


def _check_kept(kept: Sequence[Run], name: str, elements: int, generation: int) -> None:
    end = 0
    for run in kept:
        # A chunk has an element at least, so there are no more chunks than elements.
        if not end <= run.first < run.stop <= elements:
            raise ValueError(
                f"{name} keeps chunks [{run.first}, {run.stop}), expected a range from {end} on"
            )
        if not run.generation < generation:
            raise ValueError(
                f"{name} keeps chunks of generation {run.generation}, expected one before its own, "
                f"{generation}"
            )
        end = run.stop
