"""Cost of a source on a device beside the native path, compared on the processor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Row, compare

import windeck as wd
from windeck.windows.device import DeviceWindows
from windeck.windows.windows import Windows

CONTEXT, PREDICTION, BATCH, ROWS = 168, 24, 1024, 1_000_000


def both(columns: int, **options: Any) -> tuple[Windows, DeviceWindows[Windows]]:
    """Windows of some float64 columns in memory, and the same as tensors."""
    rng = np.random.default_rng(0)
    table = wd.Table.from_columns({f"c{i}": rng.standard_normal(ROWS) for i in range(columns)})
    windows = Windows(table, context_length=CONTEXT, prediction_length=PREDICTION, **options)
    return windows, windows.to("cpu")


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    scaler = {"dtype": "float32", "scaler": "standard"}
    for what, columns, options in (
        ("float64", 1, {}),
        ("float64 to scaled float32", 8, scaler),
    ):
        windows, moved = both(columns, **{k: v for k, v in options.items() if k != "scaler"})
        if "scaler" in options:
            windows = windows.with_scaler(wd.Scaler.fit(windows))
            moved = windows.to("cpu")
        yield from figures(f"{columns} x {what}", windows, moved)


def figures(what: str, windows: Windows, moved: DeviceWindows[Windows]) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    draws = [rng.integers(0, len(windows), BATCH) for _ in range(31)]
    arrays, tensors = itertools.cycle(draws), itertools.cycle(map(torch.from_numpy, draws))
    expected = windows.gather(draws[0])
    found = moved.gather_tensors(torch.from_numpy(draws[0]))
    assert list(found) == list(expected)
    assert all(np.array_equal(found[key].numpy(), expected[key]) for key in found)
    yield Row(
        question=f"a batch of {BATCH} windows {CONTEXT} + {PREDICTION}, {what}",
        ours='windows.to("cpu"), torch',
        rival="windows, native",
        ratio=compare(
            lambda: moved.gather_tensors(next(tensors)),
            lambda: windows.gather(next(arrays)),
            rounds=101,
            warm_up=5,
        ),
        needed=None,
    )
    loaders = [
        iter(wd.Loader(one, batch_size=BATCH, shuffle=True, drop_last=True, prefetch=0))
        for one in (moved, windows)
    ]
    for one, two in itertools.islice(zip(*loaders, strict=True), 3):
        assert all(torch.equal(one[key], two[key]) for key in two)
    yield Row(
        question=f"the loader's batch of {BATCH}, {what}",
        ours='windows.to("cpu")',
        rival="windows, prefetch=0",
        ratio=compare(partial(next, loaders[0]), partial(next, loaders[1]), rounds=301, warm_up=5),
        needed=None,
    )
