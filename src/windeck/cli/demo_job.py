"""The demo's training: its choices and windows, a loop that may be killed, and the check."""

from __future__ import annotations

import multiprocessing
import signal
import time
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from windeck import Loader, Permutation, Scaler, Table, Windows
from windeck.cli.column_roles import Columns, timestamps
from windeck.io.conversion import is_categorical
from windeck.io.csv_options import CsvOptions
from windeck.io.data_files import resolve
from windeck.io.formats import open_file
from windeck.io.local_files import atomic_file, create_file, temporary_target
from windeck.io.options import ReadOptions
from windeck.io.reading import read_arrow

Samples = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """Everything that decides what is trained on, and in which order.

    `csv` has options of CSV files, as `windeck.Table.read` takes them.
    """

    columns: Columns
    context_length: int = 168
    prediction_length: int = 24
    batch_size: int = 256
    steps: int = 0
    save_every: int = 50
    seed: int = 0
    csv: dict[str, Any] = field(default_factory=dict)


def read_table(job: Job) -> Table:
    """Read the time, the ids and the target of a job's file, and no other column."""
    found, ids = job.columns, list(job.columns.ids) or None
    stamp = found.time[0] if len(found.time) == 1 else None
    paths, csv = resolve(found.path), CsvOptions.from_arguments(**job.csv, time=stamp)
    kinds = open_file(paths[0], csv).schema
    if found.time and (stamp is None or is_categorical(kinds.field(stamp).type)):
        # Parts of a date, or text: put together here, and handed over as Arrow.
        names = dict.fromkeys((*found.ids, *found.time, found.target))
        arrow = read_arrow(paths, ReadOptions(tuple(names), csv=csv), None)
        stamps = timestamps(arrow, found.time)
        arrow = arrow.select([*found.ids, found.target]).append_column("time", [stamps])
        return Table.from_arrow(arrow, id_columns=ids, timestamp_column="time", sort=True)
    options: dict[str, Any] = {"id_columns": ids, "timestamp_column": stamp, **job.csv}
    return Table.read(found.path, columns=[found.target], sort=True, **options)


def fit_lengths(job: Job, table: Table) -> Job:
    """Return the job with context and horizon cut down to what the longest series can hold."""
    longest = int(np.diff(table.offsets).max())
    if longest < 24:
        raise ValueError(
            f"the longest series of {job.columns.path} has {longest} rows; expected at least 24, "
            "to have windows to train on"
        )
    horizon = min(job.prediction_length, longest // 10)
    context = min(job.context_length, longest // 2 - horizon)
    return replace(job, context_length=context, prediction_length=horizon)


def training_windows(job: Job, table: Table) -> Windows:
    """Return the windows of the first 80 % of the time, scaled by their mean and deviation."""
    windows = Windows(
        table,
        context_length=job.context_length,
        prediction_length=job.prediction_length,
        target_columns=[job.columns.target],
        max_missing=0.25,
        dtype="float32",
    )
    train = windows.split(validation=0.1, test=0.1, by="time").train
    return train.with_scaler(Scaler.fit(train, seed=job.seed))


def training_step(model: nn.Module, optimizer: Optimizer, batch: dict[str, Tensor]) -> float:
    """Take a step down the mean absolute error of the observed values; return it."""
    errors = (model(batch["past_target"][..., 0]) - batch["future_target"][..., 0]).abs()
    if "future_target_mask" in batch:
        errors = errors[batch["future_target_mask"][..., 0]]
    loss = errors.sum() / max(1, errors.numel())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def train(
    job: Job,
    windows: Windows | None = None,
    *,
    log: Path,
    state: Path | None = None,
    resume: bool = False,
    wait_at: int | None = None,
) -> tuple[dict[str, Tensor], list[float]]:
    """Train a model up to step `job.steps`; return its weights and the losses.

    Without `windows` the file of the job is read.
    `log` gets (step, series, start row) of each sample, as int64, before its step is taken; `state`
    gets the state every `job.save_every` steps and at the end, and `resume` goes on from it. At
    step `wait_at` the process waits to be killed.
    """
    if windows is None:
        windows = training_windows(job, read_table(job))
    torch.set_num_threads(1)  # as many in every process, or sums would round differently
    torch.manual_seed(job.seed)
    model = nn.Linear(job.context_length, job.prediction_length)
    # The plain, unfused update does the same arithmetic in the same order in every process.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    loader = Loader(windows, batch_size=job.batch_size, shuffle=True, seed=job.seed)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    if resume and state is not None:
        for name, saved in torch.load(state, weights_only=True).items():
            parts[name].load_state_dict(saved)
    batches, losses = chain.from_iterable(repeat(loader)), list[float]()  # epoch after epoch
    log.unlink(missing_ok=True)
    with open(create_file(log), "wb", buffering=0) as lines:
        while loader.step < job.steps:
            if loader.step == wait_at:
                time.sleep(600)
            batch, step = next(batches), loader.step
            where = torch.stack((batch["series_id"].to(torch.int64), batch["start"]), dim=1)
            lines.write(nn.functional.pad(where, (1, 0), value=step).numpy().tobytes())
            losses.append(training_step(model, optimizer, batch))
            if state is not None and (step % job.save_every == 0 or step == job.steps):
                with atomic_file(state) as temporary:
                    torch.save({name: part.state_dict() for name, part in parts.items()}, temporary)
    return model.state_dict(), losses


def train_in_process(job: Job, log: Path, state: Path, kill_at: int | None = None) -> None:
    """Train in a new process: begin and kill it at a step, or resume it."""
    # It waits before its last step, so that a slow killer still finds it.
    options = {"resume": True} if kill_at is None else {"wait_at": job.steps - 1}
    arguments = {"log": log, "state": state, **options}
    _remove_temporary_files(state)
    process = multiprocessing.get_context("spawn").Process(
        target=_train_until_killed, args=(job, arguments)
    )
    process.start()
    try:
        while process.is_alive() and (
            kill_at is None or last_step(log) < kill_at or not state.exists()
        ):
            process.join(0.02)
        if process.exitcode:
            raise RuntimeError(f"the training process failed with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        _remove_temporary_files(state)


def _train_until_killed(job: Job, options: dict[str, Any]) -> None:
    """Train in a process that a Ctrl-C at the terminal leaves to its parent, which kills it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    train(job, **options)


def _remove_temporary_files(path: Path) -> None:
    """Remove what processes that were killed while they wrote a file left next to it."""
    for other in path.parent.iterdir():
        if temporary_target(other.name) == path.name:
            other.unlink(missing_ok=True)


def read_log(path: Path) -> Samples:
    """Return the samples of a log, (samples, 3): step, series and start row."""
    rows = path.stat().st_size // 24 if path.exists() else 0  # a kill may cut the last one short
    return np.memmap(path, np.int64, "r", shape=(rows, 3)) if rows else np.empty((0, 3), np.int64)


def last_step(path: Path) -> int:
    """Return the last step in a log; 0 if there is none."""
    samples = read_log(path)
    return int(samples[-1, 0]) if len(samples) else 0


def expected_samples(windows: Windows, *, batch_size: int, seed: int, steps: int) -> Samples:
    """Return what steps 1 to `steps` must serve, (samples, 3), computed without a loader.

    Epoch e serves ``Permutation(len(windows), seed=seed, epoch=e)``; its last batch may be short.
    """
    per_epoch, parts = -(-len(windows) // batch_size), []
    for first in range(0, steps, per_epoch):
        order = Permutation(len(windows), seed=seed, epoch=first // per_epoch)
        served = order[: (steps - first) * batch_size]
        step = 1 + first + np.arange(len(served)) // batch_size
        parts.append(np.stack((step, *windows.locate(served)), axis=1))
    return np.concatenate(parts)


def compare_runs(
    expected: Samples,
    uninterrupted: Samples,
    killed: Samples,
    resumed: Samples,
    *,
    resumed_from: int,
    weights: dict[str, Tensor],
    resumed_weights: dict[str, Tensor],
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
