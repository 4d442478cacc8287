"""Tests of clients and of the errors of their libraries, without a network."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import aiohttp
import fsspec
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from pyarrow import fs
from yarl import URL

from windeck.io import filesystem


@pytest.mark.parametrize(
    ("url", "options", "key"),
    [
        ("s3://bucket/a/b c.parquet", {"region": "us-east-1"}, "bucket/a/b c.parquet"),
        ("s3://user:word@bucket/a", {"region": "us-east-1"}, "bucket/a"),
        ("s3://bucket/a?region=us-west-2&anonymous=1", {}, "bucket/a"),
        ("gs://bucket/a/", {"anon": True}, "bucket/a"),
        (
            "abfs://container@account.dfs.core.windows.net/a/b",
            {"account_key": "a2V5"},
            "container/a/b",
        ),
        ("abfs://container/a", {"account_name": "x", "account_key": "a2V5"}, "container/a"),
        ("memory://a/b", {}, "/a/b"),
        ("http://host:1/a b/c%20d.csv", {}, "http://host:1/a%20b/c%20d.csv"),
        ("http://u:p@host/a.csv?sig=x%2By&n=1", {}, "http://u:p@host/a.csv?sig=x%2By&n=1"),
    ],
)
def test_keys(url: str, options: dict[str, Any], key: str) -> None:
    path: Any = filesystem.absolute(url, storage_options=options)
    assert path.key == key
    assert "word" not in path
    assert "u:p" not in path
    assert "sig" not in path


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"key": "a", "secret": "b", "token": "c"}, ("a", "b", "c", None)),
        ({"endpoint_url": "https://host:9/", "anon": True}, (None, None, None, "host:9")),
        ({"client_kwargs": {"endpoint_url": "http://host:9"}}, (None, None, None, "host:9")),
        ({"aws_access_key_id": "a", "aws_endpoint_url": "http://h"}, ("a", None, None, "h")),
        ({"endpoint_override": "host:9", "scheme": "http"}, (None, None, None, "host:9")),
    ],
)
def test_names_of_s3_options(
    options: dict[str, Any], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    clients = []

    class Client:
        type_name = "s3"

        def __init__(self, **options: Any) -> None:
            clients.append(options)

    monkeypatch.setattr(fs, "S3FileSystem", Client)
    path: Any = filesystem.absolute("s3://bucket/a", storage_options=options)
    assert path.key == "bucket/a"
    (found,) = clients
    names = ("access_key", "secret_key", "session_token", "endpoint_override")
    assert tuple(found.get(name) for name in names) == expected
    if "endpoint_url" in repr(options):
        scheme = re.search(r"(https?)://", repr(options))
        assert scheme is not None
        assert found["scheme"] == scheme[1]


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("http://host/a", {}, True),
        ("memory://a", {}, True),
        ("s3://bucket/a", {"storage_options": {"region": "us-east-1"}}, False),
        ("gs://bucket/a", {"storage_options": {"anon": True}}, False),
        ("a", {"filesystem": fsspec.filesystem("http")}, True),
        ("a", {"filesystem": fsspec.AbstractFileSystem()}, False),
    ],
)
def test_clients_that_check_ranges(url: str, options: dict[str, Any], expected: bool) -> None:
    path: Any = filesystem.absolute(url, **options)
    assert path.mount.client.checks_ranges == expected


def response_error(status: int) -> Exception:
    headers: CIMultiDict[str] = CIMultiDict()
    url = URL("http://host/a")
    request = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(headers), url)
    return aiohttp.ClientResponseError(request, (), status=status)


def answered(status: int) -> Exception:
    """Return an error of httpx, as huggingface_hub raises them."""
    error = OSError("refused")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("AWS Error SLOW_DOWN during GetObject operation: HTTP status 503"), "transient"),
        (OSError("AWS Error UNKNOWN (HTTP status 429) during HeadObject operation"), "transient"),
        (OSError("AWS Error NETWORK_CONNECTION during GetObject: curlCode: 52"), "transient"),
        (OSError("AWS Error ACCESS_DENIED during HeadObject operation"), "forbidden"),
        (OSError("AWS Error UNKNOWN (HTTP status 400): ExpiredToken"), "forbidden"),
        (OSError("AWS Error UNKNOWN (HTTP status 416) during GetObject"), "transient"),
        (OSError("AWS Error UNKNOWN (HTTP status 400) during GetObject operation"), ""),
        (OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"), "missing"),
        (answered(401), "forbidden"),
        (answered(404), "missing"),
        (answered(503), "transient"),
        (answered(418), ""),
        (OSError("No such file or directory 'bucket/folder'"), "missing"),
        (OSError("google::cloud::Status(UNKNOWN: Received HTTP status code: 418)"), ""),
        (OSError("google::cloud::Status(x: Received HTTP status code: 503)"), "transient"),
        (OSError("Status(PERMISSION_DENIED: Received HTTP status code: 403)"), "forbidden"),
        (OSError("Azure Error: [AuthorizationFailure] 403 no"), "forbidden"),
        (OSError("Azure Error: [ContainerNotFound] 404 no"), "missing"),
        (OSError("Azure Error: [InvalidInput] 400 no"), ""),
        (OSError("Azure Error: [ServerBusy] 503 no"), "transient"),
        (FileNotFoundError("a"), "missing"),
        (chained(FileNotFoundError("a"), KeyError("a")), "missing"),
        (chained(FileNotFoundError("a"), response_error(404)), "missing"),
        (chained(FileNotFoundError("a"), response_error(503)), "transient"),
        (chained(FileNotFoundError("a"), response_error(403)), "forbidden"),
        (chained(FileNotFoundError("a"), aiohttp.ServerDisconnectedError()), "transient"),
        (response_error(500), "transient"),
        (response_error(418), ""),
        (TimeoutError(), "transient"),
        (PermissionError("a"), "forbidden"),
        (IsADirectoryError("a"), ""),
        (TypeError("a"), ""),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("quick_retries")
def test_errors_of_libraries(error: Exception, expected: str) -> None:
    """An error of a file system is repeated, or raised as another one at once."""
    requests = []

    class Failing(fsspec.AbstractFileSystem):  # type: ignore[misc]
        cachable = False

        def info(self, path: str, **options: Any) -> Any:
            requests.append(path)
            raise error

    raised = {
        "transient": ConnectionError,
        "forbidden": PermissionError,
        "missing": FileNotFoundError,
        "": TypeError if isinstance(error, TypeError) else OSError,
    }[expected]
    with pytest.raises(raised) as caught:
        filesystem.size(filesystem.absolute("a", filesystem=Failing()))
    assert type(caught.value) is raised
    assert len(requests) == (4 if expected == "transient" else 1)
