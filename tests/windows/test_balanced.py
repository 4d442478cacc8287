"""Balanced windows: exact counts, whole cycles of each series, exact resume."""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from fractions import Fraction
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


@pytest.mark.parametrize("blocks", [None, ([0, 5, 30, 60, 90, 130, 164], 2)])
def test_every_series_has_its_share_and_serves_all_windows_before_any_twice(
    blocks: tuple[list[int], int] | None,
) -> None:
    windows = windows_of(LENGTHS)
    options: dict[str, Any] = {} if blocks is None else {"blocks": (np.array(blocks[0]), blocks[1])}
    balanced = windows.balanced(**options)
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


def test_rounding_gives_no_window_to_a_series_of_weight_0() -> None:
    """In float64 the quotas of the others are whole numbers, whose sum lacks one."""
    length = 2**53 - 4
    counts = windows_of(LENGTHS[:1] * 3).balanced([0, 3, 17], epoch_length=length).counts
    assert counts[0] == 0
    assert counts.sum() == length


# --- recency -------------------------------------------------------------------------------------


def ages(starts: list[int], half_life: int, count: int) -> list[tuple[int, int, Fraction]]:
    """Return first and end window, and quota, of each age of a series, from the oldest."""
    weights: dict[int, Fraction] = {}
    members: dict[int, list[int]] = {}
    for window, start in enumerate(starts):
        age = min((starts[-1] - start) // half_life, 40)
        members.setdefault(age, []).append(window)
        weights[age] = weights.get(age, Fraction(0)) + Fraction(1, 2**age)
    scale = count / sum(weights.values(), Fraction(0))
    found = []
    for age in sorted(members):
        rest = (weight for one, weight in weights.items() if one > age)
        older = sum(rest, Fraction(0)) * scale
        if weights[age] * scale < 1 or older < 1:
            found.append((0, members[age][-1] + 1, weights[age] * scale + older))
            break
        found.append((members[age][0], members[age][-1] + 1, weights[age] * scale))
    return found[::-1]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    half_life=st.integers(1, 70),
    stride=st.integers(1, 3),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_ages_have_their_shares(
    lengths: list[int], half_life: int, stride: int, seed: int, data: Any
) -> None:
    lengths[0] = max(lengths[0], 3)
    rng = np.random.default_rng(seed)
    gaps = np.where(rng.random(sum(lengths)) < 0.1, np.nan, 1.0)
    gaps[: lengths[0]] = 1.0
    table = wd.Table.from_columns({"x": gaps}, offsets=np.cumsum([0, *lengths]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        windows = wd.Windows(table, context_length=3, stride=stride, max_missing=0)
    series, rows = windows.locate(np.arange(len(windows)))
    sizes = np.bincount(series, minlength=len(lengths))
    counts = [data.draw(st.integers(1, 60)) if size else 0 for size in sizes]
    balanced = windows.balanced(counts, epoch_length=sum(counts), half_life=half_life)
    assert balanced.counts.tolist() == counts
    numbers = balanced.at_epoch(1, seed=seed).window_numbers(np.arange(len(balanced)))
    first = 0
    for number, count in enumerate(counts):
        local = numbers[series[numbers] == number] - first
        assert len(local) == count
        if count:
            for start, stop, quota in ages(rows[series == number].tolist(), half_life, count):
                here = int(((local >= start) & (local < stop)).sum())
                assert here >= 1
                assert abs(here - quota) < 1 + Fraction(1, 10**9)
        first += int(sizes[number])


def test_each_window_is_served_and_recent_ones_more_often() -> None:
    windows = windows_of([402, 52])
    balanced = windows.balanced([300, 100], epoch_length=400, half_life=50)
    served_times = np.zeros(len(windows), np.int64)
    for epoch in range(500):
        served_times += np.bincount(served(balanced, epoch, 3), minlength=len(windows))
    assert served_times.min() > 0
    of_age = served_times[:400].reshape(8, 50).sum(axis=1) / 500
    expected = 300 * 2.0 ** np.arange(8) / 255
    assert (np.abs(of_age - expected)[2:] <= 1).all()
    assert abs(of_age[:2].sum() - expected[:2].sum()) <= 1


def test_an_age_with_too_few_windows_is_one_with_the_older_ones() -> None:
    """Of 10, 1, 8 and 1 windows in ages, and 11 in an epoch, the second would not be served."""
    y = np.arange(32.0)
    y[[*range(10, 12), *range(14, 21)]] = np.nan  # windows at rows 0 to 8, 12 and 21 to 30
    table = wd.Table.from_columns({"x": y})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        windows = wd.Windows(table, context_length=2, max_missing=0)
    balance = windows.balanced(epoch_length=11, half_life=10).balance
    assert balance.counts.min() >= 1


@pytest.mark.parametrize(
    ("missing", "half_life", "length", "counts"),
    [
        ([2], 2, 6, [1, 1, 4]),  # quotas 4, 1 and 1: each is enough
        ([], 1, 7, [1, 2, 4]),  # weights 1, 1/2 and 1/4 of the last three
        ([], 1, 2, [2]),  # quotas 8/7, 4/7 and 2/7: the older ones have less than one
    ],
)
def test_an_age_needs_a_quota_of_one_and_so_do_the_older_ones(
    missing: list[int], half_life: int, length: int, counts: list[int]
) -> None:
    x = np.arange(6.0 if missing else 3.0)
    x[missing] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        windows = wd.Windows(wd.Table.from_columns({"x": x}), context_length=1, max_missing=0)
    balance = windows.balanced(epoch_length=length, half_life=half_life).balance
    assert balance.counts.tolist() == counts


def test_the_oldest_of_41_ages_has_all_older_windows() -> None:
    balance = windows_of([102]).balanced(epoch_length=2**50, half_life=1).balance
    assert balance.starts.tolist() == [0, *range(60, 101)]
    assert balance.counts.sum() == 2**50


def test_a_half_life_resumes_and_pickles_and_is_in_the_fingerprint() -> None:
    windows = windows_of([402, 52])
    plain, recent = windows.balanced(), windows.balanced(half_life=50)
    assert recent.fingerprint != plain.fingerprint
    assert recent.fingerprint != windows.balanced(half_life=51).fingerprint
    assert "balanced.ages" not in plain.fingerprint
    again = pickle.loads(pickle.dumps(recent))
    assert again.fingerprint == recent.fingerprint
    loader = wd.Loader(recent, batch_size=16, seed=3)
    batches = [batch["start"].tolist() for _, batch in zip(range(20), loader, strict=False)]
    other = wd.Loader(again, batch_size=16, seed=3)
    for _ in zip(range(7), other, strict=False):
        pass
    state = other.state_dict()
    resumed = wd.Loader(recent, batch_size=16, seed=3)
    resumed.load_state_dict(state)
    found = [batch["start"].tolist() for _, batch in zip(range(12), resumed, strict=False)]
    assert found == batches[7 : 7 + len(found)]
    device = windows.to("cpu").balanced(half_life=50)
    one = next(iter(wd.Loader(device, batch_size=64, seed=3)))["start"]
    assert one.tolist() == next(iter(wd.Loader(recent, batch_size=64, seed=3)))["start"].tolist()


def test_ages_of_windows_in_blocks_have_the_same_counts() -> None:
    windows = windows_of([402, 52])
    blocks = (np.array([0, 37, 200, 310, 450]), 2)
    plain, dealt = windows.balanced(half_life=50), windows.balanced(half_life=50, blocks=blocks)
    borders = plain.balance.starts
    for epoch in range(3):
        found = [np.histogram(served(one, epoch, 3), borders)[0] for one in (plain, dealt)]
        assert found[0].tolist() == found[1].tolist() == plain.balance.counts.tolist()


def test_a_half_life_as_a_duration() -> None:
    stamps = np.concatenate([np.arange(50) * 2, np.arange(50)]).astype("M8[h]")
    columns = {"x": np.arange(100.0), "t": stamps}
    table = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 50, 100])
    windows = wd.Windows(table, context_length=3)
    # Four rows of two hours, and eight of one.
    four, eight = (windows.balanced(half_life=rows).balance.starts for rows in (4, 8))
    expected = [*four[four < 48], *eight[eight >= 48]]
    assert windows.balanced(half_life="8h").balance.starts.tolist() == expected
    with pytest.raises(ValueError, match="`half_life` must be a step or longer, got '1h' for ser"):
        windows.balanced(half_life="1h")
    with pytest.raises(ValueError, match="`half_life` must be at least 1, got 0"):
        windows.balanced(half_life=0)
    with pytest.raises(ValueError, match="`half_life` is '1h', but the table has no timestamp"):
        windows_of([9]).balanced(half_life="1h")
    columns["t"] = np.concatenate([np.arange(50), np.arange(50) ** 2]).astype("M8[h]")
    irregular = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 50, 100])
    with pytest.raises(
        ValueError, match=r"series 1 is irregular; expected a number of rows, or se"
    ):
        wd.Windows(irregular, context_length=3).balanced(half_life="4h")


# --- weights of windows --------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_windows_have_their_quota(lengths: list[int], seed: int, epoch: int, data: Any) -> None:
    lengths[0] = max(lengths[0], 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        windows = windows_of(lengths)
    weight = st.sampled_from([0.0, 0.25, 1.0, 1.0, 7.5])
    weights = np.array([data.draw(weight) for _ in range(len(windows))])
    weights[0] = 1.0
    length = data.draw(st.integers(60, 500)) * 10
    balanced = windows.balanced(window_weights=weights, epoch_length=length)
    assert len(balanced) == length
    series, _ = windows.locate(np.arange(len(windows)))
    counts = np.bincount(served(balanced, epoch, seed), minlength=len(windows))
    sums = np.bincount(series, weights, minlength=len(lengths))
    found = np.bincount(series, counts, minlength=len(lengths))
    assert found.tolist() == balanced.counts.tolist()
    assert (np.abs(found - sums * length / weights.sum()) < 1).all()
    quotas = weights / np.where(sums > 0, sums, 1)[series] * balanced.counts[series]
    assert (np.abs(counts - quotas) < 1 + 1e-6).all()
    assert not counts[weights == 0].any()


def test_weights_of_windows_are_right_on_average() -> None:
    windows = windows_of([42, 22])
    weights = np.random.default_rng(0).random(len(windows))
    balanced = windows.balanced(window_weights=weights, epoch_length=60)
    counts = np.zeros(len(windows))
    for epoch in range(400):
        counts += np.bincount(served(balanced, epoch, 3), minlength=len(windows))
    series, _ = windows.locate(np.arange(len(windows)))
    share = weights / np.bincount(series, weights)[series] * balanced.counts[series]
    assert np.abs(counts - 400 * share).max() < 4


def test_a_series_whose_windows_weigh_nothing_has_none() -> None:
    balanced = windows_of([42, 22]).balanced(window_weights=[1] * 40 + [0] * 20, epoch_length=80)
    assert balanced.counts.tolist() == [80, 0]
    assert np.bincount(served(balanced, 0, 3), minlength=60).tolist() == [2] * 40 + [0] * 20


def test_weights_of_windows_resume_and_are_in_the_fingerprint() -> None:
    windows = windows_of([42, 22])
    weights = np.arange(len(windows)) / 2
    balanced = windows.balanced(window_weights=weights)
    again = pickle.loads(pickle.dumps(balanced))
    assert again.fingerprint == balanced.fingerprint
    weights[3] = 5.0
    assert windows.balanced(window_weights=weights).fingerprint != balanced.fingerprint
    loader = wd.Loader(balanced, batch_size=8, seed=3)
    batches = [batch["start"].tolist() for _, batch in zip(range(7), loader, strict=False)]
    other = wd.Loader(again, batch_size=8, seed=3)
    for _ in zip(range(3), other, strict=False):
        pass
    resumed = wd.Loader(balanced, batch_size=8, seed=3)
    resumed.load_state_dict(other.state_dict())
    found = [batch["start"].tolist() for _, batch in zip(range(4), resumed, strict=False)]
    assert found == batches[3:]


def test_weights_of_windows_that_are_wrong() -> None:
    windows = windows_of([42, 22])
    many = len(windows)
    for wrong in (-np.ones(many), np.full(many, np.nan), np.zeros(many), np.full(many, np.inf)):
        with pytest.raises(ValueError, match="must be finite, not negative, and not all 0"):
            windows.balanced(window_weights=wrong)
    with pytest.raises(ValueError, match=r"one number for each of 60 windows, got shape \(2,\)"):
        windows.balanced(window_weights=[1, 2])
    for options in ({"weights": [1, 1]}, {"half_life": 3}):
        with pytest.raises(ValueError, match="`window_weights` is given with `weights` or `half_l"):
            windows.balanced(window_weights=np.ones(many), **options)
    blocks = (np.array([0, many]), 1)
    with pytest.raises(TypeError, match="not dealt in blocks, expected a table in memory"):
        windows.balanced(window_weights=np.ones(many), blocks=blocks)
    with pytest.raises(
        TypeError, match="`window_weights` are float64, which MPS lacks, expected an"
    ):
        windows.balanced(window_weights=np.ones(many)).to("mps")


def test_pickles_of_earlier_versions_have_the_counts_of_series() -> None:
    balanced = windows_of([42, 22]).balanced()
    old = pickle.loads(pickle.dumps(balanced))
    state = {name: value for name, value in vars(old.balance).items() if name != "series_counts"}
    vars(old.balance).clear()
    vars(old.balance).update(state)
    again = pickle.loads(pickle.dumps(old))
    np.testing.assert_array_equal(again.balance.series_counts, balanced.counts)
    assert len(again.to("cpu")) == len(balanced)


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e308, 2.0**1023])
def test_weights_of_any_size_are_relative(size: float) -> None:
    windows = windows_of([42, 22])
    many = len(windows)
    plain = windows.balanced(window_weights=np.ones(many))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = windows.balanced(window_weights=np.full(many, size))
        of_series = windows.balanced(weights=[size, size])
    assert again.fingerprint == plain.fingerprint
    assert of_series.fingerprint == windows.balanced(weights=[1, 1]).fingerprint


@pytest.mark.parametrize("option", ["weights", "window_weights"])
def test_complex_weights_and_texts_are_refused(option: str) -> None:
    windows = windows_of([4, 4])
    many = 2 if option == "weights" else len(windows)
    options: dict[str, Any] = {option: np.full(many, 1 + 1j)}
    texts: dict[str, Any] = {option: ["a", "b"]}
    with pytest.raises(TypeError, match=f"`{option}` must be real numbers, got <U"):
        windows.balanced(**texts)
    with pytest.raises(TypeError, match=f"`{option}` must be real numbers, got complex128"):
        windows.balanced(**options)


def test_a_half_life_needs_steps_of_series_with_windows_alone() -> None:
    hours = np.concatenate([np.arange(50), np.cumsum(np.arange(50) % 7 + 1), np.arange(50) * 24])
    columns = {"x": np.arange(150.0), "t": hours.astype("M8[h]")}
    table = wd.Table.from_columns(columns, timestamp_column="t", offsets=[0, 50, 100, 150])
    windows = wd.Windows(table, context_length=3)
    with pytest.raises(ValueError, match="series 1 is irregular"):
        windows.balanced(half_life="5h")
    part = windows.subset(series=[0])
    assert part.balanced(half_life="5h").fingerprint == part.balanced(half_life=5).fingerprint
    with pytest.raises(ValueError, match="must be a step or longer, got '5h' for series 2"):
        windows.subset(series=[0, 2]).balanced(half_life="5h")
