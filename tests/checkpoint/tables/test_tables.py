"""Tests of tables in checkpoints, compared with a plain dict of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import EXTREMES, ModelCore, ModelTable, bucket
from support.store_servers import KINDS
from support.stored_keys import data_keys, data_pairs
from windeck import checkpoint
from windeck.checkpoint import SavedTable, TableRows
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]


def filled(
    dim: int, slots: int, count: int, *, seed: int = 0, counted: float = 0.2, **options: int
) -> ModelCore:
    """A table of random ids, with the smallest and the largest id."""
    rng, core = np.random.default_rng(seed), ModelCore(dim, slots, **options)
    ids = rng.integers(-(2**63), 2**63 - 1, max(0, count - len(EXTREMES)))
    core.fill([*EXTREMES[:count], *ids.tolist()], rng, counted=counted)
    return core


def told(parts: Any) -> dict[int, tuple[Any, ...]]:
    """Return the rows as the model returns its own; each id once, in order of buckets and ids."""
    found: dict[int, tuple[Any, ...]] = {}
    places = []
    for part in parts:
        values = iter(part.values)
        for i, key in enumerate(part.keys.tolist()):
            if part.found[i]:
                row = next(values).tobytes() if part.admitted[i] else None
                numbers = (int(n[i]) for n in (part.versions, part.frequencies, part.seen))
                assert key not in found or not isinstance(parts, Iterator)
                found[key] = (*numbers, row)
                places.append((bucket(key), key))
        assert next(values, None) is None
    if isinstance(parts, Iterator):
        assert places == sorted(set(places))
    return found


def check(saved: SavedTable, core: ModelCore) -> None:
    """Assert that a saved table equals the model, however it is read."""
    assert told(saved.scan()) == core.told()
    assert (saved.info.rows, saved.info.counted) == (len(core), core.counted)
    assert saved.info.clock == core.clock
    ids = [*list(core.ids)[::7], *EXTREMES, 3, 4, 3, *list(core.ids)[:3], *core.gone]
    rows = saved.rows(ids)
    assert rows.keys.tolist() == ids
    assert rows.found.tolist() == [key in core.ids for key in ids]
    assert told([rows]) == {key: core.ids[key].told() for key in ids if key in core.ids}
    for name in ("versions", "frequencies", "seen", "admitted"):
        assert not getattr(rows, name)[~rows.found].any()


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_a_step_come_back(kind: str, fresh: Fresh) -> None:
    user, item = filled(8, 1, 3000), filled(3, 0, 50, counted=0)
    tables = {"user": ModelTable(user, lr=0.5), "item/é": ModelTable(item)}
    tables["none"] = ModelTable(ModelCore(4))
    with open_store(fresh(kind)) as store:
        number = checkpoint.save(store, step=5, model={"w": torch.ones(3)}, embeddings=tables)
        with checkpoint.open(store) as found:
            assert list(found.tables) == ["user", "item/é", "none"]
            check(found.table("user"), user)
            check(found.table("item/é"), item)
            assert list(found.table("none").scan()) == []
            assert found.table("none").rows([1, 2]).found.tolist() == [False, False]
            info = found.tables["user"]
            assert (info.name, info.dim, info.slots) == ("user", 8, 1)
            assert info.config == {"optimizer": "adagrad", "lr": 0.5}
            (link,) = info.links
            assert (link.generation, link.since, link.rows, link.dead) == (number, -1, len(user), 0)
            data = [*data_pairs(store, "e"), *store.scan(b"windeck/i/")]
            assert sum(table.bytes for table in found.tables.values()) == sum(
                len(value) for _, value in data
            )
        new = {"user": ModelCore(8, 1), "item/é": ModelCore(3), "none": ModelCore(4)}
        checkpoint.load(store, embeddings={name: ModelTable(core) for name, core in new.items()})
        assert new["user"].told() == user.told()
        assert new["item/é"].told() == item.told()
        assert [core.clock for core in new.values()] == [1, 1, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_keeps_open_what_it_is_read_from(kind: str, fresh: Fresh) -> None:
    """A table keeps its store open, as in `checkpoint.open(url).row(...)` without a variable."""
    url, core = fresh(kind), filled(2, 0, 500)
    checkpoint.save(url, step=1, embeddings={"user": ModelTable(core)})
    check(checkpoint.open(url).table("user"), core)
    scan = checkpoint.open(url).table("user").scan()
    assert told(scan) == core.told()


@pytest.mark.parametrize(
    ("dim", "slots", "count"),
    [(1, 0, 1), (1, 0, 40_000), (2, 2, 9), (64, 1, 1500), (5000, 0, 40), (70_000, 0, 3)],
)
def test_shapes_and_sizes(dim: int, slots: int, count: int, memory: Store) -> None:
    core = filled(dim, slots, count)
    checkpoint.save(memory, step=0, embeddings={"t": ModelTable(core)})
    check(checkpoint.open(memory).table("t"), core)
    sizes = [len(value) for _, value in data_pairs(memory, "e")]
    row = 4 * dim * (1 + slots)
    assert all(size <= 512 << 10 for size in sizes) or row > 200_000
    # Blocks are as full as borders that suit readers of other shards let them be.
    assert len(sizes) <= 22 + 1 + 2 * (len(core) * row + 33 * count) / (512 << 10) or row > 100_000


def test_a_bucket_of_many_blocks(memory: Store) -> None:
    rng, core = np.random.default_rng(3), ModelCore(512)
    ids = [key for key in range(1_500_000, 2_400_000) if bucket_is_nine(key)]
    core.fill(ids, rng)
    checkpoint.save(memory, step=0, embeddings={"t": ModelTable(core)})
    assert len(data_keys(memory, "e")) > 2
    saved = checkpoint.open(memory).table("t")
    check(saved, core)
    assert told(saved.scan(9, 10)) == core.told()
    assert list(saved.scan(0, 9)) == list(saved.scan(10, 1024)) == list(saved.scan(9, 9)) == []


def bucket_is_nine(key: int) -> bool:
    return bucket(key) == 9


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 1024, 1500])
def test_shards_of_other_numbers(shards: int, memory: Store) -> None:
    core = filled(6, 1, 2000)
    checkpoint.save(memory, step=0, embeddings={"t": ModelTable(core)})
    every: dict[int, tuple[Any, ...]] = {}
    ranks = range(shards) if shards < 9 else (0, 1, shards // 3, shards - 1)
    for rank in ranks:
        own = rank * 1024 // shards, (rank + 1) * 1024 // shards
        part = ModelCore(6, 1, first_bucket=own[0], end_bucket=own[1])
        checkpoint.load(memory, embeddings={"t": ModelTable(part)})
        inside = {key for key in core.ids if own[0] <= bucket(key) < own[1]}
        assert part.told() == {key: core.ids[key].told() for key in inside}
        assert told(checkpoint.open(memory).table("t").scan(*own)) == part.told()
        every |= part.told()
    assert every == core.told() or shards > 9


def test_reads_touch_what_they_need(memory: Store) -> None:
    core = filled(64, 1, 20_000, counted=0)
    checkpoint.save(memory, step=0, embeddings={"t": ModelTable(core)})
    blocks = dict(data_pairs(memory, "e"))
    asked: list[bytes] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

        def get_many(self, keys: Any) -> Any:
            asked.extend(keys)
            return memory.get_many(keys)

    saved = checkpoint.open(Watched()).table("t")
    saved.rows([next(iter(core.ids))])
    assert len(asked) == 1  # one GET
    for shards in range(2, 9):
        asked.clear()
        for rank in range(shards):
            list(saved.scan(rank * 1024 // shards, (rank + 1) * 1024 // shards))
        assert set(asked) == blocks.keys()
        # A block of less than 16 KiB may lie on both sides of a border.
        read, needed = sum(len(blocks[key]) for key in asked), sum(map(len, blocks.values()))
        assert read <= needed + (shards - 1) * (16 << 10)
        assert read <= 1.01 * needed


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        ([1.5], TypeError, "the ids have dtype float64, expected int64"),
        (np.zeros(3, np.int16), TypeError, "the ids have dtype int16, expected int64"),
        ([[1]], ValueError, r"the ids have shape \(1, 1\), expected one dimension"),
        (["a"], TypeError, "expected int64"),
        ([2**63], TypeError, "the ids have dtype uint64, expected int64"),
    ],
)
def test_ids_that_are_none(ids: Any, error: type[Exception], words: str, memory: Store) -> None:
    checkpoint.save(memory, step=0, embeddings={"t": ModelTable(filled(2, 0, 9))})
    saved = checkpoint.open(memory).table("t")
    with pytest.raises(error, match=words):
        saved.rows(ids)
    assert len(saved.rows([])) == 0
    for first, end in ((-1, 5), (5, 4), (0, 1025)):
        with pytest.raises(ValueError, match=f"the buckets are {first} to {end}, expected a range"):
            saved.scan(first, end)
    with pytest.raises(KeyError, match=r"there is no table 'u' in .*, expected one of \['t'\]"):
        checkpoint.open(memory).table("u")


def test_what_cannot_be_saved(memory: Store) -> None:
    good = ModelTable(ModelCore(2))
    cases: list[tuple[Any, type[Exception], str]] = [
        ([good], TypeError, "`embeddings` must be a dict of tables, got list"),
        ({1: good}, TypeError, "keys of `embeddings` must be str, got int"),
        ({"t": {}}, TypeError, "embeddings/t must be a table, .*, got dict"),
        ({"t": ModelTable(ModelCore(2), f=set())}, TypeError, "the config of embeddings/t is no"),
        ({"t": ModelTable(ModelCore(2), f=float("nan"))}, ValueError, "embeddings/t is not plain"),
    ]
    for given, error, words in cases:
        with pytest.raises(error, match=words):
            checkpoint.save(memory, step=0, embeddings=given)
    bare = ModelTable(ModelCore(2))
    bare.config = [1]  # type: ignore[assignment]
    with pytest.raises(TypeError, match="the config of embeddings/t must be a dict, got list"):
        checkpoint.save(memory, step=0, embeddings={"t": bare})
    half = ModelTable(ModelCore(2, first_bucket=3, end_bucket=700))
    with pytest.raises(
        ValueError, match="table t has buckets 0 to 2 written by no writer, expected e"
    ):
        checkpoint.save(memory, step=0, embeddings={"t": half})
    assert checkpoint.log(memory) == []


def test_what_cannot_be_loaded(memory: Store) -> None:
    core = filled(4, 1, 30)
    checkpoint.save(memory, step=0, model={"w": torch.ones(2)}, embeddings={"t": ModelTable(core)})
    full, counting = filled(4, 1, 3, counted=0), filled(4, 1, 3, counted=1)
    cases: list[tuple[Any, type[Exception], str]] = [
        ([core], TypeError, "`embeddings` must be a dict of tables, got list"),
        ({"t": core}, TypeError, "embeddings/t must be a table, .*, got ModelCore"),
        ({"u": ModelTable(ModelCore(4, 1))}, KeyError, r"only in the target \[.u.\]"),
        ({}, KeyError, r"only in the target \[\]; only in the checkpoint \['t'\]; strict=False"),
        ({"t": ModelTable(ModelCore(5, 1))}, ValueError, "t has dim 5, expected 4 as saved"),
        ({"t": ModelTable(ModelCore(4, 2))}, ValueError, "t has slots 2, expected 1 as saved"),
        ({"t": ModelTable(ModelCore(4, 1), optimizer="adam")}, ValueError, "has optimizer .adam."),
        ({"t": ModelTable(ModelCore(4, 2), optimizer="adam")}, ValueError, "has optimizer .adam."),
        ({"t": ModelTable(full)}, ValueError, "t has 3 rows and counts 0 ids without"),
        ({"t": ModelTable(counting)}, ValueError, "t has 0 rows and counts 3 ids without"),
    ]
    for given, error, words in cases:
        target = {"w": torch.zeros(2)}
        with pytest.raises(error, match=words):
            checkpoint.load(memory, model=target, embeddings=given)
        assert not target["w"].any()
    assert len(full) == 3
    part = ModelCore(4, 1)
    both = {"t": ModelTable(part), "u": ModelTable(ModelCore(1))}
    checkpoint.load(memory, embeddings=both, strict=False)
    assert part.told() == core.told()
    checkpoint.load(memory, model={"w": torch.zeros(2)})  # tables need not be asked for


def test_rows_are_a_value(memory: Store) -> None:
    core = filled(4, 0, 20, counted=0)
    checkpoint.save(memory, step=0, embeddings={"t": ModelTable(core)})
    rows = checkpoint.open(memory).table("t").rows(np.array(list(core.ids)[:5]))
    assert isinstance(rows, TableRows)
    assert len(rows) == 5
    assert rows.values.shape == (5, 4)
    assert repr(checkpoint.open(memory).table("t")) == "<saved table t, 20 rows of 4>"
