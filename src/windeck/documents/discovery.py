"""Patterns that say which files of a folder are meant."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import numpy as np

from windeck.documents.protocol import Int64s
from windeck.io import filesystem
from windeck.io.filesystem import natural

__all__ = ["Listing", "Patterns", "SUFFIXES", "as_patterns", "discover", "selector", "unmatched"]


#: None, one pattern or several, relative to the root.
Patterns: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None


def as_patterns(files: Patterns) -> tuple[str, ...] | None:
    """One pattern or several as text; None where all files are meant.

    Raises
    ------
    TypeError, ValueError
        What is no path, a list of none, or a path that leaves the root.
    """
    if files is None:
        return None
    listed = (files,) if isinstance(files, (str, os.PathLike)) else files
    if not isinstance(listed, Iterable):
        raise TypeError(f"files is {files!r}; expected a glob relative to the root, or several")
    found = []
    for one in listed:
        if not isinstance(one, (str, os.PathLike)) or isinstance(os.fspath(one), bytes):
            raise TypeError(f"files holds {one!r}; expected globs relative to the root")
        text = os.path.normpath(os.fspath(one)).replace(os.sep, "/")
        if os.path.isabs(text) or text.split("/")[0] == "..":
            raise ValueError(f"files holds {text!r}; expected globs relative to the root")
        found.append(text)
    if not found:
        raise ValueError("files is empty; expected a glob relative to the root, or several")
    return tuple(found)


def selector(patterns: tuple[str, ...] | None) -> Callable[[str], bool]:
    """A function that tells whether a path relative to the root is meant.

    ``*``, ``?`` and ``[...]`` stay within one name, ``**`` stands for any folders, none included.
    A pattern that matches a folder means all that lies below it. O(1) for each path named in
    full, however many there are.

    Examples
    --------
    >>> means = selector(("dataset=c4", "dataset=*/**/*.part[0-4].arrow"))
    >>> [means(path) for path in ("dataset=c4/en/x.part9.arrow", "dataset=w/x.part4.arrow")]
    [True, True]
    >>> means("dataset=w/x.part9.arrow")
    False
    """
    if patterns is None:
        return lambda path: True
    every = set(patterns)
    globs = [pattern.split("/") for pattern in every if glob.has_magic(pattern)]

    def means(path: str) -> bool:
        # Names first, as they are: a file may be called data[1].arrow.
        return not every.isdisjoint(_prefixes(path)) or any(
            _matches(path.split("/"), pattern) for pattern in globs
        )

    return means


def unmatched(patterns: tuple[str, ...], paths: Iterable[str]) -> str | None:
    """The first pattern that means none of the paths."""
    listed = list(paths)
    named = {prefix for path in listed for prefix in _prefixes(path)}
    for pattern in patterns:
        if pattern not in named and not any(map(selector((pattern,)), listed)):
            return pattern
    return None


def _prefixes(path: str) -> Iterator[str]:
    """The path, the folders it lies in, and the root."""
    yield path
    place = path.rfind("/")
    while place > 0:
        yield path[:place]
        place = path.rfind("/", 0, place)
    yield "."


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return True  # What lies below a folder that matches is meant as well.
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet", ".pq")
PREFIX = "dataset="

_PART = re.compile(r"(?:^|\.)part([0-9]+)(?=\.)")


@dataclass(frozen=True, eq=False)
class Listing:
    """The S shards of a corpus, in their lasting order.

    Attributes
    ----------
    root
        Absolute path of the folder.
    dataset_ids
        Names of the datasets that have a shard, in natural order.
    dataset, part
        int64 of shape (S,): the number of each shard's dataset, and its part number.
    paths
        Of each shard, relative to the root, with forward slashes.
    others
        Files in the datasets that are no shards by their names.
    """

    root: str
    dataset_ids: tuple[str, ...]
    dataset: Int64s
    part: Int64s
    paths: tuple[str, ...]
    others: int = 0

    def path(self, shard: int) -> str:
        """The absolute path of a shard."""
        return f"{self.root}/{self.paths[shard]}"


def discover(root: str | os.PathLike[str], files: tuple[str, ...] | None = None) -> Listing:
    """List the shards below `root`, or those that the patterns `files` mean. O(files).

    Symbolic links are followed. Names that begin with a dot or an underscore are left out.

    Raises
    ------
    FileNotFoundError
        Nothing is at `root`; it holds no dataset; a dataset, or a pattern, has no shard; a link
        leads nowhere.
    NotADirectoryError
        A file is at `root`.
    ValueError
        Two files of a dataset have one part number, or only some have one; a shard is no regular
        file.
    PermissionError
        A folder may not be read.
    """
    home = filesystem.absolute(root)
    means, others = selector(files), 0
    names: list[str] = []
    shards: list[tuple[int, int, str]] = []
    for name in _datasets(home):
        folder = f"{PREFIX}{name}"
        walked = [f"{folder}/{path}" for path in filesystem.walk(f"{home}/{folder}")]
        data = [path for path in walked if path.lower().endswith(SUFFIXES)]
        chosen = [path for path in data if means(path)]
        if not data and files is None:
            raise FileNotFoundError(
                f"'{home}/{PREFIX}{name}' holds no shard; found {_named(walked)}, expected "
                "*.partN.arrow or *.partN.parquet"
            )
        if chosen:
            shards += [(len(names), part, path) for part, path in _numbered(home, chosen)]
            names.append(name)
        others += len(walked) - len(data)
    paths = tuple(path for _, _, path in shards)
    if files is not None and (pattern := unmatched(files, paths)) is not None:
        raise FileNotFoundError(f"files has {pattern!r}, and no shard below {home!r} matches it")
    _check_regular(home, paths)
    dataset = np.array([number for number, _, _ in shards], dtype=np.int64)
    part = np.array([number for _, number, _ in shards], dtype=np.int64)
    return Listing(home, tuple(names), dataset, part, paths, others)


def _datasets(home: str) -> list[str]:
    """Names of the datasets, in natural order."""
    if not filesystem.exists(home):
        raise FileNotFoundError(f"there is no folder {home!r}")
    if not filesystem.is_directory(home):
        raise NotADirectoryError(
            f"{home!r} is a file; expected a folder that holds folders {PREFIX}NAME"
        )
    listed = filesystem.list_directory(home)
    found = [name for name, folder in listed if folder and name.startswith(PREFIX)]
    if f"{PREFIX}" in found:
        raise ValueError(f"'{home}/{PREFIX}' has no name; expected {PREFIX}NAME")
    if not found:
        # Those who pass the dataset itself, or a folder above the root, are told of it.
        hint = ""
        if os.path.basename(home).startswith(PREFIX):
            hint = f", or the root {os.path.dirname(home)!r}"
        what = _named([name + "/" * folder for name, folder in listed])
        raise FileNotFoundError(
            f"{home!r} holds no dataset; found {what}, expected folders {PREFIX}NAME with shards "
            f"*.partN.arrow or *.partN.parquet{hint}"
        )
    return sorted((name[len(PREFIX) :] for name in found), key=lambda name: (natural(name), name))


def _numbered(home: str, shards: Sequence[str]) -> list[tuple[int, str]]:
    """Shards of one dataset with their part numbers, ascending."""
    ordered = sorted(shards, key=lambda path: (natural(path), path))
    numbers = [_part(path) for path in ordered]
    if None in numbers:
        with_number = [
            path for path, part in zip(ordered, numbers, strict=True) if part is not None
        ]
        if with_number:
            raise ValueError(
                f"'{home}/{with_number[0]}' has a part number and "
                f"'{home}/{ordered[numbers.index(None)]}' has none; expected all shards of a "
                "dataset to have one, or none"
            )
        return list(enumerate(ordered))
    found: dict[int, str] = {}
    for path, part in zip(ordered, numbers, strict=True):
        assert part is not None
        if part in found:
            raise ValueError(
                f"'{home}/{found[part]}' and '{home}/{path}' both have part number {part}; "
                "expected each number once in a dataset"
            )
        if part >= 2**63:
            raise ValueError(f"'{home}/{path}' has part number {part}; expected one below 2^63")
        found[part] = path
    return sorted(found.items())


def _part(path: str) -> int | None:
    found = _PART.findall(path.rsplit("/", 1)[-1])
    return int(found[-1]) if found else None


def _check_regular(home: str, paths: Sequence[str]) -> None:
    """Opening a named pipe would wait for ever, so look at what is there first."""
    for path in paths:
        full = f"{home}/{path}"
        if filesystem.is_file(full):
            continue
        if (target := filesystem.link_target(full)) is not None:
            raise FileNotFoundError(f"{full!r} is a link to {target!r}, where no file is")
        raise ValueError(f"{full!r} is no regular file")


def _named(names: Sequence[str]) -> str:
    """What was found, in a few words."""
    if not names:
        return "nothing"
    listed = sorted(names, key=natural)
    more = f" and {len(listed) - 4:,} more" if len(listed) > 4 else ""
    return ", ".join(map(repr, listed[:4])) + more
