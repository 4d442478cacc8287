"""The example of a rolling evaluation beats its rival, and predicts the day after the end."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from support.loaded_examples import example
from support.real_data import real_data


def test_rolling_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    example("rolling_forecast").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["fold 1", "fold 2", "fold 3"]
    for line in lines[:3]:
        model, rival = (float(part.split()[-1]) for part in line.split(","))
        assert model < rival
    assert lines[3].startswith("site 0, 2024-04-30 00:00:00: ")


def test_predictions_follow_the_day() -> None:
    module = example("rolling_forecast")
    table = module.loads(sites=2, days=60)
    windows = module.wd.Windows(
        table, context_length=48, prediction_length=24, target_columns="load",
        known_covariates=module.CALENDAR,
    )  # fmt: skip
    found = module.predict(table, windows)
    assert found.num_rows == 48
    assert found["time"][0].as_py() == dt.datetime(2024, 3, 1)
    curve = np.sin(2 * np.pi * np.arange(24) / 24)
    for series in (0, 24):
        load = found["load"].to_numpy()[series : series + 24]
        assert np.corrcoef(load, curve)[0, 1] > 0.95


def test_temperatures_of_a_city_are_predicted_better_than_by_the_last_day() -> None:
    module = example("rolling_forecast")
    path = real_data("beijing_pm25.parquet")
    table = module.wd.Table.read(
        path, timestamp_column="timestamp", columns=["temp"], rows=(0, 20_000)
    )
    windows = module.wd.Windows(
        table.with_calendar(["hour", "weekday"]), context_length=48, prediction_length=24,
        target_columns="temp", known_covariates=module.CALENDAR,
    )  # fmt: skip
    for model, rival in module.evaluate(windows):
        assert 1 < model < 0.9 * rival
