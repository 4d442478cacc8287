"""Tables of files and of data in memory, compared with pyarrow and NumPy."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from windeck import Table

Write = Any
WRITERS: dict[str, Write] = {
    "parquet": lambda table, path: parquet.write_table(table, path, row_group_size=7),
    "feather": lambda table, path: feather.write_feather(
        table, path, compression="zstd", chunksize=7
    ),
    "csv": lambda table, path: csv.write_csv(table, path),
}


@pytest.fixture
def sample() -> pa.Table:
    """Return two series of numbers, each sorted by time."""
    rows = 20
    return pa.table(
        {
            "id": pa.array(["a"] * 12 + ["b"] * 8),
            "time": pa.array(
                np.datetime64("2020-01-01T00", "s") + np.arange(rows) * np.timedelta64(3600, "s")
            ),
            "load": np.arange(rows) + 0.5,
            "count": np.arange(rows, dtype=np.int64),
            "note": pa.array(["x", "y"] * 10),
        }
    )


@pytest.mark.parametrize("suffix", WRITERS)
def test_reads_ids_time_and_values(sample: pa.Table, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"
    WRITERS[suffix](sample, path)
    table = Table.read(path, columns=["load"], id_columns="id", timestamp_column="time")
    assert table.column_names == ("load",)
    np.testing.assert_array_equal(table["load"], np.arange(20) + 0.5)
    assert table.series_names == ("a", "b")
    assert table.offsets.tolist() == [0, 12, 20]
    assert table.step == np.timedelta64(1, "h")
    assert table.report.clean
    assert len(table) == table.num_rows == 20


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("rows", [(0, 20), (3, 17), (7, 14), (8, None), (5, 5)])
def test_reads_a_range_of_rows(
    sample: pa.Table, tmp_path: Path, suffix: str, rows: tuple[int, int | None]
) -> None:
    path = tmp_path / f"data.{suffix}"
    WRITERS[suffix](sample, path)
    table = Table.read(path, columns=["count"], rows=rows)
    np.testing.assert_array_equal(table["count"], np.arange(20)[slice(*rows)])


def test_from_columns_copies_nothing() -> None:
    load = np.arange(6.0)[::2]
    table = Table.from_columns({"load": load}, offsets=[0, 1, 3])
    assert np.shares_memory(table["load"], load)
    assert not table["load"].flags.writeable
    assert load.flags.writeable
    assert table.num_series == 2
    assert table.storage == "columns"


def test_from_rows_copies_nothing() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = Table.from_rows(matrix, ["a", "b", "c"])
    assert table.storage == "rows"
    assert np.shares_memory(table["b"], matrix)
    np.testing.assert_array_equal(table["b"], matrix[:, 1])
    assert Table.from_rows(np.asfortranarray(matrix), ["a", "b", "c"]).storage == "columns"


def test_unknown_column_names_near_ones(sample: pa.Table, tmp_path: Path) -> None:
    parquet.write_table(sample, tmp_path / "data.parquet")
    with pytest.raises(KeyError, match=r"no column 'lod'; did you mean 'load'\?"):
        Table.read(tmp_path / "data.parquet", columns=["lod"])


def test_pickle_keeps_values_and_layout(sample: pa.Table, tmp_path: Path) -> None:
    parquet.write_table(sample, tmp_path / "data.parquet")
    names = ["load"]
    table = Table.read(tmp_path / "data.parquet", columns=names, id_columns="id", storage="rows")
    again = pickle.loads(pickle.dumps(table))
    assert again.fingerprint == table.fingerprint
    assert again.storage == "rows"
    assert not again["load"].flags.writeable
    np.testing.assert_array_equal(again["load"], np.arange(20) + 0.5)


def test_a_pickle_without_the_names_of_columns_loads() -> None:
    """Earlier versions wrote pickles of the values and the layout alone."""
    columns = {"load": np.arange(6.0), "t": np.arange(6).astype("M8[h]")}
    table = Table.from_columns(columns, timestamp_column="t", offsets=[0, 2, 6])
    rebuild, (loaded, layout, _) = table.__reduce__()
    again = rebuild(loaded, layout)
    assert again.fingerprint == table.fingerprint
    assert (again.id_columns, again.timestamp_column) == ((), None)
    assert again.to_arrow().num_rows == 6
