"""Windows a second: this library's loader beside the usual one, on the same data.

The usual one is what a careful person writes first: a `Dataset` over one float32 array in memory
that cuts, masks and scales a window in `__getitem__`, behind torch's `DataLoader` with two workers.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from windeck.loader import Loader
from windeck.tools.forecaster import Batch
from windeck.tools.job import Deal, Job, scaling, truth
from windeck.tools.training import endless

#: Worker processes of the usual way.
WORKERS = 2

#: Windows the usual way lists at most, at 16 bytes each: enough for a race.
LISTED = 1_000_000

#: Turns each loader takes, and batches that may wait in its queues from the turn before.
TURNS, MADE_AHEAD = 3, 2 * WORKERS


class UsualDataset(Dataset[dict[str, Tensor]]):
    """One window at a time, out of an array in memory; equal in content to the job's windows."""

    def __init__(self, task: Job, deal: Deal) -> None:
        self.values = truth(deal, task.target)
        self.series, self.starts = deal.train.locate(np.arange(min(len(deal.train), LISTED)))
        self.context = task.context_length
        self.length = task.context_length + task.prediction_length
        self.scale, self.shift = scaling(deal, task.target)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start, series = self.starts[index], self.series[index]
        window = self.values[start : start + self.length]
        observed = ~np.isnan(window)
        window = np.where(observed, window * self.scale[series] + self.shift[series], 0)
        values = torch.from_numpy(window.astype(np.float32)[:, None])
        mask = torch.from_numpy(observed[:, None])
        return {
            "past_target": values[: self.context],
            "past_target_mask": mask[: self.context],
            "future_target": values[self.context :],
            "future_target_mask": mask[self.context :],
        }


@dataclass(frozen=True)
class Speed:
    """Windows a second of both: medians of turns taken one after the other."""

    windeck: float
    usual: float

    @property
    def ratio(self) -> float:
        """How many times the usual way's windows a second."""
        return self.windeck / self.usual


def compare(task: Job, deal: Deal, *, seconds: float = 3.0) -> Speed:
    """Measures both, for about `seconds` each, after asserting that their batches are equal.

    Raises
    ------
    AssertionError
        When a batch of the two is not the same.
    """
    usual = UsualDataset(task, deal)
    assert_equal_batch(usual, deal, np.linspace(0, len(usual) - 1, min(64, len(usual))))
    workers = DataLoader(
        usual, task.batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    ours = endless(Loader(deal.train, batch_size=task.batch_size, shuffle=True, seed=task.seed))
    theirs = endless(workers)
    rates = [(_rate(ours, seconds / TURNS), _rate(theirs, seconds / TURNS)) for _ in range(TURNS)]
    return Speed(*(statistics.median(side) for side in zip(*rates, strict=True)))


def assert_equal_batch(usual: UsualDataset, deal: Deal, indices: npt.ArrayLike) -> None:
    """Compares a batch of both ways, element by element, masks exactly and values to rounding."""
    chosen = np.asarray(indices).astype(np.int64)
    one_by_one = default_collate([usual[int(index)] for index in chosen])
    at_once = deal.train.gather(chosen)
    for key, expected in one_by_one.items():
        found = torch.from_numpy(at_once[key]) if key in at_once else torch.ones_like(expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def _rate(batches: Iterator[Batch], seconds: float) -> float:
    """Windows a second of one turn, without start-up and without what was made ahead before it."""
    for _ in range(MADE_AHEAD):
        next(batches)
    windows, began = 0, time.perf_counter()
    while True:
        windows += len(next(batches)["past_target"])
        if (now := time.perf_counter()) - began >= seconds:
            return windows / (now - began)
