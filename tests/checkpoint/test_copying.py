"""Tests of copies: they equal the source in every store, or do not appear at all."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint.tables.test_tables import check
from checkpoint.test_verifying import fill
from models.table_model import ModelCore
from support.failing import Between, error_of
from support.store_servers import DURABLE, EMBEDDED, KINDS
from support.stored_keys import parsed
from windeck import checkpoint
from windeck.checkpoint import copy, diff, verify
from windeck.checkpoint.format import encode_head
from windeck.checkpoint.stores import CorruptStoreError, MappingStore, Store, open_store

Fresh = Callable[[str], str]


@pytest.mark.parametrize("kind", KINDS)
def test_from_memory_into_any_store_and_back(kind: str, fresh: Fresh, memory: Store) -> None:
    numbers = fill(memory)
    seen: list[int] = []
    url = fresh(kind)
    with open_store(url) as target:
        done = copy(memory, target, progress=seen.append)
        assert done.generations == numbers[::-1]
        assert (done.values, done.bytes) == (len(seen), sum(seen))
        report = verify(target, deep=True)
        assert (report.ok, report.generations, report.unreferenced) == (True, numbers[::-1], 0)
        there = {k: v for k, v in target.scan(b"") if not k.startswith(b"windeck/s/")}
        here = {k: v for k, v in memory.scan(b"") if not k.startswith(b"windeck/s/")}
        assert there == here
        with open_store("memory://") as back:
            copy(target, back)
            assert not diff(memory, None, None, other=back)
            # The next incremental save goes on from the copy.
            number = checkpoint.save(back, step=9, model={"w": torch.arange(200.0)},
                                     chunk_bytes=80, incremental=True)  # fmt: skip
            assert number == numbers[-1] + 1
            assert checkpoint.log(back)[0].bases != ()


def test_chosen_generations_bring_what_they_need(memory: Store) -> None:
    numbers = fill(memory, 3)
    with open_store("memory://") as target:
        assert copy(memory, target, generations=[numbers[2]]).generations == [numbers[2]]
        report = verify(target, deep=True)
        assert (report.ok, report.unreferenced) == (True, 0)
        assert len(list(target.keys(b"windeck/m/"))) == 1
        with checkpoint.open(memory) as a, checkpoint.open(target) as b:
            assert torch.equal(a.tensor("model/w"), b.tensor("model/w"))
            core, rng = ModelCore(3, 1), np.random.default_rng(1)
            for _ in range(3):
                core.fill(rng.integers(0, 300, 100).tolist(), rng)
            check(b.table("user"), core)
        assert checkpoint.gc(target, keep=1) in ([], [numbers[0]], [numbers[1]])
        assert verify(target, deep=True).ok


def test_a_target_that_has_one_is_refused_unless_told(memory: Store) -> None:
    fill(memory, 1)
    with open_store("memory://") as target:
        checkpoint.save(target, step=77, model={"other": torch.ones(3)})
        was = dict(target.scan(b""))
        words = "memory:// has a checkpoint in windeck already, expected none; .* replace=True"
        with pytest.raises(FileExistsError, match=words):
            copy(memory, target)
        assert dict(target.scan(b"")) == was
        copy(memory, target, target_namespace="beside/it")
        assert checkpoint.log(target)[0].step == 77
        assert verify(target, deep=True, namespace="beside/it").ok
        copy(memory, target, replace=True)
        assert [commit.step for commit in checkpoint.log(target)] == [1]
        assert verify(target, deep=True).unreferenced == 0
        assert verify(target, deep=True, namespace="beside/it").ok
        with pytest.raises(ValueError, match="is the checkpoint to be copied, or a"):
            copy(memory, target, replace=True)
        assert verify(target, deep=True).ok


@pytest.mark.parametrize("damage", ["removed", "changed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_target_is_not_written_to(
    damage: str, kind: str, fresh: Fresh, memory: Store
) -> None:
    fill(memory, 1)
    with open_store(fresh(kind)) as target:
        fill(target, 2)
        if damage == "removed":
            target.delete_many([b"windeck/HEAD"])
        else:
            target.put_many([(b"windeck/HEAD", b"wrong")])
        was = dict(target.scan(b""))
        with pytest.raises(
            CorruptStoreError, match=r"windeck/HEAD .*; pass replace=True to remove"
        ):
            copy(memory, target)
        assert dict(target.scan(b"")) == was
        copy(memory, target, replace=True)
        assert [commit.step for commit in checkpoint.log(target)] == [1]
        report = verify(target, deep=True)
        assert (report.ok, report.unreferenced) == (True, 0)


def test_a_place_by_two_names_is_not_removed(fresh: Fresh) -> None:
    url = fresh("redis")
    with open_store(url) as store:
        fill(store, 1)
        was = dict(store.scan(b""))
        with pytest.raises(ValueError, match="is the checkpoint to be copied, or a"):
            copy(url.replace("127.0.0.1", "localhost"), url, replace=True)
        assert dict(store.scan(b"")) == was


def test_every_damaged_value_stops_it_and_leaves_no_head(memory: Store) -> None:
    fill(memory, 2)
    for key, value in list(memory.scan(b"")):
        if key.endswith(b"/NEXT") or parsed(key)[0] == "s":
            continue
        for damaged in (value[:-1] + bytes([value[-1] ^ 1]), value[:-1], None):
            if damaged is None and parsed(key)[0] == "d":
                continue  # no digests are no damage: the next save writes all
            with open_store("memory://") as target:
                if damaged is None:
                    memory.delete_many([key])
                else:
                    memory.put_many([(key, damaged)])
                with pytest.raises((CorruptStoreError, FileNotFoundError)) as caught:
                    copy(memory, target)
                assert key.decode() in str(caught.value)
                assert target.get(b"windeck/HEAD") is None
        memory.put_many([(key, value)])
    with open_store("memory://") as target:
        assert copy(memory, target).values > 0


class _Dying(MappingStore):
    """A store that fails after some writes."""

    writes = 10**9

    def put_many(self, items: Any) -> None:
        type(self).writes -= 1
        if self.writes < 0:
            raise ConnectionError("the connection broke")
        super().put_many(items)


def test_a_copy_that_broke_off_can_be_made_again(memory: Store) -> None:
    fill(memory, 2)
    data: dict[bytes, bytes] = {}
    tries = 0
    while True:
        _Dying.writes = tries
        try:
            dying: Any = _Dying(data, url="test://")
            copy(memory, dying)
            break
        except ConnectionError:
            tries += 1
            with MappingStore(data) as target:
                assert checkpoint.log(target) == []
    assert tries >= 3
    with MappingStore(data) as target:
        assert verify(target, deep=True).ok
        assert not diff(memory, None, None, other=target)


def test_what_is_replaced_is_a_checkpoint_until_the_copy_is_one(memory: Store) -> None:
    """Whichever call fails, the generation that HEAD names is complete."""
    fill(memory, 2)
    calls = ("put_many", "bulk_load", "delete_many", "delete_range", "compare_and_set", "sync")

    def broken() -> None:
        raise ConnectionError("gone for the test")

    seen = set()
    for left in range(100):
        with open_store("memory://") as target:
            checkpoint.save(target, step=77, model={"other": torch.ones(3)})
            watched = Between(target, calls, left, broken)
            if error_of(lambda: copy(memory, watched, replace=True)) is None:  # noqa: B023
                break
            steps = [commit.step for commit in checkpoint.log(target)]
            assert verify(target, deep=True).ok
            seen.add(tuple(steps))
    assert seen == {(77,), (2, 1)}  # then the former data are to be removed


@pytest.mark.parametrize("kind", KINDS)
def test_namespaces_below_the_one_replaced_stay(kind: str, fresh: Fresh, memory: Store) -> None:
    """Their names may begin as the keys of its values do."""
    fill(memory, 1)
    others = ["exp/t", "exp/m", "exp/e/x", "exp2"]
    with open_store(fresh(kind)) as target:
        for name in ("exp", *others):
            checkpoint.save(target, step=5, model={"w": torch.ones(3)}, namespace=name)
        copy(memory, target, target_namespace="exp", replace=True)
        for name in others:
            assert checkpoint.log(target, namespace=name)[0].step == 5
            assert verify(target, deep=True, namespace=name).ok
        report = verify(target, deep=True, namespace="exp")
        assert report.ok
        assert report.unreferenced_keys == []
        assert checkpoint.log(target, namespace="exp")[0].step == checkpoint.log(memory)[0].step


@pytest.mark.parametrize("replace", [False, True])
def test_a_checkpoint_that_was_committed_after_the_check_stays(
    replace: bool, memory: Store
) -> None:
    fill(memory, 1)
    with open_store("memory://") as target:
        target.put_many([(b"windeck/HEAD", encode_head([]))])

        class Meanwhile:
            """Another process commits when the copy has looked at HEAD."""

            def get(self, key: bytes) -> bytes | None:
                found = target.get(key)
                if key == b"windeck/HEAD" and not checkpoint.log(target):
                    checkpoint.save(target, step=77, model={"w": torch.ones(3)})
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(target, name)

        with pytest.raises(RuntimeError, match="a checkpoint was committed to windeck in memory:"):
            copy(memory, Meanwhile(), replace=replace)
        assert [commit.step for commit in checkpoint.log(target)] == [77]


def test_memory_stays_bounded(fresh: Fresh) -> None:
    a, b = fresh("rocksdb"), fresh("leveldb")
    checkpoint.save(a, step=1, model={"w": torch.zeros(10 << 20), "v": torch.ones(10_000)})
    copy(a, fresh("rocksdb"))  # what is imported and kept once
    tracemalloc.start()
    try:
        copy(a, b)
        assert verify(b, deep=True).ok
        assert not diff(a, None, None, other=b)
        # Of 40 MiB: the chunks asked for at once, of both sides, and what a store gathers.
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_another_writer_at_the_target_wins(memory: Store) -> None:
    fill(memory, 1)
    with open_store("memory://") as target:

        def meanwhile(_: int) -> None:
            if target.get(b"windeck/HEAD") is None:
                target.put_many([(b"windeck/HEAD", b"somebody else's")])

        with pytest.raises(
            RuntimeError, match="a checkpoint was committed to windeck in memory://"
        ):
            copy(memory, target, progress=meanwhile)
        assert target.get(b"windeck/HEAD") == b"somebody else's"


@pytest.mark.parametrize("kind", [*DURABLE, "memory"])
def test_within_a_store_by_its_url(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        fill(store, 2)
    copy(url, url, target_namespace="again")
    assert verify(url, deep=True, namespace="again").ok
    with pytest.raises(ValueError, match="source and target are both windeck in one store"):
        copy(url, url)
    with pytest.raises(FileExistsError, match="has a checkpoint in again already"):
        copy(url, url, target_namespace="again")


def test_wrong_arguments_are_one_sentence(memory: Store, fresh: Fresh) -> None:
    with open_store("memory://") as target:
        with pytest.raises(FileNotFoundError, match=r"no checkpoint at memory:.*: expected"):
            copy(memory, target)
        fill(memory, 1)
        with pytest.raises(
            FileNotFoundError, match="there is no generation 5 in windeck, expected"
        ):
            copy(memory, target, generations=[5])
        with pytest.raises(FileNotFoundError, match="there is no generation asked for in windeck"):
            copy(memory, target, generations=[])
        with pytest.raises(ValueError, match="source and target are both windeck in one store"):
            copy(memory, memory)
        with pytest.raises(ValueError, match="expected a namespace of 1 to 200 letters"):
            copy(memory, target, target_namespace="no spaces")
        assert list(target.keys()) == []
    for kind in EMBEDDED:
        url = fresh(kind)
        with pytest.raises(FileNotFoundError, match="there is no generation 5 in windeck"):
            copy(memory, url, generations=[5])
        with pytest.raises(FileNotFoundError, match="there is no database"):
            open_store(f"{url}?create=0")  # no target is made for nothing
    copy(memory, memory, target_namespace="again")
    assert not diff(memory, None, None, other_namespace="again")
