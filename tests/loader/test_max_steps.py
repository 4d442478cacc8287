"""The end of iteration after so many steps: loops, lengths, states and resumed runs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.oracle import Numbers, Turn
from windeck import IterDataset, Loader, Mixture, Stream


def mixture() -> Mixture:
    return Mixture({"a": (Numbers(50), 2), "b": (Numbers(70, "b"), 1)}, seed=4)


def loops_of(loader: Loader, count: int) -> list[list[list[int]]]:
    """Return the samples of the batches of some loops."""
    return [[batch["sample"].tolist() for batch in loader] for _ in range(count)]


#: Options that give a run of 13 samples an end, or none.
RUNS: list[dict[str, Any]] = [
    {"data": Stream(Numbers(13), order=Turn)},
    {"data": Stream(Numbers(13), order=Turn), "drop_last": True},
    {"data": Stream(Numbers(13), order=Turn), "epochs": 2},
    {"data": mixture(), "steps_per_epoch": 4},
    {"data": mixture(), "steps_per_epoch": 4, "epochs": 2},
]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_loops_are_those_without_the_bound_until_it(run: Any, prefetch: int) -> None:
    options = {"batch_size": 3, "prefetch": prefetch, **run}
    for most in range(12):
        full, left = [], most
        for loop in loops_of(Loader(**options), 4):
            full.append(loop[:left])
            left -= len(full[-1])
        loader = Loader(**options, max_steps=most)
        assert loops_of(loader, 4) == full
        assert loader.step == most - left
        assert loops_of(loader, 2) == [[], []] or left > 0


@pytest.mark.parametrize("run", RUNS)
def test_length_and_steps_left_are_those_of_the_loop(run: Any) -> None:
    for most in range(1, 12):
        loader = Loader(batch_size=3, prefetch=0, **run, max_steps=most)
        ended = False
        while not ended:
            expected, before = loader.steps_left, loader.step
            length = len(loader)
            assert length == expected or not expected
            for done, _ in enumerate(loader, 1):
                assert loader.step == before + done
                if done < length:
                    assert loader.steps_left == expected - done
                    assert len(loader) == length
            assert loader.step - before == expected
            ended = not expected
        assert len(loader) > 0


def test_a_loop_over_a_stream_without_epochs_ends_at_the_bound() -> None:
    loader = Loader(mixture(), batch_size=3, max_steps=7)
    assert (len(loader), loader.steps_left, loader.epoch) == (7, 7, 0)
    (loop,) = loops_of(loader, 1)
    free = Loader(mixture(), batch_size=3)
    assert loop == [batch["sample"].tolist() for batch in itertools.islice(free, 7)]
    assert (len(loader), loader.steps_left) == (7, 0)
    assert loader.state_dict() == free.state_dict()


#: Batch size, ranks, drop_last, batches to take, and the bound of a leg.
LEG = st.tuples(
    st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(0, 6), st.integers(0, 20)
)


@settings(max_examples=100, deadline=None)
@given(legs=st.lists(LEG, min_size=1, max_size=4), number=st.integers(0, len(RUNS) - 1))
def test_a_resumed_run_counts_steps_from_its_beginning(legs: Any, number: int) -> None:
    run = {name: value for name, value in RUNS[number].items() if name != "drop_last"}
    state: dict[str, Any] | None = None
    step = 0
    for batch_size, ranks, drop_last, batches, most in legs:
        options = {**run, "batch_size": batch_size, "world_size": ranks, "rank": ranks - 1}
        free = Loader(**options, drop_last=drop_last)
        loader = Loader(**options, drop_last=drop_last, max_steps=most)
        if state is not None:
            free.load_state_dict(state)
            loader.load_state_dict(state)
        for _ in range(batches):
            expected = next(iter(free), None) if step < most else None
            found = next(iter(loader), None)
            assert (found is None) == (expected is None)
            if found is None or expected is None:
                break
            step += 1
            assert found["sample"].tolist() == expected["sample"].tolist()
        assert loader.step == step
        assert loader.steps_left == min(free.steps_left, max(0, most - step))
        assert loader.state_dict() == free.state_dict()
        state = json.loads(json.dumps(loader.state_dict()))


def test_nothing_comes_of_a_state_beyond_the_bound() -> None:
    stream = Stream(Numbers(13), order=Turn)
    state = Loader(stream, batch_size=3).state_dict(step=8)
    loader = Loader(stream, batch_size=3, max_steps=5)
    loader.load_state_dict(state)
    assert (list(loader), loader.steps_left, loader.step) == ([], 0, 8)
    with pytest.raises(IndexError, match=r"^there is no next batch: max_steps=5 is reached$"):
        loader.peek()
    # Its past steps are there; there are no future ones.
    assert loader.state_dict(step=7) == Loader(stream, batch_size=3).state_dict(step=7)
    assert loader.served(7).samples == 13 + 2 * 3
    with pytest.raises(IndexError, match=r"^step 9 is after the last step of max_steps=5$"):
        loader.state_dict(step=9)
    loader.exclude(40, 50)
    assert loader.state_dict()["step"] == 8


def test_states_until_the_bound_are_computed_and_none_after_it() -> None:
    loader = Loader(mixture(), batch_size=3, max_steps=5)
    assert loader.state_dict(step=5)["position"] == 15
    with pytest.raises(IndexError, match=r"^step 6 is after the last step of max_steps=5$"):
        loader.state_dict(step=6)
    with pytest.raises(IndexError, match=r"^step 6 is after the last step of max_steps=5$"):
        loader.served(6)


def test_a_loop_that_restarts_ends_at_the_bound_every_time() -> None:
    loader = Loader(Numbers(13), batch_size=3, restart=True, max_steps=2)
    assert loops_of(loader, 3) == [[[0, 1, 2], [3, 4, 5]]] * 3
    assert (len(loader), loader.step, loader.steps_left) == (2, 0, 2)
    beyond = Loader(Numbers(13), batch_size=3, restart=True, max_steps=9)
    assert (len(beyond), len(list(beyond))) == (5, 5)


def test_the_bound_needs_a_state_that_counts_steps() -> None:
    state = IterDataset(mixture(), batch_size=4, position=100).state_dict()
    loader = Loader(mixture(), batch_size=4, max_steps=30)
    with pytest.raises(
        ValueError,
        match=r"^the state is at position 100 and does not count steps, which `max_steps` needs",
    ):
        loader.load_state_dict(state)
    assert loader.position == 0


def test_a_bound_that_is_no_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^`max_steps` must be at least 0, got -1$"):
        Loader(Numbers(5), batch_size=1, max_steps=-1)
    with pytest.raises(TypeError, match=r"^`max_steps` must be an integer, got float 2.0$"):
        Loader(Numbers(5), batch_size=1, max_steps=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^`epochs` must be None, got 2: Mixture has no epochs"):
        Loader(mixture(), batch_size=1, max_steps=5, epochs=2)


def test_batches_made_ahead_end_with_the_bound() -> None:
    source = Numbers(100)
    gathered: list[Any] = []
    loader = Loader(source, batch_size=5, max_steps=3, prefetch=8)
    source.watch = lambda indices: gathered.append(indices.tolist()) if len(indices) else None
    assert len(list(loader)) == 3
    assert len(gathered) == 3
