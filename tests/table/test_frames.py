"""Tables from frames of pandas, and back to pandas, polars, Arrow and DuckDB."""

from __future__ import annotations

import pickle
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windeck as wd

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

HOURS = pd.date_range("2024-10-26T22", periods=3, freq="h", tz="Europe/Berlin")


def frame() -> Any:
    """Two series with two id columns, a time zone, and each kind of column with a missing value."""
    return pd.DataFrame(
        {
            "site": ["b", "b", "b", "a"],
            "unit": [2, 2, 2, 1],
            "time": [*HOURS, HOURS[0]],
            "load": pd.Series([0.5, None, 1.5, 2.5], dtype="float32"),
            "count": pd.array([1, None, 2**53 + 1, 3], dtype="Int64"),
            "on": pd.array([True, False, None, True], dtype="boolean"),
            "rate": pd.array([0.5, 1.5, None, 2.5], dtype="Float64"),
            "plain": np.array([1, 2, 3, 4], np.uint16),
            "wind": pd.Categorical(["N", None, "S", "N"]),
        }
    )


NAMES: dict[str, Any] = {"id_columns": ["site", "unit"], "timestamp_column": "time"}
VALUES = ["load", "count", "on", "rate", "plain", "wind"]


def rows_of(data: Any) -> list[dict[str, Any]]:
    return [
        {name: None if value != value else value for name, value in row.items()}
        for row in pa.table(data).to_pylist()
    ]


def as_table() -> wd.Table:
    return wd.Table.from_pandas(frame(), **NAMES)


def test_a_frame_of_pandas_goes_to_a_table_and_back() -> None:
    table = as_table()
    back = table.to_pandas()
    assert list(back) == ["site", "unit", "time", *VALUES]
    assert rows_of(pa.Table.from_pandas(back)) == rows_of(pa.Table.from_pandas(frame()))
    assert [str(back[name].dtype) for name in VALUES] == [
        *("float32", "Int64", "boolean", "float64", "uint16", "category"),
    ]
    assert str(back["time"].dt.tz) == "Europe/Berlin"
    assert back["count"][2] == 2**53 + 1
    again = wd.Table.from_pandas(back, **NAMES)
    assert again.fingerprint == table.fingerprint


def test_levels_of_the_index_are_ids_and_time() -> None:
    table = wd.Table.from_pandas(frame().set_index(["site", "time", "unit"]))
    assert (table.id_columns, table.timestamp_column) == (("site", "unit"), "time")
    assert table.series_names == (("b", 2), ("a", 1))
    assert table.time_zone == "Europe/Berlin"
    assert table.fingerprint == as_table().fingerprint


def test_a_named_column_of_time_leaves_levels_to_the_ids() -> None:
    indexed = frame().set_index(["site", "unit"])
    table = wd.Table.from_pandas(indexed, timestamp_column="time")
    assert table.fingerprint == as_table().fingerprint


@pytest.mark.parametrize("freq", ["h", "D", "W", "M", "Q", "Y", "15min"])
def test_periods_begin_at_their_start(freq: str) -> None:
    periods = pd.period_range("2024-01-01", periods=4, freq=freq)
    for data in (
        pd.DataFrame({"load": np.arange(4.0)}, index=periods),
        pd.Series(np.arange(4.0), index=periods, name="load"),
        pd.DataFrame({"load": np.arange(4.0), "timestamp": periods}),
    ):
        named = "timestamp" if len(getattr(data, "columns", ())) == 2 else None
        table = wd.Table.from_pandas(data, timestamp_column=named)
        expected = periods.to_timestamp().to_numpy()
        assert table.timestamp_column == "timestamp"
        assert (table.timestamps == expected).all()


def test_an_index_that_numbers_rows_is_left_out() -> None:
    for data in (frame(), frame()[lambda rows: rows.index != 1], frame().set_index("plain")):
        assert "index" not in wd.Table.from_pandas(data, **NAMES).column_names
    assert wd.Table.from_pandas(pd.Series([1.0, 2.0])).column_names == ("target",)


def test_levels_without_names_are_called_as_those_of_a_table() -> None:
    index = pd.MultiIndex.from_product([["a", "b"], [7], HOURS[:2]])
    table = wd.Table.from_pandas(pd.DataFrame({0: np.arange(4.0)}, index=index))
    assert table.id_columns == ("series_id_0", "series_id_1")
    assert table.timestamp_column == "timestamp"
    assert table.column_names == ("0",)
    assert list(table.to_pandas()) == ["series_id_0", "series_id_1", "timestamp", "0"]


def test_frames_that_cannot_be_taken() -> None:
    with pytest.raises(TypeError, match="a DataFrame is no frame or Series of pandas"):
        wd.Table.from_pandas(pl.DataFrame({"a": [1.0]}))
    twice = pd.MultiIndex.from_product([HOURS, HOURS[:1]], names=["time", "cutoff"])
    with pytest.raises(ValueError, match="2 levels of time, 'time', 'cutoff'; expected one"):
        wd.Table.from_pandas(pd.DataFrame({"load": np.arange(3.0)}, index=twice))
    same = pd.DataFrame({"time": np.arange(3.0)}, index=HOURS.rename("time"))
    with pytest.raises(ValueError, match="level 'time', which is the name of a column too"):
        wd.Table.from_pandas(same)


@pytest.mark.parametrize("order", [["site", "time"], ["time", "site"]])
def test_texts_of_times_in_an_index_are_no_ids(order: list[str]) -> None:
    times = pd.Series(np.repeat(HOURS.tz_localize(None), 2)).astype(str)
    data = pd.DataFrame({"site": ["a", "b"] * 3, "time": times, "load": np.arange(6.0)})
    if order[-1] == "site":
        data["site"] = [1, 2] * 3
    place = order.index("time")
    levelled = data.set_index(order)
    with pytest.raises(
        ValueError, match=f"no level of the index, {order[0]!r}, {order[1]!r}, has"
    ) as e:
        wd.Table.from_pandas(levelled)
    assert f"each of 6 rows is a series; if 'time' ({levelled.index.levels[place].dtype})" in str(
        e.value
    )
    cure = f"pd.to_datetime(frame.index.levels[{place}]), level={place})"
    assert cure in str(e.value)
    levelled.index = levelled.index.set_levels(
        pd.to_datetime(levelled.index.levels[place]), level=place
    )
    table = wd.Table.from_pandas(levelled, sort=True)
    assert (table.num_series, table.timestamp_column) == (2, "time")
    assert wd.Table.from_pandas(data.set_index(order), id_columns=order).num_series == 6


def test_a_level_of_dates_is_the_time() -> None:
    days = [date(2024, 1, 1), date(2024, 1, 2)]
    index = pd.MultiIndex.from_product([["a", "b"], days], names=["site", "day"])
    table = wd.Table.from_pandas(pd.DataFrame({"load": np.arange(4.0)}, index=index))
    assert (table.id_columns, table.timestamp_column) == (("site",), "day")
    assert table.timestamps is not None
    assert table.timestamps.astype("M8[D]").tolist() == days * 2
    alone = pd.DataFrame({"load": np.arange(2.0)}, index=pd.Index(days))
    assert wd.Table.from_pandas(alone).timestamp_column == "timestamp"


def test_the_frame_is_not_changed() -> None:
    data = frame().set_index(["site", "unit"])
    data["month"] = data["time"].dt.tz_localize(None).dt.to_period("M")
    before = data.copy()
    with pytest.raises(TypeError, match="column 'month' of the data is timestamp"):
        wd.Table.from_pandas(data, timestamp_column="time")
    pd.testing.assert_frame_equal(data, before)


def test_polars_and_duckdb_take_the_table_itself() -> None:
    table = as_table()
    expected = rows_of(pa.Table.from_pandas(frame()))
    for data in (table.to_polars(), pl.DataFrame(table), table.to_arrow(), pa.table(table)):
        assert rows_of(data) == expected
    polars = table.to_polars()
    assert polars.schema["time"] == pl.Datetime("ns", "Europe/Berlin") or (
        polars.schema["time"] == pl.Datetime("us", "Europe/Berlin")
    )
    assert wd.Table.from_arrow(polars, **NAMES).fingerprint == table.fingerprint
    duckdb = pytest.importorskip("duckdb")
    data = table.to_arrow()
    assert duckdb.sql("select count(load), sum(plain) from data").fetchall() == [(3, 10)]


def test_numbers_are_not_copied() -> None:
    load = np.arange(1000.0)
    found = wd.Table.from_columns({"load": load}).to_arrow().column("load").chunk(0)
    assert np.shares_memory(np.asarray(found), load)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_missing_floats_are_null(dtype: str) -> None:
    load = np.array([0.5, np.nan, 1.5], dtype)
    table = wd.Table.from_columns({"load": load})
    expected = [0.5, None, 1.5]
    for made in (table, table.with_missing_counts()):
        for data in (made.to_arrow(), pa.table(made), made.head(3)):
            assert data.column("load").to_pylist() == expected
            found = np.frombuffer(data.column("load").chunk(0).buffers()[1], dtype)
            assert np.shares_memory(found, load)
        np.testing.assert_array_equal(made.to_pandas()["load"], load)
        assert made.to_pandas()["load"].dtype == dtype
    if dtype != "float16":
        assert table.to_polars()["load"].to_list() == expected


def test_rows_that_regularize_adds_are_null_in_polars() -> None:
    times = np.array(["2024-01-01T00", "2024-01-01T02"], "M8[h]").astype("M8[us]")
    columns = {"time": times, "load": [0.0, 2.0], "count": [1, 3]}
    hourly = wd.Table.from_columns(columns, timestamp_column="time").regularize("1h")
    assert hourly.to_polars().select("load", "count").rows() == [(0.0, 1), (None, None), (2.0, 3)]


def test_a_null_and_a_nan_are_null() -> None:
    data = pa.table({"a": pa.array([None, float("nan"), 2.0, float("nan")])}).slice(0, 3)
    assert wd.Table.from_arrow(data).to_arrow().to_pydict() == {"a": [None, None, 2.0]}


def test_a_bitmap_with_an_offset_and_a_matrix() -> None:
    data = pa.table({"a": pa.array([1, None, 3, None, 5, 6, None, 8])}).slice(3)
    assert wd.Table.from_arrow(data).to_arrow().to_pydict() == {"a": [None, 5, 6, None, 8]}
    matrix = wd.Table.from_rows(np.arange(6.0).reshape(3, 2), ["a", "b"], offsets=[0, 2, 3])
    assert matrix.to_arrow().to_pydict() == {
        "series_id": [0, 0, 1],
        "a": [0.0, 2.0, 4.0],
        "b": [1.0, 3.0, 5.0],
    }


def test_bfloat16_becomes_float32() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor([0.5, float("nan"), -1.5], dtype=torch.bfloat16)
    found = wd.Table.from_columns({"a": values}).to_arrow().column("a")
    assert found.type == pa.float32()
    np.testing.assert_array_equal(found.to_numpy(), values.float().numpy())
    assert found.null_count == 1


def test_names_stay_with_a_table(tmp_path: Path) -> None:
    table = as_table()
    pq.write_table(table.to_arrow(), tmp_path / "a.parquet")
    streamed = wd.Table.read(tmp_path / "a.parquet", in_memory=False, **NAMES)
    wide = pa.table({"id": ["a"], "1": [1.0], "2": [2.0]})
    series = wd.Table.from_wide(wide, id_columns="id")
    assert series.to_arrow().to_pydict() == {"id": ["a", "a"], "target": [1.0, 2.0]}
    for made in (table, streamed, table.with_missing_counts(), streamed.with_missing_counts()):
        for one in (made, pickle.loads(pickle.dumps(made))):
            assert (one.id_columns, one.timestamp_column) == (("site", "unit"), "time")
    assert streamed.head(3).equals(pa.table(table).slice(0, 3))
    with pytest.raises(TypeError, match=r"to_arrow\(\) is not supported for a streamed table"):
        streamed.to_polars()


def test_head_and_span() -> None:
    table = as_table()
    assert table.head(2).equals(table.to_arrow().slice(0, 2))
    assert table.head(9).num_rows == 4
    assert table.head(0).num_rows == 0
    first, last = (time.tz_convert("UTC").tz_localize(None) for time in (HOURS[0], HOURS[-1]))
    assert table.span == (first.to_datetime64(), last.to_datetime64())
    numbered = wd.Table.from_columns({"a": np.zeros(2), "t": [3, 5]}, timestamp_column="t")
    assert numbered.span == (3, 5)
    assert wd.Table.from_columns({"a": np.zeros(2)}).span is None
    with pytest.raises(ValueError, match="`rows` must be at least 0, got -1"):
        table.head(-1)


def test_a_value_with_the_name_of_an_id() -> None:
    columns = {"timestamp": np.zeros(2)}
    table = wd.Table.from_columns(columns, offsets=[0, 1, 2])
    assert table.to_arrow().column_names == ["series_id", "timestamp"]
    rows = wd.Table.from_rows(np.zeros((2, 1)), ["timestamp"], timestamps=np.arange(2))
    with pytest.raises(ValueError, match="column 'timestamp' has the name of an id or of the time"):
        rows.to_arrow()


def test_a_table_without_rows() -> None:
    table = wd.Table.from_columns({"a": np.zeros(0), "b": np.zeros(0, np.int64)}, id_columns="b")
    assert table.to_arrow().num_rows == 0
    assert list(table.to_pandas()) == ["b", "a"]
