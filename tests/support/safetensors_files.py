"""Comparisons of safetensors files by the safetensors library; tests skip without it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from support.tensor_bits import raw

if importlib.util.find_spec("safetensors") is None and "CI" not in os.environ:
    reason = "safetensors is not installed: pip install 'windeck[safetensors]'"
    pytest.skip(reason, allow_module_level=True)
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

__all__ = ["load_file", "load_model", "safe_open", "same", "save_file", "save_model", "texts"]


def texts(file: Path) -> dict[str, str]:
    """Return the metadata of a file."""
    with safe_open(file, framework="pt") as found:
        return dict(found.metadata())


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Return True if names, dtypes, shapes and bits are the same."""
    return a.keys() == b.keys() and all(
        (v.dtype, v.shape, raw(v)) == (b[name].dtype, b[name].shape, raw(b[name]))
        for name, v in a.items()
    )
