"""Tests of the durability of Redis stores, with real and a few fake servers."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from support.store_servers import StartRedis, need
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


def test_waiting_for_the_append_only_file_of_newer_servers() -> None:
    """Debian's server is older than WAITAOF, so a fake server gives the answers."""
    from windeck.checkpoint.stores.redis_durability import make_durable

    class Pipe:
        def __init__(self, node: Node) -> None:
            self.node = node

        def __enter__(self) -> Pipe:
            return self

        def __exit__(self, *error: object) -> None: ...

        def execute_command(self, *command: object) -> None:
            self.node.sent.append(command)

        def execute(self) -> list[object]:
            return [True, [self.node.answers.pop(0), 0]]

    class Node:
        def __init__(self, answers: list[int]) -> None:
            self.answers, self.sent = answers, list[tuple[object, ...]]()

        def info(self, section: str) -> dict[str, object]:
            return {"aof_enabled": 1, "redis_version": "7.2.4", "aof_last_write_status": "err"}

        def pipeline(self, transaction: bool) -> Pipe:
            assert not transaction
            return Pipe(self)

    node = Node([1])
    make_durable(node, b"key")
    assert node.sent == [("SET", b"key", b"", "PX", 1), ("WAITAOF", 1, 0, 1000)]
    with pytest.raises(OSError, match="cannot write its append-only file"):
        make_durable(Node([0, 1]), b"key")


def test_a_dump_that_somebody_else_began_is_not_waited_for_alone() -> None:
    """A dump that began before the last writes is followed by another one."""
    import redis

    from windeck.checkpoint.stores.redis_durability import make_durable

    class Node:
        refusals, sent = 2, list[str]()

        def info(self, section: str) -> dict[str, object]:
            return {"rdb_last_bgsave_status": "ok"}

        def execute_command(self, command: str) -> None:
            self.sent.append(command)
            if len(self.sent) <= self.refusals:
                raise redis.ResponseError("Background save already in progress")

    node = Node()
    make_durable(node, b"key")
    assert node.sent == ["BGSAVE"] * 3


@pytest.mark.parametrize("how", PERSISTENCE)
def test_a_save_writes_the_data_set_once_at_most(start_redis: StartRedis, how: str) -> None:
    """One server keeps the order of writes, so one `sync` at the end of a save is sufficient."""
    server = start_redis(*PERSISTENCE[how])

    def written() -> int:
        found = server.client().info("persistence")
        return int(found.get("aof_rewrites", 0)) + int(found.get("rdb_saves", 0))

    server.client().set("other", os.urandom(1_000_000))
    state = {"w": torch.ones(1000)}
    most = 0 if how == "always" else 1
    with open_store(server.url) as store:
        for step in range(4):
            before = written()
            checkpoint.save(store, step=step, model=state, incremental=step > 1, keep=2)
            assert written() - before == most
        before = written()
        plan = checkpoint.begin(store, step=9, writers=2)
        for writer in range(2):
            part = checkpoint.Partition(torch.ones(2), offset=(2 * writer,), shape=(4,))
            checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
        checkpoint.merge(store, plan)
        assert written() - before == most
        before = written()
        assert checkpoint.gc(store, keep=1)
        assert written() - before == most
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
