"""ShareTree compared with a model in fractions, and with exact shares at any position."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.mixture_model import Shared
from windeck import _core

MOST = 2**63 - 1


def tree(sizes: list[int]) -> _core.ShareTree:
    return _core.ShareTree(np.array(sizes, np.int64))


def check_one_by_one(sizes: list[int], positions: int) -> None:
    """Compare the first positions with the model, the counts, the bound, and the inverse."""
    found, model, total = tree(sizes), Shared(sizes), sum(sizes)
    part, number = found.locate(np.arange(positions))
    served = [0] * len(sizes)
    for position in range(positions):
        mine = int(part[position])
        assert (mine, int(number[position])) == model.part(position)
        assert served[mine] == number[position]
        served[mine] += 1
        for count, size in zip(served, sizes, strict=True):
            # In integers: |count - (position + 1) * size / total| < 2.
            assert abs(count * total - (position + 1) * size) < 2 * total
        if position % 16 == 0:
            assert found.count_before(position + 1).tolist() == served
    for mine in range(len(sizes)):
        back = found.position_of(mine, np.arange(served[mine]), MOST)
        assert back.tolist() == np.flatnonzero(part == mine).tolist()


def test_all_small_sizes() -> None:
    for total in range(1, 15):
        for first in range(total + 1):
            for second in range(total + 1 - first):
                sizes = [first, second, total - first - second]
                check_one_by_one(sizes, 2 * total + 1)
                counts = tree(sizes).count_before(total).tolist()
                assert counts == sizes  # Exact after each period.


#: Even, skewed, powers of two, Fibonacci numbers (the deepest trees), zeros among them.
SIZES = st.one_of(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.integers(0, 55).map(lambda k: 2**k), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]), min_size=1),
    st.lists(st.integers(0, 2**57), min_size=1, max_size=20),
).filter(any)


@settings(deadline=None, max_examples=150)
@given(SIZES)
def test_the_first_positions_equal_the_model(sizes: list[int]) -> None:
    check_one_by_one(sizes, 80)


@settings(deadline=None, max_examples=150)
@given(SIZES, st.lists(st.integers(0, MOST - 1), min_size=1, max_size=30))
def test_any_position_equals_the_model_and_leads_back(
    sizes: list[int], positions: list[int]
) -> None:
    found, model, total = tree(sizes), Shared(sizes), sum(sizes)
    part, number = found.locate(np.array(positions, np.int64))
    for position, mine, own in zip(positions, part.tolist(), number.tolist(), strict=True):
        assert (mine, own) == model.part(position)
        counts = found.count_before(position).tolist()
        assert counts[mine] == own
        assert sum(counts) == position
        for count, size in zip(counts, sizes, strict=True):
            assert abs(count - Fraction(position * size, total)) < 2
        assert found.position_of(mine, np.array([own]), MOST).tolist() == [position]
        assert found.position_of(mine, np.array([own]), position).tolist() == [position]
        if position:
            assert found.position_of(mine, np.array([own]), position - 1).tolist() == [-1]


def test_a_large_total_and_the_last_position() -> None:
    found = tree([2**62 - 3, 0, 1, 2])
    assert found.period == 2**62
    assert found.counts.tolist() == [2**62 - 3, 0, 1, 2]
    assert found.count_before(2**62).tolist() == [2**62 - 3, 0, 1, 2]
    last = found.count_before(MOST)
    assert last.sum() == MOST
    part, number = found.locate(np.array([MOST - 1, MOST]))
    assert found.position_of(0, number[part == 0], MOST).tolist() == [
        position for position, mine in zip((MOST - 1, MOST), part, strict=True) if mine == 0
    ]
    assert found.position_of(2, np.array([0, 1, 2, MOST]), MOST - 1)[2:].tolist() == [-1, -1]
    assert found.position_of(1, np.array([0]), MOST).tolist() == [-1]


def test_the_deepest_tree_stays_within_two() -> None:
    sizes = [1, 1]
    while sum(sizes) + sizes[-1] + sizes[-2] <= 2**62:
        sizes.append(sizes[-1] + sizes[-2])
    found, total = tree(sizes), sum(sizes)
    rng = random.Random(5)
    for _ in range(300):
        position = rng.randrange(MOST)
        counts = found.count_before(position).tolist()
        for count, size in zip(counts, sizes, strict=True):
            assert abs(count - Fraction(position * size, total)) < 2


def test_thousands_of_parts() -> None:
    sizes = [1 + (i * 7919) % 1000 for i in range(20_000)]
    found = tree(sizes)
    part, number = found.locate(np.arange(50_000))
    assert np.bincount(part, minlength=len(sizes)).tolist() == found.count_before(50_000).tolist()
    for mine in (0, 5, 19_999):
        own = number[part == mine]
        assert found.position_of(mine, own, MOST).tolist() == np.flatnonzero(part == mine).tolist()


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ([1, -1], ValueError, r"sizes\[1\] is -1, expected sizes of at least 0"),
        ([2**62, 1], ValueError, r"sizes\[1\] is 1, .* a sum of at most 2\^62"),
        ([2**63 - 1], ValueError, r"a sum of at most 2\^62"),
        ([0, 0], ValueError, r"the sum of the sizes is 0, expected at least 1"),
        ([], ValueError, r"the sum of the sizes is 0"),
    ],
)
def test_bad_sizes(sizes: list[int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tree(sizes)


def test_bad_arguments() -> None:
    found = tree([3, 2])
    bad: Any = np.array([0.5])
    with pytest.raises(TypeError, match="int64"):
        found.locate(bad)
    with pytest.raises(IndexError, match=r"positions -1 at \[1\] is out of range"):
        found.locate(np.array([0, -1]))
    with pytest.raises(IndexError, match=r"numbers -4 at \[0\] is out of range"):
        found.position_of(0, np.array([-4]), 9)
    with pytest.raises(IndexError, match=r"part 2 is out of range"):
        found.position_of(2, np.array([0]), 9)
    with pytest.raises(ValueError, match=r"count is -1"):
        found.count_before(-1)
    with pytest.raises(TypeError, match="int64"):
        _core.ShareTree(np.array([1.0]))
