"""Stores opened for a command, and errors reported as a sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from windeck._util.terminal import escaped
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, StoreURL, open_store
from windeck.checkpoint.stores.urls import existing_url, make_room, reading_url
from windeck.cli.files import open_path
from windeck.cli.parser import INTERRUPTED, USAGE_ERROR, end_at_broken_pipe, print_error

__all__ = ["NegativeResult", "UsageError", "checked_namespace", "opened_store"]
__all__ += ["is_file", "redacted_url", "reported_errors"]

#: Exit codes beside `USAGE_ERROR`. As for grep and diff, 1 is an answer: a difference, damage,
#: nothing found. 3: the store cannot be opened or read, or has no such checkpoint.
NEGATIVE, UNAVAILABLE = 1, 3


class UsageError(Exception):
    """The command line is wrong; the sentence says what was expected."""


class NegativeResult(Exception):
    """The command is done, and found a difference, damage, or nothing."""


@contextmanager
def opened_store(url: str, *, writing: bool = False, create: bool = False) -> Iterator[Store]:
    """Open the store of a URL; with `create`, make one that does not exist.

    A path is a file or folder of another format, which is a store for reading.
    """
    if is_file(url):
        if writing or create:
            raise UsageError(f"{url} is a file or folder, expected the URL of a store to write to")
        with open_path(url) as store:
            yield store
        return
    redacted_url(url)
    try:
        if writing:
            make_room(url)
        store = open_store(url if create else existing_url(url) if writing else reading_url(url))
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    with store:
        yield store


def checked_namespace(namespace: str) -> str:
    """Return the namespace, if it is valid."""
    try:
        return keys.check_namespace(namespace)
    except ValueError as error:
        raise UsageError(str(error)) from error


def is_file(url: str) -> bool:
    """Return True for the path of a file or folder, or of a TensorFlow checkpoint, not a URL."""
    return "://" not in url and (os.path.exists(url) or os.path.exists(f"{url}.index"))


def redacted_url(url: str) -> str:
    """Return the URL without its password."""
    if is_file(url):
        return url
    # Anything else may be a URL with a password in it, which is not quoted.
    if ("/" in url or "." in url) and not {":", "@"} & {*url}:
        raise UsageError(
            f"there is no file or folder {escaped(url)}, expected one, or the URL of a store, such "
            "as rocksdb:///path"
        )
    try:
        return str(StoreURL.parse(url))
    except ValueError as error:
        raise UsageError(str(error)) from error


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn errors of a command into a sentence on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except NegativeResult:
        raise SystemExit(NEGATIVE) from None
    except BrokenPipeError:
        end_at_broken_pipe()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        code = _exit_code(error)
        if code is None or os.environ.get("WINDECK_TRACEBACK"):
            raise
        print_error("windeck view", _sentence(error))
        raise SystemExit(code) from None


def _exit_code(error: Exception) -> int | None:
    if isinstance(error, UsageError):
        return USAGE_ERROR
    if isinstance(error, CorruptStoreError):
        return NEGATIVE
    if isinstance(error, (OSError, ImportError, RuntimeError, ValueError, MemoryError)):
        return UNAVAILABLE
    return None


def _sentence(error: Exception) -> str:
    words = escaped(str(error.args[-1] if isinstance(error, OSError) and error.args else error))
    if isinstance(error, MemoryError) and not words:
        words = "there is not enough memory"
    if isinstance(error, OSError) and error.filename is not None:
        words = f"{escaped(os.fsdecode(error.filename))}: {words}"
    return words
