"""Time of writing rows to a store: packed and loaded in bulk, and a key for each.

Rows of 64 float32 packed into values of 256 KiB through `bulk_load`, against a key per row in
write batches of a thousand with each library by itself. Databases are in memory (/dev/shm), so
that what is compared is work, not disks; every load ends with what makes it durable.
"""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from measure import Row, compare

from windeck.checkpoint.stores import open_store

ROWS, WIDTH, BLOCK, BATCH = 131_072, 256, 1024, 1000
ROUNDS = 5

DATA = np.random.default_rng(0).integers(0, 256, (ROWS, WIDTH), np.uint8)
SINGLE = [(b"e/%08d" % i, row.tobytes()) for i, row in enumerate(DATA)]


def packed() -> Iterator[tuple[bytes, bytes]]:
    """The rows in blocks; made anew each time, as a save has to."""
    return ((b"e/%08d" % i, DATA[i : i + BLOCK].tobytes()) for i in range(0, ROWS, BLOCK))


def batches() -> Iterator[list[tuple[bytes, bytes]]]:
    return (SINGLE[i : i + BATCH] for i in range(0, ROWS, BATCH))


def load(url: str) -> None:
    with open_store(url) as store:
        store.bulk_load(packed())
        store.sync()


def rocksdb_rows(path: str) -> None:
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    database = rocksdict.Rdict(path, options)
    for rows in batches():
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in rows:
            batch.put(key, value)
        database.write(batch)
    database.flush_wal(True)
    database.close()


def leveldb_rows(path: str) -> None:
    import plyvel

    with closing(plyvel.DB(path, create_if_missing=True, compression=None)) as database:
        for rows in batches():
            with database.write_batch(sync=True) as batch:
                for key, value in rows:
                    batch.put(key, value)


def redis_rows(client: Any) -> None:
    for rows in batches():
        client.mset(dict(rows))


def embedded(kind: str, rows: Any, folder: Path) -> Row:
    folder.mkdir()
    numbers = itertools.count()

    def fresh() -> str:
        for old in folder.iterdir():
            shutil.rmtree(old)
        return str(folder / str(next(numbers)))

    where = fresh()
    load(f"{kind}://{where}")
    with open_store(f"{kind}://{where}") as store:
        assert b"".join(value for _, value in store.scan()) == DATA.tobytes()
    return Row(
        question=f"load {ROWS:,} rows of {WIDTH} bytes into {kind}",
        ours="bulk_load of 256 KiB values",
        rival=f"a key per row, batches of {BATCH:,}",
        ratio=compare(
            lambda: load(f"{kind}://{fresh()}"), lambda: rows(fresh()), rounds=ROUNDS, warm_up=1
        ),
        needed=None,
    )


@contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--unixsocket", f"{folder}/redis.sock", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield port
    finally:
        server.kill()
        server.wait()


def redis(folder: Path) -> Iterator[Row]:
    from redis import Redis

    with redis_server(folder) as port, Redis(port=port) as client:
        url = f"redis://127.0.0.1:{port}/0?sync=server"

        def ours() -> None:
            client.flushall()
            load(url)

        def rival() -> None:
            client.flushall()
            redis_rows(client)

        ours()
        with open_store(url) as store:
            assert b"".join(value for _, value in store.scan()) == DATA.tobytes()
        yield Row(
            question=f"load {ROWS:,} rows of {WIDTH} bytes into redis",
            ours="bulk_load of 256 KiB values",
            rival=f"a key per row, MSET of {BATCH:,}",
            ratio=compare(ours, rival, rounds=ROUNDS, warm_up=1),
            needed=None,
        )


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        yield embedded("rocksdb", rocksdb_rows, folder / "rocksdb")
        yield embedded("leveldb", leveldb_rows, folder / "leveldb")
        yield from redis(folder)
