"""The native embedding table: what an id begins with, counts, updates, evictions."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import numpy as np
import pytest

from models import embedding_model as model
from windeck import _core

Array = np.ndarray[Any, Any]

LEAST, MOST = -(2**63), 2**63 - 1
EDGES = np.array([0, -1, 1, LEAST, MOST])

#: Published: the bits of what these ids begin with. A change of any changes every table.
GOLDEN_NORMAL = [
    [0x3F4781B8, 0x3F07D175, 0xC01CE7B2, 0x3E6CBA71],
    [0xBFE3C4C0, 0x3F1253A9, 0xBFA6519E, 0xBE1415B7],
    [0x3F9243BB, 0xBDE2B4D6, 0x3E3AF859, 0xC018F479],
    [0x3F786C01, 0x3EEA20ED, 0xBFEC3F95, 0xBD535050],
    [0xBF83D90A, 0xBF05E9AF, 0xBEF6E15B, 0xBF4AA44F],
]


def small(**options: Any) -> Any:
    return _core.EmbeddingCore(3, initializer="uniform", scale=1.0, **options)


def ones(count: int, dim: int = 3) -> Array:
    return np.ones((count, dim), np.float32)


def test_the_bits_an_id_begins_with_are_published() -> None:
    core = _core.EmbeddingCore(4, seed=42, scale=1.0)
    assert core.lookup(EDGES, insert=False).view(np.uint32).tolist() == GOLDEN_NORMAL
    assert _core.bucket_of(EDGES).tolist() == [0, 723, 346, 151, 361]
    assert _core.bucket_of(np.arange(-500, 500)).tolist() == [
        model.bucket_of(i) for i in range(-500, 500)
    ]


def test_normal_values_are_the_quantiles_of_the_uniform_ones() -> None:
    core = _core.EmbeddingCore(1 << 15, seed=2**64 - 1, scale=0.5)
    values = core.lookup(np.array([-77]), insert=False)[0]
    quantile = statistics.NormalDist(0, 0.5).inv_cdf
    expected = [quantile(u) for u in model.units(2**64 - 1, -77, 1 << 15)]
    np.testing.assert_allclose(values, expected, rtol=3e-7, atol=1e-9)
    assert abs(values.mean()) < 5 * 0.5 / 2**7.5
    assert abs(values.std() - 0.5) < 5 * 0.5 / 2**8


def test_uniform_and_zeros() -> None:
    core = small(seed=9)
    expected = [model.uniform(9, int(i), 3, 1.0) for i in EDGES]
    assert np.array_equal(core.lookup(EDGES, insert=False), expected)
    zeros = _core.EmbeddingCore(3, initializer="zeros", scale=5.0)
    assert not zeros.lookup(EDGES, insert=True).any()


def test_what_an_id_begins_with_depends_on_seed_and_id_alone() -> None:
    ids = np.arange(-2000, 2000)
    plain = small(seed=1).lookup(ids, insert=False)
    stored = small(seed=1)
    order = np.random.default_rng(0).permutation(len(ids))
    stored.lookup(ids[order[:3000]], insert=True)
    assert np.array_equal(stored.lookup(ids, insert=True), plain)
    other = small(seed=2).lookup(ids, insert=False)
    assert np.isin(other, plain).mean() < 0.01  # float32 has not that many values
    assert len(np.unique(np.concatenate([plain, other]), axis=0)) == 8000


@pytest.mark.parametrize("admit_after", [1, 2, 3, 7])
def test_an_id_gets_its_row_at_its_nth_occurrence(admit_after: int) -> None:
    core = small(admit_after=admit_after)
    for times in range(1, 10):
        core.lookup(np.array([LEAST]), insert=True)
        assert core.find(np.array([LEAST, MOST])).tolist() == [times >= admit_after, False]
        assert core.facts(np.array([LEAST]))["frequencies"] == [times]
        core.lookup(np.array([LEAST, MOST]), insert=False)
    assert (len(core), core.counted) == (1, 0)
    core.lookup(np.array([5] * (admit_after - 1) + [6] * admit_after, np.int64), insert=True)
    assert core.find(np.array([5, 6])).tolist() == [False, True]


def test_gradients_of_ids_without_a_row_are_left_out() -> None:
    core = small(admit_after=2)
    before = core.lookup(np.array([1, 2, 2, 3]), insert=True)
    assert core.apply(np.array([1, 2, 3, 4]), ones(4), kind="sgd", lr=1.0) == 1
    after = core.lookup(np.array([1, 2, 2, 3]), insert=False)
    assert np.array_equal(after, before - np.array([[0], [1], [1], [0]], np.float32))
    assert core.clock == 1
    assert core.apply(np.array([], np.int64), ones(0), kind="sgd", lr=1.0) == 0
    assert core.clock == 2


def test_gradients_of_one_id_are_summed_in_order_of_occurrence() -> None:
    core = _core.EmbeddingCore(1, initializer="zeros")
    core.lookup(np.array([3]), insert=True)
    # In float32, in this order only, the sum is 1.
    grads = np.array([[1e8], [-1e8], [1.0], [5.0]], np.float32)
    core.apply(np.array([3, 3, 3, 4]), grads, kind="sgd", lr=1.0)
    assert core.lookup(np.array([3]), insert=False).tolist() == [[-1.0]]


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("eps", [None, 0.5])
def test_updates_are_those_of_torch(kind: str, weight_decay: float, eps: float | None) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    ids = np.array([5, -9, 2**40])
    core = _core.EmbeddingCore(16, slots=2, seed=5, scale=1.0)
    weight = torch.nn.Parameter(torch.from_numpy(core.lookup(ids, insert=True).copy()))
    options: dict[str, Any] = {"lr": 0.05, "weight_decay": weight_decay}
    if eps is not None and kind != "sgd":  # as others have it, and so large that it counts
        options["eps"] = eps
    kinds = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam"}
    optimizer = getattr(torch.optim, kinds[kind])([weight], **options)
    options.setdefault("eps", 1e-8 if kind == "adam" else 1e-10)
    for _ in range(40):
        grads = rng.standard_normal((3, 16)).astype(np.float32)
        weight.grad = torch.from_numpy(grads.copy())
        optimizer.step()
        core.apply(ids, grads, kind=kind, **options)
    np.testing.assert_allclose(
        core.lookup(ids, insert=False), weight.detach().numpy(), rtol=2e-5, atol=2e-6
    )


def test_lazy_adam_is_sparse_adam() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    ids = np.arange(20)
    core = _core.EmbeddingCore(4, slots=2)
    embedding = torch.nn.Embedding(20, 4, sparse=True)
    embedding.weight.data = torch.from_numpy(core.lookup(ids, insert=True).copy())
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.01)
    for _ in range(30):
        some = rng.integers(0, 20, 6)
        grads = rng.standard_normal((6, 4)).astype(np.float32)
        optimizer.zero_grad()
        (embedding(torch.from_numpy(some)) * torch.from_numpy(grads)).sum().backward()
        optimizer.step()
        core.apply(some, grads, kind="adam", lr=0.01, eps=1e-8)
    expected = embedding.weight.detach().numpy()
    np.testing.assert_allclose(core.lookup(ids, insert=False), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_results_do_not_depend_on_threads(kind: str, dim: int) -> None:
    cores = [_core.EmbeddingCore(dim, slots=2, admit_after=2, seed=3) for _ in range(3)]
    rng = np.random.default_rng(dim)
    for _ in range(4):
        ids = rng.integers(-15_000, 15_000, 30_000)
        grads = rng.standard_normal((len(ids), dim)).astype(np.float32)
        looked = [
            core.lookup(ids, insert=True, threads=threads)
            for core, threads in zip(cores, [1, 2, None], strict=True)
        ]
        assert np.array_equal(looked[0], looked[1])
        assert np.array_equal(looked[0], looked[2])
        for core, threads in zip(cores, [1, 2, None], strict=True):
            core.apply(ids, grads, kind=kind, lr=0.1, threads=threads)
    everything = [core.snapshot().read(0, 1024) for core in cores]
    for key, values in everything[0].items():
        assert all(np.array_equal(values, other[key]) for other in everything[1:])
    rows = [cores[0].row_values(ids, threads=threads) for threads in (1, 2, 5)]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_a_large_table_grows_shrinks_and_grows_again() -> None:
    core = small(slots=1)
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(LEAST, MOST, 200_000))
    first = core.lookup(ids, insert=True)
    assert len(core) == len(ids)
    full = core.bytes
    gone = rng.permutation(ids)[: len(ids) * 9 // 10]
    assert core.remove(gone) == len(gone)
    assert core.remove(gone) == 0
    assert core.bytes < full + 16 * 2 * 2**18
    left = ~np.isin(ids, gone)
    assert np.array_equal(core.find(ids), left)
    assert np.array_equal(core.lookup(ids, insert=False), first)
    assert np.array_equal(core.lookup(ids, insert=True), first)
    with core.snapshot() as snapshot:
        assert snapshot.dead()[0].tolist() == []
        assert sorted(snapshot.read(0, 1024)["keys"].tolist()) == ids.tolist()
    core.clear()
    assert (len(core), core.counted, core.clock) == (0, 0, 0)
    assert core.bytes < full / 4


def test_shards_hold_their_buckets_and_make_one_table() -> None:
    ids = np.arange(-3000, 3000)
    buckets = _core.bucket_of(ids)
    whole = small(seed=6)
    expected = whole.lookup(ids, insert=True)
    shards = [small(seed=6, first_bucket=a, end_bucket=a + 256) for a in range(0, 1024, 256)]
    for number, shard in enumerate(shards):
        mine = (buckets >= 256 * number) & (buckets < 256 * (number + 1))
        assert np.array_equal(shard.lookup(ids[mine], insert=True), expected[mine])
    read = [shard.snapshot().read(0, 1024) for shard in shards]
    for key, values in whole.snapshot().read(0, 1024).items():
        assert np.array_equal(np.concatenate([part[key] for part in read]), values)


def test_forgetting_the_dead_is_history_where_there_are_some() -> None:
    core = _core.EmbeddingCore(2)
    core.lookup([1, 2, 3], insert=True)
    core.remove([1])
    core.apply([2], np.ones((1, 2), np.float32), kind="sgd", lr=0.1)
    core.remove([3])
    told = []
    for clock in (0, 1, 1, 2, 2):  # one died at 1, one at 2
        core.forget_dead(clock)
        told.append((core.history, len(core.snapshot().dead()[0])))
    assert told == [(0, 2), (1, 1), (1, 1), (2, 0), (2, 0)]


def test_evicted_by_age_frequency_and_length() -> None:
    core = small(slots=1)
    core.lookup(np.array([1, 2, 2, 3]), insert=True)
    for _ in range(3):
        core.apply(np.array([3]), ones(1), kind="adagrad", lr=10.0)
    core.lookup(np.array([4]), insert=True)
    assert core.evict(seen_before=4, frequency_below=2, l2_below=2.0).tolist() == [1]
    assert core.evict(l2_below=1e9, frequency_below=0).tolist() == []
    assert sorted(core.evict(seen_before=4).tolist()) == [2, 3]
    keys, clocks = core.snapshot().dead()
    assert sorted(keys.tolist()) == [1, 2, 3]
    assert clocks.tolist() == [4, 4, 4]
    assert core.snapshot().dead(since=4)[0].tolist() == []
    core.lookup(np.array([2]), insert=True)
    assert 2 not in core.snapshot().dead()[0].tolist()


@pytest.mark.parametrize("admit_after", [1, 3])
def test_evicted_where_all_conditions_hold(admit_after: int) -> None:
    """Every combination, at the very numbers that ids have; those that are only counted too."""
    bounds = (None, 1, 2, 3), (None, 0.0, 1.0, 1e9), (None, 1, 3, 4)
    gone = set()
    for seen, length, frequency in itertools.product(*bounds):
        given = {"seen_before": seen, "l2_below": length, "frequency_below": frequency}
        conditions: dict[str, Any] = {
            name: bound for name, bound in given.items() if bound is not None
        }
        if not conditions:
            continue
        core = small(admit_after=admit_after)
        expected = model.Table(3, scale=1.0, admit_after=admit_after)
        for ids in ([1, 2, 2, 3, 3, 3], [4, 4, 4, 5], [3, 6]):
            core.lookup(np.array(ids), insert=True)
            expected.lookup(ids, insert=True)
            core.apply(np.array([3, 4]), ones(2), kind="sgd", lr=1.0)
            expected.apply([3, 4], ones(2), "sgd", lr=1.0)
        assert core.evict(**conditions).tolist() == expected.evict(**conditions), conditions
        model.assert_shows(core.snapshot(), expected.snapshot())
        gone.add(len(expected.dead))
    assert len(gone) > 4  # as many as there are
