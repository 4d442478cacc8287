"""Reading of files and Arrow tables into columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.progress import report_bytes
from windeck._util.text import format_bytes
from windeck.columns.columns import ColumnData, aligned_empty
from windeck.columns.dtypes import Array
from windeck.io import conversion
from windeck.io.arrow import IpcFile
from windeck.io.conversion import ColumnBuilder, number_dtype
from windeck.io.csv import ParsedCsv, promoted_type
from windeck.io.folder_columns import FolderColumns, with_folder_columns
from windeck.io.formats import open_file, open_files
from windeck.io.options import ReadOptions, row_range
from windeck.io.record_batches import BATCH_ROWS, DataFile, FileSchema, column_indices


@dataclass(frozen=True)
class Origin:
    """Files of a table: number and kinds of files, columns and bytes of all files together."""

    files: int
    kinds: tuple[str, ...]
    columns: int
    nbytes: int
    mapped: bool = False
    streamed: bool = False


class LoadedColumns(NamedTuple):
    """Columns as read, before rows are grouped by series and sorted by time.

    `matrix` is the row-major matrix of interleaved columns. `owned` means that rows may be moved
    in place.
    """

    columns: list[ColumnData]
    ids: list[ColumnData]
    time: ColumnData | None
    matrix: Array | None
    origin: Origin | None
    owned: bool


_CACHED_BYTES = 1 << 20


def estimate_bytes(files: Sequence[DataFile], names: Iterable[str], options: ReadOptions) -> int:
    """Return the bytes of columns in memory, from metadata or, for CSV, from a sample."""
    rows = [file.num_rows for file in files]
    start, stop = options.rows or (0, None)
    total = sum(rows)
    taken = max(0, min(total, total if stop is None else stop) - start)
    return sum(_size(files, name, options, taken, taken / max(total, 1)) for name in names)


def _size(
    files: Sequence[DataFile], name: str, options: ReadOptions, rows: int, share: float
) -> int:
    kind = conversion.value_type(files[0].schema.field(name).type)
    if conversion.is_string(kind):
        known = options.all_categories or name in options.categories or name in options.ids
        coded = known or pa.types.is_dictionary(files[0].schema.field(name).type)
        return rows * 4 if coded else int(sum(f.column_bytes(name) for f in files) * share)
    if name == options.time and not pa.types.is_nested(kind):
        return rows * 8
    try:
        return rows * conversion.value_dtype(name, kind, options.dtype, "").itemsize
    except TypeError:
        fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
        if fixed:
            return int(rows * kind.bit_width // 8)
        return int(sum(file.column_bytes(name) for file in files) * share)


def open_data(paths: Sequence[str], options: ReadOptions) -> list[DataFile]:
    """Open files with the columns of options that their folders name."""
    return with_folder_columns(
        open_files(paths, options.csv), options.named_columns, options.index_columns
    )


def read_files(
    paths: Sequence[str], options: ReadOptions, interleaved: bool, memory_budget: float | None
) -> LoadedColumns:
    """Read files into columns. Memory is the columns themselves, and `overhead_bytes` of a file."""
    files = open_data(paths, options)
    names = options.value_columns(files[0].schema, repr(files[0].path))
    origin = origin_of(files, options)
    wanted = (*names, *options.index_columns)
    needed = estimate_bytes(files, wanted, options) + max(file.overhead_bytes for file in files)
    check_budget(needed, memory_budget, len(names), origin)
    files = prepare_files(files, wanted, every=options.columns is None)
    for file in files:
        parsed = file.file if isinstance(file, FolderColumns) else file
        if isinstance(parsed, ParsedCsv):
            parsed.check_text(options)
    total = count_rows(files)
    kinds = options.typed(common_types(files, wanted, every=options.columns is None))
    start, stop = row_range(options, total)
    where = repr(files[0].path)
    builders, matrix = _builders(names, kinds, options, stop - start, interleaved, where)
    _fill(files, kinds, builders, start, stop)
    return LoadedColumns(
        [builders[name].finish() for name in names],
        [builders[name].finish() for name in options.ids],
        None if options.time is None else builders[options.time].finish(),
        matrix,
        origin,
        owned=True,
    )


def count_rows(files: Sequence[Any]) -> int:
    """Return the rows of all files; ValueError if there are none."""
    total = sum(int(file.num_rows) for file in files)
    if not total:
        raise ValueError(f"{', '.join(repr(file.path) for file in files[:3])} has no rows")
    return total


def read_arrow(paths: Sequence[str], options: ReadOptions, memory_budget: float | None) -> Any:
    """Read the columns of files as they are, as an Arrow table."""
    files = open_data(paths, options)
    names = options.value_columns(files[0].schema, repr(files[0].path))
    wanted = [*names, *options.index_columns]
    needed = estimate_bytes(files, wanted, options) + max(file.overhead_bytes for file in files)
    check_budget(needed, memory_budget, len(names), origin_of(files, options))
    files = prepare_files(files, wanted, every=options.columns is None)
    kinds = common_types(files, wanted, every=options.columns is None)
    tables = []
    for file in files:
        rows = file.num_rows
        columns: dict[str, Any] = {}
        for group in file.column_groups(wanted):
            batches = list(file.batches(group, 0, rows))
            schema = pa.schema([file.schema.field(name) for name in group])
            part = pa.Table.from_batches(batches, None if batches else schema)
            columns.update(zip(group, part.columns, strict=True))
        plain = {name: conversion.without_views(column) for name, column in columns.items()}
        types = {name: conversion.kind_without_views(kinds[name]) for name in wanted}
        tables.append(pa.table({name: plain[name].cast(types[name]) for name in wanted}))
    return pa.concat_tables(tables).replace_schema_metadata(files[0].schema.metadata)


def origin_of(files: Sequence[DataFile], options: ReadOptions) -> Origin:
    """Return the number and bytes of all columns of files, without ids and time."""
    counted = Counter(files[0].schema.names)
    others = [name for name in counted if counted[name] == 1 and name not in options.index_columns]
    nbytes = estimate_bytes(files, others, options)
    return Origin(len(files), tuple(sorted({file.kind for file in files})), len(others), nbytes)


def check_budget(needed: int, budget: float | None, columns: int, origin: Origin) -> None:
    """Raise MemoryError if columns would take more than the budget."""
    if budget is not None and needed > budget:
        raise MemoryError(
            f"reading {columns} of {origin.columns} columns takes about {format_bytes(needed)}, "
            f"more than memory_budget={format_bytes(budget)}; pass fewer columns=, a range of "
            "rows=, or a narrower dtype="
        )


def prepare_files(
    files: Sequence[DataFile], names: Sequence[str], *, every: bool
) -> list[DataFile]:
    """Return files that are ready for reading some columns, which all of them must have."""
    for file in files:  # before, as a CSV file forgets its other columns
        check_same_columns(files[0], file, names, every=every)
    return [file.prepare(names) for file in files]


def common_types(
    files: Sequence[FileSchema], names: Sequence[str], *, every: bool
) -> dict[str, Any]:
    """Return the Arrow type of each column, equal in all files but for its encoding."""
    first = files[0]
    kinds = {}
    for file in files:
        check_same_columns(first, file, names, every=every)
    for name in names:
        found = [file.schema.field(name).type for file in files]
        known = [kind for kind in found if not pa.types.is_null(kind)] or found
        wide = promoted_type(files, name)
        for file, kind in zip(files, found, strict=True):
            same = conversion.value_type(kind) == conversion.value_type(known[0])
            if not (same or wide or pa.types.is_null(kind)):
                raise ValueError(
                    f"column {name!r} is {known[0]} in {files[found.index(known[0])].path!r} but "
                    f"{kind} in {file.path!r}; expected one type in all files"
                )
        kinds[name] = wide or next(filter(pa.types.is_dictionary, known), known[0])
    return kinds


def check_same_columns(
    first: FileSchema, file: FileSchema, names: Sequence[str], *, every: bool
) -> None:
    """Raise ValueError if a file lacks a column, or has another one where `every` is asked."""
    here, there = file.schema.names, first.schema.names
    for name in sorted(set(names) - set(here), key=names.index):
        raise ValueError(
            f"{file.path!r} has no column {name!r}, which {first.path!r} has; expected the same "
            "columns in all files"
        )
    for name in sorted(set(here) - set(there), key=here.index) if every else ():
        raise ValueError(
            f"{file.path!r} has a column {name!r}, which {first.path!r} does not have; expected "
            "the same columns in all files, or the ones to read in columns="
        )
    column_indices(file.schema, names, file.path)


def _builders(
    names: Sequence[str],
    kinds: Mapping[str, Any],
    options: ReadOptions,
    rows: int,
    interleaved: bool,
    where: str,
) -> tuple[dict[str, ColumnBuilder], Array | None]:
    """Allocate memory for every column, or one matrix for all value columns if interleaved."""
    found = conversion.value_dtypes({name: kinds[name] for name in names}, options.dtype, where)
    dtypes = list(found.values())
    named = [options.category_names(n, kinds[n], where) for n in names]
    matrix = None
    if interleaved:
        matrix = aligned_empty((rows, len(names)), common_dtype(names, dtypes))
    builders = {
        name: ColumnBuilder(name, rows, dtype, names=words, out=place)
        for name, dtype, words, place in zip(
            names, dtypes, named, [None] * len(names) if matrix is None else matrix.T, strict=True
        )
    }
    for name in options.ids:
        builders[name] = id_builder(name, kinds[name], rows, where)
    if options.time is not None:
        dtype = conversion.time_dtype(options.time, kinds[options.time], where)
        options.check_zone(kinds[options.time], where)
        zone = conversion.time_zone(kinds[options.time])
        builders[options.time] = ColumnBuilder(options.time, rows, dtype, zone=zone)
    return builders, matrix


def id_builder(name: str, kind: Any, rows: int, where: str = "the data") -> ColumnBuilder:
    """Return a builder of an id column: codes of strings, or integers."""
    if conversion.is_categorical(kind):
        return ColumnBuilder(name, rows, np.dtype(np.int32), names=True)
    if not pa.types.is_integer(conversion.value_type(kind)):
        raise TypeError(f"id column {name!r} of {where} is {kind}; expected strings or integers")
    return ColumnBuilder(name, rows, conversion.number_dtype(conversion.value_type(kind)))


def common_dtype(names: Sequence[str], dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype of an interleaved table, which all columns must have."""
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype != dtypes[0]:
            raise TypeError(
                f"storage='rows' needs columns of one dtype, but {names[0]!r} is {dtypes[0]} and "
                f"{name!r} is {dtype}; pass columns of one dtype, or dtype= for floating columns"
            )
    return dtypes[0]


def _fill(
    files: Sequence[DataFile],
    kinds: Mapping[str, Any],
    builders: Mapping[str, ColumnBuilder],
    start: int,
    stop: int,
) -> None:
    """Read rows [start, stop) of all files together into the builders."""
    row, width = 0, sum(one.values.itemsize for one in builders.values())
    with report_bytes("reading", width * (stop - start)) as advance:
        for file in files:
            first, last = max(start - row, 0), min(stop - row, file.num_rows)
            row += file.num_rows
            if first < last:
                _fill_from(file, kinds, builders, first, last, advance)


def _fill_from(
    file: DataFile,
    kinds: Mapping[str, Any],
    builders: Mapping[str, ColumnBuilder],
    start: int,
    stop: int,
    advance: Callable[[int], None],
) -> None:
    portion = _rows_per_copy([builders[name].values for name in builders])
    for group in file.column_groups(list(builders)):
        done, width = 0, sum(builders[name].values.itemsize for name in group)
        for batch in file.batches(group, start, stop):
            done += batch.num_rows
            advance(width * batch.num_rows)
            for rows in _slices(batch, portion):
                for name, array in zip(group, rows.columns, strict=True):
                    builders[name].append(cast_to_common(array, name, kinds[name], file.path))
        if done != stop - start:
            raise ValueError(
                f"{file.path!r} has {stop - start - done} rows fewer than its metadata says"
            )


def as_arrow_table(data: Any, options: ReadOptions | None = None) -> Any:
    """Return an object with the Arrow PyCapsule interface as a pyarrow table, without a copy.

    Of a polars LazyFrame or a Hugging Face Dataset the columns of `options` alone are computed, or
    all of them.
    """
    if hasattr(data, "collect_schema") and hasattr(data, "collect"):
        if options is not None:
            data = data.select(options.wanted(data.collect_schema().names(), "the LazyFrame"))
        data = data.collect()
    elif hasattr(data, "with_format") and hasattr(data, "select_columns"):
        if isinstance(data, Mapping):
            raise TypeError(
                f"a {type(data).__name__} has the splits {', '.join(map(repr, data))}; expected "
                "one of them"
            )
        if not hasattr(data, "__len__"):
            raise TypeError(
                "an IterableDataset has no rows in memory; expected a Dataset, or its files"
            )
        if options is not None:
            data = data.select_columns(options.wanted(data.column_names, "the Dataset"))
        data = data.with_format("arrow")[:]
    if not (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")):
        raise TypeError(
            f"a {type(data).__name__} does not have the Arrow PyCapsule interface; expected a "
            "table of pyarrow, polars, pandas or the like"
        )
    try:
        return pa.table(data)
    except (pa.ArrowException, TypeError) as error:
        # Of pandas an error has two texts, of which the second names the column.
        reason = ": ".join(str(text).rstrip(".") for text in reversed(error.args))
        raise TypeError(
            f"a {type(data).__name__} is not a table with named columns; {reason}"
        ) from error


def from_arrow_table(
    table: Any, options: ReadOptions, *, interleaved: bool, origin: Origin | None = None
) -> LoadedColumns:
    """Return columns of an Arrow table: a column of one chunk as a view, others copied once."""
    where = "the data"
    names = options.value_columns(table.schema, where)
    column_indices(table.schema, (*names, *options.index_columns), where)
    wanted = (*names, *options.index_columns)
    kinds = options.typed({name: table.schema.field(name).type for name in wanted})
    start, stop = row_range(options, table.num_rows)
    table = table.slice(start, stop - start)
    builders, matrix = _builders(names, kinds, options, stop - start, interleaved, where)

    def column(name: str, *, view: bool) -> ColumnData:
        return arrow_column(table.column(name), builders[name], view=view)

    return LoadedColumns(
        [column(name, view=not interleaved) for name in names],
        [column(name, view=False) for name in options.ids],
        None if options.time is None else column(options.time, view=not interleaved),
        matrix,
        origin,
        owned=interleaved,
    )


def arrow_column(chunked: Any, builder: ColumnBuilder, *, view: bool) -> ColumnData:
    """Return a column of an Arrow table: a view if it is one chunk and `view`, else a copy."""
    chunked.validate()
    if view and chunked.num_chunks == 1:
        found = conversion.as_view(builder.name, chunked.chunk(0), builder)
        if found is not None:
            return found
    for chunk in chunked.chunks:
        builder.append(chunk)
    return builder.finish()


def _rows_per_copy(outs: Sequence[Array]) -> int:
    """Return the rows to copy at a time; of an interleaved matrix, as many as fit the L2 cache."""
    row_bytes = max(out.strides[0] for out in outs)
    interleaved = row_bytes > max(out.itemsize for out in outs)
    return max(_CACHED_BYTES // row_bytes, 64) if interleaved else BATCH_ROWS


def _slices(batch: Any, rows: int) -> Iterator[Any]:
    if batch.num_rows <= rows:
        yield batch
    else:
        yield from (batch.slice(row, rows) for row in range(0, batch.num_rows, rows))


def cast_to_common(array: Any, name: str, kind: Any, path: str) -> Any:
    """Return an array in the common type of all files: integers of a CSV file as floats."""
    same = conversion.value_type(array.type) == conversion.value_type(kind)
    if same or pa.types.is_null(array.type):
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(
            f"column {name!r} is {array.type} in {path!r} and {kind} in other files, and "
            f"cannot be converted: {error}"
        ) from error


def is_mappable(paths: Sequence[str], options: ReadOptions) -> bool:
    """Return True for one uncompressed Arrow IPC file or stream of one record batch."""
    if len(paths) != 1:
        return False
    (file,) = open_data(paths, options)
    if file.kind == "CSV":
        raise ValueError(
            f"in_memory=False leaves values in Parquet or Arrow IPC files, and {file.path!r} is "
            f"CSV; `windeck prepare SRC DEST` converts it, or {_MAPPABLE_HINT}"
        )
    return isinstance(file, IpcFile) and file.is_mappable  # Not with columns of folders.


def read_mapped(paths: Sequence[str], options: ReadOptions) -> LoadedColumns:
    """Map a file that `is_mappable`, without a copy of values."""
    file = open_file(paths[0], options.csv)
    assert isinstance(file, IpcFile)
    names = options.value_columns(file.schema, repr(file.path))
    count_rows([file])
    batches = file.mapped((*names, *options.index_columns))
    schema = pa.schema([file.schema.field(n) for n in (*names, *options.index_columns)])
    table = pa.Table.from_batches(batches, schema)
    _check_dtype(options, {name: table.schema.field(name).type for name in names})
    origin = origin_of([file], options)
    mapped = Origin(1, (file.kind,), origin.columns, origin.nbytes, mapped=True)
    return from_arrow_table(table, options, interleaved=False, origin=mapped)


_MAPPABLE_HINT = (
    "write it with pyarrow.feather.write_feather(table.combine_chunks(), path, "
    "compression='uncompressed', chunksize=len(table))"
)


def _check_dtype(options: ReadOptions, kinds: Mapping[str, Any]) -> None:
    """Raise ValueError for a mapped column that would have to be cast."""
    for name, kind in kinds.items():
        if options.dtype is not None and pa.types.is_floating(kind):
            found = number_dtype(kind)
            if found != options.dtype:
                raise ValueError(
                    f"column {name!r} is {found} in the file and dtype={options.dtype} needs a "
                    "copy of it; pass in_memory=True with dtype="
                )
