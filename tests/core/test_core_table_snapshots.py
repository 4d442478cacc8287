"""Snapshots of a native embedding table: of one moment, whatever goes on meanwhile."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from support.threads import at_once
from windeck import _core

Array = np.ndarray[Any, Any]


def whole(snapshot: Any, parts: int = 1) -> dict[str, Array]:
    """All a snapshot shows, read in so many ranges of buckets."""
    read = [
        snapshot.read(1024 * part // parts, 1024 * (part + 1) // parts) for part in range(parts)
    ]
    return {key: np.concatenate([some[key] for some in read]) for key in read[0]}


def test_a_snapshot_is_of_one_moment_while_a_thread_trains() -> None:
    """Each step takes 1 from every element: rows of one moment are all equal to -clock."""
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000)
    ones = np.ones((len(ids), 8), np.float32)
    core = _core.EmbeddingCore(8, slots=1, initializer="zeros")
    core.lookup(ids, insert=True)
    stop = threading.Event()

    def train() -> None:
        while not stop.is_set():
            core.apply(ids, ones, kind="sgd", lr=1.0)

    trainer = threading.Thread(target=train)
    trainer.start()
    held: list[tuple[Any, dict[str, Array]]] = []
    try:
        for turn in range(12):
            snapshot = core.snapshot()
            shown = whole(snapshot, parts=1 + turn % 3)
            assert (shown["values"][:, :8] == -snapshot.clock).all()
            assert (shown["versions"] == snapshot.clock).all()
            assert len(shown["keys"]) == len(ids)
            held.append((snapshot, shown))
            if turn % 4 == 3:
                held.pop(1)[0].close()
    finally:
        stop.set()
        trainer.join()
    assert len({snapshot.clock for snapshot, _ in held}) > 1
    for snapshot, shown in held:
        again = whole(snapshot)
        assert all(np.array_equal(again[key], shown[key]) for key in shown)


def test_slabs_are_copied_only_where_a_snapshot_holds_them() -> None:
    core = _core.EmbeddingCore(64, initializer="zeros")
    ids = np.arange(10_000)
    core.lookup(ids, insert=True)
    ones = np.ones((1, 64), np.float32)
    with core.snapshot() as snapshot:
        for i in (0, 5000, 9999):
            core.apply(np.array([i]), ones, kind="sgd", lr=1.0)
        assert not whole(snapshot)["values"].any()
    assert core.lookup(ids, insert=False).sum() == -3 * 64


def test_ids_that_are_counted_on_are_as_before_in_a_snapshot() -> None:
    core = _core.EmbeddingCore(1, initializer="zeros", admit_after=3)
    ids = np.arange(20_000)
    core.lookup(ids, insert=True)
    core.apply(ids[:0], np.ones((0, 1), np.float32), kind="sgd", lr=1.0)
    held = []
    for times in (1, 2, 3, 4):
        held.append((times, core.snapshot()))
        core.lookup(ids[::2], insert=True)
    for times, snapshot in held:
        shown = whole(snapshot)
        even = shown["keys"] % 2 == 0
        assert np.array_equal(shown["frequencies"], np.where(even, times, 1))
        assert np.array_equal(shown["seen"], np.where(even & (times > 1), 2, 1))
        assert np.array_equal(shown["admitted"], even & (times > 2))


@pytest.mark.parametrize("admit_after", [1, 2])
@pytest.mark.parametrize("back", ["looked up", "put in"])
def test_ids_that_come_back_are_dead_in_snapshots_before(back: str, admit_after: int) -> None:
    core = _core.EmbeddingCore(1, initializer="zeros", admit_after=admit_after)
    ids = np.array([1, 2, 3])
    core.lookup(ids, insert=True)
    core.remove(ids)
    before = core.snapshot()
    if back == "looked up":
        core.lookup(ids[:1], insert=True)
    else:
        with core.snapshot() as empty:
            facts = {key: value[:0] for key, value in empty.read(0, 1024).items()}
        one = np.ones(1, np.int64)
        facts |= {"keys": ids[:1], "versions": one, "frequencies": one, "seen": one}
        core.insert(**{**facts, "admitted": np.zeros(1, bool)})
    middle = core.snapshot()
    core.remove(ids[:1])
    assert sorted(before.dead(-1)[0].tolist()) == [1, 2, 3]
    assert sorted(middle.dead(-1)[0].tolist()) == [2, 3]
    assert sorted(core.snapshot().dead(-1)[0].tolist()) == [1, 2, 3]


def test_more_ids_than_are_kept_at_a_time() -> None:
    """A million entries are kept for the next range: here are more, read in many ways."""
    ids = np.arange(-650_000, 650_000)
    core = _core.EmbeddingCore(1, initializer="uniform", scale=1.0)
    values = core.lookup(ids, insert=True)
    buckets = _core.bucket_of(ids)
    order = np.lexsort((ids, buckets))
    snapshot = core.snapshot()
    assert np.array_equal(snapshot.counts(), np.bincount(buckets, minlength=1024))
    for parts in (1, 2, 7):
        shown = whole(snapshot, parts)
        assert np.array_equal(shown["keys"], ids[order])
        assert np.array_equal(shown["values"], values[order])
    for first, end in [(1000, 1024), (3, 4), (0, 0), (900, 1001), (0, 1024), (1024, 1024)]:
        wanted = order[(buckets[order] >= first) & (buckets[order] < end)]
        assert np.array_equal(snapshot.read(first, end)["keys"], ids[wanted])
    core.apply(ids[:10], np.ones((10, 1), np.float32), kind="sgd", lr=1.0)
    later = core.snapshot()
    changed = list(later.read(0, 1024, since=0)["keys"].tolist())
    assert len(changed) == len(ids)  # all were looked up for the step that came after clock 0
    assert sorted(later.read(0, 1024, since=1)["keys"].tolist()) == []
    assert later.counts(0).sum() == len(ids)


def test_what_changed_after_a_clock() -> None:
    core = _core.EmbeddingCore(2, slots=1)
    one = np.ones((1, 2), np.float32)
    core.lookup(np.arange(5), insert=True)
    for i in range(5):
        core.apply(np.array([i]), one, kind="adagrad", lr=0.1)  # version i + 1
    core.lookup(np.array([0]), insert=True)  # seen 6
    core.remove(np.array([3]))
    for since, expected in [
        (-1, [0, 1, 2, 4]),
        (1, [0, 1, 2, 4]),
        (2, [0, 2, 4]),
        (5, [0]),
        (6, []),
    ]:
        with core.snapshot() as snapshot:
            assert sorted(snapshot.read(0, 1024, since)["keys"].tolist()) == expected
            assert snapshot.counts(since).sum() == len(expected)
            assert snapshot.dead(since)[0].tolist() == ([3] if since < 6 else [])
    with core.snapshot() as snapshot:  # what is kept of one question is no answer to another
        for since, expected in [(2, [0, 2, 4]), (-1, [0, 1, 2, 4]), (5, [0]), (2, [0, 2, 4])]:
            for _ in range(2):
                assert sorted(snapshot.read(0, 1024, since)["keys"].tolist()) == expected
            assert snapshot.counts(since).sum() == len(expected)


def test_many_threads_read_one_snapshot() -> None:
    core = _core.EmbeddingCore(4, initializer="uniform", scale=1.0)
    core.lookup(np.arange(30_000), insert=True)
    snapshot = core.snapshot()
    expected = whole(snapshot)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            shown = whole(snapshot, int(rng.integers(1, 9)))
            assert all(np.array_equal(shown[key], expected[key]) for key in expected)

    at_once(6, read)


def test_ranges_in_any_order_by_many_threads_are_of_the_whole() -> None:
    """The first access to a bucket puts it in order, from any thread and for any range."""
    ids = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 30_000)
    core = _core.EmbeddingCore(4)
    core.lookup(ids, insert=True)
    buckets = _core.bucket_of(ids)
    order = np.lexsort((ids, buckets))
    keys, starts = ids[order], np.searchsorted(buckets[order], np.arange(1025))
    rows = core.lookup(keys, insert=False)

    def read(snapshot: Any, turn: int, number: int) -> None:
        rng = np.random.default_rng(10 * turn + number)
        for _ in range(60):
            first, end = (int(bucket) for bucket in np.sort(rng.integers(0, 1025, 2)))
            found, own = snapshot.read(first, end), slice(starts[first], starts[end])
            assert np.array_equal(found["keys"], keys[own]), (first, end)
            assert np.array_equal(found["values"], rows[own]), (first, end)

    for turn in range(5):
        with core.snapshot() as snapshot:
            at_once(4, partial(read, snapshot, turn))


def test_closed_while_it_is_read() -> None:
    core = _core.EmbeddingCore(4)
    core.lookup(np.arange(50_000), insert=True)
    for _ in range(20):
        snapshot = core.snapshot()
        told: list[Any] = []

        def read(snapshot: Any = snapshot, told: list[Any] = told) -> None:
            try:
                told.append(len(snapshot.read(0, 1024)["keys"]))
            except ValueError as error:
                told.append(str(error))

        reader = threading.Thread(target=read)
        reader.start()
        snapshot.close()
        reader.join()
        assert told in ([50_000], ["the snapshot is closed, expected one that is open"])


@pytest.mark.parametrize("removed", [0, 1, 9_000, 10_000])
def test_rows_that_move_when_others_go_stay_in_a_snapshot(removed: int) -> None:
    core = _core.EmbeddingCore(16, initializer="uniform", scale=1.0)
    ids = np.arange(10_000)
    core.lookup(ids, insert=True)
    snapshot = core.snapshot()
    before = whole(snapshot)
    core.remove(np.random.default_rng(removed).permutation(ids)[:removed])
    core.lookup(ids + 5_000, insert=True)
    after = whole(snapshot)
    assert all(np.array_equal(after[key], before[key]) for key in before)
    core.clear()
    again = whole(snapshot)
    assert all(np.array_equal(again[key], before[key]) for key in before)
