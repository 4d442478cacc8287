"""Sharding of positions into steps and ranks, compared with the lists of the oracle."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.oracle import Run, epoch_of, one_step, steps
from support.internals import Exclusions, Sharding
from windeck._util import LIMIT, check_integer

ranges = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 30)).map(lambda r: (r[0], r[0] + r[1])), max_size=5
)


def left_out(pairs: list[tuple[int, int]]) -> set[int]:
    return {p for start, stop in pairs for p in range(start, stop)}


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, Sharding]:
    size, pairs = draw(st.integers(1, 24)), draw(ranges)
    world, drop_last = draw(st.integers(1, 4)), draw(st.booleans())
    most = size // world if drop_last else 2 * size
    if most == 0:
        world, most = 1, size
    batch = draw(st.integers(1, most))
    run = Run(size, batch, world, drop_last, left_out(pairs))
    return run, Sharding(size, batch, world, drop_last, Exclusions(pairs))


@settings(deadline=None)
@given(ranges)
def test_exclusions_count_as_a_set_does(pairs: list[tuple[int, int]]) -> None:
    skip, gone = Exclusions(pairs), left_out(pairs)
    kept = [p for p in range(200) if p not in gone]
    assert [p for p in range(200) if p not in skip] == kept
    for start in range(0, 120, 7):
        for stop in range(start, 120, 5):
            spanned = [p for a, b in skip.kept_ranges(start, stop) for p in range(a, b)]
            assert spanned == [p for p in kept if start <= p < stop]
            assert skip.kept(start, stop) == len(spanned)
        later = [p for p in kept if p >= start]
        assert [skip.nth(start, n) for n in range(10)] == later[:10]


@settings(deadline=None)
@given(ranges)
def test_exclusions_are_sorted_and_joined(pairs: list[tuple[int, int]]) -> None:
    joined = Exclusions(pairs).ranges
    assert all(a < b for a, b in joined)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(joined))
    assert Exclusions.from_state([list(pair) for pair in joined]).ranges == joined


@settings(deadline=None)
@given(runs(), st.integers(0, 100))
def test_steps_are_the_oracles_from_any_position(pair: tuple[Run, Sharding], position: int) -> None:
    run, sharding = pair
    for shares, after in itertools.islice(steps(run, position), 12):
        start = sharding.step_start(position)
        assert [sharding.positions(start, r).tolist() for r in range(run.world_size)] == shares
        position = sharding.step_end(start)
        # All positions in an excluded range are equivalent.
        assert one_step(run, position) == one_step(run, after)


@settings(deadline=None)
@given(runs(), st.integers(0, 100))
def test_an_epoch_is_what_a_loop_deals(pair: tuple[Run, Sharding], position: int) -> None:
    run, sharding = pair
    expected = epoch_of(run, position)
    start = sharding.step_start(position)
    found, begin = [], start
    while begin // run.size == start // run.size:
        found.append([sharding.positions(begin, r).tolist() for r in range(run.world_size)])
        begin = sharding.step_start(sharding.step_end(begin))
    assert found == expected
    assert sharding.steps_left(start) == len(expected)


@settings(deadline=None, max_examples=60)
@given(runs(), st.integers(0, 60))
def test_jumping_is_stepping_and_finding_back(pair: tuple[Run, Sharding], position: int) -> None:
    run, sharding = pair
    dealt: dict[int, int] = {}
    for number, (shares, _) in enumerate(itertools.islice(steps(run, position), 40)):
        start = sharding.jump(position, number)
        assert [sharding.positions(start, r).tolist() for r in range(run.world_size)] == shares
        dealt.update({p: number for share in shares for p in share})
    for p in range(max(dealt) + 1):
        assert sharding.steps_to(position, p) == dealt.get(p), p


@settings(deadline=None)
@given(runs(), st.integers(0, 100), st.integers(1, 5), st.integers(1, 3))
def test_full_steps_without_exclusions_are_made_together(
    pair: tuple[Run, Sharding], position: int, most: int, every: int
) -> None:
    run, sharding = pair
    start = sharding.step_start(position)
    count = sharding.full_steps(start, most)
    full = [start + n * sharding.step_size for n in range(count)]
    ends = [sharding.step_end(begin) for begin in full]
    assert ends == [begin + sharding.step_size for begin in full]
    if 0 < count < most and ends[-1] % run.size:  # Not at the end of the epoch.
        assert not sharding.full_steps(ends[-1], 1)
    if not count:
        total = sum(len(sharding.positions(start, r)) for r in range(run.world_size))
        assert sharding.step_end(start) - start != sharding.step_size or total < sharding.step_size
    for rank in range(run.world_size):
        expected = [p for begin in full[::every] for p in sharding.positions(begin, rank).tolist()]
        found = sharding.run_positions(start, rank, range(0, count, every))
        assert found.tolist() == expected


def test_far_positions_cost_what_near_ones_do() -> None:
    sharding = Sharding(10**12, 256, 64, True, Exclusions([(10**15, 3 * 10**15 + 5)]))
    per_epoch = 10**12 // (256 * 64)
    assert sharding.step_start(10**15 + 1) == 3 * 10**15 + 5
    start = sharding.jump(0, 1000 * per_epoch + 3)  # epochs 1000 to 2999 are excluded
    assert start == 3000 * 10**12 + 5 + 3 * 256 * 64
    assert sharding.steps_to(0, start + 1) == 1000 * per_epoch + 3


def test_equal_steps_and_a_partition_on_every_rank() -> None:
    # Exhaustive: 10 samples, every batch size, every world size.
    for batch, world in itertools.product(range(1, 11), range(1, 8)):
        sharding = Sharding(10, batch, world)
        dealt = [
            [sharding.positions(start, r).tolist() for start in range(0, 10, sharding.step_size)]
            for r in range(world)
        ]
        assert {len(shares) for shares in dealt} == {-(-10 // (batch * world))}
        assert sorted(p for shares in dealt for share in shares for p in share) == list(range(10))
        last = [len(shares[-1]) for shares in dealt]
        assert max(last) - min(last) <= 1


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (1.0, TypeError, r"^`position` must be an integer, got float 1.0$"),
        (True, TypeError, r"^`position` must be an integer, got bool True$"),
        ("1", TypeError, r"^`position` must be an integer, got str '1'$"),
        (None, TypeError, r"^`position` must be an integer, got NoneType None$"),
        (-1, ValueError, r"^`position` must be at least 0, got -1$"),
        (2**63, ValueError, r"^`position` must be at most 9223372036854775807, got 92"),
    ],
)
def test_integers_are_checked(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_integer("position", value)


def test_deals_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"^`drop_last` would drop every sample: 3 ranks .* 12 "):
        Sharding(10, 4, 3, drop_last=True)
    with pytest.raises(ValueError, match=r"^`excluded` of the state is invalid: `stop` must"):
        Exclusions.from_state([[3, 3]])
    with pytest.raises(ValueError, match=r"^`excluded` of the state is invalid: "):
        Exclusions.from_state(5)


def test_the_end_of_all_positions_is_told() -> None:
    with pytest.raises(IndexError, match=r"would pass the end of the stream, 2\^63 - 1$"):
        Sharding(10, 4).positions(LIMIT - 3, 0)
    assert Sharding(LIMIT, 4).positions(LIMIT - 3, 0).tolist() == [LIMIT - 3, LIMIT - 2, LIMIT - 1]
