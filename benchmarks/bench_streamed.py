"""Time of an epoch over files larger than memory that give 200 MB/s."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measure import Row, limit, ratio_of, seconds
from pyarrow import feather, parquet

import windeck as wd
from windeck.io import filesystem

RATE = 200e6
# Record batches as large as pyarrow writes them by default.
FILES, ROWS, COLUMNS, PART_ROWS = 64, 500_000, 10, 1 << 16
BATCH, STRIDE, CONTEXT, PREDICTION = 256, 16, 48, 16
PAGE = 4096
ROUNDS = 3
#: Groups that fit into the budget.
GROUPS = 6
#: Seconds that a reader may be ahead of the rate: a thread that sleeps for each of 10,000 requests
#: of 24 kB would measure the interpreter, and systems read ahead as well.
AHEAD = 0.001


class CappedFiles:
    """Files that together give `RATE` bytes a second, and count them."""

    def __init__(self) -> None:
        self.bytes, self._free, self._lock = 0, 0.0, threading.Lock()
        self._open = filesystem.open_input

    def open_input(self, path: str, *options: Any) -> Any:
        return pa.PythonFile(_CappedFile(self._open(path, *options), self), mode="r")

    def take(self, count: int) -> None:
        """Wait until `count` more bytes would have arrived."""
        with self._lock:
            self.bytes += count
            self._free = max(self._free, time.perf_counter()) + count / RATE
            until = self._free
        if (left := until - time.perf_counter()) > AHEAD:
            time.sleep(left)

    def calm(self) -> None:
        """Wait until nothing is read."""
        before = -1
        while before != self.bytes:
            before = self.bytes
            time.sleep(0.2)


class _CappedFile:
    def __init__(self, source: Any, files: CappedFiles) -> None:
        self._source, self._files, self.closed = source, files, False
        self.seek, self.tell = source.seek, source.tell

    def read(self, count: int = -1) -> bytes:
        found: bytes = self._source.read(None if count < 0 else count)
        self._files.take(len(found))
        return found

    def close(self) -> None:
        self.closed = True


def write(folder: Path) -> dict[str, list[Path]]:
    """Write the same random columns as uncompressed Arrow and Parquet files."""
    random, paths = np.random.default_rng(0), {"Arrow": [], "Parquet": []}
    for number in range(FILES):
        data = pa.table({f"x{place}": random.standard_normal(ROWS) for place in range(COLUMNS)})
        paths["Arrow"].append(folder / f"{number}.arrow")
        feather.write_feather(
            data, paths["Arrow"][-1], compression="uncompressed", chunksize=PART_ROWS
        )
        paths["Parquet"].append(folder / f"{number}.parquet")
        parquet.write_table(
            data,
            paths["Parquet"][-1],
            row_group_size=PART_ROWS,
            use_dictionary=False,
            compression="none",
        )
    return paths


def rows() -> Iterator[Row]:
    files = CappedFiles()
    filesystem.open_input = files.open_input
    try:
        with tempfile.TemporaryDirectory() as folder:
            for kind, paths in write(Path(folder)).items():
                yield from of_files(kind, paths, files)
    finally:
        filesystem.open_input = files._open


def of_files(kind: str, paths: list[Path], files: CappedFiles) -> Iterator[Row]:
    nbytes = FILES * ROWS * COLUMNS * 8
    budget = nbytes // 8
    table = wd.Table.read(
        paths, in_memory=False, memory_budget=budget, group_bytes=budget // GROUPS
    )
    options: dict[str, Any] = {"context_length": CONTEXT, "prediction_length": PREDICTION}
    windows = wd.Windows(table, stride=STRIDE, **options)
    in_memory = wd.Windows(wd.Table.read(paths), stride=STRIDE, **options)
    some = np.random.default_rng(1).integers(0, len(windows), 64)
    expected, found = in_memory.gather(some), windows.gather(some)
    assert all(np.array_equal(found[key], array) for key, array in expected.items())
    del in_memory
    loader = wd.Loader(windows, batch_size=BATCH, shuffle=True)
    steps = -(-len(windows) // BATCH)

    def read() -> None:
        for path in paths:
            with filesystem.open_input(str(path)) as source:
                while source.read(1 << 20):
                    pass

    def epoch(step: float) -> int:
        count = 0
        for batch in loader:
            count += len(batch["start"])
            if step:
                time.sleep(step)
        return count

    def batches() -> None:
        for path in paths:
            with filesystem.open_input(str(path)) as source:
                for _ in parquet.ParquetFile(source).iter_batches(1 << 16):
                    pass

    assert epoch(0.0) == len(windows)  # reads the first rows of parts, which are kept

    def cold(step: float) -> float:
        """Return the time of an epoch without groups that were read before it."""
        windows.expect([], None)
        files.calm()
        taken = seconds(lambda: epoch(step))
        windows.expect([], None)
        files.calm()
        return taken

    def pauses(step: float) -> None:
        for _ in range(steps):
            time.sleep(step)

    pairs, busy, ratios = [], [], []
    for _ in range(ROUNDS):
        reading = seconds(read)
        step = reading / steps
        stepping = seconds(partial(pauses, step))  # a sleep ends late
        pairs.append((cold(step), max(reading, stepping)))
        busy.append((cold(0.0), seconds(batches if kind == "Parquet" else read)))
        epoch(0.0)
        files.calm()  # Of each of two epochs, some groups are read during the one before it.
        before = files.bytes
        epoch(0.0)
        files.calm()
        ratios.append((files.bytes - before) / nbytes)
    question = f"{kind}: epoch over {nbytes / 1e6:.0f} MB, memory_budget an eighth, 200 MB/s"
    yield Row(
        question=f"{question}, steps as long as reading",
        ours="Loader(shuffle=True)",
        rival="reading, or stepping",
        ratio=ratio_of(pairs),
        needed=1 / 1.15,
        bound="reading",
    )
    yield Row(
        question=f"{kind}: bytes of the data over bytes read in an epoch",
        ours="Loader(shuffle=True)",
        rival="the data",
        ratio=limit(sorted(ratios)[len(ratios) // 2], 1.0),
        needed=1 / 1.05,
        bound="rows behind blocks",
    )
    yield Row(
        question=f"{question}, no steps",
        ours="Loader(shuffle=True)",
        rival="iter_batches" if kind == "Parquet" else "reading",
        ratio=ratio_of(busy),
        needed=0.9,
        bound="reading",
    )
    # Of a memory map, each column of a sample takes the pages that its rows are on.
    window_bytes = (CONTEXT + PREDICTION) * 8
    pages = COLUMNS * (1 + (window_bytes - 8) / PAGE)
    random = [(ours, len(windows) * pages * PAGE / RATE) for ours, _ in busy]
    yield Row(
        question=f"{question}, against random reads of a map (computed)",
        ours="Loader(shuffle=True)",
        rival="pages of each sample at 200 MB/s",
        ratio=ratio_of(random),
        needed=20,
        bound="reading",
    )
