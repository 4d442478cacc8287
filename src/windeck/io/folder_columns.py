"""Columns that names of folders give to all rows of a file, such as ``site=a`` (Hive's style)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windeck.io import conversion
from windeck.io.committed import folder_values

__all__ = [
    "FolderColumns",
    "add_columns",
    "folder_types",
    "varied_columns",
    "with_columns",
    "with_folder_columns",
]

_CODED = pa.dictionary(pa.int32(), pa.string())
#: Rows of a batch of columns of folders alone.
_BATCH_ROWS = 1 << 16
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def with_folder_columns(
    files: Sequence[Any], named: Iterable[str], ids: Sequence[str] = ()
) -> list[Any]:
    """Return files with the columns that are named, and given by folders, where files lack them.

    Parameters
    ----------
    files
        Files of columns; see `windeck.io.record_batches.DataFile`.
    named
        Columns that a user names.
    ids
        Columns of which each file that has them must agree with its folders. So must others on
        which folders differ.

    Raises
    ------
    ValueError
        Where rows are read: a file has another value than its folder.
    """
    kinds = folder_types({file.path: file.schema for file in files}, named)
    compared = {*ids, *varied_columns([file.path for file in files])}
    found = [with_columns(file, kinds, compared) for file in files]
    return [one if one.constants or one.checks else one.file for one in found]


def with_columns(file: Any, kinds: Mapping[str, Any], compared: Collection[str]) -> FolderColumns:
    """Return a file with the columns of some types that its folders give and it lacks.

    `compared` are columns in which it must agree with its folders.
    """
    values, names = folder_values(file.path), file.schema.names
    added = {name: kinds[name] for name in kinds if name in values and name not in names}
    constants = {n: _constant(values[n], kind, n, file.path) for n, kind in added.items()}
    checks = {name: values[name] for name in names if name in values and name in compared}
    return FolderColumns(file, constants, checks)


def folder_types(schemas: Mapping[str, Any], named: Iterable[str]) -> dict[str, Any]:
    """Return the types of the named columns that folders give and some files lack.

    The type of files that have the column; else int32 where all values are integers, as pyarrow
    infers; text where all are other numbers, which are no codes unless that is asked for; else
    categories.

    Parameters
    ----------
    schemas
        Schema of each file, by its path.
    """
    found = {}
    values = {path: folder_values(path) for path in schemas}
    for name in dict.fromkeys(named):
        texts = {one[name] for one in values.values() if name in one} - {None}
        lacks = [p for p, schema in schemas.items() if name not in schema.names]
        if not any(name in values[path] for path in lacks):
            continue
        stored = [s.field(name).type for s in schemas.values() if s.names.count(name) == 1]
        kind = conversion.value_type(stored[0]) if stored else None
        if kind is not None and not pa.types.is_string(kind):
            found[name] = kind
        elif kind is None and _are_integers(texts):
            found[name] = pa.int32()
        else:
            numbers = bool(texts) and all(_NUMBER.fullmatch(text or "") for text in texts)
            found[name] = pa.string() if kind is None and numbers else _CODED
    return found


def _are_integers(texts: Iterable[str | None]) -> bool:
    """Return True for integers of 32 bits, no two of which are the same number."""
    listed = [text or "" for text in texts]
    if not listed or not all(_INTEGER.fullmatch(text) for text in listed):
        return False
    numbers = {int(text) for text in listed}
    return len(numbers) == len(listed) and -(2**31) <= min(numbers) <= max(numbers) < 2**31


def varied_columns(paths: Sequence[str]) -> set[str]:
    """Return the columns to which folders of several files give several values."""
    found: dict[str, set[str | None]] = {}
    for path in paths:
        for name, value in folder_values(path).items():
            found.setdefault(name, set()).add(value)
    return {name for name, values in found.items() if len(values) > 1}


def _constant(value: str | None, kind: Any, name: str, path: str) -> Any:
    """Return an array of one row; raise ValueError if a type does not hold the value."""
    if kind == _CODED:
        codes = pa.array([None if value is None else 0], pa.int32())
        texts = pa.array([] if value is None else [value], pa.string())
        return pa.DictionaryArray.from_arrays(codes, texts)
    try:
        return pa.array([value], pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"the folder of {path!r} names {value!r} for column {name!r}, which is {kind} in other "
            "files; expected a value of this type"
        ) from error


def _rows_of(constant: Any, rows: int) -> Any:
    """Return an array that repeats the only row of another one."""
    if not pa.types.is_dictionary(constant.type):
        return pa.repeat(constant[0], rows)
    codes = pa.repeat(constant.indices[0], rows)
    return pa.DictionaryArray.from_arrays(codes, constant.dictionary)


def add_columns(
    batches: Iterable[Any], constants: Mapping[str, Any], names: Sequence[str]
) -> Iterator[Any]:
    """Yield record batches of columns by their names, those of folders added."""
    for batch in batches:
        columns = [
            _rows_of(constants[name], batch.num_rows) if name in constants else batch.column(name)
            for name in names
        ]
        yield pa.RecordBatch.from_arrays(columns, names=list(names))


@dataclass
class FolderColumns:
    """A file with columns that its folders name; see `DataFile` and `PartedFile`.

    Attributes
    ----------
    file
        The file.
    constants
        The column of one row for each name.
    checks
        The text that every row of a column of the file must be equal to.
    """

    file: Any
    constants: Mapping[str, Any]
    checks: Mapping[str, str | None]

    def __post_init__(self) -> None:
        self.path: str = self.file.path  # It may be a URL that knows its file system.
        self.kind: str = self.file.kind

    @property
    def schema(self) -> Any:
        schema = self.file.schema
        for name, constant in self.constants.items():
            schema = schema.append(pa.field(name, constant.type))
        return schema

    def own(self, names: Iterable[str]) -> list[str]:
        """Return the columns that are in the file."""
        return [name for name in names if name not in self.constants]

    def prepare(self, names: Sequence[str]) -> FolderColumns:
        own = self.own(names) or list(self.file.schema.names[:1])
        return FolderColumns(self.file.prepare(own), self.constants, self.checks)

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        groups: list[list[str]] = self.file.column_groups(self.own(names))
        added = [name for name in names if name in self.constants]
        return [*groups, *([added] if added else [])]

    def batches(self, names: Sequence[str], start: int, stop: int, **options: Any) -> Iterator[Any]:
        """Yield record batches of some columns, together rows [start, stop)."""
        own = self.own(names)
        read: Iterator[Any]
        if own:
            read = map(self.checked, self.file.batches(own, start, stop, **options))
        else:
            ends = range(start, stop, _BATCH_ROWS)
            read = (_empty(min(_BATCH_ROWS, stop - row)) for row in ends)
        yield from add_columns(read, self.constants, names)

    def checked(self, batch: Any) -> Any:
        """Return a batch; raise ValueError if it has another value than its folder names."""
        for name in batch.schema.names:
            if name in self.checks:
                _check_agrees(batch.column(name), name, self.checks[name], self.path)
        return batch

    @property
    def num_rows(self) -> int:
        return int(self.file.num_rows)

    @property
    def part_rows(self) -> list[int]:
        found: list[int] = self.file.part_rows
        return found

    @property
    def overhead_bytes(self) -> int:
        return int(self.file.overhead_bytes)

    def column_bytes(self, name: str) -> int:
        """Return the bytes of a column in the file: none of a folder."""
        return 0 if name in self.constants else int(self.file.column_bytes(name))

    def stored_bytes(self, name: str) -> list[int]:
        """Return the bytes of a column in each part of the file: none of a folder."""
        return self._by_part(name, self.file.stored_bytes)

    def first_bytes(self, name: str, rows: int) -> list[int]:
        """Return the bytes for the first rows of a column of each part: none of a folder."""
        return self._by_part(name, lambda name: self.file.first_bytes(name, rows))

    def _by_part(self, name: str, of_file: Callable[[str], list[int]]) -> list[int]:
        return [0] * len(self.part_rows) if name in self.constants else of_file(name)

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column, as far as they are known."""
        if name in self.constants:
            return int(self.constants[name].null_count) * self.num_rows
        found: int | None = self.file.null_count(name)
        return found

    def splits(self, names: Sequence[str]) -> bool:
        """Return True if any rows of a part can be read without the others."""
        return bool(self.file.splits(self.own(names)))

    def content_digest(self) -> str:
        """Return a digest of the file's metadata."""
        return str(self.file.content_digest())


def _empty(rows: int) -> Any:
    """Return a record batch of rows without a column."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _check_agrees(column: Any, name: str, value: str | None, path: str) -> None:
    """Raise ValueError for a value of a column of text or integers that its folder does not name.

    Columns of other types are not compared.
    """
    kind = conversion.value_type(column.type)
    if pa.types.is_string(kind):
        expected: Any = value
        found = conversion.to_dictionary(column)
        codes, texts = found.indices, found.dictionary.to_pylist()
        used = [texts[code.as_py()] if code.is_valid else None for code in codes.unique()]
    elif pa.types.is_integer(kind):
        whole = value is not None and re.fullmatch(r"[+-]?[0-9]+", value)
        expected = int(value or "") if whole else value
        used = conversion.decode_numbers(column).unique().to_pylist()
    else:
        return
    for one in used:
        if one != expected:
            raise ValueError(
                f"column {name!r} of {path!r} has {one!r}, and its folder names {expected!r}; "
                "expected one value for all rows of a file below such a folder"
            )
