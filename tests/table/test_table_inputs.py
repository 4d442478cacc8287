"""Data of other libraries: frames, Series, lists; and paths that are none."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from windeck import Table, Windows

HOURS = [dt.datetime(2024, 1, 1, hour) for hour in range(4)]


class TestPaths:
    """`Table.read` names the function that takes what is not a path."""

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (pl.DataFrame({"site": [1]}), "got a DataFrame; Table.from_arrow takes data that is"),
            (pl.LazyFrame({"site": [1]}), "got a LazyFrame; Table.from_arrow takes data"),
            (pa.table({"site": [1]}), "got a Table; Table.from_arrow takes data that is in mem"),
            ({"site": [1]}, "got a dict; Table.from_columns takes a mapping of names to arrays"),
            (np.zeros(2), "got a ndarray; Table.from_columns and Table.from_rows take arrays"),
            (torch.zeros(2), "got a Tensor"),
            (7, "a directory or a list of these, got a int$"),
        ],
    )
    def test_data_in_memory(self, data: Any, message: str) -> None:
        for call in (Table.read, Table.estimate):
            with pytest.raises(TypeError, match=message):
                call(data)

    def test_urls_of_the_local_disk(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"x": [1.0]}), tmp_path / "a b.parquet")
        url = (tmp_path / "a b.parquet").as_uri()
        assert "%20" in url
        assert Table.read([url, url])["x"].tolist() == [1.0, 1.0]

    def test_a_frame_of_pandas(self) -> None:
        pd = pytest.importorskip("pandas")
        with pytest.raises(TypeError, match=r"got a DataFrame; Table\.from_pandas takes"):
            Table.read(pd.DataFrame({"site": [1]}))

    def test_paths_of_arrays(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
        assert len(Table.read(np.array([str(tmp_path / "a.parquet")]))) == 1


class TestPandasIndex:
    """Columns that the metadata of pandas names as the index."""

    @staticmethod
    def frame(**index: Any) -> Any:
        pd = pytest.importorskip("pandas")
        return pd.DataFrame({"load": [1.0, 2.0, 3.0, 4.0]}, **index)

    def test_an_index_without_a_name_is_left_out(self, tmp_path: Path) -> None:
        frame = self.frame(index=[5, 7, 9, 20])
        assert pa.table(frame).column_names == ["load", "__index_level_0__"]
        frame.to_parquet(tmp_path / "a.parquet")
        for table in (Table.from_arrow(frame), Table.read(tmp_path / "a.parquet")):
            assert table.column_names == ("load",)
        table = Table.from_arrow(frame, timestamp_column="__index_level_0__")
        assert table.timestamps is not None
        assert table.timestamps.tolist() == [5, 7, 9, 20]
        table = Table.read(tmp_path / "a.parquet", columns=["__index_level_0__"])
        assert table.column_names == ("__index_level_0__",)

    def test_named_levels_are_ids_and_time(self, tmp_path: Path) -> None:
        pd = pytest.importorskip("pandas")
        index = pd.MultiIndex.from_product([["a", "b"], HOURS[:2]], names=["site", "hour"])
        frame = self.frame(index=index)
        frame.to_parquet(tmp_path / "a.parquet")
        keys = {"id_columns": "site", "timestamp_column": "hour"}
        for table in (Table.from_arrow(frame, **keys), Table.read(tmp_path, **keys)):  # type: ignore[arg-type]
            assert table.column_names == ("load",)
            assert table.series_names == ("a", "b")
            assert table.offsets.tolist() == [0, 2, 4]
            assert table.step == np.timedelta64(1, "h")
        with pytest.raises(ValueError, match="an index of pandas with 'site', 'hour', which would"):
            Table.from_arrow(frame)

    @pytest.mark.parametrize(
        "stored", [b"", b"[]", b"{}", b'{"index_columns": 3}', b"\xff", b"[" * 10**5]
    )
    def test_damaged_metadata(self, stored: bytes) -> None:
        table = pa.table({"x": [1.0]}).replace_schema_metadata({b"pandas": stored})
        assert Table.from_arrow(table).column_names == ("x",)


class TestColumns:
    """`from_columns` takes lists and Series."""

    def test_lists(self) -> None:
        table = Table.from_columns(
            {"site": ["a", "a", "b"], "hour": HOURS[:3], "load": [1.0, None, 2], "n": range(3)},
            id_columns="site",
            timestamp_column="hour",
        )
        assert table.series_names == ("a", "b")
        assert table.column("load").observed().tolist() == [True, False, True]
        assert table["n"].tolist() == [0, 1, 2]
        assert table["n"].dtype == np.int64
        assert table.timestamps is not None
        assert table.timestamps.dtype == "datetime64[us]"

    def test_series_of_polars(self) -> None:
        frame = pl.DataFrame(
            {
                "load": [1.0, None, 3.0],
                "n": [1, None, 3],
                "hour": HOURS[:3],
                "site": ["a", "a", "b"],
            }
        )
        wind = pl.Series(["N", "S", "N"], dtype=pl.Categorical)
        columns = {name: frame[name] for name in frame.columns}
        table = Table.from_columns(
            {**columns, "wind": wind}, id_columns="site", timestamp_column="hour"
        )
        assert table["n"].dtype == np.int64
        for name in ("load", "n"):
            assert table.column(name).observed().tolist() == [True, False, True]
        assert table.column("wind").categories == ("N", "S")
        assert table.num_series == 2

    def test_series_of_pandas(self) -> None:
        pd = pytest.importorskip("pandas")
        load = pd.Series([1.0, 2.0, np.nan])
        table = Table.from_columns(
            {
                "load": load,
                "n": pd.Series([1, None, 3], dtype="Int64"),
                "wind": pd.Series(["N", "S", "N"], dtype="category"),
                "site": pd.Series(["a", "a", "b"]),
                "hour": pd.Series(HOURS[:3]),
            },
            id_columns="site",
            timestamp_column="hour",
        )
        assert np.shares_memory(table["load"], load.to_numpy())
        assert table.column("n").observed().tolist() == [True, False, True]
        assert table.column("wind").categories == ("N", "S")
        assert table.series_names == ("a", "b")
        assert table.step == np.timedelta64(1, "h")

    def test_a_list_that_is_no_column(self) -> None:
        for data in (["a", "b"], [[1], [2]], [object(), 1], ["a", 1]):
            with pytest.raises((TypeError, ValueError), match="column 'x'"):
                Table.from_columns({"x": data})


class TestLazy:
    """Only the columns used are computed."""

    def test_lazy_frames(self) -> None:
        def boom(_: Any) -> Any:
            raise AssertionError("computed")

        frame = pl.LazyFrame({"site": ["a", "a", "b"], "load": [1.0, 2.0, 3.0], "x": [1, 2, 3]})
        lazy = frame.with_columns(pl.col("x").map_batches(boom, return_dtype=pl.Int64))
        table = Table.from_arrow(lazy, columns="load", id_columns="site", dtype="float32")
        assert table["load"].tolist() == [1.0, 2.0, 3.0]
        assert table.series_names == ("a", "b")
        with pytest.raises(KeyError, match="the LazyFrame has no column 'lod'; did you mean 'load"):
            Table.from_arrow(lazy, columns="lod")
        every = Table.from_arrow(frame, id_columns="site")
        assert every.column_names == ("load", "x")

    def test_datasets_of_hugging_face(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_dict({"site": ["a", "a", "b"], "load": [1.0, 2.0, 3.0]})
        table = Table.from_arrow(data, id_columns="site")
        assert table["load"].tolist() == [1.0, 2.0, 3.0]
        some = data.select([2, 0]).rename_column("load", "y")
        assert Table.from_arrow(some, columns="y")["y"].tolist() == [3.0, 1.0]
        data.save_to_disk(str(tmp_path / "saved"))
        loaded = datasets.load_from_disk(str(tmp_path / "saved"))
        assert Table.from_arrow(loaded, columns="load")["load"].tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(TypeError, match="has the splits 'train'; expected one of them"):
            Table.from_arrow(datasets.DatasetDict({"train": data}))
        with pytest.raises(TypeError, match="IterableDataset has no rows in memory"):
            Table.from_arrow(data.to_iterable_dataset())


class TestWide:
    """Ids of which each has one row are likely those of a wide file."""

    def test_a_warning_names_from_wide(self, tmp_path: Path) -> None:
        steps = {f"V{step}": [float(step), 2.0] for step in range(2, 12)}
        data = pa.table({"V1": ["H1", "H2"], **steps})
        parquet.write_table(data, tmp_path / "a.parquet")
        with pytest.warns(
            UserWarning, match=r"2 series has one row and 10 columns.*from_wide\("
        ) as w:
            table = Table.read(tmp_path, id_columns="V1")
        assert Path(w[0].filename) == Path(__file__)
        assert table.num_series == 2
        with pytest.warns(UserWarning, match="id_columns='V1'"):
            Table.from_arrow(data, id_columns="V1")

    @pytest.mark.filterwarnings("error")
    def test_other_tables_give_none(self) -> None:
        steps: dict[str, Any] = {f"V{step}": [float(step), 2.0] for step in range(2, 12)}
        Table.from_arrow(pa.table({"V1": ["a", "a"], **steps}), id_columns="V1")
        Table.from_arrow(pa.table({"V1": ["a", "b"], "t": [1, 2], **steps}), id_columns="V1",
                         timestamp_column="t")  # fmt: skip
        Table.from_arrow(pa.table({"V1": ["a", "b"], "x": [1.0, 2.0]}), id_columns="V1")
        Table.from_arrow(pa.table({"V1": ["a"], **{n: v[:1] for n, v in steps.items()}}),
                         id_columns="V1")  # fmt: skip


def test_a_mapping_of_lists_makes_windows() -> None:
    table = Table.from_columns({"load": [1.0, 2.0, 3.0, 4.0]})
    windows = Windows(table, context_length=2, prediction_length=1, target_columns="load")
    assert windows[1]["past_target"].ravel().tolist() == [2.0, 3.0]
