"""Bytes that 8 ranks with lanes read of a table larger than memory, beside its bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bench_streamed import CappedFiles
from measure import Row, limit
from pyarrow import feather, parquet

import windeck as wd
from windeck.io import filesystem

RANKS, BATCH = 8, 128
FILES, SERIES, STEPS = 16, 16, 125_000
GROUP = {"Arrow": 1 << 20, "prepared Parquet": 1 << 21}


def write(folder: Path) -> dict[str, Path]:
    """Write 512 MB of two columns as Arrow, and prepare the same as Parquet."""
    raw, draw = folder / "raw", np.random.default_rng(0)
    (folder / "Arrow").mkdir()
    raw.mkdir()
    for number in range(FILES):
        values = {f"x{place}": draw.standard_normal(SERIES * STEPS) for place in range(2)}
        series = np.repeat(np.arange(number * SERIES, (number + 1) * SERIES), STEPS)
        data = pa.table({"id": series} | values)
        path = folder / "Arrow" / f"part{number}.arrow"
        feather.write_feather(data, path, compression="uncompressed", chunksize=STEPS)
        parquet.write_table(data, raw / f"part{number}.parquet", row_group_size=STEPS)
    made = folder / "prepared"
    wd.prepare(raw, made, id_columns="id", row_group_bytes=3 << 20)
    return {"Arrow": folder / "Arrow", "prepared Parquet": made}


def rows() -> Iterator[Row]:
    files = CappedFiles()
    files.take = partial(count, files)  # type: ignore[method-assign]
    filesystem.open_input = files.open_input
    try:
        with tempfile.TemporaryDirectory() as folder:
            for kind, path in write(Path(folder)).items():
                for lanes in (RANKS, None):
                    yield of_files(kind, path, files, lanes)
    finally:
        filesystem.open_input = files._open


def count(files: CappedFiles, nbytes: int) -> None:
    """Count bytes, without a limit of their rate."""
    files.bytes += nbytes


def of_files(kind: str, path: Path, files: CappedFiles, lanes: int | None) -> Row:
    """Run the ranks one by one, each with a table of its own."""
    found = told = data = 0
    for rank in range(RANKS):
        table = wd.Table.read(
            path, columns=["x0", "x1"], id_columns="id", in_memory=False, group_bytes=GROUP[kind]
        )
        windows = wd.Windows(table, context_length=48, prediction_length=16, stride=16)
        order: Any = windows.default_order
        if lanes is not None:
            order = partial(wd.Lanes, lanes=lanes, unit=RANKS * BATCH // lanes, order=order)
        options: dict[str, Any] = {"batch_size": BATCH, "order": order, "drop_last": True}
        loader = wd.Loader(windows, **options, rank=rank, world_size=RANKS)
        resident = 2 * windows._streamed_windows.group_bytes
        told += loader.explain_io(ranks=[rank], resident_bytes=resident).bytes_read[rank]
        data, before = int(windows.block_bytes.sum()), files.bytes
        for _ in loader:
            pass
        found += files.bytes - before
    deal = "no lanes" if lanes is None else f"{lanes} lanes"
    return Row(
        question=f"{kind}, {RANKS} ranks, {deal}: bytes of the data over bytes read by all",
        ours=f"{found / data:.3f} of the data, {told / data:.3f} told",
        rival="the data",
        ratio=limit(found / data, 1.0),
        needed=None if lanes is None else 1 / 1.05,
        bound="borders of lanes, rows behind blocks",
    )
