"""Files in parts: rows read by ranges equal those of pyarrow, and damage names the file."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

import windeck as wd
from support.counted_files import Counted
from windeck.io import open_parted
from windeck.table import StreamedTable

ROWS = 300


def every_type(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return columns of many types, nested ones before and after those of fixed width."""
    random = np.random.default_rng(seed)
    some = random.random(rows) < 0.3
    words = random.choice(["a", "bb", "ccc"], rows)
    return pa.table(
        {
            "lists": pa.array([[int(i)] * (i % 3) for i in range(rows)]),
            "f64": pa.array(random.normal(size=rows), mask=some),
            "f16": random.normal(size=rows).astype(np.float16),
            "i8": pa.array(random.integers(-9, 9, rows), pa.int8(), mask=some),
            "flag": pa.array(random.random(rows) < 0.5, mask=some),
            "text": pa.array(words, mask=some),
            "struct": pa.array([{"a": 1, "b": "x"}] * rows),
            "code": pa.array(words).dictionary_encode(),
            "day": pa.array([dt.date(2024, 1, 1)] * rows),
            "time": pa.array(random.integers(0, 10**9, rows).astype("M8[us]"), mask=some),
            "nothing": pa.nulls(rows),
            "u32": pa.array(random.integers(0, 9, rows), pa.uint32()),
        }
    )


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("blocks")
    found = {}
    for kind in ("uncompressed", "lz4", "zstd"):
        found[kind] = folder / f"{kind}.arrow"
        feather.write_feather(every_type(), found[kind], compression=kind, chunksize=37)
    found["parquet"] = folder / "a.parquet"
    parquet.write_table(every_type(), found["parquet"], row_group_size=37)
    return found


NAMES = [name for name in every_type(1).column_names if name not in ("lists", "struct")]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["uncompressed", "lz4", "zstd", "parquet"]),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    rows=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)),
)
def test_rows_of_columns_are_those_of_pyarrow(
    paths: dict[str, Path], kind: str, names: list[str], rows: tuple[int, int]
) -> None:
    start, stop = sorted(rows)
    stored = open_parted(str(paths[kind]))
    assert stored.file.num_rows == sum(stored.file.part_rows) == ROWS
    assert stored.file.part_rows == [37] * 8 + [4]
    found = list(stored.file.batches(names, start, stop))
    expected = every_type().select(names).slice(start, stop - start).to_pydict()
    merged: dict[str, list[Any]] = {name: [] for name in names}
    for batch in found:
        assert batch.schema.names == names
        batch.validate(full=True)
        for name, column in batch.to_pydict().items():
            merged[name] += column
    assert merged == expected


#: Options of the writers of Parquet files whose row groups are read: encodings, codecs, versions.
WRITERS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False, "compression": "none"},
    "zstd": {"compression": "zstd", "use_dictionary": ["text", "i8"], "write_page_checksum": True},
    "v2": {"use_dictionary": ["text"], "data_page_version": "2.0", "compression": "snappy"},
    "indexed": {"write_page_index": True, "use_dictionary": ["text"]},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {"u32": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"},
    },
    "bare": {"use_dictionary": ["text"], "store_schema": False, "coerce_timestamps": "us"},
    "old": {
        "version": "1.0",
        "use_dictionary": ["text", "code"],
        "use_deprecated_int96_timestamps": True,
        "compression": "gzip",
        "store_schema": False,
    },
    "split": {
        "use_dictionary": False,
        "compression": "brotli",
        "column_encoding": {"f64": "BYTE_STREAM_SPLIT", "u32": "BYTE_STREAM_SPLIT"},
    },
    "lz4": {"compression": "lz4", "use_dictionary": ["code"], "data_page_version": "2.0"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("written"), {}
    small = {"row_group_size": 130, "data_page_size": 400, "write_batch_size": 16}
    for name, options in WRITERS.items():
        found[name] = folder / f"{name}.parquet"
        parquet.write_table(every_type(), found[name], **small, **options)
    return found


@settings(max_examples=60, deadline=None)
@given(
    writer=st.sampled_from(list(WRITERS)),
    names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    rows=st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)),
)
def test_rows_of_all_encodings_of_parquet_are_those_of_pyarrow(
    written: dict[str, Path], writer: str, names: list[str], rows: tuple[int, int]
) -> None:
    start, stop = sorted(rows)
    file = open_parted(str(written[writer])).file
    assert file.part_rows == [130, 130, 40]
    expected = parquet.read_table(written[writer], columns=names).slice(start, stop - start)
    merged: dict[str, list[Any]] = {name: [] for name in names}
    schemas = set()
    for batch in file.batches(names, start, stop):
        batch.validate(full=True)
        schemas.add(batch.schema)
        for name, column in batch.to_pydict().items():
            merged[name] += column
    assert len(schemas) <= 1
    assert merged == expected.to_pydict()


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1), value=st.integers(0, 255), writer=st.sampled_from(["v2", "indexed"]))
def test_damaged_parquet_gives_rows_or_an_error_that_names_the_file(
    written: dict[str, Path], place: float, value: int, writer: str
) -> None:
    content = bytearray(written[writer].read_bytes())
    content[int(place * (len(content) - 1))] = value
    path = written[writer].with_name("damaged.parquet")
    path.write_bytes(content)
    try:
        file = open_parted(str(path)).file
        found = sum(batch.num_rows for batch in file.batches(["f64", "text"], 10, 200))
    except ValueError as error:
        found = 190 * ("damaged.parquet" in str(error))
    assert found == 190


def test_metadata(paths: dict[str, Path]) -> None:
    data = every_type()
    for kind in ("uncompressed", "parquet"):
        file = open_parted(str(paths[kind])).file
        for name in ("f64", "i8", "flag", "time", "u32"):
            assert file.null_count(name) == data[name].null_count
            assert min(file.stored_bytes(name)) > 0
    plain = open_parted(str(paths["uncompressed"])).file
    assert 8 * 37 + 5 <= plain.stored_bytes("f64")[0] < 8 * 37 + 64  # values and validity
    assert plain.splits(["f64", "f16", "i8", "flag", "day", "time", "u32"])
    assert not plain.splits(["f64", "text"])
    assert not open_parted(str(paths["lz4"])).file.splits(["f64"])
    digests = {open_parted(str(path)).file.content_digest() for path in paths.values()}
    assert len(digests) == 4


def test_only_the_bytes_in_use_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.arrow"
    data = pa.table({f"x{c}": np.random.default_rng(c).normal(size=10_000) for c in range(20)})
    feather.write_feather(data, path, compression="uncompressed", chunksize=5000)
    file = open_parted(str(path)).file
    counted = Counted(monkeypatch)
    (batch,) = file.batches(["x3"], 6000, 6100)
    assert batch.column(0).equals(data["x3"].slice(6000, 100).combine_chunks())
    assert counted.bytes <= 8 * 108


@pytest.mark.parametrize(
    ("used", "reads"),
    [
        (["x0", "x4", "x9"], 3),  # 72 kB lie between columns of 24 kB
        (["x0", "x1", "x2"], 1),
        (["x0", "x2"], 2),
        (["x3", "flag", "x4"], 1),  # 400 bytes of another column
    ],
)
def test_columns_that_are_not_used_are_hardly_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: list[str], reads: int
) -> None:
    path = tmp_path / "a.arrow"
    data = {f"x{c}": np.random.default_rng(c).normal(size=3000) for c in range(10)}
    flags = {"flag": np.arange(3000) % 3 == 0, "other": np.arange(3000) % 2 == 0}
    names = ["x0", "x1", "x2", "x3", "flag", "other", *(f"x{c}" for c in range(4, 10))]
    table = pa.table({name: (data | flags)[name] for name in names})
    feather.write_feather(table, path, compression="uncompressed")
    file = open_parted(str(path)).file
    counted = Counted(monkeypatch)
    found = pa.Table.from_batches(file.batches(used, 8, 2990))
    assert found.equals(table.select(used).slice(8, 2982))
    assert counted.reads == reads
    assert counted.bytes <= 1.05 * sum(sum(file.stored_bytes(name)) for name in used)


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_large_batches_with_texts_or_compressed(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.arrow"
    data = pa.table({"x": np.arange(150_000.0), "t": ["a", "bb", "ccc"] * 50_000})
    feather.write_feather(data, path, compression=compression, chunksize=150_000)
    found = pa.Table.from_batches(open_parted(str(path)).file.batches(["t", "x"], 10, 149_990))
    assert found.equals(data.select(["t", "x"]).slice(10, 149_980))


def test_texts_in_delta_encodings(tmp_path: Path) -> None:
    data = pa.table({"s": ["a", "b", None], "t": ["x", "y", "x"], "v": [1.0, 2.0, 3.0]})
    encodings = {"s": "DELTA_BYTE_ARRAY", "t": "DELTA_LENGTH_BYTE_ARRAY"}
    path = tmp_path / "a.parquet"
    parquet.write_table(data, path, use_dictionary=False, column_encoding=encodings)
    for in_memory in (True, False):
        table = wd.Table.read(path, in_memory=in_memory, categories=["s", "t"])
        assert table.column("t").categories == ("x", "y")
        assert table.column("s").categories == ("a", "b")


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("row_group_size", [30_000, 90_000])
def test_first_rows_of_a_row_group_take_its_first_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, row_group_size: int
) -> None:
    path = tmp_path / "a.parquet"
    data = pa.table({f"x{c}": np.random.default_rng(c).normal(size=90_000) for c in range(3)})
    parquet.write_table(
        data,
        path,
        row_group_size=row_group_size,
        data_page_size=1 << 14,
        use_dictionary=False,
        compression=compression,
    )
    file = open_parted(str(path)).file
    counted = Counted(monkeypatch)
    start = 90_000 - row_group_size
    for first, last in ((start, start + 100), (start, start + 5000)):
        counted.bytes = 0
        found = pa.Table.from_batches(file.batches(["x2", "x0"], first, last))
        assert found.equals(data.select(["x2", "x0"]).slice(first, last - first))
        # Of either column a page, and twice what is read at a time.
        assert counted.bytes <= 2 * (8 * (last - start) + (1 << 14) + 2 * (1 << 15))


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), data=st.data())
def test_a_damaged_file_gives_rows_or_an_error_that_names_it(
    paths: dict[str, Path], place: int, value: int, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["uncompressed", "lz4"]))
    content = bytearray(paths[kind].read_bytes())
    # In the second half of the examples near the end, where the footer is.
    place = len(content) - 1 - place % 4000 if data.draw(st.booleans()) else place % len(content)
    content[place] = value
    path = paths[kind].with_name(f"damaged-{kind}.arrow")
    path.write_bytes(content)
    assert "damaged-" in _read_or_error(path)


def _read_or_error(path: Path) -> str:
    """Read some columns; return the name of the file, or an error."""
    try:
        file = open_parted(str(path)).file
        names = [name for name in ("f64", "i8", "flag", "u32") if name in file.schema.names]
        rows = min(file.num_rows, ROWS)
        for batch in file.batches(names, 0, rows) if names else ():
            batch.validate()
    except (ValueError, MemoryError) as error:
        return str(error)
    return path.name


def read_rows(table: wd.Table) -> int:
    assert isinstance(table, StreamedTable)
    return len(table.reader.read(["f64"], np.array([0]), np.array([ROWS]))["f64"].values)


def read_column(table: wd.Table) -> int:
    return len(table.column("f64").values[:])


@pytest.mark.parametrize("read", [read_rows, read_column])
@pytest.mark.parametrize("kind", ["parquet", "uncompressed"])
def test_changes_of_a_file(
    tmp_path: Path,
    paths: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    read: Callable[[wd.Table], int],
) -> None:
    path = tmp_path / paths[kind].name
    name = re.escape(path.name)

    def touch() -> None:
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))

    def append() -> None:
        status = path.stat()
        with path.open("ab") as file:
            file.write(b"more")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def opened() -> wd.Table:
        path.write_bytes(paths[kind].read_bytes())
        return wd.Table.read(path, in_memory=False, group_bytes=1000, columns="f64")

    changes: list[tuple[Callable[[], None], type[Exception]]] = [
        (touch, ValueError),
        (append, ValueError),
        (path.unlink, FileNotFoundError),
    ]
    reading = type(open_parted(str(paths[kind])).file)
    batches = reading.batches
    meanwhile: list[Callable[[], None]] = []
    reads = 0

    def changing(*rows: Any, **options: Any) -> Iterator[Any]:
        nonlocal reads
        reads += 1
        for change in meanwhile:
            change()
        yield from batches(*rows, **options)

    def damaged() -> None:
        raise ValueError("damaged")

    monkeypatch.setattr(reading, "batches", changing)
    for change, error in changes:
        table = opened()
        assert read(table) == ROWS
        assert reads
        table, reads = opened(), 0
        change()
        with pytest.raises(error, match=name):
            read(table)
        assert not reads
    meanwhile.append(touch)
    with pytest.raises(ValueError, match=rf"{name}' changed while"):
        read(opened())
    # An error of the read is explained by the change; no tag is named where there is none.
    meanwhile.append(damaged)
    state = r"\d+ bytes and time \d+"
    message = rf"it has {state}, expected {state}; read the table again$"
    with pytest.raises(ValueError, match=message):
        read(opened())
    meanwhile.remove(touch)
    with pytest.raises(ValueError, match=r"^damaged$"):
        read(opened())
