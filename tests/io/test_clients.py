"""Tests of clients and of the errors of their libraries, without a network."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import aiohttp
import fsspec
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from support.internals import (
    ArrowClient,
    FsspecClient,
    WrongAnswer,
    classify_error,
    connect,
    mount_url,
    s3_options,
)


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
    path = mount_url(url, storage_options=options)
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
    found = s3_options("bucket", options)
    names = ("access_key", "secret_key", "session_token", "endpoint_override")
    assert tuple(found.get(name) for name in names) == expected
    if "endpoint_url" in repr(options):
        scheme = re.search(r"(https?)://", repr(options))
        assert scheme is not None
        assert found["scheme"] == scheme[1]


def test_clients_that_check_ranges() -> None:
    assert connect("http", "http://host/a", {}).checks_ranges
    assert connect("memory", "memory://a", {}).checks_ranges
    assert not connect("s3", "s3://bucket/a", {"region": "us-east-1"}).checks_ranges
    assert not FsspecClient(fsspec.filesystem("http")).checks_ranges  # without our check
    assert isinstance(connect("gs", "gs://bucket/a", {"anon": True}), ArrowClient)


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
        (WrongAnswer("short"), "transient"),
        (PermissionError("a"), "forbidden"),
        (IsADirectoryError("a"), ""),
        (TypeError("a"), ""),
    ],
    ids=repr,
)
def test_errors_of_libraries(error: Exception, expected: str) -> None:
    assert classify_error(error) == expected
