"""The limit of files that this process may have open."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

__all__ = ["allow_more_files", "allow_open_files", "file_limit"]


def file_limit() -> int:
    """Return how many files this process may have open once `allow_open_files` raised its limit."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit of open files to `wanted`, as far as it may. O(1) time.

    The usual limit is 1,024, and that which a process may choose is far higher.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY and wanted > now:
        with suppress(ValueError, OSError):  # macOS has a third limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, file_limit()), most))


def allow_more_files(descriptor: int) -> None:
    """Raise the limit if this process comes near it, given any descriptor of it. O(1) time.

    Raises
    ------
    OSError
        If it has as many files open as it may.
    """
    lowest = os.dup(descriptor)  # of those that are free: nearly the number of open files
    os.close(lowest)
    allow_open_files(2 * lowest + 256)
