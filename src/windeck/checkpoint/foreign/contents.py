"""Conversion of the contents of files to trees: roots, the step, and values of torch's types."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from windeck.checkpoint.format import state_json
from windeck.checkpoint.write.imports import ForeignState, ForeignTensor
from windeck.columns.dtypes import torch_dtype

__all__ = ["Describe", "OnUnreadable", "build_state", "check_expanded"]

#: A function of a tensor's name and the tensor that returns its description, and a key that is
#: equal for tensors with the same data (None: no other has them).
Describe: TypeAlias = Callable[[str, torch.Tensor], tuple[ForeignTensor, Any]]
#: A function of the name of a value that cannot be read and of the error.
OnUnreadable: TypeAlias = Callable[[str, ValueError], Any]

#: Keys under which training scripts and trainers save the state of a model and of an optimizer.
_MODEL_KEYS = ("model", "state_dict", "model_state_dict", "model_state", "module", "net")
_OPTIMIZER_KEYS = ("optimizer", "optimizer_state_dict", "optimizer_states", "optim")
_STEP_KEYS = ("step", "global_step", "iteration")
_DEEPEST = 100
#: Limits for the bytes of all tensors of a file: a number, and a multiple of the bytes of the file,
#: which is more than compression makes of it.
_FEW_BYTES, _MOST_EXPANDED = 1 << 30, 2000
#: Values that a file may list, however few it stores, and the most times that it may list each.
_FEW_VALUES, _MOST_TIMES = 1_000_000, 10


def build_state(content: Any, describe: Describe, *, root: str | None) -> ForeignState:
    """Return the state of the contents of a file.

    Parameters
    ----------
    content
        Dicts, lists and tuples of tensors and plain values.
    describe
        Describes a tensor of it.
    root
        The root of all of it. None: what is under a key such as ``state_dict`` is ``model``, under
        ``optimizer_state_dict`` ``optimizer``, and the rest ``extra``; without such a key all of it
        is ``model``.

    Raises
    ------
    TypeError, ValueError
        For a value that cannot be saved, naming its place.
    """
    _check_repeated(content)
    tensors: dict[str, ForeignTensor] = {}
    known: dict[Any, str] = {}

    def keep(name: str, tensor: Any) -> str:
        found, key = describe(name, tensor)
        if key is not None and key in known:
            return known[key]
        if name in tensors:
            raise ValueError(f"two tensors have the name {name}, expected one of each name")
        tensors[name] = found
        if key is not None:
            known[key] = name
        return name

    roots = {root: content} if root is not None else _split_roots(content)
    trees = {
        name: state_json.encode(_plain_value(value, name, 0), name, keep)
        for name, value in roots.items()
    }
    return ForeignState(_find_step(content, describe), trees, tensors)


def check_expanded(state: ForeignState, file: Path, stored_bytes: int) -> None:
    """Raise a ValueError for tensors that an import would write as far more than is stored.

    A tensor can have one element in memory at each of its 2^40 places, as `torch.Tensor.expand`
    makes it. Masks and other buffers that were expanded are below the limits.
    """
    sizes = {
        name: math.prod(tensor.shape) * torch_dtype(tensor.dtype).itemsize
        for name, tensor in state.tensors.items()
    }
    total = sum(sizes.values())
    if total > max(_FEW_BYTES, _MOST_EXPANDED * stored_bytes):
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"{file} has tensors of {total:,} bytes, the largest {largest} of "
            f"{tuple(state.tensors[largest].shape)}, in {stored_bytes:,} bytes: expected up to "
            f"{_FEW_BYTES:,}, or {_MOST_EXPANDED:,} times the bytes stored"
        )


def _split_roots(content: Any) -> dict[str, Any]:
    if not isinstance(content, Mapping):
        return {"model": content}
    model = _first_key(content, _MODEL_KEYS)
    optimizer = _first_key(content, _OPTIMIZER_KEYS)
    if model is None and optimizer is None:
        return {"model": content}
    roots = {}
    if model is not None:
        roots["model"] = content[model]
    if optimizer is not None:
        roots["optimizer"] = _with_integer_keys(_only_item(content[optimizer]))
    rest = {key: value for key, value in content.items() if key not in (model, optimizer)}
    extra = rest.get("extra")
    if len(rest) == 1 and isinstance(extra, Mapping):
        rest = dict(extra)
    return {**roots, "extra": rest} if rest else roots


def _first_key(content: Mapping[Any, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of some names under which there is a dict."""
    found = (name for name in names if isinstance(_only_item(content.get(name)), Mapping))
    return next(found, None)


def _only_item(value: Any) -> Any:
    """Return the item of a list of one: trainers save a list of optimizers."""
    return value[0] if type(value) is list and len(value) == 1 else value


def _with_integer_keys(optimizer: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return an optimizer's state with the integer keys that DCP turned into text."""
    state, groups = optimizer.get("state"), optimizer.get("param_groups")
    if not isinstance(state, Mapping) or type(groups) is not list:
        return optimizer
    params = [group.get("params") if isinstance(group, Mapping) else None for group in groups]
    if not all(type(own) is list and all(type(n) is int for n in own) for own in params):
        return optimizer
    if not all(type(key) is str and key.isascii() and key.isdigit() for key in state):
        return optimizer
    return {**optimizer, "state": {int(key): value for key, value in state.items()}}


def _find_step(content: Any, describe: Describe) -> int:
    found = [content.get(key) for key in _STEP_KEYS] if isinstance(content, Mapping) else []
    steps = (_whole_number(value, describe) for value in found)
    return next((n for n in steps if n is not None and 0 <= n < 1 << 63), 0)


def _whole_number(value: Any, describe: Describe) -> int | None:
    """Return an integer, or the integer in a tensor of one element; None for other values."""
    if not isinstance(value, torch.Tensor):
        return value if type(value) is int else None
    tensor = describe("step", value)[0]
    if math.prod(tensor.shape) != 1 or not re.fullmatch(r"u?int\d+", tensor.dtype):
        return None
    data = bytes(tensor.parts[0].read(0, 1))
    return int.from_bytes(data, sys.byteorder, signed=tensor.dtype[0] == "i")


def _check_repeated(content: Any) -> None:
    """Raise a ValueError for lists in lists whose values are far more than those stored.

    Forty lists, each with the next one twice, are 2^40 values in a file of 1 kB. O(stored) time.
    """
    sizes: dict[int, tuple[int, int]] = {}
    listed, _ = _count_values(content, 0, sizes)
    stored = sum(own for _, own in sizes.values())
    if listed > max(_FEW_VALUES, _MOST_TIMES * stored):
        raise ValueError(
            f"the file lists {listed:,} values, and stores {stored:,}: expected each list in up to "
            f"{_MOST_TIMES} places"
        )


def _count_values(value: Any, depth: int, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the number of values in a list or dict, and without those in nested ones.

    `sizes` has those that were counted before, by `id`.
    """
    is_dict = isinstance(value, Mapping)
    if not is_dict and type(value) not in (list, tuple, torch.Size):
        return 0, 0
    if depth > _DEEPEST + 2:  # more levels than a root may have
        return 0, 0
    if id(value) not in sizes:
        items = value.values() if is_dict else value
        nested = sum(_count_values(item, depth + 1, sizes)[0] for item in items)
        sizes[id(value)] = len(value) + nested, len(value)
    return sizes[id(value)]


def _plain_value(value: Any, name: str, depth: int) -> Any:
    """Return a value with torch's own types as tuples and text."""
    if depth > _DEEPEST:
        raise ValueError(f"{name[:80]}... is nested deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        return {k: _plain_value(v, f"{name}/{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, (torch.dtype, torch.device, torch.layout)):
        return str(value)
    if type(value) in (list, tuple, torch.Size):
        items = [_plain_value(item, f"{name}/{i}", depth + 1) for i, item in enumerate(value)]
        return items if type(value) is list else tuple(items)
    return value
