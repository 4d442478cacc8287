"""RocksDB, the embedded default: one opener that writes, any number that read.

Bulk data goes into table files of its own (SST), which the database takes in whole: nothing is
written twice, and nothing passes through the log.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import rocksdict

from windeck.checkpoint.stores import checks, embedded
from windeck.checkpoint.stores.embedded import SEAL_KEY
from windeck.checkpoint.stores.protocol import Facts, Items, Wanted
from windeck.checkpoint.stores.rocksdb_engine import fail, options_for, readable
from windeck.checkpoint.stores.rocksdb_reading import Moment, Reading
from windeck.checkpoint.stores.urls import StoreURL

if TYPE_CHECKING:
    from pathlib import Path

    from windeck.checkpoint.stores.rocksdb_direct import DirectReading

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
#: How long a reader tries to open a database between two syncs of its writer.
SETTLING_SECONDS = 10
_serial = itertools.count()


class RocksDBStore:
    """A RocksDB database; made by `open_store`. See `windeck.checkpoint.stores.protocol.Store`."""

    def __init__(self, url: StoreURL) -> None:
        url.only("create", "readonly", "compression")
        self.url, self.facts = str(url), FACTS
        self._where, self._readonly = url, url.flag("readonly")
        path = embedded.prepare(url, create=url.flag("create", True) and not self._readonly)
        self._path, self._lock = path, threading.RLock()
        self._start()
        until = time.monotonic() + SETTLING_SECONDS
        while self._readonly and self._seal.moved_on():
            self.close()
            if time.monotonic() > until:
                raise BlockingIOError(
                    errno.EAGAIN,
                    f"{self.url} was synced again each time it was opened for reading, for "
                    f"{SETTLING_SECONDS} s: expected its writer to pause for an instant",
                )
            self._start()

    def _start(self) -> None:
        """Open the database and see that nothing of it is lost.

        A reader opens the list of tables, then the logs. If the writer moves a log's content into a
        table between the two, the reader has neither, but does have what was written after it. As
        `sync` makes that table, and then counts it in the seal's file, the file tells of it.
        """
        self._seal = embedded.Seal(self._path, self.url)
        self._db: rocksdict.Rdict | None = self._opened()
        self._reading = Reading(self._db, self.url)
        self._made: DirectReading | None = None
        try:
            self._seal.check(self._reading.get(SEAL_KEY))
            if not self._readonly:
                self._drop_begun("bulk-")  # what a killed one left
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def _opened(self) -> rocksdict.Rdict:
        access = rocksdict.AccessType.read_write()
        if self._readonly:
            access = rocksdict.AccessType.read_only(False)
        # A reader may find a file gone that the writer's compaction replaced while it opened.
        for attempts in range(3 if self._readonly else 1, 0, -1):
            try:
                options = options_for(self._where, self._path)
                if not self._readonly:
                    return rocksdict.Rdict(self._path, options, access_type=access)
                with readable(self._path) as folder:
                    return rocksdict.Rdict(folder, options, access_type=access)
            except Exception as error:  # noqa: PERF203
                if attempts == 1 or os.strerror(2) not in str(error):
                    fail(error, "opening", self.url)
        raise AssertionError("unreachable")

    @property
    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise ValueError(f"the store {self.url} is closed")
        return self._db

    @property
    def _direct(self) -> DirectReading:
        """Made when it is asked for first: who reads little does without its import."""
        with self._lock:
            if self._made is None:
                from pathlib import Path

                from windeck.checkpoint.stores.rocksdb_direct import DirectReading

                self._made = DirectReading(self._open, Path(self._path))
            return self._made

    @property
    def _writable(self) -> rocksdict.Rdict:
        if self._readonly:
            raise PermissionError(1, f"{self.url} is open for reading only")
        return self._open

    def get(self, key: bytes) -> bytes | None:
        return self._reading.get(checks.check_key(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._reading.get_many(checks.check_keys(keys))

    def get_many_into(self, wanted: Sequence[Wanted], *, cached: bool = True) -> list[int | None]:
        self._open  # noqa: B018
        checks.check_keys([key for key, _, _ in wanted])
        return self._direct.get_many_into(wanted, cached=cached)

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._reading.moment().scan(prefix, start=start, stop=stop)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        return self._reading.moment().keys(prefix, start=start, stop=stop)

    def snapshot(self) -> Moment:
        return self._reading.moment()

    def put_many(self, items: Items) -> None:
        pairs = checks.batch(items)
        embedded.refuse_reserved(list(pairs))
        changes = rocksdict.WriteBatch(raw_mode=True)
        for key, value in pairs.items():
            changes.put(key, value)
        self._write(changes)

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = checks.check_keys(keys)
        embedded.refuse_reserved(gone)
        changes = rocksdict.WriteBatch(raw_mode=True)
        for key in gone:
            changes.delete(key)
        self._write(changes)

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        first, end = checks.bounds(prefix, start, stop)
        with self._lock:
            changes = rocksdict.WriteBatch(raw_mode=True)
            if end is None:
                last = self._reading.moment().last()
                if last is None or last < first:
                    return
                changes.delete(last)
                end = last
            if not checks.is_empty((first, end)):
                changes.delete_range(first, end)
            if first <= SEAL_KEY:
                changes.put(SEAL_KEY, self._seal.number.to_bytes(8, "big"))
            self._write(changes)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        checks.check_value(checks.check_key(key), value)
        if expected is not None:
            checks.check_value(key, expected)
        with self._lock:  # nobody else has the database open
            self._writable  # noqa: B018
            if self.get(key) != expected:
                return False
            self.put_many([(key, value)])
            return True

    def bulk_load(self, items: Items) -> int:
        from windeck.checkpoint.stores.rocksdb_tables import write_tables  # who reads needs none

        self._writable  # noqa: B018 - before anything is asked for
        name = f"bulk-{os.getpid()}-{next(_serial)}"
        try:
            count, files = write_tables(self._where, name, items, TABLE_BYTES)
            self._ingest(files)
        finally:
            self._drop_begun(f"{name}-")
        return count

    def ingest_parts(self, names: Sequence[str]) -> None:
        from windeck.checkpoint.stores.rocksdb_tables import is_empty_part

        self._writable  # noqa: B018
        paths = embedded.find_parts(self._where, names)
        full = [path for path in paths if not is_empty_part(path)]
        self._ingest(full)
        for path in paths:
            embedded.remove(path)

    def parts(self, *, unfinished: bool = False) -> list[str]:
        self._open  # noqa: B018
        names = embedded.part_names(self._path, unfinished)
        return [name for name in names if not name.startswith("bulk-")]

    def drop_parts(self, names: Sequence[str]) -> None:
        self._writable  # noqa: B018
        for name in names:
            embedded.drop_part(self._where, name)

    def sync(self) -> None:
        with self._lock:
            db = self._writable
            try:
                db.put(SEAL_KEY, self._seal.next())
                # Into a table, not only the log's disk blocks: the manifest then holds, in order,
                # all tables taken in before and this one, so that a lost end of it shows.
                db.flush()
            except Exception as error:
                fail(error, "making it durable", self.url)
            finally:
                self._changed()
            self._seal.write()

    def close(self) -> None:
        with self._lock:
            db, self._db = self._db, None
            if db is None:
                return
            self._reading.close()
            if self._made is not None:
                self._made.close()
            try:
                db.close()
            except Exception as error:
                fail(error, "closing", self.url)

    def __enter__(self) -> RocksDBStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, changes: rocksdict.WriteBatch) -> None:
        with self._lock:
            db = self._writable
            try:
                db.write(changes)
            except Exception as error:
                fail(error, "writing", self.url)
            finally:
                self._changed()

    def _changed(self) -> None:
        if self._made is not None:
            self._made.changed()

    def _ingest(self, paths: Sequence[Path]) -> None:
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)  # a link where the file system has them
        with self._lock:
            try:
                if paths:
                    self._writable.ingest_external_file([str(path) for path in paths], options)
            except Exception as error:
                fail(error, "taking in table files", self.url)
            self.sync()

    def _drop_begun(self, prefix: str) -> None:
        """Remove table files of a bulk load that was not done, or was: links of what is in use."""
        folder = os.path.join(self._path, embedded.PARTS)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.startswith(prefix):
                embedded.remove(os.path.join(folder, name))


def write_part(url: StoreURL, name: str, items: Items) -> int:
    """See `windeck.checkpoint.stores.write_part`."""
    from windeck.checkpoint.stores import rocksdb_tables

    return rocksdb_tables.write_part(url, name, items)


def open_url(url: StoreURL) -> RocksDBStore:
    """Open, or make, the database at a path."""
    return RocksDBStore(url)
