"""What a page holds of an embedding table: first rows, statistics, how often ids were used."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from windeck.checkpoint.readers.statistics import Statistics
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.checkpoint.tables.links import TableEntry
from windeck.checkpoint.tables.reading import SavedTable, TableRows
from windeck.tools.view.page.limits import Spent
from windeck.tools.view.page.sampling import plain

__all__ = ["table_item"]


def table_item(view: View, namespace: str, entry: TableEntry, spent: Spent) -> dict[str, Any]:
    """A table as JSON; what is damaged of it is told in its note."""
    table, info = SavedTable(view, namespace, entry), None
    info = table.info
    links = [
        {"generation": link.generation, "rows": link.rows, "dead": link.dead, "since": link.since}
        for link in info.links
    ]
    item: dict[str, Any] = {
        "kind": "table", "name": info.name, "dim": info.dim, "rows": info.rows,
        "counted": info.counted, "slots": info.slots, "bytes": info.bytes, "clock": info.clock,
        "config": json.dumps(info.config), "links": links, "own": True, "note": "", "stats": None,
        "findings": None, "head": [], "frequencies": None,
    }  # fmt: skip
    try:
        _look_into(table, item, spent)
    except (CorruptStoreError, ValueError) as error:
        item["note"] = getattr(error, "strerror", None) or str(error)
        item["damaged"] = True
    return item


def _look_into(table: SavedTable, item: dict[str, Any], spent: Spent) -> None:
    limits, every = spent.limits, spent.may_read(table.info.name, table.info.bytes)
    found = Statistics("float32")
    used = np.zeros(65, np.int64)
    for rows in table.scan():
        if len(item["head"]) < limits.rows:
            item["head"] += _rows(rows, table.info.dim, limits.rows - len(item["head"]), spent)
        if not every and len(item["head"]) >= limits.rows:
            break
        if every:
            found.add(np.ascontiguousarray(rows.values[:, : table.info.dim], np.float32))
            used += _by_power(rows.frequencies)
    if not every:
        item["note"] = "Not read as a whole: see what this page holds, in the overview."
        return
    from windeck.tools.view.page.collecting import stats_of

    item["stats"] = stats_of(found.result())
    item["frequencies"] = _bars(used)


def _rows(rows: TableRows, dim: int, room: int, spent: Spent) -> list[dict[str, Any]]:
    """The first ids, as JSON; ids as text, which JavaScript would round."""
    row = np.cumsum(rows.admitted) - 1
    shown = []
    for i in range(min(room, len(rows))):
        values = None
        if rows.admitted[i]:
            numbers = rows.values[row[i], : min(dim, spent.limits.columns)].tolist()
            values = [plain(number, 9) for number in numbers]
        shown.append(
            {"id": str(int(rows.keys[i])), "frequency": int(rows.frequencies[i]),
             "version": int(rows.versions[i]), "seen": int(rows.seen[i]), "values": values}
        )  # fmt: skip
    return shown


def _by_power(frequencies: Any) -> Any:
    """How many are 0, 1, 2 to 3, 4 to 7, ..."""
    _, power = np.frexp(np.maximum(frequencies, 0).astype(np.float64))
    return np.bincount(np.minimum(power, 64), minlength=65)


def _bars(used: Any) -> list[list[Any]]:
    """Of each bin its ends, how many ids, and the share of the fullest bin."""
    most = max(1, int(used.max()))
    ends = [(0, 0)] + [(1 << (k - 1), (1 << k) - 1) for k in range(1, 65)]
    last = int(np.flatnonzero(used)[-1]) if used.any() else -1
    return [
        [*ends[k], int(used[k]), round(int(used[k]) / most, 4)]
        for k in range(last + 1)
        if k or used[k]
    ]
