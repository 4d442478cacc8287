"""The plan of a preparation: options, source files, and the tasks that read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.fingerprints import digest
from windeck._util.parallel import run_in_threads
from windeck._util.text import plural
from windeck.io import conversion
from windeck.io.filesystem import RangeReader
from windeck.io.folder_columns import folder_types, varied_columns, with_columns
from windeck.io.formats import open_file
from windeck.io.options import ReadOptions
from windeck.io.reading import check_same_columns, common_types, id_builder
from windeck.preparation.regular_rows import GridOptions
from windeck.preparation.sorting import time_type
from windeck.preparation.widening import retyped_schema, text_types, wider_types

__all__ = [
    "PreparationPlan",
    "PrepareOptions",
    "SourceFile",
    "SourceRows",
    "final_types",
    "make_plan",
]

#: Format of the work of unfinished preparations, in the fingerprint: how rows are divided into
#: files, and what is written of it.
_FORMAT = 1
#: A file has at least this many uncompressed bytes, and more where all data has much more.
LEAST_FILE_BYTES = 128 << 20
#: Bytes of a sorted file's rows that one file takes, at least, by the default of `file_bytes`.
_SLICE_BYTES = 1 << 20
MOST_FILE_BYTES = 1 << 30

#: Error of a damaged file, which `on_error="skip"` leaves out. Any OSError has another reason: the
#: file is gone, access is refused, or a server does not answer.
BAD_FILE = ValueError


@dataclass(frozen=True)
class PrepareOptions:
    """Validated options of `prepare` that decide what is written."""

    read: ReadOptions
    file_bytes: int | None = None
    row_group_bytes: int = 16 << 20
    compression: str = "zstd"
    duplicates: str = "error"
    on_error: str = "stop"
    scalers: tuple[str, ...] = ()
    sample: int | None = 100_000
    seed: int = 0
    train: tuple[Any, Any] = (None, None)
    per_series: bool = False
    grid: GridOptions | None = None

    def document(self) -> dict[str, Any]:
        """Return the options as JSON, for the manifest and the fingerprint."""
        read, csv = self.read, self.read.csv
        header = csv.header
        # Without a grid the fingerprint is that of versions that had none.
        grid = {} if self.grid is None else {"grid": self.grid.document()}
        return grid | {
            "columns": None if read.columns is None else list(read.columns),
            "id_columns": list(read.ids),
            "timestamp_column": read.time,
            "dtype": None if read.dtype is None else read.dtype.name,
            "header": header if header is None or isinstance(header, bool) else list(header),
            "delimiter": csv.delimiter,
            "decimal": csv.decimal,
            "encoding": csv.encoding,
            "timestamp_format": csv.timestamp_format,
            "file_bytes": self.file_bytes,
            "row_group_bytes": self.row_group_bytes,
            "compression": self.compression,
            "duplicates": self.duplicates,
            "on_error": self.on_error,
            "scalers": list(self.scalers),
            "sample": self.sample,
            "seed": self.seed,
            "train": [None if end is None else str(end) for end in self.train],
            "per_series": self.per_series,
            "missing": None if csv.missing is None else list(csv.missing),
        }


@dataclass(frozen=True)
class SourceFile:
    """A source file, with its columns and estimated size. `kind` and the others stay as found."""

    path: str
    kind: str
    schema: Any
    size: int
    modified: int
    rows: int
    nbytes: int

    @property
    def name(self) -> str:
        """The path, without credentials and the query of a URL."""
        return _public(self.path)


class SourceRows(NamedTuple):
    """Rows [start, stop) of a source file; stop is None for the end."""

    source: int
    start: int
    stop: int | None


@dataclass(frozen=True)
class PreparationPlan:
    """Source files, options and tasks of a preparation; a function of sources and options.

    `wider` has the types to which columns are converted that differ in width, or are times,
    `texts` those in which CSV files are parsed where their first rows differ.
    """

    options: PrepareOptions
    sources: tuple[SourceFile, ...]
    skipped: dict[str, str]
    names: tuple[str, ...]
    file_bytes: int
    tasks: tuple[tuple[SourceRows, ...], ...]
    fingerprint: str
    wider: Mapping[str, Any]
    texts: Mapping[str, Any]
    folder: str = field(default="", compare=False)

    @cached_property
    def compared(self) -> frozenset[str]:
        """Columns in which files must agree with the names of their folders."""
        varied = varied_columns([source.path for source in self.sources])
        return frozenset((*self.options.read.index_columns, *varied))

    @property
    def wanted(self) -> tuple[str, ...]:
        """Columns that are read: ids, time and values, in the order they are written."""
        return (*self.options.read.index_columns, *self.names)


def _public(path: str) -> str:
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#]*@)?([^?#]*)", path)
    return path if found is None else found[1] + found[2]


def make_plan(
    paths: Sequence[str], options: PrepareOptions, threads: int | None
) -> PreparationPlan:
    """Open all source files and divide them into tasks. Reads metadata only."""
    opened = run_in_threads(
        lambda number: _open(paths[number], options), len(paths), threads, portion=1
    )
    sources = [one for one in opened if isinstance(one, SourceFile)]
    bad = {_public(p): one for p, one in zip(paths, opened, strict=True) if isinstance(one, str)}
    if not sources:
        path, reason = next(iter(bad.items()))
        many = plural(len(paths), "file")
        raise ValueError(f"none of {many} can be read, the first is {path!r}: {reason}")
    kinds = folder_types({one.path: one.schema for one in sources}, options.read.named_columns)
    sources = [replace(one, schema=with_columns(one, kinds, ()).schema) for one in sources]
    first = sources[0]
    if options.grid is not None and options.read.time in first.schema.names:
        time = first.schema.field(options.read.time).type
        if pa.types.is_temporal(time) or pa.types.is_integer(time):
            options.grid.grid(time_type(time))  # An error before any row is read.
    names = options.read.value_columns(first.schema, repr(first.name))
    wanted = (*names, *options.read.index_columns)
    for source in sources:
        check_same_columns(first, source, wanted, every=options.read.columns is None)
    # Of a CSV file the types are known once all of it has been read.
    known = [source for source in sources if source.kind != "CSV"]
    wider = wider_types(
        [source.schema for source in known], wanted, options.read.ids, options.read.time
    )
    parsed = [source.schema for source in sources if source.kind == "CSV"]
    schemas = [source.schema for source in known]
    texts = text_types(parsed, schemas, options.read.ids, options.read.time)
    if known:
        known = [replace(one, schema=retyped_schema(one.schema, wider)) for one in known]
        final_types(known, names, options)
    sources = [_with_bytes(source, wanted, options) for source in sources]
    total = sum(source.nbytes for source in sources)
    file_bytes = options.file_bytes or _default_file_bytes(total)
    tasks = _tasks(sources, file_bytes)
    described = [(source.name, source.size, source.modified) for source in sources]
    mark = digest(_FORMAT, options.document(), described, sorted(bad))
    every = tuple(sources)
    return PreparationPlan(options, every, bad, names, file_bytes, tasks, mark, wider, texts)


def _open(path: str, options: PrepareOptions) -> SourceFile | str:
    """Return a source, or the reason why it cannot be read."""
    try:
        with RangeReader(path) as reader:
            size, modified = reader.size, reader.modified
        file = open_file(path, options.read.csv)
        return SourceFile(path, file.kind, file.schema, size, modified, file.num_rows, 0)
    except BAD_FILE as error:
        if options.on_error == "stop":
            raise
        return str(error).split("\n")[0]


def _with_bytes(source: SourceFile, names: Iterable[str], options: PrepareOptions) -> SourceFile:
    """Return the source with the estimated bytes of the columns in use."""
    width = 0
    for name in names:
        if name not in source.schema.names:
            continue
        kind = conversion.value_type(source.schema.field(name).type)
        # Strings and ids count as 16 bytes a row: only their share of the work depends on it.
        width += kind.bit_width // 8 if pa.types.is_primitive(kind) else 16
    return replace(source, nbytes=source.rows * max(width, 1))


def _default_file_bytes(total: int) -> int:
    """Return bytes such that each file takes stretches of a mebibyte of each sorted file."""
    size = min(max(LEAST_FILE_BYTES, math.isqrt(total * _SLICE_BYTES)), MOST_FILE_BYTES)
    return size >> 20 << 20


def _tasks(sources: Sequence[SourceFile], file_bytes: int) -> tuple[tuple[SourceRows, ...], ...]:
    """Divide sources into tasks of about `file_bytes`: many small files, or rows of a large one."""
    tasks: list[tuple[SourceRows, ...]] = []
    pending: list[SourceRows] = []
    held = 0
    for number, source in enumerate(sources):
        count = source.nbytes // file_bytes
        if held and held + source.nbytes > file_bytes:
            tasks.append(tuple(pending))
            pending, held = [], 0
        if count < 2 or source.kind == "CSV":
            pending.append(SourceRows(number, 0, None))
            held += source.nbytes
            continue
        ends = [source.rows * place // count for place in range(count + 1)]
        tasks += [(SourceRows(number, *ends[place : place + 2]),) for place in range(count)]
    if pending:
        tasks.append(tuple(pending))
    return tuple(tasks)


def final_types(
    files: Sequence[Any], names: Sequence[str], options: PrepareOptions
) -> dict[str, Any]:
    """Return the Arrow type of each column as it is written; check that all files agree.

    Raises
    ------
    TypeError, ValueError
        A table cannot hold the type, or files differ; the message names column and file.
    """
    read = options.read
    wanted = (*read.index_columns, *names)
    kinds = common_types(files, wanted, every=False)
    where = repr(files[0].path)
    for name in read.ids:
        id_builder(name, kinds[name], 0, where)
        if pa.types.is_dictionary(kinds[name]):
            kinds[name] = conversion.kind_without_views(kinds[name])
    if read.time is not None:
        conversion.time_dtype(read.time, kinds[read.time], where)
        kinds[read.time] = time_type(kinds[read.time])
    dtypes = conversion.value_dtypes({name: kinds[name] for name in names}, read.dtype, where)
    for name, dtype in dtypes.items():
        kinds[name] = _value_type(kinds[name], dtype)
    return {name: kinds[name] for name in wanted}


def _value_type(kind: Any, dtype: np.dtype[Any]) -> Any:
    if conversion.is_categorical(kind):
        coded = pa.types.is_dictionary(kind)
        return pa.dictionary(pa.int32(), pa.string()) if coded else pa.string()
    kind = conversion.value_type(kind)
    return pa.from_numpy_dtype(dtype) if dtype.kind == "f" else kind
