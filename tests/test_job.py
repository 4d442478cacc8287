"""A job and its data: lengths that fit, seasons, scales, and series without anything to learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windeck as wd
from windeck.tools import job

HOUR, DAY = np.timedelta64(1, "h"), np.timedelta64(1, "D")


def task_for(path: Path, **options: object) -> job.Job:
    """A small job on a file with columns site, time and load."""
    usual = job.Job(str(path), ("time",), ("site",), "load", context_length=12, prediction_length=4)
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


def test_a_job_survives_json() -> None:
    task = job.Job("a.csv", ("year", "month", "day"), ("shop", "item"), "sold", steps=7)
    assert job.Job.from_json(task.to_json()) == task


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [(10_000, (168, 24)), (384, (168, 24)), (300, (126, 24)), (100, (40, 10)), (24, (10, 2))],
)
def test_lengths_are_cut_to_what_fits(rows: int, lengths: tuple[int, int]) -> None:
    table = wd.Table.from_columns({"load": np.arange(float(rows))})
    task = job.fit_lengths(job.Job("x", (), (), "load"), table)
    assert (task.context_length, task.prediction_length) == lengths
    # The parts of the split are not empty then.
    windows = wd.Windows(table, context_length=lengths[0], prediction_length=lengths[1])
    assert all(len(part) for part in windows.split(0.1, 0.1))


def test_too_short_is_told() -> None:
    table = wd.Table.from_columns({"load": np.arange(40.0)}, offsets=[0, 20, 40])
    with pytest.raises(ValueError, match="longest series of x has 20 rows; expected at least 24"):
        job.fit_lengths(job.Job("x", (), (), "load"), table)


@pytest.mark.parametrize(
    ("step", "context", "expected"),
    [
        (HOUR, 168, (24, "a day before")),
        (np.timedelta64(15, "m"), 168, (96, "a day before")),
        (HOUR, 23, (None, "the last value seen")),
        (np.timedelta64(5, "m"), 168, (None, "the last value seen")),
        (DAY, 30, (7, "a week before")),
        (np.timedelta64(7, "h"), 168, (24, "a week before")),
        (None, 168, (None, "the last value seen")),
        (3600, 168, (None, "the last value seen")),
    ],
)
def test_seasons(
    step: np.timedelta64 | int | None, context: int, expected: tuple[int | None, str]
) -> None:
    assert job.season(step, context) == expected


def test_series_never_seen_in_training_are_left_out(file: Path) -> None:
    deal = job.prepare(task_for(file))
    assert deal.table.num_series == 3
    assert deal.series == 2
    for part in (deal.train, deal.validation, deal.test):
        assert set(part.locate(np.arange(len(part)))[0]) == {0, 2}


def test_scaling_is_what_the_windows_do(file: Path) -> None:
    deal = job.prepare(task_for(file))
    scale, shift = job.scaling(deal, "load")
    truth = job.truth(deal, "load")
    assert np.isnan(truth).sum() == 80
    batch = deal.test.gather([0, len(deal.test) - 1])
    for row in range(2):
        start, series = int(batch["start"][row]), int(batch["series_id"][row])
        expected = truth[start : start + 12] * scale[series] + shift[series]
        np.testing.assert_allclose(batch["past_target"][row, :, 0], expected, rtol=1e-4, atol=1e-4)


def test_time_in_pieces_and_in_text_is_the_same_time(file: Path, tmp_path: Path) -> None:
    table = pq.read_table(file)
    whole = job.read(task_for(file))
    moments = table["time"].to_pylist()
    for name in ("year", "month", "day", "hour"):
        table = table.append_column(name, [[getattr(moment, name) for moment in moments]])
    table = table.append_column("text", [[str(moment) for moment in moments]])
    other = tmp_path / "other.parquet"
    pq.write_table(table.drop_columns(["time"]), other)
    for time in (("year", "month", "day", "hour"), ("text",)):
        read = job.read(task_for(other, time=time))
        assert whole.timestamps is not None
        assert read.timestamps is not None
        assert np.array_equal(read.timestamps, whole.timestamps)
        assert np.array_equal(read.offsets, whole.offsets)


def test_nothing_left_to_train_on_is_told(file: Path) -> None:
    table = pq.read_table(file)
    table = table.set_column(2, "load", pa.array([None] * 300, pa.float64()))
    pq.write_table(table, file)
    with pytest.raises(ValueError, match="no window is left"):
        job.prepare(task_for(file))
