"""Tests of the durability of Redis stores, with real and a few fake servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch

from support.failing import WRITES, Between, error_of
from support.internals import original, plant
from support.played_redis import bulk, played
from support.store_servers import (
    RedisServer,
    StartRedis,
    cluster_of_three,
    need,
    wait_until_whole,
)
from support.threads import at_once
from windeck import checkpoint
from windeck.checkpoint.stores import open_store


@pytest.fixture(autouse=True)
def _library() -> None:
    need("redis")


PERSISTENCE = {
    "none": (),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "no": ("--appendonly", "yes", "--appendfsync", "no"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
}


@pytest.mark.parametrize("how", PERSISTENCE)
def test_what_was_synced_survives_kill_9(start_redis: StartRedis, how: str) -> None:
    server = start_redis(*PERSISTENCE[how])
    with open_store(server.url) as store:
        store.put_many([(b"a", b"1")])
        rows = [(b"b%d" % i, os.urandom(100_000)) for i in range(9)]
        store.bulk_load(rows)
        before = server.client().info("persistence")
        store.sync()
        after = server.client().info("persistence")
        store.put_many([(b"c", b"not synced")])
        server.kill()
        server.start()
        assert store.get(b"a") == b"1"
        assert list(store.scan(b"b")) == rows
        if how == "none":
            assert store.get(b"c") is None
    if how in ("everysec", "no"):  # written anew, whole
        assert after["aof_base_size"] > before["aof_base_size"] + 900_000


def test_syncs_at_the_same_time(start_redis: StartRedis) -> None:
    server = start_redis()

    def work(name: int) -> None:
        with open_store(server.url) as store:
            store.put_many([(b"%d" % name, b"x")])
            store.sync()

    at_once(4, work)
    server.kill()
    server.start()
    assert server.say("DBSIZE") == 4


def test_durability_may_be_left_to_the_server(start_redis: StartRedis) -> None:
    server = start_redis()
    with open_store(f"{server.url}?sync=server") as store:
        store.put_many([(b"a", b"1")])
        store.sync()
    assert not list(server.folder.glob("*.rdb"))


def test_a_server_that_cannot_save(start_redis: StartRedis) -> None:
    server = start_redis("--dbfilename", "dump.rdb")
    with open_store(server.url) as store:
        store.put_many([(b"a", b"1")])
        store.sync()
        shutil.rmtree(server.folder)
        with pytest.raises(
            OSError, match="could not write its data to its disk: BGSAVE ended with"
        ):
            store.sync()


def persistence(**answers: Any) -> Any:
    """Return a played server that says what `persistence` is; other answers as for `played`."""
    said = b"".join(
        b"%b:%b\r\n" % (name.encode(), value)
        for name, value in answers.items()
        if isinstance(value, bytes)
    )
    others = {name: value for name, value in answers.items() if not isinstance(value, bytes)}
    return played(
        INFO=lambda _: bulk(b"run_id:7\r\nmaxmemory_policy:noeviction\r\n" + said), **others
    )


@pytest.mark.parametrize("waits", [1, 3])
def test_waiting_for_the_append_only_file_of_newer_servers(waits: int) -> None:
    """Debian's server is older than WAITAOF, so a played server gives the answers."""
    sent = list[list[bytes]]()

    def wait(words: list[bytes]) -> bytes:
        sent.append(words)
        return b"*2\r\n:%d\r\n:0\r\n" % (len(sent) == 2 * waits)

    def write(words: list[bytes]) -> bytes:
        sent.append(words)
        return b"+OK\r\n"

    newer = {"redis_version": b"7.2.4", "aof_enabled": b"1"}
    with (
        persistence(**newer, aof_last_write_status=b"ok", SET=write, WAITAOF=wait) as server,
        open_store(server.url) as store,
    ):
        store.sync()
    assert sent == [
        [b"SET", sent[0][1], b"", b"PX", b"1"], [b"WAITAOF", b"1", b"0", b"1000"]
    ] * waits  # fmt: skip
    sent.clear()
    with (
        persistence(**newer, aof_last_write_status=b"err", SET=write, WAITAOF=wait) as server,
        open_store(server.url) as store,
    ):
        if waits == 1:
            store.sync()
        else:
            with pytest.raises(OSError, match="cannot write its append-only file"):
                store.sync()
    assert len(sent) == 2


def test_a_dump_that_somebody_else_began_is_not_waited_for_alone() -> None:
    """A dump that began before the last writes is followed by another one."""
    answers = [b"-ERR Background save already in progress\r\n"] * 2
    answers.append(b"+Background saving started\r\n")
    older = {"redis_version": b"7.0.15", "rdb_last_bgsave_status": b"ok"}
    with (
        persistence(**older, BGSAVE=lambda _: answers.pop(0)) as server,
        open_store(server.url) as store,
    ):
        store.sync()
        assert server.seen.count(b"BGSAVE") == 3
    assert not answers


def times_written(server: RedisServer) -> int:
    """Return how often a server has written its whole data set."""
    found = server.client().info("persistence")
    return int(found.get("aof_rewrites", 0)) + int(found.get("rdb_saves", 0))


@pytest.mark.parametrize("how", PERSISTENCE)
def test_a_save_writes_the_data_set_once_at_most(start_redis: StartRedis, how: str) -> None:
    """One server keeps the order of writes, so one `sync` at the end of a save is sufficient."""
    server = start_redis(*PERSISTENCE[how])
    server.client().set("other", os.urandom(1_000_000))
    state = {"w": torch.ones(1000)}
    most = 0 if how == "always" else 1
    with open_store(server.url) as store:
        for step in range(4):
            before = times_written(server)
            checkpoint.save(store, step=step, model=state, incremental=step > 1, keep=2)
            assert times_written(server) - before == most
        before = times_written(server)
        plan = checkpoint.begin(store, step=9, writers=2)
        for writer in range(2):
            part = checkpoint.Partition(torch.ones(2), offset=(2 * writer,), shape=(4,))
            checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
        checkpoint.merge(store, plan)
        assert times_written(server) - before == most
        before = times_written(server)
        assert checkpoint.gc(store, keep=1)
        assert times_written(server) - before == most
    server.kill()
    server.start()
    assert [commit.step for commit in checkpoint.log(server.url)] == [9]
    assert checkpoint.verify(server.url, deep=True).ok


def test_nothing_is_committed_on_a_server_that_lost_writes(start_redis: StartRedis) -> None:
    """HEAD is not set, and nothing removed, if the server restarted since the first write."""
    server = start_redis()
    with open_store(server.url) as store:
        checkpoint.save(store, step=1, model={"w": torch.ones(3)})
        former = dict(store.scan())

        def restart() -> None:
            server.kill()
            server.start()

        store.put_many([(b"a", b"1")])
        store.order_writes()  # type: ignore[attr-defined]
        restart()
        with pytest.raises(ConnectionError, match="was restarted after data was written"):
            store.compare_and_set(b"windeck/HEAD", former[b"windeck/HEAD"], b"new")
        store.put_many([(b"a", b"1")])
        restart()
        with pytest.raises(ConnectionError, match="was restarted after data was written"):
            store.delete_many([b"windeck/HEAD"])
        store.put_many([(b"a", b"1")])
        restart()
        with pytest.raises(ConnectionError, match="was restarted after data was written"):
            store.order_writes()  # type: ignore[attr-defined]
        assert dict(store.scan()) == former
        store.put_many([(b"a", b"1")])
        store.delete_many([b"a", *(b"%d" % n for n in range(2500))])
        assert dict(store.scan()) == former


def test_writers_whose_server_restarts_while_their_shards_are_merged(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards were read, and are gone before HEAD is set: nothing is committed."""

    server = start_redis()
    checkpoint.save(server.url, step=1, model={"w": torch.ones(4)})
    plan = checkpoint.begin(server.url, step=2, writers=1)
    checkpoint.save_shard(server.url, plan, writer=0, model={"w": torch.zeros(4)})
    real = original("sharded_saving.merge_shards")

    def merge(*given: Any) -> Any:
        server.kill()
        server.start()
        return real(*given)

    plant(monkeypatch, "sharded_saving.merge_shards", merge)
    with pytest.raises(ConnectionError, match="was restarted after data was written"):
        checkpoint.merge(server.url, plan)
    target = {"w": torch.zeros(4)}
    assert checkpoint.load(server.url, model=target).step == 1
    assert torch.equal(target["w"], torch.ones(4))


# --- clusters ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lazy_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Yield a cluster of servers that lose writes when they are killed."""
    need("redis")
    with cluster_of_three(tmp_path_factory.mktemp("lazy")) as servers:
        yield servers


def url_of(servers: list[RedisServer]) -> str:
    return f"redis+cluster://127.0.0.1:{servers[0].port}"


def restart(servers: list[RedisServer], number: int) -> None:
    servers[number].kill()
    servers[number].start()
    wait_until_whole(servers)


def test_a_save_to_a_cluster_writes_each_data_set_once(lazy_cluster: list[RedisServer]) -> None:
    """HEAD's server keeps the order of its writes; the others are synced before HEAD is set."""
    url = url_of(lazy_cluster)
    with open_store(url) as store:
        for step in range(5):
            before = [times_written(server) for server in lazy_cluster]
            state = {f"w{i}": torch.full((1000,), float(step)) for i in range(20)}
            checkpoint.save(store, step=step, model=state, incremental=step == 3, keep=2)
            after = [times_written(server) for server in lazy_cluster]
            if step:  # the first one also makes an empty HEAD durable, before anything else
                assert [n - m for n, m in zip(after, before, strict=True)] == [1, 1, 1]
        for server in lazy_cluster:
            server.kill()
        for server in lazy_cluster:
            server.start()
        wait_until_whole(lazy_cluster)
    assert [commit.step for commit in checkpoint.log(url)] == [4, 3]
    assert checkpoint.verify(url, deep=True).ok


class AtCompareAndSet:
    """A store that calls a function before it sets a key."""

    def __init__(self, store: Any, key: bytes, act: Any) -> None:
        self._store, self._key, self._act = store, key, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        if key == self._key and expected is not None:
            self._act()
        found: bool = self._store.compare_and_set(key, expected, value)
        return found


@pytest.mark.parametrize("which", ["home", "another"])
def test_a_server_of_a_cluster_that_restarts_just_before_head(
    which: str, lazy_cluster: list[RedisServer]
) -> None:
    """HEAD's own server was not synced yet: the save is refused. The others lose nothing."""
    url, name = url_of(lazy_cluster), f"before-{which}"
    head = f"{name}/HEAD".encode()
    with open_store(url) as store:
        first, second = ({f"w{i}": torch.randn(100) for i in range(20)} for _ in range(2))
        checkpoint.save(store, step=0, model=first, namespace=name)
        from redis.cluster import RedisCluster

        with closing(RedisCluster("127.0.0.1", lazy_cluster[0].port)) as client:
            port = client.get_node_from_key(head.decode()).port  # type: ignore[no-untyped-call]
        home = [server.port for server in lazy_cluster].index(port)
        number = home if which == "home" else (home + 1) % 3
        watched: Any = AtCompareAndSet(store, head, lambda: restart(lazy_cluster, number))
        if number == home:
            with pytest.raises(ConnectionError, match="was restarted after data was written"):
                checkpoint.save(watched, step=1, model=second, namespace=name)
        else:
            checkpoint.save(watched, step=1, model=second, namespace=name)
        in_force = first if number == home else second
        target = {name: torch.zeros(100) for name in second}
        assert checkpoint.load(url, model=target, namespace=name).step == int(in_force is second)
        assert all(torch.equal(target[name], in_force[name]) for name in in_force)
        checkpoint.save(store, step=2, model=second, namespace=name)
        assert checkpoint.verify(url, deep=True, namespace=name).ok


@pytest.mark.slow
def test_no_acknowledged_save_is_lost_by_a_cluster(lazy_cluster: list[RedisServer]) -> None:
    """A server restarts at each step of a save; then all of them do, and lose what they can."""
    url, name = url_of(lazy_cluster), "steps"

    def state(step: int) -> dict[str, torch.Tensor]:
        return {f"w{i}": torch.full((100,), float(step)) for i in range(20)}

    with open_store(url) as store:
        checkpoint.save(store, step=0, model=state(0), namespace=name)
        in_force, acknowledged, refused = 0, 0, 0
        for left in range(100):
            step = left + 1
            watched: Any = Between(
                store, WRITES, left, partial(restart, lazy_cluster, left % len(lazy_cluster))
            )
            save = partial(checkpoint.save, watched, step=step, model=state(step), namespace=name)
            if error_of(save) is None:
                in_force, acknowledged = step, acknowledged + 1
            else:
                refused += 1
            for server in lazy_cluster:
                server.kill()
            for server in lazy_cluster:
                server.start()
            wait_until_whole(lazy_cluster)
            found = checkpoint.log(url, namespace=name)[0].step
            assert found == in_force or (found == step and watched.made[-1] == "sync")
            in_force, target = found, state(-1)
            checkpoint.load(url, model=target, namespace=name)
            assert all(torch.equal(target[key], own) for key, own in state(found).items())
            if len(watched.made) <= left:
                break  # nothing happened to this one
        assert acknowledged > 1
        assert refused > 2
