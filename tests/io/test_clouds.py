"""Tests of files in Google Cloud Storage and in Azure, by pyarrow's clients against servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import windeck as wd
from support.cloud_servers import Cloud, azure, gcs, gcs_port
from support.corpora import write_corpus
from windeck.io import RangeReader, filesystem, list_objects, write_object

__all__ = ["azure", "gcs", "gcs_port"]

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}


@pytest.fixture(params=["gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.getfixturevalue(request.param)
    return found


def rows_of(number: int, count: int = 60) -> Any:
    """Return rows of two series, whose names ascend with the number."""
    days = np.datetime64("2024-01-01") + np.arange(count // 2).astype("m8[D]")
    sites = [f"s{number}{part}" for part in "ab" for _ in range(count // 2)]
    load = np.arange(count) + 1000.0 * number
    return pa.table({"site": sites, "time": np.tile(days, 2), "load": load, "other": -load})


def put_table(cloud: Cloud, home: Path) -> None:
    """Write three files on the disk and in the bucket."""
    for number, suffix in enumerate(("parquet", "arrow", "parquet")):
        path = home / "loads" / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        if suffix == "parquet":
            parquet.write_table(rows_of(number), path, row_group_size=20)
        else:
            feather.write_feather(rows_of(number), path, compression="zstd")
        cloud.put(f"loads/{path.name}", path.read_bytes())


@pytest.mark.parametrize(
    "where", ["loads", "loads/*.parquet", pytest.param("loads/0.parquet", marks=pytest.mark.slow)]
)
def test_tables(cloud: Cloud, tmp_path: Path, where: str) -> None:
    put_table(cloud, tmp_path)
    expected = wd.Table.read(f"{tmp_path}/{where}", **KEYS)
    found = wd.Table.read(f"{cloud.url}/{where}", **KEYS, storage_options=cloud.options)
    assert found.series_names == expected.series_names
    assert found["load"].tolist() == expected["load"].tolist()
    assert found["other"].tolist() == expected["other"].tolist()
    given = wd.Table.read(f"{cloud.name}/{where}", **KEYS, filesystem=cloud.direct)
    assert given["load"].tolist() == expected["load"].tolist()


@pytest.mark.slow
def test_streamed_tables_and_prepared_files(cloud: Cloud, tmp_path: Path) -> None:
    put_table(cloud, tmp_path)
    (tmp_path / "scratch").mkdir()
    call: dict[str, Any] = {**KEYS, "file_bytes": 2048, "scaler": "standard"}
    url = f"{cloud.url}/sorted"
    remote: dict[str, Any] = {"scratch": tmp_path / "scratch", "storage_options": cloud.options}
    wd.prepare(f"{cloud.url}/loads", url, **call, **remote)
    wd.prepare(tmp_path / "loads", tmp_path / "sorted", **call)
    wd.Prepared.read(url, storage_options=cloud.options).verify()
    options: dict[str, Any] = {"in_memory": False, "group_bytes": 1024}
    batches = []
    places: list[tuple[Any, dict[str, Any]]] = [(tmp_path / "sorted", {})]
    for where, more in [(url, {"storage_options": cloud.options}), *places]:
        table = wd.Table.read(where, columns="load", **KEYS, **options, **more)
        windows = wd.Windows(table, context_length=5, prediction_length=2)
        loader = wd.Loader(windows, batch_size=16, shuffle=True, seed=1)
        batches.append([batch["past_target"].numpy() for batch in loader])
    assert len(batches[0]) == len(batches[1]) > 5
    assert all((a == b).all() for a, b in zip(*batches, strict=True))


def test_documents(cloud: Cloud, tmp_path: Path) -> None:
    shards = {f"c4/x.part{part}": [[part] * (3 + doc) for doc in range(6)] for part in range(5)}
    home = write_corpus(tmp_path / "corpus", shards)
    for path in sorted(home.rglob("*.arrow")):
        cloud.put(f"corpus/{path.relative_to(home)}", path.read_bytes())
    found = wd.Documents(f"{cloud.url}/corpus", storage_options=cloud.options)
    packed = [wd.PackedSequences(one, sequence_length=7) for one in (found, wd.Documents(home))]
    rows = [
        [row for batch in wd.Loader(one, batch_size=4, seed=2) for row in batch["inputs"].tolist()]
        for one in packed
    ]
    assert rows[0] == rows[1]


def test_objects_are_written_listed_read_and_removed(cloud: Cloud) -> None:
    folder = filesystem.absolute(f"{cloud.url}/some/folder", storage_options=cloud.options)
    content = os.urandom(300_000)
    assert list_objects(folder) == {}
    write_object(filesystem.join(folder, "a"), [content[:1000], b"", content[1000:]])
    write_object(filesystem.join(folder, "below", "b"), [b"123"])
    assert list_objects(folder) == {"a": len(content)}
    with RangeReader(filesystem.join(folder, "a")) as reader:
        assert reader.size == len(content)
        assert bytes(reader.read(150_000, 70_000)) == content[150_000:220_000]
    filesystem.remove(filesystem.join(folder, "a"))
    filesystem.remove(filesystem.join(folder, "a"))
    assert list_objects(folder) == {}


@pytest.mark.parametrize(
    ("kind", "amount"),
    [
        ("status", 503),
        pytest.param("status", 429, marks=pytest.mark.slow),
        pytest.param("reset", 0, marks=pytest.mark.slow),
    ],
)
def test_failed_requests_are_repeated(cloud: Cloud, kind: str, amount: float) -> None:
    content = os.urandom(200_000)
    cloud.put("file", content)
    path = filesystem.absolute(f"{cloud.url}/file", storage_options=cloud.options)
    cloud.proxy.plan(kind, "^(GET|HEAD) .*file", amount=amount, times=2)
    with RangeReader(path) as reader:
        assert bytes(reader.read(1000, 90_000)) == content[1000:91_000]
    cloud.proxy.plan(kind, "^(PUT|POST) .*file", amount=amount)
    write_object(path, [b"new"])
    assert cloud.proxy.fired() == [2, 1]


@pytest.mark.parametrize("kind", ["status", "cut", pytest.param("reset", marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [3000, 300_000])
@pytest.mark.parametrize("skip", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 2))])
def test_any_request_of_a_read_may_fail(cloud: Cloud, kind: str, size: int, skip: int) -> None:
    content = os.urandom(size)
    cloud.put("file", content)
    path = filesystem.absolute(f"{cloud.url}/file", storage_options=cloud.options)
    cloud.proxy.plan(kind, "^GET .*file", amount=503, skip=skip)
    with RangeReader(path) as reader:
        assert reader.size == size
        assert bytes(reader.read(1000, 1500)) == content[1000:2500]


def test_errors_are_one_sentence(cloud: Cloud) -> None:
    cloud.put("a.parquet", b"PAR1")
    options: dict[str, Any] = {"columns": "load", "storage_options": cloud.options}
    with pytest.raises(FileNotFoundError, match=r"'.*no-such-bucket/x.parquet'"):
        wd.Table.read(f"{cloud.url.rpartition('/')[0]}/no-such-bucket/x.parquet", **options)
    with pytest.raises(FileNotFoundError, match=r"missing.parquet'"):
        wd.Table.read(f"{cloud.url}/missing.parquet", **options)
    cloud.proxy.plan(
        "status", "/(bucket|box)-", amount=403, code="AuthorizationFailure", times=10**6
    )
    with pytest.raises(
        PermissionError, match=r"cannot .* '.*a.parquet': access is denied"
    ) as caught:
        wd.Table.read(f"{cloud.url}/a.parquet", **options)
    text = str(caught.value)
    assert "\n" not in text
    key = cloud.options.get("account_key")
    assert key is None or key not in text
