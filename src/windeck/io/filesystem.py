"""Access to file systems: resolve, list, stat, read, map and write files.

Outside of `windeck.io` only the engines of stores, the safetensors bridge and the command line open
files. `resolve` and `absolute` turn URLs into paths that know their file system (`RemotePath`, a
string); all functions here take these as well. Compose them with `join`: a formatted string is
plain text, which no function takes for a URL.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from windeck.io.cache import ObjectCache, checked_cache, object_key
from windeck.io.clients import Client, WrongAnswer
from windeck.io.ranges import RemoteFile, RemoteReader
from windeck.io.remote import RemotePath, is_url, mount_url

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Iterable[PathLike]

SUFFIXES = (
    *(".parquet", ".pq"),
    *(".arrow", ".arrows", ".feather", ".ipc"),
    *(".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".tsv.bz2"),
)


def resolve(
    source: Paths,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: PathLike | None = None,
    cache_bytes: float | str | None = None,
) -> tuple[str, ...]:
    """Return the files of a path, glob, directory or list, ``part2`` before ``part10``.

    Parameters
    ----------
    source : path, or iterable of paths
        A file; a glob (``*``, ``?``, ``[``; ``**`` matches any number of directories); a
        directory; or a list of these, whose order is kept. Of a directory and its subdirectories
        every file with a known suffix is taken, except names that begin with a dot or an
        underscore. Any of these may be a URL, such as ``s3://bucket/folder``.
    filesystem : file system of pyarrow.fs or fsspec, optional
        The file system of all paths.
    storage_options : mapping, optional
        Options for the file system of URLs, such as credentials.
    cache_dir : path, optional
        Local folder where remote files that are read as a whole are kept.
    cache_bytes : bytes or text, optional
        Bytes of all files in `cache_dir`.

    Raises
    ------
    FileNotFoundError
        The path does not exist, or a glob or a directory has no data file.
    TypeError
        `source` is neither a path nor an iterable of paths.
    PermissionError, ConnectionError
        A file system refuses access, or does not answer.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("part10.csv", "part2.csv", "notes.md"):
    ...     _ = (folder / name).write_text("load\\n1.0\\n")
    >>> [pathlib.Path(path).name for path in resolve(folder)]
    ['part2.csv', 'part10.csv']
    """
    options = (filesystem, storage_options, checked_cache(cache_dir, cache_bytes))
    if isinstance(source, (str, os.PathLike)):
        return tuple(_expand(_located(source, *options)))
    if not isinstance(source, Iterable) or _is_data_in_memory(source):
        raise TypeError(
            "the path must be a file, a glob, a directory or a list of these, got a "
            f"{type(source).__name__}{_memory_hint(source)}"
        )
    files = [path for item in source for path in _expand(_located(item, *options))]
    if not files:
        raise FileNotFoundError("the list of files is empty")
    return tuple(files)


def check_not_url(path: PathLike) -> None:
    """Raise ValueError for a URL, such as ``s3://bucket/key``."""
    if is_url(os.fspath(path)) and not os.path.exists(path):
        raise ValueError(
            f"{os.fspath(path)!r} is a URL; expected the path of a local file: copy or mount it, "
            "or read it with pyarrow or polars and pass the result to Table.from_arrow"
        )


def _located(
    path: PathLike,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: ObjectCache | None = None,
) -> str:
    """Return a path as text, or as a `RemotePath` if it is a URL or on a given file system."""
    text = os.fspath(path)
    if isinstance(text, RemotePath):
        return text
    if filesystem is None:
        if text.startswith("file://"):
            return unquote(urlsplit(text).path)
        if not is_url(text) or os.path.exists(text):
            if storage_options:
                raise ValueError(f"`storage_options` are for URLs, got the local path {text!r}")
            return text
    return mount_url(text, filesystem=filesystem, storage_options=storage_options, cache=cache)


def _remote(path: str) -> RemotePath | None:
    """Return a path if it is remote, None if it is local.

    Raises
    ------
    ValueError
        It is the text of a URL: it has lost its file system and options.
    """
    if isinstance(path, RemotePath):
        return path
    if is_url(path) and not os.path.exists(path):
        raise ValueError(
            f"{path!r} is the text of a URL, which has no file system; expected a path of "
            "`resolve`, `absolute` or `join`"
        )
    return None


def is_in_memory(path: str) -> bool:
    """Return True for a file that takes memory once it is loaded: remote, and not in a cache."""
    remote = _remote(path)
    return remote is not None and remote.mount.cache is None


def is_remote(path: str) -> bool:
    """Return True for a path on another file system than the local one."""
    return _remote(path) is not None


def join(path: str, *names: str) -> str:
    """Return the path of names below a directory, with forward slashes.

    Examples
    --------
    >>> join("corpus", "meta", "counts.csv")
    'corpus/meta/counts.csv'
    """
    for name in names:
        path = path.join_name(name) if isinstance(path, RemotePath) else f"{path}/{name}"
    return path


def parent(path: str) -> str:
    """Return the directory of a path; the path itself if there is none above.

    Examples
    --------
    >>> parent("/corpus/meta/counts.csv"), parent("/corpus"), parent("/"), parent("corpus")
    ('/corpus/meta', '/', '/', 'corpus')
    """
    if not isinstance(path, RemotePath):
        return os.path.dirname(path) or path
    scheme, separator, rest = path.rpartition("://")
    folder, slash, _ = rest.rpartition("/")
    return RemotePath(scheme + separator + folder, path.mount) if slash and folder else path


def _kind(path: RemotePath) -> str:
    """Return "file", "directory" or "" for a remote path."""
    if path.contents is not None:
        return "file"
    try:
        return path.attempt("stat", lambda client, key: client.kind(key))
    except FileNotFoundError:
        return ""


def _entries(path: RemotePath, *, recursive: bool = False) -> list[tuple[str, bool]]:
    found = path.attempt("list", lambda client, key: client.entries(key, recursive=recursive))
    return [(one.name, one.is_directory) for one in found]


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
    if isinstance(path, RemotePath) and glob.has_magic(path):
        kind = ""  # A request for a key with wildcards would fail on some servers.
    elif isinstance(path, RemotePath):
        kind = _kind(path)
    else:
        kind = "directory" if os.path.isdir(path) else "file" if os.path.exists(path) else ""
    if kind == "directory":
        return _in_folder(path)
    if kind or not glob.has_magic(path):
        return _one(path, kind)
    return _matching(path)


def _one(path: str, kind: str) -> Iterator[str]:
    if not kind:
        raise FileNotFoundError(f"file {path!r} does not exist")
    yield path


def _matching(pattern: str) -> Iterator[str]:
    if isinstance(pattern, RemotePath):
        found = list(_matching_remote(pattern))
    else:
        found = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    if not found:
        raise FileNotFoundError(f"no file matches {pattern!r}")
    yield from sorted(found, key=natural)


def _matching_remote(pattern: RemotePath) -> Iterator[str]:
    """Yield the files that match a glob, by one listing of the folder before its wildcards."""
    scheme, separator, rest = pattern.rpartition("://")
    parts = rest.split("/")
    fixed = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    if separator and not fixed:
        raise ValueError(f"{str(pattern)!r} has a wildcard in its host or bucket; expected a name")
    folder = RemotePath(scheme + separator + "/".join(parts[:fixed]), pattern.mount)
    wanted = parts[fixed:]
    for name, is_folder in _entries(folder, recursive=len(wanted) > 1):
        if not is_folder and _matches(name.split("/"), wanted):
            yield folder.join_name(name)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Return True if names match a glob; a wildcard does not match a leading dot."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and _matches(parts, pattern[1:]):
        return True
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _in_folder(folder: str) -> Iterator[str]:
    if isinstance(folder, RemotePath):
        names = [name for name, _ in _entries(folder, recursive=True)]
        found = [join(folder, name) for name in names if _is_data(PurePosixPath(name))]
    else:
        below = (path for path in Path(folder).rglob("*") if _is_data(path.relative_to(folder)))
        found = [str(path) for path in below if os.path.isfile(path)]
    if not found:
        raise FileNotFoundError(
            f"directory {folder!r} has no data file; expected names that end in "
            f"{', '.join(SUFFIXES[:7])}"
        )
    yield from sorted(found, key=natural)


def _is_data(path: PurePath) -> bool:
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


def absolute(
    path: PathLike,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: PathLike | None = None,
    cache_bytes: float | str | None = None,
) -> str:
    """Return a path that does not depend on the working directory; for options see `resolve`."""
    cache = checked_cache(cache_dir, cache_bytes)
    located = _located(path, filesystem, storage_options, cache)
    if isinstance(located, RemotePath):
        return RemotePath(located.rstrip("/"), located.mount)
    return os.path.abspath(located)


def exists(path: str) -> bool:
    """Return True for a file or a directory; False for a link that leads nowhere."""
    if (remote := _remote(path)) is not None:
        return bool(_kind(remote))
    return os.path.exists(path)


def is_file(path: str) -> bool:
    """Return True for a regular file, or a link to one."""
    if (remote := _remote(path)) is not None:
        return _kind(remote) == "file"
    return os.path.isfile(path)


def is_directory(path: str) -> bool:
    """Return True for a directory, or a link to one."""
    if (remote := _remote(path)) is not None:
        return _kind(remote) == "directory"
    return os.path.isdir(path)


def link_target(path: str) -> str | None:
    """Return the target of a symbolic link, None for anything else."""
    if _remote(path) is not None:
        return None
    return os.readlink(path) if os.path.islink(path) else None


def list_directory(path: str) -> list[tuple[str, bool]]:
    """Return the names in a directory, each with True for a directory. Order is unspecified."""
    if (remote := _remote(path)) is not None:
        return [(name, is_folder) for name, is_folder in _entries(remote) if name]
    with os.scandir(path) as entries:
        return [(entry.name, entry.is_dir()) for entry in entries]


def list_matching(folder: str, pattern: str) -> list[str]:
    """Return the paths in a directory that match a glob; none if there is no such directory."""
    if (remote := _remote(folder)) is not None:
        if _kind(remote) != "directory":
            return []
        names = [name for name, _ in _entries(remote)]
        return [join(folder, name) for name in names if _matches([name], [pattern])]
    return glob.glob(os.path.join(glob.escape(folder), pattern))


def walk(folder: str) -> Iterator[str]:
    """Yield the files below a directory, relative to it, with forward slashes.

    Links are followed. Names that begin with a dot or an underscore are left out.

    Raises
    ------
    OSError
        A directory cannot be read.
    """
    if (remote := _remote(folder)) is not None:
        names = (name for name, _ in _entries(remote, recursive=True))
        return (name for name in names if not re.search(r"(^|/)[._]", name))
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
    if (remote := _remote(path)) is not None:
        if remote.contents is not None:
            return int(remote.contents.size)
        return remote.attempt("stat", lambda client, key: client.version(key)).size
    return os.path.getsize(path)


class RangeReader:
    """A file open for reading ranges of bytes, in any number of threads; a context manager.

    Attributes
    ----------
    size : int
        Bytes of the file when it was opened.
    modified : int
        Time of the last change then, in nanoseconds since 1970, 0 if it is earlier.
    tag : str
        ETag of a remote file, "" for others and where it is not known.
    """

    def __init__(self, path: str) -> None:
        self._remote = remote_reader(path)
        if self._remote is not None:
            self.size, self.modified, self.tag = self._remote.version
            return
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._handle)
        self.size, self.modified, self.tag = status.st_size, max(status.st_mtime_ns, 0), ""

    def read(self, start: int, count: int) -> bytes:
        """Return the bytes [start, start + count), fewer at the end of the file."""
        if self._remote is not None:
            return self._remote.read(start, max(min(count, self.size - start), 0))
        return os.pread(self._handle, count, start)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several ranges (start, count) as `read`, remote ones in parallel."""
        if self._remote is None:
            return [self.read(start, count) for start, count in ranges]
        clipped = [(start, max(min(count, self.size - start), 0)) for start, count in ranges]
        return self._remote.read_many(clipped)

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._remote is None:
            os.close(self._handle)
        elif kind is None:
            self._remote.close()


def remote_reader(path: str) -> RemoteReader | None:
    """Return a reader of ranges of a remote file, None for a local one."""
    remote = _remote(path)
    return None if remote is None else RemoteReader(remote)


def open_input(
    path: str,
    plan: Iterable[Sequence[tuple[int, int]]] | None = None,
    use_cache: bool = True,
    reader: RemoteReader | None = None,
) -> Any:
    """Open a file as a `pyarrow.NativeFile` for sequential and random access.

    Parameters
    ----------
    path : str
    plan : iterable of lists of (start, stop), optional
        Ranges that will be read, in units that are read one after the other. Of a remote file they
        are fetched ahead, by parallel requests. Taken only from a remote file.
    use_cache : bool
        Read a remote file for which there is a plan as a whole into its cache, if it has one.
    reader : RemoteReader, optional
        The open remote file; its caller checks for changes after reading. Otherwise it is opened,
        and checked after each request.
    """
    remote = _remote(path)
    if remote is None:
        return pa.OSFile(os.fsencode(path))  # As bytes: names of files need not be UTF-8.
    if plan is not None and use_cache and remote.mount.cache is not None:
        remote = load(remote)
    if remote.contents is not None:
        return pa.BufferReader(remote.contents)
    file = RemoteFile(remote, reader)
    if plan is not None:
        file.plan(plan)
    return pa.PythonFile(file, mode="r")


def open_stream(path: str) -> Any:
    """Open a file as a `pyarrow.NativeFile` for sequential access, decompressed by its suffix."""
    if _remote(path) is not None:
        codec = {".gz": "gzip", ".bz2": "bz2"}.get(os.path.splitext(path)[1].lower())
        return pa.input_stream(open_input(path), compression=codec)
    return pa.input_stream(path)


def read_bytes(path: str) -> bytes:
    """Return the contents of a file."""
    if _remote(path) is not None:
        contents: bytes = load(path).contents.to_pybytes()
        return contents
    with open(path, "rb") as file:
        return file.read()


def cache_limit(path: str) -> int | None:
    """Return the bytes of the cache of a path, 2^63 - 1 without a limit, None without a cache."""
    remote = _remote(path)
    if remote is None or remote.mount.cache is None:
        return None
    return remote.mount.cache.limit or 2**63 - 1


def cache_key(path: str) -> str:
    """Return the key of a remote path in its cache."""
    remote = _remote(path)
    assert remote is not None, path
    return object_key(remote.mount.identity, remote)


def load(
    path: str,
    needed_at: Callable[[str], int | None] = lambda key: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """Return a path whose contents are at hand: a local path as it is, a remote one with a buffer.

    The functions here read a path with contents without further requests.

    Parameters
    ----------
    path : str
    needed_at
        How soon the object with a key of the cache is needed again; see `ObjectCache.get`.
    is_stopped
        Called now and then; True ends a download with an InterruptedError.
    """
    remote = _remote(path)
    if remote is None or remote.contents is not None:
        return path
    reader = RemoteReader(remote)
    size = reader.version.size

    def download() -> Iterator[memoryview]:
        for start in range(0, size, _DOWNLOAD_BYTES):
            if is_stopped():
                raise InterruptedError(f"the download of {path!r} was stopped")
            part = memoryview(bytearray(min(_DOWNLOAD_BYTES, size - start)))
            reader.read_ranges([(start, part)])
            yield part
        reader.close()

    contents = None
    if remote.mount.cache is not None:
        version = repr(tuple(reader.version))
        contents = remote.mount.cache.get(cache_key(path), version, size, download, needed_at)
    if contents is None:
        pages = mmap.mmap(-1, max(size, 1))
        reader.read_ranges([(0, memoryview(pages)[:size])])
        reader.close()
        contents = pa.py_buffer(pages).slice(0, size)
    return RemotePath(path, remote.mount, contents)


#: Bytes of an object that are downloaded and written to the cache at a time.
_DOWNLOAD_BYTES = 1 << 25


# Linux's value: Python has had a name for it only since 3.13.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


class MappedFile:
    """A file mapped into memory.

    Attributes
    ----------
    buffer : pyarrow.Buffer
        Contents of the file, mapped as long as the buffer or a view of it is alive.
    descriptor : int
        Descriptor of the file, open inside the `with` block of `map_file`; -1 for a remote file,
        whose contents are in memory.
    """

    def __init__(self, pages: mmap.mmap | None, descriptor: int, buffer: Any = None) -> None:
        # A mapping with a buffer on it cannot be closed, so the buffer owns it.
        self._pages, self.descriptor = pages, descriptor
        self.buffer = pa.py_buffer(pages) if buffer is None else buffer

    def release(self, start: int = 0, count: int | None = None) -> None:
        """Return the pages of [start, start + count) to the system; the next access reads them.

        They are a view of the file, but count as memory of this process until it is full.
        """
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        end = self.buffer.size if count is None else start + count
        if self._pages is not None and 0 <= first < self.buffer.size:
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
    if _remote(path) is not None:
        yield MappedFile(None, -1, load(path).contents)
        return
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
    _check_local(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with atomic_file(path) as temporary, open(temporary, "xb") as file:
        file.write(content)


def upload(path: str, *pieces: Any) -> None:
    """Replace a remote file by buffers end to end in one step, and compare its size.

    Raises
    ------
    PermissionError, ConnectionError, OSError
        The file system refuses it, does not answer, or cannot be written.
    """
    remote = _remote(path)
    assert remote is not None, path
    buffers = list(map(pa.py_buffer, pieces))
    size = sum(buffer.size for buffer in buffers)

    def write(client: Client, key: str) -> None:
        client.write(key, buffers)
        found = client.version(key).size
        if found != size:
            raise WrongAnswer(f"it has {found} bytes after {size} were written")

    remote.attempt("write", write)


def remove(path: str) -> None:
    """Remove a file, if there is one."""
    with suppress(FileNotFoundError):
        if (remote := _remote(path)) is not None:
            remote.attempt("delete", lambda client, key: client.delete(key))
        else:
            os.unlink(path)


def check_writable(path: str) -> None:
    """Raise OSError if `write_bytes` cannot write a file; make its directory."""
    _check_local(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = temporary_path(path)
    with open(temporary, "xb"):
        pass
    os.unlink(temporary)


def _check_local(path: str) -> None:
    if is_url(path):
        raise ValueError(f"{str(path)!r} is a URL; expected a local path, where files are written")
