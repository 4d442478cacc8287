"""Names as a tree, split at slashes and dots; a chain without branches is one line.

Written for speed: in large models many groups, such as layers, have the same contents. The lines
of such groups are made once, and are the same objects each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Columns", "Leaf", "Line", "lines"]

#: Dtype, shape, bytes and a remark, as text.
Columns: TypeAlias = tuple[str, str, str, str]
#: Columns after a name, number of tensors (1, or 0 for a plain value), and bytes (0 for a tensor
#: whose data are another's).
Leaf: TypeAlias = tuple[Columns, int, int]
#: Text with its guides, columns after it (None for a group), number of tensors, their bytes.
Line: TypeAlias = tuple[str, "Columns | None", int, int]

_GUIDES = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}
#: Names may have any number of dots. Deeper groups have a line for each leaf.
_MAX_DEPTH = 60
#: Groups of more leaves are not compared with others.
_MAX_COMPARED = 1000


#: A line without its guides, and the group below it: None if there is none, or it is folded.
_Item: TypeAlias = "tuple[str, Columns | None, int, int, _Group | None]"
_Group: TypeAlias = "list[_Item]"


def lines(names: list[str], leaves: list[Leaf], *, depth: int | None, unicode: bool) -> list[Line]:
    """Return the lines of a tree.

    Parameters
    ----------
    names, leaves
        In the order to print. Names may be repeated.
    depth
        Levels of groups; deeper ones are one line with their totals. None: all.
    unicode
        Whether guides may be other than ASCII.
    """
    builder, drawer = _Builder(depth), _Drawer(unicode)
    if len(names) > 1 and _common(names, 0):
        top = [builder.item("", names, 0, leaves, 0)]
    else:
        top = builder.group(names, 0, leaves, 0)
    found: list[Line] = []
    for label, columns, tensors, held, inside in top:
        found.append((label, columns, tensors, held))
        if inside is not None:
            found += drawer.below(inside, "")
    return found


class _Builder:
    """Builds groups, those of the same contents once."""

    def __init__(self, depth: int | None) -> None:
        self._depth = depth
        self._known: dict[tuple[object, ...], _Item] = {}

    def group(self, texts: list[str], at: int, leaves: list[Leaf], level: int) -> _Group:
        """Return the group of names that are split from `at` on, at `level` below the top."""
        if level > _MAX_DEPTH:
            return [(text[at:], *leaf, None) for text, leaf in zip(texts, leaves, strict=True)]
        items: _Group = []
        seen, part = set[str](), ""
        first, count = 0, len(texts)
        while first < count:
            text, stop, before = texts[first], first + 1, part
            dot, slash = text.find(".", at), text.find("/", at)
            # `_end` inlined: the call would take as long as the rest of the loop.
            end = 1 + (slash if dot < 0 or 0 <= slash < dot else dot)
            if end:
                part, begin = text[at:end], text[:end]
                while stop < count and texts[stop].startswith(begin):
                    stop += 1
            else:
                part = text[at:]
            if part in seen and part != before:
                return self.group(*_together(texts, at, leaves), level)
            seen.add(part)
            if stop == first + 1:
                items.append((text[at:], *leaves[first], None))
            else:
                items.append(self.item(part, texts[first:stop], end, leaves[first:stop], level))
            first = stop
        return items

    def item(self, part: str, texts: list[str], at: int, leaves: list[Leaf], level: int) -> _Item:
        """Return the line of names that have `part` before `at`, with the group below it."""
        if len(texts) > _MAX_COMPARED:
            known = self._inside(texts, at, leaves, level)
            return part + known[0], *known[1:]
        texts = [text[at:] for text in texts]
        key = (level, *texts, *map(id, leaves))  # leaves live as long as the builder
        if key not in self._known:
            self._known[key] = self._inside(texts, 0, leaves, level)
        known = self._known[key]
        return part + known[0], *known[1:]

    def _inside(self, texts: list[str], at: int, leaves: list[Leaf], level: int) -> _Item:
        end = _common(texts, at)
        inside = None
        if level + 1 != self._depth:
            inside = self.group(texts, end, leaves, level + 1)
        tensors, held = sum([leaf[1] for leaf in leaves]), sum([leaf[2] for leaf in leaves])
        return texts[0][at:end], None, tensors, held, inside


class _Drawer:
    """Draws guides before labels."""

    def __init__(self, unicode: bool) -> None:
        self._guides = _GUIDES[unicode]
        self._known: dict[tuple[int, str], list[Line]] = {}

    def below(self, group: _Group, guide: str) -> list[Line]:
        """Return the lines of a group, each with the guide before its own."""
        known = self._known.get((id(group), guide))
        if known is not None:
            return known
        mark, last, bar, space = self._guides
        found: list[Line] = []
        for i, (label, columns, tensors, held, inside) in enumerate(group, 1):
            if i == len(group):
                mark, bar = last, space
            found.append((f"{guide}{mark}{label}", columns, tensors, held))
            if inside is not None:
                found += self.below(inside, guide + bar)
        self._known[id(group), guide] = found
        return found


def _together(texts: list[str], at: int, leaves: list[Leaf]) -> tuple[list[str], int, list[Leaf]]:
    """Sort names so that those with the same part at `at` are adjacent."""
    groups: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        end = _end(text, at)
        groups.setdefault(text[at:end] if end else text[at:], []).append(i)
    order = [i for group in groups.values() for i in group]
    return [texts[i] for i in order], at, [leaves[i] for i in order]


def _end(text: str, at: int) -> int:
    """Return the end of the part that begins at `at`, after its slash or dot; 0 without one."""
    dot, slash = text.find(".", at), text.find("/", at)
    return 1 + (slash if dot < 0 or 0 <= slash < dot else dot)


def _common(texts: Sequence[str], at: int) -> int:
    """Return where names that are equal up to `at` begin to differ, in whole parts."""
    least, greatest = texts[0], texts[-1]  # in most groups, these differ at once
    checked = False
    while (end := _end(least, at)) and greatest.startswith(least[at:end], at):
        if checked:
            at = end
        else:
            least, greatest, checked = min(texts), max(texts), True  # all others are between them
    return at
