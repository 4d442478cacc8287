"""The first contact with a server ends soon and in a sentence; names of schemes and keys."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import BufferOutputStream, fs, parquet

import windeck as wd
from support.internals import plant
from support.object_servers import Bucket, Website, retry_quickly
from support.store_servers import free_port
from windeck.io import filesystem, resolve


def table_bytes(value: float) -> bytes:
    sink = BufferOutputStream()
    parquet.write_table(pa.table({"load": [value]}), sink)
    return bytes(sink.getvalue().to_pybytes())


def closed_port() -> dict[str, tuple[str, dict[str, Any]]]:
    """URLs of servers that are not there, by their kind."""
    port = free_port()
    keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
    return {
        "http": (f"http://127.0.0.1:{port}/a.parquet", {}),
        "s3": ("s3://bucket/a.parquet", {"endpoint_url": f"http://127.0.0.1:{port}", **keys}),
        "gs": (
            "gs://bucket/a.parquet",
            {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "anonymous": True},
        ),
    }


@pytest.mark.parametrize("kind", ["http", "s3", "gs"])
def test_no_server_is_found_out_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are not repeated for long where no server has answered yet."""
    retry_quickly(monkeypatch)
    plant(monkeypatch, "retry.FIRST_ANSWER_SECONDS", 0.0)
    if kind == "http":
        pytest.importorskip("aiohttp")
    url, options = closed_port()[kind]
    with pytest.raises(ConnectionError, match=r"1 attempt failed.*no server has answered yet"):
        wd.Table.read(url, storage_options=options)


def test_later_faults_are_repeated_as_ever(web: Website, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "retry.FIRST_ANSWER_SECONDS", 0.0)
    web.objects["a.parquet"] = table_bytes(1.0)
    web.server.plan("reset", "^GET", times=3)  # after the HEAD, which is answered
    assert wd.Table.read(f"{web.url}/a.parquet")["load"].tolist() == [1.0]
    web.server.clear()
    fault = web.server.plan("status", "^HEAD", times=3, amount=503)  # an answer, too
    assert wd.Table.read(f"{web.url}/a.parquet")["load"].tolist() == [1.0]
    assert fault.fired == 3


class Google:
    """A client of Google's storage, whose requests fail with some texts before one succeeds."""

    type_name = "gcs"

    def __init__(self, failures: list[str]) -> None:
        self.failures = failures
        self.options: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> Google:
        self.options.append(options)
        return self

    def open_input_file(self, key: str) -> Any:
        if self.failures:
            raise OSError(f"google::cloud::Status(UNAVAILABLE: {self.failures.pop()}")
        return pa.BufferReader(b"content")

    def get_file_info(self, key: str) -> Any:
        return fs.FileInfo(key, fs.FileType.File, size=7, mtime_ns=1)


def size_by(
    client: Google, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any] | None = None
) -> int:
    """Ask for the size of an object by a client."""
    monkeypatch.setattr(fs, "GcsFileSystem", client)
    return filesystem.size(filesystem.absolute("gs://bucket/x", storage_options=options))


def test_clients_of_google_make_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Google([])
    assert size_by(client, monkeypatch) == 7
    assert size_by(client, monkeypatch, {"retry_time_limit": timedelta(seconds=7)}) == 7
    limits = [options["retry_time_limit"].total_seconds() for options in client.options]
    assert limits == [0.001, 7]


def test_google_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Google(
        [
            "Retry policy exhausted, with a last message of Could not create a OAuth2 access token "
            "to authenticate the request. ...)"
        ]
    )
    with pytest.raises(PermissionError, match=r"no credentials were found.*'anonymous': True"):
        size_by(client, monkeypatch)


def test_answers_of_google_are_repeated_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client does not name the status of an answer."""
    retry_quickly(monkeypatch)
    plant(monkeypatch, "retry.FIRST_ANSWER_SECONDS", 0.0)
    client = Google(
        [
            "Retry policy exhausted, with a last message of <Error><Code>SlowDown</Code></Error> "
            "error_info={reason=, domain=, metadata={}})"
        ]
        * 3
    )
    assert size_by(client, monkeypatch) == 7
    assert client.failures == []


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (
            "s4://bucket/key",
            ValueError,
            r"no file system has the scheme s4://; did you mean s3://\?",
        ),
        ("qqqqqq://bucket/key", ValueError, "the scheme qqqqqq://; expected s3://, gs://"),
        ("abfs://c/x", ValueError, r"does not name a storage account; .*\{'account_name': ...\}"),
        ("http://host/x", ImportError, "http:// needs a package .*: pip install aiohttp"),
        ("https://host/x", ImportError, "https:// needs a package .*: pip install aiohttp"),
        ("hf://datasets/a/b", ImportError, "hf:// needs .*: pip install huggingface_hub"),
        ("gdrive://x/y", ImportError, "gdrive:// needs a package that is not installed: .*gdrive"),
    ],
)
def test_schemes(
    url: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the packages that a scheme needs."""
    for name in ("aiohttp", "huggingface_hub", "gdrive_fsspec"):
        monkeypatch.setitem(sys.modules, name, None)
    for scheme in ("hf", "http", "https"):
        registry = importlib.import_module("fsspec.registry")
        monkeypatch.delitem(registry._registry, scheme, raising=False)
    for name in ("fsspec.implementations.http", "windeck.io.hf"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(error, match=message) as caught:
        wd.Table.read(url)
    assert "\n" not in str(caught.value)
    with pytest.raises(error, match=message):
        wd.Documents(url)


def test_keys_with_brackets(s3: Bucket) -> None:
    """A key that exists is taken literally, as a local file is."""
    names = ["a[1].parquet", "a1.parquet", "d[x]/b.parquet", "dx/b.parquet"]
    for value, name in enumerate(names):
        s3.put(name, table_bytes(float(value)))

    def read(name: str) -> list[float]:
        found: list[float] = wd.Table.read(f"{s3.url}/{name}", storage_options=s3.options)[
            "load"
        ].tolist()
        return found

    assert read("a[1].parquet") == [0]
    assert read("d[x]") == [2]
    assert read("d[x]/b.parquet") == [2]
    assert read("a[12].parquet") == [1]
    assert read("a*.parquet") == [1, 0]
    with pytest.raises(FileNotFoundError, match="no file matches"):
        resolve(f"{s3.url}/a[7].parquet", storage_options=s3.options)
