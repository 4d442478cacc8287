"""Paths, columns of several files, memory budgets and categories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

from support.internals import plant
from windeck import Table


def numbers(rows: int, *, first: int = 0, **more: Any) -> pa.Table:
    """Return a table of `rows` rows that counts from `first`."""
    load = np.arange(first, first + rows, dtype=np.float64)
    return pa.table({"load": load, "count": load.astype(np.int64), **more})


@pytest.fixture
def three_files(tmp_path: Path) -> Path:
    """Write part1, part2 and part10 of 5 rows each, and files without data."""
    for place, part in enumerate((1, 2, 10)):
        parquet.write_table(numbers(5, first=5 * place), tmp_path / f"part{part}.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.parquet").write_bytes(b"no")
    (tmp_path / "notes.md").write_text("hello")
    return tmp_path


class TestPaths:
    def test_directory_and_glob_are_read_in_natural_order(self, three_files: Path) -> None:
        for path in (
            three_files,
            str(three_files / "part*.parquet"),
            f"{three_files}/**/*.parquet",
        ):
            table = Table.read(path)
            np.testing.assert_array_equal(table["load"], np.arange(15.0))
        assert "from 3 Parquet files" in table.explain()

    def test_digits_of_other_scripts_are_text(self, tmp_path: Path) -> None:
        for place, name in enumerate(("a10", "a²", "a٣")):
            parquet.write_table(numbers(1, first=place), tmp_path / f"{name}.parquet")
        assert Table.read(tmp_path)["load"].tolist() == [0.0, 1.0, 2.0]

    def test_list_is_read_in_the_order_given(self, three_files: Path) -> None:
        table = Table.read([three_files / "part2.parquet", three_files / "part1.parquet"])
        assert table["count"].tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]

    def test_rows_are_counted_over_all_files(self, three_files: Path) -> None:
        assert Table.read(three_files, rows=(3, 11))["count"].tolist() == list(range(3, 11))

    def test_subfolders_and_kinds_may_mix(self, three_files: Path) -> None:
        (three_files / "part2b").mkdir()
        feather.write_feather(numbers(2), three_files / "part2b" / "x.feather")
        csv.write_csv(numbers(2), three_files / "part3.csv")
        assert len(Table.read(three_files)) == 19

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"file '.*gone.parquet' does not exist"):
            Table.read(tmp_path / "gone.parquet")
        with pytest.raises(FileNotFoundError, match=r"no file matches '.*\*.parquet'"):
            Table.read(tmp_path / "*.parquet")
        with pytest.raises(FileNotFoundError, match="has no data file; expected names that end"):
            Table.read(tmp_path)
        with pytest.raises(FileNotFoundError, match="list of files is empty"):
            Table.read([])
        with pytest.raises(TypeError, match=r"path must be a file, a glob, .* got a int"):
            Table.read(3)  # type: ignore[arg-type]

    def test_a_name_with_brackets_is_a_file_if_there_is_one(self, tmp_path: Path) -> None:
        parquet.write_table(numbers(3), tmp_path / "a[1].parquet")
        assert len(Table.read(tmp_path / "a[1].parquet")) == 3


class TestMixedSchemas:
    def test_type(self, tmp_path: Path) -> None:
        parquet.write_table(numbers(2), tmp_path / "a.parquet")
        parquet.write_table(
            numbers(2).set_column(0, "load", pa.array([1, 2])), tmp_path / "b.parquet"
        )
        with pytest.raises(
            ValueError, match=r"column 'load' is double in '.*a.parquet' but int64 in '.*b.parquet'"
        ):
            Table.read(tmp_path)
        assert len(Table.read(tmp_path, columns=["count"])) == 4

    def test_names(self, tmp_path: Path) -> None:
        parquet.write_table(numbers(2), tmp_path / "a.parquet")
        parquet.write_table(numbers(2, extra=pa.array([1, 2])), tmp_path / "b.parquet")
        with pytest.raises(ValueError, match=r"b.parquet' has a column 'extra', which '.*a.parq"):
            Table.read(tmp_path)
        with pytest.raises(ValueError, match=r"a.parquet' has no column 'extra', which '.*b.parq"):
            Table.read([tmp_path / "b.parquet", tmp_path / "a.parquet"])

    def test_csv_has_no_types_so_whole_numbers_may_meet_floats(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("load\n1\n2\n")
        (tmp_path / "b.csv").write_text("load\n0.5\n\n")
        (tmp_path / "c.csv").write_text("load\n\n\n")
        table = Table.read([tmp_path / "a.csv", tmp_path / "b.csv"])
        np.testing.assert_array_equal(table["load"], [1, 2, 0.5])
        (tmp_path / "d.csv").write_text("load\n9007199254740993\n")
        with pytest.raises(ValueError, match=r"column 'load' is int64 in '.*d.csv' and double"):
            Table.read([tmp_path / "d.csv", tmp_path / "b.csv"])

    def test_encodings_may_differ(self, tmp_path: Path) -> None:
        words = pa.array(["x", "y", "x"])
        parquet.write_table(pa.table({"w": words}), tmp_path / "a.parquet")
        parquet.write_table(
            pa.table({"w": pa.array(["y", "z", None]).dictionary_encode()}), tmp_path / "b.parquet"
        )
        column = Table.read(tmp_path, categories="w").column("w")
        assert column.categories == ("x", "y", "z")
        assert column.values.tolist() == [0, 1, 0, 1, 2, -1]
        assert column.missing == 1


class TestBudget:
    @pytest.mark.parametrize("suffix", ["parquet", "feather"])
    def test_estimate_is_what_reading_takes(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"a.{suffix}"
        table = numbers(1000, flag=np.ones(1000, dtype=bool), small=np.ones(1000, dtype=np.int16))
        if suffix == "parquet":
            parquet.write_table(table, path)
        else:
            feather.write_feather(table, path)
        assert Table.estimate(path) == 1000 * (8 + 8 + 1 + 2)
        assert Table.estimate(path, dtype="float32") == 1000 * (4 + 8 + 1 + 2)
        assert Table.estimate(path, columns=["load"]) == 8000
        assert Table.estimate(path, columns=["load"], rows=(100, 200)) == 800

    def test_budget_refuses_with_both_figures(self, tmp_path: Path) -> None:
        parquet.write_table(numbers(1000), tmp_path / "a.parquet")
        with pytest.raises(
            MemoryError,
            match=r"reading 2 of 2 columns takes about 16 kB, more than memory_budget=15.9 kB",
        ):
            Table.read(tmp_path, memory_budget=15_900)
        assert len(Table.read(tmp_path, memory_budget=16_000)) == 1000
        assert len(Table.read(tmp_path, memory_budget="16 kB")) == 1000
        with pytest.raises(ValueError, match="`memory_budget` must be bytes as text"):
            Table.read(tmp_path, memory_budget="8 apples")
        with pytest.raises(ValueError, match="`memory_budget` must be at least 0, got -1"):
            Table.read(tmp_path, memory_budget=-1)

    def test_budget_is_checked_before_values_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        parquet.write_table(numbers(1000), path, compression=None, use_dictionary=False)
        data = bytearray(path.read_bytes())
        data[100:9000] = b"\xff" * 8900
        path.write_bytes(data)
        with pytest.raises(MemoryError):
            Table.read(path, memory_budget=1000)

    def test_csv_is_judged_by_its_beginning(self, tmp_path: Path) -> None:
        rows = 200_000
        csv.write_csv(numbers(rows), tmp_path / "a.csv")
        assert Table.estimate(tmp_path / "a.csv") == pytest.approx(rows * 16, rel=0.15)

    def test_explain_says_how_much_of_how_much(self, tmp_path: Path) -> None:
        wide = pa.table({f"c{i}": np.zeros(1000) for i in range(96)})
        feather.write_feather(wide, tmp_path / "a.feather")
        table = Table.read(tmp_path, columns=[f"c{i}" for i in range(0, 96, 16)])
        assert table.explain().startswith("6 of 96 columns, 48 of 768 kB, 1,000 rows, in memory")


class TestCategories:
    def test_codes_are_places_in_the_names_given(self, tmp_path: Path) -> None:
        parquet.write_table(pa.table({"w": ["b", "a", None, "b"]}), tmp_path / "a.parquet")
        column = Table.read(tmp_path, categories={"w": ["a", "b", "c"]}).column("w")
        assert column.values.tolist() == [1, 0, -1, 1]
        assert column.categories == ("a", "b", "c")
        with pytest.raises(ValueError, match=r"column 'w' has 'b'; its categories are 'a', 'c'"):
            Table.read(tmp_path, categories={"w": ["a", "c"]})

    def test_only_strings_have_categories(self, tmp_path: Path) -> None:
        parquet.write_table(numbers(2), tmp_path / "a.parquet")
        with pytest.raises(TypeError, match=r"column 'count' .* is int64; expected strings"):
            Table.read(tmp_path, categories=["count"])

    def test_large_strings_views_and_other_dictionaries(self, tmp_path: Path) -> None:
        kinds = [pa.large_string(), pa.dictionary(pa.int64(), pa.large_string())]
        for place, kind in enumerate(kinds):
            words = pa.array(["x", None, "y"]).cast(kind)
            numbered = pa.array([7, 8, 7]).dictionary_encode()
            path = tmp_path / f"{place}.arrow"
            feather.write_feather(pa.table({"w": words, "n": numbered}), path)
            table = Table.read(path, categories=True)
            assert table["w"].tolist() == [0, -1, 1]
            assert table["n"].tolist() == [7, 8, 7]

    def test_csv_missing_words(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text('w,x\nNA,1\n"NA",2\n,3\nSE,4\n')
        column = Table.read(tmp_path, categories="w").column("w")
        assert column.values.tolist() == [-1, 0, -1, 1]
        assert column.categories == ("NA", "SE")


def test_missing_values_are_null_or_nan(tmp_path: Path) -> None:
    table = pa.table({"f": [1.0, None, np.nan, 4.0], "i": [1, None, 3, 4]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = Table.read(tmp_path)
    assert found.column("f").missing == 2
    assert found.column("i").missing == 1
    np.testing.assert_array_equal(found["f"], [1, np.nan, np.nan, 4])
    np.testing.assert_array_equal(found["i"], [1, 0, 3, 4])
    assert found.column("i").observed().tolist() == [True, False, True, True]
    assert found.column("f").observed(np.array([-1, 1])).tolist() == [True, False]
    assert found.column("f").observed(slice(0, 4, 2)).tolist() == [True, False]
    assert "2 missing (50.0%)" in found.explain()


def test_nested_columns_beside_do_no_harm(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1.0, 2.0], "a": [3.0, 4.0], "c": [{"a": 1}, {"a": 2}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = Table.read(tmp_path, columns=["a", "a.b"])
    assert found["a"].tolist() == [3, 4]
    assert found["a.b"].tolist() == [1, 2]


def test_tabs_and_gzip(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.tsv").write_text("x\ty\n1\t2\n")
    assert Table.read(tmp_path / "a.tsv")["y"].tolist() == [2]
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("x,y\n1,2\n")
    assert Table.read(tmp_path / "b.csv.gz")["y"].tolist() == [2]
    assert len(Table.read(tmp_path)) == 2


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize("storage", ["columns", "rows"])
def test_portions_of_columns_and_rows_meet(
    tmp_path: Path, suffix: str, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "record_batches._COLUMNS", 2)
    plant(monkeypatch, "record_batches._VALUES", 0)
    plant(monkeypatch, "record_batches.BATCH_ROWS", 7)
    plant(monkeypatch, "csv.BATCH_ROWS", 7)
    plant(monkeypatch, "reading._CACHED_BYTES", 3 * 5 * 8)
    values = np.random.default_rng(1).normal(size=(200, 5))
    data = pa.table(
        {f"c{i}": pa.array(values[:, i], mask=np.arange(200) % (i + 3) == 0) for i in range(5)}
    )
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        parquet.write_table(data, path, row_group_size=30)
    elif suffix == "arrow":
        feather.write_feather(data, path, compression="uncompressed", chunksize=30)
    else:
        csv.write_csv(data, path)
    found = Table.read([path, path], storage=storage, rows=(5, 390))
    for place, name in enumerate(data.column_names):
        missing = np.arange(200) % (place + 3) == 0
        expected = np.where(missing, np.nan, values[:, place])
        np.testing.assert_array_equal(found[name], np.tile(expected, 2)[5:390])
        np.testing.assert_array_equal(found.column(name).observed(), ~np.tile(missing, 2)[5:390])


def test_csv_whose_later_lines_contradict_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "csv._SAMPLE_BYTES", 64)
    lines = ["a,b", *("1,x" for _ in range(100)), "2.5,3"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    table = Table.read(tmp_path / "a.csv", columns=["a"])
    assert table["a"].tolist() == [1.0] * 100 + [2.5]
