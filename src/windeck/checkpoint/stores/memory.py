"""Stores in memory, or over any object that behaves like a dict."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress

from windeck._util.options import explain_options
from windeck._util.threads import reentrant_lock, unheld
from windeck.checkpoint.stores.protocol import (
    Facts,
    Items,
    Snapshot,
    check_batch,
    check_compare_and_set,
    check_key,
    check_keys,
    iter_ascending,
    key_range,
    portions_by_size,
)
from windeck.checkpoint.stores.store_url import StoreURL

__all__ = ["MappingStore", "open_url"]

FACTS = Facts(
    backend="memory",
    atomic_batches=True,
    snapshots=True,
    shared=False,
    shared_readers=False,
    ordered=False,
)


@explain_options
class MappingStore:
    """A store over a mapping of bytes to bytes.

    Parameters
    ----------
    mapping
        Supports ``get``, ``[key] = value``, ``del`` and iteration over its keys: a dict, a `dbm`
        database, or your own class over some client.
    url
        The URL that errors name.
    facts
        Properties of the store; by default those of a dict.
    sync, close
        Functions called by the methods of these names.
    lock
        A lock shared by all stores over one mapping.

    Notes
    -----
    A scan visits all keys and sorts those in range: O(keys) time, and memory for the keys but not
    for the values. A snapshot is a copy: O(bytes), but for a dict only O(keys).

    Examples
    --------
    >>> store = MappingStore({})
    >>> store.put_many([(b"b", b"2"), (b"a", b"1")])
    >>> list(store.scan())
    [(b'a', b'1'), (b'b', b'2')]
    >>> store.compare_and_set(b"a", b"0", b"3")
    False
    """

    def __init__(
        self,
        mapping: MutableMapping[bytes, bytes],
        *,
        url: str = "memory://",
        facts: Facts = FACTS,
        sync: Callable[[], object] | None = None,
        close: Callable[[], object] | None = None,
        lock: threading.RLock | None = None,
    ) -> None:
        self._mapping: MutableMapping[bytes, bytes] | None = mapping
        self.url, self.facts = url, facts
        self._sync, self._close = sync, close
        self._lock, self._commits = lock or reentrant_lock(), threading.RLock()

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    @property
    def _open(self) -> MutableMapping[bytes, bytes]:
        if self._mapping is None:
            raise ValueError(f"the store {self.url} is closed")
        return self._mapping

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            return self._open.get(check_key(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return [self._open.get(key) for key in check_keys(keys)]

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        first, end = key_range(prefix, start, stop)
        with self._lock:
            keys = sorted(k for k in self._open if k >= first and (end is None or k < end))
        return iter(keys)

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._values(self.keys(prefix, start=start, stop=stop))

    def _values(self, keys: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        for key in keys:
            value = self.get(key)
            if value is not None:  # not removed since the scan began
                yield key, value

    def put_many(self, items: Items) -> None:
        pairs = check_batch(items)
        with self._lock:
            self._open  # noqa: B018 - raises when closed, even without pairs
            for key, value in pairs.items():
                self._open[key] = value

    def bulk_load(self, items: Items) -> int:
        count = 0
        self._open  # noqa: B018 - raises before items are consumed
        for portion in portions_by_size(iter_ascending(items), 1 << 20):
            self.put_many(portion)
            count += len(portion)
        return count

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = check_keys(keys)
        with self._lock:
            for key in gone:
                with suppress(KeyError):
                    del self._open[key]

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        with self._lock:
            self.delete_many(self.keys(prefix, start=start, stop=stop))

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        check_compare_and_set(key, expected, value)
        with self._lock, unheld(self._commits, f"a commit to {self.url}"):
            if self._open.get(key) != expected:
                return False
            self._open[key] = value
            return True

    def sync(self) -> None:
        with self._lock:
            self._open  # noqa: B018
            if self._sync is not None:
                self._sync()

    def snapshot(self) -> Snapshot:
        with self._lock:
            copy = dict(self._values(iter(list(self._open))))
        return MappingStore(copy, url=self.url, facts=self.facts)

    def close(self) -> None:
        with self._lock:
            was, self._mapping = self._mapping, None
            if was is not None and self._close is not None:
                self._close()

    def __enter__(self) -> MappingStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: The keys and values of each name, the lock of all stores over them, and that of commits.
_named: dict[str, tuple[dict[bytes, bytes], threading.RLock, threading.RLock]] = {}


def open_url(url: StoreURL) -> MappingStore:
    """Return the store of a name, shared within this process, or a new one without a name."""
    url.only()
    if url.path not in ("", "/"):
        raise ValueError(f"expected memory:// or memory://name, got {url}")
    fresh = dict[bytes, bytes](), reentrant_lock(), threading.RLock()
    data, lock, commits = _named.setdefault(url.host, fresh) if url.host else fresh
    store = MappingStore(data, url=str(url), lock=lock)
    store._commits = commits
    return store
