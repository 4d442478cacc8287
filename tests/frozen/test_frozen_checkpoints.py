"""Checkpoints of format 1 are read, and saves write the same keys and bytes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import windeck as wd
from support.frozen_checkpoints import (
    BATCHES,
    CHUNK,
    IDS,
    STEPS,
    emptied,
    extra,
    in_memory,
    load_by_dcp,
    loader,
    model,
    optimizer,
    plain_model,
    read_memory,
    same,
    save_steps,
    steady,
    tables,
    trained,
    user_row,
    weight,
)
from support.frozen_data import FROZEN, digests
from windeck import checkpoint
from windeck.checkpoint.safetensors import export, import_
from windeck.checkpoint.stores import MappingStore, Store, open_store

LIBRARIES = {"rocksdb": "rocksdict", "leveldb": "plyvel"}


def need(kind: str) -> None:
    """Skip the test without the library of a store; under CI, fail where it can be had."""
    library = LIBRARIES[kind]
    if importlib.util.find_spec(library):
        return
    if os.environ.get("CI") and not (kind == "leveldb" and sys.version_info >= (3, 13)):
        pytest.fail(f"{library} is not installed")
    pytest.skip(f"{library} is not installed")


@pytest.fixture(params=["memory", *LIBRARIES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A stored store; a copy, because opening one writes to it."""
    kind = request.param
    if kind == "memory":
        yield read_memory()
        return
    need(kind)
    shutil.copytree(FROZEN / kind, tmp_path / kind)
    with open_store(f"{kind}://{tmp_path / kind}") as opened:
        yield opened


@pytest.mark.parametrize(("generation", "step"), [(1, 10), (2, 20)])
def test_a_stored_checkpoint_is_loaded(store: Store, generation: int, step: int) -> None:
    state: dict[str, Any] = emptied({"model": model(step), "optimizer": optimizer(step)})
    every, batches = tables(), loader()
    found = checkpoint.load(store, embeddings=every, loader=batches, generation=generation, **state)
    assert (found.generation, found.step) == (generation, step)
    assert same(found.extra, extra(step))
    assert same(state["model"], model(step))
    assert same(state["optimizer"], optimizer(step))
    check_tables(every, step)
    expected = loader()
    digests(expected, BATCHES[step])
    assert batches.step == BATCHES[step]
    assert batches.state_dict() == expected.state_dict()
    assert digests(batches, 4) == digests(expected, 4)


def check_tables(every: dict[str, wd.EmbeddingTable], step: int) -> None:
    """Stored rows are those of arithmetic, or of the same training now; both train on."""
    expected = tables()
    for one in STEPS:
        if one <= step:
            trained(one, expected)
    for _ in range(2):
        for name, table in every.items():
            assert table.rows == len(IDS)
            assert torch.equal(table.eval()(IDS), expected[name].eval()(IDS))
            table.train()
            expected[name].train()
        trained(20, every)
        trained(20, expected)
    rows = expected["user"].eval()(IDS).detach()
    twice = torch.tensor([user_row(number, step) - (number % 4 == 0) for number in range(len(IDS))])
    assert torch.equal(rows, twice[:, None].expand(-1, 3))


def test_parts_of_a_stored_checkpoint_are_read(store: Store) -> None:
    with checkpoint.open(store) as found:
        assert same(found.row("model/weight", 3), weight(20)[3])
        assert same(found.slice("model/weight", (slice(2, 9), slice(1, 4))), weight(20)[2:9, 1:4])
        assert found.info("model/half").dtype == torch.bfloat16
        assert same(found.tree("extra"), extra(20))
        rows = found.table("user").rows(IDS.numpy())
        assert rows.found.all()
        assert rows.values[:, 0].tolist() == [user_row(number, 20) for number in range(len(IDS))]


def test_a_store_of_stored_checkpoints_is_maintained(store: Store) -> None:
    assert [commit.step for commit in checkpoint.log(store)] == [20, 10]
    for generation in (1, 2):
        assert checkpoint.verify(store, deep=True, generation=generation)
    assert checkpoint.diff(store, 1, 2)
    target = MappingStore({})
    checkpoint.copy(store, target)
    copied = emptied(model(20))
    checkpoint.load(target, model=copied, strict=False)
    assert same(copied, model(20))
    changed = model(20) | {"weight": weight(21)}
    made = checkpoint.save(store, step=21, model=changed, incremental=True, chunk_bytes=CHUNK)
    assert made == 3
    loaded = emptied(changed)
    checkpoint.load(store, model=loaded)
    assert same(loaded, changed)
    assert checkpoint.gc(store, keep=1)
    checkpoint.load(store, model=loaded)
    assert same(loaded, changed)


def test_a_checkpoint_of_several_writers_is_loaded() -> None:
    store, every = read_memory(), tables()
    state = {"weight": torch.zeros(40, 9), "half": torch.zeros(70, dtype=torch.bfloat16)}
    found = checkpoint.load(store, model=state, embeddings=every, namespace="sharded")
    assert (found.step, found.extra) == (30, {"step": 30})
    assert same(state, {"weight": weight(30), "half": torch.arange(70).to(torch.bfloat16)})
    check_tables(every, 10)


def test_a_checkpoint_of_dcp_is_loaded() -> None:
    expected = {"model": plain_model(40), "optimizer": optimizer(40), "step": 40}
    assert same(load_by_dcp(read_memory()), expected)


def test_tables_exported_for_serving_are_read() -> None:
    store, every = read_memory(), tables()
    for name, table in every.items():
        assert checkpoint.import_rows(store, table, name, namespace="serving") == len(IDS)
    check_tables(every, 10)


def test_saves_write_the_same_keys_and_bytes() -> None:
    expected = json.loads((FROZEN / "memory.json").read_text(encoding="utf-8"))
    found = in_memory()
    assert [bytes.fromhex(key) for key in found] == [bytes.fromhex(key) for key in expected]
    changed = [bytes.fromhex(key) for key in found if found[key] != expected[key]]
    assert not changed, "values under these keys have other bytes"


def test_stored_safetensors_files_are_read_and_written_again(tmp_path: Path) -> None:
    stored = FROZEN / "exported"
    export(read_memory(), tmp_path / "model.safetensors", generation=2)
    for path in stored.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    store = MappingStore({})
    import_(stored / "model.safetensors", store)
    state = emptied(model(20))
    checkpoint.load(store, model=state)
    assert same(state, model(20))


@pytest.mark.parametrize("kind", LIBRARIES)
def test_stores_hold_the_same_pairs_whatever_their_kind(kind: str, tmp_path: Path) -> None:
    need(kind)
    with steady(), open_store(f"{kind}://{tmp_path / kind}") as opened:
        save_steps(opened)
        pairs = dict(opened.scan())
    with steady():
        expected = MappingStore({})
        save_steps(expected)
    assert pairs == dict(expected.scan())
