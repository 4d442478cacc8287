"""Slices as text, such as ``0:3,:,-1``: parsed, never evaluated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from windeck.checkpoint.format.boxes import Box
from windeck.tools.view.session import Wrong

__all__ = ["Cut", "cut", "head"]

_RANGE = re.compile(r"\s*(-?\d{1,100})?\s*:\s*(-?\d{1,100})?\s*")
_INDEX = re.compile(r"\s*-?\d{1,100}\s*")


@dataclass(frozen=True)
class Cut:
    """A box, and those of its dimensions that stay: an integer takes its dimension away."""

    box: Box
    kept: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions that stay."""
        return tuple(self.box[axis][1] - self.box[axis][0] for axis in self.kept)


def cut(text: str, shape: Sequence[int]) -> Cut:
    """The part of a shape that a text means, as NumPy means it.

    Examples
    --------
    >>> cut("1:,:2", (4, 3))
    Cut(box=((1, 4), (0, 2)), kept=(0, 1))
    >>> cut("-1", (4, 3))
    Cut(box=((3, 4), (0, 3)), kept=(1,))
    >>> cut("..., 0", (4, 3, 2)).shape
    (4, 3)
    """
    items = [item.strip() for item in text.split(",")]
    given = sum(item != "..." for item in items)
    if items.count("...") > 1 or given > len(shape):
        raise _wrong(
            text, shape, f"has {given} dimensions" if given > len(shape) else "has two ..."
        )
    if "..." not in items:
        items.append("...")
    place = items.index("...")
    items[place : place + 1] = [":"] * (len(shape) - given)
    box, kept = [], []
    for axis, (item, size) in enumerate(zip(items, shape, strict=True)):
        found = _RANGE.fullmatch(item)
        if found is not None:
            ends = (int(end) if end else None for end in found.groups())
            first, stop, _ = slice(*ends).indices(size)
            box.append((first, max(first, stop)))
            kept.append(axis)
        elif _INDEX.fullmatch(item):
            at = int(item)
            if not -size <= at < size:
                raise _wrong(text, shape, f"has index {at} in dimension {axis}")
            box.append((at % size, at % size + 1))
        else:
            raise _wrong(text, shape, f"has {item[:40]!r}")
    return Cut(tuple(box), tuple(kept))


def head(rows: int, shape: Sequence[int], columns: int) -> Cut:
    """The first rows, of all but the last dimension, and columns of the last: a box with them.

    Examples
    --------
    >>> head(3, (10, 2, 100), 16).box
    ((0, 2), (0, 2), (0, 16))
    """
    ends, need = [min(columns, size) for size in shape[1:][-1:]], rows
    for size in reversed(shape[: len(shape) - len(ends)]):
        ends.append(min(size, need))
        need = -(-need // max(1, size))
    return Cut(tuple((0, end) for end in reversed(ends)), tuple(range(len(shape))))


def _wrong(text: str, shape: Sequence[int], what: str) -> Wrong:
    return Wrong(
        f"the slice {text[:80]!r} {what}, expected such as '0:3,:' within shape {list(shape)}"
    )
