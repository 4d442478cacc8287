"""Shares of mixtures: every prefix is within one sample of its exact share."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.mixture_model import Counted
from models.oracle import Numbers
from support.text_mixtures import LONGEST_PERIOD, LONGEST_TABLE
from windeck import Mixture, Stream
from windeck._util import LIMIT

STREAM = Stream(Numbers(5))


def mixture(weights: Sequence[Any], schedule: Sequence[tuple[int, Sequence[Any]]] = ()) -> Mixture:
    """Return a mixture of parts "0", "1", ... with these weights."""
    parts = {str(part): (STREAM, weight) for part, weight in enumerate(weights)}
    entries = [(start, dict(zip(parts, changed, strict=True))) for start, changed in schedule]
    return Mixture(parts, schedule=entries)


def table_of(weights: Sequence[int]) -> list[int]:
    """Return the parts of the first positions, as many as the weights add up to."""
    parts: list[int] = mixture(weights).locate(np.arange(sum(weights)))[0].tolist()
    return parts


def shares_of(weights: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the slots of each part and those of a period, from the fingerprint."""
    text = str(mixture(weights).fingerprint["shares"])
    found = dict(share.split("=") for share in text.split(", "))
    pairs = [found.get(str(part), "0/1").split("/") for part in range(len(weights))]
    return [(int(slots), int(period)) for slots, period in pairs]


def assert_fair(counts: Sequence[int]) -> None:
    """Check Tijdeman's bound for every prefix and part, in integers: |served - n * c / P| * P."""
    period, parts = sum(counts), sum(count > 0 for count in counts)
    served = np.cumsum(np.eye(len(counts), dtype=np.int64)[table_of(counts)], axis=0)
    wanted = np.arange(1, period + 1)[:, None] * np.array(counts)
    scale = max(1, 2 * parts - 2)
    assert (abs(served * period - wanted) * scale <= (scale - 1) * period).all()
    assert served[-1].tolist() == [*counts]


def test_every_small_period_is_fair() -> None:
    for parts in (1, 2, 3, 4):
        for counts in itertools.product(range(8 if parts < 4 else 5), repeat=parts):
            if math.gcd(*counts) == 1:
                assert_fair(counts)


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
    assert table_of([1] * LONGEST_TABLE) == list(range(LONGEST_TABLE))


def test_a_published_table_stays() -> None:
    # It determines the sample at a position: a change would invalidate saved states.
    assert table_of([7, 3]) == [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]
    assert table_of([4, 3, 2, 1]) == [0, 1, 0, 2, 1, 0, 3, 0, 1, 2]
    assert table_of([1, 1]) == [0, 1]
    assert table_of([3, 2, 1]) == [0, 1, 0, 2, 0, 1]


def test_shares_are_exact_as_weights_are_written() -> None:
    assert shares_of([0.1, 0.2]) == [(1, 3), (2, 3)]
    assert shares_of([np.float32(0.7), 0.3]) == [(7, 10), (3, 10)]
    weights = [1, np.int16(2), Decimal("0.5"), Fraction(1, 2), 0]
    assert shares_of(weights) == [(2, 8), (4, 8), (1, 8), (1, 8), (0, 1)]


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
    exact = [Fraction(weight, total) for weight in weights]
    found = shares_of(weights)
    common = math.lcm(*(share.denominator for share in exact))
    length = common if common <= limit else limit
    assert sum(count for count, _ in found) == length
    lifted = sum(0 < share * limit < 1 for share in exact)
    for share, (count, period) in zip(exact, found, strict=True):
        assert (count > 0) == (share > 0)
        assert not count or period == length
        if common <= limit:
            assert count == share * common
        elif count > 1:
            assert -1 - lifted < count - share * limit < 1


def test_a_tiny_weight_has_a_slot_of_its_own() -> None:
    counts = [count for count, _ in shares_of([1, 1e-30, 1e-40, 0])]
    assert counts == [LONGEST_PERIOD - 2, 1, 1, 0]
    assert shares_of([1e-300, 1e300]) == [(1, LONGEST_PERIOD), (LONGEST_PERIOD - 1, LONGEST_PERIOD)]


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
    mixed = mixture(entries[0][1], entries[1:])
    expected = Counted(entries, 120).served
    served = [0] * len(mixed.names)
    for position, (part, number) in enumerate(expected):
        assert mixed.position_in_part(mixed.names[part], position) == number == served[part]
        served[part] += 1
    assert [mixed.position_in_part(name, 120) for name in mixed.names] == served
    positions = list(range(120))
    shuffle.shuffle(positions)
    parts, numbers = mixed.locate(positions)
    assert parts.dtype == numbers.dtype == np.int64
    assert list(zip(parts.tolist(), numbers.tolist(), strict=True)) == [
        expected[position] for position in positions
    ]
    for which, name in enumerate(mixed.names):
        back = mixed.position_of_part(name, np.arange(served[which] + 3))
        assert back[: served[which]].tolist() == [
            position for position, (part, _) in enumerate(expected) if part == which
        ]
        # Later samples have later positions, or none if the last weight is 0.
        later = back[served[which] :]
        assert (later >= 120).all() if entries[-1][1][which] else (later == -1).all()


def test_far_positions_neither_overflow_nor_drift() -> None:
    mixed = mixture([0.701, 0.2, 0.099], [(10**18 + 7, [1, 0, 2])])
    far = np.array([0, 4096, 10**18 + 6, 10**18 + 7, 9 * 10**18, LIMIT - 1])

    def before(position: int) -> list[int]:
        return [mixed.position_in_part(name, position) for name in mixed.names]

    parts, numbers = mixed.locate(far)
    for position, part, own in zip(far.tolist(), parts.tolist(), numbers.tolist(), strict=True):
        assert mixed.position_of_part(mixed.names[part], [own]).tolist() == [position]
        assert before(position)[part] == own
        assert sum(before(position)) == position
    last = before(LIMIT)
    for part in (0, 2):
        beyond = mixed.position_of_part(str(part), [last[part] - 1, last[part], LIMIT - 1])
        assert beyond[0] > 0
        assert beyond[1:].tolist() == [-1, -1]
    assert mixed.position_of_part("1", [last[1] - 1, last[1]])[1] == -1


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
        Mixture({name: (STREAM, weight) for name, weight in weights.items()})
    before, got = message.split(", got")
    with pytest.raises(error, match=f"{before} in the schedule at 5, got{got}"):
        Mixture(dict.fromkeys(weights, (STREAM, 1)), schedule=[(5, weights)])
