"""The loader over windows: contents, memory returned to the pool, and tensors that outlive it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import windeck as wd
from models.oracle import Numbers
from windeck._core import pool_stats


@pytest.fixture(scope="module")
def values() -> NDArray[np.float32]:
    numbers = np.random.default_rng(5).standard_normal(900).astype(np.float32)
    numbers[::17] = np.nan
    return numbers


def cut(values: NDArray[np.float32], **options: object) -> wd.Windows:
    table = wd.Table.from_columns({"load": values}, offsets=[0, 500, 900])
    return wd.Windows(table, context_length=24, prediction_length=6, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [None, 2])
def test_every_window_once_and_whole(values: NDArray[np.float32], threads: int | None) -> None:
    windows = cut(values)
    loader = wd.Loader(windows, batch_size=64, shuffle=True, seed=3, threads=threads)
    starts = []
    for batch in loader:
        for row, start in enumerate(batch["start"].tolist()):
            expected = values[start : start + 30]
            found = torch.cat([batch["past_target"][row, :, 0], batch["future_target"][row, :, 0]])
            np.testing.assert_array_equal(found, np.nan_to_num(expected))
            mask = torch.cat([batch[f"{k}_target_mask"][row, :, 0] for k in ("past", "future")])
            np.testing.assert_array_equal(mask, ~np.isnan(expected))
            starts.append(start)
    assert sorted(starts) == sorted(windows.window_starts().tolist())


def test_bfloat16_windows_are_bfloat16_tensors(values: NDArray[np.float32]) -> None:
    batch = wd.Loader(cut(values, dtype="bfloat16"), batch_size=16).peek()
    expected = torch.from_numpy(np.nan_to_num(values[:24])).to(torch.bfloat16)
    assert torch.equal(batch["past_target"][0, :, 0], expected)


def test_an_epoch_of_batches_let_go_allocates_nothing(values: NDArray[np.float32]) -> None:
    loader = wd.Loader(cut(values), batch_size=64, shuffle=True, drop_last=True)
    for _ in range(2):
        for batch in loader:
            del batch
    before = pool_stats()
    for _ in range(3):
        for batch in loader:
            del batch
    after = pool_stats()
    assert after["takes"] > before["takes"]
    assert after["allocations"] == before["allocations"]


def test_tensors_outlive_loader_table_and_loop(values: NDArray[np.float32]) -> None:
    expected = cut(values).gather(np.arange(8))["past_target"]
    loader = wd.Loader(cut(values.copy()), batch_size=8)
    kept = next(iter(loader))["past_target"]
    slice_of_it = kept[3, 5:]
    del loader
    gc.collect()
    others = [batch["past_target"].zero_() for batch in wd.Loader(cut(values), batch_size=8)]
    np.testing.assert_array_equal(kept, expected)
    del kept, others
    gc.collect()
    np.testing.assert_array_equal(slice_of_it, expected[3, 5:])


def test_autograd_may_let_go_of_the_last_reference(values: NDArray[np.float32]) -> None:
    weight = torch.ones(1, requires_grad=True)
    total = 0.0
    for batch in wd.Loader(cut(values), batch_size=32):
        loss = (batch["past_target"] * weight).square().sum()  # Saves the batch for backward.
        total += float(batch["past_target"].square().sum()) * 2
        del batch
        loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(total, rel=1e-4)


def test_tensors_at_the_interpreters_exit_and_after_fork() -> None:
    program = """
import os, numpy as np, torch, windeck as wd, builtins
table = wd.Table.from_columns({"load": np.arange(5000, dtype=np.float32)})
loader = wd.Loader(wd.Windows(table, context_length=24), batch_size=64, shuffle=True)
loop = iter(loader)
builtins.kept = [next(loop) for _ in range(3)]
child = os.fork()
if child == 0:
    del builtins.kept[0]
    builtins.kept.append(next(loop))
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
next(loop)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    def peak(size: int) -> int:
        loader = wd.Loader(Numbers(size), batch_size=64, shuffle=True, prefetch=0)
        far = {**loader.state_dict(), "position": 3 * size + size // 2}
        next(iter(loader))
        tracemalloc.start()
        loader = wd.Loader(Numbers(size), batch_size=64, shuffle=True, prefetch=0)
        loader.load_state_dict(far)
        next(iter(loader))
        loader.exclude(4 * size, 5 * size)
        loader.samples(10**9)
        loader.step_of(size // 3)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1000)
    assert peak(10**12) < peak(1000) + 16_384
