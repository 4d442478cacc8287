"""Writing of local files: under new names, never through links, in one step for readers.

Everything that windeck writes to a local disk is opened or renamed here, but for the files that the
engines of stores and the lock files that `filelock` keep in folders that were checked here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["atomic_file", "create_file", "fsync_folder", "make_folder", "refuse_link"]
__all__ += ["temporary_path", "temporary_target", "write_buffers"]

_TEMPORARY = re.compile(r"\.(.+)\.\d+-[0-9a-f]{16}\.tmp", re.DOTALL)


def temporary_path(path: str | os.PathLike[str]) -> str:
    """Return a new name in the folder of `path`: hidden, and used by no other process."""
    folder, name = os.path.split(os.fspath(path))
    return os.path.join(folder, f".{name}.{os.getpid()}-{os.urandom(8).hex()}.tmp")


def temporary_target(name: str) -> str | None:
    """Return the name of the file for which `temporary_path` made a name, None for other names.

    Examples
    --------
    >>> temporary_target(os.path.basename(temporary_path("folder/part")))
    'part'
    >>> temporary_target("part.tmp")
    """
    found = _TEMPORARY.fullmatch(name)
    return None if found is None else found[1]


def create_file(path: str | os.PathLike[str]) -> int:
    """Create a file for writing and reading; return its descriptor.

    Raises
    ------
    FileExistsError
        There is such a name already, such as a symbolic link, also one to nothing.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file to write to; rename it to `path` when the block ends.

    Readers see the previous file or the whole new one, also after a crash, and also when several
    processes write at the same time. A symbolic link at `path` is replaced, and what it leads to
    stays as it was. After an error the temporary file is removed and `path` is as it was. The file
    has the permissions of any new file.

    Yields
    ------
    Path
        Of an empty file in the same folder.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_file(f"{folder}/greeting") as temporary:
    ...         _ = temporary.write_text("hello")
    ...     os.listdir(folder)
    ['greeting']
    """
    temporary = Path(temporary_path(path))
    os.close(create_file(temporary))
    try:
        yield temporary
        _sync(temporary, os.O_NOFOLLOW)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def write_buffers(path: str | os.PathLike[str], buffers: Iterable[bytes | memoryview]) -> None:
    """Write a file as `atomic_file` does; its name is durable after `fsync_folder`."""
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        file.writelines(buffers)


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    _sync(path, os.O_DIRECTORY)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: str) -> None:
    """Make a folder whose name windeck chose, and the folders above it, unless they exist.

    Raises
    ------
    FileExistsError
        See `refuse_link`.
    """
    refuse_link(path)
    os.makedirs(path, exist_ok=True)


def refuse_link(path: str) -> None:
    """Raise FileExistsError for a symbolic link: what is written through it would be elsewhere."""
    if os.path.islink(path):
        raise FileExistsError(
            f"{path!r} is a symbolic link, expected none: windeck does not write through links; "
            "replace it by what it leads to, or remove it"
        )
