"""Objects with tensors on another device, to find mixed devices without a GPU.

Tensors on `meta` have shapes and dtypes but no values. In torch's fake mode an operation on tensors
of `meta` and of `cpu` is an error, as one on tensors of CUDA and of `cpu` would be.
"""

from __future__ import annotations

from typing import Any

import torch

META = torch.device("meta")

# Modules of the objects whose attributes are moved.
_MOVED = (
    "windeck.device_orders",
    "windeck.packing.device",
    "windeck.windows.device",
    "windeck.windows.device_balanced",
)


def moved(value: Any) -> Any:
    """Return tensors on `meta` in place of those in a value; objects of windeck are changed."""
    if isinstance(value, torch.Tensor):
        shape, stride = value.shape, value.stride()
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=META)
    if isinstance(value, torch.device):
        return META
    if isinstance(value, list):
        return list(map(moved, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(moved, value))
    if type(value).__module__ in _MOVED:
        for name, attribute in vars(value).items():
            if name != "_rows":
                object.__setattr__(value, name, moved(attribute))
    return value
