"""torchdata's StatefulDataLoader over windeck's datasets and sampler, killed and resumed."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest

pytest.importorskip("torchdata")

from torchdata.stateful_dataloader import (
    StatefulDataLoader,
)

from models.oracle import Numbers, Run, Turn, epoch_of, turned
from windeck import Mixture, Stream
from windeck.loader import IterDataset, MapDataset, OrderSampler, collate

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11
]

SIZE, BATCH, EPOCHS = 11, 2, 4
#: Batches of 2, 2, 2, 2, 2 and 1 samples.
STEPS = 6


def streamed(workers: int, persistent: bool, every: int, **options: Any) -> Any:
    """A loader of whole batches of a stream."""
    dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH, **options)
    return StatefulDataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
        snapshot_every_n_steps=every,
    )


def sampled(workers: int, persistent: bool, every: int, **options: Any) -> Any:
    """A loader of a map-style dataset in an order."""
    return StatefulDataLoader(
        MapDataset(Numbers(SIZE)),
        batch_size=BATCH,
        sampler=OrderSampler(SIZE, order=Turn, **options),
        collate_fn=collate,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
        snapshot_every_n_steps=every,
    )


def single(workers: int, persistent: bool, every: int, **options: Any) -> Any:
    """A loader of single samples, which asks the sampler itself for them."""
    return StatefulDataLoader(
        MapDataset(Numbers(SIZE)),
        batch_size=None,
        sampler=OrderSampler(SIZE, order=Turn, **options),
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
        snapshot_every_n_steps=every,
    )


def epochs(batch: int = BATCH, rank: int = 0, world_size: int = 1) -> list[list[list[int]]]:
    run = Run(SIZE, batch, world_size)
    return [
        [[turned(SIZE, p) for p in shares[rank]] for shares in epoch_of(run, SIZE * epoch)]
        for epoch in range(EPOCHS)
    ]


def samples(batch: Any) -> list[int]:
    found = batch["sample"].tolist()
    return found if isinstance(found, list) else [found]


CASES = list(itertools.product([0, 1, 2], [False, True], [1, 3]))
CASES = [(w, p, every) for w, p, every in CASES if w or not p]
#: Of one worker, each value of the other two options once: of two, all their pairs are tested.
CASES = [(w, p, every) for w, p, every in CASES if w != 1 or p == (every == 1)]


@pytest.mark.parametrize("make", [streamed, sampled, single])
@pytest.mark.parametrize(("workers", "persistent", "every"), CASES)
def test_a_run_that_is_killed_anywhere_goes_on_exactly(
    make: Any, workers: int, persistent: bool, every: int
) -> None:
    expected = epochs(1 if make is single else BATCH)
    steps = len(expected[0])
    states: dict[tuple[int, int], bytes] = {}
    loader = make(workers, persistent, every)
    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader, 1):
            assert samples(batch) == expected[epoch][step - 1]
            states[epoch, step] = pickle.dumps(loader.state_dict())
        states[epoch, steps + 1] = pickle.dumps(loader.state_dict())  # At the end of the epoch.
    del loader
    killed = [(0, 2), (1, steps), (1, steps + 1)]
    for epoch, step in killed if workers else states:
        resumed = make(workers, persistent, every)
        resumed.load_state_dict(pickle.loads(states[epoch, step]))
        rest = expected[epoch][step:]
        if step == steps:  # Saved with the last batch: this loop may be the next epoch already.
            found = [samples(batch) for batch in resumed]
            assert found in ([], *expected[epoch + 1 : epoch + 2])
            following = epoch + 1 + bool(found)
        elif step < steps:
            assert [samples(batch) for batch in resumed] == rest
            following = epoch + 1
        else:
            following = epoch + 1
        for number in range(following, min(EPOCHS, following + 2)):
            assert [samples(batch) for batch in resumed] == expected[number]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_is_killed_again(workers: int) -> None:
    expected = list(itertools.chain.from_iterable(epochs()))
    found, state = [], None
    for _ in range(5):
        loader = streamed(workers, False, 2)
        if state is not None:
            loader.load_state_dict(state)
        loader.load_state_dict(loader.state_dict())  # Before the first batch.
        loops = itertools.chain.from_iterable(loader for _ in range(3))
        for batch in itertools.islice(loops, 4):
            found.append(samples(batch))
            state = pickle.loads(pickle.dumps(loader.state_dict()))
            # The dataset itself knows the position of a loop in its own process alone.
            if workers:
                with pytest.raises(RuntimeError, match=r"^workers have begun a loop since"):
                    loader.dataset.state_dict()
            else:
                assert loader.dataset.state_dict()["position"] == int(batch["position"])
    assert len(found) == 20
    assert found == expected[: len(found)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_stream_goes_on(workers: int) -> None:
    def make() -> Any:
        dataset = IterDataset(Mixture({"a": (Numbers(5), 1), "b": (Numbers(7), 2)}), batch_size=3)
        context = "fork" if workers else None
        return StatefulDataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=context
        )

    expected = [b["sample"].tolist() for b in itertools.islice(make(), 20)]
    loader = make()
    found = [b["sample"].tolist() for b in itertools.islice(loader, 7)]
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    found += [b["sample"].tolist() for b in itertools.islice(resumed, 13)]
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_resume_from_the_state_of_one(workers: int) -> None:
    loader = streamed(workers, False, 1, rank=0, world_size=2)
    list(itertools.islice(loader, 2))
    state = loader.state_dict()
    for rank in (0, 1):
        resumed = streamed(workers, False, 1, rank=rank, world_size=2)
        resumed.load_state_dict(state)
        expected = epochs(BATCH, rank, 2)
        assert [samples(b) for b in resumed] == expected[0][2:]
        assert [samples(b) for b in resumed] == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [streamed, sampled])
def test_what_torchdata_cannot_continue_raises(make: Any, workers: int) -> None:
    loader = make(workers, False, 1, rank=0, world_size=2)
    list(itertools.islice(loader, 1))
    state = loader.state_dict()
    other = make(workers, False, 1, rank=0, world_size=3)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"saved with world_size = 2, here it is 3: to change it"):
        next(iter(other))
    if make is streamed:
        dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=3, rank=0, world_size=2)
        other = StatefulDataLoader(
            dataset,
            batch_size=None,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        other.load_state_dict(state)
        with pytest.raises(ValueError, match=r"saved with batch_size = 2, here it is 3"):
            next(iter(other))
    other = make(1, False, 1, rank=0, world_size=2)
    other.load_state_dict(state)
    with pytest.raises((AssertionError, ValueError)):
        next(iter(other))
