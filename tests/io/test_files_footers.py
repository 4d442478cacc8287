"""Footers of Parquet files, compared with the data written, and damaged footers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.corpora import stated_counts
from windeck import Table
from windeck.io import parquet_footer

KINDS = [pa.list_(pa.int32()), pa.large_list(pa.uint8()), pa.list_(pa.int64())]


def random_lists(rng: np.random.Generator, rows: int) -> list[list[int] | None]:
    """Return lists of 0 to 4 values, with empty and null lists among them."""
    return [
        None if rng.random() < 0.1 else rng.integers(0, 100, rng.integers(0, 5)).tolist()
        for _ in range(rows)
    ]


def counts(path: Path, column: str = "tokens") -> tuple[int, int] | None:
    """Return the documents and tokens that a footer states; None if the file has to be read."""
    # A corpus has a token: that of another file.
    beside = pa.table({"tokens": [[1]], "tokens.x": [[1]]})
    parquet.write_table(beside, path.with_name("y.parquet"))
    found = stated_counts(path.parent, column=column, threads=1)
    if found is None:
        return None
    return int(found.shard_documents[0]), int(found.shard_tokens[0])


@pytest.mark.parametrize("seed", range(24))
def test_against_the_lists(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    path, rows = tmp_path / "x.parquet", int(rng.integers(0, 300))
    docs = random_lists(rng, rows)
    table = pa.table(
        {
            "tokens.x": [[1, 2]] * rows,
            "text": [f"t{i}" * 99 for i in range(rows)],
            "tokens": pa.array(docs, KINDS[seed % 3]),
            "struct": [{"tokens": [1.5], "flag": True}] * rows,
        }
    )
    parquet.write_table(
        table,
        path,
        row_group_size=int(rng.integers(1, 50)),
        version=["1.0", "2.4", "2.6"][seed % 3],
        data_page_version=["1.0", "2.0"][seed % 2],
        compression=["snappy", "none", "zstd"][seed % 3],
        use_dictionary=bool(seed % 2),
        write_page_index=bool(seed % 2),
        store_schema=bool(seed % 5),
    )
    assert counts(path) == (rows, sum(len(doc or []) for doc in docs))
    assert counts(path, "tokens.x") == (rows, 2 * rows)


def test_without_statistics(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"tokens": [[1], []]}), path, write_statistics=False)
    assert counts(path) is None


@pytest.mark.parametrize(
    ("writer", "told"),
    [
        (b"parquet-cpp-arrow version 16.0.0", True),
        (b"parquet-cpp-arrow version 15.9.9", False),
        (b"parquet-cpp-arrow version x", False),
        (b"parquet-mr version 99.1.0", False),
        (b"", False),
    ],
)
def test_only_known_writers(writer: bytes, told: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"tokens": [[1], []]}), path)
    data = path.read_bytes()
    name = parquet.read_metadata(path).created_by.encode()
    assert data.count(name) == 1
    # The length stays, so that all other lengths remain valid.
    path.write_bytes(data.replace(name, writer[: len(name)].ljust(len(name))))
    assert counts(path) == ((2, 1) if told else None)


def test_damaged_footers_do_not_tell(tmp_path: Path) -> None:
    path, rng = tmp_path / "x.parquet", np.random.default_rng(0)
    parquet.write_table(pa.table({"tokens": [[1, 2], [], None] * 20}), path, row_group_size=20)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    outcomes: set[Any] = set()
    for size in range(0, length, 3):
        path.write_bytes(data[-8 - length : -8][:size] + size.to_bytes(4, "little") + b"PAR1")
        assert parquet_footer(str(path)) is None
    for _ in range(200):
        changed = bytearray(data)
        for place in rng.integers(len(data) - 8 - length, len(data), size=rng.integers(1, 4)):
            changed[place] = rng.integers(256)
        path.write_bytes(changed)
        try:
            found = counts(path)
        except (ValueError, KeyError, TypeError) as error:
            outcomes.add(str(path) in str(error))
        else:
            outcomes.add(found)
            assert found is None or min(found) >= 0
    assert {None, True, (60, 40)} <= outcomes
    assert False not in outcomes


@pytest.mark.parametrize(
    "footer",
    [
        b"\x1c" * 5000,  # structs in structs
        b"\x19\x9c" * 5000,  # lists in lists
        b"\x19\xf8\xff\xff\xff\xff\x0f",  # a list of 2^32 texts
        b"\x16" + b"\xff" * 20,  # an integer without end
        b"\x18\xff\xff\xff\xff\x0f",  # a text of 2^32 bytes
        b"\x0d",  # a type there is not
        b"",
    ],
)
def test_footers_made_to_hurt(footer: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert parquet_footer(str(path)) is None


@pytest.mark.parametrize("data", [b"", b"PAR1", b"\xff" * 12, b"PAR1\xff\xff\xff\xffPAR1"])
def test_files_that_are_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(data)
    assert parquet_footer(str(tmp_path / "x.parquet")) is None


def test_column_chunks_are_those_of_pyarrow(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    nested = [{"y": [1, None], "z": "a"}, None]
    table = pa.table({"a": [1.5, None] * 50, "a.b": ["x", "yy"] * 50, "c": nested * 50})
    parquet.write_table(table, path, row_group_size=30)
    footer, expected = parquet_footer(path), parquet.read_metadata(path)
    assert footer is not None
    assert (footer.rows, footer.writer) == (100, expected.created_by.encode())
    for group, chunks in enumerate(footer.groups):
        for place, chunk in enumerate(chunks):
            other = expected.row_group(group).column(place)
            assert b".".join(chunk.path).decode() == other.path_in_schema
            assert chunk.values == other.num_values
            assert chunk.nulls == other.statistics.null_count
            assert chunk.uncompressed_bytes == other.total_uncompressed_size


def test_a_chunk_that_pyarrow_aborts_on(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"x": [1.5], "s": ["y"]}), path, store_schema=False)
    whole = path.read_bytes()
    # The schema excludes nulls in `s`, the statistics of its chunk allow them.
    optional, required = b"\x15\x0c%\x02\x18\x01s", b"\x15\x0c%\x00\x18\x01s"
    assert whole.count(optional) == 1
    path.write_bytes(whole.replace(optional, required))
    assert Table.read(path, columns=["x"])["x"].tolist() == [1.5]
