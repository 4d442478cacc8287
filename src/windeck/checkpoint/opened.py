"""A store, or the URL of one, opened for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from windeck.checkpoint.stores import Store, open_store

__all__ = ["opened", "reading_url"]


@contextmanager
def opened(store: Store | str, *, reading: bool = False) -> Iterator[Store]:
    """The store itself, left open, or one opened from a URL and closed at the end."""
    if not isinstance(store, str):
        yield store
        return
    with open_store(reading_url(store) if reading else store) as found:
        yield found


def reading_url(url: str) -> str:
    """A URL for reading: many may read a RocksDB at once, beside its one writer; none is made.

    Examples
    --------
    >>> reading_url("rocksdb:///data/run"), reading_url("redis://localhost")
    ('rocksdb:///data/run?readonly=1', 'redis://localhost')
    >>> reading_url("leveldb:///data/run?compression=snappy")
    'leveldb:///data/run?compression=snappy&create=0'
    """
    for scheme, name, option in (("rocksdb", "readonly", "1"), ("leveldb", "create", "0")):
        if url.startswith(f"{scheme}://") and f"{name}=" not in url:
            return f"{url}{'&' if '?' in url else '?'}{name}={option}"
    return url
