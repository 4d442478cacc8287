"""Tests of dcp.save and dcp.load by several ranks, compared with the tensors of one rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from support.gangs import gang
from support.store_servers import KINDS
from support.stored_keys import data_generations
from windeck import checkpoint
from windeck.checkpoint.dcp import StoreReader, StoreWriter
from windeck.checkpoint.stores import MappingStore, PartStore, Store, open_store

fsdp = pytest.importorskip("torch.distributed.fsdp")
Fresh = Callable[[str], str]
SHARED = [kind for kind in KINDS if kind != "memory"]


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The same on every rank and on none: sizes that no number of ranks divides."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Linear(11, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.125)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def sharded(ranks: int, *, full: bool) -> dict[str, Any]:
    """Return FSDP2's state of the model above, or of a new one."""
    model, optimizer = trained()
    want_model, want_optimizer = get_state_dict(model, optimizer)
    torch.manual_seed(6)
    other = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Linear(11, 2))
    fsdp.fully_shard(other, mesh=init_device_mesh("cpu", (ranks,)))
    adam = torch.optim.Adam(other.parameters(), lr=0.5)
    if full:
        mesh = init_device_mesh("cpu", (ranks,))
        spread = _map(want_model, mesh), _map(want_optimizer, mesh)
        set_state_dict(other, adam, model_state_dict=spread[0], optim_state_dict=spread[1])
    found = get_state_dict(other, adam)
    return {"model": found[0], "optimizer": found[1], "step": 4 if full else 0}


def _map(value: Any, mesh: Any) -> Any:
    if isinstance(value, dict):
        return {key: _map(item, mesh) for key, item in value.items()}
    if isinstance(value, torch.Tensor) and value.dim():
        return distribute_tensor(value, mesh, [Shard(0)])
    return value


def whole(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: whole(item) for key, item in state.items()}
    return state.full_tensor() if isinstance(state, DTensor) else state


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(torch.equal(a, b)) if isinstance(a, torch.Tensor) else bool(a == b)


def save(rank: int, ranks: int, urls: list[str]) -> None:
    state = sharded(ranks, full=True)
    for url in urls:
        writer = StoreWriter(url, step=9, chunk_bytes=64)
        dcp_save(state, storage_writer=writer)
        assert writer.generation == 1


def load(rank: int, ranks: int, urls: list[str]) -> None:
    model, optimizer = trained()
    want_model, want_optimizer = get_state_dict(model, optimizer)
    for url in urls:
        state = sharded(ranks, full=False)
        dcp_load(state, storage_reader=StoreReader(url))
        found = whole(state)
        assert same(found["model"], want_model)
        assert same(found["optimizer"], want_optimizer)
        assert found["step"] == 4


def test_fsdp2_comes_back_on_another_number_of_ranks(fresh: Fresh) -> None:
    urls = [fresh(kind) for kind in SHARED]
    gang(2, save, urls)
    gang(3, load, urls)
    gang(1, load, urls)
    model, _ = trained()
    for url in urls:
        other = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Linear(11, 2))
        assert checkpoint.load(url, model=other).step == 9
        assert same(dict(other.state_dict()), dict(model.state_dict()))
        with checkpoint.open(url) as found:
            writers = {part.writer for entry in found.entries.values() for part in entry.parts}
            assert writers == {0, 1}


class Dying(DefaultSavePlanner):
    """A planner that kills the last rank while data are written."""

    def resolve_data(self, write_item: Any) -> Any:
        if dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().resolve_data(write_item)


def bereft(rank: int, ranks: int, url: str) -> str:
    state = {"model": large(ranks, 1.0)}
    dcp_save(state, storage_writer=StoreWriter(url, step=1))
    try:
        dcp_save(state, storage_writer=StoreWriter(url, step=2), planner=Dying())
    except BaseException as error:
        return type(error).__name__
    return "saved"


@pytest.mark.parametrize(
    "kind", ["rocksdb", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SHARED[1:])]
)
def test_a_rank_that_is_killed_leaves_the_former_checkpoint(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    assert gang(2, bereft, url, lost=1) != ["saved"]
    assert [commit.step for commit in checkpoint.log(url)] == [1]
    gang(3, save_large, url)
    assert [commit.step for commit in checkpoint.log(url)] == [1, 1]
    checkpoint.gc(url, keep=1)
    with checkpoint.open(url) as found:
        assert bool((found.tensor("model/up") == 3).all())


def postponed(rank: int, ranks: int, url: str) -> None:
    state = {"model": large(ranks, 1.0)}
    future = async_save(state, storage_writer=StoreWriter(url, step=5))
    for tensor in state["model"].values():
        tensor.to_local().fill_(2)
    assert isinstance(future, Future)
    future.result()
    fresh_state = {"model": large(ranks, 0.0)}
    dcp_load(fresh_state, storage_reader=StoreReader(url))
    assert all(bool((tensor.to_local() == 1).all()) for tensor in fresh_state["model"].values())


def test_async_save_by_several_ranks(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    gang(2, postponed, url)
    assert [commit.step for commit in checkpoint.log(url)] == [5]


class Counting:
    """A store that counts the bytes read, without HEAD and the manifest."""

    def __init__(self, store: Store) -> None:
        self._store, self.bytes = store, 0

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        found = self._store.get_many(names)
        self.bytes += sum(len(value or b"") for value in found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def large(ranks: int, value: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (ranks,))
    shapes = {"up": (2048, 640), "down": (640, 2048), "norm": (640,)}
    whole = {name: torch.full(shape, value) for name, shape in shapes.items()}
    return {name: distribute_tensor(found, mesh, [Shard(0)]) for name, found in whole.items()}


def save_large(rank: int, ranks: int, url: str) -> None:
    writer = StoreWriter(url, step=1, takeover=True)
    dcp_save({"model": large(ranks, 3.0)}, storage_writer=writer)


def load_large(rank: int, ranks: int, url: str) -> tuple[int, int]:
    state = {"model": large(ranks, 0.0)}
    with open_store(url) as store:
        counting: Any = Counting(store)
        dcp_load(state, storage_reader=StoreReader(counting))
    local = [found.to_local() for found in state["model"].values()]
    assert all(bool((found == 3).all()) for found in local)
    return counting.bytes, sum(found.nbytes for found in local)


def test_each_rank_reads_little_more_than_its_own(fresh: Fresh) -> None:
    url = fresh("redis")
    gang(4, save_large, url)
    found = gang(3, load_large, url)
    read, needed = (sum(pair[i] for pair in found) for i in range(2))
    assert needed == 4 * (2 * 2048 * 640 + 640)
    assert needed < read <= 1.05 * needed


def mixed(rank: int, ranks: int, url: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    tensor = torch.arange(35.0).view(5, 7)
    state = {
        "both": distribute_tensor(tensor, mesh, [Shard(0), Shard(1)]),
        "copies": distribute_tensor(tensor + 1, mesh, [Replicate(), Shard(1)]),
        "plain": tensor + 2,
        "none": distribute_tensor(torch.empty(0, 3), mesh, [Shard(0), Shard(0)]),
        "few": distribute_tensor(torch.arange(1.0), mesh, [Shard(0), Replicate()]),
        "words": ["a", (1, None, float("inf"))],
    }
    dcp_save({"extra": state}, storage_writer=StoreWriter(url, step=1))
    wanted = whole(state)
    line = init_device_mesh("cpu", (4,))
    other: dict[str, Any] = {
        "both": distribute_tensor(torch.zeros(5, 7), line, [Shard(1)]),
        "copies": distribute_tensor(torch.zeros(5, 7), mesh, [Shard(1), Shard(0)]),
        "plain": distribute_tensor(torch.zeros(5, 7), line, [Shard(0)]),
        "none": torch.empty(0, 3),
        "few": torch.zeros(1),
        "words": None,
    }
    loaded = {"extra": other}
    dcp_load(loaded, storage_reader=StoreReader(url))
    assert same(whole(loaded["extra"]), wanted)


def test_any_mesh_comes_back_on_any_other(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    gang(4, mixed, url)
    with checkpoint.open(url) as found:
        wanted = torch.arange(35.0).view(5, 7)
        assert torch.equal(found.tensor("extra/both"), wanted)
        assert torch.equal(found.tensor("extra/copies"), wanted + 1)
        assert found.tree("extra")["words"] == ["a", (1, None, float("inf"))]


def broken(rank: int, ranks: int, url: str) -> str:
    mesh = init_device_mesh("cpu", (ranks,))
    good = {"model": {"w": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}}
    dcp_save(good, storage_writer=StoreWriter(url, step=1))

    class Planner(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            if rank == 1:
                raise OSError("no such device")
            return super().resolve_data(write_item)

    with pytest.raises(CheckpointException, match="no such device") as caught:
        dcp_save(good, storage_writer=StoreWriter(url, step=2), planner=Planner())
    dcp_save(good, storage_writer=StoreWriter(url, step=3))
    return str(caught.value.failures.keys())


@pytest.mark.parametrize("kind", ["rocksdb", "redis"])
def test_one_rank_fails_and_all_say_so_and_head_stays(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    assert gang(2, broken, url) == ["dict_keys([1])"] * 2
    assert [commit.step for commit in checkpoint.log(url)] == [3, 1]
    with open_store(url) as store:
        left = store.parts() if isinstance(store, PartStore) else []
        assert len(left) == (1 if kind == "rocksdb" else 0)  # what rank 0 wrote for step 2
        checkpoint.gc(store, keep=1)
        assert not isinstance(store, PartStore) or store.parts() == []
        assert data_generations(store) == {3}


class Planner:
    """Gives each item of a plan zeros of its shape."""

    def resolve_data(self, write_item: Any) -> torch.Tensor:
        return torch.zeros(write_item.tensor_data.chunk.sizes)


def committed(*boxes: tuple[list[int], list[int], list[int]], turned: bool = False) -> Any:
    """Return the entry of a tensor, of which each writer says its shape and writes one box.

    A box is the shape, the first index and the sizes. `turned` reverses the order of the results.
    """
    shared = MappingStore({}).facts._replace(shared=True)
    store = MappingStore({}, facts=shared)
    writer, planner, plans = StoreWriter(store, step=1), cast("Any", Planner()), list[SavePlan]()
    properties = TensorProperties(torch.float32)
    for shape, offsets, sizes in boxes:
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        data = TensorWriteData(chunk, properties, torch.Size(shape))
        index = MetadataIndex("w", torch.Size(offsets))
        plans.append(SavePlan([WriteItem(index, WriteItemType.SHARD, tensor_data=data)]))
    plans = writer.prepare_global_plan(plans)
    results = [writer.write_data(plan, planner).wait() for plan in plans]
    whole = TensorStorageMetadata(properties, torch.Size(boxes[0][0]), [])
    writer.finish(Metadata({"w": whole}), results[::-1] if turned else results)
    with checkpoint.open(store) as found:
        return found.entries["model/w"]


def test_parts_without_elements_are_left_out_of_a_manifest() -> None:
    some = ([4, 3], [0, 0], [4, 3]), ([4, 3], [4, 0], [0, 3])
    for turned in (False, True):
        (part,) = committed(*some, turned=turned).parts
        assert (part.box, part.writer, part.item) == (((0, 4), (0, 3)), 0, 0)
    none = ([0, 3], [0, 0], [0, 2]), ([0, 3], [0, 2], [0, 1])
    for turned in (False, True):
        (part,) = committed(*none, turned=turned).parts
        assert (part.box, part.writer) == (((0, 0), (0, 3)), int(turned))
    with pytest.raises(ValueError, match=r"w is .*\(4, 3\).* on one rank and .*\(5, 3\)"):
        committed(some[0], ([5, 3], [4, 0], [1, 3]))
