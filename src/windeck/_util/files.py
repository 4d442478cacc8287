"""Atomic writing of files."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["atomic_file", "temporary_path"]


def temporary_path(path: str | os.PathLike[str]) -> Path:
    """Return a new name in the folder of `path`: hidden, and used by no other process."""
    name = f".{os.path.basename(path)}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    return Path(path).with_name(name)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; rename the file to `path` when the block ends.

    Readers see the previous file or the whole new one, also after a crash, and also when several
    processes write at the same time. After an error the temporary file is removed and `path` is as
    it was. The file has the permissions of any new file.

    Yields
    ------
    Path
        In the same folder; no such file exists.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_file(f"{folder}/greeting") as temporary:
    ...         _ = temporary.write_text("hello")
    ...     os.listdir(folder)
    ['greeting']
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        handle = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
