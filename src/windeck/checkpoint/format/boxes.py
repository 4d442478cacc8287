"""Boxes: an index range in each dimension of a tensor, their arithmetic, and `Partition`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
from windeck._util.options import explain_options

__all__ = ["Box", "Partition", "boxes_in_range", "find_gap", "find_overlap", "intersection"]
__all__ += ["intersections", "shape_of", "shift", "shift_back", "slices", "whole"]

#: (first, end) in each dimension. A box without dimensions has one element.
Box: TypeAlias = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements of a shape."""
    return tuple((0, size) for size in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(end - first for first, end in box)


def slices(box: Box) -> tuple[slice, ...]:
    """Return the index that selects a box of an array."""
    return tuple(slice(first, end) for first, end in box)


def intersection(a: Box, b: Box) -> Box | None:
    """Return the box of all elements in both boxes, or None if there are none.

    Examples
    --------
    >>> intersection(((0, 4), (2, 5)), ((3, 9), (0, 3)))
    ((3, 4), (2, 3))
    """
    shared = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return shared if all(first < end for first, end in shared) else None


def boxes_in_range(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[Box, int]]:
    """Iterate over boxes of the elements [start, stop) of an array, in row-major order.

    Parameters
    ----------
    shape
        Shape of the array, without sizes of 0.
    start, stop
        Places in the flattened array.

    Yields
    ------
    box, place
        A box, and the place of its first element. At most two boxes for each dimension.

    Examples
    --------
    >>> list(boxes_in_range((3, 4), 2, 9))
    [(((0, 1), (2, 4)), 2), (((1, 2), (0, 4)), 4), (((2, 3), (0, 1)), 8)]
    """
    if start >= stop:
        return
    if not shape:
        yield (), start
        return
    inner = math.prod(shape[1:])
    first, skipped = divmod(start, inner)
    last, rest = divmod(stop, inner)
    if first == last:
        yield from _boxes_in_row(shape, first, skipped, rest)
        return
    if skipped:
        yield from _boxes_in_row(shape, first, skipped, inner)
        first += 1
    if first < last:
        yield ((first, last), *whole(shape[1:])), first * inner
    yield from _boxes_in_row(shape, last, 0, rest)


def _boxes_in_row(
    shape: Sequence[int], row: int, start: int, stop: int
) -> Iterator[tuple[Box, int]]:
    """Iterate over the boxes of the elements [start, stop) of one row."""
    before = row * math.prod(shape[1:])
    for box, place in boxes_in_range(shape[1:], start, stop):
        yield ((row, row + 1), *box), before + place


def shift(box: Box, origin: Box) -> Box:
    """Return a box relative to the first element of `origin` as a box of the whole tensor.

    Examples
    --------
    >>> shift(((0, 2), (1, 3)), origin=((4, 8), (5, 9)))
    ((4, 6), (6, 8))
    """
    return tuple((a + first, b + first) for (a, b), (first, _) in zip(box, origin, strict=True))


def shift_back(box: Box, origin: Box) -> Box:
    """Return a box of the whole tensor relative to the first element of `origin`."""
    return tuple((a - first, b - first) for (a, b), (first, _) in zip(box, origin, strict=True))


def intersections(part: Box, start: int, stop: int, box: Box) -> Iterator[tuple[Box, Box, int]]:
    """Iterate over the elements of a box among the elements [start, stop) of a part of a tensor.

    Parameters
    ----------
    part
        The part, a box of the tensor.
    start, stop
        Places in the flattened part.

    Yields
    ------
    inner, shared, place
        A box of the part, its intersection with `box`, and the place of its first element in the
        flattened part. Both boxes are of the whole tensor.
    """
    for box_of_part, place in boxes_in_range(shape_of(part), start, stop):
        inner = shift(box_of_part, part)
        shared = intersection(inner, box)
        if shared is not None:
            yield inner, shared, place


def find_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes that share an element, or None.

    A sweep along the dimension that is cut most often: O(n log n) if all cuts are in one dimension.

    Examples
    --------
    >>> find_overlap([((4, 8),), ((0, 4),)]), find_overlap([((0, 4),), ((8, 9),), ((3, 5),)])
    (None, (0, 2))
    """
    held = [i for i, box in enumerate(boxes) if math.prod(shape_of(box))]
    if len(held) < 2 or not boxes[held[0]]:
        return (held[0], held[1]) if len(held) > 1 else None
    axis = max(range(len(boxes[held[0]])), key=lambda axis: len({boxes[i][axis] for i in held}))
    live: list[int] = []
    for i in sorted(held, key=lambda i: boxes[i][axis]):
        live = [j for j in live if boxes[j][axis][1] > boxes[i][axis][0]]
        for j in live:
            if intersection(boxes[i], boxes[j]) is not None:
                return min(i, j), max(i, j)
        live.append(i)
    return None


def find_gap(box: Box, boxes: Sequence[Box]) -> Box | None:
    """Return a box of elements of `box` that are in none of `boxes`, or None if there are none.

    Examples
    --------
    >>> find_gap(((0, 4), (0, 3)), [((0, 4), (0, 1)), ((2, 4), (1, 3))])
    ((0, 2), (1, 3))
    """
    left = [box]
    for taken in boxes:
        left = [rest for box in left for rest in _subtract(box, taken)]
    return left[0] if left else None


def _subtract(box: Box, taken: Box) -> Iterator[Box]:
    """Iterate over boxes of the elements of `box` that are not in `taken`."""
    shared = intersection(box, taken)
    if shared is None:
        yield box
        return
    for axis, ((first, end), (a, b)) in enumerate(zip(box, shared, strict=True)):
        for side in ((first, a), (b, end)):
            if side[0] < side[1]:
                yield (*shared[:axis], side, *box[axis + 1 :])


@explain_options
class Partition:
    """A tensor that is a box of a larger tensor, to be saved or to be loaded into.

    Several processes can hold the parts of one tensor, without torch.distributed.

    Parameters
    ----------
    tensor
        The elements of this part, of any dtype and strides.
    offset
        Index of its first element in the whole tensor.
    shape
        Shape of the whole tensor.

    Raises
    ------
    TypeError, ValueError
        When numbers are not integers, or when the part is outside the shape.

    Examples
    --------
    >>> import torch
    >>> rows = Partition(torch.zeros(2, 3), offset=(4, 0), shape=(8, 3))
    >>> rows
    Partition(elements [4:6, 0:3] of shape (8, 3))
    """

    def __init__(
        self, tensor: torch.Tensor, *, offset: Sequence[int], shape: Sequence[int]
    ) -> None:
        self.tensor = tensor
        self.offset = tuple(index(first) for first in offset)
        self.shape = tuple(index(size) for size in shape)
        if not (len(self.offset) == len(self.shape) == tensor.dim()) or any(
            not 0 <= first <= first + here <= size
            for first, here, size in zip(self.offset, tensor.shape, self.shape, strict=True)
        ):
            raise ValueError(
                f"a part of shape {tuple(tensor.shape)} at offset {self.offset} must be inside the "
                f"shape {self.shape}"
            )

    @property
    def box(self) -> Box:
        """(first, end) in each dimension."""
        here = zip(self.offset, self.tensor.shape, strict=True)
        return tuple((first, first + size) for first, size in here)

    def __repr__(self) -> str:
        box = ", ".join(f"{first}:{end}" for first, end in self.box)
        return f"Partition(elements [{box}] of shape {self.shape})"
