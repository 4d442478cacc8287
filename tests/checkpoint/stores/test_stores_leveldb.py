"""Tests of LevelDB stores: locks, parts, compression, syncs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.internals import original, plant
from support.store_servers import need
from windeck.checkpoint.stores import open_store, write_part
from windeck.io import temporary_path


@pytest.fixture(autouse=True)
def _library() -> None:
    need("leveldb")


def test_a_second_opener_does_not_give_up_the_lock_of_the_first(tmp_path: Path) -> None:
    """LevelDB itself would, by closing the lock file; another process could open it then."""
    url = f"leveldb://{tmp_path}/x"
    program = "import sys, plyvel; plyvel.DB(sys.argv[1])"
    with open_store(url) as store:
        with pytest.raises(BlockingIOError, match="is open already"):
            open_store(url)
        command = [sys.executable, "-c", program, f"{tmp_path}/x"]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "LOCK: " in other.stderr
        store.put_many([(b"a", b"1")])
    del store
    with open_store(url) as store:
        assert store.get(b"a") == b"1"


def test_closing_twice_does_not_let_a_third_in(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/x"
    first = open_store(url)
    first.close()
    (tmp_path / "y").symlink_to(tmp_path / "x")  # LevelDB itself knows a database by its path
    with open_store(url) as store:
        first.close()
        for other in (url, f"leveldb://{tmp_path}/y"):
            with pytest.raises(BlockingIOError, match="is open already"):
                open_store(other)
        store.put_many([(b"a", b"1")])


def test_a_part_is_not_added_to_what_a_killed_one_left(tmp_path: Path) -> None:
    url, parts = f"leveldb://{tmp_path}/x", tmp_path / "x" / "windeck.parts"
    write_part(url, "a", [(b"old", b"1")])
    (parts / "a").rename(temporary_path(parts / "a"))
    assert write_part(url, "a", [(b"new", b"2")]) == 1
    with open_store(url) as store:
        store.ingest_parts(["a"])  # type: ignore[attr-defined]
        assert list(store.scan()) == [(b"new", b"2")]


def test_a_store_that_nobody_holds_any_more_is_closed(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/x"
    open_store(url)
    with open_store(url) as store:
        assert store.get(b"a") is None


def test_a_store_that_could_not_be_opened_may_be_tried_again(tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/x"
    with open_store(url) as store:
        store.put_many([(b"a", b"1")])
        store.sync()
    current = tmp_path / "x" / "CURRENT"
    name = current.read_text()
    current.write_text("nonsense\n")
    with pytest.raises(OSError, match="is damaged: opening failed"):
        open_store(url)
    current.write_text(name)
    with open_store(url) as store:
        assert store.get(b"a") == b"1"


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_compression(compression: str, tmp_path: Path) -> None:
    url = f"leveldb://{tmp_path}/x?compression={compression}"
    rows = [(b"k%03d" % i, bytes(10_000)) for i in range(100)]
    with open_store(url) as store:
        store.bulk_load(rows)
    size = sum(path.stat().st_size for path in (tmp_path / "x").glob("*.ldb"))
    assert (0 < size < 100_000) == (compression == "snappy")
    with open_store(f"leveldb://{tmp_path}/x") as store:
        assert list(store.scan()) == rows


class Watched:
    """An open database that records the arguments of its batches."""

    def __init__(self, database: Any, asked: list[dict[str, bool]]) -> None:
        self._database, self._asked = database, asked

    def write_batch(self, **options: bool) -> Any:
        self._asked.append(options)
        return self._database.write_batch(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def test_every_batch_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync is of the log that is written now; that of an earlier batch may be another."""

    asked, opened = list[dict[str, bool]](), original("leveldb._open_database")
    plant(monkeypatch, "leveldb._open_database", lambda *where: Watched(opened(*where), asked))
    url = f"leveldb://{tmp_path}/x"
    write_part(url, "a", [(b"p", b"1")])
    with open_store(url) as store:
        store.put_many([(b"a", b"1")])
        store.bulk_load([(b"b", b"1")])
        store.delete_many([b"a"])
        store.ingest_parts(["a"])  # type: ignore[attr-defined]
        store.sync()
        assert dict(store.scan()) == {b"b": b"1", b"p": b"1"}
    assert len(asked) > 5
    assert all(options.get("sync") for options in asked)


class Wrapped:
    """An object with other methods."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self.inner = inner
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def opened_with(patch: pytest.MonkeyPatch, url: str, wrap: Callable[[Any], Any]) -> Any:
    """Return a store that uses what a function makes of the open database."""
    opening = original("leveldb._open_database")
    with patch.context() as planted:
        plant(planted, "leveldb._open_database", lambda *where: wrap(opening(*where)))
        return open_store(url)


class Interrupted(Wrapped):
    """A batch that is interrupted at a key."""

    def __enter__(self) -> Interrupted:
        self.inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.inner.__exit__(*error)

    def put(self, key: bytes, value: bytes) -> None:
        if key == b"b":
            raise KeyboardInterrupt
        self.inner.put(key, value)


def test_a_batch_that_was_interrupted_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(engine: Any) -> Any:
        return Wrapped(
            engine, write_batch=lambda **options: Interrupted(engine.write_batch(**options))
        )

    with opened_with(monkeypatch, f"leveldb://{tmp_path}/x", interrupted) as store:
        with pytest.raises(KeyboardInterrupt):
            store.put_many([(b"a", b"1"), (b"b", b"2")])
        assert list(store.scan()) == []
        store.put_many([(b"a", b"1")])
        assert list(store.scan()) == [(b"a", b"1")]


def test_the_name_of_a_part_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, parts = list[list[str]](), tmp_path / "x" / "windeck.parts"
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        if os.fstat(file).st_ino == parts.stat().st_ino:
            seen.append(os.listdir(parts))

    monkeypatch.setattr(os, "fsync", fsync)
    write_part(f"leveldb://{tmp_path}/x", "a", [(b"p", b"1")])
    assert seen == [["a"]]


def test_an_interrupt_after_the_engine_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emergency save can open the database, while a traceback refers to the store."""

    def interrupted(engine: Any) -> Any:
        def close() -> None:
            engine.close()
            raise KeyboardInterrupt

        return Wrapped(engine, close=close)

    store = opened_with(monkeypatch, f"leveldb://{tmp_path}/x", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    with open_store(f"leveldb://{tmp_path}/x") as again:
        again.put_many([(b"a", b"1")])
        store.close()
        with pytest.raises(BlockingIOError):
            open_store(f"leveldb://{tmp_path}/x")


def test_a_sync_while_a_range_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal that shows an error of the compaction is the one of the last sync."""
    begun = threading.Event()

    def slow(engine: Any) -> Any:
        def write_batch(**options: Any) -> Any:
            if threading.current_thread() is syncing:
                begun.set()
                time.sleep(0.2)
            return engine.write_batch(**options)

        def compact_range(**keys: Any) -> None:
            engine.compact_range(**keys)
            if keys["start"] == b"a":
                syncing.start()
                assert begun.wait(60)

        return Wrapped(engine, write_batch=write_batch, compact_range=compact_range)

    store = opened_with(monkeypatch, f"leveldb://{tmp_path}/x", slow)
    syncing = threading.Thread(target=store.sync)
    store.put_many([(b"a", b"1"), (b"b", b"2")])
    store.delete_range(b"a")
    syncing.join()
    store.close()
    with open_store(f"leveldb://{tmp_path}/x") as again:
        assert list(again.scan()) == [(b"b", b"2")]
