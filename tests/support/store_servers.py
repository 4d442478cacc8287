"""Real databases for the tests of stores, on loopback and in temporary folders.

Where a library or a server is missing, tests that need it skip and say how to get it; under
continuous integration (the variable CI is set) they fail instead.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.internals import original, plant
from windeck.checkpoint.stores import Store, open_store

#: Databases in files, which one process opens at a time.
EMBEDDED = ("rocksdb", "leveldb")
#: Stores that outlive a process.
DURABLE = (*EMBEDDED, "redis")
KINDS = ("memory", *DURABLE, "cluster")
_LIBRARIES = {"rocksdb": "rocksdict", "leveldb": "plyvel"}
_LIBRARIES |= dict.fromkeys(("redis", "unix", "cluster"), "redis")
_serial = itertools.count()


def unavailable(reason: str) -> NoReturn:
    """Skip the test; fail it under continuous integration."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (skipped elsewhere, but CI is set)")
    pytest.skip(reason, allow_module_level=True)


def need(kind: str) -> None:
    """Skip or fail the test unless the library of a store is installed."""
    library = _LIBRARIES.get(kind)
    if library is None or importlib.util.find_spec(library):
        return
    extra = "redis" if library == "redis" else kind
    reason = f"{library} is not installed: pip install 'windeck[{extra}]'"
    if library == "plyvel" and sys.version_info >= (3, 13):
        pytest.skip(f"{reason} (there is no wheel for this Python)")
    unavailable(reason)


def noted_engines(patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each RocksDB engine is added that a store opens from now on."""
    engines, opening = list[Any](), original("rocksdb.RocksDBStore._open_engine")

    def noted(store: Any) -> Any:
        engines.append(opening(store))
        return engines[-1]

    plant(patch, "rocksdb.RocksDBStore._open_engine", noted)
    return engines


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """A redis-server for tests. Used in a ``with``, it is always stopped."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        need("redis")
        program = shutil.which("redis-server")
        if program is None:
            unavailable("redis-server is not installed: apt-get install redis-server")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, port or free_port()
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1"]
        self._command += ["--dir", str(folder), "--save", "", "--daemonize", "no"]
        # The end of a background save, for which every sync waits, is noticed every 1 / hz seconds.
        self._command += ["--hz", "100", *options]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self, *, wait: bool = True) -> None:
        with open(self.folder / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + 30
        while wait and not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError((self.folder / "output.txt").read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server as `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self, **options: Any) -> Any:
        import redis

        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def say(self, *command: Any, **options: Any) -> Any:
        with self.client(**options) as client:
            return client.execute_command(*command)

    def _answers(self) -> bool:
        try:
            with closing(socket.create_connection(("127.0.0.1", self.port), timeout=1)) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64)[:1] in (b"+", b"-")
        except OSError:
            return False


StartRedis = Callable[..., RedisServer]


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_socket() -> Iterator[RedisServer]:
    """Yield a server that listens on a Unix socket too, whose path has to be short."""
    with tempfile.TemporaryDirectory(prefix="windeck-") as name:
        path = f"{name}/redis.sock"
        with RedisServer(Path(name), "--unixsocket", path) as server:
            server.url = f"redis+unix://{path}"
            yield server


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Yield a function that starts servers with given options; stop all at the end."""
    with ExitStack() as stack:
        numbers = itertools.count()

        def started(*options: str) -> RedisServer:
            folder = tmp_path / f"server{next(numbers)}"
            return stack.enter_context(RedisServer(folder, *options))

        yield started


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Yield three servers that share the slots."""
    with cluster_of_three(tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@contextmanager
def cluster_of_three(place: Path, *options: str) -> Iterator[list[RedisServer]]:
    """Yield three servers that share the slots, started with these options."""
    with ExitStack() as stack:
        servers = []
        for number in range(3):
            own = (*options, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            servers.append(stack.enter_context(RedisServer(place / str(number), *own)))
        for number, server in enumerate(servers):
            first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            server.say("CLUSTER", "ADDSLOTSRANGE", first, last)
        for server in servers[1:]:
            bus = server._command[-1]
            servers[0].say("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        wait_until_whole(servers)
        yield servers


def wait_until_whole(servers: list[RedisServer]) -> None:
    deadline = time.monotonic() + 60
    while not all(_is_whole(server) for server in servers):
        assert time.monotonic() < deadline, "the cluster did not come up"
        time.sleep(0.05)


def _is_whole(server: RedisServer) -> bool:
    with server.client() as client:
        info = client.cluster("INFO")
        slots = client.cluster("SLOTS")
        return (
            info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3" and len(slots) == 3
        )


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that returns the URL of an empty store of a kind."""

    def url(kind: str) -> str:
        need(kind)
        if kind == "memory":
            return f"memory://test-{next(_serial)}"
        if kind in EMBEDDED:
            return f"{kind}://{tmp_path}/database-{next(_serial)}"
        if kind in ("redis", "unix"):
            name = "redis_server" if kind == "redis" else "redis_socket"
            server: RedisServer = request.getfixturevalue(name)
            server.say("FLUSHALL")
            return server.url
        servers: list[RedisServer] = request.getfixturevalue("redis_cluster")
        for server in servers:
            server.say("FLUSHALL")
        return f"redis+cluster://127.0.0.1:{servers[0].port}"

    return url


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return each kind of store in turn."""
    return str(request.param)


@pytest.fixture
def url(kind: str, fresh: Callable[[str], str]) -> str:
    """Return the URL of an empty store of each kind."""
    return fresh(kind)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """Yield an empty store of each kind."""
    with open_store(url) as store:
        yield store


@pytest.fixture
def memory() -> Iterator[Store]:
    """Yield an empty store in memory, for tests in which the kind does not matter."""
    with open_store("memory://") as store:
        yield store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a file system of 24 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here; errors of writes are tested above")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """Yield a folder in the system's temporary folder, as `tmp_path` may be in /dev/shm."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
