"""Counts of the rows that a grid adds, moves and merges, against counts of the rows themselves."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from support.internals import plant
from support.prepare_cases import write_files
from support.real_data import real_data

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
STEP = 60_000


def rows_of(lengths: list[int], seed: int) -> Any:
    """Return rows of series at random milliseconds, sorted by series and time."""
    rng = np.random.default_rng(seed)
    ticks = [np.sort(rng.integers(0, 8 * length, length)) * STEP // 4 for length in lengths]
    return pa.table(
        {
            "site": np.repeat([f"s{place}" for place in range(len(lengths))], lengths),
            "time": pa.array(np.concatenate(ticks), pa.timestamp("ms")),
            "load": rng.random(sum(lengths)),
        }
    )


def counted(data: Any, off_grid: str, duplicates: str) -> dict[str, Any]:
    """Return the counts of the rows, one at a time."""
    found: dict[str, Any] = {
        "added": 0,
        "moved": 0,
        "merged": 0,
        "duplicates": duplicates,
        "first_moved": None,
        "first_merged": None,
    }
    before: tuple[str, int, str] | None = None
    for site, time in zip(
        data["site"].to_pylist(), data["time"].cast(pa.int64()).to_pylist(), strict=True
    ):
        slot, rest = divmod(time, STEP)
        slot += off_grid == "nearest" and rest > STEP // 2
        text = np.datetime_as_string(np.datetime64(time, "ms"), unit="auto")
        place = f"series {site!r} at {text.replace('T', ' ')}"
        if rest:
            found["moved"] += 1
            found["first_moved"] = found["first_moved"] or place
        if before is not None and before[0] == site:
            if slot == before[1]:
                found["merged"] += 1
                first = before[2] if duplicates == "last" else place
                found["first_merged"] = found["first_merged"] or first
            else:
                found["added"] += slot - before[1] - 1
        before = site, slot, place
    return found


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.sampled_from(["nearest", "floor"]),
    st.sampled_from(["first", "last", "mean"]),
    st.sampled_from([1024, 1 << 20]),
    st.integers(0, 100),
)
def test_tables_and_files_count_each_row(
    lengths: list[int], off_grid: Any, duplicates: Any, file_bytes: int, seed: int
) -> None:
    data = rows_of(lengths, seed)
    options: dict[str, Any] = {"step": "1min", "off_grid": off_grid, "duplicates": duplicates}
    expected = counted(data, off_grid, duplicates)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch, "derived.ROWS_AT_A_TIME", 3)
        table = wd.Table.from_arrow(data, **KEYS).regularize(**options)
    for grid in table.report.grids:
        assert {name: getattr(grid, name) for name in expected} == expected
    if not table.report.grids:
        assert (expected["added"], expected["moved"], expected["merged"]) == (0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "in", data, 3, [".parquet"])
        result = wd.prepare(
            folder / "in", folder / "out", **KEYS, **options, file_bytes=file_bytes, threads=1
        )
        document = json.loads((folder / "out" / "manifest.json").read_text())
        assert document["grid"] == expected
        assert wd.Prepared.read(folder / "out") == result


def test_text_names_the_first_rows() -> None:
    times = np.array(["00:00", "00:07", "00:20", "00:31", "01:00"])
    columns = {"load": np.arange(5.0), "t": np.char.add("2024-01-01T", times).astype("M8[m]")}
    table = wd.Table.from_columns(columns, timestamp_column="t")
    found = table.regularize("20min", off_grid="floor", duplicates="first")
    assert found.explain().split("\n")[-2:] == [
        "2 rows moved to the grid, the first of series 0 at 2024-01-01 00:07",
        "2 rows dropped for the first row of the step, the first of series 0 at 2024-01-01 00:07",
    ]
    again = pickle.loads(pickle.dumps(found)).regularize("10min")
    assert [grid.added for grid in again.report.grids] == [1, 3]
    assert "3 rows of missing values added to the grid" in again.explain()
    assert "2 rows moved to the grid" in again.explain()
    mean = table.regularize("20min", off_grid="floor", duplicates="mean")
    merged = "2 rows merged into the mean of a step, the first of series 0 at 2024-01-01 00:07"
    assert merged in mean.explain()
    assert "moved to the grid" in mean._repr_html_()


def test_files_tell_what_a_grid_did_to_rows(tmp_path: Path) -> None:
    data = rows_of([40, 7], 1)
    write_files(tmp_path / "in", data, 1, [".parquet"])
    options: dict[str, Any] = {"step": "1min", "off_grid": "floor", "duplicates": "last"}
    result = wd.prepare(tmp_path / "in", tmp_path / "out", **KEYS, **options)
    expected = counted(data, "floor", "last")
    assert f"{expected['moved']} rows moved to the grid, the first of " in str(result)
    assert f"the first of {expected['first_merged']}" in str(result)
    assert result.duplicates_dropped == expected["merged"]
    plain = wd.prepare(tmp_path / "in", tmp_path / "plain", **KEYS, duplicates="keep")
    assert plain.grid is None
    assert "grid" not in json.loads((tmp_path / "plain" / "manifest.json").read_text())


def test_rows_of_real_series_are_counted_as_in_numpy() -> None:
    table = wd.Table.read(
        real_data("nab.parquet"), id_columns="series", timestamp_column="timestamp"
    )
    step = np.timedelta64(5, "m")
    found = table.regularize(step, off_grid="floor", duplicates="last", max_rows=10**7)
    stamps = table.timestamps
    assert stamps is not None
    slots = stamps.view(np.int64) // int(step.astype("m8[us]").astype(np.int64))
    inside = np.ones(len(slots) - 1, dtype=bool)
    inside[table.offsets[1:-1] - 1] = False
    ahead = np.diff(slots)[inside]
    (grid,) = found.report.grids
    assert grid.moved == int((stamps != stamps.astype("M8[5m]")).sum()) > 0
    assert grid.merged == int((ahead == 0).sum()) > 0
    assert grid.added == int((ahead - 1)[ahead > 0].sum()) > 0
    assert found.num_rows == table.num_rows + grid.added - grid.merged
