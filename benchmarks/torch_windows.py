"""Windows of generated series, and the ways of plain torch to make batches of them.

A cut makes the batch of some windows, given by their numbers. Where torch can fill, mask or scale
in several ways, `fastest` finds the one to compare with.
"""

from __future__ import annotations

import inspect
import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import rounds_of, through
from numpy.typing import NDArray

import windeck as wd

PAST, FUTURE, CHANNELS = 168, 24, 8
STEPS = PAST + FUTURE
#: Rows of the one long series, and about so many windows in an epoch of any.
LONG, EPOCH = 200_000, 100_000

Batch = dict[str, torch.Tensor]
#: The batch of some windows, given by their numbers.
Cut = Callable[[torch.Tensor], Batch]


def lengths_of(kind: str) -> list[int]:
    """Rows of each series: one long one, or 414 as in M4 hourly."""
    return [LONG] if kind == "one" else [700] * 169 + [960] * 245


def column(kind: str, *, missing: float = 0.0) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(sum(lengths_of(kind)), dtype=np.float32)
    values[rng.random(len(values)) < missing] = np.nan
    return values


def lean(table: wd.Table) -> dict[str, Any]:
    """Arguments for windows of the past and the future alone, if this version has them."""
    arguments: dict[str, Any] = {"table": table.with_missing_counts()}
    if "keys" in inspect.signature(wd.Windows).parameters:
        arguments["keys"] = ("past_target", "future_target")
    return arguments


def windows_of(**arguments: Any) -> wd.Windows:
    return wd.Windows(context_length=PAST, prediction_length=FUTURE, **arguments)


def series_windows(kind: str, values: NDArray[np.float32], *, plain: bool) -> wd.Windows:
    """Windows of one series or 414; `plain` ones are of past and future alone, without masks."""
    offsets = np.cumsum([0, *lengths_of(kind)])
    table = wd.Table.from_columns({"load": values}, offsets=offsets)
    arguments = lean(table) if plain else {"table": table}
    return windows_of(stride=stride_of(kind), **arguments)


def shuffled(source: Any, batch_size: int, **options: Any) -> wd.Loader:
    return wd.Loader(source, batch_size=batch_size, shuffle=True, **options)


def stride_of(kind: str) -> int:
    """Rows from window to window, so that epochs are short; the same on both sides."""
    return max(1, sum(length - STEPS + 1 for length in lengths_of(kind)) // EPOCH)


def unfold(kind: str, values: NDArray[Any]) -> torch.Tensor:
    """All windows of a series, or all of 414 series end to end, whose `starts_of` are served."""
    return torch.from_numpy(values).unfold(0, STEPS, stride_of(kind) if kind == "one" else 1)


def starts_of(kind: str) -> torch.Tensor | None:
    """First rows of all windows in series that are end to end; None if there is one series."""
    lengths, stride = lengths_of(kind), stride_of(kind)
    if len(lengths) == 1:
        return None
    pairs = zip(lengths, itertools.accumulate(lengths), strict=True)
    return torch.cat([torch.arange(end - n, end - STEPS + 1, stride) for n, end in pairs])


def torch_epoch(count: int, batch_size: int, cut: Cut) -> Iterator[Batch]:
    """The rival's epoch: a new order, and its batches."""
    for chosen in torch.randperm(count).split(batch_size):
        yield cut(chosen)


def assert_same(loader: wd.Loader, cut: Cut, *, steps: int = 5) -> None:
    """Assert that the rival makes the loader's first batches of the loader's samples."""
    for step, batch in zip(range(steps), loader, strict=False):
        expected = cut(torch.from_numpy(loader.samples(step)))
        for key, tensor in expected.items():
            ours = batch[key]
            assert ours.dtype == tensor.dtype
            assert torch.equal(ours.reshape(tensor.shape), tensor), key
    loader.load_state_dict({**loader.state_dict(), "position": 0, "step": 0, "legs": []})


def fastest(cuts: dict[str, Cut], count: int, batch_size: int) -> tuple[str, Cut]:
    """The fastest way of torch for batches of this size, and its name."""

    def some(cut: Cut) -> None:
        through(itertools.islice(torch_epoch(count, batch_size, cut), 2**14 // batch_size))

    found = rounds_of(*(partial(some, cut) for cut in cuts.values()), seconds=0.5, least=5)
    medians = [statistics.median(one[place][0] for one in found) for place in range(len(cuts))]
    return list(cuts.items())[medians.index(min(medians))]


def past_and_future(windows: torch.Tensor) -> Batch:
    return {"past_target": windows[:, :PAST], "future_target": windows[:, PAST:]}


def take_of(kind: str, way: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The rival's access to unfolded rows: by an index, or with `index_select`."""
    starts = starts_of(kind)

    def indexed(windows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return windows[chosen if starts is None else starts[chosen]]

    def selected(windows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return windows.index_select(0, chosen if starts is None else starts[chosen])

    return indexed if way == "indexed" else selected


def plain_cut(kind: str, way: str, values: NDArray[np.float32]) -> Cut:
    """Torch's way to past and future without masks."""
    take, windows = take_of(kind, way), unfold(kind, values)
    return lambda chosen: past_and_future(take(windows, chosen))


def describe(kind: str) -> str:
    return f"one series of {LONG:,} rows" if kind == "one" else "414 series, as in M4 hourly"


def masked_cuts(kind: str, way: str, values: NDArray[np.float32]) -> dict[str, Cut]:
    """Torch's ways to a filled batch and its mask.

    The one that is "kept" has a filled copy of all values and their mask beside them, where windeck
    keeps nothing.
    """
    take, windows = take_of(kind, way), unfold(kind, values)
    seen_windows, filled_windows = (
        unfold(kind, ~np.isnan(values)),
        unfold(kind, np.nan_to_num(values)),
    )

    def both(batch: torch.Tensor, mask: torch.Tensor) -> Batch:
        named = {f"{key}_mask": one for key, one in past_and_future(mask).items()}
        return {**past_and_future(batch), **named}

    def nan_to_num(chosen: torch.Tensor) -> Batch:
        batch = take(windows, chosen)
        mask = batch == batch
        return both(batch.nan_to_num_(0.0), mask)

    def where(chosen: torch.Tensor) -> Batch:
        batch = take(windows, chosen)
        mask = batch == batch
        return both(torch.where(mask, batch, 0.0), mask)

    def masked_fill(chosen: torch.Tensor) -> Batch:
        batch = take(windows, chosen)
        gone = batch.isnan()
        return both(batch.masked_fill_(gone, 0.0), gone.logical_not_())

    def copies(chosen: torch.Tensor) -> Batch:
        return both(take(filled_windows, chosen), take(seen_windows, chosen))

    ways: tuple[Cut, ...] = (copies,) if way == "kept" else (nan_to_num, where, masked_fill)
    return {cut.__name__: cut for cut in ways}


def scaled_windows(
    stored: str,
) -> tuple[wd.Windows, NDArray[np.float64], list[NDArray[np.float64]]]:
    """Windows of 8 float64 columns that become scaled float32, and their values in two forms."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((40_000, CHANNELS)) * 3 + 5
    matrix[rng.random(matrix.shape) < 0.02] = np.nan
    names = [f"c{c}" for c in range(CHANNELS)]
    columns = [np.ascontiguousarray(matrix[:, c]) for c in range(CHANNELS)]
    if stored == "rows":
        table = wd.Table.from_rows(matrix, columns=names)
    else:
        table = wd.Table.from_columns(dict(zip(names, columns, strict=True)))
    return windows_of(table=table, scaler=wd.Scaler.fit(table), dtype="float32"), matrix, columns


def scaled_cuts(
    stored: str,
    matrix: NDArray[np.float64],
    columns: list[NDArray[np.float64]],
    source: wd.Windows,
) -> dict[str, Cut]:
    """Torch's ways from columns, or from rows, to a scaled batch and its mask."""
    scaler, count = source.scaler, len(source)
    assert scaler is not None
    scale = torch.from_numpy(np.asarray(scaler.scale).reshape(-1))
    shift = torch.from_numpy(np.asarray(scaler.shift).reshape(-1))
    singles = [torch.from_numpy(one).unfold(0, STEPS, 1) for one in columns]
    both = list(zip(scale.tolist(), shift.tolist(), strict=True))
    flat = torch.from_numpy(matrix).as_strided((count, STEPS * CHANNELS), (CHANNELS, 1))
    scales, shifts = scale.repeat(STEPS), shift.repeat(STEPS)

    def finish(batch: torch.Tensor, mask: torch.Tensor) -> Batch:
        named = {f"{key}_mask": one for key, one in past_and_future(mask).items()}
        return {**past_and_future(batch.nan_to_num_(0.0)), **named}

    def column_by_column(chosen: torch.Tensor) -> Batch:
        batch = torch.empty(len(chosen), STEPS, CHANNELS)
        mask = torch.empty(batch.shape, dtype=torch.bool)
        for c, (factor, summand) in enumerate(both):
            window = singles[c].index_select(0, chosen)
            torch.eq(window, window, out=mask[:, :, c])
            batch[:, :, c] = window.mul_(factor).add_(summand)
        return finish(batch, mask)

    def stacked(chosen: torch.Tensor) -> Batch:
        windows = torch.stack([one.index_select(0, chosen) for one in singles], dim=-1)
        mask = windows == windows
        return finish(windows.mul_(scale).add_(shift).float(), mask)

    def in_place(chosen: torch.Tensor) -> Batch:
        windows = flat.index_select(0, chosen).view(-1, STEPS, CHANNELS)
        mask = windows == windows
        return finish(windows.mul_(scale).add_(shift).float(), mask)

    def tiled(chosen: torch.Tensor) -> Batch:
        windows = flat.index_select(0, chosen)
        mask = (windows == windows).view(-1, STEPS, CHANNELS)
        windows = windows.mul_(scales).add_(shifts).float()
        return finish(windows.view(-1, STEPS, CHANNELS), mask)

    ways = (in_place, tiled) if stored == "rows" else (column_by_column, stacked)
    return {way.__name__: way for way in ways}


def wide_table(rows: int) -> wd.Table:
    """8 float32 columns, stored as rows."""
    matrix = np.random.default_rng(0).standard_normal((rows, CHANNELS), dtype=np.float32)
    return wd.Table.from_rows(matrix, columns=[f"c{c}" for c in range(CHANNELS)])
