"""Figures of the loader at small batch sizes, where the work around the gather decides.

    python benchmarks/small_batches.py                    every figure
    python benchmarks/small_batches.py plain prefetch     those whose names begin so
    python benchmarks/small_batches.py --list             the names

Windows are of 168 + 24 steps of float32, in one column unless the name says otherwise. Both sides
serve a whole epoch in a new random order in each round, and make their indices inside the timing.
A round is short, and both sides alternate; medians and quartiles are of the rounds' ratios. The one
long series has 200,000 rows, which fit into the cache of a core; ``--rows`` takes more. What the
rival makes is compared with the loader's batches first. Torch has one thread unless
``--torch-threads`` says otherwise. Where torch can fill, mask or scale in several ways, each is
timed and the fastest is the rival.

A rival that is "indexed" takes windows by ``unfolded[chosen]``, one that is "selected" by
``unfolded.index_select(0, chosen)``, which is faster and less known; "kept" keeps copies of the
data that are prepared for it.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import inspect
import itertools
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import bench_packing
import numpy as np
import torch
from bench_loader import Slices, Windowed
from measure import Ratio, Row, ratio_of
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import windeck as wd
from windeck import _core

PAST, FUTURE, CHANNELS = 168, 24, 8
STEPS = PAST + FUTURE
SIZES = (32, 256, 1024)
#: Rows of the one long series, and about so many windows in an epoch of any.
LONG, EPOCH = 200_000, 100_000
#: Bytes of batches that a loader makes at a time, where it makes several.
RUN_BYTES = 2**20

Batch = dict[str, torch.Tensor]
#: The batch of some windows, given by their numbers.
Cut = Callable[[torch.Tensor], Batch]
Action = Callable[[], object]

# --- measuring -----------------------------------------------------------------------------------


def spent(action: Action) -> tuple[float, float]:
    """Wall time and processor time of this process's threads of one call, in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processor


def rounds_of(
    *actions: Action, seconds: float = 6.0, least: int = 15, most: int = 61
) -> list[list[tuple[float, float]]]:
    """`spent` of each action in each round, until `seconds` are over and `least` rounds made.

    The order within a round is reversed in every other one. The first two rounds are left out.
    """
    found: list[list[tuple[float, float]]] = []
    was_enabled, end = gc.isenabled(), float("inf")
    gc.disable()
    try:
        for turn in range(-2, most):
            if turn == 0:
                gc.collect()
                end = time.perf_counter() + seconds
            turned = range(len(actions))[:: -1 if turn % 2 else 1]
            one = {place: spent(actions[place]) for place in turned}
            if turn >= 0:
                found.append([one[place] for place in range(len(actions))])
            if len(found) >= least and time.perf_counter() > end:
                break
    finally:
        if was_enabled:
            gc.enable()
    return found


def spread(values: Iterable[float], ours: float, rival: float) -> Ratio:
    """The median and quartiles of ratios that were found one by one."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Ratio(median, low, high, ours, rival)


def compared(
    question: str, ours: str, rival: str, our: Action, their: Action, batches: int, **told: Any
) -> Row:
    """One figure: an epoch of ours against one of the rival, with the microseconds of a batch."""
    needed, bound = told.pop("needed", None), told.pop("bound", "")
    found = rounds_of(our, their, **told)
    sides = []
    for place, name in enumerate((ours, rival)):
        wall, processor = (
            statistics.median(one[place][kind] for one in found) / batches * 1e6 for kind in (0, 1)
        )
        sides.append(f"{name}: {wall:.3g} us a batch ({processor:.3g} of processor time)")
    ratio = ratio_of([(one[0][0], one[1][0]) for one in found])
    return Row(question, *sides, ratio, needed, bound)


def limited(question: str, found: list[float], allowed: float, rival: str) -> Row:
    """A figure that must stay under a limit, by the median of what was found in several rounds."""
    shares = [allowed / max(one, allowed / 1000) for one in found]
    middle = statistics.median(found)
    return Row(question, f"{middle:.3g}", rival, spread(shares, middle, allowed), 1)


def through(batches: Iterable[Any]) -> None:
    """Take all, keep none."""
    for _ in batches:
        pass


# --- data and loaders ----------------------------------------------------------------------------


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


# --- against plain torch -------------------------------------------------------------------------


def past_and_future(windows: torch.Tensor) -> Batch:
    return {"past_target": windows[:, :PAST], "future_target": windows[:, PAST:]}


def plain(kind: str, way: str, batch_size: int) -> Iterator[Row]:
    """Values only: the loader as it comes against `unfold`, `randperm` and `split`."""
    values = column(kind)
    source = series_windows(kind, values, plain=True)
    loader, take = shuffled(source, batch_size), take_of(kind, way)
    windows = unfold(kind, values)

    def cut(chosen: torch.Tensor) -> Batch:
        return past_and_future(take(windows, chosen))

    assert_same(loader, cut)
    yield compared(
        f"{describe(kind)}, past and future without masks, batches of {batch_size}",
        f"Loader, keys {', '.join(loader.peek())}",
        f"torch, {way}",
        partial(through, loader),
        lambda: through(torch_epoch(len(source), batch_size, cut)),
        len(loader),
        needed={32: 1.0, 256: 1.3, 1024: 1.3}[batch_size] if way == "indexed" else None,
    )


def take_of(kind: str, way: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The rival's access to unfolded rows: by an index, or with `index_select`."""
    starts = starts_of(kind)

    def indexed(windows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return windows[chosen if starts is None else starts[chosen]]

    def selected(windows: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return windows.index_select(0, chosen if starts is None else starts[chosen])

    return indexed if way == "indexed" else selected


def describe(kind: str) -> str:
    return f"one series of {LONG:,} rows" if kind == "one" else "414 series, as in M4 hourly"


def masks(kind: str, way: str, batch_size: int) -> Iterator[Row]:
    """Missing values filled and masked on both sides.

    The rival that is "kept" has a filled copy of all values and their mask beside them, where
    windeck keeps nothing.
    """
    values = column(kind, missing=0.02)
    source = series_windows(kind, values, plain=False)
    loader, take, windows = shuffled(source, batch_size), take_of(kind, way), unfold(kind, values)
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
    cuts = {cut.__name__: cut for cut in ways}
    for cut in ways:
        assert_same(loader, cut)
    name, cut = fastest(cuts, len(source), batch_size)
    yield compared(
        f"{describe(kind)}, past and future with masks, batches of {batch_size}",
        "Loader",
        f"torch, {way}, {name}",
        partial(through, loader),
        lambda: through(torch_epoch(len(source), batch_size, cut)),
        len(loader),
        needed={32: 1.0, 256: 2.0, 1024: 2.0}[batch_size] if way == "indexed" else None,
    )


def scaled(stored: str, batch_size: int) -> Iterator[Row]:
    """8 columns of float64 with missing values to scaled float32 with masks.

    Stored alike on both sides, column by column or as rows, and scaled in float64 as `Scaler`
    does, so that the bits are the same.
    """
    source, matrix, columns = scaled_windows(stored)
    loader = shuffled(source, batch_size)
    cuts = scaled_cuts(stored, matrix, columns, source)
    for cut in cuts.values():
        assert_same(loader, cut)
    name, cut = fastest(cuts, len(source), batch_size)
    yield compared(
        f"8 float64 columns, stored as {stored}, to scaled float32 with masks, "
        f"batches of {batch_size}",
        "Loader",
        f"torch, {name}",
        partial(through, loader),
        lambda: through(torch_epoch(len(source), batch_size, cut)),
        len(loader),
        needed=2.5,
    )


def scaled_windows(
    stored: str,
) -> tuple[wd.Windows, NDArray[np.float64], list[NDArray[np.float64]]]:
    """Windows of 8 float64 columns that become scaled float32, and their values in two forms."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((LONG // 5, CHANNELS)) * 3 + 5
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


# --- the loader against its own parts ------------------------------------------------------------


def gather(batch_size: int) -> Iterator[Row]:
    """The loader against `Windows.gather` alone, whose indices are there before.

    Called for runs of batches as they are made at a time it is the limit of the hardware; called
    for each batch it is told.
    """
    source = series_windows("one", column("one"), plain=True)
    loader = shuffled(source, batch_size)
    bytes_of_batch = sum(tensor.nbytes for tensor in loader.peek().values())
    first = next(iter(loader))["past_target"]
    assert np.array_equal(source.gather(loader.samples(0))["past_target"], first.numpy())
    order = wd.Permutation(len(source), seed=1)[:]
    allowed = {32: 1 / 1.5, 256: 1 / 1.15}[batch_size]
    for run, needed in ((max(1, RUN_BYTES // bytes_of_batch), allowed), (1, None)):
        size = run * batch_size
        runs = [order[begin : begin + size] for begin in range(0, len(order), size)]
        yield compared(
            f"the loader beside its gather, batches of {batch_size}",
            "Loader",
            f"Windows.gather of {run} batches at a time",
            partial(through, loader),
            lambda runs=runs: [source.gather(indices) for indices in runs],
            len(loader),
            needed=needed,
        )


def switches(batch_size: int) -> Iterator[Row]:
    """Voluntary context switches of all threads, with an empty step."""
    loader = shuffled(series_windows("one", column("one"), plain=True), batch_size)
    found = []
    for turn in range(-2, 15):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        through(loader)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        if turn >= 0:
            found.append((after - before) / len(loader))
    allowed = {32: 0.1, 256: 0.3}[batch_size]
    question = f"voluntary context switches a batch, empty step, batches of {batch_size}"
    yield limited(question, found, allowed, f"at most {allowed}")


def wide_table(rows: int) -> wd.Table:
    """8 float32 columns, stored as rows."""
    matrix = np.random.default_rng(0).standard_normal((rows, CHANNELS), dtype=np.float32)
    return wd.Table.from_rows(matrix, columns=[f"c{c}" for c in range(CHANNELS)])


def prefetch(content: str, batch_size: int, sleeps: bool) -> Iterator[Row]:
    """The default of `prefetch` against 0, beside an empty step or one that sleeps."""
    source = sources_of_prefetch(content)
    ahead, inline = shuffled(source, batch_size), shuffled(source, batch_size, prefetch=0)
    for one, other in zip(ahead, inline, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)
    order = wd.Permutation(len(source), seed=1)
    draws = itertools.cycle(order[i * batch_size : (i + 1) * batch_size] for i in range(31))
    found = rounds_of(lambda: source.gather(next(draws)), seconds=0.5, least=101, most=101)
    pause = statistics.median(one[0][0] for one in found)

    def train(loader: wd.Loader) -> None:
        if sleeps:
            for _ in loader:
                time.sleep(pause)
        else:
            through(loader)

    step = f"step sleeps {pause * 1e6:.3g} us, as its gather takes" if sleeps else "empty step"
    # A sleep of some microseconds lasts 60 and more, which hides what is gained.
    long_enough = not sleeps or content != "column"
    yield compared(
        f"prefetch, {step}, batches of {batch_size}, {content}",
        "Loader",
        "Loader(prefetch=0)",
        partial(train, ahead),
        partial(train, inline),
        len(ahead),
        needed=(1.6 if sleeps else 1.0) if long_enough else None,
    )


def sources_of_prefetch(content: str) -> wd.Windows:
    """One float32 column, 8 of them as rows (6 MB a batch of 1,024), or 8 of float64 scaled."""
    if content == "column":
        return series_windows("one", column("one"), plain=True)
    if content == "scaled":
        return scaled_windows("columns")[0]
    return windows_of(**lean(wide_table(LONG // 4)))


def threads() -> Iterator[Row]:
    """Two threads of the gather against one, over what two threads gain in memcpy."""
    table = wide_table(LONG // 2)
    source = windows_of(table=table.with_missing_counts())
    batch_size, chunk = 1024, 20
    order = wd.Permutation(len(source), seed=1)[:]
    draws = itertools.cycle(np.split(order[: 4 * chunk * batch_size], 4))
    out = np.empty((batch_size, STEPS, CHANNELS), np.float32)
    halves = np.split(out, 2)
    matrix = np.stack([table[name] for name in table.column_names], axis=1)
    whole = source.gather(order[:batch_size])
    _core._memcpy_rows(matrix, order[:batch_size], STEPS, out)
    assert np.array_equal(np.concatenate([whole["past_target"], whole["future_target"]], 1), out)

    def gathers(count: int) -> None:
        for indices in np.split(next(draws), chunk):
            source.gather(indices, threads=count)

    def copies(target: NDArray[Any], indices: list[NDArray[Any]]) -> None:
        for one in indices:
            _core._memcpy_rows(matrix, one, STEPS, target)

    def copy_by_one() -> None:
        copies(out, np.split(next(draws), chunk))

    def copy_by_two() -> None:
        pairs = [np.split(one, 2) for one in np.split(next(draws), chunk)]
        other = pool.submit(copies, halves[1], [pair[1] for pair in pairs])
        copies(halves[0], [pair[0] for pair in pairs])
        other.result()

    with ThreadPoolExecutor(1) as pool:
        found = rounds_of(
            partial(gathers, 1), partial(gathers, 2), copy_by_one, copy_by_two, seconds=8
        )
    walls = [[wall for wall, _ in one] for one in found]
    ours, theirs = ([one[i] / one[i + 1] for one in walls] for i in (0, 2))
    shares = [a / b for a, b in zip(ours, theirs, strict=True)]
    medians = statistics.median(ours), statistics.median(theirs)
    yield Row(
        f"two threads against one, batches of {batch_size} x {CHANNELS}",
        f"Windows.gather: {medians[0]:.3g}x",
        f"memcpy: {medians[1]:.3g}x",
        spread(shares, *medians),
        0.9,
    )


def masked_gather() -> Iterator[Row]:
    """The gather of a column with a mask against that of one without."""
    values = column("one", missing=0.02)
    masked = series_windows("one", values, plain=False)
    bare = series_windows("one", np.nan_to_num(values), plain=True)
    batch_size = 1024
    order = wd.Permutation(len(bare), seed=1)[:]
    runs = np.split(order[: 60 * batch_size], 60)
    one, other = masked.gather(runs[0]), bare.gather(runs[0])
    assert np.array_equal(one["past_target"], other["past_target"])
    assert "past_target_mask" in one
    assert "past_target_mask" not in other
    yield compared(
        f"gather with a mask, batches of {batch_size}",
        "Windows.gather, with a mask",
        "without",
        lambda: [masked.gather(indices) for indices in runs],
        lambda: [bare.gather(indices) for indices in runs],
        len(runs),
        needed=1 / 1.5,
    )


def steady(batch_size: int) -> Iterator[Row]:
    """Allocations of the pool and page faults, in stretches of one epoch.

    Some MiB of batches are held beforehand, since the number of batches that exist at a time varies
    with the scheduling of threads; the pool keeps their memory.
    """
    loader = shuffled(series_windows("one", column("one"), plain=False), batch_size)
    loop, steps = iter(loader), len(loader)
    for _ in range(3):
        held = [next(loop) for _ in range(steps // 12)]
        del held
    stretch = steps // 30
    found: dict[str, list[float]] = {"page faults": [], "allocations of the pool": []}
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, allocations()
        through(itertools.islice(loop, stretch))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, allocations()
        for each, now, then in zip(found.values(), after, before, strict=True):
            each.append((now - then) / stretch)
    for what, each in found.items():
        question = f"{what} a batch in the steady state, batches of {batch_size}"
        yield limited(question, each, 0.02, "none (below 1 in 50)")


def allocations() -> int:
    return int(_core.pool_stats()["allocations"])


def calls(batch_size: int) -> Iterator[Row]:
    """Calls of Python functions in all threads; a generator that goes on counts as a call."""
    loader = shuffled(series_windows("one", column("one"), plain=False), batch_size)
    through(itertools.islice(loader, 3))
    loader = shuffled(loader.stream.source, batch_size)
    counts = {"call": itertools.count(), "c_call": itertools.count()}

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in counts:
            next(counts[event])

    everywhere = getattr(threading, "setprofile_all_threads", threading.setprofile)
    everywhere(profile)
    sys.setprofile(profile)
    try:
        for _ in loader:
            pass
    finally:
        sys.setprofile(None)
        everywhere(None)
    found, native = (next(one) / len(loader) for one in counts.values())
    yield limited(
        f"calls of Python functions a batch, batches of {batch_size}",
        [found] * 2,
        10,
        f"at most 10; {native:.3g} native calls besides",
    )


# --- against others ------------------------------------------------------------------------------


def samples(content: str, batch_size: int) -> Iterator[Row]:
    """A `Dataset` that makes sample by sample, in a DataLoader of two workers."""
    only = content == "values"
    values = column("one", missing=0 if only else 0.05)[:16_384]
    table = wd.Table.from_columns({"load": values})
    source = windows_of(**lean(table)) if only else windows_of(table=table)
    dataset = (Slices if only else Windowed)(torch.from_numpy(values[:, None]))
    ours = shuffled(source, batch_size, drop_last=True)
    rival: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=wd.OrderSampler(dataset),
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
    )
    for batch, expected in zip(ours, rival, strict=True):
        assert all(torch.equal(batch[key], tensor) for key, tensor in expected.items())
    yield compared(
        f"an epoch of {len(ours)} batches of {batch_size}",
        "Loader",
        f"per-sample Dataset ({content}), DataLoader(num_workers=2)",
        partial(through, ours),
        partial(through, rival),
        len(ours),
        needed=40 if only else 120,
        seconds=5,
    )


def tokens(sequences: int) -> Iterator[Row]:
    """Packed tokens against stacked slices of a memory map."""
    shape = bench_packing.Shape(sequences, 1024)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench_packing.write(folder, "lists")
        flat = bench_packing.flat_file(folder)
        source = bench_packing.packed(folder, shape.length, "int64")
        yield bench_packing.row(
            wd.Loader(source, batch_size=shape.batch, drop_last=True),
            shape,
            partial(bench_packing.sliced, flat, shape),
            rounds=25,
            form="int64, Arrow with a list column of uint16",
            ours=f"Loader, keys {', '.join(source.gather(np.arange(2)))}",
            rival="torch.stack of memmap slices",
            needed=3,
        )


def device() -> Iterator[Row]:
    """Windows whose columns are tensors on a device, here the CPU, against the native gather."""
    source = series_windows("one", column("one"), plain=True)
    if not hasattr(source, "to"):
        return
    moved, native = shuffled(source.to("cpu"), 1024), shuffled(source, 1024)
    for one, other in zip(moved, native, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)
    yield compared(
        'windows.to("cpu"), batches of 1024',
        'Loader(windows.to("cpu"))',
        "Loader(windows)",
        partial(through, moved),
        partial(through, native),
        len(native),
    )


# --- names ---------------------------------------------------------------------------------------


def figures() -> dict[str, Callable[[], Iterator[Row]]]:
    """Every figure by its name."""
    found: dict[str, Callable[[], Iterator[Row]]] = {}
    kinds = ("one", "414")
    for way, kind, size in itertools.product(("indexed", "selected"), kinds, SIZES):
        found[f"plain-{way}-{kind}-{size}"] = partial(plain, kind, way, size)
    for way, kind, size in itertools.product(("indexed", "selected", "kept"), kinds, SIZES):
        found[f"masks-{way}-{kind}-{size}"] = partial(masks, kind, way, size)
    for stored, size in itertools.product(("columns", "rows"), SIZES):
        found[f"scaled-{stored}-{size}"] = partial(scaled, stored, size)
    for size in SIZES[:2]:
        found[f"gather-{size}"] = partial(gather, size)
        found[f"switches-{size}"] = partial(switches, size)
    for content, size in (*(("column", size) for size in SIZES), ("rows", 1024), ("scaled", 1024)):
        found[f"prefetch-empty-{content}-{size}"] = partial(prefetch, content, size, False)
    for content, size in (("column", 256), ("rows", 1024), ("scaled", 1024)):
        found[f"prefetch-sleep-{content}-{size}"] = partial(prefetch, content, size, True)
    for content, size in itertools.product(("values", "filled, masked, numbered"), SIZES[1:]):
        found[f"samples-{content.split(',')[0]}-{size}"] = partial(samples, content, size)
    found["threads"] = threads
    for sequences in (16, 32):
        found[f"tokens-{sequences}"] = partial(tokens, sequences)
    found["gather-mask"] = masked_gather
    found["device"] = device
    for size in SIZES[:2]:
        found[f"steady-{size}"] = partial(steady, size)
        found[f"calls-{size}"] = partial(calls, size)
    return found


def rows() -> Iterator[Row]:
    torch.set_num_threads(1)
    for figure in figures().values():
        yield from figure()


def chosen_of(names: list[str]) -> dict[str, Callable[[], Iterator[Row]]]:
    """The figures whose names begin with one of `names`, or match it; all without names."""
    every = figures()
    for name in names:
        if not any(known.startswith(name) or fnmatch.fnmatch(known, name) for known in every):
            raise SystemExit(f"no figure named {name!r}; there are {', '.join(every)}")
    return {
        known: figure
        for known, figure in every.items()
        if not names or any(known.startswith(n) or fnmatch.fnmatch(known, n) for n in names)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="figures, or how their names begin")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--torch-threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--rows", type=int, default=LONG, help="rows of the one long series")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    if arguments.list:
        print(*figures(), sep="\n")
        return
    torch.set_num_threads(arguments.torch_threads)
    globals()["LONG"] = arguments.rows
    made = {}
    for name, figure in chosen_of(arguments.names).items():
        began = time.perf_counter()
        for row in figure():
            asked = "" if row.needed is None else f" asked {row.needed:.3g}x"
            verdict = "told" if row.needed is None else "ok  " if row.reached else "LESS"
            print(f"{verdict} {name}: {row.ratio}{asked} | {row.question} | {row.ours} | "
                  f"{row.rival} [{time.perf_counter() - began:.0f} s]", flush=True)  # fmt: skip
            made[f"{name}: {row.question}"] = asdict(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
