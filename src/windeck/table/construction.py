"""Construction of tables: columns on arrays and tensors, order of rows, and what pickles hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.text import plural, unknown_column, verb
from windeck._util.warning import warn
from windeck.columns.columns import ColumnData, as_array, from_array
from windeck.columns.dtypes import Array, Int64s, is_floating
from windeck.io import filesystem
from windeck.io.clients import Version
from windeck.io.conversion import ColumnBuilder, is_string, time_dtype, time_zone, value_dtype
from windeck.io.options import Categories, ReadOptions
from windeck.io.reading import LoadedColumns, arrow_column, id_builder
from windeck.table.local_times import clock_changes, in_utc
from windeck.table.series import Grouping, Reordering, check_offsets, group_rows, reorder
from windeck.table.timestamps import OrderReport, sort_by_time

#: Share of rows of one series that may have the time stamp of the row before.
_MANY_DUPLICATES = 0.1


def columns_of(matrix: Array, columns: Sequence[ColumnData]) -> list[ColumnData]:
    """Return the columns with the columns of a matrix as values."""
    return [replace(column, values=matrix[:, i]) for i, column in enumerate(columns)]


def from_arrays(columns: Mapping[str, Any], options: ReadOptions) -> LoadedColumns:
    """Return columns on arrays and tensors, without a copy."""
    if not columns:
        raise ValueError("`columns` must have at least one column, got an empty mapping")
    for name in options.index_columns:
        if name not in columns:
            raise unknown_column(name, columns, "the mapping")
    names = [name for name in columns if name not in options.index_columns]
    if not names:
        raise ValueError(
            "the mapping has no value column beside ids and time; expected at least one"
        )
    given = {name: _plain(name, data) for name, data in columns.items()}
    values = [_value_column(name, given[name]) for name in names]
    ids = [_id_column(name, given[name]) for name in options.ids]
    time = None if options.time is None else time_column(options.time, given[options.time])
    if options.time is not None and isinstance(stamps := given[options.time], pa.ChunkedArray):
        options.check_zone(stamps.type, "the mapping")
    rows = len(values[0].values)
    for column in (*values, *ids, *(() if time is None else (time,))):
        if len(column.values) != rows:
            raise ValueError(
                f"column {column.name!r} has {plural(len(column.values), 'row')} and "
                f"{names[0]!r} has {rows}; expected one length"
            )
    return LoadedColumns(values, ids, time, None, None, owned=False)


def _plain(name: str, data: Any) -> Any:
    """Return a list or a Series as an array, or as Arrow data where rows may be missing."""
    if isinstance(data, (list, tuple, range)):
        try:
            array = pa.array(data)
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise TypeError(f"column {name!r} is a list of several types: {error}") from error
        if pa.types.is_timestamp(array.type):
            _check_zones(name, data)
        return pa.chunked_array([array])
    if hasattr(data, "to_numpy") and isinstance(getattr(data, "dtype", None), np.dtype):
        return data.to_numpy()  # pandas on NumPy, without a copy
    if hasattr(data, "__arrow_c_array__") or hasattr(data, "__arrow_c_stream__"):
        return pa.chunked_array(data if hasattr(data, "__arrow_c_stream__") else [pa.array(data)])
    if hasattr(data, "__arrow_array__"):
        return pa.chunked_array([pa.array(data)])
    return data


def _check_zones(name: str, times: Sequence[Any]) -> None:
    """Check that a list has no times with and without a time zone, which Arrow takes for UTC."""
    found = {one.tzinfo is not None: one for one in times if isinstance(one, datetime)}
    if len(found) > 1:
        raise ValueError(
            f"column {name!r} has times with a time zone, such as {found[True]}, and without one, "
            f"such as {found[False]}; expected all with one or all without"
        )


def _value_column(name: str, data: Any) -> ColumnData:
    if not isinstance(data, pa.ChunkedArray):
        return from_array(name, data)
    where = "the mapping"
    if is_string(data.type):
        raise TypeError(
            f"column {name!r} of {where} has strings; expected numbers, or their codes as of "
            "pyarrow.array(values).dictionary_encode()"
        )
    dtype = value_dtype(name, data.type, None, where)
    names = ReadOptions().category_names(name, data.type, where)
    return arrow_column(data, ColumnBuilder(name, len(data), dtype, names=names), view=True)


def from_matrix(
    matrix: Array, dtype: str, names: Sequence[str], timestamps: Array | None
) -> LoadedColumns:
    """Return columns on a matrix, without a copy."""
    missing = None if is_floating(dtype) else 0
    columns = [
        ColumnData(name, matrix[:, place], missing=missing, dtype=dtype)
        for place, name in enumerate(names)
    ]
    time = None if timestamps is None else time_column("timestamps", timestamps)
    if time is not None and len(time.values) != len(matrix):
        raise ValueError(
            f"timestamps has {plural(len(time.values), 'row')} and the matrix has "
            f"{len(matrix)}; expected one length"
        )
    by_rows = matrix.strides[1] == matrix.itemsize or matrix.shape[1] == 1
    return LoadedColumns(columns, [], time, matrix if by_rows else None, None, owned=False)


def time_column(name: str, data: Any) -> ColumnData:
    """Return a column of timestamps: datetime64 without a copy, integers as int64."""
    if isinstance(data, pa.ChunkedArray):
        dtype = time_dtype(name, data.type, "the mapping")
        builder = ColumnBuilder(name, len(data), dtype, zone=time_zone(data.type))
        return arrow_column(data, builder, view=True)
    if isinstance(data, np.ndarray) and data.dtype.kind == "M" and data.dtype.isnative:
        array = data
    else:
        array, _ = as_array(f"timestamp column {name!r}", data)
        if array.dtype.kind not in "iu" or array.dtype == np.uint64:
            raise TypeError(
                f"timestamp column {name!r} has dtype {array.dtype}; expected datetime64 or "
                "integers"
            )
        array = array.astype(np.int64, copy=False)
    if array.ndim != 1:
        raise ValueError(
            f"timestamp column {name!r} has shape {array.shape}; expected one dimension"
        )
    return ColumnData(name, array, missing=0)


def _id_column(name: str, data: Any) -> ColumnData:
    """Return a column of ids: integers without a copy, strings as codes."""
    if isinstance(data, pa.ChunkedArray):
        return arrow_column(data, id_builder(name, data.type, len(data)), view=False)
    if isinstance(data, np.ndarray) and data.dtype.kind in "UO" and data.ndim == 1:
        try:
            array = pa.array(data)
        except pa.ArrowException:
            array = None
        if array is None or not is_string(array.type):
            raise TypeError(f"id column {name!r} has objects; expected strings or integers")
        builder = id_builder(name, array.type, len(array))
        builder.append(array)
        return builder.finish()
    column = from_array(name, data)
    if column.values.dtype.kind not in "iu" or is_floating(column.dtype):
        raise TypeError(
            f"id column {name!r} has dtype {column.dtype}; expected strings or integers"
        )
    return column


class SeriesLayout(NamedTuple):
    """Offsets and names of the series, and a report on the order of their rows."""

    offsets: Int64s
    names: tuple[Any, ...]
    report: OrderReport

    @property
    def num_rows(self) -> int:
        """Number of rows of all series."""
        return int(self.offsets[-1])


def arrange_series(
    loaded: LoadedColumns,
    options: ReadOptions,
    offsets: Any = None,
    series_names: Sequence[Any] | None = None,
) -> tuple[LoadedColumns, SeriesLayout]:
    """Find the series, group their rows and sort them by time. Only rows out of order move."""
    rows = len(loaded.columns[0].values)
    found = _grouping(loaded, rows, options.sort, offsets, series_names)
    reorderings = list(found.reorderings)
    regrouped = bool(reorderings)
    if loaded.time is None:
        report = OrderReport.without_time(len(found.names), regrouped=regrouped)
        loaded = _reorder_columns(loaded, reorderings, None)
        return loaded, SeriesLayout(found.offsets, found.names, report)
    time = reorder(loaded.time, reorderings, owned=loaded.owned)
    owned = loaded.owned or regrouped
    if options.zone is not None:
        time, owned = in_utc(time, found.offsets, options.zone, found.names), True
    time, more, report = sort_by_time(time, found.offsets, owned=owned, regrouped=regrouped)
    loaded = _reorder_columns(loaded, reorderings + more, time)
    return loaded, SeriesLayout(found.offsets, found.names, report)


def _grouping(
    loaded: LoadedColumns, rows: int, sort: bool, offsets: Any, names: Sequence[Any] | None
) -> Grouping:
    if loaded.ids and (offsets is not None or names is not None):
        raise ValueError("`offsets` and `series_names` must be None with `id_columns`")
    if loaded.ids:
        return group_rows(loaded.ids, rows, sort=sort)
    ends = np.array([0, rows] if rows else [0], dtype=np.int64)
    ends = ends if offsets is None else check_offsets(offsets, rows)
    series = len(ends) - 1
    if names is not None and len(names) != series:
        raise ValueError(
            f"`series_names` must have {plural(series, 'name')}, one for each series, got "
            f"{len(names)}"
        )
    for name, count in Counter(() if names is None else names).most_common(1):
        if count > 1:  # scalers and subsets find series by their names
            raise ValueError(f"`series_names` has {name!r} {count} times, expected different names")
    return Grouping(ends, tuple(range(series) if names is None else names), [])


def _reorder_columns(
    loaded: LoadedColumns, reorderings: list[Reordering], time: ColumnData | None
) -> LoadedColumns:
    """Reorder all columns, in place if the memory is owned. A matrix stays one matrix."""
    if not reorderings:
        return loaded._replace(time=time)
    if loaded.origin is not None and loaded.origin.mapped:
        raise ValueError(
            "rows of a mapped file are never moved, and series are not contiguous or not sorted by "
            "time; expected a sorted file, or in_memory=True"
        )
    if loaded.matrix is not None and not loaded.owned:
        matrix = loaded.matrix.copy()
        loaded = loaded._replace(
            columns=columns_of(matrix, loaded.columns), matrix=matrix, owned=True
        )
    columns = [reorder(column, reorderings, owned=loaded.owned) for column in loaded.columns]
    return loaded._replace(columns=columns, time=time)


def warn_of_repeated_times(loaded: LoadedColumns, layout: SeriesLayout) -> None:
    """Warn about rows with the time stamp of another one, where the likely reason is known.

    That is a change of clocks, or series that are not told apart: one series without ids in which
    many rows share a time stamp after sorting.
    """
    report = layout.report
    shared = int(report.duplicates_sorted.sum())
    if not shared or loaded.time is None:
        return
    changes = clock_changes(loaded.time.values, layout.offsets)
    if len(changes):
        warn(
            f"{plural(shared, 'row')} {verb(shared, 'have')} the time stamp of another row of "
            f"{'its' if shared == 1 else 'their'} series, as local times repeat when clocks are "
            f"set back, the first of them {changes[0]}: pass time_zone= with the zone of these "
            "times, such as time_zone='Europe/Berlin', to read them in UTC",
        )
        return
    rows, single = len(loaded.time.values), not loaded.ids and len(layout.names) == 1
    if single and report.sorted_series and shared > rows * _MANY_DUPLICATES:
        columns = loaded.columns
        named = next((column.name for column in columns if column.categories is not None), "site")
        warn(
            f"{shared:,} of {rows:,} rows have the time stamp of another row of the one series of "
            "this table, and were sorted by time: if they belong to several series, name the "
            f"columns of ids, such as id_columns={named!r}",
        )


class Reopening(NamedTuple):
    """The arguments of `Table.read` that map a file again, and its version when it was mapped."""

    arguments: Mapping[str, Any]
    version: Version


def describe_reopening(
    paths: Sequence[str], options: ReadOptions, categories: Categories
) -> Reopening:
    """Return how to map a file again, from any directory; to be called before it is mapped."""
    arguments = {
        "path": [filesystem.absolute(path) for path in paths],
        "columns": options.columns,
        "id_columns": options.ids,
        "timestamp_column": options.time,
        "categories": categories,
        "rows": options.rows,
        "in_memory": False,
    }
    return Reopening(arguments, _version(paths[0]))


def check_unchanged(path: str, version: Version) -> None:
    """Raise a ValueError if a mapped file has another version than when a table was read."""
    if (found := _version(path)) != version:
        raise ValueError(
            f"{path!r} changed since the table was read: it has {found}, expected {version}; read "
            "the table again"
        )


def _version(path: str) -> Version:
    with filesystem.RangeReader(path) as now:
        return Version(now.size, now.modified, now.tag)


def without_views(loaded: LoadedColumns) -> LoadedColumns:
    """Return what a pickle holds of columns: those of a matrix have no values of their own."""
    if loaded.matrix is None:
        return loaded
    columns = [replace(column, values=column.values[:0]) for column in loaded.columns]
    return loaded._replace(columns=columns)


def with_views(loaded: LoadedColumns) -> LoadedColumns:
    """Return the columns that a pickle holds, on the columns of their matrix if they have one."""
    if loaded.matrix is None:
        return loaded
    return loaded._replace(columns=columns_of(loaded.matrix, loaded.columns))
