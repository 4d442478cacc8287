"""The recipe for JAX in docs/frameworks.md: zero-copy, and what is copied or left on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.recipes import names

jax = pytest.importorskip("jax")
to_jax = names("Plain torch", "JAX")["to_jax"]


def is_shared(array: Any, tensor: torch.Tensor) -> bool:
    return bool(array.unsafe_buffer_pointer() == tensor.data_ptr())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_batches_of_windows_are_shared(dtype: str) -> None:
    table = wd.Table.from_columns({"load": np.arange(203, dtype=np.float32)})
    windows = wd.Windows(table, context_length=18, prediction_length=6, dtype=dtype)
    # Groups of several batches, and a short batch.
    for batch in wd.Loader(windows, batch_size=7, shuffle=True, seed=3):
        arrays = to_jax(batch)
        assert set(arrays) == set(batch)
        for key, tensor in batch.items():
            if tensor.dtype == torch.int64:
                assert np.shares_memory(arrays[key], tensor.numpy())
            else:
                assert is_shared(arrays[key], tensor), key
                assert str(arrays[key].dtype) == str(tensor.dtype).removeprefix("torch.")
                assert np.array_equal(
                    np.asarray(arrays[key], np.float32), tensor.float().numpy(), equal_nan=True
                )


def test_sixty_four_bits_are_not_cut() -> None:
    batch = {"start": torch.tensor([3_000_000_000]), "x": torch.tensor([1e300]).double()}
    arrays = to_jax(batch)
    assert arrays["start"].tolist() == [3_000_000_000]
    assert arrays["x"].dtype == np.float64
    # The reason: without the recipe the values change, and no error is raised.
    assert jax.dlpack.from_dlpack(batch["start"]).tolist() == [3_000_000_000 - 2**32]
    with jax.enable_x64(True):
        assert to_jax(batch)["start"].tolist() == [3_000_000_000]
        assert isinstance(to_jax(batch)["start"], jax.Array)


def test_memory_that_is_not_aligned_is_copied() -> None:
    tensor = torch.arange(100, dtype=torch.int32)
    buffer = torch.empty(200, dtype=torch.int32)
    offset = (64 - buffer.data_ptr() % 64) // 4 % 16
    for shift in range(17):
        part = buffer[offset + shift :][:100].copy_(tensor)
        array = to_jax({"x": part})["x"]
        assert is_shared(array, part) == (shift % 16 == 0)
        assert array.tolist() == tensor.tolist()
        if shift % 16:
            with pytest.raises(ValueError, match="not aligned to 64 bytes"):
                jax.dlpack.from_dlpack(part, copy=False)


def test_views_are_copied() -> None:
    buffer = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    with pytest.raises(Exception, match="striding"):
        jax.dlpack.from_dlpack(buffer[:, :3])
    for view in (buffer[:, :3], buffer[:, 1:]):
        assert to_jax({"inputs": view})["inputs"].tolist() == view.tolist()


def test_a_run_in_jax_is_killed_and_resumed() -> None:
    table = wd.Table.from_columns({"load": np.arange(123, dtype=np.float32)})
    windows = wd.Windows(table, context_length=18, prediction_length=6)

    def make() -> wd.Loader:
        return wd.Loader(windows, batch_size=16, shuffle=True, seed=7, epochs=2)

    def trained(loader: wd.Loader, steps: int) -> list[int]:
        found: list[int] = []
        while steps and loader.epoch < 2:
            for batch in loader:
                found += np.asarray(to_jax(batch)["past_target"])[:, 0, 0].astype(int).tolist()
                steps -= 1
                if not steps:
                    break
        return found

    expected = trained(make(), 99)
    assert sorted(expected) == sorted([*range(100), *range(100)])
    loader = make()
    first = trained(loader, 9)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert first + trained(resumed, 99) == expected
