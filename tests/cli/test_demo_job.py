"""The demo's training: its data, its loop, resumed anywhere, and the comparison of runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import windeck as wd
from support.internals import (
    Columns,
    Job,
    compare_runs,
    expected_samples,
    fit_lengths,
    last_step,
    read_log,
    read_table,
    train,
    training_step,
    training_windows,
    write_load_curve,
)

BATCH, SEED, STEPS, SAVED = 16, 3, 13, 6

Change = Callable[[dict[str, Any]], None]


def task_for(path: Path, **options: object) -> Job:
    """A small job on a file with columns site, time and load."""
    usual = Job(
        Columns(str(path), ("time",), ("site",), "load"), context_length=12, prediction_length=4
    )
    return replace(usual, **options)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three series; the second one has nothing but nulls where training would look."""
    rows = 100
    load = np.random.default_rng(0).random(3 * rows) + np.repeat([0.0, 50.0, -9.0], rows)
    absent = np.zeros(3 * rows, bool)
    absent[rows : rows + 80] = True
    hours = np.arange(rows) * np.timedelta64(3600, "s") + np.datetime64("2024-01-01", "s")
    columns = {
        "site": np.repeat(list("abc"), rows),
        "time": np.tile(hours, 3),
        "load": pa.array(load, mask=absent),
    }
    pq.write_table(pa.table(columns), tmp_path / "file.parquet")
    return tmp_path / "file.parquet"


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [(10_000, (168, 24)), (384, (168, 24)), (300, (126, 24)), (100, (40, 10)), (24, (10, 2))],
)
def test_lengths_are_cut_to_what_fits(rows: int, lengths: tuple[int, int]) -> None:
    table = wd.Table.from_columns({"load": np.arange(float(rows))})
    task = fit_lengths(Job(Columns("x", (), (), "load")), table)
    assert (task.context_length, task.prediction_length) == lengths
    # The parts of the split are not empty then.
    windows = wd.Windows(table, context_length=lengths[0], prediction_length=lengths[1])
    assert all(len(part) for part in windows.split(0.1, 0.1))


def test_too_short_is_told() -> None:
    table = wd.Table.from_columns({"load": np.arange(40.0)}, offsets=[0, 20, 40])
    with pytest.raises(ValueError, match="longest series of x has 20 rows; expected at least 24"):
        fit_lengths(Job(Columns("x", (), (), "load")), table)


def test_windows_are_those_of_the_first_four_fifths_and_scaled(file: Path) -> None:
    task = task_for(file)
    windows = training_windows(task, read_table(task))
    series, starts = windows.locate(np.arange(len(windows)))
    assert set(series) == {0, 2}  # the other one has nothing but nulls there
    assert max(starts % 100) + 12 + 4 <= 80
    batch = windows.gather(np.arange(len(windows)))
    values = batch["past_target"][series == 0]
    assert len(np.unique(values)) > 50
    assert abs(batch["past_target"].mean()) < 1
    assert 0.5 < batch["past_target"].std() < 2


def test_time_in_pieces_and_in_text_is_the_same_time(file: Path, tmp_path: Path) -> None:
    table = pq.read_table(file)
    whole = read_table(task_for(file))
    moments = table["time"].to_pylist()
    for name in ("year", "month", "day", "hour"):
        table = table.append_column(name, [[getattr(moment, name) for moment in moments]])
    table = table.append_column("text", [[str(moment) for moment in moments]])
    other = tmp_path / "other.parquet"
    pq.write_table(table.drop_columns(["time"]), other)
    for time in (("year", "month", "day", "hour"), ("text",)):
        task = task_for(other)
        read = read_table(replace(task, columns=replace(task.columns, time=time)))
        assert whole.timestamps is not None
        assert read.timestamps is not None
        assert np.array_equal(read.timestamps, whole.timestamps)
        assert np.array_equal(read.offsets, whole.offsets)


def test_nothing_left_to_train_on_is_told(file: Path) -> None:
    table = pq.read_table(file)
    table = table.set_column(2, "load", pa.array([None] * 300, pa.float64()))
    pq.write_table(table, file)
    task = task_for(file)
    with pytest.raises(ValueError, match="no window is left"):
        training_windows(task, read_table(task))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("data")
    path = write_load_curve(folder / "load.parquet", sites=2, days=20)
    columns = Columns(str(path), ("timestamp",), ("site",), "load")
    return Job(columns, 24, 6, 64, 16, save_every=3)


@pytest.fixture(scope="module")
def data(task: Job) -> wd.Windows:
    return training_windows(task, read_table(task))


class Stop(Exception):
    """An exception in place of a kill, after which nothing is saved."""


@pytest.mark.parametrize("stop", [3, 8, 15])
def test_stopped_anywhere_and_resumed_it_is_the_same_run(
    task: Job, data: wd.Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    whole, losses = train(task, data, log=tmp_path / "whole")
    assert len(losses) == 16
    expected = expected_samples(data, batch_size=64, seed=0, steps=16)
    assert len(data) < 15 * 64
    assert np.array_equal(read_log(tmp_path / "whole"), expected)

    def wait(seconds: float) -> None:
        raise Stop

    monkeypatch.setattr("time.sleep", wait)
    state, log, later = tmp_path / "state.pt", tmp_path / "log", tmp_path / "later"
    with pytest.raises(Stop):
        train(task, data, log=log, state=state, wait_at=stop)
    saved = torch.load(state, weights_only=True)["loader"]["step"]
    assert saved == stop // 3 * 3
    resumed, _ = train(task, log=later, state=state, resume=True)
    found = compare_runs(
        expected,
        *(read_log(path) for path in (tmp_path / "whole", log, later)),
        resumed_from=saved,
        weights=whole,
        resumed_weights=resumed,
    )
    assert list(found.values()) == [True] * 4


def test_a_log_cut_short_by_a_kill_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_step(log) == 0
    rows = np.arange(12, dtype=np.int64).reshape(4, 3)
    log.write_bytes(rows.tobytes() + b"\1\2\3")
    assert np.array_equal(read_log(log), rows)
    assert last_step(log) == 9


def test_saving_leaves_no_half_written_state(
    task: Job, data: wd.Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.pt"
    short = replace(task, steps=3)
    train(short, data, log=tmp_path / "log", state=state)
    before = state.read_bytes()

    def fail(content: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="the disk is full"):
        train(short, data, log=tmp_path / "log", state=state)
    assert state.read_bytes() == before


@pytest.fixture(scope="module")
def windows() -> wd.Windows:
    table = wd.Table.from_columns({"load": np.arange(150.0)}, offsets=[0, 70, 150])
    return wd.Windows(table, context_length=8, prediction_length=2)


def logs(windows: wd.Windows) -> dict[str, Any]:
    """Return the results of three runs; the second is killed two steps after it saved."""
    expected = expected_samples(windows, batch_size=BATCH, seed=SEED, steps=STEPS)
    weights = torch.nn.Linear(8, 2).state_dict()
    return {
        "expected": expected,
        "uninterrupted": expected.copy(),
        "killed": expected[expected[:, 0] <= SAVED + 2].copy(),
        "resumed": expected[expected[:, 0] > SAVED].copy(),
        "resumed_from": SAVED,
        "weights": weights,
        "resumed_weights": {name: tensor.clone() for name, tensor in weights.items()},
    }


def test_expected_samples_are_those_of_the_permutation(windows: wd.Windows) -> None:
    found = expected_samples(windows, batch_size=BATCH, seed=SEED, steps=STEPS)
    count = len(windows)
    per_epoch = -(-count // BATCH)
    assert per_epoch < STEPS < 2 * per_epoch
    row = 0
    for step in range(1, STEPS + 1):
        epoch, batch = divmod(step - 1, per_epoch)
        order = wd.Permutation(count, seed=SEED, epoch=epoch)
        for place in range(batch * BATCH, min(count, (batch + 1) * BATCH)):
            assert found[row].tolist() == [step, *windows.locate(order[place])]
            row += 1
    assert row == len(found)


def test_a_faultless_run_holds(windows: wd.Windows) -> None:
    assert all(compare_runs(**logs(windows)).values())


def swap_two(left: dict[str, Any]) -> None:
    left["resumed"][[0, 1]] = left["resumed"][[1, 0]]


def lose_one(left: dict[str, Any]) -> None:
    left["resumed"] = left["resumed"][1:]


def repeat_a_batch(left: dict[str, Any]) -> None:
    left["resumed"] = np.concatenate((left["resumed"][:BATCH], left["resumed"]))


def go_astray_before_the_kill(left: dict[str, Any]) -> None:
    left["killed"][-1, 2] += 1


@pytest.mark.parametrize("change", [swap_two, lose_one, repeat_a_batch, go_astray_before_the_kill])
def test_other_samples_are_found(windows: wd.Windows, change: Change) -> None:
    left = logs(windows)
    change(left)
    _, as_computed, _, _ = compare_runs(**left).values()
    assert not as_computed


def test_one_window_served_twice_is_found(windows: wd.Windows) -> None:
    left = logs(windows)
    for name in ("expected", "uninterrupted", "resumed"):
        left[name][-1] = left[name][-2]
    _, as_computed, each_once, _ = compare_runs(**left).values()
    assert as_computed
    assert not each_once


def test_one_bit_of_one_weight_is_found(windows: wd.Windows) -> None:
    left = logs(windows)
    bits = left["resumed_weights"]["weight"].view(torch.int32)
    bits[0, 0] ^= 1
    _, as_computed, _, same_weights = compare_runs(**left).values()
    assert as_computed
    assert not same_weights


@pytest.mark.parametrize("masked", [True, False])
def test_training_makes_errors_smaller_and_counts_observed_values(masked: bool) -> None:
    past, future = torch.randn(64, 12, 1), torch.ones(64, 4, 1)
    batch = {"past_target": past, "future_target": future}
    if masked:  # the last three steps were not observed
        batch["future_target"][:, 1:] = 1e6
        batch["future_target_mask"] = torch.arange(4)[None, :, None].expand(64, 4, 1) < 1
    model = torch.nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = [training_step(model, optimizer, batch) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0] < 10
    if masked:
        batch["future_target_mask"] = torch.zeros(64, 4, 1, dtype=torch.bool)
        assert training_step(model, optimizer, batch) == 0.0
