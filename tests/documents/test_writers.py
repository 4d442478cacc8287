"""Files of other writers: Polars, arrow-rs and DuckDB, as documents and as tables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from windeck import Documents, Table

LISTS: list[list[int] | None] = [[1, 2, 3], [], None, [4], [5] * 1000]
TEXTS: list[str | None] = ["one", "", None, "vierzehn Zeichen ist mehr als zwölf"]
Write = Callable[[pa.Table, Path], None]


def write_pyarrow(table: pa.Table, path: Path) -> None:
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_polars(table: pa.Table, path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.from_arrow(table).write_ipc(path)


def write_polars_zstd(table: pa.Table, path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.from_arrow(table).write_ipc(path, compression="zstd")


def write_arrow_rs(table: pa.Table, path: Path) -> None:
    arro3 = pytest.importorskip("arro3.io", reason="pip install arro3-io")
    arro3.write_ipc(table, str(path), compression=None)


def write_arrow_rs_lz4(table: pa.Table, path: Path) -> None:
    arro3 = pytest.importorskip("arro3.io", reason="pip install arro3-io")
    arro3.write_ipc(table, str(path), compression="lz4")


def write_duckdb(table: pa.Table, path: Path) -> None:
    """DuckDB's Arrow goes through pyarrow."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("given", table)
        write_pyarrow(connection.sql("SELECT * FROM given").to_arrow_table(), path)


def write_pyarrow_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path, row_group_size=2)


def write_polars_parquet(table: pa.Table, path: Path) -> None:
    polars = pytest.importorskip("polars")
    polars.from_arrow(table).write_parquet(path)


def write_arrow_rs_parquet(table: pa.Table, path: Path) -> None:
    arro3 = pytest.importorskip("arro3.io", reason="pip install arro3-io")
    arro3.write_parquet(table, str(path))


def write_duckdb_parquet(table: pa.Table, path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.sql("SELECT * FROM given").write_parquet(str(path))


WRITERS: dict[str, tuple[str, Write]] = {
    "pyarrow": ("arrow", write_pyarrow),
    "polars": ("arrow", write_polars),
    "polars-zstd": ("arrow", write_polars_zstd),
    "arrow-rs": ("arrow", write_arrow_rs),
    "arrow-rs-lz4": ("arrow", write_arrow_rs_lz4),
    "duckdb": ("arrow", write_duckdb),
    "pyarrow-parquet": ("parquet", write_pyarrow_parquet),
    "polars-parquet": ("parquet", write_polars_parquet),
    "arrow-rs-parquet": ("parquet", write_arrow_rs_parquet),
    "duckdb-parquet": ("parquet", write_duckdb_parquet),
}
UNCOMPRESSED = ["pyarrow", "polars", "arrow-rs", "duckdb"]


def written(root: Path, writer: str, table: pa.Table) -> Path:
    suffix, write = WRITERS[writer]
    (root / "dataset=c4").mkdir(exist_ok=True)
    path = root / "dataset=c4" / f"x.part0.{suffix}"
    write(table, path)
    return path


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["uint16", "int32", "int64"])
def test_lists(writer: str, kind: str, tmp_path: Path) -> None:
    values = pa.array(LISTS, pa.list_(pa.type_for_alias(kind)))
    written(tmp_path, writer, pa.table({"id": range(len(LISTS)), "tokens": values}))
    documents = Documents(tmp_path)
    assert [tokens.tolist() for tokens in documents] == [one or [] for one in LISTS]
    assert documents[0].dtype == kind
    assert documents.open(0).mapped == (writer in UNCOMPRESSED)
    documents.verify()
    assert Documents(tmp_path, min_length=2).shard_kept.tolist() == [2]


@pytest.mark.parametrize("writer", WRITERS)
def test_no_rows(writer: str, tmp_path: Path) -> None:
    table = pa.table({"tokens": pa.array([], pa.list_(pa.int32()))})
    path = written(tmp_path, writer, table)
    write_pyarrow(pa.table({"tokens": [[1]]}), path.with_name("x.part1.arrow"))
    assert Documents(tmp_path).shard_documents.tolist() == [0, 1]


@pytest.mark.parametrize("writer", WRITERS)
def test_text(writer: str, tmp_path: Path) -> None:
    written(tmp_path, writer, pa.table({"text": pa.array(TEXTS, pa.string())}))
    documents = Documents(tmp_path, column="text", tokenizer=str.encode)
    assert [tokens.tobytes() for tokens in documents] == [(one or "").encode() for one in TEXTS]


@pytest.mark.parametrize("writer", [name for name in WRITERS if "parquet" not in name])
def test_a_batch_each(writer: str, tmp_path: Path) -> None:
    """A column of integers: every record batch of the file is a document."""
    path = written(tmp_path, writer, pa.table({"tokens": pa.array([3, 1, 2], pa.int32())}))
    with pa.memory_map(str(path)) as source:
        batches = [batch.column(0).to_pylist() for batch in _batches(ipc.open_file(source))]
    documents = Documents(tmp_path)
    assert [tokens.tolist() for tokens in documents] == batches
    assert [token for batch in batches for token in batch] == [3, 1, 2]


def _batches(reader: Any) -> list[Any]:
    return [reader.get_batch(number) for number in range(reader.num_record_batches)]


@pytest.mark.parametrize("writer", WRITERS)
def test_missing_columns_and_types_are_named(writer: str, tmp_path: Path) -> None:
    path = written(tmp_path, writer, pa.table({"tokens": [1.5], "ids": [[1]]}))
    with pytest.raises(TypeError, match=rf"column 'tokens' of '{path}' is double; expected lists"):
        Documents(tmp_path)
    with pytest.raises(KeyError, match=r"has no column 'text'"):
        Documents(tmp_path, column="text", tokenizer=str.encode)


@pytest.mark.parametrize("writer", [name for name in WRITERS if "parquet" not in name])
def test_cut_short_anywhere(writer: str, tmp_path: Path) -> None:
    path = written(tmp_path, writer, pa.table({"tokens": [[1, 2, 3], [4]]}))
    data = path.read_bytes()
    for size in [*range(1, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"x.part0.arrow' (is (truncated|neither)|cannot)"):
            Documents(tmp_path)


@pytest.mark.parametrize("writer", WRITERS)
def test_tables(writer: str, tmp_path: Path) -> None:
    load = np.arange(7, dtype=np.float32)
    site = ["a", "a", "a", "b", "b", "c", "c"]
    path = written(tmp_path, writer, pa.table({"load": load, "site": site, "n": range(7)}))
    table = Table.read(path, columns=["load", "n"], id_columns="site")
    assert table["load"].tolist() == load.tolist()
    assert table["n"].tolist() == list(range(7))
    assert list(table.series_names) == ["a", "b", "c"]
    assert Table.read(path, columns=["n"], rows=(2, 5))["n"].tolist() == [2, 3, 4]


@pytest.mark.parametrize("writer", UNCOMPRESSED)
def test_mapped_tables(writer: str, tmp_path: Path) -> None:
    path = written(tmp_path, writer, pa.table({"load": np.arange(2), "n": range(2)}))
    table = Table.read(path, in_memory=False)
    assert (table["load"].tolist(), table["n"].tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize("writer", [name for name in WRITERS if "parquet" not in name])
def test_damaged_tables_do_no_harm(writer: str, tmp_path: Path) -> None:
    path = written(tmp_path, writer, pa.table({"load": [1.5, 2.5, 3.5]}))
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        changed = bytearray(data)
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            changed[place] = rng.integers(256)
        path.write_bytes(changed)
        with contextlib.suppress(ValueError, TypeError, KeyError, MemoryError):
            Table.read(path)
