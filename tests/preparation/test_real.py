"""Real series, shuffled over many files, come back in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd
from support.prepare_cases import write_files, written
from support.real_data import real_data


@pytest.mark.parametrize("suffixes", [(".parquet",), (".csv", ".csv", ".csv")])
def test_beijing_comes_back_in_its_order(tmp_path: Path, suffixes: tuple[str, ...]) -> None:
    rows = parquet.read_table(real_data("beijing_pm25.parquet"))
    order = np.random.default_rng(0).permutation(rows.num_rows)
    write_files(tmp_path / "in", rows.take(pa.array(order)), 12, suffixes)
    wd.prepare(
        tmp_path / "in", tmp_path / "out", timestamp_column="timestamp", file_bytes="512 KiB"
    )
    found = pl.DataFrame(written(tmp_path / "out")).select(rows.column_names)
    assert found.with_columns(pl.col("timestamp").cast(pl.Datetime("ms"))).equals(
        pl.DataFrame(rows)
    )


def test_nab_equals_a_stable_sort(tmp_path: Path) -> None:
    rows = parquet.read_table(real_data("nab.parquet"))
    order = np.random.default_rng(0).permutation(rows.num_rows)
    shuffled = rows.take(pa.array(order))
    write_files(tmp_path / "in", shuffled, 20)
    keys: Any = {"id_columns": "series", "timestamp_column": "timestamp"}
    with pytest.raises(ValueError, match="has several rows with timestamp"):
        wd.prepare(tmp_path / "in", tmp_path / "refused", **keys)
    result = wd.prepare(
        tmp_path / "in", tmp_path / "out", **keys, duplicates="keep", file_bytes="512 KiB"
    )
    assert len(result.files) > 5
    plain = shuffled.set_column(0, "series", shuffled["series"].cast(pa.string()))
    expected = pl.DataFrame(plain).sort("series", "timestamp", maintain_order=True)
    found = written(tmp_path / "out")
    found = found.set_column(0, "series", found["series"].cast(pa.string()))
    assert pl.DataFrame(found).equals(expected.select("series", "timestamp", "value"))
    table = wd.Table.read(tmp_path / "out", **keys)
    assert table.series_names == tuple(sorted(set(plain["series"].to_pylist())))
    assert len(table.report.sorted_series) == 0
    assert (table["value"] == expected["value"].to_numpy()).all()
