"""Tests of gc: generations that others are based on, namespaces, damage, and missing databases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from models.incremental_model import CHUNK
from support.store_servers import EMBEDDED, KINDS
from windeck import checkpoint
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]


def test_gc_beside_an_incremental_save() -> None:
    """gc keeps the chunks that a concurrent incremental save refers to."""
    state = {"w": torch.zeros(40)}
    with open_store("memory://") as store:
        for step in range(4):
            state["w"][4 * step] = 1
            checkpoint.save(store, step=step, model=state, chunk_bytes=CHUNK, incremental=True)

        class Cleared:
            def bulk_load(self, items: Any) -> int:
                checkpoint.gc(store, keep=1)
                return store.bulk_load(items)

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        state["w"][39] = 5
        number = checkpoint.save(
            Cleared(), step=9, model=state, chunk_bytes=CHUNK, incremental=True
        )
        target = {"w": torch.ones(40)}
        assert checkpoint.load(store, model=target).generation == number == 5
        assert torch.equal(target["w"], state["w"])
        assert checkpoint.log(store)[0].bases == (1, 2, 3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_gc_leaves_other_namespaces(kind: str, fresh: Fresh) -> None:
    """Namespaces whose names begin like the library's keys are kept too."""
    with open_store(fresh(kind)) as store:
        others = ["run/t", "run/m", "run2", "run/d/x", "ru"]
        for step in range(3):
            for name in ("run", *others):
                checkpoint.save(store, step=step, model={"w": torch.ones(3)}, namespace=name)
        before = {key for key in list(store.keys()) if keys.parse_numbers("run", key) is None}
        assert checkpoint.gc(store, keep=1, namespace="run") == [1, 2]
        after = set(store.keys())
        assert before <= after
        assert {keys.parse_numbers("run", key) for key in after - before} == {(3,), (3, 0, 0, 0)}
        assert all(len(checkpoint.log(store, namespace=name)) == 3 for name in others)


class Removals:
    """A store that records the removed keys and the prefixes of removed ranges."""

    def __init__(self, store: Store) -> None:
        self._store, self.removed = store, list[bytes]()

    def delete_many(self, names: Iterable[bytes]) -> None:
        every = list(names)
        self.removed += every
        self._store.delete_many(every)

    def delete_range(self, prefix: bytes = b"", **ends: Any) -> None:
        self.removed.append(prefix)
        self._store.delete_range(prefix, **ends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_goes_before_what_it_names(kind: str, fresh: Fresh) -> None:
    """A generation whose removal was interrupted never looks complete."""
    with open_store(fresh(kind)) as store:
        for step in range(4):
            checkpoint.save(store, step=step, model={f"w{i}": torch.ones(3) for i in range(5)})
        watched: Any = Removals(store)
        assert checkpoint.gc(watched, keep=1) == [1, 2, 3]
        for generation in (1, 2, 3):
            own = [key for key in watched.removed if b"/%016x" % generation in key]
            assert len(own) > 1
            assert own[0] == keys.manifest("windeck", generation)


def test_gc_does_not_guess_what_a_damaged_manifest_needs() -> None:
    state = {"w": torch.zeros(40)}
    with open_store("memory://") as store:
        for step in range(3):
            state["w"][4 * step] = 1
            checkpoint.save(store, step=step, model=state, chunk_bytes=CHUNK, incremental=True)
        key = b"windeck/m/%016x" % 2
        good = store.get(key)
        assert good is not None
        store.put_many([(key, good[:-1] + b"?")])
        before = dict(store.scan())
        with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged"):
            checkpoint.gc(store, keep=2)
        assert dict(store.scan()) == before
        assert checkpoint.gc(store, keep=1) == [1, 2]
        target = {"w": torch.ones(40)}
        checkpoint.load(store, model=target)
        assert torch.equal(target["w"], state["w"])


@pytest.mark.parametrize("kind", EMBEDDED)
@pytest.mark.parametrize("dry_run", [False, True])
def test_no_database_is_made_to_be_cleared(kind: str, dry_run: bool, fresh: Fresh) -> None:
    url = fresh(kind)
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="there is no database at"):
            checkpoint.gc(url, keep=1, dry_run=dry_run)
    with open_store(url):
        pass
    assert checkpoint.gc(url, keep=1, dry_run=dry_run) == []  # nothing was saved yet
