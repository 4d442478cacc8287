"""Samples of tensors and tables for the HTML page, and numbers as its JSON has them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from windeck.checkpoint.format.boxes import boxes_in_range
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.read.scanning import read_box
from windeck.checkpoint.read.statistics import Statistics
from windeck.checkpoint.stores import CorruptStoreError, View
from windeck.checkpoint.tables.reading import SavedTable, TableRows
from windeck.cli.page.limits import Budget
from windeck.columns.elements import decode_elements

__all__ = ["NOT_READ", "digits_of", "json_number", "sample", "statistics_document", "table_item"]

NOT_READ = "Not read as a whole: see what this page holds, in the overview."
#: Numbers in a line of a vector, and columns of a sampled matrix.
_LINE, _COLUMNS = 8, 12


def json_number(value: Any, digits: int = 17) -> Any:
    """Return a number as JSON: as text if JavaScript would not read it exactly.

    Examples
    --------
    >>> [json_number(value, 9) for value in (float("nan"), 2**60, 1 - 2j, 0.1 + 0.2, True)]
    ['nan', '1152921504606846976', '1-2j', 0.3, True]
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else str(value)
    if isinstance(value, complex):
        return f"{value:.6g}"
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.{digits}g}")


def digits_of(dtype: str) -> int:
    """Return the digits that distinguish the numbers of a dtype."""
    return 17 if dtype == "float64" else 9 if dtype == "float32" else 6


def sample(
    view: View, namespace: str, entry: TensorEntry, whole: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return samples of values of a tensor, and whether they are the whole tensor."""
    total = math.prod(entry.shape)
    complete = total <= whole
    if len(entry.shape) < 2:
        ranges = [(0, total)] if complete else _spread(total, 64, 32)
        samples = [_vector(view, namespace, entry, *span) for span in ranges]
        return samples, complete
    rows, columns = math.prod(entry.shape[:-1]), entry.shape[-1]
    width = columns if complete else min(columns, _COLUMNS)
    ranges = [(0, rows)] if complete else _spread(rows, 8, 3)
    return [_matrix(view, namespace, entry, *span, width) for span in ranges if total], complete


def _spread(size: int, first: int, others: int) -> list[tuple[int, int]]:
    """Return ranges at the beginning, in the middle and at the end, which do not overlap."""
    if size <= first + 2 * others:
        return [(0, size)]
    middle = max(first, size // 2 - others // 2)
    end = max(middle + others, size - others)
    return [(0, first), (middle, middle + others), (end, size)]


def _vector(
    view: View, namespace: str, entry: TensorEntry, start: int, stop: int
) -> dict[str, Any]:
    box = ((start, stop),) if entry.shape else ()
    values = _values(view, namespace, entry, box)
    lines = range(0, len(values), _LINE)
    return {
        "label": f"[{start}:{stop}]",
        "flat": True,
        "first": 0,
        "at": [[start + i] if entry.shape else [] for i in lines],
        "rows": [values[i : i + _LINE] for i in lines],
    }


def _matrix(
    view: View, namespace: str, entry: TensorEntry, start: int, stop: int, width: int
) -> dict[str, Any]:
    """Return rows [start, stop) of all dimensions but the last, and `width` columns."""
    lead = entry.shape[:-1]
    rows: list[list[Any]] = []
    for box, _ in boxes_in_range(lead, start, stop):
        values = _values(view, namespace, entry, (*box, (0, width)))
        rows += [values[i : i + width] for i in range(0, len(values), width)]
    return {
        "label": f"{_range(lead, start, stop)} × [0:{width}]",
        "flat": False,
        "first": 0,
        "at": [list(index) for index in _indices(lead, start, stop)],
        "rows": rows,
    }


def _range(lead: Sequence[int], start: int, stop: int) -> str:
    first, last = (list(i) for i in (_index(lead, start), _index(lead, stop - 1)))
    return f"rows {first} to {last}"


def _indices(lead: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, ...]]:
    return (_index(lead, place) for place in range(start, stop))


def _index(lead: Sequence[int], place: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(place, lead))


def _values(view: View, namespace: str, entry: TensorEntry, box: Any) -> list[Any]:
    """Return the values of a box in row-major order, as JSON."""
    raw = np.ascontiguousarray(read_box(view, namespace, entry, box)).reshape(-1)
    digits = digits_of(entry.dtype)
    return [json_number(value, digits) for value in decode_elements(entry.dtype, raw).tolist()]


def statistics_document(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics as JSON."""
    names = ("count", "nan", "positive_infinite", "negative_infinite", "zeros")
    document = {name: found[name] for name in names}
    for name in ("min", "max", "mean", "std", "abs_max"):
        document[name] = None if found[name] is None else json_number(found[name])
    return document


def table_item(view: View, namespace: str, entry: TableEntry, budget: Budget) -> dict[str, Any]:
    """Return a table as JSON; its note reports damage."""
    table = SavedTable(view, namespace, entry)
    info = table.info
    links = [
        {"generation": link.generation, "rows": link.rows, "dead": link.dead, "since": link.since}
        for link in info.links
    ]
    item: dict[str, Any] = {
        "kind": "table", "name": info.name, "dtype": info.dtype, "dim": info.dim, "rows": info.rows,
        "counted": info.counted, "slots": info.slots, "bytes": info.bytes, "clock": info.clock,
        "config": json.dumps(info.config), "links": links, "own": True, "note": "", "stats": None,
        "findings": None, "head": [], "frequencies": None,
    }  # fmt: skip
    try:
        _add_rows(table, item, budget)
    except (CorruptStoreError, ValueError) as error:
        item["note"] = getattr(error, "strerror", None) or str(error)
        item["damaged"] = True
    return item


def _add_rows(table: SavedTable, item: dict[str, Any], budget: Budget) -> None:
    limits, every = budget.limits, budget.take_bytes(table.info.name, table.info.bytes)
    found = Statistics("float32")
    used = np.zeros(65, np.int64)
    for rows in table.scan():
        if len(item["head"]) < limits.rows:
            item["head"] += _rows(rows, table.info.dim, limits.rows - len(item["head"]), budget)
        if not every and len(item["head"]) >= limits.rows:
            break
        if every:
            found.add(np.ascontiguousarray(rows.values[:, : table.info.dim], np.float32))
            used += _by_power(rows.frequencies)
    if not every:
        item["note"] = NOT_READ
        return
    item["stats"] = statistics_document(found.result())
    item["frequencies"] = _bars(used)


def _rows(rows: TableRows, dim: int, limit: int, budget: Budget) -> list[dict[str, Any]]:
    """Return the first rows as JSON; ids are text, because JavaScript would round them."""
    row = np.cumsum(rows.admitted) - 1
    shown = []
    for i in range(min(limit, len(rows))):
        values = None
        if rows.admitted[i]:
            decode_elements = rows.values[row[i], : min(dim, budget.limits.columns)].tolist()
            values = [json_number(number, 9) for number in decode_elements]
        shown.append(
            {"id": str(int(rows.keys[i])), "frequency": int(rows.frequencies[i]),
             "version": int(rows.versions[i]), "seen": int(rows.seen[i]), "values": values}
        )  # fmt: skip
    return shown


def _by_power(frequencies: Any) -> Any:
    """Count frequencies of 0, 1, 2 to 3, 4 to 7, ..."""
    _, power = np.frexp(np.maximum(frequencies, 0).astype(np.float64))
    return np.bincount(np.minimum(power, 64), minlength=65)


def _bars(used: Any) -> list[list[Any]]:
    """Return for each bin its ends, its number of ids, and the share of the fullest bin."""
    most = max(1, int(used.max()))
    ends = [(0, 0)] + [(1 << (k - 1), (1 << k) - 1) for k in range(1, 65)]
    last = int(np.flatnonzero(used)[-1]) if used.any() else -1
    return [
        [*ends[k], int(used[k]), round(int(used[k]) / most, 4)]
        for k in range(last + 1)
        if k or used[k]
    ]
