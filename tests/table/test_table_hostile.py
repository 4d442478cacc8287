"""Damaged files give a documented exception or the right data, never a crash."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc, parquet

from windeck import Table

EXPECTED = (ValueError, TypeError, KeyError, MemoryError, OverflowError)


def sample() -> pa.Table:
    """Return a table with a column of every type, with nulls."""
    rows = 30
    return pa.table(
        {
            "id": pa.array(["a"] * 10 + ["b"] * 20).dictionary_encode(),
            "time": pa.array(range(rows), pa.timestamp("s")),
            "load": pa.array([None if i % 7 == 0 else i / 2 for i in range(rows)]),
            "word": pa.array(["x", "yy", None] * 10),
            "flag": pa.array([True, False, None] * 10),
            "small": pa.array(range(rows), pa.int8()),
        }
    )


def write_stream(table: pa.Table, path: Path) -> None:
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "a.parquet": lambda table, path: parquet.write_table(table, path, compression=None),
    "b.parquet": lambda table, path: parquet.write_table(table, path, row_group_size=7),
    "a.arrow": lambda table, path: feather.write_feather(table, path, compression="uncompressed"),
    "b.arrow": lambda table, path: feather.write_feather(table, path, compression="lz4"),
    "c.arrows": write_stream,
}


def read_all(path: Path, *, in_memory: bool) -> None:
    """Read every column, and access all values."""
    table = Table.read(
        path, id_columns="id", timestamp_column="time", categories=True, in_memory=in_memory
    )
    for name in table.column_names:
        column = table.column(name)
        np.count_nonzero(column.observed())
        assert len(column.values) == len(table)
    assert table.fingerprint
    assert table.explain()


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy with bytes changed, or with a range removed, inserted or zeroed."""
    changed = bytearray(data)
    start = int(rng.integers(len(data)))
    length = int(rng.integers(1, 40))
    kind = rng.integers(5)
    if kind == 0:
        for place in rng.integers(len(data), size=rng.integers(1, 6)):
            changed[place] = rng.integers(256)
    elif kind == 1:
        del changed[start : start + length]
    elif kind == 2:
        changed[start:start] = rng.bytes(length)
    elif kind == 3:
        changed[start : start + length] = bytes([rng.choice([0, 255])]) * length
    else:
        changed[start : start + 4] = int(rng.integers(2**32)).to_bytes(4, "little")
    return bytes(changed)


def fuzz(path: Path, seed: int, rounds: int) -> None:
    """Read `rounds` damaged versions of a file."""
    rng = np.random.default_rng(seed)
    data = path.read_bytes()
    broken = path.with_name(f"broken-{path.name}")
    for _ in range(rounds):
        broken.write_bytes(damaged(data, rng))
        with contextlib.suppress(*EXPECTED):
            read_all(broken, in_memory=path.name != "a.arrow" or bool(rng.integers(2)))


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_files_do_no_harm(name: str, tmp_path: Path) -> None:
    """Run in another process, so that a crash fails the test."""
    path = tmp_path / name
    WRITERS[name](sample(), path)
    read_all(path, in_memory=True)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from test_table_hostile import fuzz\n"
        f"fuzz(Path({str(path)!r}), 1, 80)"
    )
    subprocess.run([sys.executable, "-X", "faulthandler", "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "c.arrows"])
def test_every_way_to_cut_a_file_short(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](sample(), path)
    data = path.read_bytes()
    end = len(data) if name != "c.arrows" else len(data) - 8  # a stream may lack its end mark
    for size in [*range(0, end, 37), end - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=name):
            read_all(path, in_memory=True)


def test_dictionary_codes_outside_the_dictionary(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(
        pa.array([0, 9], pa.int32()), pa.array(["x"]), safe=False
    )
    feather.write_feather(pa.table({"w": codes}), tmp_path / "a.arrow", compression="uncompressed")
    with pytest.raises(ValueError, match=r"a.arrow' cannot be read as Arrow IPC: .*out of bounds"):
        Table.read(tmp_path / "a.arrow")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("name", WRITERS)
def test_more_damaged_files_do_no_harm(name: str, seed: int, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](sample(), path)
    fuzz(path, seed, 1000)
