"""Time of an embedding table's export to a store and import: in blocks, and row by row.

Tables of 262,144 rows of 64 float32, native on both sides. Ours is `checkpoint.save` and `load` of
a table, opening and closing of the database and the commit included. The rivals put and get a key
for each row with each library by itself, out of the same table and into the same kind of table;
rows are taken out of it and put into it many at a time. All embedded databases are durable at the
end, and what comes back is compared before anything is timed. In memory (/dev/shm) the work is
compared, on a disk the wall time.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Ratio, Row, compare, limit, ratio_of, seconds

from windeck import checkpoint
from windeck._core import EmbeddingCore
from windeck.checkpoint.stores import open_store

COUNT, DIM, BATCH = 262_144, 64, 1000
ROUNDS = 5
FIELDS = ("keys", "versions", "frequencies", "seen", "admitted", "values")
IDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, COUNT)
Batches = Iterator[tuple[list[bytes], list[bytes]]]


class Table:
    """A table, with the members that `save` and `load` use."""

    config: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, first_bucket: int = 0, end_bucket: int = 1024) -> None:
        self.core = EmbeddingCore(DIM, first_bucket=first_bucket, end_bucket=end_bucket)


def filled() -> Table:
    table = Table()
    for first in range(0, COUNT, 1 << 16):
        table.core.lookup(IDS[first : first + (1 << 16)], insert=True)
    table.core.apply(IDS[:1], np.ones((1, DIM), np.float32), kind="sgd", lr=0.1)
    return table


FULL = filled()


def save(url: str) -> None:
    with open_store(url) as store:
        checkpoint.save(store, step=1, embeddings={"t": FULL})


def load(url: str) -> Table:
    table = Table()
    with open_store(url) as store:
        checkpoint.load(store, embeddings={"t": table})
    return table


def same(one: Table, two: Table) -> None:
    """Assert that two tables have the same rows; versions and counts are not in single rows."""
    with one.core.snapshot() as a, two.core.snapshot() as b:
        for first in range(0, 1024, 256):
            x, y = a.read(first, first + 256), b.read(first, first + 256)
            assert all(np.array_equal(x[name], y[name]) for name in ("keys", "values"))


def single(batch: int = BATCH) -> Batches:
    """Keys and values of rows, some at a time."""
    with FULL.core.snapshot() as snapshot:
        for first in range(0, 1024, 64):
            found = snapshot.read(first, first + 64)
            keys, values = found["keys"].astype(">i8").tobytes(), found["values"].tobytes()
            for at in range(0, len(found["keys"]), batch):
                some = range(at, min(at + batch, len(found["keys"])))
                yield (
                    [keys[8 * i : 8 * i + 8] for i in some],
                    [values[4 * DIM * i : 4 * DIM * (i + 1)] for i in some],
                )


def gathered(get: Callable[[list[bytes]], list[bytes]], batch: int = BATCH) -> Table:
    """A table of rows that are asked for some at a time."""
    table = Table()
    for first in range(0, COUNT, batch):
        ids = IDS[first : first + batch]
        packed = ids.astype(">i8").tobytes()
        rows = b"".join(get([packed[i : i + 8] for i in range(0, len(packed), 8)]))
        none, values = np.zeros(len(ids), np.int64), np.frombuffer(rows, np.float32)
        table.core.insert(ids, none, none, none, none == 0, values.reshape(len(ids), DIM))
    return table


def rocksdb_open(path: str) -> Any:
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    return rocksdict.Rdict(path, options)


def rocksdb_put(path: str) -> None:
    import rocksdict

    with closing(rocksdb_open(path)) as database:
        for keys, values in single():
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in zip(keys, values, strict=True):
                batch.put(key, value)
            database.write(batch)
        database.flush_wal(True)


def rocksdb_get(path: str) -> Table:
    with closing(rocksdb_open(path)) as database:
        get = database.get
        return gathered(lambda keys: [get(key) for key in keys])


def leveldb_put(path: str) -> None:
    import plyvel

    with closing(plyvel.DB(path, create_if_missing=True, compression=None)) as database:
        for keys, values in single():
            with database.write_batch(sync=True) as batch:
                for key, value in zip(keys, values, strict=True):
                    batch.put(key, value)


def leveldb_get(path: str) -> Table:
    import plyvel

    with closing(plyvel.DB(path, compression=None)) as database:
        get = database.get
        return gathered(lambda keys: [get(key) for key in keys])


PUT = {"rocksdb": rocksdb_put, "leveldb": leveldb_put}
GET = {"rocksdb": rocksdb_get, "leveldb": leveldb_get}


def apart(
    ours: Callable[[], object], rival: Callable[[], object], between: Callable[[], object]
) -> Ratio:
    """As `compare`, with something to be done before each turn that is not timed."""
    pairs = []
    for turn in range(ROUNDS + 1):
        taken = []
        for action in (ours, rival) if turn % 2 else (rival, ours):
            between()
            taken.append(seconds(action))
        pairs.append((taken[0], taken[1]) if turn % 2 else (taken[1], taken[0]))
    return ratio_of(pairs[1:])  # the first touches the memory


def embedded(kind: str, folder: Path, where: str) -> Iterator[Row]:
    numbers = itertools.count()

    def fresh() -> str:
        return str(folder / str(next(numbers)))

    def clean() -> None:
        for old in folder.iterdir():
            if old.name not in ("ours", "rival"):
                shutil.rmtree(old)

    ours, rival = f"{kind}://{folder}/ours", str(folder / "rival")
    save(ours)
    PUT[kind](rival)
    same(load(ours), FULL)
    same(GET[kind](rival), FULL)
    if kind == "rocksdb":
        yield Row(
            question=f"export {COUNT:,} rows of {DIM} float32 to {kind}, {where}",
            ours="save(embeddings=)",
            rival=f"a key per row, write batches of {BATCH:,}",
            ratio=apart(lambda: save(f"{kind}://{fresh()}"), lambda: PUT[kind](fresh()), clean),
            needed=10,
        )
        yield direct(fresh, clean, folder, where)
    yield Row(
        question=f"import {COUNT:,} rows of {DIM} float32 from {kind}, {where}",
        ours="load(embeddings=)",
        rival="a get per row",
        ratio=compare(lambda: load(ours), lambda: GET[kind](rival), rounds=ROUNDS, warm_up=1),
        needed=5,
    )


class Loaded:
    """A snapshot out of arrays: what was read back from a file."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found, self.clock, self.history = found, 0, 0
        self._counts = np.bincount(found["buckets"], minlength=1024)
        self._starts = np.append(0, np.cumsum(self._counts))
        self.rows = len(found["keys"])

    def counts(self, since: int = -1) -> Any:
        return self._counts

    def read(self, first: int, end: int, since: int = -1) -> dict[str, Any]:
        at = slice(self._starts[first], self._starts[end])
        return {name: self._found[name][at] for name in FIELDS}

    def close(self) -> None:
        pass


class FromFile:
    """A table whose rows are those of a file."""

    config: dict[str, Any] = {}  # noqa: RUF012
    dim, slots, first_bucket, end_bucket, history = DIM, 0, 0, 1024, 0

    def __init__(self, path: Path) -> None:
        found = torch.load(path, weights_only=True)
        self._found = {name: value.numpy() for name, value in found.items()}
        self.core = self

    def snapshot(self) -> Loaded:
        return Loaded(self._found)

    def forget_dead(self, clock: int) -> None:
        pass


def through_a_file(url: str, path: Path) -> None:
    from windeck._core import bucket_of

    with FULL.core.snapshot() as snapshot:
        found = snapshot.read(0, 1024)
    found["buckets"] = bucket_of(found["keys"])
    with open(path, "wb") as file:
        torch.save({name: torch.from_numpy(value) for name, value in found.items()}, file)
        file.flush()
        os.fsync(file.fileno())
    del found
    with open_store(url) as store:
        checkpoint.save(store, step=1, embeddings={"t": FromFile(path)})


def direct(fresh: Callable[[], str], clean: Callable[[], object], folder: Path, where: str) -> Row:
    path = folder.parent / "file.pt"
    url = f"rocksdb://{fresh()}"
    through_a_file(url, path)
    same(load(url), FULL)
    return Row(
        question=f"export {COUNT:,} rows of {DIM} float32 to rocksdb, {where}",
        ours="straight from memory",
        rival="torch.save + fsync, then the database filled the same way from that file",
        ratio=apart(
            lambda: save(f"rocksdb://{fresh()}"),
            lambda: through_a_file(f"rocksdb://{fresh()}", path),
            clean,
        ),
        needed=1.8,
    )


def changed() -> Row:
    """Bytes of an incremental save after one row in a hundred changed, everywhere in the table."""
    table = filled()
    with open_store("memory://") as store:
        checkpoint.save(store, step=1, embeddings={"t": table}, incremental=True)
        full = sum(len(value) for _, value in store.scan())
        some = IDS[::100]
        table.core.apply(some, np.ones((len(some), DIM), np.float32), kind="sgd", lr=0.1)
        checkpoint.save(store, step=2, embeddings={"t": table}, incremental=True)
        delta = sum(len(value) for _, value in store.scan()) - full
        new = Table()
        checkpoint.load(store, embeddings={"t": new})
        same(new, table)
    return Row(
        question=f"bytes of a save after 1 % of {COUNT:,} rows changed",
        ours="incremental=True",
        rival="all",
        ratio=ratio_of([(delta, full)]),
        needed=20,
    )


def restored() -> Row:
    """Bytes read by three shards of what four wrote."""
    with open_store("memory://") as store:
        plan = checkpoint.begin(store, step=1, writers=4)
        with FULL.core.snapshot() as snapshot:
            for rank in range(4):
                own = Table(rank * 256, (rank + 1) * 256)
                found = snapshot.read(rank * 256, (rank + 1) * 256)
                own.core.insert(*(found[name] for name in FIELDS))
                checkpoint.save_shard(store, plan, writer=rank, embeddings={"t": own})
        checkpoint.merge(store, plan)
        read = 0

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def get(self, key: bytes) -> bytes | None:
                return self.get_many([key])[0]

            def get_many(self, keys: Any) -> list[bytes | None]:
                nonlocal read
                found = store.get_many(keys)
                read += sum(len(value or b"") for value in found)
                return found

        for rank in range(3):
            new = Table(rank * 1024 // 3, (rank + 1) * 1024 // 3)
            checkpoint.load(Counting(), embeddings={"t": new})
        needed = COUNT * (4 * DIM + 33)
    return Row(
        question="bytes read to restore 4 shards into 3, over the bytes of the rows",
        ours=f"{read / needed:.4f}",
        rival="1.05 allowed",
        ratio=limit(read / needed, 1.05),
        needed=1,
    )


def rows() -> Iterator[Row]:
    yield changed()
    yield restored()
    for where, parent in (("in memory", "/dev/shm"), ("on disk", None)):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            for kind in ("rocksdb", "leveldb"):
                folder = Path(name) / kind
                folder.mkdir()
                yield from embedded(kind, folder, where)
                shutil.rmtree(folder)
