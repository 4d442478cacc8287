"""Positions of the steps of all ranks, compared with the lists of the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.oracle import Numbers, Run, epoch_of, steps
from windeck import Loader
from windeck._util import LIMIT, check_integer

ranges = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 30)).map(lambda r: (r[0], r[0] + r[1])), max_size=5
)


class Independent(Numbers):
    """Its loaders make several batches by one call."""

    independent_rows = True


def loader_at(run: Run, position: int, pairs: list[tuple[int, int]], rank: int = 0) -> Loader:
    """Return a loader of a rank whose run begins at a position, with ranges that are excluded."""
    loader = Loader(
        Independent(run.size),
        batch_size=run.batch_size,
        rank=rank,
        world_size=run.world_size,
        drop_last=run.drop_last,
        prefetch=0,
    )
    state = loader.state_dict()
    loader.load_state_dict({**state, "position": position, "excluded": [[*pair] for pair in pairs]})
    return loader


def shares_of(loader: Loader, step: int, size: int) -> list[list[int]]:
    """Return the samples of every rank in a step."""
    return [loader.samples(step, rank=rank).tolist() for rank in range(size)]


def samples_of(run: Run, shares: list[list[int]]) -> list[list[int]]:
    return [[p % run.size for p in share] for share in shares]


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, list[tuple[int, int]]]:
    size, pairs = draw(st.integers(1, 24)), draw(ranges)
    world, drop_last = draw(st.integers(1, 4)), draw(st.booleans())
    most = size // world if drop_last else 2 * size
    if most == 0:
        world, most = 1, size
    batch = draw(st.integers(1, most))
    excluded = {p for start, stop in pairs for p in range(start, stop)}
    return Run(size, batch, world, drop_last, excluded), pairs


@settings(deadline=None)
@given(ranges)
def test_exclusions_are_sorted_and_joined(pairs: list[tuple[int, int]]) -> None:
    loader = loader_at(Run(10, 2), 0, pairs)
    joined = loader.state_dict()["excluded"]
    assert all(start < stop for start, stop in joined)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(joined))
    gone = {p for start, stop in pairs for p in range(start, stop)}
    assert {p for start, stop in joined for p in range(start, stop)} == gone
    for start, stop in reversed(pairs):
        loader.exclude(start, stop)
    assert loader.state_dict()["excluded"] == joined


@settings(deadline=None, max_examples=60)
@given(runs(), st.integers(0, 100))
def test_steps_are_the_oracles_from_any_position(
    pair: tuple[Run, list[tuple[int, int]]], position: int
) -> None:
    run, pairs = pair
    loader = loader_at(run, position, pairs)
    dealt: dict[int, int] = {}
    for step, (shares, _) in enumerate(itertools.islice(steps(run, position), 20)):
        assert shares_of(loader, step, run.world_size) == samples_of(run, shares)
        dealt.update({p: step for share in shares for p in share})
    for p in range(max(dealt) + 1):
        assert loader.step_of(p % run.size, epoch=p // run.size) == dealt.get(p), p


@settings(deadline=None)
@given(runs(), st.integers(0, 100))
def test_an_epoch_is_what_a_loop_deals(
    pair: tuple[Run, list[tuple[int, int]]], position: int
) -> None:
    run, pairs = pair
    expected = epoch_of(run, position)
    for rank in range(run.world_size):
        loader = loader_at(run, position, pairs, rank)
        assert loader.steps_left == len(expected)
        found = [batch["sample"].tolist() for batch in loader]
        assert found == [samples_of(run, shares)[rank] for shares in expected]
        here = {p for shares in expected for share in shares for p in share}
        first = min(here) // run.size * run.size
        for p in range(max(first, position), first + run.size):
            assert loader.visited(p % run.size, epoch=p // run.size) == (p in here)


def test_far_positions_cost_what_near_ones_do() -> None:
    run, skipped = Run(10**12, 256, 64, True), (10**15, 3 * 10**15 + 5)
    per_epoch = 10**12 // (256 * 64)
    assert loader_at(run, 10**15 + 1, [skipped]).peek()["sample"][0] == 5
    loader = loader_at(run, 0, [skipped])
    # Epochs 1000 to 2999 are excluded.
    assert loader.samples(1000 * per_epoch + 3)[0] == 5 + 3 * 256 * 64
    assert loader.step_of(5 + 3 * 256 * 64 + 1, epoch=3000) == 1000 * per_epoch + 3


def test_equal_steps_and_a_partition_on_every_rank() -> None:
    # Exhaustive: 10 samples, every batch size, every world size.
    for batch, world in itertools.product(range(1, 11), range(1, 8)):
        loader = loader_at(Run(10, batch, world), 0, [])
        assert len(loader) == -(-10 // (batch * world))
        dealt = [shares_of(loader, step, world) for step in range(len(loader))]
        assert sorted(p for shares in dealt for share in shares for p in share) == list(range(10))
        last = [len(share) for share in dealt[-1]]
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


@pytest.mark.parametrize(("size", "fits"), [(10, False), (LIMIT, True)])
def test_the_end_of_all_positions_is_told(size: int, fits: bool) -> None:
    loader: Any = loader_at(Run(size, 4), LIMIT - 3, [])
    if fits:
        assert loader.peek()["sample"].tolist() == [LIMIT - 3, LIMIT - 2, LIMIT - 1]
        return
    with pytest.raises(IndexError, match=r"would pass the end of the stream, 2\^63 - 1$"):
        loader.peek()
