"""Tests of objects in folders of local and remote file systems."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow import fs

from support.object_servers import SECRET, Bucket
from windeck.io import ObjectReader, filesystem, list_objects, write_object

KINDS = ("local", "s3", "fsspec", "arrow", "memory")
CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a folder that does not exist yet."""
    kind = request.param
    if kind == "s3":
        bucket: Bucket = request.getfixturevalue("s3")
        return filesystem.absolute(f"{bucket.url}/some/folder", storage_options=bucket.options)
    systems: dict[str, Any] = {
        "local": lambda: None,
        "fsspec": lambda: fsspec.filesystem("file"),
        "arrow": fs.LocalFileSystem,
        "memory": lambda: fsspec.filesystem("memory"),
    }
    name = f"memory://test-objects{tmp_path}" if kind == "memory" else f"{tmp_path}/some/folder"
    return filesystem.absolute(name, filesystem=systems[kind]())


def read(path: str, *ranges: tuple[int, int], careful: bool = True) -> list[bytes]:
    outs = [bytearray(count) for _, count in ranges]
    places = [start for start, _ in ranges]
    reader = ObjectReader(path)
    assert reader.size == len(CONTENT)
    buffers = [(place, memoryview(out)) for place, out in zip(places, outs, strict=True)]
    reader.read([(place, [one]) for place, one in buffers], careful=careful)
    return [bytes(out) for out in outs]


def test_written_listed_read_and_removed(folder: str) -> None:
    assert list_objects(folder) == {}
    write_object(filesystem.join(folder, "a"), [CONTENT[:1000], b"", CONTENT[1000:]])
    write_object(filesystem.join(folder, "b"), [])
    write_object(filesystem.join(folder, "below", "c"), [b"123"])
    assert list_objects(folder) == {"a": len(CONTENT), "b": 0}
    write_object(filesystem.join(folder, "b"), [b"replaced"])
    assert list_objects(folder) == {"a": len(CONTENT), "b": 8}
    for careful in (True, False):
        wanted = [(0, 10), (300, 500), (len(CONTENT) - 7, 7), (5, 0)]
        found = read(filesystem.join(folder, "a"), *wanted, careful=careful)
        assert found == [CONTENT[start:][:count] for start, count in wanted]
    filesystem.remove(filesystem.join(folder, "b"))
    filesystem.remove(filesystem.join(folder, "b"))
    assert list_objects(folder) == {"a": len(CONTENT)}
    with pytest.raises(FileNotFoundError):
        ObjectReader(filesystem.join(folder, "b"))


def test_local_files_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{tmp_path}/file"
    write_object(path, [b"former"])

    def broken(*_: object) -> None:
        raise OSError("the disk broke for the test")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", broken)
        with pytest.raises(OSError, match="the disk broke"):
            write_object(path, [b"new"])
    assert list_objects(str(tmp_path)) == {"file": 6}
    (tmp_path / ".file.1-2.tmp").write_bytes(b"left by a killed process")
    assert list_objects(str(tmp_path)) == {"file": 6}


def test_a_local_file_that_shrank_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    reader = ObjectReader(str(path))
    path.write_bytes(CONTENT[:100])
    with pytest.raises(ValueError, match=r"ends at 100, expected 150 bytes"):
        reader.read([(50, [memoryview(bytearray(100))])], careful=False)


@pytest.mark.parametrize(("kind", "amount"), [("status", 503), ("reset", 0)])
def test_writes_are_repeated(kind: str, amount: float, s3: Bucket) -> None:
    path = filesystem.absolute(f"{s3.url}/file", storage_options=s3.options)
    faults = [s3.proxy.plan(kind, one, amount=amount) for one in ("^PUT", r"^POST.*\?uploadId")]
    write_object(path, [CONTENT])
    assert all(fault.fired for fault in faults)
    assert read(path, (0, len(CONTENT))) == [CONTENT]
    s3.proxy.plan(kind, "^DELETE", amount=amount)
    filesystem.remove(path)
    assert list_objects(filesystem.absolute(s3.url, storage_options=s3.options)) == {}


def test_a_write_that_is_not_allowed(s3: Bucket) -> None:
    path = filesystem.absolute(f"{s3.url}/file", storage_options=s3.options)
    s3.proxy.plan("status", "^(PUT|POST)", amount=403, code="AccessDenied", times=99)
    with pytest.raises(PermissionError, match=r"^cannot write 's3://.*access is denied") as caught:
        write_object(path, [CONTENT])
    assert SECRET not in str(caught.value)
    assert list_objects(filesystem.absolute(s3.url, storage_options=s3.options)) == {}
