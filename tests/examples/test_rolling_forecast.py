"""The example of a rolling evaluation beats its rival, and predicts the day after the end."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from support.loaded_examples import example


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
    assert found["timestamp"][0].as_py() == dt.datetime(2024, 3, 1)
    curve = np.sin(2 * np.pi * np.arange(24) / 24)
    for series in (0, 24):
        load = found["load"].to_numpy()[series : series + 24]
        assert np.corrcoef(load, curve)[0, 1] > 0.95
