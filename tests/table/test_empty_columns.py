"""Columns without any value, decimals, and files without rows, of every kind of file."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import windeck as wd

TEXTS = ["19.99", None, "0.3", "-1.23", "0.07", "123456789.12"]
ROWS = len(TEXTS)


def numbers(kind: Any) -> Any:
    return pa.array([None if text is None else decimal.Decimal(text) for text in TEXTS], kind)


DECIMALS = {
    "decimal128": pa.decimal128(20, 2),
    "decimal256": pa.decimal256(60, 2),
    "scale 10": pa.decimal128(30, 10),
}


def parquet(data: Any, path: Path) -> Path:
    pq.write_table(data, path, row_group_size=4)
    return path


def arrow(data: Any, path: Path) -> Path:
    feather.write_feather(data, str(path), compression="uncompressed")
    return path


def compressed(data: Any, path: Path) -> Path:
    feather.write_feather(data, str(path), compression="zstd", chunksize=2)
    return path


def csv(data: Any, path: Path) -> Path:
    from pyarrow import csv as writer

    writer.write_csv(data, path.with_suffix(".csv"))
    return path.with_suffix(".csv")


WRITERS: dict[str, Callable[[Any, Path], Path]] = {
    "Parquet": parquet,
    "Arrow": arrow,
    "Arrow compressed": compressed,
    "CSV": csv,
}


def streamed(path: Path, **options: Any) -> wd.Table:
    return wd.Table.read(path, in_memory=False, group_bytes=1 << 10, **options)


def mapped(path: Path, **options: Any) -> wd.Table:
    return wd.Table.read(path, in_memory=False, **options)


def by_rows(path: Path, **options: Any) -> wd.Table:
    return wd.Table.read(path, storage="rows", **options)


def prepared(path: Path, **options: Any) -> wd.Table:
    folder = path.parent / "out"
    wd.prepare(path, folder, overwrite=True, **options)
    return wd.Table.read(folder, id_columns=options.get("id_columns"))


READERS = (wd.Table.read, by_rows, streamed, mapped, prepared)


def readers_of(kind: str) -> list[Callable[..., wd.Table]]:
    return [one for one in READERS if kind != "CSV" or one not in (streamed, mapped)]


def windows_of(table: wd.Table, name: str) -> tuple[np.ndarray[Any, Any], list[bool]]:
    """Values and masks of a column, by windows: of streamed tables there is no other way."""
    keys = ("past_target", "past_target_mask")
    windows = wd.Windows(table, context_length=ROWS, target_columns=name, keys=keys)
    values, masks = (windows[0][key].ravel() for key in keys)
    return values, masks.tolist()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_column_without_values_is_missing(tmp_path: Path, kind: str) -> None:
    for dtype, others in (
        ("float32", pa.float32()),
        ("float64", pa.float64()),
        (None, pa.float32()),
    ):
        values = pa.array(np.arange(ROWS) + 0.5, others)
        data = pa.table({"site": ["a"] * ROWS, "dead": pa.nulls(ROWS), "x": values})
        path = WRITERS[kind](data, tmp_path / "a.data")
        for reader in readers_of(kind):
            if reader is mapped and kind == "Arrow" and dtype not in (None, str(others)):
                continue
            table = reader(path, id_columns="site", dtype=dtype)
            assert table.columns["dead"].dtype == table.columns["x"].dtype, reader
            found, masks = windows_of(table, "dead")
            assert not any(masks), reader
            assert str(found.dtype) == table.columns["x"].dtype
            every = wd.Windows(table, context_length=2)[1]["past_target"]
            assert every[:, 1].tolist() == [1.5, 2.5]
    data = pa.table({"dead": pa.nulls(ROWS), "also": pa.nulls(ROWS)})
    path = WRITERS[kind](data, tmp_path / "b.data")
    for reader in readers_of(kind):
        assert windows_of(reader(path), "also")[1] == [False] * ROWS


@pytest.mark.parametrize("kind", ["Parquet", "Arrow", "Arrow compressed"])
def test_a_column_without_values_in_some_files_has_the_type_of_the_others(
    tmp_path: Path, kind: str
) -> None:
    for name, column in {"0": pa.nulls(2), "1": pa.array([1, 2]), "2": pa.nulls(2)}.items():
        folder = tmp_path / "in"
        folder.mkdir(exist_ok=True)
        WRITERS[kind](pa.table({"x": column}), folder / f"{name}.data")
    for reader in readers_of(kind):
        found, masks = windows_of(reader(tmp_path / "in" / "*"), "x")
        assert masks == [False, False, True, True, False, False]
        assert found[2:4].tolist() == [1, 2]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_category_without_values_has_no_names(tmp_path: Path, kind: str) -> None:
    data = pa.table({"wind": pa.nulls(ROWS), "x": np.arange(ROWS) + 0.5})
    path = WRITERS[kind](data, tmp_path / "a.data")
    for reader in (one for one in readers_of(kind) if one not in (prepared, by_rows)):
        for categories in ("wind", {"wind": ["N", "S"]}):
            table = reader(path, categories=categories)
            names = ("N", "S") if isinstance(categories, dict) else ()
            assert table.column("wind").categories == names, reader
            found, masks = windows_of(table, "wind")
            assert found.dtype == np.int32
            assert masks == [False] * ROWS


def test_columns_without_values_in_memory() -> None:
    data = pa.table({"dead": pa.nulls(3), "x": pa.array([1.0, 2.0, 3.0], pa.float32())})
    assert wd.Table.from_arrow(data).columns["dead"].dtype == "float32"
    assert wd.Table.from_arrow(data, dtype="float16")["dead"].dtype == np.float16
    table = wd.Table.from_columns({"dead": [None, None], "x": [1.0, 2.0]})
    assert not table.column("dead").observed().any()
    wide = wd.Table.from_wide(data, series="columns")
    assert wide.series_names == ("dead", "x")
    assert wide.column("target").observed().tolist() == [False] * 3 + [True] * 3
    with pytest.raises(
        TypeError, match="id column 'dead' of the data is null; expected strings or"
    ):
        wd.Table.from_arrow(data, id_columns="dead")
    with pytest.raises(TypeError, match="timestamp column 'dead' of the data is null; expected ti"):
        wd.Table.from_arrow(data, timestamp_column="dead")


@pytest.mark.parametrize("kind", ["Parquet", "Arrow", "Arrow compressed"])
@pytest.mark.parametrize("name", DECIMALS)
def test_decimals_are_the_nearest_floats_where_these_are_asked_for(
    tmp_path: Path, kind: str, name: str
) -> None:
    data = pa.table({"m": numbers(DECIMALS[name])})
    path = WRITERS[kind](data, tmp_path / "a.data")
    expected = [text is not None for text in TEXTS]
    for reader in readers_of(kind):
        with pytest.raises(TypeError, match=r"column 'm' of .* decimal.*; pass dtype='float64' to"):
            reader(path)
        for dtype in ("float64", "float32"):
            found, masks = windows_of(reader(path, dtype=dtype), "m")
            assert masks == expected
            for value, text in zip(found, TEXTS, strict=True):
                assert text is None or value == np.dtype(dtype).type(float(text))
        with pytest.raises(OverflowError, match=r"column 'm' .*has 123456789.12 in row 5, too "):
            windows_of(reader(path, dtype="float16"), "m")


def test_decimals_in_memory() -> None:
    data = pa.table({"m": numbers(pa.decimal128(20, 2))})
    with pytest.raises(TypeError, match="pass dtype='float64' to read decimals as floats"):
        wd.Table.from_arrow(data)
    assert wd.Table.from_arrow(data, dtype="float64")["m"][[0, 2]].tolist() == [19.99, 0.3]
    coded = pa.table({"m": numbers(pa.decimal128(20, 2)).dictionary_encode()})
    assert wd.Table.from_arrow(coded, dtype="float64")["m"][[0, 2]].tolist() == [19.99, 0.3]
    lists = pa.table({"m": pa.array([[decimal.Decimal("19.99")], [decimal.Decimal("0.30")]])})
    with pytest.raises(TypeError, match="pass dtype='float64' to read decimals as floats"):
        wd.Table.from_series(lists)
    assert wd.Table.from_series(lists, dtype="float64")["m"].tolist() == [19.99, 0.3]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("ids", [None, "site"])
def test_files_without_rows_are_refused_in_every_way(
    tmp_path: Path, kind: str, ids: str | None
) -> None:
    data = pa.table({"site": pa.array([], pa.int64()), "x": pa.array([], pa.float32())})
    path = WRITERS[kind](data, tmp_path / "a.data")
    for reader in readers_of(kind):
        with pytest.raises(ValueError, match=rf"'{path}' has no rows"):
            reader(path, id_columns=ids)
