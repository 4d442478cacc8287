"""Requests to a server that fails are repeated by one retry policy, not by two of them at once."""

from __future__ import annotations

import re
from typing import Any

import fsspec
import pytest

from support.cloud_servers import Cloud, azure, gcs, gcs_port
from support.internals import plant
from support.object_servers import Bucket, Website
from windeck._util import retry
from windeck.io import filesystem

__all__ = ["azure", "gcs", "gcs_port"]

FAILURES = [("status", 503), ("reset", 0)]


@pytest.fixture(autouse=True)
def _patient(quick_retries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time matter."""
    plant(monkeypatch, "retry.FIRST_ANSWER_SECONDS", 1000.0)


def attempts(path: str) -> int:
    """Ask for the size of an object, and return the number of attempts of the error."""
    with pytest.raises(ConnectionError, match=r"attempts failed") as caught:
        filesystem.size(path)
    found = re.search(r"(\d+) attempts failed", str(caught.value))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(("kind", "amount"), FAILURES)
def test_s3(kind: str, amount: int, s3: Bucket) -> None:
    s3.put("file", b"content")
    fault = s3.proxy.plan(kind, "file", times=1000, amount=amount)
    assert attempts(filesystem.absolute(f"{s3.url}/file", storage_options=s3.options)) == 4
    assert fault.fired == 4


def test_the_web(web: Website) -> None:
    """Its client asks for the head, then for the object, and a status is an answer."""
    web.objects["file"] = b"content"
    fault = web.server.plan("status", "file", times=1000, amount=503)
    assert attempts(filesystem.absolute(f"{web.url}/file")) == 4
    assert fault.fired == 8


def test_an_http_status_is_the_answer_of_a_server(
    web: Website, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "retry.FIRST_ANSWER_SECONDS", 0.0)
    web.objects["file"] = b"content"
    web.server.plan("status", "file", times=5, amount=503)
    assert filesystem.size(filesystem.absolute(f"{web.url}/file")) == 7


@pytest.mark.parametrize(("kind", "amount"), FAILURES)
def test_google(kind: str, amount: int, gcs: Cloud) -> None:
    gcs.put("file", b"content")
    gcs.proxy.plan(kind, "/b/", times=1000, amount=amount)
    options = {name: value for name, value in gcs.options.items() if name != "retry_time_limit"}
    assert attempts(filesystem.absolute(f"{gcs.url}/file", storage_options=options)) == 4
    assert gcs.proxy.fired() == [4]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "amount"), FAILURES)
def test_azure(kind: str, amount: int, azure: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client makes four requests, which cannot be changed: they are counted."""
    plant(monkeypatch, "retry.REQUESTS", retry.RetryPolicy(first_pause=0.001, most_attempts=6))
    azure.put("file", b"content")
    azure.proxy.plan(kind, "/account/", times=1000, amount=amount)
    assert attempts(filesystem.absolute(f"{azure.url}/file", storage_options=azure.options)) == 8
    assert azure.proxy.fired() == [8]


def test_azure_does_not_repeat_all(azure: Cloud) -> None:
    azure.put("file", b"content")
    azure.proxy.plan("status", "/account/", times=1000, amount=429)
    assert attempts(filesystem.absolute(f"{azure.url}/file", storage_options=azure.options)) == 4
    assert azure.proxy.fired() == [4]


@pytest.mark.parametrize(
    ("scheme", "operation", "status", "expected"),
    [
        ("abfs", "read", None, 4),
        ("abfs", "write", 503, 4),
        ("abfs", "read", 429, 1),
        ("hf", "read", None, 6),
        ("hf", "list", 429, 6),
        ("hf", "list", 404, 1),
        ("hf", "stat", 503, 1),
        ("memory", "read", None, 1),
        ("gs", "read", 503, 1),
    ],
)
def test_requests_of_an_attempt(
    scheme: str, operation: str, status: int | None, expected: int
) -> None:
    options: dict[str, Any] = {"abfs": {"account_name": "a", "account_key": "a2V5"}}
    if scheme == "hf":
        pytest.importorskip("huggingface_hub")
    path: Any = filesystem.absolute(f"{scheme}://a/b", storage_options=options.get(scheme))
    assert path.mount.client.own_retries.requests(operation, status) == expected


def test_an_error_of_the_network_by_httpx_is_repeated() -> None:
    """Such as those of huggingface_hub; it is no OSError."""
    error = type("ReadError", (Exception,), {"__module__": "httpx"})
    left = [error("reset"), error("reset")]

    class Hub(fsspec.AbstractFileSystem):  # type: ignore[misc]
        cachable = False

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            if left:
                raise left.pop()
            return {"name": path, "type": "file", "size": 7}

    assert filesystem.size(filesystem.absolute("a", filesystem=Hub())) == 7
    assert not left


def test_any_file_system_of_fsspec_has_retries() -> None:
    path: Any = filesystem.absolute("a", filesystem=fsspec.filesystem("memory"))
    assert path.mount.client.own_retries.attempts == 1
