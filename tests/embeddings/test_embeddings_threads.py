"""Embedding tables in several threads, and what their first use imports."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch

import windeck as wd
from support.programs import printed
from support.threads import at_once
from windeck import checkpoint

THREADS, PASSES, DIM = 4, 150, 4


FORKS = """
import os, signal, sys, threading
import numpy as np
import windeck as wd

table, ids = wd.EmbeddingTable(4, optimizer="sgd"), np.arange(20_000)
table.core.lookup(ids, insert=True)
running = [True]

def train():
    while running:
        table.core.lookup(ids, insert=True, threads=2)

worker = threading.Thread(target=train)
worker.start()
for _ in range(40):
    child = os.fork()
    if not child:
        signal.alarm(60)                        # ends a child that waits for a lock
        rows = table.core.lookup(ids, insert=True, threads=2)
        with table.core.snapshot() as snapshot:
            whole = rows.shape == (20_000, 4) and snapshot.rows == 20_000
        os._exit(0 if whole else 1)
    assert os.waitpid(child, 0)[1] == 0
running.clear()
worker.join()
"""


def test_a_fork_beside_a_thread_that_trains() -> None:
    """The child has a table of its own that no thread of the parent holds."""
    printed(FORKS)


def test_backward_passes_during_steps_evictions_and_saves() -> None:
    """Every gradient is applied once, and every save has rows of whole steps."""
    table = wd.EmbeddingTable(DIM, optimizer="sgd", lr=1.0, initializer="zeros")
    table(torch.tensor([-1]))
    store = checkpoint.stores.open_store("memory://")
    running = [True] * THREADS
    counts = [Counter[int]() for _ in range(THREADS)]

    def learn(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for _ in range(PASSES):
            ids = torch.randint(0, 500, (64,), generator=generator)
            counts[number].update(ids.tolist())
            table(ids).sum().backward()

    def work(number: int) -> Any:
        if number < THREADS:
            try:
                return learn(number)
            finally:
                running[number] = False
        step = 0
        while any(running):
            step += 1
            table.step()
            # No id is looked up that often: nothing is removed, but all rows are visited.
            assert len(table.evict(frequency_below=1)) == 0
            if step % 20 == 1:
                checkpoint.save(store, step=step, embeddings={"t": table}, keep=1)
                loaded = wd.EmbeddingTable.from_config(table.config)
                checkpoint.load(store, embeddings={"t": loaded})
                values = loaded(torch.arange(500))[:, 0]
                assert torch.equal(values, values.round())
                assert bool((values <= 0).all())
        return step

    assert at_once(THREADS + 1, work)[-1] > 0
    table.step()
    total = sum(counts, Counter[int]())
    expected = -torch.tensor([float(total[number]) for number in range(500)])
    assert torch.equal(table(torch.arange(500)).detach(), expected[:, None].expand(-1, DIM))


def test_rows_evicted_during_backward_passes() -> None:
    """Gradients of ids that were evicted since their lookup do no harm."""
    table = wd.EmbeddingTable(DIM, optimizer="adagrad")

    def work(number: int) -> None:
        for i in range(PASSES):
            if number < THREADS:
                ids = torch.arange(64) + 64 * ((i + number) % 5)
                table(ids).square().sum().backward()
            else:
                table.step()
                table.evict(seen_before=table.core.clock)

    at_once(THREADS + 1, work)
    table.step()
    rows = table(torch.arange(320))
    assert rows.shape == (320, DIM)
    assert bool(rows.isfinite().all())


def test_the_anchor_is_left_to_autograd() -> None:
    """A step does not assign to memory that backward passes of other threads write."""
    table = wd.EmbeddingTable(DIM)
    found = table(torch.tensor([1]))
    (anchor,) = (node.variable for node, _ in found.grad_fn.next_functions if node is not None)
    anchor.grad = torch.ones(())  # instead of None, which could not be told from one assigned
    before = anchor.grad
    found.sum().backward()
    assert table.step() == 1
    table.zero_grad()
    assert anchor.grad is before


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_both_widths(dtype: torch.dtype) -> None:
    table = wd.EmbeddingTable(DIM, optimizer="sgd", lr=1.0)
    ids = torch.tensor([5, -3, 5, 2**31 - 1, -(2**31)])
    expected = table(ids).detach()
    found = table(ids.to(dtype))
    assert torch.equal(found, expected)
    found.sum().backward()
    assert table.step() == 4
    offsets = torch.tensor([0, 2, 5])
    assert torch.equal(table.bag(ids.to(dtype), offsets.to(dtype)), table.bag(ids, offsets))


def test_the_first_lookup_imports_nothing() -> None:
    """The compiler, more than a thousand modules, is imported only to compile."""
    program = (
        "import sys, torch, windeck as wd\n"
        "table = wd.EmbeddingTable(4)\n"
        "before = len(sys.modules)\n"
        "table(torch.tensor([1, 2])).sum().backward()\n"
        "assert table.step() == 2\n"
        "table.bag(torch.tensor([1, 2]), torch.tensor([0, 2]))\n"
        "assert len(sys.modules) == before, len(sys.modules) - before\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
