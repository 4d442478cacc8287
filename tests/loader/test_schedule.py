"""Slots compared with brute force: every prefix is within one sample of its exact share."""

from __future__ import annotations

import itertools
import math
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.internals import (
    Slots,
    SlotSchedule,
    assign_slots,
    exact_shares,
    slot_counts,
)
from support.text_mixtures import LONGEST_PERIOD, LONGEST_TABLE
from windeck._util import LIMIT


def assert_fair(counts: list[int]) -> None:
    """Check Tijdeman's bound for every prefix and part, in integers: |served - n * c / P| * P."""
    period, parts = sum(counts), sum(count > 0 for count in counts)
    bound = Fraction(2 * parts - 3, 2 * parts - 2) if parts > 1 else Fraction(0)
    assert bound < 1
    served = [0] * len(counts)
    table = assign_slots(counts)
    assert len(table) == period
    for n, part in enumerate(table, 1):
        served[part] += 1
        for mine, count in zip(served, counts, strict=True):
            assert abs(mine * period - n * count) <= bound * period
    assert served == counts


def test_every_small_period_is_fair() -> None:
    for parts in (1, 2, 3, 4):
        for counts in itertools.product(range(8 if parts < 4 else 5), repeat=parts):
            if sum(counts):
                assert_fair(list(counts))


def test_hundreds_of_random_weights_are_fair() -> None:
    rng = random.Random(3)
    for number in range(400):
        parts = rng.randint(1, 12)
        period = LONGEST_TABLE if number % 40 == 0 else rng.randint(parts, 300)
        powers = [rng.choice([1, 8]) for _ in range(parts)]
        weights = [rng.random() ** power for power in powers]
        counts = [int(weight / sum(weights) * period) for weight in weights]
        counts[rng.randrange(parts)] += period - sum(counts)
        assert_fair(counts)


def test_many_parts_are_fair() -> None:
    assert_fair([1] * 200)
    assert_fair([1] * 60 + [40, 100, 3])
    table = assign_slots([1] * LONGEST_TABLE)
    assert sorted(table) == list(range(LONGEST_TABLE))


def test_a_published_table_stays() -> None:
    # It determines the sample at a position: a change would invalidate saved states.
    assert assign_slots([7, 3]) == [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert assign_slots([4, 3, 2, 1]) == [0, 1, 0, 2, 1, 0, 3, 0, 1, 2]
    assert assign_slots([1, 1]) == [0, 1]
    assert assign_slots([3, 2, 1]) == [0, 1, 0, 2, 0, 1]


def test_shares_are_exact_as_weights_are_written() -> None:
    assert exact_shares({"a": 0.1, "b": 0.2}) == [Fraction(1, 3), Fraction(2, 3)]
    assert exact_shares({"a": np.float32(0.7), "b": 0.3}) == [Fraction(7, 10), Fraction(3, 10)]
    weights = {"a": 1, "b": np.int16(2), "c": Decimal("0.5"), "d": Fraction(1, 2), "e": 0}
    assert exact_shares(weights) == [Fraction(w, 8) for w in (2, 4, 1, 1, 0)]
    assert sum(exact_shares({"a": 1e-300, "b": 1e300})) == 1


@settings(deadline=None)
@given(
    st.lists(
        st.integers(0, 9) | st.integers(0, 10**9) | st.integers(0, 10**30), min_size=1, max_size=8
    )
)
def test_rounding_is_by_less_than_a_slot_but_for_parts_lifted_to_one(weights: list[int]) -> None:
    if not sum(weights):
        weights[0] = 1
    total, limit = sum(weights), LONGEST_PERIOD
    shares = [Fraction(weight, total) for weight in weights]
    counts = slot_counts(shares)
    common = math.lcm(*(share.denominator for share in shares))
    assert sum(counts) == (common if common <= limit else limit)
    lifted = sum(0 < share * limit < 1 for share in shares)
    for share, count in zip(shares, counts, strict=True):
        assert (count > 0) == (share > 0)
        if common <= limit:
            assert count == share * common
        elif count > 1:
            assert -1 - lifted < count - share * limit < 1


def test_a_tiny_weight_has_a_slot_of_its_own() -> None:
    counts = slot_counts(exact_shares({"a": 1, "b": 1e-30, "c": 1e-40, "d": 0}))
    assert counts == [LONGEST_PERIOD - 2, 1, 1, 0]


def segments(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    parts = draw(st.integers(1, 4))
    counts = st.lists(st.integers(0, 5), min_size=parts, max_size=parts).filter(any)
    starts = draw(st.lists(st.integers(1, 60), max_size=4, unique=True))
    return [(start, draw(counts)) for start in [0, *sorted(starts)]]


@settings(deadline=None)
@given(st.composite(segments)(), st.randoms(use_true_random=False))
def test_the_map_is_a_counter_run_one_by_one_and_so_is_its_inverse(
    entries: list[tuple[int, list[int]]], shuffle: random.Random
) -> None:
    schedule = SlotSchedule([(start, Slots.from_counts(counts)) for start, counts in entries])
    served = [0] * len(entries[0][1])
    expected = []
    for position in range(120):
        assert schedule.count_before(position).tolist() == served
        start, counts = [entry for entry in entries if entry[0] <= position][-1]
        mine = assign_slots(counts)[(position - start) % sum(counts)]
        expected.append((mine, served[mine]))
        served[mine] += 1
    positions = list(range(120))
    shuffle.shuffle(positions)
    part, number = schedule.locate(np.array(positions, np.int64))
    assert part.dtype == number.dtype == np.int64
    assert list(zip(part.tolist(), number.tolist(), strict=True)) == [
        expected[position] for position in positions
    ]
    for which in range(len(served)):
        back = schedule.position_of(which, np.arange(served[which] + 3))
        assert back[: served[which]].tolist() == [
            position for position, (one, _) in enumerate(expected) if one == which
        ]
        # Later samples have later positions, or none if the last weight is 0.
        later = back[served[which] :]
        assert (later >= 120).all() if entries[-1][1][which] else (later == -1).all()


def test_far_positions_neither_overflow_nor_drift() -> None:
    counts = slot_counts(exact_shares({"a": 0.701, "b": 0.2, "c": 0.099}))
    schedule = SlotSchedule(
        [(0, Slots.from_counts(counts)), (10**18 + 7, Slots.from_counts([1, 0, 2]))]
    )
    far = np.array([0, 4096, 10**18 + 6, 10**18 + 7, 9 * 10**18, LIMIT - 1])
    part, number = schedule.locate(far)
    for position, which, own in zip(far.tolist(), part.tolist(), number.tolist(), strict=True):
        assert schedule.position_of(which, np.array([own])).tolist() == [position]
        assert schedule.count_before(position)[which] == own
        assert schedule.count_before(position).sum() == position
    last = schedule.count_before(LIMIT)
    for which in (0, 2):
        beyond = schedule.position_of(which, np.array([last[which] - 1, last[which], LIMIT]))
        assert beyond[0] > 0
        assert beyond[1:].tolist() == [-1, -1]
    assert schedule.position_of(1, np.array([last[1] - 1, last[1]]))[1] == -1


FINITE = "must be finite and at least 0"


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ({"a": 1, "b": -0.5}, ValueError, rf"^the weight of 'b' {FINITE}, got -0.5$"),
        ({"a": -1, "b": 1}, ValueError, rf"^the weight of 'a' {FINITE}, got -1$"),
        ({"a": float("nan"), "b": 1}, ValueError, rf"^the weight of 'a' {FINITE}, got nan$"),
        ({"a": np.float32("inf")}, ValueError, rf"^the weight of 'a' {FINITE}, got inf$"),
        ({"a": Decimal("nan")}, ValueError, rf"^the weight of 'a' {FINITE}, got NaN$"),
        ({"a": Fraction(-1, 2)}, ValueError, rf"^the weight of 'a' {FINITE}, got -1/2$"),
        ({"a": 0, "b": 0.0}, ValueError, r"^at least one weight must be above 0, got only zeros$"),
        ({"a": "1"}, TypeError, r"^the weight of 'a' must be a number, got str '1'$"),
        ({"a": True}, TypeError, r"^the weight of 'a' must be a number, got bool True$"),
        ({"a": None}, TypeError, r"^the weight of 'a' must be a number, got NoneType None$"),
    ],
)
def test_bad_weights(weights: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        exact_shares(weights)
    with pytest.raises(error, match=message.split(",")[0].rstrip("$")):
        exact_shares(weights, " at position 5")
