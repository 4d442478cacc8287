"""A sharded table holds the same bits as one table on one rank with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import windeck as wd
from support.gangs import gang
from windeck import checkpoint
from windeck._core import bucket_of

Fresh = Callable[[str], str]
BATCH, STEPS = 30, 4
KINDS = ("sgd", "adagrad", "adam")


def options(kind: str) -> dict[str, Any]:
    return {"optimizer": kind, "lr": 0.25, "scale": 1.0, "seed": 3, "admit_after": 2}


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(-40, 40, (BATCH, 2), generator=generator) * 2**56,
            torch.randn(BATCH, 2, 5, generator=generator),
        )
        for _ in range(STEPS)
    ]


def forward(table: wd.EmbeddingTable, ids: torch.Tensor, weights: torch.Tensor) -> Any:
    """Return a loss of two lookups, the second of fewer ids."""
    first, second = table(ids), table(ids[:, 0])
    return ((first * weights).sum(1) * second.sin()).sum()


def contents(table: wd.EmbeddingTable) -> dict[str, Any]:
    with table.core.snapshot() as snapshot:
        found = snapshot.read(table.core.first_bucket, table.core.end_bucket)
    return {**found, "clock": table.core.clock}


def whole(kind: str) -> dict[str, Any]:
    table = wd.EmbeddingTable(5, **options(kind))
    for ids, weights in batches():
        forward(table, ids, weights).backward()
        table.step()
    return contents(table)


def share(rank: int, ranks: int) -> dict[str, Any]:
    found = {}
    # The last rank has no part of the second batch.
    for kind in KINDS:
        table = wd.ShardedEmbeddingTable(5, **options(kind))
        for step, (ids, weights) in enumerate(batches()):
            parts = ranks - 1 if step == 1 and ranks > 1 else ranks
            mine = slice(rank * BATCH // parts, (rank + 1) * BATCH // parts)
            if rank >= parts:
                mine = slice(0, 0)
            forward(table, ids[mine], weights[mine]).backward()
            table.step()
        found[kind] = contents(table)
        ids = torch.arange(-5, 5)
        assert torch.equal(table.eval()(ids), table(ids.flip(0)).flip(0))
    assert table.core.end_bucket - table.core.first_bucket in (1024 // ranks, 1024 // ranks + 1)
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_gives_the_same_bits(ranks: int) -> None:
    shards = gang(ranks, share)
    for kind in KINDS:
        wanted = whole(kind)
        assert wanted["admitted"].sum() > 20
        assert (~wanted["admitted"]).sum() > 0
        for key in ("keys", "versions", "frequencies", "seen", "admitted", "values"):
            joined = np.concatenate([shard[kind][key] for shard in shards])
            assert joined.tobytes() == wanted[key].tobytes(), (kind, key)
        assert {shard[kind]["clock"] for shard in shards} == {wanted["clock"]}


def uneven(rank: int, ranks: int) -> list[str]:
    table = wd.ShardedEmbeddingTable(2)
    if rank == 0:
        with torch.no_grad():
            table(torch.tensor([1]))
        table(torch.tensor([1])).sum().backward()
    else:
        table(torch.tensor([1, 2])).sum()
        late = table(torch.tensor([], dtype=torch.int64))
    words = []
    try:
        table.step()
    except ValueError as error:
        words.append(str(error))
    assert table.pending == (rank == 0)  # no gradient is lost, and no rank waits for another
    if rank == 1:
        late.sum().backward()
    assert table.step() == (bucket_of(np.array([1]))[0] // 512 == rank)
    return words


def test_all_ranks_raise_when_numbers_of_passes_differ() -> None:
    words = (
        "all ranks must have the same number of backward passes through lookups of a sharded "
        "table, got [1, 0]: let a rank without data look up no ids, and discard the gradients by "
        "zero_grad() on all ranks to go on"
    )
    assert gang(2, uneven) == [[words], [words]]


def uncounted(rank: int, ranks: int) -> tuple[list[str], int]:
    table = wd.ShardedEmbeddingTable(2, scale=1.0)
    ids, words = torch.arange(100), []
    ends = torch.tensor([0, 100])
    found = table(ids, count=False)
    torch.testing.assert_close(table.bag(ids, ends, count=False), found.sum(0, keepdim=True))
    rows = table.rows
    try:
        table(ids, count=rank != 1)
    except ValueError as error:
        words.append(str(error))
    assert table.rows == rows
    assert torch.equal(table(ids), found)  # no rank waits for another
    return words, rows


def test_ranks_that_do_not_agree_whether_to_count() -> None:
    words = (
        "all ranks must count the ids of a lookup of a sharded table or none, got [1, 0, 1] (1: "
        "counted) by rank: use the same train() or eval() and `count=` on each"
    )
    assert gang(3, uncounted) == [([words], 0)] * 3


def subgroup(rank: int, ranks: int) -> int:
    group = dist.new_group([0, 2], backend="gloo")
    if rank == 1:
        return -1
    table = wd.ShardedEmbeddingTable(2, group=group, optimizer="sgd", lr=1.0, initializer="zeros")
    ids = torch.arange(100) + rank
    table(ids).sum().backward()
    table.step()
    assert table.eval()(ids)[:, 0].tolist() == [
        -1.0 if i in (0, 1, 100, 101) else -2.0 for i in ids.tolist()
    ]
    with pytest.raises(ValueError, match="bucket"):
        table.core.lookup(ids.numpy(), insert=False)
    again = wd.ShardedEmbeddingTable.from_config(table.config, group=group)
    assert again.config == table.config
    assert again.core.first_bucket == table.core.first_bucket
    return table.rows


def test_a_group_of_some_ranks() -> None:
    first, other, second = gang(3, subgroup)
    assert (first + second, other) == (102, -1)
    assert min(first, second) > 20


def test_without_a_group_there_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"torch.distributed is not initialized: call init_p"):
        wd.ShardedEmbeddingTable(2)


def half(rank: int, ranks: int, url: str, second: bool) -> dict[str, Any] | None:
    """Take two steps and save; with `second`, load and take the other two."""
    table = wd.ShardedEmbeddingTable(5, **options("adam"))
    group: Any = dist.group.WORLD
    if second:
        checkpoint.load(url, embeddings={"user": table})
    for ids, weights in batches()[2:] if second else batches()[:2]:
        mine = slice(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
        forward(table, ids[mine], weights[mine]).backward()
        table.step()
    if second:
        return contents(table)
    checkpoint.save(url, step=2, embeddings={"user": table}, group=group)
    return None


@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_other_ranks_go_on_with_what_was_saved(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    gang(3, half, url, False)
    shards = [shard for shard in gang(2, half, url, True) if shard is not None]
    wanted = whole("adam")
    for key in ("keys", "versions", "frequencies", "seen", "admitted", "values"):
        joined = np.concatenate([shard[key] for shard in shards])
        assert joined.tobytes() == wanted[key].tobytes(), key


def test_tables_come_back_from_a_checkpoint(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    table = wd.EmbeddingTable(5, **options("adam"))
    for ids, weights in batches()[:2]:
        forward(table, ids, weights).backward()
        table.step()
    checkpoint.save(url, step=2, embeddings={"user": table})
    again = wd.EmbeddingTable.from_config(table.config)
    checkpoint.load(url, embeddings={"user": again})
    for ids, weights in batches()[2:]:
        for each in (table, again):
            forward(each, ids, weights).backward()
            each.step()
    was, now = contents(table), contents(again)
    assert all(np.array_equal(was[key], now[key]) for key in was)
