"""Reading of some columns and rows touches no others, and takes about one copy of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from windeck import Table
from windeck.io import open_parted

ROWS, PART = 4000, 1000


def data() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({name: rng.normal(size=ROWS) for name in "abc"})


def smash(path: Path, start: int, length: int) -> None:
    """Overwrite a range of a file with bytes that no decompressor accepts."""
    content = bytearray(path.read_bytes())
    content[start : start + length] = b"\xff" * length
    path.write_bytes(content)


def test_parquet_reads_no_other_column_and_no_other_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(data(), path, row_group_size=PART, use_dictionary=False)
    metadata = parquet.read_metadata(path)
    for group, column in ((1, 0), (2, 1)):
        chunk = metadata.row_group(group).column(column)
        smash(path, chunk.data_page_offset, 200)
    expected = data()
    assert Table.read(path, columns=["c"])["c"].tolist() == expected["c"].to_pylist()
    found = Table.read(path, columns=["a"], rows=(2 * PART, ROWS))
    assert found["a"].tolist() == expected["a"].to_pylist()[2 * PART :]
    for broken in ("a", "b"):
        with pytest.raises(ValueError, match=r"a.parquet' cannot be read as Parquet"):
            Table.read(path, columns=[broken])


def test_arrow_reads_no_other_batch(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    feather.write_feather(data(), path, compression="lz4", chunksize=PART)
    size = path.stat().st_size
    smash(path, int(size * 0.6), int(size * 0.1))  # in the third of four batches
    expected = data()["a"].to_pylist()
    for start, stop in ((0, 2 * PART), (3 * PART, ROWS), (10, 20)):
        found = Table.read(path, columns=["a"], rows=(start, stop))["a"]
        assert found.tolist() == expected[start:stop]
    with pytest.raises(ValueError, match=r"a.arrow' cannot be read as Arrow IPC"):
        Table.read(path, columns=["a", "b", "c"])


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("stream", [True, False])
def test_layout_is_what_was_written(tmp_path: Path, stream: bool, codec: str | None) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"w": pa.array(["x", "y"] * 2000).dictionary_encode(), "a": data()["a"]})
    opener = ipc.new_stream if stream else ipc.new_file
    options = ipc.IpcWriteOptions(compression=codec)
    sizes = [1, 999, 0, 3000]
    whole = table.combine_chunks().to_batches()[0]
    with opener(str(path), table.schema, options=options) as writer:
        for end, size in zip(np.cumsum(sizes), sizes, strict=True):
            writer.write_batch(whole.slice(end - size, size))
    if not stream:
        file = open_parted(str(path)).file
        assert file.part_rows == sizes
        assert file.splits(["a"]) == (codec is None)
    assert Table.read(path, rows=(900, 1100))["a"].tolist() == table["a"].to_pylist()[900:1100]


PEAK = """
import sys
import pyarrow.feather, pyarrow.parquet
from windeck import Table
def mark(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
before = mark("VmRSS")
table = Table.read(sys.argv[1], storage=sys.argv[2])
print(mark("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("suffix", "storage"), [("parquet", "columns"), ("arrow", "rows"), ("many.arrow", "columns")]
)
def test_peak_memory_is_about_one_copy(tmp_path: Path, suffix: str, storage: str) -> None:
    rows, width = 500_000, 32
    rng = np.random.default_rng(0)
    wide = pa.table({f"c{place}": rng.normal(size=rows) for place in range(width)})
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        parquet.write_table(wide, path, use_dictionary=False)
    else:
        batch: dict[str, Any] = {"chunksize": 1 << 16 if "many" in suffix else rows}
        feather.write_feather(wide, path, compression="uncompressed", **batch)
    estimate = Table.estimate(path)
    assert estimate == 8 * rows * width
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path), storage], check=True, capture_output=True, text=True
    )
    # Measured: 1.07 to 1.6, with temporary memory of the reader. A second copy would make it 2.
    assert int(done.stdout) < 1.8 * estimate
