"""Web servers: headers of the user stay with one origin, and answers are bounded."""

from __future__ import annotations

import base64
import gzip
import io
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import windeck as wd
from support.object_servers import FaultyServer, Web, retry_quickly

aiohttp = pytest.importorskip("aiohttp")

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Users have it until aiohttp 4.
    BASIC = aiohttp.BasicAuth("user", "s3cr3t-value")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_quickly(monkeypatch)


class Noted(Web):
    """A web server that keeps the headers of all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, str]] = []

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        self.seen.append({name.lower(): value for name, value in headers.items()})
        return super().__call__(method, path, headers, body)


class Redirecting(Noted):
    """A web server that sends all requests below a path to another server."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status, self.target = status, ""

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        found = super().__call__(method, path, headers, body)
        if not path.startswith("/away"):
            return found
        return self.status, {"Location": self.target + path.removeprefix("/away")}, b""


def table_bytes() -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"load": [1.0, 2.0, 3.0]}), sink)
    return sink.getvalue()


SECRET = "s3cr3t-value"
AUTH = "Basic " + base64.b64encode(b"user:" + SECRET.encode()).decode()

#: Ways to give headers, and the name and value that the origin has to receive.
WAYS: dict[str, tuple[dict[str, Any], str, str]] = {
    "authorization": (
        {"client_kwargs": {"headers": {"Authorization": AUTH}}},
        "authorization",
        AUTH,
    ),
    "custom": ({"client_kwargs": {"headers": {"X-Api-Key": SECRET}}}, "x-api-key", SECRET),
    "cookie header": ({"client_kwargs": {"headers": {"Cookie": f"a={SECRET}"}}}, "cookie", SECRET),
    "cookies": ({"client_kwargs": {"cookies": {"a": SECRET}}}, "cookie", SECRET),
    "auth": (
        {"client_kwargs": {"auth": BASIC}},
        "authorization",
        AUTH,
    ),
    "headers of requests": ({"headers": {"X-Token": SECRET}}, "x-token", SECRET),
    "cookies of requests": ({"cookies": {"a": SECRET}}, "cookie", SECRET),
    "auth of requests": ({"auth": BASIC}, "authorization", AUTH),
    "user agent": ({"client_kwargs": {"headers": {"User-Agent": SECRET}}}, "user-agent", SECRET),
    "user of the URL": ({}, "authorization", AUTH),
}


@pytest.mark.filterwarnings("ignore:.*auth.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*BasicAuth.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "status", "by_instance"),
    [
        *((way, 302, False) for way in WAYS),
        *((way, 302, True) for way in WAYS if way != "user of the URL"),
        *((way, status, False) for way in ("custom", "auth") for status in (301, 303, 307, 308)),
    ],
)
def test_redirects_do_not_carry_headers_of_the_user(
    way: str, status: int, by_instance: bool
) -> None:
    options, header, value = WAYS[way]
    home, other = Redirecting(status), Noted()
    other.objects["a.parquet"] = home.objects["here/a.parquet"] = table_bytes()
    with FaultyServer(home) as first, FaultyServer(other) as second:
        home.target = f"http://127.0.0.1:{second.port}"
        user = f"user:{SECRET}@" if way == "user of the URL" else ""
        if by_instance:
            from fsspec.implementations.http import HTTPFileSystem

            given: dict[str, Any] = {"filesystem": HTTPFileSystem(**options)}
        else:
            given = {"storage_options": options}
        url = f"http://{user}127.0.0.1:{first.port}"
        table = wd.Table.read(f"{url}/away/a.parquet", **given)
        assert table["load"].tolist() == [1, 2, 3]
        assert other.seen
        assert SECRET not in str(other.seen)
        assert AUTH not in str(other.seen)
        assert any("range" in headers for headers in other.seen)
        assert all(value in headers[header] for headers in home.seen)
        # A redirect within the origin keeps them.
        home.target = f"http://127.0.0.1:{first.port}/here"
        home.seen.clear()
        assert len(wd.Table.read(f"{url}/away/a.parquet", **given)) == 3
        assert all(value in headers[header] for headers in home.seen)


class Hostile(BaseHTTPRequestHandler):
    """A server whose answers to ranges are right by their headers and do not end."""

    kind = ""
    content = b""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None or self.kind == "endless listing":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
        else:
            self.send_response(206)
            start, stop = map(int, asked.groups())
            self.send_header("Content-Range", f"bytes {start}-{stop}/{len(self.content)}")
        if "gzip" in self.kind:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b"\0" * (1 << 16)
        if "gzip" in self.kind:
            piece = gzip.compress(bytes(1 << 26))
        try:
            while True:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        except OSError:
            self.close_connection = True


@pytest.fixture(params=["endless", "endless gzip", "endless listing"])
def hostile(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (Hostile,), {"kind": request.param, "content": table_bytes()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        place = "" if "listing" in request.param else "a.parquet"
        yield f"http://127.0.0.1:{server.server_address[1]}/{place}"
        server.shutdown()
        thread.join()


READ = """
    import sys
    import pyarrow.parquet
    import aiohttp, fsspec.implementations.http
    import windeck as wd
    from windeck._util import retry
    retry.REQUESTS = retry.RetryPolicy(first_pause=0.001, most_attempts=2)
    def mark(name):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name))
    before = mark("VmRSS")
    try:
        wd.Table.read(sys.argv[1])
    except (OSError, ValueError) as error:
        print(type(error).__name__, error)
    print(mark("VmHWM") - before)
"""


def test_answers_without_an_end(hostile: str) -> None:
    """An answer that is longer than what was asked for is an error, in bounded memory."""
    code = textwrap.dedent(READ)
    ran = subprocess.run(
        [sys.executable, "-c", code, hostile], capture_output=True, text=True, check=True
    )
    *told, grown = ran.stdout.splitlines()
    assert "the server sent more than" in told[0], ran.stdout
    assert int(grown) < 400_000  # KiB


def test_stored_files_that_a_server_says_are_compressed(tmp_path: Path) -> None:
    """Ranges are those of the object as it is, also where it is compressed."""

    class Encoded(Web):
        def __call__(
            self, method: str, path: str, headers: Mapping[str, str], body: bytes
        ) -> tuple[int, dict[str, str], bytes]:
            status, found, content = super().__call__(method, path, headers, body)
            return (
                status,
                {
                    **found,
                    **({"Content-Encoding": "gzip"} if "range" in str(headers).lower() else {}),
                },
                content,
            )

    server = Encoded()
    server.objects["a.csv.gz"] = gzip.compress(b"load\n1\n2\n")
    with FaultyServer(server) as one:
        table = wd.Table.read(f"http://127.0.0.1:{one.port}/a.csv.gz")
    assert table["load"].tolist() == [1, 2]


@pytest.mark.parametrize("kept", ["ETag", "Last-Modified", "Content-MD5", "Digest", ""])
def test_only_objects_whose_change_is_found_are_cached(kept: str, tmp_path: Path) -> None:
    """A server that states the size alone would have a changed object read from the cache."""

    class Telling(Web):
        def __call__(
            self, method: str, path: str, headers: Mapping[str, str], body: bytes
        ) -> tuple[int, dict[str, str], bytes]:
            status, found, content = super().__call__(method, path, headers, body)
            found |= {"Content-MD5": found["ETag"], "Digest": found["ETag"]}
            told = ("ETag", "Last-Modified", "Content-MD5", "Digest")
            return status, {k: v for k, v in found.items() if k == kept or k not in told}, content

    server = Telling()
    with FaultyServer(server) as one:
        url = f"http://127.0.0.1:{one.port}/a.csv"
        for number in range(1, 3):
            server.objects["a.csv"] = f"load\n{number}\n".encode()
            server.modified = number
            if kept:
                assert wd.Table.read(url, cache_dir=tmp_path)["load"].tolist() == [number]
            else:
                with pytest.raises(ValueError, match=r"a.csv' cannot be kept in `cache_dir`"):
                    wd.Table.read(url, cache_dir=tmp_path)
            assert wd.Table.read(url)["load"].tolist() == [number]
