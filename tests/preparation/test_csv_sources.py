"""CSV files that differ among themselves: columns by name, and types that hold all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd
from support.prepare_cases import contents, written

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}


def prepared(folder: Path, *texts: str, parquet_rows: Any = None, **options: Any) -> Any:
    """Return the sorted rows of CSV files, and of a Parquet file."""
    (folder / "in").mkdir()
    for number, text in enumerate(texts):
        (folder / "in" / f"{number}.csv").write_text(text)
    if parquet_rows is not None:
        parquet.write_table(parquet_rows, folder / "in" / "rows.parquet")
    wd.prepare(folder / "in", folder / "out", **{**KEYS, **options})
    return written(folder / "out")


def test_columns_go_by_name(tmp_path: Path) -> None:
    rows = prepared(
        tmp_path,
        "site,time,load,wind\n7,2024-01-01,1,5\n",
        "wind,load,time,site\n6,2,2024-01-02,7\n",
        "time,site,wind,load\n2024-01-03,7,,3\n",
    )
    assert rows.column_names == ["site", "time", "load", "wind"]
    assert rows.column("load").to_pylist() == [1, 2, 3]
    assert rows.column("wind").to_pylist() == [5, 6, None]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "2.5", ""), "double"),
        (("", "2", "3"), "int64"),
        (("", "", "0.5"), "double"),
        (("7", "-1", "3"), "int64"),
    ],
)
def test_numbers(tmp_path: Path, values: tuple[str, ...], kind: str) -> None:
    rows = prepared(
        tmp_path, *(f"site,time,load\n7,2024-01-0{n},{v}\n" for n, v in enumerate(values, 1))
    )
    assert rows.schema.field("load").type == ("double" if kind == "double" else "int64")
    expected = [None if v == "" else float(v) for v in values]
    np.testing.assert_equal(
        np.array(rows.column("load").to_pylist(), float), np.array(expected, float)
    )


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        (("2024-01-01", "2024-01-02T06:00:00"), "timestamp[ms]"),
        (("2024-01-01 00:00", "2024-01-02"), "timestamp[ms]"),
        (("2024-01-01", "2024-01-02T06:00:00.25"), "timestamp[ns]"),
        (("2024-01-01T01:00:00", "2024-01-02T06:00:00.000001", "2024-01-03"), "timestamp[ns]"),
        (("2024-01-01", "2024-01-02"), "date32[day]"),
        (("2024-01-01T00:00:00Z", "2024-01-01T02:00:00+01:00"), "timestamp[ms, tz=UTC]"),
    ],
)
@pytest.mark.parametrize("file_bytes", [None, 1 << 20])
def test_times(tmp_path: Path, times: tuple[str, ...], kind: str, file_bytes: int | None) -> None:
    texts = [f"site,time,load\n7,{time},1\n" for time in times]
    rows = prepared(tmp_path, *texts, file_bytes=file_bytes)
    assert str(rows.schema.field("time").type) == kind
    offsets = {"Z": 0, "+01:00": 1}
    expected = []
    for time in times:
        zone = next((end for end in offsets if time.endswith(end)), "")
        plain = np.datetime64(time.removesuffix(zone), "ns")
        expected.append(plain - np.timedelta64(offsets.get(zone, 0), "h"))
    table = wd.Table.read(tmp_path / "out", **KEYS)
    assert table.timestamps is not None
    assert (table.timestamps == np.sort(np.array(expected))).all()


def test_times_beside_those_of_parquet(tmp_path: Path) -> None:
    days = np.datetime64("2024-01-05", "us") + np.arange(2).astype("m8[D]")
    beside = pa.table({"site": [7, 7], "time": days, "load": [1.5, 2.5]})
    rows = prepared(
        tmp_path,
        "site,time,load\n7,2024-01-01,3\n",
        "site,time,load\n7,2024-01-02 01:00:00,4\n",
        parquet_rows=beside,
    )
    assert rows.schema.field("time").type == pa.timestamp("us")
    assert rows.column("load").to_pylist() == [3, 4, 1.5, 2.5]


def test_numbers_as_ids_beside_words_are_words(tmp_path: Path) -> None:
    rows = prepared(
        tmp_path,
        "site,time,load\n007,2024-01-01,1\n7,2024-01-01,2\n",
        "site,time,load\nnorth,2024-01-02,3\n",
    )
    assert rows.column("site").cast(pa.string()).to_pylist() == ["007", "7", "north"]
    assert rows.column("load").to_pylist() == [1, 2, 3]


def test_numbers_as_ids_beside_words_of_parquet(tmp_path: Path) -> None:
    day = np.array(["2024-01-05"], "M8[s]")
    beside = pa.table({"site": ["x"], "time": day, "load": [9]})
    rows = prepared(tmp_path, "site,time,load\n07,2024-01-01T00:00:00,1\n", parquet_rows=beside)
    assert rows.column("site").cast(pa.string()).to_pylist() == ["07", "x"]


def test_large_files_in_bounded_memory_are_read_alike(tmp_path: Path) -> None:
    """Types are settled by reading the text twice, in files above twice `file_bytes`."""
    first = "site,time,load\n" + "".join(f"0{n % 9},2024-01-01,{n}\n" for n in range(20_000))
    other = "load,site,time\n" + "".join(f"{n}.5,a{n % 7},2024-01-02 01:00\n" for n in range(200))
    found = []
    for name, file_bytes in (("small", 1 << 16), ("large", None)):
        (tmp_path / name).mkdir()
        rows = prepared(tmp_path / name, first, other, file_bytes=file_bytes, duplicates="keep")
        found.append(rows.combine_chunks())
    assert found[0].equals(found[1])
    assert set(found[0].column("site").cast(pa.string()).unique().to_pylist()) == {
        *(f"0{n}" for n in range(9)),
        *(f"a{n}" for n in range(7)),
    }


def test_types_that_were_not_seen_at_the_beginning_of_files(tmp_path: Path) -> None:
    """The first mebibyte has dates; the times of day after it are read as before."""
    days = "".join(f"{n},2024-01-01,1\n" for n in range(80_000))
    late = f"site,time,load\n{days}9,2024-01-01T05:00:00.5,1\n"
    rows = prepared(tmp_path, late, late.replace(",1\n", ",2\n"), duplicates="first")
    assert rows.schema.field("time").type == pa.timestamp("ns")
    other = "site,time,load\n9,2024-01-03 00:00:00,1\n"
    (tmp_path / "more").mkdir()
    with pytest.raises(
        ValueError, match=r"^column 'time' is timestamp\[.*; expected one type in all"
    ):
        prepared(tmp_path / "more", late, other, duplicates="first")
    assert not (tmp_path / "more" / "out").exists()


def test_errors(tmp_path: Path) -> None:
    whole = "site,time,load,wind\n7,2024-01-01,1,5\n"
    cases: list[tuple[str, str, dict[str, Any]]] = [
        (
            "site,time,load\n7,2024-01-02,1\n",
            r"1.csv' has no column 'wind', which '.*0.csv' has",
            {},
        ),
        (
            "site,time,load,wind,sun\n7,2024-01-02,1,2,3\n",
            r"1.csv' has a column 'sun', which '.*0.csv' does not have; .* or the ones to read",
            {},
        ),
        ("time,load,wind\n2024-01-02,1,2\n", r"1.csv' has no column 'site'", {}),
        (
            "site,time,load,wind\n7,2024-01-02,much,5\n",
            r"'load' is int64 .* but string in .*1.csv",
            {},
        ),
        (
            "site,time,load,wind\n7,2024-01-02T00:00:00Z,1,5\n",
            r"'time' is date32\[day\] in .*0.csv' but timestamp\[s, tz=UTC\] in '.*1.csv'",
            {},
        ),
        (
            "site,time,load,wind\n7,2024-01-02,true,5\n",
            r"'load' is int64 .* but bool in .*1.csv'",
            {},
        ),
    ]
    for number, (text, message, options) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ValueError, match=message):
            prepared(folder, whole, text, **options)
        assert not (folder / "out").exists()
    folder = tmp_path / "chosen"
    folder.mkdir()
    rows = prepared(folder, whole, cases[1][0], columns=["load"])
    assert rows.column("load").to_pylist() == [1, 1]
    folder = tmp_path / "large"
    folder.mkdir()
    with pytest.raises(
        OverflowError, match=r"^column 'load' of a CSV file has integers that double"
    ):
        prepared(
            folder,
            f"site,time,load\n7,2024-01-01,{2**53 + 1}\n",
            "site,time,load\n7,2024-01-02,1.5\n",
        )
    assert not (folder / "out").exists()


def test_equal_files_are_written_as_before(tmp_path: Path) -> None:
    """No type is given to the parser if samples agree: ids are numbers, times dates."""
    texts = [f"site,time,load\n0{n},2024-01-0{n},{n}\n" for n in (1, 2)]
    rows = prepared(tmp_path, *texts)
    assert rows.schema.field("site").type == pa.int64()
    assert rows.column("site").to_pylist() == [1, 2]
    assert [name for name in contents(tmp_path / "out") if name.endswith(".parquet")]
