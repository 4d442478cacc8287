"""Forecast hourly loads: evaluate a model at three origins, then predict behind the end.

    python examples/rolling_forecast.py

Data are generated. The model is a ridge regression of the future on the past and on the calendar of
the future, fitted for each fold on all windows of training; the rival repeats the last day.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import windeck as wd

DAY = 24
CALENDAR = ["hour_sin", "hour_cos", "weekday_sin", "weekday_cos"]


def loads(sites: int = 4, days: int = 120) -> wd.Table:
    """Return hourly loads of some sites, with a daily and a weekly cycle, and their calendar."""
    rng = np.random.default_rng(0)
    stamps = np.datetime64("2024-01-01", "h") + np.arange(days * DAY)
    hour, weekday = np.arange(days * DAY) % DAY, np.arange(days * DAY) // DAY % 7
    cycle = np.sin(2 * np.pi * hour / DAY) - 0.8 * (weekday >= 5)
    columns = {
        "load": np.concatenate([cycle + rng.normal(0, 0.2, len(cycle)) for _ in range(sites)]),
        "time": np.tile(stamps, sites),
        "site": np.repeat([f"site {i}" for i in range(sites)], len(stamps)),
    }
    table = wd.Table.from_columns(columns, timestamp_column="time", id_columns="site")
    return table.with_calendar(["hour", "weekday"]).with_missing_counts()


def inputs(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return past loads, the future calendar and 1 in one row for each window."""
    count = len(batch["start"])
    parts = [batch["past_target"], batch["future_known"]]
    return np.concatenate([*(part.reshape(count, -1) for part in parts), np.ones((count, 1))], 1)


def fit(train: wd.Windows) -> np.ndarray:
    """Return the weights of a ridge regression on all windows."""
    batch = train.gather(np.arange(len(train)))
    x, y = inputs(batch), batch["future_target"][:, :, 0]
    return np.linalg.solve(x.T @ x + 10 * np.eye(x.shape[1]), x.T @ y)


def evaluate(windows: wd.Windows) -> list[tuple[float, float]]:
    """Return the mean absolute errors of the model and of the rival in each fold."""
    errors = []
    for train, _, test in windows.folds(3, test_rows=7 * DAY):
        batch = test.gather(np.arange(len(test)))
        truth = batch["future_target"][:, :, 0]
        model = np.abs(inputs(batch) @ fit(train) - truth).mean()
        rival = np.abs(batch["past_target"][:, -DAY:, 0] - truth).mean()
        errors.append((float(model), float(rival)))
    return errors


def predict(table: wd.Table, windows: wd.Windows) -> pa.Table:
    """Return the loads of the day after the end of each site."""
    assert table.timestamps is not None
    ends = table.timestamps[table.offsets[1:] - 1]
    columns = {
        "load": np.full(DAY * table.num_series, np.nan),
        "time": (ends[:, None] + 1 + np.arange(DAY)).ravel(),
        "site": np.repeat(table.series_names, DAY),
    }
    next_day = wd.Table.from_columns(columns, timestamp_column="time", id_columns="site")
    latest = windows.latest(future=next_day.with_calendar(["hour", "weekday"]))
    batch = latest.gather(np.arange(len(latest)))
    return latest.prediction_table(inputs(batch) @ fit(windows))


def main() -> None:
    table = loads()
    windows = wd.Windows(
        table,
        context_length=2 * DAY,
        prediction_length=DAY,
        target_columns="load",
        known_covariates=CALENDAR,
    )
    for number, (model, rival) in enumerate(evaluate(windows), 1):
        print(f"fold {number}: mean absolute error {model:.3f}, last day repeated {rival:.3f}")
    for row in predict(table, windows).slice(0, 3).to_pylist():
        print(f"{row['site']}, {row['time']}: {row['load']:.2f}")


if __name__ == "__main__":
    main()
