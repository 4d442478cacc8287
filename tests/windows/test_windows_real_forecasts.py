"""Splits, folds, forecasts and balanced sampling of real series, compared with polars and loops."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
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
    assert found["series_id"].to_list() == rows["series"].to_list()
    assert found["timestamp"].to_list() == rows["timestamp"].to_list()
    assert found["value"].to_list() == rows["value"].to_list()
    # Behind the end of a series time goes on by its usual step.
    ahead = pl.DataFrame(windows.latest().prediction_table(future[..., None]))
    regular = 0
    for (name,), mine in ahead.group_by("series_id"):
        stamps = groups[name]["timestamp"].to_numpy()
        steps, times = np.unique(np.diff(stamps), return_counts=True)
        if times.max() > 0.9 * len(stamps):
            regular += 1
            expected = stamps[-1] + steps[times.argmax()] * np.arange(1, FUTURE + 1)
            assert np.array_equal(mine["timestamp"].to_numpy(), expected)
    assert regular > 40


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
