"""A cache of remote objects, and of results, in a local folder shared by the processes of a host.

A file of the folder is a whole object, followed by its size and checksum. It gets its name when
it is complete. A lock of the file system is held while an object is downloaded, so that one process
downloads and the others wait; the system releases the locks of a process that dies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from filelock import FileLock, Timeout

from windeck._util.file_limit import allow_more_files, open_with_room
from windeck._util.text import format_bytes
from windeck._util.validation import check_bytes
from windeck._util.warning import warn
from windeck.io.local_files import atomic_file

__all__ = ["ObjectCache", "checked_cache", "object_key"]

_MAGIC = b"wdcache1"
_SUFFIX = ".object"
_DIGEST_BYTES = 16
_TRAILER_BYTES = len(_MAGIC) + 8 + _DIGEST_BYTES
#: Locks of a folder. Two objects may share one; then they are downloaded one after the other.
_LOCKS = 256
#: Errors of a folder that cannot be written: the cache is not used, with a warning.
_UNUSABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG}
_UNUSABLE |= {errno.ELOOP}  # a symbolic link at the name of a lock

T = TypeVar("T")

#: Files that this process has verified, as (path, inode).
_verified: set[tuple[str, int]] = set()
_warned: set[str] = set()


def object_key(identity: str, url: str) -> str:
    """Return a key in hexadecimal of an object: its file system and URL, without credentials."""
    return hashlib.blake2b(f"{identity} {url}".encode(), digest_size=16).hexdigest()


def checked_cache(cache_dir: Any, cache_bytes: Any) -> ObjectCache | None:
    """Return the cache of the arguments of a user, None without `cache_dir`.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid.
    """
    if cache_dir is None:
        if cache_bytes is not None:
            raise ValueError(f"`cache_bytes` needs `cache_dir`, got cache_bytes={cache_bytes!r}")
        return None
    if not isinstance(cache_dir, (str, os.PathLike)):
        raise TypeError(f"`cache_dir` must be the path of a local folder, got {cache_dir!r}")
    folder = os.fspath(cache_dir)
    if "://" in folder:
        raise ValueError(f"`cache_dir` must be the path of a local folder, got {folder!r}")
    if cache_bytes is not None:
        cache_bytes = check_bytes("cache_bytes", cache_bytes)
    return ObjectCache(os.path.abspath(folder), cache_bytes)


class _File(NamedTuple):
    path: str
    size: int
    used: int


@dataclass(frozen=True)
class ObjectCache:
    """A folder of whole objects, of at most `limit` bytes together. Safe for processes and threads.

    Attributes
    ----------
    folder
        Absolute path; made when it is first needed.
    limit
        Bytes of all files, None for no limit.
    """

    folder: str
    limit: int | None = None

    def get(
        self,
        key: str,
        version: str,
        size: int,
        download: Callable[[], Iterator[Any]],
        needed_at: Callable[[str], int | None] = lambda key: None,
    ) -> Any | None:
        """Return an object as a mapped pyarrow buffer; download it if it is not in the cache.

        Parameters
        ----------
        key
            Key of the object, from `object_key`.
        version
            Text that differs for every version of the object.
        size
            Bytes of the object.
        download
            Yields the contents in buffers.
        needed_at
            Returns how soon the object with a key is needed again, ascending; None if unknown.
            Objects of unknown need are dropped first, the least recently used first, then those
            that are needed last.

        Returns
        -------
        pyarrow.Buffer or None
            None if the object is larger than the cache, or the folder cannot be written. Then a
            warning has been given once.
        """
        path = os.path.join(self.folder, f"{key}-{_hash(version)}{_SUFFIX}")
        if (found := _mapped(path, size)) is not None:
            return found
        if self.limit is not None and size + _TRAILER_BYTES > self.limit:
            self._warn(f"an object has {format_bytes(float(size))}, more than cache_bytes")
            return None
        with self._warn_if_unusable():
            os.makedirs(self.folder, exist_ok=True)
            with self._lock(key):
                if (found := _mapped(path, size)) is None:
                    self._write(path, size, download(), needed_at)
                    found = _mapped(path, size)
        return found

    def get_result(
        self,
        key: str,
        compute: Callable[[], T],
        encode: Callable[[T], Any],
        decode: Callable[[bytes], T | None],
    ) -> T:
        """Return a result that was computed before, or compute and keep it.

        One process computes, the others wait. The checksum of a kept result is verified whenever it
        is read; a damaged one is computed again. Without a usable folder it is not kept.

        Parameters
        ----------
        key
            Key in hexadecimal, of everything that the result depends on.
        compute
            Returns the result. May `get` objects.
        encode
            Returns the bytes of a result.
        decode
            Returns the result of bytes, None if they are of another format.
        """
        path = os.path.join(self.folder, f"{key}-{_hash('result')}{_SUFFIX}")

        def kept() -> T | None:
            contents = _read(path)
            return None if contents is None else decode(contents)

        with contextlib.ExitStack() as held:
            usable = False
            with self._warn_if_unusable():
                if (found := kept()) is not None:
                    return found
                os.makedirs(self.folder, exist_ok=True)
                # Not the lock of an object: objects are downloaded while this one is held.
                name = f"lock-result-{_lock_number(key):03}"
                held.enter_context(FileLock(os.path.join(self.folder, name)))
                if (found := kept()) is not None:
                    return found
                usable = True
            result = compute()
            if usable:
                with self._warn_if_unusable():
                    self._keep(key, path, memoryview(encode(result)))
            return result

    def _keep(self, key: str, path: str, contents: memoryview) -> None:
        size = contents.nbytes
        if self.limit is not None and size + _TRAILER_BYTES > self.limit:
            self._warn(f"a result has {format_bytes(float(size))}, more than cache_bytes")
            return
        with self._lock(key):
            self._write(path, size, iter([contents]))

    def _write(
        self,
        path: str,
        size: int,
        contents: Iterator[Any],
        needed_at: Callable[[str], int | None] = lambda key: None,
    ) -> None:
        """Write a file, whose lock is held, and remove others until all fit."""
        self._make_room(path, size + _TRAILER_BYTES, needed_at)
        _write(path, size, contents)
        # Others may have written at the same time.
        self._make_room(path, 0, needed_at)

    @contextlib.contextmanager
    def _warn_if_unusable(self) -> Iterator[None]:
        """Give one warning instead of an error of a folder that cannot be used."""
        try:
            yield
        except NotImplementedError as error:  # of filelock
            self._warn(str(error))
        except OSError as error:
            if error.errno not in _UNUSABLE:  # as errors of the remote file system have none
                raise
            self._warn(error.strerror or str(error))

    def _warn(self, reason: str) -> None:
        if self.folder not in _warned:
            _warned.add(self.folder)
            warn(
                f"the cache {self.folder!r} is not used for all objects: {reason}; they are read "
                "from their file system",
            )

    def _lock(self, key: str, timeout: float = -1) -> FileLock:
        name = f"lock-{_lock_number(key):03}"
        return FileLock(os.path.join(self.folder, name), timeout=timeout)

    def _make_room(self, path: str, size: int, needed_at: Callable[[str], int | None]) -> None:
        """Remove what crashes have left, other versions of an object, and objects if need be.

        Files of objects that a process is about to read, which holds their lock, are kept.
        """
        mine = _key_of(path)
        with FileLock(os.path.join(self.folder, "lock")):
            kept = []
            for file in self._files():
                other_version = _key_of(file.path) == mine and file.path != path
                left_over = file.path.endswith(".tmp") and self._is_free(file.path, mine)
                if other_version or left_over:
                    _remove(file.path)
                else:
                    kept.append(file)
            excess = sum(file.size for file in kept) + size - (self.limit or 0)
            if self.limit is None or excess <= 0:
                return

            def worth(file: _File) -> tuple[int, int]:
                when = needed_at(_key_of(file.path))
                return (0, file.used) if when is None else (1, -when)

            for file in sorted(kept, key=worth):
                if excess <= 0:
                    return
                removable = file.path.endswith(_SUFFIX) and file.path != path
                if removable and self._is_free(file.path, mine):
                    _remove(file.path)
                    excess -= file.size

    def _files(self) -> Iterator[_File]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((_SUFFIX, ".tmp")):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        yield _File(entry.path, status.st_size, status.st_mtime_ns)

    def _is_free(self, path: str, mine: str) -> bool:
        """Return True if no other process or thread holds the lock of a file; one holds `mine`."""
        key = _key_of(path)
        if _lock_number(key) == _lock_number(mine):
            return True
        try:
            with self._lock(key, timeout=0):
                return True
        except Timeout:
            return False


def _key_of(path: str) -> str:
    """Return the key in the name of a file, also of a temporary one."""
    return os.path.basename(path).lstrip(".").partition("-")[0]


def _lock_number(key: str) -> int:
    return int(hashlib.blake2b(key.encode(), digest_size=4).hexdigest(), 16) % _LOCKS


def _write(path: str, size: int, contents: Iterator[Any]) -> None:
    state, written = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
    with atomic_file(path) as temporary, open(temporary, "wb") as file:
        for content in contents:
            state.update(content)
            written += file.write(content)
        if written != size:
            raise RuntimeError(f"{written} bytes were downloaded, expected {size}")
        file.write(_MAGIC + size.to_bytes(8, "little") + state.digest())


def _read(path: str) -> bytes | None:
    """Return the contents of a file, None if it is absent or damaged; note that it was used."""
    try:
        with open(path, "rb") as file:
            stored = file.read()
    except FileNotFoundError:
        return None
    size = max(len(stored) - _TRAILER_BYTES, 0)
    contents = stored[:size]
    digest = hashlib.blake2b(contents, digest_size=_DIGEST_BYTES).digest()
    if stored[size:] != _MAGIC + size.to_bytes(8, "little") + digest:
        return None
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)
    return contents


def _mapped(path: str, size: int) -> Any | None:
    """Return the contents of a file, None if it is absent or damaged; note that it was used."""
    try:
        with open_with_room(lambda: open(path, "rb"), path) as file:
            allow_more_files(file.fileno())
            status = os.fstat(file.fileno())
            if status.st_size != size + _TRAILER_BYTES:
                raise ValueError("wrong size")
            pages = pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            contents, seen = pages.slice(0, size), (path, status.st_ino)
            if seen not in _verified:
                digest = hashlib.blake2b(contents, digest_size=_DIGEST_BYTES).digest()
                if pages.slice(size).to_pybytes() != _MAGIC + size.to_bytes(8, "little") + digest:
                    raise ValueError("wrong checksum")
                _verified.add(seen)
    except FileNotFoundError:
        return None
    except ValueError:
        _remove(path)
        return None
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)
    return contents


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _hash(version: str) -> str:
    return hashlib.blake2b(version.encode(), digest_size=8).hexdigest()
