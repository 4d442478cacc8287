"""The span of time that a table says, in memory and in files, in all units and zones."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd

#: First and last stamp, and their texts.
SPANS = [
    ("2024-03-30T22:00", "2024-04-02T05:30", "2024-03-30 22:00", "2024-04-02 05:30"),
    ("1969-12-31T23:59:59", "1970-01-01", "1969-12-31 23:59:59", "1970-01-01"),
    ("2024-01-01", "2262-01-01T00:00", "2024-01-01", "2262-01-01"),
]
OPTIONS: dict[str, Any] = {"id_columns": "id", "timestamp_column": "t"}


def of_all(data: Any, path: Path) -> dict[str, wd.Table]:
    """Return tables of the data in memory, in files, and from what was kept of files."""
    parquet.write_table(data, path / "a.parquet", row_group_size=2)
    streamed = {"in_memory": False, "cache_dir": path / "cache", **OPTIONS}
    memory = wd.Table.from_arrow(data, **OPTIONS)
    return {
        "memory": memory,
        "unsorted": wd.Table.from_arrow(data.take(pa.array([4, 3, 2, 1, 0])), **OPTIONS),
        "file": wd.Table.read(path / "a.parquet", **OPTIONS),
        "streamed": wd.Table.read(path / "a.parquet", **streamed),
        "cached": wd.Table.read(path / "a.parquet", **streamed),
        "pickled": pickle.loads(pickle.dumps(memory)),
        "derived": memory.with_columns({"y": np.zeros(5)}),
    }


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Asia/Kolkata"])
@pytest.mark.parametrize(("first", "last", "low", "high"), SPANS)
def test_explain_says_the_span_of_time(
    first: str, last: str, low: str, high: str, zone: str | None, unit: str, tmp_path: Path
) -> None:
    begin, end = np.array([first, last], dtype=f"M8[{unit}]")
    middle = begin + (end - begin) // 2
    stamps = np.array([middle, end, begin, middle, middle])
    time = pa.array(stamps).cast(pa.timestamp(unit, zone))
    data = pa.table({"id": list("aabbc"), "t": time, "x": np.arange(5.0)})
    expected = f"time from {low} to {high}"
    if zone is not None:
        expected += f" UTC, in the time zone {zone}"
    for name, table in of_all(data, tmp_path).items():
        assert expected in table.explain().splitlines(), name
        assert expected in table._repr_html_(), name


def test_integers_dates_and_no_time(tmp_path: Path) -> None:
    data = pa.table({"id": list("aabbc"), "t": [5, 70, -3, 4, 9], "x": np.arange(5.0)})
    for table in of_all(data, tmp_path).values():
        assert "time from -3 to 70" in table.explain().splitlines()
    days = np.array([1, 2, 3], dtype="M8[D]")
    table = wd.Table.from_columns({"x": np.zeros(3), "t": days}, timestamp_column="t")
    assert "time from 1970-01-02 to 1970-01-04" in table.explain().splitlines()
    months = days.astype(np.int64).astype("M8[M]")
    table = wd.Table.from_columns({"x": np.zeros(3), "t": months}, timestamp_column="t")
    assert "time from 1970-02-01 to 1970-04-01" in table.explain().splitlines()
    assert "time" not in wd.Table.from_columns({"x": np.zeros(3)}).explain()
    empty = {"x": np.zeros(0), "t": np.zeros(0, dtype="M8[s]")}
    table = wd.Table.from_columns(empty, timestamp_column="t")
    assert "time" not in table.explain()
    parquet.write_table(data.drop_columns(["t"]), tmp_path / "b.parquet")
    streamed = wd.Table.read(tmp_path / "b.parquet", id_columns="id", in_memory=False)
    assert "time" not in streamed.explain()
