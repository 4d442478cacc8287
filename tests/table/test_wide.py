"""Tables of wide data: one row or one column a series."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet

from windeck import Table


class TestRows:
    def test_the_files_of_m4(self, tmp_path: Path) -> None:
        path = tmp_path / "Hourly-train.csv"
        path.write_text('"V1","V2","V3","V4"\n"H1",605,586,"586"\n"H2",3124,,\n"H3",,7.5,\n')
        table = Table.from_wide(path, id_columns="V1")
        assert table.series_names == ("H1", "H2", "H3")
        assert table.offsets.tolist() == [0, 3, 4, 6]
        np.testing.assert_array_equal(table["target"], [605, 586, 586, 3124, np.nan, 7.5])
        table = Table.from_wide(path, id_columns="V1", dtype="float32", name="load", rows=(1, 3))
        assert table.series_names == ("H2", "H3")
        assert table["load"].dtype == np.float64  # of integers and float32

    def test_start_and_freq(self) -> None:
        data = pa.table({"id": [7, 8], "1": [1.0, 2.0], "2": [3.0, None]})
        table = Table.from_wide(data, id_columns="id", start=["2024-01-01", "2024-02-01"], freq="D")
        assert table.series_names == (7, 8)
        assert table.timestamps is not None
        assert table.timestamps.astype("M8[D]").astype(str).tolist() == [
            *("2024-01-01", "2024-01-02"),
            "2024-02-01",
        ]
        with pytest.raises(ValueError, match="`start` and `freq` must be given together"):
            Table.from_wide(data, id_columns="id", freq="D")

    def test_a_row_without_values_is_a_series_without_rows(self) -> None:
        data = pa.table({"a": [1, None, 2], "b": [None, None, 3]})
        table = Table.from_wide(data)
        assert table.offsets.tolist() == [0, 1, 1, 3]
        assert table["target"].tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(ValueError, match="has no observed value"):
            Table.from_wide(pa.table({"a": pa.array([None], pa.float64())}))

    def test_integers_stay(self) -> None:
        table = Table.from_wide(pl.DataFrame({"a": [1, 2], "b": [3, 4]}))
        assert table["target"].dtype == np.int64
        assert table["target"].tolist() == [1, 3, 2, 4]

    def test_errors(self) -> None:
        data = pa.table({"id": ["a", "a"], "t": [1, 2], "x": [1.0, 2.0]})
        with pytest.raises(ValueError, match="2 rows have 1 id; expected one row a series"):
            Table.from_wide(data, id_columns="id")
        with pytest.raises(
            ValueError, match=r"must be None with series='rows', .* or series='columns' if"
        ):
            Table.from_wide(data, id_columns="id", timestamp_column="t")
        with pytest.raises(TypeError, match=r"column 'id' .* is a string column"):
            Table.from_wide(data)
        coded = data.set_column(0, "id", data["id"].dictionary_encode())
        with pytest.raises(TypeError, match="column 'id' has strings; expected numbers in all"):
            Table.from_wide(coded)
        with pytest.raises(ValueError, match="`series` must be 'rows' or 'columns', got 'row'"):
            Table.from_wide(data, series="row")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="has no argument 'sort'; expected columns, dtype"):
            Table.from_wide(data, sort=True)
        with pytest.raises(ValueError, match="`delimiter` is an option of CSV files, got da"):
            Table.from_wide(data, delimiter=";", decimal=",", columns="x")


class TestColumns:
    def test_the_files_of_electricity(self, tmp_path: Path) -> None:
        path = tmp_path / "electricity.csv"
        path.write_text("date;0;1;OT\n2016-07-01;1,5;4;7\n2016-07-02;2,5;;8\n")
        table = Table.from_wide(
            path, series="columns", timestamp_column="date", delimiter=";", decimal=","
        )
        assert table.series_names == ("0", "1", "OT")
        assert table.offsets.tolist() == [0, 2, 4, 6]
        np.testing.assert_array_equal(table["target"], [1.5, 2.5, 4, np.nan, 7, 8])
        assert table.step == np.timedelta64(1, "D")
        some = Table.from_wide(
            path, series="columns", columns=["OT"], delimiter=";", decimal=",", name="load"
        )
        assert some["load"].tolist() == [7, 8]
        assert some.timestamps is None

    def test_unsorted_times_are_sorted(self) -> None:
        data = pa.table({"t": [3, 1, 2], "a": [30.0, 10.0, 20.0], "b": [3.0, 1.0, 2.0]})
        table = Table.from_wide(data, series="columns", timestamp_column="t")
        assert table["target"].tolist() == [10, 20, 30, 1, 2, 3]
        assert table.report.sorted_series == (0, 1)

    def test_a_start(self) -> None:
        data = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "t": [1, 2]})
        table = Table.from_wide(data, series="columns", start="2024-01-01", freq="h")
        assert table.step == np.timedelta64(1, "h")
        with pytest.raises(ValueError, match="`start` and `freq` must be None with timestamp_col"):
            Table.from_wide(data, series="columns", timestamp_column="t", start=0, freq=1)
        with pytest.raises(ValueError, match="`id_columns` must be None with series='columns'"):
            Table.from_wide(data, series="columns", id_columns="t")

    def test_a_missing_timestamp(self) -> None:
        data = pa.table({"t": [1, None], "a": [1.0, 2.0]})
        with pytest.raises(ValueError, match="timestamp column 't' is missing in row 1"):
            Table.from_wide(data, series="columns", timestamp_column="t")


Matrix = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.none() | st.floats(-9, 9), min_size=width, max_size=width),
        min_size=1,
        max_size=5,
    )
)


@given(Matrix)
def test_both_ways_equal_lists(matrix: list[list[float | None]]) -> None:
    """Rows as series equal the lists without what is missing at their ends; columns all of it."""
    if not any(value is not None for row in matrix for value in row):
        return
    columns = {f"c{place}": list(column) for place, column in enumerate(zip(*matrix, strict=True))}
    data = pa.table({name: pa.array(column, pa.float64()) for name, column in columns.items()})

    def trimmed(row: list[float | None]) -> list[float]:
        while row and row[-1] is None:
            row = row[:-1]
        return [math.nan if value is None else value for value in row]

    def series(table: Table) -> list[list[float]]:
        return [one.tolist() for one in np.split(table["target"], table.offsets[1:-1])]

    np.testing.assert_equal(series(Table.from_wide(data)), [trimmed(row) for row in matrix])
    found = Table.from_wide(data, series="columns")
    whole = [[math.nan if v is None else v for v in column] for column in columns.values()]
    np.testing.assert_equal(series(found), whole)
    assert found.series_names == tuple(columns)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_same_from_files(tmp_path: Path, suffix: str) -> None:
    data = pa.table({"id": ["a", "b"], "1": [1.5, 2.5], "2": [3.5, None]})
    path = tmp_path / f"a.{suffix}"
    write: Any = csv.write_csv if suffix == "csv" else parquet.write_table
    write(data, path)
    expected = Table.from_wide(data, id_columns="id").fingerprint
    for one in (path, str(path), [path]):
        assert Table.from_wide(one, id_columns="id").fingerprint == expected
    with pytest.raises(MemoryError):
        Table.from_wide(path, id_columns="id", memory_budget=3)


def test_starts_are_of_all_rows_and_cut_with_them() -> None:
    data = pa.table({"id": [7, 8, 9], "1": [1.0, 2.0, 3.0]})
    days = ["2024-01-01", "2024-02-01", "2024-03-01"]
    for rows in [(0, 3), (1, 3), (1, None), (2, 3)]:
        table = Table.from_wide(data, id_columns="id", rows=rows, start=days, freq="D")
        assert table.timestamps is not None
        assert table.timestamps.astype("M8[D]").astype(str).tolist() == days[slice(*rows)]
        assert Table.from_wide(data, rows=rows, start=days[0], freq="D").timestamps is not None
    with pytest.raises(ValueError, match="`start` has 1 timestamps for 2 series"):
        Table.from_wide(data, id_columns="id", rows=(1, 3), start=days[:2], freq="D")


@pytest.mark.parametrize("series", ["rows", "columns"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([(1 << 53) + 1]), pa.array([0.5])),
        (pa.array([-(1 << 53) - 1]), pa.array([None], pa.int64())),
        (pa.array([(1 << 63) + 1], pa.uint64()), pa.array([-1])),
    ],
)
def test_big_integers_are_not_rounded(series: Any, first: Any, second: Any) -> None:
    with pytest.raises(OverflowError, match=r"column 'a' has -?9.* too large for dtype=float64"):
        Table.from_wide(pa.table({"a": first, "b": second}), series=series)
    table = Table.from_wide(pa.table({"a": first, "b": first}), series=series)
    assert table["target"].tolist() == [*first.to_pylist(), *first.to_pylist()]
