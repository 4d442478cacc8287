"""What RocksDB and LevelDB share: a folder with one opener, parts beside it, and a seal.

The seal. Both engines end their log where a record does not fit any more, because that is what a
crash leaves behind. So one flipped bit in the length of a record, in a log or a manifest, loses
all that follows it, in silence. Each `sync` therefore writes a growing number into the database,
as the last record, and then the same number into a file beside it. A database that comes back with
a smaller number than the file has lost something that was reported as safe, and says so.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from windeck.checkpoint.stores.errors import CorruptStoreError
from windeck.checkpoint.stores.urls import StoreURL

__all__ = ["PARTS", "SEAL_KEY", "Seal", "fsync_folder", "part_path", "prepare", "refuse_reserved"]

#: Holds the number in the database. Hidden from scans, refused in writes.
SEAL_KEY = b"\x00windeck.seal"
SEAL = "windeck.seal"
PARTS = "windeck.parts"
_NAMES = {"rocksdb": "RocksDB", "leveldb": "LevelDB"}
#: What an opener that was killed leaves before there is a database.
_BEGUN = re.compile(
    r"LOCK|LOG(\.old.*)?|IDENTITY|MANIFEST-\d+|OPTIONS-\d+|\d+\.(log|dbtmp)|OPTIONS-\d+\.dbtmp"
    rf"|rocksdict-config\.json|{re.escape(PARTS)}"
)


def prepare(url: StoreURL, *, create: bool) -> Path:
    """The folder of the database, looked at and made if need be.

    RocksDB would turn a LevelDB database into its own and make the folder of a mistyped path, so
    the files are judged by their names before an engine sees them.
    """
    path, given = _path(url), _as_given(url)
    if not path.exists():
        if not create:
            raise FileNotFoundError(f"there is no database at {given}")
        path.mkdir(parents=True, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(f"expected a folder for {given}, found a file")
    names = os.listdir(path)
    if "CURRENT" in names:
        found = _kind(names)
        if found != url.scheme:
            raise FileExistsError(
                f"expected a {_NAMES[url.scheme]} database at {given}, found one of "
                f"{_NAMES[found]}: open it as {found}://"
            )
        return path
    if SEAL in names:
        raise CorruptStoreError(f"{given} is damaged: its file CURRENT is missing")
    strange = sorted(name for name in names if not _BEGUN.fullmatch(name))
    if strange:
        raise FileExistsError(
            f"expected a {_NAMES[url.scheme]} database or an empty folder at {given}, found other "
            f"files, such as {strange[0]!r}"
        )
    if not create:
        raise FileNotFoundError(f"there is no database at {given}")
    return path


def part_path(url: StoreURL, name: str) -> Path:
    """Where a part of this name lies; the folder is made, the part is not looked at."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", name) or name.endswith(".tmp"):
        raise ValueError(
            "expected the name of a part of 1 to 100 letters, digits, -, _ and ., not ending in "
            f".tmp, got {name!r}"
        )
    folder = _path(url) / PARTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def part_names(path: Path, unfinished: bool = False) -> list[str]:
    """The finished parts beside the database in `path`, or also the others, sorted."""
    folder = path / PARTS
    names = os.listdir(folder) if folder.is_dir() else []
    if unfinished:
        return sorted({name.removesuffix(".tmp") for name in names})
    return sorted(name for name in names if not name.endswith(".tmp"))


def find_parts(url: StoreURL, names: Sequence[str]) -> list[Path]:
    """The paths of parts; FileNotFoundError if one of them is not there."""
    paths = [part_path(url, name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.exists():
            raise FileNotFoundError(
                f"there is no part {name!r} of {url}: it was not written, or is taken in already"
            )
    return paths


def drop_part(url: StoreURL, name: str) -> None:
    """Remove a part, and what is left of one that was not finished."""
    path = part_path(url, name)
    remove(path)
    remove(path.with_name(name + ".tmp"))


def remove(path: Path) -> None:
    """Remove a file or a folder, or nothing."""
    if path.is_dir():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file; its name is durable after `fsync_folder`."""
    with open(path, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_reserved(keys: Sequence[bytes]) -> None:
    """ValueError for the one key that is the seal's."""
    if SEAL_KEY in keys:
        raise ValueError(f"the key {SEAL_KEY!r} is reserved in embedded databases")


class Seal:
    """The number of the last `sync`, in the database and in a file beside it."""

    def __init__(self, path: Path, url: str) -> None:
        """Read the file: before the database is opened, since a writer may go on meanwhile."""
        self._file, self._url = path / SEAL, url
        self.number = 0
        self._expected = self._read() if self._file.exists() else 0

    def check(self, stored: bytes | None) -> None:
        """Compare what the opened database holds with the file."""
        if stored is not None and len(stored) != 8:
            raise CorruptStoreError(f"{self._url} is damaged: its seal has {len(stored)} bytes")
        self.number = int.from_bytes(stored or b"", "big")
        if self.number < self._expected:
            raise CorruptStoreError(
                f"{self._url} is damaged: the end of its log is lost, it came back as of sync "
                f"{self.number} and was reported safe as of sync {self._expected}; "
                f"to use what is left, delete the file {SEAL}"
            )

    def moved_on(self) -> bool:
        """Whether something was synced since the file was read, before the database was opened."""
        return (self._read() if self._file.exists() else 0) != self._expected

    def next(self) -> bytes:
        """The value to write into the database."""
        return (self.number + 1).to_bytes(8, "big")

    def write(self) -> None:
        """Count the sync whose value is durable in the database now."""
        self.number += 1
        line = b"windeck seal %d " % self.number
        temporary = self._file.with_suffix(".tmp")
        write_durably(temporary, b"%s%08x\n" % (line, zlib.crc32(line)))
        os.replace(temporary, self._file)
        fsync_folder(self._file.parent)

    def _read(self) -> int:
        data = self._file.read_bytes()
        match = re.fullmatch(rb"(windeck seal (\d{1,19}) )([0-9a-f]{8})\n", data)
        if match is None or zlib.crc32(match[1]) != int(match[3], 16):
            raise CorruptStoreError(f"{self._url} is damaged: its file {SEAL} cannot be read")
        return int(match[2])


def _path(url: StoreURL) -> Path:
    """The path a URL means; relative ones begin with . or .. where a host would stand."""
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
    return Path(path)


def _kind(names: Sequence[str]) -> str:
    """Which engine made the database of these files."""
    # Not by *.sst: LevelDB's tables had that name too, once.
    ours = [name for name in names if re.fullmatch(r"IDENTITY|OPTIONS-\d+", name)]
    return "rocksdb" if ours else "leveldb"


def _as_given(url: StoreURL) -> StoreURL:
    """What to say in errors: the caller's URL, without what reading adds."""
    return url._replace(options={})
