"""Few columns of a wide file: time and peak memory; time of regular series and forecasts."""

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
#: Irregular series, and the steps that each spans.
IRREGULAR, STEPS = 10_000, 1000
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


#: Series of a forecast, their rows, the rows of a context and of the future, and its covariates.
SERIES, LONG, CONTEXT, AHEAD = 100_000, 96, 48, 24
KNOWN = [f"known{place}" for place in range(5)]


def frames() -> tuple[pl.DataFrame, pl.DataFrame]:
    """The past of hourly series, and the covariates of their future, series in another order."""
    rng = np.random.default_rng(0)
    stamps = (np.datetime64("2024-01-01", "h") + np.arange(LONG + AHEAD)).astype("M8[us]")
    names = np.array([f"s{number:06d}" for number in range(SERIES)])

    def frame(ids: Any, times: Any, columns: list[str]) -> pl.DataFrame:
        size = len(ids) * len(times)
        values = {name: rng.standard_normal(size, dtype=np.float32) for name in columns}
        index = {"id": np.repeat(ids, len(times)), "time": np.tile(times, len(ids))}
        return pl.DataFrame({**index, **values})

    future = frame(rng.permutation(names), stamps[LONG:], KNOWN)
    return frame(names, stamps[:LONG], ["load", *KNOWN]), future


def by_hand(past: pl.DataFrame, future: pl.DataFrame) -> dict[str, Any]:
    """The last contexts and their futures by joins and reshapes."""
    groups = past.group_by("id", maintain_order=True)
    last, ends = groups.tail(CONTEXT), groups.agg(pl.col("time").last())
    steps = pl.DataFrame({"step": np.arange(1, AHEAD + 1)})
    times = pl.col("time") + pl.col("step") * pl.duration(hours=1)
    wanted = ends.join(steps, how="cross").select("id", time=times)
    found = wanted.join(future, on=["id", "time"], how="left", maintain_order="left")
    assert len(found) == len(wanted)
    assert not found[KNOWN[0]].null_count()
    return {
        "past_target": last["load"].to_numpy().reshape(-1, CONTEXT, 1),
        "past_known": last.select(KNOWN).to_numpy().reshape(-1, CONTEXT, len(KNOWN)),
        "future_known": found.select(KNOWN).to_numpy().reshape(-1, AHEAD, len(KNOWN)),
    }


def of_forecast() -> Iterator[Row]:
    past, future = frames()
    windows = wd.Windows(
        wd.Table.from_arrow(past, id_columns="id", timestamp_column="time"),
        context_length=CONTEXT, prediction_length=AHEAD, target_columns="load",
        known_covariates=KNOWN, keys=("past_target", "past_known", "future_known"),
    )  # fmt: skip

    def ours() -> dict[str, Any]:
        latest = windows.latest(future=future)
        return latest.gather(np.arange(len(latest)))

    found, expected = ours(), by_hand(past, future)
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    costs = compare_costs(ours, lambda: by_hand(past, future), rounds=9)
    for what, ratio in (("", costs.wall), (", processor time", costs.cpu)):
        yield Row(
            question=f"inputs of a forecast: {SERIES:,} series, {CONTEXT} past and {AHEAD} future "
            f"steps, {len(KNOWN)} known covariates of a frame{what}",
            ours="latest(future=frame)",
            rival="polars, joins and reshapes",
            ratio=ratio,
            needed=1,
        )


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in write(Path(folder)).items():
            yield from of_file(kind, path)
    yield from of_irregular_series()
    yield from of_forecast()


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
    kept = rng.random((IRREGULAR, STEPS)) > 0.1
    kept[:, [0, -1]] = True
    minutes = np.tile(np.arange(STEPS).astype("M8[m]").astype("M8[us]"), IRREGULAR)[kept.ravel()]
    load = rng.standard_normal(len(minutes), dtype=np.float32)
    number = np.repeat(np.arange(IRREGULAR, dtype=np.int32), kept.sum(axis=1))
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
    question = f"{len(minutes):,} rows in {IRREGULAR:,} series on a grid, processor time"
    yield Row(question, **sides, ratio=costs.cpu, needed=1)
    yield Row("the same, wall time", **sides, ratio=costs.wall, needed=None)
