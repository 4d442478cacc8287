"""Tables of series of different lengths: arrays, mappings, and list columns of files."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet

from windeck import Table, Windows

SERIES = [[1.0, 2.0, 3.0], [], [4.0], [5.0, np.nan]]
FLAT = [1.0, 2.0, 3.0, 4.0, 5.0, np.nan]


def check(table: Table, column: str = "target") -> None:
    assert table.offsets.tolist() == [0, 3, 3, 4, 6]
    np.testing.assert_array_equal(table[column], FLAT)


class TestSeries:
    @pytest.mark.parametrize(
        "make",
        [
            list,
            lambda one: np.array(one),
            lambda one: torch.tensor(one, dtype=torch.float64),
            lambda one: pl.Series(one, dtype=pl.Float64),
            lambda one: [None if value != value else value for value in one],
        ],
    )
    def test_one_column(self, make: Any) -> None:
        series = [make(one) for one in SERIES]
        check(Table.from_series(series))
        check(Table.from_series(series, columns="load"), "load")
        named = Table.from_series(dict(zip("abcd", series, strict=True)))
        check(named)
        assert named.series_names == ("a", "b", "c", "d")
        named = Table.from_series(series, series_names=[(1, "x"), (2, "x"), 3, 4])
        assert named.series_names == ((1, "x"), (2, "x"), 3, 4)

    def test_several_columns(self) -> None:
        series = [np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((1, 2), np.float32)]
        for make in (np.asarray, torch.from_numpy):
            table = Table.from_series([make(one) for one in series], columns=["load", "wind"])
            assert table["load"].tolist() == [0, 2, 4, 1]
            assert table["wind"].tolist() == [1, 3, 5, 1]
            assert table["wind"].dtype == np.float32
        with pytest.raises(ValueError, match="have 2 columns, and `columns` has 0 names"):
            Table.from_series(series)

    def test_start_and_freq(self) -> None:
        table = Table.from_series(SERIES, start="2024-01-01 06:00", freq="6h")
        assert table.timestamps is not None
        assert table.timestamps[:3].tolist() == [
            dt.datetime(2024, 1, 1, 6),
            dt.datetime(2024, 1, 1, 12),
            dt.datetime(2024, 1, 1, 18),
        ]
        starts = [dt.datetime(2024, 1, day) for day in (1, 2, 3, 4)]
        table = Table.from_series(SERIES, start=starts, freq=dt.timedelta(days=1))
        assert table.timestamps is not None
        assert table.timestamps.astype("M8[D]").astype(str).tolist() == [
            *("2024-01-01", "2024-01-02", "2024-01-03"),
            *("2024-01-03", "2024-01-04", "2024-01-05"),
        ]
        table = Table.from_series(SERIES, start=[0, 5, 10, 20], freq=2)
        assert table.timestamps is not None
        assert table.timestamps.tolist() == [0, 2, 4, 10, 20, 22]

    def test_an_index_of_time(self) -> None:
        pd = pytest.importorskip("pandas")
        index = pd.date_range("2024-01-01", periods=3, freq="h")
        table = Table.from_series([pd.Series([1.0, 2.0, 3.0], index), pd.Series([4.0], index[2:])])
        assert table.timestamps is not None
        np.testing.assert_array_equal(table.timestamps, [*index, index[2]])
        assert Table.from_series([pd.Series([1.0]), pd.Series([2.0])]).timestamps is None

    @pytest.mark.parametrize(
        ("series", "options", "message"),
        [
            ([], {}, "there are no series"),
            ([[1.0], [[1.0]]], {}, r"have shapes such as \(1,\) and \(1, 1\)"),
            ([np.zeros((1, 1, 1))], {}, "expected .time,. each"),
            ([np.zeros(2, np.float32), np.zeros(2)], {}, "is float32 and float64 in different"),
            ([[1.0]], {"columns": ["a", "b"]}, "have 1 column, and `columns` has 2 names"),
            ([[1.0]], {"start": "2024"}, "pass freq="),
            ([[1.0]], {"freq": "h"}, "`freq` must be None without"),
            ([[1.0]], {"start": ["2024", "2025"], "freq": "h"}, "has 2 timestamps for 1 series"),
            ([[1.0]], {"start": "2024", "freq": "B"}, "`freq` must be an integer, a dur.* got 'B'"),
            ([[1.0]], {"start": "2024", "freq": "0h"}, "`freq` must be a positive step, got '0h'"),
            ([[1.0]], {"start": "2024", "freq": 1}, "expected a duration"),
            ([[1.0]], {"start": 3, "freq": "h"}, "expected timestamps with a duration, or integ"),
            ([[1.0]], {"timestamp_column": "t"}, "arrays have no columns; pass start="),
            ([["a"]], {}, "series 0 has dtype <U1"),
            ([torch.zeros(2, dtype=torch.bfloat16)], {}, "series 0 is bfloat16, which Arrow lacks"),
            ({"a": [1.0]}, {"series_names": ["b"]}, "must be None for a mapping"),
            ([[1.0]], {"series_names": ["b", "c"]}, "`series_names` must have 1 name"),
            ([[], []], {}, "has no value in any list"),
        ],
    )
    def test_errors(self, series: Any, options: Any, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            Table.from_series(series, **options)


class TestFrequencies:
    @pytest.mark.parametrize("freq", ["MS", "M", "QS", "Q-DEC", "YS", "W-SUN", "3D", "90min", "2W"])
    def test_like_pandas(self, freq: str) -> None:
        """Months, quarters and years give the first day of the period of pandas."""
        pd = pytest.importorskip("pandas")
        start = pd.Timestamp("2023-11-01 00:00")
        table = Table.from_series([np.zeros(20)], start=start, freq=freq)
        alias = {"M": "MS", "Q-DEC": "QS-NOV", "QS": "QS-NOV", "YS": "YS-NOV"}.get(freq, freq)
        if alias.startswith(("W", "2W")):
            alias = alias.replace("-SUN", "") + "-WED"  # 1 November 2023
        model = pd.date_range(start, periods=20, freq=alias)
        np.testing.assert_array_equal(table.timestamps, model.to_numpy())

    def test_objects_of_pandas(self) -> None:
        pd = pytest.importorskip("pandas")
        start = pd.Period("2024-01-01 05:00", "h")
        for freq in (pd.offsets.Hour(2), pd.Timedelta("2h"), "2h", "2H"):
            table = Table.from_series([[1.0, 2.0]], start=start, freq=freq)
            assert table.step == np.timedelta64(2, "h")


#: Entries as GluonTS has them.
ENTRIES = [
    {
        "item_id": "a",
        "start": "2024-01-01",
        "target": np.array([1.0, 2.0, 3.0], np.float32),
        "feat_static_cat": np.array([3]),
        "feat_dynamic_real": np.arange(6, dtype=np.float32).reshape(2, 3),
    },
    {
        "item_id": "b",
        "start": "2024-01-05",
        "target": np.array([4.0], np.float32),
        "feat_static_cat": np.array([4]),
        "feat_dynamic_real": np.array([[7], [8]], np.float32),
    },
]


class TestMappings:
    """Mappings of names to values, one for each series."""

    def test_entries(self) -> None:
        table = Table.from_series(
            ENTRIES,
            columns=["target", "feat_dynamic_real"],
            id_columns="item_id",
            timestamp_column="start",
            freq="D",
        )
        assert table.series_names == ("a", "b")
        assert table.column_names == ("target", "feat_dynamic_real_0", "feat_dynamic_real_1")
        assert table["target"].dtype == np.float32
        assert table["feat_dynamic_real_0"].tolist() == [0, 1, 2, 7]
        assert table["feat_dynamic_real_1"].tolist() == [3, 4, 5, 8]
        assert table.timestamps is not None
        assert table.timestamps.astype("M8[D]").astype(str).tolist()[-2:] == [
            "2024-01-03",
            "2024-01-05",
        ]

    def test_lists_of_another_length(self) -> None:
        with pytest.raises(ValueError, match=r"'feat_static_cat' has 1 value in series 0, and"):
            Table.from_series(ENTRIES, id_columns="item_id", timestamp_column="start", freq=1)

    def test_numbers_hold_for_their_series(self) -> None:
        entries = [{"x": [1.0, 2.0], "size": 5}, {"x": [3.0], "size": 6}]
        assert Table.from_series(entries)["size"].tolist() == [5, 5, 6]

    def test_periods_of_pandas(self) -> None:
        pd = pytest.importorskip("pandas")
        entries = [{"start": pd.Period("2024-03", "M"), "target": [1.0, 2.0]}]
        table = Table.from_series(entries, timestamp_column="start", freq="M")
        assert table.timestamps is not None
        assert table.timestamps.astype(str).tolist() == ["2024-03-01", "2024-04-01"]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match="'y' is in one of series 0 and series 1 alone"):
            Table.from_series([{"x": [1.0], "y": [1.0]}, {"x": [1.0]}])
        with pytest.raises(ValueError, match="'z' is in one of series 0 and series 1 alone"):
            Table.from_series([{"x": [1.0]}, {"x": [1.0], "z": [1.0]}])
        with pytest.raises(ValueError, match="two rows are the series 'a'"):
            Table.from_series([{"i": "a", "x": [1.0]}, {"i": "a", "x": [1.0]}], id_columns="i")
        with pytest.raises(ValueError, match="`start` must be None for mappings"):
            Table.from_series([{"x": [1.0]}], start="2024", freq="h")
        with pytest.raises(KeyError, match="has no column 'y'"):
            Table.from_series([{"x": [1.0]}], columns="y")


def lists(**more: Any) -> pa.Table:
    """Return a table as Chronos has them: one row a series."""
    return pa.table({"id": ["a", "b", "c", "d"], "target": pa.array(SERIES), **more})


class TestListColumns:
    def test_files(self, tmp_path: Path) -> None:
        hours = [[dt.datetime(2024, 1, 1, hour) for hour in range(len(one))] for one in SERIES]
        data = lists(timestamp=pa.array(hours, pa.list_(pa.timestamp("ms"))), kind=list("xyxy"))
        parquet.write_table(data, tmp_path / "a.parquet", row_group_size=3)
        feather.write_feather(data, tmp_path / "b.feather")
        feather.write_feather(data, tmp_path / "c.feather", compression="uncompressed")
        options: dict[str, Any] = {"id_columns": "id", "timestamp_column": "timestamp"}
        for name in ("a.parquet", "b.feather", "c.feather"):
            table = Table.from_series(tmp_path / name, categories="kind", **options)
            check(table)
            assert table.series_names == ("a", "b", "c", "d")
            assert table.column("kind").categories == ("x", "y")
            assert table["kind"].tolist() == [0, 0, 0, 0, 1, 1]
            assert table.timestamps is not None
            assert table.timestamps.dtype == "M8[ms]"
            some = Table.from_series(tmp_path / name, columns="target", rows=(2, 4), **options)
            assert some.series_names == ("c", "d")
            assert some.offsets.tolist() == [0, 1, 3]
        paths = [tmp_path / "a.parquet", str(tmp_path / "a.parquet")]
        twice = Table.from_series(paths, columns="target")
        assert twice.num_series == 8
        with pytest.raises(MemoryError, match="more than memory_budget"):
            Table.from_series(tmp_path / "a.parquet", columns="target", memory_budget=9)

    def test_values_are_not_copied(self) -> None:
        data = lists()
        table = Table.from_series(data, id_columns="id")
        check(table)
        values = np.asarray(data.column("target").chunk(0).values)
        assert np.shares_memory(table["target"], values)

    def test_the_frequency_of_the_metadata(self) -> None:
        data = lists(start=pa.array(["2024-01-01"] * 4))
        with pytest.raises(ValueError, match="one timestamp for each series; pass freq="):
            Table.from_series(data, id_columns="id", timestamp_column="start")
        data = data.replace_schema_metadata({"freq": "W-SUN"})
        table = Table.from_series(data, id_columns="id", timestamp_column="start")
        assert table.step == np.timedelta64(7, "D")

    @pytest.mark.parametrize("kind", [pa.large_list, pa.list_, lambda one: pa.list_(one, 2)])
    def test_kinds_of_lists(self, kind: Any) -> None:
        data = pa.table({"x": pa.array([[1, 2], [3, 4]], kind(pa.int32()))})
        table = Table.from_series(data)
        assert table["x"].tolist() == [1, 2, 3, 4]
        assert table["x"].dtype == np.int32
        nested = pa.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0]]][:2])
        data = pa.table({"y": nested.cast(pa.large_list(pa.list_(pa.float64())))})
        assert Table.from_series(data)["y_1"].tolist() == [3, 4, 6]

    def test_slices_and_chunks(self) -> None:
        data = pa.concat_tables([lists(), lists()])
        table = Table.from_series(data.slice(2, 4), columns="target")
        assert table.offsets.tolist() == [0, 1, 3, 6, 6]
        np.testing.assert_array_equal(table["target"], [*FLAT[3:], *FLAT[:3]])

    def test_missing_values_and_missing_lists(self) -> None:
        data = pa.table({"x": [[1.0, None], None, [3.0]]})
        table = Table.from_series(data)
        assert table.offsets.tolist() == [0, 2, 2, 3]
        assert table.column("x").observed().tolist() == [True, False, True]

    def test_strings_of_polars_that_hold_for_a_series(self) -> None:
        frame = pl.DataFrame({"place": ["x", "y", "x", None], "target": SERIES})
        for columns in (frame, pl.concat([frame[:1], frame[1:]], rechunk=False)):
            table = Table.from_series(columns, categories=["place"])
            place = table.column("place")
            assert place.categories == ("x",)  # The series of y has no row.
            assert place.observed().tolist() == [True] * 4 + [False] * 2
            assert place.values[:4].tolist() == [0] * 4

    def test_other_libraries(self) -> None:
        frame = pl.DataFrame({"id": list("abcd"), "target": SERIES, "unused": [1, 2, 3, 4]})
        for data in (frame, frame.lazy()):
            check(Table.from_series(data, columns="target", id_columns="id"))
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict({"id": list("abcd"), "target": SERIES})
        check(Table.from_series(data, id_columns="id"))

    @pytest.mark.parametrize(
        ("data", "options", "message"),
        [
            ({"x": [1.0, 2.0]}, {}, "has no list column among 'x'; expected one row a series"),
            ({"x": [[1.0]], "y": [[1.0, 2.0]]}, {}, "'y' has 2 values in series 0, and 'x' has 1"),
            ({"x": [[[1.0], [2.0, 3.0]]]}, {}, r"lists of \[1, 2\] values in series 0"),
            ({"x": [[[1.0]], [[2.0], [3.0]]]}, {}, "has 2 lists in series 1 and 1 in series 0"),
            ({"x": [["a"]]}, {}, "'x' of the data is a string column without a category"),
            ({"i": [1.5], "x": [[1.0]]}, {"id_columns": "i"}, "is double; expected strings or int"),
            ({"i": [None, "a"], "x": [[1.0], [1.0]]}, {"id_columns": "i"}, "'i' is null in row 0"),
            ({"t": [[1, 2]], "x": [[1.0]]}, {"timestamp_column": "t"}, "2 values in series 0, wh"),
            ({"t": [[1]], "x": [[1.0]]}, {"timestamp_column": "t", "freq": 1}, "`freq` must be N"),
            ({"t": [None, 1], "x": [[1.0]] * 2}, {"timestamp_column": "t", "freq": 1}, "is missin"),
            ({"x": [[1.0]]}, {"start": 3, "freq": 1}, "`start` must be None for columns"),
            (
                {"i": ["a"], "x": [[1.0]]},
                {"id_columns": "i", "series_names": ["b"]},
                "must be None",
            ),
        ],
    )
    def test_errors(self, data: Any, options: Any, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=message):
            Table.from_series(pa.table(data), **options)

    def test_reading_of_rows_says_how(self, tmp_path: Path) -> None:
        parquet.write_table(lists(), tmp_path / "a.parquet")
        with pytest.raises(TypeError, match=r"'target' .*Table.from_series reads one row a series"):
            Table.read(tmp_path, id_columns="id")


@given(st.lists(st.lists(st.floats(width=32), max_size=5), min_size=1, max_size=6))
def test_equal_to_columns_end_to_end(series: list[list[float]]) -> None:
    """The same table as `from_columns` of the values end to end, in all spellings."""
    flat = np.array([value for one in series for value in one], np.float32)
    if not len(flat):
        return
    ends = np.cumsum([0, *map(len, series)])
    model = Table.from_columns({"target": flat}, offsets=ends)
    arrays = [np.array(one, np.float32) for one in series]
    arrow = pa.table({"target": pa.array(series, pa.list_(pa.float32()))})
    for data in (arrays, arrow, [{"target": one} for one in arrays]):
        assert Table.from_series(data).fingerprint == model.fingerprint


def test_windows_of_series() -> None:
    table = Table.from_series([np.arange(5.0), np.arange(3.0)])
    windows = Windows(table, context_length=2, prediction_length=1, target_columns="target")
    assert len(windows) == 4


def timestamp(value: Any) -> Any:
    return pytest.importorskip("pandas").Timestamp(value)


class TestTimes:
    STAMP = np.datetime64("2024-01-01T00:00:00.123456789")

    @pytest.mark.parametrize("make", [np.datetime64, str, timestamp])
    def test_nanoseconds_of_a_start_are_kept(self, make: Any) -> None:
        for start in (make(self.STAMP), [make(self.STAMP)]):
            stamps = Table.from_series([[1.0, 2.0]], start=start, freq="h").timestamps
            assert stamps is not None
            assert stamps.tolist() == [
                int(self.STAMP.astype(int)) + i * 3600 * 10**9 for i in (0, 1)
            ]

    @pytest.mark.parametrize("make", [np.datetime64, timestamp])
    def test_nanoseconds_of_mappings_are_kept(self, make: Any) -> None:
        starts = [self.STAMP, np.datetime64("2024-02-01", "ns")]
        entries = [{"start": make(start), "target": [1.0]} for start in starts]
        for order in (entries, entries[::-1]):
            table = Table.from_series(order, timestamp_column="start", freq="h")
            assert table.timestamps is not None
            expected = starts if order is entries else starts[::-1]
            assert table.timestamps.astype("M8[ns]").tolist() == np.array(expected).tolist()

    def test_an_index_must_be_in_all_series(self) -> None:
        pd = pytest.importorskip("pandas")
        days = pd.date_range("2024-01-01", periods=2)
        timed, plain = pd.Series([1.0, 2.0], index=days), pd.Series([3.0])
        for series in ([timed, plain], [timed, [3.0]], {"a": timed, "b": plain}):
            with pytest.raises(
                ValueError, match="series 1 has no index of timestamps, and series 0"
            ):
                Table.from_series(series)
        with pytest.raises(ValueError, match="series 0 has no index of timestamps, and series 1"):
            Table.from_series([plain, timed])
        assert Table.from_series([plain, plain]).timestamps is None
        table = Table.from_series([timed, plain], start="2024-01-01", freq="D")
        assert table.timestamps is not None

    def test_an_index_of_periods_is_its_first_moments(self) -> None:
        pd = pytest.importorskip("pandas")
        months = pd.period_range("2024-01", periods=3, freq="M")
        table = Table.from_series([pd.Series([1.0, 2.0, 3.0], index=months)])
        assert table.timestamps is not None
        assert table.timestamps.astype("M8[D]").astype(str).tolist() == [
            *("2024-01-01", "2024-02-01", "2024-03-01")
        ]


BIG = (1 << 53) + 1


class TestBigIntegers:
    @pytest.mark.parametrize(
        "series",
        [
            [[BIG, None]],
            [[-BIG, 0.5]],
            [[1, 2], [BIG, 1.5]],
            [[[BIG, 1], [0.5, 2]]],
            [[np.int64(BIG), 0.5]],
            [[np.array([BIG]), np.array([0.5])]],
            [[(1 << 63) + 1, -1]],
            [np.array([BIG]), np.array([0.5])],
            [np.array([0.5]), np.array([-BIG])],
            [pl.Series([BIG, None])],
            [pa.chunked_array([[BIG, None]])],
            [{"x": [BIG, None]}],
            [{"x": [BIG]}, {"x": [0.5]}],
        ],
    )
    def test_are_not_rounded(self, series: Any) -> None:
        with pytest.raises(OverflowError, match=r"has -?9\d+.* too large for dtype=float64"):
            Table.from_series(series, columns=["a", "b"] if np.ndim(series[0]) == 2 else None)

    def test_of_pandas_are_not_rounded(self) -> None:
        series = pytest.importorskip("pandas").Series([BIG, None], dtype="Int64")
        with pytest.raises(OverflowError, match="too large for dtype=float64"):
            Table.from_series([series])

    def test_are_kept_alone_and_up_to_the_limit(self) -> None:
        assert Table.from_series([[BIG], [-BIG]])["target"].tolist() == [BIG, -BIG]
        assert Table.from_series([[BIG - 1, 0.5]])["target"].tolist() == [BIG - 1, 0.5]
        values = Table.from_series([np.array([1 - BIG]), np.array([0.5])])["target"]
        assert values.tolist() == [1 - BIG, 0.5]


def test_names_are_of_all_series_and_cut_with_the_rows() -> None:
    series = {name: [float(i)] * (i + 1) for i, name in enumerate("abcd")}
    for start, stop in [(0, 4), (1, 3), (2, None), (0, 1)]:
        rows = (start, stop)
        expected = [(name, values[0]) for name, values in series.items()][start:stop]
        table = Table.from_series(series, rows=rows)
        listed = Table.from_series(list(series.values()), series_names=list("abcd"), rows=rows)
        for found in (table, listed):
            names = found.series_names
            assert names is not None
            firsts = found["target"][found.offsets[:-1]].tolist()
            assert list(zip(names, firsts, strict=True)) == expected
    with pytest.raises(ValueError, match="`series_names` has 2 names for 4 series"):
        Table.from_series(list(series.values()), series_names=["b", "c"], rows=(1, 3))


def test_lists_of_texts_are_timestamps() -> None:
    series = [
        {"id": "a", "time": ["2024-01-01 06:00", "2024-01-01 07:00"], "load": [1.0, 2.0]},
        {"id": "b", "time": ["2024-02-01"], "load": [3.0]},
    ]
    table = Table.from_series(series, id_columns="id", timestamp_column="time")
    expected = np.array(["2024-01-01T06", "2024-01-01T07", "2024-02-01T00"], "M8[us]")
    np.testing.assert_array_equal(table.timestamps, expected)
    assert table.step == np.timedelta64(1, "h")
    series[1]["time"] = ["soon"]
    with pytest.raises(ValueError, match="soon"):
        Table.from_series(series, id_columns="id", timestamp_column="time")


def test_frames_are_named_in_the_error() -> None:
    pd = pytest.importorskip("pandas")
    for frame in (pd.DataFrame({"load": [1.0]}), pl.DataFrame({"load": [1.0]})):
        with pytest.raises(TypeError, match=r"series 0 is a DataFrame; .* Table.from_arrow takes"):
            Table.from_series([frame, frame])
