"""Tests of the errors of the native embedding table; it never crashes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from models import embedding_model as model
from support.programs import printed
from windeck import _core

Array = np.ndarray[Any, Any]
IDS = np.array([1, 2, 3])
NAN, INF = float("nan"), float("inf")


def table(**options: Any) -> Any:
    core = _core.EmbeddingCore(2, **{"slots": 1, **options})
    core.lookup(IDS, insert=True)
    return core


def state(core: Any) -> list[Any]:
    with core.snapshot() as snapshot:
        parts = snapshot.read(0, 1024)
        return [core.clock, *(v.tolist() for v in parts.values()), snapshot.dead()[0].tolist()]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dim": 0}, ValueError, "dim is 0, expected an integer from 1 to 1048576"),
        ({"dim": 2**20 + 1}, ValueError, "dim is 1048577, expected an integer"),
        ({"dim": 2**70}, ValueError, f"dim is {2**70}, expected an integer"),
        ({"dim": 2.0}, TypeError, "dim is of type float, expected an integer"),
        ({"dim": True}, TypeError, "dim is of type bool, expected an integer"),
        ({"slots": -1}, ValueError, "slots is -1, expected an integer from 0 to 8"),
        ({"slots": 9}, ValueError, "slots is 9, expected an integer from 0 to 8"),
        ({"initializer": "xavier"}, ValueError, "initializer is 'xavier', expected 'normal'"),
        ({"scale": NAN}, ValueError, r"scale is nan, expected a finite number from 0\.0"),
        ({"scale": -1}, ValueError, r"scale is -1, expected a finite number from 0\.0"),
        ({"scale": INF}, ValueError, r"scale is inf, expected a finite number from 0\.0"),
        ({"scale": 10**400}, ValueError, "scale is 1000"),
        ({"scale": "1"}, TypeError, "scale is of type str, expected a number"),
        ({"scale": True}, TypeError, "scale is of type bool, expected a number"),
        ({"slot_value": 1e39}, ValueError, r"slot_value is 1e\+39, expected a finite number"),
        ({"slot_value": NAN}, ValueError, "slot_value is nan, expected a finite number"),
        ({"seed": -1}, ValueError, r"seed is -1, expected an integer from 0 to 2\^64 - 1"),
        ({"admit_after": 0}, ValueError, "admit_after is 0, expected an integer from 1"),
        ({"first_bucket": -1}, ValueError, "first_bucket is -1, expected an integer from 0"),
        ({"end_bucket": 1025}, ValueError, "end_bucket is 1025, expected an integer from 0"),
        (
            {"first_bucket": 7, "end_bucket": 6},
            ValueError,
            "end_bucket is 6, expected an integer from 7 to 1024",
        ),
    ],
)
def test_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        _core.EmbeddingCore(**{"dim": 2, **options})


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (IDS.astype(np.int32), TypeError, "ids has dtype int32, expected int64"),
        (IDS.astype(np.uint64), TypeError, "ids has dtype uint64, expected int64"),
        (IDS.astype(">i8"), TypeError, "ids has dtype >i8, expected int64"),
        (IDS.astype(float), TypeError, "ids has dtype float64, expected int64"),
        (IDS[None], ValueError, r"ids has shape \(1, 3\), expected one dimension"),
        (7, TypeError, "ids is of type int, expected an int64 array"),
        ("abc", TypeError, "ids is of type str, expected an int64 array"),
        (None, TypeError, "ids is of type NoneType, expected an int64 array"),
        ([2**70], TypeError, "ids"),
    ],
)
@pytest.mark.parametrize("method", ["lookup", "look", "find", "facts", "row_values", "remove"])
def test_ids(method: str, ids: Any, error: type[Exception], words: str) -> None:
    core = table()
    before = state(core)
    call: Callable[..., Any] = core.lookup if method == "look" else getattr(core, method)
    options = {"insert": method == "lookup"} if method.startswith("look") else {}
    with pytest.raises(error, match=words):
        call(ids, **options)
    assert state(core) == before


def test_a_foreign_id_is_named_with_both_ranges() -> None:
    core = _core.EmbeddingCore(2, first_bucket=0, end_bucket=1)
    core.lookup(np.array([0]), insert=True)
    words = r"id -1 is of bucket 723, expected one of \[0, 1\), this table's"
    ids = np.array([0, -1, 1])
    grads = np.zeros((3, 2), np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: core.lookup(ids, insert=True),
        lambda: core.lookup(ids, insert=False),
        lambda: core.find(ids),
        lambda: core.facts(ids),
        lambda: core.row_values(ids),
        lambda: core.remove(ids),
        lambda: core.apply(ids, grads, kind="sgd", lr=1.0),
        lambda: core.insert(ids, ids, ids, ids, np.ones(3, bool), grads),
    ]
    before = state(core)
    for call in calls:
        with pytest.raises(ValueError, match=words):
            call()
        assert state(core) == before
    nothing = _core.EmbeddingCore(2, first_bucket=5, end_bucket=5)
    assert nothing.lookup(np.array([], np.int64), insert=True).shape == (0, 2)
    with pytest.raises(ValueError, match=r"expected one of \[5, 5\)"):
        nothing.lookup(np.array([0]), insert=False)


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        (np.zeros((3, 2)), TypeError, "out has dtype float64, expected float32"),
        (np.zeros((2, 3), np.float32), ValueError, r"out has shape \(2, 3\), expected \(3, 2\)"),
        (np.zeros((3, 4), np.float32)[:, ::2], ValueError, "out is not contiguous"),
        (np.zeros((2, 3), np.float32).T, ValueError, "out is not contiguous"),
        (read_only(np.zeros((3, 2), np.float32)), ValueError, "out is read-only"),
        ([[0.0] * 2] * 3, TypeError, "out is of type list, expected an array"),
        (IDS.view(np.float32).reshape(3, 2), ValueError, "out overlaps ids"),
    ],
)
@pytest.mark.parametrize("insert", [True, False])
def test_outputs(insert: bool, out: Any, error: type[Exception], words: str) -> None:
    core = table()
    before = state(core)
    with pytest.raises(error, match=words):
        core.lookup(IDS, out, insert=insert)
    assert state(core) == before
    assert IDS.tolist() == [1, 2, 3]


GRADS = np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"grads": GRADS.astype(np.float64)}, TypeError, "grads has dtype float64, expected float"),
        ({"grads": GRADS[:2]}, ValueError, r"grads has shape \(2, 2\), expected \(3, 2\)"),
        ({"grads": GRADS.ravel()}, ValueError, r"grads has shape \(6,\), expected \(3, 2\)"),
        ({"grads": None}, TypeError, "grads is of type NoneType, expected an array"),
        ({"kind": "lion"}, ValueError, "kind is 'lion', expected 'sgd', 'adagrad' or 'adam'"),
        ({"kind": "adam"}, ValueError, "the table has 1 slots, expected at least 2"),
        ({"lr": NAN}, ValueError, "lr is nan, expected a finite number from 0.0"),
        ({"lr": INF}, ValueError, "lr is inf, expected a finite number from 0.0"),
        ({"lr": -0.1}, ValueError, "lr is -0.1, expected a finite number from 0.0"),
        ({"lr": "fast"}, TypeError, "lr is of type str, expected a number"),
        ({"eps": NAN}, ValueError, "eps is nan"),
        ({"beta1": 1.0}, ValueError, r"beta1 is 1\.0, expected a finite number from 0\.0 to below"),
        ({"beta2": -0.5}, ValueError, r"beta2 is -0\.5, expected a finite number from 0\.0 to"),
        ({"weight_decay": NAN}, ValueError, "weight_decay is nan"),
        ({"threads": 0}, ValueError, "threads is 0, expected an integer from 1 to 1024"),
        ({"threads": 1.5}, TypeError, "threads is of type float, expected an integer"),
    ],
)
def test_updates(change: dict[str, Any], error: type[Exception], words: str) -> None:
    core = table()
    before = state(core)
    given: dict[str, Any] = {"grads": GRADS, "kind": "sgd", "lr": 0.1, **change}
    with pytest.raises(error, match=words):
        core.apply(IDS, given.pop("grads"), **given)
    assert state(core) == before


def test_strided_and_unaligned_input_is_copied() -> None:
    plain, strided = table(), table()
    grads = np.arange(6, dtype=np.float32).reshape(3, 2)
    plain.apply(IDS, grads, kind="sgd", lr=0.5)
    strided.apply(np.repeat(IDS, 2)[::2], np.asfortranarray(grads), kind="sgd", lr=0.5)
    assert state(strided) == state(plain)
    one = np.ones((1, 2), np.float32)
    plain.apply(IDS, np.repeat(one, 3, axis=0), kind="sgd", lr=0.5)
    strided.apply(IDS, read_only(np.broadcast_to(one, (3, 2))), kind="sgd", lr=0.5)
    assert state(strided) == state(plain)


@pytest.mark.parametrize(
    ("conditions", "error", "words"),
    [
        ({}, ValueError, "no condition is given, expected seen_before, l2_below or frequency"),
        ({"l2_below": NAN}, ValueError, "l2_below is nan, expected a finite number"),
        ({"l2_below": -1.0}, ValueError, r"l2_below is -1\.0, expected a finite number"),
        ({"seen_before": 1.0}, TypeError, "seen_before is of type float, expected an integer"),
        ({"frequency_below": "2"}, TypeError, "frequency_below is of type str, expected an int"),
    ],
)
def test_evictions(conditions: dict[str, Any], error: type[Exception], words: str) -> None:
    core = table()
    with pytest.raises(error, match=words):
        core.evict(**conditions)
    assert len(core) == 3


ROWS: dict[str, Any] = {
    "keys": np.array([7, 8, 9]),
    "versions": np.array([0, 1, 2]),
    "frequencies": np.array([1, 1, 1]),
    "seen": np.array([1, 2, 3]),
    "admitted": np.array([True, False, True]),
    "values": np.ones((2, 4), np.float32),
}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"keys": np.array([7, 2, 9])}, ValueError, "id 2 is in the table already, expected ids"),
        ({"keys": np.array([7, 8, 7])}, ValueError, "id 7 is given twice, expected each id once"),
        ({"keys": np.array([7, 8])}, ValueError, "versions has 3 entries, expected 2, as many as"),
        ({"versions": np.array([0, 1, -1])}, ValueError, "the version of id 9 is -1, expected an"),
        ({"seen": np.array([0, 2**62 + 1, 1])}, ValueError, f"the seen of id 8 is {2**62 + 1}"),
        ({"frequencies": np.array([-5, 1, 1])}, ValueError, "the frequency of id 7 is -5"),
        ({"seen": np.array([1, 2])}, ValueError, "seen has 2 entries, expected 3, as many as keys"),
        ({"seen": np.array([1.0])}, TypeError, "seen has dtype float64, expected int64"),
        ({"admitted": np.ones(3, np.int8)}, TypeError, "admitted has dtype int8, expected bool"),
        ({"admitted": np.ones(4, bool)}, ValueError, r"admitted has shape \(4,\), expected \(3,\)"),
        ({"admitted": np.ones(3, bool)}, ValueError, r"values has shape \(2, 4\), expected \(3, 4"),
        ({"values": np.ones((2, 2), np.float32)}, ValueError, r"values has shape \(2, 2\), expec"),
        ({"values": np.ones((2, 4))}, TypeError, "values has dtype float64, expected float32"),
    ],
)
def test_rows_put_in(change: dict[str, Any], error: type[Exception], words: str) -> None:
    core = table()
    before = state(core)
    with pytest.raises(error, match=words):
        core.insert(**{**ROWS, **change})
    assert state(core) == before
    core.insert(**ROWS)
    assert (len(core), core.counted) == (5, 1)
    assert core.row_values(np.array([7]))[0].tolist() == [1.0] * 4


@pytest.mark.parametrize("clock", [-1, 2**62 + 1, 1.0, None])
def test_clocks(clock: Any) -> None:
    core = table()
    with pytest.raises((ValueError, TypeError), match="clock is"):
        core.set_clock(clock)
    assert core.clock == 0
    core.set_clock(2**62)
    core.lookup(IDS, insert=True)
    assert core.facts(IDS)["seen"].tolist() == [2**62 + 1] * 3


def test_memory_that_is_not_there() -> None:
    core = table()
    before = state(core)
    with pytest.raises(ValueError, match="ids is -1, expected an integer from 0"):
        core.reserve(-1)
    with pytest.raises(MemoryError):
        core.reserve(2**57)
    with pytest.raises(MemoryError):
        core.reserve(2**62)
    assert state(core) == before
    core.reserve(10_000)
    assert state(core) == before


STARVED = """
import resource
import sys
import numpy as np
from windeck import _core
core, fresh = (_core.EmbeddingCore(64, initializer="uniform", scale=0.25) for _ in range(2))
ids = np.arange(200_000)
core.lookup(ids[:9], insert=True)
core.remove(ids[5:9])
ones, out = np.ones(len(ids), np.int64), np.ones((len(ids), 64), np.float32)
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held + (32 << 20), hard))
try:
    if sys.argv[1] == "lookup":
        core.lookup(ids, out, insert=True)
    else:
        core.insert(ids[5:], *[ones[5:]] * 3, ones[5:] > 0, out[5:])
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    gone = core.snapshot().dead()[0].tolist()
    whole = np.array_equal(core.row_values(ids), fresh.row_values(ids))
    print(len(core), core.find(ids).sum(), gone, whole)
"""


def test_a_lookup_without_memory_leaves_whole_rows() -> None:
    rows, found, *gone, whole = printed(STARVED, "lookup").split()
    assert (gone, whole) == (["[]"], "True")
    assert 9 < int(rows) == int(found) < 200_000


def test_an_insert_without_memory_changes_nothing() -> None:
    gone = sorted([5, 6, 7, 8], key=lambda i: (model.bucket_of(i), i))
    assert printed(STARVED, "insert") == f"5 5 {gone} True\n"


@pytest.mark.parametrize("first", [-1, 1025, 2**65, 1.5])
def test_ranges_of_buckets(first: Any) -> None:
    with (
        table().snapshot() as snapshot,
        pytest.raises((ValueError, TypeError), match="first_bucket is"),
    ):
        snapshot.read(first, 1024)


def test_a_range_that_ends_before_it_begins() -> None:
    with (
        table().snapshot() as snapshot,
        pytest.raises(ValueError, match="end_bucket is 3, expected an integer from 4 to 1024"),
    ):
        snapshot.read(4, 3)


def test_a_closed_snapshot() -> None:
    snapshot = table().snapshot()
    with snapshot as entered:
        assert entered is snapshot
    snapshot.close()
    calls: list[Callable[[], Any]] = [
        lambda: snapshot.clock,
        lambda: snapshot.width,
        lambda: len(snapshot),
        snapshot.counts,
        snapshot.dead,
        snapshot.__enter__,
        lambda: snapshot.read(0, 1024),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="the snapshot is closed, expected one that is open"):
            call()


def test_a_snapshot_outlives_its_table() -> None:
    core = table()
    before = state(core)
    snapshot = core.snapshot()
    del core
    assert [v.tolist() for v in snapshot.read(0, 1024).values()] == before[1:-1]


@pytest.mark.parametrize("name", ["EmbeddingCore", "EmbeddingSnapshot"])
def test_made_without_a_constructor(name: str) -> None:
    kind = getattr(_core, name)
    made = kind.__new__(kind)
    for attribute in dir(kind):
        if attribute.startswith("_") and attribute not in ("__len__", "__enter__"):
            continue
        with pytest.raises(TypeError, match=r"made by __new__ alone|incompatible|missing"):
            getattr(made, attribute)()  # a property raises before the call
    with pytest.raises(TypeError, match="No constructor defined"):
        _core.EmbeddingSnapshot()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_neither_is_pickled(protocol: int) -> None:
    core = table()
    for thing in (core, core.snapshot()):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(thing, protocol)
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.copy(core)


def odd(rng: np.random.Generator, array: Array) -> Any:
    """Return sometimes another object than the array that is expected."""
    if rng.random() < 0.9:
        return array
    others = [array[::-1], array.astype(np.float64), array[:1], array[None], None, array.tolist()]
    return others[int(rng.integers(len(others)))]


def one_random_call(rng: np.random.Generator, core: Any) -> Any:
    ids = rng.integers(-20, 20, int(rng.integers(0, 9)))
    count = len(ids)
    flags = rng.random(count) < 0.5
    call = int(rng.integers(6))
    if call == 0:
        return core.lookup(odd(rng, ids), insert=bool(rng.random() < 0.7))
    if call == 1:
        grads = np.ones((count, 2), np.float32)
        kind = str(rng.choice(["sgd", "adagrad", "adam", "?"]))
        return core.apply(odd(rng, ids), odd(rng, grads), kind=kind, lr=0.1)
    if call == 2:
        values = np.ones((int(flags.sum()), 4), np.float32)
        numbers = rng.integers(-1, 50, (3, count))
        return core.insert(odd(rng, ids), *numbers, odd(rng, flags), odd(rng, values))
    if call == 3:
        return core.remove(odd(rng, ids))
    if call == 4:
        return core.evict(l2_below=float(rng.choice([0.001, 3.0, NAN])))
    bounds = rng.integers(-100, 1200, 2).tolist()
    with core.snapshot() as snapshot:
        return snapshot.read(*bounds)


def test_random_calls_are_answered_or_refused() -> None:
    told: dict[str, int] = {}
    for seed in range(60):
        rng = np.random.default_rng(seed)
        core = _core.EmbeddingCore(2, slots=1, admit_after=int(rng.integers(1, 3)))
        for _ in range(80):
            try:
                one_random_call(rng, core)
                answer = "answered"
            except (TypeError, ValueError) as error:
                answer = type(error).__name__ if str(error) else "silent"
            told[answer] = told.get(answer, 0) + 1
        shown = core.snapshot().read(0, 1024)
        ids = shown["keys"].tolist()
        assert ids == sorted(set(ids), key=lambda i: (model.bucket_of(i), i))
        assert shown["admitted"].sum() == len(core)
    assert "silent" not in told
    assert min(told["answered"], told["TypeError"], told["ValueError"]) > 200
