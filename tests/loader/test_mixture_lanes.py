"""Mixtures in lanes: each lane is a mixture of its own, over its own stretch of every part."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.mixture_model import CountedInLanes
from models.oracle import Numbers
from models.packed_model import assert_same
from support.mixture_cases import packed_parts
from support.text_mixtures import LONGEST_TABLE, period, shared, shares_of
from windeck import BlockPermutation, Lanes, Loader, Mixture, Permutation, Sequential, Stream
from windeck._util import LIMIT
from windeck.loader import Served
from windeck.sources import Fingerprint

SHARES = {"a": 0.6, "b": 0.3, "c": 0.1}
SIZES = {"a": 90, "b": 37, "c": 20}


def mixture(lanes: int = 4, unit: int = 3, **options: Any) -> Mixture:
    parts = {name: (Numbers(SIZES[name]), share) for name, share in SHARES.items()}
    return Mixture(parts, seed=7, lanes=lanes, unit=unit, **options)


def cases(draw: st.DrawFn) -> tuple[list[tuple[int, list[int]]], int, int]:
    lanes, unit = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    parts = draw(st.integers(1, 4))
    counts = st.lists(st.integers(0, 5), min_size=parts, max_size=parts).filter(any)
    steps = draw(st.lists(st.integers(1, 6), max_size=3, unique=True))
    starts = [0, *(step * lanes * unit for step in sorted(steps))]
    return [(start, draw(counts)) for start in starts], lanes, unit


class Places:
    """A stream whose samples are its positions; it keeps the ranges that are to be counted."""

    epoch_length = None
    fingerprint: Fingerprint = {"places": 1}  # noqa: RUF012

    def gather(self, positions: Any, out: Any = None) -> dict[str, Any]:
        return {"sample": positions.copy()}

    def samples(self, positions: Any) -> Any:
        return positions

    def position_of(self, samples: Any, *, epoch: int) -> Any:
        return samples

    def epoch_of(self, sample: Any, *, at: int) -> int:
        return at

    def served(self, position: int, *, skipped: Any, documents: bool) -> Served:
        gone = [own for start, stop in skipped for own in range(start, stop)]
        assert len(gone) == len(set(gone))
        self.counted = set(range(position)) - set(gone)
        return Served(len(self.counted))


def places(
    entries: list[tuple[int, list[int]]], lanes: int, unit: int, retired: Sequence[int] = ()
) -> tuple[Mixture, list[Places]]:
    """Return a mixture of `Places`, and its parts; some have no data any more."""
    streams = [Places() for _ in entries[0][1]]
    parts: dict[str, Any] = {
        str(part): (None if part in retired else streams[part], weight)
        for part, weight in enumerate(entries[0][1])
    }
    schedule = [(start, dict(zip(parts, counts, strict=True))) for start, counts in entries[1:]]
    return Mixture(parts, schedule=schedule, lanes=lanes, unit=unit), streams


@settings(deadline=None, max_examples=80)
@given(st.composite(cases)())
def test_every_lane_is_a_counter_run_one_by_one(
    case: tuple[list[tuple[int, list[int]]], int, int],
) -> None:
    entries, lanes, unit = case
    size = 7 * lanes * unit + 1
    mixed, streams = places(entries, lanes, unit)
    model = CountedInLanes(entries, lanes, unit, size).served
    part, own = mixed.locate(np.arange(size))
    assert list(zip(part.tolist(), own.tolist(), strict=True)) == model
    for position in range(0, size, 1 + size // 12):
        counts = mixed.served(position)
        assert counts.samples == position
        for which, name in enumerate(mixed.names):
            served = {own for one, own in model[:position] if one == which}
            assert streams[which].counted == served
            assert counts.parts[name].samples == len(served)
            assert mixed.position_in_part(name, position) == max(served, default=-1) + 1
            first = min(set(range(len(served) + 1)) - served)
            assert mixed.epoch_of((which, 0), at=position) == first
    for which, name in enumerate(mixed.names):
        mine = [p for p, (one, _) in enumerate(model) if one == which]
        numbers = [model[p][1] for p in mine]
        assert mixed.position_of_part(name, np.array(numbers, np.int64)).tolist() == mine
        others = sorted(set(range(max(numbers, default=0) + 9)) - set(numbers))
        later = mixed.position_of_part(name, np.array(others, np.int64))
        assert ((later == -1) | (later >= size)).all()
        assert not entries[-1][1][which] or (later >= size).all()
    gone = [part for part, count in enumerate(entries[-1][1]) if not count]
    ends = {part: max((p for p in range(size) if model[p][0] == part), default=-1) for part in gone}
    fields = places(entries, lanes, unit, gone)[0].fingerprint
    # A part that had a weight may have served nothing before it was retired.
    had_weight = [part for part in gone if any(counts[part] for _, counts in entries)]
    assert {name: end for name, end in fields.items() if name.endswith(".retired")} == {
        f"part.{part}.retired": ends[part] + 1 for part in had_weight
    }


@settings(deadline=None)
@given(
    st.composite(cases)(),
    st.integers(0, 150),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 60)), max_size=3),
)
def test_a_part_counts_the_own_positions_that_were_not_skipped(
    case: tuple[list[tuple[int, list[int]]], int, int], position: int, pairs: list[tuple[int, int]]
) -> None:
    mixed, streams = places(*case)
    # Ranges that are apart, as those of a loader.
    skipped = [(start, start + length) for start, length in pairs]
    skipped = [pair for n, pair in enumerate(skipped) if not overlap(pair, skipped[:n])]
    mixed.served(position, skipped=skipped)
    model = CountedInLanes(*case, position).served
    kept = [p for p in range(position) if not any(start <= p < stop for start, stop in skipped)]
    for which, stream in enumerate(streams):
        assert stream.counted == {model[p][1] for p in kept if model[p][0] == which}


def overlap(pair: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(pair[0] < stop and start < pair[1] for start, stop in others)


@pytest.mark.parametrize("weights", [[0.6, 0.3, 0.1], [0.09003057317038046, 0.7, 1e-4], [5, 64]])
@pytest.mark.parametrize(("lanes", "unit"), [(8, 8), (16, 1), (3, 50)])
def test_lanes_and_steps_have_their_shares(weights: list[float], lanes: int, unit: int) -> None:
    parts = {str(number): (Numbers(10), weight) for number, weight in enumerate(weights)}
    mixed = Mixture(parts, lanes=lanes, unit=unit)
    written = {name: weight for name, (_, weight) in parts.items()}
    shares = np.array(shares_of(written), np.float64)
    step = lanes * unit
    part, _ = mixed.locate(np.arange(200 * step))
    served = np.eye(len(weights), dtype=np.int64)[part].reshape(200, lanes, unit, -1).sum(axis=2)
    # Within two samples at the beginning and two at the end; one each for short periods.
    of_step = served.sum(axis=1) - shares * step
    of_lane = np.cumsum(served, axis=0) - shares * unit * np.arange(1, 201)[:, None, None]
    assert abs(of_step).max() < 4
    assert abs(of_lane).max() < 4
    if period(written) <= LONGEST_TABLE:
        assert abs(of_step).max() < 2


def test_long_periods_are_those_of_the_model() -> None:
    weights = {"a": 627.3e9, "b": 1.2e12, "c": 3.4e9}
    mixed = Mixture({name: (Numbers(9), w) for name, w in weights.items()}, lanes=4, unit=5)
    model = shared(weights)
    places = [(p // 20 + p // 5 % 4) * 5 + p % 5 for p in range(400)]
    assert mixed.locate(np.arange(400))[0].tolist() == [model.part(place)[0] for place in places]


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_every_epoch_of_a_part_has_every_sample_once(lanes: int) -> None:
    mixed = mixture(lanes, 3)
    samples = mixed.samples(np.arange(6 * 3 * 100))
    _, own = mixed.locate(np.arange(len(samples)))
    for part, (name, size) in enumerate(SIZES.items()):
        mine = samples[:, 0] == part
        for epoch in range(mixed.epoch_of((part, 0), at=len(samples))):
            here = mine & (own // size == epoch)
            assert sorted(samples[here, 1].tolist()) == list(range(size)), name
            positions = mixed.position_of(samples[here], epoch=epoch)
            assert positions.tolist() == np.flatnonzero(here).tolist()


def test_one_lane_is_no_lanes() -> None:
    plain, one = mixture(1, 1), mixture(1, 9)
    assert plain.fingerprint == one.fingerprint
    assert (plain.samples(np.arange(500)) == one.samples(np.arange(500))).all()
    assert "lanes" not in plain.fingerprint
    assert mixture().fingerprint["lanes"] == "4 of 3"
    assert mixture().fingerprint["part.a.order"] == "Lanes(lanes=4, order=Permutation)"


def test_each_lane_reads_a_stretch_of_its_own() -> None:
    mixed = mixture(4, 3)
    for name, size in SIZES.items():
        part, own = mixed.locate(np.arange(4000))
        lanes = np.arange(4000) // 3 % 4
        stream: Any = mixed.parts[name]
        for epoch in range(4):
            here = (part == mixed.names.index(name)) & (own // size == epoch)
            inner = stream.order_at(epoch).inner.index(stream.samples(own[here]))
            bounds = sorted(
                (int(inner[lanes[here] == lane].min()), int(inner[lanes[here] == lane].max()))
                for lane in range(4)
            )
            assert all(one[1] < other[0] for one, other in pairwise(bounds))


def served_rows(data: Any, state: Any, batch: int, world: int, steps: int) -> tuple[Any, Any]:
    """Return the samples of some steps of all ranks in their order, and the state after them."""
    rows: list[Any] = []
    ranks = [Loader(data, batch_size=batch, rank=r, world_size=world) for r in range(world)]
    for loader in ranks:
        if state is not None:
            loader.load_state_dict(state)
    for _ in range(steps):
        for loader in ranks:
            rows += next(iter(loader))["sample"].tolist()
    return rows, ranks[0].state_dict()


def test_states_resume_at_any_number_of_ranks() -> None:
    mixed = mixture(4, 3, schedule=[(96, {"a": 0.1, "b": 0.1, "c": 0.8})])
    expected = mixed.gather(np.arange(400))["sample"].tolist()
    found: list[int] = []
    state = None
    for batch, world, steps in ((6, 2, 3), (5, 3, 2), (1, 1, 1), (3, 4, 4), (7, 5, 2), (12, 1, 9)):
        rows, state = served_rows(mixed, state, batch, world, steps)
        found += rows
    assert found == expected[: len(found)]
    assert state is not None
    other = Loader(mixture(4, 6), batch_size=2)
    with pytest.raises(
        ValueError, match=r"the mixture had lanes \(4 of 3\) when .* lanes \(4 of 6"
    ):
        other.load_state_dict(state)
    first = Loader(mixture(4, 3), batch_size=12).state_dict()
    with pytest.raises(ValueError, match=r"had lanes \(4 of 3\) when .* has no lanes here; expect"):
        Loader(mixture(1), batch_size=2).load_state_dict(first)


def test_a_part_that_is_retired() -> None:
    schedule = [(48, {"a": 1, "b": 0, "c": 1})]
    parts = {name: (Numbers(SIZES[name]), share) for name, share in SHARES.items()}
    whole = Mixture(parts, lanes=4, unit=3, schedule=schedule)
    retired = Mixture(parts | {"b": (None, 0.3)}, lanes=4, unit=3, schedule=schedule)
    part, _ = whole.locate(np.arange(96))
    end = int(np.flatnonzero(part == 1)[-1]) + 1
    loader = Loader(whole, batch_size=1, max_steps=end)
    for _ in loader:
        pass
    again = Loader(retired, batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert again.served().samples == end
    assert {name: c.samples for name, c in again.served().parts.items()} == {
        name: int((part[:end] == number).sum()) for number, name in enumerate(SHARES)
    }
    with pytest.raises(ValueError, match=f"has samples until position {end}; expected its source"):
        Loader(retired, batch_size=1).load_state_dict(Loader(whole, batch_size=1).state_dict())


def test_a_part_that_grows_where_no_lane_has_passed() -> None:
    position = 50
    before = mixture(4, 3)
    at = before.position_in_part("b", position)
    lanes: Any = partial(Lanes, lanes=4, order=Permutation)

    def grown(entries: Any) -> Mixture:
        stream = Stream(Numbers(37), order=lanes, seed=3, grown=entries)
        parts: dict[str, Any] = {"a": (Numbers(90), 0.7), "b": (stream, 0.3)}
        return Mixture(parts, lanes=4, unit=3)

    loader = Loader(grown([]), batch_size=position, max_steps=1)
    next(iter(loader))
    more = grown([(at, Numbers(60))])
    again = Loader(more, batch_size=5)
    again.load_state_dict(loader.state_dict())
    assert (more.samples(np.arange(position)) == grown([]).samples(np.arange(position))).all()
    samples = more.samples(np.arange(position, 800))
    assert samples[samples[:, 0] == 1, 1].max() == 59


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 200), st.lists(st.tuples(st.integers(0, 150), st.integers(1, 60)), max_size=3)
)
def test_counts_are_those_of_the_positions(position: int, skipped: list[tuple[int, int]]) -> None:
    mixed = mixture(4, 3)
    pairs = [(start, start + length) for start, length in skipped]
    kept = [p for p in range(position) if not any(a <= p < b for a, b in pairs)]
    part, _ = mixed.locate(np.array(kept, np.int64))
    served = mixed.served(position, skipped=pairs)
    assert served.samples == len(kept)
    every, _ = mixed.locate(np.arange(position))
    for number, (name, counts) in enumerate(served.parts.items()):
        assert counts.samples == int((part == number).sum())
        assert counts.epoch == pytest.approx(int((every == number).sum()) / SIZES[name])


def test_batches_of_packed_parts_are_the_rows_of_the_parts() -> None:
    parts = packed_parts()
    mixed = Mixture({name: (data, 1 + n) for n, (name, data) in enumerate(parts.items())}, lanes=3)
    positions = np.arange(60)
    part, own = mixed.locate(positions)
    streams = list(mixed.parts.values())
    rows = [streams[p].gather_rows([n]) for p, n in zip(part.tolist(), own.tolist(), strict=True)]
    expected = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    assert_same(mixed.gather_rows(positions), expected)
    again = pickle.loads(pickle.dumps(mixed))
    assert_same(again.gather_rows(positions), expected)
    assert again.fingerprint == mixed.fingerprint
    assert repr(mixed).endswith("seed=0, lanes=3, unit=1)")


def test_each_part_is_called_once_for_each_epoch_of_its_lanes() -> None:
    """Lanes pass the end of an epoch at different rows of a batch."""
    calls: list[int] = []

    class Watched(Numbers):
        def at_epoch(self, epoch: int, *, seed: int) -> Any:
            return self

    source = Watched(24)
    source.watch = lambda indices: calls.append(len(indices))
    parts: dict[str, Any] = {"a": (source, 0.7), "b": (Numbers(90), 0.3)}
    mixed = Mixture(parts, lanes=8, unit=3)
    calls.clear()
    for start in range(0, 480, 24):
        calls.clear()
        mixed.gather(np.arange(start, start + 24))
        assert len(calls) <= 2


def test_a_mixture_of_mixtures() -> None:
    inner = Mixture({"x": (Numbers(30), 0.5), "y": (Numbers(11), 0.5)}, seed=2, lanes=4)
    lanes: Any = partial(Lanes, lanes=4, order=partial(BlockPermutation, block_size=5))
    parts: dict[str, Any] = {
        "web": (Stream(Numbers(80), order=lanes), 0.65),
        "good": (inner, 0.35),
    }
    outer = Mixture(parts, lanes=4, unit=2)
    part, own = outer.locate(np.arange(640))
    lane = np.arange(640) // 2 % 4
    for which in (0, 1):
        assert (own[part == which] % 4 == lane[part == which]).all()
    # The inner mixture stays in the lane, and so do its parts.
    _, inner_own = inner.locate(own[part == 1])
    assert (inner_own % 4 == lane[part == 1]).all()


def test_far_positions() -> None:
    mixed = mixture(8, 5)
    far = np.array([10**15, 10**18 + 7, LIMIT // 40 * 40 - 1])
    part, own = mixed.locate(far)
    for position, which, number in zip(far.tolist(), part.tolist(), own.tolist(), strict=True):
        name = mixed.names[which]
        assert mixed.position_of_part(name, [number]).tolist() == [position]
    assert (mixed.position_of_part("a", [LIMIT - 1]) == -1).all()


def test_errors() -> None:
    with pytest.raises(
        ValueError,
        match=r"^positions in `schedule` must be multiples of lanes \* unit = 12, as all lanes "
        r"change together, got 50; expected 48 or 60$",
    ):
        mixture(4, 3, schedule=[(50, SHARES)])
    with pytest.raises(ValueError, match="`lanes` must be at least 1, got 0"):
        mixture(0)
    with pytest.raises(ValueError, match="`unit` must be at least 1, got 0"):
        mixture(2, 0)
    with pytest.raises(TypeError, match="`lanes`"):
        mixture(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`lanes` \* `unit` must be at most 16,777,216, got 8192"):
        mixture(8192, 4096)
    assert mixture(1, 1, schedule=[(50, SHARES)]).shares_at(50)["a"] == pytest.approx(0.6)


def test_published_positions_stay() -> None:
    """They determine the sample at a position: a change would invalidate saved states."""
    part, own = mixture(4, 3).locate(np.arange(24))
    assert part.tolist() == PUBLISHED[0]
    assert own.tolist() == PUBLISHED[1]
    parts: dict[str, Any] = {"a": (Stream(Numbers(9), order=Sequential), 2), "b": (Numbers(4), 1)}
    assert Mixture(parts, lanes=2).locate(np.arange(6))[1].tolist() == PUBLISHED[2]


PUBLISHED: list[list[int]] = [
    [0, 1, 0, 0, 1, 0, 2, 0, 0, 1, 0, 1, 0, 1, 0, 2, 0, 0, 1, 0, 1, 0, 0, 1],
    [0, 0, 4, 1, 1, 5, 2, 2, 6, 3, 3, 7, 8, 4, 12, 1, 9, 13, 2, 10, 6, 7, 11, 11],
    [0, 1, 0, 1, 2, 3],
]
