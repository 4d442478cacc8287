"""Tests of saves by several writers: an incomplete or outdated save leaves HEAD unchanged."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.failing import Between
from support.internals import original, plant
from support.sharded_parts import W, fails, force, share_of_all, write
from support.store_servers import EMBEDDED
from support.stored_keys import data_generations
from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import Store, open_store
from windeck.io import temporary_path

Fresh = Callable[[str], str]


def test_three_writers_make_one_checkpoint(store: Store) -> None:
    plan = checkpoint.begin(store, step=10, writers=3, chunk_bytes=16)
    assert plan == checkpoint.Plan(**json.loads(json.dumps(dataclasses.asdict(plan))))
    write(store, plan, (2, 0, 1), place="everywhere")
    assert checkpoint.log(store) == []
    assert checkpoint.merge(store, plan) == plan.generation == 1
    assert force(store) == [(1, 10)]
    with checkpoint.open(store) as found:
        assert found.names() == ["model/w", "model/only0", "model/only1", "model/only2"]
        assert found.tree("extra") == {"seed": 5, "place": "everywhere"}
        assert torch.equal(found.slice("model/w", (slice(2, 6), 3)), W[2:6, 3])
    # Into any other cut.
    targets = [torch.zeros(7, 2), torch.zeros(2, 3), torch.zeros(7, 0)]
    offsets = [(0, 1), (5, 2), (0, 5)]
    for tensor, offset in zip(targets, offsets, strict=True):
        part = Partition(tensor, offset=offset, shape=(7, 5))
        checkpoint.load(store, model={"w": part}, strict=False)
    assert torch.equal(targets[0], W[:, 1:3])
    assert torch.equal(targets[1], W[5:, 2:])
    # One process saves again, as ever.
    assert checkpoint.save(store, step=11, model={"w": W, **share_of_all()}) == 2
    assert force(store) == [(2, 11), (1, 10)]


def test_of_two_merges_of_one_plan_one_is_told() -> None:
    """Of two merges of one plan one raises; the checkpoint is complete in any case."""
    calls, told = ("get", "put_many", "sync", "compare_and_set"), list[str]()

    for left in range(100):
        with open_store("memory://") as store:
            plan = checkpoint.begin(store, step=10, writers=3, chunk_bytes=16)
            write(store, plan)

            def other(store: Store = store, plan: checkpoint.Plan = plan) -> None:
                try:
                    checkpoint.merge(store, plan)
                except RuntimeError as error:
                    told.append(str(error))

            watched: Any = Between(store, calls, left, other)
            before = len(told)
            try:
                checkpoint.merge(watched, plan)
            except RuntimeError as error:
                told.append(str(error))
            assert force(store) == [(1, 10)]
            assert checkpoint.verify(store, deep=True).ok
            if len(watched.made) <= left:
                break
            assert len(told) == before + 1
    assert left > 5
    text = "generation 1 of windeck was committed already, expected a save that was not"
    assert set(told) == {text}


@pytest.mark.parametrize("kind", EMBEDDED)
def test_shards_beside_a_database_that_is_open(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        plan = checkpoint.begin(store, step=1, writers=3)
        write(url, plan, (0, 2))  # by the URL: not opened
        write(store, plan, (1,))
        assert len(store.parts()) == 4  # type: ignore[attr-defined]
        checkpoint.merge(store, plan)
        assert store.parts() == []  # type: ignore[attr-defined]
        assert force(store) == [(1, 1)]
    plan = checkpoint.begin(url, step=2, writers=3)
    write(url, plan)
    assert checkpoint.merge(url, plan) == 2
    with open_store(url) as store:
        assert force(store) == [(2, 2), (1, 1)]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_what_killed_writers_left_goes_with_the_merge(kind: str, fresh: Fresh) -> None:
    """A merge removes leftovers of its own save only; other saves may be running."""
    url = fresh(kind)
    plan = checkpoint.begin(url, step=1, writers=3)
    write(url, plan)
    folder = Path(url.partition("://")[2], "windeck.parts")
    for save, kind in ((plan.save, "t"), (plan.save, ""), (plan.save + 1, "t")):
        part = keys.PartName.of("windeck", plan.generation, save, 1, "01234567", kind or "d")
        left = folder / part.text
        left = Path(temporary_path(left)) if kind else left
        left.mkdir()
    checkpoint.merge(url, plan)
    assert list(folder.iterdir()) == [left]


def test_missing_writers_may_still_save(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    text = "of 3 writers of generation 2 (step 2), {} did not save, or did not finish: expected all"
    fails(store, plan, text.format("0, 1, 2"), ValueError)
    write(store, plan, (1,))
    fails(store, plan, text.format("0, 2"), ValueError)
    write(store, plan, (0, 2))
    assert checkpoint.merge(store, plan) == 2
    assert force(store) == [(2, 2), (1, 1)]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_missing_parts_may_still_come(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    plan = checkpoint.begin(url, step=1, writers=3)
    write(url, plan, (0, 2))
    with open_store(url) as store:
        fails(store, plan, "(step 1), 1 did not save, or did not finish", ValueError)
        write(url, plan, (1,))
        checkpoint.merge(store, plan)
        assert force(store) == [(1, 1)]


def test_a_writer_that_saves_twice(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    with pytest.raises(ValueError, match=r"^writer 1 saved its shard of generation 2 already, or"):
        write(store, plan, (1,))
    assert checkpoint.merge(store, plan) == 2  # the first one counts, its data were not touched
    assert force(store) == [(2, 2), (1, 1)]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_writer_that_leaves_two_parts(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    plan = checkpoint.begin(url, step=2, writers=3)
    write(url, plan, (0, 1, 1, 2))
    text = "writer 1 saved its shard of generation 1 twice, expected each writer once"
    with open_store(url) as store:
        fails(store, plan, text, ValueError)
        again = checkpoint.begin(store, step=3, writers=3)
        write(store, again, (0, 1, 2))
        write(url, again, (1,))
        text = "writer 1 saved its shard of generation 2 twice, expected each writer once"
        fails(store, again, text, ValueError)
        # What cannot be merged any more goes with the next commit and gc.
        last = checkpoint.begin(store, step=4, writers=3)
        write(url, last)
        checkpoint.merge(store, last)
        checkpoint.gc(store, keep=1)
        assert store.parts() == []  # type: ignore[attr-defined]
        assert data_generations(store) == {3}
        assert force(store) == [(3, 4)]


@pytest.mark.parametrize("kind", EMBEDDED)
def test_a_part_that_lost_its_data(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    plan = checkpoint.begin(url, step=2, writers=3)
    write(url, plan)
    with open_store(url) as store:
        gone = next(name for name in store.parts() if name.endswith("-t"))  # type: ignore[attr-defined]
        store.drop_parts([gone])  # type: ignore[attr-defined]
        fails(store, plan, f"the part {gone} is missing, expected it since writer", OSError)


def test_another_save_meanwhile_wins(store: Store) -> None:
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    fails(store, plan, "step 2 was not committed to windeck, generation 2 of step 1 was meanwhile",
          RuntimeError)  # fmt: skip
    assert not list(store.keys(b"windeck/s/"))
    assert force(store) == [(2, 1)]


def test_a_plan_is_carried_out_once(store: Store) -> None:
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    checkpoint.merge(store, plan)
    fails(store, plan, "generation 1 of windeck was committed already, expected a save that was no",
          RuntimeError)  # fmt: skip
    with pytest.raises(ValueError, match=r"^writer 2 saved its shard of generation 1 already, or "):
        write(store, plan, (2,))
    assert force(store) == [(1, 2)]


class Failing:
    """A store without space for the n-th pair of a bulk load."""

    def __init__(self, store: Store, left: int) -> None:
        self._store, self._left = store, left

    def bulk_load(self, items: Any) -> int:
        def watched() -> Iterator[tuple[bytes, bytes]]:
            for pair in items:
                self._left -= 1
                if self._left < 0:
                    raise OSError(28, "no space left for the test")
                yield pair

        return self._store.bulk_load(watched())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_writer_that_failed_may_try_again(store: Store) -> None:
    plan = checkpoint.begin(store, step=2, writers=3, chunk_bytes=16)
    write(store, plan, (0, 2))
    for left in range(3):
        with pytest.raises(OSError, match="no space left for the test"):
            write(Failing(store, left), plan, (1,))
        fails(store, plan, "(step 2), 1 did not save, or did not finish", ValueError)
    write(store, plan, (1,))
    checkpoint.merge(store, plan)
    assert force(store) == [(1, 2)]


def test_a_writer_that_was_interrupted_may_try_again(store: Store) -> None:
    """Also if the space of its keys cannot be removed, the interrupt is what is raised."""
    plan = checkpoint.begin(store, step=2, writers=3, chunk_bytes=16)
    write(store, plan, (0, 2))

    class Interrupted(Failing):
        def bulk_load(self, items: Any) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(Interrupted(store, 0), plan, (1,))
    write(store, plan, (1,))
    checkpoint.merge(store, plan)
    assert force(store) == [(1, 2)]


@pytest.mark.parametrize("left", range(6))
def test_a_merge_that_failed_may_be_called_again(
    left: int, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LevelDB copies parts one by one: a writer's manifest follows its data."""
    url = fresh("leveldb")
    plan = checkpoint.begin(url, step=1, writers=3)
    write(url, plan)
    with open_store(url) as store:
        load, loads = store.bulk_load, iter(range(left))

        def bulk_load(items: Any) -> int:
            if next(loads, None) is None:
                raise OSError(errno.ENOSPC, "no space left for the test")
            return load(items)

        with monkeypatch.context() as patch:
            patch.setattr(store, "bulk_load", bulk_load)
            with pytest.raises(OSError, match="no space left for the test"):
                checkpoint.merge(store, plan)
        checkpoint.merge(store, plan)
        assert force(store) == [(1, 1)]


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("at", ["sync", *range(6)])
def test_a_merge_that_failed_after_the_data_was_ingested(
    kind: str, at: str | int, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts are gone then, so what was ingested of them stays."""
    url = fresh(kind)
    plan = checkpoint.begin(url, step=1, writers=3)
    write(url, plan)
    with open_store(url) as store:
        remove, removals = (
            original("embedded.remove"),
            iter(range(at if isinstance(at, int) else 99)),
        )

        def stopping(path: Any) -> None:
            if next(removals, None) is None:
                raise KeyboardInterrupt
            remove(path)

        def full() -> None:
            raise OSError(errno.ENOSPC, "no space left for the test")

        with monkeypatch.context() as patch:
            plant(patch, "embedded.remove", stopping)
            if at == "sync":
                patch.setattr(store, "sync", full)
            with pytest.raises((KeyboardInterrupt, OSError)):
                checkpoint.merge(store, plan)
        checkpoint.merge(store, plan)
        assert force(store) == [(1, 1)]
