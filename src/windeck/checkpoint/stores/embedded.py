"""Code shared by RocksDB and LevelDB: the folder of a database, its parts, its seal, its errors.

The seal detects lost data. Both engines treat an incomplete record as the end of the log, because a
crash leaves such a record. So one flipped bit in the length of a record, in a log or a manifest,
silently loses everything after it. Each `sync` therefore writes a growing number into the database,
as the last record, and then the same number into a file beside it. A database that opens with a
smaller number than the file has lost data that was reported as durable, and opening it is an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import weakref
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from windeck._util.validation import check_format
from windeck.checkpoint.stores.protocol import CorruptStoreError
from windeck.checkpoint.stores.store_url import StoreURL
from windeck.io.local_files import (
    atomic_file,
    fsync_folder,
    make_folder,
    refuse_link,
    temporary_target,
    write_buffers,
)

__all__ = [
    "PARTS",
    "SEAL_KEY",
    "Seal",
    "check_process",
    "keep_in_fork",
    "make_room",
    "part_path",
    "prepare_folder",
    "refuse_reserved",
    "reserve_space",
]

#: Holds the number in the database. Hidden from scans, refused in writes.
SEAL_KEY = b"\x00windeck.seal"
SEAL = "windeck.seal"
#: Format of the file.
_SEAL_FORMAT = 1
PARTS = "windeck.parts"
#: A file that holds space on the disk, so that a database on a full disk can still be cleared.
RESERVE = "windeck.reserve"
RESERVE_BYTES = 1 << 20
#: The file in which rocksdict notes whether a database holds bytes or Python objects.
CONFIG = "rocksdict-config.json"
_ERRNOS = [errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS]
_ERRNOS += [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO]
_NAMES = {"rocksdb": "RocksDB", "leveldb": "LevelDB"}
#: Files that a killed process leaves before there is a database.
_BEGUN = (
    r"LOCK|LOG(\.old.*)?|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|\d+\.(log|dbtmp)|OPTIONS-\d+\.dbtmp"
    rf"|{re.escape(CONFIG)}|{re.escape(PARTS)}"
)


def prepare_folder(url: StoreURL, *, create: bool, writing: bool = True) -> str:
    """Check the folder of a database, create it if necessary, and return its path.

    RocksDB would convert a LevelDB database and would create the folder of a mistyped path, so the
    names of the files are checked before the engine opens the folder. The engines write through
    links, so a folder with any is not opened for `writing`.
    """
    path, given = _path(url), _as_given(url)
    if not _exists(path):
        if not create:
            raise FileNotFoundError(f"there is no database at {given}")
        os.makedirs(path, exist_ok=True)
    if not os.path.isdir(path):
        raise NotADirectoryError(f"expected a folder for {given}, found a file")
    names = os.listdir(path)
    if writing:
        refuse_links(path)
    if "CURRENT" in names:
        found = _kind(names)
        if found != url.scheme:
            raise FileExistsError(
                f"expected a {_NAMES[url.scheme]} database at {given}, found one of "
                f"{_NAMES[found]}: open it as {found}://"
            )
        config = os.path.join(path, CONFIG)
        if _exists(config) and _holds_objects(config):
            raise FileExistsError(
                f"expected a RocksDB database of bytes at {given}, found one of rocksdict with "
                "Python objects in it"
            )
        return path
    if SEAL in names:
        raise CorruptStoreError(f"{given} is damaged: its file CURRENT is missing")
    strange = sorted(name for name in names if not re.fullmatch(_BEGUN, name))
    if strange:
        raise FileExistsError(
            f"expected a {_NAMES[url.scheme]} database or an empty folder at {given}, found other "
            f"files, such as {strange[0]!r}"
        )
    if not create:
        raise FileNotFoundError(f"there is no database at {given}")
    return path


def part_path(url: StoreURL, name: str) -> Path:
    """Return the path of a part, which need not exist, and create its folder."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", name) or name.endswith(".tmp"):
        raise ValueError(
            "expected the name of a part of 1 to 100 letters, digits, -, _ and ., not ending in "
            f".tmp, got {name!r}"
        )
    folder = Path(_path(url), PARTS)
    make_folder(str(folder))
    return folder / name


def part_names(path: str, unfinished: bool = False) -> list[str]:
    """Return the sorted names of the finished parts of a database, or of all its parts."""
    folder = os.path.join(path, PARTS)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if unfinished:
        return sorted({temporary_target(name) or name for name in names})
    return sorted(name for name in names if temporary_target(name) is None)


def find_parts(url: StoreURL, names: Sequence[str]) -> list[Path]:
    """Return the paths of parts; raise FileNotFoundError if one is missing."""
    paths = [part_path(url, name) for name in names]
    for name, path in zip(names, paths, strict=True):
        refuse_link(str(path))  # the engine would write into what it leads to
        if not path.exists():
            raise FileNotFoundError(
                f"there is no part {name!r} of {url}: it was not written, or was ingested before"
            )
    return paths


def drop_part(url: StoreURL, name: str) -> None:
    """Remove a part, whether it is finished or not."""
    path = part_path(url, name)
    remove(path)
    for other in os.listdir(path.parent):
        if temporary_target(other) == name:
            remove(path.with_name(other))


def remove(path: str | Path) -> None:
    """Remove a file, a folder or a link, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def refuse_links(folder: str | Path) -> None:
    """Raise FileExistsError if a file of a database is a symbolic link."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                refuse_link(entry.path)


def remove_left_over(path: str) -> None:
    """Remove temporary files of killed processes from a database that is open for writing."""
    for name in os.listdir(path):
        if name[0] == "." and temporary_target(name) in (SEAL, RESERVE):
            remove(os.path.join(path, name))


def free_bytes(path: str | Path) -> int:
    """Return the bytes that this user can still write to the disk of a path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def file_bytes(path: str) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def reserve_space(path: str) -> None:
    """Create the file `RESERVE` in the folder of a database, unless database or disk are small.

    Engines write to the disk to open a database and to remove keys. On a full disk this file is
    removed first: see `make_room`.
    """
    file = os.path.join(path, RESERVE)
    if _exists(file) or free_bytes(path) < 16 * RESERVE_BYTES:
        return
    used = 0
    for name in os.listdir(path):
        if name.endswith((".sst", ".ldb")):
            with suppress(FileNotFoundError):  # removed by a compaction
                used += os.stat(os.path.join(path, name)).st_size
    if used < 6 * RESERVE_BYTES:
        return
    with (
        suppress(AttributeError, OSError),  # macOS does not have the call
        atomic_file(file) as temporary,
        open(temporary, "r+b") as out,
    ):
        os.posix_fallocate(out.fileno(), 0, RESERVE_BYTES)


def make_room(url: StoreURL) -> None:
    """Remove the file `RESERVE` of a database, if the disk is nearly full."""
    path = _path(url)
    if _exists(path) and free_bytes(path) < RESERVE_BYTES:
        remove(os.path.join(path, RESERVE))


def refuse_reserved(keys: Sequence[bytes]) -> None:
    """Raise ValueError if the seal's key is among the keys."""
    if SEAL_KEY in keys:
        raise ValueError(f"the key {SEAL_KEY!r} is reserved in embedded databases")


class Seal:
    """The number of the last `sync`, in the database and in a file beside it."""

    def __init__(self, path: str, url: str) -> None:
        """Read the file. Do this before the database is opened, since a writer may continue."""
        self._file, self._url = os.path.join(path, SEAL), url
        self.number = 0
        self._expected = self._read() if _exists(self._file) else 0

    def check(self, stored: bytes | None) -> None:
        """Compare the number in the opened database with the number in the file."""
        if stored is not None and len(stored) != 8:
            raise CorruptStoreError(f"{self._url} is damaged: its seal has {len(stored)} bytes")
        self.number = int.from_bytes(stored or b"", "big")
        if self.number < self._expected:
            raise CorruptStoreError(
                f"{self._url} is damaged: the end of its log is lost, it was opened as of sync "
                f"{self.number}, expected sync {self._expected} or later; "
                f"to use what is left, delete the file {SEAL}"
            )

    @staticmethod
    def value(number: int) -> bytes:
        """Return the value of a number in the database."""
        return number.to_bytes(8, "big")

    def write(self, number: int) -> None:
        """Write a number to the file, after it is durable in the database."""
        self.number = number
        line = b"windeck-seal %d %d " % (_SEAL_FORMAT, number)
        # A temporary file of its own: a signal handler may sync in the middle of this.
        write_buffers(self._file, [b"%s%08x\n" % (line, zlib.crc32(line))])
        fsync_folder(os.path.dirname(self._file))

    def _read(self) -> int:
        with open(self._file, "rb", buffering=0) as file:
            data = file.read(100)
        found = re.fullmatch(rb"(windeck-seal (\d{1,9}) (\d{1,20}) )([0-9a-f]{8})\n", data)
        if found is None or zlib.crc32(found[1]) != int(found[4], 16):
            raise CorruptStoreError(f"{self._url} is damaged: its file {SEAL} cannot be read")
        check_format(f"{SEAL} of {self._url}", int(found[2]), _SEAL_FORMAT)
        return int(found[3])


def _exists(path: str) -> bool:
    """Return True if a path exists; raise OSError if that cannot be read."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _path(url: StoreURL) -> str:
    """Return the path of a URL; a relative path begins with . or .. in place of the host."""
    given = _as_given(url)
    if url.host not in ("", ".", "..") or url.port is not None or url.user or url.password:
        raise ValueError(
            f"expected {url.scheme}:///absolute/path or {url.scheme}://./relative/path, got {given}"
        )
    path = url.host + url.path
    if not path.strip("/"):
        raise ValueError(f"expected a path in {given}, such as {url.scheme}:///data/run")
    if "\0" in path:
        raise ValueError(f"expected a path without a NUL character in a {url.scheme}:// URL")
    return path.rstrip("/")


def _kind(names: Sequence[str]) -> str:
    """Return the engine of a database with these files."""
    # Not by *.sst: older versions of LevelDB use that suffix, too.
    is_rocksdb = any(
        name == "IDENTITY" or (name[:8] == "OPTIONS-" and name[8:].isdecimal()) for name in names
    )
    return "rocksdb" if is_rocksdb else "leveldb"


def _holds_objects(config: str) -> bool:
    """Return True if rocksdict made the database for Python objects.

    If it were opened here, even for reading, rocksdict would note that it holds bytes, and its
    owner could not open it any more.
    """
    with open(config, "rb") as file:
        return re.search(rb'"raw_mode"\s*:\s*false', file.read(1 << 16)) is not None


def _as_given(url: StoreURL) -> StoreURL:
    """Return the URL for error messages, without options."""
    return url._replace(options={})


def translate_engine_error(error: Exception, doing: str, where: str) -> OSError:
    """Return the built-in error for an error of an engine, whose text alone names the cause.

    Examples
    --------
    >>> translate_engine_error(Exception("IO error: No space left on device"), "writing", "rocksdb:///x")
    OSError(28, 'rocksdb:///x: writing failed: IO error: No space left on device')
    """
    cause = error.args[0] if error.args else str(error)
    if isinstance(error, OSError) and error.strerror:  # from a system call of this module
        cause = error.strerror
    text = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
    text = " ".join(text.split())
    sentence = f"{where}: {doing} failed: {text}"
    if "lock hold by current process" in text or ("/LOCK: " in text and _says_lock_is_held(text)):
        is_own = "lock hold by current process" in text or "already held by process" in text
        return already_open_error(where, own=is_own)
    for code in _ERRNOS:
        if os.strerror(code) in text:
            return OSError(code, sentence)
    if "does not match existing comparator" in text:
        return FileExistsError(
            f"expected a database with keys in byte order at {where}, found "
            f"another order: {doing} failed: {text}"
        )
    missing = os.strerror(errno.ENOENT) in text or "NotFound" in text
    if "Corruption" in text or missing or "Invalid argument" in text:
        return CorruptStoreError(f"{where} is damaged: {doing} failed: {text}")
    return OSError(errno.EIO, sentence)


def compaction_error(where: str, path: str) -> OSError:
    """Return the error for a compaction that the engine could not finish."""
    full = free_bytes(path) < 16 * RESERVE_BYTES
    return OSError(
        errno.ENOSPC if full else errno.EIO,
        f"{where}: the keys were removed, but not all of their space was freed, since the engine "
        f"could not rewrite tables{' on a full disk' if full else ''}: free some space, then "
        "remove again",
    )


#: The process that first opened a database of an engine, by engine.
_started: dict[str, int] = {}
#: Objects that hold handles and locks of an engine: its name, their URL, and the attributes.
_holders: weakref.WeakKeyDictionary[Any, tuple[str, str, tuple[str, ...]]]
_holders = weakref.WeakKeyDictionary()


def check_process(engine: str, where: object) -> None:
    """Raise RuntimeError in a process forked from one that used the engine.

    An engine starts its threads once for a process. They do not exist in a fork, so the engine
    would wait for them without end. Call this before a database is opened.
    """
    own = os.getpid()
    if _started.setdefault(engine, own) != own:
        raise RuntimeError(_fork_message(engine, where))


def _fork_message(engine: str, where: object) -> str:
    name = _NAMES[engine]
    return (
        f"{where} cannot be used here: this process was forked from process {_started[engine]} "
        f"after that had opened a {name}, whose threads do not exist in a fork; start the "
        "process by multiprocessing's 'spawn' or 'forkserver', or open no "
        f"{name} before the fork"
    )


class _Unusable:
    """Substitute for a handle or a lock in a forked process: every use raises RuntimeError."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(self._message)

    def __enter__(self) -> NoReturn:
        raise RuntimeError(self._message)

    def __exit__(self, *_: object) -> None: ...


def keep_in_fork(holder: Any, engine: str, where: str, *attributes: str) -> None:
    """Let forked processes neither use nor destroy handles of an engine, which needs its threads.

    Locks are among the `attributes` too, since no thread may be left in a fork to release them.
    """
    _holders[holder] = engine, where, attributes


def _after_fork() -> None:
    for holder, (engine, where, attributes) in _holders.items():
        for attribute in attributes:
            value = getattr(holder, attribute)
            if value is None or getattr(value, "closed", False):
                continue
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
            setattr(holder, attribute, _Unusable(_fork_message(engine, where)))
    libc = ctypes.CDLL(None)
    if "rocksdb" in _started and hasattr(libc, "on_exit"):  # of Linux
        # At the exit of the child RocksDB would join its threads, which crashes. The functions
        # registered last are called first: `fcloseall` writes what C streams have buffered, and
        # `_exit` ends the process with its status.
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fcloseall, None, None)


os.register_at_fork(after_in_child=_after_fork)


def already_open_error(where: str, *, own: bool) -> BlockingIOError:
    """Return the error for a database that is already open; `own`: in this process."""
    return BlockingIOError(
        errno.EDEADLK if own else errno.EAGAIN,
        f"{where} is open already, in this process or another; expected one opener at a time",
    )


def _says_lock_is_held(text: str) -> bool:
    """Return True if an error about a lock file says that the lock is held."""
    held = (os.strerror(errno.EAGAIN), os.strerror(errno.ENOLCK), "already held")
    return any(words in text for words in held)
