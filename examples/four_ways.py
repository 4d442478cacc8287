"""Four ways to feed the same small model from the same wide file, each in a process of its own.

    python examples/four_ways.py [--rows 200000] [--seconds 2] [--rounds 3] [--out out]

The file is generated: many float64 columns, of which the model uses six. The ways are those a
project goes through in its life:

1. mapped    a `Dataset` that reads each sample out of a memory-mapped Arrow file, behind torch's
             `DataLoader` with two workers: nothing is loaded, everything is looked up
2. in RAM    the whole file in memory; each batch is picked column by column and converted
3. tensors   the columns used, as a dict of float32 tensors; a batch is `unfold(...)[starts]`
4. windeck   the columns used; one native call a batch, ahead of time in another thread

Every way is written as well as its idea allows, and all four must give the same content.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

import windeck as wd

CONTEXT, HORIZON = 168, 24
LENGTH = CONTEXT + HORIZON
USED = 6
SEED = 7

Batch = dict[str, Tensor]
Starts = npt.NDArray[np.int64]
Batches = Iterator[Batch]
Probe = Callable[[Starts], Batch]


def generate(path: Path, rows: int, columns: int) -> None:
    """Writes an Arrow file of random walks, uncompressed and in one batch, so it can be mapped."""
    rng = np.random.default_rng(SEED)
    arrays = [rng.standard_normal(rows).cumsum() / 100 for _ in range(columns)]
    batch = pa.record_batch(arrays, names=[f"c{number:02d}" for number in range(columns)])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def used(columns: int) -> list[str]:
    """The six columns the model uses, spread over the file; the first one is the target."""
    return [f"c{number:02d}" for number in np.linspace(0, columns - 1, USED).astype(int)]


class Mapped(torch.utils.data.Dataset[Batch]):
    """Way 1: slices of memory-mapped columns, opened once per worker."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path, self.names = path, names
        self.columns: list[npt.NDArray[np.float64]] = []
        with pa.memory_map(str(path)) as source:
            self.rows = pa.ipc.open_file(source).get_batch(0).num_rows

    def __len__(self) -> int:
        return self.rows - LENGTH + 1

    def __getitem__(self, start: int) -> Batch:
        if not self.columns:
            batch = pa.ipc.open_file(pa.memory_map(str(self.path))).get_batch(0)
            self.columns = [batch[name].to_numpy(zero_copy_only=True) for name in self.names]
        window = np.empty((LENGTH, USED), np.float32)
        for place, column in enumerate(self.columns):
            window[:, place] = column[start : start + LENGTH]
        return cut(torch.from_numpy(window))


def cut(window: Tensor) -> Batch:
    """Context and horizon of (..., LENGTH, USED) values, as the model wants them."""
    return {
        "past_target": window[..., :CONTEXT, :1],
        "past_covariates": window[..., :CONTEXT, 1:],
        "future_target": window[..., CONTEXT:, :1],
    }


def mapped(path: Path, names: list[str], batch_size: int) -> tuple[Batches, Probe]:
    """Memory-mapped per-sample reads."""
    dataset = Mapped(path, names)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=2, drop_last=True)

    def endless() -> Batches:
        while True:
            yield from loader

    return endless(), lambda starts: default_collate([dataset[int(start)] for start in starts])


def in_ram(path: Path, names: list[str], batch_size: int) -> tuple[Batches, Probe]:
    """Every column in memory, as stored; what a batch needs is picked and converted."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        columns = {name: table[name].to_numpy().copy() for name in table.column_names}
    windows = {name: sliding_window_view(column, LENGTH) for name, column in columns.items()}

    def pick(starts: Starts) -> Batch:
        picked = np.empty((len(starts), LENGTH, USED), np.float32)
        for place, name in enumerate(names):
            picked[:, :, place] = windows[name][starts]
        return cut(torch.from_numpy(picked))

    return shuffled(len(windows[names[0]]), batch_size, pick), pick


def tensors(path: Path, names: list[str], batch_size: int) -> tuple[Batches, Probe]:
    """A dict of the columns used, as tensors, indexed through views of all their windows."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all().select(names)
        columns = {name: table[name].to_numpy().astype(np.float32) for name in names}
    windows = {
        name: torch.from_numpy(column).unfold(0, LENGTH, 1) for name, column in columns.items()
    }

    def pick(starts: Starts) -> Batch:
        chosen = torch.from_numpy(starts)
        # Stacked in front, columns are copied whole; the last axis is then a matter of strides.
        return cut(torch.stack([windows[name][chosen] for name in names]).permute(1, 2, 0))

    return shuffled(len(windows[names[0]]), batch_size, pick), pick


def windeck(path: Path, names: list[str], batch_size: int) -> tuple[Batches, Probe]:
    """This library."""
    table = wd.Table.read(path, columns=names, dtype="float32")
    windows = wd.Windows(
        table,
        context_length=CONTEXT,
        prediction_length=HORIZON,
        target_columns=names[:1],
        past_covariates=names[1:],
    )
    loader = wd.Loader(windows, batch_size=batch_size, shuffle=True, seed=SEED, drop_last=True)

    def endless() -> Batches:
        while True:
            yield from loader

    def probe(starts: Starts) -> Batch:
        return {key: torch.from_numpy(value) for key, value in windows.gather(starts).items()}

    return endless(), probe


def shuffled(count: int, batch_size: int, pick: Probe) -> Batches:
    """Batches of windows in random order, epoch after epoch."""
    rng = np.random.default_rng(SEED)
    while True:
        order = rng.permutation(count)
        for begin in range(0, count - batch_size + 1, batch_size):
            yield pick(order[begin : begin + batch_size])


CHARTS = (
    ("loading_alone", "loading alone, windows/s", "{:,.0f}"),
    ("windows_per_second", "training, windows/s", "{:,.0f}"),
    ("waiting", "share of it waiting", "{:.0%}"),
    ("first_batch_seconds", "time to first batch", "{:.2f} s"),
    ("peak_megabytes", "peak memory", "{:,.0f} MB"),
)

WAYS = {"mapped": mapped, "in RAM": in_ram, "tensors": tensors, "windeck": windeck}


def run(way: str, path: Path, columns: int, batch_size: int, seconds: float) -> dict[str, Any]:
    """Trains for some seconds one way; returns its figures and a digest of some of its content."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Flatten(), nn.Linear(CONTEXT * USED, 64), nn.GELU())
    model.append(nn.Linear(64, HORIZON))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = megabytes(os.getpid())
    began = time.perf_counter()
    batches, probe = WAYS[way](path, used(columns), batch_size)
    batch = next(batches)
    first = time.perf_counter() - began
    waiting, windows, start = 0.0, 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        step(model, optimizer, batch)
        windows += len(batch["future_target"])
        asked = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - asked
    elapsed = now - start
    alone = loading_alone(batches, seconds / 2)
    return {
        "way": way,
        "loading_alone": alone,
        "windows_per_second": windows / elapsed,
        "waiting": waiting / elapsed,
        "first_batch_seconds": first,
        "megabytes_before": before,
        "digest": digest(probe, path),
    }


def loading_alone(batches: Batches, seconds: float) -> float:
    """Windows a second when nothing is trained on them."""
    windows, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        windows += len(next(batches)["future_target"])
    return windows / (now - start)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """One training step, the same for all."""
    inputs = torch.cat((batch["past_target"], batch["past_covariates"]), dim=-1)
    loss = nn.functional.l1_loss(model(inputs), batch["future_target"][..., 0])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def digest(probe: Probe, path: Path) -> str:
    """A hash of 64 windows' content, to compare the ways by."""
    with pa.memory_map(str(path)) as source:
        rows = pa.ipc.open_file(source).get_batch(0).num_rows
    batch = probe(np.linspace(0, rows - LENGTH, 64).astype(np.int64))
    found = hashlib.sha256()
    for key in ("past_target", "past_covariates", "future_target"):
        found.update(f"{key}{tuple(batch[key].shape)}{batch[key].dtype}".encode())
        found.update(batch[key].contiguous().numpy().tobytes())
    return found.hexdigest()


def megabytes(process: int) -> float:
    """Memory of a process and its workers now (PSS: pages shared by n processes count 1/n each).

    Pages of a mapped file count while they are mapped in, though the kernel may take them back.
    """
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (OSError, ProcessLookupError):
        return 0.0  # It has just ended.
    own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return own + sum(megabytes(int(child)) for child in children)


def run_apart(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one way in a fresh process, and watches its memory from outside."""
    command = [sys.executable, __file__, "--way", way, "--out", str(options.out)]
    for name in ("rows", "columns", "batch-size", "seconds"):
        command += [f"--{name}", str(getattr(options, name.replace("-", "_")))]
    with tempfile.TemporaryFile("w+") as answer:
        process = subprocess.Popen(command, stdout=answer)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, megabytes(process.pid))
            time.sleep(0.05)
        if process.returncode:
            sys.exit(f"the way {way!r} failed")
        answer.seek(0)
        result: dict[str, Any] = json.loads(answer.read().splitlines()[-1])
    return {**result, "peak_megabytes": peak - result["megabytes_before"]}


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Generates the file, runs the ways in fresh processes, and asserts that contents agree.

    The ways take turns, round after round, so that a busy moment of the machine hits all of them;
    figures are medians of the rounds.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "wide.arrow"
    generate(path, options.rows, options.columns)
    rounds = [[run_apart(way, options) for way in WAYS] for _ in range(options.rounds)]
    path.unlink()
    digests = {result["digest"] for found in rounds for result in found}
    assert len(digests) == 1, "the ways differ in content"
    return [middle(turns) for turns in zip(*rounds, strict=True)]


def middle(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of every figure over the rounds of one way."""
    figures = {key for key, _, _ in CHARTS}
    medians = {key: statistics.median(turn[key] for turn in turns) for key in figures}
    return {"way": turns[0]["way"], **medians}


def show(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Prints the table."""
    from rich.console import Console
    from rich.table import Table

    size = options.rows * options.columns * 8 / 1e6
    table = Table(
        title=f"A generated file: {options.rows:,} rows × {options.columns} float64 columns, "
        f"{size:,.0f} MB, in the page cache. {USED} columns used, windows of {CONTEXT} + {HORIZON} "
        f"rows, batches of {options.batch_size}.",
        caption=f"Contents of all four compared: equal. Medians of {options.rounds} rounds. "
        "Memory beyond what the imports take.",
    )
    table.add_column("way")
    for name in ("loading\nwindows/s", "training\nwindows/s", "of it\nwaiting", "of it\nstepping"):
        table.add_column(name, justify="right")
    table.add_column("first\nbatch", justify="right")
    table.add_column("peak\nmemory", justify="right")
    for result in found:
        table.add_row(
            result["way"],
            f"{result['loading_alone']:,.0f}",
            f"{result['windows_per_second']:,.0f}",
            f"{result['waiting']:.0%}",
            f"{1 - result['waiting']:.0%}",
            f"{result['first_batch_seconds']:.2f} s",
            f"{result['peak_megabytes']:,.0f} MB",
        )
    Console().print(table)


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Draws the same as small bar charts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ways = [result["way"] for result in found][::-1]
    colours = ["#e4572e" if way == "windeck" else "#22304a" for way in ways]
    figure, axes = plt.subplots(1, len(CHARTS), figsize=(14, 2.6), sharey=True)
    for axis, (key, title, pattern) in zip(axes, CHARTS, strict=True):
        bars = axis.barh(ways, [result[key] for result in found][::-1], color=colours)
        axis.bar_label(bars, fmt=pattern, padding=4, fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.set_xticks([])
        axis.margins(x=0.3)
        axis.tick_params(length=0)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Compares the four ways, or runs one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2, help="training time of each way")
    parser.add_argument("--rounds", type=int, default=3, help="turns each way takes")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows < LENGTH or options.columns < USED:
        parser.error(f"expected at least {LENGTH} rows and {USED} columns")
    if options.way:
        path = options.out / "wide.arrow"
        result = run(options.way, path, options.columns, options.batch_size, options.seconds)
        print(json.dumps(result))
        return
    found = compare(options)
    show(found, options)
    plot(found, options.out / "four_ways.png")
    print(f"picture: {options.out / 'four_ways.png'}")


if __name__ == "__main__":
    main()
