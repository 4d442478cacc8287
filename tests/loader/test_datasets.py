"""MapDataset and IterDataset in torch's DataLoader, with 0, 1 and 3 workers, forked and spawned."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from models.oracle import Numbers, Run, Turn, epoch_of, turned
from windeck import Loader, Mixture, Stream
from windeck.loader import IterDataset, MapDataset, OrderSampler, collate

pytestmark = [
    # torch warns if there are more workers than cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # Python 3.12 and later warn of forks while torch's threads run.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

# (workers, start method). Each spawned worker imports torch, so most of these are `slow`.
STARTS = [
    (0, None),
    (1, "fork"),
    (3, "fork"),
    pytest.param(1, "spawn", marks=pytest.mark.slow),
    pytest.param(3, "spawn", marks=pytest.mark.slow),
]


def loaded(dataset: Any, workers: int, start: str | None, **options: Any) -> Iterator[Any]:
    return iter(DataLoader(dataset, num_workers=workers, multiprocessing_context=start, **options))


@pytest.mark.parametrize(("workers", "start"), [*STARTS[:3], (1, "spawn"), STARTS[4]])
def test_a_map_dataset_is_fetched_by_the_batch(workers: int, start: str | None) -> None:
    sampler = OrderSampler(23, seed=2)
    batches = list(
        loaded(
            MapDataset(Numbers(23)),
            workers,
            start,
            batch_size=5,
            sampler=sampler,
            collate_fn=collate,
        )
    )
    order = Stream(Numbers(23), seed=2).samples(np.arange(23)).tolist()
    assert [batch["sample"].tolist() for batch in batches] == [
        order[i : i + 5] for i in range(0, 23, 5)
    ]
    assert batches[0]["row"].shape == (5, 4)


def test_one_native_call_makes_a_batch() -> None:
    source, calls = Numbers(10), []
    source.watch = lambda indices: calls.append(len(indices))
    for _ in DataLoader(MapDataset(source), batch_size=4, collate_fn=collate):
        pass
    assert calls == [4, 4, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_torch_would_collate_again_names_the_cure(workers: int) -> None:
    batches = DataLoader(MapDataset(Numbers(9)), batch_size=4, num_workers=workers)
    with pytest.raises(TypeError, match=r"pass collate_fn=windeck.collate to the DataLoader"):
        next(iter(batches))
    (first, *_) = DataLoader(MapDataset(Numbers(9)), batch_size=4, collate_fn=collate)
    assert type(first) is dict
    with pytest.raises(KeyError, match=r"^'column'$"):
        MapDataset(Numbers(9)).__getitems__([1])["column"]


def test_a_map_dataset_gives_samples_like_any_other() -> None:
    dataset = MapDataset(Numbers(10))
    assert len(dataset) == 10
    assert dataset[3]["sample"].item() == dataset[-7]["sample"].item() == 3
    assert dataset[3]["row"].tolist() == [12, 13, 14, 15]
    assert dataset[[3, 1]]["sample"].tolist() == dataset[np.array([3, 1])]["sample"].tolist()
    assert dataset[torch.tensor([3, 1])]["sample"].tolist() == [3, 1]
    # torch's default collate combines single samples, slowly.
    (batch,) = DataLoader([dataset[i] for i in (1, 2)], batch_size=2)  # type: ignore[arg-type]
    assert batch["sample"].tolist() == [1, 2]
    with pytest.raises(IndexError, match=r"^sample 10 is out of range for 10 samples$"):
        dataset[10]
    with pytest.raises(TypeError, match=r"^`index` must be an integer, got float 1.5$"):
        dataset[1.5]  # type: ignore[index]
    with pytest.raises(TypeError, match=r"^expected a source .*, got int without __len__"):
        MapDataset(5)  # type: ignore[arg-type]


def shares(run: Run, position: int, rank: int) -> list[list[int]]:
    return [[turned(run.size, p) for p in step[rank]] for step in epoch_of(run, position)]


@pytest.mark.parametrize(("workers", "start"), [*STARTS[:4], (3, "spawn")])
def test_an_iter_dataset_keeps_the_streams_sequence(workers: int, start: str | None) -> None:
    run = Run(23, 3, 2)
    for rank, position in [(0, 0), (1, 29)] if start != "spawn" else [(1, 29)]:
        dataset = IterDataset(
            Stream(Numbers(23), order=Turn),
            batch_size=3,
            rank=rank,
            world_size=2,
            position=position,
        )
        length = len(dataset)
        batches = list(loaded(dataset, workers, start, batch_size=None))
        assert [batch["sample"].tolist() for batch in batches] == shares(run, position, rank)
        assert len(batches) == length
        assert len(dataset) == 4
        positions = torch.cat([batch["position"] for batch in batches])
        assert positions.dtype == torch.int64
        assert positions.shape == (len(batches),)
        assert positions[-1] == (position // 23 + 1) * 23


@pytest.mark.parametrize("workers", [0, 3])
def test_every_position_saved_is_where_to_go_on(workers: int) -> None:
    stream = Stream(Numbers(23), order=Turn)
    dataset = IterDataset(stream, batch_size=4)
    batches = list(loaded(dataset, workers, "fork" if workers else None, batch_size=None))
    for number, batch in enumerate(batches[:-1], 1):
        state = json.loads(json.dumps(dataset.state_dict(batch["position"])))
        resumed = IterDataset(stream, batch_size=2, rank=1, world_size=3)
        resumed.load_state_dict(state)
        expected = shares(Run(23, 2, 3), 4 * number, 1)
        assert [batch["sample"].tolist() for batch in resumed] == expected
        loader = Loader(stream, batch_size=2, rank=1, world_size=3)
        loader.load_state_dict(state)
        assert [batch["sample"].tolist() for batch in loader] == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_epoch_after_epoch_by_moving_the_position(persistent: bool) -> None:
    dataset = IterDataset(Stream(Numbers(11), order=Turn), batch_size=2)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context="fork",
    )
    for epoch in range(3):
        seen = []
        for batch in loader:
            seen.append(batch["sample"].tolist())
            dataset.position = batch["position"]
            assert type(dataset.position) is int
        assert seen == shares(Run(11, 2), 11 * epoch, 0)
    del loader


def test_pickled_datasets_serve_the_same() -> None:
    dataset = IterDataset(Stream(Numbers(9), order=Turn), batch_size=2, position=11)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.position == 11
    assert [b["sample"].tolist() for b in again] == [b["sample"].tolist() for b in dataset]
    assert again.position == dataset.position == 18
    again.position = 3
    assert dataset.position == 18
    assert pickle.loads(pickle.dumps(MapDataset(Numbers(9))))[4]["sample"].item() == 4


def test_a_stream_without_epochs_goes_on_for_ever() -> None:
    class Endless:
        epoch_length = None
        fingerprint = {"endless": 1}  # noqa: RUF012

        def gather(
            self, positions: NDArray[np.int64], out: object = None
        ) -> dict[str, NDArray[Any]]:
            return {"p": positions * 2}

    batches = itertools.islice(IterDataset(Endless(), batch_size=2, position=5), 3)
    assert [(b["p"].tolist(), int(b["position"])) for b in batches] == [
        ([10, 12], 7),
        ([14, 16], 9),
        ([18, 20], 11),
    ]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}])
def test_batches_are_not_put_into_batches(workers: int, options: dict[str, Any]) -> None:
    dataset = IterDataset(Stream(Numbers(10)), batch_size=2)
    batches = DataLoader(dataset, num_workers=workers, **options)
    with pytest.raises(ValueError, match=r"pass batch_size=None to the DataLoader, and batch_siz"):
        next(iter(batches))
    (first, *_) = DataLoader(dataset, num_workers=workers, batch_size=None)
    assert first["sample"].shape == (2,)


def test_bad_iter_datasets() -> None:
    stream = Stream(Numbers(10), seed=1)
    with pytest.raises(TypeError, match=r"^`stream` must be a stream, got Numbers: wrap a "):
        IterDataset(Numbers(10), batch_size=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^`position` must be an integer, got float 2.0$"):
        IterDataset(stream, batch_size=2, position=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^`rank` must be below `world_size` = 2, got 2$"):
        IterDataset(stream, batch_size=2, rank=2, world_size=2)
    dataset = IterDataset(stream, batch_size=2, position=4)
    foreign = IterDataset(Stream(Numbers(10), seed=2), batch_size=2).state_dict()
    with pytest.raises(ValueError, match=r"fingerprint has seed = 2, here it is 1$"):
        dataset.load_state_dict(foreign)
    loader = Loader(stream, batch_size=2)
    loader.exclude(6, 8)
    with pytest.raises(ValueError, match=r"^the state excludes positions, which only a Loader"):
        dataset.load_state_dict(loader.state_dict())
    assert dataset.position == 4


def test_a_key_named_position_is_refused() -> None:
    source = Numbers(10)
    source.gather = lambda indices, out=None: {"position": indices}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"^the source has a key 'position', which is reserv"):
        next(iter(IterDataset(Stream(source), batch_size=2)))


def test_a_dataset_without_epochs_has_no_length() -> None:
    mixture = Mixture({"a": (Numbers(5), 1), "b": (Numbers(7), 1)})
    dataset = IterDataset(mixture, batch_size=2)
    with pytest.raises(
        TypeError, match=r"^the stream has no epochs, so the dataset has no length$"
    ):
        len(dataset)
    first = next(iter(DataLoader(dataset, batch_size=None)))
    assert first["position"] == 2
