"""Forecast hourly series, from a file to a picture: train, be killed, resume, backtest, predict.

    python examples/rolling_forecast.py [FILE] [--out out/rolling]

FILE is a Parquet file with hourly temperatures of one city, columns timestamp and temp; without it
loads of four sites are generated. A linear model of the past and of the calendar of the future is
trained until its error in validation no longer falls. It is killed after two checkpoints and goes
on from the last one. The best checkpoint is evaluated at several origins, against a repetition of
the last day, and predicts the day after the end of the data.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor

import windeck as wd
from windeck import checkpoint

DAY = 24
CALENDAR = ["hour_sin", "hour_cos", "weekday_sin", "weekday_cos"]
#: Steps from one validation, and checkpoint, to the next, and those without progress at the end.
EVERY, PATIENCE = 100, 4

Batch = dict[str, Tensor]


def loads(sites: int = 4, days: int = 120) -> wd.Table:
    """Return hourly loads of some sites, with a daily and a weekly cycle, and their calendar."""
    rng = np.random.default_rng(0)
    stamps = np.datetime64("2024-01-01", "us") + np.arange(days * DAY) * np.timedelta64(1, "h")
    hour, weekday = np.arange(days * DAY) % DAY, np.arange(days * DAY) // DAY % 7
    cycle = np.sin(2 * np.pi * hour / DAY) - 0.8 * (weekday >= 5)
    columns = {
        "load": np.concatenate([cycle + rng.normal(0, 0.2, len(cycle)) for _ in range(sites)]),
        "time": np.tile(stamps, sites),
        "site": np.repeat([f"site {i}" for i in range(sites)], len(stamps)),
    }
    table = wd.Table.from_columns(columns, timestamp_column="time", id_columns="site")
    return table.with_calendar(["hour", "weekday"])


def temperatures(path: Path) -> wd.Table:
    """Read the temperatures of a city, with their calendar."""
    table = wd.Table.read(path, columns="temp", timestamp_column="timestamp")
    return table.with_calendar(["hour", "weekday"])


def windows_of(table: wd.Table) -> wd.Windows:
    """Return windows of two days and the day after, scaled by the rows of training."""
    windows = wd.Windows(
        table,
        context_length=2 * DAY,
        prediction_length=DAY,
        target_columns=table.column_names[0],
        known_covariates=CALENDAR,
        max_missing=0.2,
        dtype="float32",
    )
    scaler = wd.Scaler.fit(windows.split().train, columns=table.column_names[0])
    return windows.with_scaler(scaler)


class Forecaster(torch.nn.Linear):
    """A linear map of the past and of the calendar of the future to the future."""

    def __init__(self) -> None:
        super().__init__(2 * DAY + len(CALENDAR) * DAY, DAY)

    def forward(self, batch: Batch) -> Tensor:
        parts = [batch[key].flatten(1) for key in ("past_target", "future_known")]
        return super().forward(torch.cat(parts, dim=1)).unsqueeze(-1)


def loss_of(model: Forecaster, batch: Batch) -> Tensor:
    """Return the mean squared error of the values that are not missing."""
    error = (model(batch) - batch["future_target"]) * batch["future_target_mask"]
    return error.square().sum() / batch["future_target_mask"].sum().clamp(min=1)


def train(url: str, windows: wd.Windows, report: Callable[[str], object] = print) -> None:
    """Train from the last checkpoint on, until validation is no better for `PATIENCE` of them."""
    torch.manual_seed(0)
    model, split = Forecaster(), windows.split()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = wd.Loader(split.train, batch_size=256, shuffle=True, seed=7)
    validating = wd.Loader(split.validation, batch_size=1024, restart=True)
    step, best, waited = 0, float("inf"), 0
    with checkpoint.stores.open_store(url) as store:
        if checkpoint.log(store):
            found = checkpoint.load(store, model=model, optimizer=optimizer, loader=loader)
            step, best, waited = found.step, found.extra["best"], found.extra["waited"]
            report(f"resumed at step {step}")
        while waited < PATIENCE:
            for batch in loader:
                loss = loss_of(model, batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % EVERY:
                    continue
                with torch.no_grad():
                    error = sum(loss_of(model, held).item() for held in validating)
                error /= len(validating)
                waited = 0 if error < best else waited + 1
                best = min(best, error)
                checkpoint.save(
                    store, step=step, model=model, optimizer=optimizer, loader=loader, keep=1,
                    extra={"best": best, "waited": waited}, tag=None if waited else "best",
                )  # fmt: skip
                report(f"step {step}: validation {error:.4f}{'' if waited else ', the best'}")
                if waited == PATIENCE:
                    break


def kill_once(arguments: Sequence[str]) -> None:
    """Train in another process, and kill it after its second checkpoint."""
    command = [sys.executable, __file__, *arguments, "--train-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            print(process.stdout.readline(), end="")
        process.kill()
    print("killed")


def predict(model: Forecaster, windows: wd.Windows) -> tuple[pa.Table, pa.Table]:
    """Return the predictions of windows by a model, and by a repetition of the last day."""
    batch = next(iter(wd.Loader(windows, batch_size=len(windows))))
    with torch.no_grad():
        pair = model(batch), batch["past_target"][:, -DAY:]
    found = [windows.prediction_table(one, scaled=True, cutoff=True) for one in pair]
    return found[0], found[1]


def backtest(model: Forecaster, windows: wd.Windows, k: int = 3) -> pl.DataFrame:
    """Return the forecasts of the last k weeks, with the rival's and with what happened.

    The weeks are in the test part of `train`, which the model has not seen.
    """
    target, parts = windows.roles.target[0], []
    for fold in windows.folds(k, test_rows=7 * DAY):
        tables = [pl.DataFrame(one) for one in predict(model, fold.test)]
        rival = tables[1][target].alias("last_day")
        parts.append(tables[0].rename({target: "model"}).with_columns(rival, fold=len(parts) + 1))
    actual = windows.table.to_polars().drop(CALENDAR)
    index = [name for name in actual.columns if name != target]
    return pl.concat(parts).join(actual, on=index)


def errors(forecasts: pl.DataFrame, target: str) -> pl.DataFrame:
    """Return the mean absolute errors of the model and of the rival in each fold."""
    means = [(pl.col(name) - pl.col(target)).abs().mean() for name in ("model", "last_day")]
    return forecasts.group_by("fold").agg(means).sort("fold")


def draw(table: wd.Table, forecast: pa.Table, path: Path) -> None:
    """Draw the last week of the first series, and its forecast."""
    from matplotlib.figure import Figure

    target, time = forecast.column_names[-1], forecast.column_names[-3]
    past = table.to_polars()[int(table.offsets[1]) - 7 * DAY : int(table.offsets[1])]
    axes = Figure(figsize=(9, 3), layout="constrained").subplots()
    axes.plot(past[time], past[target], label=target)
    axes.plot(forecast[time].to_numpy()[:DAY], forecast[target].to_numpy()[:DAY], label="forecast")
    axes.legend()
    axes.figure.savefig(path)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("out/rolling"))
    parser.add_argument("--train-only", action="store_true")
    options = parser.parse_args(arguments)
    table = loads() if options.file is None else temperatures(options.file)
    windows, url = windows_of(table), f"rocksdb://{options.out.resolve()}/store"
    if options.train_only:
        train(url, windows, lambda line: print(line, flush=True))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if any(options.out.iterdir()):
        sys.exit(f"{options.out} is not empty, expected a new folder or an empty one")
    kill_once(arguments)
    train(url, windows)
    model = Forecaster()
    print(f"best: step {checkpoint.load(url, model=model, generation='best').step}")
    for fold, error, rival in errors(backtest(model, windows), windows.roles.target[0]).rows():
        print(f"fold {fold}: mean absolute error {error:.3f}, last day repeated {rival:.3f}")
    forecast, _ = predict(model, windows.latest(future=True))
    parquet.write_table(forecast, options.out / "forecast.parquet")
    draw(table, forecast, options.out / "forecast.png")
    print(forecast.slice(0, 3).to_pylist())


if __name__ == "__main__":
    main(sys.argv[1:])
