"""Rows of many files are those of one table, in any order; first rows are kept."""

from __future__ import annotations

import mmap
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather

import windeck as wd
from support.internals import original, plant, planted
from support.object_servers import Website
from support.streamed_tables import arrow_table, write_files
from windeck.columns import ColumnData
from windeck.io import RowReader
from windeck.table import StreamedTable


def reader_of(paths: list[Path], first: int = 0, stop: int | None = None) -> RowReader:
    names = ["load", "count", "kind", "flag"]
    table = wd.Table.read(
        paths,
        in_memory=False,
        columns=names,
        categories=["kind"],
        rows=(first, stop),
        group_bytes=1000,
    )
    assert isinstance(table, StreamedTable)
    return table.reader


def plain(data: pa.Table, name: str, rows: list[int]) -> list[object]:
    """Return the rows of a column, NaN and null as None."""
    found = data[name].take(pa.array(rows, pa.int64())).to_pylist()
    return [None if value is None or value != value else value for value in found]


def shown(reader: RowReader, name: str, rows: slice | np.ndarray) -> list[object]:
    return values_of(reader.column(name, rows))


def values_of(column: ColumnData) -> list[object]:
    """Return the values of a column, NaN and null as None."""
    values = column.values.tolist()
    if column.categories is not None:
        values = [column.categories[code] if code >= 0 else None for code in values]
    return [
        value if seen else None
        for value, seen in zip(values, column.observed().tolist(), strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 120),
    cuts=st.lists(st.integers(0, 120), max_size=3),
    part_rows=st.integers(1, 50),
    kind=st.sampled_from(["parquet", "uncompressed", "lz4"]),
    data=st.data(),
)
def test_any_rows(
    rows: int, cuts: list[int], part_rows: int, kind: str, data: st.DataObject
) -> None:
    table = arrow_table([rows])
    first = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(first + 1, rows))
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(table, Path(folder), [min(c, rows) for c in cuts], part_rows, kind)
        reader = reader_of(paths, first, stop)
        table = table.slice(first, stop - first)
        count = stop - first
        assert reader.part_offsets[[0, -1]].tolist() == [0, count]
        wanted = data.draw(st.lists(st.integers(-count, count - 1), max_size=30))
        start, end = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
        for name in ("load", "count", "kind", "flag"):
            positive = [row % count for row in wanted]
            assert shown(reader, name, np.array(wanted, np.int64)) == plain(table, name, positive)
            assert shown(reader, name, slice(start, end)) == plain(
                table, name, list(range(start, end))
            )
        # Disjoint ranges, end to end, with first rows of parts that are kept.
        edges = sorted(data.draw(st.sets(st.integers(0, count), max_size=8)))
        lows, highs = np.array(edges[:-1:2], np.int64), np.array(edges[1::2], np.int64)
        lows = lows[: len(highs)]
        every = [r for low, high in zip(lows, highs, strict=True) for r in range(low, high)]
        names = ("load", "count", "kind", "flag")
        for head_rows, piece_bytes in ((0, 1), (5, 100), (5, 1 << 20), (100, 1)):
            with planted("row_reader.PORTION_BYTES", piece_bytes):
                found = reader.read(names, lows, highs, head_rows)
            for name, column in found.items():
                assert values_of(column) == plain(table, name, every)


def test_rows_out_of_range(tmp_path: Path) -> None:
    reader = reader_of(write_files(arrow_table([30]), tmp_path, [], 10, "parquet"))
    for row in (30, -31):
        with pytest.raises(IndexError, match=r"a row is out of range, expected \[0, 30\)"):
            reader.column("load", np.array([row]))


def test_first_rows_are_read_once_and_within_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_files(arrow_table([300]), tmp_path, [], 100, "parquet")
    reader = reader_of(paths)
    reads = []
    batches = original("blocks.RangedParquetFile.batches")

    def counted(self: object, names: object, start: int, stop: int, **options: object) -> object:
        reads.append((start, stop))
        found: object = batches(self, names, start, stop, **options)
        return found

    plant(monkeypatch, "blocks.RangedParquetFile.batches", counted)
    low, high = np.array([50]), np.array([105])
    for _ in range(2):
        reader.read(("load",), low, high, head_rows=10)
    assert reads == [(50, 100), (100, 110), (50, 100)]
    reader = reader_of(paths)
    reader.head_limit = 0
    reads.clear()
    for _ in range(2):
        reader.read(("load",), low, high, head_rows=10)
    assert reads == [(50, 100), (100, 110)] * 2


@pytest.mark.parametrize("kind", ["parquet", "uncompressed"])
def test_remote_parts_are_read_by_parallel_requests(
    tmp_path: Path, web: Website, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data = arrow_table([240])
    paths = write_files(data, tmp_path, [80, 200], 10, kind)
    for path in paths:
        web.objects[f"d/{path.name}"] = path.read_bytes()
    table = wd.Table.read(
        f"{web.url}/d", in_memory=False, columns=["load"], categories=(), group_bytes=1000
    )
    assert isinstance(table, StreamedTable)
    plant(monkeypatch, "row_reader.PORTION_BYTES", 1 if kind == "parquet" else 80)
    web.server.clear()
    web.server.delay = 0.1
    found = table.reader.read(("load",), np.array([0]), np.array([240]))["load"]
    assert values_of(found) == plain(data, "load", list(range(240)))
    assert web.server.most == 8
    # Each of 24 row groups by one request, and files are compared once before and once after.
    if kind == "parquet":
        assert web.server.count("^GET .*bytes=") == 24
        assert web.server.count("^HEAD ") == 2 * len(paths)


def test_remote_batches_are_read_by_their_ranges_and_first_rows_once(
    tmp_path: Path, web: Website
) -> None:
    data = pa.table({"x": np.arange(40_000.0), "y": np.arange(40_000.0), "z": np.arange(40_000.0)})
    (path,) = write_files(data, tmp_path, [], 20_000, "uncompressed")
    web.objects["a.arrow"] = path.read_bytes()
    table = wd.Table.read(f"{web.url}/a.arrow", in_memory=False, columns=["x", "z"])
    assert isinstance(table, StreamedTable)
    for first in (True, False):
        web.server.clear()
        rows = np.array([8]), np.array([20_005])
        found = table.reader.read(("x", "z"), *rows, head_rows=5)
        assert found["z"].values.tolist() == list(range(8, 20_005))
        # A column of a batch has 160 kB: x and z are too far apart for one request.
        assert web.server.count("^GET .*bytes=") == (4 if first else 2)
        assert web.server.count("^HEAD ") == 2


@pytest.mark.parametrize("kind", ["parquet", "lz4"])
def test_rows_of_a_large_part_are_kept_for_those_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Series by series, a part is not decoded for each of them."""
    plant(monkeypatch, "row_reader.CACHED_BYTES", 8 * 100)
    data = arrow_table([950])
    reader = reader_of(write_files(data, tmp_path, [], 900, kind))
    plain_scan, scans = RowReader.scan, []

    def noted(self: RowReader, names: Any, low: int, high: int) -> Any:
        scans.append((low, high))
        return plain_scan(self, names, low, high)

    plant(monkeypatch, "row_reader.RowReader.scan", noted)
    for start in range(0, 950, 7):
        rows = slice(start, min(start + 7, 950))
        assert shown(reader, "load", rows) == plain(data, "load", list(range(950))[rows])
    kept = [(low, min(low + 100, 900)) for low in range(0, 900, 100)] + [(900, 950)]
    assert set(kept) <= set(scans)
    crossing = [one for one in scans if one not in kept]
    assert len(scans) == len(kept) + len(crossing) <= 2 * len(kept)
    assert all(high - low == 7 for low, high in crossing)
    # All rows at once, or some far apart, are decoded once for each part.
    scans.clear()
    assert shown(reader, "load", slice(None)) == plain(data, "load", list(range(950)))
    some = np.array([3, 899, 450])
    assert shown(reader, "load", some) == plain(data, "load", some.tolist())
    assert scans == [(0, 900), (3, 900)]


def test_parts_are_read_one_by_one_if_they_are_large(
    tmp_path: Path, web: Website, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = arrow_table([60])
    (path,) = write_files(data, tmp_path, [], 10, "parquet")
    web.objects["a.parquet"] = path.read_bytes()
    table = wd.Table.read(
        f"{web.url}/a.parquet", in_memory=False, columns=["load"], categories=(), group_bytes=1000
    )
    assert isinstance(table, StreamedTable)
    plant(monkeypatch, "row_reader.PORTION_BYTES", 1)
    for limit, most in ((1, 1), (1 << 25, 6)):
        plant(monkeypatch, "row_reader.READING_BYTES", limit)
        web.server.clear()
        web.server.delay = 0.1
        found = table.reader.read(("load",), np.array([0]), np.array([60]))["load"]
        assert values_of(found) == plain(data, "load", list(range(60)))
        assert web.server.most == most


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (1 << 30, 2)])
def test_pieces_of_all_reads_share_threads_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    plant(monkeypatch, "row_reader.READING_BYTES", limit)
    plant(monkeypatch, "row_reader.PORTION_BYTES", 100)
    data = arrow_table([200])
    reader = reader_of(write_files(data, tmp_path, [], 10, "parquet"))
    lock, together, seen = threading.Lock(), threading.Event(), [0, 0]
    batches = original("blocks.RangedParquetFile.batches")

    def counted(*arguments: Any, **options: Any) -> Any:
        with lock:
            seen[0] += 1
            seen[1] = max(seen)
            if seen[0] == most:
                together.set()
        assert together.wait(60)
        yield from batches(*arguments, **options)
        with lock:
            seen[0] -= 1

    plant(monkeypatch, "blocks.RangedParquetFile.batches", counted)
    found: list[Any] = [None, None]

    def read(number: int) -> None:
        rows = np.array([100 * number]), np.array([100 * number + 100])
        found[number] = reader.read(["count"], *rows)["count"]

    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join(60)
    assert seen[1] == most
    values = [value for one in found for value in values_of(one)]
    assert values == plain(data, "count", list(range(200)))


def test_stored_bytes_are_asked_of_each_file_once(tmp_path: Path) -> None:
    # Asked for each part, they made `explain` of 2,000 record batches take 45 seconds.
    for number, count in enumerate((700, 300)):
        data = pa.table({"x": np.arange(count), "y": np.arange(count) / 7})
        feather.write_feather(data, tmp_path / f"{number}.arrow", "uncompressed", chunksize=10)
    table = wd.Table.read(sorted(tmp_path.iterdir()), in_memory=False, group_bytes=1000)
    assert isinstance(table, StreamedTable)
    plain = original("blocks.RangedIpcFile.stored_bytes")
    asked = mock.create_autospec(plain, side_effect=plain)
    with planted("blocks.RangedIpcFile.stored_bytes", asked):
        stored, split = table.reader.stored_parts(["x", "y"])
    assert asked.call_count == 4
    assert stored.tolist() == [160] * 100
    assert split.all()


def test_memory_of_the_last_rows_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps: list[weakref.ref[mmap.mmap]] = []

    class Noted(mmap.mmap):
        def __new__(cls, *arguments: Any, **options: Any) -> Noted:
            made = super().__new__(cls, *arguments, **options)
            maps.append(weakref.ref(made))
            return made

    def mapped() -> list[int]:
        return [len(memory) for one in maps if (memory := one()) is not None]

    feather.write_feather(pa.table({"x": np.arange(9000)}), tmp_path / "a.arrow", "uncompressed")
    table = wd.Table.read(tmp_path / "a.arrow", in_memory=False, group_bytes=1000)
    assert isinstance(table, StreamedTable)
    reader = table.reader

    def read(rows: int) -> np.ndarray:
        found = reader.read(["x"], np.array([0]), np.array([rows]))["x"].values
        assert np.array_equal(found, np.arange(rows))
        return found

    monkeypatch.setattr(mmap, "mmap", Noted)
    first = read(1000)
    place = first.__array_interface__["data"][0]
    other = read(1000)
    assert len(maps) == 2, "the first is in use"
    part = first[10:].view(np.uint16)
    del first
    read(1000)
    assert len(maps) == 3, "a view of the first is in use"
    del part
    again = read(990)
    assert again.__array_interface__["data"][0] == place
    assert len(maps) == 3
    del again, other
    assert len(mapped()) == 1
    # What is too small, or larger by more than an eighth, is not kept beside other memory.
    assert len(read(2000)) == 2000
    assert [size >= 16_000 for size in mapped()] == [True]
    large = read(5000)
    assert [size >= 40_000 for size in mapped()] == [True]
    del large
    small = read(10)
    assert [size < 40_000 for size in mapped()] == [True]
    del small


def test_other_reads_may_be_queued_before_rows_are_read(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"x": np.arange(500)}), tmp_path / "a.arrow", "uncompressed")
    table = wd.Table.read(tmp_path / "a.arrow", in_memory=False, group_bytes=1000)
    assert isinstance(table, StreamedTable)
    queued, plain = threading.Event(), original("blocks.RangedIpcFile.batches")

    def batches(*place: Any, **options: Any) -> Any:
        assert queued.wait(60)
        return plain(*place, **options)

    with planted("blocks.RangedIpcFile.batches", batches):
        rows = np.array([0]), np.array([500])
        found = table.reader.read(["x"], *rows, queued=queued.set)
    assert found["x"].values.tolist() == list(range(500))
