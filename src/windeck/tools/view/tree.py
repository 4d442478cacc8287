"""Names as a tree: split at / and at dots, where a chain without branches is one line.

Written for speed: ten thousand names in a few hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Beside", "Leaf", "Line", "lines"]

#: Dtype, shape, bytes and a remark, as text.
Beside: TypeAlias = tuple[str, str, str, str]
#: A name, what stands beside it, tensors (1, or 0 for a plain value), and bytes (0 for what shares
#: another's).
Leaf: TypeAlias = tuple[str, Beside, int, int]
#: Text with its guides, what stands beside it (None: a group), tensors below, their bytes.
Line: TypeAlias = tuple[str, "Beside | None", int, int]

_Node: TypeAlias = tuple[str, Sequence[Leaf], int]
_GUIDES = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}
#: Names may have any number of dots: groups this deep have a line for each leaf.
_DEEPEST = 60


def lines(leaves: Sequence[Leaf], *, depth: int | None, unicode: bool) -> list[Line]:
    """The lines of a tree.

    Parameters
    ----------
    depth
        Groups shown below each other; deeper ones are one line with their totals. None: all.
    unicode
        Whether guides may be more than ASCII.
    """
    mark, last, bar, space = _GUIDES[unicode]
    found: list[Line] = []

    def put(nodes: Sequence[_Node], guide: str, level: int) -> tuple[int, int]:
        """Puts the lines of some nodes, each with its guide; their tensors and bytes."""
        count = held = 0
        top = not level
        first, inner = ("", "") if top else (guide + mark, guide + bar)
        for i, (label, leaves, end) in enumerate(nodes, 1):
            if i == len(nodes) and not top:
                first, inner = guide + last, guide + space
            if len(leaves) == 1:
                _, beside, tensors, size = leaves[0]
                found.append((first + label, beside, tensors, size))
            else:
                place = len(found)
                found.append(("", None, 0, 0))
                if level + 1 == depth:
                    tensors = sum(leaf[2] for leaf in leaves)
                    size = sum(leaf[3] for leaf in leaves)
                else:
                    tensors, size = put(_split(leaves, end, level), inner, level + 1)
                found[place] = (first + label, None, tensors, size)
            count, held = count + tensors, held + size
        return count, held

    end = _common(leaves, 0) if len(leaves) > 1 else 0
    put([(leaves[0][0][:end], leaves, end)] if end else _split(leaves, 0, 0), "", 0)
    return found


def _split(leaves: Sequence[Leaf], at: int, level: int) -> list[_Node]:
    """Leaves whose names are the same up to `at`, by what follows up to the next / or dot.

    Of each group the part of the name that all of it shares, the leaves, and where that part ends.
    """
    if level == _DEEPEST:
        return [(leaf[0][at:], [leaf], at) for leaf in leaves]
    groups: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        text = leaf[0]
        dot, slash = text.find(".", at), text.find("/", at)
        # As in `_end`, which to call would take as long as the rest of it.
        end = 1 + (slash if dot < 0 or 0 <= slash < dot else dot)
        part = text[at:end] if end else text[at:]
        if part in groups:
            groups[part].append(leaf)
        else:
            groups[part] = [leaf]
    nodes: list[_Node] = []
    for part, inside in groups.items():
        if len(inside) == 1:
            nodes.append((inside[0][0][at:], inside, at))
        elif part.endswith(("/", ".")):
            end = _common(inside, at + len(part))
            nodes.append((inside[0][0][at:end], inside, end))
        else:  # the same name again
            nodes += [(part, [leaf], at) for leaf in inside]
    return nodes


def _end(text: str, at: int) -> int:
    """Where the part that begins at `at` ends, its / or dot counted; 0 if it has none."""
    dot, slash = text.find(".", at), text.find("/", at)
    return 1 + (slash if dot < 0 or 0 <= slash < dot else dot)


def _common(leaves: Sequence[Leaf], at: int) -> int:
    """How far names that are the same up to `at` are, part by part."""
    texts: list[str] | None = None  # in most groups, the first and the last differ at once
    least, greatest = leaves[0][0], leaves[-1][0]
    while (end := _end(least, at)) and greatest.startswith(least[at:end], at):
        if texts is None:
            texts = [leaf[0] for leaf in leaves]
            least, greatest = min(texts), max(texts)  # all others lie between them
        else:
            at = end
    return at
