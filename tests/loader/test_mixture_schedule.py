"""Weights that change at positions: what was served stays served, and states know of the past."""

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
from windeck import Loader, Mixture, Stream
from windeck.loader.state import restored, saved

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
    # A part of weight 1 keeps the weights without a common divisor.
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
    streams = list(mixture.parts.values())
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
    state = json.loads(json.dumps(saved(numbers(entries[0][1], entries[1:]), position)))
    past = [entry for entry in entries[1:] if entry[0] < position]
    # The future may be forgotten, moved or made up.
    assert restored(numbers(entries[0][1], past), state) == position
    later = [(max(1, position), [1, 0, 0]), (position + 7, [1, 2, 3])]
    assert restored(numbers(entries[0][1], past + later), state) == position
    for gone in past:
        with pytest.raises(ValueError, match=rf"{FOREIGN}.*"):
            restored(numbers(entries[0][1], [entry for entry in past if entry != gone]), state)
    if position > 1 and all(start != 1 for start, _ in past):
        with pytest.raises(ValueError, match=rf"{FOREIGN}.*"):
            restored(numbers(entries[0][1], [(1, [1, 9, 9]), *past]), state)


def test_an_entry_of_the_past_is_named() -> None:
    before = numbers([1, 1, 0], [(10, [1, 3, 0]), (50, [1, 0, 0])])
    state = saved(before, 30)
    changed = numbers([1, 1, 0], [(10, [1, 2, 0])])
    message = (
        r"the schedule's entry at position 10 has taken effect and may not change: it was a=1/4, "
        r"b=3/4, here it is a=1/3, b=2/3$"
    )
    with pytest.raises(ValueError, match=FOREIGN + message):
        restored(changed, state)
    message = (
        r"when it was saved, the schedule had an entry at position 10 \(a=1/4, b=3/4\), which has "
        r"taken effect and is missing here$"
    )
    with pytest.raises(ValueError, match=FOREIGN + message):
        restored(numbers([1, 1, 0], []), state)
    message = (
        r"the schedule has an entry at position 29 \(a=1/1\), which the run that saved it did not "
        r"have there: entries may be added for the future only$"
    )
    with pytest.raises(ValueError, match=FOREIGN + message):
        restored(numbers([1, 1, 0], [(10, [1, 3, 0]), (29, [1, 0, 0])]), state)
    with pytest.raises(ValueError, match=r"fingerprint has shares = 'a=1/2, b=1/2', here it is 'a"):
        restored(numbers([1, 2, 0], [(10, [1, 3, 0])]), state)


def test_equal_shares_are_the_same_mixture_however_they_are_written() -> None:
    one = Mixture({"a": (Numbers(5), 0.7), "b": (Numbers(5), 0.3)})
    other = Mixture({"a": (Numbers(5), 7), "b": (Numbers(5), 3)})
    assert one.fingerprint == other.fingerprint
    assert restored(other, saved(one, 8)) == 8


def test_a_part_that_is_new_does_not_trouble_a_state_from_before() -> None:
    state = saved(numbers([1, 2], []), 40)
    grown = numbers([1, 2, 0], [(40, [1, 2, 3])])
    assert restored(grown, state) == 40
    assert grown.locate(range(40))[0].tolist() == numbers([1, 2], []).locate(range(40))[0].tolist()
    assert grown.shares_at(40)["c"] == 0.5
    with pytest.raises(
        ValueError, match=r"the schedule has an entry at position 39 \(a=1/6, b=2/6"
    ):
        restored(numbers([1, 2, 0], [(39, [1, 2, 3])]), state)
    with pytest.raises(ValueError, match=r"fingerprint has shares = 'a=1/3, b=2/3', here it"):
        restored(Mixture({"a": (Numbers(7), 1), "x": (Numbers(7), 2)}, seed=1), state)


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

    state = saved(mixture(), 6)
    assert restored(mixture(), state) == 6
    message = r"fingerprint has part.web.part.c4.source.salt = 0, here it is 5$"
    with pytest.raises(ValueError, match=message):
        restored(mixture(salt=5), state)
    message = FOREIGN + "in part 'web', in part 'c4', the documents were 5 9 long$"
    with pytest.raises(ValueError, match=message):
        restored(mixture(lengths=[5, 8]), state)


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
        ([5], TypeError, r"^the schedule has to be pairs \(position, weights\), got 5$"),
        ([(1, 2, 3)], TypeError, r"^the schedule has to be pairs .*, got \(1, 2, 3\)$"),
        (
            [(1, [1, 1])],
            TypeError,
            r"^weights have to be a mapping of parts in the schedule at 1",
        ),
        ([("1", {})], TypeError, r"^a position in the schedule must be an integer, got str '1'$"),
        ([(-1, {})], ValueError, r"^a position in the schedule must be at least 0, got -1$"),
        (
            [(0, {"a": 1, "b": 1})],
            ValueError,
            r"^the schedule's positions have to ascend from above 0, got 0 after 0$",
        ),
        (
            [*PAIRS, *PAIRS],
            ValueError,
            r"^the schedule's positions have to ascend from above 0, got 3 after 3$",
        ),
        (
            [(3, {"a": 1})],
            ValueError,
            r"^the weights in the schedule at 3 leave out part 'b', expected a, b$",
        ),
        (
            [(3, {"a": 1, "b": 1, "x": 1})],
            ValueError,
            r"^the weights in the schedule at 3 are for an unknown part 'x', expected a, b$",
        ),
        (
            [(3, {"a": 0, "b": 0.0})],
            ValueError,
            r"^all weights are 0 in the schedule at 3, expected one above 0 at least$",
        ),
        (
            [(3, {"a": float("nan"), "b": 1})],
            ValueError,
            r"^the weight of 'a' is nan in the schedule at 3, expected a finite number of at least",
        ),
        (
            [(3, {"a": -2, "b": 1})],
            ValueError,
            r"^the weight of 'a' is -2 in the schedule at 3, expected a finite number of at least",
        ),
    ],
)
def test_bad_schedules(schedule: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mixture({"a": (Numbers(3), 1), "b": (Numbers(3), 1)}, schedule=schedule)


def test_states_of_streams_that_know_nothing_of_this_are_as_before() -> None:
    stream = Stream(Numbers(9), seed=2)
    assert saved(stream, 4)["fingerprint"] == dict(stream.fingerprint)
    assert stream.fingerprint_at(0) == stream.fingerprint
