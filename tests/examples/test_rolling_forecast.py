"""The example of a forecast: killed and resumed, it trains as if it were not, and beats a rival."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest
from pyarrow import parquet

from support.loaded_examples import example
from support.real_data import real_data

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return example("rolling_forecast")


def report_of(module: ModuleType, out: Path, *arguments: str) -> list[str]:
    """Return the lines of an uninterrupted training in this process."""
    lines: list[str] = []
    table = module.temperatures(Path(arguments[0])) if arguments else module.loads()
    module.train(f"rocksdb://{out}/store", module.windows_of(table), lines.append)
    return lines


@pytest.mark.parametrize("name", [None, "beijing_pm25.parquet"])
def test_a_forecast_from_a_file_to_a_picture(
    module: ModuleType, name: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [] if name is None else [str(real_data(name))]
    module.main([*arguments, "--out", str(tmp_path / "out")])
    lines = capfd.readouterr().out.splitlines()
    assert lines[2:4] == ["killed", "resumed at step 200"]
    steps = [line for line in lines if line.startswith("step")]
    # The killed training is the same, to the last digit, as one that was never interrupted.
    assert steps == report_of(module, tmp_path, *arguments)
    best = [line.split(":")[0] for line in steps if line.endswith("the best")][-1]
    assert f"best: {best}" in lines
    assert not any(line.endswith("the best") for line in steps[-module.PATIENCE :])
    folds = [line for line in lines if line.startswith("fold")]
    assert len(folds) == 3
    for line in folds:
        model, rival = (float(part.split()[-1]) for part in line.split(","))
        assert model < 0.95 * rival
    found = parquet.read_table(tmp_path / "out" / "forecast.parquet")
    day = dt.datetime(2024, 4, 30) if name is None else dt.datetime(2015, 1, 1)
    time = found.column_names[1]
    assert found[time].to_pylist()[:24] == [day + dt.timedelta(hours=hour) for hour in range(24)]
    assert set(found["cutoff"].to_pylist()) == {day - dt.timedelta(hours=1)}
    assert (tmp_path / "out" / "forecast.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="out is not empty, expected a new folder or an empty one"):
        module.main([*arguments, "--out", str(tmp_path / "out")])


def test_the_backtest_equals_a_loop(module: ModuleType) -> None:
    table = module.loads(sites=2, days=90)
    windows, model = module.windows_of(table), module.Forecaster()
    found = module.backtest(model, windows, k=2)
    values, rows = table["load"], table.num_rows // 2
    expected = []
    for fold, stop in ((1, rows - 7 * 24), (2, rows)):
        for site in range(2):
            for origin in range(stop - 7 * 24, stop - 24 + 1):
                row = windows.index_of(site, site * rows + origin - 48)
                batch = {key: torch.from_numpy(one) for key, one in windows.gather([row]).items()}
                with torch.no_grad():
                    scaled = model(batch).numpy()
                units = windows.inverse_transform(scaled, [row])[0, :, 0]
                for step in range(24):
                    at = site * rows + origin + step
                    expected.append((fold, units[step], values[at - 24], values[at]))
    assert found["fold"].to_list() == [row[0] for row in expected]
    for place, name in enumerate(("model", "last_day", "load"), 1):
        np.testing.assert_allclose(found[name], [row[place] for row in expected], atol=1e-5)
    assert (found["time"] > found["cutoff"]).all()
    means = module.errors(found, "load")
    first = found.filter(pl.col("fold") == 1)
    error = np.abs(first["model"].to_numpy() - first["load"].to_numpy()).mean()
    assert means["model"][0] == pytest.approx(error)
