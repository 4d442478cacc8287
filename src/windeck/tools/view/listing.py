"""`ls` and `log`: what a checkpoint holds, out of its manifest alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from windeck.checkpoint.format import trees
from windeck.checkpoint.format.dtypes import item_bytes
from windeck.checkpoint.format.manifests import read_kept
from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.naming import TABLES, matching
from windeck.tools.view.session import Different, namespace_of, plain_url, shown
from windeck.tools.view.tree import Beside, Leaf, Line, lines

if TYPE_CHECKING:
    from windeck.checkpoint.format.catalogs import Catalog, TensorKind
    from windeck.checkpoint.format.entries import Entry
    from windeck.checkpoint.tables.links import TableEntry
    from windeck.tools.view.session import Catalog as Whole
    from windeck.tools.view.session import Listing

__all__ = ["described", "log", "ls", "plain_values", "table_document"]
__all__ += ["tensor_document"]


def ls(found: Listing, pattern: str | None, *, depth: int | None, flat: bool, json: bool) -> None:
    """Prints tensors, tables and plain values."""
    saved = found.saved
    names, data = [*chain(*saved.names.values())], [*chain(*saved.data.values())]
    tables = [*map(table_document, saved.tables.values())]
    values = [*plain_values(saved.trees)]
    if pattern is not None:
        wanted = matching(pattern)
        data = [held for name, held in zip(names, data, strict=True) if wanted(name)]
        names = [*filter(wanted, names)]
        tables = [table for table in tables if wanted(TABLES + table["name"])]
        values = [value for value in values if wanted(value[0])]
    if json:
        kinds = (saved.kinds[saved.tensors[name]] for name in data)
        documents = [*map(tensor_document, names, data, kinds)]
        texts = [{"name": name, "value": value} for name, value in values]
        held = sum(t["bytes"] or 0 for t in documents if t["data"] == t["name"])
        held += sum(table["bytes"] for table in tables)
        parts = {"tensors": documents, "tables": tables, "values": texts}
        output.write_json({**described(found), "bytes": held, **parts})
    else:
        leaves = _tensor_leaves(saved, names, data)
        leaves += [*map(_table_leaf, tables), *map(_value_leaf, values)]
        counts = len(names), len(tables)
        names += [TABLES + table["name"] for table in tables] + [name for name, _ in values]
        _print(found, names, leaves, counts, depth, flat)
    if pattern is not None and not names and not tables and not values:
        raise Different


def described(found: Whole | Listing) -> dict[str, Any]:
    """Which checkpoint it is: the first keys of every JSON document."""
    commit = found.commit
    return {
        "url": found.url,
        "namespace": found.namespace,
        "generation": commit.generation,
        "step": commit.step,
        "time": commit.time,
    }


def tensor_document(name: str, data: str, kind: Entry | TensorKind) -> dict[str, Any]:
    """A tensor in JSON: what it is called, what its data are, of which kind it is."""
    held, _ = _described(kind.dtype, kind.shape)
    told = {"dtype": kind.dtype, "shape": kind.shape, "bytes": held}
    return {"name": name, **told, "data": data}


def table_document(entry: TableEntry) -> dict[str, Any]:
    """A table in JSON."""
    from dataclasses import asdict

    from windeck.checkpoint.tables.infos import info_of

    return {"dtype": "float32", **asdict(info_of(entry))}


def plain_values(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is no tensor, in trees as they are stored or as they were: the items of dicts by name,
    anything else whole."""
    for root, tree in roots.items():
        yield from _plain(tree, root)


def log(url: str, store: Store, namespace: str, *, json: bool) -> None:
    """Prints the generations kept, the one in force first."""
    commits = read_kept(store, namespace_of(namespace))
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
        for pair in tree["dict"]:
            if type(pair) is list:  # else it is a tensor
                yield from _plain(pair[1], f"{name}/{pair[0]}")
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
    return bool(trees.places_in(tree, "", short=True)[0])


def _print(
    found: Listing,
    names: list[str],
    leaves: list[Leaf],
    counts: tuple[int, int],
    depth: int | None,
    flat: bool,
) -> None:
    commit, (tensors, tables) = found.commit, counts
    count = f"{tensors:,} tensor{'s' * (tensors != 1)}"
    if tables:
        count += f", {tables:,} table{'s' * (tables != 1)}"
    head = f"{found.namespace}  generation {commit.generation}  step {commit.step}"
    total = output.size(sum([leaf[2] for leaf in leaves]))
    output.say(output.paint(f"{head}  {output.moment(commit.time)}  {count}  {total}", "bold"))
    if not all(map(str.isprintable, names)):
        names = [*map(shown, names)]
    rows: list[Line]
    if flat:
        rows = [(name, *leaf) for name, leaf in zip(names, leaves, strict=True)]
    else:
        rows = lines(names, leaves, depth=depth, unicode=output.unicode_ok())
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


def _tensor_leaves(saved: Catalog, names: Sequence[str], data: Sequence[str]) -> list[Leaf]:
    described = [_described(kind.dtype, kind.shape) for kind in saved.kinds]
    plain: list[Leaf] = [(beside, 1, held or 0) for held, beside in described]
    return [
        plain[saved.tensors[held]]
        if held == name
        else ((*plain[saved.tensors[held]][0][:3], f"= {shown(held)}"), 1, 0)
        for name, held in zip(names, data, strict=True)
    ]


def _table_leaf(table: dict[str, Any]) -> Leaf:
    shape = f"[{table['rows']:,} ids, {table['dim']}]"
    beside = (table["dtype"], shape, output.size(table["bytes"]), "table")
    return beside, 1, table["bytes"]


def _value_leaf(item: tuple[str, Any]) -> Leaf:
    text = shown(repr(item[1]))
    return ("", text if len(text) <= 60 else f"{text[:57]}...", "", ""), 0, 0


def _aligned(rows: Sequence[Line]) -> list[str]:
    """Columns of names, dtypes, shapes, bytes and remarks; values may be wider than shapes."""
    each = {id(row): row for row in rows}  # in a tree, many are the same object
    besides = {
        number: _totals(below, held) if beside is None else beside
        for number, (_, beside, below, held) in each.items()
    }
    every = {*besides.values()}
    name = max([len(row[0]) for row in each.values()])
    dtype, size = (max(len(beside[i]) for beside in every) for i in (0, 2))
    shape = max((len(beside[1]) for beside in every if beside[2]), default=0)
    line = f"  %-{dtype}s  %-{shape}s  %{size}s  %s"
    ends = {beside: (line % beside).rstrip() for beside in every}
    told = {
        number: text.ljust(name) + end if (end := ends[besides[number]]) else text
        for number, (text, *_) in each.items()
    }
    return [told[id(row)] for row in rows]
