"""The tensors of a manifest: their parts, and the save that wrote each chunk."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from windeck.checkpoint.format.boxes import Box, find_overlap, shape_of, whole
from windeck.checkpoint.format.catalogs import Catalog, check_size

__all__ = ["KeptChunks", "TensorEntry", "TensorPart", "check_tiling", "parse_entries"]

_first = itemgetter(0)


# Named tuples: a manifest may have 100,000 of them, and they cost a third of a frozen dataclass.
class KeptChunks(NamedTuple):
    """Chunks [first, stop) of a part that an older save wrote, under the numbers of that save."""

    first: int
    stop: int
    generation: int
    save: int
    writer: int
    item: int


class TensorPart(NamedTuple):
    """A part of a tensor that one writer wrote.

    Attributes
    ----------
    box
        The box of the tensor.
    writer, item
        The number of the writer, and the number of the tensor among those of this writer.
    generation, save
        The save that this part belongs to.
    kept
        Ranges of chunks that older saves wrote, ascending.
    """

    box: Box
    writer: int
    item: int
    generation: int
    save: int
    kept: tuple[KeptChunks, ...] = ()

    def source(self, number: int) -> tuple[int, int, int, int]:
        """Return generation, save, writer and item in key and header of chunk `number`.

        Examples
        --------
        >>> part = TensorPart(((0, 9),), 0, 3, 7, 77, kept=(KeptChunks(1, 3, 5, 55, 0, 2),))
        >>> part.source(0), part.source(2)
        ((7, 77, 0, 3), (5, 55, 0, 2))
        """
        place = bisect_right(self.kept, number, key=_first) - 1
        if place >= 0 and number < self.kept[place].stop:
            return self.kept[place][2:]
        return self.generation, self.save, self.writer, self.item


class TensorEntry(NamedTuple):
    """A tensor in a manifest."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[TensorPart, ...]
    chunk_bytes: int


def parse_entries(
    catalog: Catalog, parts: Any, generation: int, save: int
) -> dict[str, TensorEntry]:
    """Parse the tensors of a manifest, by name, and check their boxes.

    Parameters
    ----------
    catalog
        The first line of the manifest.
    parts
        The second line, as parsed JSON, which is checked here.
    generation, save
        The save whose manifest it is.

    Raises
    ------
    TypeError, ValueError
        For parts that overlap or leave gaps, and for invalid ranges of kept chunks. The message
        names the tensor.
    """
    if type(parts) is not list or len(parts) != len(catalog.tensors):
        raise ValueError(
            f"expected parts of {len(catalog.tensors):,} tensors, found {str(parts)[:80]!r}"
        )
    entries: dict[str, TensorEntry] = {}
    wholes = [whole(kind.shape) for kind in catalog.kinds]
    for (name, number), stored in zip(catalog.tensors.items(), parts, strict=True):
        (dtype, shape, chunk_bytes), outer = catalog.kinds[number], wholes[number]
        own = tuple([_parse_part(part, name, outer, generation, save) for part in stored])
        if len(own) != 1 or own[0].box is not outer:
            check_tiling(name, shape, [part.box for part in own])
        entries[name] = TensorEntry(name, dtype, shape, own, chunk_bytes)
    return entries


def check_tiling(name: str, shape: Sequence[int], boxes: Sequence[Box]) -> None:
    """Raise ValueError unless boxes, each inside the shape, cover every element exactly once.

    Notes
    -----
    O(boxes). The sum of the indicator functions of the boxes equals the indicator function of the
    shape if and only if their mixed differences are equal, which are +1 and -1 at corners.

    Examples
    --------
    >>> check_tiling("w", (4, 2), [((0, 1), (0, 2)), ((1, 4), (0, 1)), ((1, 4), (1, 2))])
    >>> check_tiling("w", (4,), [((0, 2),), ((1, 3),)])
    Traceback (most recent call last):
    ...
    ValueError: w has parts ((0, 2),) and ((1, 3),), which overlap
    """
    if len(boxes) == 1 and all(
        a == 0 and b == n for (a, b), n in zip(boxes[0], shape, strict=True)
    ):
        return
    held, total = sum(math.prod(shape_of(box)) for box in boxes), math.prod(shape)
    # All boxes have the same corners in a dimension that no box cuts.
    axes = [i for i, n in enumerate(shape) if any(box[i] != (0, n) for box in boxes)]
    if held == total and len(boxes) >> len(axes):
        outer = whole([shape[i] for i in axes])
        if _corners([tuple(box[i] for i in axes) for box in boxes]) == _corners([outer]):
            return
    pair = find_overlap(boxes)
    if pair is not None:
        one, two = (boxes[i] for i in pair)
        raise ValueError(f"{name} has parts {one} and {two}, which overlap")
    if held != total:
        raise ValueError(
            f"{name} has {held:,} elements in its parts, expected {total:,} of shape {tuple(shape)}"
        )


def _corners(boxes: Iterable[Box]) -> dict[tuple[int, ...], int]:
    """Return the sums of the signed corners of boxes, without those that cancel."""
    signed: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        for ends in itertools.product((0, 1), repeat=len(box)):
            place = tuple(side[end] for side, end in zip(box, ends, strict=True))
            signed[place] += 1 if sum(ends) % 2 == 0 else -1
    return {place: sign for place, sign in signed.items() if sign}


def _parse_part(found: Any, name: str, outer: Box, generation: int, save: int) -> TensorPart:
    if type(found) is not list or not 2 <= len(found) <= 4:
        raise ValueError(
            f"{name} has a part {str(found)[:80]!r}, expected a writer, an item, a box and ranges"
        )
    writer, item = check_size(found[0]), check_size(found[1])
    box = outer if len(found) == 2 or found[2] is None else _parse_box(found[2], name, outer)
    if len(found) < 4:
        return TensorPart(box, writer, item, generation, save)
    kept = tuple(KeptChunks(*map(check_size, span)) for span in found[3])
    _check_kept(kept, f"{name} {box}", math.prod(shape_of(box)), generation)
    return TensorPart(box, writer, item, generation, save, kept)


def _parse_box(found: Any, name: str, outer: Box) -> Box:
    box = tuple((check_size(first), check_size(end)) for first, end in found)
    if len(box) != len(outer) or any(
        not first <= end <= size for (first, end), (_, size) in zip(box, outer, strict=False)
    ):
        raise ValueError(f"{name} has a part {box}, expected one inside {outer}")
    return outer if box == outer else box


def _check_kept(kept: Sequence[KeptChunks], name: str, elements: int, generation: int) -> None:
    end = 0
    for span in kept:
        # A chunk has at least one element, so there are at most as many chunks as elements.
        if not end <= span.first < span.stop <= elements:
            raise ValueError(
                f"{name} refers to chunks [{span.first}, {span.stop}), expected a range from "
                f"{end} on"
            )
        if not span.generation < generation:
            raise ValueError(
                f"{name} refers to chunks of generation {span.generation}, expected one before "
                f"{generation}"
            )
        end = span.stop
