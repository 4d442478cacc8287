"""Object stores for the tests: moto's S3 server, a web server with ranges, and planned faults.

`s3` is a bucket of a real S3 server in a process of its own, behind a proxy that can delay, refuse,
cut, shorten or shift answers. `web` is a web server with range requests and the same faults.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Protocol

import pytest

from support.internals import plant
from support.store_servers import free_port, unavailable
from windeck._util import retry

ACCESS, SECRET = "AKIDEXAMPLEUSER", "PlainSecretOfTheTests/+="
_buckets = count()


@dataclass
class Fault:
    """A fault of a server: its kind, the requests it applies to, and how often it has fired.

    Parameters
    ----------
    kind
        "status" (answer with `amount`, and `code` in the body), "cut" (end the connection after
        half of the body), "reset" (without an answer), "short" (a complete answer of half of the
        body), "whole" (ignore the range), "shift" (a range `amount` bytes further on, as the one
        asked for), or "delay" (`amount` seconds).
    request
        Regular expression for ``"GET /bucket/key bytes=0-7"``.
    times, skip
        Requests that are answered so, after `skip` that are not.
    """

    kind: str
    request: str = "^GET .*bytes="
    times: int = 1
    skip: int = 0
    amount: float = 0
    code: str = "SlowDown"
    fired: int = 0
    seen: int = 0


class Answer(Protocol):
    """A function that answers requests."""

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""


@dataclass
class FaultyServer:
    """A server on loopback that answers by a function, with faults.

    Attributes
    ----------
    requests
        Text of every request: method, path and range.
    most
        Largest number of requests that were answered at the same time.
    """

    answer: Answer
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    delay: float = 0.0
    bandwidth: float = 0.0
    most: int = 0
    _active: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> FaultyServer:
        owner = self

        class Handler(_Handler):
            server_of_faults = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def plan(self, kind: str, request: str = "^GET .*bytes=", **options: Any) -> Fault:
        """Add a fault and return it."""
        fault = Fault(kind, request, **options)
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forget faults and requests."""
        self.faults, self.delay, self.most = [], 0.0, 0
        self.requests.clear()

    def count(self, pattern: str) -> int:
        """Return the number of requests that match a regular expression."""
        return sum(re.search(pattern, request) is not None for request in self.requests)

    def begin(self, request: str) -> Fault | None:
        """Note a request, and return its fault."""
        with self._lock:
            self.requests.append(request)
            self._active += 1
            self.most = max(self.most, self._active)
            for fault in self.faults:
                if re.search(fault.request, request) and fault.fired < fault.times:
                    fault.seen += 1
                    if fault.seen > fault.skip:
                        fault.fired += 1
                        return fault
        return None

    def end(self) -> None:
        with self._lock:
            self._active -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # 40 ms for every short answer
    server_of_faults: FaultyServer

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        # A client that goes away, and a connection that a fault has closed, are no errors.
        try:
            super().handle()
        except (ConnectionError, ValueError, OSError):
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        """Send no "100 Continue" for a request without a body, as RFC 9110 allows.

        Where that and the answer arrive at once, the client of Azure takes a part of the headers
        for the body, and ends the process if it has to be XML.
        """
        return self.headers.get("Content-Length") == "0" or super().handle_expect_100()

    def _serve(self) -> None:
        owner = self.server_of_faults
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        asked = self.headers.get("Range", "")
        fault = owner.begin(f"{self.command} {urllib.parse.unquote(self.path)} {asked}".strip())
        try:
            time.sleep(owner.delay)
            self._reply(fault, dict(self.headers.items()), body)
        finally:
            owner.end()

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, fault: Fault | None, headers: dict[str, str], body: bytes) -> None:
        kind = fault.kind if fault is not None else ""
        amount = fault.amount if fault is not None else 0
        if kind == "delay":
            time.sleep(amount)
        if kind == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.close_connection = True
            self.connection.close()
            return
        if kind == "status":
            assert fault is not None
            text = f"<Error><Code>{fault.code}</Code><Message>no</Message></Error>"
            if self.command == "HEAD":  # An answer to it has no XML, which a client would parse.
                self._send(int(amount), {}, b"", None)
                return
            self._send(int(amount), {"Content-Type": "application/xml"}, text.encode(), None)
            return
        asked = next((one for one in headers if one.lower() == "range"), "")
        wanted = headers.get(asked, "")
        if kind == "whole":
            headers.pop(asked, None)
        if kind == "shift":
            start, stop = map(int, wanted.removeprefix("bytes=").split("-"))
            headers[asked] = f"bytes={start + int(amount)}-{stop + int(amount)}"
        status, found, content = self.server_of_faults.answer(
            self.command, self.path, headers, body
        )
        if kind == "short":
            content = content[: len(content) // 2]
            found.pop("Content-Length", None)
        self._send(status, found, content, len(content) // 2 if kind == "cut" else None)

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: int | None) -> None:
        self.send_response_only(status)
        headers = {"Content-Length": str(len(body)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        content, rate = body if cut is None else body[:cut], self.server_of_faults.bandwidth
        for place in range(0, len(content), 1 << 16):
            part = content[place : place + (1 << 16)]
            self.wfile.write(part)
            if rate:
                time.sleep(len(part) / rate)
        if cut is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve


class Upstream:
    """Answers of another server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        hidden = ("connection", "transfer-encoding", "content-length", "keep-alive")
        kept = {name: value for name, value in headers.items() if name.lower() not in hidden}
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as upstream:
            upstream.request(method, path, body or None, kept)
            answer = upstream.getresponse()
            found = {n: v for n, v in answer.getheaders() if n.lower() not in hidden}
            length = answer.getheader("Content-Length")
            if method == "HEAD" and length is not None:
                found["Content-Length"] = length
            return answer.status, found, answer.read()


class Web:
    """Answers of a web server that has objects in memory, with ranges, ETags and listings.

    Attributes
    ----------
    objects
        Their contents by path.
    modified
        The time at which the server says that all were changed, in seconds since 1970.
    tags
        Whether answers have ETags.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified, self.tags = 0, True

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        name = urllib.parse.unquote(path.partition("?")[0]).strip("/")
        if name not in self.objects:
            return self._listing(name)
        content = self.objects[name]
        found = {
            "Last-Modified": formatdate(self.modified, usegmt=True),
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
        }
        if self.tags:
            found["ETag"] = f'"{md5(content).hexdigest()}"'
        asked = {key.lower(): value for key, value in headers.items()}.get("range")
        if asked is None:
            return 200, {**found, "Content-Length": str(len(content))}, content
        start, stop = (int(one) for one in asked.removeprefix("bytes=").split("-"))
        part = content[start : stop + 1]
        found["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        return 206, found, part

    def _listing(self, folder: str) -> tuple[int, dict[str, str], bytes]:
        prefix = f"{folder}/" if folder else ""
        below = [name[len(prefix) :] for name in self.objects if name.startswith(prefix)]
        if not below:
            return 404, {}, b"not found"
        names = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in below})
        links = [f'<li><a href="{urllib.parse.quote(name)}">{name}</a></li>' for name in names]
        text = f"<html><body><ul>{''.join(links)}</ul></body></html>".encode()
        return 200, {"Content-Type": "text/html", "Content-Length": str(len(text))}, text


@dataclass
class Bucket:
    """A bucket of an S3 server, seen through a proxy."""

    name: str
    proxy: FaultyServer
    direct: Any

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        """Options for `storage_options`."""
        return {
            "access_key": ACCESS,
            "secret_key": SECRET,
            "endpoint_override": f"127.0.0.1:{self.proxy.port}",
            "scheme": "http",
            "region": "us-east-1",
        }

    def put(self, name: str, content: bytes) -> None:
        """Write an object, without the proxy."""
        with self.direct.open_output_stream(f"{self.name}/{name}", compression=None) as file:
            file.write(content)

    def delete(self, name: str) -> None:
        """Delete an object, without the proxy."""
        self.direct.delete_file(f"{self.name}/{name}")


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """Yield the port of an S3 server in a process of its own."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        unavailable("moto is not installed: pip install 'moto[server]'")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(os.devnull, "wb") as null:
        process = subprocess.Popen(command, stdout=null, stderr=null)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the S3 server has ended"
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the S3 server does not start")


@contextmanager
def bucket_of(port: int, name: str = "") -> Iterator[Bucket]:
    """Make an empty bucket behind a proxy of its own, with a new name by default."""
    from pyarrow.fs import S3FileSystem

    direct = S3FileSystem(
        access_key=ACCESS,
        secret_key=SECRET,
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
        background_writes=False,
    )
    name = name or f"bucket-{next(_buckets)}"
    direct.create_dir(name)
    direct.delete_dir_contents(name)  # of another test that used the name
    with FaultyServer(Upstream(port)) as proxy:
        yield Bucket(name, proxy, direct)


def use_bucket(bucket: Bucket, patch: pytest.MonkeyPatch) -> None:
    """Put credentials and the endpoint of a bucket into the environment."""
    patch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{bucket.proxy.port}")


@pytest.fixture
def s3(s3_port: int, quick_retries: None) -> Iterator[Bucket]:
    """Yield an empty bucket of an S3 server behind a proxy."""
    with bucket_of(s3_port) as bucket:
        yield bucket


@dataclass
class Website:
    """A web server and its objects."""

    server: FaultyServer
    answers: Web

    @property
    def objects(self) -> dict[str, bytes]:
        """Contents by path."""
        return self.answers.objects

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


@pytest.fixture
def web(quick_retries: None) -> Iterator[Website]:
    """Yield a web server with range requests."""
    pytest.importorskip("aiohttp")
    answers = Web()
    with FaultyServer(answers) as server:
        yield Website(server, answers)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make delays between attempts short, and look up no credentials in the network."""
    retry_quickly(monkeypatch)


def retry_quickly(patch: pytest.MonkeyPatch) -> None:
    """Make delays between attempts short, and look up no credentials in the network."""
    quick = retry.REQUESTS._replace(first_pause=0.001, most_attempts=4)
    plant(patch, "retry.REQUESTS", quick)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        patch.delenv(name, raising=False)
