"""Columns that only names of folders give read like columns of the files, in every way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset, feather, parquet

import windeck as wd

ROWS = 5
KINDS = ("parquet", "arrow", "csv")


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        feather.write_feather(table, path, compression="uncompressed")
    else:
        from pyarrow import csv

        csv.write_csv(table, path)


def rows_of_site(place: int) -> dict[str, Any]:
    first = np.datetime64("2024-01-01", "h")
    return {
        "time": pa.array((first + np.arange(ROWS)).astype("M8[s]")),
        "load": np.arange(ROWS) + 10.0 * place,
    }


def corpus(root: Path, kind: str, sites: list[str], key: str = "site") -> Path:
    for place, site in enumerate(sites):
        table = pa.table(rows_of_site(place))
        write(root / f"{key}={quote(site, safe=' ')}" / f"part-0.{kind}", table)
    return root


def series_of(table: Any) -> dict[Any, list[float]]:
    """Return the rows of each series by its id, through windows."""
    windows = wd.Windows(table, context_length=1, target_columns=["load"])
    found: dict[Any, list[float]] = {}
    for number, name in enumerate(table.series_names):
        indices = [i for i in range(len(windows)) if windows.locate(i)[0] == number]
        key = name[0] if isinstance(name, tuple) else name
        values = windows.gather(np.array(indices))["past_target"][:, 0, 0]
        found[key] = sorted(values.tolist())
    return found


def in_memory_url(root: Path, name: str) -> str:
    fsspec.filesystem("memory").put(str(root), f"/folders/{name}", recursive=True)
    return f"memory://folders/{name}"


SITES: dict[str, tuple[list[str], list[Any]]] = {
    "strings": (["b", "a", "North Sea"], ["b", "a", "North Sea"]),
    "integers": (["3", "1", "-2"], [3, 1, -2]),
    "zeros": (["01", "02"], [1, 2]),
    "same numbers": (["1", "01"], ["1", "01"]),
    "some numbers": (["1", "x"], ["1", "x"]),
    "long numbers": (["1", "3000000000"], ["1", "3000000000"]),
    "escaped": (["a/b", "c=d", "e%f"], ["a/b", "c=d", "e%f"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sites", SITES)
def test_ids(tmp_path: Path, sites: str, kind: str) -> None:
    texts, values = SITES[sites]
    root = corpus(tmp_path / "data", kind, texts)
    expected = {value: rows_of_site(place)["load"].tolist() for place, value in enumerate(values)}
    if sites not in ("same numbers",):
        partitions = dataset.partitioning(flavor="hive")
        read = dataset.dataset(root, format=kind, partitioning=partitions).to_table()
        assert set(read["site"].to_pylist()) == set(values)  # The types of pyarrow.
    options: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
    places: list[Any] = [root, f"{root}/*/*.{kind}", sorted(root.rglob(f"*.{kind}"))]
    for place in (*places, in_memory_url(tmp_path / "data", f"{sites}-{kind}")):
        table = wd.Table.read(place, **options)
        assert series_of(table) == expected
        assert table.column_names == ("load",)
        if kind != "csv":
            streamed = wd.Table.read(place, in_memory=False, memory_budget=1e9, **options)
            assert series_of(streamed) == expected
            assert wd.Table.estimate(place, **options) <= ROWS * len(texts) * (8 + 8 + 4)
    wd.prepare(root, tmp_path / "prepared", **options)
    prepared = wd.Table.read(tmp_path / "prepared", in_memory=False, **options)
    assert series_of(prepared) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_categories(tmp_path: Path, kind: str) -> None:
    root = corpus(tmp_path / "data", kind, ["b", "a"])
    corpus(tmp_path / "numbers", kind, ["7", "-5"], key="level")
    table: Any = wd.Table.read(root, columns=["load", "site"])
    names = table.column("site").categories
    assert [names[code] for code in table["site"].tolist()] == ["a"] * ROWS + ["b"] * ROWS
    levels = wd.Table.read(tmp_path / "numbers", columns=["level", "load"])
    assert levels["level"].tolist() == [7] * ROWS + [-5] * ROWS
    assert wd.Table.estimate(tmp_path / "numbers", columns=["level"]) == 2 * ROWS * 4
    if kind != "csv":
        streamed = wd.Table.read(tmp_path / "numbers", columns=["level", "load"], in_memory=False)
        windows = wd.Windows(streamed, context_length=1, target_columns=["level"])
        values = windows.gather(np.arange(2 * ROWS))["past_target"][:, 0, 0]
        assert values.tolist() == [7] * ROWS + [-5] * ROWS
    # Without the name the folders give no column, as before.
    write(tmp_path / "other" / "level=7" / "a.parquet", pa.table({"load": [1.0]}))
    assert wd.Table.read(tmp_path / "other").column_names == ("load",)


def test_two_levels_and_nothing(tmp_path: Path) -> None:
    for year in ("2023", "2024"):
        for site in ("a", "__HIVE_DEFAULT_PARTITION__"):
            write(
                tmp_path / f"year={year}" / f"site={site}" / "x.parquet",
                pa.table({"load": [float(year)]}),
            )
    table = wd.Table.read(tmp_path, columns=["load", "site", "year"])
    assert table["year"].tolist() == table["load"].tolist()
    assert table["site"].tolist() == [-1, 0, -1, 0]
    assert set(wd.Table.read(tmp_path, id_columns=["year"]).series_names) == {2023, 2024}


def test_a_column_that_some_files_have(tmp_path: Path) -> None:
    write(tmp_path / "site=1" / "a.parquet", pa.table({"load": [1.0]}))
    write(
        tmp_path / "site=2" / "b.parquet",
        pa.table({"load": [2.0], "site": pa.array([2], pa.int64())}),
    )
    table = wd.Table.read(tmp_path, columns=["load"], id_columns=["site"])
    assert set(table.series_names) == {1, 2}


@pytest.mark.parametrize("way", ["read", "stream", "prepare"])
@pytest.mark.parametrize("values", [("0.5", "1.5"), ("1e3", "7"), ("07", "7"), ("+2", "2")])
def test_numbers_in_text_are_codes_only_where_they_are_asked_for(
    tmp_path: Path, values: tuple[str, str], way: str
) -> None:
    for value in values:
        write(tmp_path / "data" / f"rate={value}" / "a.parquet", pa.table({"load": [1.0]}))
    path = tmp_path / "data"
    options: dict[str, Any] = {"in_memory": False} if way == "stream" else {}
    if way == "prepare":
        wd.prepare(path, tmp_path / "prepared", id_columns="rate")
        path = tmp_path / "prepared"
    with pytest.raises(TypeError, match=r"string column .*pass categories=\['rate'\]"):
        wd.Table.read(path, columns=["load", "rate"], **options)
    table = wd.Table.read(path, id_columns="rate", **options)
    assert set(table.series_names) == set(values)
    table = wd.Table.read(path, columns=["load", "rate"], categories=["rate"], **options)
    assert set(table.column("rate").categories or ()) == set(values)


@pytest.mark.parametrize("way", ["read", "stream", "prepare"])
@pytest.mark.parametrize(("value", "kind"), [("b", pa.int64()), ("300", pa.int8())])
def test_a_folder_whose_value_other_files_cannot_hold(
    tmp_path: Path, value: str, kind: pa.DataType, way: str
) -> None:
    own = pa.table({"load": [1.0], "site": pa.array([1], kind)})
    write(tmp_path / "data" / "site=1" / "a.parquet", own)
    write(tmp_path / "data" / f"site={value}" / "a.parquet", own.select(["load"]))
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: wd.Table.read(tmp_path / "data", id_columns="site"),
        "stream": lambda: wd.Table.read(tmp_path / "data", id_columns="site", in_memory=False),
        "prepare": lambda: wd.prepare(tmp_path / "data", tmp_path / "out", id_columns="site"),
    }
    with pytest.raises(
        ValueError, match=f"folder of .* names '{value}' for column 'site', which is {kind} in oth"
    ):
        calls[way]()


CONFLICTS: dict[str, tuple[Any, Any]] = {
    "strings": (pa.array(["a", "b"]), "'b', and its folder names 'a'"),
    "views": (pa.array(["a", "b"], pa.string_view()), "'b', and its folder names 'a'"),
    "codes": (pa.array(["a", "b"]).dictionary_encode(), "'b', and its folder names 'a'"),
    "null": (pa.array(["a", None]), "None, and its folder names 'a'"),
    "integers": (pa.array([1, 2]), "1, and its folder names 'a'"),
}


@pytest.mark.parametrize("conflict", CONFLICTS)
def test_a_file_and_its_folder_that_disagree(tmp_path: Path, conflict: str) -> None:
    column, message = CONFLICTS[conflict]
    write(
        tmp_path / "data" / "site=a" / "a.parquet", pa.table({"load": [1.0, 2.0], "site": column})
    )
    options: dict[str, Any] = {"columns": ["load"], "id_columns": ["site"]}
    ways: list[dict[str, Any]] = [{}, {"in_memory": False}]
    for way in ways:
        with pytest.raises(ValueError, match=message):
            wd.Table.read(tmp_path / "data", **options, **way)
    with pytest.raises(ValueError, match=message):
        wd.prepare(tmp_path / "data", tmp_path / "prepared", **options)


def test_values_of_which_folders_differ_must_agree(tmp_path: Path) -> None:
    for step in (1, 2):
        write(
            tmp_path / f"step={step}" / "a.parquet",
            pa.table({"step": [step, 9], "load": [1.0, 2.0]}),
        )
    with pytest.raises(ValueError, match="has 9, and its folder names 1"):
        wd.Table.read(tmp_path)
    # One folder may be the name of a run: its files have other steps.
    assert wd.Table.read(tmp_path / "step=1")["step"].tolist() == [1, 9]


@pytest.mark.parametrize("way", ["read", "estimate", "stream", "prepare", "jagged"])
def test_an_unknown_column_names_those_of_folders(tmp_path: Path, way: str) -> None:
    root = corpus(tmp_path / "data", "parquet", ["a"])
    options: dict[str, Any] = {"id_columns": "place"}
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: wd.Table.read(root, **options),
        "estimate": lambda: wd.Table.estimate(root, **options),
        "stream": lambda: wd.Table.read(root, in_memory=False, **options),
        "prepare": lambda: wd.prepare(root, tmp_path / "prepared", **options),
        "jagged": lambda: wd.JaggedTable.read(root, columns=["place"]),
    }
    with pytest.raises(KeyError, match="whose folders name 'site', has no column 'place'"):
        calls[way]()


def test_folders_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    found = []
    for name, sites in (("one", ["a", "b"]), ("other", ["b", "a"])):
        for place, site in enumerate(sites):
            write(
                tmp_path / name / f"p{place}" / f"site={site}" / "x.parquet",
                pa.table(rows_of_site(place)),
            )
        table = wd.Table.read(
            tmp_path / name, id_columns="site", timestamp_column="time", in_memory=False
        )
        found.append(wd.Windows(table, context_length=2).fingerprint)
    assert found[0] != found[1]


def test_large_row_groups_are_read_whole(tmp_path: Path) -> None:
    """Also of a file with columns of folders."""
    rows = 2_000_000
    values = np.random.default_rng(0).normal(size=rows)
    path = tmp_path / "level=3" / "a.parquet"
    path.parent.mkdir()
    parquet.write_table(pa.table({"x": values}), path, row_group_size=rows, use_dictionary=False)
    table: Any = wd.Table.read(
        tmp_path, columns=["x", "level"], in_memory=False, group_bytes=1 << 20
    )
    windows = wd.Windows(table, context_length=3, target_columns=["x"], past_covariates=["level"])
    batch = windows.gather(np.array([0, 1_234_567]))
    assert batch["past_target"][1, :, 0].tolist() == values[1_234_567:1_234_570].tolist()
    assert (batch["past_covariates"] == 3).all()
    assert table.block_offsets.tolist() == [0, rows]
    small = wd.Table.read(tmp_path, columns=["x", "level"], in_memory=False, memory_budget="2MB")
    with pytest.raises(MemoryError, match=r"row group 0 of '.*level=3/a.parquet'"):
        wd.Windows(small, context_length=3, target_columns=["x"], past_covariates=["level"])


def test_jagged(tmp_path: Path) -> None:
    for day in ("1", "2"):
        write(
            tmp_path / f"day={day}" / "a.parquet",
            pa.table({"seen": pa.array([[int(day)]], pa.list_(pa.int64()))}),
        )
    table = wd.JaggedTable.read(tmp_path, lists=["seen"], columns=["day"])
    batch = table.gather(np.arange(2))
    assert batch["day"].tolist() == [1, 2] == batch["seen"].tolist()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()
