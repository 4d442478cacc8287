"""Errors of reading tables: their types, and messages that name the file or column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, ipc, parquet

from table.test_table_files import numbers
from windeck import Table


def test_empty_file(tmp_path: Path) -> None:
    for suffix in ("parquet", "feather", "csv"):
        path = tmp_path / f"a.{suffix}"
        path.touch()
        with pytest.raises(ValueError, match=rf"a.{suffix}' is empty \(0 bytes\)"):
            Table.read(path)


def test_file_without_rows(tmp_path: Path) -> None:
    parquet.write_table(numbers(0), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("load\n")
    for name in ("a.parquet", "a.csv"):
        with pytest.raises(ValueError, match=f"{name}' has no rows"):
            Table.read(tmp_path / name)


@pytest.mark.parametrize("keep", [3, 7, 50, 0.3, 0.9, 0.999])
def test_truncated(tmp_path: Path, keep: float) -> None:
    parquet.write_table(numbers(1000), tmp_path / "a.parquet")
    feather.write_feather(numbers(1000), tmp_path / "a.feather")
    with ipc.new_stream(str(tmp_path / "a.arrows"), numbers(1).schema) as writer:
        writer.write_table(numbers(1000))
    for name, kind in (("a.parquet", "Parquet"), ("a.feather", "Arrow IPC"), ("a.arrows", "A")):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: int(keep if keep >= 1 else keep * len(data))])
        if name == "a.arrows" and keep == 0.999:
            continue  # only the mark of the end is gone, which streams may lack
        with pytest.raises(ValueError, match=rf"{name}' cannot be read as {kind}"):
            Table.read(tmp_path / name)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_column_that_one_file_has(suffix: str, tmp_path: Path) -> None:
    """Whichever file comes first, no column is left out in silence."""
    for name, data in (("a", {"x": [1]}), ("b", {"x": [3], "y": [4]})):
        if suffix == "csv":
            csv.write_csv(pa.table(data), tmp_path / f"{name}.csv")
        else:
            parquet.write_table(pa.table(data), tmp_path / f"{name}.parquet")
    paths = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    with pytest.raises(ValueError, match=r"b\.\w+' has a column 'y', which '.*a\.\w+' does not"):
        Table.read(paths)
    with pytest.raises(ValueError, match=r"a\.\w+' has no column 'y', which '.*b\.\w+' has"):
        Table.read(paths[::-1])
    assert Table.read(paths, columns="x")["x"].tolist() == [1, 3]


def test_strings_in_a_mapping() -> None:
    with pytest.raises(TypeError, match="column 'c' of the mapping has strings; expected numbers"):
        Table.from_columns({"c": ["a", "b"]})
    codes = pa.array(["a", "b", "a"]).dictionary_encode()
    assert Table.from_columns({"c": codes})["c"].tolist() == [0, 1, 0]


def test_string_column_without_a_category(tmp_path: Path) -> None:
    parquet.write_table(numbers(2, wind=pa.array(["NW", "SE"])), tmp_path / "a.parquet")
    with pytest.raises(
        TypeError, match=r"column 'wind' .* is a string column without a category; pass categ"
    ):
        Table.read(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1, 2], pa.timestamp("s")), "name it as timestamp_column="),
        (pa.array([1, 2], pa.duration("s")), "name it as timestamp_column=, or leave it out"),
        (pa.array([1, 2], pa.decimal128(9, 2)), "pass dtype='float64' to read decimals"),
        (pa.array([[1], [2]]), "expected numbers, bools, or strings as categories"),
        (pa.array([b"x", b"y"]), "expected numbers, bools, or strings as categories"),
    ],
)
def test_types_a_table_cannot_hold(tmp_path: Path, values: Any, message: str) -> None:
    parquet.write_table(numbers(2, odd=values), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=f"column 'odd' .*{message}"):
        Table.read(tmp_path)
    assert Table.estimate(tmp_path) >= 32
    assert len(Table.read(tmp_path, columns=["load", "count"])) == 2


def test_names(tmp_path: Path) -> None:
    parquet.write_table(numbers(2), tmp_path / "a.parquet")
    with pytest.raises(KeyError, match=r"a.parquet' has no column 'Load'; did you mean 'load'"):
        Table.read(tmp_path, columns=["Load"])
    with pytest.raises(KeyError, match="no column 'zzz'; it has 'load', 'count'"):
        Table.read(tmp_path, id_columns="zzz")
    with pytest.raises(ValueError, match="`columns` must name each column once, got 'load' twice"):
        Table.read(tmp_path, columns=["load", "load"])
    with pytest.raises(ValueError, match="has no value column beside ids and time"):
        Table.read(tmp_path, columns=["count"], id_columns=["count"])
    with pytest.raises(TypeError, match="`columns` must be names of columns, got 3"):
        Table.read(tmp_path, columns=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`columns` must be names of columns, got 3 among them"):
        Table.read(tmp_path, columns=[3])  # type: ignore[list-item]


def test_a_name_twice_in_the_file(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    feather.write_feather(pa.table({"a": [1.0]}), tmp_path / "ok.feather")
    with ipc.new_file(str(tmp_path / "bad.arrow"), twice.schema) as writer:
        writer.write_table(twice)
    with pytest.raises(ValueError, match=r"bad.arrow'? has 2 columns named 'a'; expected one"):
        Table.read(tmp_path / "bad.arrow", columns=["a"])


def test_rows(tmp_path: Path) -> None:
    parquet.write_table(numbers(20), tmp_path / "a.parquet")
    with pytest.raises(
        ValueError, match=r"`rows` must be within the 20 rows of the data, got \(3, 21\)"
    ):
        Table.read(tmp_path, rows=(3, 21))
    with pytest.raises(ValueError, match=r"`rows` must have 0 <= start <= stop, got \(4, 3\)"):
        Table.read(tmp_path, rows=(4, 3))
    with pytest.raises(TypeError, match=r"`rows` must be a pair of integers .*, got 7"):
        Table.read(tmp_path, rows=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"`rows` must be a pair of integers .*, got \(0.5, 2\)"):
        Table.read(tmp_path, rows=(0.5, 2))  # type: ignore[arg-type]


def test_dtype(tmp_path: Path) -> None:
    parquet.write_table(numbers(2), tmp_path / "a.parquet")
    for dtype in ("int32", np.int64, "nonsense", "bfloat16"):
        with pytest.raises(ValueError, match="it applies to floating columns only"):
            Table.read(tmp_path, dtype=dtype)
    table = Table.read(tmp_path, dtype=np.float32)
    assert [table[name].dtype.name for name in table.column_names] == ["float32", "int64"]


def test_a_value_too_large_for_the_dtype(tmp_path: Path) -> None:
    load = pa.array([1.0, np.inf, 1e39, 2.0], mask=np.array([False, False, False, True]))
    parquet.write_table(pa.table({"load": load}), tmp_path / "a.parquet")
    with pytest.raises(OverflowError, match=r"column 'load' has 1e\+39 in row 2, too large"):
        Table.read(tmp_path, dtype="float32")


def test_rows_of_unlike_dtypes(tmp_path: Path) -> None:
    parquet.write_table(numbers(2), tmp_path / "a.parquet")
    with pytest.raises(TypeError, match=r"one dtype, but 'load' is float64 and 'count' is int64"):
        Table.read(tmp_path, storage="rows")
    with pytest.raises(ValueError, match="`storage` must be 'columns' or 'rows', got 'cols'"):
        Table.read(tmp_path, storage="cols")  # type: ignore[arg-type]


def test_csv_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"a.csv' cannot be read as CSV: .*Expected 2 columns"):
        Table.read(tmp_path)
    (tmp_path / "a.csv").write_bytes(b"a,b\n\xff\xfe,2\n")
    with pytest.raises((ValueError, TypeError)):
        Table.read(tmp_path)
    (tmp_path / "a.csv").write_bytes("temp\xe9rature,b\n1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a.csv' cannot be read as CSV: .*can't decode byte 0xe9"):
        Table.read(tmp_path)
