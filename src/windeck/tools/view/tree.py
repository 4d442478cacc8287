"""Names as a tree: split at / and at dots, where a chain without branches is one line.

Written for speed. In large models many groups are the same inside, as layers are: what is below
such a group is made once, and its lines are the same objects each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

__all__ = ["Beside", "Leaf", "Line", "lines"]

#: Dtype, shape, bytes and a remark, as text.
Beside: TypeAlias = tuple[str, str, str, str]
#: What stands beside a name, tensors (1, or 0 for a plain value), and bytes (0 for what shares
#: another's).
Leaf: TypeAlias = tuple[Beside, int, int]
#: Text with its guides, what stands beside it (None: a group), tensors below, their bytes.
Line: TypeAlias = tuple[str, "Beside | None", int, int]

_GUIDES = {True: ("├─ ", "└─ ", "│  ", "   "), False: ("|- ", "`- ", "|  ", "   ")}
#: Names may have any number of dots: groups this deep have a line for each leaf.
_DEEPEST = 60
#: Leaves of a group that is compared with others.
_ALIKE = 1000


#: As a line without its guides; and what is below it, None for nothing, or for what is folded.
_Item: TypeAlias = "tuple[str, Beside | None, int, int, _Group | None]"
_Group: TypeAlias = "list[_Item]"


def lines(names: list[str], leaves: list[Leaf], *, depth: int | None, unicode: bool) -> list[Line]:
    """The lines of a tree.

    Parameters
    ----------
    names, leaves
        In the order they are to have; names may be there twice.
    depth
        Groups shown below each other; deeper ones are one line with their totals. None: all.
    unicode
        Whether guides may be more than ASCII.
    """
    grower, drawer = _Grower(depth), _Drawer(unicode)
    if len(names) > 1 and _common(names, 0):
        top = [grower.item("", names, 0, leaves, 0)]
    else:
        top = grower.group(names, 0, leaves, 0)
    found: list[Line] = []
    for label, beside, tensors, held, inside in top:
        found.append((label, beside, tensors, held))
        if inside is not None:
            found += drawer.below(inside, "")
    return found


class _Grower:
    """Makes groups, those with the same inside once."""

    def __init__(self, depth: int | None) -> None:
        self._depth = depth
        self._known: dict[tuple[object, ...], _Item] = {}

    def group(self, texts: list[str], at: int, leaves: list[Leaf], level: int) -> _Group:
        """What is in a group, whose lines have `level` guides, by the names from `at` on."""
        if level > _DEEPEST:
            return [(text[at:], *leaf, None) for text, leaf in zip(texts, leaves, strict=True)]
        items: _Group = []
        seen, part = set[str](), ""
        first, count = 0, len(texts)
        while first < count:
            text, stop, before = texts[first], first + 1, part
            dot, slash = text.find(".", at), text.find("/", at)
            # As in `_end`, which to call would take as long as the rest of it.
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
        """The group of names that have `part` before `at`, and whatever else all of them have."""
        if len(texts) > _ALIKE:
            known = self._inside(texts, at, leaves, level)
            return part + known[0], *known[1:]
        texts = [text[at:] for text in texts]
        key = (level, *texts, *map(id, leaves))  # leaves are there as long as the tree is made
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
    """Puts guides before labels."""

    def __init__(self, unicode: bool) -> None:
        self._guides = _GUIDES[unicode]
        self._known: dict[tuple[int, str], list[Line]] = {}

    def below(self, group: _Group, guide: str) -> list[Line]:
        """The lines of a group, each beginning with a guide and one of its own."""
        known = self._known.get((id(group), guide))
        if known is not None:
            return known
        mark, last, bar, space = self._guides
        found: list[Line] = []
        for i, (label, beside, tensors, held, inside) in enumerate(group, 1):
            if i == len(group):
                mark, bar = last, space
            found.append((f"{guide}{mark}{label}", beside, tensors, held))
            if inside is not None:
                found += self.below(inside, guide + bar)
        self._known[id(group), guide] = found
        return found


def _together(texts: list[str], at: int, leaves: list[Leaf]) -> tuple[list[str], int, list[Leaf]]:
    """Those that have the same at `at`, up to the next / or dot, one after the other."""
    groups: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        end = _end(text, at)
        groups.setdefault(text[at:end] if end else text[at:], []).append(i)
    order = [i for group in groups.values() for i in group]
    return [texts[i] for i in order], at, [leaves[i] for i in order]


def _end(text: str, at: int) -> int:
    """Where the part that begins at `at` ends, its / or dot counted; 0 if it has none."""
    dot, slash = text.find(".", at), text.find("/", at)
    return 1 + (slash if dot < 0 or 0 <= slash < dot else dot)


def _common(texts: Sequence[str], at: int) -> int:
    """How far names that are the same up to `at` are the same, part by part."""
    least, greatest = texts[0], texts[-1]  # in most groups, these differ at once
    checked = False
    while (end := _end(least, at)) and greatest.startswith(least[at:end], at):
        if checked:
            at = end
        else:
            least, greatest, checked = min(texts), max(texts), True  # all others lie between them
    return at
