"""A store, or the URL of one, opened for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from windeck.checkpoint.stores import Store, StoreURL, open_store

__all__ = ["is_url", "opened", "patiently", "reading_url"]

Opened = TypeVar("Opened")


@contextmanager
def opened(store: Store | str, *, reading: bool = False) -> Iterator[Store]:
    """The store itself, left open, or one opened from a URL and closed at the end."""
    if not isinstance(store, str):
        if not hasattr(store, "get_many"):
            raise TypeError(
                f"a store is of type {type(store).__name__}, expected one that is open, or the URL "
                "of one as str, such as 'rocksdb:///path'"
            )
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


def is_url(text: str | os.PathLike[str]) -> bool:
    """Whether it can be taken apart as the URL of a store.

    Examples
    --------
    >>> is_url("rocksdb:///data/run"), is_url("/data/run")
    (True, False)
    """
    try:
        StoreURL.parse(str(text))
    except ValueError:
        return False
    return True


def patiently(attempt: Callable[[], Opened], *, seconds: float) -> Opened:
    """What `attempt` gives; while another process has the store open, it is asked again.

    Raises
    ------
    BlockingIOError
        When the store is still not free after so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.01)
