"""`ls` and `log`: what a checkpoint holds, out of its manifest alone."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from windeck.checkpoint import trees
from windeck.checkpoint.dtypes import item_bytes
from windeck.checkpoint.history import log as read_log
from windeck.checkpoint.manifests import Entry
from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.session import Catalog, Different, namespace_of, plain_url, shown
from windeck.tools.view.tree import Leaf, lines

__all__ = ["described", "log", "ls", "plain_values", "tensors_of"]


def ls(found: Catalog, pattern: str | None, *, depth: int | None, flat: bool, json: bool) -> None:
    """Prints tensors, tables and plain values."""
    wanted = _filter(pattern)
    tensors = [one for one in tensors_of(found) if wanted(one["name"])]
    tables = [table for table in (dict(t) for t in found.tables) if wanted(table["name"])]
    values = [(name, value) for name, value in plain_values(found.trees) if wanted(name)]
    held = sum(t["bytes"] or 0 for t in tensors if t["data"] == t["name"])
    held += sum(table["bytes"] for table in tables)
    if json:
        texts = [{"name": name, "value": value} for name, value in values]
        parts = {"tensors": tensors, "tables": tables, "values": texts}
        output.write_json({**described(found), "bytes": held, **parts})
    else:
        _print(found, tensors, tables, values, held, depth, flat)
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


def tensors_of(found: Catalog) -> Iterator[dict[str, Any]]:
    """Every tensor by each of its names; `data` is the name its data are under."""
    for root, tree in found.trees.items():
        for name, data in trees.tensors_in(tree, root):
            entry = found.entries[data]
            yield {
                "name": name,
                "dtype": entry.dtype,
                "shape": entry.shape,
                "bytes": _bytes(entry),
                "data": data,
            }


def plain_values(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is no tensor: the items of dicts by name, anything else whole."""
    for root, tree in roots.items():
        yield from _plain(tree, root)


def log(url: str, store: Store, namespace: str, *, json: bool) -> None:
    """Prints the generations kept, the one in force first."""
    commits = read_log(store, namespace=namespace_of(namespace))
    if not commits:
        raise FileNotFoundError(f"there is no checkpoint: expected the key {namespace}/HEAD")
    if json:
        kept = [asdict(commit) for commit in commits]
        output.write_json({"url": plain_url(url), "namespace": namespace, "generations": kept})
        return
    rows = [
        (str(c.generation), str(c.step), output.moment(c.time), output.size(c.manifest_bytes))
        + (("in force",) if i == 0 else ("",))
        for i, c in enumerate(commits)
    ]
    headings = ("generation", "step", "time", "manifest", "")
    output.table(headings, rows, right=(0, 1, 3))


def _bytes(entry: Entry) -> int | None:
    width = item_bytes(entry.dtype)
    return None if width is None else math.prod(entry.shape) * width


def _plain(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    if type(tree) is dict and "tensor" in tree:
        return
    if type(tree) is dict and "dict" in tree and tree["dict"]:
        for key, item in tree["dict"]:
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


def _filter(pattern: str | None) -> Any:
    """Names that a pattern means: a glob, or what is below a name."""
    if pattern is None:
        return lambda name: True
    below = (pattern if pattern[-1:] in "/." else f"{pattern}/", f"{pattern}.")
    return lambda name: (
        name == pattern or name.startswith(below) or fnmatch.fnmatchcase(name, pattern)
    )


def _print(
    found: Catalog,
    tensors: list[dict[str, Any]],
    tables: list[dict[str, Any]],
    values: list[tuple[str, Any]],
    held: int,
    depth: int | None,
    flat: bool,
) -> None:
    commit, count = found.commit, f"{len(tensors):,} tensor{'s' * (len(tensors) != 1)}"
    if tables:
        count += f", {len(tables):,} table{'s' * (len(tables) != 1)}"
    head = f"{found.namespace}  generation {commit.generation}  step {commit.step}"
    head += f"  {output.moment(commit.time)}  {count}  {output.size(held)}"
    output.say(output.paint(head, "bold"))
    leaves = [*map(_tensor_leaf, tensors), *map(_table_leaf, tables), *map(_value_leaf, values)]
    if flat:
        rows = [(leaf[0], *leaf[1]) for leaf in leaves]
    else:
        rows = []
        for text, beside, below, size in lines(leaves, depth=depth, unicode=output.unicode_ok()):
            if beside is None:
                what = f"{below:,} tensor{'s' * (below != 1)}" if below else ""
                beside = ("", what, output.size(size) if below else "", "")
            rows.append((text, *beside))
    output.say(*_aligned(rows))


def _tensor_leaf(tensor: dict[str, Any]) -> Leaf:
    shares = tensor["data"] != tensor["name"]
    beside = (tensor["dtype"], str(list(tensor["shape"])), output.size(tensor["bytes"]))
    same = f"= {shown(tensor['data'])}" if shares else ""
    return shown(tensor["name"]), (*beside, same), 1, 0 if shares else tensor["bytes"] or 0


def _table_leaf(table: dict[str, Any]) -> Leaf:
    shape = f"{table['rows']:,} ids x {table['dim']}"
    beside = (table["dtype"], shape, output.size(table["bytes"]), "table")
    return f"embeddings/{shown(table['name'])}", beside, 1, table["bytes"]


def _value_leaf(item: tuple[str, Any]) -> Leaf:
    text = shown(repr(item[1]))
    return shown(item[0]), ("", text if len(text) <= 60 else f"{text[:57]}...", "", ""), 0, 0


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns of names, dtypes, shapes, bytes and remarks; values may be wider than shapes."""
    if not rows:
        return []
    name, dtype, size = (max(len(row[i]) for row in rows) for i in (0, 1, 3))
    shape = max((len(row[2]) for row in rows if row[3]), default=0)
    return [
        f"{a:<{name}}  {b:<{dtype}}  {c:<{shape}}  {d:>{size}}  {e}".rstrip()
        for a, b, c, d, e in rows
    ]
