"""Schedules of weights: served samples do not change, and states depend on the past only."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.mixture_model import Counted
from models.oracle import Numbers
from models.packed_model import Packed
from support.stream_states import load_stream_position, stream_state
from windeck import Loader, Mixture, Stream

FOREIGN = "^the state does not belong to this data: "


def numbers(
    weights: list[int], schedule: list[tuple[int, list[int]]], sizes: tuple[int, ...] = (7, 11, 5)
) -> Mixture:
    names = "abc"[: len(weights)]
    return Mixture(
        {n: (Numbers(s, n), w) for n, s, w in zip(names, sizes, weights, strict=False)},
        seed=1,
        schedule=[(p, dict(zip(names, w, strict=True))) for p, w in schedule],
    )


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    # A weight of 1 ensures that the weights have no common divisor.
    weights = st.tuples(st.just(1), st.integers(0, 4), st.integers(0, 4)).map(list)
    starts = draw(st.lists(st.integers(1, 80), max_size=4, unique=True))
    return [(start, draw(weights)) for start in [0, *sorted(starts)]]


@settings(deadline=None, max_examples=80)
@given(schedules())
def test_counts_go_on_over_every_change(entries: list[tuple[int, list[int]]]) -> None:
    mixture = numbers(entries[0][1], entries[1:])
    expected = Counted(entries, 130).served
    part, own = mixture.locate(np.arange(130))
    assert list(zip(part.tolist(), own.tolist(), strict=True)) == expected
    streams: list[Any] = list(mixture.parts.values())
    assert mixture.gather(np.arange(130))["sample"].tolist() == [
        int(streams[part].samples([own])[0]) for part, own in expected
    ]
    for position in range(0, 130, 13):
        weights = [entry for entry in entries if entry[0] <= position][-1][1]
        total = sum(weights)
        assert list(mixture.shares_at(position).values()) == [w / total for w in weights]


@settings(deadline=None, max_examples=60)
@given(schedules(), st.integers(0, 100))
def test_a_state_takes_any_future_and_no_other_past(
    entries: list[tuple[int, list[int]]], position: int
) -> None:
    state = json.loads(json.dumps(stream_state(numbers(entries[0][1], entries[1:]), position)))
    past = [entry for entry in entries[1:] if entry[0] < position]
    # Later entries may be removed, moved or added.
    assert load_stream_position(numbers(entries[0][1], past), state) == position
    later = [(max(1, position), [1, 0, 0]), (position + 7, [1, 2, 3])]
    assert load_stream_position(numbers(entries[0][1], past + later), state) == position
    for gone in past:
        with pytest.raises(ValueError, match=rf"{FOREIGN}.*"):
            load_stream_position(
                numbers(entries[0][1], [entry for entry in past if entry != gone]), state
            )
    if position > 1 and all(start != 1 for start, _ in past):
        with pytest.raises(ValueError, match=rf"{FOREIGN}.*"):
            load_stream_position(numbers(entries[0][1], [(1, [1, 9, 9]), *past]), state)


def test_an_entry_of_the_past_is_named() -> None:
    before = numbers([1, 1, 0], [(10, [1, 3, 0]), (50, [1, 0, 0])])
    state = stream_state(before, 30)
    changed = numbers([1, 1, 0], [(10, [1, 2, 0])])
    message = (
        r"the schedule entry at position 10 has taken effect and must not change: it was a=1/4, "
        r"b=3/4, here it is a=1/3, b=2/3$"
    )
    with pytest.raises(ValueError, match=FOREIGN + message):
        load_stream_position(changed, state)
    message = (
        r"it was saved with a schedule entry at position 10 \(a=1/4, b=3/4\), which has taken "
        r"effect and is missing here$"
    )
    with pytest.raises(ValueError, match=FOREIGN + message):
        load_stream_position(numbers([1, 1, 0], []), state)
    message = (
        r"the schedule has an entry at position 29 \(a=1/1\), but the position had been passed "
        r"without it when the state was saved: entries may be added for later positions only$"
    )
    with pytest.raises(ValueError, match=FOREIGN + message):
        load_stream_position(numbers([1, 1, 0], [(10, [1, 3, 0]), (29, [1, 0, 0])]), state)
    with pytest.raises(ValueError, match=r"fingerprint has shares = 'a=1/2, b=1/2', here it is 'a"):
        load_stream_position(numbers([1, 2, 0], [(10, [1, 3, 0])]), state)


def test_equal_shares_are_the_same_mixture_however_they_are_written() -> None:
    one = Mixture({"a": (Numbers(5), 0.7), "b": (Numbers(5), 0.3)})
    other = Mixture({"a": (Numbers(5), 7), "b": (Numbers(5), 3)})
    assert one.fingerprint == other.fingerprint
    assert load_stream_position(other, stream_state(one, 8)) == 8


def test_a_part_that_is_new_does_not_trouble_a_state_from_before() -> None:
    state = stream_state(numbers([1, 2], []), 40)
    grown = numbers([1, 2, 0], [(40, [1, 2, 3])])
    assert load_stream_position(grown, state) == 40
    assert grown.locate(range(40))[0].tolist() == numbers([1, 2], []).locate(range(40))[0].tolist()
    assert grown.shares_at(40)["c"] == 0.5
    with pytest.raises(
        ValueError, match=r"the schedule has an entry at position 39 \(a=1/6, b=2/6"
    ):
        load_stream_position(numbers([1, 2, 0], [(39, [1, 2, 3])]), state)
    with pytest.raises(ValueError, match=r"fingerprint has shares = 'a=1/3, b=2/3', here it"):
        load_stream_position(Mixture({"a": (Numbers(7), 1), "x": (Numbers(7), 2)}, seed=1), state)


def test_the_fingerprint_is_flat_and_names_parts() -> None:
    mixture = Mixture({"a": (Numbers(5), 1), "b.c": (Numbers(7), 1)}, seed=3)
    told = mixture.fingerprint
    assert {key: told[key] for key in ("seed", "mixture", "shares")} == {
        "seed": 3,
        "shares": 'a=1/2, "b.c"=1/2',
        "mixture": 'a, "b.c"',
    }
    assert (told["part.a.samples"], told['part."b.c".source.size']) == (5, 7)
    assert json.loads(json.dumps(told)) == told


def test_another_source_in_a_part_is_named_and_may_explain_itself() -> None:
    def mixture(**options: Any) -> Mixture:
        packed = Packed(**{"lengths": [5, 9], **options})
        inner = Mixture({"wiki": (Packed([6, 6]), 1), "c4": (packed, 1)})
        return Mixture({"web": (inner, 1), "books": (Packed([9, 9]), 1)})

    state = stream_state(mixture(), 6)
    assert load_stream_position(mixture(), state) == 6
    message = r"fingerprint has part.web.part.c4.source.salt = 0, here it is 5$"
    with pytest.raises(ValueError, match=message):
        load_stream_position(mixture(salt=5), state)
    message = FOREIGN + "in part 'web', in part 'c4', the documents were 5 9 long$"
    with pytest.raises(ValueError, match=message):
        load_stream_position(mixture(lengths=[5, 8]), state)


def test_loaders_keep_to_it() -> None:
    loader = Loader(numbers([1, 1, 0], [(20, [0, 1, 1])]), batch_size=5, prefetch=0)
    loop = iter(loader)
    first = [next(loop)["sample"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [next(loop)["sample"].tolist() for _ in range(6)]
    later = Loader(numbers([1, 1, 0], [(20, [0, 1, 1]), (30, [1, 0, 0])]), batch_size=5, prefetch=0)
    later.load_state_dict(state)
    again = iter(later)
    found = [next(again)["sample"].tolist() for _ in range(6)]
    assert found[:3] == rest[:3]
    assert found[3:] != rest[3:]
    assert first[0] == numbers([1, 1, 0], []).gather(range(5))["sample"].tolist()
    past = Loader(numbers([1, 1, 0], [(14, [0, 1, 1])]), batch_size=5)
    with pytest.raises(ValueError, match=r"the schedule has an entry at position 14 \(b=1/2, c=1/"):
        past.load_state_dict(state)
    assert past.position == 0


PAIRS = [(3, {"a": 1, "b": 1})]


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        ([5], TypeError, r"^`schedule` must be a list of pairs \(position, weights\), got 5$"),
        ([(1, 2, 3)], TypeError, r"^`schedule` must be a list of pairs .*, got \(1, 2, 3\)$"),
        (
            [(1, [1, 1])],
            TypeError,
            r"^the weights must be a mapping by part in the schedule at 1",
        ),
        ([("1", {})], TypeError, r"^a position in the schedule must be an integer, got str '1'$"),
        ([(-1, {})], ValueError, r"^a position in the schedule must be at least 0, got -1$"),
        (
            [(0, {"a": 1, "b": 1})],
            ValueError,
            r"^the positions in `schedule` must be ascending and above 0, got 0 after 0$",
        ),
        (
            [*PAIRS, *PAIRS],
            ValueError,
            r"^the positions in `schedule` must be ascending and above 0, got 3 after 3$",
        ),
        (
            [(3, {"a": 1})],
            ValueError,
            r"^the weights in the schedule at 3 have no part 'b', expected a, b$",
        ),
        (
            [(3, {"a": 1, "b": 1, "x": 1})],
            ValueError,
            r"^the weights in the schedule at 3 have an unknown part 'x', expected a, b$",
        ),
        (
            [(3, {"a": 0, "b": 0.0})],
            ValueError,
            r"^at least one weight must be above 0 in the schedule at 3, got only zeros$",
        ),
        (
            [(3, {"a": float("nan"), "b": 1})],
            ValueError,
            r"^the weight of 'a' must be finite and at least 0 in the schedule at 3, got nan",
        ),
        (
            [(3, {"a": -2, "b": 1})],
            ValueError,
            r"^the weight of 'a' must be finite and at least 0 in the schedule at 3, got -2",
        ),
    ],
)
def test_bad_schedules(schedule: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mixture({"a": (Numbers(3), 1), "b": (Numbers(3), 1)}, schedule=schedule)


def test_states_of_streams_that_know_nothing_of_this_are_as_before() -> None:
    stream = Stream(Numbers(9), seed=2)
    assert stream_state(stream, 4)["fingerprint"] == dict(stream.fingerprint)
    assert stream.fingerprint_at(0) == stream.fingerprint
