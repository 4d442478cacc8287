"""LevelDB: one process opens it, every write is synced, every read verified."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import plyvel

from windeck.checkpoint.stores import checks, embedded
from windeck.checkpoint.stores.embedded import SEAL_KEY
from windeck.checkpoint.stores.errors import already_open, from_engine
from windeck.checkpoint.stores.protocol import Facts, Items
from windeck.checkpoint.stores.urls import StoreURL

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LevelDBStore", "open_url", "write_part"]

FACTS = Facts(
    backend="leveldb",
    atomic_batches=True,
    snapshots=True,
    shared=False,
    shared_readers=False,
    ordered=True,
)
#: Bytes of one batch of a bulk load.
BATCH_BYTES = 4 << 20
#: Keys of one batch of a `delete_range`.
BATCH_KEYS = 10_000

_claims: weakref.WeakValueDictionary[tuple[int, int], LevelDBStore] = weakref.WeakValueDictionary()
_claims_lock = threading.Lock()


class LevelDBStore:
    """A LevelDB database; made by `open_store`. See `windeck.checkpoint.stores.protocol.Store`."""

    def __init__(self, url: StoreURL) -> None:
        url.only("create", "compression")
        self.url, self.facts = str(url), FACTS
        self._where = url
        self._path = embedded.prepare(url, create=url.flag("create", True))
        self._lock = threading.RLock()
        self._seal = embedded.Seal(self._path, self.url)
        self._db: Any = None
        self._place = self._claim()
        try:
            self._db = _opened(self._path, url)
            self._reading = Reading(self._db, self.url)
            self._seal.check(self._reading.get(SEAL_KEY))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def _claim(self) -> tuple[int, int]:
        """Refuse a second opener in this process. LevelDB would, too, but by closing the lock file
        it would give up the lock of the first: other processes could open it then."""
        found = os.stat(self._path)
        place = found.st_dev, found.st_ino
        with _claims_lock:
            if place in _claims:
                raise already_open(self.url)
            _claims[place] = self
        return place

    @property
    def _open(self) -> Any:
        if self._db.closed:
            raise ValueError(f"the store {self.url} is closed")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        return self._reading.get(checks.check_key(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._reading.get_many(keys)

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._reading.scan(prefix, start=start, stop=stop)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        return self._reading.keys(prefix, start=start, stop=stop)

    def snapshot(self) -> LevelDBSnapshot:
        return LevelDBSnapshot(self._open.snapshot(), self.url)

    def put_many(self, items: Items) -> None:
        pairs = checks.batch(items)
        embedded.refuse_reserved(list(pairs))
        self._write(pairs.items())

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = checks.check_keys(keys)
        embedded.refuse_reserved(gone)
        self._write((), gone)

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        gone: list[bytes] = []
        for key in self.keys(prefix, start=start, stop=stop):
            gone.append(key)
            if len(gone) == BATCH_KEYS:
                self._write((), gone)
                gone = []
        self._write((), gone)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        checks.check_value(checks.check_key(key), value)
        if expected is not None:
            checks.check_value(key, expected)
        with self._lock:  # nobody else has the database open
            if self.get(key) != expected:
                return False
            self.put_many([(key, value)])
            return True

    def bulk_load(self, items: Items) -> int:
        self._open  # noqa: B018 - before anything is asked for
        count = 0
        for group in checks.groups(checks.ascending(items), BATCH_BYTES):
            embedded.refuse_reserved([key for key, _ in group])
            self._write(group)
            count += len(group)
        self.sync()
        return count

    def ingest_parts(self, names: Sequence[str]) -> None:
        self._open  # noqa: B018
        paths = embedded.find_parts(self._where, names)
        for path in paths:
            part = _opened(path, self._where)
            try:
                self.bulk_load(Reading(part, f"{self.url} (part {path.name})").scan())
            finally:
                part.close()
        for path in paths:
            embedded.remove(path)

    def parts(self, *, unfinished: bool = False) -> list[str]:
        self._open  # noqa: B018
        return embedded.part_names(self._path, unfinished)

    def drop_parts(self, names: Sequence[str]) -> None:
        self._open  # noqa: B018
        for name in names:
            embedded.drop_part(self._where, name)

    def sync(self) -> None:
        with self._lock:
            self._write([(SEAL_KEY, self._seal.next())])
            self._seal.write()

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()  # and its iterators and snapshots
        with _claims_lock:
            if _claims.get(self._place) is self:
                del _claims[self._place]

    def __enter__(self) -> LevelDBStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, items: Items, gone: Iterable[bytes] = ()) -> None:
        with self._lock:
            _write(self._open, items, gone, self.url)


def open_url(url: StoreURL) -> LevelDBStore:
    """Open, or make, the database at a path."""
    return LevelDBStore(url)


def write_part(url: StoreURL, name: str, items: Items) -> int:
    """Write a database of its own for `LevelDBStore.ingest_parts`."""
    url.only("create", "compression")
    embedded.prepare(url, create=True)
    path = embedded.part_path(url, name)
    temporary = path.with_name(name + ".tmp")
    embedded.remove(temporary)
    where, count = f"{url} (part {name})", 0
    try:
        part = _opened(temporary, url)
        try:
            for group in checks.groups(checks.ascending(items), BATCH_BYTES):
                embedded.refuse_reserved([key for key, _ in group])
                _write(part, group, (), where)
                count += len(group)
        finally:
            part.close()
        embedded.remove(path)
        os.replace(temporary, path)
    finally:
        embedded.remove(temporary)
    embedded.fsync_folder(path.parent)
    return count


def _opened(path: str | Path, url: StoreURL) -> Any:
    compression = url.choice("compression", ("none", "snappy"), "none")
    try:
        return plyvel.DB(
            str(path),
            create_if_missing=True,
            paranoid_checks=True,
            compression=None if compression == "none" else compression,
            write_buffer_size=16 << 20,
            max_file_size=32 << 20,
        )
    except plyvel.Error as error:
        raise from_engine(error, "opening", str(url)) from error


def _write(db: Any, items: Items, gone: Iterable[bytes], where: str) -> None:
    """One batch, synced. Later syncs do not cover earlier batches: when LevelDB goes on to a new
    log, the old one is not synced."""
    try:
        with db.write_batch(transaction=True, sync=True) as changes:
            for key, value in items:
                changes.put(key, value)
            for key in gone:
                changes.delete(key)
    except (plyvel.Error, RuntimeError) as error:
        raise _meaning(error, "writing", where) from error


class Reading:
    """Gets and scans over a database or a snapshot of it."""

    def __init__(self, handle: Any, where: str) -> None:
        self._handle, self._where = handle, where

    def get(self, key: bytes) -> bytes | None:
        try:
            # Unless checked, a flipped byte is a wrong value.
            found: bytes | None = self._handle.get(key, verify_checksums=True)
        except (plyvel.Error, RuntimeError) as error:
            raise _meaning(error, "reading", self._where) from error
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in checks.check_keys(keys)]

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return (pair for pair in self._walk(prefix, start, stop, True) if pair[0] != SEAL_KEY)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        return (key for key in self._walk(prefix, start, stop, False) if key != SEAL_KEY)

    def _walk(
        self, prefix: bytes, start: bytes | None, stop: bytes | None, values: bool
    ) -> Iterator[Any]:
        first, end = checks.bounds(prefix, start, stop)
        if checks.is_empty((first, end)):
            return
        try:
            yield from self._handle.iterator(
                start=first, stop=end, include_value=values, verify_checksums=True
            )
        except (plyvel.Error, RuntimeError) as error:
            raise _meaning(error, "reading", self._where) from error


class LevelDBSnapshot(Reading):
    """One moment of a database."""

    def get(self, key: bytes) -> bytes | None:
        return super().get(checks.check_key(key))

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> LevelDBSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _meaning(error: Exception, doing: str, where: str) -> Exception:
    """Return the error of `stores.errors` for an error of plyvel."""
    if isinstance(error, RuntimeError):
        if "closed" not in str(error):
            return error
        return ValueError(f"the store {where} is closed")
    return from_engine(error, doing, where)
