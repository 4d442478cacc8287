"""Files are written in one step, and rows of sorted runs are read back from any place."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windeck.io import (
    filesystem,
    read_batches,
    remove_directory,
    sha256,
    write_batches,
    write_parquet,
)

ROWS = pa.table(
    {
        "id": pa.array(["a", "b"]).take(np.arange(100) // 50).dictionary_encode(),
        "x": pa.array([None if row % 7 == 0 else row / 2 for row in range(100)]),
        "text": [str(row) for row in range(100)],
    }
).combine_chunks()


def batches(rows: int) -> Iterator[Any]:
    yield from ROWS.to_batches(max_chunksize=rows)


@pytest.mark.parametrize("rows", [1, 7, 50, 100, 1000])
def test_any_stretch_of_rows_is_read_back(tmp_path: Path, rows: int) -> None:
    path = str(tmp_path / "run.arrow")
    write_batches(path, ROWS.schema, batches(rows))
    for start, stop in [(0, 100), (0, 1), (99, 100), (6, 8), (7, 14), (13, 77), (50, 50)]:
        found = read_batches(path, rows, start, stop)
        assert pa.Table.from_batches(found, ROWS.schema).equals(ROWS.slice(start, stop - start))
    (some,) = read_batches(path, rows, 5, 6, ["text", "id"])
    assert some.to_pydict() == {"text": ["5"], "id": ["a"]}


def test_a_file_that_ends_early_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "run.arrow"
    write_batches(str(path), ROWS.schema, batches(40))
    with pytest.raises(ValueError, match=r"batch 2 of '.*run.arrow' has 20 rows, expected 21"):
        read_batches(str(path), 40, 80, 101)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"run.arrow' cannot be read as Arrow IPC"):
        read_batches(str(path), 40, 0, 100)


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_tables_become_row_groups(tmp_path: Path, compression: str) -> None:
    path = str(tmp_path / "part.parquet")
    groups = iter([ROWS.slice(0, 30), ROWS.slice(30, 70)])
    nbytes = write_parquet(path, ROWS.schema, groups, compression)
    assert nbytes == (tmp_path / "part.parquet").stat().st_size
    assert parquet.read_table(path).equals(ROWS)
    metadata = parquet.read_metadata(path)
    assert [metadata.row_group(number).num_rows for number in range(2)] == [30, 70]
    assert sha256(path) == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_an_error_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Any]:
        yield ROWS
        raise KeyError("rows")

    with pytest.raises(KeyError):
        write_parquet(str(tmp_path / "part.parquet"), ROWS.schema, failing(), "zstd")
    assert not list(tmp_path.iterdir())


def test_what_is_not_there_is_removed_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("")
    for _ in range(2):
        filesystem.remove(str(tmp_path / "c"))
        remove_directory(str(tmp_path / "a"))
    assert not list(tmp_path.iterdir())
