"""The steps of ``windeck demo``, each with its lines on the terminal."""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from windeck import Loader
from windeck.cli import demo_job
from windeck.cli.demo_data import infer_columns, write_load_curve
from windeck.cli.demo_job import Batch, Data, Forecaster, Job
from windeck.cli.output import colored, print_lines
from windeck.cli.parser import csv_arguments
from windeck.io.local_files import atomic_file, write_pieces

#: Column in which the text of a line begins.
INDENT = 12


class Page:
    """The demo's output: numbered steps, lines below them, progress on a terminal."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.width = max(60, shutil.get_terminal_size().columns) if self.terminal else 100
        self.steps = 0

    def step(self, name: str, text: str) -> None:
        """Print the numbered line that begins a step."""
        self.steps += 1
        self._print(f"{self.steps} {name}", text, "cyan")

    def line(self, name: str, text: str) -> None:
        """Print a line of a step."""
        self._print(f"  {name}", text, "dim")

    def note(self, text: str) -> None:
        """Print what a reader should know before trusting the rest."""
        self._print("  note", text, "yellow")

    def check(self, holds: bool, text: str) -> None:
        """Print a claim, with a mark for whether it is true."""
        self._print("  " + "✘✔"[holds], text, "green" if holds else "red")

    def progress(self, step: int, total: int) -> None:
        """Show how far a training is; the next line replaces it."""
        if self.terminal:
            done = 40 * step // total
            text = f"{'━' * done}{'╌' * (40 - done)} {step:,} of {total:,}"
            print(f"\r\x1b[K{' ' * INDENT}{text}", end="", flush=True)

    def _print(self, head: str, text: str, style: str) -> None:
        if self.terminal:
            print("\r\x1b[K", end="")
        first, *more = textwrap.wrap(text, self.width - INDENT) or [""]
        head = colored(head.ljust(INDENT - 1), style)
        print_lines(f"{head} {first}", *(" " * INDENT + line for line in more))
        sys.stdout.flush()


def run_steps(options: argparse.Namespace) -> None:
    """Run the whole demo; RuntimeError if a claim about the resumed run is not true."""
    began = time.perf_counter()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    page = Page()
    print("windeck demo: train, kill, resume, and check that nothing was lost\n")
    job, data = prepare(options, page)
    log = out / "uninterrupted.samples"
    log.unlink(missing_ok=True)
    torch.set_num_threads(demo_job.THREADS)
    epochs = job.steps / demo_job.steps_per_epoch(job, data)
    page.step("Train", f"{epochs:.3g} epochs, {job.steps:,} batches of {job.batch_size:,} windows")
    losses: list[float] = []

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        page.progress(step, job.steps)

    start = time.perf_counter()
    model = demo_job.train(job, data, log=log, report=report)
    speed = len(demo_job.read_log(log)) / (time.perf_counter() - start)
    page.line("", f"{speed:,.0f} windows/s · loss {losses[0]:.3f}, in the end {losses[-1]:.3f}")
    claims = kill_and_resume(job, data, model, page, out)
    for claim, holds in claims.items():
        page.check(holds, claim)
    measure_speed(job, data, options.race_seconds, page)
    forecast(job, data, model, page, out / "forecast.png")
    print(f"\ndone in {time.perf_counter() - began:.0f} s")
    if not all(claims.values()):
        raise RuntimeError("the resumed run is not the uninterrupted one")


def prepare(options: argparse.Namespace, page: Page) -> tuple[Job, Data]:
    """Print steps 1 and 2: the columns of the file, and its windows."""
    if options.file is None:
        path = write_load_curve(options.out / "load-curve.parquet", seed=options.seed)
        page.step("Data", "a synthetic load curve: nothing in it was measured")
        page.line("file", str(path))
    else:
        path = options.file
        page.step("Data", path)
    ids = None if options.ids is None else tuple(name for name in options.ids if name)
    csv = csv_arguments(options)
    columns = infer_columns(path, time=options.time, ids=ids, target=options.target, csv=csv)
    asked = Job(
        columns.path, columns.time, columns.ids, columns.target,
        options.context, options.horizon, options.batch_size, seed=options.seed, csv=csv,
    )  # fmt: skip
    table = demo_job.read_table(asked)
    page.line("", table.explain().splitlines()[0])
    step = table.step
    if isinstance(step, np.timedelta64):
        step = step.astype("timedelta64[us]").item()  # prints as 1:00:00 or as 7 days, 0:00:00
    page.line("time", f"{' + '.join(columns.time) or 'none'} · {columns.why['time']} · step {step}")
    named = f", named by {' + '.join(columns.ids)}" if columns.ids else ""
    page.line("series", f"{table.num_series:,}{named} · {columns.why['ids']}")
    missing = (table.column(columns.target).missing or 0) / table.num_rows
    share = f"{missing:.1%} missing" if missing else "none missing"
    page.line("target", f"{columns.target} · {columns.why['target']} · {share}")
    for note in table.report.lines():
        page.note(note)
    job = demo_job.fit_lengths(asked, table)
    data = demo_job.prepare(job, table)
    # At least four batches an epoch where windows suffice, so that a kill has a middle.
    job = replace(job, batch_size=max(1, min(job.batch_size, len(data.train) // 4)))
    per_epoch = demo_job.steps_per_epoch(job, data)
    steps = options.steps or max(2, min(3 * per_epoch, 3500))
    job = replace(job, steps=steps, save_every=max(1, min(50, steps // 8)))
    page.step("Windows", f"{job.context_length} steps in, {job.prediction_length} out")
    if job.context_length + job.prediction_length < options.context + options.horizon:
        page.note(
            f"{options.context} + {options.horizon} steps do not fit series of at most "
            f"{int(np.diff(table.offsets).max())} rows: cut down"
        )
    for line in str(data.windows.explain()).splitlines():
        page.line("", line.strip())
    page.line(
        "split",
        f"{len(data.train):,} to train · {len(data.validation):,} to validate · "
        f"{len(data.test):,} to test, by time",
    )
    used = np.count_nonzero(data.scaler.counts.any(axis=1))
    if used < table.num_series:
        page.note(f"{table.num_series - used:,} series without windows to train on are left out")
    page.line("scale", "mean and deviation of each series, from the training part only")
    return job, data


def kill_and_resume(
    job: Job, data: Data, model: Forecaster, page: Page, out: Path
) -> dict[str, bool]:
    """Do steps 4 to 6: SIGKILL in the middle of an epoch, a new process, and a comparison."""
    killed, resumed, state = (
        out / name for name in ("killed.samples", "resumed.samples", "state.pt")
    )
    for file in (killed, resumed, state):
        file.unlink(missing_ok=True)
    write_pieces(out / "job.json", [job.to_json().encode()])
    command = [sys.executable, "-m", "windeck.cli.demo_job", str(out / "job.json")]
    command += ["--state", str(state)]
    errors = out / "errors.txt"
    page.step("Kill", "the same training in a process of its own")
    # The process waits before its last step, so that a slow killer still finds it.
    victim = [*command, "--log", str(killed), "--wait-at", str(job.steps - 1)]
    with demo_job.child_process(victim, errors) as process:
        while demo_job.last_step(killed) < max(1, round(0.57 * job.steps)) or not state.exists():
            if process.poll() is not None:
                raise RuntimeError(_failure(errors))
            page.progress(demo_job.last_step(killed), job.steps)
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    last, saved = demo_job.last_step(killed), demo_job.read_state(state)
    per_epoch = demo_job.steps_per_epoch(job, data)
    epoch, batch = divmod(last - 1, per_epoch)
    page.line(
        "",
        f"SIGKILL after batch {batch + 1:,} of {per_epoch:,} in epoch {epoch + 1} · "
        f"last saved {last - saved['step']:,} batches before",
    )
    page.step("Resume", f"a new process, from one saved integer: {saved['loader']['position']:,}")
    with demo_job.child_process([*command, "--log", str(resumed), "--resume"], errors) as process:
        while process.poll() is None:
            page.progress(max(demo_job.last_step(resumed), saved["step"]), job.steps)
            time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(_failure(errors))
    samples = len(demo_job.read_log(out / "uninterrupted.samples"))
    page.step("Check", f"killed and resumed processes, {samples:,} samples in order, served")
    return demo_job.compare_runs(
        demo_job.expected_samples(
            data.train, batch_size=job.batch_size, seed=job.seed, steps=job.steps
        ),
        uninterrupted=demo_job.read_log(out / "uninterrupted.samples"),
        killed=demo_job.read_log(killed),
        resumed=demo_job.read_log(resumed),
        resumed_from=saved["step"],
        weights=model.state_dict(),
        resumed_weights=demo_job.read_state(state)["model"],
    )


def _failure(errors: Path) -> str:
    lines = errors.read_text(errors="replace").strip().splitlines() or ["no error message"]
    return f"the training process failed: {lines[-1]}"


class PerSampleDataset(Dataset[dict[str, Tensor]]):
    """The usual way: cut, mask and scale one window at a time, out of an array in memory."""

    def __init__(self, job: Job, data: Data) -> None:
        self.values, self.scale, self.shift = _values_and_scaling(job, data)
        count = min(len(data.train), 1_000_000)  # listed at 16 bytes each
        self.series, self.starts = data.train.locate(np.arange(count))
        self.context, self.length = job.context_length, job.context_length + job.prediction_length

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


def measure_speed(job: Job, data: Data, seconds: float, page: Page) -> None:
    """Step 7: windows per second of two loaders, after asserting that their batches are equal."""
    usual = PerSampleDataset(job, data)
    chosen = np.linspace(0, len(usual) - 1, min(64, len(usual))).astype(np.int64)
    at_once = data.train.gather(chosen)
    for key, expected in default_collate([usual[int(index)] for index in chosen]).items():
        found = torch.from_numpy(at_once[key]) if key in at_once else torch.ones_like(expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    page.step("Speed", "loading alone: the same windows, shuffled; batches compared, and equal")
    theirs = demo_job.endless(
        DataLoader(usual, job.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    )
    ours = demo_job.endless(
        Loader(data.train, batch_size=job.batch_size, shuffle=True, seed=job.seed)
    )
    rates = [(_rate(ours, seconds / 3), _rate(theirs, seconds / 3)) for _ in range(3)]
    fast, slow = (statistics.median(side) for side in zip(*rates, strict=True))
    page.line("windeck", f"{fast:11,.0f} windows/s · {fast / slow:,.0f} times as many")
    page.line("usual", f"{slow:11,.0f} windows/s · Dataset + DataLoader(num_workers=2)")


def _rate(batches: Iterator[Batch], seconds: float) -> float:
    """Return windows per second, without start-up and without what was made ahead before."""
    for _ in range(4):
        next(batches)
    windows, began = 0, time.perf_counter()
    while True:
        windows += len(next(batches)["past_target"])
        if (now := time.perf_counter()) - began >= seconds:
            return windows / (now - began)


def _values_and_scaling(job: Job, data: Data) -> tuple[npt.NDArray[np.float32], ...]:
    """Return the target with NaN where missing, and each series' scale and shift."""
    column = data.table.column(job.target)
    values = column.values.astype(np.float32)
    values[~column.observed()] = np.nan
    shape = (data.table.num_series,)
    factors = (data.scaler.scale[:, 0], data.scaler.shift[:, 0])
    return values, *(np.broadcast_to(factor, shape).astype(np.float32) for factor in factors)


def forecast(job: Job, data: Data, model: Forecaster, page: Page, path: Path) -> None:
    """Step 8: the error on windows that training never saw, and a picture of some of them."""
    chosen = np.linspace(0, len(data.test) - 1, min(100_000, len(data.test))).astype(np.int64)
    step, season, name = data.table.step, None, "the last value seen"
    if isinstance(step, np.timedelta64):
        lag, rest = divmod(np.timedelta64(1, "D"), step)
        if not rest and 2 <= lag <= job.context_length:
            season, name = int(lag), "the value a day before"
    totals = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for indices in np.split(chosen, range(1024, len(chosen), 1024)):
            batch = _test_batch(data, indices)
            ours, count = demo_job.absolute_error(model(batch), batch)
            naive, _ = demo_job.absolute_error(naive_forecast(batch, season), batch)
            totals += torch.stack((ours, naive, count)).double()
    error, naive_error = (totals[:2] / totals[2].clamp(min=1)).tolist()
    page.step("Forecast", f"mean absolute error on {len(chosen):,} test windows")
    change = 1 - error / naive_error if naive_error else 0.0
    verdict = f"{abs(change):.0%} {'better' if change >= 0 else 'worse'} than the naive forecast"
    page.line("model", f"{error:.3f} standard deviations · {verdict}")
    page.line("naive", f"{naive_error:.3f} standard deviations · {name}")
    try:
        draw(path, job, data, model)
    except ImportError:
        page.note("no picture without matplotlib: pip install 'windeck[cli]'")
    else:
        page.line("picture", str(path))


def naive_forecast(batch: Batch, season: int | None) -> Tensor:
    """Return the values one season before, or the last one seen (0, the mean, without any)."""
    past, seen = batch["past_target"][..., 0], demo_job.observed(batch, "past_target").bool()
    last = (torch.arange(past.shape[1]) * seen).amax(dim=1, keepdim=True)
    value = torch.where(seen.any(dim=1, keepdim=True), past.gather(1, last), 0.0)
    steps = torch.arange(batch["future_target"].shape[1])
    if season is None:
        return value.expand(-1, len(steps))
    columns = past.shape[1] - season + steps % season
    return torch.where(seen[:, columns], past[:, columns], value)


def draw(path: Path, job: Job, data: Data, model: Forecaster) -> None:
    """Write a PNG: test data of up to three series, and forecasts laid end to end on them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    values, scale, shift = _values_and_scaling(job, data)
    stamps = data.table.timestamps
    times: npt.NDArray[Any] = np.arange(data.table.num_rows) if stamps is None else stamps
    begins, ends, present = data.test.covered_rows()
    panels = np.linspace(0, len(present) - 1, min(3, len(present))).astype(np.int64)
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(11, 2.5 * len(panels) + 0.9), squeeze=False
    )
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        series = int(present[panel])
        rows = np.arange(begins[panel], min(ends[panel], begins[panel] + 100_000))
        numbers = data.test.index_of(series, rows)
        # The first row with a window, and from there one horizon at a time.
        numbers = numbers[int(np.argmax(numbers >= 0)) :: job.prediction_length][:7]
        if not len(numbers := numbers[numbers >= 0]):
            continue
        batch = _test_batch(data, numbers)
        with torch.no_grad():
            ahead = (model(batch).numpy() - shift[series]) / scale[series]
        firsts = batch["start"].numpy() + job.context_length
        begin = max(data.table.offsets[series], firsts[0] - 2 * job.prediction_length)
        shown = slice(begin, firsts[-1] + job.prediction_length)
        axis.plot(times[shown], values[shown], color="#22304a", lw=1.1, label="truth")
        for number, (first, forecasts) in enumerate(zip(firsts, ahead, strict=True)):
            when = times[first : first + len(forecasts)]
            label = None if number else "forecast"
            axis.plot(when, forecasts, color="#e4572e", lw=1.6, label=label)
        names = data.table.series_names
        axis.set_title(str(names[series]) if len(names) else "", loc="left", fontsize=10)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="upper right")
    figure.suptitle(f"{job.target}: forecasts of windows that training never saw")
    figure.tight_layout()
    with atomic_file(path) as part:
        figure.savefig(part, dpi=110, format="png")
    plt.close(figure)


def _test_batch(data: Data, indices: npt.NDArray[np.int64]) -> Batch:
    return {key: torch.from_numpy(value) for key, value in data.test.gather(indices).items()}
