"""Reading from RocksDB: the database as it is now, or one moment of it.

A moment is an iterator: it sees the database as it was when it was made, tables taken in later
left out. (The snapshots of rocksdict are not used: their iterators see what came later.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import rocksdict

from windeck.checkpoint.stores.checks import bounds, check_key, check_keys
from windeck.checkpoint.stores.embedded import SEAL_KEY
from windeck.checkpoint.stores.rocksdb_engine import fail

if TYPE_CHECKING:
    import weakref

__all__ = ["Moment", "Reading"]


class Reading:
    """Gets and scans over a database as it is now."""

    def __init__(self, db: rocksdict.Rdict, where: str) -> None:
        self._db: rocksdict.Rdict | None = db
        self._where = where
        self._moments: weakref.WeakSet[Moment] | None = None

    def get(self, key: bytes) -> bytes | None:
        db = self._open
        try:
            found: bytes | None = db.get(key)
        except Exception as error:
            fail(error, "reading", self._where)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        db = self._open
        try:
            found: Any = db.get(list(keys))
        except Exception as error:
            fail(error, "reading", self._where)
        return list(found)

    def moment(self) -> Moment:
        import weakref  # who gets single values needs none

        options = rocksdict.ReadOptions()
        options.set_verify_checksums(True)
        moment = Moment(self._open.iter(options), self._where)
        if self._moments is None:
            self._moments = weakref.WeakSet()
        self._moments.add(moment)
        return moment

    def close(self) -> None:
        """Let go of all iterators: the engine keeps its folder locked while one lives."""
        self._db = None
        for moment in list(self._moments or ()):
            moment.close()

    @property
    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise ValueError(f"the store {self._where} is closed")
        return self._db


class Moment:
    """A snapshot: one iterator, shared by all who read from it."""

    def __init__(self, iterator: rocksdict.RdictIter, where: str) -> None:
        self._shared: rocksdict.RdictIter | None = iterator
        self._where = where
        self._lock = threading.Lock()
        self._moved_by: object = None  # the scan that the iterator stands still for

    def get(self, key: bytes) -> bytes | None:
        check_key(key)
        with self._lock:
            self._moved_by = None
            self._iterator.seek(key)
            value: bytes | None = self._iterator.value() if self._key() == key else None
            return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in check_keys(keys)]

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._walk(*bounds(prefix, start, stop), True)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        return self._walk(*bounds(prefix, start, stop), False)

    def last(self) -> bytes | None:
        """The greatest key there is."""
        with self._lock:
            self._moved_by = None
            self._iterator.seek_to_last()
            return self._key()

    def close(self) -> None:
        with self._lock:
            self._shared = None

    def __enter__(self) -> Moment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _walk(self, first: bytes, end: bytes | None, values: bool) -> Iterator[Any]:
        # Nothing here may hold the iterator while the caller has a pair: close() drops it.
        me, at = object(), first
        while (found := self._step(me, at, end, values)) is not None:
            key, value = found
            yield (key, value) if values else key
            at = key + b"\0"

    def _step(
        self, me: object, at: bytes, end: bytes | None, values: bool
    ) -> tuple[bytes, bytes | None] | None:
        """The first pair from `at` on, None at the end; `me` went there last, or has to seek."""
        with self._lock:
            if self._moved_by is me:
                self._iterator.next()
            else:
                self._iterator.seek(at)
                self._moved_by = me
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
        """The key under the iterator; None at the end. An iterator also stops where it cannot
        read on, and tells the two apart by its status alone."""
        if self._iterator.valid():
            key: bytes = self._iterator.key()
            return key
        try:
            self._iterator.status()
        except Exception as error:
            fail(error, "reading", self._where)
        return None
