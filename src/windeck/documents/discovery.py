"""Discovery of the shards of a corpus: file patterns, datasets and part numbers."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from windeck.documents import mds, megatron
from windeck.documents.protocol import Int64s
from windeck.io import filesystem
from windeck.io.committed import checked_name, committed_files, json_object
from windeck.io.data_files import natural
from windeck.io.json_lines import SUFFIXES as JSON_SUFFIXES

__all__ = [
    "FORMATS",
    "Format",
    "Patterns",
    "ShardList",
    "discover",
    "first_unmatched",
    "parse_patterns",
    "path_filter",
]

#: Formats that a user may name. Others are found by the names and contents of files.
Format: TypeAlias = Literal["nanogpt", "megatron", "mds"]
FORMATS: tuple[Format, ...] = ("nanogpt", "megatron", "mds")

#: One glob or several, relative to the root; None for all files.
Patterns: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None


def parse_patterns(files: Patterns) -> tuple[str, ...] | None:
    """Return patterns as normalized strings; None for all files.

    Raises
    ------
    TypeError
        If a pattern is not a path.
    ValueError
        If the list is empty, or a pattern leads out of the root.
    """
    if files is None:
        return None
    listed = (files,) if isinstance(files, (str, os.PathLike)) else files
    if not isinstance(listed, Iterable):
        raise TypeError(f"`files` must be a glob or several globs, got {files!r}")
    patterns = []
    for one in listed:
        if not isinstance(one, (str, os.PathLike)) or isinstance(os.fspath(one), bytes):
            raise TypeError(f"`files` must hold globs relative to the root, got {one!r}")
        text = os.path.normpath(os.fspath(one)).replace(os.sep, "/")
        if os.path.isabs(text) or text.split("/")[0] == "..":
            raise ValueError(f"`files` must hold globs relative to the root, got {text!r}")
        patterns.append(text)
    if not patterns:
        raise ValueError("`files` must hold at least one glob, got none")
    return tuple(patterns)


def path_filter(patterns: tuple[str, ...] | None) -> Callable[[str], bool]:
    """Return a function that tests a path relative to the root against the patterns.

    ``*``, ``?`` and ``[...]`` match within one name; ``**`` matches any number of folders. A
    pattern that matches a folder selects all files below it. A test takes O(1) time for patterns
    without wildcards, however many there are.

    Examples
    --------
    >>> is_selected = path_filter(("dataset=c4", "dataset=*/**/*.part[0-4].arrow"))
    >>> [is_selected(path) for path in ("dataset=c4/en/x.part9.arrow", "dataset=w/x.part4.arrow")]
    [True, True]
    >>> is_selected("dataset=w/x.part9.arrow")
    False
    """
    if patterns is None:
        return lambda path: True
    literal = set(patterns)
    globs = [pattern.split("/") for pattern in literal if glob.has_magic(pattern)]

    def is_selected(path: str) -> bool:
        # Literal names first: a file may be called data[1].arrow.
        return not literal.isdisjoint(_prefixes(path)) or any(
            _matches(path.split("/"), pattern) for pattern in globs
        )

    return is_selected


def first_unmatched(patterns: tuple[str, ...], paths: Iterable[str]) -> str | None:
    """Return the first pattern that matches none of the paths, or None."""
    listed = list(paths)
    prefixes = {prefix for path in listed for prefix in _prefixes(path)}
    for pattern in patterns:
        if pattern not in prefixes and not any(map(path_filter((pattern,)), listed)):
            return pattern
    return None


def _prefixes(path: str) -> Iterator[str]:
    """Yield the path, each of its parent folders, and the root."""
    yield path
    place = path.rfind("/")
    while place > 0:
        yield path[:place]
        place = path.rfind("/", 0, place)
    yield "."


def _matches(names: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return True  # Files below a matching folder match as well.
    if pattern[0] == "**":
        return _matches(names, pattern[1:]) or (bool(names) and _matches(names[1:], pattern))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet", ".pq")
PREFIX = "dataset="
#: Name of the dataset of a folder without ``dataset=NAME``.
PLAIN = "default"

_PART = re.compile(r"(?:^|\.)part([0-9]+)(?=\.)")


def _parse_part_pattern(pattern: str | None) -> re.Pattern[str]:
    """Return the expression that finds part numbers in names.

    Raises
    ------
    TypeError
        If it is not a string.
    ValueError
        If it is not a regular expression with one group.
    """
    if pattern is None:
        return _PART
    if not isinstance(pattern, str):
        raise TypeError(f"`part_pattern` must be a regular expression, got {pattern!r}")
    try:
        parsed = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"`part_pattern` must be a regular expression, got {pattern!r}: {error}"
        ) from error
    if parsed.groups != 1:
        raise ValueError(
            f"`part_pattern` must have one group, which is the number, got {pattern!r} with "
            f"{parsed.groups}"
        )
    return parsed


@dataclass(frozen=True, eq=False)
class ShardList:
    """The S shards of a corpus, in a fixed order.

    Attributes
    ----------
    root
        Absolute path of the folder.
    dataset_ids
        Names of the datasets that have a shard, in natural order.
    dataset, part
        int64 of shape (S,): index of each shard's dataset in `dataset_ids`, and its part number.
    paths
        Path of each shard relative to the root, with forward slashes.
    ignored
        Number of files in the datasets whose suffix is not that of a shard.
    unnumbered
        Indices of the datasets whose shards have no part numbers, and are numbered by their paths.
    """

    root: str
    dataset_ids: tuple[str, ...]
    dataset: Int64s
    part: Int64s
    paths: tuple[str, ...]
    ignored: int = 0
    unnumbered: frozenset[int] = frozenset()

    def path_in_dataset(self, shard: int) -> str:
        """Return the path of a shard relative to the folder of its dataset."""
        path = self.paths[shard]
        return path.partition("/")[2] if path.startswith(PREFIX) else path

    def check_growth(self, larger: ShardList) -> None:
        """Raise a ValueError if a part number is that of another file in a larger corpus.

        Only datasets without part numbers are compared: there a file that sorts between the old
        ones moves the files after it.
        """
        known = {
            (larger.dataset_ids[dataset], part): path
            for dataset, part, path in zip(
                larger.dataset.tolist(), larger.part.tolist(), larger.paths, strict=True
            )
        }
        for dataset, part, path in zip(
            self.dataset.tolist(), self.part.tolist(), self.paths, strict=True
        ):
            name = self.dataset_ids[dataset]
            there = known.get((name, part), path)
            if dataset in self.unnumbered and there != path:
                raise ValueError(
                    f"the corpus cannot grow: ({name!r}, {part}) is {path!r} before and {there!r} "
                    "after, because files without part numbers are numbered in the order of their "
                    "paths; expected new names that sort after the old ones, names with .partN., "
                    "or `part_pattern`"
                )

    def path(self, shard: int) -> str:
        """Return the absolute path of a shard."""
        return filesystem.join(self.root, self.paths[shard])


def discover(
    root: str | os.PathLike[str],
    files: tuple[str, ...] | None = None,
    part_pattern: str | None = None,
    remote: Mapping[str, Any] | None = None,
    format: Format | None = None,
) -> ShardList:
    """List the shards below `root`, or those that match the patterns `files`. O(files).

    `remote` are options for a URL, as of `filesystem.absolute`.

    Symbolic links are followed. Names that start with a dot or an underscore are left out.

    Raises
    ------
    FileNotFoundError
        If `root` does not exist or has no dataset, if a dataset or a pattern has no shard, or if a
        link is broken.
    NotADirectoryError
        If `root` is a file.
    ValueError
        If two files of a dataset have one part number, if only some have one, if a shard is not
        a regular file, if `part_pattern` is invalid or matches none, or if an index is damaged.
    PermissionError
        If a folder may not be read.
    """
    home = filesystem.absolute(root, **(remote or {}))
    is_selected, expression = path_filter(files), _parse_part_pattern(part_pattern)

    def found_in(datasets: list[tuple[str, str]]) -> list[_Dataset]:
        return [_dataset(home, one, format, is_selected, expression) for one in datasets]

    found = found_in(_datasets(home, format, is_selected))
    if files is not None and not any(one.shards for one in found):
        found = found_in(_plain_datasets(home, format, is_selected))
    for one in found:
        if not one.shards and files is None:
            raise FileNotFoundError(
                f"'{home}/{one.folder}' has no shard; found {_format_names(one.walked)}, expected "
                f"{_expected(format)}{_hint_at_format(one.walked, format)}"
            )
    ignored, found = sum(one.ignored for one in found), [one for one in found if one.shards]
    shards = [(i, part, path) for i, one in enumerate(found) for part, path in one.shards]
    paths = tuple(path for _, _, path in shards)
    if files is not None and (pattern := first_unmatched(files, paths)) is not None:
        raise FileNotFoundError(f"no shard below {home!r} matches {pattern!r} of `files`")
    _check_regular(home, paths)
    dataset = np.array([number for number, _, _ in shards], dtype=np.int64)
    part = np.array([number for _, number, _ in shards], dtype=np.int64)
    unnumbered = frozenset(i for i, one in enumerate(found) if not one.is_numbered)
    if part_pattern is not None and len(unnumbered) == len(found):
        raise ValueError(
            f"`part_pattern` {part_pattern!r} matches no name below {home!r}, such as "
            f"{os.path.basename(paths[0])!r}"
        )
    names = tuple(one.name for one in found)
    return ShardList(home, names, dataset, part, paths, ignored, unnumbered)


class _Dataset(NamedTuple):
    """The shards of a dataset that are selected, with part numbers, and what else its folder has.

    `walked` has the names of all its files, of which `ignored` are not shards.
    """

    name: str
    folder: str
    shards: list[tuple[int, str]]
    is_numbered: bool
    walked: list[str]
    ignored: int


def _dataset(
    home: str,
    dataset: tuple[str, str],
    format: Format | None,
    is_selected: Callable[[str], bool],
    expression: re.Pattern[str],
) -> _Dataset:
    """Return the dataset of a name and folder, as `_datasets` returns them."""
    name, folder = dataset
    walked = _files_below(home, folder, is_selected)
    data = _shards_among(home, walked, format, is_selected)
    chosen = [path for path in data if is_selected(path)]
    numbered = _numbered(home, chosen, expression) if chosen else []
    ordered = sorted(chosen, key=lambda path: (natural(path), path))
    ignored = len(walked) - len(data) - _count_indices(walked, data)
    shards = list(enumerate(ordered)) if numbered is None else numbered
    return _Dataset(name, folder, shards, numbered is not None, walked, ignored)


def _files_below(home: str, folder: str, is_selected: Callable[[str], bool]) -> list[str]:
    """Return the files of a dataset, relative to the root, that are data by the metadata there."""
    prefix = f"{folder}/" if folder else ""
    root = filesystem.join(home, folder) if folder else home
    files, hidden = filesystem.list_below(root)
    selected = [path for path in files if is_selected(f"{prefix}{path}")]
    found = committed_files(root, files, hidden, selected)
    below = [f"{prefix}{path}" for path in found if folder or not path.startswith("meta/")]
    return _without_other_indices(below, is_selected)


def _without_other_indices(paths: Sequence[str], is_selected: Callable[[str], bool]) -> list[str]:
    """Return the paths but for the index files, and files with one, of shards not selected."""
    folders = {prefix for path in filter(is_selected, paths) for prefix in _prefixes(path)}
    found = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        stem, suffix = os.path.splitext(path)
        if suffix in (megatron.SUFFIX, megatron.INDEX_SUFFIX):
            is_other = not is_selected(f"{stem}{megatron.SUFFIX}")
        else:
            is_other = name == mds.INDEX and (folder or ".") not in folders
        if not is_other:
            found.append(path)
    return found


def _shards_among(
    home: str, paths: Sequence[str], format: Format | None, is_selected: Callable[[str], bool]
) -> list[str]:
    """Return the shards of a format of which one at least is selected.

    Without a format: Arrow and Parquet files; if none is selected, JSON lines, then shards of MDS
    and of Megatron-LM, which have index files, then JSON.
    """
    if format == "nanogpt":
        return [path for path in paths if path.endswith(megatron.SUFFIX)]
    if format == "megatron":
        return megatron.find_shards(home, paths)
    if format == "mds":
        return mds.find_shards(home, paths)
    for suffixes in (SUFFIXES, JSON_SUFFIXES[0], mds.SUFFIXES, megatron.SUFFIX, *JSON_SUFFIXES[1:]):
        found = [path for path in paths if path.lower().endswith(suffixes)]
        if found and suffixes in (mds.SUFFIXES, megatron.SUFFIX):
            module = mds if suffixes == mds.SUFFIXES else megatron
            found = module.find_shards(home, paths)
        if any(map(is_selected, found)):
            return found
    return []


def _count_indices(paths: Sequence[str], shards: Sequence[str]) -> int:
    """Return the number of index files that belong to the shards."""
    if shards and shards[0].lower().endswith(mds.SUFFIXES):
        return sum(path.rsplit("/", 1)[-1] == mds.INDEX for path in paths)
    known = set(paths)
    stems = [path[: -len(megatron.SUFFIX)] for path in shards if path.endswith(megatron.SUFFIX)]
    return sum(f"{stem}{megatron.INDEX_SUFFIX}" in known for stem in stems)


def _expected(format: Format | None) -> str:
    """Return the names of the shards of a format, for messages."""
    if format is None:
        return "*.partN.arrow or *.partN.parquet"
    names = {"nanogpt": "*.bin", "megatron": "*.bin with *.idx", "mds": "index.json and *.mds"}
    return names[format]


def _hint_at_format(paths: Sequence[str], format: Format | None) -> str:
    """Return a hint at `format` if there are files that it needs, for messages."""
    if format is None and any(path.endswith(megatron.SUFFIX) for path in paths):
        return "; format='nanogpt' reads *.bin"
    return ""


def _plain_datasets(
    home: str, format: Format | None, is_selected: Callable[[str], bool]
) -> list[tuple[str, str]]:
    """Return the datasets of a folder without ``dataset=NAME``; none if it has no shard.

    The splits of a `DatasetDict` that Hugging Face datasets saved, or one dataset.
    """
    if os.path.basename(home).startswith(PREFIX):
        return []
    splits = json_object(filesystem.join(home, "dataset_dict.json")).get("splits")
    if isinstance(splits, list):
        names = [checked_name(name, f"{home}/dataset_dict.json") for name in splits]
        return [(name, name) for name in names]
    shards = _shards_among(home, _files_below(home, "", is_selected), format, is_selected)
    chosen = [path for path in shards if is_selected(path)]
    return [(PLAIN, "")] if chosen and not any(map(_nested_root, chosen)) else []


def _roots_below(home: str) -> list[str]:
    """Return the folders below a folder that have datasets ``dataset=NAME``."""
    files, _ = filesystem.list_below(home)
    found = {root for path in files if (root := _nested_root(path)) is not None}
    return sorted(found, key=natural)


def _nested_root(path: str) -> str | None:
    """Return the folder above that of the dataset of a path, None for a path without any.

    Examples
    --------
    >>> _nested_root("text/corpus/dataset=c4/x.arrow"), _nested_root("x.arrow")
    ('text/corpus', None)
    """
    names = path.split("/")[:-1]
    place = next((i for i, name in enumerate(names) if name.startswith(PREFIX)), None)
    return None if place is None else "/".join(names[:place]) or "."


def _datasets(
    home: str, format: Format | None, is_selected: Callable[[str], bool]
) -> list[tuple[str, str]]:
    """Return the names and folders of the datasets below a folder, in natural order of names."""
    if not filesystem.exists(home):
        raise FileNotFoundError(f"the folder {home!r} does not exist")
    if not filesystem.is_directory(home):
        raise NotADirectoryError(
            f"{home!r} is a file; expected its folder, and the file in `files`: "
            f"Documents({os.path.dirname(home)!r}, files={os.path.basename(home)!r})"
        )
    listed = filesystem.list_directory(home)
    found = [name for name, folder in listed if folder and name.startswith(PREFIX)]
    if f"{PREFIX}" in found:
        raise ValueError(f"'{home}/{PREFIX}' has no name; expected {PREFIX}NAME")
    if not found:
        if plain := _plain_datasets(home, format, is_selected):
            return plain
        # The path of a dataset is a common mistake, and a folder above the root is another.
        hint = ""
        if os.path.basename(home).startswith(PREFIX):
            hint = f", or the root {os.path.dirname(home)!r}"
        elif (below := _roots_below(home)) and not filesystem.is_remote(home):
            hint = f", or the root {filesystem.join(home, below[0])!r}"
        names = _format_names([name + "/" * folder for name, folder in listed])
        raise FileNotFoundError(
            f"{home!r} has no dataset; found {names}, expected folders {PREFIX}NAME with shards "
            f"{_expected(format)}{hint}{_hint_at_format([name for name, _ in listed], format)}"
        )
    ordered = sorted((name[len(PREFIX) :] for name in found), key=lambda n: (natural(n), n))
    return [(name, f"{PREFIX}{name}") for name in ordered]


def _numbered(
    home: str, shards: Sequence[str], pattern: re.Pattern[str]
) -> list[tuple[int, str]] | None:
    """Return the shards of one dataset with their part numbers, ascending; None without any."""
    ordered = sorted(shards, key=lambda path: (natural(path), path))
    numbers = [_part_number(path, pattern) for path in ordered]
    if None in numbers:
        with_number = [
            path for path, part in zip(ordered, numbers, strict=True) if part is not None
        ]
        if with_number:
            raise ValueError(
                f"'{home}/{with_number[0]}' has a part number and "
                f"'{home}/{ordered[numbers.index(None)]}' has none; expected one for all shards "
                "of a dataset or for none"
            )
        return None
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


def _part_number(path: str, pattern: re.Pattern[str]) -> int | None:
    found = pattern.findall(path.rsplit("/", 1)[-1])
    if found and not (found[-1].isascii() and found[-1].isdigit()):
        raise ValueError(f"`part_pattern` gives {found[-1]!r} for {path!r}, expected digits")
    return int(found[-1]) if found else None


def _check_regular(home: str, paths: Sequence[str]) -> None:
    """Raise an error for a path that is not a regular file: opening a named pipe would block."""
    if filesystem.is_remote(home):
        return  # A listing has objects alone.
    for path in paths:
        full = filesystem.join(home, path)
        if filesystem.is_file(full):
            continue
        if (target := filesystem.link_target(full)) is not None:
            raise FileNotFoundError(f"{full!r} is a broken link to {target!r}")
        raise ValueError(f"{full!r} is not a regular file")


def _format_names(names: Sequence[str]) -> str:
    """Return the first few names and the number of the rest."""
    if not names:
        return "nothing"
    listed = sorted(names, key=natural)
    more = f" and {len(listed) - 4:,} more" if len(listed) > 4 else ""
    return ", ".join(map(repr, listed[:4])) + more
