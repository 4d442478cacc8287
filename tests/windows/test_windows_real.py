"""Windows of real data: irregular, partly missing, with text columns."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import windeck as wd
from models import reference as ref
from support.real_data import real_data

# First rows of columns that vary are what batches have all the same.
pytestmark = pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning")


def real(name: str, **options: Any) -> wd.Table:
    return wd.Table.read(real_data(name), **options)


def case_of(table: wd.Table, columns: list[str], **options: Any) -> ref.Case:
    """Return the arguments of the reference for a table."""
    found = {}
    for name in columns:
        data = table.column(name)
        valid = data.observed()
        found[name] = ref.Column(data.values, valid.tolist(), data.values.dtype.name)
    stamps = table.timestamps
    numbers = None if stamps is None else stamps.view(np.int64).tolist()
    return ref.Case(found, table.offsets.tolist(), stamps=numbers, **options)


def compare(w: wd.Windows, case: ref.Case, seed: int, count: int = 20) -> None:
    chosen = np.random.default_rng(seed).integers(0, len(w), size=count)
    series, rows = w.locate(chosen)
    located = list(zip(series.tolist(), rows.tolist(), strict=True))
    batch, expected = w.gather(chosen), ref.batch(case, located)
    assert set(batch) == set(expected)
    for key, array in expected.items():
        np.testing.assert_array_equal(batch[key], array, err_msg=key, strict=True)


def test_metrics_of_many_series() -> None:
    table = real("nab.parquet", id_columns="series", timestamp_column="timestamp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w = wd.Windows(table, context_length=168, prediction_length=24)
        unbroken = wd.Windows(table, context_length=168, prediction_length=24, max_gap="1h")
    lengths = np.diff(table.offsets)
    assert len(w) == np.maximum(lengths - 191, 0).sum()
    case = case_of(table, ["value"], context_length=168, prediction_length=24, target=["value"])
    compare(w, case, seed=0)
    # Compare with a test of every single window.
    assert table.timestamps is not None
    stamps = table.timestamps.view("M8[us]").astype(np.int64)
    breaks = np.diff(stamps) > 3_600_000_000
    starts = w.window_starts()
    ends = np.concatenate([[0], np.cumsum(breaks)])
    kept = starts[ends[starts + 191] == ends[starts]]
    np.testing.assert_array_equal(unbroken.window_starts(), kept)
    assert unbroken.explain().dropped["gap"] == len(w) - len(kept) > 0


def test_splits_of_real_series_keep_time_in_order() -> None:
    table = real("nab.parquet", id_columns="series", timestamp_column="timestamp")
    stamps = table.timestamps
    assert stamps is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        w = wd.Windows(table, context_length=48, prediction_length=12, stride=3)
    split = w.split(validation=0.1, test=0.1)
    last_future: dict[int, Any] = {}
    for part in split:
        series, rows = part.locate(np.arange(len(part)))
        for s in np.unique(series):
            mine = rows[series == s]
            assert stamps[mine.min() + 48] >= last_future.get(s, stamps[mine.min() + 48])
            last_future[s] = stamps[mine.max() + 59]
    assert sum(map(len, split)) + split.train.explain().dropped["border"] == len(w)
    scaler = wd.Scaler.fit(split.train, per_series=True)
    scaled = split.train.with_scaler(scaler)
    batch = scaled.gather(np.arange(0, len(scaled), 1000))
    raw = split.train.gather(np.arange(0, len(scaled), 1000))
    back = scaler.inverse_transform(batch["past_target"], series_id=batch["series_id"])
    np.testing.assert_allclose(back, raw["past_target"], rtol=1e-9, atol=1e-6)


def test_air_with_missing_values_and_categories() -> None:
    table = real("beijing_pm25.parquet", timestamp_column="timestamp", categories=["cbwd"])
    options: dict[str, Any] = {"context_length": 24, "prediction_length": 6, "max_missing": 0.2}
    roles = {"target": ["pm25"], "known": ["temp", "pres"], "past": ["iws"], "static": ["cbwd"]}
    w = wd.Windows(
        table,
        target_columns=roles["target"],
        known_covariates=roles["known"],
        past_covariates=roles["past"],
        static_covariates=roles["static"],
        fill=-1,
        **options,
    )
    case = case_of(
        table, [c for names in roles.values() for c in names], fill=-1, **roles, **options
    )
    compare(w, case, seed=1)
    missing = np.isnan(pq.read_table(real_data("beijing_pm25.parquet"))["pm25"].to_numpy())
    assert missing.sum() == 2067
    seen = np.lib.stride_tricks.sliding_window_view(missing, 30).sum(axis=1)
    np.testing.assert_array_equal(w.window_starts(), np.flatnonzero(seen <= 6))
    assert w.explain().dropped["missing"] == (seen > 6).sum()


def test_air_scaled_to_floats() -> None:
    table = real("beijing_pm25.parquet", timestamp_column="timestamp", categories=["cbwd"])
    numbers = ["pm25", "dewp", "temp", "pres", "iws"]
    w = wd.Windows(
        table, context_length=24, target_columns=numbers, dtype="float32",
        scaler=wd.Scaler.fit(table, columns=numbers, sample=None),
    )  # fmt: skip
    batch = w.gather(np.arange(0, len(w), 24))
    assert batch["past_target"].dtype == np.float32
    assert (batch["past_target"][~batch["past_target_mask"]] == 0).all()
    for place in range(5):
        seen = batch["past_target"][:, :, place][batch["past_target_mask"][:, :, place]]
        assert abs(seen.mean()) < 0.01
        assert abs(seen.std() - 1) < 0.01
