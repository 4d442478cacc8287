"""RocksDB stores, through rocksdict: one process writes, any number of processes read.

Bulk loads write table files (SST), which the database ingests as they are: nothing is written
twice, and nothing passes through the log. A range of keys is removed by a table file as well.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import rocksdict

from windeck._util import retry
from windeck._util.threads import reentrant_lock, unheld
from windeck.checkpoint.stores import embedded
from windeck.checkpoint.stores.embedded import SEAL_KEY
from windeck.checkpoint.stores.protocol import (
    Facts,
    Items,
    check_batch,
    check_compare_and_set,
    check_key,
    check_keys,
    is_empty_range,
    key_range,
)
from windeck.checkpoint.stores.rocksdb_bulk import (
    is_empty_part,
    write_part,
    write_removals,
    write_tables,
)
from windeck.checkpoint.stores.rocksdb_engine import fail, options_for
from windeck.checkpoint.stores.store_url import StoreURL

__all__ = ["RocksDBStore", "open_url", "write_part"]

FACTS = Facts(
    backend="rocksdb",
    atomic_batches=True,
    snapshots=True,
    shared=False,
    shared_readers=True,
    ordered=True,
)
#: Bytes of one table file of a bulk load.
TABLE_BYTES = 1 << 30
#: Seconds without a compaction after which keys were removed as far as possible.
IDLE_SECONDS = 2.0
#: A folder in memory on Linux, in which small files take less time.
MEMORY = "/dev/shm"


class RocksDBStore:
    """A store in a RocksDB database. See `windeck.checkpoint.stores.protocol.Store`."""

    def __init__(self, url: StoreURL) -> None:
        url.only("create", "readonly", "compression")
        self.url, self.facts = str(url), FACTS
        self._where, self._readonly = url, url.flag("readonly")
        writing = not self._readonly
        path = embedded.prepare_folder(
            url, create=url.flag("create", True) and writing, writing=writing
        )
        self._path, self._lock, self._commits = path, reentrant_lock(), threading.RLock()
        self._unchecked = rocksdict.ReadOptions()
        self._unchecked.set_verify_checksums(False)
        self._unchecked.fill_cache(False)  # type: ignore[call-arg]  # its stub lacks it
        self._snapshots: weakref.WeakSet[RocksDBSnapshot] = weakref.WeakSet()
        self._snapshots_lock = reentrant_lock()  # signal handlers may scan, too
        self._db: rocksdict.Rdict | None = None
        embedded.check_process("rocksdb", self.url)
        embedded.keep_in_fork(self, "rocksdb", self.url, "_db", "_lock", "_snapshots_lock")
        for _ in retry.SETTLING.attempts():
            tables = self._list_of_tables()
            self._open_database()
            if not self._readonly or self._list_of_tables() == tables:
                break
            self.close()
        else:
            raise BlockingIOError(
                errno.EBUSY,
                f"{self.url} was synced during each attempt to open it for reading, for "
                f"{retry.SETTLING.most_seconds:g} s: expected a moment without a sync of its "
                "writer",
            )

    def _list_of_tables(self) -> dict[str, int]:
        """Return the sizes of the engine's manifests, which grow when it adds or removes tables."""
        names = [name for name in os.listdir(self._path) if name.startswith("MANIFEST-")]
        return {name: embedded.file_bytes(os.path.join(self._path, name)) for name in names}

    def _open_database(self) -> None:
        """Open the database and check by its seal that no data is lost.

        A reader opens the list of tables, then the logs, so it may miss what the writer adds to the
        list in between, though it sees later writes. It opens the database anew if the list has
        grown meanwhile. A log is removed only after its content is in a table of the list.
        """
        self._seal = embedded.Seal(self._path, self.url)
        self._db = self._open_engine()
        try:
            self._seal.check(self._read(SEAL_KEY))
            if not self._readonly:
                self._drop_tables("bulk-")  # of a killed process
                embedded.remove_left_over(self._path)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def _open_engine(self) -> rocksdict.Rdict:
        access = rocksdict.AccessType.read_write()
        if self._readonly:
            access = rocksdict.AccessType.read_only(False)
        files = set(os.listdir(self._path))

        def open_once() -> rocksdict.Rdict:
            options = options_for(self._where, self._path)
            if not self._readonly:
                return rocksdict.Rdict(self._path, options, access_type=access)
            with readable(self._path) as folder:
                return rocksdict.Rdict(folder, options, access_type=access)

        def may_pass(error: Exception) -> bool:
            nonlocal files
            text, before, files = str(error), files, set(os.listdir(self._path))
            # A compaction of the writer may remove a file while a reader opens the database.
            is_changing = self._readonly and files != before
            # All who open it remove old files of its messages before one of them has the lock.
            is_message_file = os.path.join(self._path, "LOG") in text
            return os.strerror(errno.ENOENT) in text and (is_changing or is_message_file)

        try:
            return retry.retry(open_once, retry.SETTLING, may_pass)
        except Exception as error:
            fail(error, "opening", self.url)

    @property
    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise ValueError(f"the store {self.url} is closed")
        return self._db

    @property
    def _writable(self) -> rocksdict.Rdict:
        if self._readonly:
            raise PermissionError(errno.EPERM, f"{self.url} is open for reading only")
        return self._open

    def get(self, key: bytes) -> bytes | None:
        return self._read(check_key(key))

    def _read(self, key: bytes) -> bytes | None:
        db = self._open
        try:
            found: bytes | None = db.get(key)
        except Exception as error:
            fail(error, "reading", self.url)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        wanted: Any = check_keys(keys)
        db = self._open
        try:
            found: Any = db.get(wanted)
        except Exception as error:
            fail(error, "reading", self.url)
        return list(found)

    def get_unchecked(self, key: bytes) -> bytes | None:
        """Return a value without verifying its block; see `windeck.checkpoint.stores.View`.

        By the single `get` of rocksdict, which copies a value once; that of many copies it three
        times, and verifies it whatever the options say. The block is not kept in the engine's
        cache, from which later reads would take it without verification. The indices of tables are
        verified, since the engine opens all tables with the database (see `options_for`).
        """
        check_key(key)
        db = self._open
        try:
            found: bytes | None = db.get(key, read_opt=self._unchecked)
        except Exception as error:
            fail(error, "reading", self.url)
        return found

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        first, end = key_range(prefix, start, stop)
        return self._snapshot_until(end).walk(first, end, True)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        first, end = key_range(prefix, start, stop)
        return self._snapshot_until(end).walk(first, end, False)

    def snapshot(self) -> RocksDBSnapshot:
        return self._snapshot_until(None)

    def _snapshot_until(self, end: bytes | None) -> RocksDBSnapshot:
        """Return a snapshot of the keys before `end`, of which no table after it is read."""
        options = rocksdict.ReadOptions()
        options.set_verify_checksums(True)
        if end is not None:
            options.set_iterate_upper_bound(end)
        with self._snapshots_lock:
            snapshot = RocksDBSnapshot(self._open.iter(options), self.url, options)
            self._snapshots.add(snapshot)
        return snapshot

    def put_many(self, items: Items) -> None:
        pairs = check_batch(items)
        embedded.refuse_reserved(list(pairs))
        changes = rocksdict.WriteBatch(raw_mode=True)
        for key, value in pairs.items():
            changes.put(key, value)
        self._write(changes)

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = check_keys(keys)
        embedded.refuse_reserved(gone)
        changes = rocksdict.WriteBatch(raw_mode=True)
        for key in gone:
            changes.delete(key)
        self._write(changes)

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        first, end = key_range(prefix, start, stop)
        if is_empty_range((first, end)):
            return
        with self._lock:
            self._writable  # noqa: B018
            if end is None:
                with self.snapshot() as view:
                    end = (view.last() or b"") + b"\0"
            ranges = [(first or b"\0", end)]
            if first <= SEAL_KEY < end:
                ranges = [(first or b"\0", SEAL_KEY), (SEAL_KEY + b"\0", end)]
            ranges = [pair for pair in ranges if not is_empty_range(pair)]
            if not ranges:
                return
            # The engine never compacts the table of a removal that removes nothing.
            full = [pair for pair in ranges if self._has_keys(*pair)]
            if full:
                # Tables that are ingested are durable at once: no write before them may be lost.
                self.order_writes()
                self._remove(full)
            self._wait_for_compaction(ranges)
            embedded.reserve_space(self._path)  # for the next time, if `make_room` removed it

    def _has_keys(self, first: bytes, end: bytes) -> bool:
        """Return True if keys are in [first, end), or were and have space of their own."""
        # First by the list of tables: to find a key, the engine reads its value.
        tables = self._writable.live_files()
        if any(first <= one["start_key"] and one["end_key"] < end for one in tables):
            return True
        return next(self.keys(start=first, stop=end), None) is not None

    def _remove(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        name = f"bulk-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            self._ingest_tables(write_removals(self._where, name, ranges))
        except Exception as error:
            fail(error, "removing keys", self.url)
        finally:
            self._drop_tables(f"{name}-")

    def _wait_for_compaction(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Wait until the engine has freed the space of removed ranges, as far as it can."""
        db, firsts = self._writable, {first for first, _ in ranges}

        def number(name: str) -> int:
            return db.property_int_value(f"rocksdb.{name}") or 0

        failed, pause, idle = number("background-errors"), 0.0002, 0.0
        while True:
            time.sleep(pause)  # no compaction takes less
            pause, idle = min(2 * pause, 0.01), idle + pause
            # A compaction removes the tables of removals from the list, then files from the disk.
            tables = db.live_files()
            is_done = not any(
                one["start_key"] in firsts and one["num_deletions"] == one["num_entries"]
                for one in tables
            )
            if number("num-running-compactions"):
                idle = 0.0
            elif is_done or idle > IDLE_SECONDS or number("background-errors") > failed:
                break
        # Removed keys may be left in tables that also have others. A call that merges these merges
        # all tables of the database, so it is made only if they are half of it.
        first, end = ranges[0][0], ranges[-1][1]
        mixed = sum(
            one["size"] for one in tables if one["start_key"] < end and one["end_key"] >= first
        )
        half = sum(one["size"] for one in tables) // 2
        if number("background-errors") == failed and mixed and mixed >= half:
            db.compact_range(first, end)  # reports no error
        if number("background-errors") > failed:
            raise embedded.compaction_error(self.url, self._path)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        check_compare_and_set(key, expected, value)
        embedded.refuse_reserved([key])
        # No other process has the database open.
        with self._lock, unheld(self._commits, f"a commit to {self.url}"):
            self._writable  # noqa: B018
            if self._read(key) != expected:
                return False
            changes = rocksdict.WriteBatch(raw_mode=True)
            changes.put(key, bytes(value))
            self._write(changes)
            return True

    def bulk_load(self, items: Items) -> int:
        self._writable  # noqa: B018 - raises before items are consumed
        name = f"bulk-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            count, files = write_tables(self._where, name, items, TABLE_BYTES)
            self._ingest(files)
        finally:
            self._drop_tables(f"{name}-")
        embedded.reserve_space(self._path)
        return count

    def ingest_parts(self, names: Sequence[str]) -> None:
        self._writable  # noqa: B018
        paths = embedded.find_parts(self._where, names)
        full = [path for path in paths if not is_empty_part(path)]
        self._ingest(full)
        for path in reversed(paths):  # first those that name the others
            embedded.remove(path)

    def parts(self, *, unfinished: bool = False) -> list[str]:
        self._open  # noqa: B018
        names = embedded.part_names(self._path, unfinished)
        return [name for name in names if not name.startswith("bulk-")]

    def drop_parts(self, names: Sequence[str]) -> None:
        self._writable  # noqa: B018
        for name in names:
            embedded.drop_part(self._where, name)

    def order_writes(self, before: bytes | None = None) -> None:
        """Let no later write survive a crash without all writes so far.

        Tables that are ingested later are durable at once, and a log that follows this one may be
        longer on the disk, so this one is synced. `before` makes no difference: all keys are in one
        log. See `windeck.checkpoint.stores.protocol.order_writes`.
        """
        with self._lock:
            db = self._writable
            try:
                db.flush_wal(True)
            except Exception as error:
                fail(error, "making it durable", self.url)

    def sync(self) -> None:
        with self._lock:
            changes = rocksdict.WriteBatch(raw_mode=True)
            number = self._seal.number + 1  # in a signal handler the same one, in both places
            changes.put(SEAL_KEY, self._seal.value(number))
            self._write(changes, "making it durable")
            # Flush to a table instead of syncing the log: then the manifest lists, in order, all
            # ingested tables and this one, so that a lost end of it is detected.
            try:
                self._writable.flush()
            except Exception as error:
                fail(error, "making it durable", self.url)
            self._seal.write(number)

    def close(self) -> None:
        if self._db is not None:
            # In a fork the engine would wait for its threads; close the store where it was opened.
            with self._lock:
                self._close()

    def _close(self) -> None:
        with self._snapshots_lock:
            db, self._db = self._db, None
            # The engine keeps its folder locked while there is an iterator.
            for snapshot in list(self._snapshots):
                snapshot.close()
        if db is None:
            return
        try:
            # Another thread may be reading; its next read finds the store closed.
            retry.retry(db.close, retry.SETTLING, lambda error: "Already borrowed" in str(error))
        except Exception as error:
            fail(error, "closing", self.url)

    def __enter__(self) -> RocksDBStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, changes: rocksdict.WriteBatch, doing: str = "writing") -> None:
        with self._lock:
            db = self._writable
            try:
                db.write(changes)
            except Exception as error:
                fail(error, doing, self.url)

    def _ingest(self, paths: Sequence[Path]) -> None:
        with self._lock:
            try:
                self._ingest_tables(paths)
            except Exception as error:
                fail(error, "ingesting table files", self.url)
            self.sync()

    def _ingest_tables(self, paths: Sequence[Path]) -> None:
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)  # a link where the file system has them
        if paths:
            self._writable.ingest_external_file([str(path) for path in paths], options)

    def _drop_tables(self, prefix: str) -> None:
        """Remove the table files of a bulk load, finished or not; ingested ones are links."""
        folder = os.path.join(self._path, embedded.PARTS)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(prefix):
                embedded.remove(os.path.join(folder, name))


def open_url(url: StoreURL) -> RocksDBStore:
    """Open or create the database at the path of a URL."""
    return RocksDBStore(url)


class RocksDBSnapshot:
    """A snapshot of a database: one iterator, shared by all reads.

    An iterator sees the database as it was when it was made, without tables ingested later. The
    snapshots of rocksdict are not used, since their iterators see later writes.
    """

    def __init__(
        self, iterator: rocksdict.RdictIter, where: str, options: rocksdict.ReadOptions
    ) -> None:
        self._shared: rocksdict.RdictIter | None = iterator
        # They own the memory of the upper bound, which the iterator does not copy.
        self._options = options
        self._where = where
        self._lock = threading.RLock()
        self._moved_by: object = None  # the last scan that moved the iterator
        embedded.keep_in_fork(self, "rocksdb", where, "_shared", "_lock")

    def get(self, key: bytes) -> bytes | None:
        check_key(key)
        with self._alone:
            self._moved_by = None
            self._iterator.seek(key)
            value: bytes | None = self._iterator.value() if self._key() == key else None
            return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in check_keys(keys)]

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self.walk(*key_range(prefix, start, stop), True)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        return self.walk(*key_range(prefix, start, stop), False)

    def last(self) -> bytes | None:
        """Return the greatest key."""
        with self._alone:
            self._moved_by = None
            self._iterator.seek_to_last()
            return self._key()

    def close(self) -> None:
        with self._alone:
            self._shared = None

    def __enter__(self) -> RocksDBSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _alone(self) -> threading.RLock:
        return unheld(self._lock, f"a read from a snapshot of {self._where}")

    def walk(self, first: bytes, end: bytes | None, values: bool) -> Iterator[Any]:
        # No reference to the iterator while the caller has a pair, so that close() can drop it.
        scan, at = object(), first
        while (found := self._step(scan, at, end, values)) is not None:
            key, value = found
            yield (key, value) if values else key
            at = key + b"\0"

    def _step(
        self, scan: object, at: bytes, end: bytes | None, values: bool
    ) -> tuple[bytes, bytes | None] | None:
        """Return the first pair from `at` on, None at the end.

        Seek only if another read than `scan` has moved the iterator.
        """
        with self._alone:
            if self._moved_by is scan:
                self._iterator.next()
            else:
                self._iterator.seek(at)
                self._moved_by = scan
            key = self._key()
            if key == SEAL_KEY:
                self._iterator.next()
                key = self._key()
            if key is None or (end is not None and key >= end):
                return None
            return key, self._iterator.value() if values else None

    @property
    def _iterator(self) -> rocksdict.RdictIter:
        if self._shared is None:
            raise ValueError(f"the store {self._where} or its snapshot is closed")
        return self._shared

    def _key(self) -> bytes | None:
        """Return the key at the iterator, None at the end.

        An iterator also stops at data that it cannot read; only its status shows the difference.
        """
        if self._iterator.valid():
            key: bytes = self._iterator.key()
            return key
        try:
            self._iterator.status()
        except Exception as error:
            fail(error, "reading", self._where)
        return None


@contextmanager
def readable(path: str) -> Iterator[str]:
    """Yield a folder of links to the files of a database, in which to open it for reading.

    rocksdict writes a note next to a database whenever it opens one, and the engine a log of its
    work, both through links. A reader opens all files at once and needs the links only until then.
    """
    in_memory = os.access(MEMORY, os.W_OK) and embedded.free_bytes(MEMORY) > 1 << 20
    with TemporaryDirectory(prefix="windeck-", dir=MEMORY if in_memory else None) as folder:
        for name in os.listdir(path):
            if name.startswith(("CURRENT", "IDENTITY", "MANIFEST-", "OPTIONS-")) or name.endswith(
                (".sst", ".log")
            ):
                os.symlink(os.path.join(os.path.abspath(path), name), os.path.join(folder, name))
        yield folder
