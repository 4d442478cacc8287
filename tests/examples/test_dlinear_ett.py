"""DLinear on ETTh1: windows, order and weights equal those of the benchmarks' dataset class."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import windeck as wd
from support.loaded_examples import EXAMPLES, example
from support.real_data import real_data

NAMES = ["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"]
ROWS = 17_420
SEED, STEPS = 3, 60


class EttHour(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The dataset of TSL, from its definition.

    Rows [0, 8640), [8544, 11520) and [11424, 14400) with a context of 96, standardised by the mean
    and the population's deviation of the first 8,640 in float64; item i is the context from row i
    and the horizon after it, cast to float32 by the training loop.
    """

    def __init__(self, values: npt.NDArray[np.float64], part: int, size: int = 96) -> None:
        month = 30 * 24
        begin = [0, 12 * month - size, 16 * month - size][part]
        end = [12 * month, 16 * month, 20 * month][part]
        train = values[: 12 * month]
        self.data = ((values - train.mean(axis=0)) / train.std(axis=0))[begin:end]
        self.size = size

    def __len__(self) -> int:
        return len(self.data) - 2 * self.size + 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        middle = index + self.size
        past, future = self.data[index:middle], self.data[middle : middle + self.size]
        return torch.from_numpy(past).float(), torch.from_numpy(future).float()


@pytest.fixture(scope="module")
def dlinear() -> ModuleType:
    return example("dlinear_ett")


@pytest.fixture(scope="module", params=["generated", "real"])
def values(request: pytest.FixtureRequest) -> npt.NDArray[np.float64]:
    """Seven columns: generated ones, or hours of weather and air, under the names of ETTh1."""
    if request.param == "real":
        frame = pl.read_parquet(real_data("beijing_pm25.parquet"))
        numbers = frame.select("dewp", "temp", "pres", "iws", "is", "ir", "pm25")
        found: npt.NDArray[np.float64] = (
            numbers.fill_null(strategy="forward").fill_null(0).cast(pl.Float64)[:ROWS].to_numpy()
        )
        return found
    rng = np.random.default_rng(0)
    hours = np.arange(ROWS)[:, None]
    waves = np.sin(2 * np.pi * hours / 24 + np.arange(7)) * np.linspace(1, 9, 7)
    noise = rng.standard_normal((ROWS, 7)).cumsum(axis=0) / 9
    return np.round(waves + noise + np.linspace(-5, 30, 7), 3)


@pytest.fixture(scope="module")
def path(values: npt.NDArray[np.float64], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ett") / "ETTh1.csv"
    stamps = np.datetime64("2016-07-01T00:00:00") + np.arange(ROWS) * np.timedelta64(1, "h")
    lines = [",".join(["date", *NAMES])]
    for stamp, row in zip(stamps, values.tolist(), strict=True):
        lines.append(",".join([str(stamp).replace("T", " "), *map(repr, row)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_windows_are_those_of_the_dataset_class(
    dlinear: ModuleType, path: Path, values: npt.NDArray[np.float64]
) -> None:
    for part, windows in enumerate(dlinear.read_parts(path)):
        expected = EttHour(values, part)
        assert len(windows) == len(expected)
        batch = windows.gather(np.arange(len(windows)))
        pasts, futures = zip(*(expected[index] for index in range(len(expected))), strict=True)
        assert torch.equal(torch.from_numpy(batch["past_target"]), torch.stack(pasts))
        assert torch.equal(torch.from_numpy(batch["future_target"]), torch.stack(futures))


def test_weights_are_those_of_the_dataset_class(
    dlinear: ModuleType, path: Path, values: npt.NDArray[np.float64]
) -> None:
    train, _, _ = dlinear.read_parts(path)
    model = dlinear.build_model(SEED)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    loader = wd.Loader(train, batch_size=32, shuffle=True, seed=SEED)
    dlinear.train_epoch(model, optimizer, islice(loader, STEPS))

    expected = dlinear.build_model(SEED)
    optimizer = torch.optim.Adam(expected.parameters(), lr=0.005)
    dataset = EttHour(values, 0)
    batches = DataLoader(dataset, 32, sampler=wd.OrderSampler(dataset, seed=SEED))
    for past, future in islice(batches, STEPS):
        loss = torch.nn.functional.mse_loss(expected(past), future)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("values", ["generated"], indirect=True)
def test_it_runs_from_the_command_line(path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "dlinear_ett.py"), str(path)]
    command += ["--epochs=1", "--batch-size=512"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] == "8,449 to train, 2,785 to validate, 2,785 to test"
    assert lines[1].startswith("epoch 1: loss ")
    assert lines[-1].startswith("test MSE ")


@pytest.mark.parametrize("values", ["generated"], indirect=True)
def test_a_file_that_is_too_short(dlinear: ModuleType, path: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.csv"
    short.write_text("".join(path.read_text().splitlines(keepends=True)[:9000]))
    with pytest.raises(ValueError, match=r"within the 8999 rows of the data, got \(0, 14400\)"):
        dlinear.read_parts(short)
