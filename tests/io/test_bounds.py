"""Small files that state or hold very many bytes are refused in bounded memory, by every reader."""

from __future__ import annotations

import bz2
import json
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support import ipc_files

BLOCK = bytes(1 << 26)
#: Bytes of a file, decompressed.
HUGE = 1 << 29
#: KiB that a process may take for a file of some kB: the limit, and what is made of it.
MOST_KIB = 800_000

CHILD = """
    import os, sys
    import numpy, pyarrow.csv, pyarrow.json, pyarrow.parquet
    import windeck as wd
    from windeck import Documents, Table
    def mark(name):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name))
    before = mark("VmRSS")
    path = sys.argv[1]
    try:
        {code}
    except (ValueError, MemoryError) as error:
        print(f"{{type(error).__name__}}: {{error}}".splitlines()[0])
    else:
        print("read")
    print(mark("VmHWM") - before)
"""


def read_in_child(code: str, path: Path) -> tuple[str, int]:
    """Return the error of a reader, and by how many KiB it made the process grow."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD).format(code=code), str(path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    message, grown = ran.stdout.splitlines()
    return message, int(grown)


def packed(codec: str, head: bytes, filler: bytes) -> bytes:
    """Return compressed text: a head, and then 512 MiB of the same byte."""
    block = filler * (len(BLOCK) // len(filler))
    if codec == "bz2":
        return bz2.compress(head) + bz2.compress(block) * (HUGE // len(block))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as file:
        file.write(head)
        for _ in range(HUGE // len(block)):
            file.write(block)
    return bytes(sink.getvalue().to_pybytes())


CODECS = {".bz2": "bz2", ".zst": "zstd"}
TEXTS = {
    "one line": (b'{"text": "', b"x"),
    "white space": (b"", b" "),
    "empty lines": (b"", b"\n"),
    "many lines": (b"", b'{"text": "' + b"x" * 52 + b'"}\n'),
    "lines of no use": (b'{"text": "x"}\n', b'{"other": "' + b"x" * 51 + b'"}\n'),
}


@pytest.mark.parametrize(
    ("suffix", "text"), [*((".zst", text) for text in TEXTS), (".bz2", "one line")]
)
def test_json_lines(tmp_path: Path, suffix: str, text: str) -> None:
    head, filler = TEXTS[text]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed(CODECS[suffix], head, filler))
    assert path.stat().st_size < 300_000
    code = "Documents(path, column='text', tokenizer=lambda texts: [[1] for _ in texts])[0]"
    message, grown = read_in_child(code, tmp_path)
    assert "ValueError" in message
    assert f"a.jsonl{suffix}" in message
    assert "decompressed" in message or "line" in message
    assert grown < MOST_KIB


@pytest.mark.parametrize(
    ("suffix", "filler"), [(".zst", b"1\n"), (".zst", b"1"), (".zst", b"\n"), (".bz2", b"1")]
)
def test_csv(tmp_path: Path, suffix: str, filler: bytes) -> None:
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(packed(CODECS[suffix], b"load\n", filler))
    message, grown = read_in_child("Table.read(path)", path)
    assert "ValueError" in message
    assert "a.csv" in message
    assert grown < MOST_KIB


@pytest.mark.parametrize("stated", ["true", "false"])
def test_mds(tmp_path: Path, stated: str) -> None:
    """A compressed shard of which the index states the bytes, or fewer."""
    config = json.dumps(
        {"column_names": ["tokens"], "column_encodings": ["bytes"], "column_sizes": [None]}
    ).encode()
    size = HUGE if stated == "true" else 1 << 16
    first = 12 + len(config)
    head = struct.pack("<III", 1, first, size) + config
    (tmp_path / "shard.00000.mds.zstd").write_bytes(packed("zstd", head, b"\0"))
    entry = {
        "format": "mds",
        "version": 2,
        "raw_data": {"basename": "shard.00000.mds", "bytes": size},
        "zip_data": {
            "basename": "shard.00000.mds.zstd",
            "bytes": (tmp_path / "shard.00000.mds.zstd").stat().st_size,
        },
        "compression": "zstd:7",
        "samples": 1,
        **json.loads(config),
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    message, grown = read_in_child("Documents(path, dtype='uint16')[0]", tmp_path)
    assert "ValueError" in message
    assert "decompressed" in message
    assert grown < 100_000


def test_a_shard_is_in_memory_once(tmp_path: Path) -> None:
    """A shard within its limit: a buffer of its bytes, and no copy of it."""
    samples, width = 100, 1_000_000
    random = np.random.default_rng(0)
    config = json.dumps(
        {"column_names": ["tokens"], "column_encodings": ["bytes"], "column_sizes": [None]}
    ).encode()
    first = 4 * (samples + 2) + len(config)
    offsets = [first + number * (4 + width) for number in range(samples + 1)]
    pieces = [struct.pack(f"<{samples + 2}I", samples, *offsets), config]
    for _ in range(samples):
        pieces += [struct.pack("<I", width), random.bytes(width)]
    raw = b"".join(pieces)
    packed_bytes = pa.compress(raw, "zstd", asbytes=True)
    (tmp_path / "shard.00000.mds.zstd").write_bytes(packed_bytes)
    entry = {
        "format": "mds",
        "version": 2,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(raw)},
        "zip_data": {"basename": "shard.00000.mds.zstd", "bytes": len(packed_bytes)},
        "compression": "zstd",
        "samples": samples,
        **json.loads(config),
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    message, grown = read_in_child("len(Documents(path, dtype='uint16')[0])", tmp_path)
    assert message == "read"
    assert grown < 1.5 * len(raw) / 1024


def test_within_the_limit(tmp_path: Path) -> None:
    """Text that compresses very well is read up to the limit."""
    from windeck import Table

    path = tmp_path / "a.csv.bz2"
    path.write_bytes(bz2.compress(b"load\n" + b"1\n" * 500_000))
    assert path.stat().st_size < 5000
    assert len(Table.read(path)) == 500_000


def zeros(size: int) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        for _ in range(size // len(BLOCK)):
            file.write(BLOCK)
    return bytes(sink.getvalue().to_pybytes())


TABLES = {
    "numbers": pa.table({"x": pa.array(range(10), pa.int64())}),
    "texts": pa.table({"x": pa.array(["a" * 20, "b"])}),
    "codes": pa.table({"x": pa.array(["a" * 20, "b"]).dictionary_encode()}),
    "tokens": pa.table({"tokens": pa.array([[1, 2, 3]], pa.list_(pa.int32()))}),
}
WINDOWS = "wd.Windows(Table.read(path, categories={names}, in_memory=False, memory_budget=1e9)"
READERS = {
    "in memory": "Table.read(path, categories={names})",
    "streamed": f"{WINDOWS}, context_length=1).gather([0])",
    "documents": "Documents(os.path.dirname(path))[0]",
}


@pytest.mark.parametrize("stated", [HUGE, 2**62])
@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        *((kind, reader) for kind in ("numbers", "texts", "codes") for reader in list(READERS)[:2]),
        ("tokens", "documents"),
    ],
)
def test_arrow_buffers(tmp_path: Path, kind: str, reader: str, stated: int) -> None:
    """A compressed buffer that states, or has, more bytes than its batch can need."""
    path = tmp_path / "a.part0.arrow"
    in_dictionary = kind == "codes"
    content = zeros(min(stated, HUGE))
    path.write_bytes(
        ipc_files.with_buffer(TABLES[kind], stated, content, in_dictionary=in_dictionary)
    )
    assert path.stat().st_size < 100_000
    names = "['x']" if kind in ("texts", "codes") else "()"
    message, grown = read_in_child(READERS[reader].format(names=names), path)
    assert "ValueError" in message
    assert "a.part0.arrow" in message
    assert "compressed buffer states" in message
    assert grown < 150_000


def test_constant_columns_compress_well(tmp_path: Path) -> None:
    """Values that a file has for its rows are no bomb, however small the file is."""
    from pyarrow import feather

    from windeck import Table

    rows = 20_000_000
    path = tmp_path / "a.arrow"
    feather.write_feather(pa.table({"x": np.zeros(rows)}), path, compression="zstd", chunksize=rows)
    assert path.stat().st_size < 100_000
    assert len(Table.read(path)) == rows


@pytest.mark.parametrize("reader", READERS)
def test_parquet_values(tmp_path: Path, reader: str) -> None:
    """A column chunk that states more bytes than its values can need."""
    from pyarrow import parquet

    path = tmp_path / "a.part0.parquet"
    value = "a" * (HUGE // 2)
    parquet.write_table(
        pa.table({"x": [value, "b"], "load": [1.0, 2.0]}),
        path,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    del value
    assert path.stat().st_size < 100_000
    code = READERS[reader].format(names="['x']")
    if reader == "documents":
        code = "Documents(os.path.dirname(path), column='x', tokenizer=lambda one: [[1]])[0]"
    message, grown = read_in_child(code, path)
    assert "ValueError" in message
    assert "column 'x' states" in message
    assert grown < 150_000


def test_the_bound_is_not_looked_up_where_row_groups_are_smaller(tmp_path: Path) -> None:
    """Chunks of columns that are not read cost no calls."""
    from pyarrow import parquet

    from windeck import Table

    calls = []
    data = {f"x{i}": np.arange(400) for i in range(50)}
    for rows in (400, 10):
        path = tmp_path / f"{rows}.parquet"
        parquet.write_table(pa.table(data), path, row_group_size=rows)
        Table.read(path, columns=["x0"])
        count = 0

        def count_calls(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(count_calls)
        try:
            Table.read(path, columns=["x0"])
        finally:
            sys.setprofile(None)
        calls.append(count)
    assert calls[1] < 2 * calls[0]
