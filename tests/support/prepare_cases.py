"""Unsorted source files for `prepare`, and what it has to write, as polars sorts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import csv, feather, parquet

import windeck as wd

SMALL = 2048  # bytes of a file: a hundred rows are several files


def write_file(path: Path, rows: Any) -> None:
    """Write an Arrow table in the format of the suffix."""
    if path.suffix == ".parquet":
        parquet.write_table(rows, path, row_group_size=50)
    elif path.suffix == ".arrow":
        feather.write_feather(rows, path, compression="uncompressed", chunksize=40)
    else:
        csv.write_csv(rows, path)


def write_files(
    folder: Path, rows: Any, files: int, suffixes: Sequence[str] = (".parquet",)
) -> None:
    """Write consecutive rows to files ``0.suffix``, ``1.suffix`` and so on, of unequal length."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = [
        rows.num_rows * place * (place + 1) // (files * (files + 1)) for place in range(files + 1)
    ]
    for place in range(files):
        part = rows.slice(ends[place], ends[place + 1] - ends[place])
        write_file(folder / f"{place}{suffixes[place % len(suffixes)]}", part)


def unsorted_rows(series: int = 5, length: int = 60, seed: int = 0) -> Any:
    """Return rows of several series in random order, with a column that numbers them."""
    rng = np.random.default_rng(seed)
    count = series * length
    shuffled = rng.permutation(count)
    days = np.datetime64("2024-01-01", "us") + np.arange(length).astype("m8[D]")
    return pa.table(
        {
            "site": pa.array([f"s{place}" for place in range(series)]).take(shuffled // length),
            "time": pa.array(days).take(shuffled % length),
            "load": rng.standard_normal(count),
            "number": np.arange(count),
        }
    )


def written(folder: Path) -> Any:
    """Return all rows of a prepared directory, by pyarrow alone, in the order of its files."""
    prepared = wd.Prepared.read(folder)
    prepared.verify()
    assert prepared.rows == sum(file.rows for file in prepared.files)
    return pa.concat_tables(parquet.read_table(folder / file.name) for file in prepared.files)


def assert_sorted_as_by_polars(folder: Path, rows: Any, keys: Sequence[str]) -> None:
    """Assert that a directory holds the rows of a table, sorted by the keys and stable."""
    expected = pl.DataFrame(rows)
    if keys:
        expected = expected.sort(*keys, maintain_order=True)
    found = pl.DataFrame(written(folder)).select(expected.columns)
    assert found.equals(expected)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a directory but the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".prepare.lock"
    }
