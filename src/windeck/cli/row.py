"""`row`: rows of embedding tables by id, and of tensors by number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.stores import Store
from windeck.checkpoint.tables.reading import SavedTable
from windeck.cli.catalog import (
    ManifestContents,
    checkpoint_document,
    find_table,
    opened_checkpoint,
    table_document,
    tensor_and_table_names,
    tensor_document,
    tensor_names,
    unknown_name,
)
from windeck.cli.output import format_number, print_json, print_table
from windeck.cli.parser import Namespace, add_command, add_generation
from windeck.cli.session import NegativeResult, UsageError
from windeck.cli.show import parse_slice, read_values

__all__ = ["add_parser", "run"]

#: Numbers of a row that are printed as text; JSON has all of them.
SHOWN = 8


def add_parser(commands: Any) -> None:
    """Add the command `row`."""
    parser = add_command(
        commands, "row",
        "Print rows of an embedding table by id, or of a tensor by number. 1: an id is not known.",
        run,
    )  # fmt: skip
    parser.add_argument("name", metavar="TABLE", help="An embedding table, or a tensor.")
    parser.add_argument("ids", metavar="ID", nargs="+", help="Ids, or numbers of rows.")
    add_generation(parser)


def run(arguments: Namespace) -> None:
    """Print rows."""
    with opened_checkpoint(arguments) as (store, found):
        name, wanted = arguments.name, [_integer(text) for text in arguments.ids]
        data = tensor_names(found).get(name)
        if data is not None:
            entry = found.entries[data]
            document = tensor_document(name, data, entry)
            rows = [_tensor_row(store, found, entry, index) for index in wanted]
        else:
            table = find_table(found, name)
            if table is None:
                known = tensor_and_table_names(found)
                raise unknown_name(found, name, "tensor or table", known=known)
            document = {"table": table_document(table)}
            rows = _table_rows(store, found, table, wanted)
        if arguments.json:
            print_json({**checkpoint_document(found), **document, "rows": rows})
        else:
            _print(rows)
        if not all(one.get("found", True) for one in rows):
            raise NegativeResult


def _integer(text: str) -> int:
    """Parse an integer of 64 bits."""
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise UsageError(f"an id is {text[:40]!r}, expected an integer of 64 bits")
    return int(text)


def _tensor_row(
    store: Store, found: ManifestContents, entry: TensorEntry, index: int
) -> dict[str, Any]:
    if not entry.shape:
        raise UsageError(f"{entry.name} has no dimensions, expected a tensor with rows")
    count = entry.shape[0]
    if not -count <= index < count:
        rest = f", expected one of {-count} to {count - 1}" if count else ": it has none"
        raise UsageError(f"{entry.name} has no row {index}{rest}")
    values = read_values(store, found, entry, parse_slice(str(index), entry.shape))
    return {"id": index, "values": values.tolist()}


def _table_rows(
    store: Store, found: ManifestContents, table: TableEntry, ids: Sequence[int]
) -> list[dict[str, Any]]:
    rows = SavedTable(store, found.namespace, table).rows(np.array(ids, np.int64))
    shape = table.shape
    each = [rows.values[:, shape.columns_of(number)].tolist() for number in range(1 + shape.slots)]
    values = zip(*each, strict=True)
    known = []
    for i, key in enumerate(rows.keys.tolist()):
        one: dict[str, Any] = {"id": key, "found": bool(rows.found[i])}
        one |= {"admitted": bool(rows.admitted[i]), "version": int(rows.versions[i])}
        one |= {"frequency": int(rows.frequencies[i]), "seen": int(rows.seen[i])}
        parts: list[Any] = list(next(values)) if one["admitted"] else [None]
        known.append({**one, "values": parts[0], "slots": parts[1:]})
    return known


def _print(rows: Sequence[dict[str, Any]]) -> None:
    headings = [name for name in rows[0] if name not in ("values", "slots", "found")]
    lines = []
    for one in rows:
        cells = [str(one[name]) for name in headings]
        lines.append([*cells, _text(one["values"]) if one.get("found", True) else "not found"])
    print_table([*headings, "values"], lines, right=[0])


def _text(values: Any) -> str:
    if values is None:
        return "no row"
    if not isinstance(values, list):
        return format_number(values)
    texts = [_text(value) for value in values[:SHOWN]]
    left = len(values) - len(texts)
    return f"[{', '.join(texts)}{f', ... {left:,} more' if left else ''}]"
