"""The whole loader: against per-sample loading, at 10^12 samples, and in the steady state."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Row, compare, compare_fresh, limit, through
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

import windeck as wd
from windeck._core import pool_stats

CONTEXT, PREDICTION, BATCH, ROWS = 168, 24, 1024, 100_000


class Slices(Dataset[dict[str, Any]]):
    """The usual dataset at its leanest: two slices of one tensor for each sample."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) - CONTEXT - PREDICTION + 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        middle = index + CONTEXT
        return {
            "past_target": self.rows[index:middle],
            "future_target": self.rows[middle : middle + PREDICTION],
        }


class Windowed(Slices):
    """The same with all that windeck's batches hold: filled, masked, and told which it is."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = {}
        for key, values in super().__getitem__(index).items():
            seen = ~torch.isnan(values)
            sample[key], sample[f"{key}_mask"] = torch.where(seen, values, 0.0), seen
        return {**sample, "series_id": 0, "start": index}


def values(columns: int, *, missing: float) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((ROWS, columns), dtype=np.float32)
    rows[rng.random(rows.shape) < missing] = np.nan
    return rows


def loader_of(rows: NDArray[np.float32], batch_size: int) -> wd.Loader:
    table = wd.Table.from_rows(rows, columns=[f"c{i}" for i in range(rows.shape[1])])
    windows = wd.Windows(table, context_length=CONTEXT, prediction_length=PREDICTION)
    return wd.Loader(windows, batch_size=batch_size, shuffle=True, drop_last=True)


def loaders(columns: int, dataset: type[Slices]) -> tuple[wd.Loader, DataLoader[Any]]:
    """Both over the same windows in the same order; the rival's two workers run already."""
    rows = values(columns, missing=0.05 if dataset is Windowed else 0)
    ours, samples = loader_of(rows, BATCH), dataset(torch.from_numpy(rows))
    rival = DataLoader(
        samples,
        batch_size=BATCH,
        sampler=wd.OrderSampler(samples),
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    for batch, expected in zip(ours, rival, strict=True):
        for key, tensor in expected.items():
            assert torch.equal(batch[key], tensor), key
    return ours, rival


def per_sample() -> Iterator[Row]:
    cases = (
        ("filled, masked, numbered", 1, Windowed, 100),
        ("values only", 1, Slices, None),
        ("values only", 8, Slices, None),
    )
    for content, columns, dataset, needed in cases:
        ours, rival = loaders(columns, dataset)
        yield Row(
            question=f"an epoch of {len(ours)} batches of {BATCH} windows "
            f"{CONTEXT} + {PREDICTION} x {columns}",
            ours="Loader",
            rival=f"per-sample Dataset ({content}), DataLoader(num_workers=2)",
            ratio=compare(partial(through, ours), partial(through, rival), rounds=3, warm_up=0),
            needed=needed,
            bound="per-sample Python" if needed else "",
        )


SETUP = """
import json
import numpy as np
import windeck as wd
class Lazy:
    fingerprint = {"lazy": 1}
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def gather(self, indices, out=None):
        return {"x": indices * 2}
wd.Loader
def loader(size):
    return wd.Loader(Lazy(size), batch_size=256, shuffle=True, seed=1)
near = json.dumps(loader(10**12).state_dict())
far = json.dumps({**json.loads(near), "position": 10**12 // 2 + 7 * 10**12})
"""
FIRST = "next(iter(loader({size})))"
RESUME = "l = loader(10**12); l.load_state_dict(json.loads({state})); next(iter(l))"


def far_away() -> Iterator[Row]:
    far, near = FIRST.format(size=10**12), FIRST.format(size=10**3)
    yield Row(
        question="first batch of 10^12 samples, in a fresh process",
        ours="10^12",
        rival="10^3",
        ratio=compare_fresh(far, near, rounds=7, setup=SETUP),
        needed=0.5,
    )
    far, near = RESUME.format(state="far"), RESUME.format(state="near")
    yield Row(
        question="resume in the middle of epoch 7 of 10^12 samples, in a fresh process",
        ours="at 7.5 * 10^12",
        rival="at 0",
        ratio=compare_fresh(far, near, rounds=7, setup=SETUP),
        needed=0.5,
    )


def steady() -> Iterator[Row]:
    """Batches that are let go: their memory comes back, and no new one is asked for.

    How many batches there are at a time varies by one or two with the scheduling of the two
    threads, so as many as will ever be needed are held once beforehand; the pool keeps them for
    16,384 batches.
    """
    loop = iter(loader_of(values(8, missing=0.05), 128))
    for _ in range(10):
        held = [next(loop) for _ in range(5)]  # As many buffers as will ever be needed.
        del held
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, pool_stats()["allocations"]
    batches = 700
    for _ in range(batches):
        next(loop)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, pool_stats()["allocations"]
    found = [(now - then) / batches for then, now in zip(before, after, strict=True)]
    for what, each in zip(("page faults", "allocations of the pool"), found, strict=True):
        yield Row(
            question=f"{what} a batch in the steady state",
            ours=f"{each:g}",
            rival="none (below 1 in 50)",
            ratio=limit(each, 0.02),
            needed=1,
        )


def rows() -> Iterator[Row]:
    yield from steady()
    yield from per_sample()
    yield from far_away()
