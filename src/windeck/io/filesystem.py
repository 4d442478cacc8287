"""Access to file systems: list, stat, read, map and write files.

Outside of `windeck.io` only the engines of stores, the safetensors bridge and the command line open
files. `locate`, `absolute` and `data_files.resolve` turn URLs into paths that know their file
system (`RemotePath`, a string); all functions here take these as well. Compose them with `join`: a
formatted string is plain text, which no function takes for a URL.

A file system that is new is added to `windeck._util.schemes` and `windeck.io.clients`; what is
repeated after an error is in `windeck.io.remote`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from windeck._util.file_limit import allow_more_files, open_with_room
from windeck._util.schemes import scheme_of
from windeck.io.cache import ObjectCache, checked_cache, object_key
from windeck.io.clients import Client, WrongAnswer
from windeck.io.local_files import create_file, temporary_path, write_buffers
from windeck.io.ranges import RemoteFile, RemoteReader
from windeck.io.remote import RemotePath, is_url, mount_url

PathLike: TypeAlias = str | os.PathLike[str]


def check_not_url(path: PathLike) -> None:
    """Raise ValueError for a URL, such as ``s3://bucket/key``."""
    if is_url(os.fspath(path)) and not os.path.exists(path):
        raise ValueError(
            f"{os.fspath(path)!r} is a URL; expected the path of a local file: copy or mount it, "
            "or read it with pyarrow or polars and pass the result to Table.from_arrow"
        )


def locate(
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
        if scheme_of(text).client == "disk":
            return unquote(urlsplit(text).path)
        if not is_url(text) or os.path.exists(text):
            if storage_options:
                raise ValueError(f"`storage_options` are for URLs, got the local path {text!r}")
            return text
    return mount_url(text, filesystem=filesystem, storage_options=storage_options, cache=cache)


def remote_path(path: str) -> RemotePath | None:
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
    remote = remote_path(path)
    return remote is not None and remote.mount.cache is None


def is_remote(path: str) -> bool:
    """Return True for a path on another file system than the local one."""
    return remote_path(path) is not None


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


def kind_of(path: RemotePath) -> str:
    """Return "file", "directory" or "" for a remote path."""
    if path.contents is not None:
        return "file"
    try:
        return path.attempt("stat", lambda client, key: client.kind(key))
    except FileNotFoundError:
        return ""


def entries_of(path: RemotePath, *, recursive: bool = False) -> list[tuple[str, bool]]:
    """Return the names below a remote directory, each with True for a directory."""
    found = path.attempt("list", lambda client, key: client.entries(key, recursive=recursive))
    return [(one.name, one.is_directory) for one in found]


def absolute(
    path: PathLike,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: PathLike | None = None,
    cache_bytes: float | str | None = None,
) -> str:
    """Return a path that does not depend on the working directory.

    For the options see `data_files.resolve`.
    """
    cache = checked_cache(cache_dir, cache_bytes)
    located = locate(path, filesystem, storage_options, cache)
    if isinstance(located, RemotePath):
        return RemotePath(located.rstrip("/"), located.mount)
    return os.path.abspath(located)


def exists(path: str) -> bool:
    """Return True for a file or a directory; False for a link that leads nowhere."""
    if (remote := remote_path(path)) is not None:
        return bool(kind_of(remote))
    return os.path.exists(path)


def is_file(path: str) -> bool:
    """Return True for a regular file, or a link to one."""
    if (remote := remote_path(path)) is not None:
        return kind_of(remote) == "file"
    return os.path.isfile(path)


def is_directory(path: str) -> bool:
    """Return True for a directory, or a link to one."""
    if (remote := remote_path(path)) is not None:
        return kind_of(remote) == "directory"
    return os.path.isdir(path)


def link_target(path: str) -> str | None:
    """Return the target of a symbolic link, None for anything else."""
    if remote_path(path) is not None:
        return None
    return os.readlink(path) if os.path.islink(path) else None


def list_directory(path: str) -> list[tuple[str, bool]]:
    """Return the names in a directory, each with True for a directory. Order is unspecified."""
    if (remote := remote_path(path)) is not None:
        return [(name, is_folder) for name, is_folder in entries_of(remote) if name]
    with os.scandir(path) as entries:
        return [(entry.name, entry.is_dir()) for entry in entries]


def list_below(folder: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
    """Return the files below a directory, and names that begin with a dot or an underscore.

    Both are relative to it, with forward slashes. A hidden directory ends in a slash, and nothing
    below it is listed.

    Parameters
    ----------
    folder
    follow_links
        List what is below links to directories, too.

    Raises
    ------
    OSError
        A directory cannot be read.
    """
    if (remote := remote_path(folder)) is not None:
        return split_hidden(name for name, _ in entries_of(remote, recursive=True))
    files: list[str] = []
    hidden: list[str] = []
    _walk(folder, "", (), follow_links, files, hidden)
    return files, hidden


def split_hidden(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the files of a listing, and what is hidden in it, as `list_below`.

    Directories end in a slash, and are left out unless they are hidden.

    Examples
    --------
    >>> split_hidden(["site=a/", "site=a/x.csv", "_log/1.json", "_log/2.json"])
    (['site=a/x.csv'], ['_log/'])
    """
    files: list[str] = []
    hidden: dict[str, None] = {}
    for name in names:
        found = re.search(r"(?:^|/)[._][^/]*/?", name)
        if found is not None:
            hidden[name[: found.end()]] = None
        elif not name.endswith("/"):
            files.append(name)
    return files, list(hidden)


def _walk(
    folder: str,
    prefix: str,
    above: tuple[tuple[int, int], ...],
    follow_links: bool,
    files: list[str],
    hidden: list[str],
) -> None:
    status = os.stat(folder)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return  # A link to a directory above, whose files are listed already.
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir()
            name = f"{prefix}{entry.name}{'/' * is_folder}"
            if entry.name.startswith((".", "_")):
                hidden.append(name)
            elif not is_folder:
                files.append(name)
            elif follow_links or not entry.is_symlink():
                _walk(entry.path, name, (*above, here), follow_links, files, hidden)


def size(path: str) -> int:
    """Return the bytes of a file."""
    if (remote := remote_path(path)) is not None:
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
    remote = remote_path(path)
    return None if remote is None else RemoteReader(remote)


def open_input(
    path: str,
    units: Iterable[Sequence[tuple[int, int]]] | None = None,
    use_cache: bool = True,
    reader: RemoteReader | None = None,
) -> Any:
    """Open a file as a `pyarrow.NativeFile` for sequential and random access.

    Parameters
    ----------
    path : str
    units : iterable of lists of (start, stop), optional
        Ranges that will be read, in units that are read one after the other. Of a remote file they
        are fetched ahead, by parallel requests. Taken only from a remote file.
    use_cache : bool
        Read a remote file of which units are given as a whole into its cache, if it has one.
    reader : RemoteReader, optional
        The open remote file; its caller checks for changes after reading. Otherwise it is opened,
        and checked after each request.
    """
    remote = remote_path(path)
    if remote is None:
        return pa.OSFile(os.fsencode(path))  # As bytes: names of files need not be UTF-8.
    if units is not None and use_cache and remote.mount.cache is not None:
        remote = load(remote)
    if remote.contents is not None:
        return pa.BufferReader(remote.contents)
    file = RemoteFile(remote, reader)
    if units is not None:
        file.fetch_ahead(units)
    return pa.PythonFile(file, mode="r")


#: Codecs by the suffixes of text files.
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
#: Most bytes that a compressed file may hold: this number, or this multiple of its own bytes.
DECOMPRESSED_BYTES, DECOMPRESSED_RATIO = 1 << 27, 1100
#: Codecs that stay below this multiple: they reach 1, 1,032 and 255 times their bytes.
_BOUNDED_CODECS = ("", "gzip", "lz4")


def decompressed_limit(path: str) -> int:
    """Return the bytes that the contents of a compressed file may have."""
    return max(DECOMPRESSED_BYTES, DECOMPRESSED_RATIO * size(path))


def open_stream(path: str, codec: str = "") -> Any:
    """Open a file as a `pyarrow.NativeFile` to read in this thread, decompressed.

    Parameters
    ----------
    path
    codec
        The codec; by default that of the suffix, if it has one.

    Raises
    ------
    ValueError
        Where it is read: it has more bytes than `decompressed_limit`.
    """
    codec = codec or CODECS.get(os.path.splitext(path)[1].lower(), "")
    if not codec:
        return open_input(path)
    if codec in _BOUNDED_CODECS:
        return pa.CompressedInputStream(open_input(path), codec)
    return pa.PythonFile(_DecompressedFile(path, codec), mode="r")


def open_text(path: str, *, whole: bool) -> Any:
    """Open a file as `open_stream` does, for a parser that reads in threads of its own.

    They may read on after an error of the parser, until the process ends, and would wait for the
    interpreter's lock then. So the stream is native.

    Parameters
    ----------
    path
    whole
        Whether the parser holds the whole text in memory. Its bytes are counted first then.

    Raises
    ------
    ValueError
        It has more bytes than `decompressed_limit`.
    """
    codec = CODECS.get(os.path.splitext(path)[1].lower(), "")
    if whole and codec not in _BOUNDED_CODECS:
        with open_stream(path) as counted:
            while counted.read(1 << 20):
                pass
    return pa.CompressedInputStream(open_input(path), codec) if codec else open_input(path)


class _DecompressedFile:
    """A file object of the contents of a compressed file, up to `decompressed_limit`."""

    def __init__(self, path: str, codec: str) -> None:
        self._path, self._limit, self._place, self.closed = path, decompressed_limit(path), 0, False
        self._stream = pa.CompressedInputStream(open_input(path), codec)

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        left = self._limit + 1 - self._place
        found = b""
        if left:
            found = self._stream.read(left if count < 0 else min(count, left))
        self._place += len(found)
        if self._place > self._limit:
            raise ValueError(
                f"{self._path!r} has {size(self._path):,} bytes and more than {self._limit:,} when "
                f"it is decompressed; expected no more than {DECOMPRESSED_BYTES:,}, or "
                f"{DECOMPRESSED_RATIO:,} times its bytes: decompress it first"
            )
        return found

    def tell(self) -> int:
        """Return the place in the contents."""
        return self._place

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Close the file."""
        self.closed = True
        self._stream.close()


def read_bytes(path: str) -> bytes:
    """Return the contents of a file."""
    if remote_path(path) is not None:
        contents: bytes = load(path).contents.to_pybytes()
        return contents
    with open(path, "rb") as file:
        return file.read()


def cache_limit(path: str) -> int | None:
    """Return the bytes of the cache of a path, 2^63 - 1 without a limit, None without a cache."""
    remote = remote_path(path)
    if remote is None or remote.mount.cache is None:
        return None
    return remote.mount.cache.limit or 2**63 - 1


def cache_key(path: str) -> str:
    """Return the key of a remote path in its cache."""
    remote = remote_path(path)
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

    Raises
    ------
    ValueError
        If there is a cache, and the server states neither an ETag nor a time of change.
    """
    remote = remote_path(path)
    if remote is None or remote.contents is not None:
        return path
    reader = RemoteReader(remote)
    size = reader.version.size

    def check_stopped() -> None:
        if is_stopped():
            raise InterruptedError(f"the download of {path!r} was stopped")

    def read_parts() -> Iterator[memoryview]:
        for start in range(0, size, _DOWNLOAD_BYTES):
            check_stopped()
            buffer = memoryview(bytearray(min(_DOWNLOAD_BYTES, size - start)))
            reader.read_ranges([(start, buffer)])
            yield buffer
        reader.close()

    def download() -> Iterator[memoryview]:
        check_stopped()  # before the cache drops other objects
        return read_parts()

    contents = None
    if remote.mount.cache is not None:
        if not reader.version.modified:
            raise ValueError(
                f"{str(path)!r} cannot be kept in `cache_dir`: expected an ETag or a time of "
                "change from its server, by which a changed object is found"
            )
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

    Raises
    ------
    OSError
        If the file cannot be opened. The limit of open files is raised before it is reached.
    """
    if remote_path(path) is not None:
        yield MappedFile(None, -1, load(path).contents)
        return
    flags, access = mmap.MAP_SHARED, mmap.PROT_READ
    if copy_on_write:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _MAP_NORESERVE)
        access |= mmap.PROT_WRITE

    def open_mapped() -> tuple[Any, mmap.mmap]:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(path, "rb"))
            allow_more_files(file.fileno())
            # Not `pyarrow.memory_map`, which reads ahead the pages of every message.
            pages = mmap.mmap(file.fileno(), 0, flags=flags, prot=access)
            opened.pop_all()
            return file, pages

    file, pages = open_with_room(open_mapped, path)
    with file:
        yield MappedFile(pages, file.fileno())


def write_bytes(path: str, content: bytes) -> None:
    """Replace a file in one step for readers and other writers; make its directory."""
    _check_local(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_buffers(path, [content])


def upload(path: str, *contents: Any) -> None:
    """Replace a remote file by buffers end to end in one step, and compare its size.

    Raises
    ------
    PermissionError, ConnectionError, OSError
        The file system refuses it, does not answer, or cannot be written.
    """
    remote = remote_path(path)
    assert remote is not None, path
    buffers = list(map(pa.py_buffer, contents))
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
        if (remote := remote_path(path)) is not None:
            remote.attempt("delete", lambda client, key: client.delete(key))
        else:
            os.unlink(path)


def check_writable(path: str) -> None:
    """Raise OSError if `write_bytes` cannot write a file; make its directory."""
    _check_local(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = temporary_path(path)
    os.close(create_file(temporary))
    os.unlink(temporary)


def _check_local(path: str) -> None:
    if is_url(path):
        raise ValueError(f"{str(path)!r} is a URL; expected a local path, where files are written")
