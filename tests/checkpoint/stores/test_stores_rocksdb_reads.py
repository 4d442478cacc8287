"""Tests of reads from RocksDB with and without its checksums: right, absent, or an error."""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.store_servers import need, noted_engines
from windeck.checkpoint.stores import CorruptStoreError, open_store

need("rocksdb")


def large(count: int, seed: int, size: int = 20_000) -> dict[bytes, bytes]:
    draw = random.Random(seed)
    return {b"k%03d" % i: draw.randbytes(size + i) for i in range(count)}


def test_as_a_dict_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random writes of all kinds, and compactions: both reads give the newest value."""
    draw, model = random.Random(3), dict[bytes, bytes]()
    url = f"rocksdb://{tmp_path}/x"
    keys = [b"k%02d" % i for i in range(40)]
    engines = noted_engines(monkeypatch)
    store: Any = open_store(url)
    for _ in range(200):
        some = sorted(draw.sample(keys, draw.randrange(1, 6)))
        pairs = [(key, draw.randbytes(draw.choice([0, 5, 5000, 17_000, 70_000]))) for key in some]
        match draw.randrange(9):
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
            case 7:
                engines[-1].compact_range(None, None)
            case 8:
                store.close()
                store = open_store(url)
        for key in draw.sample(keys, 10):
            assert store.get_unchecked(key) == store.get(key) == model.get(key)
    store.close()


@pytest.mark.parametrize("options", ["", "?readonly=1"])
@pytest.mark.parametrize("flipped", ["value", "key"])
def test_damage_that_an_unchecked_read_has_seen_is_found_by_the_next(
    flipped: str, options: str, tmp_path: Path
) -> None:
    """Values read without checksums are not kept for reads with them, in any order."""
    model, url = large(6, 5), f"rocksdb://{tmp_path}/x"
    model |= {b"m%03d" % i: b"small" * 20 for i in range(200)}
    with open_store(url) as store:
        store.bulk_load(model.items())
    (table,) = (path for path in (tmp_path / "x").glob("*.sst") if path.stat().st_size > 99_999)
    data = bytearray(table.read_bytes())
    places = {}
    for key in (b"k003", b"m100"):
        places[key] = data.index(key) + (2 if flipped == "key" else len(key) + 20)
        data[places[key]] ^= 2
    table.write_bytes(data)
    store_: Any = open_store(f"{url}{options}")
    with store_ as store:
        for key in places:
            for _ in range(3):
                assert store.get_unchecked(key) != model[key]
                with pytest.raises(CorruptStoreError, match="checksum mismatch"):
                    store.get(key)
                with pytest.raises(CorruptStoreError, match="checksum mismatch"):
                    store.get_many([key])
        assert store.get_unchecked(b"k002") == store.get(b"k002") == model[b"k002"]


@pytest.mark.parametrize("options", ["", "?readonly=1"])
def test_a_damaged_index_is_found_before_any_read(options: str, tmp_path: Path) -> None:
    """Of one of many tables: an unchecked read would keep an index that nothing has verified."""
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        for number in range(40):
            store.bulk_load([(b"%02d/%d" % (number, i), bytes(20_000)) for i in range(5)])
    for number in (0, 20, 39):
        (table,) = (
            path
            for path in (tmp_path / "x").glob("*.sst")
            if b"%02d/0" % number in path.read_bytes()
        )
        whole = table.read_bytes()
        damaged = bytearray(whole)
        damaged[whole.rindex(b"%02d/3" % number)] ^= 2
        table.write_bytes(damaged)
        with pytest.raises(CorruptStoreError, match="checksum mismatch"):
            open_store(f"{url}{options}")
        table.write_bytes(whole)
    with open_store(f"{url}{options}") as store:
        assert len(list(store.keys())) == 200


def test_a_damaged_index_is_not_taken_in(tmp_path: Path) -> None:
    """Nor is that of a table which is added to an open database."""
    from windeck.checkpoint.stores import write_part

    url = f"rocksdb://{tmp_path}/x"
    store_: Any = open_store(url)
    with store_ as store:
        write_part(url, "p", [(b"k%d" % i, bytes(20_000)) for i in range(5)])
        part = tmp_path / "x" / "windeck.parts" / "p"
        damaged = bytearray(part.read_bytes())
        damaged[damaged.rindex(b"k3")] ^= 2
        part.write_bytes(damaged)
        with pytest.raises(CorruptStoreError, match="checksum mismatch"):
            store.ingest_parts(["p"])
        assert list(store.scan()) == []


def test_every_flipped_byte_gives_the_value_or_an_error(tmp_path: Path) -> None:
    model = {b"k": b"value" * 4000, b"l": b"other" * 4000}
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        store.bulk_load(model.items())
    (table,) = (path for path in (tmp_path / "x").glob("*.sst") if path.stat().st_size > 9999)
    data = table.read_bytes()
    tail = len(data) - 900
    found = {"refused": 0, "found out": 0, "right": 0}
    for at in [*range(0, 40, 3), *range(40, tail, 1613), *range(tail, len(data), 7)]:
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        table.write_bytes(damaged)
        try:
            store_: Any = open_store(f"{url}?readonly=1")
        except OSError:
            found["refused"] += 1
            continue
        with store_ as store:
            with suppress(CorruptStoreError):
                store.get_unchecked(b"k")  # any answer, or this error
            try:
                assert store.get(b"k") == model[b"k"]
                found["right"] += 1
            except CorruptStoreError:
                found["found out"] += 1
    assert found["refused"] > 50
    assert found["found out"] > 10
    assert found["right"] > 5  # another value's bytes were hit


def test_a_reader_keeps_tables_that_the_writer_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, url = large(10, 4), f"rocksdb://{tmp_path}/x"
    engines = noted_engines(monkeypatch)
    with open_store(url) as store:
        store.bulk_load(model.items())
        reader: Any = open_store(f"{url}?readonly=1")
        with reader:
            store.put_many([(b"k%03d" % i, b"new") for i in range(0, 10, 2)])
            store.sync()
            engines[0].compact_range(None, None)
            for key, value in model.items():
                assert reader.get_unchecked(key) == reader.get(key) == value


def test_threads_read_while_others_write_and_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, errors = large(30, 6), list[BaseException]()
    engines = noted_engines(monkeypatch)
    store: Any = open_store(f"rocksdb://{tmp_path}/x")
    store.bulk_load(model.items())
    closed = threading.Event()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            while not closed.is_set():
                key = draw.choice(list(model))
                assert store.get_unchecked(key) == model[key]
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
            engines[0].compact_range(None, None)
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
        store: Any = open_store(f"rocksdb://{tmp_path}/x")
        with store:
            store.bulk_load((letter + key, value) for key, value in model.items())
            assert store.get_unchecked(letter + b"k000") == model[b"k000"]
    assert len(os.listdir("/proc/self/fd")) == before
