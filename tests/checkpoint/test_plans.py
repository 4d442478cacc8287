"""Tests of plans that are discarded before they are committed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.sharded_parts import force, write
from support.store_servers import need
from windeck import checkpoint
from windeck.checkpoint.stores import Store, open_store
from windeck.checkpoint.write import discard


def test_what_was_written_goes(store: Store) -> None:
    before = set(store.keys())
    plan = checkpoint.begin(store, step=1, writers=3)
    write(store, plan, (0, 2))
    assert len(set(store.keys()) - before) > 5
    discard(store, plan)
    every = list(store.keys())
    assert {key for key in every if not key.endswith((b"/NEXT", b"/HEAD"))} == before
    discard(store, plan)  # nothing is there, nothing happens


def test_a_save_that_was_committed_is_not_discarded(store: Store) -> None:
    """Neither the current generation nor one that is only kept is discarded."""
    plan = checkpoint.begin(store, step=1, writers=3)
    write(store, plan)
    checkpoint.merge(store, plan)
    for _ in range(2):
        there = sorted(store.keys())
        with pytest.raises(RuntimeError, match="generation 1 of windeck was committed already"):
            discard(store, plan)
        assert sorted(store.keys()) == there
        checkpoint.save(store, step=2, model={"v": torch.ones(3)})
    assert checkpoint.verify(store, deep=True).ok


def test_parts_of_another_save_stay(tmp_path: Path) -> None:
    """Of two that go on at once: two files of each writer, which the database does not know yet."""
    need("rocksdb")
    url = f"rocksdb://{tmp_path}/x"
    plan, other = (checkpoint.begin(url, step=1, writers=3) for _ in range(2))
    write(url, plan, (0, 1))
    write(url, other)
    with open_store(url) as store:
        assert len(store.parts(unfinished=True)) == 10  # type: ignore[attr-defined]
        discard(store, plan)
        assert len(store.parts(unfinished=True)) == 6  # type: ignore[attr-defined]
        assert checkpoint.merge(store, other) == other.generation
        assert force(store) == [(other.generation, 1)]
