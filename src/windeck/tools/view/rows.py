"""`row`: rows of tensors by number, and of embedding tables by id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.stores import Store
from windeck.checkpoint.tables.links import TableEntry
from windeck.tools.view import output
from windeck.tools.view.listing import described, table_document, tensor_document
from windeck.tools.view.naming import TABLES, places_of, table_called, unknown
from windeck.tools.view.output import number
from windeck.tools.view.session import Catalog, Different, Wrong

__all__ = ["integer", "row"]

#: Numbers of a row that are printed for people; JSON has all of them.
SHOWN = 8


def row(store: Store, found: Catalog, name: str, ids: Sequence[str], *, json: bool) -> None:
    """Prints rows; `Different` when an id is not known."""
    wanted = [integer(text, "an id") for text in ids]
    data = places_of(found).get(name)
    if data is not None:
        entry = found.entries[data]
        document = {**described(found), **tensor_document(name, data, entry)}
        rows = [_dense(store, found, entry, place) for place in wanted]
    else:
        table = table_called(found, name)
        if table is None:
            known = [*places_of(found), *(TABLES + known for known in found.tables)]
            raise unknown(found, name, "tensor or table", others=known)
        document = {**described(found), "table": table_document(table)}
        rows = _embedded(store, found, table, wanted)
    if json:
        output.write_json({**document, "rows": rows})
    else:
        _print(rows)
    if not all(one.get("found", True) for one in rows):
        raise Different


def integer(text: str, what: str) -> int:
    """A whole number of 64 bits; negative ones too."""
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise Wrong(f"{what} is {text[:40]!r}, expected an integer of 64 bits")
    return int(text)


def _dense(store: Store, found: Catalog, entry: Entry, place: int) -> dict[str, Any]:
    from windeck.tools.view.showing import values_of
    from windeck.tools.view.slicing import cut

    if not entry.shape:
        raise Wrong(f"{entry.name} has no dimensions, expected a tensor with rows")
    count = entry.shape[0]
    if not -count <= place < count:
        rest = f", expected one of {-count} to {count - 1}" if count else ": it has none"
        raise Wrong(f"{entry.name} has no row {place}{rest}")
    values = values_of(store, found, entry, cut(str(place), entry.shape))
    return {"id": place, "values": values.tolist()}


def _embedded(
    store: Store, found: Catalog, table: TableEntry, ids: Sequence[int]
) -> list[dict[str, Any]]:
    import numpy as np

    from windeck.checkpoint.tables.reading import SavedTable

    rows = SavedTable(store, found.namespace, table).rows(np.array(ids, np.int64))
    shape = len(rows.values), 1 + table.shape.slots, table.shape.dim
    values: Iterator[Any] = iter(cast(Any, rows.values.reshape(shape).tolist()))
    known = []
    for i, key in enumerate(rows.keys.tolist()):
        one: dict[str, Any] = {"id": key, "found": bool(rows.found[i])}
        one |= {"admitted": bool(rows.admitted[i]), "version": int(rows.versions[i])}
        one |= {"frequency": int(rows.frequencies[i]), "seen": int(rows.seen[i])}
        parts = next(values) if one["admitted"] else [None]
        known.append({**one, "values": parts[0], "slots": parts[1:]})
    return known


def _print(rows: Sequence[dict[str, Any]]) -> None:
    headings = [name for name in rows[0] if name not in ("values", "slots", "found")]
    lines = []
    for one in rows:
        cells = [str(one[name]) for name in headings]
        lines.append([*cells, _listed(one["values"]) if one.get("found", True) else "not found"])
    output.table([*headings, "values"], lines, right=[0])


def _listed(values: Any) -> str:
    if values is None:
        return "no row"
    if not isinstance(values, list):
        return number(values)
    told = [_listed(value) for value in values[:SHOWN]]
    left = len(values) - len(told)
    return f"[{', '.join(told)}{f', ... {left:,} more' if left else ''}]"
