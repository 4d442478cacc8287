"""Time of a lookup of dynamic ids, beside a Python dict and beside dense indices.

65,536 random ids of a table of 10 million rows of 64 float32 (where 17 GiB of memory are free) and
of 16, other ids in each call. `F.embedding` is told the rows' numbers, which a table of dynamic ids
has to find out first. There are two dicts, one after the other: of views of the rows of one
matrix, and of tensors each with memory of its own, as they are when ids come one by one. Both sides
have as many threads, windeck's default, or one. Every pair is compared for equality before it is
timed.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from measure import Row, compare

from windeck import _core

Array = np.ndarray[Any, Any]

ROWS, BATCH, CHUNK = 10_000_000, 65_536, 500_000
NEEDED_FOR_64 = 17 * 2**30


def free_bytes() -> int:
    """Memory that is available without swapping, as the system says."""
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
        core.lookup(
            ids[start : start + CHUNK], dense[start : start + CHUNK], insert=True, threads=None
        )
    return core, ids, dense


def touch(core: Any, ids: Array) -> None:
    """Read all of a table: a system may put away what was not used for a while."""
    for start in range(0, ROWS, CHUNK):
        core.lookup(ids[start : start + CHUNK], insert=True, threads=None)


def draws(ids: Array) -> Callable[[], tuple[Any, Array]]:
    """(numbers of rows, their ids), other ones in each call."""
    import torch

    rng = np.random.default_rng(1)
    numbers = [rng.integers(0, len(ids), BATCH) for _ in range(31)]
    return itertools.cycle([(torch.from_numpy(n), ids[n]) for n in numbers]).__next__


def dict_of(ids: Array, tensors: Callable[[int, int], Iterable[Any]]) -> dict[int, Any]:
    """A tensor for each id; `tensors(start, stop)` gives those of some of them, in order."""
    by_id: dict[int, Any] = {}
    gc.disable()  # which would look through millions of tensors time and again
    try:
        for start in range(0, ROWS, CHUNK):
            stop = start + CHUNK
            by_id.update(zip(ids[start:stop].tolist(), tensors(start, stop), strict=True))
    finally:
        gc.enable()
    return by_id


def rows() -> Iterator[Row]:
    if free_bytes() > NEEDED_FOR_64:
        yield from rows_of(64)
    yield from rows_of(16)


def rows_of(dim: int) -> Iterator[Row]:
    import torch

    core, ids, dense = filled(dim)
    weight = torch.from_numpy(dense)
    draw = draws(ids)
    kept = torch.empty(BATCH, dim)

    def looking(threads: int, insert: bool = False) -> Callable[[], Any]:
        def look() -> Any:  # into an array of its own, as the rivals; as EmbeddingTable does it
            return torch.from_numpy(core.lookup(draw()[1], insert=insert, threads=threads))

        return look

    def embedding() -> Any:
        return torch.nn.functional.embedding(draw()[0], weight)

    def index_select() -> Any:
        return torch.index_select(weight, 0, draw()[0], out=kept)

    def into_kept() -> Any:
        return core.lookup(draw()[1], kept.numpy(), insert=False, threads=crew)

    numbers, some = draw()
    expected = torch.nn.functional.embedding(numbers, weight)
    for insert, threads in itertools.product((False, True), (1, 2)):
        found = core.lookup(some, insert=insert, threads=threads)
        assert np.array_equal(found, expected.numpy())
    assert torch.equal(torch.index_select(weight, 0, numbers), expected)

    def row(name: str, rival: str, mine: Any, other: Any, needed: float | None, rounds: int) -> Row:
        threads = torch.get_num_threads()
        question = (
            f"look up {BATCH:,} ids in {ROWS // 10**6} million x {dim} float32, "
            f"{threads} thread{'s' * (threads > 1)} each"
        )
        ratio = compare(mine, other, rounds=rounds)
        return Row(question, name, rival, ratio, needed, "pages of memory touched for an id")

    plain, counting = "EmbeddingCore.lookup", "EmbeddingCore.lookup, counting"
    dense_name = "F.embedding, dense indices"
    crew = _core.default_threads()
    for threads, needed in ((crew, 0.3), (1, None)):
        torch.set_num_threads(threads)
        yield row(plain, dense_name, looking(threads), embedding, needed, 61)
        yield row(counting, dense_name, looking(threads, True), embedding, None, 61)
    torch.set_num_threads(crew)
    into = "torch.index_select(out=), dense"
    yield row(plain + "(out=)", into, into_kept, index_select, None, 61)

    def views(start: int, stop: int) -> Iterable[Any]:
        return weight[start:stop].unbind()

    def own(start: int, stop: int) -> Iterable[Any]:
        return (view.clone() for view in views(start, stop))

    dicts = (("views of one matrix", views), ("tensors with memory of their own", own))
    for what, tensors in dicts:
        by_id = dict_of(ids, tensors)

        def stacked(by_id: dict[int, Any] = by_id) -> Any:
            return torch.stack([by_id[i] for i in draw()[1].tolist()])

        assert torch.equal(torch.stack([by_id[i] for i in some.tolist()]), expected)
        touch(core, ids)  # nothing did while the dict was made
        rival = f"dict of {what} + torch.stack"
        yield row(plain, rival, looking(crew), stacked, 50.0, 15)
        yield row(counting, rival, looking(crew, True), stacked, None, 15)
        del by_id, stacked
