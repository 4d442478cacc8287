"""The tensors that objects hold, wherever in them: their bytes, and which they share."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch

__all__ = ["held_tensors"]


def held_tensors(*values: object) -> dict[int, int]:
    """Return the bytes of each storage of tensors that values hold, by its address."""
    found: dict[int, int] = {}
    seen, waiting = set[int](), list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(
            value, (type, ModuleType, FunctionType, BuiltinFunctionType)
        ):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            if storage.nbytes():
                found[storage.data_ptr()] = storage.nbytes()
            continue
        waiting += gc.get_referents(value)
    return found
