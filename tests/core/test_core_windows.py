"""WindowIndex against the plain list of its windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windeck import _core

Array = np.ndarray[Any, Any]
Windows = list[tuple[int, int]]

RUNS = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=3),  # series
        st.integers(min_value=0, max_value=40),  # candidates
        st.integers(min_value=0, max_value=9),  # rows left out before the run
    ),
    max_size=12,
)


def listed(first: list[int], count: list[int], stride: int, series: list[int]) -> Windows:
    return [
        (s, f + j * stride) for f, c, s in zip(first, count, series, strict=True) for j in range(c)
    ]


def located(index: Any, indices: Array) -> Windows:
    series, rows = index.locate(indices)
    return list(zip(series.tolist(), rows.tolist(), strict=True))


@given(
    runs=RUNS,
    stride=st.integers(min_value=1, max_value=5),
    start=st.integers(min_value=-50, max_value=50),
    by_run=st.booleans(),
    filtered=st.booleans(),
    seed=st.integers(min_value=0, max_value=2**32),
)
@settings(max_examples=400, deadline=None)
def test_equals_the_list(
    runs: list[tuple[int, int, int]],
    stride: int,
    start: int,
    by_run: bool,
    filtered: bool,
    seed: int,
) -> None:
    first, count, series, row = [], [], [], start
    for number, (of_series, candidates, gap) in enumerate(runs):
        row += gap
        first.append(row)
        count.append(candidates)
        series.append(number if by_run else of_series)
        row += candidates * stride
    expected = listed(first, count, stride, series)
    options: dict[str, Any] = {} if by_run else {"series": np.array(series, np.int64)}
    rng = np.random.default_rng(seed)
    if filtered:
        kept = rng.random(len(expected)) < rng.choice([0.05, 0.5, 1.0])
        options["keep"] = np.packbits(kept, bitorder="little")
        dropped = [w for w, k in zip(expected, kept, strict=True) if not k]
        expected = [w for w, k in zip(expected, kept, strict=True) if k]
    index = _core.WindowIndex(
        np.array(first, np.int64), np.array(count, np.int64), stride, **options
    )

    assert len(index) == index.size == len(expected)
    everything = np.arange(len(expected))
    assert located(index, everything) == expected
    shuffled = rng.permutation(everything)
    assert located(index, shuffled) == [expected[i] for i in shuffled]
    series_found, rows_found = index.slice(0, len(expected))
    assert list(zip(series_found.tolist(), rows_found.tolist(), strict=True)) == expected
    assert index.index_of(series_found, rows_found).tolist() == everything.tolist()
    others = [*(dropped if filtered else []), (99, 0), (-1, 0), (0, 10**9), (0, -(10**9))]
    absent = index.index_of(np.array([s for s, _ in others]), np.array([r for _, r in others]))
    assert (absent == -1).all()


def test_a_bitmap_across_many_words() -> None:
    rng = np.random.default_rng(5)
    kept = rng.random(100_003) < 0.3
    kept[5000:70_000] = False
    bits = np.packbits(kept, bitorder="little")
    index = _core.WindowIndex(np.array([7]), np.array([100_003]), 3, keep=bits)
    rows = 7 + 3 * np.flatnonzero(kept)
    assert np.array_equal(index.locate(np.arange(len(index)))[1], rows)
    assert np.array_equal(index.index_of(np.zeros(len(rows), np.int64), rows), np.arange(len(rows)))


def test_bits_behind_the_last_candidate_do_not_count() -> None:
    index = _core.WindowIndex(np.array([0]), np.array([3]), 1, keep=np.array([0xFF], np.uint8))
    assert len(index) == 3


def test_counts_beyond_32_bits() -> None:
    count = np.array([2**61, 2**61])
    index = _core.WindowIndex(np.array([-3, 5]), count, 2)
    assert located(index, np.array([0, 2**61 - 1, 2**61, 2**62 - 1])) == [
        (0, -3),
        (0, 2**62 - 5),
        (1, 5),
        (1, 2**62 + 3),
    ]
    assert index.index_of(np.array([1]), np.array([2**62 + 3])).tolist() == [2**62 - 1]


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"stride": 0}, ValueError, "stride is 0, expected an integer from 1"),
    ({"stride": -2}, ValueError, "stride is -2, expected an integer from 1"),
    ({"stride": 1.0}, TypeError, "stride is of type float, expected an integer"),
    ({"first": np.array([0.0])}, TypeError, "first has dtype float64, expected int64"),
    ({"first": np.array([0], np.int32)}, TypeError, "first has dtype int32, expected int64"),
    ({"first": np.array([[0]])}, ValueError, r"first has shape \(1, 1\), expected one dimension"),
    ({"first": np.array([0, 1])}, ValueError, "first, count and series have 2, 1 and 2 entries"),
    (
        {"count": np.array([-1])},
        ValueError,
        "window run 0 has count -1 and series 0, expected 0 or more",
    ),
    ({"series": np.array([-1])}, ValueError, "window run 0 has count 9 and series -1"),
    ({"series": np.array([0, 0])}, ValueError, "series has 2 entries, expected 1"),
    ({"keep": np.zeros(1, np.uint8)}, ValueError, "keep has 1 bytes, expected 2 for 9 candidate"),
    ({"keep": np.zeros(9, bool)}, TypeError, "keep has dtype bool, expected uint8"),
    ({"first": np.array([2**62]), "stride": 2**60}, OverflowError, "leaves the 64-bit integers"),
]


@pytest.mark.parametrize(("replaced", "error", "message"), BAD)
def test_bad_input(replaced: dict[str, Any], error: type[Exception], message: str) -> None:
    given_: dict[str, Any] = {"first": np.array([0]), "count": np.array([9]), "stride": 1}
    given_ |= replaced
    with pytest.raises(error, match=message):
        _core.WindowIndex(given_.pop("first"), given_.pop("count"), given_.pop("stride"), **given_)


def test_a_window_held_twice_is_refused() -> None:
    first, count = np.array([0, 4]), np.array([3, 2])
    with pytest.raises(ValueError, match="window run 1 repeats the window at row 4 of series 1"):
        _core.WindowIndex(first, count, 2, series=np.array([1, 1]))
    assert len(_core.WindowIndex(first, count, 2, series=np.array([1, 2]))) == 5


def test_indices_out_of_range() -> None:
    index = _core.WindowIndex(np.array([0]), np.array([9]), 1)
    with pytest.raises(IndexError, match="index 9 is out of range for 9 windows"):
        index.locate(np.array([9]))
    with pytest.raises(IndexError, match="index -1 is out of range for 9 windows"):
        index.locate(np.array([-1]))
    with pytest.raises(IndexError, match=r"slice \[3, 10\) is out of range for 9 windows"):
        index.slice(3, 10)
    with pytest.raises(TypeError, match="indices has dtype float64, expected int64"):
        index.locate(np.array([1.0]))
    with pytest.raises(ValueError, match="series has 1 entries, expected 2, as many as rows"):
        index.index_of(np.array([0]), np.array([0, 1]))
