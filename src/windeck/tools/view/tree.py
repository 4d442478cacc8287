"""Names as a tree: split at / and at dots, where a chain without branches is one line.

Written for speed: ten thousand names in some hundredths of a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

__all__ = ["Beside", "Leaf", "Line", "lines"]

#: Dtype, shape, bytes and a remark, as text.
Beside: TypeAlias = tuple[str, str, str, str]
#: A name, what stands beside it, tensors (1, or 0 for a plain value), and bytes (0 for what shares
#: another's).
Leaf: TypeAlias = tuple[str, Beside, int, int]
#: Text with its guides, what stands beside it (None: a group), tensors below, their bytes.
Line: TypeAlias = tuple[str, "Beside | None", int, int]

_split = re.compile(r"[^/.]+[/.]?|[/.]").findall
_GUIDES = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}
#: Names may have any number of dots; what is deeper than this stands on one line.
_DEEPEST = 60


def lines(leaves: Iterable[Leaf], *, depth: int | None, unicode: bool) -> list[Line]:
    """The lines of a tree.

    Parameters
    ----------
    depth
        Groups shown below each other; deeper ones are one line with their totals. None: all.
    unicode
        Whether guides may be more than ASCII.
    """
    root: dict[str, Any] = {}
    for leaf in leaves:
        parts = _split(leaf[0]) or [""]
        if len(parts) > _DEEPEST:
            parts[_DEEPEST:] = ["".join(parts[_DEEPEST:])]
        node, label = root, parts.pop()
        for part in parts:
            below = node.get(part)
            if type(below) is not dict:  # a tensor whose name is the beginning of this one
                below = node[part] = {} if below is None else {"": below}
            node = below
        if label in node:
            _place(node, label, leaf)
        else:
            node[label] = leaf
    found: list[Line] = []
    _walk(_grouped(root)[0], "", depth, _GUIDES[unicode], True, found.append)
    return found


def _place(node: dict[str, Any], label: str, leaf: Leaf) -> None:
    there = node.setdefault(label, leaf)
    while type(there) is dict:  # other names begin with this one
        node, label, there = there, "", there.setdefault("", leaf)
    while there is not leaf:  # the same name again
        label += " "
        there = node.setdefault(label, leaf)


def _grouped(node: dict[str, Any]) -> Any:
    """A group as [(label, leaf or group), ...], tensors, bytes; chains are joined."""
    nodes: list[Any] = []
    count = held = 0
    for label, below in node.items():
        while type(below) is dict and len(below) == 1:
            part, below = below.popitem()
            label += part
        if type(below) is dict:
            below = _grouped(below)
            count, held = count + below[1], held + below[2]
        else:
            count, held = count + below[2], held + below[3]
        nodes.append((label, below))
    return nodes, count, held


def _walk(
    nodes: Sequence[Any],
    guide: str,
    depth: int | None,
    guides: Sequence[str],
    top: bool,
    put: Callable[[Line], None],
) -> None:
    """Puts the lines of a group, each with the guide of the group and its own mark before it."""
    mark, inner = ("", "") if top else (guide + guides[0], guide + guides[2])
    for i, (label, below) in enumerate(nodes, 1):
        if i == len(nodes) and not top:
            mark, inner = guide + guides[1], guide + guides[3]
        if len(below) == 4:
            put((mark + label, below[1], below[2], below[3]))
            continue
        put((mark + label, None, below[1], below[2]))
        if depth is None:
            _walk(below[0], inner, None, guides, False, put)
        elif depth > 1:
            _walk(below[0], inner, depth - 1, guides, False, put)
