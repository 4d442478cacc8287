"""Files with the same columns in types of unequal width are prepared in the one that holds all."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windeck as wd
from support.prepare_cases import write_file

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
DAYS = np.datetime64("2024-01-01", "s") + np.arange(9).astype("m8[D]")


def rows_of(first: int, **columns: Any) -> Any:
    """Return three rows of a series, from a day on."""
    days = pa.array(DAYS[first : first + 3])
    given = {"site": pa.array([7] * 3), "time": days, "load": [first + 0.5] * 3, **columns}
    return pa.table(given)


def prepared(folder: Path, *tables: Any, **options: Any) -> wd.Prepared:
    """Return the result of tables in files of their own."""
    (folder / "in").mkdir()
    for number, rows in enumerate(tables):
        write_file(folder / "in" / f"{number}.{('parquet', 'arrow')[number % 2]}", rows)
    return wd.prepare(folder / "in", folder / "out", **KEYS, **options)


@pytest.mark.parametrize(
    ("name", "kinds", "wide"),
    [
        ("load", ["int64", "double", "uint8"], "double"),
        ("load", ["int64", "null", "int8"], "int64"),
        ("load", ["halffloat", "float"], "float"),
        ("load", ["uint8", "uint32"], "uint32"),
        ("load", ["uint8", "int8"], "int16"),
        ("load", ["uint32", "int8"], "int64"),
        ("site", ["uint8", "int64", "int16"], "int64"),
    ],
)
def test_numbers(tmp_path: Path, name: str, kinds: list[str], wide: str) -> None:
    types = {"halffloat": pa.float16(), "null": pa.null(), "double": pa.float64()}
    tables = [
        rows_of(
            3 * n,
            **{name: pa.array([None if kind == "null" else 5] * 3, type=types.get(kind) or kind)},
        )
        for n, kind in enumerate(kinds)
    ]
    result = prepared(tmp_path, *tables)
    assert result.columns[name] == wide
    assert (result.rows, result.series) == (3 * len(kinds), 1)
    table = wd.Table.read(tmp_path / "out", **KEYS)
    if name == "load":
        found = table.column("load")
        assert found.observed().tolist() == [kind != "null" for kind in kinds for _ in range(3)]
        assert set(found.values[found.observed()].tolist()) == {5}


@pytest.mark.parametrize("zones", [(None, None), ("UTC", "UTC"), ("UTC", "Europe/Berlin")])
@pytest.mark.parametrize("units", list(itertools.permutations(["s", "ms", "us", "ns"], 2)))
def test_times(tmp_path: Path, units: tuple[str, str], zones: tuple[Any, Any]) -> None:
    tables = [
        rows_of(3 * n, time=pa.array(DAYS[3 * n :][:3]).cast(pa.timestamp(unit, zone)))
        for n, (unit, zone) in enumerate(zip(units, zones, strict=True))
    ]
    result = prepared(tmp_path, *tables)
    finest = max(units, key=["s", "ms", "us", "ns"].index)
    zone = zones[0] if zones[0] == zones[1] else "UTC"
    assert result.columns["time"] == str(pa.timestamp(finest, zone))
    table = wd.Table.read(tmp_path / "out", **KEYS)
    assert table.timestamps is not None
    assert (table.timestamps == DAYS[:6]).all()


def test_times_of_csv_files_beside_others(tmp_path: Path) -> None:
    text = "site,time,load\n7,2024-01-04T00:00:00,1\n7,2024-01-05T00:00:00,2\n"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(text)
    write_file(tmp_path / "in" / "b.parquet", rows_of(0, time=pa.array(DAYS[:3].astype("M8[us]"))))
    for threads in (1, 2):
        result = wd.prepare(tmp_path / "in", tmp_path / f"out{threads}", **KEYS, threads=threads)
        assert result.columns["time"] == "timestamp[us]"
        assert wd.Table.read(tmp_path / "out1", **KEYS)["load"].tolist() == [0.5] * 3 + [1.0, 2.0]


@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ({"load": [2**53 + 1] * 3}, {}, "'load' of '.*0.parquet' is int64, and double holds"),
        (
            {"time": pa.array([0, 1, -(2**54)], pa.timestamp("us"))},
            {"time": pa.array([0, 1, 2], pa.timestamp("ns"))},
            r"'time' of '.*0.parquet' is timestamp\[us\], and timestamp\[ns\] holds",
        ),
    ],
)
def test_values_that_do_not_fit_are_named(
    tmp_path: Path, one: Any, other: Any, text: str, on_error: str
) -> None:
    with pytest.raises(OverflowError, match=text):
        prepared(tmp_path, rows_of(0, **one), rows_of(3, **other), on_error=on_error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("load", pa.uint64(), pa.int64()),
        ("load", pa.bool_(), pa.int64()),
        ("load", pa.string(), pa.int64()),
        ("site", pa.float64(), pa.int64()),
        ("site", pa.string(), pa.int64()),
        ("time", pa.timestamp("us"), pa.timestamp("us", "UTC")),
        ("time", pa.timestamp("us"), pa.date32()),
        ("time", pa.timestamp("us"), pa.int64()),
    ],
)
def test_other_types_differ(tmp_path: Path, name: str, one: Any, other: Any) -> None:
    days = pa.array(DAYS[:3]).cast(pa.timestamp("us"))
    tables = [
        rows_of(
            3 * n,
            **{name: (days if name == "time" else pa.array([1] * 3, pa.int64())).cast(kind)},
        )
        for n, kind in enumerate((one, other))
    ]
    with pytest.raises((ValueError, TypeError), match=f"column '{name}'"):
        prepared(tmp_path, *tables)


def test_equal_types_stay_as_they_are(tmp_path: Path) -> None:
    types = {"site": pa.int8(), "load": pa.float32(), "time": pa.timestamp("ms")}
    tables = [rows_of(3 * n).select(list(types)).cast(pa.schema(types)) for n in range(2)]
    stored = {"site": "int8", "load": "float", "time": "timestamp[ms]"}
    assert prepared(tmp_path, *tables).columns == stored
