"""Servers of Google Cloud Storage and of Azure for the tests, behind planned faults.

`gcs` is gcp-storage-emulator in a process of its own. `azure` is the part of the protocol of Azure
Blob Storage that pyarrow's client uses, without hierarchical namespaces: lists, ranges, uploads in
blocks, deletes. Both keep objects in memory. Servers and faults are in processes of their own: the
client of Google Cloud Storage holds the interpreter's lock during some requests.

``python cloud_servers.py azure CONTAINER`` and ``python cloud_servers.py gcs PORT`` print a port.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from email.utils import formatdate
from hashlib import md5
from itertools import count
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from support.object_servers import SECRET, Answer, Fault, FaultyServer, Upstream, _wait_for
from support.store_servers import free_port, unavailable

_buckets = count()
_CONTROL = "/faults"


class Faults:
    """The faults of a server in another process."""

    def __init__(self, port: int) -> None:
        self.port = port

    def plan(self, kind: str, request: str, **options: Any) -> None:
        """Add a fault; see `support.object_servers.Fault`."""
        self._ask("POST", asdict(Fault(kind, request, **options)))

    def fired(self) -> list[int]:
        """Return how often each fault has fired."""
        return [fault["fired"] for fault in self._ask("GET", None)]

    def _ask(self, method: str, fault: Any) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as server:
            server.request(method, _CONTROL, json.dumps(fault))
            return json.loads(server.getresponse().read())


@dataclass
class Cloud:
    """A bucket of a server, its URL and the options of its client."""

    kind: str
    name: str
    proxy: Faults
    options: dict[str, Any]
    #: pyarrow's file system, without faults.
    direct: Any

    @property
    def url(self) -> str:
        return f"{'gs' if self.kind == 'gcs' else 'abfs'}://{self.name}"

    def put(self, name: str, content: bytes) -> None:
        """Write an object, without faults."""
        with self.direct.open_output_stream(f"{self.name}/{name}", compression=None) as file:
            file.write(content)


class AzureBlobs:
    """Answers of Azure Blob Storage, for paths ``/account/container/blob``."""

    def __init__(self, *containers: str) -> None:
        self.blobs: dict[str, dict[str, bytes]] = {name: {} for name in containers}
        self._blocks: dict[str, bytes] = {}

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        plain, _, query = path.partition("?")
        _, container, *rest = (urllib.parse.unquote(one) for one in plain.strip("/").split("/", 2))
        asked = dict(urllib.parse.parse_qsl(query))
        if "action" in asked:  # of hierarchical namespaces, which the account does not have
            return 400, {"x-ms-error-code": "HierarchicalNamespaceNotEnabled"}, b""
        if method == "HEAD" and (rest[0] if rest else "") not in self.blobs.get(container, {}):
            return 404, {"x-ms-error-code": "BlobNotFound"}, b""
        if container not in self.blobs:
            return _fault(404, "ContainerNotFound")
        blobs, name = self.blobs[container], rest[0] if rest else ""
        if not name:
            return 200, {"Content-Type": "application/xml"}, _listed(container, blobs, asked)
        told = {key.lower(): value for key, value in headers.items()}
        if method == "PUT":
            if told.get("if-none-match") == "*" and name in blobs:
                return _fault(409, "BlobAlreadyExists")
            return self._put(blobs, name, asked, body)
        if name not in blobs:
            return _fault(404, "BlobNotFound")
        if method == "DELETE":
            del blobs[name]
            return 202, {}, b""
        return _read(blobs[name], told)

    def _put(
        self, blobs: dict[str, bytes], name: str, asked: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if asked.get("comp") == "lease":  # which pyarrow takes before it deletes
            if name not in blobs:
                return _fault(404, "BlobNotFound")
            return 201, {**_version(blobs[name]), "x-ms-lease-id": str(uuid.UUID(int=1))}, b""
        if asked.get("comp") == "block":
            self._blocks[f"{name}?{asked['blockid']}"] = body
        elif asked.get("comp") == "blocklist":
            ids = [one.text for one in ElementTree.fromstring(body)]
            blobs[name] = b"".join(self._blocks[f"{name}?{one}"] for one in ids)
        else:
            blobs[name] = body
        return 201, {**_version(blobs.get(name, b"")), "x-ms-request-server-encrypted": "true"}, b""


def _version(content: bytes) -> dict[str, str]:
    return {"ETag": f'"{md5(content).hexdigest()}"', "Last-Modified": formatdate(0, usegmt=True)}


def _read(content: bytes, told: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    found = {
        **_version(content),
        "x-ms-blob-type": "BlockBlob",
        "x-ms-creation-time": formatdate(0),
    }
    found |= {"Content-Type": "application/octet-stream", "x-ms-server-encrypted": "true"}
    wanted = told.get("x-ms-range") or told.get("range")
    if wanted is None:
        return 200, {**found, "Content-Length": str(len(content))}, content
    start, _, stop = wanted.removeprefix("bytes=").partition("-")
    first, last = int(start), min(int(stop) if stop else len(content), len(content) - 1)
    if first > last:
        return _fault(416, "InvalidRange")
    found["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
    return 206, found, content[first : last + 1]


def _listed(container: str, blobs: Mapping[str, bytes], asked: Mapping[str, str]) -> bytes:
    """Return the names with a prefix, and folders for those with a delimiter after it."""
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter")
    folders, found = set(), []
    for name, content in sorted(blobs.items()):
        rest = name.removeprefix(prefix)
        if not name.startswith(prefix):
            continue
        if delimiter and delimiter in rest:
            folders.add(f"{prefix}{rest.partition(delimiter)[0]}{delimiter}")
            continue
        version = _version(content)
        found.append(
            f"<Blob><Name>{escape(name)}</Name><Properties>"
            f"<Last-Modified>{version['Last-Modified']}</Last-Modified>"
            f"<Etag>{version['ETag'].strip(chr(34))}</Etag>"
            f"<Content-Length>{len(content)}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
        )
    found += [f"<BlobPrefix><Name>{escape(one)}</Name></BlobPrefix>" for one in sorted(folders)]
    return (
        f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="{container}">'
        f"<Blobs>{''.join(found)}</Blobs><NextMarker /></EnumerationResults>"
    ).encode()


def _fault(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    return status, {"x-ms-error-code": code, "Content-Type": "application/xml"}, text.encode()


@pytest.fixture(scope="session")
def gcs_port() -> Iterator[int]:
    """Yield the port of gcp-storage-emulator in a process of its own."""
    if importlib.util.find_spec("gcp_storage_emulator") is None:
        unavailable("gcp-storage-emulator is not installed: pip install gcp-storage-emulator")
    port = free_port()
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--in-memory", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


@contextmanager
def _served(*arguments: str) -> Iterator[Faults]:
    """Run this file in a process of its own."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        try:
            yield Faults(int(process.stdout.readline()))
        finally:
            process.kill()


def _serve(kind: str, argument: str) -> None:
    """Answer requests, and those for `_CONTROL`, until the process is killed."""
    answers: Answer = AzureBlobs(argument) if kind == "azure" else Upstream(int(argument))

    def answer(
        method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if path != _CONTROL:
            return answers(method, path, headers, body)
        if method == "POST":
            server.faults.append(Fault(**json.loads(body)))
        return 200, {}, json.dumps([asdict(fault) for fault in server.faults]).encode()

    with FaultyServer(answer) as server:
        print(server.port, flush=True)
        threading.Event().wait()


@pytest.fixture
def gcs(gcs_port: int, quick_retries: None) -> Iterator[Cloud]:
    """Yield an empty bucket of Google Cloud Storage behind a proxy."""
    from pyarrow.fs import GcsFileSystem

    name = f"bucket-{next(_buckets)}"
    # The server answers one connection at a time: the proxy opens one for each request.
    with _served("gcs", str(gcs_port)) as proxy:
        options: dict[str, Any] = {
            "endpoint_override": f"127.0.0.1:{proxy.port}",
            "scheme": "http",
            "anonymous": True,
            "retry_time_limit": timedelta(milliseconds=1),
        }
        # This one may take its time: on a busy machine a millisecond passes before a request.
        patient = options | {"retry_time_limit": timedelta(seconds=30)}
        direct = GcsFileSystem(**patient, project_id="tests")
        direct.create_dir(name)
        yield Cloud("gcs", name, proxy, options, direct)


@pytest.fixture
def azure(quick_retries: None) -> Iterator[Cloud]:
    """Yield an empty container of Azure Blob Storage with faults."""
    from pyarrow.fs import AzureFileSystem

    name = f"box-{next(_buckets)}"
    with _served("azure", name) as proxy:
        key = base64.b64encode(SECRET.encode()).decode()
        options: dict[str, Any] = {"account_name": "account", "account_key": key}
        for part in ("blob", "dfs"):
            options[f"{part}_storage_authority"] = f"127.0.0.1:{proxy.port}"
            options[f"{part}_storage_scheme"] = "http"
        yield Cloud("azure", name, proxy, options, AzureFileSystem(**options))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
