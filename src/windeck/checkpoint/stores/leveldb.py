"""LevelDB stores, through plyvel: one opener at a time, synced writes, verified reads."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import plyvel

from windeck._util.threads import reentrant_lock, unheld
from windeck.checkpoint.stores import embedded
from windeck.checkpoint.stores.embedded import SEAL_KEY, already_open_error, translate_engine_error
from windeck.checkpoint.stores.protocol import (
    Facts,
    Items,
    check_batch,
    check_compare_and_set,
    check_key,
    check_keys,
    is_empty_range,
    iter_ascending,
    key_range,
    portions_by_size,
)
from windeck.checkpoint.stores.store_url import StoreURL
from windeck.io.local_files import fsync_folder, temporary_path

__all__ = ["LevelDBStore", "open_url", "write_part"]

FACTS = Facts(
    backend="leveldb",
    atomic_batches=True,
    snapshots=True,
    shared=False,
    shared_readers=False,
    ordered=True,
)
#: Bytes of one batch of a bulk load, and of the log that LevelDB moves into a table when it opens.
BATCH_BYTES = 2 << 20
LOG_BYTES = 4 << 20
#: Least and most bytes between the first and the last key of which `delete_many` frees the space at
#: once: few need not be freed, and many are of other keys.
LARGE_BYTES, FAR_BYTES = 32 << 10, 64 << 20
#: Keys of one batch of a `delete_range`.
BATCH_KEYS = 10_000

#: The store that has a folder open, by device and inode.
_claims: dict[tuple[int, int], weakref.ref[LevelDBStore]] = {}


class LevelDBStore:
    """A store in a LevelDB database. See `windeck.checkpoint.stores.protocol.Store`."""

    def __init__(self, url: StoreURL) -> None:
        url.only("create", "compression")
        self.url, self.facts = str(url), FACTS
        self._where = url
        self._path = embedded.prepare_folder(url, create=url.flag("create", True))
        self._lock, self._commits = reentrant_lock(), threading.RLock()
        self._seal = embedded.Seal(self._path, self.url)
        self._db: Any = None
        embedded.check_process("leveldb", self.url)
        self._place = self._claim()
        embedded.keep_in_fork(self, "leveldb", self.url, "_db", "_lock")
        try:
            self._db = _open_database(self._path, url)
            self._reader = LevelDBReader(self._db, self.url)
            self._seal.check(self._reader.get(SEAL_KEY))
            embedded.remove_left_over(self._path)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def _claim(self) -> tuple[int, int]:
        """Register this opener; raise BlockingIOError for a second one in this process.

        LevelDB would refuse it, too, but it would close the lock file and so release the lock of
        the first opener: other processes could open the database then.
        """
        found = os.stat(self._path)
        place = found.st_dev, found.st_ino
        own = weakref.ref(self, lambda own: _release(place, own))
        if _claims.setdefault(place, own) is not own:
            raise already_open_error(self.url, own=True)
        return place

    @property
    def _open(self) -> Any:
        if self._db.closed:
            raise ValueError(f"the store {self.url} is closed")
        return self._db

    def get(self, key: bytes) -> bytes | None:
        return self._reader.get(check_key(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._reader.get_many(keys)

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._reader.scan(prefix, start=start, stop=stop)

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        return self._reader.keys(prefix, start=start, stop=stop)

    def snapshot(self) -> LevelDBSnapshot:
        return LevelDBSnapshot(self._open.snapshot(), self.url)

    def put_many(self, items: Items) -> None:
        pairs = check_batch(items)
        embedded.refuse_reserved(list(pairs))
        self._write(pairs.items())

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = check_keys(keys)
        embedded.refuse_reserved(gone)
        if not gone:
            return
        first, last = min(gone), max(gone)
        stored = self._open.approximate_size(first, last + b"\0")
        self._write((), gone)
        if LARGE_BYTES <= stored <= FAR_BYTES:
            # Otherwise the values and the note of their removal may stay in tables without end.
            self._compact(first, last)

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        gone: list[bytes] = []
        first: bytes | None = None
        for key in self.keys(prefix, start=start, stop=stop):
            if first is None:
                first = key
                self._flush()  # a table of its own for the removed keys, see bulk_load
            gone.append(key)
            if len(gone) == BATCH_KEYS:
                self._write((), gone)
                gone = []
        if first is None:
            return
        self._write((), gone)
        self._compact(first, key)

    def _compact(self, first: bytes, last: bytes) -> None:
        """Free the space of removed keys."""
        with suppress(plyvel.Error, RuntimeError):  # raised by the next write, too
            self._open.compact_range(start=first, stop=last)
        with self._lock:  # shows an error of the compaction
            self._write([(SEAL_KEY, self._seal.value(self._seal.number))])
        embedded.reserve_space(self._path)  # for the next time, if `make_room` removed it

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        check_compare_and_set(key, expected, value)
        # No other process has the database open.
        with self._lock, unheld(self._commits, f"a commit to {self.url}"):
            if self.get(key) != expected:
                return False
            self.put_many([(key, value)])
            return True

    def bulk_load(self, items: Items) -> int:
        self._open  # noqa: B018 - raises before items are consumed
        count = 0
        try:
            for portion in portions_by_size(iter_ascending(items), BATCH_BYTES):
                embedded.refuse_reserved([key for key, _ in portion])
                self._check_space(sum(len(value) for _, value in portion))
                if not count:
                    # A table with these keys alone overlaps no other, so it is not rewritten, and
                    # it is deleted as a whole when the keys are removed.
                    self._flush()
                self._write(portion)
                count += len(portion)
        finally:
            if count:
                # Otherwise LevelDB does it when it opens, for which there may be no space then.
                self._flush()
        embedded.reserve_space(self._path)
        self.sync()
        return count

    def _flush(self) -> None:
        """Write the content of the log into a table; the next write raises an error of that."""
        with self._lock, suppress(plyvel.Error, RuntimeError):
            self._open.compact_range(start=b"\0", stop=b"\0")

    def _check_space(self, size: int) -> None:
        left, needed = embedded.free_bytes(self._path), 2 * (LOG_BYTES + max(size, BATCH_BYTES))
        if left < needed:
            raise OSError(
                errno.ENOSPC,
                f"{self.url}: writing failed: the disk has {left:,} bytes left, expected at least "
                f"{needed:,}, which LevelDB may need when it opens",
            )

    def ingest_parts(self, names: Sequence[str]) -> None:
        self._open  # noqa: B018
        paths = embedded.find_parts(self._where, names)
        for path in paths:
            part = _open_database(path, self._where)
            try:
                self.bulk_load(LevelDBReader(part, f"{self.url} (part {path.name})").scan())
            finally:
                part.close()
        for path in reversed(paths):  # first those that name the others
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
            number = self._seal.number + 1  # in a signal handler the same one, in both places
            self._write([(SEAL_KEY, self._seal.value(number))])
            self._seal.write(number)

    def close(self) -> None:
        try:
            if self._db is not None and not self._db.closed:
                with self._lock:
                    self._db.close()  # and its iterators and snapshots
        finally:  # also if an interrupt is raised when it is closed
            if self._db is None or self._db.closed:
                _release(self._place, weakref.ref(self))

    def __enter__(self) -> LevelDBStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, items: Collection[tuple[bytes, bytes]], gone: Sequence[bytes] = ()) -> None:
        with self._lock:
            _write(self._open, items, gone, self.url)


def _release(place: tuple[int, int], claim: weakref.ref[LevelDBStore]) -> None:
    """Let others open a folder, if it is the claim of this store."""
    if _claims.get(place) == claim:
        _claims.pop(place, None)


def open_url(url: StoreURL) -> LevelDBStore:
    """Open or create the database at the path of a URL."""
    return LevelDBStore(url)


def write_part(url: StoreURL, name: str, items: Items) -> int:
    """Write a small database for `LevelDBStore.ingest_parts`."""
    url.only("create", "compression")
    embedded.prepare_folder(url, create=True)
    path = embedded.part_path(url, name)
    temporary = temporary_path(path)
    os.mkdir(temporary)
    where, count = f"{url} (part {name})", 0
    try:
        part = _open_database(temporary, url)
        try:
            for portion in portions_by_size(iter_ascending(items), BATCH_BYTES):
                embedded.refuse_reserved([key for key, _ in portion])
                _write(part, portion, (), where)
                count += len(portion)
        finally:
            part.close()
        embedded.remove(path)
        os.replace(temporary, path)
    finally:
        embedded.remove(temporary)
    fsync_folder(path.parent)
    return count


def _open_database(path: str | Path, url: StoreURL) -> Any:
    embedded.check_process("leveldb", url)
    compression = url.choice("compression", ("none", "snappy"), "none")
    embedded.refuse_links(path)
    try:
        return plyvel.DB(
            str(path),
            create_if_missing=True,
            paranoid_checks=True,
            compression=None if compression == "none" else compression,
            write_buffer_size=LOG_BYTES,
        )
    except plyvel.Error as error:
        raise translate_engine_error(error, "opening", str(url)) from error


def _write(db: Any, items: Items, gone: Iterable[bytes], where: str) -> None:
    """Write and sync one batch.

    A later sync does not cover earlier batches: when LevelDB begins a new log, it does not sync the
    old one.
    """
    try:
        with db.write_batch(transaction=True, sync=True) as changes:
            for key, value in items:
                changes.put(key, value)
            for key in gone:
                changes.delete(key)
    except (plyvel.Error, RuntimeError) as error:
        raise _translate_error(error, "writing", where) from error


class LevelDBReader:
    """Reads from a database or a snapshot of it."""

    def __init__(self, handle: Any, where: str) -> None:
        self._handle, self._where = handle, where
        embedded.keep_in_fork(self, "leveldb", where, "_handle")

    def get(self, key: bytes) -> bytes | None:
        try:
            # Without verification, a flipped byte gives a wrong value.
            found: bytes | None = self._handle.get(key, verify_checksums=True)
        except (plyvel.Error, RuntimeError) as error:
            raise _translate_error(error, "reading", self._where) from error
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in check_keys(keys)]

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
        first, end = key_range(prefix, start, stop)
        if is_empty_range((first, end)):
            return
        try:
            yield from self._handle.iterator(
                start=first, stop=end, include_value=values, verify_checksums=True
            )
        except (plyvel.Error, RuntimeError) as error:
            raise _translate_error(error, "reading", self._where) from error


class LevelDBSnapshot(LevelDBReader):
    """A snapshot of a database."""

    def get(self, key: bytes) -> bytes | None:
        return super().get(check_key(key))

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> LevelDBSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _translate_error(error: Exception, doing: str, where: str) -> Exception:
    """Return the built-in error for an error of plyvel."""
    if isinstance(error, RuntimeError):
        if "closed" not in str(error):
            return error
        return ValueError(f"the store {where} is closed")
    return translate_engine_error(error, doing, where)
