"""Words for missing values in CSV files, and texts among numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.internals import planted

USUAL = [
    "?",
    "-",
    ".",
    "NA",
    "None",
    '""',
    "",
    "--",
    " ?",
    "NULL",
    '"NA"',
    "null",
    "nan",
    '"-"',
    "<NA>",
]
CELLS: dict[str, tuple[list[str], list[Any]]] = {
    "integers": (["1", "-2", "30"], [1, -2, 30]),
    "floats": (["1.5", "2", "-3e5"], [1.5, 2.0, -3e5]),
    "quoted": (['"1.5"', '"2"', '"7"'], [1.5, 2.0, 7.0]),
    "bools": (["true", "false", "true"], [True, False, True]),
}


def prepared(path: Path, **options: Any) -> wd.Table:
    folder = path.parent / "out"
    wd.prepare(path, folder, overwrite=True, **options)
    return wd.Table.read(folder, **{k: v for k, v in options.items() if k.endswith("_columns")})


def prepared_in_blocks(path: Path, **options: Any) -> wd.Table:
    """Prepare a file that is larger than the rows that are sorted at a time."""
    with planted("csv._SAMPLE_BYTES", 64):
        return prepared(path, file_bytes=1 << 10, **options)


def read_in_blocks(path: Path, **options: Any) -> wd.Table:
    with planted("csv._SAMPLE_BYTES", 64):
        return wd.Table.read(path, **options)


READERS: dict[str, Callable[..., wd.Table]] = {
    "read": wd.Table.read,
    "read in blocks": read_in_blocks,
    "prepare": prepared,
    "prepare in blocks": prepared_in_blocks,
}


def check(table: wd.Table, name: str, expected: list[Any]) -> None:
    column = table.column(name)
    assert column.categories is None
    assert column.observed().tolist() == [value is not None for value in expected]
    for found, value in zip(column.values.tolist(), expected, strict=True):
        assert value is None or found == value


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", CELLS)
def test_the_usual_words_are_missing_values_of_numbers(
    tmp_path: Path, kind: str, reader: str
) -> None:
    cells, values = CELLS[kind]
    for number, (word, first) in enumerate(itertools.product(USUAL, (True, False))):
        rows = [(cell, value) for cell, value in zip(cells * 40, values * 40, strict=True)]
        rows.insert(0 if first else 100, (word, None))
        path = tmp_path / f"{number}.csv"
        lines = [f"{place},{cell},north" for place, (cell, _) in enumerate(rows)]
        path.write_text("\n".join(["row,x,name", *lines]) + "\n")
        table = READERS[reader](path, columns=["row", "x"])
        check(table, "x", [value for _, value in rows])
        assert table["row"].tolist() == list(range(121))
        assert table["x"].dtype == (np.int64 if kind == "integers" else table["x"].dtype)


@pytest.mark.parametrize("reader", READERS)
def test_words_of_texts_stay_texts(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "a.csv"
    lines = ["a,-,1", '?,north,"?"', '"",west,-', "None,-,4"] * 30
    path.write_text("\n".join(["site,name,x", *lines]) + "\n")
    options: dict[str, Any] = {"columns": "x"} if "prepare" in reader else {"categories": "name"}
    if "read" in reader:
        options["sort"] = True
    table = READERS[reader](path, id_columns="site", **options)
    if "read" in reader:
        assert set(table.series_names) == {"a", "?", "", "None"}
        assert table.column("name").categories is not None
        assert set(table.column("name").categories or ()) == {"-", "north", "west"}
    assert np.nansum(np.where(table.column("x").observed(), table["x"], 0)) == 150


def test_prepared_texts_keep_their_words(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("site,name,x\na,-,1\na,north,?\n")
    wd.prepare(path, tmp_path / "out", id_columns="site")
    table = wd.Table.read(tmp_path / "out", id_columns="site", categories="name")
    assert table.column("name").categories == ("-", "north")
    check(table, "x", [1, None])


@pytest.mark.parametrize("reader", READERS)
def test_words_of_a_user(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "a.csv"
    lines = ["0,bad,x", "1,-999,y", '2,"bad",bad', "3,?,z", "4,5.5,bad"] * 20
    path.write_text("\n".join(["row,x,name", *lines]) + "\n")
    read = READERS[reader]
    table = read(path, columns=["row", "x"], missing=["bad", "-999"])
    check(table, "x", [None, None, None, None, 5.5] * 20)
    table = read(path, columns="x", missing="bad")
    check(table, "x", [None, -999.0, None, None, 5.5] * 20)
    if reader.startswith("read"):
        table = read(path, columns="name", categories="name", missing="bad")
        assert table.column("name").categories == ("x", "y", "z")
        assert table["name"].tolist() == [0, 1, -1, 2, -1] * 20
        assert wd.Table.estimate(path, columns="x", missing=["bad"]) == 800
        with pytest.raises(
            TypeError, match=r"column 'x' .* string; it has 'bad' in row 0 among nu"
        ):
            read(path, columns="x", missing="-999")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("first", [True, False])
def test_words_of_a_user_in_quotes_alone(tmp_path: Path, reader: str, first: bool) -> None:
    path = tmp_path / "a.csv"
    cells = ["1.5", "2", "3.25"] * 40
    cells.insert(0 if first else 100, '"bad"')
    path.write_text("\n".join(["x,name", *(f"{cell},bad" for cell in cells)]) + "\n")
    table = READERS[reader](path, columns="x", missing=["bad"])
    check(table, "x", [None if cell == '"bad"' else float(cell) for cell in cells])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("row", [0, 57, 119])
def test_a_text_among_numbers_is_named_with_its_row(tmp_path: Path, reader: str, row: int) -> None:
    for number, (cells, _) in enumerate(CELLS.values()):
        if "true" in cells:
            continue
        column = cells * 40
        column[row] = "oops"
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(["row,x", *(f"0,{cell}" for cell in column)]) + "\n")
        keep = r"missing=\[\] to keep" if "prepare" in reader else r"categories=\['x'\] to read"
        message = rf"column 'x' of .*{number}.csv' is string; it has 'oops' in row {row} among "
        with pytest.raises(
            TypeError, match=message + rf"numbers; pass missing=\['oops'\] if .*, or {keep}"
        ):
            READERS[reader](path)
        table = READERS[reader](path, missing=["oops"])
        assert int((~table.column("x").observed()).sum()) == 1


def test_no_words_keep_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,?\n2,5\noops,6\n")
    wd.prepare(path, tmp_path / "out", missing=[])
    table = wd.Table.read(tmp_path / "out", categories=True)
    assert table.column("x").categories == ("1", "2", "oops")
    assert table.column("y").categories == ("?", "5", "6")
    table = wd.Table.read(path, categories=True, missing=[])
    assert table.column("y").categories == ("?", "5", "6")
    wd.prepare(path, tmp_path / "out", missing=["5"], overwrite=True)
    table = wd.Table.read(tmp_path / "out", categories=True)
    assert table.column("x").categories == ("1", "2", "oops")
    check(table, "y", [None, None, 6])
    # Codes of apartments, of which more than one are no numbers.
    path.write_text("x\n" + "1\n2\n12a\n12b\n3\n")
    wd.prepare(path, tmp_path / "text")
    table = wd.Table.read(tmp_path / "text", categories=True)
    assert table.column("x").categories == ("1", "2", "12a", "12b", "3")


def test_words_among_times(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,x\n2024-01-01,1\noops,2\n2024-01-03,3\n")
    with pytest.raises(
        TypeError, match=r"column 't' .* is string; it has 'oops' in row 1 among ti"
    ):
        wd.Table.read(path, timestamp_column="t")
    path.write_text("t,x\n2024-01-01,1\n?,2\n2024-01-03,3\n")
    with pytest.raises(ValueError, match="timestamp column 't' is missing in row 1"):
        wd.Table.read(path, timestamp_column="t")


def test_decimal_commas_with_words(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x;y\n1,5;-\n?;2,5\n")
    table = wd.Table.read(path, delimiter=";", decimal=",")
    check(table, "x", [1.5, None])
    check(table, "y", [None, 2.5])
    path.write_text("x;y\n1,5;1\noops;2\n2,5;3\n")
    with pytest.raises(TypeError, match="it has 'oops' in row 1 among numbers"):
        wd.Table.read(path, delimiter=";", decimal=",")


def test_wrong_words(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n")
    with pytest.raises(TypeError, match=r"`missing` must be texts such as '\?', got \(-999,\)"):
        wd.Table.read(path, missing=[-999])  # type: ignore[list-item]


def test_numbers_too_large_for_a_float_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for reader in READERS.values():
        path.write_text("x\n" + "1.5\n" * 50 + "-inf\nInfinity\n1e308\n" + "0\n" * 20)
        assert math.isinf(reader(path)["x"][50])
        path.write_text("x\n" + "1.5\n" * 50 + "inf\n-1e309\n" + "0\n" * 20)
        with pytest.raises(
            OverflowError, match=r"column 'x' of .* has '-1e309' in row 51, which fl"
        ):
            reader(path)


@pytest.mark.parametrize("reader", READERS)
def test_integers_that_a_float_rounds_are_refused(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "a.csv"
    for text in ("9223372036854775809", "-12345678901234567890", "9007199254740993"):
        path.write_text("x\n" + "0.5\n" * 50 + f"{text}\n" + "0\n" * 20)
        with pytest.raises(OverflowError, match=rf"has '{text}' in row 50, which float64 cannot"):
            READERS[reader](path)
    exact = ["9223372036854775809e0", "100000000000000000000", "9007199254740994", "1e300"]
    path.write_text("x\n" + "0.5\n" * 50 + "\n".join(exact) + "\n")
    assert READERS[reader](path)["x"][50:].tolist() == [float(text) for text in exact]
    path.write_text("x\n1\n-9223372036854775808\n?\n9223372036854775807\n")
    table = READERS[reader](path)
    assert table["x"][[0, 1, 3]].tolist() == [1, -(2**63), 2**63 - 1]
