"""URLs of stores: parsing, options, and the backend of each scheme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from windeck.checkpoint.stores.protocol import Items, Store

__all__ = ["StoreURL", "open_store", "register", "takes_parts", "takes_turns"]
__all__ += ["write_part"]

_PACKAGE = "windeck.checkpoint.stores"
#: scheme -> module, library it imports, extra that brings the library
_BACKENDS = {
    "memory": ("memory", "", ""),
    "rocksdb": ("rocksdb", "rocksdict", "rocksdb"),
    "leveldb": ("leveldb", "plyvel", "leveldb"),
    "redis": ("redis", "redis", "redis"),
    "rediss": ("redis", "redis", "redis"),
    "redis+unix": ("redis", "redis", "redis"),
    "redis+cluster": ("redis", "redis", "redis"),
    "rediss+cluster": ("redis", "redis", "redis"),
}
_registered: dict[str, Callable[[StoreURL], Store]] = {}


class StoreURL(NamedTuple):
    """A parsed URL ``scheme://user:password@host:port/path?option=value``.

    `path` and the parts before it are decoded (``%20`` is a space). As text it has no password.

    Examples
    --------
    >>> url = StoreURL.parse("redis://me:secret@localhost:6379/0?timeout=5")
    >>> url.host, url.port, url.path, url.number("timeout", 30.0)
    ('localhost', 6379, '/0', 5.0)
    >>> print(url)
    redis://me:***@localhost:6379/0?timeout=5
    """

    scheme: str
    host: str = ""
    port: int | None = None
    path: str = ""
    user: str = ""
    password: str = ""
    options: Mapping[str, str] = MappingProxyType({})

    @staticmethod
    def parse(text: str) -> StoreURL:
        """Parse a URL; ValueError, which never shows a password, if it is not valid."""
        if not isinstance(text, str):
            raise TypeError(f"expected a URL as str, got {type(text).__name__}")
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise ValueError(
                "expected the URL of a store, such as rocksdb:///path, got a text that has no ://"
                f" and begins with {text.partition(':')[0][:40]!r}"
            )
        location, _, query = rest.partition("?")
        authority, slash, path = location.partition("/")
        login, _, place = authority.rpartition("@")
        user, _, password = login.partition(":")
        # Not quoted in errors: with a stray / or @ in it, any part may hold some of a password.
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:@\[\]]*)(?::(\d{1,5}))?", place)
        astray = scheme.startswith("redis") and "@" in path + query
        if match is None or (match[2] and int(match[2]) > 65535) or astray:
            raise ValueError(
                f"the host and port of a {scheme}:// URL cannot be read: expected host:port, and "
                "/, ?, @ and : in a password written as %2F, %3F, %40 and %3A"
            )
        return StoreURL(
            scheme=scheme,
            host=match[1].strip("[]"),
            port=int(match[2]) if match[2] else None,
            path=_decoded(slash + path),
            user=_decoded(user),
            password=_decoded(password),
            options=_options(scheme, query),
        )

    def __repr__(self) -> str:
        return f"StoreURL({str(self)!r})"  # which has no password

    def __str__(self) -> str:
        login = f"{self.user}{':***' if self.password else ''}@" * bool(self.user or self.password)
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port is not None else ""
        options = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.scheme}://{login}{host}{port}{self.path}{'?' * bool(options)}{options}"

    def only(self, *names: str) -> None:
        """Refuse options other than these."""
        for name in self.options:
            if name not in names:
                known = f"expected {', '.join(names)}" if names else "there are none"
                raise ValueError(
                    f"{self.scheme}:// URLs have no option {name!r}: {known}{_meant(name, names)}"
                )

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an option that is 0 or 1."""
        return self.choice(name, ("0", "1"), "1" if default else "0") == "1"

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return an option that is one of `choices`."""
        value = self.options.get(name, default)
        if value not in choices:
            raise ValueError(f"expected {name}={' or '.join(choices)} in {self}, got {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return an option that is a positive number."""
        text = self.options.get(name, str(default))
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or float(text) <= 0:
            raise ValueError(f"expected {name}= a number above 0 in {self}, got {text!r}")
        return float(text)


def open_store(url: str) -> Store:
    """Open a store.

    Parameters
    ----------
    url
        ``rocksdb:///absolute/path`` or ``rocksdb://./relative/path``, the same with ``leveldb``;
        ``redis://[user:password@]host[:port][/database]``, ``rediss://`` with TLS,
        ``redis+unix:///path/of/socket[?db=number]`` on the same machine, ``redis+cluster://`` and
        ``rediss+cluster://`` for a cluster, which ``redis://`` finds out by itself;
        ``memory://name``, ``memory://``; and what `register` added. The options of each are in
        docs/stores.md. In paths, ``?`` is written ``%3F`` and ``%`` is written ``%25``.

    Returns
    -------
    Store
        To be closed, or used in a ``with``.

    Raises
    ------
    ValueError
        For a URL or an option that is not one of these.
    ImportError
        Where the library is not installed, with the command that installs it.
    OSError
        See `windeck.checkpoint.stores.errors`.

    Examples
    --------
    >>> with open_store("memory://") as store:
    ...     store.put_many([(b"step", b"7")])
    ...     store.get(b"step")
    b'7'
    """
    parsed = StoreURL.parse(url)
    if parsed.scheme in _registered:
        return _registered[parsed.scheme](parsed)
    opened: Store = _backend(parsed.scheme).open_url(parsed)
    return opened


def write_part(url: str, name: str, items: Items) -> int:
    """Write a part of an embedded database, which another process has open or will open.

    Parameters
    ----------
    url
        That of the store, RocksDB or LevelDB, which is not opened.
    name
        Letters, digits, ``-``, ``_`` and ``.``, up to 100; a part of this name that was not taken
        in yet is replaced.
    items
        Keys and values in ascending order of keys, read once, in bounded memory.

    Returns
    -------
    int
        Pairs written, durably, for `PartStore.ingest_parts` to take in. A part that was not
        finished, because the process ended or raised, is not there.

    Raises
    ------
    io.UnsupportedOperation
        For a store that each process opens itself, or that no other process can reach.
    """
    parsed = StoreURL.parse(url)
    if not takes_parts(url):
        raise io.UnsupportedOperation(
            f"{parsed} has no parts: expected rocksdb:// or leveldb://; other stores are opened by "
            "each process that writes"
        )
    written: int = _backend(parsed.scheme).write_part(parsed, name, items)
    return written


def takes_parts(url: str) -> bool:
    """Return whether `write_part` works for a URL: one process opens it, others write parts."""
    scheme = StoreURL.parse(url).scheme
    return scheme not in _registered and hasattr(_backend(scheme), "write_part")


def takes_turns(url: str) -> bool:
    """Return whether only one process at a time may open a URL, even to read."""
    return takes_parts(url) and not _backend(StoreURL.parse(url).scheme).FACTS.shared_readers


def register(scheme: str, opener: Callable[[StoreURL], Store]) -> None:
    """Let `open_store` open URLs of another scheme.

    Parameters
    ----------
    scheme
        Lower case; one of windeck's own cannot be taken.
    opener
        Called with the URL; checks its options with `StoreURL.only` and returns a store.
    """
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or scheme in _BACKENDS:
        raise ValueError(f"expected a scheme of your own in lower case, got {scheme!r}")
    _registered[scheme] = opener


def _backend(scheme: str) -> ModuleType:
    if scheme not in _BACKENDS:
        known = (*_BACKENDS, *_registered)
        raise ValueError(
            f"no store has URLs that begin with {scheme[:40]}://: expected one of "
            f"{', '.join(known)}{_meant(scheme, known)}"
        )
    module, library, extra = _BACKENDS[scheme]
    try:
        return import_module(f"{_PACKAGE}.{module}")
    except ModuleNotFoundError as error:
        if not library or error.name != library:
            raise
        raise ImportError(
            f"{scheme}:// needs the package {library}: pip install 'windeck[{extra}]'", name=library
        ) from None


def _decoded(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # takes longer to import than a small store to open

    return unquote(text)


def _options(scheme: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        if not name or not equals or name in options:
            raise ValueError(
                f"the options of a {scheme}:// URL cannot be read at {name!r}: expected each once, "
                "as name=value, with & between them"
            )
        options[name] = _decoded(value)
    return options


def _meant(name: str, known: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
