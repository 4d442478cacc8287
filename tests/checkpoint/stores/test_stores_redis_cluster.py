"""Redis Cluster and TLS. All servers are real."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.store_servers import RedisServer, free_port, need, unavailable, wait_until_whole
from windeck.checkpoint.stores import open_store

Fresh = Callable[[str], str]


@pytest.fixture(autouse=True)
def _library() -> None:
    need("redis")


# --- a cluster -----------------------------------------------------------------------------------


def test_a_cluster_is_found_out(fresh: Fresh, redis_cluster: list[RedisServer]) -> None:
    fresh("cluster")
    with open_store(redis_cluster[1].url) as store:
        assert not store.facts.atomic_batches
        rows = [(b"ns/{%d}/%d" % (i, j), b"%d" % i) for i in range(60) for j in range(3)]
        assert store.bulk_load(sorted(rows)) == 180
        assert all(server.say("DBSIZE") > 0 for server in redis_cluster)
        assert list(store.scan()) == sorted(rows)
        store.sync()
        assert all(server.say("LASTSAVE") for server in redis_cluster)
    with pytest.raises(
        ValueError, match=r"a cluster has one database: expected /0 in redis://.*/2"
    ):
        open_store(redis_cluster[0].url[:-1] + "2")


def test_a_single_server_is_no_cluster(redis_server: RedisServer) -> None:
    with pytest.raises(ConnectionError, match="the cluster is incomplete: opening failed: "):
        open_store(f"redis+cluster://127.0.0.1:{redis_server.port}")


def test_keys_on_the_move_stop_a_scan(fresh: Fresh, redis_cluster: list[RedisServer]) -> None:
    with open_store(fresh("cluster")) as store:
        store.put_many([(b"a", b"1")])
        target = redis_cluster[1].say("CLUSTER", "MYID")
        redis_cluster[0].say("CLUSTER", "SETSLOT", 5, "MIGRATING", target)
        try:
            with pytest.raises(ConnectionError, match="scanning failed: keys are moving from one"):
                list(store.scan())
        finally:
            redis_cluster[0].say("CLUSTER", "SETSLOT", 5, "STABLE")
        assert list(store.scan()) == [(b"a", b"1")]


def test_a_server_of_a_cluster_that_is_gone(fresh: Fresh, redis_cluster: list[RedisServer]) -> None:
    with open_store(f"{fresh('cluster')}?timeout=2") as store:
        rows = [(b"%d" % i, b"x") for i in range(100)]
        store.put_many(rows)
        redis_cluster[2].kill()
        try:
            with pytest.raises(ConnectionError, match="reading failed"):
                store.get_many([key for key, _ in rows])
            with pytest.raises(ConnectionError):
                list(store.scan())
        finally:
            redis_cluster[2].start()
        wait_until_whole(redis_cluster)
        store.put_many(rows)
        assert store.get_many([key for key, _ in rows]) == [b"x"] * 100


def test_one_of_them_that_begins_to_evict(fresh: Fresh, redis_cluster: list[RedisServer]) -> None:
    with open_store(fresh("cluster")) as store:
        store.put_many([(b"a", b"1")])
        redis_cluster[1].say("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        try:
            with pytest.raises(OSError, match="evicts keys when its memory is full") as caught:
                store.sync()
            assert caught.value.errno == errno.ENOTSUP
        finally:
            redis_cluster[1].say("CONFIG", "SET", "maxmemory-policy", "noeviction")
        store.sync()


# --- TLS -----------------------------------------------------------------------------------------


def test_tls(tmp_path: Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        unavailable("openssl is not installed: apt-get install openssl")
    make = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    make += ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(make, check=True, capture_output=True)
    port = free_port()
    options = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    for name in ("cert", "key"):
        options += [f"--tls-{name}-file", str(tmp_path / name)]
    with RedisServer(tmp_path / "server", *options) as server:
        with open_store(f"rediss://127.0.0.1:{port}/0?ca={tmp_path}/cert") as store:
            store.put_many([(b"a", b"1")])
            rows = [(b"b%02d" % i, bytes([i]) * 30_000 * i) for i in range(30)]
            assert store.bulk_load(rows) == 30
            assert store.get_many([key for key, _ in rows]) == [value for _, value in rows]
        assert server.say("GET", "a") == b"1"
        with pytest.raises(
            ConnectionError, match=r"cannot be reached: .*certificate verify failed"
        ):
            open_store(f"rediss://127.0.0.1:{port}/0")
