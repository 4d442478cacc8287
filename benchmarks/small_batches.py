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
import contextlib
import fnmatch
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
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
import torch_windows
from bench_loader import Slices, Windowed
from measure import Row, compared, digits, limited, rounds_of, spread, through
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torch_windows import (
    CHANNELS,
    STEPS,
    assert_same,
    column,
    describe,
    fastest,
    lean,
    masked_cuts,
    plain_cut,
    scaled_cuts,
    scaled_windows,
    series_windows,
    shuffled,
    torch_epoch,
    wide_table,
    windows_of,
)

import windeck as wd
from windeck import _core

SIZES = (32, 256, 1024)
#: Bytes of batches that a loader makes at a time, where it makes several.
GROUP_BYTES = 1 << 19

# --- against plain torch -------------------------------------------------------------------------


#: Least speed of the loader against each way of torch, by the size of batches.
NEEDED_OF_PLAIN = {
    "indexed": {32: 1.0, 256: 1.3, 1024: 1.3},
    "selected": {32: 1.2, 256: 1.0, 1024: 1.0},
}


def read(batches: Iterable[Any]) -> None:
    """A step that reads every value once."""
    for batch in batches:
        for tensor in batch.values():
            tensor.sum()


def plain(kind: str, way: str, batch_size: int, reads: bool = False) -> Iterator[Row]:
    """Values only: the loader as it comes against `unfold`, `randperm` and `split`."""
    values = column(kind)
    source = series_windows(kind, values, plain=True)
    loader, cut = shuffled(source, batch_size), plain_cut(kind, way, values)
    assert_same(loader, cut)
    step = read if reads else through
    yield compared(
        f"{describe(kind)}, past and future without masks, batches of {batch_size}"
        f"{', read by the step' if reads else ''}",
        f"Loader, keys {', '.join(loader.peek())}",
        f"torch, {way}",
        lambda: step(iter(loader)),
        lambda: step(torch_epoch(len(source), batch_size, cut)),
        len(loader),
        needed=None if reads else NEEDED_OF_PLAIN[way][batch_size],
    )


def masks(kind: str, way: str, batch_size: int) -> Iterator[Row]:
    """Missing values filled and masked on both sides."""
    values = column(kind, missing=0.02)
    source = series_windows(kind, values, plain=False)
    loader, cuts = shuffled(source, batch_size), masked_cuts(kind, way, values)
    for cut in cuts.values():
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


# --- the loader against its own parts ------------------------------------------------------------


def gather(batch_size: int) -> Iterator[Row]:
    """The loader against `Windows.gather` alone, whose indices are there before.

    Called for each batch, and for as many batches as a loader makes at a time, which is the limit
    of the hardware.
    """
    source = series_windows("one", column("one"), plain=True)
    loader = shuffled(source, batch_size)
    bytes_of_batch = sum(tensor.nbytes for tensor in loader.peek().values())
    first = next(iter(loader))["past_target"]
    assert np.array_equal(source.gather(loader.samples(0))["past_target"], first.numpy())
    order = wd.Permutation(len(source), seed=1)[:]
    in_group = max(1, round(GROUP_BYTES / bytes_of_batch))
    asked_of, allowed = {
        32: (in_group, 1 / 1.5),
        256: (in_group, 1 / 1.15),
        1024: (1, 1 / 1.3),
    }[batch_size]
    for count in dict.fromkeys((1, in_group)):
        needed = allowed if count == asked_of else None
        size = count * batch_size
        groups = [order[begin : begin + size] for begin in range(0, len(order), size)]
        yield compared(
            f"the loader against its gather, batches of {batch_size}",
            "Loader",
            f"Windows.gather of {count} batches at a time",
            partial(through, loader),
            lambda groups=groups: through(map(source.gather, groups)),
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


def prefetch(content: str, batch_size: int, sleeps: bool) -> Iterator[Row]:
    """The default of `prefetch` against 0, beside an empty step or one that sleeps.

    The sleep is as long as a gather takes in such a loop: after a sleep, and while the last batch
    is held. The same memory written over and over is in the cache, two batches of 6 MB often not.
    """
    source = sources_of_prefetch(content)
    ahead, inline = shuffled(source, batch_size), shuffled(source, batch_size, prefetch=0)
    for one, other in zip(ahead, inline, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in other)
    order = wd.Permutation(len(source), seed=1)
    draws = itertools.cycle(order[i * batch_size : (i + 1) * batch_size] for i in range(31))
    last, took = deque[object](maxlen=1), []
    for _ in range(101):
        time.sleep(200e-6)
        begin = time.perf_counter()
        last.append(source.gather(next(draws)))
        took.append(time.perf_counter() - begin)
    pause = statistics.median(took)

    def train(loader: wd.Loader) -> None:
        if sleeps:
            for _ in loader:
                time.sleep(pause)
        else:
            through(loader)

    step = f"step sleeps {digits(pause * 1e6)} us, as its gather takes" if sleeps else "empty step"
    # A sleep of some microseconds lasts 60 and more, which hides what is gained.
    long_enough = not sleeps or content != "column"
    question = f"prefetch, {step}, batches of {batch_size}, {content}"
    yield compared(
        question,
        "Loader",
        "Loader(prefetch=0)",
        partial(train, ahead),
        partial(train, inline),
        len(ahead),
        needed=(1.6 if sleeps else 1.0) if long_enough else None,
    )
    if sleeps:
        # Sleeps end late. What is left of an epoch without them is all that a loader can save.
        yield compared(
            question,
            "the sleeps alone",
            "Loader(prefetch=0)",
            lambda: [time.sleep(pause) for _ in range(len(ahead))],
            partial(train, inline),
            len(ahead),
        )


def training(content: str, step: str, busy: bool, threads: int | None = None) -> Iterator[Row]:
    """The default of `prefetch` against 0, beside a step that computes.

    The step is a sum of each tensor, or a step of training of a small model, with `threads` of
    torch, by default as many as there are processors; if `busy`, with as many other programs at
    work as there are processors.
    """
    source = sources_of_prefetch(content)
    ahead, inline = shuffled(source, 1024), shuffled(source, 1024, prefetch=0)
    past = ahead.peek()["past_target"].flatten(1)
    model = torch.nn.Sequential(torch.nn.Linear(past.shape[1], 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train(batches: wd.Loader) -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(batch["past_target"].flatten(1).float()).square().mean().backward()
            optimizer.step()

    action = read if step == "sum" else train
    cores = os.cpu_count() or 1
    before = torch.get_num_threads()
    torch.set_num_threads(threads or cores)
    what = "a sum" if step == "sum" else "training of a small model"
    beside = f", beside {cores} busy programs" if busy else ""
    try:
        with busy_programs(cores if busy else 0):
            yield compared(
                f"prefetch, {what}, torch.set_num_threads({threads or cores}){beside}, "
                f"batches of 1024, {content}",
                "Loader",
                "Loader(prefetch=0)",
                lambda: action(ahead),
                lambda: action(inline),
                len(ahead),
                needed=0.95,
                seconds=100 if busy else 12,
                least=5 if busy else 15,
                most=151,
            )
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Run other programs that use a processor each."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def sources_of_prefetch(content: str) -> wd.Windows:
    """One float32 column, 8 of them as rows (6 MB a batch of 1,024), or 8 of float64 scaled."""
    if content == "column":
        return series_windows("one", column("one"), plain=True)
    if content == "scaled":
        return scaled_windows("columns")[0]
    return windows_of(**lean(wide_table(50_000)))


def threads() -> Iterator[Row]:
    """Two threads of the gather against one, over what two threads gain in copies of as many bytes.

    On processors of their own, where the system allows it.
    """
    table = wide_table(100_000)
    source = windows_of(table=table.with_missing_counts(), masks=False)
    batch_size, chunk = 1024, 20
    order = wd.Permutation(len(source), seed=1)[:]
    draws = itertools.cycle(np.split(order[: 4 * chunk * batch_size], 4))
    out = np.empty((batch_size, STEPS, CHANNELS), np.float32)
    halves = np.split(out, 2)
    matrix = np.stack([table[name] for name in table.column_names], axis=1)
    matrix = np.resize(matrix, (2 * batch_size * STEPS, CHANNELS))

    def gathers(count: int) -> None:
        for indices in np.split(next(draws), chunk):
            source.gather(indices, threads=count)

    def copies(target: NDArray[Any], indices: list[NDArray[Any]]) -> None:
        rows = len(target) * STEPS
        for one in indices:
            first = int(one[0]) % (len(matrix) - rows)
            np.copyto(target, matrix[first : first + rows].reshape(target.shape))

    def copy_by_one() -> None:
        copies(out, np.split(next(draws), chunk))

    def copy_by_two() -> None:
        pairs = [np.split(one, 2) for one in np.split(next(draws), chunk)]
        other = pool.submit(copies, halves[1], [pair[1] for pair in pairs])
        copies(halves[0], [pair[0] for pair in pairs])
        other.result()

    with ThreadPoolExecutor(1) as pool:
        gathers(2)
        copy_by_two()
        with kept_apart():
            actions = partial(gathers, 1), partial(gathers, 2), copy_by_one, copy_by_two
            found = rounds_of(*actions, seconds=8, most=301)
    walls = [[wall for wall, _ in one] for one in found]
    ours, theirs = ([one[i] / one[i + 1] for one in walls] for i in (0, 2))
    shares = [a / b for a, b in zip(ours, theirs, strict=True)]
    medians = statistics.median(ours), statistics.median(theirs)
    yield Row(
        f"two threads against one, batches of {batch_size} x {CHANNELS}",
        f"Windows.gather: {medians[0]:.3g}x",
        f"numpy copyto: {medians[1]:.3g}x",
        spread(shares, *medians),
        0.9,
    )


@contextlib.contextmanager
def kept_apart() -> Iterator[None]:
    """Keep this thread on one processor and the others of the process on the other ones.

    Otherwise a scheduler that is busy with other processes puts all of them on one processor, often
    for a whole run. Where threads cannot be kept there, they are left as they are.
    """
    tasks = Path("/proc/self/task")
    before = os.sched_getaffinity(0) if tasks.exists() else set()
    if len(before) < 2:
        yield
        return
    first, *others = sorted(before)
    every = [int(task.name) for task in tasks.iterdir()]
    for task in every:
        os.sched_setaffinity(task, {first} if task == threading.get_native_id() else others)
    try:
        yield
    finally:
        for task in every:
            os.sched_setaffinity(task, before)


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
        lambda: through(map(masked.gather, runs)),
        lambda: through(map(bare.gather, runs)),
        len(runs),
        needed=1 / 1.5,
    )


def complete(batch_size: int) -> Iterator[Row]:
    """The masks of a column without missing values against the same batches without masks.

    The gather sets the masks of up to 128 windows at once. A loader makes two tensors more for each
    batch, which decides where batches are small, so its figures are only told.
    """
    bare = windows_of(**lean(wd.Table.from_columns({"load": column("one")})))
    masked = windows_of(table=bare.table, keys=("past_target", "future_target"), masks=True)
    order = wd.Permutation(len(bare), seed=1)[:]
    runs = np.split(order[: 60 * batch_size], 60)
    assert masked.gather(runs[0])["past_target_mask"].all()
    yield compared(
        f"gather with masks, nothing missing, batches of {batch_size}",
        "Windows.gather",
        "masks=False",
        lambda: through(map(masked.gather, runs)),
        lambda: through(map(bare.gather, runs)),
        len(runs),
        needed=1 / 1.1 if batch_size > 32 else None,
    )
    options: dict[str, Any] = {"max_steps": 200, "restart": True}
    ours, rival = (shuffled(source, batch_size, **options) for source in (masked, bare))
    yield compared(
        f"loader with masks, nothing missing, batches of {batch_size}",
        "Loader",
        "masks=False",
        partial(through, ours),
        partial(through, rival),
        200,
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
        found[f"read-{way}-{kind}-{size}"] = partial(plain, kind, way, size, True)
    for way, kind, size in itertools.product(("indexed", "selected", "kept"), kinds, SIZES):
        found[f"masks-{way}-{kind}-{size}"] = partial(masks, kind, way, size)
    for stored, size in itertools.product(("columns", "rows"), SIZES):
        found[f"scaled-{stored}-{size}"] = partial(scaled, stored, size)
    for size in SIZES:
        found[f"gather-{size}"] = partial(gather, size)
    for size in SIZES[:2]:
        found[f"switches-{size}"] = partial(switches, size)
    for content, size in (*(("column", size) for size in SIZES), ("rows", 1024), ("scaled", 1024)):
        found[f"prefetch-empty-{content}-{size}"] = partial(prefetch, content, size, False)
    for content, size in (("column", 256), ("rows", 1024), ("scaled", 1024)):
        found[f"prefetch-sleep-{content}-{size}"] = partial(prefetch, content, size, True)
    for step, content in itertools.product(("sum", "train"), ("column", "scaled")):
        found[f"prefetch-{step}-{content}"] = partial(training, content, step, False)
    for step in ("sum", "train"):
        found[f"prefetch-one-thread-{step}"] = partial(training, "column", step, False, 1)
        found[f"prefetch-busy-{step}"] = partial(training, "column", step, True)
        found[f"prefetch-busy-one-thread-{step}"] = partial(training, "column", step, True, 1)
    for content, size in itertools.product(("values", "filled, masked, numbered"), SIZES[1:]):
        found[f"samples-{content.split(',')[0]}-{size}"] = partial(samples, content, size)
    found["threads"] = threads
    for sequences in (16, 32):
        found[f"tokens-{sequences}"] = partial(tokens, sequences)
    found["gather-mask"] = masked_gather
    for size in SIZES:
        found[f"complete-{size}"] = partial(complete, size)
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
    parser.add_argument(
        "--rows", type=int, default=torch_windows.LONG, help="rows of the one long series"
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    if arguments.list:
        print(*figures(), sep="\n")
        return
    torch.set_num_threads(arguments.torch_threads)
    torch_windows.LONG = arguments.rows
    made = {}
    for name, figure in chosen_of(arguments.names).items():
        began = time.perf_counter()
        for row in figure():
            asked = "" if row.needed is None else f" asked {row.needed:.3g}x"
            verdict = "told" if row.needed is None else "ok  " if row.reached else "LESS"
            # Others at work make ratios uncertain, those against worker processes above all.
            busy = f"{time.perf_counter() - began:.0f} s, load {os.getloadavg()[0]:.1f}"
            print(f"{verdict} {name}: {row.ratio}{asked} | {row.question} | {row.ours} | "
                  f"{row.rival} [{busy}]", flush=True)  # fmt: skip
            made[f"{name}: {row.question}"] = asdict(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
