"""Tensors of any dtype with random bits, and their bytes, without code of the library."""

from __future__ import annotations

import warnings

import numpy as np
import torch

__all__ = ["DTYPES", "filled", "raw", "usable"]

DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)


def raw(tensor: torch.Tensor) -> bytes:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor.detach())
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bits, which include NaNs of all kinds."""
    count = int(np.prod(shape)) * dtype.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, count).astype(np.uint8)
    if dtype is torch.bool:
        bits &= 1
    whole = torch.empty(shape, dtype=dtype)
    whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).copy_(torch.from_numpy(bits))
    return whole


def usable(dtype: torch.dtype) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # complex32 is experimental
            torch.empty(2, dtype=dtype)
        torch.empty(2, dtype=dtype).copy_(torch.empty(2, dtype=dtype))
        torch.empty(2, dtype=dtype).view(torch.uint8)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return not str(dtype).startswith(("torch.q",))
