"""The table of dtypes against NumPy, torch and the C++ core."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from windeck import Table, _core
from windeck.columns import DTYPES, dtype_name, is_bits, tensor_from_bits, torch_dtype


@pytest.mark.parametrize("name", DTYPES)
def test_the_table_agrees_with_numpy_torch_and_the_core(name: str) -> None:
    known = DTYPES[name]
    for dtype in filter(None, (known.numpy, known.storage)):
        assert np.dtype(dtype).itemsize == known.itemsize
    if hasattr(torch, name):
        assert torch_dtype(name).itemsize == known.itemsize
        assert dtype_name(torch_dtype(name)) == name
    if known.storage is not None:
        values = np.zeros(3, known.storage)
        _core.Column(values, dtype=name, name="x")
        assert Table.from_columns({"x": values})["x"].dtype == known.storage
    if known.floating is not None:
        assert 8 * known.itemsize == max(known.floating.top.bit_length() + 1, 8)


def test_names_of_dtypes() -> None:
    for given in ("float32", "f4", "<f4", np.float32, np.dtype("f4"), torch.float32):
        assert dtype_name(given) == "float32"
    assert dtype_name(torch.bfloat16) == dtype_name("bfloat16") == "bfloat16"
    for wrong in ("float99", object(), "torch"):
        with pytest.raises(TypeError, match="is not known, expected one such as 'float32'"):
            dtype_name(wrong)
    for missing in ("float99", "Tensor", "nn.functional"):
        with pytest.raises(ValueError, match=f"has no dtype '{missing}'"):
            torch_dtype(missing)


def test_a_tensor_shares_the_memory_of_its_bits() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    tensor = tensor_from_bits(bits, "bfloat16")
    assert is_bits("bfloat16")
    assert tensor.tolist() == [1.0, -2.0]
    bits[0] = 0x4000
    assert tensor[0] == 2.0
