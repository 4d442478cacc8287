"""Tests of merges: shards that fit are committed, others raise errors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from support.sharded_parts import W, fails, force, merge_of, rows, share_of_all, tampered, write
from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import Store


def test_shards_of_another_step_and_another_plan(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    later = dataclasses.replace(plan, step=3, digest="")
    write(store, plan, (0, 1))
    write(store, later, (2,))
    text = "writer 2 saved generation 2 with another plan: found step 3, expected step 2"
    fails(store, plan, text, ValueError)
    # Made for another store, where the same numbers are dealt out.
    plan = checkpoint.begin(store, step=2, writers=3)
    other = dataclasses.replace(plan, save=7, digest="")
    write(store, other, (0,))
    write(store, plan, (1, 2))
    text = f"writer 0 saved generation 3 with another plan: found digest {other.digest}, expected"
    fails(store, plan, text, ValueError)
    # For more writers than this one has.
    plan = checkpoint.begin(store, step=2, writers=2)
    more = dataclasses.replace(plan, writers=3, digest="")
    write(store, plan, (0, 1))
    write(store, more, (2,))
    text = "writer 2 saved a shard of generation 4, expected 0 to 1 as planned"
    fails(store, plan, text, ValueError)
    # One that lies under the number of another.
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    tampered(store, plan, 1, writer=2)
    text = "writer 1 saved generation 5 with another plan: found writer 2, expected writer 1"
    fails(store, plan, text, ValueError)
    assert force(store) == [(1, 1)]


def test_parts_that_do_not_make_a_whole(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})

    def refused(message: str, *models: Any) -> None:
        fails(store, merge_of(store, *models), message, ValueError)

    refused(
        "model/w has 30 of 35 elements with writers [0, 1], expected all of shape (7, 5): "
        "[3:4, 0:5] is missing",
        {"w": rows(W, 0, 3)}, {"w": rows(W, 4, 7)},
    )  # fmt: skip
    refused(
        "model/w has elements [0:4, 0:5] with writer 0 and [3:7, 0:5] with writer 1, expected each "
        "element once",
        {"w": rows(W, 0, 4)}, {"w": rows(W, 3, 7)},
    )  # fmt: skip
    # A gap as large as the overlap.
    column = Partition(W[:, :1], offset=(0, 0), shape=(7, 5))
    refused("model/w has elements [0:6, 0:5] with writer 0 and [0:7, 0:1] with writer 1",
            {"w": rows(W, 0, 6)}, {"w": column})  # fmt: skip
    refused("model/w has elements [0:7, 0:5] with writer 0 and [0:7, 0:5] with writer 1",
            {"w": W}, {"w": W})  # fmt: skip
    refused("model/w has 0 of 35 elements with writers [], expected all of shape (7, 5)",
            {"w": rows(W, 0, 0)}, {"w": rows(W, 7, 7)})  # fmt: skip
    refused("model/w has dtype float32 with writer 0 and float64 with writer 1, expected one dtype",
            {"w": rows(W, 0, 3)}, {"w": rows(W.double(), 3, 7)})  # fmt: skip
    refused("model/w has shape [7, 5] with writer 0 and [3, 5] with writer 1, expected one shape",
            {"w": rows(W, 0, 3)}, {"w": W[:3]})  # fmt: skip
    refused("model/w is a tensor with writer 0 and 3 with writer 1, expected the same everywhere",
            {"w": rows(W, 0, 7)}, {"w": 3})  # fmt: skip
    assert force(store) == [(1, 1)]


def test_values_that_differ(memory: Store) -> None:
    def refused(message: str, *extras: Any) -> None:
        plan = checkpoint.begin(memory, step=2, writers=len(extras))
        for writer, extra in enumerate(extras):
            checkpoint.save_shard(memory, plan, writer=writer, extra=extra)
        fails(memory, plan, message, ValueError)

    refused("extra/lr is 0.5 with writer 0 and 0.25 with writer 2, expected the same everywhere: "
            "save different values under different k", {"lr": 0.5}, {}, {"lr": 0.25})  # fmt: skip
    refused("extra/a/0 is 1 with writer 0 and True with writer 1", {"a": [1]}, {"a": [True]})
    refused("extra/a is nan with writer 0 and inf with writer 1",
            {"a": float("nan")}, {"a": float("inf")})  # fmt: skip
    refused("extra/a is 0.0 with writer 0 and -0.0 with writer 1", {"a": 0.0}, {"a": -0.0})
    refused("extra/a is a list with writer 0 and a dict with writer 1", {"a": []}, {"a": {}})
    refused("extra/a has 1 items with writer 0 and 2 with writer 1, expected the same everywhere",
            {"a": (1,)}, {"a": (1, 2)})  # fmt: skip
    assert checkpoint.log(memory) == []


def test_values_of_all_writers_are_kept(memory: Store) -> None:
    plan = checkpoint.begin(memory, step=2, writers=3)
    extras: list[Any] = [
        {"both": float("nan"), 1: "one", "rng": {"0": torch.tensor([1, 2])}},
        {"1": "text", "both": float("nan"), "rng": {"1": torch.tensor([3])}},
        {"rng": {}, "list": [{"a": 1}, (None, 2)]},
    ]
    for writer, extra in enumerate(extras):
        checkpoint.save_shard(memory, plan, writer=writer, extra=extra, loader={"position": 12})
    checkpoint.merge(memory, plan)
    with checkpoint.open(memory) as found:
        tree = found.tree("extra")
        assert found.tree("loader") == {"position": 12}
    assert str(tree.pop("both")) == "nan"
    assert {key: value.tolist() for key, value in tree.pop("rng").items()} == {
        "0": [1, 2],
        "1": [3],
    }
    assert tree == {1: "one", "1": "text", "list": [{"a": 1}, (None, 2)]}
    assert list(tree) == [1, "1", "list"]


def test_tied_tensors_with_some_writers_only(memory: Store) -> None:
    """The memory is the same where it has elements; a writer without any cannot know."""
    tied = [rows(W, 0, 4), rows(W, 4, 7), rows(W, 7, 7)]
    models = [{"a": part, "b": part} for part in tied]
    plan = merge_of(memory, *models)
    checkpoint.merge(memory, plan)
    with checkpoint.open(memory) as found:
        assert torch.equal(found.tensor("model/a"), W)
        assert torch.equal(found.tensor("model/b"), W)
        assert len(found.entries) == 1
    # Torn: the second writer has two copies, the third has only one of the names, and as the first.
    models = [
        {"a": rows(W, 0, 4), "b": rows(W, 0, 4)},
        {"b": rows(W.clone(), 4, 7), "a": rows(W, 4, 7)},
    ]
    checkpoint.merge(memory, merge_of(memory, *models))
    with checkpoint.open(memory) as found:
        assert torch.equal(found.tensor("model/a"), W)
        assert torch.equal(found.tensor("model/b"), W)
        assert len(found.entries) == 2


def test_every_byte_of_what_writers_say(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    head = store.get(keys.head("windeck"))
    for key, value in list(store.scan(b"windeck/s/")):
        for at in range(len(value)):
            wrong = value[:at] + bytes([value[at] ^ 0x10]) + value[at + 1 :]
            store.put_many([(key, wrong)])
            with pytest.raises((checkpoint.stores.CorruptStoreError, ValueError)):
                checkpoint.merge(store, plan)
        for size in range(0, len(value), 7):
            store.put_many([(key, value[:size])])
            with pytest.raises(checkpoint.stores.CorruptStoreError, match=f"{key.decode()} is da"):
                checkpoint.merge(store, plan)
        store.put_many([(key, value)])
    assert store.get(keys.head("windeck")) == head
    assert checkpoint.merge(store, plan) == 2
    assert force(store) == [(2, 2), (1, 1)]


W_ENTRY = {"name": "model/w", "dtype": "float32", "shape": [7, 5], "chunk_bytes": 16384}


def test_shards_that_are_none(memory: Store) -> None:
    wrong: list[dict[str, Any]] = [
        {"tensors": 3}, {"tensors": [{}]}, {"trees": []}, {"trees": {"model": {"dict": 1}}},
        {"tensors": [{**W_ENTRY, "parts": [1]}]},
    ]  # fmt: skip
    for changes in wrong:
        plan = merge_of(memory, {"w": rows(W, 0, 3)}, {"w": rows(W, 3, 7)})
        tampered(memory, plan, 1, **changes)
        with pytest.raises(
            checkpoint.stores.CorruptStoreError, match=r"windeck/s/.* cannot be read"
        ):
            checkpoint.merge(memory, plan)
    for sides in ([[3, 9], [0, 5]], [[5, 3], [0, 5]], [[3, 7]], [[-1, 7], [0, 5]]):
        plan = merge_of(memory, {"w": rows(W, 0, 3)}, {"w": rows(W, 3, 7)})
        tampered(memory, plan, 1, tensors=[{**W_ENTRY, "parts": [{"box": sides, "item": 0}]}])
        with pytest.raises(ValueError, match=r"^model/w has elements .* with writer"):
            checkpoint.merge(memory, plan)
    plan = merge_of(memory, {"w": rows(W, 0, 3)}, {"w": rows(W, 3, 7)})
    part = {"box": [[3, 7], [0, 5]], "item": 0}
    tampered(memory, plan, 1, tensors=[{**W_ENTRY, "chunk_bytes": 40, "parts": [part]}])
    text = "model/w has chunk_bytes 16384 with writer 0 and 40 with writer 1, expected one chunk_b"
    fails(memory, plan, text, ValueError)
    assert checkpoint.log(memory) == []
