"""`doctor` on any iterable: it leaves loaders as they were, and costs few calls a batch."""

from __future__ import annotations

import random
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat, starmap
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import windeck as wd
from support import planted
from windeck.diagnosis import Diagnosis

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def diagnosed(loader: Any, step: Any = None, **options: Any) -> Diagnosis:
    return wd.doctor(loader, step, **{"seconds": 0.05, "disk": False, **options})


def take(batch: Any) -> None:
    """Do nothing with a batch."""


def windows(**options: Any) -> wd.Loader:
    table = wd.Table.from_columns({"load": np.arange(2000.0)})
    source = wd.Windows(table, context_length=8, prediction_length=2)
    return wd.Loader(source, batch_size=16, **options)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("step", [None, take])
def test_a_loader_is_left_as_it_was(step: Any, prefetch: int) -> None:
    """Position, step, excluded ranges and the next batches are those before, in a loop as well."""
    loader, other = (windows(shuffle=True, seed=3, prefetch=prefetch) for _ in range(2))
    loader.exclude(100, 130)
    other.exclude(100, 130)
    loop, same = iter(loader), iter(other)
    for _ in range(5):
        next(loop), next(same)
    before = loader.state_dict()
    found = diagnosed(loader, step)
    assert loader.state_dict() == before == other.state_dict()
    assert found.measured.subject.consumed > 5
    for one, two in zip(loop, same, strict=True):
        assert one["past_target"].equal(two["past_target"])
    assert loader.visited(int(loader.samples(0)[0]), epoch=0)


def test_a_loader_near_its_end_begins_epochs_and_comes_back() -> None:
    loader = windows(restart=True)
    assert diagnosed(loader).measured.subject.restartable
    assert loader.position == 0
    ended = windows(epochs=0)
    with pytest.raises(ValueError, match="the loader has no batches, expected at least 2"):
        diagnosed(ended)


def test_the_facts_of_our_loader() -> None:
    """Samples are windows, and the stages are those of its batches."""
    found = diagnosed(windows(shuffle=True), take).measured
    assert (found.subject.kind, found.subject.unit) == ("windeck.loader.loader.Loader", "windows")
    assert found.subject.samples == 16
    assert found.subject.nbytes == sum(value.nbytes for value in windows().peek().values())
    assert [stage.name for stage in found.stages] == ["order", "gather", "tensors"]
    assert all(stage.seconds > 0 for stage in found.stages)


def test_the_stages_of_batches_on_a_device() -> None:
    """The copy to the device is a stage."""
    found = diagnosed(windows(device="meta")).measured
    assert [stage.name for stage in found.stages] == ["order", "gather", "tensors", "device"]


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_the_stages_of_a_source_on_a_device(balanced: bool, mixed: bool) -> None:
    """Order and gather are one stage there; the source is not read in host memory."""
    stream: Any = windows().stream
    source = stream.source
    source = (source.balanced({0: 1.0}) if balanced else source).to("cpu")
    data = wd.Mixture({"one": (source, 0.5), "two": (source, 0.5)}) if mixed else source
    found = diagnosed(wd.Loader(data, batch_size=8), take)
    assert [stage.name for stage in found.measured.stages] == ["gather"]
    assert found.measured.subject.samples == 8


class Sampled:
    """A batch sampler that does not say its size."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[1, 2, 3]] * 9)


def test_the_stages_of_a_data_loader() -> None:
    """Items are read as a worker reads them: all of a batch at once where the dataset can."""

    class Counted(TensorDataset):
        asked: list[int] = []  # noqa: RUF012

        def __getitems__(self, indices: list[int]) -> list[Any]:
            self.asked.append(len(indices))
            return [self[index] for index in indices]

    data = Counted(torch.arange(64))
    for loader, size in (
        (DataLoader(data, 8, shuffle=True), 8),
        (DataLoader(data, batch_sampler=Sampled()), 3),
    ):
        data.asked.clear()
        found = diagnosed(loader, take, batches=5).measured
        assert [stage.name for stage in found.stages] == ["samples", "collate"]
        assert set(data.asked) == {size}
    stream: Any = windows().stream
    whole = wd.MapDataset(stream.source)
    batched = DataLoader(whole, batch_size=16, collate_fn=wd.collate)
    assert diagnosed(batched, take).measured.subject.samples == 16
    assert diagnosed(DataLoader(whole, batch_size=None)).measured.stages == ()
    assert diagnosed(windows(), stages=False).measured.stages == ()


def test_the_stages_of_streams_without_epochs() -> None:
    """A mixture's order is part of its gather."""
    part = windows().stream
    mixture = wd.Mixture({"one": (part, 0.5), "two": (part, 0.5)})
    found = diagnosed(wd.Loader(mixture, batch_size=8)).measured
    assert [stage.name for stage in found.stages] == ["gather", "tensors"]


def test_a_data_loader_keeps_its_random_numbers() -> None:
    """The next order of a shuffling DataLoader, and all numbers, are those without the doctor."""

    def drawn(diagnose: bool) -> list[Any]:
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)  # noqa: NPY002
        own = torch.Generator().manual_seed(9)
        data = TensorDataset(torch.arange(64))
        loaders = [DataLoader(data, 8, shuffle=True, generator=own), DataLoader(data, 8, True)]
        for loader in loaders if diagnose else ():
            diagnosed(loader, lambda batch: (torch.rand(3), random.random()))
        found = [batch[0].tolist() for loader in loaders for batch in loader]
        return [*found, random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002

    assert drawn(True) == drawn(False)


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_and_datasets_keep_their_positions(workers: int) -> None:
    """An `OrderSampler` and an `IterDataset` continue with the next sample."""
    sampler = wd.OrderSampler(64, seed=1)
    loader = DataLoader(TensorDataset(torch.arange(64)), 8, sampler=sampler, num_workers=workers)
    before = sampler.state_dict()
    diagnosed(loader, take)
    assert sampler.state_dict() == before
    stream = windows().stream
    data = wd.IterDataset(stream, batch_size=16, position=160)
    found = diagnosed(DataLoader(data, batch_size=None, num_workers=workers), take)
    assert data.position == 160
    assert found.measured.subject.workers == workers
    assert found.measured.subject.samples == 16


class Broken:
    """A loader whose state cannot be saved, or not loaded."""

    def __init__(self, saves: bool) -> None:
        self.saves = saves

    def __iter__(self) -> Iterator[Any]:
        return iter([np.zeros(4)] * 3)

    def state_dict(self) -> dict[str, Any]:
        if not self.saves:
            raise RuntimeError("not now")
        return {}

    def load_state_dict(self, state: Any) -> None:
        raise RuntimeError("not now")


@pytest.mark.parametrize("saves", [True, False])
def test_a_state_that_cannot_be_restored_is_a_note(saves: bool) -> None:
    notes = diagnosed(Broken(saves)).measured.notes
    words = "was not restored" if saves else "could not be saved"
    assert any(f"the state of Broken {words}" in note and "not now" in note for note in notes)


def test_a_generator_is_consumed_and_the_report_says_so() -> None:
    """The rest of the generator is the user's."""
    generator = planted.batches(1000)
    found = diagnosed(generator, take, batches=20).measured
    assert not found.subject.restartable
    assert found.subject.consumed == 44  # one, three of which sizes are taken, and two loops
    assert (
        found.notes[0]
        == "the loader cannot begin anew: 44 batches were taken from it, and are gone"
    )
    assert next(generator)["x"][0, 0] == 44


def test_a_generator_that_ends() -> None:
    """The loop with the step is missing, or an error says what was expected."""
    found = diagnosed(planted.batches(10), take)
    assert found.measured.both is None
    assert found.measured.step is None
    assert any("the loader ended after 10 batches, before the loop with the step" in note
               for note in found.measured.notes)  # fmt: skip
    with pytest.raises(ValueError, match=r"ended after 4 batches, before the first loop: expected"):
        diagnosed(planted.batches(4), take)
    with pytest.raises(ValueError, match="the loader has no batches"):
        diagnosed(planted.batches(0))
    with pytest.raises(ValueError, match="the loader has no batches"):
        diagnosed([])


def test_a_short_list_begins_anew() -> None:
    found = diagnosed([np.zeros((4, 2))] * 3, take, batches=50).measured
    assert found.loader.batches == 50
    assert found.subject.consumed == 104
    assert any("began anew" in note for note in found.notes)


def test_a_dataset_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a", "b"] * 50, "label": list(range(100))})
    found = diagnosed(data, take).measured
    assert found.subject.samples == 1
    assert found.subject.restartable
    assert not diagnosed(data.iter(batch_size=8), take, batches=2).measured.subject.restartable
    tensors = data.with_format("torch", columns=["label"])
    assert diagnosed(DataLoader(tensors, batch_size=8), take).measured.subject.samples == 8


class Again:
    """A loader without end that makes batches by a function."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self.made = made

    def __iter__(self) -> Iterator[Any]:
        return starmap(self.made, repeat(()))


def test_a_step_that_takes_the_batch_apart() -> None:
    """Each call gets a mapping of its own."""

    def step(batch: Any) -> None:
        batch.pop("y")

    for kind in (dict, UserDict):
        loader = Again(partial(kind, x=np.zeros(4), y=np.zeros(4)))
        stepped = diagnosed(loader, step, batches=9, seconds=9.0).measured.step
        assert stepped is not None
        assert stepped.batches == 9


def test_an_error_of_the_step_is_raised_and_the_state_restored() -> None:
    loader = windows()

    def step(batch: Any) -> None:
        raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        diagnosed(loader, step)
    assert loader.position == 0


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"seconds": 0}, ValueError, "`seconds` must be above 0"),
        ({"seconds": "2"}, TypeError, "`seconds` must be a number"),
        ({"batches": 0}, ValueError, "`batches` must be at least 1"),
        ({"step": 3}, TypeError, "`step` must be a function of a batch, got int"),
        ({"loader": 3}, TypeError, "`loader` must be an iterable of batches, got int"),
        ({"network": "ftp://x"}, ValueError, "must be an http or https URL"),
        ({"files": ["/nowhere"]}, FileNotFoundError, "/nowhere"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], kind: type[Exception], words: str) -> None:
    options: dict[str, Any] = {"loader": [np.zeros(4)], "seconds": 0.01, "disk": False, **change}
    with pytest.raises(kind, match=words):
        wd.doctor(options.pop("loader"), options.pop("step", None), **options)


@pytest.mark.parametrize(("step", "most"), [(None, 3), (take, 3 + 5 + 5)])
def test_a_batch_costs_a_handful_of_calls(step: Callable[[Any], None] | None, most: int) -> None:
    """`next`, the clock twice, `append`, and the step itself: counted with a profiler.

    Without a step the clock is read once. With one there are three loops, one of them without it.
    """
    calls = list[str]()

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(event)

    def counted(batches: int) -> int:
        calls.clear()
        loader = Again(int)  # no call that the profiler sees
        sys.setprofile(profile)
        try:
            diagnosed(loader, step, batches=batches, seconds=60.0)
        finally:
            sys.setprofile(None)
        return len(calls)

    # What differs otherwise are the processes of the machine, whose counters are read.
    assert (counted(100_200) - counted(200)) / 100_000 < most + 0.5


def test_loops_count_what_they_take() -> None:
    """Times are in sequence, and their sums are those of the loop."""
    found = diagnosed([np.zeros(2)] * 5, take, batches=12, seconds=60.0).measured
    assert found.subject.consumed == 1 + 3 + 12 + 12
    assert any("began anew 5 times" in note for note in found.notes)
    for loop in (found.loader, found.both, found.step):
        assert loop is not None
        assert loop.batches == 12
        assert 0 < loop.waited + loop.stepped <= loop.seconds
        flat = [time for span in loop.timeline for time in span]
        assert flat == sorted(flat)
        assert len(loop.timeline) == 12


Point = type("Point", (), {})


def point() -> Any:
    found = Point()
    found.x, found.n = torch.zeros(5, 2), 3
    return found


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"x": np.zeros((32, 8), np.float32)}, (32, 1024)),
        ([torch.zeros(4, 2), torch.zeros(4)], (4, 48)),
        ((torch.tensor(1.0), torch.zeros(3)), (3, 16)),
        (torch.zeros(7), (7, 28)),
        ({"text": ["ab", "c"], "n": [1, 2]}, (2, 19)),
        ([{"x": np.zeros(3)}, {"x": np.zeros(5)}], (2, 64)),
        ({"text": "abc", "n": 1}, (1, 11)),
        (UserDict(x=torch.zeros(6, 1)), (6, 24)),
        (point(), (5, 48)),
        (None, (1, 0)),
        ({}, (1, 0)),
    ],
)
def test_sizes_of_batches(batch: Any, expected: tuple[int, int]) -> None:
    for samples, count in ((None, expected[0]), (9, 9), (lambda one: 11, 11)):
        found = diagnosed([batch] * 5, batches=1, samples=samples).measured.subject
        assert (found.samples, found.nbytes) == (count, expected[1])
