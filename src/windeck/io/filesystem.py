"""Which files a path, a list of paths, a glob or a directory means."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Iterable[PathLike]

SUFFIXES = (
    *(".parquet", ".pq"),
    *(".arrow", ".arrows", ".feather", ".ipc"),
    *(".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".tsv.bz2"),
)


def resolve(source: Paths) -> tuple[str, ...]:
    """List the files that `source` means, in natural order (``part2`` before ``part10``).

    Parameters
    ----------
    source : path, or iterable of paths
        A file; a glob (``*``, ``?``, ``[``; ``**`` descends); a directory, of which every file
        with a known suffix is taken, subfolders included, hidden files and names that begin with
        an underscore left out; or a list of these, kept in the order given.

    Raises
    ------
    FileNotFoundError
        Nothing is there, or a glob or a directory holds no data file.
    TypeError
        `source` is neither a path nor an iterable of paths.

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
    if not isinstance(source, Iterable):
        raise TypeError(
            f"a {type(source).__name__} is no path; expected a file, a glob, a directory, or a list"
        )
    files = [path for item in source for path in _expand(os.fspath(item))]
    if not files:
        raise FileNotFoundError("the list of files to read is empty")
    return tuple(files)


def _expand(path: str) -> Iterator[str]:
    if os.path.isdir(path):
        return _in_folder(path)
    if os.path.exists(path) or not glob.has_magic(path):
        return _one(path)
    return _matching(path)


def _one(path: str) -> Iterator[str]:
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no file {path!r}")
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
            f"the directory {folder!r} holds no data file; expected names ending in "
            f"{', '.join(SUFFIXES[:7])}"
        )
    yield from sorted(found, key=natural)


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not hidden and path.name.lower().endswith(SUFFIXES)


def natural(path: str) -> tuple[str | int, ...]:
    """Sort key in which runs of the digits 0 to 9 count as numbers.

    Examples
    --------
    >>> sorted(["part10", "part2", "part"], key=natural)
    ['part', 'part2', 'part10']
    """
    # Text and numbers take turns, beginning with text, so that like always meets like.
    parts = re.split(r"([0-9]+)", path)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))
