"""Destinations in object stores: the bytes of a local one, written whole, by one call at a time."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.object_servers import ACCESS, SECRET, Bucket, Fault
from support.prepare_cases import SMALL, contents, unsorted_rows, write_file, write_files
from windeck.io import filesystem

OPTIONS: dict[str, Any] = {
    "id_columns": "site",
    "timestamp_column": "time",
    "file_bytes": SMALL,
    "threads": 2,
    "scaler": "standard",
}

#: Arguments: sources, destination, scratch, options, uploads before the process ends.
KILLED = """
import ast, os, signal, sys
import windeck as wd
from support.internals import replace
from windeck.io import filesystem

src, dest, scratch, options, at = sys.argv[1:]
left = int(at)
upload = filesystem.upload

def counted(path, content):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    upload(path, content)

replace("filesystem.upload", counted)
replace("writing.upload", counted)
wd.prepare(src, dest, scratch=scratch, **ast.literal_eval(options))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_files(tmp_path / "in", unsorted_rows(), 4)
    return tmp_path / "in"


def names_of(bucket: Bucket, folder: str = "out") -> list[str]:
    """Return the names of the objects below a folder of a bucket."""
    from pyarrow.fs import FileSelector

    selector = FileSelector(f"{bucket.name}/{folder}", recursive=True, allow_not_found=True)
    return sorted(one.base_name for one in bucket.direct.get_file_info(selector))


def objects_of(bucket: Bucket, folder: str = "out") -> dict[str, bytes]:
    """Return the objects below a folder of a bucket."""
    return {
        name: bucket.direct.open_input_file(f"{bucket.name}/{folder}/{name}").read()
        for name in names_of(bucket, folder)
    }


def test_objects_have_the_bytes_of_local_files(s3: Bucket, tmp_path: Path, source: Path) -> None:
    wd.prepare(source, tmp_path / "out", **OPTIONS)
    faults = [
        Fault("status", r"^PUT .*part-00001", amount=503),
        Fault("reset", r"^POST .*part-00002"),
        Fault("status", r"^PUT .*manifest", amount=500),
    ]
    s3.proxy.faults[:] = faults
    url, scratch = f"{s3.url}/out", tmp_path / "scratch"
    call: dict[str, Any] = {**OPTIONS, "scratch": scratch, "storage_options": s3.options}
    result = wd.prepare(source, url, **call)
    assert all(fault.fired for fault in faults)
    assert not list(scratch.iterdir())
    found = objects_of(s3)
    assert found == contents(tmp_path / "out")
    assert SECRET.encode() not in b"".join(found.values())
    assert ACCESS.encode() not in b"".join(found.values())
    read = wd.Prepared.read(url, storage_options=s3.options)
    read.verify()
    assert read == result
    assert str(result).startswith(f"{url}: 300 rows of 5 series")
    keys: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
    table = wd.Table.read(url, **keys, storage_options=s3.options)
    assert table["number"].tolist() == wd.Table.read(tmp_path / "out", **keys)["number"].tolist()
    s3.proxy.clear()
    assert wd.prepare(source, url, **call) == result
    assert s3.proxy.count(r"^(PUT|POST) .*part-") == 0
    assert names_of(s3) == sorted(found)
    with pytest.raises(FileExistsError, match="has the result of other sources or options"):
        wd.prepare(source, url, **{**call, "dtype": "float32"})
    assert objects_of(s3) == found
    wd.prepare(source, url, **{**call, "file_bytes": 1 << 20}, overwrite=True)
    assert names_of(s3) == ["manifest.json", "part-00000.parquet"]


@pytest.mark.usefixtures("forked")
def test_killed_between_uploads_it_goes_on(s3: Bucket, tmp_path: Path, source: Path) -> None:
    wd.prepare(source, tmp_path / "out", **OPTIONS)
    expected = contents(tmp_path / "out")
    url, scratch = f"{s3.url}/out", tmp_path / "scratch"
    options = {**OPTIONS, "threads": 1, "storage_options": s3.options}
    left = len(expected) - 1 - 3  # The last one is killed before it writes the manifest.
    for at in (0, 1, 3, left):
        command = [sys.executable, "-c", KILLED, *map(str, (source, url, scratch, options, at))]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert "manifest.json" not in names_of(s3)
        before = objects_of(s3)
        for name, content in before.items():
            assert name == ".prepare.json" or content == expected[name]
    with pytest.raises(RuntimeError, match=r"another call prepares 's3://.*scratch='.*scratch'"):
        wd.prepare(source, url, **options, scratch=tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())
    s3.proxy.clear()
    wd.prepare(source, url, **options, scratch=scratch)
    assert objects_of(s3) == expected
    assert s3.proxy.count(r"^(PUT|POST) .*part-") == 0
    assert not list(scratch.iterdir())


def test_a_call_that_another_took_over_from_writes_no_manifest(
    s3: Bucket, tmp_path: Path, source: Path
) -> None:
    url = f"{s3.url}/out"
    calls: list[int] = []

    def take_over(done: int, total: int) -> None:
        if not calls:
            calls.append(done)
            wd.prepare(
                source,
                url,
                **{**OPTIONS, "dtype": "float32"},
                scratch=tmp_path / "second",
                storage_options=s3.options,
                overwrite=True,
            )

    with pytest.raises(RuntimeError, match="another call has taken over 's3://"):
        wd.prepare(
            source,
            url,
            **OPTIONS,
            scratch=tmp_path / "first",
            storage_options=s3.options,
            progress=take_over,
        )
    wd.prepare(source, tmp_path / "out", **{**OPTIONS, "dtype": "float32"})
    assert objects_of(s3) == contents(tmp_path / "out")


def test_refused_uploads_are_named_and_nothing_is_left(
    s3: Bucket, tmp_path: Path, source: Path
) -> None:
    s3.proxy.faults[:] = [
        Fault("status", r"^(PUT|POST) ", times=10**6, amount=403, code="AccessDenied")
    ]
    scratch = tmp_path / "scratch"
    with pytest.raises(PermissionError, match=r"cannot write 's3://.*access is denied") as caught:
        wd.prepare(source, f"{s3.url}/out", **OPTIONS, scratch=scratch, storage_options=s3.options)
    assert SECRET not in str(caught.value)
    assert not list(scratch.iterdir())


def test_credentials_that_workers_would_not_have_are_refused_at_once(
    s3: Bucket, tmp_path: Path, source: Path
) -> None:
    with pytest.raises(ValueError, match=r"do not get .*secret_key.* of `dest`") as caught:
        wd.prepare(
            source,
            f"{s3.url}/out",
            **OPTIONS,
            scratch=tmp_path / "scratch",
            storage_options=s3.options,
            engine="ray",
        )
    assert SECRET not in str(caught.value)
    assert s3.proxy.requests == []


def test_an_error_of_the_data_leaves_no_object(s3: Bucket, tmp_path: Path, source: Path) -> None:
    write_file(source / "9.parquet", unsorted_rows().slice(0, 1))
    call: dict[str, Any] = {"scratch": tmp_path / "scratch", "storage_options": s3.options}
    with pytest.raises(ValueError, match="has several rows with time"):
        wd.prepare(source, f"{s3.url}/out", **OPTIONS, **call)
    assert names_of(s3) == []
    assert not list((tmp_path / "scratch").iterdir())
    assert wd.prepare(source, f"{s3.url}/out", **OPTIONS, **call, duplicates="first").rows == 300


def test_a_large_upload_that_fails_in_the_middle_leaves_no_object(s3: Bucket) -> None:
    path = filesystem.absolute(f"{s3.url}/large", storage_options=s3.options)
    content = os.urandom(12 << 20)  # in two parts
    s3.proxy.plan("status", r"^PUT .*partNumber=2", times=10**6, amount=503)
    with pytest.raises(ConnectionError, match=r"cannot write .*large': 4 attempts failed"):
        filesystem.upload(path, content)
    gc.collect()
    assert not filesystem.exists(path)
    s3.proxy.clear()
    filesystem.upload(path, content)
    assert filesystem.read_bytes(path) == content


def test_objects_of_others_are_refused(s3: Bucket, tmp_path: Path, source: Path) -> None:
    s3.put("out/notes.txt", b"mine")
    with pytest.raises(FileExistsError, match=r"has 'notes.txt', which `prepare` did not write"):
        wd.prepare(
            source,
            f"{s3.url}/out",
            **OPTIONS,
            scratch=tmp_path / "scratch",
            storage_options=s3.options,
            overwrite=True,
        )
    assert names_of(s3) == ["notes.txt"]


@pytest.mark.parametrize("given", ["url", "instance", "arrow"])
def test_other_file_systems(tmp_path: Path, source: Path, given: str) -> None:
    import fsspec
    from pyarrow import fs

    wd.prepare(source, tmp_path / "out", **OPTIONS)
    memory = fsspec.filesystem("memory")
    (tmp_path / "scratch").mkdir()
    try:
        dest, options = "memory://windeck-dest/out", {}
        if given == "instance":
            dest, options = "windeck-dest/out", {"dest_filesystem": memory}
        if given == "arrow":
            (tmp_path / "mounted").mkdir()
            local = fs.SubTreeFileSystem(str(tmp_path / "mounted"), fs.LocalFileSystem())
            dest, options = "windeck-dest/out", {"dest_filesystem": local}
        wd.prepare(source, dest, **OPTIONS, scratch=tmp_path / "scratch", **options)
        if given == "arrow":
            found = contents(tmp_path / "mounted" / "windeck-dest" / "out")
        else:
            names = memory.ls("/windeck-dest/out", detail=False)
            found = {name.rpartition("/")[2]: memory.cat_file(name) for name in names}
        assert found == contents(tmp_path / "out")
    finally:
        if memory.exists("/windeck-dest"):
            memory.rm("/windeck-dest", recursive=True)
    assert not os.listdir(tmp_path / "scratch")


def test_scratch_for_a_local_destination(tmp_path: Path, source: Path) -> None:
    seen: set[str] = set()

    def look(done: int, total: int) -> None:
        seen.update(path.name for path in (tmp_path / "out").iterdir())

    # Below the sources, of which it is none.
    wd.prepare(source, tmp_path / "out", **OPTIONS, scratch=source / "scratch", progress=look)
    wd.prepare(source, tmp_path / "other", **OPTIONS)
    assert contents(tmp_path / "out") == contents(tmp_path / "other")
    assert "_prepare" not in seen
    assert not list((source / "scratch").iterdir())
    with pytest.raises(ValueError, match="`scratch` must be a local directory, got the URL"):
        wd.prepare(source, tmp_path / "out", **OPTIONS, scratch="s3://bucket/scratch")


def test_a_web_server_takes_no_files(tmp_path: Path, source: Path, web: Any) -> None:
    web.objects["out/a"] = b""
    with pytest.raises(NotImplementedError, match=r"cannot write 'http://.*takes no files"):
        wd.prepare(source, f"{web.url}/new", **OPTIONS, scratch=tmp_path / "scratch")
