"""Splits, folds, forecasts and balanced sampling of real series, compared with polars and loops."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import windeck as wd
from support.real_data import real_data

PAST, FUTURE = 48, 12
SPAN = PAST + FUTURE


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    """The series of NAB, each in the order of time."""
    rows = pl.read_parquet(real_data("nab.parquet")).with_columns(pl.col("series").cast(pl.String))
    return pl.concat(
        group.sort("timestamp", maintain_order=True)
        for group in rows.partition_by("series", maintain_order=True)
    )


@pytest.fixture(scope="module")
def table(frame: pl.DataFrame) -> wd.Table:
    return wd.Table.from_arrow(frame, id_columns="series", timestamp_column="timestamp")


@pytest.fixture(scope="module")
def windows(table: wd.Table) -> wd.Windows:
    return wd.Windows(table, context_length=PAST, prediction_length=FUTURE, stride=7)


def starts(table: wd.Table, low: int, high: int, *, reach: bool) -> list[int]:
    """Return windows whose futures lie in rows counted from the end of each series.

    Contexts of training do not reach back over the first row of the series in any case.
    """
    found = []
    for first, end in pairwise(table.offsets.tolist()):
        start, stop = max(end - low, first), end - high
        for row in range(first, end - SPAN + 1, 7):
            begins = row + PAST if reach else row
            if begins >= start and row + SPAN <= stop:
                found.append(row)
    return found


def test_a_split_by_rows(table: wd.Table, windows: wd.Windows) -> None:
    train, validation, test = windows.split(validation_rows=60, test_rows=120)
    assert train.window_starts().tolist() == starts(table, 10**9, 180, reach=True)
    assert validation.window_starts().tolist() == starts(table, 180, 120, reach=True)
    assert test.window_starts().tolist() == starts(table, 120, 0, reach=True)


def test_folds_are_each_later_in_time(table: wd.Table, windows: wd.Windows) -> None:
    options = {"test_rows": 48, "validation_rows": 24, "gap_rows": 5}
    folds = windows.folds(3, **options)
    for number, (train, validation, test) in enumerate(folds):
        later = 48 * (2 - number)
        assert test.window_starts().tolist() == starts(table, later + 48, later, reach=True)
        gap = later + 48 + 5
        assert validation.window_starts().tolist() == starts(table, gap + 24, gap, reach=True)
        assert train.window_starts().tolist() == starts(table, 10**9, gap + 24, reach=False)


def test_predictions_are_joined_to_the_rows_that_they_predict(
    frame: pl.DataFrame, windows: wd.Windows
) -> None:
    """A perfect forecast of validation, made from training alone, equals the stored rows."""
    train, _, _ = windows.split(validation_rows=60, test_rows=60)
    latest = train.latest()
    batch = latest.gather(np.arange(len(latest)))
    names = [windows.table.series_names[number] for number in batch["series_id"]]
    groups = {name: group for (name,), group in frame.group_by("series")}
    past = np.stack([groups[name]["value"].to_numpy()[-120 - PAST : -120] for name in names])
    assert np.array_equal(batch["past_target"][..., 0], past)
    future = np.stack([groups[name]["value"].to_numpy()[-120 : -120 + FUTURE] for name in names])
    found = pl.DataFrame(latest.prediction_table(future[..., None]))
    rows = pl.concat([groups[name][-120 : -120 + FUTURE] for name in names])
    assert found["series"].to_list() == rows["series"].to_list()
    assert found["timestamp"].to_list() == rows["timestamp"].to_list()
    assert found["value"].to_list() == rows["value"].to_list()
    # Behind the end of a series time goes on by its usual step.
    ahead = pl.DataFrame(windows.latest().prediction_table(future[..., None]))
    regular = 0
    for (name,), mine in ahead.group_by("series"):
        stamps = groups[name]["timestamp"].to_numpy()
        steps, times = np.unique(np.diff(stamps), return_counts=True)
        if times.max() > 0.9 * len(stamps):
            regular += 1
            expected = stamps[-1] + steps[times.argmax()] * np.arange(1, FUTURE + 1)
            assert np.array_equal(mine["timestamp"].to_numpy(), expected)
    assert regular > 40


def repeated(past: Any) -> Any:
    """Return the forecast that repeats the last steps, as low, middle and high quantiles."""
    middle = past[:, -FUTURE:, 0]
    return {0.1: middle - 1, 0.5: middle, 0.9: middle + 1}


def rolling(windows: wd.Windows, k: int, **options: Any) -> pl.DataFrame:
    """Return the forecasts of all folds in one table."""
    parts = []
    for fold in windows.folds(k, **options):
        batch = fold.test.gather(np.arange(len(fold.test)))
        parts.append(fold.test.prediction_table(repeated(batch["past_target"]), cutoff=True))
    return pl.DataFrame(pa.concat_tables(parts))


def by_hand(
    values: Any, stamps: list[Any], k: int, test_rows: int, step_rows: int, stride: int
) -> list[tuple[Any, ...]]:
    """Return rows (fold, stamp, cutoff, quantiles) of the forecasts of one series."""
    found = []
    for fold in range(k):
        stop = len(values) - step_rows * (k - 1 - fold)
        for start in range(0, len(values) - SPAN + 1, stride):
            origin = start + PAST
            if origin < stop - test_rows or origin + FUTURE > stop:
                continue
            for step in range(FUTURE):
                middle = values[origin - FUTURE + step]
                row = fold, stamps[origin + step], stamps[origin - 1]
                found.append((*row, middle - 1, middle, middle + 1))
    return found


def test_the_forecasts_of_folds_are_one_table(frame: pl.DataFrame, windows: wd.Windows) -> None:
    step = 48 - FUTURE + 1
    found = rolling(windows, 3, test_rows=48, step_rows=step)
    names = ["series", "timestamp", "cutoff", "value_q0.1", "value_q0.5", "value_q0.9"]
    assert found.columns == names
    groups = frame.group_by("series", maintain_order=True)
    expected = [
        (fold, name, *row)
        for (name,), rows in groups
        for fold, *row in by_hand(rows["value"], rows["timestamp"].to_list(), 3, 48, step, 7)
    ]
    expected.sort(key=lambda row: row[0])  # fold by fold
    assert not found.select("series", "timestamp", "cutoff").is_duplicated().any()
    assert len(expected) > 3 * 58 * FUTURE
    for place, name in enumerate(names, 1):
        assert found[name].to_list() == [row[place] for row in expected], name


def test_the_forecasts_of_folds_of_a_city() -> None:
    rows = pl.read_parquet(real_data("beijing_pm25.parquet"))[-2000:]
    table = wd.Table.from_arrow(
        rows, columns=["temp"], timestamp_column="timestamp", dtype="float64"
    ).with_calendar(["hour", "weekday"])
    known = ["hour_sin", "hour_cos", "weekday_sin", "weekday_cos"]
    windows = wd.Windows(
        table, context_length=PAST, prediction_length=FUTURE, stride=FUTURE, target_columns="temp",
        known_covariates=known, anchor="end",
    )  # fmt: skip
    found = rolling(windows, 5, test_rows=10 * FUTURE)
    first = (len(rows) - SPAN) % FUTURE  # the first window
    expected = by_hand(
        rows["temp"].cast(pl.Float64)[first:], rows["timestamp"].to_list()[first:], 5, 10 * FUTURE,
        10 * FUTURE, FUTURE,
    )  # fmt: skip
    assert len(expected) == 5 * 10 * FUTURE
    names = ["timestamp", "cutoff", "temp_q0.1", "temp_q0.5", "temp_q0.9"]
    for place, name in enumerate(names, 1):
        assert found[name].to_list() == [row[place] for row in expected], name
    # Each forecast is of the time after its cutoff, and is joined to what happened by name.
    scored = found.join(table.to_polars(), on="timestamp")
    assert len(scored) == len(found)
    assert (scored["timestamp"] > scored["cutoff"]).all()
    again = windows.latest(future=True)
    later = again.prediction_table(np.zeros((1, FUTURE)), cutoff=True)
    assert later["cutoff"][0].as_py() == rows["timestamp"][-1]
    shifted = wd.Table.from_arrow(
        rows[:-FUTURE], columns=["temp"], timestamp_column="timestamp", dtype="float64"
    ).with_calendar(["hour", "weekday"])
    before = wd.Windows(
        shifted, context_length=PAST, prediction_length=FUTURE, target_columns="temp",
        known_covariates=known,
    ).latest(future=True)  # fmt: skip
    last = windows.subset(last=1).gather([0])
    np.testing.assert_array_equal(before.gather([0])["future_known"], last["future_known"])
    np.testing.assert_array_equal(before.gather([0])["past_target"], last["past_target"])


def test_forecasts_are_evaluated_by_utilsforecast(frame: pl.DataFrame, table: wd.Table) -> None:
    losses = pytest.importorskip("utilsforecast.losses")
    windows = wd.Windows(table, context_length=PAST, prediction_length=FUTURE, stride=FUTURE)
    found = rolling(windows, 3, test_rows=48)
    scored = found.join(table.to_polars(), on=["series", "timestamp"], how="inner")
    levels = [name for name in found.columns if "_q" in name]
    options: dict[str, Any] = {"id_col": "series", "target_col": "value"}
    pinball = losses.mqloss(
        scored, models={"repeated": levels}, quantiles=np.array([0.1, 0.5, 0.9]), **options
    )
    train = windows.folds(3, test_rows=48)[0].train
    low, high, _ = train.covered_rows()
    history = table.to_polars()[np.concatenate([*map(np.arange, low, high)])]
    scaled = losses.mase(
        scored.drop("cutoff"), ["value_q0.5"], 1, history, time_col="timestamp", **options
    )
    truth, middle = scored["value"].to_numpy(), scored["value_q0.5"].to_numpy()
    for (name,), rows in scored.with_row_index().group_by("series"):
        places = rows["index"].to_numpy()
        errors = [truth[places] - (middle[places] + shift) for shift in (-1, 0, 1)]
        both = zip((0.1, 0.5, 0.9), errors, strict=True)
        loss = [np.maximum(q * e, (q - 1) * e).mean() for q, e in both]
        mine = pinball.filter(series=name)["repeated"].mean()
        np.testing.assert_allclose(mine, np.mean(loss), rtol=1e-9)
        steps = np.abs(np.diff(history.filter(series=name)["value"].to_numpy())).mean()
        if steps == 0:  # a constant series has no scale
            continue
        mase = scaled.filter(series=name)["value_q0.5"].item()
        np.testing.assert_allclose(mase, np.abs(errors[1]).mean() / steps, rtol=1e-9)


def test_balanced_shares_are_exact_and_resumed(table: wd.Table, windows: wd.Windows) -> None:
    weights = {name: 3 if "Twitter" in name else 1 for name in table.series_names}
    balanced = windows.balanced(weights, epoch_length=2000)
    shares = np.array([*weights.values()]) / sum(weights.values()) * 2000
    assert (abs(balanced.counts - shares) < 1).all()
    loader = wd.Loader(balanced, batch_size=128, seed=3)
    served = [batch["series_id"].numpy() for batch in loader]
    assert np.array_equal(np.bincount(np.concatenate(served)), balanced.counts)
    resumed = wd.Loader(balanced, batch_size=50, seed=3)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict(step=7))))
    rest = [batch["series_id"].numpy() for batch in resumed]
    assert np.array_equal(np.concatenate(rest), np.concatenate(served[7:]))


def test_wide_frames_are_the_series(frame: pl.DataFrame, table: wd.Table) -> None:
    names = table.series_names[:5]
    some = frame.filter(pl.col("series").is_in(names)).unique(
        ["series", "timestamp"], keep="first", maintain_order=True
    )
    columns = some.pivot(on="series", index="timestamp", values="value").sort("timestamp")
    options: dict[str, Any] = {"series": "columns", "timestamp_column": "timestamp"}
    for data in (columns, columns.to_pandas(), columns.lazy()):
        wide = wd.Table.from_wide(data, **options)
        assert wide.series_names == names
        for number, name in enumerate(names):
            rows = slice(*wide.offsets[number : number + 2])
            values = columns[name].to_numpy()
            length = int(np.flatnonzero(~np.isnan(values)).max()) + 1
            np.testing.assert_array_equal(wide["target"][rows], values[:length])
    place = pl.int_range(pl.len()).over("series").alias("place")
    few = some.with_columns(place).filter(pl.col("place") < 30)
    rows_of_series = few.pivot(on="place", index="series", values="value")
    wide = wd.Table.from_wide(rows_of_series, id_columns="series")
    values = rows_of_series.drop("series").to_numpy().ravel()
    assert np.array_equal(wide["target"], values[~np.isnan(values)])
