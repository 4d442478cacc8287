"""Table on real data: 58 irregular series, and a year with missing hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as parquet
import pytest

from windeck import Table

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@pytest.fixture
def nab() -> Path:
    return _there("nab.parquet")


@pytest.fixture
def beijing() -> Path:
    return _there("beijing_pm25.parquet")


def _there(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"../shared/data/{name} is not beside this checkout")
    return DATA / name


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
