"""States by arithmetic, epochs of so many steps, and loops that begin at the start every time."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.oracle import Numbers, Turn, turned
from windeck import Loader, Mixture, Stream
from windeck.loader import IterDataset


def mixture() -> Mixture:
    return Mixture({"a": (Numbers(50), 2), "b": (Numbers(70, "b"), 1)}, seed=4)


def samples(loader: Loader, batches: int | None = None) -> list[list[int]]:
    return [batch["sample"].tolist() for batch in itertools.islice(loader, batches)]


def by_steps(length: int, batch_size: int, **options: Any) -> Loader:
    return Loader(mixture(), batch_size=batch_size, steps_per_epoch=length, **options)


# Changes of a run: batches to take, then the next batch size, world size, drop_last, exclusion.
LEGS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(1, 4),
        st.integers(1, 3),
        st.booleans(),
        st.none() | st.tuples(st.integers(0, 15), st.integers(1, 8)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(legs=LEGS, endless=st.booleans())
def test_the_state_at_every_step_is_the_one_returned_there(legs: list[Any], endless: bool) -> None:
    stream = mixture() if endless else Stream(Numbers(13), order=Turn)
    state: dict[str, Any] | None = None
    returned: dict[int, dict[str, Any]] = {}
    foretold: dict[int, dict[str, Any]] = {}
    loader = Loader(stream, batch_size=1)
    for batches, batch_size, world_size, drop_last, exclusion in legs:
        loader = Loader(
            stream,
            batch_size=batch_size,
            rank=world_size - 1,
            world_size=world_size,
            drop_last=drop_last,
            prefetch=0,
        )
        if state is not None:
            loader.load_state_dict(state)
        if exclusion is not None:
            start = loader.position + exclusion[0]
            loader.exclude(start, start + exclusion[1])
        foretold = {n: loader.state_dict(step=n) for n in range(loader.step, loader.step + 10)}
        left = batches
        while True:
            returned[loader.step] = loader.state_dict()
            assert returned[loader.step] == foretold[loader.step]
            if not left:
                break
            left -= 1
            next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    for step, was in returned.items():
        computed = loader.state_dict(step=step)
        assert json.loads(json.dumps(computed)) == computed
        # Exclusions that were made later are in a past state too: they are those known now.
        assert {**computed, "excluded": was["excluded"]} == was
    assert loader.state_dict(step=loader.step) == loader.state_dict()


def test_a_computed_state_continues_there() -> None:
    whole = samples(Loader(Numbers(10), batch_size=3, order=Turn))
    for step in range(4):
        loader = Loader(Numbers(10), batch_size=3, order=Turn)
        list(itertools.islice(loader, 2))
        resumed = Loader(Numbers(10), batch_size=3, order=Turn)
        resumed.load_state_dict(loader.state_dict(step=step))
        assert (resumed.step, samples(resumed)) == (step, whole[step:])
        assert loader.step == 2


def test_computed_states_far_away() -> None:
    loader = Loader(
        Numbers(10**12), batch_size=10, order=Turn, drop_last=True, world_size=3, rank=0
    )
    assert loader.state_dict(step=10**11)["position"] == 3 * 10**12 + 30
    with pytest.raises(IndexError, match=r"^step \d+ would pass the end of the stream, 2\^63 - 1$"):
        loader.state_dict(step=2**62)


def test_states_that_cannot_be_computed() -> None:
    loader = Loader(Numbers(10), batch_size=4, epochs=2)
    assert loader.state_dict(step=6)["position"] == 20
    with pytest.raises(IndexError, match=r"^step 7 is after the last step of epochs=2$"):
        loader.state_dict(step=7)
    with pytest.raises(ValueError, match=r"^`step` must be at least 0, got -1$"):
        loader.state_dict(step=-1)
    short = {**loader.state_dict(step=3), "legs": []}
    loader.load_state_dict(short)
    with pytest.raises(IndexError, match=r"^step 2 is before step 3, the first of the state$"):
        loader.state_dict(step=2)
    counted = by_steps(5, 2, epochs=2)
    assert counted.state_dict(step=10)["step"] == 10
    with pytest.raises(IndexError, match=r"^step 11 is after the last step of epochs=2$"):
        counted.state_dict(step=11)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_epochs_of_so_many_steps(prefetch: int) -> None:
    whole = samples(Loader(mixture(), batch_size=3, prefetch=prefetch), 15)
    loader = by_steps(5, 3, epochs=3, prefetch=prefetch)
    for epoch in range(3):
        assert (loader.epoch, len(loader), loader.steps_left) == (epoch, 5, 5)
        assert samples(loader) == whole[5 * epoch : 5 * epoch + 5]
    assert (loader.epoch, loader.steps_left, loader.step) == (3, 0, 15)
    assert samples(loader) == []
    with pytest.raises(IndexError, match=r"^there is no next batch: epochs=3 is reached$"):
        loader.peek()


def test_an_epoch_of_steps_is_continued_with_another_batch_and_world_size() -> None:
    first = by_steps(5, 3)
    assert len(samples(first, 7)) == 5, "a loop ends with its epoch"
    assert len(samples(first, 2)) == 2
    assert (first.step, first.epoch, first.steps_left) == (7, 1, 3)
    ranks = []
    for rank in range(2):
        loader = by_steps(5, 4, rank=rank, world_size=2)
        loader.load_state_dict(first.state_dict())
        assert (loader.step, loader.epoch, loader.steps_left, len(loader)) == (7, 1, 3, 5)
        ranks.append(samples(loader))
        assert (loader.epoch, loader.steps_left, loader.position) == (2, 5, 7 * 3 + 3 * 8)
    flat = list(itertools.chain.from_iterable(samples(Loader(mixture(), batch_size=1), 45)))
    together = [sample for step in zip(*ranks, strict=True) for share in step for sample in share]
    assert together == flat[21:]


def test_a_loop_stays_in_its_epoch_of_steps() -> None:
    loader = by_steps(4, 2)
    start = loader.state_dict()
    loop = iter(loader)
    next(loop)
    other = samples(loader)  # The rest of the epoch, taken by another loop.
    assert len(other) == 3
    assert list(loop) == [], "the loop belongs to epoch 0, the loader is in epoch 1"
    again = iter(loader)
    next(again)
    loader.load_state_dict(start)
    assert list(again) == [], "the loop belongs to epoch 1, the loader is in epoch 0"
    assert len(samples(loader)) == 4


def test_a_stream_that_has_epochs_keeps_them() -> None:
    with pytest.raises(
        ValueError, match=r"^`steps_per_epoch` must be None, got 5: Stream has epochs of 10 samples"
    ):
        Loader(Numbers(10), batch_size=2, steps_per_epoch=5)
    with pytest.raises(ValueError, match=r"^`steps_per_epoch` must be at least 1, got 0$"):
        by_steps(0, 2)
    with pytest.raises(ValueError, match=r"give it epochs with `steps_per_epoch`, or end the "):
        Loader(mixture(), batch_size=2, epochs=1)
    with pytest.raises(TypeError, match=r"has no length; `steps_per_epoch` gives it one$"):
        len(Loader(mixture(), batch_size=2))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_loop_begins_at_the_start(prefetch: int) -> None:
    loader = Loader(Numbers(10), batch_size=3, order=Turn, restart=True, prefetch=prefetch)
    whole = [[turned(10, p) for p in range(i, min(i + 3, 10))] for i in range(0, 10, 3)]
    assert samples(loader, 2) == whole[:2]
    assert [samples(loader) for _ in range(3)] == [whole] * 3
    assert (loader.position, loader.step, loader.epoch, loader.steps_left) == (0, 0, 0, 4)
    assert loader.peek()["sample"].tolist() == whole[0]
    assert [[a["sample"].tolist(), *samples(loader, 1)] for a in loader] == [
        [batch, whole[0]] for batch in whole
    ], "loops do not affect each other"
    assert loader.samples(3).tolist() == whole[3]


def test_a_loader_that_restarts_has_a_state_at_position_0() -> None:
    loader = Loader(Numbers(10), batch_size=3, order=Turn, restart=True)
    samples(loader)
    state = loader.state_dict()
    assert state == Loader(Numbers(10), batch_size=3, order=Turn).state_dict()
    moving = Loader(Numbers(10), batch_size=3, order=Turn)
    samples(moving, 2)
    with pytest.raises(ValueError, match=r"^the state is at position 6, but with `restart` every"):
        loader.load_state_dict(moving.state_dict())
    loader.load_state_dict(state)
    loader.exclude(0, 4)
    assert samples(loader)[0] == samples(loader)[0] == [turned(10, p) for p in (4, 5, 6)]


def test_the_first_steps_of_a_mixture_every_time() -> None:
    loader = by_steps(4, 3, restart=True)
    assert samples(loader, 2) + samples(loader)[2:] == samples(loader)
    assert samples(loader) == samples(Loader(mixture(), batch_size=3), 4)
    assert by_steps(4, 3, restart=True, epochs=0).steps_left == 0


def test_epochs_of_steps_need_a_state_that_counts_steps() -> None:
    stream = mixture()
    state = IterDataset(stream, batch_size=4, position=100).state_dict()
    assert "step" not in state
    loader = Loader(stream, batch_size=4, steps_per_epoch=10, epochs=3)
    with pytest.raises(ValueError, match="does not count steps"):
        loader.load_state_dict(state)
    assert loader.position == 0
