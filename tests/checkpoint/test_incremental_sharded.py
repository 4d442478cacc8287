"""Tests of incremental saves by several writers, which refer to chunks of any earlier writer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.distributed as dist

from models.table_model import ModelCore, ModelTable
from support.gangs import gang
from support.internals import plant
from support.store_servers import DURABLE, KINDS
from support.stored_keys import data_keys
from windeck import checkpoint
from windeck._util import retry
from windeck.checkpoint import Partition
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]
#: Elements of a chunk: tensors that several share are cut into 16 KiB at least.
CHUNK = 4096


def save(url: str, step: int, whole: torch.Tensor, cuts: Sequence[int]) -> int:
    """Save a vector with one stretch for each writer; its chunks are chunks of `whole`."""
    writers = len(cuts) - 1
    with open_store(url) as store:
        plan = checkpoint.begin(store, step=step, writers=writers, incremental=True)
    for writer in reversed(range(writers)):
        piece = whole[cuts[writer] : cuts[writer + 1]]
        part = Partition(piece, offset=(cuts[writer],), shape=whole.shape)
        checkpoint.save_shard(url, plan, writer=writer, model={"w": part})
    return checkpoint.merge(url, plan)


def written(url: str, generation: int) -> int:
    with open_store(url) as store:
        return len(list(store.keys(b"~windeck~%016x/t/" % generation)))


def check(url: str, whole: torch.Tensor, generation: int | None = None) -> None:
    target = {"w": torch.full_like(whole, -1)}
    checkpoint.load(url, model=target, generation=generation)
    assert torch.equal(target["w"], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_writers_refer_to_older_saves(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    whole = torch.arange(10.0 * CHUNK)
    halves, thirds = [0, 4 * CHUNK, 10 * CHUNK], [0, 4 * CHUNK, 7 * CHUNK, 10 * CHUNK]
    with open_store(url):  # keeps memory:// alive, and makes the others
        pass
    holder = open_store(url) if kind == "memory" else None
    states, counts = [], []
    for step, cuts in enumerate((halves, halves, thirds, thirds)):
        whole[5 * CHUNK + step] = -1.0 - step
        states.append(whole.clone())
        counts.append(written(url, save(url, step, whole, cuts)))
    # One chunk changed. Then the second part is two others, and only the first goes on.
    assert counts == [10, 1, 6, 1]
    with open_store(url) as store:
        bases = [commit.bases for commit in checkpoint.log(store)]
    assert bases == [(1, 3), (1,), (1,), ()]
    for step, state in enumerate(states):
        check(url, state, step + 1)
    assert checkpoint.gc(url, keep=1) == [1, 2, 3]
    check(url, whole)
    left = sum(written(url, generation) for generation in range(1, 5))
    assert left == 10
    if holder is not None:
        holder.close()


def grouped(rank: int, ranks: int, url: str, holds: bool) -> list[int]:
    """Save some generations by a group, each after a small change; return them."""
    half = torch.arange(5.0 * CHUNK) + rank * 5 * CHUNK
    core = ModelCore(3, 1, first_bucket=512 * rank, end_bucket=512 * (rank + 1))
    core.fill(range(600), np.random.default_rng(0))
    place: Store | str = open_store(url) if holds and rank == 0 else url
    numbers = []
    for step in range(3):
        half[step * CHUNK] = -1.0 - step
        core.fill(range(20 * step, 20 * step + 20), np.random.default_rng(step))
        model = {"w": Partition(half, offset=(rank * len(half),), shape=(ranks * len(half),))}
        tables = {"t": ModelTable(core)}
        numbers.append(
            checkpoint.save(
                place, step=step, model=model, embeddings=tables, incremental=True,
                group=dist.group.WORLD,
            )
        )  # fmt: skip
    if not isinstance(place, str):
        place.close()
    return numbers


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("kind", DURABLE)
def test_ranks_of_a_group_write_what_changed(kind: str, holds: bool, fresh: Fresh) -> None:
    """Also where only rank 0 can look at what was saved, and whether it was given a URL or not."""
    url = fresh(kind)
    numbers, same = gang(2, grouped, url, holds)
    assert numbers == same
    assert [written(url, number) for number in numbers] == [10, 2, 2]
    with checkpoint.open(url) as found:
        assert [link.rows for link in found.tables["t"].links] == [20, 20, 600]
    whole = torch.arange(10.0 * CHUNK)
    for at in range(3):
        whole[at * CHUNK] = whole[(5 + at) * CHUNK] = -1.0 - at
    check(url, whole)


def spoilt(rank: int, ranks: int, url: str) -> list[str]:
    """Return the warnings of a group that saves after the digests of a save were damaged."""
    model = {"w": Partition(torch.ones(8), offset=(8 * rank,), shape=(8 * ranks,))}
    for step in range(2):
        if step and rank == 0:
            with open_store(url) as store:
                keys = data_keys(store, "d")
                store.put_many([(key, b"spoilt") for key in list(keys)[:1]])
        dist.barrier()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", RuntimeWarning)
            checkpoint.save(url, step=step, model=model, incremental=True, group=dist.group.WORLD)
    return [str(warning.message) for warning in said]


def test_a_group_that_finds_the_last_save_damaged(fresh: Fresh) -> None:
    url = fresh("leveldb")
    warned, quiet = gang(2, spoilt, url)
    assert warned  # by who looks, and by who merges
    assert all(text.endswith(": everything is written") for text in warned)
    assert quiet == []  # it can neither look nor do anything about it
    assert (written(url, 1), written(url, 2)) == (2, 2)


def test_a_store_that_another_has_open(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    """On LevelDB, a rank that cannot open the last save writes all chunks, and warns."""
    plant(monkeypatch, "retry.OPENING", retry.OPENING._replace(most_seconds=0.05))
    url, whole = fresh("leveldb"), torch.arange(8.0 * CHUNK)
    save(url, 0, whole, [0, 4 * CHUNK, 8 * CHUNK])
    with open_store(url) as store:
        plan = checkpoint.begin(store, step=1, writers=2, incremental=True)
        for writer, half in enumerate(torch.chunk(whole, 2)):
            part = Partition(half, offset=(writer * len(half),), shape=whole.shape)
            with pytest.warns(
                RuntimeWarning, match=r"^leveldb:.* is open already, .*: everything is written$"
            ):
                checkpoint.save_shard(url, plan, writer=writer, model={"w": part})
        checkpoint.merge(store, plan)
    assert (written(url, 1), written(url, 2)) == (8, 8)
    check(url, whole)


def test_a_part_that_another_writer_has_now() -> None:
    whole = torch.arange(8.0 * CHUNK)
    url = "memory://handed-over"
    with open_store(url) as store:
        save(url, 0, whole, [0, 4 * CHUNK, 8 * CHUNK])
        plan = checkpoint.begin(store, step=1, writers=2, incremental=True)
        for writer, (first, end) in enumerate([(4 * CHUNK, 8 * CHUNK), (0, 4 * CHUNK)]):
            part = Partition(whole[first:end], offset=(first,), shape=whole.shape)
            checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
        checkpoint.merge(store, plan)
        assert written(url, 2) == 0
        check(url, whole)
        save(url, 2, whole, [0, 4 * CHUNK, 8 * CHUNK])
        assert written(url, 3) == 0
        assert checkpoint.log(store)[0].bases == (1,)
        checkpoint.gc(store, keep=1)
        check(url, whole)


def test_a_writer_that_has_its_tensors_in_another_order(memory: Store) -> None:
    """Its digests are in its own order, whatever that of the manifest is."""
    whole = {"a": torch.arange(4.0 * CHUNK), "b": torch.arange(6.0 * CHUNK)}
    for step in range(2):
        plan = checkpoint.begin(memory, step=step, writers=2, incremental=True)
        for writer, names in enumerate(("ab", "ba")):
            halves = {name: torch.chunk(whole[name], 2)[writer] for name in names}
            model = {
                name: Partition(half, offset=(writer * len(half),), shape=whole[name].shape)
                for name, half in halves.items()
            }
            checkpoint.save_shard(memory, plan, writer=writer, model=model)
        checkpoint.merge(memory, plan)
    assert len(list(memory.keys(b"~windeck~%016x/t/" % 1))) == 10
    assert list(memory.keys(b"~windeck~%016x/t/" % 2)) == []
