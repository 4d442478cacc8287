"""Moving of arrays to devices: checks of the device and of its free memory, tensors of bits.

Values are moved as signed integers of their size, so that every device copies them bit for bit,
also those of dtypes that it does not compute with.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from windeck.columns.dtypes import Array, item_bytes

__all__ = ["as_bits", "check_room", "empty_bits", "resolve_device"]


def resolve_device(device: torch.device | str) -> torch.device:
    """Return the device with its index: ``cuda`` is the current CUDA device.

    Raises
    ------
    RuntimeError
        If this torch has no such device.
    """
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"`device` is {str(wanted)!r}, but torch finds no CUDA device")
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        raise RuntimeError(f"`device` is {str(wanted)!r}, but torch finds no MPS device")
    return torch.empty(0, device=wanted).device


def check_room(what: str, needed: int, device: torch.device) -> None:
    """Raise a MemoryError if the device has fewer than `needed` bytes free."""
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise MemoryError(
            f"{what} need {needed:,} bytes on {device}, expected at most the {free:,} that are free"
        )


def _free_bytes(device: torch.device) -> int | None:
    """Return the bytes that torch can allocate; None where the device does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch holds and has not given out.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    most = getattr(torch.mps, "recommended_max_memory", None)
    if device.type == "mps" and most is not None:
        return int(most() - torch.mps.current_allocated_memory())
    return None


def empty_bits(shape: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor of signed integers, for the bits of values of a dtype."""
    bits = getattr(torch, f"int{8 * (item_bytes(dtype) or 0)}")
    return torch.empty(shape, dtype=bits, device=device)


def as_bits(array: Array) -> Any:
    """Return a host tensor of signed integers on the memory of a contiguous array."""
    return torch.from_numpy(np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}"))
