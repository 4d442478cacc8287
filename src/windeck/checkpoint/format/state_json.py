"""Trees: state as JSON, with tensors by name.

=========================  =========================================
dict                       ``{"dict": [[key, value], ...]}``
tuple                      ``{"tuple": [...]}``
tensor                     ``{"tensor": "model/layer.weight"}``
nan, inf, -inf             ``{"float": "nan"}``
None, bool, int, str,      themselves
other floats, list
NumPy scalars              those of Python with the same value
=========================  =========================================

Other types are errors, and nothing is pickled. Decoding restores the types, except those of NumPy;
subclasses of dict are dicts, and `restore_types` makes them those that an object has.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from windeck.checkpoint.format.boxes import Partition

if TYPE_CHECKING:
    import torch

__all__ = ["ABSENT", "decode", "dict_places", "encode", "iter_tensors", "merge_state"]
__all__ += ["restore_types", "tensor_places"]

_DEEPEST = 100
#: Limit for the bits of an integer, since Python parses at most 4,300 digits.
_LONGEST = 14_000
#: Integers of up to this many bits have as few digits as Python always prints.
_SHORT = 2_000
#: Placeholder for a saved tensor that has no target.
ABSENT: Any = object()

#: A function of the name of a place and its tensor that returns the name to save it under.
Keep: TypeAlias = "Callable[[str, torch.Tensor | Partition], str]"


def encode(value: Any, name: str, keep: Keep) -> Any:
    """Encode a value as JSON.

    Parameters
    ----------
    value
        A value of the types above.
    name
        Name of its place. Names of places inside begin with it and a slash.
    keep
        A function that is called with the name of the place of each tensor and the tensor. It
        returns the name that the tensor is saved under.

    Raises
    ------
    TypeError, ValueError
        For another type or too large a value. The message names the place.

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
    value = _python_scalar(value)
    if type(value) is int and value.bit_length() > _SHORT:
        if value.bit_length() > _LONGEST:
            raise ValueError(
                f"{name} is an integer of {value.bit_length():,} bits, expected up to {_LONGEST:,}"
            )
        str(value)  # a ValueError where `sys.set_int_max_str_digits` allows fewer digits
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if type(value) in (list, tuple):
        found = [_encode(v, f"{name}/{i}", keep, depth + 1) for i, v in enumerate(value)]
        return found if type(value) is list else {"tuple": found}
    if isinstance(value, Mapping):
        pairs = []
        for given, item in value.items():
            key = _python_scalar(given)
            if type(key) not in (str, int):
                raise TypeError(
                    f"{name} has a key of type {type(key).__name__}, expected str or int"
                )
            pairs.append([key, _encode(item, f"{name}/{key}", keep, depth + 1)])
        return {"dict": pairs}
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    raise TypeError(
        f"{name} is of type {kind}, expected a tensor, dict, list, tuple, str, int, float, bool or "
        "None"
    )


def _python_scalar(value: Any) -> Any:
    """Return the Python scalar that equals a NumPy scalar, and any other value itself."""
    numpy = sys.modules.get("numpy")  # if it was not imported, no value is of its types
    if numpy is None or not isinstance(value, numpy.generic) or value.dtype.kind not in "biufU":
        return value
    found = value.item()
    # A long double, for example, has no equal.
    return found if type(found) in (bool, int, float, str) else value


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # if it was not imported, no value is a tensor
    return torch is not None and isinstance(value, (torch.Tensor, Partition))


def decode(tree: Any, tensor: Callable[[str], Any]) -> Any:
    """Decode a tree; the function `tensor` returns the tensor of a name.

    Raises
    ------
    ValueError
        For a tree that `encode` does not make.

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


def iter_tensors(tree: Any, name: str) -> Iterator[tuple[str, str]]:
    """Iterate over the tensors of a tree: the name of the place, and the name of the data.

    Raises
    ------
    ValueError
        For a tree that `encode` does not make. `decode` accepts every other tree.
    """
    return zip(*tensor_places(tree, name), strict=True)


def tensor_places(tree: Any, name: str, *, short: bool = False) -> tuple[list[str], list[str]]:
    """Return the results of `iter_tensors` as two lists: names of places, and names of data.

    Parameters
    ----------
    short
        If True, dicts may have keys without values, as in the trees of a catalog, for tensors that
        are saved under the name of their place.
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
    kind, inside = None, tree
    if type(tree) is dict and len(tree) == 1:
        ((kind, inside),) = tree.items()
    if kind == "tensor" and type(inside) is str:
        places.append(name)
        data.append(inside)
    elif kind == "dict" and type(inside) is list:
        only_keys = short and depth < _DEEPEST and {*map(type, inside)} == {str}
        if only_keys and len({*inside}) == len(inside):  # the dict of most models
            own = [f"{name}/{key}" for key in inside]
            places += own
            data += own
        else:
            _collect_dict(inside, name, depth + 1, short, places, data)
    elif kind in (None, "tuple") and type(inside) is list:
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
    """Return the names of all items of a dict and of nested dicts, whatever their types.

    Examples
    --------
    >>> sorted(dict_places({"dict": [["lr", 0.1], ["a", {"dict": [[0, None]]}]]}, "extra"))
    ['extra/a', 'extra/a/0', 'extra/lr']
    """
    pairs = tree["dict"] if type(tree) is dict and "dict" in tree and deepest else ()
    found = {f"{name}/{key}" for key, _ in pairs}
    return found.union(*(dict_places(item, f"{name}/{key}", deepest - 1) for key, item in pairs))


def merge_state(target: Any, value: Any) -> Any:
    """Merge a value into a target, whose dicts are updated in place; `ABSENT` keeps the target's.

    A tensor of the target stays where the value has something else. Lists are merged item by item;
    further items of the target stay if they have tensors.

    Examples
    --------
    >>> merge_state({"a": 1, "b": [2, 3]}, {"a": None, "b": [ABSENT, 4]})
    {'a': None, 'b': [2, 4]}
    """
    if isinstance(target, dict) and isinstance(value, dict):
        for key, item in value.items():
            if item is not ABSENT:
                target[key] = merge_state(target.get(key), item)
        return target
    if isinstance(target, (list, tuple)) and isinstance(value, (list, tuple)):
        longer = target[len(value) :] if any(map(_has_tensors, target[len(value) :])) else ()
        pairs = zip(target, value, strict=False)
        found = [old if new is ABSENT else merge_state(old, new) for old, new in pairs]
        more = [merge_state(None, item) for item in value[len(target) :] if item is not ABSENT]
        return type(value)([*found, *longer, *more])
    if _has_tensors(target):
        return target
    if isinstance(value, dict):
        return {key: merge_state(None, item) for key, item in value.items() if item is not ABSENT}
    if isinstance(value, (list, tuple)):
        return type(value)(merge_state(None, item) for item in value if item is not ABSENT)
    return value


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    return any(map(_has_tensors, value)) if isinstance(value, (list, tuple)) else _is_tensor(value)


def restore_types(own: Any, state: Any) -> Any:
    """Return a state with the subclasses of dict that an object's own state has in the same places.

    Examples
    --------
    >>> from collections import Counter
    >>> restore_types({"a": Counter(), "b": [{}]}, {"a": {3: 1}, "b": [{0: 1}], "c": {}})
    {'a': Counter({3: 1}), 'b': [{0: 1}], 'c': {}}
    """
    if isinstance(own, dict) and type(state) is dict:
        make = getattr(own, "default_factory", None) or (lambda: None)  # of a defaultdict
        items = {
            key: restore_types(own[key] if key in own else make(), item)
            for key, item in state.items()
        }
        if type(own) is dict:
            return items
        with suppress(Exception):  # of classes that cannot be copied or changed
            found = copy.copy(own)  # with what else it has, such as the factory of a defaultdict
            found.clear()
            found.update(items)
            return found
        return items
    if type(own) is type(state) and type(state) in (list, tuple):
        return type(state)([*map(restore_types, own, state), *state[len(own) :]])
    return state
