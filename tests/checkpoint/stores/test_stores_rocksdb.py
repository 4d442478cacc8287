"""Tests of RocksDB stores: concurrent readers, atomic bulk loads, compression."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from support.internals import original, plant
from support.programs import printed
from support.split_items import SplitItems
from support.store_servers import need, noted_engines
from support.threads import at_once
from windeck import checkpoint
from windeck._util import retry
from windeck.checkpoint.stores import open_store, write_part


@pytest.fixture(autouse=True)
def _library() -> None:
    need("rocksdb")


ROWS = [(b"k%03d" % i, b"%d" % i * 100) for i in range(300)]
#: Bytes that parts of a bulk load are said to have, to be written at the same time.


def test_many_read_while_one_writes(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    program = """if True:
        import sys
        from windeck.checkpoint.stores import open_store
        with open_store(sys.argv[1]) as one, open_store(sys.argv[1]) as two:
            assert list(one.scan()) == list(two.scan())
            print(len(list(one.keys())), one.get(b"k007"))
    """
    with open_store(url) as store:
        store.bulk_load(ROWS)
        store.put_many([(b"z", b"not synced")])
        command = [sys.executable, "-c", program, f"{url}?readonly=1"]
        ranks = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        assert [rank.communicate()[0] for rank in ranks] == [b"301 b'" + b"7" * 100 + b"'\n"] * 2
        with open_store(f"{url}?readonly=1") as reader:
            store.put_many([(b"z", b"later")])
            store.delete_range(b"k")
            store.sync()
            assert reader.get(b"z") == b"not synced"  # as of when it was opened
            assert list(reader.scan(b"k")) == ROWS


@pytest.mark.parametrize("changing", [True, False])
def test_a_reader_opens_again_while_a_compaction_removes_files(
    tmp_path: Path, changing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rocksdict

    url, attempts = f"rocksdb://{tmp_path}/x", 0
    with open_store(url) as store:
        store.put_many(ROWS)
    real = rocksdict.Rdict

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts > 20:
            return real(*args, **options)
        if changing:
            (tmp_path / "x" / f"9{attempts:05d}.sst").touch()
        raise OSError("IO error: No such file or directory: 000007.sst")

    monkeypatch.setattr(rocksdict, "Rdict", failing)
    if changing:
        with open_store(f"{url}?readonly=1") as reader:
            assert list(reader.scan()) == ROWS
        assert attempts == 21
    else:
        with pytest.raises(OSError, match=r"000007\.sst"):
            open_store(f"{url}?readonly=1")
        assert attempts == 1


@pytest.mark.parametrize(
    ("name", "passes"), [("LOG.old.179595103790", True), ("000007.sst", False)]
)
def test_a_writer_opens_again_after_another_one_removed_its_old_messages(
    tmp_path: Path, name: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of one that is refused removes them too, before it finds the lock taken."""
    import rocksdict

    url, attempts = f"rocksdb://{tmp_path}/x", 0
    with open_store(url) as store:
        store.put_many(ROWS)
    real = rocksdict.Rdict

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts > 3:
            return real(*args, **options)
        raise OSError(
            f"IO error: No such file or directory: while unlink() file: {tmp_path}/x/{name}"
        )

    monkeypatch.setattr(rocksdict, "Rdict", failing)
    if passes:
        with open_store(url) as store:
            assert list(store.scan()) == ROWS
        assert attempts == 4
    else:
        with pytest.raises(OSError, match=r"000007\.sst"):
            open_store(url)
        assert attempts == 1


def test_a_reader_does_not_write(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    with pytest.raises(FileNotFoundError, match="there is no database at"):
        open_store(f"{url}?readonly=1")
    with open_store(url) as store:
        store.bulk_load(ROWS)
    with open_store(f"{url}?readonly=1") as reader:
        for call in (
            lambda: reader.put_many([(b"a", b"1")]),
            lambda: reader.bulk_load([(b"a", b"1")]),
            lambda: reader.delete_many([b"k001"]),
            lambda: reader.delete_range(b""),
            lambda: reader.compare_and_set(b"a", None, b"1"),
            lambda: reader.ingest_parts([]),  # type: ignore[attr-defined]
            reader.sync,
        ):
            with pytest.raises(PermissionError, match=f"{url}.readonly=1 is open for reading only"):
                call()
        with reader.snapshot() as view:
            assert list(view.scan()) == list(reader.scan()) == ROWS


@pytest.mark.parametrize("options", ["", "?create=0", "?readonly=1"])
def test_a_database_of_objects_is_left_alone(options: str, tmp_path: Path) -> None:
    """A database that rocksdict opened with its own options is left as it is.

    By default rocksdict stores Python objects, in its own order, and notes its options in a file.
    If another process changed that file, the owner could not open the database, not even to read.
    """
    import rocksdict

    with rocksdict.Rdict(str(tmp_path / "x")) as objects:
        objects["a"] = [1]
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    url = f"rocksdb://{tmp_path}/x{options}"
    with pytest.raises(FileExistsError, match=r"one of rocksdict with Python objects in it"):
        open_store(url)
    with pytest.raises(FileExistsError, match=r"one of rocksdict with Python objects in it"):
        write_part(url, "a", ROWS)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before
    with rocksdict.Rdict(str(tmp_path / "x")) as objects:
        assert objects["a"] == [1]


@pytest.mark.parametrize("options", ["", "?readonly=1"])
def test_keys_in_another_order_are_no_damage(options: str, tmp_path: Path) -> None:
    import rocksdict

    rocksdict.Rdict(str(tmp_path / "x")).close()
    (tmp_path / "x" / "rocksdict-config.json").unlink()  # as another library would leave it
    with pytest.raises(FileExistsError, match=r"expected .* with keys in byte order"):
        open_store(f"rocksdb://{tmp_path}/x{options}")


@pytest.mark.parametrize("config", ["", "{", "7", '{"raw_mode": 1}', '{"prefix_extractors": {}}'])
def test_what_rocksdict_notes_is_not_needed(config: str, tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        store.put_many([(b"a", b"1")])
    (tmp_path / "x" / "rocksdict-config.json").write_text(config)
    with open_store(f"{url}?readonly=1") as store:
        assert store.get(b"a") == b"1"


def test_who_may_not_write_reads() -> None:
    """A colleague's checkpoint, or one on a read-only file system. What is imported late has to be
    there before the program gives up its rights, as it may not look into our home any more."""
    program = """if True:
        import os, sys, tempfile
        from windeck.checkpoint.stores import open_store
        def told(url):
            with open_store(url + "?readonly=1") as store:
                quick = store.get_unchecked(b"k007")
                return list(store.scan(b"k")), store.get(b"z"), quick
        mine, others = sys.argv[1:]
        expected = told(mine)
        if os.geteuid() == 0:
            os.setuid(65534)
        assert not os.access(others[10:], os.W_OK)
        assert told(others) == told(others) == expected
        print("as expected,", len(expected[0]))
    """
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        urls = [f"rocksdb://{folder}/{name}" for name in ("mine", "others")]
        place, spare = Path(folder, "others"), Path(folder, "spare")
        with open_store(f"rocksdb://{folder}/made") as store:
            store.bulk_load(ROWS)
            store.sync()
            store.put_many([(b"z", b"in a log")])
            for name in ("mine", "others"):  # before the store is closed, which writes a table
                shutil.copytree(Path(folder, "made"), Path(folder, name))
        assert any(path.stat().st_size for path in place.glob("*.log"))
        spare.mkdir()
        spare.chmod(0o777)
        before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
        for path in (*place.iterdir(), place):
            path.chmod(0o555 if path.is_dir() else 0o444)
        assert printed(program, *urls, TMPDIR=str(spare)) == "as expected, 300\n"
        assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == before
        assert list(spare.iterdir()) == []
        place.chmod(0o755)


def test_readers_open_while_tables_are_replaced(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    done = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                with open_store(f"{url}?readonly=1") as reader:
                    assert len(list(reader.keys())) == len(ROWS)
        except BaseException as error:
            errors.append(error)

    with open_store(url) as store:
        store.bulk_load(ROWS)
        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(60):
            store.bulk_load(ROWS)
            store.put_many(ROWS)
        done.set()
        thread.join()
    assert errors == []


def test_a_bulk_load_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "rocksdb.TABLE_BYTES", 2000)  # so that there are several tables
    url = f"rocksdb://{tmp_path}/x"

    def failing() -> Iterator[tuple[bytes, bytes]]:
        yield from ROWS
        raise RuntimeError("no more")

    with open_store(url) as store:
        store.put_many([(b"k001", b"before")])
        with pytest.raises(RuntimeError, match="no more"):
            store.bulk_load(failing())
        assert list(store.scan()) == [(b"k001", b"before")]
        assert os.listdir(tmp_path / "x" / "windeck.parts") == []
        assert store.bulk_load(ROWS) == 300
        assert list(store.scan()) == ROWS
        assert os.listdir(tmp_path / "x" / "windeck.parts") == []
        assert len(list((tmp_path / "x").glob("*.sst"))) > 10


@pytest.mark.parametrize("lanes", [1, 2])
def test_keys_ascend_from_lane_to_lane(
    lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "rocksdb_bulk.THREADS", lanes)
    one = [(b"b", b"1"), (b"d", b"2")]
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for first in (b"a", b"b", b"c", b"d"):
            other = [(first, b"3"), (b"e", b"4")]
            wrong = SplitItems(one.copy, other.copy)
            words = f"expected keys in ascending order, got {first!r} after b'd'"
            with pytest.raises(ValueError, match=words):
                store.bulk_load(wrong)
        assert list(store.keys()) == []
        right = SplitItems(one.copy, lambda: [(b"d\0", b"3")])
        assert store.bulk_load(right) == 3


def test_what_a_killed_bulk_load_left_goes_when_a_writer_opens(tmp_path: Path) -> None:
    program = """if True:
        import os, sys
        from windeck.checkpoint.stores import open_store
        def rows():
            yield b"a", bytes(1 << 20)
            os._exit(9)
        open_store(sys.argv[1]).bulk_load(rows())
    """
    url, parts = f"rocksdb://{tmp_path}/x", tmp_path / "x" / "windeck.parts"
    with open_store(url) as store:
        store.put_many([(b"b", b"1")])
        write_part(url, "mine", ROWS)
    assert subprocess.run([sys.executable, "-c", program, url]).returncode == 9
    left = sorted(os.listdir(parts))
    assert len(left) == 2
    assert left[0].startswith("bulk-")
    with open_store(f"{url}?readonly=1") as reader:
        assert list(reader.keys()) == [b"b"]
        assert reader.parts(unfinished=True) == ["mine"]  # type: ignore[attr-defined]
    assert sorted(os.listdir(parts)) == left
    with open_store(url) as store:
        assert os.listdir(parts) == ["mine"]
        assert list(store.keys()) == [b"b"]


def test_parts_are_taken_in_by_a_link(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        write_part(url, "a", ROWS)
        written = (tmp_path / "x" / "windeck.parts" / "a").stat().st_ino
        store.ingest_parts(["a"])  # type: ignore[attr-defined]
        assert written in {path.stat().st_ino for path in (tmp_path / "x").glob("*.sst")}


def test_tables_are_durable_before_they_are_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with the bytes it has in the end, of a bulk load and of parts."""
    synced: dict[int, int] = {}
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        found = os.fstat(file)
        synced[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        store.bulk_load((b"k%03d" % i, bytes(70_000)) for i in range(20))
        write_part(url, "a", [(b"z", b"1"), (b"zz", bytes(90_000))])
        store.ingest_parts(["a"])  # type: ignore[attr-defined]
        tables = [path.stat() for path in (tmp_path / "x").glob("*.sst")]
        ours = [found for found in tables if found.st_size > 50_000]
        assert len(ours) == 2
        assert all(synced.get(found.st_ino) == found.st_size for found in ours)


def test_a_damaged_part_changes_nothing(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        write_part(url, "a", ROWS)
        write_part(url, "b", [(b"z", b"1")])
        part = tmp_path / "x" / "windeck.parts" / "b"
        part.write_bytes(part.read_bytes()[:-9])
        with pytest.raises(OSError, match="is damaged: ingesting table files failed: Corruption"):
            store.ingest_parts(["a", "b"])  # type: ignore[attr-defined]
        assert list(store.scan()) == []
        assert store.parts() == ["a", "b"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compression(compression: str, tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x?compression={compression}"
    rows = [(b"k%03d" % i, bytes(10_000)) for i in range(100)]
    with open_store(url) as store:
        store.bulk_load(rows)
    size = sum(path.stat().st_size for path in (tmp_path / "x").glob("*.sst"))
    assert (size < 100_000) == (compression != "none")
    with open_store(f"rocksdb://{tmp_path}/x") as store:  # each table says how it was made
        assert list(store.scan()) == rows


def test_a_snapshot_serves_several_scans_at_once(tmp_path: Path) -> None:
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        store.bulk_load(ROWS)
        with store.snapshot() as view:
            store.delete_range(b"")
            both = list(zip(view.scan(), view.scan(b"k1"), view.keys(b"k2"), strict=False))
            assert [one[0] for one in both] == ROWS[:100]
            assert [one[1] for one in both] == ROWS[100:200]
            assert [one[2] for one in both] == [key for key, _ in ROWS[200:]]
            assert at_once(4, lambda _: list(view.scan())) == [ROWS] * 4
            found = []
            for number, row in enumerate(view.scan()):
                found.append(row)
                assert view.get(ROWS[-1 - number][0]) == ROWS[-1 - number][1]
            assert found == ROWS


def test_a_reader_opens_between_two_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync while it opens might hide what was synced, and show what came after."""

    url, opening, meanwhile = (
        f"rocksdb://{tmp_path}/x",
        original("rocksdb.RocksDBStore._open_engine"),
        [b"1", b"2"],
    )
    with open_store(url) as writer:

        def interrupted(self: Any) -> object:
            found = opening(self)
            if meanwhile:
                writer.put_many([(b"a", meanwhile.pop(0))])
                writer.sync()
            return found

        plant(monkeypatch, "rocksdb.RocksDBStore._open_engine", interrupted)
        with open_store(f"{url}?readonly=1") as reader:
            assert not meanwhile
            assert reader.get(b"a") == b"2"
        plant(monkeypatch, "retry.SETTLING", retry.SETTLING._replace(most_attempts=1))
        meanwhile += [b"3"]
        with pytest.raises(BlockingIOError, match="expected a moment without a sync of its writer"):
            open_store(f"{url}?readonly=1")


@pytest.mark.parametrize("removes", [True, False])
def test_a_reader_misses_no_log_that_is_moved_into_a_table(
    removes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would miss what was written before, and see what is written then."""
    url = f"rocksdb://{tmp_path}/x"
    engines, meanwhile = noted_engines(monkeypatch), [b"1", b"2"]
    opening = original("rocksdb.RocksDBStore._open_engine")
    with open_store(url) as writer:
        writer.bulk_load([(key, bytes(4096)) for key, _ in ROWS])

        def interrupted(self: Any) -> object:
            found = opening(self)
            if meanwhile:
                writer.put_many([(b"a", meanwhile.pop(0))])
                writer.order_writes()  # type: ignore[attr-defined]
                if removes:
                    writer.delete_range(b"k%d" % len(meanwhile))  # first k1, then k0
                else:
                    engines[0].flush()
                writer.put_many([(b"z", b"later")])
            return found

        plant(monkeypatch, "rocksdb.RocksDBStore._open_engine", interrupted)
        with open_store(f"{url}?readonly=1") as reader:
            assert not meanwhile
            assert reader.get(b"a") == b"2"
            assert reader.get(b"z") == b"later"
            assert (reader.get(b"k000") is None) == removes


def test_closing_waits_for_reads(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    for _ in range(20):
        store, errors = open_store(url), list[str]()
        store.put_many(ROWS)

        def read(store: Any = store, errors: list[str] = errors) -> None:
            try:
                while True:
                    store.get_many([key for key, _ in ROWS])
            except ValueError as error:
                errors.append(str(error))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        store.close()
        for reader in readers:
            reader.join()
        assert errors == [f"the store {url} is closed"] * 3


@pytest.fixture
def _often_switched() -> Iterator[None]:
    """Let threads take turns after 10 us in place of 5 ms."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_often_switched")
def test_closing_while_scans_begin(tmp_path: Path) -> None:
    """No iterator is left that would keep the folder locked."""
    url = f"rocksdb://{tmp_path}/x"
    for _ in range(20):
        store, errors = open_store(url), list[str]()
        store.put_many(ROWS)

        def scan(store: Any = store, errors: list[str] = errors) -> None:
            views = []
            try:
                while True:
                    views.append(store.snapshot())
            except ValueError as error:
                errors.append(str(error))
            for view in views:  # none, if the store was closed before
                view.close()

        readers = [threading.Thread(target=scan) for _ in range(2)]
        for reader in readers:
            reader.start()
        time.sleep(0.005)
        store.close()
        open_store(url).close()
        for reader in readers:
            reader.join()
        assert errors == [f"the store {url} is closed"] * 2


def test_more_tables_than_open_files(tmp_path: Path) -> None:
    """The limit of the process is raised: a run that keeps all generations has to resume."""
    url = f"rocksdb://{tmp_path}/x"
    with open_store(url) as store:
        for i in range(150):
            store.bulk_load([(b"k%03d" % i, bytes(300_000))])
    program = (
        "import resource, sys; from windeck.checkpoint.stores import open_store; "
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard)); "
        "[print(len(list(open_store(sys.argv[1] + end).keys()))) for end in ('?readonly=1', '')]"
    )
    command = [sys.executable, "-c", program, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("150\n150\n", "")


def test_a_signal_handler_scans_while_a_scan_begins(tmp_path: Path) -> None:
    with open_store(f"rocksdb://{tmp_path}/x") as opened:
        store: Any = opened
        store.put_many(ROWS)
        engine = store._db

        class Interrupted:
            def iter(self, options: Any) -> Any:
                store._db = engine
                assert list(store.keys()) == sorted(key for key, _ in ROWS)  # the handler
                return engine.iter(options)

        store._db = Interrupted()
        assert dict(store.scan()) == dict(ROWS)


def test_small_tables_are_merged(tmp_path: Path) -> None:
    """By the engine, in the background; large ones of other keys stay as they are."""
    with open_store(f"rocksdb://{tmp_path}/x") as store:

        def tables() -> int:
            until = time.monotonic() + 60
            while (found := len(list((tmp_path / "x").glob("*.sst")))) > most:
                assert time.monotonic() < until
                time.sleep(0.01)
            return found

        most = 10
        for i in range(40):
            store.put_many([(b"s%02d" % i, b"small")])
            store.sync()
            tables()
        for i in range(12):
            rows = [(b"t%03d" % (j * 12 + i), bytes(4096)) for j in range(64)]
            store.bulk_load(rows)
            tables()
        most += 20
        for i in range(20):  # each beside the one before
            store.bulk_load([(b"u%03d" % i, bytes(1 << 20))])
            tables()
        assert len(list(store.scan(b"s"))) == 40
        assert [key for key, _ in store.scan(b"t")] == [b"t%03d" % i for i in range(768)]
        assert len(list(store.scan(b"u"))) == 20


def test_ordered_writes_are_in_the_log_alone(tmp_path: Path) -> None:
    store: Any = open_store(f"rocksdb://{tmp_path}/x")
    store.put_many([(b"a", b"1")])
    store.order_writes()
    assert not (tmp_path / "x" / "windeck.seal").exists(), "this would be a sync"
    assert not list((tmp_path / "x").glob("*.sst"))
    shutil.copytree(tmp_path / "x", tmp_path / "killed")
    store.close()
    with open_store(f"rocksdb://{tmp_path}/killed") as found:
        assert found.get(b"a") == b"1"
    with pytest.raises(ValueError, match="is closed"):
        store.order_writes()


class PowerCuts:
    """An open database that, at each ingestion, is copied as a power cut after it leaves it.

    A copy has all tables and manifests, which an ingestion syncs, and of logs the synced bytes.
    """

    def __init__(self, db: Any, path: Path) -> None:
        self._db, self._path, self._count = db, path, 0
        self._synced = self._log_sizes()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def _log_sizes(self) -> dict[str, int]:
        found = {}
        for path in self._path.glob("*.log"):
            with suppress(FileNotFoundError):  # one that the engine needs no more
                found[path.name] = path.stat().st_size
        return found

    def flush_wal(self, sync: bool) -> None:
        self._db.flush_wal(sync)
        if sync:
            self._synced = self._log_sizes()

    def ingest_external_file(self, *args: Any) -> None:
        self._db.set_options({"disable_auto_compactions": "true"})  # no file vanishes meanwhile
        self._db.ingest_external_file(*args)
        copy = self._path.with_name(f"cut-{self._count}")
        while not copy.exists():
            with suppress(shutil.Error):  # a log that vanished
                shutil.rmtree(copy.with_name("copied"), ignore_errors=True)
                shutil.copytree(self._path, copy.with_name("copied")).rename(copy)
        for log in copy.glob("*.log"):
            os.truncate(log, self._synced.get(log.name, 0))
        self._count += 1
        self._db.set_options({"disable_auto_compactions": "false"})


def test_a_removal_that_survives_a_power_cut_has_all_writes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of removals is durable at once, so the log is synced before it is ingested."""
    import rocksdict

    real = rocksdict.Rdict
    with monkeypatch.context() as patch:
        patch.setattr(
            rocksdict,
            "Rdict",
            lambda path, *args, **kw: PowerCuts(real(path, *args, **kw), Path(path)),
        )
        with open_store(f"rocksdb://{tmp_path}/x") as store:
            store.put_many([(b"data/0", b"0"), (b"data/1", b"1")])
            store.sync()
            for i in range(2):
                store.put_many([(b"before/%d" % i, b"2")])
                store.delete_range(b"data/%d" % i)
                store.put_many([(b"later", b"3")])  # not synced
    expected = {b"before/0": b"2", b"data/1": b"1"}
    with open_store(f"rocksdb://{tmp_path}/cut-0") as store:
        assert dict(store.scan()) == expected
    expected = {b"before/0": b"2", b"before/1": b"2", b"later": b"3"}
    with open_store(f"rocksdb://{tmp_path}/cut-1") as store:
        assert dict(store.scan()) == expected


def test_a_save_syncs_twice(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    for step in range(1, 4):
        checkpoint.save(url, step=step, model={"w": torch.ones(3)})
        seal = (tmp_path / "x" / "windeck.seal").read_bytes()
        assert seal.split()[2] == b"%d" % (2 * step)


@pytest.mark.parametrize("seed", range(4))
def test_removed_ranges(seed: int, tmp_path: Path) -> None:
    """They are removed like others, from the log, from its tables and from those of bulk loads."""
    need("rocksdb")
    random, model = Random(seed), dict[bytes, bytes]()
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        for number in range(60):
            first, stop = sorted(random.sample(range(1000), 2))
            pairs = {b"%03d" % key: b"%d" % number for key in range(first, stop, 7)}
            action = random.choice(["put_many", "bulk_load", "delete_range"])
            if action == "delete_range":
                low, high = b"%03d" % first, b"%03d" % stop
                store.delete_range(b"", start=low, stop=high)
                model = {key: value for key, value in model.items() if not low <= key < high}
            else:
                getattr(store, action)(pairs.items())
                model.update(pairs)
            if random.random() < 0.2:
                store.sync()
            assert dict(store.scan()) == model
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        assert dict(store.scan()) == model


def test_a_removal_of_nothing_leaves_no_table(tmp_path: Path) -> None:
    """The engine never compacts such a table, and a removal would wait for that."""
    with open_store(f"rocksdb://{tmp_path}/x") as store:
        store.bulk_load(ROWS)
        before = set((tmp_path / "x").glob("*.sst"))
        store.delete_range(b"a")
        store.delete_range(b"", start=b"z")
        assert set((tmp_path / "x").glob("*.sst")) == before
        store.delete_range(b"")  # also what is before the key of the seal
        assert list(store.keys()) == []
        assert len(list((tmp_path / "x").glob("*.sst"))) <= len(before)
