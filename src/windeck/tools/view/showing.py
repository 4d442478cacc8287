"""`show`: the values of a tensor, what they are like, and values that are no tensor."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from windeck.checkpoint.format.dtypes import item_bytes
from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.stores import Store
from windeck.tools.view import output
from windeck.tools.view.listing import described, plain_values, table_document, tensor_document
from windeck.tools.view.naming import places_of, table_called, unknown
from windeck.tools.view.output import number, paint, say
from windeck.tools.view.session import Catalog, Wrong, shown
from windeck.tools.view.slicing import Cut, cut, head

__all__ = ["show", "values_of"]

#: Elements that are printed at most, and columns of what is not sliced, in JSON and in a pipe.
MOST, COLUMNS, PIPED = 1_000_000, 10_000, 8
#: Rows unless asked otherwise; bins of a histogram; largest values told.
HEAD, BINS, LARGEST = 8, 20, 5


def show(
    store: Store,
    found: Catalog,
    name: str,
    *,
    part: str | None,
    rows: int | None,
    stats: bool,
    json: bool,
) -> None:
    """Prints a tensor, a table or a plain value."""
    data = places_of(found).get(name)
    if data is None:
        if part is not None or rows is not None or stats:
            raise unknown(found, name)
        _show_other(found, name, json=json)
        return
    entry = found.entries[data]
    picked = _picked(entry, part, rows, stats, COLUMNS if json else _columns())
    values: Any = None if picked is None else values_of(store, found, entry, picked)
    told = _stats(store, found, entry) if stats else None
    document = {**described(found), **tensor_document(name, data, entry)}
    if json:
        if picked is not None:
            document |= {"box": picked.box, "values": values.tolist()}
        output.write_json(document | ({} if told is None else {"stats": told}))
        return
    _title(document)
    if picked is not None:
        say(*_lines(values, picked))
        if part is None:
            _say_rest(entry.shape, picked)
    if told is not None:
        _print_stats(told)


def _picked(
    entry: Entry, part: str | None, rows: int | None, stats: bool, columns: int
) -> Cut | None:
    """What is to be printed of the values; None for nothing."""
    if part is not None:
        found = cut(part, entry.shape)
        count = math.prod(found.shape)
        if count > MOST:
            raise Wrong(
                f"the slice has {count:,} elements, expected at most {MOST:,}: export writes files"
            )
        return found
    if rows is None:
        return None if stats else head(HEAD, entry.shape, columns)
    return head(rows, entry.shape, columns)


def values_of(store: Store, found: Catalog, entry: Entry, picked: Cut) -> Any:
    """An array of the values, of text where they are no numbers."""
    import numpy as np

    from windeck.checkpoint.format.numbers import numbers, searchable
    from windeck.checkpoint.format.payloads import read_box

    if item_bytes(entry.dtype) is None:
        raise Wrong(f"{entry.name} has dtype {entry.dtype}, which this windeck does not know")
    raw = np.ascontiguousarray(read_box(store, found.namespace, entry, picked.box))
    if searchable(entry.dtype):
        return numbers(entry.dtype, raw.reshape(-1)).reshape(picked.shape)
    texts = [
        f"0x{item.tobytes().hex()}" for item in raw.reshape(-1)
    ]  # bits that stand for no number
    return np.array(texts, dtype=object).reshape(picked.shape)


def _columns() -> int:
    """Columns that fit on a line: of a terminal as it is, of a pipe as documented."""
    if not sys.stdout.isatty():
        return PIPED
    return max(1, (shutil.get_terminal_size().columns - 12) // 15)


def _title(document: dict[str, Any]) -> None:
    text = f"{shown(document['name'])}  {document['dtype']}  {list(document['shape'])}"
    text += f"  {output.size(document['bytes'])}"
    if document["data"] != document["name"]:
        text += f"  = {shown(document['data'])}"
    text += f"  generation {document['generation']}  step {document['step']}"
    say(paint(text, "bold"))


def _lines(values: Any, picked: Cut) -> list[str]:
    """A line for each row, its place in the tensor before it."""
    if not values.size:
        return ["(no elements)"]
    rows, across = picked.kept[:-1], picked.kept[-1:]
    if len(picked.kept) == 1:  # a column, not a row
        rows, across = across, rows
    flat = values.reshape(-1, values.shape[-1] if across else 1).tolist()
    lines = []
    places = itertools.product(*(range(*picked.box[axis]) for axis in rows))
    for place, row in zip(places, flat, strict=True):
        index = [str(first) for first, _ in picked.box]
        for axis, at in zip(rows, place, strict=True):
            index[axis] = str(at)
        for axis in across:
            index[axis] = ":"
        lines.append([f"[{', '.join(index)}]", *map(number, row)])
    return output.columns(lines, right=range(1, len(lines[0])))


def _say_rest(shape: Sequence[int], picked: Cut) -> None:
    """How much the head left out."""
    if not math.prod(shape):
        return
    left = [f"{shape[-1] - picked.box[-1][1]:,} columns"] if len(shape) > 1 else []
    lead = shape[:-1] if len(shape) > 1 else shape
    hidden = math.prod(lead) - math.prod(picked.shape[: len(lead)])
    left.append(f"{hidden:,} {'rows' if len(shape) > 1 else 'elements'}")
    told = [text for text in left if not text.startswith("0 ")]
    if told:
        say(paint(f"and {' and '.join(told)} more", "dim"))


def _stats(store: Store, found: Catalog, entry: Entry) -> dict[str, Any]:
    from windeck.checkpoint.searching import statistics

    try:
        told = statistics(store, found.namespace, entry, bins=BINS, largest=LARGEST)
    except TypeError as error:
        raise Wrong(str(error)) from error
    arrays = ("histogram", "edges")
    told |= {name: None if told[name] is None else told[name].tolist() for name in arrays}
    told["largest"] = [{"index": index, "value": value} for index, value in told["largest"]]
    return told


def _print_stats(stats: dict[str, Any]) -> None:
    names = ("count", "nan", "positive_infinite", "negative_infinite", "zeros")
    rows = [(name.replace("_", " "), f"{stats[name]:,}") for name in names]
    told = [name for name in ("min", "max", "mean", "std", "abs_max") if stats[name] is not None]
    rows += [(name.replace("_", " "), number(stats[name])) for name in told]
    say(*output.columns(rows, right=[1]))
    if stats["histogram"] is not None:
        say("", *output.bars(stats["edges"], stats["histogram"]))
    if stats["largest"]:
        rows = [(str(list(one["index"])), number(one["value"])) for one in stats["largest"]]
        say("", "largest", *output.columns(rows, right=[1]))


def _show_other(found: Catalog, name: str, *, json: bool) -> None:
    """A table, or what is no tensor and stands under a name."""
    table = table_called(found, name)
    if table is not None:
        told = {**described(found), "table": table_document(table)}
        if json:
            output.write_json(told)
            return
        rows = [(key, shown(str(value))) for key, value in told["table"].items() if key != "links"]
        say(*output.columns(rows))
        links = [[str(value) for value in link.values()] for link in told["table"]["links"]]
        if links:
            say("")
            output.table([*told["table"]["links"][0]], links, right=range(6))
        return
    values = list(_below(found, name))
    if not values:
        raise unknown(found, name, "tensor, table or value")
    if json:
        texts = [{"name": place, "value": value} for place, value in values]
        output.write_json({**described(found), "values": texts})
    elif [place for place, _ in values] == [name]:
        say(shown(repr(values[0][1])))
    else:
        say(*output.columns([(shown(place), shown(repr(value))) for place, value in values]))


def _below(found: Catalog, name: str) -> Iterator[tuple[str, Any]]:
    """The plain values that a name means, and those below it."""
    for place, value in plain_values(found.trees):
        if place == name or place.startswith(f"{name.rstrip('/')}/"):
            yield place, value
        elif name.startswith(f"{place}/"):  # an item of a list that is shown whole
            item = value
            for step in name[len(place) + 1 :].split("/"):
                if not (isinstance(item, (list, tuple)) and step.isdecimal()):
                    break
                if int(step) >= len(item):
                    break
                item = item[int(step)]
            else:
                yield name, item
