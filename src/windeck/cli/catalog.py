"""The contents of a manifest: names, tensors, tables and plain values; and their JSON."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from windeck.checkpoint.format import state_json
from windeck.checkpoint.format.catalogs import Catalog, TensorKind
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.manifests import Commit, find_commit, read_catalog, read_manifest
from windeck.checkpoint.stores import Store
from windeck.cli.parser import Namespace
from windeck.cli.session import UsageError, checked_namespace, opened_store, redacted_url
from windeck.columns.dtypes import item_bytes

if TYPE_CHECKING:
    from windeck.checkpoint.format.table_entries import TableEntry  # which imports NumPy

__all__ = [
    "TABLES",
    "ManifestContents",
    "Listing",
    "checkpoint_document",
    "find_table",
    "name_filter",
]
__all__ += ["opened_checkpoint", "plain_values", "read_listing", "table_document", "tensor_bytes"]
__all__ += ["tensor_and_table_names", "tensor_document", "tensor_names", "unknown_name"]

#: Prefix of the names of tables, where they are listed with tensors.
TABLES = "embeddings/"


class ManifestContents(NamedTuple):
    """A manifest, without its tensors and without torch."""

    url: str
    namespace: str
    commit: Commit
    entries: dict[str, TensorEntry]
    trees: dict[str, Any]
    #: By root: each tensor's name, and the name under which its data are stored.
    places: dict[str, list[tuple[str, str]]]
    tables: dict[str, TableEntry]


class Listing(NamedTuple):
    """The first line of a manifest: all that `ls` shows."""

    url: str
    namespace: str
    commit: Commit
    saved: Catalog


def read_listing(arguments: Namespace, store: Store) -> Listing:
    """Read HEAD and one manifest, and no more of it than `ls` shows."""
    namespace = checked_namespace(arguments.namespace)
    commit = find_commit(store, namespace, arguments.generation)
    saved = read_catalog(store, namespace, commit)
    return Listing(redacted_url(arguments.url), namespace, commit, saved)


@contextmanager
def opened_checkpoint(arguments: Namespace) -> Iterator[tuple[Store, ManifestContents]]:
    """Open a store, and read the manifest of a generation."""
    with opened_store(arguments.url) as store:
        namespace = checked_namespace(arguments.namespace)
        commit = find_commit(store, namespace, arguments.generation)
        found = read_manifest(store, namespace, commit)
        yield store, ManifestContents(
            redacted_url(arguments.url), namespace, commit, found["tensors"], found["trees"],
            found["places"], found["tables"],
        )  # fmt: skip


def tensor_names(found: ManifestContents) -> dict[str, str]:
    """Return the name of each tensor, and the name under which its data are stored."""
    return dict(pair for pairs in found.places.values() for pair in pairs)


def tensor_and_table_names(found: ManifestContents) -> list[str]:
    """Return the names that `ls` shows, but for plain values."""
    return [*tensor_names(found), *(TABLES + name for name in found.tables)]


def find_table(found: ManifestContents, name: str) -> TableEntry | None:
    """Return the table of a name, with or without the prefix ``embeddings/``."""
    return found.tables.get(name) or found.tables.get(name.removeprefix(TABLES))


def name_filter(pattern: str) -> Callable[[str], bool]:
    """Return whether a name matches: the pattern is a glob, or a name with all below it."""
    below = (pattern if pattern[-1:] in "/." else f"{pattern}/", f"{pattern}.")
    return lambda name: (
        name == pattern or name.startswith(below) or fnmatch.fnmatchcase(name, pattern)
    )


def unknown_name(
    found: ManifestContents, name: str, kind: str = "tensor", *, known: Iterable[str] | None = None
) -> UsageError:
    """Return the error for a name that nothing has, with a hint."""
    names = [*(tensor_names(found) if known is None else known)]
    below = name_filter(name.rstrip("/."))
    inside = [one for one in names if below(one)]
    near = difflib.get_close_matches(name, [*names, *found.tables], 3, 0.5)
    if find_table(found, name) is not None:
        hint = "it is an embedding table"
    elif name in tensor_names(found):
        hint = "it is a tensor"
    elif any(name == one for one, _ in plain_values(found.trees)):
        hint = "it is a plain value"
    elif inside:
        hint = f"it is a group, expected a name in it, such as {inside[0]}"
    elif near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = f"expected one of the {len(names):,} that ls shows" if names else "there is none"
    return UsageError(f"generation {found.commit.generation} has no {kind} {name!r}: {hint}")


def plain_values(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return name and value of what is no tensor: items of dicts one by one, other values whole.

    The trees are as they are stored, or decoded.
    """
    for root, tree in roots.items():
        yield from _plain_values(tree, root)


def _plain_values(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    if type(tree) is dict and "tensor" in tree:
        return
    if type(tree) is dict and "dict" in tree and tree["dict"]:
        for pair in tree["dict"]:
            if type(pair) is list:  # else it is a tensor
                yield from _plain_values(pair[1], f"{name}/{pair[0]}")
        return
    inside = tree["tuple"] if type(tree) is dict and "tuple" in tree else tree
    if type(inside) is list and any(
        (type(item) is dict and "dict" in item) or _has_tensor(item) for item in inside
    ):
        for i, item in enumerate(inside):
            yield from _plain_values(item, f"{name}/{i}")
        return
    yield name, state_json.decode(tree, str)


def _has_tensor(tree: Any) -> bool:
    return bool(state_json.tensor_places(tree, "", short=True)[0])


def checkpoint_document(found: ManifestContents | Listing) -> dict[str, Any]:
    """Return the first keys of every JSON document: of which checkpoint it is."""
    commit = found.commit
    return {
        "url": found.url,
        "namespace": found.namespace,
        "generation": commit.generation,
        "step": commit.step,
        "time": commit.time,
    }


def tensor_document(name: str, data: str, kind: TensorEntry | TensorKind) -> dict[str, Any]:
    """Return a tensor in JSON, with the name under which its data are stored."""
    held = tensor_bytes(kind.dtype, kind.shape)
    return {"name": name, "dtype": kind.dtype, "shape": kind.shape, "bytes": held, "data": data}


@lru_cache(1000)  # many tensors have the same shape
def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor, or None for a dtype that is not known."""
    width = item_bytes(dtype)
    return None if width is None else prod(shape) * width


def table_document(entry: TableEntry) -> dict[str, Any]:
    """Return a table in JSON."""
    from windeck.checkpoint.format.table_entries import table_info

    return {"dtype": entry.shape.dtype, **asdict(table_info(entry))}
