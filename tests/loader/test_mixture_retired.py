"""Parts of a mixture that are retired: their files are gone, and the run goes on."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from models.oracle import Numbers
from models.packed_model import Packed, assert_same
from support.mixture_cases import C4, WIKI
from windeck import Loader, Mixture, Stream

END = 40
SCHEDULE = [(END, {"new": 1, "old": 0}), (100, {"new": 3, "old": 0})]


def mixture(old: Any, new: Any = None, schedule: Any = SCHEDULE, **options: Any) -> Mixture:
    return Mixture(
        {"new": (new or Numbers(90), 0.5), "old": (old, 0.5)}, schedule=schedule, **options
    )


def state_at(data: Mixture, position: int) -> dict[str, Any]:
    loader = Loader(data, batch_size=10)
    while loader.position < position:
        next(iter(loader))
    return loader.state_dict()


@pytest.mark.parametrize("position", [40, 50, 200])
def test_a_state_goes_on_without_the_source(position: int) -> None:
    whole = mixture(Numbers(30))
    state = state_at(whole, position)
    loader = Loader(mixture(None), batch_size=6)
    loader.load_state_dict(state)
    for step in range(5):
        batch = {key: tensor.numpy() for key, tensor in next(iter(loader)).items()}
        start = position + 6 * step
        assert_same(batch, whole.gather(np.arange(start, start + 6)))
    # Its own states load where the part is retired, and say why they do not elsewhere.
    again = Loader(mixture(None), batch_size=10)
    again.load_state_dict(loader.state_dict())
    assert again.position == loader.position
    with pytest.raises(
        ValueError, match=r"^part 'old' was retired when the state was saved, but has a source he"
    ):
        Loader(whole, batch_size=10).load_state_dict(loader.state_dict())


def test_the_last_position_has_to_have_passed() -> None:
    end = int(mixture(Numbers(30)).position_of_part("old", [19])[0]) + 1
    assert end == END
    for position in (0, 10, 30):
        state = state_at(mixture(Numbers(30)), position)
        loader = Loader(mixture(None), batch_size=10)
        with pytest.raises(
            ValueError,
            match=rf"^the state is at position {position}, but part 'old', whose source is None, "
            r"has samples until position 40; expected its source$",
        ):
            loader.load_state_dict(state)
        assert loader.position == 0


def test_the_end_is_that_of_its_last_sample_and_not_of_the_entry() -> None:
    schedule = [(41, {"new": 1, "old": 0})]
    retired = mixture(None, schedule=schedule)
    last = int(mixture(Numbers(30), schedule=schedule).locate(np.arange(41))[0].nonzero()[0][-1])
    assert last == 39
    assert retired.fingerprint["part.old.retired"] == 40


def test_its_past_samples_are_refused_with_the_reason() -> None:
    data = mixture(None)
    message = (
        r"^part 'old' is retired \(its source is None\), so its samples, all before position 40, "
        r"cannot be read; give its source to read them$"
    )
    for ask in (
        lambda: data.gather([0, 1]),
        lambda: data.gather(np.arange(30, 50)),
        lambda: data.samples([1]),
        lambda: data.position_of([(1, 3)]),
        lambda: data.epoch_of((1, 3), at=50),
        lambda: data.documents_at([1]),
        lambda: data.document_positions(("old", ("c4", 0, 1)), at=50),
        lambda: next(iter(Loader(data, batch_size=10, prefetch=0))),
        lambda: next(iter(Loader(data, batch_size=10))),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    assert data.gather([])["sample"].shape == (0,)


def test_arithmetic_and_the_other_parts_stay() -> None:
    data, whole = mixture(None), mixture(Numbers(30))
    positions = np.arange(200)
    for found, expected in zip(data.locate(positions), whole.locate(positions), strict=True):
        assert found.tolist() == expected.tolist()
    assert data.names == whole.names
    assert data.shares == whole.shares
    assert data.position_in_part("old", 200) == 20
    new = positions[data.locate(positions)[0] == 0]
    assert data.samples(new).tolist() == whole.samples(new).tolist()
    assert_same(data.gather(new), whole.gather(new))
    assert data.parts["old"] is None
    again = pickle.loads(pickle.dumps(data))
    assert again.fingerprint == data.fingerprint
    assert_same(again.gather(new), data.gather(new))


def test_documents_are_searched_in_the_parts_with_data() -> None:
    data = mixture(None, Packed(C4))
    assert len(data.document_positions(("c4", 0, 1), at=50))
    with pytest.raises(KeyError, match=r"retired parts are not searched: 'old'"):
        data.document_positions(("wiki", 0, 1), at=50)


def test_a_retired_part_of_a_mixture_in_a_mixture() -> None:
    def outer(old: Any) -> Mixture:
        return Mixture({"web": (Packed(C4), 0.5), "core": (mixture(old, Packed(WIKI)), 0.5)})

    whole = outer(Packed(WIKI, name="old"))
    early, state = state_at(whole, 40), state_at(whole, 90)
    assert whole.position_in_part("core", 90) == 45
    loader = Loader(outer(None), batch_size=5)
    loader.load_state_dict(state)
    batch = {key: tensor.numpy() for key, tensor in next(iter(loader)).items()}
    assert_same(batch, whole.gather(np.arange(90, 95)))
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"^the state is at position 20, but part 'old', whose "):
        loader.load_state_dict(early)
    with pytest.raises(ValueError, match=r"^part 'old' was retired when the state was saved, but"):
        Loader(whole, batch_size=5).load_state_dict(loader.state_dict())


def test_other_differences_are_still_refused() -> None:
    state = state_at(mixture(Numbers(30)), 50)
    for other in (
        mixture(None, Numbers(91)),
        mixture(None, seed=1),
        mixture(
            None,
            schedule=[SCHEDULE[0], (44, {"new": 2, "old": 1}), SCHEDULE[1]],
        ),
    ):
        loader = Loader(other, batch_size=10)
        with pytest.raises(ValueError, match="the state"):
            loader.load_state_dict(state)


def test_a_part_that_is_still_served_cannot_be_retired() -> None:
    with pytest.raises(
        ValueError,
        match=r"^part 'old' is None, but it has a share of 0.5 from position 0 on: a part",
    ):
        mixture(None, schedule=[])
    with pytest.raises(ValueError, match=r"it has a share of 0.25 from position 60 on"):
        mixture(None, schedule=[SCHEDULE[0], (60, {"new": 3, "old": 1})])
    with pytest.raises(ValueError, match=r"^at least one part must have a source, got None for al"):
        Mixture({"a": (None, 1)})


def test_a_part_that_was_never_served_needs_no_source() -> None:
    data = Mixture({"a": (Stream(Numbers(9), seed=1), 1), "b": (None, 0)})
    same = Mixture({"a": (Stream(Numbers(9), seed=1), 1), "b": (Numbers(5), 0)})
    assert data.fingerprint == same.fingerprint
    loader = Loader(data, batch_size=4)
    loader.load_state_dict(state_at(same, 10))
    assert_same(data.gather(range(20)), same.gather(range(20)))


def test_a_part_of_rounded_shares_may_be_retired() -> None:
    schedule = [(1000, {"new": 1, "old": 0})]

    def of(old: Any) -> Mixture:
        return Mixture({"new": (Numbers(90), 627.3e9), "old": (old, 1.2e30)}, schedule=schedule)

    loader = Loader(of(None), batch_size=10)
    loader.load_state_dict(state_at(of(Numbers(30)), 1000))
    assert len(next(iter(loader))["sample"]) == 10


class Dropping(Stream):
    """A stream that removes a field of states in place."""

    def without_retired(self, fields: Any, position: int) -> Any:
        fields.pop("gone", None)
        return fields


def test_a_part_may_change_the_fields_in_place() -> None:
    data = Mixture({"one": (Dropping(Numbers(90)), 1), "two": (Stream(Numbers(30)), 1)})
    state = state_at(data, 20)
    state["fingerprint"]["part.one.gone"] = 5
    saved = dict(state["fingerprint"])
    loader = Loader(data, batch_size=10)
    loader.load_state_dict(state)
    assert loader.position == 20
    assert state["fingerprint"] == saved
