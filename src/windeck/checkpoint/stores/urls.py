"""Opening of stores: the backend of each scheme, and what is done with the URL of a store.

A backend is a module of this package that `windeck._util.schemes` names. It has a function
``open_url(url)``, which checks the options of a `StoreURL`, with `StoreURL.only`, and returns a
`Store`. An embedded database, which one process opens and others write parts for, also has
``FACTS``, a `Facts`, and ``write_part(url, name, items)``.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from windeck._util import retry
from windeck._util.imports import imported
from windeck._util.options import explain_options
from windeck._util.schemes import SCHEMES, scheme_of
from windeck.checkpoint import background
from windeck.checkpoint.stores import embedded
from windeck.checkpoint.stores.store_url import StoreURL, suggestion

if TYPE_CHECKING:
    from windeck.checkpoint.stores.protocol import Items, Store

__all__ = ["StoreURL", "existing_url", "is_url", "make_room", "open_store", "opened", "reading_url"]
__all__ += ["register", "retry_while_open", "takes_parts", "takes_turns", "write_part"]

Result = TypeVar("Result")

_PACKAGE = "windeck.checkpoint.stores"
_registered: dict[str, Callable[[StoreURL], Store]] = {}


@explain_options
def open_store(
    url: str, *, filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Open a store; wait up to ten seconds while another process has an embedded one open.

    Parameters
    ----------
    url
        ``rocksdb:///absolute/path`` or ``rocksdb://./relative/path``, the same with ``leveldb``;
        ``redis://[user:password@]host[:port][/database]``, ``rediss://`` with TLS,
        ``redis+unix:///path/of/socket[?db=number]`` on the same machine, ``redis+cluster://`` and
        ``rediss+cluster://`` for a cluster, which ``redis://`` detects as well;
        ``memory://name``, ``memory://``; and schemes added by `register`. The options of each are
        in the guide on stores. In paths, ``?`` is written ``%3F`` and ``%`` is written ``%25``.
        ``s3://bucket/folder``, ``gs://``, ``abfs://``, ``file:///folder`` and others: copies of
        checkpoints in files, to be read; `windeck.checkpoint.copy` writes them.
    filesystem, storage_options
        For stores in files: a file system of pyarrow.fs or fsspec, or options for that of the URL,
        such as credentials, as for `windeck.Table.read`.

    Returns
    -------
    Store
        Close it after use, or use it in a ``with`` statement.

    Raises
    ------
    ValueError
        For an unknown scheme or option.
    ImportError
        When the library of the backend is not installed, with the command that installs it.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Examples
    --------
    >>> with open_store("memory://") as store:
    ...     store.put_many([(b"step", b"7")])
    ...     store.get(b"step")
    b'7'
    """
    opened: Store
    is_in_files = isinstance(url, str) and scheme_of(url).store == "objects"
    if filesystem is not None or is_in_files:
        opened = _backend("file").open_objects(
            url, filesystem=filesystem, storage_options=storage_options
        )
        return opened
    parsed = StoreURL.parse(url)
    if storage_options is not None:
        raise ValueError(f"`storage_options` are for stores in files, such as s3://, got {parsed}")
    if parsed.scheme in _registered:
        return _registered[parsed.scheme](parsed)
    opener: Callable[[StoreURL], Store] = _backend(parsed.scheme).open_url
    return retry_while_open(lambda: opener(parsed), elsewhere=True)


def write_part(url: str, name: str, items: Items) -> int:
    """Write a part of an embedded database, which another process has open or opens later.

    Parameters
    ----------
    url
        URL of the store, RocksDB or LevelDB, which is not opened.
    name
        Letters, digits, ``-``, ``_`` and ``.``, up to 100. An existing part of this name is
        replaced.
    items
        Keys and values in ascending order of keys; they are read once, in bounded memory.

    Returns
    -------
    int
        Number of pairs written. They are durable, and `PartStore.ingest_parts` adds them to the
        store. A part that was not finished, because of an error or a crash, does not exist.

    Raises
    ------
    io.UnsupportedOperation
        For a store without parts: each process opens it, or no other process can reach it.
    """
    parsed = StoreURL.parse(url)
    if not takes_parts(url):
        raise io.UnsupportedOperation(
            f"{parsed} has no parts: expected rocksdb:// or leveldb://; each process that writes "
            "opens other stores itself"
        )
    written: int = _backend(parsed.scheme).write_part(parsed, name, items)
    return written


def takes_parts(url: str) -> bool:
    """Return True if `write_part` supports a URL: one process opens it, others write parts."""
    scheme = StoreURL.parse(url).scheme
    return scheme not in _registered and hasattr(_backend(scheme), "write_part")


def make_room(url: str) -> None:
    """Let a database on a full disk be opened and cleared; do nothing for other stores."""
    if takes_parts(url):
        embedded.make_room(StoreURL.parse(url))


def takes_turns(url: str) -> bool:
    """Return True if only one process at a time may open a URL, even for reading."""
    scheme = StoreURL.parse(url).scheme
    if scheme in _registered:
        return False
    backend = _backend(scheme)
    return hasattr(backend, "write_part") and not backend.FACTS.shared_readers


def register(scheme: str, opener: Callable[[StoreURL], Store]) -> None:
    """Let `open_store` open URLs of another scheme.

    Parameters
    ----------
    scheme
        In lower case, and none of the built-in ones.
    opener
        A function of the URL that checks the options, with `StoreURL.only`, and returns a store.
    """
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or scheme in SCHEMES:
        raise ValueError(f"`scheme` must be in lower case and not built-in, got {scheme!r}")
    _registered[scheme] = opener


def _backend(scheme: str) -> ModuleType:
    if scheme not in SCHEMES:
        names = (*SCHEMES, *_registered)
        raise ValueError(
            f"no store has URLs that begin with {scheme[:40]}://: expected one of "
            f"{', '.join(names)}{suggestion(scheme, names)}"
        )
    known = SCHEMES[scheme]
    try:
        found = import_module(f"{_PACKAGE}.{known.store}")
    except ModuleNotFoundError as error:
        if not known.library or error.name != known.library:
            raise
        raise ImportError(
            f"{scheme}:// needs the package {known.library}: pip install '{known.package}'",
            name=known.library,
        ) from None
    imported(found.__name__, "open_objects" if known.store == "objects" else "open_url")
    return found


@contextmanager
def opened(store: Store | str, *, reading: bool = False, create: bool = True) -> Iterator[Store]:
    """Yield an open store: `store` itself, which stays open, or the store of a URL, closed at exit.

    A missing database is created unless it is opened for reading or `create` is False. A background
    save of this process ends first, if both cannot have the store open.
    """
    if not reading or (isinstance(store, str) and takes_turns(store)):
        background.wait_quietly()
    if not isinstance(store, str):
        if not hasattr(store, "get_many"):
            raise TypeError(
                f"`store` must be an open store or a URL such as 'rocksdb:///path', got "
                f"{type(store).__name__}"
            )
        yield store
        return
    url = reading_url(store) if reading else store if create else existing_url(store)
    process, found = os.getpid(), open_store(url)
    try:
        yield found
    finally:
        if os.getpid() == process:  # a fork leaves it to its parent
            found.close()


def reading_url(url: str) -> str:
    """Return the URL for reading: RocksDB allows many readers, and no database is created.

    Examples
    --------
    >>> reading_url("rocksdb:///data/run"), reading_url("redis://localhost")
    ('rocksdb:///data/run?readonly=1', 'redis://localhost')
    >>> reading_url("leveldb:///data/run?compression=snappy")
    'leveldb:///data/run?compression=snappy&create=0'
    """
    return _with_option(url, scheme_of(url).reading)


def existing_url(url: str) -> str:
    """Return the URL for writing to an existing database.

    Examples
    --------
    >>> existing_url("rocksdb:///data/run?compression=lz4"), existing_url("redis://localhost")
    ('rocksdb:///data/run?compression=lz4&create=0', 'redis://localhost')
    """
    return _with_option(url, scheme_of(url).existing)


def _with_option(url: str, option: str) -> str:
    """Return the URL with an option, unless that is empty or the URL has it."""
    _, mark, given = url.partition("?")
    if not option or f"{option.partition('=')[0]}=" in given:
        return url
    return f"{url}{'&' if mark else '?'}{option}"


def is_url(text: str | os.PathLike[str]) -> bool:
    """Return True if a text can be parsed as the URL of a store.

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


def retry_while_open(
    attempt: Callable[[], Result], *, seconds: float | None = None, elsewhere: bool = False
) -> Result:
    """Return the result of `attempt`, which is repeated while the store is open already.

    Parameters
    ----------
    seconds
        Duration of the repetition, by default that of `windeck._util.retry.OPENING`.
    elsewhere
        Do not repeat it while this process has the store open, which it alone can close.

    Raises
    ------
    BlockingIOError
        When the store is still open after this many seconds.
    """

    def is_open(error: Exception) -> bool:
        if not isinstance(error, BlockingIOError):
            return False
        return not elsewhere or error.errno == errno.EAGAIN

    policy = retry.OPENING
    if seconds is not None:
        policy = policy._replace(most_seconds=seconds)
    return retry.retry(attempt, policy, is_open)
