"""Time of a batch's gather, beside the fastest ways of NumPy and torch.

Windows come in random order out of tables larger than the caches. Rivals write into memory they
own where they can take it. Every pair is compared for equality before it is timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from measure import Ratio, Row, compare
from numpy.lib.stride_tricks import sliding_window_view

from windeck import _core

Array = np.ndarray[Any, Any]
Draw = Callable[[], Array]

STEPS, CHANNELS, BATCH = 192, 8, 1024


def draws(windows: int, batch: int) -> Draw:
    """Indices of random windows, others in each call."""
    rng = np.random.default_rng(1)
    return itertools.cycle([rng.integers(0, windows, batch) for _ in range(31)]).__next__


def one_series(columns: list[Array], steps: int, **options: Any) -> Any:
    """A gather of one field, x, over one series; a window at every row."""
    rows = len(columns[0])
    field = _core.Field("x", [_core.Column(c) for c in columns], step_spans=[(0, steps)], **options)
    index = _core.WindowIndex(np.array([0]), np.array([rows - steps + 1]), 1)
    return _core.Gather(index, np.array([0, rows]), [field])


def plain() -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    table = np.random.default_rng(0).standard_normal((4_000_000, CHANNELS), dtype=np.float32)
    gather = one_series([table[:, c] for c in range(CHANNELS)], STEPS)
    draw = draws(len(gather), BATCH)
    view = sliding_window_view(table, (STEPS, CHANNELS))[:, 0]
    unfolded = torch.from_numpy(table).unfold(0, STEPS, 1)  # (window, channel, step)

    indices = draw()
    batch = gather.gather(indices)["x"]
    assert np.array_equal(batch, view[indices])
    assert np.array_equal(batch.swapaxes(1, 2), unfolded[torch.from_numpy(indices)].numpy())

    def row(rival: str, other: Callable[[], object], needed: float, threads: int = 1) -> Row:
        return Row(
            question=f"gather rows, {STEPS} x {CHANNELS} float32",
            ours=f"Gather, {threads} thread{'s' * (threads > 1)}",
            rival=rival,
            ratio=compare(lambda: gather.gather(draw(), threads=threads), other, rounds=61),
            needed=needed,
            bound="memory",
        )

    yield row("numpy sliding_window_view[idx]", lambda: view[draw()], 1.0)
    yield row("numpy sliding_window_view[idx]", lambda: view[draw()], 1.6, threads=2)
    yield row("torch unfold[idx]", lambda: unfolded[torch.from_numpy(draw())], 1.5)


def short() -> Iterator[Row]:
    column = np.random.default_rng(0).standard_normal(10_000_000, dtype=np.float32)
    gather = one_series([column], 24, layout="bt")
    draw = draws(len(gather), 16_384)
    view = sliding_window_view(column, 24)
    indices = draw()
    assert np.array_equal(gather.gather(indices)["x"], view[indices])
    yield Row(
        question="gather short windows, 24 x 1 float32",
        ours="Gather, 1 thread",
        rival="numpy sliding_window_view[idx]",
        ratio=compare(lambda: gather.gather(draw()), lambda: view[draw()], rounds=101),
        needed=1.3,
        bound="latency of memory",
    )


class Scaled:
    """float64 with missing values to scaled float32 (batch, time, channel) and a mask: the rivals.

    A method takes the indices and leaves the batch in `out` and `mask`.
    """

    def __init__(self) -> None:
        import torch

        rng = np.random.default_rng(0)
        self.table = rng.standard_normal((1_000_000, CHANNELS))
        self.table[rng.random(self.table.shape) < 0.02] = np.nan
        self.columns = [np.ascontiguousarray(self.table[:, c]) for c in range(CHANNELS)]
        self.scale, self.shift = rng.random(CHANNELS) + 0.5, rng.normal(size=CHANNELS)
        self.out = np.empty((BATCH, STEPS, CHANNELS), np.float32)
        self.mask = np.empty((BATCH, STEPS, CHANNELS), bool)
        self.views = [sliding_window_view(c, STEPS) for c in self.columns]
        self.view = sliding_window_view(self.table, (STEPS, CHANNELS))[:, 0]
        tensors = [torch.from_numpy(c) for c in self.columns]
        self.unfolded = [t.unfold(0, STEPS, 1) for t in tensors]
        strides = (CHANNELS, CHANNELS, 1)
        self.strided = torch.from_numpy(self.table).as_strided(self.view.shape, strides)
        self.tensor_out, self.tensor_mask = torch.from_numpy(self.out), torch.from_numpy(self.mask)
        self.tensor_scale = torch.from_numpy(self.scale)
        self.tensor_shift = torch.from_numpy(self.shift)

    def numpy_columns(self, indices: Array) -> None:
        for c in range(CHANNELS):
            window = self.views[c][indices]
            np.equal(window, window, out=self.mask[:, :, c])
            np.multiply(window, self.scale[c], out=window)
            np.add(window, self.shift[c], out=window)
            self.out[:, :, c] = window
        np.nan_to_num(self.out, copy=False, nan=0.0)

    def numpy_rows(self, indices: Array) -> None:
        windows = self.view[indices]
        np.equal(windows, windows, out=self.mask)
        np.multiply(windows, self.scale, out=windows)
        np.add(windows, self.shift, out=windows)
        np.copyto(self.out, windows, casting="same_kind")
        np.nan_to_num(self.out, copy=False, nan=0.0)

    def torch_columns(self, indices: Array) -> None:
        import torch

        wanted = torch.from_numpy(indices)
        for c in range(CHANNELS):
            window = self.unfolded[c][wanted]
            torch.eq(window, window, out=self.tensor_mask[:, :, c])
            self.tensor_out[:, :, c] = window.mul_(self.scale[c]).add_(self.shift[c])
        self.tensor_out.nan_to_num_(0.0)

    def torch_rows(self, indices: Array) -> None:
        import torch

        windows = self.strided[torch.from_numpy(indices)]
        torch.eq(windows, windows, out=self.tensor_mask)
        self.tensor_out.copy_(windows.mul_(self.tensor_scale).add_(self.tensor_shift))
        self.tensor_out.nan_to_num_(0.0)


def against(rival: Callable[[Array], None], gather: Any, draw: Draw) -> Ratio:
    return compare(lambda: gather.gather(draw()), lambda: rival(draw()), rounds=21)


def scaled() -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    rivals = Scaled()
    options = {"mask": True, "scale": rivals.scale, "shift": rivals.shift}
    by_rows = [rivals.table[:, c] for c in range(CHANNELS)]
    ways = {
        "columns": (rivals.columns, [rivals.numpy_columns, rivals.torch_columns]),
        "rows": (by_rows, [rivals.numpy_rows, rivals.torch_rows]),
    }
    for stored, (columns, others) in ways.items():
        gather = one_series(columns, STEPS, **options)
        draw = draws(len(gather), BATCH)
        indices = draw()
        batch = gather.gather(indices)
        for other in others:
            other(indices)
            assert np.array_equal(batch["x"], rivals.out)
            assert np.array_equal(batch["x_mask"], rivals.mask)
            yield Row(
                question=f"float64 {stored} to scaled float32 with a mask",
                ours="Gather, 1 thread",
                rival=other.__name__.replace("_", " "),
                ratio=against(other, gather, draw),
                needed=3,
                bound="memory",
            )


def _gather_next(windows: Any, draw: Draw) -> object:
    return windows.gather(draw())


def categories() -> Iterator[Row]:
    """Codes of categories beside the same key of a column of these numbers as int64."""
    import pyarrow as pa

    import windeck as wd

    count = 4_000_000
    for kind, values in (("text", 40), ("integers", 10_000), ("integers", 1_000_000)):
        drawn = np.random.default_rng(0).permutation(count) % values
        shop: Any = drawn * 2**20
        if kind == "text":
            names = [f"shop {number:02}" for number in range(values)]
            shop = pa.DictionaryArray.from_arrays(pa.array(drawn, pa.int32()), names)
        data = pa.table({"load": np.zeros(count, np.float32), "shop": shop, "code": drawn + 1})
        table = wd.Table.from_arrow(data)
        options: dict[str, Any] = {
            "context_length": STEPS - 24,
            "prediction_length": 24,
            "target_columns": "load",
        }
        fitted = wd.Categories.fit(table, columns="shop")
        codes = wd.Windows(
            table,
            known_covariates="shop",
            categorical=fitted,
            keys=["past_known_categorical", "future_known_categorical"],
            **options,
        )
        keys = ["past_known", "future_known"]
        integers = wd.Windows(table, known_covariates="code", keys=keys, **options)
        draw = draws(len(codes), BATCH)
        chosen = draw()
        batch, numbers = codes.gather(chosen), integers.gather(chosen)
        for key in keys:
            assert np.array_equal(batch[f"{key}_categorical"], numbers[key])
        yield Row(
            question=f"codes of {values:,} categories ({kind}), {STEPS} steps",
            ours="Windows, 1 thread",
            rival="the same key of a column of int64",
            ratio=compare(
                partial(_gather_next, codes, draw),
                partial(_gather_next, integers, draw),
                rounds=61,
            ),
            needed=1 / 1.1,
            bound="memory",
        )


def rows() -> Iterator[Row]:
    yield from plain()
    yield from short()
    yield from scaled()
    yield from categories()
