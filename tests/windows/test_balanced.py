"""Balanced windows: exact counts, whole cycles of each series, exact resume."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from windeck._core import hash_words
from windeck.windows import BalancedWindows

LENGTHS = [9, 40, 3, 120]


def windows_of(lengths: list[int], **options: Any) -> wd.Windows:
    """Return windows of 3 rows; the value of each row is its number in the table."""
    offsets = np.cumsum([0, *lengths])
    table = wd.Table.from_columns({"x": np.arange(float(offsets[-1]))}, offsets=offsets)
    return wd.Windows(table, context_length=3, **options)


def model(lengths: list[int], counts: list[int], seed: int, epoch: int) -> list[int]:
    """Return the windows of an epoch, from the definition, by loops."""
    sizes = [max(length - 2, 0) for length in lengths]
    slots = [(s, k) for s, count in enumerate(counts) for k in range(count)]
    order = wd.Permutation(len(slots), seed=hash_words(seed, 11), epoch=epoch)
    found = []
    for position in range(len(slots)):
        series, within = slots[order[position]]
        cycle, place = divmod(epoch * counts[series] + within, sizes[series])
        key = hash_words(hash_words(seed, 12), series)
        local = wd.Permutation(sizes[series], seed=key, epoch=cycle)[place]
        found.append(sum(sizes[:series]) + local)
    return found


def served(balanced: BalancedWindows[wd.Windows], epoch: int, seed: int) -> list[int]:
    numbers = balanced.at_epoch(epoch, seed=seed).window_numbers(np.arange(len(balanced)))
    return [int(number) for number in numbers]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 30), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
    data=st.data(),
)
def test_epochs_equal_the_model(lengths: list[int], seed: int, epoch: int, data: Any) -> None:
    counts = [data.draw(st.integers(1, 40)) for _ in lengths]
    balanced = windows_of(lengths).balanced(counts, epoch_length=sum(counts))
    assert balanced.counts.tolist() == counts
    assert served(balanced, epoch, seed) == model(lengths, counts, seed, epoch)


def test_every_series_has_its_share_and_serves_all_windows_before_any_twice() -> None:
    windows = windows_of(LENGTHS)
    balanced = windows.balanced()
    assert balanced.counts.tolist() == [41] * 4  # 164 windows of 4 series.
    visits: dict[int, list[int]] = {series: [] for series in range(4)}
    for epoch in range(6):
        numbers = served(balanced, epoch, seed=5)
        series, _ = windows.locate(np.array(numbers))
        assert Counter(series.tolist()) == dict.fromkeys(range(4), 41)
        for number, one in zip(numbers, series.tolist(), strict=True):
            visits[one].append(number)
    sizes = [length - 2 for length in LENGTHS]
    for series_number, seen in visits.items():
        counted = Counter(seen)
        full, rest = divmod(6 * 41, sizes[series_number])
        assert len(counted) == min(sizes[series_number], 6 * 41)
        assert set(counted.values()) <= {full, full + 1}
        assert sum(times == full + 1 for times in counted.values()) == rest
    assert served(balanced, 0, 5) != served(balanced, 0, 6)
    assert served(balanced, 0, 5) != served(balanced, 1, 5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 10])
def test_a_resumed_loader_continues_with_other_ranks(ranks: int, size: int) -> None:
    def loader(**options: Any) -> wd.Loader:
        return wd.Loader(windows_of(LENGTHS).balanced(), seed=9, **options)

    whole = [
        int(row)
        for epoch in range(3)
        for row in windows_of(LENGTHS).window_starts()[
            served(windows_of(LENGTHS).balanced(), epoch, 9)
        ]
    ]
    first = loader(batch_size=7)
    found = []
    for _ in range(30):  # Into the second epoch of 164 windows.
        found += next(iter(first))["past_target"][:, 0, 0].int().tolist()
    state = first.state_dict()
    loaders = [loader(batch_size=size, rank=rank, world_size=ranks) for rank in range(ranks)]
    for one in loaders:
        one.load_state_dict(state)
    while loaders[0].epoch < 3:
        iterators = [iter(one) for one in loaders]
        for batches in zip(*iterators, strict=True):
            for batch in batches:
                found += batch["past_target"][:, 0, 0].int().tolist()
    assert found == whole


def test_weights_are_shares() -> None:
    windows = windows_of([10, 10, 10])
    assert windows.balanced([1, 2, 5], epoch_length=80).counts.tolist() == [10, 20, 50]
    assert windows.balanced([1, 1, 1], epoch_length=5).counts.tolist() == [2, 2, 1]
    assert windows.balanced({0: 0.25, 2: 0.75}).counts.tolist() == [6, 0, 18]
    only = windows.balanced({1: 1}, epoch_length=4)
    series, _ = windows.locate(np.array(served(only, 3, 0)))
    assert series.tolist() == [1] * 4


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.integers(10**5, 10**6))
def test_counts_are_within_one_of_the_shares(weights: list[float], length: int) -> None:
    counts = windows_of([5] * len(weights)).balanced(weights, epoch_length=length).counts
    assert counts.sum() == length
    exact = np.array(weights) * length / sum(weights)
    assert np.abs(counts - exact).max() < 1 + 1e-6


def test_a_part_without_windows_is_refused() -> None:
    empty = windows_of([30, 60]).split(0.2, 0.0).test
    for options in ({}, {"epoch_length": 5}, {"weights": [1, 2]}):
        with pytest.raises(ValueError, match="there are no windows, expected at least one window"):
            empty.balanced(**options)


def test_subsets_and_splits_have_series_without_windows() -> None:
    windows = windows_of(LENGTHS).subset(series=[1, 3])
    balanced = windows.balanced()
    assert balanced.counts.tolist() == [0, 78, 0, 78]
    series, _ = windows.locate(np.array(served(balanced, 2, 1)))
    assert Counter(series.tolist()) == {1: 78, 3: 78}
    train = windows_of([30, 60]).split(0.2, 0.2).train
    balanced = train.balanced()
    series, _ = train.locate(np.array(served(balanced, 0, 1)))
    assert Counter(series.tolist()) == dict(enumerate(balanced.counts.tolist()))
    with pytest.raises(ValueError, match="series 0 has a weight, but no windows; expected 0"):
        windows.balanced([1, 1, 1, 1])


def test_states_fit_their_weights_only() -> None:
    windows = windows_of(LENGTHS)
    state = wd.Loader(windows.balanced(), batch_size=4).state_dict()
    same = pickle.loads(pickle.dumps(windows.balanced()))
    wd.Loader(same, batch_size=8).load_state_dict(state)
    assert served(same, 3, 7) == served(windows.balanced(), 3, 7)
    for other in (windows.balanced([1, 1, 1, 2], epoch_length=164), windows):
        with pytest.raises(ValueError, match="the state does not belong to this data"):
            wd.Loader(other, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("weights", "length", "error", "told"),
    [
        ([1, 2], None, ValueError, "one number for each of 4 series, got shape"),
        ([1, -1, 1, 1], None, ValueError, "must be finite, not negative"),
        ([0, 0, 0, 0], None, ValueError, "not all 0"),
        ({"x": 1}, None, KeyError, "'x', which is not a series"),
        ([1, 1, 1, 1e9], 100, ValueError, "series 0 would have no window in an epoch of 100"),
        (None, 3, ValueError, "series 3 would have no window in an epoch of 3"),
        (None, 0, ValueError, "`epoch_length` must be at least 1, got 0"),
        (None, 2**62, ValueError, "at most 2\\^53"),
    ],
)
def test_wrong_arguments_are_named(
    weights: Any, length: int | None, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        windows_of(LENGTHS).balanced(weights, epoch_length=length)
