"""A store opened for a command, and what goes wrong as one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import Commit, find_commit, read_catalog, read_manifest
from windeck.checkpoint.readers.opened import existing_url, reading_url
from windeck.checkpoint.stores import CorruptStoreError, Store, StoreURL, open_store

if TYPE_CHECKING:
    from windeck.checkpoint.format import catalogs
    from windeck.checkpoint.format.entries import Entry
    from windeck.checkpoint.tables.links import TableEntry

__all__ = ["Catalog", "Different", "Exit", "Listing", "Wrong", "catalog", "found_in"]
__all__ += ["guarded", "listing", "namespace_of", "opened_store", "plain_url", "shown", "tell"]


class Exit:
    """What a script learns from the exit code."""

    OK = 0
    #: A difference, damage, nothing found: as grep and diff say it.
    DIFFERENT = 1
    #: What was asked makes no sense.
    WRONG = 2
    #: The store cannot be opened or read, or there is no such checkpoint.
    UNAVAILABLE = 3
    INTERRUPTED = 130
    #: Who reads our output went away, as the shell names it for other commands.
    BROKEN_PIPE = 141


class Wrong(Exception):
    """Something about the command line; the sentence says what was expected."""


class Different(Exception):
    """The command did its work, and the answer is one a script wants to know of."""


class Catalog(NamedTuple):
    """What a manifest says, without its tensors and without torch."""

    url: str
    namespace: str
    commit: Commit
    entries: dict[str, Entry]
    trees: dict[str, Any]
    #: Of each root, every tensor by its name, and the name its data are under.
    places: dict[str, list[tuple[str, str]]]
    tables: dict[str, TableEntry]


class Listing(NamedTuple):
    """What the first line of a manifest says, which has all that `ls` shows."""

    url: str
    namespace: str
    commit: Commit
    saved: catalogs.Catalog


@contextmanager
def opened_store(url: str, *, writing: bool = False, making: bool = False) -> Iterator[Store]:
    """The store of a URL; one that does not exist is made if `making` says so."""
    try:
        StoreURL.parse(url)
        store = open_store(url if making else existing_url(url) if writing else reading_url(url))
    except (ValueError, TypeError) as error:
        raise Wrong(str(error)) from error
    with store:
        yield store


def namespace_of(namespace: str) -> str:
    """The namespace, if it can be one."""
    try:
        return keys.check_namespace(namespace)
    except ValueError as error:
        raise Wrong(str(error)) from error


def plain_url(url: str) -> str:
    """A URL as it was given, without its password."""
    try:
        return str(StoreURL.parse(url))
    except ValueError as error:
        raise Wrong(str(error)) from error


def listing(url: str, store: Store, namespace: str, generation: int | None) -> Listing:
    """Reads HEAD and one manifest, and no more of it than `ls` shows."""
    commit = find_commit(store, namespace_of(namespace), generation)
    return Listing(plain_url(url), namespace, commit, read_catalog(store, namespace, commit))


def catalog(url: str, store: Store, namespace: str, generation: int | None) -> Catalog:
    """Reads HEAD and one manifest, and nothing else."""
    commit = find_commit(store, namespace_of(namespace), generation)
    found = read_manifest(store, namespace, commit)
    return Catalog(
        plain_url(url), namespace, commit, found["tensors"], found["trees"], found["places"],
        found["tables"],
    )  # fmt: skip


@contextmanager
def found_in(url: str, namespace: str, generation: int | None) -> Iterator[tuple[Store, Catalog]]:
    """The store of a URL, and what a generation in it holds."""
    with opened_store(url) as store:
        yield store, catalog(url, store, namespace, generation)


@contextmanager
def guarded() -> Iterator[None]:
    """Runs a command: an error becomes a sentence on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except Different:
        _leave(Exit.DIFFERENT)
    except BrokenPipeError:
        # Python flushes stdout once more as it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(Exit.BROKEN_PIPE)
    except KeyboardInterrupt:
        _leave(Exit.INTERRUPTED)
    except Exception as error:
        if os.environ.get("WINDECK_TRACEBACK"):
            raise
        code = _code(error)
        if code is None:
            raise
        tell(_sentence(error))
        _leave(code)


def tell(words: str) -> None:
    """Says on stderr what is wrong."""
    label = "windeck view:"
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        label = f"\x1b[1;31m{label}\x1b[0m"
    print(label, words, file=sys.stderr)


def shown(text: str) -> str:
    """Text that a terminal takes for text: control characters are escaped.

    Examples
    --------
    >>> shown("layer\\x1b[2J.weight")
    'layer\\\\x1b[2J.weight'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _code(error: Exception) -> int | None:
    if isinstance(error, Wrong):
        return Exit.WRONG
    if isinstance(error, CorruptStoreError):
        return Exit.DIFFERENT
    if isinstance(error, (OSError, ImportError, RuntimeError, ValueError, MemoryError)):
        return Exit.UNAVAILABLE
    return None


def _sentence(error: Exception) -> str:
    words = shown(str(error.args[-1] if isinstance(error, OSError) and error.args else error))
    if isinstance(error, MemoryError) and not words:
        words = "there is not enough memory"
    if isinstance(error, OSError) and error.filename is not None:
        words = f"{shown(os.fsdecode(error.filename))}: {words}"
    return words


def _leave(code: int) -> NoReturn:
    raise SystemExit(code) from None
