"""Access to the file system: resolve, list, stat, read, map and write files.

Outside of `windeck.io` only the engines of stores, the safetensors bridge and the command line open
files. Another file system than the local one is added here.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Iterable[PathLike]

SUFFIXES = (
    *(".parquet", ".pq"),
    *(".arrow", ".arrows", ".feather", ".ipc"),
    *(".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".tsv.bz2"),
)


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def resolve(source: Paths) -> tuple[str, ...]:
    """Return the files of a path, glob, directory or list, ``part2`` before ``part10``.

    Parameters
    ----------
    source : path, or iterable of paths
        A file; a glob (``*``, ``?``, ``[``; ``**`` matches any number of directories); a
        directory; or a list of these, whose order is kept. Of a directory and its subdirectories
        every file with a known suffix is taken, except names that begin with a dot or an
        underscore.

    Raises
    ------
    FileNotFoundError
        The path does not exist, or a glob or a directory has no data file.
    TypeError
        `source` is neither a path nor an iterable of paths.
    ValueError
        A path is a URL.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("part10.csv", "part2.csv", "notes.md"):
    ...     _ = (folder / name).write_text("load\\n1.0\\n")
    >>> [pathlib.Path(path).name for path in resolve(folder)]
    ['part2.csv', 'part10.csv']
    """
    if isinstance(source, (str, os.PathLike)):
        return tuple(_expand(os.fspath(source)))
    if not isinstance(source, Iterable) or _is_data_in_memory(source):
        raise TypeError(
            "the path must be a file, a glob, a directory or a list of these, got a "
            f"{type(source).__name__}{_memory_hint(source)}"
        )
    files = [path for item in source for path in _expand(os.fspath(item))]
    if not files:
        raise FileNotFoundError("the list of files is empty")
    return tuple(files)


def check_not_url(path: PathLike) -> None:
    """Raise ValueError for a URL, such as ``s3://bucket/key``."""
    if _URL.match(os.fspath(path)) and not os.path.exists(path):
        raise ValueError(
            f"{os.fspath(path)!r} is a URL; expected the path of a local file: copy or mount it, "
            "or read it with pyarrow or polars and pass the result to Table.from_arrow"
        )


def _is_data_in_memory(source: Any) -> bool:
    """Return True for frames, tables, numbers and mappings, which iterate over names or values."""
    names = ("collect_schema", "column_names", "columns", "detach")
    numbers = getattr(getattr(source, "dtype", None), "kind", "") in tuple("biufcM")
    return isinstance(source, Mapping) or numbers or any(hasattr(source, name) for name in names)


def _memory_hint(source: Any) -> str:
    if isinstance(source, Mapping):
        return "; Table.from_columns takes a mapping of names to arrays"
    if hasattr(source, "dtype"):
        return "; Table.from_columns and Table.from_rows take arrays"
    return "; Table.from_arrow takes data that is in memory" if _is_data_in_memory(source) else ""


def _expand(path: str) -> Iterator[str]:
    check_not_url(path)
    if os.path.isdir(path):
        return _in_folder(path)
    if os.path.exists(path) or not glob.has_magic(path):
        return _one(path)
    return _matching(path)


def _one(path: str) -> Iterator[str]:
    if not os.path.exists(path):
        raise FileNotFoundError(f"file {path!r} does not exist")
    yield path


def _matching(pattern: str) -> Iterator[str]:
    found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not found:
        raise FileNotFoundError(f"no file matches {pattern!r}")
    yield from sorted(found, key=natural)


def _in_folder(folder: str) -> Iterator[str]:
    found = [str(path) for path in Path(folder).rglob("*") if _is_data(path.relative_to(folder))]
    found = [path for path in found if os.path.isfile(path)]
    if not found:
        raise FileNotFoundError(
            f"directory {folder!r} has no data file; expected names that end in "
            f"{', '.join(SUFFIXES[:7])}"
        )
    yield from sorted(found, key=natural)


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and path.name.lower().endswith(SUFFIXES)


def natural(path: str) -> tuple[str | int, ...]:
    """Return a sort key that compares runs of the digits 0 to 9 as numbers.

    Examples
    --------
    >>> sorted(["part10", "part2", "part"], key=natural)
    ['part', 'part2', 'part10']
    """
    # Text and numbers alternate, text first, so that two keys compare equal types.
    parts = re.split(r"([0-9]+)", path)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))


def absolute(path: PathLike) -> str:
    """Return a path that does not depend on the working directory."""
    return os.path.abspath(os.fspath(path))


def exists(path: str) -> bool:
    """Return True for a file or a directory; False for a link that leads nowhere."""
    return os.path.exists(path)


def is_file(path: str) -> bool:
    """Return True for a regular file, or a link to one."""
    return os.path.isfile(path)


def is_directory(path: str) -> bool:
    """Return True for a directory, or a link to one."""
    return os.path.isdir(path)


def link_target(path: str) -> str | None:
    """Return the target of a symbolic link, None for anything else."""
    return os.readlink(path) if os.path.islink(path) else None


def list_directory(path: str) -> list[tuple[str, bool]]:
    """Return the names in a directory, each with True for a directory. Order is unspecified."""
    with os.scandir(path) as entries:
        return [(entry.name, entry.is_dir()) for entry in entries]


def list_matching(folder: str, pattern: str) -> list[str]:
    """Return the paths in a directory that match a glob; none if there is no such directory."""
    return glob.glob(os.path.join(glob.escape(folder), pattern))


def walk(folder: str) -> Iterator[str]:
    """Yield the files below a directory, relative to it, with forward slashes.

    Links are followed. Names that begin with a dot or an underscore are left out.

    Raises
    ------
    OSError
        A directory cannot be read.
    """
    return _walk(folder, "", ())


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return  # A link to a directory above, whose files are listed already.
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "_")):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, here))
            else:
                yield f"{prefix}{entry.name}"


def size(path: str) -> int:
    """Return the bytes of a file."""
    return os.path.getsize(path)


class RangeReader:
    """A file open for reading ranges of bytes, in any number of threads; a context manager.

    Attributes
    ----------
    size : int
        Bytes of the file when it was opened.
    modified : int
        Time of the last change then, in nanoseconds since 1970, 0 if it is earlier.
    """

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._handle)
        self.size, self.modified = status.st_size, max(status.st_mtime_ns, 0)

    def read(self, start: int, count: int) -> bytes:
        """Return the bytes [start, start + count), fewer at the end of the file."""
        return os.pread(self._handle, count, start)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def open_input(path: str) -> Any:
    """Open a file as a `pyarrow.NativeFile` for sequential and random access."""
    return pa.OSFile(os.fsencode(path))  # As bytes: names of files need not be UTF-8.


def open_stream(path: str) -> Any:
    """Open a file as a `pyarrow.NativeFile` for sequential access, decompressed by its suffix."""
    return pa.input_stream(path)


def read_bytes(path: str) -> bytes:
    """Return the contents of a file."""
    with open(path, "rb") as file:
        return file.read()


# Linux's value: Python has had a name for it only since 3.13.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


class MappedFile:
    """A file mapped into memory.

    Attributes
    ----------
    buffer : pyarrow.Buffer
        Contents of the file, mapped as long as the buffer or a view of it is alive.
    descriptor : int
        Descriptor of the file, open inside the `with` block of `map_file`.
    """

    def __init__(self, pages: mmap.mmap, descriptor: int) -> None:
        # A mapping with a buffer on it cannot be closed, so the buffer owns it.
        self._pages, self.descriptor = pages, descriptor
        self.buffer = pa.py_buffer(pages)

    def release(self, start: int = 0, count: int | None = None) -> None:
        """Return the pages of [start, start + count) to the system; the next access reads them.

        They are a view of the file, but count as memory of this process until it is full.
        """
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        end = self.buffer.size if count is None else start + count
        if 0 <= first < self.buffer.size:
            self._pages.madvise(mmap.MADV_DONTNEED, first, end - first)


@contextlib.contextmanager
def map_file(path: str, *, copy_on_write: bool = False) -> Iterator[MappedFile]:
    """Map a file into memory; its buffer may outlive the block.

    Parameters
    ----------
    path : str
    copy_on_write : bool
        Map pages that can be written without changing the file.
    """
    with open(path, "rb") as file:
        flags, access = mmap.MAP_SHARED, mmap.PROT_READ
        if copy_on_write:
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _MAP_NORESERVE)
            access |= mmap.PROT_WRITE
        # Not `pyarrow.memory_map`, which reads ahead the pages of every message.
        yield MappedFile(mmap.mmap(file.fileno(), 0, flags=flags, prot=access), file.fileno())


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


def write_bytes(path: str, content: bytes) -> None:
    """Replace a file in one step for readers and other writers; make its directory."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with atomic_file(path) as temporary, open(temporary, "xb") as file:
        file.write(content)


def check_writable(path: str) -> None:
    """Raise OSError if `write_bytes` cannot write a file; make its directory."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = temporary_path(path)
    with open(temporary, "xb"):
        pass
    os.unlink(temporary)
