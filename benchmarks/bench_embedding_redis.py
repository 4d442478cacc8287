"""Time of an embedding table's export to Redis and import: in blocks, and row by row.

As in bench_embedding_stores, whose table it is. The rival sets and gets a key for each row, many in
a command. Neither asks the server to make anything durable. What an export cannot go below is a row
too: the same bytes, over a bare socket.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bench_embedding_stores import (
    BATCH,
    COUNT,
    DIM,
    FULL,
    ROUNDS,
    apart,
    gathered,
    load,
    same,
    save,
    single,
)
from bench_stores import redis_server
from measure import Row, compare

from windeck.checkpoint.stores import open_store

BATCHES = (100, 1000, 10_000)  # rows of one MSET or MGET: all are in use, none is the best for all


def bare_socket(place: str | int, pairs: list[tuple[bytes, bytes]]) -> None:
    """Lower limit of any client: values that are ready are sent, and nothing else is done."""
    with closing(connected(place)) as link:
        for key, value in pairs:
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(value))
            left = [memoryview(part) for part in (head, value, b"\r\n")]
            while left:
                taken = link.sendmsg(left)
                while left and taken >= len(left[0]):
                    taken -= len(left.pop(0))
                if left:
                    left[0] = left[0][taken:]
        answers = b""
        while len(answers) < 5 * len(pairs):
            answers += link.recv(1 << 16)
    assert answers == b"+OK\r\n" * len(pairs)


def connected(place: str | int) -> socket.socket:
    """To a port of this machine, or to a path."""
    if isinstance(place, int):
        link = socket.create_connection(("127.0.0.1", place))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link
    link = socket.socket(socket.AF_UNIX)
    link.connect(place)
    return link


def redis(folder: Path) -> Iterator[Row]:
    from redis import Redis

    with redis_server(folder) as port, Redis(port=port) as client:
        path = f"{folder}/redis.sock"
        url = f"redis://127.0.0.1:{port}/0?sync=server"
        rows = Redis(port=port, db=1)

        def put(rows: Redis, batch: int = BATCH) -> None:
            for keys, values in single(batch):
                rows.mset(dict(zip(keys, values, strict=True)))

        def used() -> None:
            client.flushall(asynchronous=True)
            while client.dbsize() or client.info("memory")["lazyfree_pending_objects"]:
                time.sleep(0.001)

        save(url)
        put(rows)
        same(load(url), FULL)
        same(gathered(rows.mget), FULL)
        with open_store(url) as store:
            pairs = list(store.scan())

        # FLUSHALL hands memory back to the system, so that both have to get all of it anew; ASYNC
        # leaves it to the server, which is what one has that removed other values before.
        for memory, empty in (("fresh", client.flushall), ("used", used)):
            question = f"export {COUNT:,} rows of {DIM} float32 to redis, {memory} memory"
            yield from exports(question, url, port, rows, pairs, put, empty)
        by_path = Redis(unix_socket_path=path, db=1)
        question = f"export {COUNT:,} rows of {DIM} float32 to redis, used memory, Unix socket"
        local = f"redis+unix://{path}?sync=server"
        yield from exports(question, local, path, by_path, pairs, put, used)
        by_path.close()

        save(url)
        put(rows)
        for batch in BATCHES:
            yield Row(
                question=f"import {COUNT:,} rows of {DIM} float32 from redis",
                ours="load(embeddings=)",
                rival=f"a key per row, MGET of up to {batch:,}",
                ratio=compare(
                    partial(load, url),
                    partial(gathered, rows.mget, batch),
                    rounds=ROUNDS,
                    warm_up=1,
                ),
                needed=10,
            )
        rows.close()


def exports(
    question: str,
    url: str,
    place: str | int,
    rows: Any,
    pairs: list[tuple[bytes, bytes]],
    put: Callable[..., None],
    empty: Callable[[], Any],
) -> Iterator[Row]:
    """An export to a URL against the rivals on the same kind of connection, and what it cannot go
    below."""
    for batch in BATCHES:
        yield Row(
            question=question,
            ours="save(embeddings=)",
            rival=f"a key per row, MSET of up to {batch:,}",
            ratio=apart(partial(save, url), partial(put, rows, batch), empty),
            needed=20,
        )
    yield Row(
        question=question,
        ours="bare socket, same bytes, which lie ready",
        rival=f"a key per row, MSET of up to {BATCH:,}",
        ratio=apart(partial(bare_socket, place, pairs), partial(put, rows), empty),
        needed=None,
    )


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield from redis(Path(name))
