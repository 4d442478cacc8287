"""A source that does not return a row for each sample is refused wherever its batches are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import windeck as wd


class Faulty:
    """Indices as rows; a batch that is not empty is made by `fault`."""

    fingerprint = {"faulty": 100}  # noqa: RUF012
    device = torch.device("cpu")

    def __init__(self, fault: Callable[[NDArray[np.int64]], Any], independent: bool = True) -> None:
        self._fault = fault
        self.independent_rows = independent

    def __len__(self) -> int:
        return 100

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> Any:
        return self._fault(indices) if len(indices) else {"x": indices.copy()}


class Epochs(Faulty):
    """A source that shuffles itself."""

    def at_epoch(self, epoch: int, *, seed: int) -> Faulty:
        return Faulty(self._fault)


class Resident(Faulty):
    """A source on a device."""

    def gather_tensors(self, samples: torch.Tensor) -> Any:
        batch = self._fault(samples.numpy())
        return {key: torch.tensor(array) for key, array in batch.items()}


def first(batches: Any) -> Any:
    return next(iter(batches))


blocks = partial(wd.BlockPermutation, block_size=10)
of_sources: dict[str, Callable[[Faulty], Any]] = {
    "loader": lambda source: first(wd.Loader(source, batch_size=4)),
    "loader of blocks": lambda source: first(wd.Loader(source, batch_size=4, order=blocks)),
    "loader over epochs": lambda source: first(wd.Loader(Epochs(source._fault), batch_size=4)),
    "loader of ranks": lambda source: first(
        wd.Loader(source, batch_size=4, rank=1, world_size=2, shuffle=True)
    ),
    "stream": lambda source: wd.Stream(source).gather([5, 1, 2, 3]),
    "stream of epochs": lambda source: wd.Stream(Epochs(source._fault)).gather(range(98, 102)),
    "dataset": lambda source: first(wd.IterDataset(wd.Stream(source), batch_size=4)),
    "fetched": lambda source: wd.MapDataset(source).__getitems__([5, 1, 2, 3]),
    "fetched by a sampler": lambda source: first(
        DataLoader(
            wd.MapDataset(source),
            batch_size=4,
            sampler=wd.OrderSampler(source, batch_size=4),
            collate_fn=wd.collate,
        )
    ),
}
of_parts: dict[str, Callable[[Faulty], Any]] = {
    "of one part": lambda source: wd.Mixture({"a": (source, 1)}).gather(range(4)),
    "of two parts": lambda source: wd.Mixture(
        {"a": (source, 1), "b": (Faulty(lambda indices: {"x": indices.copy()}), 1)}
    ).gather(range(8)),
    "loader of a mixture": lambda source: first(
        wd.Loader(wd.Mixture({"a": (source, 1)}), batch_size=4)
    ),
}
anywhere = {**of_sources, **of_parts}


@pytest.mark.parametrize("way", anywhere)
@pytest.mark.parametrize("rows", [0, 3, 5])
def test_another_number_of_rows_is_an_error(way: str, rows: int) -> None:
    source = Faulty(lambda indices: {"x": np.resize(indices, rows)})
    shape = rf"\({rows},\)"
    with pytest.raises(
        TypeError,
        match=rf"^the source returned 'x' of shape {shape} for [24] samples, expected [24] rows$",
    ):
        anywhere[way](source)


@pytest.mark.parametrize("way", of_parts)
def test_rows_of_a_part_may_not_be_ragged(way: str) -> None:
    source = Faulty(lambda indices: {"x": np.repeat(indices, 2)}, independent=False)
    with pytest.raises(TypeError, match=r"^the source returned 'x' of shape \(8,\) for 4 samples"):
        of_parts[way](source)


@pytest.mark.parametrize("way", [way for way in of_sources if "epochs" not in way])
def test_rows_that_depend_on_each_other_may_be_ragged(way: str) -> None:
    source = Faulty(lambda indices: {"x": np.repeat(indices, 2)}, independent=False)
    assert len(of_sources[way](source)["x"]) == 8


@pytest.mark.parametrize("way", anywhere)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"the source returned None, expected a dict of arrays"),
        ([1, 2, 3, 4], r"the source returned a list, expected a dict of arrays"),
        ({"x": [1, 2, 3, 4]}, r"the source returned a list for 'x'; the values of a batch must .*"),
        ({"x": np.array(1)}, r"the source returned 'x' of shape \(\) for 4 samples, .* 4 rows"),
    ],
    ids=["none", "list", "list in a dict", "number"],
)
def test_what_is_no_batch_is_an_error(way: str, value: Any, message: str) -> None:
    if "stream of epochs" in way:
        message = message.replace("4", "2")
    with pytest.raises(TypeError, match=f"^{message}$"):
        anywhere[way](Faulty(lambda _: value))


def test_a_sample_of_a_map_dataset_has_one_row() -> None:
    source = Faulty(lambda indices: {"x": np.repeat(indices, 2)})
    with pytest.raises(TypeError, match=r"of shape \(2,\) for 1 sample, expected 1 row$"):
        wd.MapDataset(source)[3]


def test_another_number_of_rows_on_a_device_is_an_error() -> None:
    source = Resident(lambda indices: {"x": indices[1:].copy()})
    message = r"^the source returned 'x' of shape \(3,\) for 4 samples, expected 4 rows$"
    with pytest.raises(TypeError, match=message):
        first(wd.Loader(source, batch_size=4, shuffle=True))
    mixture = wd.Mixture({"a": (source, 1), "b": (source, 1)})
    with pytest.raises(TypeError, match=message):
        first(wd.Loader(mixture, batch_size=8))
