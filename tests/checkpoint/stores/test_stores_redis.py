"""Tests of Redis stores with servers that are misconfigured, full, restarted or unreachable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from support.internals import original, plant
from support.played_redis import bulk, losing_answers, played
from support.store_servers import RedisServer, StartRedis, free_port, need
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]


@pytest.fixture(autouse=True)
def _library() -> None:
    need("redis")


# --- opening -------------------------------------------------------------------------------------


def test_a_server_that_throws_keys_away_is_refused(start_redis: StartRedis) -> None:
    url = start_redis("--maxmemory-policy", "allkeys-lru").url
    error = r"evicts keys when its memory is full \(maxmemory-policy allkeys-lru\), expected noev"
    with pytest.raises(OSError, match=error) as caught:
        open_store(url)
    assert caught.value.errno == errno.ENOTSUP
    with open_store(f"{url}?allow_eviction=1") as store:
        store.put_many([(b"a", b"1")])
    open_store(start_redis("--maxmemory-policy", "volatile-lru").url).close()


def test_passwords(start_redis: StartRedis) -> None:
    server = start_redis("--requirepass", "s/ec:r@t")
    place = f"127.0.0.1:{server.port}/0"
    for login in ("", "wrong-word@", ":wrong-word@", "me:wrong-word@"):
        with pytest.raises(PermissionError, match="denies access: opening failed: ") as caught:
            open_store(f"redis://{login}{place}")
        assert "wrong-word" not in str(caught.value) or login == "wrong-word@"  # a user's name
        assert caught.value.errno == errno.EACCES
    with open_store(f"redis://:s%2Fec%3Ar%40t@{place}") as store:
        store.put_many([(b"a", b"1")])
        assert store.url == f"redis://:***@{place}"
        assert repr(store) == f"<store redis://:***@{place}>"
        server.kill()
        with pytest.raises(ConnectionError) as gone:
            store.get(b"a")
        assert "s/ec" not in str(gone.value)
    with pytest.raises(ValueError, match="written as %2F, %3F, %40 and") as caught2:
        open_store(f"redis://:s/ec:r@t@{place}")
    assert "ec:r" not in str(caught2.value)


def test_users_who_may_not(start_redis: StartRedis) -> None:
    server = start_redis()
    server.say(
        "ACL", "SETUSER", "reader", "on", ">pw", "~a*", "+@read", "+info", "+ping", "+exists"
    )
    url = f"redis://reader:pw@127.0.0.1:{server.port}"
    with open_store(url) as store:
        assert store.get(b"a") is None
        with pytest.raises(PermissionError, match="denies access: writing failed: "):
            store.put_many([(b"a", b"1")])
        with pytest.raises(PermissionError, match="denies access: reading failed: "):
            store.get(b"b")
        with pytest.raises(PermissionError, match="denies access: comparing and setting failed"):
            store.compare_and_set(b"a", None, b"1")
        with pytest.raises(
            OSError, match=r"does not allow BGSAVE, .*; \?sync=server leaves durability to"
        ):
            store.sync()


def test_a_server_that_is_too_old() -> None:
    told = b"redis_version:5.0.14\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n"
    with played(INFO=lambda words: bulk(told)) as server:
        words = f"{server.url} is Redis 5.0.14, expected 6.0 or later"
        with pytest.raises(OSError, match=words) as caught:
            open_store(server.url)
    assert caught.value.errno == errno.ENOTSUP


def test_nobody_listens() -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=f"{url} cannot be reached: opening failed: "):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("redis://", "expected a host in redis://, such as redis://localhost:6379/0"),
        ("redis://h/x", "expected the number of a database after the host of a redis:// URL"),
        ("redis://h/²", "expected the number of a database after the host of a redis:// URL"),
        ("redis://h:70000", "the host and port of a redis:// URL cannot be read"),
        ("redis://h:port", "the host and port of a redis:// URL cannot be read"),
        ("redis://h?timeout=0", "expected timeout= a number above 0 in redis://h.*, got '0'"),
        ("redis://h?timeuot=1", "no option 'timeuot': .*; did you mean timeout?"),
        ("redis://h?allow_eviction=yes", "expected allow_eviction=0 or 1"),
        ("redis://h?ca=/x", "the option 'ca' is one of TLS: expected rediss:// in redis://h"),
        ("redis+cluster://h/1", "a cluster has one database: expected /0"),
    ],
)
def test_urls_that_mean_nothing(url: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("?", r"\?")):
        open_store(url)


# --- while it is open ----------------------------------------------------------------------------


def test_out_of_memory(start_redis: StartRedis) -> None:
    with open_store(start_redis("--maxmemory", "30mb").url) as store:
        store.put_many([(b"a", b"1")])
        rows = [(b"b%03d" % i, bytes([i]) * 1_000_000) for i in range(60)]
        with pytest.raises(OSError, match="is out of memory: writing failed: ") as caught:
            store.bulk_load(rows)
        assert caught.value.errno == errno.ENOMEM
        with pytest.raises(OSError, match="is out of memory: writing failed: "):
            put_one_by_one(store, 1000)
        with pytest.raises(OSError, match="is out of memory: comparing and setting failed"):
            store.compare_and_set(b"a", b"1", bytes(1_000_000))
        assert store.get(b"a") == b"1"
        store.delete_range(b"b")
        assert store.compare_and_set(b"a", b"1", b"2")


def put_one_by_one(store: Store, count: int) -> None:
    for i in range(count):
        store.put_many([(b"b%d" % i, bytes(200_000))])


def test_a_replica_that_only_reads(start_redis: StartRedis) -> None:
    first = start_redis("--repl-diskless-sync-delay", "0")
    replica = start_redis("--replicaof", "127.0.0.1", str(first.port))
    with open_store(first.url) as store:
        store.put_many([(b"a", b"1")])
    while replica.say("GET", "a") != b"1":
        pass
    with open_store(replica.url) as store:
        assert list(store.scan()) == [(b"a", b"1")]
        for call in (
            lambda: store.put_many([(b"a", b"2")]),
            lambda: store.delete_many([b"a"]),
            lambda: store.compare_and_set(b"a", b"1", b"2"),
        ):
            with pytest.raises(OSError, match="is a read-only replica: ") as caught:
                call()
            assert caught.value.errno == errno.EROFS


def test_a_server_that_goes_and_comes_back(start_redis: StartRedis) -> None:
    server = start_redis("--appendonly", "yes", "--appendfsync", "always")
    with open_store(server.url) as store:
        store.put_many([(b"a", b"1")])
        server.kill()
        for call in (
            lambda: store.get(b"a"),
            lambda: store.put_many([(b"a", b"2")]),
            lambda: store.bulk_load([(b"a", b"2"), (b"b", b"2")]),
            lambda: list(store.scan()),
            lambda: store.compare_and_set(b"a", b"1", b"2"),
            store.sync,
        ):
            with pytest.raises(
                ConnectionError, match=r"redis://127.0.0.1:\d+/0 cannot be reached: "
            ):
                call()
        server.start()
        assert store.get(b"a") == b"1"
        server.kill()
        server.start()
        assert store.compare_and_set(b"a", b"1", b"3")  # over a connection that was dropped
        assert list(store.scan()) == [(b"a", b"3")]


def test_a_server_that_is_loading(start_redis: StartRedis) -> None:
    server = start_redis(
        "--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"
    )
    with open_store(server.url) as store:
        store.bulk_load([(b"%04d" % i, os.urandom(1000)) for i in range(400)])
        store.sync()
        server.kill()
        server.start()
        with pytest.raises(ConnectionError, match="is loading its data after a start: try again"):
            store.get(b"0000")


def test_a_server_that_does_not_answer(start_redis: StartRedis) -> None:
    server = start_redis()
    with open_store(f"{server.url}?timeout=0.2") as store:
        server.say("CLIENT", "PAUSE", "60000", "ALL")
        with pytest.raises(TimeoutError, match="did not answer in time: reading failed"):
            store.get(b"a")


def test_compare_and_set_is_never_sent_twice(start_redis: StartRedis) -> None:
    server = start_redis()
    with (
        losing_answers(server.port, b"EVAL") as port,
        open_store(f"redis://127.0.0.1:{port}") as store,
    ):
        error = "comparing and setting failed: .*; it is not known whether the value was set: read"
        with pytest.raises(ConnectionError, match=error):
            store.compare_and_set(b"HEAD", None, b"1")
        assert store.get(b"HEAD") == b"1"
    assert server.client().info("commandstats")["cmdstat_eval"]["calls"] == 1


def test_keys_of_others(fresh: Fresh, redis_server: RedisServer) -> None:
    with open_store(fresh("redis")) as store:
        redis_server.say("RPUSH", "list", "1")
        store.put_many([(b"key", b"1")])
        assert list(store.scan()) == [(b"key", b"1")]
        with pytest.raises(OSError, match="reading failed: WRONGTYPE"):
            store.get(b"list")


def test_databases_are_apart(fresh: Fresh, redis_server: RedisServer) -> None:
    fresh("redis")
    place = f"redis://127.0.0.1:{redis_server.port}"
    with open_store(f"{place}/3") as third, open_store(place) as first:
        third.put_many([(b"a", b"3")])
        assert first.get(b"a") is None
        assert redis_server.say("GET", "a", db=3) == b"3"


def test_a_bulk_load_is_sent_in_bounded_pieces(start_redis: StartRedis) -> None:
    server = start_redis("--client-query-buffer-limit", "20mb", "--proto-max-bulk-len", "5mb")
    rows = [(b"%03d" % i, bytes([i]) * 1_000_000) for i in range(60)]
    with open_store(server.url) as store:
        assert store.bulk_load(iter(rows)) == 60
        assert list(store.scan()) == rows
        assert store.get_many([key for key, _ in rows]) == [value for _, value in rows]


def test_a_scan_over_a_restart_is_done_again(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    rows = [(b"%05d" % i, b"x") for i in range(3000)]
    scans: list[int] = []
    real = original("redis._scan_node")

    def restarting(node: Any, pattern: bytes) -> set[bytes]:
        scans.append(1)
        found: set[bytes] = real(node, pattern)
        if len(scans) <= restarts:
            server.kill()
            server.start()
        return found

    plant(monkeypatch, "redis._scan_node", restarting)
    with open_store(server.url) as store:
        store.bulk_load(rows)
        store.sync()
        restarts = 1
        assert list(store.scan()) == rows
        assert len(scans) == 2
        scans.clear()
        restarts = 9
        with pytest.raises(ConnectionError, match="servers restarted or keys moved during a scan"):
            list(store.keys())
