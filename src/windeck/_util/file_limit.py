"""The limit of files that this process may have open."""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["allow_more_files", "allow_open_files", "file_limit", "open_with_room"]

T = TypeVar("T")
_lock = threading.RLock()


def file_limit() -> int:
    """Return how many files this process may have open once `allow_open_files` raised its limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit of open files to `wanted`, as far as it may. O(1) time.

    The usual limit is 1,024, and that which a process may choose is far higher.
    """
    with _lock:
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if now != resource.RLIM_INFINITY and wanted > now:
            with suppress(ValueError, OSError):  # macOS has a third limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, file_limit()), most))


def allow_more_files(descriptor: int) -> None:
    """Raise the limit if this process comes near it, given any descriptor of it. O(1) time."""
    try:
        lowest = os.dup(descriptor)  # of those that are free: nearly the number of open files
    except OSError:  # none is free
        lowest = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    else:
        os.close(lowest)
    allow_open_files(2 * lowest + 256)


def open_with_room(open_file: Callable[[], T], path: str) -> T:
    """Return ``open_file()``; if too many files are open, raise the limit and call it again.

    Raises
    ------
    OSError
        As `open_file` does; of too many open files with the limit, and what to do.
    """
    try:
        return open_file()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    allow_open_files(2 * resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        return open_file()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise OSError(
            error.errno,
            f"{error.strerror}, this process may have {limit:,}: expected a higher limit "
            "(`ulimit -n`), or fewer that are open at a time (`open_files`)",
            path,
        ) from error
