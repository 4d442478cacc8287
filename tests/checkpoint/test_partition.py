"""Tests of partitions, compared with whole tensors in plain torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from support.sharded_parts import W, rows
from support.sharded_ranks import distributed, local
from support.stored_keys import data_pairs
from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import Store


def test_a_plan_that_is_none() -> None:
    plan = checkpoint.begin("memory://", step=3, writers=2)
    with pytest.raises(ValueError, match=r"^the digest of a plan is '[0-9a-f]{32}', expected '"):
        dataclasses.replace(plan, step=4)
    wrong: list[tuple[str, Any, type[Exception], str]] = [
        ("writers", 0, ValueError, "`writers` must be at least 1, got 0"),
        ("writers", 2.0, TypeError, "`writers` must be an int, got float"),
        ("step", -1, ValueError, "`step` must be at least 0, got -1"),
        ("chunk_bytes", 8, ValueError, "`chunk_bytes` must be at least 16, got 8"),
        ("namespace", "a b", ValueError, "expected a namespace of 1 to 200 letters, digits"),
    ]
    for name, value, kind, text in wrong:
        changed: dict[str, Any] = {"step": 3, "writers": 2, name: value}
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.begin("memory://", **changed)
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.Plan(**{**dataclasses.asdict(plan), name: value, "digest": ""})
    for writer, kind, text in (
        (2, ValueError, "`writer` must be in 0 to 1 as planned, got 2"),
        (-1, ValueError, "`writer` must be in 0 to 1 as planned, got -1"),
        (True, TypeError, "`writer` must be an int, got bool"),
    ):
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.save_shard("memory://", plan, writer=writer)


def test_parts_that_are_none() -> None:
    for offset, shape in (((0,), (7, 5)), ((5, 0), (7, 5)), ((-1, 0), (7, 5)), ((0, 0), (2, 5))):
        with pytest.raises(ValueError, match=r"^a part of shape \(3, 5\) at offset .* must be "):
            Partition(W[:3], offset=offset, shape=shape)
    with pytest.raises(
        ValueError,
        match=r"^model/w is a Partition of shape \(7, 5\) with \[1:4, 0:5"
        r"\] of it in this process, expected all: save it with group=, or save_shard",
    ):
        checkpoint.save("memory://", step=1, model={"w": rows(W, 1, 4)})
    with pytest.raises(ValueError, match=r"^model/w is a Partition .* with no elements of it in "):
        checkpoint.save("memory://", step=1, model={"w": rows(W, 4, 4)})
    with pytest.raises(TypeError, match=r"^model/w is a sparse tensor, expected a dense one with"):
        checkpoint.save(
            "memory://", step=1,
            model={"w": Partition(W.to_sparse(), offset=(0, 0), shape=(7, 5))},
        )  # fmt: skip


def test_a_partition_that_is_whole_is_a_tensor(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": rows(W, 0, 7)})
    target = {"w": torch.zeros(7, 5)}
    checkpoint.load(memory, model=target)
    assert torch.equal(target["w"], W)


def test_what_a_target_has_is_compared(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": W})
    for target, kind, text in (
        (Partition(torch.zeros(3, 5), offset=(0, 0), shape=(8, 5)), ValueError,
         r"model/w has shape \(8, 5\), expected \(7, 5\) as saved"),
        (rows(torch.zeros(7, 5, dtype=torch.float64), 2, 4), TypeError,
         r"model/w has dtype torch.float64, expected torch.float32 as saved; cast=True casts"),
    ):  # fmt: skip
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.load(memory, model={"w": target})
        assert not target.tensor.any()
    part = rows(torch.zeros(7, 5, dtype=torch.float64), 2, 4)
    checkpoint.load(memory, model={"w": part}, cast=True)
    assert torch.equal(part.tensor, W[2:4].double())


class Position:
    """A loader that records the states it is given."""

    def __init__(self, refuse: bool = False) -> None:
        self.position, self.refuse = 5, refuse

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.refuse:
            raise ValueError("these are other data")
        self.position = state["position"]


def test_damage_gives_a_loader_its_state_back(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W}, loader={"position": 40})
    good, loader = {"w": torch.zeros(7, 5)}, Position()
    checkpoint.load(store, model=good, loader=loader)
    assert loader.position == 40
    key = keys.chunk("windeck", 1, 0, 0, 0)
    value = store.get(key)
    assert value is not None
    store.put_many([(key, value[:-1] + bytes([value[-1] ^ 1]))])
    loader, plain = Position(), {"position": 6}
    with pytest.raises(checkpoint.stores.CorruptStoreError, match="the targets are invalid"):
        checkpoint.load(store, model=good, loader=loader)
    assert loader.position == 5
    with pytest.raises(checkpoint.stores.CorruptStoreError, match="the targets are invalid"):
        checkpoint.load(store, model=good, loader=plain)
    assert plain == {"position": 6}
    with pytest.raises(ValueError, match="these are other data"):
        checkpoint.load(store, model=good, loader=Position(refuse=True))


class Counting:
    """A store that counts the bytes of chunks that are read."""

    def __init__(self, store: Store) -> None:
        self._store, self.bytes, self.values = store, 0, 0

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        found = self._store.get_many(names)
        self.values += len(names)
        self.bytes += sum(len(value or b"") for value in found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(("saved", "loaded"), [(4, 3), (3, 4), (4, 1), (2, 8)])
def test_each_reads_little_more_than_its_own(memory: Store, saved: int, loaded: int) -> None:
    torch.manual_seed(0)
    whole = {"up": torch.randn(2048, 640), "down": torch.randn(640, 2048), "norm": torch.randn(640)}
    plan = checkpoint.begin(memory, step=1, writers=saved)
    for writer in range(saved):
        mine = {k: rows(v, *cut(len(v), saved, writer)) for k, v in whole.items()}
        checkpoint.save_shard(memory, plan, writer=writer, model=mine)
    checkpoint.merge(memory, plan)
    read = needed = 0
    for reader in range(loaded):
        runs = {k: cut(len(v), loaded, reader) for k, v in whole.items()}
        parts = {k: rows(torch.zeros_like(v), *runs[k]) for k, v in whole.items()}
        counting = Counting(memory)
        checkpoint.load(counting, model=parts)
        assert all(torch.equal(part.tensor, whole[k][slice(*runs[k])]) for k, part in parts.items())
        read += counting.bytes
        needed += sum(part.tensor.nbytes for part in parts.values())
    assert needed == sum(tensor.nbytes for tensor in whole.values())
    assert needed < read <= 1.05 * needed


def columns(whole: torch.Tensor, first: int, end: int) -> Partition:
    return Partition(whole[:, first:end], offset=(0, first), shape=whole.shape)


@pytest.mark.parametrize(("saved", "loaded"), [(4, 3), (3, 4)])
def test_columns_are_read_as_rows_are(memory: Store, saved: int, loaded: int) -> None:
    whole = torch.randn(640, 2048, generator=torch.Generator().manual_seed(0))
    plan = checkpoint.begin(memory, step=1, writers=saved)
    for writer in range(saved):
        part = columns(whole, *cut(2048, saved, writer))
        checkpoint.save_shard(memory, plan, writer=writer, model={"w": part})
    checkpoint.merge(memory, plan)
    read = 0
    for reader in range(loaded):
        run = cut(2048, loaded, reader)
        part, counting = columns(torch.zeros_like(whole), *run), Counting(memory)
        checkpoint.load(counting, model={"w": part})
        assert torch.equal(part.tensor, whole[:, slice(*run)])
        read += counting.bytes
    assert whole.nbytes < read <= 1.05 * whole.nbytes
    by_rows = rows(torch.zeros_like(whole), 100, 333)
    checkpoint.load(memory, model={"w": by_rows})
    assert torch.equal(by_rows.tensor, whole[100:333])


def cut(size: int, count: int, i: int) -> tuple[int, int]:
    step = -(-size // count)
    return min(i * step, size), min((i + 1) * step, size)


@pytest.mark.parametrize("outer", range(1, 5))
@pytest.mark.parametrize("inner", range(1, 4))
def test_what_a_rank_has_of_a_dimension(outer: int, inner: int, memory: Store) -> None:
    """Nested shards, strided ones too, of every small size, against torch.chunk.

    Each rank reads its part of what one process saved, without a word to others.
    """
    cases = list(itertools.product(range(14), range(1, 5)))
    saved = {f"{size} {split}": torch.arange(float(size)) for size, split in cases}
    checkpoint.save(memory, step=1, model=saved)
    for rank in range(outer * inner):
        with a_rank_of(rank, outer * inner):
            mesh = init_device_mesh("cpu", (outer, inner))
            target: dict[str, Any] = {}
            for size, split in cases:
                placements = [_StridedShard(0, split_factor=split), Shard(0)]
                name = f"{size} {split}"
                target[name] = distributed(saved[name], mesh, placements, empty=True)
            checkpoint.load(memory, model=target)
            place = divmod(rank, inner)
            for (_, split), (name, value) in zip(cases, target.items(), strict=True):
                placements = [_StridedShard(0, split_factor=split), Shard(0)]
                expected = local(saved[name], (outer, inner), place, placements)
                assert torch.equal(value.to_local(), expected), (name, place)


@contextmanager
def a_rank_of(rank: int, ranks: int) -> Iterator[None]:
    """Be a rank of a process group in which nothing is sent."""
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_an_incremental_save_writes_what_changed(store: Store) -> None:
    whole = torch.randn(4000, 40, generator=torch.Generator().manual_seed(1))
    sizes, kept = [], []
    for step in range(4):
        plan = checkpoint.begin(store, step=step, writers=2, incremental=True)
        for writer in range(2):
            part = rows(whole, *cut(4000, 2, writer))
            checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
        checkpoint.merge(store, plan)
        prefix = b"~windeck~%016x/t/" % plan.generation
        sizes.append(sum(len(value) for _, value in store.scan(prefix)))
        kept.append(whole.clone())
        whole[3000 + step, 7] += 1
    assert sizes[0] > whole.nbytes
    assert all(0 < size < whole.nbytes / 20 for size in sizes[1:])
    for step, expected in enumerate(kept):
        target = rows(torch.zeros(4000, 40), 900, 3500)
        checkpoint.load(store, model={"w": target}, generation=step + 1)
        assert torch.equal(target.tensor, expected[900:3500])


@pytest.mark.parametrize("chunk_bytes", [100_000, 1 << 20])
@pytest.mark.parametrize("shape", [(1024, 1030), (8, 3, 200_000), (2_097_152,), (24, 50_000)])
def test_what_one_process_saved_is_cut_where_ranks_cut(
    shape: tuple[int, ...], chunk_bytes: int, memory: Store
) -> None:
    """2, 4 or 8 ranks read their rows and no byte more, in chunks of no more than was asked."""
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    checkpoint.save(memory, step=1, model={"w": whole}, chunk_bytes=chunk_bytes)
    sizes = [len(value) - 64 for _, value in data_pairs(memory, "t")]
    assert max(sizes) <= chunk_bytes
    assert len(sizes) <= 2 * -(-whole.nbytes // chunk_bytes) + 8
    for ranks in (2, 4, 8) if whole.nbytes >= 1 << 22 else (2, 4):
        for rank in range(ranks):
            counting, count = Counting(memory), shape[0] // ranks
            offset = (rank * count, *[0] * (len(shape) - 1))
            rows = whole[rank * count : (rank + 1) * count]
            part = Partition(torch.zeros_like(rows), offset=offset, shape=shape)
            checkpoint.load(counting, model={"w": part})
            assert torch.equal(part.tensor, rows)
            assert counting.bytes - 64 * counting.values == rows.nbytes


def test_small_or_odd_tensors_are_cut_as_ever(memory: Store) -> None:
    model = {"odd": torch.ones(1023, 1031), "small": torch.ones(64, 3000), "bias": torch.ones(4096)}
    checkpoint.save(memory, step=1, model=model)
    with checkpoint.open(memory) as found:
        assert {entry.chunk_bytes for entry in found.entries.values()} == {1 << 20}
