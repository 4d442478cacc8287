"""Tests of saves over scans that end early, and over lost answers of compare-and-set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable
from support.failing import load, save
from support.store_servers import KINDS
from windeck import checkpoint
from windeck.checkpoint.read import parse
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]

#: How many pairs a scan gives: of some ends lie between tensors, of others amid one.
ENDS = (0, 1, 2, 3, 5, 8)


class Ending:
    """A store whose scans end early without an error."""

    def __init__(self, store: Any, pairs: int) -> None:
        self.store, self.pairs, self.ended = store, pairs, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def _some(self, found: Iterator[Any]) -> Iterator[Any]:
        yield from islice(found, self.pairs)
        self.ended += next(found, None) is not None

    def scan(self, *args: Any, **options: Any) -> Iterator[Any]:
        return self._some(self.store.scan(*args, **options))

    def keys(self, *args: Any, **options: Any) -> Iterator[Any]:
        return self._some(self.store.keys(*args, **options))

    @contextmanager
    def snapshot(self) -> Iterator[Any]:
        with self.store.snapshot() as view:
            yield Ending(view, self.pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_no_save_or_load_relies_on_a_scan(kind: str, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        step = 0
        for pairs in ENDS:
            ending: Any = Ending(store, pairs)
            for incremental in (True, False):
                step += 1
                save(ending, step, incremental=incremental)
                assert load(ending) == load(store) == step
            step += 1
            merge_of_two(ending, step)
            target = {"w": torch.zeros(6, 4)}
            assert checkpoint.load(ending, model=target).step == step
            assert target["w"].sum() == 12
        assert [commit.step for commit in checkpoint.log(ending)] == list(range(step, 0, -1))
        assert checkpoint.verify(store, deep=True).ok


def merge_of_two(store: Any, step: int) -> None:
    plan = checkpoint.begin(store, step=step, writers=2)
    for writer in range(2):
        rows = torch.full((3, 4), float(writer))
        part = checkpoint.Partition(rows, offset=(3 * writer, 0), shape=(6, 4))
        checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
    checkpoint.merge(store, plan)


@pytest.mark.parametrize("kind", KINDS)
def test_what_looks_at_keys_finds_them_missing_or_leaves_them(kind: str, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        for step in range(4):
            save(store, step)
        for pairs in ENDS:
            ending: Any = Ending(store, pairs)
            report = checkpoint.verify(ending, deep=True)
            assert report.ok == (not ending.ended)
            assert all(damage.problem.endswith(("a chunk", "a block", "an index", "index"))
                       for damage in report.damages)  # fmt: skip
            found = [(one.name, one.count) for one in checkpoint.search(ending, parse("value > 2"))]
            assert found == [("model/w", 3000), ("model/b", 497)]
            assert not checkpoint.diff(ending, 2, 2, other=store)
            with open_store("memory://") as other:
                checkpoint.copy(ending, other)
                assert load(other) == 3
                assert checkpoint.verify(other, deep=True).ok
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # digests are missing
                    save(other, 9)
                assert load(other) == 9
        assert ending.ended  # the longest was too short, too


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pairs", ENDS)
def test_gc_removes_nothing_that_is_needed(kind: str, pairs: int, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        for step in range(4):
            save(store, step)
        checkpoint.gc(Ending(store, pairs), keep=2)  # type: ignore[arg-type]
        assert [commit.step for commit in checkpoint.log(store)] == [3, 2]
        assert checkpoint.verify(store, deep=True).ok
        assert load(store) == 3
        checkpoint.gc(store, keep=2)  # the next one takes what was not seen
        report = checkpoint.verify(store, deep=True)
        assert (report.ok, report.unreferenced) == (True, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_for_serving_are_counted(kind: str, fresh: Fresh) -> None:
    core = ModelCore(2, 1)
    core.fill(range(20), np.random.default_rng(1))
    few = ModelCore(2, 1)
    few.fill(range(3), np.random.default_rng(1))
    with open_store(fresh(kind)) as store:
        rows = checkpoint.export(store, ModelTable(core), "t")
        for pairs in ENDS:
            words = rf"windeck/r/t/ has {pairs} rows, expected {rows} as exported"
            with pytest.raises(CorruptStoreError, match=words):
                checkpoint.import_rows(Ending(store, pairs), ModelTable(ModelCore(2, 1)), "t")  # type: ignore[arg-type]
        checkpoint.export(Ending(store, 5), ModelTable(few), "t")  # type: ignore[arg-type]
        with pytest.raises(CorruptStoreError, match=r"rows, expected \d as exported"):
            checkpoint.import_rows(store, ModelTable(ModelCore(2, 1)), "t")
        fewer = checkpoint.export(store, ModelTable(few), "t")
        assert checkpoint.import_rows(store, ModelTable(ModelCore(2, 1)), "t") == fewer < rows


class Lost:
    """A store that loses the answer to its n-th compare-and-set, executed or not."""

    def __init__(self, store: Any, left: int, happened: bool) -> None:
        self.store, self.left, self.happened = store, left, happened
        self.key = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def compare_and_set(self, key: bytes, old: bytes | None, new: bytes) -> bool:
        self.left -= 1
        if self.left == -1:
            self.key = key
            if self.happened:
                assert self.store.compare_and_set(key, old, new)
            raise ConnectionError("the answer was lost")
        found: bool = self.store.compare_and_set(key, old, new)
        return found


def lose(act: Callable[[Any], object], store: Any, happened: bool, key: str) -> None:
    """Lose the answer for a key; earlier answers arrive."""
    for left in range(10):
        lost = Lost(store, left, happened)
        with pytest.raises(ConnectionError, match="the answer was lost"):
            act(lost)
        if lost.key == key.encode():
            return
    raise AssertionError(f"{key} was never set")


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_save_is_in_force_or_is_not(
    kind: str, incremental: bool, happened: bool, fresh: Fresh
) -> None:
    with open_store(fresh(kind)) as store:
        save(store, 1)
        for key, step in (("NEXT", 2), ("HEAD", 3)):
            lose(lambda lost, step=step: save(lost, step, incremental=incremental),  # type: ignore[misc]
                 store, happened, f"windeck/{key}")  # fmt: skip
            in_force = 3 if (key, happened) == ("HEAD", True) else 1
            assert load(store) == in_force
            assert checkpoint.verify(store, deep=True).ok
        save(store, 4, incremental=incremental)
        assert load(store) == 4
        assert [commit.step for commit in checkpoint.log(store)] == [4, *[3] * happened, 1]
        checkpoint.gc(store, keep=1)
        report = checkpoint.verify(store, deep=True)
        assert (report.ok, report.unreferenced, load(store)) == (True, 0, 4)


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_is_in_force_or_may_be_tried_again(kind: str, happened: bool, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        save(store, 1)
        plan = checkpoint.begin(store, step=2, writers=1)
        part = checkpoint.Partition(torch.ones(3), offset=(0,), shape=(3,))
        checkpoint.save_shard(store, plan, writer=0, model={"w": part})
        lose(lambda lost: checkpoint.merge(lost, plan), store, happened, "windeck/HEAD")
        assert [commit.step for commit in checkpoint.log(store)] == [*[2] * happened, 1]
        if happened:
            with pytest.raises(RuntimeError, match=r"generation \d of windeck was committed alre"):
                checkpoint.merge(store, plan)
        else:
            checkpoint.merge(store, plan)
        target = {"w": torch.zeros(3)}
        assert checkpoint.load(store, model=target).step == 2
        assert target["w"].tolist() == [1, 1, 1]
        assert checkpoint.verify(store, deep=True).ok


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_whose_beginning_was_not_heard(kind: str, happened: bool, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        save(store, 1)
        plan = checkpoint.begin(store, step=2, writers=1)
        key = f"windeck/s/{plan.generation:016x}/{0:08x}"
        state = {"w": torch.ones(3)}
        lose(lambda lost: checkpoint.save_shard(lost, plan, writer=0, model=state),
             store, happened, key)  # fmt: skip
        with pytest.raises(ValueError, match="0 did not save, or did not finish: expected all"):
            checkpoint.merge(store, plan)
        if happened:  # the writer cannot tell which save set it
            with pytest.raises(ValueError, match=r"writer 0 saved .* already, or began to"):
                checkpoint.save_shard(store, plan, writer=0, model=state)
            plan = checkpoint.begin(store, step=2, writers=1)
        checkpoint.save_shard(store, plan, writer=0, model=state)
        checkpoint.merge(store, plan)
        assert checkpoint.load(store, model=state).step == 2


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gc_forgets_or_keeps(kind: str, happened: bool, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        for step in range(4):
            save(store, step)
        lose(lambda lost: checkpoint.gc(lost, keep=2), store, happened, "windeck/HEAD")
        kept = [3, 2] if happened else [3, 2, 1, 0]
        assert [commit.step for commit in checkpoint.log(store)] == kept
        assert checkpoint.verify(store, deep=True).ok
        checkpoint.gc(store, keep=2)
        report = checkpoint.verify(store, deep=True)
        assert (report.ok, report.unreferenced, load(store)) == (True, 0, 3)


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_a_checkpoint_or_is_not(kind: str, happened: bool, fresh: Fresh) -> None:
    with open_store("memory://") as source, open_store(fresh(kind)) as store:
        for step in range(2):
            save(source, step)

        def act(place: Store) -> None:
            checkpoint.copy(source, place)

        checkpoint.begin(store, step=0, writers=1)  # writes an empty HEAD
        lose(act, store, happened, "windeck/HEAD")
        if happened:
            assert load(store) == 1
            with pytest.raises(FileExistsError, match="has a checkpoint in windeck already"):
                checkpoint.copy(source, store)
        else:
            with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
                load(store)
            checkpoint.copy(source, store)
        assert load(store) == 1
        assert checkpoint.verify(store, deep=True).ok
