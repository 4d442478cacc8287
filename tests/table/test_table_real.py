"""Table on real data: 58 irregular series, and a year with missing hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as parquet
import pytest

from support.real_data import real_data
from windeck import Table, Windows


@pytest.fixture
def nab() -> Path:
    return real_data("nab.parquet")


@pytest.fixture
def beijing() -> Path:
    return real_data("beijing_pm25.parquet")


def test_nab_series_and_findings(nab: Path) -> None:
    table = Table.read(nab, id_columns="series", timestamp_column="timestamp")
    assert (table.num_rows, table.num_series) == (365_558, 58)
    assert table.column_names == ("value",)
    assert table.step == np.timedelta64(5, "m")
    report = table.report
    assert int(np.count_nonzero(report.irregular)) == 25
    assert int(report.duplicates.sum()) == 37
    assert int(report.backward.sum()) == 1
    assert len(report.sorted_series) == 1
    said = table.explain()
    assert "1 of 1 columns" in said
    assert "1 series sorted by time (1 backward step)" in said
    assert "37 duplicate stamps in 7 series, 49 after sorting" in said
    assert "25 series with irregular steps" in said


def test_nab_equals_a_plain_reading(nab: Path) -> None:
    table = Table.read(nab, id_columns="series", timestamp_column="timestamp")
    plain = parquet.read_table(nab)
    names = plain["series"].cast("string").to_numpy(zero_copy_only=False)
    values, stamps = plain["value"].to_numpy(), plain["timestamp"].to_numpy()
    assert table.timestamps is not None
    for number, name in enumerate(table.series_names):
        rows = slice(*table.offsets[number : number + 2])
        chosen = names == name
        order = np.argsort(stamps[chosen], kind="stable")
        np.testing.assert_array_equal(table["value"][rows], values[chosen][order])
        np.testing.assert_array_equal(table.timestamps[rows], stamps[chosen][order])


def test_beijing_missing_values_and_categories(beijing: Path) -> None:
    table = Table.read(beijing, timestamp_column="timestamp", categories=["cbwd"], dtype="float32")
    assert (table.num_rows, table.num_series) == (43_824, 1)
    assert table.step == np.timedelta64(1, "h")
    assert table.report.clean
    target = table.column("pm25")
    assert target.missing == 2067
    assert target.values.dtype == np.int64
    assert table["temp"].dtype == np.float32
    plain = parquet.read_table(beijing)
    np.testing.assert_array_equal(target.observed(), plain["pm25"].is_valid().to_numpy())
    wind = table.column("cbwd")
    assert wind.categories is not None
    assert [wind.categories[code] for code in wind.values] == plain["cbwd"].to_pylist()
    assert "pm25: int64, 2,067 missing (4.7%)" in table.explain()


def test_beijing_wants_to_know_about_its_string_column(beijing: Path) -> None:
    with pytest.raises(TypeError, match=r"column 'cbwd' .*without a category"):
        Table.read(beijing, timestamp_column="timestamp")


def test_nab_with_one_row_a_series(nab: Path, tmp_path: Path) -> None:
    """List columns, and European CSV with dates of another format, give the table of the file."""
    keys: dict[str, Any] = {"id_columns": "series", "timestamp_column": "timestamp"}
    expected = Table.read(nab, **keys).fingerprint
    frame = pl.read_parquet(nab)
    lists = frame.group_by("series", maintain_order=True).agg("timestamp", "value")
    lists.write_parquet(tmp_path / "lists.parquet")
    for data in (lists, lists.lazy(), tmp_path / "lists.parquet"):
        assert Table.from_series(data, **keys).fingerprint == expected
    few = frame.filter(pl.col("series") == frame["series"][0])
    text = few.with_columns(
        pl.col("timestamp").dt.strftime("%d.%m.%Y %H:%M:%S"),
        pl.col("value").cast(pl.String).str.replace(".", ",", literal=True),
    )
    text.write_csv(tmp_path / "a.csv", separator=";")
    table = Table.read(
        tmp_path / "a.csv",
        delimiter=";",
        decimal=",",
        timestamp_format="%d.%m.%Y %H:%M:%S",
        **keys,
    )
    model = Table.from_arrow(few, **keys)
    np.testing.assert_array_equal(table["value"], model["value"])
    np.testing.assert_array_equal(table.timestamps, model.timestamps)


def test_calendar_features_of_real_time_stamps_are_those_of_pandas(beijing: Path) -> None:
    pd = pytest.importorskip("pandas")
    stamps = pd.read_parquet(beijing)["timestamp"]
    turns = {
        "hour": (stamps.dt.hour, 24),
        "weekday": (stamps.dt.day_of_week, 7),
        "day": (stamps.dt.day - 1, 31),
        "yearday": (stamps.dt.day_of_year - 1, 366),
        "month": (stamps.dt.month - 1, 12),
    }
    table = Table.read(beijing, timestamp_column="timestamp", columns=["pm25", "temp"])
    cyclic = table.with_calendar([*turns, "age"], dtype="float64")
    scaled = table.with_calendar(turns, encoding="scaled", dtype="float64")
    for name, (turn, cycle) in turns.items():
        angle = 2 * np.pi * turn.to_numpy() / cycle
        np.testing.assert_allclose(cyclic[f"{name}_sin"], np.sin(angle), atol=1e-12)
        np.testing.assert_allclose(cyclic[f"{name}_cos"], np.cos(angle), atol=1e-12)
        np.testing.assert_allclose(scaled[name], turn.to_numpy() / (cycle - 1) - 0.5, atol=1e-12)
    np.testing.assert_allclose(cyclic["age"], np.log10(2 + np.arange(len(stamps))))
    options: dict[str, Any] = {"target_columns": "pm25", "known_covariates": ["hour", "month"]}
    batch = Windows(scaled, context_length=24, prediction_length=6, dtype="float64", **options)[7]
    # Features are complete, the target is not.
    assert [scaled.column(name).missing for name in ("hour", "month")] == [0, 0]
    assert batch["past_known_mask"].all()
    assert batch["future_known_mask"].all()


def test_series_without_their_ids_are_noticed(nab: Path, beijing: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"rows have the time stamp .* id_columns='series'$"
    ) as seen:
        table = Table.read(nab, timestamp_column="timestamp")
    stamps = np.sort(parquet.read_table(nab)["timestamp"].to_numpy())
    shared = int(np.count_nonzero(stamps[1:] == stamps[:-1]))
    assert str(seen[0].message).startswith(f"{shared:,} of 365,558 rows")
    assert seen[0].filename == __file__
    assert table.num_series == 1
    frame = pl.read_parquet(beijing)
    doubled = pl.concat([frame, frame]).with_columns(cbwd=pl.lit("NW"))
    for data in (doubled.select("timestamp", "temp"), doubled.select("timestamp", "temp", "dewp")):
        with pytest.warns(UserWarning, match="such as id_columns='site'"):
            Table.from_arrow(data, timestamp_column="timestamp")
    # A few stamps that repeat, or rows that are sorted, are no sign of several series.
    few = pl.concat([frame, frame.head(100)]).select("timestamp", "temp")
    assert Table.from_arrow(few, timestamp_column="timestamp").report.duplicates_sorted[0] == 100
    Table.from_arrow(
        doubled.sort("timestamp").select("timestamp", "temp"), timestamp_column="timestamp"
    )
