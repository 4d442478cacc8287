"""Tests of table files written by windeck: RocksDB and its tools accept them."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.internals import plant
from support.split_items import SplitItems
from support.store_servers import need, noted_engines, unavailable
from windeck import checkpoint
from windeck._core import crc32c
from windeck._util import Task
from windeck.checkpoint.stores import CorruptStoreError, Pieces, Store, open_store, write_part
from windeck.io import create_file

need("rocksdb")
import rocksdict  # noqa: E402

#: The key of the entry that seals a database.
SEAL_KEY = b"\0windeck.seal"
SIZES = [0, 1, 10, 127, 128, 300, 4000, 4096, 16383, 16384, 16385, 70_000, 2_100_000]


def rows(count: int, seed: int) -> dict[bytes, bytes]:
    """Pairs of all sizes, mostly small, in ascending order of keys."""
    draw = random.Random(seed)
    found = {}
    for i in range(count):
        key = b"%06d" % i + b"x" * draw.choice([0, 0, 0, 3, 110, 111, 112, 300])
        size = draw.choice(SIZES if draw.random() < 0.1 else SIZES[:6])
        found[key] = draw.randbytes(size)
    return found


def split(value: bytes, draw: random.Random) -> Pieces:
    at = draw.randrange(len(value) + 1)
    return Pieces(value[:at], memoryview(value)[at:], crc32c(value[at:]))


def test_pairs_of_all_sizes_in_pieces_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, model = random.Random(1), rows(3000, 0)
    engines = noted_engines(monkeypatch)
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        items = ((k, split(v, draw) if draw.random() < 0.5 else v) for k, v in model.items())
        assert store.bulk_load(items) == 3000
        assert dict(store.scan()) == model
        assert store.get_many(list(model)) == list(model.values())
        assert all(store.get(key + b"\0") is None for key in list(model)[::50])
        for at in range(0, 3000, 97):  # a seek to each kind of place
            key = list(model)[at]
            assert next(store.scan(start=key)) == (key, model[key])
            assert next(store.scan(start=key + b"\0"))[0] == list(model)[at + 1]
        # Taken apart and put together again by the engine: with what lies over it.
        store.put_many([(list(model)[7], b"new"), (list(model)[1500], b"newer")])
        store.sync()
        engines[0].compact_range(None, None)
        model |= {list(model)[7]: b"new", list(model)[1500]: b"newer"}
        assert dict(store.scan()) == model
    with open_store(f"{url}?readonly=1") as store:
        assert dict(store.scan()) == model


def engine_options() -> rocksdict.Options:
    """Return options of the engine for tables of format 5 without compression."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(5)
    tables.set_checksum_type(rocksdict.ChecksumType.crc32c())
    options.set_block_based_table_factory(tables)
    return options


@pytest.mark.parametrize("large", [1, 1 << 30])
def test_one_pair_and_blocks_of_any_kind(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "rocksdb_sst.LARGE_BYTES", large)
    plant(monkeypatch, "rocksdb_sst.BUFFER_BYTES", 1000)
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        store.bulk_load([(b"k", b"")])
        assert list(store.scan()) == [(b"k", b"")]
        model = {b"m%04d" % i: b"v" * (i % 40) for i in range(1000)}
        store.bulk_load(model.items())
        assert dict(store.scan(b"m")) == model
        assert all(store.get(key) == value for key, value in model.items())


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return number, at


def pairs_of(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of a block of properties or of the metaindex."""
    (count,) = struct.unpack("<I", block[-4:])
    at, key = 0, b""
    while at < len(block) - 4 - 4 * count:
        shared, at = varint(block, at)
        size, at = varint(block, at)
        length, at = varint(block, at)
        key = key[:shared] + block[at : at + size]
        yield key, block[at + size : at + size + length]
        at += size + length


def properties(path: Path) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The properties of a table, and its footer without the places."""
    data = path.read_bytes()
    foot = data[-53:]
    offset, at = varint(foot, 1)
    size, _ = varint(foot, at)
    ((name, where),) = pairs_of(data[offset : offset + size])
    assert name == b"rocksdb.properties"
    offset, at = varint(where, 0)
    size, _ = varint(where, at)
    return list(pairs_of(data[offset : offset + size])), foot[:1] + foot[-12:]


def test_properties_are_those_of_the_engine(tmp_path: Path) -> None:
    model = rows(500, 3)
    with open_store(f"rocksdb://{tmp_path}/x"):
        write_part(f"rocksdb://{tmp_path}/x", "ours", model.items())
    writer = rocksdict.SstFileWriter(engine_options())
    writer.open(str(tmp_path / "theirs"))
    for key, value in model.items():
        writer[key] = value
    writer.finish()
    ours, our_foot = properties(tmp_path / "x" / "windeck.parts" / "ours")
    theirs, their_foot = properties(tmp_path / "theirs")
    assert our_foot == their_foot
    named = dict(ours)
    assert [*named] == sorted(named)
    # RocksDB's repair drops the engine's table, which belongs to no column family.
    assert named.pop(b"rocksdb.column.family.name") == b"default"
    assert named.keys() < dict(theirs).keys()
    # Keys that begin alike are not shortened, so places and sizes differ; all else is the same.
    differ = {name for name, value in theirs if named.get(name, value) != value}
    free = b"data.size index.size tail.start.offset num.data.blocks column.family.id"
    free += b" block.based.table.index.type"  # ours has the first key of each block
    assert differ <= {b"rocksdb." + name for name in free.split()}
    assert varint(named[b"rocksdb.num.entries"], 0)[0] == 500
    assert named[b"rocksdb.data.size"] == named[b"rocksdb.tail.start.offset"]


def tool(name: str, *arguments: object) -> str:
    """Run one of RocksDB's command-line tools and return its output."""
    found = shutil.which(name) or shutil.which(f"rocksdb_{name}")
    if found is None:
        unavailable(f"{name} is not installed: apt-get install rocksdb-tools")
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-500:]
    return done.stdout


def ldb(path: Path, *arguments: str) -> str:
    """Run `ldb` on a database that a newer RocksDB may have written."""
    return tool("ldb", f"--db={path}", "--ignore_unknown_options", *arguments)


def scanned(path: Path) -> dict[bytes, bytes]:
    """The pairs of a database, read by `ldb`."""
    lines = ldb(path, "scan", "--hex").splitlines()
    pairs = (line.split(" : ") for line in lines)
    found = {bytes.fromhex(key[2:]): bytes.fromhex(value[2:]) for key, value in pairs}
    del found[SEAL_KEY]
    return found


@pytest.mark.parametrize("action", ["repair", "compact"])
def test_rocksdb_tools_verify_scan_compact_and_repair_tables(action: str, tmp_path: Path) -> None:
    """Tables that overlap, also with what the engine wrote before and after them."""
    path, url = tmp_path / "x", f"rocksdb://{tmp_path}/x"
    model = rows(700, 9)
    keys = list(model)
    with open_store(url) as store:
        store.bulk_load(model.items())
        for turn in range(4):
            changed = dict.fromkeys(keys[100 * turn : 100 * turn + 300], b"%d" % turn * 200)
            if turn % 2:
                store.put_many(changed.items())
                store.sync()
            else:
                store.bulk_load(changed.items())
            model |= changed
        store.delete_range(b"0001")
        store.bulk_load([(b"z", b"large" * 10_000)])
    model = {k: v for k, v in model.items() if not k.startswith(b"0001")}
    model[b"z"] = b"large" * 10_000
    tables = sorted(path.glob("*.sst"))
    assert len(tables) > 1
    for table in tables:
        assert "The file is ok" in tool("sst_dump", f"--file={table}", "--command=verify")
    assert scanned(path) == model
    ldb(path, action)
    lost = path / "lost"
    assert not list(lost.glob("*.sst")) if lost.exists() else action == "compact"
    assert scanned(path) == model
    with open_store(url) as store:
        assert dict(store.scan()) == model


def test_flipped_bytes_of_a_small_table(tmp_path: Path) -> None:
    """With a flipped byte a table is refused, or raises when read, or has the same values."""
    model = {b"a%d" % i: b"value %d" % i for i in range(3)}
    model |= {b"b": b"large" * 4000, b"c": b"small"}
    write_part(f"rocksdb://{tmp_path}/x", "p", model.items())
    data = (tmp_path / "x" / "windeck.parts" / "p").read_bytes()
    tail = len(data) - 1700
    places = [*range(0, 200, 9), *range(200, tail, 1997), *range(tail, len(data), 7)]
    outcomes = {"refused": 0, "found out": 0, "irrelevant": 0}
    for at in [*places, *range(len(data) - 12, len(data))]:
        url = f"rocksdb://{tmp_path}/{at}"
        with open_store(url) as store:
            write_part(url, "p", [])
            damaged = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
            (tmp_path / str(at) / "windeck.parts" / "p").write_bytes(damaged)
            try:
                store.ingest_parts(["p"])  # type: ignore[attr-defined]
            except OSError:
                outcomes["refused"] += 1
                assert list(store.scan()) == []
                continue
            try:
                assert dict(store.scan()) == model
                outcomes["irrelevant"] += 1
            except CorruptStoreError:
                outcomes["found out"] += 1
    assert outcomes["refused"] > 100
    assert outcomes["found out"] > 5
    assert outcomes["irrelevant"] < 20  # what pads the footer


def test_an_error_of_the_file_system_is_named_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    create = create_file

    def full(path: Path) -> int:
        os.close(create(path))
        return os.open("/dev/full", os.O_WRONLY)

    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        store.put_many([(b"a", b"1")])
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        plant(monkeypatch, "rocksdb_sst.create_file", full)
        message = rf"{url}: writing the table file bulk-\S+ failed: No space left on device"
        for size in (2, 100_000, 1_000_000):  # buffered until the end, and written at once
            with pytest.raises(OSError, match=message) as caught:
                store.bulk_load([(b"b", b"2" * size)])
            assert caught.value.errno == 28
        with pytest.raises(OSError, match=r"the table file p failed: No space") as caught:
            write_part(url, "p", [(b"b", b"2")])
        monkeypatch.undo()
        assert os.listdir(tmp_path / "x" / "windeck.parts") == []
        assert list(store.scan()) == [(b"a", b"1")]
        if before:
            assert len(os.listdir("/proc/self/fd")) == before


def lanes_of(model: dict[bytes, bytes], parts: int, *, broken: bool = False) -> SplitItems:
    """Return a model in parts."""
    pairs, size = sorted(model.items()), -(-len(model) // parts)

    def make(at: int) -> Iterator[tuple[bytes, bytes]]:
        yield from pairs[at : at + size]
        if broken and at:
            raise RuntimeError(f"no more after {at}")

    return SplitItems(*(partial(make, at) for at in range(0, len(pairs), size)))


class Splitting:
    """A store that splits what is loaded, and notes the keys of each range."""

    def __init__(self, store: Store, most: int) -> None:
        self.store, self.most, self.ranges = store, most, list[list[bytes]]()

    def bulk_load(self, items: Any) -> int:
        count = 0
        for pairs in items.split(self.most):
            held = [(key, bytes(value)) for key, value in pairs]
            self.ranges.append([key for key, _ in held])
            count += self.store.bulk_load(held)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.mark.parametrize(
    ("most", "least", "sizes"),
    [
        (1, 1000, [7]),
        (3, 1000, [2, 3, 2]),
        (3, 6000, [3, 4]),
        (100, 1000, [1] * 7),
        (100, 20_000, [7]),
    ],
)
def test_a_save_is_split_into_similar_ranges(
    most: int, least: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "protocol.MIN_SPLIT_BYTES", least)
    place: Any = Splitting(open_store("memory://"), most)
    model = {f"w{i}": torch.full((500,), float(i)) for i in range(7)}
    checkpoint.save(place, step=1, model=model)
    assert [*map(len, place.ranges)] == sizes
    found = [key for one in place.ranges for key in one]
    assert found == sorted(found)
    loaded = {name: torch.empty(500) for name in model}
    checkpoint.load(place, model=loaded)
    assert all(torch.equal(loaded[name], model[name]) for name in model)


def test_lanes_are_written_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = rows(900, 7)
    plant(monkeypatch, "rocksdb_bulk.THREADS", 4)
    before = threading.active_count()
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        assert store.bulk_load(lanes_of(model, 7)) == 900
        assert dict(store.scan()) == model
        assert store.bulk_load(SplitItems()) == 0
        parts: list[list[tuple[bytes, bytes]]] = [[(b"y", b"1")], [], [], [(b"y2", b"2")]]
        assert store.bulk_load(SplitItems(*(part.copy for part in parts))) == 2
        assert [key for key, _ in store.scan(b"y")] == [b"y", b"y2"]
        store.delete_range(b"y")
        with pytest.raises(RuntimeError, match="no more after "):
            store.bulk_load(lanes_of({b"z" + k: v for k, v in model.items()}, 7, broken=True))
        mixed = SplitItems(lambda: [(b"z2", b"1")], lambda: [(b"z1", b"2")])
        with pytest.raises(ValueError, match="in ascending order, got b'z1' after b'z2'"):
            store.bulk_load(mixed)
        assert dict(store.scan()) == model
        assert os.listdir(tmp_path / "x" / "windeck.parts") == []
    assert threading.active_count() == before


@pytest.mark.parametrize("how", ["a lane", "the user"])
def test_lanes_end_when_another_fails(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with their last pair: what they write is thrown away."""
    begun, many, asked = threading.Event(), 2_000_000, [0]

    def long() -> Iterator[tuple[bytes, bytes]]:
        for asked[0] in range(many):
            begun.set()
            yield b"%08d" % asked[0], b""

    def failing() -> Iterator[tuple[bytes, bytes]]:
        begun.wait()
        if how == "a lane":
            raise RuntimeError("no more")
        yield b"z", b""

    wait, interrupts = Task.wait, iter([True])

    def interrupted(task: Task[object], timeout: float | None = None) -> bool:
        if next(interrupts, False):
            begun.wait()
            raise KeyboardInterrupt
        return wait(task, timeout)

    plant(monkeypatch, "rocksdb_bulk.THREADS", 2)
    if how == "the user":
        plant(monkeypatch, "threads.Task.wait", interrupted)
    expected = RuntimeError if how == "a lane" else KeyboardInterrupt
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        with pytest.raises(expected):
            store.bulk_load(SplitItems(long, failing))
        assert asked[0] < many - 1
        assert list(store.scan()) == []


def test_what_asks_for_compression_is_written_by_the_engine(tmp_path: Path) -> None:
    draw, model = random.Random(6), rows(300, 6)
    url = f"rocksdb://{tmp_path}/x"
    with open_store(f"{url}?compression=zstd") as store:
        store.bulk_load((key, split(value, draw)) for key, value in model.items())
        assert dict(store.scan()) == model


def counts_next_to(call: Callable[[], object]) -> int:
    """Return how far another thread counts while a call runs."""
    count, begun, ended = 0, threading.Event(), threading.Event()

    def work() -> None:
        nonlocal count
        begun.set()
        while not ended.is_set():
            count += 1

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    before = count
    call()
    counted = count - before
    ended.set()
    thread.join()
    return counted


def releases_the_lock(folder: Path) -> bool:
    """Return True if another thread counts while rocksdict writes a large value and finishes.

    The calls take some 100 ms each, the interval at which threads take turns is 5 ms, and a count
    takes less than 1 us. A thread that runs between two steps of Python only counts at the begin
    and the end of a call.
    """
    value = bytes(64 << 20)
    least = counts_next_to(lambda: crc32c(memoryview(value)))  # without the lock, and quicker
    writer = rocksdict.SstFileWriter(engine_options())
    writer.open(str(folder / "probe.sst"))
    counted = [
        counts_next_to(lambda: writer.__setitem__(b"k", value)),
        counts_next_to(writer.finish),
    ]
    return min(counted) > least / 2


def survives_repair(folder: Path) -> bool:
    """Return True if a repair keeps the keys of a table that rocksdict wrote."""
    path = folder / "repaired"
    options = engine_options()
    database = rocksdict.Rdict(str(path), options)
    writer = rocksdict.SstFileWriter(options)
    writer.open(str(folder / "table.sst"))
    writer[b"k"] = b"value"
    writer.finish()
    database.ingest_external_file([str(folder / "table.sst")])
    database.close()
    ldb(path, "repair")
    database = rocksdict.Rdict(str(path), options)
    found = database.get(b"k")
    database.close()
    return found == b"value"


def test_whether_the_writer_of_rocksdict_suffices(tmp_path: Path) -> None:
    """`rocksdb_sst.py` exists for two faults of rocksdict's writer. Without them it can go."""
    if not survives_repair(tmp_path):
        pytest.skip("`ldb repair` loses the tables of rocksdict's writer")
    if not releases_the_lock(tmp_path):
        pytest.skip("rocksdict's writer holds the interpreter's lock")
    pytest.fail(
        "rocksdict's SstFileWriter releases the interpreter's lock and survives a repair: delete "
        "rocksdb_sst.py, write all tables by the writer of rocksdb_bulk.py, and lift the warning "
        "about compression= and repairs in docs/stores.md"
    )
