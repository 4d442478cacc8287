"""Tests of direct reads of RocksDB files: the value that `get` returns, or no answer."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.store_servers import need
from windeck._core import crc32c
from windeck.checkpoint.stores import DirectView, Store, open_store

need("rocksdb")
from windeck.checkpoint.stores import rocksdb_sst  # noqa: E402


def read(store: Store, key: bytes, size: int, head: int = 7) -> bytes | None:
    """Return a value of a known size by a direct read, or None if that gives no answer."""
    assert isinstance(store, DirectView)
    head = min(head, size)
    first, rest = bytearray(head), bytearray(size - head)
    (found,) = store.get_many_into([(key, memoryview(first), memoryview(rest))])
    if found is None:
        return None
    assert found == crc32c(rest)
    return bytes(first + rest)


def large(count: int, seed: int, size: int = 20_000) -> dict[bytes, bytes]:
    draw = random.Random(seed)
    return {b"k%03d" % i: draw.randbytes(size + i) for i in range(count)}


def test_large_values_of_a_bulk_load_are_read(tmp_path: Path) -> None:
    url, model = f"rocksdb://{tmp_path}/x", large(50, 1)
    with open_store(url) as store:
        store.put_many([(b"a", b"1"), (b"z", b"2")])  # a table that spans the others
        store.bulk_load(model.items())
        for head in (0, 1, 64, 20_000, 30_000):
            for key, value in model.items():
                assert read(store, key, len(value), head) == value
        assert read(store, b"k000", 19_999) is None
        assert read(store, b"k000", 20_001) is None
        assert read(store, b"k0005", 20_000) is None
        assert read(store, b"a", 1) is None  # lies beside others
        assert store.get(b"a") == b"1"
    with open_store(f"{url}?readonly=1") as store:
        assert all(read(store, key, len(value)) == value for key, value in model.items())


@pytest.mark.parametrize("step", [1, -1])
def test_what_is_newer_elsewhere_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A newer value is respected in whichever order the engine lists the tables."""

    class Tables(rocksdb_sst._TableFiles):
        def __init__(self, path: Path, files: Sequence[Any]) -> None:
            super().__init__(path, files[::step])

    monkeypatch.setattr(rocksdb_sst, "_TableFiles", Tables)
    model = large(10, 2)
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        store.bulk_load(model.items())
        assert read(store, b"k004", 20_004) == model[b"k004"]
        store.put_many([(b"k004", b"x" * 20_004)])  # in the engine's memory
        assert read(store, b"k004", 20_004) is None
        store.sync()  # in a table of its own
        assert read(store, b"k004", 20_004) in (None, b"x" * 20_004)
        assert read(store, b"k005", 20_005) == model[b"k005"]
        store.delete_many([b"k005"])
        assert read(store, b"k005", 20_005) is None
        store.sync()
        assert read(store, b"k005", 20_005) is None
        assert read(store, b"k006", 20_006) == model[b"k006"]
        store.delete_range(b"k006")
        assert read(store, b"k006", 20_006) is None
        store.sync()
        assert read(store, b"k006", 20_006) is None
        assert read(store, b"k007", 20_007) == model[b"k007"]
        store.bulk_load([(b"k007", b"y" * 20_007)])  # over the other
        assert read(store, b"k007", 20_007) in (None, b"y" * 20_007)


def test_as_a_dict_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random writes of all kinds; small blocks count as large ones, so that both ways are gone."""
    monkeypatch.setattr(rocksdb_sst, "LARGE_BYTES", 4500)
    monkeypatch.setattr(rocksdb_sst, "SMALL_BYTES", 5500)
    draw, model, answers = random.Random(3), dict[bytes, bytes](), 0
    url = f"rocksdb://{tmp_path}/x"
    keys = [b"k%02d" % i for i in range(40)]
    store = open_store(url)
    for _ in range(400):
        some = sorted(draw.sample(keys, draw.randrange(1, 6)))
        pairs = [(key, draw.randbytes(draw.choice([0, 5, 5000, 6000, 6000]))) for key in some]
        match draw.randrange(11):
            case 0 | 1 | 2:
                store.bulk_load(pairs)
                model.update(pairs)
            case 3:
                store.put_many(pairs)
                model.update(pairs)
            case 4:
                store.delete_many(some)
                model = {k: v for k, v in model.items() if k not in some}
            case 5:
                store.delete_range(some[0][:2])
                model = {k: v for k, v in model.items() if not k.startswith(some[0][:2])}
            case 6:
                store.sync()
            case 7 | 8 | 9:
                store._db.compact_range(None, None)  # type: ignore[attr-defined]
            case 10:
                store.close()
                store = open_store(url)
        for key in draw.sample(keys, 10):
            size = len(model.get(key, bytes(6000)))
            found = read(store, key, size)
            assert found is None or found == model[key]
            answers += found is not None
            assert store.get(key) == model.get(key)
    store.close()
    assert answers > 300


def test_compressed_tables_and_tables_that_are_gone(tmp_path: Path) -> None:
    model = large(10, 4)
    url = f"rocksdb://{tmp_path}/x"
    with open_store(f"{url}?compression=lz4") as store:
        store.bulk_load((key, value[:10] * 2000) for key, value in model.items())
        assert read(store, b"k001", 20_000) is None
        assert store.get(b"k001") == model[b"k001"][:10] * 2000
    with open_store(url) as store:
        store.bulk_load((b"z" + key, value) for key, value in model.items())
        with open_store(f"{url}?readonly=1") as reader:
            # The writer puts tables in the place of those that the reader knows.
            store.put_many([(b"zk%03d" % i, b"new") for i in range(0, 10, 2)])
            store.sync()
            store._db.compact_range(None, None)  # type: ignore[attr-defined]
            for key, value in model.items():
                assert read(reader, b"z" + key, len(value)) in (None, value)
                assert reader.get(b"z" + key) == value
            assert read(reader, b"zk000", 20_000) is None


def test_few_tables_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tables read last are open; closed ones are opened again, and none is leaked."""
    monkeypatch.setattr(rocksdb_sst, "OPEN_TABLES", 3)
    values = {b"k%d" % i: bytes([i]) * 20_000 for i in range(6)}
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for pair in values.items():
            store.bulk_load([pair])  # a table each
        opened: list[Path] = []
        closed: list[Path] = []

        class Table(rocksdb_sst._TableFile):
            def __init__(self, path: Path) -> None:
                self.path = path
                opened.append(path)
                super().__init__(path)

            def __del__(self) -> None:
                closed.append(self.path)
                super().__del__()

        monkeypatch.setattr(rocksdb_sst, "_TableFile", Table)
        kept: list[int] = []  # the one read last is last
        opens = 0
        for number in [0, 1, 2, 0, 3, 0, 1, 1, 4, 5, 2, 0, 5, 1]:
            key = b"k%d" % number
            assert read(store, key, 20_000) == values[key]
            opens += number not in kept
            kept = [*(n for n in kept if n != number), number][-3:]
            assert len(opened) == opens
            assert len(opened) - len(closed) == len(kept)
        assert len(set(opened)) == 6
    assert sorted(closed) == sorted(opened)


def test_every_flipped_byte_gives_no_answer(tmp_path: Path) -> None:
    """With any byte of the files flipped, the answer is the right value or none."""
    model = {b"k": b"value" * 4000, b"l": b"other" * 4000}
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        store.bulk_load(model.items())
    (name,) = (path.name for path in (tmp_path / "x").glob("*.sst") if path.stat().st_size > 9999)
    table = tmp_path / "x" / name
    data = table.read_bytes()
    tail = len(data) - 1700
    found = {None: 0, model[b"k"]: 0}
    with open_store(f"rocksdb://{tmp_path}/x?readonly=1") as store:
        for at in [*range(40), *range(40, tail, 613), *range(tail, len(data))]:
            damaged = bytearray(data)
            damaged[at] ^= 0xFF
            table.write_bytes(damaged)
            store._direct.note_write()  # type: ignore[attr-defined] # look at the files anew
            found[read(store, b"k", 20_000)] += 1
        for size in range(0, len(data), 101):
            table.write_bytes(data[:size])
            store._direct.note_write()  # type: ignore[attr-defined]
            found[read(store, b"k", 20_000)] += 1
        table.write_bytes(data)
        store._direct.note_write()  # type: ignore[attr-defined]
        assert read(store, b"k", 20_000) == model[b"k"]
    assert found[None] > 1500
    assert found[model[b"k"]] > 20  # another value's bytes were hit


def test_only_what_is_a_value_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an entry, its last byte but seven says the kind: 1 is a value, 2 an operand of a merge."""
    value = bytes(range(256)) * 100
    for kind in range(256):
        monkeypatch.setattr(rocksdb_sst, "VALUE", kind.to_bytes(8, "little"))
        file = rocksdb_sst.TableWriter(tmp_path / f"{kind}.sst")
        file.add(b"k", value)
        file.finish()
        table = rocksdb_sst._TableFile(tmp_path / f"{kind}.sst")
        place = table.block_of(b"k")
        assert place is not None
        head, body = bytearray(7), bytearray(len(value) - 7)
        wanted = (b"k", memoryview(head), memoryview(body))
        found = list(table.read([(5, wanted, *place)], streamed=False, threads=1))
        assert found == [(5, crc32c(value[7:]) if kind == 1 else None)]
    monkeypatch.undo()


def test_each_of_many_is_answered_for_itself(tmp_path: Path) -> None:
    """Values of several tables, small ones, missing ones, wrong sizes, the same one twice."""
    model = {letter + key: value for letter in (b"a", b"b") for key, value in large(9, 8).items()}
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for letter in (b"a", b"b"):
            store.bulk_load([pair for pair in model.items() if pair[0][:1] == letter])
        store.bulk_load([(b"c", b"small"), (b"d", b"beside it")])
        assert isinstance(store, DirectView)
        for seed in range(30):
            draw = random.Random(seed)
            keys = draw.choices([*model, b"c", b"missing", b"z"], k=draw.randrange(30))
            sizes = [len(model.get(key, b"12345")) + draw.choice([0, 0, 0, -1, 1]) for key in keys]
            memory = [(bytearray(3), bytearray(size - 3)) for size in sizes]
            wanted = [
                (key, memoryview(head), memoryview(body))
                for key, (head, body) in zip(keys, memory, strict=True)
            ]
            found = store.get_many_into(wanted, cached=draw.choice([False, True]))
            for key, size, (head, body), crc in zip(keys, sizes, memory, found, strict=True):
                value = model.get(key, b"")
                assert (crc is None) == (size != len(value))
                assert crc is None or (bytes(head + body), crc) == (value, crc32c(body))


def test_threads_read_while_others_write_and_close(tmp_path: Path) -> None:
    model, errors = large(30, 6), list[BaseException]()
    shutil.rmtree(tmp_path / "x", ignore_errors=True)
    store = open_store(f"rocksdb://{tmp_path}/x")
    store.bulk_load(model.items())
    closed = threading.Event()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            while not closed.is_set():
                key = draw.choice(list(model))
                assert read(store, key, len(model[key])) in (None, model[key])
        except ValueError as error:
            if "is closed" not in str(error):
                errors.append(error)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        store.put_many([(b"n%03d" % turn, b"x" * 1000)])
        if turn % 3 == 0:
            store.sync()
        if turn % 10 == 0:
            store._db.compact_range(None, None)  # type: ignore[attr-defined]
    store.close()
    closed.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_files_are_closed_with_the_store(tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    model = large(3, 7)
    before = len(os.listdir("/proc/self/fd"))
    for letter in (b"a", b"b", b"c"):
        with open_store(f"rocksdb://{tmp_path}/x") as store:
            store.bulk_load((letter + key, value) for key, value in model.items())
            assert read(store, letter + b"k000", 20_000) == model[b"k000"]
    assert len(os.listdir("/proc/self/fd")) == before
