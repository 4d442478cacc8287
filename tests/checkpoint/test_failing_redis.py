"""Tests of real Redis servers that fail during a save or a load."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.failing import READS, WRITES, Between, error_of, load, save
from support.store_servers import RedisServer, cluster_of_three, free_port, need, wait_until_whole
from windeck import checkpoint
from windeck.checkpoint.stores import CorruptStoreError, open_store


@contextmanager
def server(folder: Path, *options: str) -> Iterator[RedisServer]:
    need("redis")
    with RedisServer(folder / "server", "--appendonly", "yes", *options) as found:
        yield found


#: What happens, the error it gives, and how it is put right.
TROUBLES: dict[str, tuple[Any, type[OSError], int | None, str, Any]] = {
    "gone": (
        lambda s: s.kill(), ConnectionError, None, "cannot be reached: ", lambda s: s.start(),
    ),
    "memory": (
        lambda s: s.say("CONFIG", "SET", "maxmemory", "1"), OSError, errno.ENOMEM,
        "is out of memory: ", lambda s: s.say("CONFIG", "SET", "maxmemory", "0"),
    ),
    "replica": (
        lambda s: s.say("REPLICAOF", "127.0.0.1", free_port()), OSError, errno.EROFS,
        "is a read-only replica: ", lambda s: s.say("REPLICAOF", "NO", "ONE"),
    ),
    "password": (
        lambda s: [
            s.say("CONFIG", "SET", "requirepass", "p"),
            s.say("CLIENT", "KILL", "TYPE", "normal", password="p"),
        ],
        PermissionError, errno.EACCES, "denies access: ",
        lambda s: s.say("CONFIG", "SET", "requirepass", "", password="p"),
    ),
    "eviction": (
        lambda s: s.say("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
        OSError, errno.ENOTSUP, "evicts keys when its memory is full ",
        lambda s: s.say("CONFIG", "SET", "maxmemory-policy", "noeviction"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_server_in_trouble_amid_a_save(trouble: str, tmp_path: Path) -> None:
    cause, kind, code, words, repair = TROUBLES[trouble]
    with server(tmp_path, "--appendfsync", "always") as redis, open_store(redis.url) as store:
        save(store, 0)
        force = 0
        for left in range(100):
            watched = Between(store, WRITES, left, lambda: cause(redis))
            error = error_of(partial(save, watched, left + 1, incremental=left % 2 == 0))
            if len(watched.made) <= left:
                break  # nothing happened
            if error is not None:
                assert isinstance(error, kind)
                assert code is None or error.errno == code
                assert words in str(error)
                assert redis.url in str(error)
            repair(redis)
            is_last = watched.made.count("compare_and_set") == 2 and watched.made[-1] == "sync"
            assert error is not None or is_last
            if is_last:
                force = left + 1  # but for the last sync
            assert load(redis.url) == force
        assert left > 5
        checkpoint.gc(store, keep=1)
        save(store, 200)
        assert load(redis.url) == 200


@pytest.mark.parametrize("trouble", ["gone", "password"])
def test_a_server_in_trouble_amid_a_load(trouble: str, tmp_path: Path) -> None:
    cause, kind, _, words, repair = TROUBLES[trouble]
    with server(tmp_path, "--appendfsync", "always") as redis, open_store(redis.url) as store:
        save(store, 0)
        for left in range(100):
            watched = Between(store, READS, left, lambda: cause(redis))
            error = error_of(partial(load, watched))
            if error is None:
                break
            assert isinstance(error, kind)
            assert words in str(error)
            repair(redis)
        assert left > 4
        assert load(redis.url) == 0


def test_a_restarting_server(tmp_path: Path) -> None:
    slow = ("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")
    need("redis")
    with RedisServer(tmp_path / "server", *slow) as redis:
        noise = {"w": torch.randn(100_000)}
        checkpoint.save(redis.url, step=0, model=noise, chunk_bytes=1024)
        redis.kill()
        redis.start()
        words = "is loading its data after a start: try again"
        with pytest.raises(ConnectionError, match=words):
            save(redis.url, 1)
        with pytest.raises(ConnectionError, match=words):
            load(redis.url)


def test_a_replica_that_only_reads_is_loaded_from(tmp_path: Path) -> None:
    with server(tmp_path) as redis:
        save(redis.url, 3)
        redis.say("REPLICAOF", "127.0.0.1", free_port())
        assert load(redis.url) == 3
        assert checkpoint.gc(redis.url, keep=1) == []  # nothing to be removed
        with pytest.raises(OSError, match="is a read-only replica: ") as caught:
            save(redis.url, 4)
        assert caught.value.errno == errno.EROFS


def test_a_server_that_evicts(tmp_path: Path) -> None:
    with server(tmp_path) as redis:
        save(redis.url, 0)
        redis.say("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        for call in (save, lambda url, _: load(url)):
            with pytest.raises(OSError, match="evicts keys when its memory is full"):
                call(redis.url, 1)
        url = f"{redis.url}?allow_eviction=1"
        assert load(url) == 0
        count = redis.say("DBSIZE")
        redis.say("CONFIG", "SET", "maxmemory", redis.client().info("memory")["used_memory"] - 9000)
        while redis.say("DBSIZE") == count:
            redis.client().set("x", bytes(2000))
        redis.say("CONFIG", "SET", "maxmemory", 0)
        with pytest.raises(OSError, match=r"windeck/HEAD|is missing, expected a ") as caught:
            load(url)
        assert isinstance(caught.value, (CorruptStoreError, FileNotFoundError))


def test_a_server_that_begins_to_evict_below_an_open_store(tmp_path: Path) -> None:
    with server(tmp_path) as redis, open_store(redis.url) as store:
        save(store, 0)
        redis.say("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        assert load(store) == 0  # all is still there
        with pytest.raises(OSError, match="evicts keys when its memory is full"):
            save(store, 1)
        assert load(store) == 0
        limit = redis.client().info("memory")["used_memory"]
        while (error := error_of(partial(load, store))) is None:
            limit -= 5000  # until something is gone that is needed
            redis.say("CONFIG", "SET", "maxmemory", limit)
        redis.say("CONFIG", "SET", "maxmemory", 0)
        assert isinstance(error, (CorruptStoreError, FileNotFoundError))
        assert re.search(r"windeck/HEAD|is missing, expected a ", str(error))


def test_a_server_that_is_started_anew_amid_a_save(tmp_path: Path) -> None:
    """The server restarts at once, without the values that were not durable."""

    def restart() -> None:
        redis.kill()
        redis.start()

    need("redis")
    with RedisServer(tmp_path / "server") as redis, open_store(redis.url) as store:
        save(store, 0)
        force, refused = 0, []
        for left in range(100):
            watched = Between(store, WRITES, left, restart)
            error = error_of(partial(save, watched, left + 1))
            if len(watched.made) == left:
                break  # nothing happened
            if error is None:
                force = left + 1
            else:
                assert isinstance(error, ConnectionError)
                assert "was restarted after data was written, which may be" in str(error)
                refused.append(watched.made[-1])
            assert load(redis.url) == force
        assert left > 5
        assert set(refused) == {"sync", "compare_and_set"}


class Amid:
    """A store that calls a function after some values of a bulk load were requested."""

    def __init__(self, store: Any, left: int, act: Any) -> None:
        self._store, self._left, self._act = store, left, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def bulk_load(self, items: Any) -> int:
        def counted() -> Iterator[Any]:
            for pair in items:
                if self._left == 0:
                    self._act()
                self._left -= 1
                yield pair

        found: int = self._store.bulk_load(counted())
        return found


def test_a_server_that_is_killed_amid_the_chunks(tmp_path: Path) -> None:
    with server(tmp_path, "--appendfsync", "always") as redis, open_store(redis.url) as store:
        save(store, 0)
        model = {"w": torch.randn(5_000_000)}
        for left in (0, 1, 15):
            with pytest.raises(ConnectionError, match="cannot be reached: writing failed: "):
                checkpoint.save(Amid(store, left, redis.kill), step=1, model=model)
            redis.start()
            assert load(store) == 0
        checkpoint.save(store, step=1, model=model)
        target = {"w": torch.zeros(5_000_000)}
        assert checkpoint.load(store, model=target).step == 1
        assert torch.equal(target["w"], model["w"])


@pytest.fixture(scope="module")
def durable_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with cluster_of_three(tmp_path_factory.mktemp("durable"), *options) as servers:
        yield servers


LOST = "cannot be reached: |the cluster is incomplete: |did not answer in time: "


def test_a_server_of_a_cluster_that_is_killed_amid_a_save(
    durable_cluster: list[RedisServer],
) -> None:
    url = f"redis+cluster://127.0.0.1:{durable_cluster[0].port}?timeout=5"
    with open_store(url) as store:
        checkpoint.save(store, step=0, model={"w": torch.zeros(10)}, namespace="between")
        force = left = 0
        while True:
            lost = durable_cluster[left % 3]
            watched = Between(store, WRITES, left, lost.kill)
            error = error_of(partial(save_small, watched, left + 1))
            if error is None:
                break
            assert isinstance(error, (ConnectionError, TimeoutError)), error
            assert re.search(LOST, str(error))
            assert "redis+cluster://127.0.0.1:" in str(error)
            lost.start()
            wait_until_whole(durable_cluster)
            if watched.made.count("compare_and_set") == 2 and watched.made[-1] == "sync":
                force = left + 1  # but for the last sync
            assert checkpoint.log(url, namespace="between")[0].step == force
            left += 1
        assert left > 5
        target = {"w": torch.zeros(10)}
        assert checkpoint.load(url, model=target, namespace="between").step == left + 1
        assert bool((target["w"] == left + 1).all())


def save_small(place: Any, step: int) -> None:
    model = {"w": torch.full((10,), float(step))}
    checkpoint.save(place, step=step, model=model, namespace="between")


@pytest.mark.parametrize("number", range(3))
def test_a_server_of_a_cluster_that_is_killed_amid_the_chunks(
    number: int, durable_cluster: list[RedisServer]
) -> None:
    lost = durable_cluster[number]
    url, name = f"redis+cluster://127.0.0.1:{durable_cluster[0].port}", f"amid-{number}"
    with open_store(url) as store:
        first, second = ({"w": torch.randn(10_000_000)} for _ in range(2))
        checkpoint.save(store, step=0, model=first, namespace=name)
        with pytest.raises((ConnectionError, TimeoutError), match=LOST):
            checkpoint.save(Amid(store, 25, lost.kill), step=1, model=second, namespace=name)
        lost.start()
        wait_until_whole(durable_cluster)
        for step, model in ((0, first), (2, second)):
            if step:
                checkpoint.save(store, step=step, model=model, namespace=name)
            target = {"w": torch.zeros(10_000_000)}
            assert checkpoint.load(url, model=target, namespace=name).step == step
            assert torch.equal(target["w"], model["w"])


def test_a_server_whose_disk_is_full(small_disk: Path) -> None:
    """The data are in the server's memory, but a save that is not durable fails."""
    need("redis")
    with RedisServer(small_disk / "server") as redis:
        save(redis.url, 0)
        with pytest.raises(OSError, match=r"could not write its data to its disk|cannot write to"):
            checkpoint.save(redis.url, step=1, model={"w": torch.randn(9_000_000)})
        # Only the last sync failed: it is in force, but not durable.
        assert [commit.step for commit in checkpoint.log(redis.url)] == [1, 0]
        redis.kill()
        redis.start()
        assert [commit.step for commit in checkpoint.log(redis.url)] == [0]
        assert load(redis.url) == 0
