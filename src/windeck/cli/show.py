"""`show`: values and statistics of a tensor, and values that are no tensor."""

from __future__ import annotations

import itertools
import math
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck._util.terminal import escaped
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.read import tensor_statistics
from windeck.checkpoint.read.scanning import read_box
from windeck.checkpoint.stores import Store
from windeck.cli.catalog import (
    ManifestContents,
    checkpoint_document,
    find_table,
    opened_checkpoint,
    plain_values,
    table_document,
    tensor_document,
    tensor_names,
    unknown_name,
)
from windeck.cli.output import (
    aligned,
    colored,
    format_number,
    format_size,
    histogram_lines,
    print_json,
    print_lines,
    print_table,
)
from windeck.cli.parser import Namespace, add_command, add_generation, at_least
from windeck.cli.session import UsageError
from windeck.columns.dtypes import item_bytes
from windeck.columns.elements import decode_elements, is_numeric

__all__ = ["Selection", "add_parser", "first_rows", "parse_slice", "read_values", "run"]

MAX_ELEMENTS = 1_000_000
#: Columns that are printed without a slice: in JSON, and where stdout is no terminal.
JSON_COLUMNS, PIPE_COLUMNS = 10_000, 8
ROWS, BINS, LARGEST = 8, 20, 5

_RANGE = re.compile(r"\s*(-?\d{1,100})?\s*:\s*(-?\d{1,100})?\s*")
_INDEX = re.compile(r"\s*-?\d{1,100}\s*")


def add_parser(commands: Any) -> None:
    """Add the command `show`."""
    parser = add_command(
        commands, "show", "Print values and statistics of a tensor. Only what is printed is read.",
        run,
    )  # fmt: skip
    parser.add_argument("name", help="A tensor, a table or a plain value.")
    parser.add_argument(
        "--slice", dest="part", metavar="TEXT", help="Elements to print: '0:3,:' or '-1'."
    )
    parser.add_argument(
        "--head", type=at_least(1), metavar="N", help=f"Rows to print (default: {ROWS})."
    )
    parser.add_argument(
        "--stats", action="store_true",
        help="Print counts, minimum, maximum, mean and a histogram.",
    )  # fmt: skip
    add_generation(parser)


def run(arguments: Namespace) -> None:
    """Print a tensor, a table or a plain value."""
    with opened_checkpoint(arguments) as (store, found):
        if arguments.part is not None and arguments.head is not None:
            raise UsageError("--slice and --head exclude each other, expected one of them")
        data = tensor_names(found).get(arguments.name)
        if data is not None:
            _show_tensor(arguments, store, found, data)
        elif arguments.part is not None or arguments.head is not None or arguments.stats:
            raise unknown_name(found, arguments.name)
        else:
            _show_other(found, arguments.name, json=arguments.json)


def _show_tensor(arguments: Namespace, store: Store, found: ManifestContents, data: str) -> None:
    entry = found.entries[data]
    selection = _selection(arguments, entry)
    values: Any = None if selection is None else read_values(store, found, entry, selection)
    stats = _stats(store, found, entry) if arguments.stats else None
    document = {**checkpoint_document(found), **tensor_document(arguments.name, data, entry)}
    if arguments.json:
        if selection is not None:
            document |= {"box": selection.box, "values": values.tolist()}
        print_json(document | ({} if stats is None else {"stats": stats}))
        return
    _print_title(document)
    if selection is not None:
        print_lines(*_lines(values, selection))
        if arguments.part is None:
            _print_rest(entry.shape, selection)
    if stats is not None:
        _print_stats(stats)


def _selection(arguments: Namespace, entry: TensorEntry) -> Selection | None:
    """Return the part of a tensor to print; None for nothing."""
    if arguments.part is not None:
        found = parse_slice(arguments.part, entry.shape)
        count = math.prod(found.shape)
        if count > MAX_ELEMENTS:
            raise UsageError(
                f"the slice has {count:,} elements, expected at most {MAX_ELEMENTS:,}: "
                "export writes files"
            )
        return found
    if arguments.head is None and arguments.stats:
        return None
    columns = JSON_COLUMNS if arguments.json else _fitting_columns()
    return first_rows(arguments.head or ROWS, entry.shape, columns)


def read_values(
    store: Store, found: ManifestContents, entry: TensorEntry, selection: Selection
) -> Any:
    """Return the values as an array; values that are no numbers as hexadecimal text."""
    if item_bytes(entry.dtype) is None:
        raise UsageError(f"{entry.name} has dtype {entry.dtype}, which this windeck does not know")
    raw = np.ascontiguousarray(read_box(store, found.namespace, entry, selection.box))
    if is_numeric(entry.dtype):
        return decode_elements(entry.dtype, raw.reshape(-1)).reshape(selection.shape)
    texts = [f"0x{item.tobytes().hex()}" for item in raw.reshape(-1)]
    return np.array(texts, dtype=object).reshape(selection.shape)


def _fitting_columns() -> int:
    """Return how many columns fit on a line of the terminal, or those of a pipe."""
    if not sys.stdout.isatty():
        return PIPE_COLUMNS
    return max(1, (shutil.get_terminal_size().columns - 12) // 15)


def _print_title(document: dict[str, Any]) -> None:
    text = f"{escaped(document['name'])}  {document['dtype']}  {list(document['shape'])}"
    text += f"  {format_size(document['bytes'])}"
    if document["data"] != document["name"]:
        text += f"  = {escaped(document['data'])}"
    text += f"  generation {document['generation']}  step {document['step']}"
    print_lines(colored(text, "bold"))


def _lines(values: Any, selection: Selection) -> list[str]:
    """Return a line for each row, after its index in the tensor."""
    if not values.size:
        return ["(no elements)"]
    rows, across = selection.kept[:-1], selection.kept[-1:]
    if len(selection.kept) == 1:  # a column, not a row
        rows, across = across, rows
    flat = values.reshape(-1, values.shape[-1] if across else 1).tolist()
    lines = []
    places = itertools.product(*(range(*selection.box[axis]) for axis in rows))
    for place, row in zip(places, flat, strict=True):
        index = [str(first) for first, _ in selection.box]
        for axis, at in zip(rows, place, strict=True):
            index[axis] = str(at)
        for axis in across:
            index[axis] = ":"
        lines.append([f"[{', '.join(index)}]", *map(format_number, row)])
    return aligned(lines, right=range(1, len(lines[0])))


def _print_rest(shape: Sequence[int], selection: Selection) -> None:
    """Print how many rows and columns are left out."""
    if not math.prod(shape):
        return
    left = [f"{shape[-1] - selection.box[-1][1]:,} columns"] if len(shape) > 1 else []
    lead = shape[:-1] if len(shape) > 1 else shape
    hidden = math.prod(lead) - math.prod(selection.shape[: len(lead)])
    left.append(f"{hidden:,} {'rows' if len(shape) > 1 else 'elements'}")
    counts = [text for text in left if not text.startswith("0 ")]
    if counts:
        print_lines(colored(f"and {' and '.join(counts)} more", "dim"))


def _stats(store: Store, found: ManifestContents, entry: TensorEntry) -> dict[str, Any]:
    try:
        stats = tensor_statistics(store, found.namespace, entry, bins=BINS, largest=LARGEST)
    except TypeError as error:
        raise UsageError(str(error)) from error
    arrays = ("histogram", "edges")
    stats |= {name: None if stats[name] is None else stats[name].tolist() for name in arrays}
    stats["largest"] = [{"index": index, "value": value} for index, value in stats["largest"]]
    return stats


def _print_stats(stats: dict[str, Any]) -> None:
    names = ("count", "nan", "positive_infinite", "negative_infinite", "zeros")
    rows = [(name.replace("_", " "), f"{stats[name]:,}") for name in names]
    known = [name for name in ("min", "max", "mean", "std", "abs_max") if stats[name] is not None]
    rows += [(name.replace("_", " "), format_number(stats[name])) for name in known]
    print_lines(*aligned(rows, right=[1]))
    if stats["histogram"] is not None:
        print_lines("", *histogram_lines(stats["edges"], stats["histogram"]))
    if stats["largest"]:
        rows = [(str(list(one["index"])), format_number(one["value"])) for one in stats["largest"]]
        print_lines("", "largest", *aligned(rows, right=[1]))


def _show_other(found: ManifestContents, name: str, *, json: bool) -> None:
    """Print a table or plain values."""
    table = find_table(found, name)
    if table is not None:
        document = table_document(table)
        if json:
            print_json({**checkpoint_document(found), "table": document})
            return
        rows = [(key, escaped(str(value))) for key, value in document.items() if key != "links"]
        print_lines(*aligned(rows))
        links = [[str(value) for value in link.values()] for link in document["links"]]
        if links:
            print_lines("")
            print_table([*document["links"][0]], links, right=range(6))
        return
    values = list(_below(found, name))
    if not values:
        raise unknown_name(found, name, "tensor, table or value")
    if json:
        texts = [{"name": place, "value": value} for place, value in values]
        print_json({**checkpoint_document(found), "values": texts})
    elif [place for place, _ in values] == [name]:
        print_lines(escaped(repr(values[0][1])))
    else:
        print_lines(*aligned([(escaped(place), escaped(repr(value))) for place, value in values]))


def _below(found: ManifestContents, name: str) -> Iterator[tuple[str, Any]]:
    """Return the plain values of a name, and those below it."""
    for place, value in plain_values(found.trees):
        if place == name or place.startswith(f"{name.rstrip('/')}/"):
            yield place, value
        elif name.startswith(f"{place}/"):  # an item of a list, which `ls` shows whole
            item = value
            for step in name[len(place) + 1 :].split("/"):
                if not (isinstance(item, (list, tuple)) and step.isdecimal()):
                    break
                if int(step) >= len(item):
                    break
                item = item[int(step)]
            else:
                yield name, item


@dataclass(frozen=True)
class Selection:
    """A box, and the dimensions that are kept: an integer index drops its dimension."""

    box: Box
    kept: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions that are kept."""
        return tuple(self.box[axis][1] - self.box[axis][0] for axis in self.kept)


def parse_slice(text: str, shape: Sequence[int]) -> Selection:
    """Return the part of a shape that a text selects, as in NumPy. The text is not evaluated.

    Examples
    --------
    >>> parse_slice("1:,:2", (4, 3))
    Selection(box=((1, 4), (0, 2)), kept=(0, 1))
    >>> parse_slice("-1", (4, 3))
    Selection(box=((3, 4), (0, 3)), kept=(1,))
    >>> parse_slice("..., 0", (4, 3, 2)).shape
    (4, 3)
    """
    items = [item.strip() for item in text.split(",")]
    given = sum(item != "..." for item in items)
    if items.count("...") > 1 or given > len(shape):
        raise _wrong(
            text, shape, f"has {given} dimensions" if given > len(shape) else "has two ..."
        )
    if "..." not in items:
        items.append("...")
    place = items.index("...")
    items[place : place + 1] = [":"] * (len(shape) - given)
    box, kept = [], []
    for axis, (item, size) in enumerate(zip(items, shape, strict=True)):
        found = _RANGE.fullmatch(item)
        if found is not None:
            ends = (int(end) if end else None for end in found.groups())
            first, stop, _ = slice(*ends).indices(size)
            box.append((first, max(first, stop)))
            kept.append(axis)
        elif _INDEX.fullmatch(item):
            at = int(item)
            if not -size <= at < size:
                raise _wrong(text, shape, f"has index {at} in dimension {axis}")
            box.append((at % size, at % size + 1))
        else:
            raise _wrong(text, shape, f"has {item[:40]!r}")
    return Selection(tuple(box), tuple(kept))


def first_rows(rows: int, shape: Sequence[int], columns: int) -> Selection:
    """Return a box with the first rows of all dimensions but the last, and columns of the last.

    Examples
    --------
    >>> first_rows(3, (10, 2, 100), 16).box
    ((0, 2), (0, 2), (0, 16))
    """
    ends, need = [min(columns, size) for size in shape[1:][-1:]], rows
    for size in reversed(shape[: len(shape) - len(ends)]):
        ends.append(min(size, need))
        need = -(-need // max(1, size))
    return Selection(tuple((0, end) for end in reversed(ends)), tuple(range(len(shape))))


def _wrong(text: str, shape: Sequence[int], what: str) -> UsageError:
    return UsageError(
        f"the slice {text[:80]!r} {what}, expected such as '0:3,:' within shape {list(shape)}"
    )
