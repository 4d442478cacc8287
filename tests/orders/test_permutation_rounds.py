"""Statistical tests of the number of rounds of the permutation, from which six were chosen.

They run on the NumPy model, whose number of rounds is a parameter, and are older than the golden
values, which publish the order.

The most sensitive test is that of differences: one bit of the position is flipped, in the smallest
domain, 2^8, for many seeds, and the differences of the two samples are counted. z is the chi-square
of these counts in standard deviations. Results for 65,536 seeds, the worst of all bits: 3 rounds
2,315; 4 rounds 223; 5 rounds 10.5; 6 rounds 3.5; 7 rounds 2.1.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

import windeck as wd
from models.reference_permutation import ROUNDS, ReferencePermutation, many_orders
from windeck import shuffle_quality

Indices = npt.NDArray[np.int64]
SIZE = 256


def deviation(counts: npt.NDArray[np.float64]) -> float:
    """The chi-square of counts that should be equal, in standard deviations."""
    expected = counts.mean()
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    return (chi_square - (len(counts) - 1)) / math.sqrt(2 * (len(counts) - 1))


def worst_difference(rounds: int, seeds: int) -> float:
    """The largest z of differences, over all bits of the position, by xor and by subtraction."""
    counts = np.zeros((2, 8, SIZE - 1))
    positions = np.arange(SIZE)
    for first in range(0, seeds, 4096):
        orders = many_orders(SIZE, 4096, rounds=rounds, first_seed=first)
        for bit in range(8):
            low = positions[positions & (1 << bit) == 0]
            one, other = orders[:, low], orders[:, low | (1 << bit)]
            for kind, difference in enumerate((one ^ other, (one - other) % SIZE)):
                counts[kind, bit] += np.bincount(difference.ravel() - 1, minlength=SIZE - 1)
    return max(deviation(row) for row in counts.reshape(-1, SIZE - 1))


def test_the_model_for_many_seeds_is_the_model() -> None:
    for size in (4, 16, 255, 256, 300):
        for seed, order in enumerate(many_orders(size, 5)):
            np.testing.assert_array_equal(order, ReferencePermutation(size, seed).slice(0, size))


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_up_to_four_rounds_show(rounds: int) -> None:
    assert worst_difference(rounds, 4096) > 8


def test_the_chosen_rounds_do_not_show() -> None:
    assert ROUNDS == 6
    assert worst_difference(ROUNDS, 4096) < 5


@pytest.mark.slow
def test_five_rounds_show_over_more_seeds_and_six_do_not() -> None:
    assert worst_difference(5, 65_536) > 6
    assert worst_difference(6, 65_536) < 5


def test_two_rounds_show_in_one_large_order() -> None:
    report = wd.quality(ReferencePermutation(65_536, 42, rounds=2))
    assert report.is_bijection
    assert not report["distinct pair XORs"].passed


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [4, 5, 6])
def test_more_rounds_do_not_show_in_large_orders(rounds: int) -> None:
    for size in (65_536, 65_537, 10**6, 10**12):
        report = wd.quality(ReferencePermutation(size, 42, rounds=rounds), limit=10**6)
        assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("size", [257, 1000, 65_536, 65_537, 10**6, 2**33, 10**12 + 39])
def test_the_native_order_passes_everything(size: int) -> None:
    report = wd.quality(wd.Permutation, size=size, limit=10**6, orders=8, seed=1000)
    assert report.passed, str(report)


@pytest.mark.parametrize("seeds", [8192, pytest.param(131_072, marks=pytest.mark.slow)])
def test_signs_and_small_orders_are_even(seeds: int) -> None:
    """Both signs, and all permutations of 4 or 5 samples, are equally frequent.

    The last addition of either parity and the smallest domain of 2^8 are needed for this.
    """
    make = partial(many_orders, count=8192)
    even = [shuffle_quality.signs(make(SIZE, first_seed=first)) for first in range(0, seeds, 8192)]
    assert abs(np.mean(even) - 0.5) * 2 * seeds**0.5 < 4
    for size in (4, 5):
        orders = np.concatenate([make(size, first_seed=first) for first in range(0, seeds, 8192)])
        codes = np.unique(orders @ (size ** np.arange(size)), return_counts=True)[1]
        assert len(codes) == {4: 24, 5: 120}[size]
        assert deviation(codes.astype(np.float64)) < 5
