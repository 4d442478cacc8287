"""The text of a manifest: two lines of JSON, of which who only lists tensors reads the first.

The first line, the catalog, says what there is::

    {"kinds": [{"dtype": "float32", "shape": [4, 3], "chunk_bytes": 1048576}, ...],
     "tensors": [0, 0, 1, ...], "trees": {"model": {"dict": ["weight", ...]}}, "tables": [...]}

`tensors` has the place in `kinds` of each tensor, in the order in which the trees name them first.
A key that stands alone in a dict of a tree is a tensor that is saved under the name of its place.

The second line says where the tensors' data are, in the same order: of each its parts, a part being
``[writer, item]`` where it is the whole tensor; else its box follows, ``[[0, 4], [0, 3]]`` (null:
the whole), and the runs of chunks that were not written anew, if there are any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from windeck.checkpoint.format.trees import places_in

__all__ = ["Catalog", "TensorKind", "as_json", "as_lines", "catalog_of", "whole_number"]
__all__ += ["whole_tree"]


class TensorKind(NamedTuple):
    """What a tensor is, beside its name."""

    dtype: str
    shape: tuple[int, ...]
    chunk_bytes: int


class Catalog(NamedTuple):
    """What the first line says.

    Attributes
    ----------
    kinds
        What tensors are, each once.
    tensors
        By the names that data are under, in the order in which the trees name them: of which kind.
    trees
        State by root, as stored: see `whole_tree`.
    names, data
        By root, as `places_in` gives them: what each tensor is called, what its data are.
    tables
        As JSON.
    """

    kinds: list[TensorKind]
    tensors: dict[str, int]
    trees: dict[str, Any]
    names: dict[str, list[str]]
    data: dict[str, list[str]]
    tables: Any


def as_json(value: Any) -> bytes:
    """JSON as it is stored: ASCII, no NaN, one line."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def as_lines(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is stored.

    Parameters
    ----------
    manifest
        What writers agree on: ``"chunk_bytes"``, ``"tensors"``, ``"trees"`` and ``"tables"``.

    Raises
    ------
    ValueError
        For tensors that are there twice, or that no tree names, and names that are no tensors.

    Examples
    --------
    >>> w = {"name": "m/w", "dtype": "int8", "shape": [2]}
    >>> w["parts"] = [{"box": [[0, 2]], "writer": 0, "item": 7}]
    >>> tree = {"dict": [["w", {"tensor": "m/w"}], ["lr", 0.1]]}
    >>> first, second = as_lines(
    ...     {"chunk_bytes": 16, "tensors": [w], "trees": {"m": tree}}
    ... ).splitlines()
    >>> json.loads(first)["kinds"]
    [{'dtype': 'int8', 'shape': [2], 'chunk_bytes': 16}]
    >>> first[-54:], second
    (b'"tensors":[0],"trees":{"m":{"dict":["w",["lr",0.1]]}}}', b'[[[0,7]]]')
    """
    entries: dict[str, Mapping[str, Any]] = {}
    for entry in manifest["tensors"]:
        if entry["name"] in entries:
            raise ValueError(f"{entry['name']} is there twice, expected each tensor once")
        entries[entry["name"]] = entry
    trees = manifest["trees"]
    ordered = dict.fromkeys(chain(*(places_in(tree, root)[1] for root, tree in trees.items())))
    for name in ordered.keys() ^ entries.keys():
        what = "is in no tree" if name in entries else "is named by a tree, and not there"
        raise ValueError(f"the tensor {name} {what}, expected tensors and trees to agree")
    kinds: dict[str, int] = {}
    numbers, parts, stated = list[int](), list[Any](), list[Any]()
    for name in ordered:
        entry = entries[name]
        kind = {"dtype": entry["dtype"], "shape": entry["shape"]}
        kind["chunk_bytes"] = entry.get("chunk_bytes", manifest["chunk_bytes"])
        number = kinds.setdefault(repr(kind), len(kinds))
        if number == len(stated):
            stated.append(kind)
        numbers.append(number)
        parts.append([_stored(part, entry["shape"]) for part in entry["parts"]])
    short = {root: _shortened(tree, root) for root, tree in trees.items()}
    catalog = {"kinds": stated, "tensors": numbers, "trees": short}
    if "tables" in manifest:
        catalog["tables"] = manifest["tables"]
    return as_json(catalog) + b"\n" + as_json(parts)


def catalog_of(line: str) -> Catalog:
    """What the first line of a manifest says, all of it checked but the tables.

    Raises
    ------
    AttributeError, KeyError, RecursionError, TypeError, ValueError
        For what cannot be one.
    """
    found = json.loads(line)
    kinds, numbers, trees = [*map(_kind, found["kinds"])], found["tensors"], found["trees"]
    if type(trees) is not dict:
        raise ValueError(f"expected trees by root, found {str(trees)[:80]!r}")
    names, data = dict[str, list[str]](), dict[str, list[str]]()
    for root, tree in trees.items():
        names[root], data[root] = places_in(tree, root, short=True)
    ordered = dict.fromkeys(chain(*data.values()))
    if type(numbers) is not list or len(numbers) != len(ordered):
        raise ValueError(
            f"its trees name {len(ordered):,} tensors, expected as many kinds of tensors, found "
            f"{str(numbers)[:80]}"
        )
    if {*map(type, numbers)} - {int} or (
        numbers and not 0 <= min(numbers) <= max(numbers) < len(kinds)
    ):
        raise ValueError(
            f"its tensors are of kinds {str(numbers)[:80]}, expected numbers below {len(kinds)}"
        )
    tensors = dict(zip(ordered, numbers, strict=True))
    return Catalog(kinds, tensors, trees, names, data, found.get("tables"))


def whole_tree(tree: Any, name: str) -> Any:
    """A tree of a catalog as `trees` knows it, where all keys have values.

    Examples
    --------
    >>> whole_tree({"dict": ["w", ["lr", 0.1]]}, "m")
    {'dict': [['w', {'tensor': 'm/w'}], ['lr', 0.1]]}
    """
    if type(tree) is list:
        return [whole_tree(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": whole_tree(tree["tuple"], name)}
    if type(tree) is not dict or "dict" not in tree:
        return tree
    return {
        "dict": [
            [item, {"tensor": f"{name}/{item}"}]
            if type(item) is str
            else [item[0], whole_tree(item[1], f"{name}/{item[0]}")]
            for item in tree["dict"]
        ]
    }


def _shortened(tree: Any, name: str) -> Any:
    """The reverse of `whole_tree`."""
    if type(tree) is list:
        return [_shortened(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": _shortened(tree["tuple"], name)}
    if type(tree) is not dict or "dict" not in tree:
        return tree
    return {"dict": [*_shortened_items(tree["dict"], name)]}


def _shortened_items(pairs: Sequence[Sequence[Any]], name: str) -> Iterator[Any]:
    for key, item in pairs:
        place = f"{name}/{key}"
        alone = type(key) is str and item == {"tensor": place}
        yield key if alone else [key, _shortened(item, place)]


def _stored(part: Mapping[str, Any], shape: Sequence[int]) -> list[Any]:
    box = [list(side) for side in part["box"]]
    found = [part["writer"], part["item"], None if box == [[0, n] for n in shape] else box]
    if "kept" in part:
        return [*found, part["kept"]]
    return found if found[2] is not None else found[:2]


def _kind(found: Mapping[str, Any]) -> TensorKind:
    dtype, shape = found["dtype"], tuple(map(whole_number, found["shape"]))
    if type(dtype) is not str:
        raise ValueError(f"a tensor has dtype {str(dtype)[:80]!r}, expected the name of one")
    if math.prod(shape) * 16 >= 1 << 63:
        raise ValueError(f"a tensor has shape {shape}, more than can be")
    return TensorKind(dtype, shape, max(1, whole_number(found["chunk_bytes"])))


def whole_number(value: Any) -> int:
    """The value itself; ValueError unless it is an integer from 0 to 2^63 - 1."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a size, found {value!r}")
    return value
