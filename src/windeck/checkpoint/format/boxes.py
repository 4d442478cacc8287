"""Boxes: ranges of rows, columns and so on, and what of them a run of elements covers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

__all__ = ["Box", "common", "overlapping", "pieces", "shape_of", "slices", "uncovered", "whole"]

#: (first, end) in each dimension; of no dimensions, one element.
Box: TypeAlias = tuple[tuple[int, int], ...]


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements."""
    return tuple((0, size) for size in shape)


def shape_of(box: Box) -> tuple[int, ...]:
    """Sizes of a box."""
    return tuple(end - first for first, end in box)


def slices(box: Box) -> tuple[slice, ...]:
    """The index that cuts a box out."""
    return tuple(slice(first, end) for first, end in box)


def common(a: Box, b: Box) -> Box | None:
    """What two boxes share; None for nothing.

    Examples
    --------
    >>> common(((0, 4), (2, 5)), ((3, 9), (0, 3)))
    ((3, 4), (2, 3))
    """
    shared = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return shared if all(first < end for first, end in shared) else None


def pieces(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[Box, int]]:
    """Boxes that hold the elements [start, stop) of an array in row-major order, in that order.

    Parameters
    ----------
    shape
        Of the array; no size is 0.
    start, stop
        Places in the flattened array.

    Yields
    ------
    box, place
        A box, and the place of its first element. At most two for each dimension.

    Examples
    --------
    >>> list(pieces((3, 4), 2, 9))
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
        yield from _within(shape, first, skipped, rest)
        return
    if skipped:
        yield from _within(shape, first, skipped, inner)
        first += 1
    if first < last:
        yield ((first, last), *whole(shape[1:])), first * inner
    yield from _within(shape, last, 0, rest)


def _within(shape: Sequence[int], row: int, start: int, stop: int) -> Iterator[tuple[Box, int]]:
    before = row * math.prod(shape[1:])
    for box, place in pieces(shape[1:], start, stop):
        yield ((row, row + 1), *box), before + place


def overlapping(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """The places of two boxes that share an element, or None. Boxes without elements share none.

    A sweep over the dimension that is cut most often: O(n log n) where all cuts are in one.

    Examples
    --------
    >>> overlapping([((4, 8),), ((0, 4),)]), overlapping([((0, 4),), ((8, 9),), ((3, 5),)])
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
            if common(boxes[i], boxes[j]) is not None:
                return min(i, j), max(i, j)
        live.append(i)
    return None


def uncovered(box: Box, boxes: Sequence[Box]) -> Box | None:
    """A box with elements of `box` that lie in none of the others; None where there are none.

    Examples
    --------
    >>> uncovered(((0, 4), (0, 3)), [((0, 4), (0, 1)), ((2, 4), (1, 3))])
    ((0, 2), (1, 3))
    """
    left = [box]
    for taken in boxes:
        left = [rest for piece in left for rest in _without(piece, taken)]
    return left[0] if left else None


def _without(box: Box, taken: Box) -> Iterator[Box]:
    """Boxes that hold what of a box is left when another is taken away."""
    shared = common(box, taken)
    if shared is None:
        yield box
        return
    for axis, ((first, end), (a, b)) in enumerate(zip(box, shared, strict=True)):
        for run in ((first, a), (b, end)):
            if run[0] < run[1]:
                yield (*shared[:axis], run, *box[axis + 1 :])
