"""`diff`: the differences of two generations."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import Any

from windeck._util.terminal import escaped
from windeck.checkpoint.read import comparing
from windeck.checkpoint.stores import Store
from windeck.cli.output import colored, format_number, print_json, print_lines, print_table
from windeck.cli.parser import Namespace, add_command, generation
from windeck.cli.session import (
    NegativeResult,
    checked_namespace,
    opened_store,
    redacted_url,
)

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command `diff`."""
    parser = add_command(
        commands, "diff", "Compare two generations bit for bit. 0: they are equal; 1: they differ.",
        run,
    )  # fmt: skip
    parser.add_argument(
        "first", type=_generation, metavar="GEN", help="A generation that `log` shows, or its tag."
    )
    parser.add_argument(
        "second", type=_generation, nargs="?", metavar="GEN",
        help="Another generation (default: the current one).",
    )  # fmt: skip
    parser.add_argument("--other", metavar="URL", help="The store of the second one.")
    parser.add_argument("--other-namespace", metavar="TEXT", help="The namespace of the second.")


def _generation(text: str) -> int | str:
    if "://" in text:
        raise ArgumentTypeError(
            "expected a generation or a tag, found a URL: `diff GEN --other URL` compares with "
            "another store"
        )
    return generation(text)


def run(arguments: Namespace) -> None:
    """Print the differences; `NegativeResult` where there are any."""
    url, other = arguments.url, arguments.other
    generations = arguments.first, arguments.second
    spaces = [
        checked_namespace(name)
        for name in (arguments.namespace, arguments.other_namespace or arguments.namespace)
    ]
    with opened_store(url) as store:
        if other is None:
            found = _compared(store, *generations, None, spaces)
        else:
            with opened_store(other) as second:
                found = _compared(store, *generations, second, spaces)
    document = _document(found)
    if arguments.json:
        urls = {"url": redacted_url(url), "other": redacted_url(other or url)}
        print_json({**urls, **document})
    else:
        _print(document)
    if found:
        raise NegativeResult


def _compared(
    store: Store, first: int | str, second: int | str | None, other: Store | None, spaces: list[str]
) -> Any:
    return comparing.diff(
        store, first, second, other=other, namespace=spaces[0], other_namespace=spaces[1]
    )


def _document(found: Any) -> dict[str, Any]:
    sides = [{"generation": c.generation, "step": c.step} for c in (found.first, found.second)]
    tensors = []
    for one in found.tensors:
        item = asdict(one)
        for side in ("first", "second"):
            kind = item[side]
            item[side] = None if kind is None else {"dtype": kind[0], "shape": kind[1]}
        tensors.append({"name": one.name, "what": _difference(one), **item})
    values = []
    for one in found.values:
        item = {"name": one.name, "what": "changed"}
        for side, what in (("first", "only in second"), ("second", "only in first")):
            value = getattr(one, side)
            item |= {side: None, "what": what} if value is ... else {side: value}
        values.append(item)
    return {
        "first": sides[0],
        "second": sides[1],
        "equal": found.equal,
        "tensors": tensors,
        "values": values,
        "tables": [asdict(one) for one in found.tables],
    }


def _difference(one: Any) -> str:
    if one.first is None or one.second is None:
        return "only in first" if one.second is None else "only in second"
    if one.first != one.second:
        return "shape" if one.first[0] == one.second[0] else "dtype"
    return "values"


def _print(document: dict[str, Any]) -> None:
    first, second = document["first"], document["second"]
    sides = [f"generation {one['generation']} (step {one['step']})" for one in (first, second)]
    head = f"{' and '.join(sides)}: {document['equal']:,} tensors are equal"
    print_lines(colored(head, "bold"))
    if document["tensors"]:
        print_lines("")
        headings = ("tensor", "differs in", "changed", "first at", "largest by")
        print_table(headings, [_tensor(one) for one in document["tensors"]], right=(2, 4))
    if document["values"]:
        print_lines("")
        rows = [(one["name"], one["what"], *_sides(one)) for one in document["values"]]
        print_table(("value", "differs in", "first", "second"), rows)
    if document["tables"]:
        print_lines("")
        keys = ("only_first", "only_second", "changed")
        rows = [
            (one["name"], *(f"{one[key]:,}" for key in keys), one["note"])
            for one in document["tables"]
        ]
        headings = ("table", "ids removed", "added", "changed", "")
        print_table(headings, rows, right=(1, 2, 3))


def _tensor(one: dict[str, Any]) -> tuple[str, ...]:
    if one["what"] != "values":
        kinds = [_kind(one[side]) for side in ("first", "second")]
        what = one["what"] if None in kinds else f"{kinds[0]} -> {kinds[1]}"
        return one["name"], what, "", "", ""
    share = f"{one['changed']:,} of {one['elements']:,}"
    far = "" if one["largest"] is None else format_number(one["largest"])
    return one["name"], "values", share, str(list(one["index"])), far


def _kind(kind: dict[str, Any] | None) -> str | None:
    return None if kind is None else f"{kind['dtype']} {list(kind['shape'])}"


def _sides(one: dict[str, Any]) -> list[str]:
    return [escaped(repr(one[side]))[:60] for side in ("first", "second")]
