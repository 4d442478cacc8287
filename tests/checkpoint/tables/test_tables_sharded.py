"""Tests of tables of several writers, each with a range of buckets, and of their readers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from models.table_model import ModelCore, ModelTable
from support.internals import plant
from support.sharded_parts import tampered
from support.store_servers import KINDS
from windeck import checkpoint
from windeck.checkpoint import SavedTable
from windeck.checkpoint.format import Kind, Label, decode, find_commit, keys, read_manifest
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.write import merge_tables

Fresh = Callable[[str], str]
Told = dict[int, tuple[Any, ...]]


def ranges(shards: int) -> list[tuple[int, int]]:
    return [(r * 1024 // shards, (r + 1) * 1024 // shards) for r in range(shards)]


def parts(shards: int, dim: int = 3) -> list[ModelCore]:
    return [ModelCore(dim, 1, first_bucket=a, end_bucket=b) for a, b in ranges(shards)]


def train(cores: list[ModelCore], ids: Any, seed: int = 0) -> None:
    for core in cores:
        core.fill(ids, np.random.default_rng(seed), counted=0.1)


def told(cores: list[ModelCore]) -> Told:
    return {key: value for core in cores for key, value in core.told().items()}


def save(place: Store | str, cores: list[ModelCore], **options: Any) -> int:
    plan = checkpoint.begin(place, step=1, writers=len(cores), **options)
    for writer, core in enumerate(cores):
        checkpoint.save_shard(place, plan, writer=writer, embeddings={"t": ModelTable(core)})
    return checkpoint.merge(place, plan)


def load(place: Store | str, shards: int) -> list[ModelCore]:
    cores = parts(shards)
    for core in cores:
        checkpoint.load(place, embeddings={"t": ModelTable(core)})
    return cores


def test_a_group_writes_what_changed_since_its_last_save(memory: Store, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        [core] = parts(1)
        options: dict[str, Any] = {"incremental": True, "group": dist.group.WORLD}
        for step in (1, 2, 3):
            train([core], range(600) if step == 1 else range(step, step + 20), seed=step)
            table = ModelTable(core)
            checkpoint.save(memory, step=step, embeddings={"t": table}, **options)
        since = [link.since for link in checkpoint.open(memory).tables["t"].links]
        assert len(since) == 3
        assert since[0] > since[1] > since[2] == -1
        assert told(load(memory, 2)) == core.told()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_from_four_to_three_to_one_and_on(kind: str, fresh: Fresh) -> None:
    url, rng = fresh(kind), np.random.default_rng(0)
    cores, ids = parts(4), rng.integers(-(2**63), 2**63 - 1, 500)
    train(cores, ids)
    for turn, shards in enumerate((3, 1, 4, 2)):
        save(url, cores, incremental=True)
        for other in (3, 5):
            assert told(load(url, other)) == told(cores)
        with checkpoint.open(url) as found:
            links = found.tables["t"].links
            assert found.tables["t"].rows == sum(map(len, cores))
        assert len(links) == turn + 1
        cores = load(url, shards)
        train(cores, ids[turn::9], seed=turn + 1)
        for core in cores:
            core.remove([key for key in ids[turn::50].tolist() if key in core.ids])


def test_writers_that_save_again_and_again_write_what_changed(memory: Store) -> None:
    cores, ids = parts(3), np.arange(-300, 300)
    train(cores, ids)
    for turn in range(4):
        save(memory, cores, incremental=True)
        assert told(load(memory, 2)) == told(cores)
        links = checkpoint.open(memory).tables["t"].links
        assert [link.since for link in links] == [*range(turn, 0, -1), -1]
        train(cores, ids[turn::20], seed=turn)
    # A save that was never merged is none that a delta is based on.
    plan = checkpoint.begin(memory, step=1, writers=3, incremental=True)
    checkpoint.save_shard(memory, plan, writer=0, embeddings={"t": ModelTable(cores[0])})
    train(cores, ids[3::20], seed=9)
    save(memory, cores, incremental=True)
    assert told(load(memory, 2)) == told(cores)
    assert [link.since for link in checkpoint.open(memory).tables["t"].links] == [4, 3, 2, 1, -1]


def test_writers_with_two_shards_each(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "writing.MIN_SPLIT_BYTES", 1000)
    cores = parts(3)
    train(cores, np.arange(-300, 300))
    save(memory, cores)
    manifest = read_manifest(memory, "windeck", find_commit(memory, "windeck", None))
    found = [(shard.writer, shard.item) for shard in manifest["tables"]["t"].links[0].shards]
    assert found == list(itertools.product(range(3), range(2)))
    assert told(load(memory, 2)) == told(cores)


def test_bytes_read_from_four_shards_to_three(memory: Store) -> None:
    cores = parts(4, dim=64)
    train(cores, np.arange(20_000))
    save(memory, cores)
    read = 0

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

        def get(self, key: bytes) -> bytes | None:
            found: bytes | None = self.get_many([key])[0]
            return found

        def get_many(self, keys: Any) -> Any:
            nonlocal read
            found = memory.get_many(keys)
            read += sum(len(value or b"") for value in found)
            return found

    total = 0
    for a, b in ranges(3):
        core = ModelCore(64, 1, first_bucket=a, end_bucket=b)
        checkpoint.load(Counting(), embeddings={"t": ModelTable(core)})
        total += sum(33 + (512 if entry.values is not None else 0) for entry in core.ids.values())
    assert read <= 1.05 * total
    assert read >= total


def test_tables_of_some_writers_only(memory: Store) -> None:
    one, two = ModelCore(2), ModelCore(5)
    train([one, two], range(50))
    plan = checkpoint.begin(memory, step=1, writers=3)
    for writer, given in enumerate(({"a": ModelTable(one)}, {"b": ModelTable(two)}, None)):
        checkpoint.save_shard(memory, plan, writer=writer, embeddings=given)
    checkpoint.merge(memory, plan)
    new = ModelCore(2), ModelCore(5)
    checkpoint.load(memory, embeddings={"b": ModelTable(new[1]), "a": ModelTable(new[0])})
    assert told([new[0]]) == told([one])
    assert told([new[1]]) == told([two])


def shard(first: int, end: int, dim: int = 3, slots: int = 1, **config: Any) -> ModelTable:
    return ModelTable(ModelCore(dim, slots, first_bucket=first, end_bucket=end), **config)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ((shard(0, 512), shard(500, 1024)), "t has buckets 500 to 511 written twice, expected ea"),
        (
            (shard(0, 512), shard(513, 1024)),
            "t has buckets 512 to 512 written by no writer, expect",
        ),
        ((shard(0, 512), shard(512, 1000)), "t has buckets 1000 to 1023 written by no writer"),
        ((shard(0, 1024), shard(0, 1024)), "t has buckets 0 to 1023 written twice"),
        ((shard(0, 512), shard(512, 1024, 4)), "table t has dim 4 with writer 1, expected 3 as wi"),
        ((shard(0, 512), shard(512, 1024, 3, 2)), "t has slots 2 with writer 1, expected 1 as wit"),
        (
            (shard(0, 512), shard(512, 1024, lr=1)),
            "t has config .* with writer 1, expected .* as w",
        ),
    ],
)
def test_shards_that_make_no_table(
    tables: tuple[ModelTable, ...], words: str, memory: Store
) -> None:
    save(memory, parts(2))
    plan = checkpoint.begin(memory, step=2, writers=2)
    for writer, table in enumerate(tables):
        checkpoint.save_shard(memory, plan, writer=writer, embeddings={"t": table})
    with pytest.raises(ValueError, match=words):
        checkpoint.merge(memory, plan)
    assert [commit.step for commit in checkpoint.log(memory)] == [1]


def test_a_shard_that_says_it_is_another_writers(memory: Store) -> None:
    plan = checkpoint.begin(memory, step=2, writers=2)
    for writer, table in enumerate((shard(0, 512), shard(512, 1024))):
        checkpoint.save_shard(memory, plan, writer=writer, embeddings={"t": table})
    key = keys.shard("windeck", plan.generation, 1)
    label = Label(Kind.SHARD, plan.generation, plan.save, part=1)
    said = json.loads(bytes(decode(key, memory.get(key), label)))
    said["tables"][0]["shards"][0]["writer"] = 0
    tampered(memory, plan, 1, tables=said["tables"])
    words = "the manifest of writer 1 has a shard of writer 0 of the table t, expected its own"
    with pytest.raises(ValueError, match=words):
        checkpoint.merge(memory, plan)
    assert checkpoint.log(memory) == []


def test_a_foreign_bucket_in_a_shard(memory: Store) -> None:
    """A reader refuses blocks with buckets that belong to another writer."""
    cores = parts(2)
    train(cores, range(100))
    for core, (key, entry) in itertools.product(cores[:1], list(cores[1].ids.items())[:1]):
        core.ids[key] = entry  # past what the table itself would let in
        core.end_bucket = 1024
    save_as = [ModelTable(core) for core in cores]
    plan = checkpoint.begin(memory, step=1, writers=2)
    for writer, table in enumerate(save_as):
        core = table.core
        if writer == 0:
            table.core = Lying(core)
        checkpoint.save_shard(memory, plan, writer=writer, embeddings={"t": table})
    checkpoint.merge(memory, plan)
    with pytest.raises(CorruptStoreError, match=r"found block \d+ out of order, expected it after"):
        load(memory, 1)


class Lying:
    """A table that claims the first half of the buckets, and returns more."""

    def __init__(self, core: ModelCore) -> None:
        self._core, self.end_bucket = core, 512

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def snapshot(self) -> Any:
        found: Any = self._core.snapshot()
        read = found.read

        def more(first: int, end: int, since: int = -1) -> Any:
            return read(first, 1024, since)

        found.read = more
        return found


def test_what_changed_is_of_a_table_of_that_shape() -> None:
    shard = {"writer": 0, "item": 0, "buckets": [0, 1024], "since": -1, "clock": 3}
    shard |= dict.fromkeys(("blocks", "entries", "rows", "bytes"), 1) | {"dead": 0}
    table = {"name": "t", "dim": 2, "dtype": "float32", "slots": 1, "config": {}, "clock": 3}
    table |= {"rows": 1, "counted": 0, "shards": [shard]}
    (base,) = merge_tables([(0, [table])], generation=1, save=11, base={})
    later = {**table, "clock": 5, "shards": [{**shard, "since": 3, "clock": 5}]}
    (found,) = merge_tables([(0, [later])], generation=2, save=12, base={"t": base})
    assert [link.generation for link in found.links] == [2, 1]
    words = "the table t is written as a delta, expected a table of .* in force, found "
    with pytest.raises(ValueError, match=words + "none"):
        merge_tables([(0, [later])], generation=2, save=12, base={"u": base})
    for other in ({"dim": 4}, {"slots": 0}):
        with pytest.raises(ValueError, match=words + "one of .*dim=2, slots=1"):
            merge_tables([(0, [{**later, **other}])], generation=2, save=12, base={"t": base})


def test_a_manifest_may_tell_of_shards_in_any_order(memory: Store) -> None:
    cores = parts(3)
    train(cores, range(300))
    save(memory, cores)
    with checkpoint.open(memory) as found:
        entry = found.table_entries["t"]
        (link,) = entry.links
        turned = replace(entry, links=(replace(link, shards=link.shards[::-1]),))
        rows, again = (
            [row.keys.tolist() for row in SavedTable(memory, "windeck", one).scan()]
            for one in (entry, turned)
        )
    assert sum(map(len, rows)) > 200
    assert rows == again
