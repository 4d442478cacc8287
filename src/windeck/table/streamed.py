"""Columns whose values stay in their files: Parquet and Arrow IPC files larger than memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from windeck._util.fingerprints import digest
from windeck._util.parallel import run_in_threads
from windeck._util.progress import Progress, report_progress
from windeck._util.text import format_bytes, plural
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Bools, Int64s, is_floating
from windeck.io import conversion, reading
from windeck.io.blocks import StoredFile, open_parted
from windeck.io.cache import ObjectCache
from windeck.io.folder_columns import FolderColumns, with_folder_columns
from windeck.io.options import ReadOptions, row_range
from windeck.io.reading import Origin
from windeck.io.row_reader import HEAD_BYTES, HEAD_SHARE, ColumnForm, RowReader
from windeck.table.construction import SeriesLayout
from windeck.table.first_pass import scan_series

__all__ = [
    "BLOCKS_IN_GROUP",
    "GROUP_BYTES",
    "StreamedContents",
    "StreamedTimes",
    "block_offsets",
    "blocks_in_group",
    "check_files",
    "count_missing",
    "describe_blocks",
    "describe_coarse",
    "fingerprint",
    "first_rows",
    "open_streamed",
    "row_bits",
]

#: Default bytes of a group, in memory.
GROUP_BYTES = 1 << 28
#: Blocks that a group has at least, if parts of files are small enough.
BLOCKS_IN_GROUP = 32
#: A shuffle among fewer blocks is coarse.
LEAST_BLOCKS = 8
#: Rows that are read at a time to search or count.
ROWS_AT_A_TIME = 1 << 18


@dataclass(frozen=True, eq=False)
class StreamedValues:
    """Values of a column in files; an index reads them. Not an array."""

    reader: RowReader
    name: str
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.reader.rows

    @property
    def nbytes(self) -> int:
        return self.reader.rows * self.dtype.itemsize

    def __getitem__(self, rows: slice | Int64s) -> Array:
        found: Array = self.reader.column(self.name, rows).values
        return found


@dataclass(frozen=True, eq=False)
class StreamedColumn(ColumnData):
    """A column in files, with the interface of one in memory. `validity` has no bits."""

    values: Any

    def __post_init__(self) -> None:
        """Leave the values as they are: they are not an array."""

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def observed(self, rows: slice | Int64s = slice(None)) -> Bools:
        """Return which rows have a value: neither null nor NaN. Reads them."""
        return self.read(rows).observed()

    def read(self, rows: slice | Int64s) -> ColumnData:
        """Return some rows as a column in memory."""
        reader: RowReader = self.values.reader
        return reader.column(self.name, rows)


def first_rows(column: ColumnData, rows: int) -> ColumnData:
    """Return the first rows of a column, in memory or in files, as one in memory."""
    if isinstance(column, StreamedColumn):
        return column.read(slice(0, rows))
    return replace(column, values=column.values[:rows], missing=None)


class StreamedTimes:
    """Timestamps in files; an index reads them."""

    def __init__(self, reader: RowReader, name: str, dtype: np.dtype[Any]) -> None:
        self._reader, self._name, self.dtype = reader, name, dtype

    def __len__(self) -> int:
        return self._reader.rows

    def __getitem__(self, rows: slice | Int64s) -> Array:
        # A copy: users of an array in memory may write to what an index returns.
        found: Array = self._reader.column(self._name, rows).values.view(self.dtype).copy()
        return found

    def view(self, dtype: Any) -> StreamedTimes:
        """Return the same timestamps as another dtype of 64 bits."""
        return StreamedTimes(self._reader, self._name, np.dtype(dtype))

    def astype(self, dtype: Any, *, copy: bool = True) -> StreamedTimes:
        """Return integers as int64, which they are."""
        return self.view(dtype)

    def first_rows(self, low: Int64s, high: Int64s, tick: int) -> Int64s:
        """Return the first row of each range [low[i], high[i]) at or after `tick`, else its end.

        The ranges ascend and lie within one series each. Reads the timestamps of their rows once,
        in bounded memory.
        """
        found: Int64s = low.copy()
        ticks = self.view(np.int64)
        if not len(low):
            return found
        for start in range(int(low.min()), int(high.max()), ROWS_AT_A_TIME):
            stop = min(start + ROWS_AT_A_TIME, int(high.max()))
            here = np.flatnonzero((low < stop) & (high > start) & (low < high))
            if not len(here):
                continue
            before = np.zeros(stop - start + 1, dtype=np.int64)
            np.cumsum(ticks[start:stop] < tick, out=before[1:])
            first = np.maximum(low[here], start) - start
            last = np.minimum(high[here], stop) - start
            found[here] += before[last] - before[first]
        return found


class StreamedContents(NamedTuple):
    """The columns of files that stay in them, and their series.

    Attributes
    ----------
    time, times
        Name of the column of timestamps, and a digest of all timestamps; None without.
    files
        A digest of the metadata of the files.
    ids
        Names of the columns of ids.
    """

    reader: RowReader
    columns: Mapping[str, ColumnData]
    layout: SeriesLayout
    time: str | None
    times: str | None
    time_zone: str | None
    files: str
    origin: Origin
    ids: tuple[str, ...] = ()


def fingerprint(contents: StreamedContents, group_bytes: int) -> dict[str, str | int]:
    """Return names, dtypes, sizes, and digests of offsets, timestamps and metadata of the files."""
    layout = contents.layout
    columns = ", ".join(f"{c.name} {c.dtype}" for c in contents.columns.values())
    names = np.array([str(name) for name in layout.names], dtype=np.str_)
    found: dict[str, str | int] = {
        "rows": layout.num_rows,
        "series": len(layout.names),
        "columns": columns if len(columns) <= 1000 else f"#{digest(columns)}",
        "offsets": digest(layout.offsets),
        "series_names": digest(names),
        "files": contents.files,
        "group_bytes": group_bytes,
    }
    if contents.times is not None:
        found["timestamps"] = contents.times
    return found


def check_files(smaller: RowReader, larger: RowReader) -> None:
    """Raise a ValueError if files of a table are missing among those of a larger one, or differ."""
    by_path = {stored.file.path: stored for stored in larger.files}
    contents = {(stored.size, stored.digest) for stored in larger.files}
    for stored in smaller.files:
        path = stored.file.path
        there = by_path.get(path)
        if there is not None and there[1:] != stored[1:]:
            raise ValueError(
                f"the table cannot grow: {path!r} changed since the smaller table was read; "
                "expected new files beside unchanged ones"
            )
        if there is None and (stored.size, stored.digest) not in contents:
            raise ValueError(
                f"the table cannot grow: the larger one has neither {path!r} nor a file of "
                "its size and metadata; expected new files beside unchanged ones"
            )


def describe_blocks(
    contents: StreamedContents, offsets: Int64s, group_bytes: int, memory_budget: float | None
) -> list[str]:
    """Return lines of text: the blocks at some offsets, their groups, and what may be resident."""
    budget = "" if memory_budget is None else f" of {format_bytes(memory_budget)}"
    rows, blocks = np.diff(offsets), len(offsets) - 1
    lines = [
        f"{blocks:,} blocks, read in groups of {format_bytes(group_bytes)}",
        f"resident: two groups{budget and f', or more within memory_budget{budget}'}",
    ]
    bits = row_bits(contents.reader, tuple(contents.columns))
    if coarse := describe_coarse(blocks_in_group(group_bytes, rows, bits), blocks):
        lines.append(f"with all columns, {coarse}")
    return lines


def row_bits(reader: RowReader, names: Sequence[str]) -> int:
    """Return the bits of the values of some columns in a row, with those of their validity."""
    return max(8 * reader.row_bytes(names) + len(names), 1)


def blocks_in_group(group_bytes: int, rows: Int64s, bits: int) -> int:
    """Return how many blocks of some numbers of rows, of `bits` bits each, are a group."""
    mean = max(int(rows.sum()), 1) * bits // max(len(rows), 1)
    return max(1, min(8 * group_bytes // mean, len(rows)))


def describe_coarse(in_group: int, blocks: int) -> str:
    """Return a text that warns of a shuffle among few blocks; "" if there are enough."""
    if in_group >= min(LEAST_BLOCKS, blocks):
        return ""
    return (
        f"the shuffle is coarse: a group has {in_group} of {plural(blocks, 'block')}, fewer than "
        f"{LEAST_BLOCKS}, so a batch has windows of few parts of the files; pass a larger "
        "group_bytes= and the memory for it, or files with smaller row groups, which `windeck "
        "prepare` writes"
    )


def block_offsets(reader: RowReader, names: Sequence[str], group_bytes: int) -> Int64s:
    """Return the rows at which blocks begin: parts of files, merged or cut towards a target."""
    target = max(group_bytes // BLOCKS_IN_GROUP // max(reader.row_bytes(names), 1), 1)
    borders = reader.part_offsets
    if reader.splits(names):
        cuts = [borders]
        for part in np.flatnonzero(np.diff(borders) > target).tolist():
            begin, end = borders[part : part + 2].tolist()
            count = -(-(end - begin) // target)
            cuts.append(begin + np.arange(1, count) * (end - begin) // count)
        borders = np.unique(np.concatenate(cuts)).astype(np.int64)
    kept, row = [0], 0
    while row < reader.rows:
        # The last border within the target, or else the next one.
        place = int(np.searchsorted(borders, row + target, side="right")) - 1
        if borders[place] <= row:
            place += 1
        row = int(borders[place])
        kept.append(row)
    return np.array(kept, dtype=np.int64)


def count_missing(contents: StreamedContents) -> StreamedContents:
    """Return the contents with the missing values of every column counted.

    Columns that are not counted yet are read once, batch by batch.
    """
    reader = contents.reader
    names = [name for name, column in contents.columns.items() if column.missing is None]
    missing = dict.fromkeys(names, 0)
    for _, arrays in reader.scan(names, 0, reader.rows) if names else ():
        for name, array in zip(names, arrays, strict=True):
            builder = reader.builder(name, len(array))
            builder.append(array)
            missing[name] += builder.missing
    counted = {name: replace(contents.columns[name], missing=missing[name]) for name in names}
    return contents._replace(columns={**contents.columns, **counted})


def open_streamed(
    paths: Sequence[str],
    options: ReadOptions,
    *,
    memory_budget: float | None,
    progress: Progress,
    cache: ObjectCache | None = None,
) -> StreamedContents:
    """Open files whose values stay in them; read ids, time and unnamed categories once.

    What they say of series is kept in `cache`, and for the same files nothing is read but metadata.

    Raises
    ------
    ValueError
        A file is of another format or damaged, schemas differ, or rows are not sorted.
    """
    if options.sort:
        raise ValueError(
            "sort=True moves rows, which a streamed table never does; `windeck prepare SRC DEST` "
            "writes files that are sorted by series and time"
        )
    with report_progress(progress, "opening files", len(paths)) as advance:
        stored: list[StoredFile] = run_in_threads(
            lambda number: open_parted(paths[number]), len(paths), None, advance, portion=1
        )
    files = with_folder_columns(
        [one.file for one in stored], options.named_columns, options.index_columns
    )
    stored = [_with_columns(one, file) for one, file in zip(stored, files, strict=True)]
    where = repr(files[0].path)
    names = options.value_columns(files[0].schema, where)
    wanted = (*names, *options.index_columns)
    kinds = options.typed(reading.common_types(files, wanted, every=options.columns is None))
    total = reading.count_rows(files)
    start, stop = row_range(options, total)
    if start == stop:
        raise ValueError(f"`rows` must have a row of the {total} for a streamed table, got none")
    forms, unknown = _forms(names, kinds, options, where)
    kept = HEAD_BYTES
    if memory_budget is not None:
        kept = min(kept, int(memory_budget) // HEAD_SHARE)
    reader = RowReader(stored, forms, start, stop - start, kept)
    found = scan_series(reader, options.ids, options.time, unknown, progress, cache)
    for name, words in found.categories.items():
        forms[name] = replace(forms[name], names=words)
    columns = {name: _column(reader, name) for name in names}
    origin = reading.origin_of(files, options)
    return StreamedContents(
        reader,
        columns,
        found.layout,
        options.time,
        found.times,
        options.time and conversion.time_zone(kinds[options.time]),
        digest(*((one.file.num_rows, one.digest) for one in stored), start, stop),
        replace(origin, streamed=True),
        options.ids,
    )


def _with_columns(stored: StoredFile, file: Any) -> StoredFile:
    """Return a file with the columns of its folders, which are in its digest."""
    if not isinstance(file, FolderColumns) or not file.constants:
        return stored._replace(file=file)
    values = sorted((name, str(one[0].as_py())) for name, one in file.constants.items())
    return stored._replace(file=file, digest=digest(stored.digest, values))


def _forms(
    names: Sequence[str], kinds: Mapping[str, Any], options: ReadOptions, where: str
) -> tuple[dict[str, ColumnForm], list[str]]:
    """Return the forms of columns, and the string columns whose categories are not known."""
    forms, unknown = {}, []
    dtypes = conversion.value_dtypes({name: kinds[name] for name in names}, options.dtype, where)
    for name, dtype in dtypes.items():
        words = options.category_names(name, kinds[name], where)
        forms[name] = ColumnForm(kinds[name], dtype, words)
        if words is True:
            unknown.append(name)
    for name in options.ids:
        reading.id_builder(name, kinds[name], 0, where)  # checks the type
        forms[name] = ColumnForm(kinds[name], np.dtype(np.int64))
    if options.time is not None:
        dtype = conversion.time_dtype(options.time, kinds[options.time], where)
        forms[options.time] = ColumnForm(kinds[options.time], dtype)
    return forms, unknown


def _column(reader: RowReader, name: str) -> StreamedColumn:
    """Return a column; its missing values are counted as far as the files' metadata does."""
    form = reader.forms[name]
    nulls: int | None = 0
    for stored in reader.files:
        here = stored.file.null_count(name)
        nulls = None if here is None or nulls is None else nulls + here
    whole = reader.rows == sum(stored.file.num_rows for stored in reader.files)
    may_be_null = nulls is None or nulls > 0
    # Of some rows only, the nulls are not known unless there are none. NaN is never counted.
    missing = None if (may_be_null and not whole) or is_floating(form.dtype.name) else nulls
    return StreamedColumn(
        name,
        StreamedValues(reader, name, form.dtype),
        np.zeros(0, dtype=np.uint8) if may_be_null else None,
        0,
        None if form.names is None else tuple(form.names),  # type: ignore[arg-type]
        missing,
        form.dtype.name,
    )
