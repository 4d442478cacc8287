"""Names on the command line: which tensors, tables and values they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windeck.tools.view.session import Catalog, Wrong

if TYPE_CHECKING:
    from windeck.checkpoint.format.entries import Entry
    from windeck.checkpoint.tables.links import TableEntry

__all__ = ["TABLES", "matching", "places_of", "table_called", "tensor_called", "unknown"]

#: What the names of tables begin with, where they stand beside tensors.
TABLES = "embeddings/"


def places_of(found: Catalog) -> dict[str, str]:
    """Every tensor by each of its names: the name its data are under."""
    return dict(pair for pairs in found.places.values() for pair in pairs)


def tensor_called(found: Catalog, name: str) -> Entry | None:
    """The tensor of a name, None for none."""
    data = places_of(found).get(name)
    return None if data is None else found.entries[data]


def table_called(found: Catalog, name: str) -> TableEntry | None:
    """The table of a name, with or without ``embeddings/`` before it; None for none."""
    return found.tables.get(name) or found.tables.get(name.removeprefix(TABLES))


def matching(pattern: str) -> Callable[[str], bool]:
    """Which names a pattern means: a glob, or a name and all below it."""
    import fnmatch

    below = (pattern if pattern[-1:] in "/." else f"{pattern}/", f"{pattern}.")
    return lambda name: (
        name == pattern or name.startswith(below) or fnmatch.fnmatchcase(name, pattern)
    )


def unknown(found: Catalog, name: str, what: str = "tensor", *, others: Any = None) -> Wrong:
    """What to say of a name that nothing has."""
    import difflib

    from windeck.tools.view.listing import plain_values

    known = [*(places_of(found) if others is None else others)]
    below = matching(name.rstrip("/."))
    inside = [one for one in known if below(one)]
    near = difflib.get_close_matches(name, [*known, *found.tables], 3, 0.5)
    if table_called(found, name) is not None:
        hint = "it is an embedding table"
    elif name in places_of(found):
        hint = "it is a tensor"
    elif any(name == one for one, _ in plain_values(found.trees)):
        hint = "it is a plain value"
    elif inside:
        hint = f"it is a group, expected one of it, such as {inside[0]}"
    elif near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = f"expected one of the {len(known):,} that ls shows" if known else "there is none"
    return Wrong(f"generation {found.commit.generation} has no {what} {name!r}: {hint}")
