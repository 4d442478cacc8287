"""Rows of some pages of Parquet row groups, beside those of pyarrow."""

from __future__ import annotations

import datetime as dt
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from support.counted_files import Counted
from windeck.io import blocks, filesystem, parquet_pages
from windeck.io.blocks import RangedParquetFile
from windeck.io.footers import ColumnChunk, parquet_footer

ROWS = 3000


def every_type(rows: int = ROWS, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    some = random.random(rows) < 0.3
    words = random.choice(["a", "bb", "ccc"], rows)
    times = random.integers(0, 10**9, rows)
    return pa.table(
        {
            "f64": pa.array(random.normal(size=rows), mask=some),
            "f16": random.normal(size=rows).astype(np.float16),
            "i8": pa.array(random.integers(-9, 9, rows), pa.int8(), mask=some),
            "flag": pa.array(random.random(rows) < 0.5, mask=some),
            "text": pa.array(words, mask=some),
            "large": pa.array(words, pa.large_string()),
            "view": pa.array(words, pa.string_view(), mask=some),
            "code": pa.array(words).dictionary_encode(),
            "day": pa.array([dt.date(2024, 1, 1)] * rows),
            "time": pa.array(times.astype("M8[us]"), mask=some),
            "zoned": pa.array(times.astype("M8[s]"), pa.timestamp("s", "Europe/Oslo")),
            "past": pa.array(times, pa.duration("ms")),
            "u32": pa.array(random.integers(0, 9, rows), pa.uint32()),
            "i64": np.repeat(np.arange(rows // 100), 100),
            "money": pa.array([None, 12] * (rows // 2), pa.decimal128(9, 2)),
            "lists": pa.array([[1, 2], None] * (rows // 2)),
            "pair": pa.array([{"a": 1, "b": [1]}, None] * (rows // 2)),
            "last": random.normal(size=rows).astype(np.float32),
        }
    )


FLAT = [name for name in every_type(100).column_names if name not in ("lists", "pair")]
WRITERS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "zstd": {"compression": "zstd", "use_dictionary": ["text", "i8"], "write_page_checksum": True},
    "v2": {"use_dictionary": ["text"], "data_page_version": "2.0", "compression": "snappy"},
    "indexed": {"write_page_index": True, "use_dictionary": ["text"]},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {"i64": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"},
    },
    "bare": {"use_dictionary": ["text"], "store_schema": False, "coerce_timestamps": "us"},
    "old": {
        "version": "1.0",
        "use_dictionary": ["text", "view"],
        "use_deprecated_int96_timestamps": True,
        "compression": "gzip",
        "store_schema": False,
    },
    "split": {
        "use_dictionary": False,
        "compression": "brotli",
        "store_decimal_as_integer": True,
        "column_encoding": {"f64": "BYTE_STREAM_SPLIT", "u32": "BYTE_STREAM_SPLIT"},
    },
    "lz4": {"compression": "lz4", "use_dictionary": ["view"], "data_page_version": "2.0"},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("files"), {}
    for name, options in WRITERS.items():
        found[name] = folder / f"{name}.parquet"
        parquet.write_table(
            every_type(),
            found[name],
            row_group_size=1300,
            data_page_size=400,
            write_batch_size=64,
            **options,
        )
    return found


def cut_file(path: Path, names: list[str], group_bytes: int) -> RangedParquetFile:
    file = RangedParquetFile(str(path))
    file.cut(names, [], 8 * len(names), group_bytes)
    return file


@settings(max_examples=80, deadline=None)
@given(
    writer=st.sampled_from(list(WRITERS)),
    names=st.lists(st.sampled_from(FLAT), min_size=1, unique=True),
    group_bytes=st.integers(100, 50_000),
    rows=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)),
)
def test_rows_are_those_of_pyarrow(
    files: dict[str, Path],
    writer: str,
    names: list[str],
    group_bytes: int,
    rows: tuple[int, int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CUT_BYTES", 1)
        file = cut_file(files[writer], names, group_bytes)
    assert sum(file.part_rows) == ROWS
    start, stop = sorted(rows)
    expected = parquet.read_table(files[writer], columns=names).slice(start, stop - start)
    found = list(file.batches(names, start, stop))
    whole = RangedParquetFile(str(files[writer])).batches(names, start, stop)
    schemas = {batch.schema for batch in (*found, *whole)}
    assert len(schemas) <= 1  # as types of row groups that are read as a whole
    for batch in found:
        batch.validate(full=True)
    merged: dict[str, list[Any]] = {name: [] for name in names}
    for batch in found:
        for name, column in batch.to_pydict().items():
            merged[name] += column
    assert merged == expected.to_pydict()


@pytest.mark.parametrize("writer", list(WRITERS))
def test_pieces_read_their_pages_alone(
    files: dict[str, Path], writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "CUT_BYTES", 1)
    names = ["last", "f64", "text"]
    file = cut_file(files[writer], names, 8000)
    assert len(file.part_rows) >= 12
    assert len(file.cuts) == len(file.part_rows) - 3
    counted = Counted(monkeypatch)
    row = 0
    for part, rows in enumerate(file.part_rows):
        counted.bytes = 0
        list(file.batches(names, row, row + rows))
        assert counted.bytes == sum(file.stored_bytes(name)[part] for name in names)
        first = sum(file.first_bytes(name, 5)[part] for name in names)
        counted.bytes = 0
        list(file.batches(names, row, row + 5))
        assert counted.bytes == first < 4000
        row += rows
    whole = RangedParquetFile(str(files[writer]))
    data = sum(sum(whole.stored_bytes(name)) for name in names)
    read = sum(sum(file.stored_bytes(name)) for name in names)
    assert data < read < 3 * data
    assert file.shared_bytes(names) == read - data
    assert whole.shared_bytes(names) == 0


def test_pages_by_index_and_by_headers_are_the_same(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(files["indexed"])
    footer = parquet_footer(path)
    assert footer is not None
    reads: list[int] = []
    read = filesystem.RangeReader.read

    def counted(self: Any, start: int, count: int) -> bytes:
        reads.append(count)
        return read(self, start, count)

    monkeypatch.setattr(filesystem.RangeReader, "read", counted)
    with filesystem.RangeReader(path) as file:
        for header_bytes in (16, 1 << 12):
            monkeypatch.setattr(parquet_pages, "HEADER_BYTES", header_bytes)
            for chunk in footer.groups[1]:
                if len(chunk.path) > 1:
                    continue
                reads.clear()
                indexed = parquet_pages.find_pages(file, chunk, 1300)
                assert len(reads) == 1
                walked = parquet_pages.find_pages(file, chunk._replace(index_range=(0, 0)), 1300)
                assert indexed is not None
                assert walked is not None
                np.testing.assert_array_equal(indexed.places, walked.places)
                np.testing.assert_array_equal(indexed.rows, walked.rows)


def test_small_and_nested_row_groups_stay_whole(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cut_file(files["plain"], ["f64"], 100).part_rows == [1300, 1300, 400]
    monkeypatch.setattr(blocks, "CUT_BYTES", 1)
    assert cut_file(files["plain"], ["f64", "lists"], 100).part_rows == [1300, 1300, 400]
    assert len(cut_file(files["plain"], ["f64"], 1000).part_rows) > 10
    assert cut_file(files["plain"], ["f64"], 8 * 1300).part_rows == [1300, 1300, 400]
    # A page for all rows.
    parquet.write_table(every_type(), tmp_path / "a.parquet")
    assert cut_file(tmp_path / "a.parquet", ["f64"], 1000).part_rows == [3000]


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1), value=st.integers(0, 255), indexed=st.booleans())
def test_damage_gives_rows_or_an_error_that_names_the_file(
    files: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    place: float,
    value: int,
    indexed: bool,
) -> None:
    content = bytearray(files["indexed" if indexed else "v2"].read_bytes())
    content[int(place * (len(content) - 1))] = value
    path = tmp_path_factory.mktemp("damage") / "a.parquet"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CUT_BYTES", 1)
        try:
            file = cut_file(path, ["f64", "text"], 2000)
            found = sum(batch.num_rows for batch in file.batches(["f64", "text"], 100, 2000))
        except ValueError as error:
            found = 1900 * ("a.parquet" in str(error))
        assert found == 1900


def pages_of(edges: list[int], sizes: list[int], dictionary: int = 0) -> parquet_pages.Pages:
    chunk = ColumnChunk((b"x",), edges[-1], 0, 0, 0, 0, dictionary, 0, 0, (0,), (0, 0))
    places = np.cumsum([0, *sizes])
    return parquet_pages.Pages(chunk, places, np.array(edges))


def test_where_row_groups_are_cut() -> None:
    tens = list(range(0, 401, 10))
    even = pages_of(tens, [80] * 40)
    # One page in eight may be read for two pieces.
    assert parquet_pages.cut_rows([even], 10, 400) == [0, 80, 160, 240, 320, 400]
    assert parquet_pages.cut_rows([even], 100, 400) == [0, 100, 200, 300, 400]
    assert parquet_pages.cut_rows([even], 150, 300) == [0, 150, 300, 400]
    # Or as few as there are.
    assert parquet_pages.cut_rows([even], 10, 50) == [*range(0, 400, 50), 400]
    assert parquet_pages.cut_rows([even], 1, 5) == tens
    # A page of another column is read twice unless it begins at the cut.
    other = pages_of([0, 97, 200, 400], [800, 800, 100])
    assert parquet_pages.cut_rows([even, other], 80, 250)[:2] == [0, 200]
    # A dictionary is read for each piece.
    coded = pages_of(tens, [80] * 40, 160)
    assert parquet_pages.cut_rows([coded], 10, 400) == [0, 240, 400]


def test_headers_of_pages_that_are_no_pages(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(struct.pack("<100Q", *range(100)))
    chunk = pages_of([0, 10], [800]).chunk._replace(compressed_bytes=800, values=10)
    with filesystem.RangeReader(str(path)) as file:
        assert parquet_pages.find_pages(file, chunk, 10) is None
        assert parquet_pages.find_pages(file, chunk._replace(compressed_bytes=900), 10) is None
        assert parquet_pages.find_pages(file, chunk._replace(start=-8), 10) is None
