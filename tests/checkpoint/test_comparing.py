"""Tests of differences between generations and stores, compared with NumPy and plain dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable
from support.checkpoint_parts import save_parts
from support.store_servers import KINDS
from support.stored_keys import data_keys
from windeck import checkpoint
from windeck.checkpoint import copy, diff
from windeck.checkpoint.read import ValueDifference
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_and_values(kind: str, fresh: Fresh) -> None:
    a = {
        "same": torch.randn(50), "moved": torch.zeros(6, 4), "shape": torch.zeros(3),
        "dtype": torch.zeros(3), "lost": torch.zeros(1), "ids": torch.tensor([2**62, 1]),
        "nan": torch.tensor([float("nan"), 1.0]), "zero": torch.tensor([0.0]),
        "half": torch.ones(3, dtype=torch.bfloat16), "scalar": torch.tensor(1.0),
    }  # fmt: skip
    b = {name: value.clone() for name, value in a.items()}
    b["moved"][2, 1], b["moved"][5, 3] = 3, -8
    b["shape"], b["dtype"] = torch.zeros(3, 1), torch.zeros(3, dtype=torch.float64)
    del b["lost"]
    b["new"] = torch.zeros(2)
    b["ids"][0] -= 1
    b["nan"][0] = 1
    b["zero"][0] = -0.0
    b["half"][1] = 2
    b["scalar"] += 1
    with open_store(fresh(kind)) as store:
        first = checkpoint.save(store, step=1, model=a, extra={"lr": 0.1, "x": [1, (2,)], 3: None},
                                chunk_bytes=16)  # fmt: skip
        second = checkpoint.save(store, step=2, model=b, extra={"lr": 0.2, "x": [1, [2]], "y": {}},
                                 chunk_bytes=16)  # fmt: skip
        found = diff(store, first, second)
        assert found
        told = {t.name.removeprefix("model/"): t for t in found.tensors}
        assert set(told) == (set(a) | set(b)) - {"same"}
        assert found.equal == 1
        assert told["lost"].second is None
        assert told["new"].first is None
        assert (told["shape"].first, told["shape"].second) == (
            ("float32", (3,)), ("float32", (3, 1)))  # fmt: skip
        assert (told["dtype"].second, told["dtype"].changed) == (("float64", (3,)), 0)
        expected: dict[str, tuple[Any, ...]] = {
            "moved": (2, 24, (2, 1), 8.0), "ids": (1, 2, (0,), 1.0), "nan": (1, 2, (0,), None),
            "zero": (1, 1, (0,), 0.0), "half": (1, 3, (1,), 1.0), "scalar": (1, 1, (), 1.0),
        }  # fmt: skip
        for name, wanted in expected.items():
            one = told[name]
            assert (one.changed, one.elements, one.index, one.largest) == wanted, name
        assert found.values == [
            ValueDifference("extra/lr", 0.1, 0.2),
            ValueDifference("extra/x/1", "tuple of 1", "list of 1"),
            ValueDifference("extra/3", None, ...),
            ValueDifference("extra/y", ..., "dict"),
        ]
        assert not diff(store, first, first)
        assert not diff(store, None, second)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "first", "second"),
    [
        (NAN, "nan", NAN, "nan"),
        (INF, "inf", INF, "inf"),
        (-0.0, 0.0, -0.0, 0.0),
        (1, 1.0, 1, 1.0),
        (1, True, 1, True),
        ({}, "dict", "dict", "dict"),
        ([], (), "list of 0", "tuple of 0"),
        (torch.ones(1), "tensor", ..., "tensor"),
    ],
    ids=repr,
)
def test_values_that_look_alike(a: Any, b: Any, first: Any, second: Any, memory: Store) -> None:
    for step, value in enumerate((a, b, a)):
        checkpoint.save(memory, step=step, extra={"x": value})
    found = diff(memory, 1, 2).values
    assert repr(found) == repr([ValueDifference("extra/x", first, second)])
    found = diff(memory, 2, 3).values
    assert repr(found) == repr([ValueDifference("extra/x", second, first)])
    assert not diff(memory, 1, 3)


@pytest.mark.parametrize("value", [2, {}, torch.ones(1)], ids=repr)
def test_keys_that_look_alike(value: Any, memory: Store) -> None:
    for step, key in enumerate((1, "1", 1)):
        checkpoint.save(memory, step=step, extra={key: value})
    words = {int: 2, dict: "dict", torch.Tensor: "tensor"}[type(value)]
    assert diff(memory, 1, 2).values == [
        ValueDifference("extra/1", words, ...),
        ValueDifference("extra/1", ..., words),
    ]
    assert not diff(memory, 1, 3)


@pytest.mark.parametrize("name", ["bool", "int8", "int64", "uint8", "uint16", "uint64"])
def test_distances_of_integers_are_exact(name: str, memory: Store) -> None:
    bits = 8 * torch.empty(0, dtype=getattr(torch, name)).itemsize
    low = -(1 << (bits - 1)) if name.startswith("int") else 0
    high = 1 if name == "bool" else low + (1 << bits) - 1
    values = [low, low + 1, 0, 1, high - 1, high]
    rng = np.random.default_rng(5)
    for step in range(4):
        picked = [values[i] for i in rng.integers(0, len(values), 6)]
        pair = picked, [values[i] for i in rng.integers(0, len(values), 6)]
        for side in pair:
            data = torch.from_numpy(np.array(side, name))
            checkpoint.save(memory, step=step, model={"w": data})
        told = diff(memory, 2 * step + 1, 2 * step + 2).tensors[0].largest
        assert told == float(max(abs(x - y) for x, y in zip(*pair, strict=True)))


def test_random_changes_however_the_tensor_is_cut(memory: Store) -> None:
    rng = np.random.default_rng(2)
    cuts: list[list[list[tuple[int, int]]]] = [
        [[(0, 9), (0, 7)]], [[(0, 4), (0, 7)], [(4, 9), (0, 7)]],
        [[(0, 9), (0, 2)], [(0, 9), (2, 7)]],
    ]  # fmt: skip
    base = torch.from_numpy(rng.normal(size=(9, 7)).astype(np.float32))
    for cut in cuts:
        for other in cuts:
            for chunk_bytes in (20, 64):
                changed = base.clone()
                places = rng.integers(0, 63, 5)
                changed.view(-1)[places] += torch.arange(1.0, 6)
                a = save_parts(memory, base, cut, chunk_bytes=20)
                b = save_parts(memory, changed, other, chunk_bytes=chunk_bytes)
                (found,) = diff(memory, a, b).tensors
                assert found.changed == len(set(places.tolist()))
                assert found.largest == (base.double() - changed.double()).abs().max().item()
                assert found.index is not None
                assert base[found.index] != changed[found.index]
                assert not diff(memory, a, a)


def test_what_both_refer_to_is_not_read(memory: Store) -> None:
    weight = torch.arange(1000.0)
    numbers = []
    for step in range(2):
        weight[500] = -step
        numbers.append(
            checkpoint.save(memory, step=step, model={"w": weight, "v": torch.ones(99)},
                            chunk_bytes=400, incremental=True)
        )  # fmt: skip
    found = diff(memory, *numbers)
    assert [(t.name, t.changed, t.index) for t in found.tensors] == [("model/w", 1, (500,))]
    assert (found.equal, found.bytes) == (1, 800)
    memory.delete_many([next(iter(data_keys(memory, "t")))])  # not looked at
    assert diff(memory, *numbers).tensors == found.tensors


def test_two_stores(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.ones(10)})
    with open_store("memory://") as other:
        copy(memory, other, target_namespace="copied")
        assert not diff(memory, None, None, other=other, other_namespace="copied")
        key = next(iter(other.keys(b"~copied~")))
        value = bytearray(other.get(key) or b"")
        value[-1] ^= 1
        other.put_many([(key, bytes(value))])
        with pytest.raises(CorruptStoreError, match=r"~copied~.* is damaged: found a payload with"):
            diff(memory, None, None, other=other, other_namespace="copied")
    with pytest.raises(FileNotFoundError, match="there is no generation 7 in windeck"):
        diff(memory, 7, None)


def test_tables(memory: Store) -> None:
    rng, core = np.random.default_rng(1), ModelCore(3, 1)
    core.fill(range(-100, 100), rng, counted=0.2)
    lone = ModelCore(2)
    lone.fill(range(5), rng)
    tables = {"user": ModelTable(core, lr=0.1), "lone": ModelTable(lone)}
    first = checkpoint.save(memory, step=1, model={}, embeddings=tables)
    assert not diff(memory, first, first)
    core.fill([3, 4, 5], rng)
    core.remove([7])
    core.fill([1000, 1001], rng)
    wide = ModelCore(4)
    tables = {"user": ModelTable(core, lr=0.1), "wide": ModelTable(wide)}
    second = checkpoint.save(memory, step=2, model={}, embeddings=tables)
    found = {table.name: table for table in diff(memory, first, second).tables}
    user = found.pop("user")
    assert (user.only_first, user.only_second, user.changed) == (1, 2, 3)
    assert (found["lone"].only_first, found["lone"].note) == (5, "only in the first")
    assert found["wide"].note == "only in the second"
    third = checkpoint.save(memory, step=3, model={},
                            embeddings={"user": ModelTable(core, lr=0.2)})  # fmt: skip
    (again,) = (t for t in diff(memory, second, third).tables if t.name == "user")
    assert (again.changed, again.note) == (0, "made with another configuration")
    checkpoint.save(memory, step=4, model={}, embeddings={"user": ModelTable(wide)})
    (again,) = diff(memory, third, None).tables
    assert again.note == "dim 3 with 1 slots, then dim 4 with 0 slots"
