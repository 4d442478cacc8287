"""Files of tables that are read both in memory and streamed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import feather, parquet

import windeck as wd
from windeck.table import StreamedTable

READ: dict[str, Any] = {"id_columns": "id", "timestamp_column": "time", "categories": ["kind"]}


def arrow_table(lengths: Sequence[int], seed: int = 0) -> pa.Table:
    """Return series with a float, a float32, an integer with nulls, a category, flags and ids."""
    random = np.random.default_rng(seed)
    rows = sum(lengths)
    load = random.normal(size=rows)
    load[random.random(rows) < 0.1] = np.nan
    step = np.where(random.random(rows) < 0.05, 3, 1)
    series = np.repeat(np.arange(len(lengths)), lengths)
    return pa.table(
        {
            "id": pa.array([f"s{number}" for number in series]),
            "time": pa.array(np.cumsum(step).astype("M8[s]")),
            "load": pa.array(load, mask=random.random(rows) < 0.05),
            "wind": random.normal(size=rows).astype(np.float32),
            "count": pa.array(random.integers(0, 100, rows), mask=random.random(rows) < 0.2),
            "hour": pa.array(np.arange(rows) % 24, type=pa.int8()),
            "kind": pa.array(random.choice(["x", "y", "z"], rows)),
            "flag": pa.array(random.random(rows) < 0.5),
            "area": series * 10,
        }
    )


def write_files(
    data: pa.Table, folder: Path, cuts: Sequence[int], part_rows: int, kind: str
) -> list[Path]:
    """Write rows between cuts into files of parts of `part_rows` rows."""
    edges = [0, *sorted(cuts), len(data)]
    paths = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        rows = data.slice(start, stop - start)
        path = folder / f"part{number}.{'parquet' if kind == 'parquet' else 'arrow'}"
        if kind == "parquet":
            parquet.write_table(rows, path, row_group_size=part_rows, data_page_size=256)
        else:
            feather.write_feather(rows, path, compression=kind, chunksize=part_rows)
        paths.append(path)
    return paths


def read_both(paths: Sequence[Path], **options: Any) -> tuple[wd.Table, StreamedTable]:
    """Return the table in memory, and the streamed one with its missing values counted."""
    own = {name: options.pop(name) for name in ("group_bytes", "memory_budget") if name in options}
    options = READ | options
    own.setdefault("group_bytes", 4096)
    streamed = wd.Table.read(paths, in_memory=False, **own, **options)
    counted = streamed.with_missing_counts()
    assert isinstance(counted, StreamedTable)
    return wd.Table.read(paths, **options), counted


@dataclass
class Case:
    """A layout of files, and options of windows."""

    lengths: list[int]
    cuts: list[int]
    part_rows: int
    kind: str
    group_bytes: int
    seed: int
    columns: list[str] | None
    windows: dict[str, Any] = field(default_factory=dict)

    def tables(self, folder: Path) -> tuple[wd.Table, StreamedTable]:
        data = arrow_table(self.lengths, self.seed)
        paths = write_files(data, folder, self.cuts, self.part_rows, self.kind)
        options: dict[str, Any] = {}
        if self.columns is not None:
            options = {"columns": self.columns, "categories": ()}
        return read_both(paths, group_bytes=self.group_bytes, **options)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=7))
    rows = sum(lengths)
    columns = draw(st.sampled_from([None, ["load", "wind", "area"], ["count", "hour", "area"]]))
    some_columns = columns is not None and columns[0]
    targets = ["count"] if some_columns == "count" else ["load"]
    context = draw(st.integers(1, 12))
    windows: dict[str, Any] = {
        "context_length": context,
        "prediction_length": draw(st.integers(0, 5)),
        "stride": draw(st.sampled_from([1, 1, 2, 5])),
        "dilation": draw(st.sampled_from([1, 1, 3])),
        "pad": draw(st.sampled_from([False, "start", "end"])),
        "max_missing": draw(st.sampled_from([1.0, 0.2])),
        "anchor": draw(st.sampled_from(["start", "end"])),
        "layout": draw(st.sampled_from(["btc", "bct", "columns"])),
        "target_columns": targets,
        "known_covariates": ["hour"] if some_columns == "count" else ["wind"],
        "static_covariates": ["area"],
    }
    if columns is None:
        windows["past_covariates"] = draw(st.sampled_from([["count"], ["kind"], ["flag"]]))
    if draw(st.booleans()):
        windows["max_gap"] = "2s"
    return Case(
        lengths,
        draw(st.lists(st.integers(0, rows), max_size=3)),
        draw(st.integers(1, 70)),
        draw(st.sampled_from(["parquet", "uncompressed", "lz4"])),
        draw(st.sampled_from([1, 300, 1500, 10**6])),
        draw(st.integers(0, 99)),
        columns,
        windows,
    )


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that two batches have the same keys, dtypes and bits."""
    assert list(found) == list(expected)
    for key, array in expected.items():
        one, other = np.asarray(found[key]), np.asarray(array)
        assert one.dtype == other.dtype, key
        assert one.shape == other.shape, key
        assert one.tobytes() == other.tobytes(), key
