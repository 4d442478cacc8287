"""`diff`: what two generations differ in."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.output import number
from windeck.tools.view.session import Different, namespace_of, opened_store, plain_url, shown

__all__ = ["diff"]


def diff(
    url: str,
    store: Store,
    first: int,
    second: int | None,
    *,
    other: str | None,
    namespace: str,
    other_namespace: str | None,
    json: bool,
) -> None:
    """Prints the differences; `Different` where there are any."""
    spaces = [namespace_of(name) for name in (namespace, other_namespace or namespace)]
    if other is None:
        found = _compared(store, first, second, None, spaces)
    else:
        with opened_store(other) as there:
            found = _compared(store, first, second, there, spaces)
    document = _document(found)
    if json:
        urls = {"url": plain_url(url), "other": plain_url(other or url)}
        output.write_json({**urls, **document})
    else:
        _print(document)
    if found:
        raise Different


def _compared(
    store: Store, first: int, second: int | None, other: Store | None, spaces: list[str]
) -> Any:
    from windeck.checkpoint import comparing

    return comparing.diff(
        store, first, second, other=other, namespace=spaces[0], other_namespace=spaces[1]
    )


def _document(found: Any) -> dict[str, Any]:
    sides = [{"generation": c.generation, "step": c.step} for c in (found.first, found.second)]
    tensors = []
    for one in found.tensors:
        told = asdict(one)
        for side in ("first", "second"):
            kind = told[side]
            told[side] = None if kind is None else {"dtype": kind[0], "shape": kind[1]}
        tensors.append({"name": one.name, "what": _what(one), **told})
    values = []
    for one in found.values:
        told = {"name": one.name, "what": "changed"}
        for side, what in (("first", "only in second"), ("second", "only in first")):
            value = getattr(one, side)
            told |= {side: None, "what": what} if value is ... else {side: value}
        values.append(told)
    return {
        "first": sides[0],
        "second": sides[1],
        "equal": found.equal,
        "tensors": tensors,
        "values": values,
        "tables": [asdict(one) for one in found.tables],
    }


def _what(one: Any) -> str:
    if one.first is None or one.second is None:
        return "only in first" if one.second is None else "only in second"
    if one.first != one.second:
        return "shape" if one.first[0] == one.second[0] else "dtype"
    return "values"


def _print(told: dict[str, Any]) -> None:
    first, second = told["first"], told["second"]
    head = f"generation {first['generation']} (step {first['step']}) and generation "
    head += f"{second['generation']} (step {second['step']}): {told['equal']:,} tensors are equal"
    output.say(output.paint(head, "bold"))
    if told["tensors"]:
        output.say("")
        headings = ("tensor", "differs in", "changed", "first at", "largest by")
        output.table(headings, [_tensor(one) for one in told["tensors"]], right=(2, 4))
    if told["values"]:
        output.say("")
        rows = [(one["name"], one["what"], *_sides(one)) for one in told["values"]]
        output.table(("value", "differs in", "first", "second"), rows)
    if told["tables"]:
        output.say("")
        rows = [
            (one["name"], *(f"{one[key]:,}" for key in _TABLE), one["note"])
            for one in told["tables"]
        ]
        headings = ("table", "ids removed", "added", "changed", "")
        output.table(headings, rows, right=(1, 2, 3))


_TABLE = ("only_first", "only_second", "changed")


def _tensor(one: dict[str, Any]) -> tuple[str, ...]:
    if one["what"] != "values":
        kinds = [_kind(one[side]) for side in ("first", "second")]
        what = one["what"] if None in kinds else f"{kinds[0]} -> {kinds[1]}"
        return one["name"], what, "", "", ""
    share = f"{one['changed']:,} of {one['elements']:,}"
    far = "" if one["largest"] is None else number(one["largest"])
    return one["name"], "values", share, str(list(one["index"])), far


def _kind(kind: dict[str, Any] | None) -> str | None:
    return None if kind is None else f"{kind['dtype']} {list(kind['shape'])}"


def _sides(one: dict[str, Any]) -> list[str]:
    return [shown(repr(one[side]))[:60] for side in ("first", "second")]
