"""Time that training waits for a save in the background, and the memory that it takes.

Dense float32 tensors of 256 MiB and a table of 200,000 rows of 64 floats with as many of the
optimizer (98 MiB), on RocksDB in a temporary folder (TMPDIR=/dev/shm for memory instead of a disk).
During a save, training looks up and changes random rows of the table without pause.

What a save costs training is told by a fixed number of steps that it is a part of: the mean of the
steps until its end is higher for a save that ends sooner.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Row, limit, ratio_of, seconds

import windeck as wd
from windeck import checkpoint
from windeck.checkpoint.stores import Store, open_store

TENSORS, ELEMENTS, IDS, DIM = 32, 2 << 20, 200_000, 64
ROUNDS = 7
#: Steps that take longer than a save of `SAVED_BYTES`.
STEPS, SAVED_BYTES = 200, 128 << 20


class Training:
    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.model = {f"w{i}": torch.randn(ELEMENTS, generator=self.random) for i in range(TENSORS)}
        self.table = wd.EmbeddingTable(DIM, optimizer="adagrad")
        self.table(torch.arange(IDS))
        self.steps = 0

    def step(self) -> None:
        rows = self.table(torch.randint(IDS, (2000,), generator=self.random))
        rows.sum().backward()
        self.table.step()
        self.model["w0"] += 1

    def save(self, store: Store, **options: Any) -> Any:
        self.steps += 1
        return checkpoint.save(
            store, step=self.steps, model=self.model, embeddings={"t": self.table}, **options
        )

    @property
    def bytes(self) -> int:
        return TENSORS * ELEMENTS * 4 + self.table.core.bytes


def kibibytes(name: str) -> int:
    """A field of /proc/self/status: VmRSS, or VmHWM, its peak since `reset_peak`."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return kibibytes("VmRSS")


def rows() -> Iterator[Row]:
    training = Training()
    with tempfile.TemporaryDirectory() as folder, open_store(f"rocksdb://{folder}/db") as store:
        still: dict[str, list[tuple[float, float]]] = {"first": [], "later": [], "half": []}
        whole, peak, steps = list[tuple[float, float]](), 0, 0
        half = TENSORS * ELEMENTS * 2

        def background(kind: str, plain: float, **options: Any) -> float:
            nonlocal peak, steps
            found = list[Any]()
            before = reset_peak()
            time = seconds(lambda: found.append(training.save(store, background=True, **options)))
            rest = seconds(lambda: train_until(found[0]))
            still[kind].append((time, plain))
            if kind == "first":  # with all memory fresh
                peak = max(peak, kibibytes("VmHWM") - before)
            return time + rest

        def train_until(saving: Any) -> None:
            nonlocal steps
            while not saving.done():
                training.step()
                steps += 1
            saving.wait()

        for turn in range(ROUNDS + 1):
            plain = seconds(lambda: training.save(store))
            checkpoint.wait()  # frees the copies
            background("first", plain)
            whole.append((background("later", plain), plain))
            checkpoint.wait()
            background("half", plain, background_bytes=half)
            checkpoint.wait()
            checkpoint.gc(store, keep=1)
            if not turn:  # warms up
                whole.clear()
                for figures in still.values():
                    figures.clear()
        model = {name: torch.zeros_like(tensor) for name, tensor in training.model.items()}
        assert training.save(store, background=True).wait()
        checkpoint.load(store, model=model)
        assert all(torch.equal(model[name], tensor) for name, tensor in training.model.items())
    ours, size = "save(background=True)", "256 MiB and a table of 98 MiB"
    still_time = f"time for which training stands still for a save of {size}"
    yield Row(still_time, ours, "save()", ratio_of(still["later"]), 2.0)
    first, half_copied = ratio_of(still["first"]), ratio_of(still["half"])
    yield Row("the same, with new memory for the copies", ours, "save()", first, None)
    yield Row("the same, with background_bytes of 128 MiB", ours, "save()", half_copied, None)
    question = f"the whole save, beside {steps // (3 * ROUNDS + 3)} steps of training"
    yield Row(question, "in the background", "save()", ratio_of(whole), None)
    question, found = "extra memory: at most the bytes of tensors and tables", peak << 10
    yield Row(question, "peak", "bytes", limit(found, training.bytes), 0.9)
    yield steps_row()


def steps_row() -> Row:
    """Steps of a small model on one thread, with a save of other tensors among them and without."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 256)
    saved = {f"w{i}": torch.randn(SAVED_BYTES // 32) for i in range(8)}

    def train() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    def train_and_save(store: Store, turn: int) -> None:
        saving = checkpoint.save(store, step=turn, model=saved, keep=1, background=True)
        train()
        assert saving.done(), "expected more steps than the save takes"
        saving.wait()

    times = list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as folder, open_store(f"rocksdb://{folder}/db") as store:
        for turn in range(2 * ROUNDS + 1):
            alone = seconds(train)
            times.append((seconds(partial(train_and_save, store, turn)), alone))
    torch.set_num_threads(threads)
    question = f"{STEPS} steps of a small model on one thread, 128 MiB saved with keep=1 meanwhile"
    return Row(question, "with the save", "without", ratio_of(times[1:]), None)


if __name__ == "__main__":
    for row in rows():
        print(
            f"{row.question}: {row.ours} against {row.rival}: {row.ratio}"
            f" ({row.ratio.ours_seconds:.4g}, {row.ratio.rival_seconds:.4g})"
        )
