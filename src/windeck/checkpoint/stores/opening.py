"""A store, or the URL of one, opened for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from windeck.checkpoint.stores import Store, StoreURL, open_store

__all__ = ["existing_url", "is_url", "opened", "patiently", "reading_url"]

Opened = TypeVar("Opened")


@contextmanager
def opened(store: Store | str, *, reading: bool = False, making: bool = True) -> Iterator[Store]:
    """The store itself, left open, or one opened from a URL and closed at the end; a database that
    is not there is made if it is for writing and `making` says so."""
    if not isinstance(store, str):
        if not hasattr(store, "get_many"):
            raise TypeError(
                f"a store is of type {type(store).__name__}, expected one that is open, or the URL "
                "of one as str, such as 'rocksdb:///path'"
            )
        yield store
        return
    url = reading_url(store) if reading else store if making else existing_url(store)
    with open_store(url) as found:
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
    return _with(url, rocksdb="readonly=1", leveldb="create=0")


def existing_url(url: str) -> str:
    """A URL for writing to what is there: no database is made.

    Examples
    --------
    >>> existing_url("rocksdb:///data/run?compression=lz4"), existing_url("redis://localhost")
    ('rocksdb:///data/run?compression=lz4&create=0', 'redis://localhost')
    """
    return _with(url, rocksdb="create=0", leveldb="create=0")


def _with(url: str, **options: str) -> str:
    """A URL with the option of its scheme, if it says nothing of that."""
    option = options.get(url.partition("://")[0])
    _, mark, given = url.partition("?")
    if option is None or f"{option.partition('=')[0]}=" in given:
        return url
    return f"{url}{'&' if mark else '?'}{option}"


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
