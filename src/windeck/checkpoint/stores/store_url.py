"""The parsed URL of a store, and its options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote

from windeck._util.schemes import SCHEMES, UNKNOWN, scheme_of

__all__ = ["StoreURL", "suggestion"]


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
        """Parse a URL; raise ValueError, which never shows a password, if it is not valid."""
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
        # Errors do not quote it: after an unescaped / or @ any part may be part of a password.
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:@\[\]]*)(?::(\d{1,5}))?", place)
        misplaced = scheme_of(text).store == "redis" and "@" in path + query
        if match is None or (match[2] and int(match[2]) > 65535) or misplaced:
            raise ValueError(
                f"the host and port of a {scheme}:// URL cannot be read: expected host:port, and "
                "/, ?, @ and : in a password written as %2F, %3F, %40 and %3A"
            )
        return StoreURL(
            scheme=scheme,
            host=match[1].strip("[]"),
            port=int(match[2]) if match[2] else None,
            path=unquote(slash + path),
            user=unquote(user),
            password=unquote(password),
            options=_options(scheme, query),
        )

    def __repr__(self) -> str:
        return f"StoreURL({str(self)!r})"  # which has no password

    def __str__(self) -> str:
        known = SCHEMES.get(self.scheme, UNKNOWN)
        if known.store == "objects":  # user and options may be credentials
            container = f"{self.user}@" * (known.file_system == "abfs" and not self.password)
            port = f":{self.port}" if self.port is not None else ""
            return f"{self.scheme}://{container}{self.host}{port}{self.path}"
        login = f"{self.user}{':***' if self.password else ''}@" * bool(self.user or self.password)
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port is not None else ""
        options = "&".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.scheme}://{login}{host}{port}{self.path}{'?' * bool(options)}{options}"

    def only(self, *names: str) -> None:
        """Raise ValueError for options other than these."""
        for name in self.options:
            if name not in names:
                known = f"expected {', '.join(names)}" if names else "there are none"
                raise ValueError(
                    f"{self.scheme}:// URLs have no option {name!r}: {known}"
                    f"{suggestion(name, names)}"
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


def _options(scheme: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        if not name or not equals or name in options:
            raise ValueError(
                f"the options of a {scheme}:// URL cannot be read at {name!r}: expected each once, "
                "as name=value, with & between them"
            )
        options[name] = unquote(value)
    return options


def suggestion(name: str, known: tuple[str, ...]) -> str:
    """Return a text that asks for the most similar of some names; "" if none is similar."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""
