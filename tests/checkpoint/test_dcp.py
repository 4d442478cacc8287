"""Tests of dcp.save and dcp.load in one process, compared with plain dicts of tensors."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import WriteResult

import windeck as wd
from support.store_servers import EMBEDDED, KINDS, StartRedis, need
from support.stored_keys import data_keys
from support.tensor_bits import DTYPES, filled, raw, usable
from windeck import checkpoint
from windeck.checkpoint.dcp import StoreReader, StoreWriter
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    adam = torch.optim.Adam(model.parameters(), lr=0.25, betas=(0.5, 0.75))
    model(torch.randn(4, 5)).square().sum().backward()
    adam.step()
    return model, adam


def loader() -> wd.Loader:
    table = wd.Table.from_columns({"load": torch.arange(50.0)})
    return wd.Loader(wd.Windows(table, context_length=4, prediction_length=1), batch_size=3)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def planned(dtype: torch.dtype) -> bool:
    """Return True if torch's planner knows the size of the dtype."""
    try:
        torch._utils._element_size(dtype)  # type: ignore[no-untyped-call]
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_comes_back(kind: str, fresh: Fresh) -> None:
    url, (model, adam), feed = fresh(kind), trained(1), loader()
    next(iter(feed))
    state = {
        "model": model,
        "optimizer": adam,
        "loader": feed,
        "extra": {"note": ["hi", (1, None)]},
    }
    writer = StoreWriter(url, step=30, chunk_bytes=32)
    dcp_save(state, storage_writer=writer)
    assert writer.generation == 1
    assert [(c.generation, c.step) for c in checkpoint.log(url)] == [(1, 30)]
    (other, other_adam), other_feed = trained(2), loader()
    loaded = {"model": other, "optimizer": other_adam, "loader": other_feed, "extra": {"note": 0}}
    dcp_load(loaded, storage_reader=StoreReader(url))
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(other_adam.state_dict(), adam.state_dict())
    assert other_feed.state_dict() == feed.state_dict()
    assert loaded["extra"] == state["extra"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_without_tensors(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    dcp_save({"model": {"epoch": 3, "note": "x"}}, storage_writer=StoreWriter(url))
    state = {"model": {"epoch": 0, "note": ""}}
    dcp_load(state, storage_reader=StoreReader(url))
    assert state == {"model": {"epoch": 3, "note": "x"}}


def test_load_reads_what_dcp_wrote(memory: Store) -> None:
    (model, _), (other, _) = trained(1), trained(2)
    state = {"model": model, "loader": {"position": 7}, "extra": {"rng": torch.arange(4)}}
    dcp_save(state, storage_writer=StoreWriter(memory))
    feed = {"position": 0}
    loaded = checkpoint.load(memory, model=other, loader=feed)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert (loaded.step, feed) == (1, {"position": 7})
    assert loaded.extra["rng"].tolist() == [0, 1, 2, 3]
    with checkpoint.open(memory) as found:
        assert found.names()[0] == "model/0.weight"


@pytest.mark.parametrize("stepped", [True, False])
def test_load_refuses_an_optimizer_whose_numbers_dcp_made_text(
    stepped: bool, memory: Store
) -> None:
    """torch takes states of parameters "0" and "1" without a word, and steps as if it had none."""
    (model, adam), (other, other_adam) = trained(1), trained(2)
    dcp_save({"model": model, "optimizer": adam}, storage_writer=StoreWriter(memory))
    into = other_adam if stepped else torch.optim.Adam(other.parameters())
    before, states = copy.deepcopy(other.state_dict()), copy.deepcopy(into.state_dict())
    words = r"optimizer/state has the key '0' in <.*>, expected 0: .* dcp\.load"
    with pytest.raises(KeyError, match=words):
        checkpoint.load(memory, model=other, optimizer=into)
    assert same(dict(other.state_dict()), dict(before))
    assert same(into.state_dict(), states)


def test_dcp_reads_what_save_wrote(memory: Store) -> None:
    (model, adam), (other, other_adam) = trained(1), trained(2)
    tied = torch.arange(3.0)
    extra = {"tied": [tied, tied], "pair": (torch.ones(2), 3), "empty": {}}
    checkpoint.save(memory, step=4, model=model, optimizer=adam, extra=extra)
    blank: dict[str, Any] = {"tied": [torch.zeros(3), torch.zeros(3)], "pair": None, "empty": {}}
    state = {"model": other, "optimizer": other_adam, "extra": blank}
    dcp_load(state, storage_reader=StoreReader(memory))
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(other_adam.state_dict(), adam.state_dict())
    assert same(state["extra"], extra)
    bare = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp_load(bare, storage_reader=StoreReader(memory, root="model"))
    assert same(bare, dict(model.state_dict()))
    with pytest.raises(CheckpointException, match=r"loader was not saved in .*, which has model"):
        dcp_load(bare, storage_reader=StoreReader(memory, root="loader"))


def test_a_state_without_roots_is_the_model(memory: Store) -> None:
    (model, _), (other, _) = trained(1), trained(2)
    dcp_save(dict(model.state_dict()), storage_writer=StoreWriter(memory))
    checkpoint.load(memory, model=other)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    bare = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp_load(bare, storage_reader=StoreReader(memory))
    assert same(bare, dict(model.state_dict()))


def test_a_root_of_ones_own(memory: Store) -> None:
    dcp_save({"a": {"b": torch.ones(2)}}, storage_writer=StoreWriter(memory, root="app"))
    with checkpoint.open(memory) as found:
        assert found.names() == ["app/a/b"]
    state = {"a": {"b": torch.zeros(2)}}
    dcp_load(state, storage_reader=StoreReader(memory))
    assert state["a"]["b"].tolist() == [1.0, 1.0]


def test_the_reserved_root_is_no_root(memory: Store) -> None:
    """It says under which root a state was put: as a root it would have taken the state's place."""
    with pytest.raises(
        ValueError, match=r"^`root` must be another name than 'dcp', which is reserved$"
    ):
        StoreWriter(memory, root="dcp")
    odd: Any = 5
    with pytest.raises(TypeError, match=r"^`root` must be a str or None, got int$"):
        StoreWriter(memory, root=odd)
    dcp_save({"w": torch.ones(2)}, storage_writer=StoreWriter(memory))
    with pytest.raises(CheckpointException, match=r"dcp was not saved in .*, which has model"):
        dcp_load({"w": torch.ones(2)}, storage_reader=StoreReader(memory, root="dcp"))


def test_every_dtype_and_shape_is_exact(memory: Store) -> None:
    kinds = [dtype for dtype in DTYPES if usable(dtype) and planned(dtype)]
    state = {f"{d}-{i}": filled(shape, d, i) for d in kinds for i, shape in
             enumerate([(), (0, 3), (5, 3)])}  # fmt: skip
    state["strided"] = filled((6, 7), torch.float32).t()[::2]
    state["conj"] = filled((3,), torch.complex64).conj()
    dcp_save(state, storage_writer=StoreWriter(memory, chunk_bytes=16))
    blank = {name: torch.empty(v.shape, dtype=v.dtype) for name, v in state.items()}
    dcp_load(blank, storage_reader=StoreReader(memory))
    assert len(kinds) > 12
    assert all(raw(blank[name]) == raw(value) for name, value in state.items())


def test_older_generations_and_other_places(memory: Store, fresh: Fresh) -> None:
    url = fresh("rocksdb")
    for value in (1.0, 2.0):
        state = {"model": {"w": torch.full((2,), value)}}
        dcp_save(state, checkpoint_id=url, storage_writer=StoreWriter(memory))
    for generation, value in ((None, 2.0), (1, 1.0)):
        state = {"model": {"w": torch.zeros(2)}}
        reader = StoreReader(memory, generation=generation)
        dcp_load(state, checkpoint_id=url, storage_reader=reader)
        assert state["model"]["w"].tolist() == [value] * 2
    assert checkpoint.log(memory) == []
    assert StoreWriter.validate_checkpoint_id(url)
    assert not StoreReader.validate_checkpoint_id("/a/path")
    with pytest.raises(CheckpointException, match="there is no generation 7 in windeck"):
        dcp_load(state, storage_reader=StoreReader(url, generation=7))


def test_nothing_in_the_store_is_pickled(memory: Store) -> None:
    state = {"model": {"w": torch.zeros(2)}, "extra": {"a": 1.5, "b": "text"}}
    dcp_save(state, storage_writer=StoreWriter(memory))
    values = {key: value[64:] for key, value in memory.scan()}
    data = values.pop(b"~windeck~%016x/t/%08x/%08x/%08x" % (1, 0, 0, 0))
    assert data == bytes(8)
    assert values.pop(b"windeck/NEXT") == (2).to_bytes(8, "little")
    (manifest,) = (values.pop(key) for key in list(values) if b"/m/" in key)
    assert [type(json.loads(line)) for line in manifest.split(b"\n")] == [dict, list]
    assert [type(json.loads(value)) for value in values.values()] == [dict]


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, r"TypeError: extra.x is of type test_dcp.Colour, expected a t"),
        (b"bytes", r"TypeError: extra.x is of type bytes, expected a tensor, dict"),
        ((torch.zeros(2), 1), r"TypeError: extra.x/0 is a tensor inside a value that dcp does"),
        (torch.zeros(2, device="meta"), r"TypeError: extra.x is a meta tensor, expected a dense"),
        (torch.eye(2).to_sparse(), r"TypeError: extra.x is a sparse tensor, expected a dense"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_named(value: Any, text: str, memory: Store) -> None:
    dcp_save({"extra": {"x": 1}}, storage_writer=StoreWriter(memory))
    before = checkpoint.log(memory)
    with pytest.raises(CheckpointException, match=text):
        dcp_save({"extra": {"x": value}}, storage_writer=StoreWriter(memory))
    assert checkpoint.log(memory) == before


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": {"b/c": torch.ones(1), "b": {"c": torch.ones(1)}}}, "two tensors have the name a/b"),
        ({"dcp": {"a": 1}}, "the state has a key 'dcp', which is reserved, expected another"),
    ],
)  # fmt: skip
def test_names_that_clash(state: dict[str, Any], text: str, memory: Store) -> None:
    with pytest.raises(CheckpointException, match=f"ValueError: {text}"):
        dcp_save(state, storage_writer=StoreWriter(memory))
    assert checkpoint.log(memory) == []
    assert list(memory.keys(b"")) == [b"windeck/HEAD", b"windeck/NEXT"]


def test_other_dtypes_only_if_asked(memory: Store) -> None:
    dcp_save({"w": torch.tensor([1.5, 2.5])}, storage_writer=StoreWriter(memory))
    state = {"w": torch.zeros(2, dtype=torch.float64)}
    text = r"w has dtype torch.float64, expected torch.float32 as saved; cast=True casts"
    with pytest.raises(CheckpointException, match=text):
        dcp_load(state, storage_reader=StoreReader(memory))
    assert state["w"].tolist() == [0, 0]
    dcp_load(state, storage_reader=StoreReader(memory, cast=True))
    assert state["w"].tolist() == [1.5, 2.5]
    dcp_save({"w": torch.ones(2, dtype=torch.complex64)}, storage_writer=StoreWriter(memory))
    with pytest.raises(CheckpointException, match=r"w is torch.complex64, expected a complex"):
        dcp_load(state, storage_reader=StoreReader(memory, cast=True))


def test_damage_is_found(memory: Store) -> None:
    dcp_save({"w": torch.arange(9.0)}, storage_writer=StoreWriter(memory, chunk_bytes=16))
    key = b"~windeck~%016x/t/%08x/%08x/%08x" % (1, 0, 0, 1)
    value = memory.get(key)
    assert value is not None
    for place in range(len(value)):
        wrong = bytearray(value)
        wrong[place] ^= 1 << place % 8
        memory.put_many([(key, bytes(wrong))])
        with pytest.raises(CheckpointException, match=f"{key.decode()} (is damaged|has format)"):
            dcp_load({"w": torch.zeros(9)}, storage_reader=StoreReader(memory))
    memory.delete_many([key])
    with pytest.raises(CheckpointException, match=r"is missing, .*; the targets are invalid"):
        dcp_load({"w": torch.zeros(9)}, storage_reader=StoreReader(memory))


def test_a_store_with_one_opener_is_waited_for(fresh: Fresh) -> None:
    url = fresh("leveldb")
    dcp_save({"w": torch.ones(2)}, storage_writer=StoreWriter(url))
    state = {"w": torch.zeros(2)}
    with (
        open_store(url),
        pytest.raises(CheckpointException, match="is open already, in this process"),
    ):
        dcp_load(state, storage_reader=StoreReader(url, wait=0.05))
    held = open_store(url)
    threading.Timer(0.3, held.close).start()
    dcp_load(state, storage_reader=StoreReader(url))
    assert state["w"].tolist() == [1.0, 1.0]


class Meddling(DefaultSavePlanner):
    """A planner during which another save is committed."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.meddled = store

    def resolve_data(self, write_item: Any) -> Any:
        checkpoint.save(self.meddled, step=99, extra={})
        return super().resolve_data(write_item)


def test_of_two_writers_one_is_told(memory: Store) -> None:
    text = (
        r"RuntimeError: step 5 was not committed to windeck, generation 2 of step 99 was meanwhile"
    )
    with pytest.raises(CheckpointException, match=text):
        dcp_save(
            {"w": torch.ones(1)},
            storage_writer=StoreWriter(memory, step=5),
            planner=Meddling(memory),
        )
    assert [commit.step for commit in checkpoint.log(memory)] == [99]
    assert not data_keys(memory, "t")


class Forgetful(StoreWriter):
    """A writer that drops the results for tensor b."""

    def finish(self, metadata: Any, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, [[r for r in rank if r.index.fqn != "b"] for rank in results])


def test_what_nobody_wrote_is_missed(memory: Store) -> None:
    for lost in (torch.ones(2), "text"):
        with pytest.raises(CheckpointException, match="ValueError: no rank wrote b, expected all"):
            dcp_save({"a": torch.ones(1), "b": lost}, storage_writer=Forgetful(memory))
    assert list(memory.keys(b"")) == [b"windeck/HEAD", b"windeck/NEXT"]


class Bare(SavePlanner):
    """A planner that cannot be asked for objects that are not tensors."""

    def __init__(self) -> None:
        self._inner = DefaultSavePlanner()

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        self._inner.set_up_planner(state_dict, storage_meta, is_coordinator)

    def create_local_plan(self) -> SavePlan:
        return self._inner.create_local_plan()

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return self._inner.create_global_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return self._inner.finish_plan(new_plan)

    def resolve_data(self, write_item: Any) -> Any:
        return self._inner.resolve_data(write_item)


def test_planners_that_hand_over_pickles_are_refused(memory: Store) -> None:
    text = (
        r"TypeError: a is not a tensor, and Bare has no lookup_object .* derives from DefaultSaveP"
    )
    with pytest.raises(CheckpointException, match=text):
        dcp_save({"a": 1}, storage_writer=StoreWriter(memory), planner=Bare())


def test_ways_of_saving_that_are_refused(memory: Store) -> None:
    writer = StoreWriter(memory)
    with pytest.raises(ValueError, match="use_collectives=False leaves each rank with"):
        dcp_save({"a": 1}, storage_writer=writer, use_collectives=False)
    planner = DefaultSavePlanner(enable_plan_caching=True)
    dcp_save({"a": 1}, storage_writer=writer, planner=planner)
    with pytest.raises(CheckpointException, match=r"ranks \[0\] were left out by a planner with"):
        dcp_save({"a": 2}, storage_writer=writer, planner=planner)
    with pytest.raises(RuntimeError, match="finish was called before a save began"):
        writer.finish(Metadata({}), [])
    with pytest.raises(ValueError, match="`step` must be at least 0, got -1"):
        StoreWriter(memory, step=-1)
    with pytest.raises(ValueError, match="expected a namespace of 1 to 200"):
        StoreReader(memory, namespace="a b")


def test_generations_that_differ_between_ranks_are_refused() -> None:
    plans = [LoadPlan([], storage_data=generation) for generation in (3, 4)]
    with pytest.raises(ValueError, match=r"the ranks found the generations \[3, 4\] in force"):
        StoreReader("memory://").prepare_global_plan(plans)


def test_async_save_keeps_the_moment(tmp_path: Path, fresh: Fresh) -> None:
    method = f"file://{tmp_path}/meeting"
    dist.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    try:
        for kind in (*EMBEDDED, "memory"):
            url, weight = fresh(kind), torch.ones(1000)
            state = {"model": {"w": weight}, "extra": {"step": 3}}
            future = async_save(state, storage_writer=StoreWriter(url, step=3))
            weight.fill_(2)
            assert isinstance(future, Future)
            future.result()
            assert [commit.step for commit in checkpoint.log(url)] == [3]
            fresh_state: dict[str, Any] = {"model": {"w": torch.zeros(1000)}, "extra": {"step": 0}}
            dcp_load(fresh_state, storage_reader=StoreReader(url))
            assert same(fresh_state, {"model": {"w": torch.ones(1000)}, "extra": {"step": 3}})
    finally:
        dist.destroy_process_group()


def test_a_server_that_restarts_before_a_save_of_dcp_is_finished(
    start_redis: StartRedis,
) -> None:
    """Data of each rank are durable: nothing in the store would tell that they were lost."""
    need("redis")
    server = start_redis()

    class Restarting(StoreWriter):
        def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
            server.kill()
            server.start()
            super().finish(metadata, results)

    state = {"w": torch.arange(1000.0)}
    dcp_save(state, storage_writer=Restarting(server.url, step=1))
    target = {"w": torch.zeros(1000)}
    dcp_load(target, storage_reader=StoreReader(server.url))
    assert torch.equal(target["w"], state["w"])


def test_a_partial_load_of_nothing_is_an_error(memory: Store) -> None:
    model = {"w": torch.ones(3), "b": torch.ones(2)}
    dcp_save({"model": model}, storage_writer=StoreWriter(memory, step=1))
    planner = DefaultLoadPlanner(allow_partial_load=True)
    into = {"model": {"w": torch.zeros(3), "new": torch.zeros(1)}}
    dcp_load(into, storage_reader=StoreReader(memory), planner=planner)
    assert bool(into["model"]["w"].all())
    wrapped = {"model": {"_orig_mod.w": torch.zeros(3)}}
    with pytest.raises(CheckpointException, match=r"no name of the state .*model.w: expected the"):
        dcp_load(wrapped, storage_reader=StoreReader(memory), planner=planner)
