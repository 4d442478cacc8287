"""Tests of the URLs of Redis stores: the options of redis-py, and Unix sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.store_servers import RedisServer, StartRedis, free_port, need
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

Fresh = Callable[[str], str]
HOST = {"host": "h", "port": 6379, "socket_connect_timeout": 10.0}
PLAIN = {"username": None, "password": None, "socket_timeout": 30.0, "protocol": 2}


@pytest.fixture(autouse=True)
def _library() -> None:
    need("redis")


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return a list that gets the arguments of each client of redis-py, which sends nothing."""
    import redis

    made = list[dict[str, Any]]()

    class Client(redis.Redis):
        def __init__(self, **settings: Any) -> None:
            made.append(settings)
            super().__init__(**settings)

        def info(self, section: str | None = None, *more: str, **_: Any) -> dict[str, Any]:
            return {"redis_version": "7.0.15"}

    class Cluster:
        def __init__(self, **settings: Any) -> None:
            made.append(settings)

        def get_primaries(self) -> list[Any]:
            return []

        def close(self) -> None: ...

    monkeypatch.setattr(redis, "Redis", Client)
    monkeypatch.setattr(redis, "RedisCluster", Cluster)
    return made


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", HOST),
        ("redis://me:pw@h:7/3", {**HOST, "port": 7, "username": "me", "password": "pw"}),
        ("redis://h?timeout=2", {**HOST, "socket_timeout": 2.0, "socket_connect_timeout": 2.0}),
        (
            "rediss://h?ca=/a&key=/k",
            {**HOST, "ssl": True, "ssl_ca_certs": "/a", "ssl_keyfile": "/k"},
        ),
        ("rediss+cluster://h?cert=/c", {**HOST, "ssl": True, "ssl_certfile": "/c"}),
        ("redis+unix:///run/r%20s.sock?db=2", {"unix_socket_path": "/run/r s.sock"}),
        ("redis+unix://:p%40w@/r", {"unix_socket_path": "/r", "password": "p@w"}),
    ],
)
def test_what_redis_py_is_told(
    url: str, expected: dict[str, Any], clients: list[dict[str, Any]]
) -> None:
    with open_store(url):
        for settings in clients:
            retry = settings.pop("retry")
            assert retry.get_retries() == 0  # what is sent twice may be done twice
            settings.pop("driver_info", None)
            settings.pop("db", None)
            assert settings == {**PLAIN, **expected}
    assert clients


@pytest.mark.parametrize(
    ("url", "number"),
    [
        ("redis://h", 0),
        ("redis://h/", 0),
        ("redis://h/15", 15),
        ("redis+unix:///run/redis.sock", 0),
        ("redis+unix:///run/7?db=12", 12),
    ],
)
def test_databases(url: str, number: int, clients: list[dict[str, Any]]) -> None:
    """The database 0 is asked first whether the server is one of a cluster."""
    with open_store(url):
        found = [settings.get("db", 0) for settings in clients]
    assert found == ([0, number] if number else [0])


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redis+unix://", "expected the absolute path of a socket in redis+unix://, such"),
        ("redis+unix:///", "expected the absolute path of a socket in redis+unix:///, such"),
        ("redis+unix://./r", "expected the absolute path of a socket in redis+unix://./r,"),
        ("redis+unix://h/r", "expected the absolute path of a socket in redis+unix://h/r,"),
        ("redis+unix://:1/r", "expected the absolute path of a socket in redis+unix://:1/r"),
        ("redis+unix:///a%00b", "expected a path without a NUL character in a redis+unix://"),
        ("redis+unix:///r?ca=/x", "redis+unix:// URLs have no option 'ca': expected timeout"),
        ("redis+unix:///r?db=x", "expected the number of a database as ?db= in a redis+unix"),
        ("redis+unix:///r?db=", "expected the number of a database as ?db= in a redis+unix"),
        ("redis+unix:///r?db=123456", "expected the number of a database as ?db= in a redis"),
        ("redis://h?db=1", "redis:// URLs have no option 'db': expected timeout, allow_evic"),
        ("unix:///r", "no store has URLs that begin with unix://: expected one of memory, r"),
    ],
)
def test_urls_that_mean_nothing(url: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared as it stands
        open_store(url)
    assert str(caught.value).startswith(error)


def test_databases_of_one_socket_are_apart(fresh: Fresh) -> None:
    url = fresh("unix")
    with open_store(url) as store, open_store(f"{url}?db=1") as other:
        store.put_many([(b"a", b"1")])
        assert store.get(b"a") == b"1"
        assert other.get(b"a") is None
        assert other.url == f"{url}?db=1"


def test_a_checkpoint_by_a_socket_and_by_a_port(fresh: Fresh, redis_socket: RedisServer) -> None:
    """Large chunks and small ones, in both cases."""
    url = fresh("unix")
    model = {"large": torch.randn(3 << 18), "small": torch.arange(7)}
    checkpoint.save(url, step=1, model=model)
    for place in (url, f"redis://127.0.0.1:{redis_socket.port}"):
        target = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
        checkpoint.load(place, model=target)
        assert all(torch.equal(target[name], model[name]) for name in model)
    assert checkpoint.verify(url, deep=True).damages == []


def test_nobody_listens(fresh: Fresh) -> None:
    path = fresh("unix").partition("://")[2]
    for found, said in ((path + "x", "No such file"), (path.rpartition("/")[0], "refused")):
        with pytest.raises(ConnectionError, match=f"^redis.unix://{found} cannot be .*{said}"):
            open_store(f"redis+unix://{found}")


def test_a_server_that_goes_away(fresh: Fresh, start_redis: StartRedis) -> None:
    path = fresh("unix").partition("://")[2] + "1"
    server = start_redis("--unixsocket", path)
    with open_store(f"redis+unix://{path}") as store:
        store.put_many([(b"a", b"1")])
        server.kill()
        with pytest.raises(ConnectionError, match="cannot be reached: reading failed"):
            store.get(b"a")
        with pytest.raises(ConnectionError, match="cannot be reached: writing failed"):
            store.bulk_load([(b"b", bytes(1 << 20))])


def test_passwords(fresh: Fresh, start_redis: StartRedis) -> None:
    path = fresh("unix").partition("://")[2] + "2"
    start_redis("--requirepass", "s/ec@t", "--unixsocket", path)
    with pytest.raises(PermissionError, match="denies access: opening failed: ") as caught:
        open_store(f"redis+unix://:wrong-word@{path}")
    assert "wrong-word" not in str(caught.value)
    with open_store(f"redis+unix://:s%2Fec%40t@{path}") as store:
        assert store.url == f"redis+unix://:***@{path}"


def test_a_socket_of_a_cluster(fresh: Fresh, start_redis: StartRedis) -> None:
    path = fresh("unix").partition("://")[2] + "3"
    own = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    start_redis(*own, "--unixsocket", path)
    error = r" is the socket of one server of a cluster: expected redis\+cluster://host:port,"
    with pytest.raises(ValueError, match=error):
        open_store(f"redis+unix://{path}")
