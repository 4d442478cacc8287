"""Names as a tree: split at / and at dots, where a chain without branches is one line.

Written for speed: ten thousand names in some hundredths of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

__all__ = ["Leaf", "Line", "lines"]

#: A name, what stands beside it, tensors (1, or 0 for a plain value), and bytes (0 for what shares
#: another's).
Leaf: TypeAlias = tuple[str, Sequence[str], int, int]
#: Text with its guides, what stands beside it (None: a group), tensors below, their bytes.
Line: TypeAlias = tuple[str, "Sequence[str] | None", int, int]

_split = re.compile(r"[^/.]*[/.]?").findall
_GUIDES = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}
_HERE = object()
#: Names may have any number of dots; what is deeper than this stands on one line.
_DEEPEST = 60


def lines(leaves: Iterable[Leaf], *, depth: int | None, unicode: bool) -> Iterator[Line]:
    """The lines of a tree.

    Parameters
    ----------
    depth
        Groups shown below each other; deeper ones are one line with their totals. None: all.
    unicode
        Whether guides may be more than ASCII.
    """
    root: dict[Any, Any] = {}
    for leaf in leaves:
        node = root
        parts = _split(leaf[0])[:-1]  # the last match is empty
        if len(parts) > _DEEPEST:
            parts[_DEEPEST:] = ["".join(parts[_DEEPEST:])]
        for part in parts:
            node = node.setdefault(part, {})
        node[_HERE] = leaf
    yield from _lines(root, "", True, depth, _GUIDES[unicode])


def _lines(
    node: dict[Any, Any], guide: str, top: bool, depth: int | None, guides: Sequence[str]
) -> Iterator[Line]:
    last = len(node) - 1
    for i, (label, child) in enumerate(node.items()):
        text, below = label, child
        while len(below) == 1 and _HERE not in below:
            ((part, below),) = below.items()
            text += part
        end = i == last
        mark = "" if top else guides[1] if end else guides[0]
        leaf = below.get(_HERE)
        if leaf is not None and len(below) == 1:
            yield guide + mark + text, leaf[1], leaf[2], leaf[3]
            continue
        count, held = _totals(below)
        yield guide + mark + text, None, count, held
        if depth is not None and depth <= 1:
            continue
        inner = guide + ("" if top else guides[3] if end else guides[2])
        if leaf is not None:  # a tensor whose name is the beginning of others'
            below = {"": {_HERE: leaf}, **{k: v for k, v in below.items() if k is not _HERE}}
        yield from _lines(below, inner, False, None if depth is None else depth - 1, guides)


def _totals(node: dict[Any, Any]) -> tuple[int, int]:
    count = held = 0
    for label, child in node.items():
        if label is _HERE:
            count, held = count + child[2], held + child[3]
        else:
            inner = _totals(child)
            count, held = count + inner[0], held + inner[1]
    return count, held
