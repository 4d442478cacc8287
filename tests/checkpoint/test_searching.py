"""Tests of searches in saved tensors and tables, compared with NumPy and plain dicts."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
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
from windeck.checkpoint import search
from windeck.checkpoint.format import find_commit, read_manifest
from windeck.checkpoint.read import nan, near, parse, read_box, search_table, tensor_statistics
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store
from windeck.columns import decode_elements

Fresh = Callable[[str], str]
HALVES = [[(0, 3), (0, 7)], [(3, 9), (0, 4)], [(3, 9), (4, 7)]]


def entry_of(store: Store, name: str = "model/w") -> Any:
    found = read_manifest(store, "windeck", find_commit(store, "windeck", None))
    return found["tensors"][name]


@pytest.mark.parametrize("kind", KINDS)
def test_all_tensors_of_a_checkpoint(kind: str, fresh: Fresh) -> None:
    torch.manual_seed(3)
    model = {
        "a": torch.randn(50, 7), "b": torch.randn(1000, dtype=torch.float64),
        "half": torch.randn(333).to(torch.bfloat16), "ids": torch.arange(-50, 50),
        "flags": torch.tensor([True, False, True]), "scalar": torch.tensor(5.0),
        "empty": torch.empty(0, 3), "complex": torch.tensor([3 + 4j, 0.1j]),
    }  # fmt: skip
    model["a"][3, 4] = float("nan")
    with open_store(fresh(kind)) as store:
        checkpoint.save(store, step=1, model=model, chunk_bytes=256)
        found = {one.name: one for one in search(store, parse("abs > 2 or nan"), limit=10**6)}
        assert list(found) == [f"model/{name}" for name in model]
        for name, tensor in model.items():
            values = tensor.abs() if tensor.dtype != torch.bool else tensor.long()
            wanted = ((values > 2) | (values != values)).nonzero().tolist()
            one = found[f"model/{name}"]
            assert [list(match.index) for match in one.matches] == wanted, name
            assert (one.count, one.elements) == (len(wanted), tensor.numel())
            for match in one.matches:
                value = tensor[match.index].item()
                assert match.value == value or (match.value != match.value and value != value)
        some = list(search(store, parse("value > 0"), names=["model/b", "model/complex"], limit=3))
        assert [len(one.matches) for one in some] == [3, 0]
        assert some[0].count == int((model["b"] > 0).sum())
        assert some[1].skipped == "complex64 has no order: expected abs > 0"
        ((only,),) = [search(store, near(3 + 4j, 0.5), names=["model/complex"])]
        assert [(match.index, match.value) for match in only.matches] == [((0,), 3 + 4j)]
        with pytest.raises(KeyError, match="there is no tensor 'model/c' in generation 1"):
            next(search(store, nan(), names=["model/c"]))


def test_tensors_in_parts_have_indices_of_the_whole(memory: Store) -> None:
    whole = torch.arange(63.0).view(9, 7)
    save_parts(memory, whole, HALVES, chunk_bytes=20)
    (found,) = search(memory, parse("value >= 20"))
    assert sorted(match.index for match in found.matches) == [
        tuple(place) for place in (whole >= 20).nonzero().tolist()
    ]
    assert all(whole[match.index].item() == match.value for match in found.matches)
    entry = entry_of(memory)
    for box in [((0, 9), (0, 7)), ((2, 5), (3, 6)), ((4, 4), (0, 7)), ((8, 9), (6, 7))]:
        wanted = whole[box[0][0] : box[0][1], box[1][0] : box[1][1]]
        got = decode_elements("float32", read_box(memory, "windeck", entry, box))
        assert got.tolist() == wanted.reshape(-1).tolist()
    told = tensor_statistics(memory, "windeck", entry, bins=7, largest=4)
    assert told["largest"] == [((8, 6), 62.0), ((8, 5), 61.0), ((8, 4), 60.0), ((8, 3), 59.0)]
    assert told["histogram"].tolist() == np.histogram(whole.numpy(), 7)[0].tolist()
    assert (told["count"], told["mean"]) == (63, 31.0)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1.0],
        [0.0],
        [-1e308, 1.7e308],
        [1e300, 1e300],
        [5e-324, 0.0],
        [float("nan")],
        [1e16] * 3,
    ],
    ids=str,
)
def test_histograms_of_odd_values_have_every_finite_one(memory: Store, values: list[float]) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.tensor(values, dtype=torch.float64)})
    told = tensor_statistics(memory, "windeck", entry_of(memory), bins=8)
    finite = sum(x == x for x in values)
    if finite:
        assert int(told["histogram"].sum()) == finite
        assert (told["below"], told["above"]) == (0, 0)
        assert (np.diff(told["edges"]) > 0).all()
    else:
        assert told["histogram"] is None


def test_a_condition_may_be_text(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.tensor([1.0, -5.0, 3.0])})
    assert [*search(memory, "abs > 2")] == [*search(memory, parse("abs > 2"))]
    assert next(search(memory, "abs > 2")).count == 2
    with pytest.raises(ValueError, match="cannot parse the condition 'weight > 2', expected for"):
        next(search(memory, "weight > 2"))
    with pytest.raises(TypeError, match="a condition is of type int, expected str"):
        next(search(memory, 2))  # type: ignore[arg-type]


def test_what_is_no_number_is_skipped_and_says_so(memory: Store) -> None:
    packed = torch.zeros(4, dtype=torch.uint8)
    checkpoint.save(memory, step=1, model={"w": packed, "x": torch.ones(2)})
    manifest = read_manifest(memory, "windeck", find_commit(memory, "windeck", None))
    entry = manifest["tensors"]["model/w"]._replace(dtype="quint8")
    from windeck.checkpoint.read import search_tensor

    found = search_tensor(memory, "windeck", entry, nan())
    assert found.skipped == "elements of dtype quint8 are not numbers"
    with pytest.raises(TypeError, match="model/w has elements of dtype quint8, expected numbers"):
        tensor_statistics(memory, "windeck", entry)
    with pytest.raises(ValueError, match="has dtype 'float99', expected one that this windeck"):
        read_box(memory, "windeck", entry._replace(dtype="float99"), ((0, 1),))


def test_damage_is_an_error(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.ones(100)}, chunk_bytes=40)
    key = data_keys(memory, "t")[3]
    memory.delete_many([key])
    with pytest.raises(CorruptStoreError, match=f"{key.decode()} is missing, expected a chunk"):
        list(search(memory, nan()))


def test_memory_stays_bounded(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.zeros(8 << 20)})
    list(search(memory, parse("value == 1")))
    tracemalloc.start()
    try:
        (found,) = search(memory, parse("value == 0"), limit=10)
        assert found.count == 8 << 20
        # All of one chunk's places, before they are cut, are what is held at most.
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_no_torch_is_needed(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    checkpoint.save(url, step=1, model={"w": torch.arange(9.0)})
    program = (
        "import sys\n"
        "from windeck import checkpoint\n"
        f"found, = checkpoint.search({url!r}, 'value > 7')\n"
        "assert [match.index for match in found.matches] == [(8,)]\n"
        f"assert checkpoint.verify({url!r}, deep=True).ok\n"
        f"assert not checkpoint.diff({url!r}, 1, None)\n"
        f"assert checkpoint.copy({url!r}, 'memory://').generations == [1]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_rows_of_tables(memory: Store) -> None:
    core = ModelCore(4, 1)
    rng = np.random.default_rng(0)
    for _ in range(4):
        core.fill(rng.integers(-50, 50, 60).tolist(), rng, counted=0.1)
    for key, entry in core.ids.items():
        if entry.values is not None:
            entry.values = rng.normal(size=8).astype(np.float32)
            if key % 7 == 0:
                entry.values[2] = np.nan
    checkpoint.save(memory, step=1, model={}, embeddings={"user": ModelTable(core)})
    with checkpoint.open(memory) as found:
        table = found.table("user")
        cases: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
            ({"frequency": parse("value > 2")}, lambda e: e.frequency > 2),
            ({"version": parse("value < 3")}, lambda e: e.version < 3),
            ({"seen": parse("value == 4")}, lambda e: e.seen == 4),
            ({"values": nan()},
             lambda e: e.values is not None and bool(np.isnan(e.values[:4]).any())),
            ({"values": parse("abs > 1"), "frequency": parse("value == 1")},
             lambda e: e.values is not None and e.frequency == 1
             and bool((abs(e.values[:4]) > 1).any())),
        ]  # fmt: skip
        for given, holds in cases:
            count, rows = search_table(table, **given, limit=10**6)
            wanted = {key for key, entry in core.ids.items() if holds(entry)}
            assert {row.id for row in rows} == wanted
            assert count == len(rows) == len(wanted) > 0
            for row in rows:
                entry = core.ids[row.id]
                told = (entry.version, entry.frequency, entry.seen)
                assert (row.version, row.frequency, row.seen) == told
                if row.columns:
                    values = entry.values[list(row.columns)]
                    assert np.array_equal(values, np.array(row.values, np.float32), equal_nan=True)
        count, rows = search_table(table, frequency=parse("value > 0"), limit=3)
        assert (count, len(rows)) == (len(core.ids), 3)
