"""What does a lookup of dynamic ids cost, beside a Python dict and beside dense indices?

65,536 random ids of a table of 10 million rows of 64 float32 (16 where less than 20 GiB of memory
are free), other ids in each call. The dict holds a tensor for each id; `F.embedding` is told the
rows' numbers, which a table of dynamic ids has to find out first. Every pair is compared for
equality before it is timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from measure import Row, compare

from windeck import _core

Array = np.ndarray[Any, Any]

ROWS, BATCH, CHUNK = 10_000_000, 65_536, 500_000


def free_bytes() -> int:
    """What may be had without swapping, as the system tells."""
    with open("/proc/meminfo") as lines:
        known = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return known["MemAvailable"]


def filled(dim: int) -> tuple[Any, Array, Array]:
    """A table, its ids, and their rows in the same order."""
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, ROWS + 1000))
    ids = rng.permutation(ids)[:ROWS]
    core = _core.EmbeddingCore(dim, slots=0, initializer="uniform")
    core.reserve(ROWS)
    dense = np.empty((ROWS, dim), np.float32)
    for start in range(0, ROWS, CHUNK):
        core.lookup(ids[start : start + CHUNK], dense[start : start + CHUNK], insert=True)
    return core, ids, dense


def draws(ids: Array) -> Callable[[], tuple[Any, Array]]:
    """(numbers of rows, their ids), other ones in each call."""
    import torch

    rng = np.random.default_rng(1)
    numbers = [rng.integers(0, len(ids), BATCH) for _ in range(31)]
    return itertools.cycle([(torch.from_numpy(n), ids[n]) for n in numbers]).__next__


def rows() -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    dim = 64 if free_bytes() > 20 * 2**30 else 16
    core, ids, dense = filled(dim)
    weight = torch.from_numpy(dense)
    draw = draws(ids)
    out = np.empty((BATCH, dim), np.float32)
    tensor_out = torch.empty(BATCH, dim)

    def ours() -> Array:
        return core.lookup(draw()[1], out, insert=False)

    def counting() -> Array:
        return core.lookup(draw()[1], out, insert=True)

    def embedding() -> Any:
        return torch.nn.functional.embedding(draw()[0], weight)

    def index_select() -> Any:
        return torch.index_select(weight, 0, draw()[0], out=tensor_out)

    numbers, some = draw()
    expected = torch.nn.functional.embedding(numbers, weight).numpy()
    assert np.array_equal(core.lookup(some, insert=False), expected)
    assert np.array_equal(core.lookup(some, insert=True), expected)
    assert np.array_equal(torch.index_select(weight, 0, numbers, out=tensor_out), expected)

    question = f"look up {BATCH:,} ids in {ROWS // 10**6} million x {dim} float32"

    def row(name: str, rival: str, mine: Any, other: Any, needed: float | None, rounds: int) -> Row:
        ratio = compare(mine, other, rounds=rounds)
        return Row(question, name, rival, ratio, needed, "latency of memory")

    looking, training = "EmbeddingCore.lookup", "EmbeddingCore.lookup, counting"
    yield row(looking, "F.embedding, dense indices", ours, embedding, 0.3, 61)
    yield row(training, "F.embedding, dense indices", counting, embedding, None, 61)
    yield row(looking, "torch.index_select(out=), dense", ours, index_select, None, 61)

    by_id: dict[int, Any] = {}
    for start in range(0, ROWS, CHUNK):  # each with memory of its own, as they come one by one
        made = (view.clone() for view in weight[start : start + CHUNK].unbind())
        by_id.update(zip(ids[start : start + CHUNK].tolist(), made, strict=True))

    def stacked() -> Any:
        return torch.stack([by_id[i] for i in draw()[1].tolist()])

    assert np.array_equal(torch.stack([by_id[i] for i in some.tolist()]), expected)
    yield row(looking, "dict of tensors + torch.stack", ours, stacked, 50.0, 15)
    yield row(training, "dict of tensors + torch.stack", counting, stacked, None, 15)
