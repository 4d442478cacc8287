"""State as JSON: dicts, lists, tuples, numbers and text as they are, tensors by name.

=========================  =========================================
dict                       ``{"dict": [[key, value], ...]}``
tuple                      ``{"tuple": [...]}``
tensor                     ``{"tensor": "model/layer.weight"}``
nan, inf, -inf             ``{"float": "nan"}``
None, bool, int, str,      themselves
other floats, list
=========================  =========================================

Nothing else is taken, nothing is pickled, and what comes back has the types that went in.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from windeck.checkpoint.format.partition import Partition

if TYPE_CHECKING:
    import torch

__all__ = ["ABSENT", "decode", "dict_places", "encode", "merged", "places_in", "tensors_in"]

_DEEPEST = 100
#: Bits of an integer: Python reads no more than 4,300 digits.
_LONGEST = 14_000
#: Stands for a tensor that was saved and has no place to go.
ABSENT: Any = object()

#: Called for each tensor with its name; gives the name it is saved under.
Keep: TypeAlias = "Callable[[str, torch.Tensor | Partition], str]"


def encode(value: Any, name: str, keep: Keep) -> Any:
    """A value as JSON.

    Parameters
    ----------
    value
        What the table above says.
    name
        Where it stands, for messages; what is inside has a name that begins with it and a slash.
    keep
        Called for each tensor with its name; the name it is saved under.

    Raises
    ------
    TypeError, ValueError
        Naming the place of what cannot be kept.

    Examples
    --------
    >>> encode({"lr": 0.1, 0: (True, float("inf"))}, "extra", lambda name, tensor: name)
    {'dict': [['lr', 0.1], [0, {'tuple': [True, {'float': 'inf'}]}]]}
    """
    return _encode(value, name, keep, 0)


def _encode(value: Any, name: str, keep: Keep, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"{name[:80]}... is nested deeper than {_DEEPEST} levels")
    if _is_tensor(value):
        return {"tensor": keep(name, value)}
    if type(value) is int and value.bit_length() > _LONGEST:
        raise ValueError(
            f"{name} is an integer of {value.bit_length():,} bits, expected up to {_LONGEST:,}"
        )
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) in (list, tuple):
        found = [_encode(v, f"{name}/{i}", keep, depth + 1) for i, v in enumerate(value)]
        return found if type(value) is list else {"tuple": found}
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(
                    f"{name} has a key of type {type(key).__name__}, expected str or int"
                )
        pairs = [[k, _encode(v, f"{name}/{k}", keep, depth + 1)] for k, v in value.items()]
        return {"dict": pairs}
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    raise TypeError(
        f"{name} is of type {kind}, expected a tensor, dict, list, tuple, str, int, float, bool or "
        "None"
    )


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # not imported: then nothing is a tensor
    return torch is not None and isinstance(value, (torch.Tensor, Partition))


def decode(tree: Any, tensor: Callable[[str], Any]) -> Any:
    """The value of a tree; `tensor` gives the tensor of a name.

    Raises
    ------
    ValueError
        For what `encode` does not make.

    Examples
    --------
    >>> decode({"dict": [["lr", 0.1], [0, {"tuple": [True, {"float": "inf"}]}]]}, str)
    {'lr': 0.1, 0: (True, inf)}
    """
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if type(tree) is list:
        return [decode(item, tensor) for item in tree]
    if type(tree) is dict and len(tree) == 1:
        ((kind, inside),) = tree.items()
        if kind == "dict":
            return {key: decode(item, tensor) for key, item in inside}
        if kind == "tuple":
            return tuple(decode(item, tensor) for item in inside)
        if kind == "tensor":
            return tensor(inside)
        if kind == "float":
            return float(inside)
    raise ValueError(f"expected a tree of state, found {str(tree)[:80]!r}")


def tensors_in(tree: Any, name: str) -> Iterator[tuple[str, str]]:
    """Of each tensor in a tree, the name of its place and the name it is saved under.

    Raises
    ------
    ValueError
        For a tree that `encode` does not make, naming the place: then `decode` takes any other.
    """
    return zip(*places_in(tree, name), strict=True)


def places_in(tree: Any, name: str, *, short: bool = False) -> tuple[list[str], list[str]]:
    """The same as two lists: the names of the places, and the names of the data.

    Parameters
    ----------
    short
        Whether a key may stand alone in a dict, as in the trees of a catalog, for a tensor that is
        saved under the name of its place.
    """
    places, data = list[str](), list[str]()
    _collect(tree, name, 0, short, places, data)
    return places, data


def _collect(
    tree: Any, name: str, depth: int, short: bool, places: list[str], data: list[str]
) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"{name[:80]}... is nested deeper than {_DEEPEST} levels")
    if tree is None or type(tree) in (bool, int, float, str):
        return
    kind, inside = "list", tree
    if type(tree) is dict and len(tree) == 1:
        ((kind, inside),) = tree.items()
    if kind == "tensor" and type(inside) is str:
        places.append(name)
        data.append(inside)
    elif kind == "dict" and type(inside) is list:
        alone = short and depth < _DEEPEST and {*map(type, inside)} == {str}
        if alone and len({*inside}) == len(inside):  # the dict of most models
            own = [f"{name}/{key}" for key in inside]
            places += own
            data += own
        else:
            _collect_dict(inside, name, depth + 1, short, places, data)
    elif kind in ("list", "tuple") and type(inside) is list:
        for i, item in enumerate(inside):
            _collect(item, f"{name}/{i}", depth + 1, short, places, data)
    elif kind != "float" or inside not in ("nan", "inf", "-inf"):
        raise ValueError(f"{name} is {str(tree)[:80]!r}, expected a tree of state")


def _collect_dict(
    pairs: list[Any], name: str, depth: int, short: bool, places: list[str], data: list[str]
) -> None:
    known = set()
    for pair in pairs:
        if short and type(pair) is str:
            key, item = pair, None
            places.append(f"{name}/{key}")
            data.append(places[-1])
        elif type(pair) is list and len(pair) == 2 and type(pair[0]) in (str, int):
            key, item = pair
        else:
            raise ValueError(f"{name} has {str(pair)[:80]!r}, expected a key and a value")
        if key in known:
            raise ValueError(f"{name} has the key {key!r} twice, expected once")
        known.add(key)
        _collect(item, f"{name}/{key}", depth, short, places, data)


def dict_places(tree: Any, name: str, deepest: int = _DEEPEST) -> set[str]:
    """All places of a tree that is a dict, and of dicts in it: of tensors, of others, of dicts.

    Examples
    --------
    >>> sorted(dict_places({"dict": [["lr", 0.1], ["a", {"dict": [[0, None]]}]]}, "extra"))
    ['extra/a', 'extra/a/0', 'extra/lr']
    """
    pairs = tree["dict"] if type(tree) is dict and "dict" in tree and deepest else ()
    found = {f"{name}/{key}" for key, _ in pairs}
    return found.union(*(dict_places(item, f"{name}/{key}", deepest - 1) for key, item in pairs))


def merged(target: Any, value: Any) -> Any:
    """`value`, with dicts of the target filled, not replaced, and its own for what is `ABSENT`.

    Examples
    --------
    >>> merged({"a": 1, "b": [2, 3]}, {"a": None, "b": [ABSENT, 4]})
    {'a': None, 'b': [2, 4]}
    """
    if isinstance(target, dict) and isinstance(value, dict):
        for key, item in value.items():
            if item is not ABSENT:
                target[key] = merged(target.get(key), item)
        return target
    if isinstance(value, dict):
        return {key: merged(None, item) for key, item in value.items() if item is not ABSENT}
    if isinstance(value, (list, tuple)):
        old = target if isinstance(target, type(value)) and len(target) == len(value) else value
        pairs = zip(old, value, strict=True)
        return type(value)(t if v is ABSENT else merged(t, v) for t, v in pairs if t is not ABSENT)
    return value
