"""The data files that a path, a glob, a directory or a list of these names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeAlias

from windeck.io.cache import checked_cache
from windeck.io.filesystem import PathLike, entries_of, join, kind_of, locate, remote_path
from windeck.io.remote import RemotePath

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
        return tuple(_expand(locate(source, *options)))
    if not isinstance(source, Iterable) or _is_data_in_memory(source):
        raise TypeError(
            "the path must be a file, a glob, a directory or a list of these, got a "
            f"{type(source).__name__}{_memory_hint(source)}"
        )
    files = [path for item in source for path in _expand(locate(item, *options))]
    if not files:
        raise FileNotFoundError("the list of files is empty")
    return tuple(files)


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
        kind = kind_of(path)
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
    for name, is_folder in entries_of(folder, recursive=len(wanted) > 1):
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
        names = [name for name, _ in entries_of(folder, recursive=True)]
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


def list_matching(folder: str, pattern: str) -> list[str]:
    """Return the paths in a directory that match a glob; none if there is no such directory."""
    if (remote := remote_path(folder)) is not None:
        if kind_of(remote) != "directory":
            return []
        names = [name for name, _ in entries_of(remote)]
        return [join(folder, name) for name in names if _matches([name], [pattern])]
    return glob.glob(os.path.join(glob.escape(folder), pattern))
