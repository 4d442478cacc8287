"""Tests of tables saved as deltas: after any history, each generation equals the model's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest

from checkpoint.tables.test_tables import check, filled
from models.table_model import EXTREMES, ModelCore, ModelTable, bucket
from support.internals import plant
from support.store_servers import KINDS
from support.stored_keys import data_keys
from windeck import checkpoint
from windeck.checkpoint.format import Kind, Label
from windeck.checkpoint.stores import Store, open_store
from windeck.checkpoint.tables import TablesWriter

Fresh = Callable[[str], str]


def step(core: ModelCore, rng: np.random.Generator) -> None:
    """Change some rows; add, remove and restore others."""
    known, gone = list(core.ids), list(core.gone)
    core.remove(rng.choice(known, 5, replace=False))
    some = [int(key) for key in rng.choice(known, 20)]
    core.fill([*some, *gone[:2], *rng.integers(-(2**63), 2**63 - 1, 7).tolist()], rng, counted=0.2)
    core.remove([some[0], EXTREMES[int(rng.integers(len(EXTREMES)))]])


def save(store: Store, core: ModelCore, **options: Any) -> int:
    options = {"step": core.clock, "incremental": True, **options}
    number: int = checkpoint.save(store, embeddings={"t": ModelTable(core)}, **options)
    return number


def since(store: Store) -> list[int]:
    """Return the clocks after which the links of the current table begin, newest first."""
    return [link.since for link in checkpoint.open(store).tables["t"].links]


@pytest.mark.parametrize("kind", KINDS)
def test_every_generation_is_what_the_model_was(kind: str, fresh: Fresh) -> None:
    rng, core = np.random.default_rng(1), filled(3, 1, 300)
    with open_store(fresh(kind)) as store:
        history = {}
        for turn in range(8):
            number = save(store, core, longest_chain=4)
            history[number] = copy.deepcopy(core)
            assert since(store) == [*range(core.clock - 1, core.clock - 1 - turn % 5, -1), -1]
            if turn == 4:
                blocks = data_keys(store, "e")
                assert checkpoint.gc(store, keep=2) == [1, 2, 3]  # but for what is needed of them
                assert data_keys(store, "e") == blocks
                history = {n: was for n, was in history.items() if n > number - 2}
            if turn == 6:
                # The chain began anew with turn 5: what only the older ones needed goes.
                assert checkpoint.gc(store, keep=2) == [1, 2, 3, 4, 5]
                assert not [key for key in data_keys(store, "e") if key in blocks]
                history = {n: was for n, was in history.items() if n > number - 2}
            for generation, was in history.items():
                with checkpoint.open(store, generation=generation) as found:
                    check(found.table("t"), was)
                new = ModelCore(3, 1)
                checkpoint.load(store, generation=generation, embeddings={"t": ModelTable(new)})
                assert (new.told(), new.clock) == (was.told(), was.clock)
            step(core, rng)


def test_a_loaded_table_goes_on_with_deltas(memory: Store) -> None:
    rng, core = np.random.default_rng(2), filled(3, 1, 300)
    save(memory, core)
    for _ in range(3):
        new = ModelCore(3, 1)
        checkpoint.load(memory, embeddings={"t": ModelTable(new)})
        step(new, rng)
        save(memory, new)
        check(checkpoint.open(memory).table("t"), new)
        core = new
    assert since(memory) == [3, 2, 1, -1]


@pytest.mark.parametrize("read_bytes", [1 << 20, 5000])
def test_the_removed_of_every_bucket_stay_away(
    read_bytes: int, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ranges of buckets are read at once; of each the first and last bucket too."""
    plant(monkeypatch, "writing.READ_BYTES", read_bytes)
    rng, core, of_bucket = np.random.default_rng(5), ModelCore(2), dict[int, list[int]]()
    for key in range(20_000):
        some = of_bucket.setdefault(bucket(key), [])
        some += [key] * (len(some) < 4)
    assert {len(some) for some in of_bucket.values()} == {4}
    assert len(of_bucket) == 1024
    core.fill(chain.from_iterable(of_bucket.values()), rng)
    save(memory, core)
    core.remove([some[0] for some in of_bucket.values()])
    core.fill([of_bucket[number][1] for number in range(0, 1024, 3)], rng)
    save(memory, core)
    assert since(memory) == [1, -1]
    check(checkpoint.open(memory).table("t"), core)
    new = ModelCore(2)
    checkpoint.load(memory, embeddings={"t": ModelTable(new)})
    assert new.told() == core.told()


def test_what_changes_amid_a_save_is_in_the_next(memory: Store) -> None:
    rng, core = np.random.default_rng(3), filled(3, 1, 300)

    class Trained:
        """A store that takes a training step before each write of a save."""

        def bulk_load(self, items: Any) -> int:
            step(core, rng)
            return memory.bulk_load(items)

        def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
            step(core, rng)
            return memory.compare_and_set(key, expected, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

    moments = [-1]
    for _ in range(4):
        watched = Trained()
        plan = checkpoint.begin(watched, step=core.clock, writers=1, incremental=True)
        was = copy.deepcopy(core)
        checkpoint.save_shard(watched, plan, writer=0, embeddings={"t": ModelTable(core)})
        checkpoint.merge(watched, plan)
        assert core.clock > was.clock + 1
        assert since(memory) == moments[::-1]
        moments.append(was.clock)
        check(checkpoint.open(memory).table("t"), was)


def test_what_a_table_became_after_its_snapshot_is_no_base(memory: Store) -> None:
    rng, core = np.random.default_rng(4), filled(3, 1, 300)
    save(memory, core)
    core.remove(list(core.ids)[:10])
    core.fill([7], rng)
    with TablesWriter({"t": ModelTable(core)}) as tables:
        core.clear()
        checkpoint.load(memory, embeddings={"t": ModelTable(core)})
        tables.use_base(checkpoint.open(memory).save)
        assert list(tables.blocks("windeck", Label(Kind.BLOCK, 9, 9)))
        assert tables.manifest_entries(0)[0]["shards"][0]["since"] == -1
    with TablesWriter({"t": ModelTable(core)}) as tables:  # as it is now, it is equal to that
        tables.use_base(checkpoint.open(memory).save)
        assert list(tables.blocks("windeck", Label(Kind.BLOCK, 9, 9))) == []
        assert tables.manifest_entries(0)[0]["shards"][0]["since"] == core.clock


def test_a_delta_is_small_and_scattered_rows_are_packed(memory: Store) -> None:
    core = filled(32, 1, 10_000, counted=0)
    save(memory, core)
    core.fill(list(core.ids)[::100], np.random.default_rng(0))
    save(memory, core)
    new, old = checkpoint.open(memory).tables["t"].links
    assert (new.rows, new.since) == (100, 1)
    assert old.bytes >= 20 * new.bytes
    assert old.bytes > 8 << 18  # many blocks, which are merged with few
    check(checkpoint.open(memory).table("t"), core)
    # One value is read for an id and link.
    asked: list[list[bytes]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

        def get_many(self, keys: Any) -> Any:
            asked.append(list(keys))
            return memory.get_many(keys)

    saved = checkpoint.open(Watched()).table("t")
    changed, unchanged, *_ = core.ids
    saved.rows([changed])
    assert [len(keys) for keys in asked] == [1]
    saved.rows([unchanged])
    assert sum(len(keys) for keys in asked) <= 3


@pytest.mark.parametrize("other", ["fresh", "older", "name", "cleared", "insert", "dead", "most"])
def test_no_delta_to_what_the_table_was_not(other: str, memory: Store) -> None:
    """A delta is written only relative to a save that the table was once equal to."""
    core, rng = filled(3, 0, 200), np.random.default_rng(0)
    first = save(memory, core)
    core.fill([5], rng)
    save(memory, core)
    if other == "fresh":
        core = filled(3, 0, 100, seed=9)
    elif other == "older":
        core = ModelCore(3)
        checkpoint.load(memory, generation=first, embeddings={"t": ModelTable(core)})
    elif other == "name":
        checkpoint.save(memory, step=3, embeddings={"u": ModelTable(core)}, incremental=True)
        assert [link.since for link in checkpoint.open(memory).tables["u"].links] == [-1]
    elif other == "cleared":
        core.clear()
        for _ in range(5):  # its clock is beyond that of the save
            core.fill([*range(100, 200)], rng)
    elif other == "insert":
        new = filled(3, 0, 20, seed=4).snapshot().read(0, 1024)
        new["keys"] = np.arange(300, 300 + len(new["keys"]))
        core.insert(**new)
    elif other == "dead":
        core.remove([5])
        core.forget_dead(10**6)
    else:
        core.fill(list(core.ids)[:150], rng)
    core.fill([7, 8], rng)
    save(memory, core)
    assert since(memory) == [-1]
    check(checkpoint.open(memory).table("t"), core)
    core.fill([9], rng)
    save(memory, core)
    assert since(memory) == [core.clock - 1, -1]
    check(checkpoint.open(memory).table("t"), core)


def test_two_stores_in_turn(memory: Store) -> None:
    core, rng = filled(3, 1, 200), np.random.default_rng(0)
    with open_store("memory://") as other:
        for turn in range(5):
            place = (memory, other)[turn % 2]
            save(place, core)
            check(checkpoint.open(place).table("t"), core)
            step(core, rng)
        assert since(memory) == [3, 1, -1]
        assert since(other) == [2, -1]


def test_what_is_dead_is_remembered_for_eight_saves(memory: Store) -> None:
    core, rng = filled(3, 0, 300), np.random.default_rng(0)
    with open_store("memory://") as rare:
        for turn in range(20):
            if turn % 7 == 0:
                save(rare, core)
                assert len(since(rare)) == turn // 7 + 1
                check(checkpoint.open(rare).table("t"), core)
            save(memory, core)
            step(core, rng)
            assert len(core.gone) <= 9 * 8
        save(memory, core)
        core.fill([1], rng)
        for _ in range(9):
            save(memory, core)
        save(rare, core)
        assert since(rare) == [-1]
        check(checkpoint.open(rare).table("t"), core)


def test_a_save_that_failed_is_no_base(memory: Store) -> None:
    core, rng = filled(3, 0, 200), np.random.default_rng(0)
    save(memory, core)
    core.fill([5], rng)
    core.remove([EXTREMES[0]])

    class Broken:
        def __getattr__(self, name: str) -> Any:
            if name == "bulk_load":
                raise OSError(28, "disk full")
            return getattr(memory, name)

    with pytest.raises(OSError, match="disk full"):
        save(Broken(), core)
    core.fill([6], rng)
    save(memory, core)
    assert since(memory) == [1, -1]
    check(checkpoint.open(memory).table("t"), core)


@pytest.mark.parametrize("background", [False, True])
def test_a_removal_that_fails_leaves_a_base(background: bool, memory: Store) -> None:
    """The save is committed before old generations are removed, so the next one is a delta."""

    class Interrupted(BaseException):
        pass

    class Interrupting:
        """A store in which no data can be removed."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("delete_"):
                raise Interrupted
            return getattr(memory, name)

    rng, core = np.random.default_rng(1), filled(3, 1, 300)
    for _ in range(2):
        save(memory, core, incremental=False)
        step(core, rng)
    options: dict[str, Any] = {"step": core.clock, "keep": 1, "background": background}

    def save_and_wait() -> None:
        store = cast(Store, Interrupting())
        saving: Any = checkpoint.save(store, embeddings={"t": ModelTable(core)}, **options)
        saving.wait()

    with pytest.raises(Interrupted):
        save_and_wait()
    assert checkpoint.log(memory)[0].step == core.clock
    clock = core.clock
    step(core, rng)
    save(memory, core)
    assert since(memory) == [clock, -1]


def test_a_table_that_did_not_change(memory: Store) -> None:
    core = filled(3, 0, 200)
    for _ in range(3):
        save(memory, core)
        check(checkpoint.open(memory).table("t"), core)
    assert since(memory) == [1, 1, -1]
    assert list(memory.keys(b"~windeck~%016x/" % 3)) == []


def test_full_and_changed_shards_side_by_side(memory: Store) -> None:
    """One writer has what the base held, the other begins anew: of each bucket the chain ends
    where it should."""
    rng = np.random.default_rng(4)
    halves = [filled(3, 1, 400, first_bucket=a, end_bucket=b) for a, b in ((0, 400), (400, 1024))]

    def save_all(parts: list[ModelCore], incremental: bool) -> None:
        plan = checkpoint.begin(memory, step=1, writers=len(parts), incremental=incremental)
        for writer, part in enumerate(parts):
            tables = {"t": ModelTable(part)}
            checkpoint.save_shard(memory, plan, writer=writer, embeddings=tables)
        checkpoint.merge(memory, plan)

    def expected(parts: list[ModelCore]) -> dict[int, Any]:
        return {key: value for part in parts for key, value in part.told().items()}

    def found() -> dict[int, Any]:
        new = ModelCore(3, 1)
        checkpoint.load(memory, embeddings={"t": ModelTable(new)})
        return new.told()

    save_all(halves, False)
    assert found() == expected(halves)
    halves[0].fill(list(halves[0].ids)[:9], rng)
    halves[1] = filled(3, 1, 300, seed=8, first_bucket=400, end_bucket=1024)
    save_all(halves, True)
    entry = checkpoint.open(memory).table_entries["t"]
    assert [[shard.since for shard in link.shards] for link in entry.links] == [[1, -1], [-1, -1]]
    assert found() == expected(halves)
    halves[0] = filled(3, 1, 20, seed=3, first_bucket=0, end_bucket=400)
    halves[1].remove(list(halves[1].ids)[:20])
    save_all(halves, True)
    entry = checkpoint.open(memory).table_entries["t"]
    assert [[shard.since for shard in link.shards] for link in entry.links] == [[-1, 1], [1, -1]]
    assert found() == expected(halves)
    for rank in range(3):
        own = rank * 1024 // 3, (rank + 1) * 1024 // 3
        part = ModelCore(3, 1, first_bucket=own[0], end_bucket=own[1])
        checkpoint.load(memory, embeddings={"t": ModelTable(part)})
        whole = expected(halves)
        assert part.told() == {k: v for k, v in whole.items() if own[0] <= bucket(k) < own[1]}
