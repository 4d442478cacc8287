"""Tests of forged values with valid checksums: they are read or refused, without other errors."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable
from support.store_servers import KINDS
from support.stored_keys import parsed
from windeck import checkpoint
from windeck._core import crc32c
from windeck.checkpoint.format import HEADER_BYTES, Kind, Label, keys, manifests, state_json, values
from windeck.checkpoint.read import parse
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
#: What takes the place of each part of what is stored.
ODD: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 10**30, 1.5, float("nan"), "", "model/w", [], {}, [[]], [0],
    {"a": 1}, {"tensor": "model/w"}, {"tensor": []}, {"dict": [[[], 1]]}, {"dict": [["a"]]},
    {"dict": [["a", 1], ["a", 1]]}, {"tuple": 0}, {"float": "1"}, {"float": []},
]  # fmt: skip
NESTED = [
    b"[" * 200_000, b'{"a":' * 200_000, b"1" * 10_000, b"\xff", b"", b"null", b"[]", b'""',
    b'{"kinds":[],"tensors":[],"trees":{"model":' + b"[" * 900 + b"]" * 900 + b"}}",
]  # fmt: skip


def saved(store: Store) -> None:
    """Save two generations, the second of which refers to the first."""
    core = ModelCore(2, 1)
    core.fill(range(20), np.random.default_rng(0))
    weight = torch.arange(12.0).reshape(3, 4)
    for step in (1, 2):
        checkpoint.save(
            store, step=step, model={"w": weight, "b": [torch.tensor(1), (2, "x", None, 1.5)]},
            loader={"at": step}, extra={"e": {1: float("inf")}}, chunk_bytes=16, incremental=True,
            embeddings={"t": ModelTable(core)},
        )  # fmt: skip
        weight[0, 0] = 9
        core.fill([5], np.random.default_rng(1))


def put(store: Store, payload: bytes, generation: int = 2) -> None:
    """Store a manifest of the current generation, and a HEAD that matches it."""
    (commit, *older) = manifests.read_head(store, "windeck").commits
    value = values.encode(Label(Kind.MANIFEST, generation, commit.save), payload)
    now = commit._asdict() | {"manifest_bytes": len(value), "manifest_crc": crc32c(value)}
    head = manifests.encode_head([manifests.Commit(**now), *older])
    store.put_many([(keys.manifest("windeck", generation), value), (keys.head("windeck"), head)])


def use(store: Store) -> None:
    """Read everything that was saved, in every way."""
    checkpoint.gc(store, keep=2, dry_run=True)
    checkpoint.log(store)
    checkpoint.verify(store, deep=True)
    list(checkpoint.search(store, parse("abs > 1")))
    with checkpoint.open(store) as found:
        for name in found.names():
            found.info(name)
            found.tensor(name)
        for root in found.trees:
            found.tree(root)
        for name in found.tables:
            found.table(name).rows([5, 99])
            list(found.table(name).scan())
    model = {"w": torch.zeros(3, 4), "b": [torch.tensor(0), (0, "", None, 0.0)]}
    table = ModelTable(ModelCore(2, 1))
    checkpoint.load(store, model=model, loader={"at": 0}, embeddings={"t": table}, strict=False)


def places(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(found, (dict, list)):
        for key in found if isinstance(found, dict) else range(len(found)):
            yield from places(found[key], (*at, key))


def variants(found: Any) -> Iterator[bytes]:
    """Yield the JSON with each value replaced, removed or doubled."""
    for at in places(found):
        for odd in ODD:
            yield changed(found, at, lambda holder, key, odd=odd: holder.__setitem__(key, odd))
        if at:
            yield changed(found, at, lambda holder, key: holder.__delitem__(key))
            yield changed(found, at, twice)
    yield from NESTED


def twice(holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder.append(holder[key])


def changed(found: Any, at: tuple[Any, ...], change: Any) -> bytes:
    holder: Any = [copy.deepcopy(found)]
    whole = holder
    for step in (0, *at)[:-1]:
        holder = holder[step]
    change(holder, (0, *at)[-1])
    return json.dumps(whole[0]).encode()


def refused(store: Store) -> bool:
    """Return True if the use of a store raises one of the documented errors.

    Any other error fails the test.
    """
    try:
        use(store)
    except (OSError, ValueError):
        return True
    except KeyError as error:  # what is asked for is not in what is there
        if "was not saved in" in str(error) or "has no table" in str(error):
            return True
        raise
    return False


def test_manifests_of_any_content() -> None:
    with open_store("memory://") as store:
        saved(store)
        use(store)
        (commit, *_) = manifests.read_head(store, "windeck").commits
        value = store.get(keys.manifest("windeck", 2))
        was = bytes(values.decode(b"", value, Label(Kind.MANIFEST, 2, commit.save)))
        outcomes = []
        for at, line in enumerate(lines := was.split(b"\n")):
            for odd in variants(json.loads(line)):
                put(store, b"\n".join([*lines[:at], odd, *lines[at + 1 :]]))
                outcomes.append(refused(store))
            assert outcomes[-len(NESTED) :] == [True] * len(NESTED)
        assert len(outcomes) > 3000
        assert outcomes.count(True) > 0.7 * len(outcomes)  # the others say what may be


@pytest.mark.parametrize("tree", [{"list": [1]}, {"None": [1]}, {"float": "1e3"}, {"dict": [[1]]}])
def test_trees_that_cannot_be_decoded_are_refused_with_their_manifest(tree: Any) -> None:
    """Not after the tensors were written to."""
    with pytest.raises(ValueError, match="expected a"):
        state_json.tensor_places(tree, "extra")


def test_heads_of_any_content() -> None:
    with open_store("memory://") as store:
        saved(store)
        value = store.get(keys.head("windeck"))
        was = values.decode(b"", value, Label(Kind.HEAD))
        outcomes = []
        for payload in variants(json.loads(bytes(was))):
            store.put_many([(keys.head("windeck"), values.encode(Label(Kind.HEAD), payload))])
            outcomes.append(refused(store))
        assert outcomes.count(True) > 0.7 * len(outcomes)


def newer(value: bytes) -> bytes:
    """Return the value as one of a later format, with a valid checksum of its header."""
    head = value[:4] + struct.pack("<H", 2) + value[6 : HEADER_BYTES - 4]
    return head + struct.pack("<I", crc32c(head)) + value[HEADER_BYTES:]


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_later_format_are_left_alone(kind: str, fresh: Fresh) -> None:
    """Values of a later format are not read, removed, or overwritten as damaged."""
    with open_store(fresh(kind)) as store:
        saved(store)
        before = dict(store.scan())
        for key, value in before.items():
            store.put_many([(key, newer(value))])
            found = dict(store.scan())
            words = f"{key.decode()} has format 2, expected 1: a later windeck wrote it"
            if key in (b"windeck/NEXT", b"windeck/HEAD"):
                with pytest.raises(ValueError, match=words):
                    checkpoint.save(store, step=3, model={"w": torch.ones(2)})
                assert dict(store.scan()) == found
            if key in (b"windeck/HEAD", keys.manifest("windeck", 2)):
                for call in (use, lambda s: checkpoint.gc(s, keep=1), checkpoint.open):
                    with pytest.raises(ValueError, match=words):
                        call(store)
                assert dict(store.scan()) == found
            letter, generation = parsed(key)
            if letter == "t":
                saved_then = checkpoint.open(store, generation=generation)
                with pytest.raises(ValueError, match=words):
                    saved_then.tree("model")
            store.put_many([(key, value)])
        assert not refused(store)


def test_the_same_tensor_as_a_whole_state() -> None:
    with open_store("memory://") as store:
        weight = torch.arange(3.0)
        checkpoint.save(store, step=1, model={"w": weight}, extra=weight)
        with checkpoint.open(store) as found:
            assert found.names() == ["model/w", "extra"]
            assert found.info("extra").shape == (3,)
            assert torch.equal(found.tree("extra"), weight)
            assert torch.equal(found.tensor("extra"), weight)


def test_a_tree_as_deep_as_can_be_saved_is_loaded() -> None:
    deep: Any = torch.ones(2)
    for turn in range(100):
        deep = (deep,) if turn % 2 else {"a": deep}
    with open_store("memory://") as store:
        checkpoint.save(store, step=1, extra=deep)
        found = checkpoint.load(store).extra
        for turn in reversed(range(100)):
            found = found[0] if turn % 2 else found["a"]
        assert torch.equal(found, torch.ones(2))
        with pytest.raises(ValueError, match="is nested deeper than 100 levels"):
            checkpoint.save(store, step=1, extra=[deep])
        trees = b"[" * 101 + b"1" + b"]" * 101
        put(store, b'{"kinds":[],"tensors":[],"trees":{"extra":' + trees + b"}}\n[]", 1)
        with pytest.raises(CorruptStoreError, match="nested deeper than 100 levels"):
            checkpoint.open(store)


def test_shards_of_any_content() -> None:
    """A forged shard is refused, or merged into a checkpoint that can be read."""
    with open_store("memory://") as store:
        plan = checkpoint.begin(store, step=1, writers=2)
        for writer in range(2):
            part = checkpoint.Partition(torch.ones(3, 2), offset=(3 * writer, 0), shape=(6, 2))
            model = {"w": part, "l": [(1, 2.5)]}
            checkpoint.save_shard(store, plan, writer=writer, model=model, extra={str(writer): 1})
        before = dict(store.scan())
        key = keys.shard("windeck", plan.generation, 1)
        label = Label(Kind.SHARD, plan.generation, plan.save, part=1)
        was = values.decode(key, before[key], label)
        outcomes = []
        for payload in variants(json.loads(bytes(was))):
            store.delete_range(b"")
            store.put_many([*before.items(), (key, values.encode(label, payload))])
            try:
                checkpoint.merge(store, plan)
            except (OSError, ValueError):
                assert checkpoint.log(store) == []
                outcomes.append(True)
            else:
                checkpoint.open(store).names()
                outcomes.append(False)
        assert len(outcomes) > 1000
        assert outcomes.count(True) > 0.7 * len(outcomes)
