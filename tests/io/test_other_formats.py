"""Files of other formats: one sentence with what reads them."""

from __future__ import annotations

import bz2
import gzip
import io
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return sink.getvalue()


def array() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.zeros(3))
    return sink.getvalue()


def database(folder: Path) -> bytes:
    with sqlite3.connect(folder / "base.db") as base:
        base.execute("create table a (x real)")
    base.close()
    return (folder / "base.db").read_bytes()


TSF = "# Monash\n@relation a\n@attribute series_name string\n@frequency monthly\n@data\nT1:1,2\n"
ARFF = "@RELATION iris\n\n@ATTRIBUTE x NUMERIC\n@DATA\n5.1\n"
FILES: list[tuple[str, bytes | str, str]] = [
    ("a.feather", b"FEA1" + bytes(60), r"Feather of version 1, .*pyarrow.feather.write_feather\("),
    ("a.bin", b"FEA1" + bytes(60), "Feather of version 1, "),
    ("a.xlsx", zipped(), r"an Excel workbook .*pandas.read_excel, and pass .* Table.from_arrow"),
    ("a.bin", b"\x07\x00\x09\x00", r"a.bin' is binary, .* Documents reads files of tokens"),
    ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(60), r"Excel workbook, .*read_excel"),
    ("a.h5", b"\x89HDF\r\n\x1a\n" + bytes(60), r"HDF5, .*pandas.read_hdf"),
    ("a.nc", b"CDF\x01" + bytes(60), r"netCDF, .*xarray"),
    ("a.orc", b"ORC" + bytes(60), r"ORC, .*pyarrow.orc.read_table"),
    ("a.avro", b"Obj\x01" + bytes(60), r"Avro, .*polars.read_avro"),
    ("a.npy", array(), r"NumPy array, .*numpy.load, .*Table.from_columns"),
    ("a.csv", gzip.compress(b"x\n1\n"), r"compressed with gzip, .*name that ends in .csv.gz"),
    ("a.txt", bz2.compress(b"x\n1\n"), r"compressed with bzip2, .*name that ends in .csv.bz2"),
    ("a.csv.zst", b"\x28\xb5\x2f\xfd" + bytes(60), "compressed with Zstandard, .*: decompress it"),
    ("a.csv.xz", b"\xfd7zXZ\0" + bytes(60), "compressed with xz, "),
    ("a.tsf", TSF, r"with '@' .*sktime.datasets.load_tsf_to_dataframe, .*Table.from_series"),
    ("a.arff", ARFF, r"with '@' .*scipy.io.arff.loadarff, .*Table.from_columns"),
    ("a.csv", "sep=;\na;b\n1;2\n", r"first line .* is 'sep=;', as Excel .* pass delimiter=';'"),
    ("a.csv", "sep=\t\na\tb\n1\t2\n", r"first line .* is 'sep=\\t', .* pass delimiter='\\t'"),
    ("a.csv", "a;b\n1,5;2\n", r"has no ',' and 1 of ';'; pass delimiter=';' and decimal=','"),
    ("a.txt", "a b\n1 2\n3 4\n", r"2 columns with blanks between .* pass delimiter=' ', or"),
    ("a.txt", "a b\n1,5 2\n", r"2 columns with blanks .* pass delimiter=' ' and decimal=',', or"),
    ("a.txt", " a   b\n 1.0 2.0\n", r"2 columns .* pandas.read_csv\(path, sep='\\s\+'\), and pass"),
]


@pytest.mark.parametrize("number", range(len(FILES)))
def test_what_reads_a_file_is_named(tmp_path: Path, number: int) -> None:
    name, contents, message = FILES[number]
    path = tmp_path / name
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    calls: list[Any] = [wd.Table.read, wd.Table.estimate, wd.Table.from_wide, wd.Table.from_series]
    calls += [lambda path: wd.prepare(path, tmp_path / "out")]
    calls += [lambda path: wd.Table.read(path, in_memory=False)]
    for call in calls:
        with pytest.raises(ValueError, match=message) as caught:
            call(path)
        assert repr(str(path)) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(database(tmp_path))
    with pytest.raises(ValueError, match=r"an SQLite database, .*polars.read_database"):
        wd.Table.read(path)


def test_the_cure_for_blanks_works(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a b\n1,5 2\n")
    table = wd.Table.read(path, delimiter=" ", decimal=",")
    assert (table["a"].tolist(), table["b"].tolist()) == ([1.5], [2])
    path.write_text("wind speed\nvery calm\n")
    table = wd.Table.read(path, delimiter=",", categories=True)
    assert table.column("wind speed").categories == ("very calm",)
    path.write_text("wind speed\n1.5\n")
    assert wd.Table.read(path)["wind speed"].tolist() == [1.5]
