"""Catalogs: the first line of a manifest, with the names, dtypes and shapes of its tensors.

See `windeck.checkpoint.format.manifests` for the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from windeck._util.validation import check_integer
from windeck.checkpoint.format.state_json import tensor_places
from windeck.checkpoint.format.values import LARGEST_PAYLOAD

__all__ = ["Catalog", "TensorKind", "check_size", "expand_tree", "parse_catalog", "shorten_tree"]

#: Returns a value of a manifest if it is an integer from 0 to 2^63 - 1.
check_size = partial(check_integer, "a size")


class TensorKind(NamedTuple):
    """Dtype, shape and size of chunks of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    chunk_bytes: int


class Catalog(NamedTuple):
    """The first line of a manifest.

    Attributes
    ----------
    kinds
        The distinct kinds of tensors.
    tensors
        Index in `kinds` by the name that data are saved under, in the order of the trees.
    trees
        Stored state by root; see `expand_tree`.
    names, data
        By root, as `tensor_places` gives them: names of places, and names of data.
    tables
        JSON of the embedding tables.
    """

    kinds: list[TensorKind]
    tensors: dict[str, int]
    trees: dict[str, Any]
    names: dict[str, list[str]]
    data: dict[str, list[str]]
    tables: Any


def parse_catalog(line: str) -> Catalog:
    """Parse the first line of a manifest, and check everything except the tables.

    Raises
    ------
    AttributeError, KeyError, RecursionError, TypeError, ValueError
        When it is not valid.
    """
    found = json.loads(line)
    kinds, numbers, trees = [*map(_parse_kind, found["kinds"])], found["tensors"], found["trees"]
    if type(trees) is not dict:
        raise ValueError(f"expected trees by root, found {str(trees)[:80]!r}")
    names, data = dict[str, list[str]](), dict[str, list[str]]()
    for root, tree in trees.items():
        names[root], data[root] = tensor_places(tree, root, short=True)
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


def expand_tree(tree: Any, name: str) -> Any:
    """Return a tree of a catalog in the form of `trees`, where every key has a value.

    Examples
    --------
    >>> expand_tree({"dict": ["w", ["lr", 0.1]]}, "m")
    {'dict': [['w', {'tensor': 'm/w'}], ['lr', 0.1]]}
    """
    if type(tree) is list:
        return [expand_tree(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": expand_tree(tree["tuple"], name)}
    if type(tree) is not dict or "dict" not in tree:
        return tree
    return {
        "dict": [
            [item, {"tensor": f"{name}/{item}"}]
            if type(item) is str
            else [item[0], expand_tree(item[1], f"{name}/{item[0]}")]
            for item in tree["dict"]
        ]
    }


def shorten_tree(tree: Any, name: str) -> Any:
    """Return the short form of a tree; the inverse of `expand_tree`."""
    if type(tree) is list:
        return [shorten_tree(item, f"{name}/{i}") for i, item in enumerate(tree)]
    if type(tree) is dict and "tuple" in tree:
        return {"tuple": shorten_tree(tree["tuple"], name)}
    if type(tree) is not dict or "dict" not in tree:
        return tree
    return {"dict": [*_shorten_items(tree["dict"], name)]}


def _shorten_items(pairs: Sequence[Sequence[Any]], name: str) -> Iterator[Any]:
    for key, item in pairs:
        place = f"{name}/{key}"
        alone = type(key) is str and item == {"tensor": place}
        yield key if alone else [key, shorten_tree(item, place)]


def _parse_kind(found: Mapping[str, Any]) -> TensorKind:
    dtype, shape = found["dtype"], tuple(map(check_size, found["shape"]))
    if type(dtype) is not str:
        raise ValueError(f"a tensor has dtype {str(dtype)[:80]!r}, expected the name of one")
    if math.prod(shape) * 16 >= 1 << 63:
        raise ValueError(f"a tensor has shape {shape}, expected fewer than 2^59 elements")
    chunk_bytes = min(max(1, check_size(found["chunk_bytes"])), LARGEST_PAYLOAD)
    return TensorKind(dtype, shape, chunk_bytes)
