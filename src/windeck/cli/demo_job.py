"""The demo's training: the choices (`Job`), the prepared data, a small model, and the loop.

``python -m windeck.cli.demo_job JOB.json --log FILE --state FILE [--resume]`` runs the loop in a
process of its own, which may be killed at any time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from windeck import Loader, Permutation, Scaler, Table, Windows
from windeck.cli.demo_data import timestamps
from windeck.io.conversion import is_categorical
from windeck.io.csv_options import CsvOptions
from windeck.io.data_files import resolve
from windeck.io.formats import open_file
from windeck.io.local_files import atomic_file, create_file
from windeck.io.options import ReadOptions
from windeck.io.reading import read_arrow

Batch = Mapping[str, Tensor]
Samples = npt.NDArray[np.int64]

#: Threads of torch: as many in every process, or sums would round differently.
THREADS = 1

#: Rows that at least one series must have.
SHORTEST = 24


@dataclass(frozen=True)
class Job:
    """Everything that decides what is trained on, and in which order; survives JSON.

    `csv` has options of CSV files, as `windeck.Table.read` takes them.
    """

    path: str
    time: tuple[str, ...]
    ids: tuple[str, ...]
    target: str
    context_length: int = 168
    prediction_length: int = 24
    batch_size: int = 256
    steps: int = 0
    save_every: int = 50
    seed: int = 0
    learning_rate: float = 1e-3
    csv: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the job as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "time": tuple(fields["time"]), "ids": tuple(fields["ids"])})


@dataclass(frozen=True)
class Data:
    """A table's windows, split by time and scaled by the statistics of the training part.

    The parts leave out series without a training window; `windows` are all of them, unscaled.
    """

    table: Table
    windows: Windows
    train: Windows
    validation: Windows
    test: Windows
    scaler: Scaler


def read_table(job: Job) -> Table:
    """Read the time, the ids and the target of a job's file, and no other column."""
    ids, stamp = list(job.ids) or None, job.time[0] if len(job.time) == 1 else None
    paths, csv = resolve(job.path), CsvOptions.from_arguments(**job.csv, time=stamp)
    kinds = open_file(paths[0], csv).schema
    if job.time and (stamp is None or is_categorical(kinds.field(stamp).type)):
        # Parts of a date, or text: put together here, and handed over as Arrow.
        names = dict.fromkeys((*job.ids, *job.time, job.target))
        arrow = read_arrow(paths, ReadOptions(tuple(names), csv=csv), None)
        stamps = timestamps(arrow, job.time)
        arrow = arrow.select([*job.ids, job.target]).append_column("time", [stamps])
        return Table.from_arrow(arrow, id_columns=ids, timestamp_column="time", sort=True)
    return Table.read(
        job.path,
        columns=[job.target],
        id_columns=ids,
        timestamp_column=stamp,
        sort=True,
        **job.csv,
    )


def fit_lengths(job: Job, table: Table) -> Job:
    """Return the job with context and horizon cut down to what the longest series can hold."""
    longest = int(np.diff(table.offsets).max())
    if longest < SHORTEST:
        raise ValueError(
            f"the longest series of {job.path} has {longest} rows; expected at least {SHORTEST}, "
            f"to have windows to train and to test on"
        )
    # A tenth of the series is for testing, and the horizon has to fit in there.
    horizon = min(job.prediction_length, longest // 10)
    context = min(job.context_length, longest // 2 - horizon)
    return replace(job, context_length=context, prediction_length=horizon)


def prepare(job: Job, table: Table | None = None) -> Data:
    """Cut the windows of a job, split them by time, and fit the scaler on the training part."""
    table = read_table(job) if table is None else table
    # A window may span breaks of 24 steps of the slowest series.
    gap, unit = 24 * int(table.report.steps.max(initial=0)), table.report.unit
    if gap and unit is not None:
        gap = cast(Any, np.array(gap, f"timedelta64[{unit}]")[()])
    with warnings.catch_warnings():
        # Series too short for a window are counted in the windows' report.
        warnings.filterwarnings("ignore", message=".*series are shorter", category=UserWarning)
        windows = Windows(
            table,
            context_length=job.context_length,
            prediction_length=job.prediction_length,
            target_columns=[job.target],
            max_missing=0.25,
            max_gap=gap or None,
            dtype="float32",
        )
    parts = tuple(windows.split(validation=0.1, test=0.1, by="time"))
    scaler = Scaler.fit(parts[0], per_series=table.num_series > 1, seed=job.seed)
    if table.num_series > 1:
        # Series without a value to train on have no scale.
        names = [table.series_names[n] for n in np.flatnonzero(scaler.counts.any(axis=1))]
        parts = tuple(part.subset(series=names) for part in parts)
    train, validation, test = (part.with_scaler(scaler) for part in parts)
    return Data(table, windows, train, validation, test, scaler)


def steps_per_epoch(job: Job, data: Data) -> int:
    """Return the batches of one epoch; the last one may be short."""
    return -(-len(data.train) // job.batch_size)


class Forecaster(nn.Module):
    """A small forecaster, so that there is something to train.

    A linear map from the context to the horizon (DLinear showed that it is hard to beat) and a
    narrow network beside it, both on a context that is normalised window by window.
    """

    def __init__(self, context_length: int, prediction_length: int, *, width: int = 96) -> None:
        super().__init__()
        self.linear = nn.Linear(context_length, prediction_length)
        self.network = nn.Sequential(
            nn.Linear(2 * context_length, width), nn.GELU(), nn.Linear(width, prediction_length)
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return (batch, horizon); missing values count as the mean of their window."""
        past, seen = batch["past_target"][..., 0], observed(batch, "past_target")
        count = seen.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (past * seen).sum(dim=1, keepdim=True) / count
        centred = (past - mean) * seen
        # The constant keeps flat windows flat.
        deviation = (centred.square().sum(dim=1, keepdim=True) / count + 1e-2).sqrt()
        level = centred / deviation
        ahead: Tensor = self.linear(level) + self.network(torch.cat((level, seen), dim=1))
        return ahead * deviation + mean


def build_model(context_length: int, prediction_length: int, *, seed: int) -> Forecaster:
    """Return a forecaster whose first weights depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Forecaster(context_length, prediction_length)


def observed(batch: Batch, key: str) -> Tensor:
    """Return 1.0 where values were observed; a batch without a mask has no missing ones."""
    mask, values = batch.get(f"{key}_mask"), batch[key][..., 0]
    return torch.ones_like(values) if mask is None else mask[..., 0].to(values.dtype)


def absolute_error(ahead: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of |forecast - truth| over the observed values, and their number."""
    seen = observed(batch, "future_target")
    return ((ahead - batch["future_target"][..., 0]).abs() * seen).sum(), seen.sum()


def training_step(model: Forecaster, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Take a step down the mean absolute error; return the loss before it, detached."""
    total, count = absolute_error(model(batch), batch)
    loss = total / count.clamp(min=1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def train(
    job: Job,
    data: Data,
    *,
    log: Path,
    state: Path | None = None,
    resume: bool = False,
    wait_at: int | None = None,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> Forecaster:
    """Train a model up to step `job.steps`, and log every sample before its step is taken.

    `log` gets (step, series, start row) of each sample, as int64; `state` gets the state every
    `job.save_every` steps and at the end, and `resume` goes on from it. At step `wait_at` the
    process waits to be killed. `report` is called every 20 steps and at the end.
    """
    model = build_model(job.context_length, job.prediction_length, seed=job.seed)
    # The plain, unfused update does the same arithmetic in the same order in every process.
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate, foreach=False)
    loader = Loader(data.train, batch_size=job.batch_size, shuffle=True, seed=job.seed)
    step = 0
    if resume and state is not None:
        saved = read_state(state)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    batches = endless(loader)
    log.unlink(missing_ok=True)
    with open(create_file(log), "wb", buffering=0) as lines:
        while step < job.steps:
            if step == wait_at:
                time.sleep(600)
            batch = next(batches)
            step += 1
            series, start = batch["series_id"].to(torch.int64), batch["start"]
            records = torch.stack((torch.full_like(start, step), series, start), dim=1)
            lines.write(records.numpy().tobytes())
            loss = training_step(model, optimizer, batch)
            if state is not None and (step % job.save_every == 0 or step == job.steps):
                content = {"step": step, "loader": loader.state_dict()}
                content |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                with atomic_file(state) as temporary:
                    torch.save(content, temporary)
            if step % 20 == 0 or step == job.steps:
                report(step, float(loss))
    return model


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of epoch after epoch; a `for` over a loader runs to its epoch's end."""
    while True:
        yield from batches


def read_state(path: Path) -> dict[str, Any]:
    """Return a saved state: tensors and plain values only."""
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def read_log(path: Path) -> Samples:
    """Return the samples of a log, (samples, 3): step, series and start row."""
    # A kill may cut the last line short.
    rows = path.stat().st_size // 24 if path.exists() else 0
    return np.memmap(path, np.int64, "r", shape=(rows, 3)) if rows else np.empty((0, 3), np.int64)


def last_step(path: Path) -> int:
    """Return the last step in a log; 0 if there is none."""
    samples = read_log(path)
    return int(samples[-1, 0]) if len(samples) else 0


def expected_samples(windows: Windows, *, batch_size: int, seed: int, steps: int) -> Samples:
    """Return what steps 1 to `steps` must serve, (samples, 3), computed without a loader.

    Epoch e serves ``Permutation(len(windows), seed=seed, epoch=e)``; its last batch may be short.
    """
    per_epoch = -(-len(windows) // batch_size)
    parts = []
    for epoch in range(-(-steps // per_epoch)):
        batches = min(per_epoch, steps - epoch * per_epoch)
        order = Permutation(len(windows), seed=seed, epoch=epoch)[: batches * batch_size]
        step = 1 + epoch * per_epoch + np.arange(len(order)) // batch_size
        parts.append(np.stack((step, *windows.locate(order)), axis=1))
    return np.concatenate(parts)


def compare_runs(
    expected: Samples,
    *,
    uninterrupted: Samples,
    killed: Samples,
    resumed: Samples,
    resumed_from: int,
    weights: Mapping[str, Tensor],
    resumed_weights: Mapping[str, Tensor],
) -> dict[str, bool]:
    """Return the claims about a killed and resumed run, and whether each is true.

    Samples are as in a log. What the killed process did after step `resumed_from` was done again.
    """
    together = np.concatenate((killed[killed[:, 0] <= resumed_from], resumed))
    windows, counts = np.unique(together[:, 1:], axis=0, return_counts=True)
    served = len(windows) and counts.max() - counts.min() <= 1 and len(together) == len(expected)
    return {
        "the same samples as the uninterrupted run": np.array_equal(together, uninterrupted),
        "the samples computed from the permutation alone, without a loader": (
            np.array_equal(together, expected) and np.array_equal(killed, expected[: len(killed)])
        ),
        "every window once per epoch: none lost, none repeated": bool(served),
        "the same final weights as the uninterrupted run, bit for bit": all(
            torch.equal(tensor, resumed_weights[name]) for name, tensor in weights.items()
        ),
    }


@contextmanager
def child_process(command: Sequence[str], errors: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command whose standard error goes to a file; it ends with the block."""
    errors.unlink(missing_ok=True)
    with open(create_file(errors), "wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Train a job from a JSON file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--wait-at", type=int)
    options = vars(parser.parse_args())
    job = Job.from_json(options.pop("job").read_text())
    torch.set_num_threads(THREADS)
    train(job, prepare(job), **options)


if __name__ == "__main__":
    main()
