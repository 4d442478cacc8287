"""Time of `prepare` beside a sort to Parquet by DuckDB, both in bounded memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from measure import Row, compare_costs
from pyarrow import parquet

import windeck as wd

ROWS, SERIES, FILES, COLUMNS = 2_000_000, 500, 20, 8
ROW_GROUP = 122_880


def random_order() -> Any:
    """Return rows of 500 series in random order, with ids of text."""
    order = np.random.default_rng(0).permutation(ROWS)
    names = pa.array([f"site_{number:04}" for number in range(SERIES)])
    return names.take(order // (ROWS // SERIES)), order % (ROWS // SERIES)


def daily_files() -> Any:
    """Return rows in the order of time, as logs have them, with ids of numbers."""
    rows = np.arange(ROWS)
    return pa.array(rows % SERIES), rows // SERIES


def write(folder: Path, ids: Any, minutes: Any) -> None:
    """Write ids, times and 8 columns of float32 as 20 files."""
    rng = np.random.default_rng(1)
    times = np.datetime64("2020-01-01", "us") + minutes.astype("m8[m]")
    columns: dict[str, Any] = {"site": ids, "time": times}
    for number in range(COLUMNS):
        columns[f"c{number}"] = rng.standard_normal(ROWS).astype("f4")
    rows, count = pa.table(columns), ROWS // FILES
    folder.mkdir()
    for number in range(FILES):
        parquet.write_table(rows.slice(number * count, count), folder / f"{number}.parquet")


def rows() -> Iterator[Row]:
    for what, keys in (
        ("2 million rows in random order, ids of text", random_order()),
        ("2 million rows in order of time, ids of numbers", daily_files()),
    ):
        with tempfile.TemporaryDirectory() as name:
            write(Path(name) / "in", *keys)
            yield from compared(what, Path(name))


def compared(what: str, folder: Path) -> Iterator[Row]:
    ours, rival = folder / "ours", folder / "rival.parquet"

    def prepare() -> None:
        wd.prepare(
            folder / "in",
            ours,
            id_columns="site",
            timestamp_column="time",
            file_bytes="32 MiB",
            memory_budget="300 MB",
            threads=2,
        )

    def sort_by_duckdb() -> None:
        options = {"memory_limit": "100MB", "threads": 2, "temp_directory": f"{folder}/spilled"}
        with duckdb.connect(config=options) as connection:
            connection.execute(
                f"COPY (SELECT * FROM read_parquet('{folder}/in/*.parquet') ORDER BY site, time) "
                f"TO '{rival}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP})"
            )

    prepare()
    sort_by_duckdb()
    names = [file.name for file in wd.Prepared.read(ours).files]
    found = pa.concat_tables(parquet.read_table(ours / name) for name in names)
    assert found.equals(parquet.read_table(rival).cast(found.schema))
    costs = compare_costs(
        prepare, sort_by_duckdb, before=lambda: shutil.rmtree(ours, ignore_errors=True), rounds=7
    )
    sides = {"ours": "prepare, 300 MB for the process", "rival": "DuckDB, memory_limit 100 MB"}
    question = f"prepare {what}, processor time"
    yield Row(question, **sides, ratio=costs.cpu, needed=1 / 1.3)
    yield Row("the same, wall time", **sides, ratio=costs.wall, needed=None)


if __name__ == "__main__":
    for row in rows():
        print(row.question, row.ratio, row.needed)
