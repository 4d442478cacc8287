"""Batch memory: never shared, given back when the last user is gone, and then used again."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.threads import at_once
from windeck import _core

Batch = dict[str, Any]


def make_gather(rows: int = 20_000, steps: int = 64) -> Any:
    rng = np.random.default_rng(0)
    columns = [_core.Column(rng.normal(size=rows)) for _ in range(4)]
    fields = [_core.Field("x", columns, step_spans=[(0, steps)], mask=True)]
    index = _core.WindowIndex(np.array([0]), np.array([rows - steps + 1]), 1)
    return _core.Gather(index, np.array([0, rows]), fields)


@pytest.fixture(autouse=True)
def _fresh_pool() -> None:
    gc.collect()
    _core.trim_pool()


def test_memory_comes_back_when_the_last_array_is_gone() -> None:
    gather = make_gather()
    live = _core.pool_stats()["live"]
    batch = gather.gather(np.arange(100))
    assert _core.pool_stats()["live"] == live + 1
    view = batch["x_mask"][3, :2]
    del batch
    assert _core.pool_stats()["live"] == live + 1
    del view
    stats = _core.pool_stats()
    assert stats["live"] == live
    assert stats["free"] == 1


def test_a_steady_loop_allocates_nothing_and_faults_no_page() -> None:
    gather = make_gather()
    indices = np.arange(500)
    held: list[Batch] = []
    for _ in range(20):  # three batches alive at once, as with prefetching
        held = [*held[-2:], gather.gather(indices)]
    allocations = _core.pool_stats()["allocations"]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(300):
        held = [*held[-2:], gather.gather(indices)]
    assert _core.pool_stats()["allocations"] == allocations
    # A batch has over 300 pages; a few faults may be Python's own.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 100


def test_memory_no_one_asks_for_any_more_is_given_back() -> None:
    gather = make_gather()
    many = [gather.gather(np.arange(200)) for _ in range(40)]
    del many
    assert _core.pool_stats()["free"] == 40
    for _ in range(17_000):  # patience is 16,384
        gather.gather(np.arange(2))
    assert _core.pool_stats()["free"] <= 2
    _core.trim_pool()
    assert _core.pool_stats()["free_bytes"] == 0


def test_batches_held_are_never_touched_again() -> None:
    rng = np.random.default_rng(1)
    gather = make_gather()
    held: list[tuple[Batch, Batch]] = []
    for _ in range(400):
        batch = gather.gather(rng.integers(0, len(gather), 50))
        held.append((batch, {key: value.copy() for key, value in batch.items()}))
        if len(held) > 20:
            del held[int(rng.integers(len(held)))]
        for kept, copy in held[:: max(1, len(held) // 4)]:
            assert all(np.array_equal(kept[key], copy[key]) for key in kept)
    spans = sorted(
        (array.ctypes.data, array.ctypes.data + array.nbytes)
        for batch, _ in held
        for array in batch.values()
    )
    assert all(spans[i][1] <= spans[i + 1][0] for i in range(len(spans) - 1))


def test_many_threads_take_and_drop() -> None:
    gather = make_gather(steps=8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        held: list[Batch] = []
        for _ in range(150):
            indices = rng.integers(0, len(gather), int(rng.integers(1, 60)))
            batch = gather.gather(indices, threads=2)
            assert np.array_equal(batch["start"], indices)
            held = [*held[-3:], batch]

    live = _core.pool_stats()["live"]
    at_once(8, work)
    assert _core.pool_stats()["live"] == live


def test_tensors_outlive_their_source_and_autograd_drops_them() -> None:
    torch = pytest.importorskip("torch")
    gather = make_gather()
    live = _core.pool_stats()["live"]
    batch = gather.gather(np.arange(64))
    expected = batch["x"].copy()
    x = torch.from_numpy(batch["x"])
    del batch, gather
    gc.collect()
    assert torch.equal(x, torch.from_numpy(expected))
    weight = torch.ones((), requires_grad=True)
    loss = (x * weight).sum()  # autograd keeps x
    del x
    assert _core.pool_stats()["live"] == live + 1
    thread = threading.Thread(target=loss.backward)  # and drops it while it works
    thread.start()
    thread.join()
    del loss
    assert weight.grad.item() == pytest.approx(float(expected.sum()), rel=1e-3)
    assert _core.pool_stats()["live"] == live


def test_fork_while_other_threads_take_and_drop() -> None:
    program = """
import gc, os, signal, sys, threading, warnings
import numpy as np
warnings.simplefilter("ignore")
sys.path[:0] = [{tests!r}]
from core.test_pool import _core, make_gather
gather = make_gather(steps=8)
kept = gather.gather(np.arange(300))
copy = kept["x"].copy()
stop = threading.Event()
def churn():
    while not stop.is_set():
        gather.gather(np.arange(200), threads=2)
threads = [threading.Thread(target=churn) for _ in range(2)]
[t.start() for t in threads]
failed = 0
for _ in range(15):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        fine = np.array_equal(kept["x"], copy)
        for _ in range(20):
            batch = gather.gather(np.arange(200), threads=2)
            fine &= np.array_equal(batch["x"], copy[:200])
            fine &= not np.shares_memory(batch["x"], kept["x"])
        os._exit(0 if fine else 3)
    failed += os.waitpid(child, 0)[1] != 0
stop.set()
[t.join() for t in threads]
assert np.array_equal(kept["x"], copy)
print("failed", failed)
"""
    assert run_python(program) == "failed 0"


@pytest.mark.parametrize("torch", [False, True])
def test_batches_alive_at_the_end_of_the_interpreter(torch: bool) -> None:
    program = (
        """
import atexit, sys
sys.path[:0] = [{tests!r}]
from core.test_pool import make_gather
import numpy as np
gather = make_gather()
class Holder: pass
holder = Holder()
holder.self = holder                     # a cycle, left to the very end
holder.batch = gather.gather(np.arange(100), threads=2)
sys.modules["holder_of_a_batch"] = holder
batch = gather.gather(np.arange(10))
"""
        + ("import torch\nholder.tensor = torch.from_numpy(holder.batch['x'])\n" if torch else "")
        + "atexit.register(lambda: print('end', gather.gather(np.arange(5))['x'].shape))\n"
    )
    assert run_python(program) == "end (5, 64, 4)"


def run_python(program: str) -> str:
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program.replace("{tests!r}", repr(tests))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()
