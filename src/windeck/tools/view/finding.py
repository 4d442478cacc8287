"""`find`: numbers in tensors and tables, and rows by how often and when they were used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.listing import described
from windeck.tools.view.naming import TABLES, matching, places_of, unknown
from windeck.tools.view.output import number
from windeck.tools.view.session import Catalog, Different, Wrong, shown

if TYPE_CHECKING:
    from windeck.checkpoint.readers.where import Where

__all__ = ["Asked", "find"]

_SIGN = re.compile(r"\s*(<=|>=|==|!=|<|>)")


@dataclass(frozen=True)
class Asked:
    """What is sought, as text: of numbers (one of them has to hold), and of rows (all have to)."""

    where: str | None = None
    nan: bool = False
    inf: bool = False
    eq: str | None = None
    tol: float | None = None
    freq: str | None = None
    version: str | None = None
    seen: str | None = None


def find(
    store: Store, found: Catalog, pattern: str | None, asked: Asked, *, limit: int, json: bool
) -> None:
    """Prints what was found; `Different` when that is nothing."""
    values, rows = _of_values(asked), _of_rows(asked)
    if values is None and not rows:
        raise Wrong(
            "nothing is sought, expected --where, --nan, --inf, --eq, --freq, --version or --seen"
        )
    tensors, tables = _searched(found, pattern)
    if rows and not tables:
        raise Wrong("--freq, --version and --seen are of embedding tables, expected one")
    documents = [] if rows or values is None else _tensors(store, found, tensors, values, limit)
    told = [_table(store, found, name, values, rows, limit) for name in tables]
    count = sum(one["count"] for one in (*documents, *told))
    if json:
        parts = {"count": count, "tensors": documents, "tables": told}
        output.write_json({**described(found), **parts})
    else:
        _print(documents, told, count)
    if not count:
        raise Different


def _of_values(asked: Asked) -> Where | None:
    from windeck.checkpoint.readers import where

    found: list[Where] = []
    try:
        if asked.where is not None:
            found.append(where.parse(asked.where))
        if asked.nan:
            found.append(where.nan())
        if asked.inf:
            found.append(where.parse("inf"))
        if asked.eq is not None:
            found.append(where.near(_number(asked.eq), asked.tol or 0))
        elif asked.tol is not None:
            raise Wrong("--tol is how far from --eq, expected both")
    except (TypeError, ValueError) as error:
        raise Wrong(str(error)) from error
    if not found:
        return None
    either = found[0]
    for other in found[1:]:
        either = either | other
    return either


def _of_rows(asked: Asked) -> dict[str, Where]:
    from windeck.checkpoint.readers import where

    found = {}
    for name, key in (("freq", "frequency"), ("version", "version"), ("seen", "seen")):
        text = getattr(asked, name)
        if text is None:
            continue
        if not _SIGN.match(text):
            raise Wrong(f"--{name} is {text[:40]!r}, expected such as '>10'")
        try:
            found[key] = where.parse(f"value {text}")
        except ValueError as error:
            raise Wrong(f"--{name} is {text[:40]!r}, expected such as '>10'") from error
    return found


def _number(text: str) -> complex:
    """A number as Python writes it: whole ones exactly."""
    for kind in (int, float, complex):
        try:
            found: complex = kind(text.strip().replace(" ", ""))
        except ValueError:
            continue
        return found
    raise Wrong(f"--eq is {text[:40]!r}, expected a number")


def _searched(found: Catalog, pattern: str | None) -> tuple[dict[str, str], list[str]]:
    """Tensors, the name their data are under with the first of their own, and tables."""
    wanted = (lambda _: True) if pattern is None else matching(pattern)
    tensors: dict[str, str] = {}
    for name, data in places_of(found).items():
        if wanted(name):
            tensors.setdefault(data, name)
    tables = [name for name in found.tables if wanted(TABLES + name) or (pattern and wanted(name))]
    if pattern is not None and not (tensors or tables):
        known = [*places_of(found), *(TABLES + name for name in found.tables)]
        raise unknown(found, pattern, "tensor or table", others=known)
    return tensors, tables


def _tensors(
    store: Store, found: Catalog, tensors: dict[str, str], values: Where, limit: int
) -> list[dict[str, Any]]:
    from windeck.checkpoint.searching import search_tensor

    told = []
    for data, name in tensors.items():
        entry = found.entries[data]
        result = search_tensor(store, found.namespace, entry, values, limit=limit)
        matches = [{"index": match.index, "value": match.value} for match in result.matches]
        counts = {"count": result.count, "elements": result.elements}
        told.append({"name": name, **counts, "matches": matches, "skipped": result.skipped})
    return told


def _table(
    store: Store,
    found: Catalog,
    name: str,
    values: Where | None,
    rows: dict[str, Where],
    limit: int,
) -> dict[str, Any]:
    from windeck.checkpoint.readers.searching_tables import search_table
    from windeck.checkpoint.tables.reading import SavedTable

    table = SavedTable(store, found.namespace, found.tables[name])
    count, matches = search_table(table, values=values, limit=limit, **rows)
    told = [
        {
            "id": match.id,
            "version": match.version,
            "frequency": match.frequency,
            "seen": match.seen,
            "columns": match.columns,
            "values": match.values,
        }
        for match in matches
    ]
    return {"name": name, "count": count, "rows": told}


def _print(tensors: Sequence[dict[str, Any]], tables: Sequence[dict[str, Any]], count: int) -> None:
    for one in (*tensors, *tables):
        if one.get("skipped"):
            output.say(output.paint(f"{shown(one['name'])}  skipped: {one['skipped']}", "yellow"))
        elif one["count"]:
            output.say(*_lines(one))
    output.say(output.paint(f"{count:,} found", "bold"))


def _lines(one: dict[str, Any]) -> Iterator[str]:
    matches = one["matches"] if "matches" in one else one["rows"]
    share = f" of {one['elements']:,}" if "elements" in one else ""
    yield output.paint(f"{shown(one['name'])}  {one['count']:,}{share}", "bold")
    if "matches" in one:
        rows = [(f"  {list(match['index'])}", number(match["value"])) for match in matches]
    else:
        rows = [(f"  id {match['id']}", _row_text(match)) for match in matches]
    yield from output.columns(rows) if rows else ()
    if one["count"] > len(matches):
        yield output.paint(f"  and {one['count'] - len(matches):,} more", "dim")


def _row_text(match: dict[str, Any]) -> str:
    told = f"version {match['version']}  frequency {match['frequency']}  seen {match['seen']}"
    pairs = zip(match["columns"][:4], match["values"][:4], strict=True)
    cells = [f"[{column}] {number(value)}" for column, value in pairs]
    return "  ".join([told, *cells, *["..."] * (len(match["columns"]) > 4)])
