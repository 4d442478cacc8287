"""Loops over an IterDataset one after the other, with and without workers, against a model."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import DataLoader, get_worker_info

from models.oracle import Numbers, Run, Turn, epoch_of, turned
from windeck import Stream
from windeck.loader import IterDataset

pytestmark = [
    # torch warns if there are more workers than cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # Python 3.12 and later warn of forks while torch's threads run.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

SIZE, BATCH = 11, 2
STATE = {"position": 15}


class Late(IterDataset):
    """A dataset whose last worker begins each loop after the first batch was handed out."""

    def __iter__(self) -> Any:
        worker = get_worker_info()
        if worker is not None and worker.id == worker.num_workers - 1 > 0:
            time.sleep(0.02)
        return super().__iter__()


class Model:
    """The position of a dataset: that set last, or the end of the epoch of the last loop."""

    def __init__(self) -> None:
        self.position, self.is_open = 0, False

    def move(self, position: int) -> None:
        self.position, self.is_open = position, False

    def loop(self) -> list[tuple[list[int], int]]:
        """Return the batches of the next loop, each with the position after it."""
        steps = epoch_of(Run(SIZE, BATCH), self.position)
        found = [([turned(SIZE, p) for p in shares[0]], shares[0][-1] + 1) for shares in steps]
        self.position, self.is_open = found[-1][1], True
        return found


def whole(dataset: IterDataset, loader: Any, model: Model) -> None:
    expected = model.loop()
    assert [(b["sample"].tolist(), int(b["position"])) for b in loader] == expected


def left(batches: int, moves: bool) -> Callable[..., None]:
    """Return a loop that ends after some batches, and moves the position with each."""

    def act(dataset: IterDataset, loader: Any, model: Model) -> None:
        expected = model.loop()[:batches]
        for (samples, end), batch in zip(expected, loader, strict=False):
            assert (batch["sample"].tolist(), int(batch["position"])) == (samples, end)
            if moves:
                dataset.position = batch["position"]
                model.move(end)

    return act


def saved_every_other(dataset: IterDataset, loader: Any, model: Model) -> None:
    """A whole loop that moves the position at every other batch only: the last move counts."""
    for number, (expected, batch) in enumerate(zip(model.loop(), loader, strict=True)):
        assert batch["sample"].tolist() == expected[0]
        if number % 2:
            dataset.position = batch["position"]
            model.move(expected[1])


def loaded(dataset: IterDataset, loader: Any, model: Model) -> None:
    dataset.load_state_dict({**dataset.state_dict(0), **STATE})
    model.move(15)


def never_used(dataset: IterDataset, loader: Any, model: Model) -> None:
    """An iterator without a batch handed out is a loop as well, once its workers have begun."""
    model.loop()
    iter(loader)
    limit = time.monotonic() + 60
    while dataset.position != model.position and time.monotonic() < limit:
        time.sleep(0.001)


ACTIONS = [
    whole,
    left(1, moves=False),
    left(2, moves=True),
    left(9, moves=True),
    saved_every_other,
    loaded,
    never_used,
]


def every(length: int) -> list[int]:
    """Return a cyclic sequence that contains each sequence of `length` actions (de Bruijn)."""
    count, found = len(ACTIONS), []
    word = [0] * (count * length)

    def extend(t: int, p: int) -> None:
        if t > length:
            if length % p == 0:
                found.extend(word[1 : p + 1])
            return
        word[t] = word[t - p]
        extend(t + 1, p)
        for letter in range(word[t - p] + 1, count):
            word[t] = letter
            extend(t + 1, t)

    extend(1, 1)
    return [*found, *found[: length - 1]]


def check(dataset: IterDataset, loader: Any, actions: list[int], workers: int) -> None:
    model = Model()
    for number in actions:
        # Equal seeds of the loops' workers must not make equal loops.
        torch.manual_seed(0)
        ACTIONS[number](dataset, loader, model)
        assert dataset.position == model.position
        assert len(dataset) == len(loader) == len(epoch_of(Run(SIZE, BATCH), model.position))
        if not model.is_open:
            assert dataset.state_dict()["position"] == model.position
        elif workers:
            with pytest.raises(RuntimeError, match=r"^workers have begun a loop since the positi"):
                dataset.state_dict()
        elif ACTIONS[number] is whole:
            assert dataset.state_dict()["position"] == model.position


@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
@pytest.mark.parametrize(
    ("workers", "persistent", "length"), [(0, False, 3), (1, True, 2), (2, True, 3), (1, False, 2)]
)
def test_all_sequences_of_loops(workers: int, persistent: bool, length: int) -> None:
    dataset = Late(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
    )
    check(dataset, loader, every(length), workers)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_all_pairs_of_loops_of_new_workers() -> None:
    dataset = Late(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    check(dataset, loader, every(2), 2)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
@pytest.mark.parametrize("persistent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_loops_of_spawned_workers(persistent: bool) -> None:
    dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context="spawn",
    )
    check(dataset, loader, every(2) if persistent else [0, 0, 1, 0, 3, 5, 0], 2)


def test_without_workers_the_state_is_exact_in_a_loop() -> None:
    dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    for _ in range(2):
        for batch in DataLoader(dataset, batch_size=None):
            assert dataset.state_dict()["position"] == int(batch["position"])
    list(dataset)
    list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(RuntimeError, match=r"pass its batch\[\"position\"\] to state_dict\(\)"):
        dataset.state_dict()


def test_two_loops_at_the_same_time_are_two_epochs() -> None:
    dataset = Late(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for _ in range(5):
        dataset.position = 0
        first, second = iter(loader), iter(loader)
        found: list[list[list[int]]] = [[], []]
        for one, other in itertools.zip_longest(first, second):
            found[0].append(one["sample"].tolist())
            found[1].append(other["sample"].tolist())
        epochs = [samples_from(11 * e) for e in (0, 1)]
        assert sorted(found) == sorted(epochs)
        assert dataset.position == 22


class Waiting(IterDataset):
    """A dataset whose workers begin their loops when the main process lets them."""

    may_begin: Any

    def __iter__(self) -> Any:
        assert self.may_begin.wait(timeout=60)
        return super().__iter__()


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_position_set_while_workers_start_is_for_the_next_loop(start: str) -> None:
    dataset = Waiting(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    dataset.may_begin = multiprocessing.get_context(start).Event()
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=start)
    early = iter(loader)
    dataset.position = 4
    dataset.may_begin.set()
    assert [b["sample"].tolist() for b in early] == samples_from(0)
    assert dataset.position == dataset.state_dict()["position"] == 4
    if start == "fork":
        assert [b["sample"].tolist() for b in loader] == samples_from(4)
        assert dataset.position == 11


def samples_from(position: int) -> list[list[int]]:
    model = Model()
    model.move(position)
    return [samples for samples, _ in model.loop()]


class Endless:
    epoch_length = None
    fingerprint = {"endless": 1}  # noqa: RUF012

    def gather(self, positions: NDArray[np.int64], out: object = None) -> dict[str, NDArray[Any]]:
        return {"p": positions.copy()}


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), (1, False), (1, True), (2, False), (2, True)]
)
def test_after_a_loop_without_an_end_the_position_must_be_set(
    workers: int, persistent: bool
) -> None:
    dataset = IterDataset(Endless(), batch_size=3)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
    )
    for begin in (0, 9, 18):
        found = []
        for batch in loader:
            found += batch["p"].tolist()
            if len(found) == 9:
                break
        assert found == list(range(begin, begin + 9))
        with pytest.raises(RuntimeError, match=r"the last loop was over a stream without epochs"):
            next(iter(loader))
        with pytest.raises(RuntimeError, match=r"^the last loop .* set `position` of the dataset"):
            dataset.position  # noqa: B018
        dataset.position = batch["position"]
        assert dataset.state_dict()["position"] == begin + 9


def _rank(dataset: IterDataset, workers: int, answers: Any) -> None:
    context = "fork" if workers else None
    loader = DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=context
    )
    epochs = [[b["sample"].tolist() for b in loader] for _ in range(2)]
    answers.put((epochs, dataset.position))


@pytest.mark.parametrize("workers", [0, 2])
def test_forked_ranks_do_not_move_each_other(workers: int) -> None:
    dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH)
    list(dataset)
    context = multiprocessing.get_context("fork")
    answers: Any = context.Queue()
    ranks = [context.Process(target=_rank, args=(dataset, workers, answers)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    expected = [samples_from(11 * e) for e in (1, 2)]
    assert [answers.get(timeout=60) for _ in ranks] == [(expected, 33)] * 3
    for rank in ranks:
        rank.join()
    assert dataset.position == 11


def test_a_copy_has_a_position_and_ranks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = IterDataset(Stream(Numbers(SIZE), order=Turn), batch_size=BATCH, position=5)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    message = pickle.dumps(dataset)
    # As in an actor: the process that unpickles it has a rank of its own.
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    copy = pickle.loads(message)
    expected = [step[1] for step in epoch_of(Run(SIZE, BATCH, 2), 5)]
    for workers in (0, 1):
        copy.position = 5
        context = "fork" if workers else None
        loader = DataLoader(
            copy, batch_size=None, num_workers=workers, multiprocessing_context=context
        )
        found = [batch["sample"].tolist() for batch in loader]
        assert found == [[turned(SIZE, p) for p in share] for share in expected]
    assert dataset.position == 5


def test_workers_that_cannot_tell_their_loop_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 1 begins after a process of another thread took the number between the two."""
    dataset = IterDataset(Stream(Numbers(10), order=Turn), batch_size=2)
    parent = type("Parent", (), {"pid": os.getpid()})

    def begin(worker: int, number: int, seeds: Sequence[int] = (7,)) -> str:
        """Begin loops in a process that is a worker; return the first batch or the error."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            for seed in seeds:
                info = type("Info", (), {"id": worker, "num_workers": 2, "seed": seed + worker})
                monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", info)
                monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
                monkeypatch.setattr(multiprocessing.current_process(), "_identity", (number,))
                try:
                    answer = str(next(iter(dataset))["sample"].tolist())
                except BaseException as error:
                    answer = repr(error)
            os.write(write, answer.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return answer

    # Worker 0 has the steps 0, 2, ... of a loop, worker 1 has the steps 1, 3, ...
    steps = [[turned(10, p), turned(10, p + 1)] for p in range(0, 20, 2)]
    assert begin(0, 1) == str(steps[0])
    assert begin(1, 3).startswith("RuntimeError('the workers cannot tell which loop they belong to")
    dataset.position = 10
    assert (begin(1, 6), begin(0, 5)) == (str(steps[6]), str(steps[5]))
    assert dataset.position == 20
    # Loops of which one worker never begins do not add up: the last 16 are known.
    for others, found in ((15, steps[1]), (16, [turned(10, 172), turned(10, 173)])):
        dataset.position = 0
        assert begin(0, 12, [100]) == str(steps[0])
        begin(0, 20, range(1000 * others, 1001 * others))
        assert begin(1, 13, [100]) == str(found)
