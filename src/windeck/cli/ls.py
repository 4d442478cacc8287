"""`ls`: names, dtypes, shapes and bytes of a checkpoint, from its manifest alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from windeck._util.terminal import escaped
from windeck.checkpoint.format.catalogs import Catalog
from windeck.cli.catalog import (
    TABLES,
    Listing,
    checkpoint_document,
    name_filter,
    plain_values,
    read_listing,
    table_document,
    tensor_bytes,
    tensor_document,
)
from windeck.cli.output import (
    colored,
    format_size,
    format_time,
    print_json,
    print_lines,
    unicode_ok,
)
from windeck.cli.parser import PATTERN, Namespace, add_command, add_generation, at_least
from windeck.cli.session import NegativeResult, opened_store
from windeck.cli.tree import Columns, Leaf, Line, lines

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command `ls`."""
    parser = add_command(
        commands, "ls", "List names, dtypes, shapes and bytes, from the manifest alone.", run
    )
    parser.add_argument("pattern", nargs="?", help=f"{PATTERN} (default: all).")
    parser.add_argument(
        "--depth", type=at_least(1), metavar="N", help="Levels of groups to show (default: all)."
    )
    parser.add_argument("--flat", action="store_true", help="Print whole names, one on a line.")
    add_generation(parser)


def run(arguments: Namespace) -> None:
    """Print tensors, tables and plain values."""
    with opened_store(arguments.url) as store:
        found = read_listing(arguments, store)
    saved = found.saved
    names, data = [*chain(*saved.names.values())], [*chain(*saved.data.values())]
    tables = [*map(table_document, saved.tables.values())]
    values = [*plain_values(saved.trees)]
    if arguments.pattern is not None:
        wanted = name_filter(arguments.pattern)
        data = [held for name, held in zip(names, data, strict=True) if wanted(name)]
        names = [*filter(wanted, names)]
        tables = [table for table in tables if wanted(TABLES + table["name"])]
        values = [value for value in values if wanted(value[0])]
    if arguments.json:
        kinds = (saved.kinds[saved.tensors[name]] for name in data)
        documents = [*map(tensor_document, names, data, kinds)]
        texts = [{"name": name, "value": value} for name, value in values]
        held = sum(t["bytes"] or 0 for t in documents if t["data"] == t["name"])
        held += sum(table["bytes"] for table in tables)
        parts = {"tensors": documents, "tables": tables, "values": texts}
        tags = found.commit.tags
        print_json({**checkpoint_document(found), "tags": tags, "bytes": held, **parts})
    else:
        leaves = _tensor_leaves(saved, names, data)
        leaves += [*map(_table_leaf, tables), *map(_value_leaf, values)]
        counts = len(names), len(tables)
        names += [TABLES + table["name"] for table in tables] + [name for name, _ in values]
        _print_header(found, counts, sum([leaf[2] for leaf in leaves]))
        _print_names(arguments, names, leaves)
    if arguments.pattern is not None and not names and not tables and not values:
        raise NegativeResult


def _print_header(found: Listing, counts: tuple[int, int], held: int) -> None:
    commit, (tensors, tables) = found.commit, counts
    count = _count(tensors, "tensor")
    if tables:
        count += f", {_count(tables, 'table')}"
    head = f"{found.namespace}  generation {commit.generation}  step {commit.step}"
    head += f"  {format_time(commit.time)}  {count}  {format_size(held)}"
    if commit.tags:
        head += f"  tags {', '.join(commit.tags)}"
    print_lines(colored(head, "bold"))


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _print_names(arguments: Namespace, names: list[str], leaves: list[Leaf]) -> None:
    if not all(map(str.isprintable, names)):
        names = [*map(escaped, names)]
    rows: list[Line]
    if arguments.flat:
        rows = [(name, *leaf) for name, leaf in zip(names, leaves, strict=True)]
    else:
        rows = lines(names, leaves, depth=arguments.depth, unicode=unicode_ok())
    if rows:
        print_lines(*_aligned(rows))


@lru_cache(1000)
def _group_columns(tensors: int, held: int) -> Columns:
    return ("", _count(tensors, "tensor"), format_size(held), "") if tensors else ("", "", "", "")


def _tensor_leaves(saved: Catalog, names: Sequence[str], data: Sequence[str]) -> list[Leaf]:
    leaves: list[Leaf] = []  # one for all tensors of the same dtype and shape
    for kind in saved.kinds:
        held = tensor_bytes(kind.dtype, kind.shape)
        leaves.append(
            ((escaped(kind.dtype), str(list(kind.shape)), format_size(held), ""), 1, held or 0)
        )
    return [
        leaves[saved.tensors[held]]
        if held == name
        else ((*leaves[saved.tensors[held]][0][:3], f"= {escaped(held)}"), 1, 0)
        for name, held in zip(names, data, strict=True)
    ]


def _table_leaf(table: dict[str, Any]) -> Leaf:
    shape = f"[{table['rows']:,} ids, {table['dim']}]"
    columns = (escaped(table["dtype"]), shape, format_size(table["bytes"]), "table")
    return columns, 1, table["bytes"]


def _value_leaf(item: tuple[str, Any]) -> Leaf:
    text = escaped(repr(item[1]))
    return ("", text if len(text) <= 60 else f"{text[:57]}...", "", ""), 0, 0


def _aligned(rows: Sequence[Line]) -> list[str]:
    """Align names, dtypes, shapes, bytes and remarks; values may be wider than shapes."""
    each = {id(row): row for row in rows}  # in a tree, many are the same object
    columns = {
        key: _group_columns(tensors, held) if shown is None else shown
        for key, (_, shown, tensors, held) in each.items()
    }
    every = {*columns.values()}
    name = max([len(row[0]) for row in each.values()])
    dtype, size = (max(len(cells[i]) for cells in every) for i in (0, 2))
    shape = max((len(cells[1]) for cells in every if cells[2]), default=0)
    line = f"  %-{dtype}s  %-{shape}s  %{size}s  %s"
    ends = {cells: (line % cells).rstrip() for cells in every}
    texts = {
        key: text.ljust(name) + end if (end := ends[columns[key]]) else text
        for key, (text, *_) in each.items()
    }
    return [texts[id(row)] for row in rows]
