"""Orders written in Python: bijections with exact inverses, and the promise of each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from windeck.orders import block_group

Factory = Callable[..., Any]

FACTORIES: dict[str, Factory] = {
    "permutation": wd.Permutation,
    "sequential": wd.Sequential,
    "blocks of 1": partial(wd.BlockPermutation, block_size=1),
    "blocks of 3": partial(wd.BlockPermutation, block_size=3),
    "blocks of 1000": partial(wd.BlockPermutation, block_size=1000),
    "2 blocks of 4": partial(wd.BlockPermutation, block_size=4, blocks_in_buffer=2),
    "all blocks of 5": partial(wd.BlockPermutation, block_size=5, blocks_in_buffer=10**12),
    "1 lane": partial(wd.Lanes, lanes=1),
    "4 lanes": partial(wd.Lanes, lanes=4),
    "1000 lanes": partial(wd.Lanes, lanes=1000),
    "4 lanes of units of 3": partial(wd.Lanes, lanes=4, unit=3),
    "1 lane of one unit": partial(wd.Lanes, lanes=1, unit=10**18),
    "3 lanes of shuffled blocks": partial(
        wd.Lanes, lanes=3, unit=2, order=partial(wd.BlockPermutation, block_size=5)
    ),
}


def offsets(*lengths: int) -> npt.NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def assert_is_an_order(order: Any) -> None:
    """All ways to read an order agree with item by item, and with the inverse."""
    n = len(order)
    assert order.size == n
    samples = [order[p] for p in range(n)]
    assert all(type(sample) is int for sample in samples)
    assert sorted(samples) == list(range(n))
    everything = np.array(samples, dtype=np.int64)
    positions = np.arange(n)
    for found in (order[:], order.slice(0, n), order.take(positions)):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, everything)
    np.testing.assert_array_equal(order.index(everything), positions)
    assert [order.index(sample) for sample in samples] == list(range(n))
    np.testing.assert_array_equal(order[n // 3 : -1 : 2], everything[n // 3 : -1 : 2])
    np.testing.assert_array_equal(order[::-1], everything[::-1])
    np.testing.assert_array_equal(order[5:2], everything[5:2])
    assert order[-1] == samples[-1]
    assert order[np.int64(0)] == samples[0]
    assert order.index(np.int64(samples[0])) == 0
    out = np.full(n, -1)
    assert order.slice(0, n, out) is out
    np.testing.assert_array_equal(out, everything)
    assert list(order) == samples


@pytest.mark.parametrize("name", FACTORIES)
def test_every_small_size_is_an_order(name: str) -> None:
    for size in range(1, 41):
        assert_is_an_order(FACTORIES[name](size, seed=5, epoch=size))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(0, 4), st.integers(0, 9))
def test_given_blocks_are_an_order(lengths: list[int], buffer: int, epoch: int) -> None:
    borders = offsets(*lengths, 1)
    order = wd.BlockPermutation(
        int(borders[-1]), block_offsets=borders, blocks_in_buffer=buffer, seed=1, epoch=epoch
    )
    assert_is_an_order(order)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("size", [10**12 + 7, 2**62, 2**63 - 1])
def test_huge_orders_cost_no_more(name: str, size: int) -> None:
    order = FACTORIES[name](size, seed=2**64 - 1, epoch=2**64 - 1)
    positions = np.array([size * i // 50 for i in range(50)], dtype=np.int64)
    samples = order.take(positions)
    assert samples.min() >= 0
    assert samples.max() < size
    np.testing.assert_array_equal(order.index(samples), positions)
    np.testing.assert_array_equal(order.slice(size - 3, size), [order[-3], order[-2], order[-1]])


@pytest.mark.parametrize("name", FACTORIES)
def test_equality_copies_and_pickles(name: str) -> None:
    order, same = (FACTORIES[name](20, seed=3, epoch=1) for _ in range(2))
    assert order == same
    assert hash(order) == hash(same)
    assert order != FACTORIES[name](21, seed=3, epoch=1)
    assert order != "order"
    for twin in (pickle.loads(pickle.dumps(order)), copy.copy(order), copy.deepcopy(order)):
        assert twin == order
        assert repr(twin) == repr(order)
        np.testing.assert_array_equal(twin[:], order[:])


def test_equality_looks_at_options() -> None:
    borders = offsets(3, 7, 10)
    order = wd.BlockPermutation(20, block_offsets=borders)
    assert order == wd.BlockPermutation(20, block_offsets=borders.copy())
    assert order != wd.BlockPermutation(20, block_offsets=offsets(4, 6, 10))
    assert order != wd.BlockPermutation(20, block_size=4)
    assert order != wd.BlockPermutation(20, block_offsets=borders, blocks_in_buffer=1)
    assert wd.Lanes(20, lanes=4) != wd.Lanes(20, lanes=5)
    assert wd.Sequential(20, seed=1) == wd.Sequential(20, seed=2)


@pytest.mark.parametrize("size", [6, 9, 10, 31, 1003])
def test_every_full_batch_is_one_block(size: int) -> None:
    for epoch in range(8):
        order = wd.BlockPermutation(size, block_size=3, epoch=epoch)
        full = order[: size // 3 * 3].reshape(-1, 3)
        assert (np.diff(full, axis=1) == 1).all()


@pytest.mark.parametrize("buffer", [0, 4])
def test_the_phase_differs_from_epoch_to_epoch(buffer: int) -> None:
    size, length = 1009, 10
    factory = partial(wd.BlockPermutation, block_size=length, blocks_in_buffer=buffer)
    group = length * max(buffer, 1)
    phases = {int(factory(size, seed=0, epoch=epoch)[:group].min() % length) for epoch in range(60)}
    assert len(phases) == 10


def test_blocks_are_shuffled_and_not_only_rotated() -> None:
    first, second = (wd.BlockPermutation(1000, block_size=10, epoch=e)[::10] for e in (0, 1))
    steps = np.abs(np.diff(first)) // 10
    assert len(np.unique(steps)) > 30
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize("size", [80, 83])
def test_no_more_blocks_are_live_than_the_buffer_holds(size: int) -> None:
    for epoch in range(5):
        order = wd.BlockPermutation(size, block_size=4, blocks_in_buffer=3, epoch=epoch)
        groups = [order[start : start + 12] for start in range(0, size, 12)]
        for group in groups[:-1]:
            runs = np.flatnonzero(np.diff(np.sort(group)) != 1).size + 1
            assert runs <= 3
        assert any((np.diff(group) != 1).sum() > 3 for group in groups)


def test_given_blocks_stay_whole_and_are_permuted() -> None:
    borders = offsets(5, 0, 1, 7, 2)
    order = wd.BlockPermutation(15, block_offsets=borders, seed=4)
    starts = [int(s) for s in order[:] if s in borders[:-1]]
    assert sorted(starts) == [0, 5, 6, 13]
    together = np.concatenate([np.arange(s, borders[borders > s][0]) for s in starts])
    np.testing.assert_array_equal(order[:], together)
    seen = {tuple(wd.BlockPermutation(15, block_offsets=borders, seed=s)[:]) for s in range(300)}
    assert len(seen) == 24


@pytest.mark.parametrize(("size", "lanes"), [(40, 4), (43, 4), (5, 4), (4, 4), (3, 4), (9, 1)])
def test_rows_of_lanes_continue(size: int, lanes: int) -> None:
    for epoch in range(5):
        order = wd.Lanes(size, lanes=lanes, epoch=epoch)[:]
        assert (order[lanes:] - order[:-lanes] == 1).all()


def test_lanes_change_rows_from_epoch_to_epoch() -> None:
    assert len({tuple(wd.Lanes(43, lanes=4, epoch=e)[:4]) for e in range(60)}) == 6


def dealt(samples: list[int], lanes: int, unit: int) -> list[int]:
    """Model of lanes: deal units to lanes, cut the samples at the lanes' lengths, deal again."""
    size = len(samples)
    lane_of_position = [position // unit % lanes for position in range(size)]
    stretches, start = [], 0
    for lane in range(lanes):
        count = lane_of_position.count(lane)
        stretches.append(iter(samples[start : start + count]))
        start += count
    return [next(stretches[lane]) for lane in lane_of_position]


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("unit", [1, 2, 3, 5, 8, 50])
def test_lanes_cut_an_order_into_stretches(lanes: int, unit: int) -> None:
    inner = partial(wd.BlockPermutation, block_size=4, blocks_in_buffer=2)
    for size in range(1, 48):
        order = wd.Lanes(size, lanes=lanes, unit=unit, order=inner, seed=5, epoch=2)
        expected = dealt(inner(size, seed=5, epoch=2)[:].tolist(), lanes, unit)
        assert order[:].tolist() == expected
        np.testing.assert_array_equal(order.index(order[:]), np.arange(size))


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("unit", [1, 2, 3, 5, 8, 50])
def test_lanes_without_an_order_shuffle_lanes_of_equal_length(lanes: int, unit: int) -> None:
    for size in range(1, 48):
        order = wd.Lanes(size, lanes=lanes, unit=unit, seed=size)
        mine = [
            [int(order[p]) for p in range(size) if p // unit % lanes == lane]
            for lane in range(lanes)
        ]
        plain = dealt(list(range(size)), lanes, unit)
        stored = [
            [plain[p] for p in range(size) if p // unit % lanes == lane] for lane in range(lanes)
        ]
        assert sorted(mine) == sorted(stored)
        np.testing.assert_array_equal(order.index(order[:]), np.arange(size))


@pytest.mark.parametrize(("ranks", "batch"), [(1, 24), (2, 12), (4, 6), (3, 8), (6, 4), (12, 2)])
def test_each_rank_reads_lanes_of_its_own(ranks: int, batch: int) -> None:
    lanes, unit, size = 12, 2, 500
    order = wd.Lanes(size, lanes=lanes, unit=unit, order=wd.Sequential)
    whole_steps = size // (ranks * batch)
    for rank in range(ranks):
        positions = [
            step * ranks * batch + rank * batch + place
            for step in range(whole_steps)
            for place in range(batch)
        ]
        read = np.sort(order.take(np.array(positions)))
        stretches = int((np.diff(read) > 1).sum()) + 1
        assert stretches <= lanes // ranks


def test_lanes_of_a_huge_order_have_a_short_unit() -> None:
    size = 2**63 - 1
    for lanes, unit in ((1, 2), (2, 3), (5, 2**61), (2**62, 2), (3, 2**62)):
        order = wd.Lanes(size, lanes=lanes, unit=unit, order=wd.Sequential)
        ends = np.array([0, 1, size // 2, size - 2, size - 1])
        np.testing.assert_array_equal(order.index(order.take(ends)), ends)
        np.testing.assert_array_equal(order.take(order.index(ends)), ends)


def test_epochs_are_hashed_not_added() -> None:
    for factory in (
        partial(wd.BlockPermutation, block_size=4),
        partial(wd.BlockPermutation, block_size=4, blocks_in_buffer=4),
        partial(wd.Lanes, lanes=100),
    ):
        assert (factory(500, seed=42, epoch=1)[:] != factory(500, seed=43, epoch=0)[:]).any()


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: wd.Sequential(0), ValueError, "size is 0, expected an integer from 1 to"),
    (lambda: wd.Sequential(-3), ValueError, "size is -3, expected"),
    (lambda: wd.Sequential(2**63), ValueError, "size is 9223372036854775808, expected"),
    (lambda: wd.Sequential(1.5), TypeError, "size is of type float, expected an integer"),  # type: ignore[arg-type]
    (lambda: wd.Sequential(5, seed=-1), ValueError, "seed is -1, expected an integer from 0 to"),
    (lambda: wd.Sequential(5)[5], IndexError, r"position 5 is out of range, .* \[0, 5\)"),
    (lambda: wd.Sequential(5)[-6], IndexError, "position -6 is out of range"),
    (lambda: wd.Sequential(5)[1.0], TypeError, "position is of type float"),  # type: ignore[index]
    (lambda: wd.Sequential(5).take(np.array([1, 5])), IndexError, r"position 5 at \[1\] is out"),
    (lambda: wd.Sequential(5).take(np.array([-1])), IndexError, r"position -1 at \[0\] is out"),
    (lambda: wd.Sequential(5).take(np.array([1.0])), TypeError, "dtype float64, expected int64"),
    (lambda: wd.Sequential(5).index(5), IndexError, "sample 5 is out of range"),
    (lambda: wd.Sequential(5).index(-1), IndexError, "sample -1 is out of range"),
    (lambda: wd.Sequential(5).index(10**30), IndexError, "sample 1000000000.* is out of range"),
    (lambda: wd.Sequential(5).index(1.0), TypeError, "samples is of type float"),
    (lambda: wd.Sequential(5).slice(0, 6), IndexError, "stop 6 is out of range"),
    (lambda: wd.Sequential(5).slice(3, 2), ValueError, "stop is 2, expected at least start, 3"),
    (lambda: wd.Lanes(5, lanes=0), ValueError, "`lanes` must be at least 1, got 0"),
    (lambda: wd.Lanes(5, lanes=2.0), TypeError, "`lanes` must be an integer, got float"),  # type: ignore[arg-type]
    (lambda: wd.Lanes(5, lanes=2**63), ValueError, "`lanes` must be at most 9223372036854775807"),
    (lambda: wd.Lanes(5, lanes=2, unit=0), ValueError, "`unit` must be at least 1, got 0"),
    (
        lambda: wd.Lanes(5, lanes=2, order=wd.Sequential(5)),  # type: ignore[arg-type]
        TypeError,
        "`order` must be a factory .*, got Sequential",
    ),
    (
        lambda: wd.BlockPermutation(5),
        ValueError,
        "`block_size` and `block_offsets` must be given, got neither",
    ),
    (
        lambda: wd.BlockPermutation(5, block_size=1, block_offsets=offsets(5)),
        ValueError,
        "`block_size` and `block_offsets` must be given, got both",
    ),
    (
        lambda: wd.BlockPermutation(5, block_size=0),
        ValueError,
        "`block_size` must be at least 1, got 0",
    ),
    (
        lambda: wd.BlockPermutation(5, block_size=1, blocks_in_buffer=-1),
        ValueError,
        "`blocks_in_buffer` must be at least 0, got -1",
    ),
    (
        lambda: wd.BlockPermutation(5, block_offsets=[0, 5]),  # type: ignore[arg-type]
        TypeError,
        "`block_offsets` must be an int64 array, got list",
    ),
    (
        lambda: wd.BlockPermutation(5, block_offsets=np.array([0.0, 5.0])),
        TypeError,
        "`block_offsets` must be an int64 array, got float64",
    ),
    (
        lambda: wd.BlockPermutation(5, block_offsets=np.array([5])),
        ValueError,
        r"`block_offsets` must be one-dimensional .*, got shape \(1,\)",
    ),
    (
        lambda: wd.BlockPermutation(5, block_offsets=np.array([0, 6])),
        ValueError,
        "`block_offsets` must lead from 0 to the size, 5, got 0 to 6",
    ),
    (
        lambda: wd.BlockPermutation(5, block_offsets=np.array([0, 4, 3, 5])),
        ValueError,
        r"`block_offsets` must not decrease, got 4 before 3 at \[2\]",
    ),
]


@pytest.mark.parametrize(("action", "error", "message"), BAD)
def test_bad_input(action: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        action()


def test_groups_are_told_of_the_same_blocks_only() -> None:
    offsets = np.array([0, 3, 3, 7], np.int64)
    order = wd.BlockPermutation(7, block_offsets=offsets, blocks_in_buffer=2, seed=1)
    found = block_group(order, np.array([0, 3, 7], np.int64), 5)  # without the empty block
    assert found is not None
    assert (found[0], found[1], found[2].tolist()) == (0, 7, [0, 1])
    assert block_group(order, np.array([0, 4, 7], np.int64), 5) is None
    assert block_group(order, offsets, 5) is None
    assert block_group(wd.Permutation(7), np.array([0, 3, 7], np.int64), 5) is None
    assert (
        block_group(wd.BlockPermutation(7, block_size=2), np.array([0, 3, 7], np.int64), 5) is None
    )
