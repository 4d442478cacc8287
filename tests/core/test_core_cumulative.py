"""Cumulative against walking through the parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windeck._core import Cumulative

SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 6), st.integers(0, 300)), max_size=30)


@given(sizes=SIZES)
@settings(max_examples=200, deadline=None)
def test_every_position_is_found(sizes: list[int]) -> None:
    sums = Cumulative(np.array(sizes, np.int64))
    walked = [(part, within) for part, size in enumerate(sizes) for within in range(size)]
    assert sums.total == len(walked)
    assert len(sums) == len(sizes)
    part, within = sums.find(np.arange(len(walked)))
    assert list(zip(part.tolist(), within.tolist(), strict=True)) == walked
    before = [sum(sizes[:part]) for part in range(len(sizes) + 1)]
    assert sums.before(np.arange(len(sizes) + 1)).tolist() == before


def test_sizes_beyond_32_bits_and_very_uneven_ones() -> None:
    sizes = [1] * 1000 + [2**62] + [0] * 1000 + [2**61] + [3] * 1000
    sums = Cumulative(np.array(sizes))
    part, within = sums.find(np.array([999, 1000, 2**62 + 999, 2**62 + 1000, sums.total - 1]))
    assert part.tolist() == [999, 1000, 1000, 2001, 3001]
    assert within.tolist() == [0, 0, 2**62 - 1, 0, 2]


BAD: list[tuple[Any, type[Exception], str]] = [
    (np.array([1.0]), TypeError, "sizes has dtype float64, expected int64"),
    (np.array([1], np.int32), TypeError, "sizes has dtype int32, expected int64"),
    (np.array([[1]]), ValueError, r"sizes has shape \(1, 1\), expected one dimension"),
    (np.array([1, -2]), ValueError, r"sizes\[1\] is -2, expected 0 or more"),
    (np.array([2**63 - 1, 1]), OverflowError, r"the sizes add up to more than 2\^63 - 1"),
    (7, TypeError, "sizes is of type int, expected an int64 array"),
]


@pytest.mark.parametrize(("sizes", "error", "message"), BAD)
def test_bad_sizes(sizes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Cumulative(sizes)


def test_positions_out_of_range() -> None:
    sums = Cumulative(np.array([3, 4]))
    for position in (7, -1, 2**62):
        with pytest.raises(
            IndexError, match=rf"position {position} at \[1\] is out of range, .* in \[0, 7\)"
        ):
            sums.find(np.array([0, position]))
    with pytest.raises(IndexError, match=r"position 0 at \[0\] is out of range, .* in \[0, 0\)"):
        Cumulative(np.array([0, 0])).find(np.array([0]))
    for part in (3, -1):
        with pytest.raises(IndexError, match=rf"part {part} at \[0\] is out of range, .*\[0, 3\)"):
            sums.before(np.array([part]))
    with pytest.raises(TypeError, match="positions has dtype int32, expected int64"):
        sums.find(np.array([0], np.int32))
