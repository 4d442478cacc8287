"""Columns as they were read or given, before their rows are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.text import format_bytes
from windeck.columns.columns import ColumnData, aligned_empty
from windeck.columns.dtypes import Array
from windeck.io import conversion
from windeck.io.arrow import IpcFile
from windeck.io.conversion import ColumnBuilder, number_dtype
from windeck.io.csv import promoted
from windeck.io.formats import BATCH_ROWS, DataFile, open_file, places
from windeck.io.request import Request, row_range


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for `explain`."""

    files: int
    kinds: tuple[str, ...]
    columns: int
    nbytes: int
    mapped: bool = False


class Loaded(NamedTuple):
    """Columns as read, before their rows are looked at."""

    columns: list[ColumnData]
    ids: list[ColumnData]
    time: ColumnData | None
    matrix: Array | None
    origin: Origin | None
    owned: bool


_CACHED_BYTES = 1 << 20


def sizes(files: Sequence[DataFile], names: Iterable[str], request: Request) -> int:
    """Bytes these columns take in memory, told from metadata (or, for CSV, from a sample)."""
    rows = [file.num_rows for file in files]
    start, stop = request.rows or (0, None)
    total = sum(rows)
    taken = max(0, min(total, total if stop is None else stop) - start)
    return sum(_size(files, name, request, taken, taken / max(total, 1)) for name in names)


def _size(files: Sequence[DataFile], name: str, request: Request, rows: int, share: float) -> int:
    kind = conversion.plain(files[0].schema.field(name).type)
    if conversion.is_string(kind):
        known = request.all_categories or name in request.categories or name in request.ids
        coded = known or pa.types.is_dictionary(files[0].schema.field(name).type)
        return rows * 4 if coded else int(sum(f.text_bytes(name) for f in files) * share)
    if name == request.time:
        return rows * 8
    try:
        return rows * conversion.value_dtype(name, kind, request.dtype, "").itemsize
    except TypeError:
        fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
        if fixed:
            return int(rows * kind.bit_width // 8)
        return int(sum(file.text_bytes(name) for file in files) * share)


def read(
    paths: Sequence[str], request: Request, interleaved: bool, memory_budget: float | None
) -> Loaded:
    """Read files into columns, one copy in memory at most (the table itself)."""
    files = [open_file(path) for path in paths]
    names = request.values(files[0].schema, repr(files[0].path))
    origin = origin_of(files, request)
    wanted = (*names, *request.index)
    needed = sizes(files, wanted, request) + max(file.beside for file in files)
    check_budget(needed, memory_budget, len(names), origin)
    files = [file.prepared(wanted) for file in files]
    total = sum(file.num_rows for file in files)
    if not total:
        raise ValueError(f"{', '.join(repr(file.path) for file in files[:3])} holds no rows")
    kinds = agreed(files, wanted, every=request.columns is None)
    start, stop = row_range(request, total)
    where = repr(files[0].path)
    builders, matrix = _builders(names, kinds, request, stop - start, interleaved, where)
    _fill(files, kinds, builders, start, stop)
    return Loaded(
        [builders[name].finish() for name in names],
        [builders[name].finish() for name in request.ids],
        None if request.time is None else builders[request.time].finish(),
        matrix,
        origin,
        owned=True,
    )


def origin_of(files: Sequence[DataFile], request: Request) -> Origin:
    """What the files hold in all, read or not; ids and time are not counted."""
    counted = Counter(files[0].schema.names)
    others = [name for name in counted if counted[name] == 1 and name not in request.index]
    nbytes = sizes(files, others, request)
    return Origin(len(files), tuple(sorted({file.kind for file in files})), len(others), nbytes)


def check_budget(needed: int, budget: float | None, columns: int, origin: Origin) -> None:
    """Refuse to read what would not fit, before it is read."""
    if budget is not None and needed > budget:
        raise MemoryError(
            f"reading {columns} of {origin.columns} columns takes about {format_bytes(needed)}, "
            f"more than memory_budget={format_bytes(budget)}; name fewer columns=, a range of "
            "rows=, or a narrower dtype="
        )


def agreed(files: Sequence[DataFile], names: Sequence[str], *, every: bool) -> dict[str, Any]:
    """The Arrow type of each column, the same in every file; its encoding may differ."""
    first = files[0]
    kinds = {}
    for file in files:
        _same_names(first, file, names, every=every)
    for name in names:
        found = [file.schema.field(name).type for file in files]
        known = [kind for kind in found if not pa.types.is_null(kind)] or found
        wide = promoted(files, name)
        for file, kind in zip(files, found, strict=True):
            same = conversion.plain(kind) == conversion.plain(known[0])
            if not (same or wide or pa.types.is_null(kind)):
                raise ValueError(
                    f"column {name!r} is {known[0]} in {files[found.index(known[0])].path!r} but "
                    f"{kind} in {file.path!r}; expected one type in all files"
                )
        kinds[name] = wide or next(filter(pa.types.is_dictionary, known), known[0])
    return kinds


def _same_names(first: DataFile, file: DataFile, names: Sequence[str], *, every: bool) -> None:
    here, there = file.schema.names, first.schema.names
    for name in sorted(set(names) - set(here), key=names.index):
        raise ValueError(
            f"{file.path!r} has no column {name!r}, which {first.path!r} has; expected the same "
            "columns in all files"
        )
    for name in sorted(set(here) - set(there), key=here.index) if every else ():
        raise ValueError(
            f"{file.path!r} has a column {name!r}, which {first.path!r} has not; expected the "
            "same columns in all files, or the ones to read in columns="
        )
    places(file.schema, names, file.path)


def _builders(
    names: Sequence[str],
    kinds: Mapping[str, Any],
    request: Request,
    rows: int,
    interleaved: bool,
    where: str,
) -> tuple[dict[str, ColumnBuilder], Array | None]:
    """Memory for every column; for interleaved ones, one matrix they are the columns of."""
    dtypes = [conversion.value_dtype(n, kinds[n], request.dtype, where) for n in names]
    named = [request.names_of(n, kinds[n], where) for n in names]
    matrix = None
    if interleaved:
        matrix = aligned_empty((rows, len(names)), one_dtype(names, dtypes))
    builders = {
        name: ColumnBuilder(name, rows, dtype, names=words, out=place)
        for name, dtype, words, place in zip(
            names, dtypes, named, [None] * len(names) if matrix is None else matrix.T, strict=True
        )
    }
    for name in request.ids:
        builders[name] = id_builder(name, kinds[name], rows, where)
    if request.time is not None:
        dtype = conversion.time_dtype(request.time, kinds[request.time], where)
        builders[request.time] = ColumnBuilder(request.time, rows, dtype)
    return builders, matrix


def id_builder(name: str, kind: Any, rows: int, where: str = "the data") -> ColumnBuilder:
    """Memory for an id column: codes of strings, or the integers themselves."""
    if conversion.is_category(kind):
        return ColumnBuilder(name, rows, np.dtype(np.int32), names=True)
    if not pa.types.is_integer(conversion.plain(kind)):
        raise TypeError(f"id column {name!r} of {where} is {kind}; expected strings or integers")
    return ColumnBuilder(name, rows, conversion.number_dtype(conversion.plain(kind)))


def one_dtype(names: Sequence[str], dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """The dtype all columns of an interleaved table share."""
    for name, dtype in zip(names, dtypes, strict=True):
        if dtype != dtypes[0]:
            raise TypeError(
                f"storage='rows' needs columns of one dtype, but {names[0]!r} is {dtypes[0]} and "
                f"{name!r} is {dtype}; name columns of one dtype, or pass dtype= for floating ones"
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
    row = 0
    for file in files:
        first, last = max(start - row, 0), min(stop - row, file.num_rows)
        row += file.num_rows
        if first < last:
            _fill_from(file, kinds, builders, first, last)


def _fill_from(
    file: DataFile,
    kinds: Mapping[str, Any],
    builders: Mapping[str, ColumnBuilder],
    start: int,
    stop: int,
) -> None:
    portion = _portion([builders[name].values for name in builders])
    for group in file.groups(list(builders)):
        done = 0
        for batch in file.batches(group, start, stop):
            done += batch.num_rows
            for piece in _pieces(batch, portion):
                for name, array in zip(group, piece.columns, strict=True):
                    builders[name].append(_as_agreed(array, name, kinds[name], file))
        if done != stop - start:
            raise ValueError(
                f"{file.path!r} ends {stop - start - done} rows before it says it does"
            )


def arrow_table(data: Any) -> Any:
    """Anything that speaks the Arrow PyCapsule protocol as a pyarrow table, not copied."""
    if not (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")):
        raise TypeError(
            f"a {type(data).__name__} does not speak the Arrow PyCapsule protocol; expected a "
            "table of pyarrow, polars, pandas or the like"
        )
    try:
        return pa.table(data)
    except (pa.ArrowException, TypeError) as error:
        raise TypeError(
            f"a {type(data).__name__} holds no table, columns with names; {error}"
        ) from error


def from_table(
    table: Any, request: Request, *, interleaved: bool, origin: Origin | None = None
) -> Loaded:
    """Columns of an Arrow table: without a copy where each is one piece, else in one copy."""
    where = "the data"
    names = request.values(table.schema, where)
    places(table.schema, (*names, *request.index), where)
    kinds = {name: table.schema.field(name).type for name in (*names, *request.index)}
    start, stop = row_range(request, table.num_rows)
    table = table.slice(start, stop - start)
    builders, matrix = _builders(names, kinds, request, stop - start, interleaved, where)

    def column(name: str, *, view: bool) -> ColumnData:
        chunked = table.column(name)
        chunked.validate()
        if view and chunked.num_chunks == 1:
            found = conversion.view(name, chunked.chunk(0), builders[name])
            if found is not None:
                return found
        for chunk in chunked.chunks:
            builders[name].append(chunk)
        return builders[name].finish()

    return Loaded(
        [column(name, view=not interleaved) for name in names],
        [column(name, view=False) for name in request.ids],
        None if request.time is None else column(request.time, view=not interleaved),
        matrix,
        origin,
        owned=interleaved,
    )


def _portion(outs: Sequence[Array]) -> int:
    """Rows to fill at a time: of an interleaved matrix, as many as fit a core's own cache."""
    row_bytes = max(out.strides[0] for out in outs)
    interleaved = row_bytes > max(out.itemsize for out in outs)
    return max(_CACHED_BYTES // row_bytes, 64) if interleaved else BATCH_ROWS


def _pieces(batch: Any, rows: int) -> Iterator[Any]:
    if batch.num_rows <= rows:
        yield batch
    else:
        yield from (batch.slice(row, rows) for row in range(0, batch.num_rows, rows))


def _as_agreed(array: Any, name: str, kind: Any, file: DataFile) -> Any:
    """The array in the type all files agreed on: whole numbers of one CSV file as floats."""
    same = conversion.plain(array.type) == conversion.plain(kind)
    if same or pa.types.is_null(array.type):
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise ValueError(
            f"column {name!r} is {array.type} in {file.path!r} and {kind} in other files, and "
            f"cannot be read as such: {error}"
        ) from error


def read_mapped(paths: Sequence[str], request: Request) -> Loaded:
    """Map one uncompressed Arrow IPC file of one record batch; its values are never copied."""
    if len(paths) != 1:
        raise ValueError(f"in_memory=False maps one file, but {len(paths)} were given")
    file = open_file(paths[0])
    if not isinstance(file, IpcFile):
        raise ValueError(
            f"in_memory=False maps uncompressed Arrow IPC only, and {file.path!r} is {file.kind}; "
            f"{_HOW_TO_WRITE}"
        )
    names = request.values(file.schema, repr(file.path))
    if file.compressed:
        raise ValueError(f"{file.path!r} is compressed and cannot be mapped; {_HOW_TO_WRITE}")
    batches = file.mapped((*names, *request.index))
    if len(batches) > 1:
        raise ValueError(
            f"{file.path!r} holds {len(batches)} record batches and a mapped table needs one; "
            f"{_HOW_TO_WRITE}"
        )
    table = pa.Table.from_batches(batches, only_schema(file, (*names, *request.index)))
    _check_dtype(request, {name: table.schema.field(name).type for name in names})
    origin = origin_of([file], request)
    mapped = Origin(1, (file.kind,), origin.columns, origin.nbytes, mapped=True)
    return from_table(table, request, interleaved=False, origin=mapped)


_HOW_TO_WRITE = (
    "write it with pyarrow.feather.write_feather(table.combine_chunks(), path, "
    "compression='uncompressed', chunksize=len(table))"
)


def only_schema(file: DataFile, names: Sequence[str]) -> Any:
    """The file's schema, limited to these columns."""
    return pa.schema([file.schema.field(name) for name in names])


def _check_dtype(request: Request, kinds: Mapping[str, Any]) -> None:
    """A mapped column cannot be cast."""
    for name, kind in kinds.items():
        if request.dtype is not None and pa.types.is_floating(kind):
            found = number_dtype(kind)
            if found != request.dtype:
                raise ValueError(
                    f"column {name!r} is {found} in the file and dtype={request.dtype} needs a "
                    "copy of it; expected in_memory=True with dtype="
                )
