"""`find`: numbers in tensors and tables, and rows of tables by frequency and version."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from windeck._util.progress import report_progress
from windeck._util.terminal import escaped
from windeck.checkpoint.read import predicates
from windeck.checkpoint.read.predicates import Predicate
from windeck.checkpoint.read.searching import search_table, search_tensor
from windeck.checkpoint.stores import Store
from windeck.checkpoint.tables.reading import SavedTable
from windeck.cli.catalog import (
    TABLES,
    ManifestContents,
    checkpoint_document,
    name_filter,
    opened_checkpoint,
    tensor_and_table_names,
    tensor_names,
    unknown_name,
)
from windeck.cli.output import aligned, colored, format_number, print_json, print_lines
from windeck.cli.parser import PATTERN, Namespace, add_command, add_generation, at_least, number
from windeck.cli.session import NegativeResult, UsageError

__all__ = ["add_parser", "run"]

_COMPARISON = re.compile(r"\s*(<=|>=|==|!=|<|>)")


def add_parser(commands: Any) -> None:
    """Add the command `find`."""
    parser = add_command(
        commands, "find",
        "Search tensors and tables by value. 0: something was found; 1: nothing.", run,
    )  # fmt: skip
    parser.add_argument("name", nargs="?", help=f"{PATTERN} (default: everything).")
    for option, metavar, text in (
        ("--where", "TEXT", "A condition, such as 'abs>1e3', '-1 <= value < 1 or nan'."),
        ("--eq", "V", "Numbers that equal V."),
        ("--freq", "TEXT", "Ids by the number of look-ups: '>10'."),
        ("--version", "TEXT", "Ids by the clock of their last update: '<1000'."),
        ("--seen", "TEXT", "Ids by the clock of their last look-up: '<1000'."),
    ):
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("--nan", action="store_true", help="NaNs.")
    parser.add_argument("--inf", action="store_true", help="Infinities.")
    parser.add_argument("--tol", type=number, metavar="T", help="Numbers within T of V, too.")
    parser.add_argument(
        "--limit", type=at_least(0), default=20, metavar="N",
        help="Matches to print of each tensor (default: 20).",
    )  # fmt: skip
    add_generation(parser)


def run(arguments: Namespace) -> None:
    """Print what was found; `NegativeResult` when that is nothing."""
    with opened_checkpoint(arguments) as (store, found):
        values, rows = _value_condition(arguments), _row_conditions(arguments)
        if values is None and not rows:
            raise UsageError(
                "nothing is searched for, expected --where, --nan, --inf, --eq, --freq, "
                "--version or --seen"
            )
        tensors, tables = _searched(found, arguments.name)
        if rows and not tables:
            raise UsageError("--freq, --version and --seen are for embedding tables, expected one")
        limit, in_tensors = arguments.limit, list[dict[str, Any]]()
        if values is not None and not rows:
            in_tensors = _in_tensors(store, found, tensors, values, limit)
        in_tables = [_in_table(store, found, name, values, rows, limit) for name in tables]
        count = sum(one["count"] for one in (*in_tensors, *in_tables))
        if arguments.json:
            parts = {"count": count, "tensors": in_tensors, "tables": in_tables}
            print_json({**checkpoint_document(found), **parts})
        else:
            _print(in_tensors, in_tables, count)
        if not count:
            raise NegativeResult


def _value_condition(arguments: Namespace) -> Predicate | None:
    found: list[Predicate] = []
    try:
        if arguments.where is not None:
            found.append(predicates.parse(arguments.where))
        if arguments.nan:
            found.append(predicates.nan())
        if arguments.inf:
            found.append(predicates.parse("inf"))
        if arguments.eq is not None:
            found.append(predicates.near(_number(arguments.eq), arguments.tol or 0))
        elif arguments.tol is not None:
            raise UsageError("--tol is a distance from --eq, expected both")
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    if not found:
        return None
    either = found[0]
    for other in found[1:]:
        either = either | other
    return either


def _row_conditions(arguments: Namespace) -> dict[str, Predicate]:
    found = {}
    for name, key in (("freq", "frequency"), ("version", "version"), ("seen", "seen")):
        text = getattr(arguments, name)
        if text is None:
            continue
        if not _COMPARISON.match(text):
            raise UsageError(f"--{name} is {text[:40]!r}, expected such as '>10'")
        try:
            found[key] = predicates.parse(f"value {text}")
        except ValueError as error:
            raise UsageError(f"--{name} is {text[:40]!r}, expected such as '>10'") from error
    return found


def _number(text: str) -> complex:
    """Parse a number as Python writes it, whole ones exactly."""
    for kind in (int, float, complex):
        try:
            found: complex = kind(text.strip().replace(" ", ""))
        except ValueError:
            continue
        return found
    raise UsageError(f"--eq is {text[:40]!r}, expected a number")


def _searched(found: ManifestContents, pattern: str | None) -> tuple[dict[str, str], list[str]]:
    """Return tensors, by the name of their data their first name that matches; and tables."""
    wanted = (lambda _: True) if pattern is None else name_filter(pattern)
    tensors: dict[str, str] = {}
    for name, data in tensor_names(found).items():
        if wanted(name):
            tensors.setdefault(data, name)
    tables = [name for name in found.tables if wanted(TABLES + name) or (pattern and wanted(name))]
    if pattern is not None and not (tensors or tables):
        known = tensor_and_table_names(found)
        raise unknown_name(found, pattern, "tensor or table", known=known)
    return tensors, tables


def _in_tensors(
    store: Store, found: ManifestContents, tensors: dict[str, str], values: Predicate, limit: int
) -> list[dict[str, Any]]:
    documents = []
    total = sum(math.prod(found.entries[data].shape) for data in tensors)
    with report_progress(None, "searching", total) as advance:
        for data, name in tensors.items():
            entry = found.entries[data]
            result = search_tensor(
                store, found.namespace, entry, values, limit=limit, advance=advance
            )
            matches = [{"index": match.index, "value": match.value} for match in result.matches]
            counts = {"count": result.count, "elements": result.elements}
            rest = {"matches": matches, "skipped": result.skipped}
            documents.append({"name": name, **counts, **rest})
    return documents


def _in_table(
    store: Store,
    found: ManifestContents,
    name: str,
    values: Predicate | None,
    rows: dict[str, Predicate],
    limit: int,
) -> dict[str, Any]:
    table = SavedTable(store, found.namespace, found.tables[name])
    ids = table.info.rows + table.info.counted
    with report_progress(None, f"searching {name}", ids) as advance:
        count, matches = search_table(table, values=values, limit=limit, advance=advance, **rows)
    documents = [
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
    return {"name": name, "count": count, "rows": documents}


def _print(tensors: Sequence[dict[str, Any]], tables: Sequence[dict[str, Any]], count: int) -> None:
    for one in (*tensors, *tables):
        if one.get("skipped"):
            print_lines(
                colored(f"{escaped(one['name'])}  skipped: {escaped(one['skipped'])}", "yellow")
            )
        elif one["count"]:
            print_lines(*_lines(one))
    print_lines(colored(f"{count:,} found", "bold"))


def _lines(one: dict[str, Any]) -> Iterator[str]:
    matches = one["matches"] if "matches" in one else one["rows"]
    share = f" of {one['elements']:,}" if "elements" in one else ""
    yield colored(f"{escaped(one['name'])}  {one['count']:,}{share}", "bold")
    if "matches" in one:
        rows = [(f"  {list(match['index'])}", format_number(match["value"])) for match in matches]
    else:
        rows = [(f"  id {match['id']}", _row_text(match)) for match in matches]
    yield from aligned(rows) if rows else ()
    if one["count"] > len(matches):
        yield colored(f"  and {one['count'] - len(matches):,} more", "dim")


def _row_text(match: dict[str, Any]) -> str:
    text = f"version {match['version']}  frequency {match['frequency']}  seen {match['seen']}"
    pairs = zip(match["columns"][:4], match["values"][:4], strict=True)
    cells = [f"[{column}] {format_number(value)}" for column, value in pairs]
    return "  ".join([text, *cells, *["..."] * (len(match["columns"]) > 4)])
