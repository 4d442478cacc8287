"""Ragged and wide tables of a bucket: credentials as options, by ranges, and kept in a cache."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from support.object_servers import SECRET, Bucket, Website
from support.streamed_tables import READ, arrow_table, write_files
from windeck import Table


def stored(rows: Any) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    parquet.write_table(rows, sink)
    return sink.getvalue()


LISTS = pa.table({"id": ["a", "b"], "target": [[1.0, 2.0], [3.0]]})
WIDE = pa.table({"id": ["a", "b"], "1": [1.0, 3.0], "2": [2.0, None]})


@pytest.mark.parametrize("kind", ["options", "instance", "memory", "cache"])
def test_series_of_a_bucket(s3: Bucket, tmp_path: Path, kind: str) -> None:
    root: str = s3.url
    options: dict[str, Any] = {"storage_options": s3.options}
    memory = fsspec.filesystem("memory")
    for name, rows in (("lists.parquet", LISTS), ("wide.parquet", WIDE)):
        s3.put(name, stored(rows))
        memory.pipe_file(f"/windeck-series/{name}", stored(rows))
    if kind == "instance":
        root, options = s3.name, {"filesystem": s3.direct}
    elif kind == "memory":
        root, options = "windeck-series", {"filesystem": memory}
    elif kind == "cache":
        options |= {"cache_dir": tmp_path / "cache", "cache_bytes": 1 << 20}
    try:
        tables = [
            Table.from_series(f"{root}/lists.parquet", id_columns="id", **options),
            Table.from_series([f"{root}/li*.parquet"], id_columns="id", **options),
            Table.from_wide(f"{root}/wide.parquet", id_columns="id", **options),
        ]
    finally:
        memory.rm("/windeck-series", recursive=True)
    for table in tables:
        assert table["target"].tolist() == [1.0, 2.0, 3.0]
        assert table.offsets.tolist() == [0, 2, 3]
    assert (tmp_path / "cache").exists() == (kind == "cache")


def test_refused_credentials_are_in_no_message(s3: Bucket) -> None:
    s3.put("lists.parquet", stored(LISTS))
    s3.proxy.plan("status", "^(GET|HEAD) ", times=10**6, amount=403, code="AccessDenied")
    for read in (Table.from_series, Table.from_wide):
        with pytest.raises(PermissionError, match="access is denied") as caught:
            read(f"{s3.url}/lists.parquet", storage_options=s3.options)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [{"filesystem": 1}, {"storage_options": {}}, {"cache_dir": "x"}, {"cache_bytes": 5}],
    ids=lambda option: next(iter(option)),
)
def test_options_of_files_are_refused_for_data_in_memory(option: Any) -> None:
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"`{name}` is an option of files, got data in memory"):
        Table.from_series(LISTS, id_columns="id", **option)
    with pytest.raises(ValueError, match=f"`{name}` is an option of files, got data in memory"):
        Table.from_wide(WIDE, id_columns="id", **option)
    with pytest.raises(ValueError, match=f"`{name}` is an option of files, got data in memory"):
        Table.from_series([[1.0, 2.0]], **option)


@pytest.mark.parametrize("kind", ["parquet", "uncompressed"])
def test_first_passes_read_by_parallel_requests(web: Website, tmp_path: Path, kind: str) -> None:
    (path,) = write_files(arrow_table([480]), tmp_path, [], 10, kind)
    web.objects["a"] = path.read_bytes()
    web.server.delay = 0.1
    table = Table.read(f"{web.url}/a", in_memory=False, **READ)
    assert web.server.most >= 8
    # 48 parts in 16 pieces; versions are compared before and after each.
    assert web.server.count("^HEAD ") < 2 * 16 + 20
    expected = Table.read(path, in_memory=False, **READ)
    assert table.fingerprint == expected.fingerprint
