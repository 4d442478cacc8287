"""The data files that a path, a glob, a directory or a list of these names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from windeck.io.cache import checked_cache
from windeck.io.committed import committed_files, list_folders
from windeck.io.filesystem import (
    PathLike,
    entries_of,
    join,
    kind_of,
    list_below,
    locate,
    remote_path,
    split_hidden,
)
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
        underscore. A wildcard matches no directory whose name begins so. Files that the metadata
        next to them do not count as data are left out, see `committed_files`. Any of these may be
        a URL, such as ``s3://bucket/folder``.
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
    ValueError
        A directory is a table of a format whose metadata are not read, such as Iceberg.

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
    is_pandas = type(source).__module__.split(".")[0] == "pandas"
    name = "from_pandas" if is_pandas else "from_arrow"
    return f"; Table.{name} takes data that is in memory" if _is_data_in_memory(source) else ""


def _expand(path: str) -> Iterator[str]:
    if isinstance(path, RemotePath) and re.search(r"[*?]", path):
        kind = ""  # A request for a key with wildcards would fail on some servers.
    elif isinstance(path, RemotePath) and "[" in path:
        kind = ""
        with suppress(OSError):  # of a server that knows no such names
            kind = kind_of(path)
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
    """Yield the files that match a glob and are data by the metadata in their folders."""
    folder, wanted = _fixed_folder(pattern)
    if isinstance(folder, RemotePath):
        listed = entries_of(folder, recursive=len(wanted) > 1)
        names = [name for name, is_folder in listed if not is_folder]
        found = {name: join(folder, name) for name in names if _matches(name.split("/"), wanted)}
        files, hidden = split_hidden(name + "/" * is_folder for name, is_folder in listed)
    else:
        start = len(pattern) - len("/".join(wanted))
        matched = [path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
        found = {path[start:]: path for path in matched}
        files, hidden = list_folders(folder, found)
    named = [name for name in wanted if name.startswith(("_", "."))]
    written = [name for name in found if _is_in_hidden_folder(name, named)]
    chosen = sorted(found.keys() - set(written), key=lambda name: natural(found[name]))
    kept = committed_files(folder, [*dict.fromkeys([*chosen, *files])], hidden, set(chosen))
    chosen = [name for name in chosen if name in set(kept)]
    if not chosen:
        hint = ""
        if written:
            hint = (
                f" but {written[0]!r}: a wildcard matches no folder whose name begins with an "
                "underscore, in which files are written; expected the name of the folder"
            )
        raise FileNotFoundError(f"no file matches {pattern!r}{hint}")
    yield from (found[name] for name in chosen)


def _fixed_folder(pattern: str) -> tuple[str, list[str]]:
    """Return the folder before the wildcards of a glob, and the names after it."""
    is_remote = isinstance(pattern, RemotePath)
    scheme, separator, rest = pattern.rpartition("://") if is_remote else ("", "", pattern)
    names = rest.split("/")
    fixed = next(place for place, name in enumerate(names) if glob.has_magic(name))
    if separator and not fixed:
        raise ValueError(f"{str(pattern)!r} has a wildcard in its host or bucket; expected a name")
    folder = scheme + separator + "/".join(names[:fixed])
    if isinstance(pattern, RemotePath):
        return RemotePath(folder, pattern.mount), names[fixed:]
    return folder or ("/" if fixed else "."), names[fixed:]


def _is_in_hidden_folder(name: str, named: list[str]) -> bool:
    """Return True if a folder in a path begins with an underscore, and a glob does not name it."""
    folders = [folder for folder in name.split("/")[:-1] if folder.startswith("_")]
    return not all(any(fnmatchcase(folder, one) for one in named) for folder in folders)


def _matches(names: list[str], pattern: list[str]) -> bool:
    """Return True if names match a glob; a wildcard does not match a leading dot."""
    if not pattern:
        return not names
    if pattern[0] == "**" and _matches(names, pattern[1:]):
        return True
    if not names or (names[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return _matches(names[1:], pattern)
    return fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def _in_folder(folder: str) -> Iterator[str]:
    files, hidden = list_below(folder, follow_links=False)
    data = {path for path in files if path.lower().endswith(SUFFIXES)}
    kept = committed_files(folder, files, hidden, data)
    found = [_below(folder, path) for path in kept if path in data]
    if not isinstance(folder, RemotePath):
        found = [path for path in found if os.path.isfile(path)]
    if not found:
        raise FileNotFoundError(
            f"directory {folder!r} has no data file; expected names that end in "
            f"{', '.join(SUFFIXES[:7])}"
        )
    yield from sorted(found, key=natural)


def _below(folder: str, path: str) -> str:
    return join(folder, path) if isinstance(folder, RemotePath) else str(Path(folder) / path)


def natural(path: str) -> tuple[str | int, ...]:
    """Return a sort key that compares adjacent digits 0 to 9 as one number.

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
