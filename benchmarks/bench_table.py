"""Time and peak memory of reading few columns of a wide file; time of regular series."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from measure import Row, compare, compare_costs, limit
from pyarrow import feather, parquet

import windeck as wd

WIDTH, USED, ROWS = 96, 6, 200_000
SERIES, LENGTH = 10_000, 1000
SIX = [f"c{place}" for place in range(0, WIDTH, WIDTH // USED)]

#: The high-water mark of a process of its own, less what its imports took.
PEAK = """
import sys
import pyarrow.feather, pyarrow.parquet
import windeck as wd
def mark(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
before = mark("VmRSS")
{code}
print(mark("VmHWM") - before)
"""


def write(folder: Path) -> dict[str, Path]:
    """The same 96 random columns as Parquet and as uncompressed Arrow IPC of one batch."""
    rng = np.random.default_rng(0)
    data = pa.table({f"c{place}": rng.standard_normal(ROWS) for place in range(WIDTH)})
    paths = {"Parquet": folder / "wide.parquet", "Arrow IPC": folder / "wide.arrow"}
    parquet.write_table(data, paths["Parquet"], row_group_size=1 << 16)
    feather.write_feather(data, paths["Arrow IPC"], compression="uncompressed", chunksize=ROWS)
    return paths


def plainly(path: Path, columns: list[str] | None = None) -> dict[str, Any]:
    """Columns as arrays by pyarrow alone, as one would write it."""
    reader = parquet.read_table if path.suffix == ".parquet" else feather.read_table
    data = reader(path, columns=columns)
    return {name: data[name].to_numpy() for name in data.column_names}


def peak(code: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PEAK.format(code=code)], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in write(Path(folder)).items():
            yield from of_file(kind, path)
    yield from of_irregular_series()


def of_file(kind: str, path: Path) -> Iterator[Row]:
    def ours() -> wd.Table:
        return wd.Table.read(path, columns=SIX)

    plain = plainly(path)
    assert all(np.array_equal(ours()[name], plain[name]) for name in SIX)
    for rival, columns in ((f"pyarrow, all {WIDTH}", None), ("pyarrow, the same columns", SIX)):
        yield Row(
            question=f"{kind}: {USED} of {WIDTH} columns as arrays, {ROWS:,} rows",
            ours="Table.read(columns=...)",
            rival=rival,
            ratio=compare(ours, lambda columns=columns: plainly(path, columns), rounds=9),
            needed=None,
        )
    for what, names, budget in (("columns", SIX, "dtype=None"), ("rows", None, "storage='rows'")):
        allowed = wd.Table.estimate(path, columns=names)
        code = f"table = wd.Table.read({str(path)!r}, columns={names!r}, {budget})"
        found = peak(code)
        yield Row(
            question=f"{kind}: estimate of {allowed / 1e6:.0f} MB over peak memory, {what}",
            ours="Table.read",
            rival="Table.estimate",
            ratio=limit(found, allowed),
            needed=None,
            bound="what is read beside",
        )


def of_irregular_series() -> Iterator[Row]:
    """Series of a minute, of which each row is missing with a probability of one in ten."""
    rng = np.random.default_rng(0)
    kept = rng.random((SERIES, LENGTH)) > 0.1
    kept[:, [0, -1]] = True
    minutes = np.tile(np.arange(LENGTH).astype("M8[m]").astype("M8[us]"), SERIES)[kept.ravel()]
    load = rng.standard_normal(len(minutes), dtype=np.float32)
    number = np.repeat(np.arange(SERIES, dtype=np.int32), kept.sum(axis=1))
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    columns = {"load": load, "time": minutes}
    table = wd.Table.from_columns(columns, offsets=offsets, timestamp_column="time")
    frame = pl.DataFrame({"number": number, **columns})

    def ours() -> wd.Table:
        return table.regularize("1m")

    def rival() -> pl.DataFrame:
        return frame.upsample("time", every="1m", group_by="number", maintain_order=True)

    found, expected = ours(), rival()
    assert np.array_equal(found.timestamps, expected["time"].to_numpy())
    assert np.array_equal(found["load"], expected["load"].to_numpy(), equal_nan=True)
    costs = compare_costs(ours, rival, rounds=7)
    sides = {"ours": "Table.regularize", "rival": "polars upsample, group_by"}
    question = f"{len(minutes):,} rows in {SERIES:,} series on a grid, processor time"
    yield Row(question, **sides, ratio=costs.cpu, needed=1)
    yield Row("the same, wall time", **sides, ratio=costs.wall, needed=None)
