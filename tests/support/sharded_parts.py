"""Three writers of a small model, and checks of merges that are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.format import Kind, Label, decode, encode, keys
from windeck.checkpoint.stores import Store

W = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5) / 3
ROWS = [(0, 3), (3, 4), (4, 7)]


def rows(whole: torch.Tensor, first: int, end: int) -> Partition:
    offset = (first, *[0] * (whole.dim() - 1))
    return Partition(whole[first:end], offset=offset, shape=whole.shape)


def share(writer: int, **extra: Any) -> dict[str, Any]:
    """Return the arguments with which one of three writers saves its share of the model."""
    only = {f"only{writer}": torch.full((2,), writer)}
    return {"model": {"w": rows(W, *ROWS[writer]), **only}, "extra": {"seed": 5, **extra}}


def share_of_all() -> dict[str, torch.Tensor]:
    return {f"only{w}": torch.full((2,), w) for w in range(3)}


def write(
    store: Store | str, plan: checkpoint.Plan, writers: Sequence[int] = (0, 1, 2), **extra: Any
) -> None:
    for writer in writers:
        checkpoint.save_shard(store, plan, writer=writer, **share(writer, **extra))


def force(store: Store) -> list[tuple[int, int]]:
    """Return the generations and steps of the log, after loading and checking the newest."""
    target = {"w": torch.zeros(7, 5), **{f"only{w}": torch.full((2,), -1) for w in range(3)}}
    found = checkpoint.load(store, model=target)
    assert torch.equal(target["w"], W)
    assert all(target[f"only{w}"].eq(w).all() for w in range(3))
    return [(commit.generation, commit.step) for commit in checkpoint.log(store)][: found.step]


def fails(store: Store, plan: checkpoint.Plan, message: str, kind: type[Exception]) -> None:
    """Assert that a merge raises this error, and that HEAD stays as it is."""
    before = store.get(keys.head("windeck"))
    with pytest.raises(kind, match=re.escape(message)):
        checkpoint.merge(store, plan)
    assert store.get(keys.head("windeck")) == before


def merge_of(store: Store, *models: Any, **given: Any) -> checkpoint.Plan:
    plan = checkpoint.begin(store, step=2, writers=len(models))
    for writer, model in enumerate(models):
        checkpoint.save_shard(store, plan, writer=writer, model=model, **given)
    return plan


def tampered(store: Store, plan: checkpoint.Plan, place: int, **changes: Any) -> None:
    """Change fields of a saved shard, and give it a valid checksum."""
    key = keys.shard("windeck", plan.generation, place)
    label = Label(Kind.SHARD, plan.generation, plan.save, part=place)
    said = {**json.loads(bytes(decode(key, store.get(key), label))), **changes}
    store.put_many([(key, encode(label, json.dumps(said).encode()))])
