"""CSV: its options, and errors that name the option a file needs."""

from __future__ import annotations

import csv as writer
import gzip
import io
import re
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from support.internals import planted
from support.real_data import real_data
from table.test_table_files import numbers
from windeck import Table, prepare
from windeck.io import CsvFile, CsvOptions, as_names, date_formats


def write(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "a.csv"
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "text",
    [
        "0.785500\n1.5\n2.5\n",
        "2016-07-01 00:00:00,5.827,2.009\n2016-07-01 01:00:00,5.693,2.076\n",
        "1e-3,-5,+.5,nan\n1,2,3,4\n",
        "01/02/2024,3\n02/02/2024,4\n",
        ",0,1,2\n0,5,6,7\n",
    ],
)
def test_a_header_of_numbers_is_refused_with_the_cure(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=r"numbers where names were expected: .*header=False"):
        Table.read(path)
    with pytest.raises(ValueError, match="header=True if these are the names"):
        Table.estimate(path)


@pytest.mark.parametrize(
    "text",
    [
        "2010-01-01 00:00:00,,-21,NW,1.79\n2010-01-01 01:00:00,129,-20,SE,\n",
        "art/daily,2014-04-01,20.0\nart/other,2014-04-02,21.5\n",
        "a,5,3\na,6,4\n",
        "mt_1,0.5\nmt_2,1\n",
    ],
)
def test_a_row_of_texts_and_numbers_is_no_header(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=r"has values as in the next line where names were exp"):
        Table.read(path, timestamp_column="time")
    assert CsvFile(str(path), CsvOptions(header=True)).num_rows == 1
    assert CsvFile(str(path), CsvOptions(header=False)).num_rows == 2


def test_real_series_without_a_header_are_refused(tmp_path: Path) -> None:
    for name in ("nab.parquet", "beijing_pm25.parquet"):
        frame = pl.read_parquet(real_data(name)).head(3)
        frame.write_csv(tmp_path / "a.csv", include_header=False)
        with pytest.raises(ValueError, match=r"header=\[\d names\] if it is data"):
            Table.read(tmp_path / "a.csv", timestamp_column="timestamp")


@pytest.mark.parametrize(
    "text",
    [
        "id,1,2\na,1.5,2.5\n",
        "id,2024-01-01,2024-01-02\na,1.5,2.5\n",
        "id,time,mean,0.1,0.9\na,2024-01-01,2,1.5,2.5\n",
        "day,north\nMonday,cold\n",
        "a,1\n",
    ],
)
def test_names_that_are_numbers_or_dates_are_accepted_beside_words(
    tmp_path: Path, text: str
) -> None:
    names = CsvFile(str(write(tmp_path, text))).schema.names
    assert names == text.split("\n")[0].split(",")


@pytest.mark.parametrize("header", ["id,2020,2021", "load", "H1,x", "2020q1,2021q1"])
def test_a_header_with_words_is_one(tmp_path: Path, header: str) -> None:
    row = ",".join("1" for _ in header.split(","))
    table = Table.read(write(tmp_path, f"{header}\n{row}\n"))
    assert table.column_names == tuple(header.split(","))


def test_json_is_named_with_what_reads_it(tmp_path: Path) -> None:
    """GluonTS keeps data sets as JSON lines."""
    frame = pl.read_parquet(real_data("nab.parquet")).with_columns(pl.col("series").cast(pl.String))
    lists = frame.group_by("series", maintain_order=True).agg("timestamp", "value").head(3)
    entries = lists.select(pl.col("timestamp").list.first().alias("start"), "series", "value")
    path = tmp_path / "data.json"
    entries.write_ndjson(path)
    for read in (Table.read, Table.from_series, Table.estimate):
        with pytest.raises(ValueError, match=r"has JSON .* Table.from_series for lists in each"):
            read(path)
    names: dict[str, Any] = {"id_columns": "series", "timestamp_column": "start"}
    read_again = pl.read_ndjson(path).with_columns(pl.col("start").str.to_datetime())
    table = Table.from_series(read_again, freq="5min", **names)
    assert table["value"].tolist() == lists["value"].explode().to_list()


def test_the_index_that_pandas_writes_is_no_value(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    path = tmp_path / "a.csv"
    pd.DataFrame({"load": [1.5, 2.5], "wind": [1, 2]}).to_csv(path)
    assert Table.read(path).column_names == ("load", "wind")
    assert Table.read(path, columns=["load", "wind"]).column_names == ("load", "wind")
    assert Table.read(path, columns=["", "load"])[""].tolist() == [0, 1]
    assert Table.read(path, id_columns=[""], sort=True).num_series == 2
    assert Table.estimate(path) == 32
    prepare(path, tmp_path / "prepared")
    assert Table.read(tmp_path / "prepared").column_names == ("load", "wind")


@pytest.mark.parametrize(
    "text",
    [
        ",load\n3,1.5\n1,2.5\n",  # sorted by load: an index, or a value
        ",load\n1990,1.5\n1991,2.5\n",  # years, or the index of selected rows
        ",load\n0.5,1.5\n1.5,2.5\n",
        ",load\na,1.5\nb,2.5\n",
        ",load\n2024-01-01 00:00:00,1.5\n2024-01-01 01:00:00,2.5\n",
        ",load\n1,1.5\n,2.5\n",
        "load,\n1.5,1\n2.5,2\n",
    ],
)
def test_a_column_without_a_name_that_may_be_a_value(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=r"of .* has no name, .* pass timestamp_column='' if it"):
        Table.read(path)
    if "2024" in text:
        assert Table.read(path, timestamp_column="").step == np.timedelta64(1, "h")


def test_header(tmp_path: Path) -> None:
    path = write(tmp_path, "0.5,1\n1.5,2\n")
    assert Table.read(path, header=True).column_names == ("0.5", "1")
    table = Table.read(path, header=False)
    assert table.column_names == ("f0", "f1")
    assert table["f0"].tolist() == [0.5, 1.5]
    table = Table.read(path, header=["load", "count"], columns="count")
    assert table["count"].tolist() == [1, 2]
    assert Table.estimate(path, header=["load", "count"]) == 32
    with pytest.raises(ValueError, match=r"Expected 3 columns, got 2"):
        Table.read(path, header=["a", "b", "c"])
    for wrong in ("load", [1, 2]):
        with pytest.raises(TypeError, match="`header` must be True, False or names of columns"):
            Table.read(path, header=wrong)  # type: ignore[arg-type]


def test_ids_that_differ_by_zeros_are_two(tmp_path: Path) -> None:
    path = write(tmp_path, "id,x\n01,1\n01,2\n1,3\n1,4\n")
    assert Table.read(path, id_columns="id").series_names == ("01", "1")
    prepare(path, tmp_path / "out", id_columns="id")
    assert Table.read(tmp_path / "out", id_columns="id").series_names == ("01", "1")
    for text, names in (("01,1\n02,2\n", (1, 2)), (" 1,1\n1,2\n7,3\n", (1, 7))):
        path.write_text(f"id,x\n{text}")
        assert Table.read(path, id_columns="id").series_names == names


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["0", '"1,234"'],
            "commas such as '1,234': commas between thousands are not read; pass dec",
        ),
        (["0", '"1,234.5"'], "commas between thousands, such as '1,234.5', which are not read"),
        (["7", '"1,234,567"'], "commas between thousands, such as '1,234,567', which are not read"),
        (["0", '"3,5"'], "decimal commas, such as '3,5'; pass decimal=','"),
    ],
)
def test_commas_in_numbers_are_named(tmp_path: Path, values: list[str], message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["t,x", *(f"{n},{text}" for n, text in enumerate(values))]) + "\n")
    with pytest.raises(TypeError, match=re.escape(message)):
        Table.read(path)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_named(tmp_path: Path, delimiter: str) -> None:
    lines = [["a", "b", "c"], ["1", "2,5", "x"], ["3", "4,5", "y"]]
    path = write(tmp_path, "\n".join(delimiter.join(line) for line in lines))
    named = f"has no ',' and 2 of {delimiter!r}; pass delimiter={delimiter!r} and decimal=','"
    with pytest.raises(ValueError, match=r"a\.csv") as caught:
        Table.read(path)
    assert named in str(caught.value)
    with pytest.raises(TypeError, match=r"column 'b' .*decimal commas, such as '2,5'; pass d"):
        Table.read(path, delimiter=delimiter, columns=["a", "b"])
    table = Table.read(path, delimiter=delimiter, decimal=",", columns=["a", "b"])
    assert table["a"].tolist() == [1, 3]
    assert table["b"].tolist() == [2.5, 4.5]
    path.write_text(path.read_text().replace("2,5", "1.002,5"))
    with pytest.raises(TypeError, match=r"column 'b' .*points between thousands, such as '1.002,5"):
        Table.read(path, delimiter=delimiter, decimal=",", columns=["a", "b"])


def test_one_column_whose_name_has_a_delimiter(tmp_path: Path) -> None:
    path = write(tmp_path, "load|kW\n1\n")
    assert Table.read(path, delimiter=",").column_names == ("load|kW",)


def test_tabs_by_the_suffix(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.tsv.gz", "wt") as file:
        file.write("a\tb\n1\t2\n")
    assert Table.read(tmp_path / "a.tsv.gz")["b"].tolist() == [2]
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("a;b\n1;2\n")
    with pytest.raises(ValueError, match="pass delimiter=';'"):
        Table.read(tmp_path / "b.csv.gz")


def test_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, "Gerät,load\nWärme,1\n", "latin-1")
    with pytest.raises(ValueError, match=r"is not UTF-8: pass encoding='latin-1'"):
        Table.read(path, categories="Gerät")
    table = Table.read(path, encoding="latin-1", categories="Gerät")
    assert table.column("Gerät").categories == ("Wärme",)
    path = write(tmp_path, "device,load\nWärme,1\n", "latin-1")
    for options in ({"categories": True}, {"id_columns": "device"}, {}):
        with pytest.raises(TypeError, match=r"'device' .*not UTF-8; pass encoding='latin-1'"):
            Table.read(path, **options)
    assert Table.read(path, columns="load")["load"].tolist() == [1]
    path = write(tmp_path, "load\n1\n", "utf-16")
    with pytest.raises(ValueError, match="mark of UTF-16; pass encoding='utf-16'"):
        Table.read(path)
    assert Table.read(path, encoding="utf-16")["load"].tolist() == [1]
    assert Table.read(write(tmp_path, "load\n1\n", "utf-8-sig"))["load"].tolist() == [1]


DAYS = [(datetime(2024, 1, 30) + timedelta(days=step)) for step in range(4)]


@pytest.mark.parametrize(
    "layout", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%m/%d/%y %I:%M %p", "%Y/%m/%d"]
)
def test_dates_of_another_format_are_named(tmp_path: Path, layout: str) -> None:
    lines = [f"{day.strftime(layout)},{number}" for number, day in enumerate(DAYS)]
    path = write(tmp_path, "\n".join(["day,load", *lines]))
    with pytest.raises(TypeError, match=r"column 'day' .* is string; it has dates") as caught:
        Table.read(path, timestamp_column="day")
    assert f"pass timestamp_format={layout!r}" in str(caught.value)
    with pytest.raises(TypeError, match=r"pass timestamp_column= and timestamp_format="):
        Table.read(path)
    table = Table.read(path, timestamp_column="day", timestamp_format=layout)
    assert table.timestamps is not None
    assert table.timestamps.astype("datetime64[D]").tolist() == [day.date() for day in DAYS]
    assert Table.read(path, id_columns="day").num_series == 4


def test_a_date_that_may_be_either(tmp_path: Path) -> None:
    path = write(tmp_path, "day,load\n01/02/2024,1\n02/02/2024,2\n")
    either = r"timestamp_format='%d/%m/%Y' or timestamp_format='%m/%d/%Y'"
    with pytest.raises(TypeError, match=either):
        Table.read(path, timestamp_column="day")
    for layout, step in (("%d/%m/%Y", 1), ("%m/%d/%Y", 31)):
        table = Table.read(path, timestamp_column="day", timestamp_format=layout)
        assert table.step == np.timedelta64(step, "D")


def test_a_value_that_does_not_fit_the_format(tmp_path: Path) -> None:
    path = write(tmp_path, "day,load\n01/02/2024,1\n30/02/24x,2\n")
    with pytest.raises(ValueError, match=r"'30/02/24x'.*expected timestamp_format='%d/%m/%Y' in"):
        Table.read(path, timestamp_column="day", timestamp_format="%d/%m/%Y")


def test_the_format_goes_before_iso(tmp_path: Path) -> None:
    path = write(tmp_path, "day,load\n2024-01-02,1\n2024-01-03,2\n")
    table = Table.read(path, timestamp_column="day", timestamp_format="%Y-%d-%m")
    assert table.step == np.timedelta64(29, "D")  # 1 February and 1 March


def test_wrong_options(tmp_path: Path) -> None:
    path = write(tmp_path, "day,load\n1,2\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delimiter": ";;"}, "`delimiter` must be one character, got ';;'"),
        ({"decimal": ""}, "`decimal` must be one character, got ''"),
        ({"decimal": ","}, "`decimal` and `delimiter` must differ, got ',' for both"),
        ({"encoding": "klingon"}, "`encoding` must be an encoding, got 'klingon'"),
        ({"timestamp_format": "%d"}, "`timestamp_format` must be a format .* of the timestamp_col"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            Table.read(path, **options)
    parquet.write_table(numbers(2), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet' is Parquet, and `delimiter` is an option of"):
        Table.read(tmp_path / "a.parquet", delimiter=";", decimal=",", columns="load")


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(-9, 9)), min_size=1, max_size=9),
    st.sampled_from([";", "\t", "|"]),
)
def test_european_files_equal_plain_ones(rows: list[tuple[float, int]], delimiter: str) -> None:
    """The same numbers written both ways, read back equal."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = io.StringIO()
        writer.writer(text, delimiter=delimiter, lineterminator="\n").writerows(
            [("x", "n"), *((repr(x).replace(".", ","), n) for x, n in rows)]
        )
        path = write(Path(folder), text.getvalue())
        table = Table.read(path, delimiter=delimiter, decimal=",")
    assert table["x"].tolist() == [x for x, _ in rows]
    assert table["n"].tolist() == [n for _, n in rows]


def test_formats_of_dates() -> None:
    assert date_formats(["13/01/2024", "01/13/2024"]) == []
    assert date_formats(["1/2/2024", "text"]) == []
    assert date_formats(["1/2/2024", "1.2.2024"]) == []
    assert date_formats([]) == []
    assert date_formats(["2024/1/5 06:07:08"]) == ["%Y/%m/%d %H:%M:%S"]


@pytest.mark.parametrize("row", ["1,5;2,5", "1,5;2", "2024-01-01;2,5"])
def test_a_header_of_numbers_with_decimal_commas_is_refused(tmp_path: Path, row: str) -> None:
    path = write(tmp_path, f"{row}\n3,5;4,5\n")
    with pytest.raises(ValueError, match="numbers where names were expected"):
        Table.read(path, delimiter=";", decimal=",")
    read = Table.read(
        write(tmp_path, "1,5;2,5\n3,5;4,5\n"), delimiter=";", decimal=",", header=False
    )
    assert [read[name].tolist() for name in read.column_names] == [[1.5, 3.5], [2.5, 4.5]]


def test_decimal_commas_of_a_file_of_tabs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1,5\t2,5\n")
    table = Table.read(path, decimal=",")
    assert (table["a"][0], table["b"][0]) == (1.5, 2.5)
    with pytest.raises(ValueError, match="must differ, got ',' for both"):
        Table.read(path, decimal=",", delimiter=",")
    with pytest.raises(ValueError, match="must differ"):
        Table.read(path, decimal="\t")


def test_a_format_with_a_zone_gives_utc(tmp_path: Path) -> None:
    rows = "01/02/2024 03:00+0100,1\n01/02/2024 03:00Z,2\n"
    path = write(tmp_path, f"t,x\n{rows}")
    table = Table.read(path, timestamp_column="t", timestamp_format="%d/%m/%Y %H:%M%z")
    assert table.timestamps is not None
    assert table.timestamps.astype(str).tolist() == ["2024-02-01T02:00:00", "2024-02-01T03:00:00"]


def test_parsed_columns_are_given_up_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b,c\n1,2,3\n4,5,6\n")
    parsed = CsvFile(str(path)).prepare(["a", "b", "c"])
    size = parsed.overhead_bytes
    for place, name in enumerate("bca"):
        (batch,) = parsed.batches([name], 1, 2)
        assert batch.to_pydict() == {name: [dict(zip("abc", (4, 5, 6), strict=True))[name]]}
        assert parsed.overhead_bytes == size * (2 - place) // 3
        assert (parsed.num_rows, parsed.schema.names) == (2, ["a", "b", "c"])


def test_names_are_looked_up_once_each() -> None:
    """Names count their comparisons, of which there must not be one for each pair."""

    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

    assert len(as_names("columns", [Name(i) for i in range(500)])) == 500
    assert Name.compared < 5_000
    with pytest.raises(ValueError, match="got 'a' twice"):
        as_names("columns", ["a", "b", "a"])


CELLS = ["", "1", "-7", "0.5", "true", "2024-01-31", "2024-01-31 08:30:00", "2024-01-31 08:30:00.5"]
CELLS += ["08:30:00", "north", '"quoted"', '""']


@given(
    st.lists(st.sampled_from(CELLS), min_size=1, max_size=3),
    st.lists(st.sampled_from(CELLS), max_size=3),
    st.lists(st.sampled_from(CELLS), max_size=3),
)
def test_settled_types_are_those_of_a_file_parsed_at_once(
    first: list[str], second: list[str], third: list[str]
) -> None:
    """Each part is longer than a block, so the types of the first one need not fit."""
    cells = [part[row % len(part)] for part in (first, second, third) if part for row in range(40)]
    lines = "".join(f"{row},{cell},x\n" for row, cell in enumerate(cells))
    with tempfile.TemporaryDirectory() as folder, planted("csv._SAMPLE_BYTES", 256):
        file = CsvFile(str(write(Path(folder), f"row,cell,name\n{lines}")))
        parsed = file.prepare(["name", "cell"])
        types = file.settled_types(["name", "cell"])
        found = pa.Table.from_batches(file.parse_as(types)).select(["name", "cell"])
        assert list(types.values()) == parsed.schema.types
        for name in ("name", "cell"):
            values = pa.Table.from_batches(parsed.batches([name], 0, len(cells)))
            assert found[name].to_pylist() == values[name].to_pylist()


def test_errors_of_settled_types_name_the_file(tmp_path: Path) -> None:
    with planted("csv._SAMPLE_BYTES", 64):
        file = CsvFile(str(write(tmp_path, "a,b\n" + "1,2\n" * 100 + "3\n")))
        with pytest.raises(ValueError, match=r"a.csv' cannot be read as CSV: .*Expected 2 columns"):
            file.settled_types(["a"])
