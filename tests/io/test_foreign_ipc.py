"""Arrow IPC of every version, byte order, compression and type reads the same in every way."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windeck as wd
from support import ipc_files

ROWS = 90
V4, V5 = pa.ipc.MetadataVersion.V4, pa.ipc.MetadataVersion.V5


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    """A type of our own, of which only the storage is known to others."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "windeck.test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Celsius:
        return cls()


def strange_columns() -> dict[str, Any]:
    """Return columns whose buffers precede those of numbers in a record batch."""
    words = ["a", "bb", None, "a long text that is not inside of its view", "a"]
    words = (words * ROWS)[:ROWS]
    halves = pa.array([ROWS // 2, ROWS], pa.int32())
    codes = pa.array([i % 2 for i in range(ROWS)], pa.int8())
    inner = pa.DictionaryArray.from_arrays(codes, pa.array(["x", "y"]))
    return {
        "none": None,
        "null": pa.nulls(ROWS),
        "text": pa.array(words),
        "large": pa.array(words, pa.large_string()),
        "view": pa.array(words, pa.string_view()),
        "coded": pa.array(words).dictionary_encode(),
        "nested codes": pa.StructArray.from_arrays([inner], ["kind"]),
        "runs": pa.RunEndEncodedArray.from_arrays(halves, pa.array([1.5, 2.5])),
        "sparse": pa.UnionArray.from_sparse(codes, [pa.array(range(ROWS)), pa.array(words)]),
        "dense": pa.UnionArray.from_dense(
            codes,
            pa.array([i // 2 for i in range(ROWS)], pa.int32()),
            [pa.array(range(ROWS)), pa.array([0.5] * ROWS)],
        ),
        "lists": pa.array([[i] * (i % 3) for i in range(ROWS)]),
        "list views": pa.array([[i] * (i % 3) for i in range(ROWS)], pa.list_view(pa.int16())),
        "fixed lists": pa.array([[i, i] for i in range(ROWS)], pa.list_(pa.int16(), 2)),
        "map": pa.array([[("k", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int32())),
        "decimal": pa.array(range(ROWS), pa.decimal128(20, 2)),
        "decimal32": pa.array(range(ROWS), pa.decimal32(5, 1)),
        "interval": pa.array([(1, 2, 3)] * ROWS, pa.month_day_nano_interval()),
        "bytes": pa.array([b"abc"] * ROWS, pa.binary(3)),
        "extension": pa.ExtensionArray.from_storage(
            Celsius(), pa.array(np.arange(ROWS, dtype=np.float32))
        ),
    }


def numbers() -> dict[str, Any]:
    gap = np.arange(ROWS) % 7 == 3
    days = (np.arange(ROWS) * 86_400).astype("M8[s]")
    return {
        "i16": pa.array(np.arange(ROWS, dtype=np.int16) - 9),
        "i64": pa.array(np.arange(ROWS) + 128),
        "f32": pa.array(np.arange(ROWS, dtype=np.float32) / 3, mask=gap),
        "f64": pa.array(np.arange(ROWS) / 7, mask=gap),
        "flag": pa.array(np.arange(ROWS) % 3 == 0),
        "time": pa.array(days),
    }


def in_file(content: bytes, path: Path) -> Path:
    path.write_bytes(content)
    return path


def rows_of(table: Any, names: list[str]) -> dict[str, list[Any]]:
    """Return all values of a table, in memory or in files, through windows of one row; None too."""
    found: dict[str, list[Any]] = {}
    for name in names:
        windows = wd.Windows(table, context_length=1, target_columns=[name])
        batch = windows.gather(np.arange(len(windows)))
        values = batch["past_target"][:, 0, 0]
        seen = batch.get("past_target_mask", np.ones((len(values), 1, 1), bool))[:, 0, 0]
        found[name] = [v if ok else None for v, ok in zip(values.tolist(), seen, strict=True)]
    return found


def check_everywhere(path: Path, expected: Any, *, stream: bool = False) -> None:
    """Compare a file that is read in memory, mapped or streamed, and streamed by a budget."""
    names = [name for name in numbers() if name != "time"]
    wanted = expected.select(names).to_pydict()
    ways: list[dict[str, Any]] = [{}, {"in_memory": False}]
    ways += [] if stream else [{"in_memory": False, "memory_budget": 1e9}]
    for way in ways:
        table = wd.Table.read(path, columns=names, timestamp_column="time", **way)
        assert rows_of(table, names) == wanted, way


OPTIONS: dict[str, dict[str, Any]] = {
    "V5": {},
    "V4": {"metadata_version": V4},
    "V4 before 0.15": {"metadata_version": V4, "use_legacy_format": True},
    "lz4": {"compression": "lz4"},
    "zstd": {"compression": "zstd"},
    "dictionary deltas": {"emit_dictionary_deltas": True},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("strange", strange_columns())
def test_numbers_after_a_column_of_any_type(tmp_path: Path, options: str, strange: str) -> None:
    columns = numbers()
    if strange != "none":
        columns = {strange: strange_columns()[strange], **columns}
    table = pa.table(columns)
    written = pa.ipc.IpcWriteOptions(**OPTIONS[options])
    for rows in (ROWS, 40):
        content = ipc_files.write(table, written, rows=rows)
        check_everywhere(in_file(content, tmp_path / f"{rows}.arrow"), table)


def big(**options: Any) -> Callable[[Any, int], bytes]:
    written = pa.ipc.IpcWriteOptions(**options)
    return lambda table, rows: ipc_files.big_endian(table, written, rows=rows)


def mixed(*compressions: str | None) -> Callable[[Any, int], bytes]:
    """Return a writer of batches, each of which has another compression."""

    def write(table: Any, rows: int) -> bytes:
        parts = -(-len(table) // rows)
        files = [
            ipc_files.write(table, pa.ipc.IpcWriteOptions(compression=one), rows=rows)
            for one in (compressions * parts)[:parts]
        ]
        return ipc_files.mixed(files)

    return write


FOREIGN: dict[str, Callable[[Any, int], bytes]] = {
    "big-endian": big(),
    "big-endian V4": big(metadata_version=V4),
    "big-endian zstd": big(compression="zstd"),
    "zstd in one batch": mixed(None, "zstd"),
    "lz4 then plain": mixed("lz4", None, "zstd"),
    "pyarrow 0.17": ipc_files.of_arrow_0_17,
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("rows", [ROWS, 40])
def test_files_that_pyarrow_does_not_write(tmp_path: Path, kind: str, rows: int) -> None:
    table = pa.table(numbers())
    content = FOREIGN[kind](table, rows)
    read = pa.ipc.open_file(pa.py_buffer(content)).read_all()
    assert read.to_pydict() == table.to_pydict()  # The file is what it should be.
    check_everywhere(in_file(content, tmp_path / "a.arrow"), table)


def test_a_stream_of_the_other_byte_order(tmp_path: Path) -> None:
    table = pa.table(numbers())
    content = ipc_files.big_endian(table, stream=True)
    assert pa.ipc.open_stream(content).read_all().to_pydict() == table.to_pydict()
    path = in_file(content, tmp_path / "a.arrows")
    names = [name for name in table.column_names if name != "time"]
    assert rows_of(wd.Table.read(path, columns=names), names) == table.select(names).to_pydict()
    with pytest.raises(ValueError, match="stream, which has no footer"):
        wd.Table.read(path, columns=names, in_memory=False)  # Mapped values would be wrong.


@pytest.mark.parametrize("kind", FOREIGN)
def test_documents(tmp_path: Path, kind: str) -> None:
    """A document a record batch, or a list a row where buffers can be swapped by hand."""
    tokens = pa.table({"tokens": pa.array(np.arange(ROWS) + 300, pa.int32())})
    (tmp_path / "plain").mkdir()
    in_file(FOREIGN[kind](tokens, 40), tmp_path / "plain" / "web.part0.arrow")
    documents = wd.Documents(tmp_path / "plain")
    found = [documents[i].tolist() for i in range(len(documents))]
    values = tokens["tokens"].to_pylist()
    assert found == [values[:40], values[40:80], values[80:]]


@pytest.mark.parametrize("options", OPTIONS)
def test_documents_of_lists(tmp_path: Path, options: str) -> None:
    lists = [[i] * (i % 4) for i in range(ROWS)]
    table = pa.table(
        {"text": strange_columns()["view"], "tokens": pa.array(lists, pa.list_(pa.uint16()))}
    )
    written = pa.ipc.IpcWriteOptions(**OPTIONS[options])
    for stream in (False, True):
        folder = tmp_path / str(stream)
        folder.mkdir()
        in_file(ipc_files.write(table, written, rows=40, stream=stream), folder / "web.part0.arrow")
        if stream and "0.15" in options:
            with pytest.raises(ValueError, match="neither an Arrow IPC nor a Parquet file"):
                wd.Documents(folder)
            continue
        documents = wd.Documents(folder)
        assert [documents[i].tolist() for i in range(len(documents))] == lists


def test_a_dictionary_that_grows_or_is_replaced(tmp_path: Path) -> None:
    words = ["a", "b", "c", "d"]
    grown = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    coded = [
        pa.record_batch(
            {
                "kind": pa.DictionaryArray.from_arrays(
                    pa.array([0, count - 1], pa.int32()), pa.array(words[:count])
                ),
                "x": pa.array([count, -count]),
            }
        )
        for count in (1, 2, 4)
    ]
    replaced = [
        pa.record_batch(
            {
                "kind": pa.DictionaryArray.from_arrays(
                    pa.array([0, 0], pa.int32()), pa.array([word])
                ),
                "x": pa.array([1, 2]),
            }
        )
        for word in words
    ]
    for name, batches, stream in (("grown", coded, False), ("replaced", replaced, True)):
        path = tmp_path / f"{name}.arrow"
        opener = pa.ipc.new_stream if stream else pa.ipc.new_file
        with opener(path, batches[0].schema, options=grown) as file:
            for batch in batches:
                file.write_batch(batch)
        expected = [text for batch in batches for text in batch["kind"].to_pylist()]
        ways: list[dict[str, Any]] = [{}, {"in_memory": False}]
        for way in ways:
            if stream and way:
                with pytest.raises(ValueError, match="stream, which has no footer"):
                    wd.Table.read(path, **way)
                continue
            table: Any = wd.Table.read(path, **way)
            codes = _codes(table)
            names = table.column("kind").categories
            assert [names[code] for code in codes] == expected


def _codes(table: Any) -> list[int]:
    windows = wd.Windows(table, context_length=1, target_columns=["x"], past_covariates=["kind"])
    batch = windows.gather(np.arange(len(windows)))
    (key,) = [key for key in batch if key.startswith("past_cat") or key == "past_covariates"]
    found: list[int] = np.asarray(batch[key])[:, 0, 0].astype(int).tolist()
    return found


@pytest.mark.parametrize("damage", ["footer", "blocks", "length", "rows", "tail"])
def test_damage_is_an_error_or_the_right_rows(tmp_path: Path, damage: str) -> None:
    table = pa.table(numbers())
    content = bytearray(ipc_files.write(table, rows=40))
    length = int.from_bytes(content[-10:-6], "little")
    if damage == "tail":
        content = content[:-7]
    elif damage == "length":
        content[-10:-6] = struct.pack("<I", length - 8)
    elif damage == "footer":
        content[len(content) - 10 - length : len(content) - 10] = bytes(length)
    else:
        first, _ = ipc_files.blocks(bytes(content))
        place = first + (0 if damage == "blocks" else 16)
        struct.pack_into("<q", content, place, 2**40 if damage == "blocks" else 8)
    path = in_file(bytes(content), tmp_path / "a.arrow")
    names = ["i64", "f64"]
    ways: list[dict[str, Any]] = [{}, {"in_memory": False}]
    ways.append({"in_memory": False, "memory_budget": 1e9})
    for way in ways:
        with pytest.raises(ValueError, match=r"a\.arrow"):
            rows_of(wd.Table.read(path, columns=names, **way), names)
