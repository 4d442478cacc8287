"""The demo's training: its windows, its loop, resumed anywhere, and the comparison of runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import windeck as wd
from support.demo_folder import trained_here
from support.internals import plant
from support.programs import command

BATCH, SEED, STEPS = 16, 3, 26

Samples = npt.NDArray[np.int64]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three series; the second one has nothing but nulls where training would look."""
    rows = 100
    load = np.random.default_rng(0).random(3 * rows) + np.repeat([0.0, 50.0, -9.0], rows)
    absent = np.random.default_rng(1).random(3 * rows) < 0.05
    absent[rows : rows + 80] = True
    hours = np.arange(rows) * np.timedelta64(3600, "s") + np.datetime64("2024-01-01", "s")
    columns = {
        "site": np.repeat(list("abc"), rows),
        "time": np.tile(hours, 3),
        "load": pa.array(load, mask=absent),
    }
    path = tmp_path_factory.mktemp("data") / "file.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def demonstrated(file: Path, out: Path, steps: int = STEPS) -> tuple[int, str, str]:
    """Run the demo on windows of 12 + 4 steps."""
    options = f"--context 12 --horizon 4 --batch-size {BATCH} --seed {SEED} --steps {steps}"
    return command("demo", str(file), "--out", str(out), *options.split())


def claims(printed: str) -> list[bool]:
    """Return which claims of the demo hold."""
    return [mark == "✔" for mark in re.findall("[✔✘]", printed)]


def samples(log: Path) -> Samples:
    """Return the steps, series and start rows in a log."""
    return np.fromfile(log, np.int64).reshape(-1, 3)


@pytest.fixture(scope="module")
def windows(file: Path) -> wd.Windows:
    """The windows of the first four fifths of the time, made by hand."""
    table = wd.Table.read(
        file, columns=["load"], id_columns="site", timestamp_column="time", sort=True
    )
    windows = wd.Windows(
        table, context_length=12, prediction_length=4, target_columns="load", max_missing=0.25,
        dtype="float32",
    )  # fmt: skip
    train = windows.split(validation=0.1, test=0.1, by="time").train
    return train.with_scaler(wd.Scaler.fit(train, seed=SEED))


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [(10_000, (168, 24)), (384, (168, 24)), (300, (126, 24)), (100, (40, 10)), (24, (10, 2))],
)
def test_lengths_are_cut_to_what_fits(tmp_path: Path, rows: int, lengths: tuple[int, int]) -> None:
    hours = np.arange(rows) * np.timedelta64(3600, "s") + np.datetime64("2024-01-01", "s")
    columns = {"time": hours, "load": pa.nulls(rows, pa.float64())}
    pq.write_table(pa.table(columns), tmp_path / "dark.parquet")
    code, out, err = command("demo", str(tmp_path / "dark.parquet"), "--out", str(tmp_path))
    assert code == 1
    assert "no window is left" in err
    assert f"2 Windows   {lengths[0]} steps in, {lengths[1]} out" in out
    assert ("168 + 24 steps do not fit" in out) == (lengths != (168, 24))
    # The parts of the split are not empty then.
    table = wd.Table.from_columns({"load": np.arange(float(rows))})
    windows = wd.Windows(table, context_length=lengths[0], prediction_length=lengths[1])
    assert all(len(part) for part in windows.split(0.1, 0.1))


def test_too_short_is_told(tmp_path: Path) -> None:
    columns = {"site": ["a"] * 20 + ["b"] * 20, "load": np.arange(40.0) ** 1.5}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    code, _, err = command("demo", str(tmp_path / "x.parquet"), "--out", str(tmp_path))
    assert code == 1
    assert "x.parquet has 20 rows; expected at least 24" in err


def test_what_is_trained_on_is_computed_by_hand(
    file: Path, windows: wd.Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples, their order over three epochs, and the losses of their observed values."""
    plant(monkeypatch, "demo_job.train_in_process", trained_here())
    code, out, err = demonstrated(file, tmp_path)
    assert (code, err, claims(out)) == (0, "", [True] * 4)
    per_epoch = -(-len(windows) // BATCH)
    assert 2 * per_epoch < STEPS <= 3 * per_epoch
    torch.manual_seed(SEED)
    model = torch.nn.Linear(12, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    served, losses = [], []
    for step in range(1, STEPS + 1):
        epoch, batch = divmod(step - 1, per_epoch)
        order = wd.Permutation(len(windows), seed=SEED, epoch=epoch)
        taken = order[batch * BATCH : (batch + 1) * BATCH]
        served += [[step, *where] for where in zip(*windows.locate(taken), strict=True)]
        values = {name: torch.tensor(array) for name, array in windows.gather(taken).items()}
        errors = (model(values["past_target"][..., 0]) - values["future_target"][..., 0]).abs()
        loss = errors[values["future_target_mask"][..., 0]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert samples(tmp_path / "uninterrupted.samples").tolist() == served
    assert {series for _, series, _ in served} == {0, 2}  # the other one has nothing but nulls
    assert max(start % 100 for _, _, start in served) + 12 + 4 <= 80
    shown = re.search(r"loss ([\d.]+), in the end ([\d.]+)", out)
    assert shown is not None
    assert [float(shown[1]), float(shown[2])] == pytest.approx([losses[0], losses[-1]], abs=2e-3)
    assert losses[-1] < losses[0] < 3  # of scaled values: those of a series are around -9


def test_time_in_pieces_and_in_text_is_the_same_time(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "demo_job.train_in_process", trained_here())
    table = pq.read_table(file)
    moments = table["time"].to_pylist()
    names = ("year", "month", "day", "hour")
    pieces = {name: [getattr(moment, name) for moment in moments] for name in names}
    text = {"text": [str(moment) for moment in moments]}
    logs, spans = [], []
    for times in ({"time": table["time"]}, pieces, text):
        columns = {**times, "site": table["site"], "load": table["load"]}
        other = pa.table(columns).take(np.random.default_rng(0).permutation(300))
        pq.write_table(other, tmp_path / "other.parquet")
        code, out, _ = demonstrated(tmp_path / "other.parquet", tmp_path / "out", steps=9)
        assert code == 0
        logs.append((tmp_path / "out" / "uninterrupted.samples").read_bytes())
        spans.append(re.findall(r"time from .*|usual step .*", out))
        assert f"  time      {' + '.join(times)}\n" in out
    assert logs[0] == logs[1] == logs[2]
    assert len(spans[0]) == 2
    assert spans[0] == spans[1] == spans[2]


def test_nothing_left_to_train_on_is_told(file: Path, tmp_path: Path) -> None:
    table = pq.read_table(file)
    table = table.set_column(2, "load", pa.array([None] * 300, pa.float64()))
    pq.write_table(table, tmp_path / "file.parquet")
    code, _, err = demonstrated(tmp_path / "file.parquet", tmp_path)
    assert code == 1
    assert "no window is left" in err


@pytest.mark.parametrize("stop", [3, 8, 15])
def test_stopped_anywhere_and_resumed_it_is_the_same_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """The state is saved every third step; the log of the first process ends with the kill."""
    plant(monkeypatch, "demo_job.train_in_process", trained_here(stop))
    code, out, _ = demonstrated(file, tmp_path)
    assert (code, claims(out)) == (0, [True] * 4)
    whole, killed, resumed = (
        samples(tmp_path / f"{name}.samples") for name in ("uninterrupted", "killed", "resumed")
    )
    saved = stop // 3 * 3
    assert killed[-1, 0] == stop
    assert resumed[0, 0] == saved + 1
    assert np.array_equal(killed, whole[whole[:, 0] <= stop])
    assert np.array_equal(resumed, whole[whole[:, 0] > saved])
    assert f"last saved {stop - saved} batches before" in out


def test_saving_leaves_no_half_written_state(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is an error, and the state before it stays."""
    before, save = [], torch.save

    def fail(content: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("the disk is full")

    def full(job: Any, log: Path, state: Path, kill_at: int | None = None) -> None:
        monkeypatch.setattr(torch, "save", save if kill_at else fail)
        trained_here()(job, log, state, kill_at)
        before.append(state.read_bytes())

    plant(monkeypatch, "demo_job.train_in_process", full)
    code, _, err = demonstrated(file, tmp_path)
    assert (code, err.strip()) == (1, "windeck demo: the disk is full")
    assert before == [(tmp_path / "state.pt").read_bytes()]


Change = Callable[[Path, Path], None]


def tear_the_last_row(log: Path, state: Path) -> None:
    log.write_bytes(log.read_bytes() + b"\1\2\3")


def swap_two(log: Path, state: Path) -> None:
    left = samples(log)
    left[[0, 1]] = left[[1, 0]]
    left.tofile(log)


def lose_one(log: Path, state: Path) -> None:
    samples(log)[1:].tofile(log)


def repeat_a_batch(log: Path, state: Path) -> None:
    left = samples(log)
    np.concatenate((left[:BATCH], left)).tofile(log)


def serve_one_twice(log: Path, state: Path) -> None:
    left = samples(log)
    left[-2, 1:] = left[-1, 1:]
    left.tofile(log)


def go_astray(log: Path, state: Path) -> None:
    left = samples(log)
    left[-1, 2] += 1
    left.tofile(log)


def flip_a_bit(log: Path, state: Path) -> None:
    saved = torch.load(state, weights_only=True)
    saved["model"]["weight"].view(torch.int32)[0, 0] ^= 1
    torch.save(saved, state)


@pytest.mark.parametrize(
    ("change", "killed", "expected"),
    [
        (tear_the_last_row, True, [True] * 4),  # as a kill may
        (go_astray, True, [True, False, True, True]),
        (swap_two, False, [False, False, True, True]),
        (lose_one, False, [False, False, False, True]),
        (repeat_a_batch, False, [False, False, False, True]),
        (serve_one_twice, False, [False, False, False, True]),
        (go_astray, False, [False, False, None, True]),
        (flip_a_bit, False, [True, True, True, False]),
    ],
)
def test_other_samples_and_weights_are_found(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    killed: bool,
    expected: list[bool | None],
) -> None:
    """A process that serves others than it must is found by the claims, and is an error."""

    def changed(job: Any, log: Path, state: Path, kill_at: int | None = None) -> None:
        trained_here(8)(job, log, state, kill_at)
        if killed == (kill_at is not None):
            change(log, state)

    plant(monkeypatch, "demo_job.train_in_process", changed)
    code, out, err = demonstrated(file, tmp_path)
    found = claims(out)
    assert [holds if known is not None else None
            for holds, known in zip(found, expected, strict=True)] == expected  # fmt: skip
    assert (code == 0) == all(expected)
    assert ("the resumed run is not the uninterrupted one" in err) == (code != 0)
