"""`ls` and `log`: what a checkpoint holds, out of its manifest alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from windeck.checkpoint.format import trees
from windeck.checkpoint.format.dtypes import item_bytes
from windeck.checkpoint.format.manifests import Entry, read_head
from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.naming import TABLES, matching
from windeck.tools.view.session import Catalog, Different, namespace_of, plain_url, shown
from windeck.tools.view.tree import Beside, Leaf, lines

if TYPE_CHECKING:
    from windeck.checkpoint.tables.links import TableEntry

__all__ = ["described", "log", "ls", "plain_values", "table_document"]
__all__ += ["tensor_document"]


def ls(found: Catalog, pattern: str | None, *, depth: int | None, flat: bool, json: bool) -> None:
    """Prints tensors, tables and plain values."""
    wanted = None if pattern is None else matching(pattern)
    tables = [*map(table_document, found.tables.values())]
    tensors = [pair for pairs in found.places.values() for pair in pairs]
    values = [*plain_values(found.trees)]
    if wanted is not None:
        tensors = [pair for pair in tensors if wanted(pair[0])]
        tables = [table for table in tables if wanted(TABLES + table["name"])]
        values = [value for value in values if wanted(value[0])]
    if json:
        documents = [tensor_document(found, *pair) for pair in tensors]
        texts = [{"name": name, "value": value} for name, value in values]
        held = sum(t["bytes"] or 0 for t in documents if t["data"] == t["name"])
        held += sum(table["bytes"] for table in tables)
        parts = {"tensors": documents, "tables": tables, "values": texts}
        output.write_json({**described(found), "bytes": held, **parts})
    else:
        leaves = _tensor_leaves(found.entries, tensors)
        leaves += [*map(_table_leaf, tables), *map(_value_leaf, values)]
        _print(found, leaves, (len(tensors), len(tables)), depth, flat)
    if pattern is not None and not (tensors or tables or values):
        raise Different


def described(found: Catalog) -> dict[str, Any]:
    """Which checkpoint it is: the first keys of every JSON document."""
    commit = found.commit
    return {
        "url": found.url,
        "namespace": found.namespace,
        "generation": commit.generation,
        "step": commit.step,
        "time": commit.time,
    }


def tensor_document(found: Catalog, name: str, data: str) -> dict[str, Any]:
    """A tensor in JSON."""
    entry = found.entries[data]
    held, _ = _described(entry.dtype, entry.shape)
    kind = {"dtype": entry.dtype, "shape": entry.shape, "bytes": held}
    return {"name": name, **kind, "data": data}


def table_document(entry: TableEntry) -> dict[str, Any]:
    """A table in JSON."""
    from dataclasses import asdict

    from windeck.checkpoint.tables.infos import info_of

    return {"dtype": "float32", **asdict(info_of(entry))}


def plain_values(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is no tensor: the items of dicts by name, anything else whole."""
    for root, tree in roots.items():
        yield from _plain(tree, root)


def log(url: str, store: Store, namespace: str, *, json: bool) -> None:
    """Prints the generations kept, the one in force first."""
    _, commits = read_head(store, namespace_of(namespace))
    if not commits:
        raise FileNotFoundError(f"there is no checkpoint: expected the key {namespace}/HEAD")
    if json:
        kept = [commit._asdict() for commit in commits]
        output.write_json({"url": plain_url(url), "namespace": namespace, "generations": kept})
        return
    rows = [
        (
            *(str(c.generation), str(c.step), output.moment(c.time), output.size(c.manifest_bytes)),
            *(", ".join(map(str, c.bases)), "in force" if i == 0 else ""),
        )
        for i, c in enumerate(commits)
    ]
    headings = ("generation", "step", "time", "manifest", "bases", "")
    output.table(headings, rows, right=(0, 1, 3))


def _plain(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    if type(tree) is dict and "tensor" in tree:
        return
    if type(tree) is dict and "dict" in tree and tree["dict"]:
        for key, item in tree["dict"]:
            if not (type(item) is dict and "tensor" in item):
                yield from _plain(item, f"{name}/{key}")
        return
    inside = tree["tuple"] if type(tree) is dict and "tuple" in tree else tree
    if type(inside) is list and any(_has_tensor(item) for item in inside):
        for i, item in enumerate(inside):
            yield from _plain(item, f"{name}/{i}")
        return
    if type(inside) is list and any(type(item) is dict and "dict" in item for item in inside):
        for i, item in enumerate(inside):
            yield from _plain(item, f"{name}/{i}")
        return
    yield name, trees.decode(tree, str)


def _has_tensor(tree: Any) -> bool:
    return next(trees.tensors_in(tree, ""), None) is not None


def _print(
    found: Catalog, leaves: list[Leaf], counts: tuple[int, int], depth: int | None, flat: bool
) -> None:
    commit, (tensors, tables) = found.commit, counts
    count = f"{tensors:,} tensor{'s' * (tensors != 1)}"
    if tables:
        count += f", {tables:,} table{'s' * (tables != 1)}"
    head = f"{found.namespace}  generation {commit.generation}  step {commit.step}"
    total = output.size(sum(leaf[3] for leaf in leaves))
    output.say(output.paint(f"{head}  {output.moment(commit.time)}  {count}  {total}", "bold"))
    if flat:
        rows = [leaf[:2] for leaf in leaves]
    else:
        rows = [
            (text, _totals(below, held) if beside is None else beside)
            for text, beside, below, held in lines(leaves, depth=depth, unicode=output.unicode_ok())
        ]
    if rows:
        output.say(*_aligned(rows))


# Many tensors have the same shape: what is said of one is said of all.
@lru_cache(1000)
def _described(dtype: str, shape: tuple[int, ...]) -> tuple[int | None, Beside]:
    """The bytes of a tensor, and what stands beside its name."""
    width = item_bytes(dtype)
    held = None if width is None else prod(shape) * width
    return held, (dtype, str(list(shape)), output.size(held), "")


@lru_cache(1000)
def _totals(tensors: int, held: int) -> Beside:
    if not tensors:
        return "", "", "", ""
    return "", f"{tensors:,} tensor{'s' * (tensors != 1)}", output.size(held), ""


def _tensor_leaves(entries: Mapping[str, Entry], tensors: Sequence[tuple[str, str]]) -> list[Leaf]:
    leaves: list[Leaf] = []
    for name, data in tensors:
        entry = entries[data]
        held, beside = _described(entry.dtype, entry.shape)
        text = name if name.isprintable() else shown(name)
        if data == name:
            leaves.append((text, beside, 1, held or 0))
        else:
            leaves.append((text, (*beside[:3], f"= {shown(data)}"), 1, 0))
    return leaves


def _table_leaf(table: dict[str, Any]) -> Leaf:
    shape = f"[{table['rows']:,} ids, {table['dim']}]"
    beside = (table["dtype"], shape, output.size(table["bytes"]), "table")
    return TABLES + shown(table["name"]), beside, 1, table["bytes"]


def _value_leaf(item: tuple[str, Any]) -> Leaf:
    text = shown(repr(item[1]))
    return shown(item[0]), ("", text if len(text) <= 60 else f"{text[:57]}...", "", ""), 0, 0


def _aligned(rows: Sequence[tuple[str, Beside]]) -> list[str]:
    """Columns of names, dtypes, shapes, bytes and remarks; values may be wider than shapes."""
    name = max([len(text) for text, _ in rows])
    besides = {beside for _, beside in rows}
    dtype, size = (max(len(beside[i]) for beside in besides) for i in (0, 2))
    shape = max((len(beside[1]) for beside in besides if beside[2]), default=0)
    line = f"  %-{dtype}s  %-{shape}s  %{size}s  %s"
    ends = {beside: (line % beside).rstrip() for beside in besides}
    return [text.ljust(name) + end if (end := ends[beside]) else text for text, beside in rows]
