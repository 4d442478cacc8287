"""Tables of data with one item a series: arrays, mappings, frames, and list columns."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windeck._util.text import plural
from windeck.columns.columns import as_array
from windeck.columns.dtypes import Array, Int64s, is_bits
from windeck.columns.times import arrow_times, cast_times, common_times
from windeck.io import reading
from windeck.io.conversion import decode_numbers, is_string, time_dtype, time_zone, without_views
from windeck.io.data_files import resolve
from windeck.io.options import ReadOptions, row_range
from windeck.io.reading import LoadedColumns
from windeck.table.frequency import regular_timestamps

#: Names of the columns of series without names of their own.
TARGET, TIME = "target", "time"
#: Integers up to it are exact in float64.
EXACT = 1 << 53


class Ragged(NamedTuple):
    """Columns of all series end to end, the bounds of each series, and names if there are any."""

    loaded: LoadedColumns
    offsets: Int64s
    names: tuple[Any, ...] | None


def in_files(data: Any) -> bool:
    """Return True for a path, or a list of paths."""
    if isinstance(data, (list, tuple)) and data:
        return all(isinstance(item, (str, os.PathLike)) for item in data)
    return isinstance(data, (str, os.PathLike))


def files_of(data: Any, located: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the files of a path or a list of paths, None for data in memory.

    Parameters
    ----------
    located
        Options of `resolve`, None for those that are not given.
    """
    if in_files(data):
        return resolve(data, **located)
    for name, value in located.items():
        if value is not None:
            raise ValueError(f"`{name}` is an option of files, got data in memory")
    return None


def from_any(
    series: Any,
    options: ReadOptions,
    start: Any,
    freq: Any,
    names: Sequence[Any] | None,
    budget: float | None,
    located: Mapping[str, Any],
) -> tuple[Ragged, Sequence[Any] | None]:
    """Return the columns of files, Arrow data or Python series, and the names of the series."""
    files = files_of(series, located)
    frame = any(hasattr(series, name) for name in ("collect_schema", "column_names", "columns"))
    if frame or files is not None:
        if start is not None:
            raise ValueError("`start` must be None for columns; name theirs as timestamp_column=")
        if files is not None:
            where = ", ".join(map(repr, files[:3]))
            table = reading.read_arrow(files, options, budget)
        else:
            where, table = "the data", reading.as_arrow_table(series, options)
    else:
        if isinstance(series, Mapping):
            if names is not None:
                raise ValueError("`series_names` must be None for a mapping, whose keys they are")
            names, series = list(series), series.values()
        where = "the data"
        table, time = as_lists(list(series), options.columns or (), options.time, start)
        options = replace(options, time=time)
    found = from_lists(table, options, freq, where)
    if found.names is not None and names is not None:
        raise ValueError("`series_names` must be None with `id_columns`")
    if names is not None and options.rows is not None:
        if len(names) != table.num_rows:
            raise ValueError(
                f"`series_names` has {plural(len(names), 'name')} for {table.num_rows} "
                "series; expected one for each, also for those outside rows="
            )
        names = list(names)[slice(*row_range(options, table.num_rows))]
    return found, found.names if names is None else names


# --- list columns of Arrow ---------------------------------------------------------------------


def from_lists(table: Any, options: ReadOptions, freq: Any, where: str = "the data") -> Ragged:
    """Return the columns of an Arrow table with one row a series.

    List columns of one length in each row are its values; a list of lists is a column for each
    inner list, as "name_0"; numbers and categories hold for all rows of their series.
    """
    options = replace(options, columns=options.value_columns(table.schema, where))
    start, stop = row_range(options, table.num_rows)
    table = table.slice(start, stop - start)
    names = options.columns or ()
    lists = {n: _combined(table, n) for n in names if _is_list(table.schema.field(n).type)}
    if not lists:
        raise TypeError(
            f"{where} has no list column among {', '.join(map(repr, names[:8]))}; expected one row "
            "a series with its values in lists; Table.read and Table.from_arrow take one row a "
            "time step"
        )
    lengths = _common_lengths(lists)
    if not lengths.any():
        raise ValueError(f"{where} has no value in any list; expected at least one")
    columns: dict[str, Any] = {}
    for name in names:
        if name in lists:
            columns.update(_values(name, lists[name]))
        else:
            rows = np.repeat(np.arange(table.num_rows), lengths)
            columns[name] = _combined(table, name).take(pa.array(rows))
    ids = [table.column(name) for name in options.ids]
    if options.time is not None:
        columns[options.time] = _times(table, options.time, freq, lengths)
    elif freq is not None:
        raise ValueError("`freq` must be None without timestamp_column=, the start of each series")
    values = tuple(name for name in columns if name != options.time)
    flat = replace(options, columns=values, ids=(), rows=None)
    return Ragged(
        reading.from_arrow_table(pa.table(columns), flat, interleaved=False),
        _offsets(lengths),
        _id_names(options.ids, ids) if ids else None,
    )


def _is_list(kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _combined(table: Any, name: str) -> Any:
    """Return a column as one array, without a copy if it is one chunk."""
    column = table.column(name)
    column.validate(full=True)
    column = without_views(column)
    if is_string(column.type):
        column = column.cast(pa.large_string())
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _lengths(array: Any) -> Int64s:
    return np.asarray(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64)


def _common_lengths(lists: Mapping[str, Any]) -> Int64s:
    """Return the rows of each series; ValueError for lists of different lengths."""
    first, known = "", None
    for name, array in lists.items():
        inner = _is_list(array.type.value_type)
        found = _inner_lengths(name, array)[1] if inner else _lengths(array)
        if known is None:
            first, known = name, found
        elif not np.array_equal(found, known):
            row = int(np.argmax(found != known))
            raise ValueError(
                f"column {name!r} has {plural(found[row], 'value')} in series {row}, and "
                f"{first!r} has {known[row]}; expected one length in each row; "
                "leave it out of columns="
            )
    assert known is not None
    return known


def _inner_lengths(name: str, array: Any) -> tuple[int, Int64s]:
    """Return the number of inner lists in every row, and their common length in each row."""
    outer = _lengths(array)
    if len(outer) and (outer != outer[0]).any():
        row = int(np.argmax(outer != outer[0]))
        raise ValueError(
            f"column {name!r} has {outer[row]} lists in series {row} and {outer[0]} in series 0; "
            "expected one number of lists in all rows"
        )
    count = int(outer[0]) if len(outer) else 0
    if not count:
        raise ValueError(f"column {name!r} has no lists in its rows; leave it out of columns=")
    inner = _lengths(array.flatten()).reshape(-1, count)
    if (inner != inner[:, :1]).any():
        row = int(np.argmax((inner != inner[:, :1]).any(axis=1)))
        raise ValueError(
            f"column {name!r} has lists of {inner[row].tolist()} values in series {row}; expected "
            "one length in each row"
        )
    return count, inner[:, 0].copy()


def _values(name: str, array: Any) -> dict[str, Any]:
    """Return the values of a list column end to end; a column for each of several inner lists."""
    if not _is_list(array.type.value_type):
        return {name: decode_numbers(array.flatten())}
    count, lengths = _inner_lengths(name, array)
    inner = array.flatten()
    if count == 1:
        return {name: inner.flatten()}
    first = np.arange(len(lengths)) * count
    parts = [inner.take(pa.array(first + place)).flatten() for place in range(count)]
    return {f"{name}_{place}": part for place, part in enumerate(parts)}


def _times(table: Any, name: str, freq: Any, lengths: Int64s) -> Any:
    """Return the timestamps of all rows, of a list column or from a start and `freq`."""
    column = _combined(table, name)
    if _is_list(column.type):
        if freq is not None:
            raise ValueError(
                f"`freq` must be None: column {name!r} has a list of timestamps for each series"
            )
        found = _lengths(column)
        if not np.array_equal(found, lengths):
            row = int(np.argmax(found != lengths))
            raise ValueError(
                f"timestamp column {name!r} has {plural(found[row], 'value')} in series {row}, "
                f"which has {plural(lengths[row], 'row')}; expected one for each row"
            )
        return column.flatten()
    if freq is None:
        stored = (table.schema.metadata or {}).get(b"freq")
        if stored is None:
            raise ValueError(
                f"timestamp column {name!r} has one timestamp for each series; pass freq=, such as "
                "freq='h', to count from it"
            )
        freq = stored.decode(errors="replace")
    if column.null_count:
        row = int(np.argmax(np.asarray(column.is_null())))
        raise ValueError(f"timestamp column {name!r} is missing in row {row}; expected a start")
    if is_string(column.type):
        starts = common_times(column.to_pylist(), f"timestamp column {name!r}")
    else:
        dtype = time_dtype(name, column.type, "the data")
        starts = np.asarray(column.cast(pa.int64()) if dtype.kind == "i" else column)
    found = pa.array(regular_timestamps(starts, freq, _offsets(lengths)))
    zone = time_zone(column.type)
    return found if zone is None else found.cast(pa.timestamp(found.type.unit, zone))


def _offsets(lengths: Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _id_names(ids: Sequence[str], columns: Sequence[Any]) -> tuple[Any, ...]:
    """Return the id of each series, a tuple of ids for several columns."""
    for name, column in zip(ids, columns, strict=True):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (is_string(kind) or pa.types.is_integer(kind)):
            raise TypeError(f"id column {name!r} is {kind}; expected strings or integers")
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise ValueError(
                f"id column {name!r} is null in row {row}; expected an id in every row"
            )
    parts = [column.to_pylist() for column in columns]
    return unique_names(tuple(parts[0]) if len(parts) == 1 else tuple(zip(*parts, strict=True)))


def unique_names(names: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return names of series; ValueError if two are equal."""
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise ValueError(
            f"two rows are the series {twice!r}; expected one row a series, each with its own id"
        )
    return names


# --- series of Python --------------------------------------------------------------------------


def as_lists(
    series: Sequence[Any], columns: Sequence[str], time: str | None, start: Any
) -> tuple[Any, str | None]:
    """Return series as an Arrow table with one row each, and the name of its column of time.

    A series is a mapping of names to values and lists, an array of shape (time,) or (time,
    columns), or a Series, of which an index of timestamps is the time.
    """
    if not series:
        raise ValueError("there are no series; expected at least one")
    if isinstance(series[0], Mapping):
        if start is not None:
            raise ValueError("`start` must be None for mappings; name theirs as timestamp_column=")
        return pa.table(_columns_of_mappings(series, time)), time
    if time is not None:
        raise ValueError(
            f"`timestamp_column` must be None, got {time!r}: arrays have no columns; pass start= "
            "and freq="
        )
    if hasattr(series[0], "columns"):
        raise TypeError(
            f"series 0 is a {type(series[0]).__name__}; expected an array, a Series or a mapping "
            "of names to lists; Table.from_arrow takes frames in one, with a column of ids"
        )
    arrays = [_array(f"series {place}", one) for place, one in enumerate(series)]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1 or len(arrays[0].shape) > 2:
        raise ValueError(
            f"the series have shapes such as {arrays[0].shape} and {arrays[-1].shape}; expected "
            "(time,) each, or (time, columns) with one number of columns"
        )
    width = shapes.pop()
    names = columns or ((TARGET,) if not width else ())
    if len(names) != (width[0] if width else 1):
        raise ValueError(
            f"the series have {plural(width[0] if width else 1, 'column')}, and `columns` has "
            f"{plural(len(names), 'name')}; expected a name for each"
        )
    parts = [[array] for array in arrays] if not width else [list(array.T) for array in arrays]
    found = {name: _list_array(name, [p[i] for p in parts]) for i, name in enumerate(names)}
    stamps = _index_of(series) if start is None else first_timestamps(start, len(series))
    if stamps is not None:
        found[TIME] = stamps
    return pa.table(found), None if stamps is None else TIME


def _columns_of_mappings(series: Sequence[Mapping[str, Any]], time: str | None) -> dict[str, Any]:
    names = list(series[0])
    for place, one in enumerate(series):
        missing = [name for name in names if name not in one] or [n for n in one if n not in names]
        if missing:
            raise ValueError(
                f"{missing[0]!r} is in one of series 0 and series {place} alone; expected one set "
                "of names"
            )
    found: dict[str, Any] = {}
    for name in names:
        values = [one[name] for one in series]
        if _is_scalar(values[0]):
            scalars = [_scalar(value) for value in values]
            fine = any(isinstance(value, np.datetime64) for value in scalars)
            found[name] = pa.array(arrow_times(common_times(scalars)) if fine else scalars)
            continue
        if name == time:
            values = [_parsed_times(one) for one in values]
        arrays = [_array(f"{name!r} of series {place}", one) for place, one in enumerate(values)]
        if all(array.ndim == 2 for array in arrays):
            inner = _list_array(name, [row for array in arrays for row in array])
            ends = np.cumsum([0, *(len(array) for array in arrays)])
            found[name] = pa.LargeListArray.from_arrays(pa.array(ends), inner)
        else:
            found[name] = _list_array(name, arrays)
    return found


def _parsed_times(data: Any) -> Any:
    """Return timestamps of a series, parsed if they are texts, as first timestamps are."""
    if isinstance(data, (list, tuple)) and data and isinstance(data[0], str):
        return _as_timestamps(data)
    return data


def _as_timestamps(values: Sequence[Any]) -> Array:
    """Return timestamps, in microseconds or as fine as they are."""
    try:
        found = common_times(values)
    except ValueError as error:
        shown = ", ".join(map(repr, values[:3])) + ", ..." * (len(values) > 3)
        raise ValueError(
            f"timestamps must be such as '2024-03-01 08:00', got {shown}: {error}"
        ) from None
    fine = np.datetime_data(found.dtype)[0] in ("ns", "ps", "fs", "as")
    return arrow_times(found) if fine else cast_times(found, "datetime64[us]")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or np.ndim(value) == 0


def _scalar(value: Any) -> Any:
    """Return a value for Arrow: a period of pandas as its first moment."""
    value = value.to_timestamp() if hasattr(value, "to_timestamp") else value
    if getattr(value, "nanosecond", 0):
        value = value.to_datetime64()  # of which Python's datetime would lose the nanoseconds
    if not hasattr(value, "item") or np.ndim(value):
        return value
    plain = value.item()  # an integer for nanoseconds
    return value if isinstance(value, np.datetime64) and isinstance(plain, int) else plain


def _array(what: str, data: Any) -> Array:
    """Return the values of a series as an array, without a copy where that is possible."""
    if isinstance(data, (list, tuple, range)):
        given = data
        if any(value is None for value in data):
            data = [np.nan if value is None else value for value in data]
        data = np.asarray(data)
        if data.dtype.kind == "f":
            _check_leaves(what, given)
    elif hasattr(data, "to_numpy"):
        kind = str(getattr(data, "dtype", getattr(data, "type", ""))).lower()
        data = data.to_numpy()
        if kind.startswith(("int", "uint")) and data.dtype.kind == "f":
            check_float64(what, data, EXACT - 1)  # 2**53 may be a rounded 2**53 + 1
    if isinstance(data, np.ndarray) and data.dtype.kind == "M":
        return data
    array, dtype = as_array(what, data)
    if is_bits(dtype):
        raise TypeError(f"{what} is {dtype}, which Arrow lacks; expected float32, or from_columns")
    return array


def _check_leaves(what: str, data: Sequence[Any]) -> None:
    """Raise OverflowError for an integer of nested lists that float64 does not hold exactly."""
    for value in data:
        if isinstance(value, (list, tuple)):
            _check_leaves(what, value)
        elif isinstance(value, (int, np.integer)) and not -EXACT <= value <= EXACT:
            raise _not_exact(what, value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            check_float64(what, value)


def check_float64(what: str, values: Array, limit: int = EXACT) -> None:
    """Raise OverflowError for values that float64 does not hold exactly as integers."""
    beyond = (values > limit) | (values < -limit)
    if beyond.any():
        raise _not_exact(what, values[beyond][0])


def _not_exact(what: str, value: Any) -> OverflowError:
    return OverflowError(
        f"{what} has {value} among values that are not int64, too large for dtype=float64; "
        "expected at most 2**53, or integers alone and none missing"
    )


def _list_array(name: str, arrays: Sequence[Array]) -> Any:
    """Return one-dimensional arrays as an Arrow list array; copies them end to end."""
    kinds = {array.dtype for array in arrays if len(array)}
    if len(kinds) > 1 and kinds != {np.dtype(np.int64), np.dtype(np.float64)}:
        raise TypeError(
            f"{name!r} is {' and '.join(sorted(map(str, kinds)))} in different series; expected "
            "one dtype"
        )
    for place, array in enumerate(arrays):
        if len(kinds) > 1 and array.dtype.kind == "i":
            check_float64(f"column {name!r} of series {place}", array)
        if array.ndim != 1:
            raise ValueError(
                f"{name!r} has shape {array.shape} in series {place}; expected one dimension"
            )
    values = np.concatenate([array for array in arrays if len(array)] or list(arrays[:1]))
    ends = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
    return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(arrow_times(values)))


_SEVERAL_LEVELS = (
    "has an index of several levels, which would be lost; expected "
    "Table.from_arrow(series.to_frame(), id_columns=..., timestamp_column=...) with their names, "
    "or reset_index(drop=True)"
)


def check_levels(columns: Mapping[str, Any]) -> None:
    """Raise ValueError for Series of pandas of which an index says that they are several series."""
    pandas = sys.modules.get("pandas")
    for name, data in columns.items():
        if pandas is None:
            return
        if isinstance(data, pandas.Series) and isinstance(data.index, pandas.MultiIndex):
            raise ValueError(f"column {name!r} {_SEVERAL_LEVELS}")


def _index_of(series: Sequence[Any]) -> Any:
    """Return the indexes of pandas Series as lists of timestamps, None if they are not time."""
    found: list[Any] = [getattr(one, "index", None) for one in series]
    found = [index.to_timestamp() if hasattr(index, "to_timestamp") else index for index in found]
    pandas = sys.modules.get("pandas")
    for place, index in enumerate(found):
        if pandas is not None and isinstance(index, pandas.MultiIndex):
            raise ValueError(f"series {place} {_SEVERAL_LEVELS}")
    timed = [getattr(getattr(index, "dtype", None), "kind", "") == "M" for index in found]
    if not any(timed):
        for place, index in enumerate(found):
            if pandas is not None and isinstance(index, pandas.Index) and index.name is not None:
                raise ValueError(
                    f"series {place} has an index {index.name!r} that has no time stamps and would "
                    "be lost; expected an index of time, or reset_index(drop=True)"
                )
        return None
    if not all(timed):
        raise ValueError(
            f"series {timed.index(False)} has no index of timestamps, and series "
            f"{timed.index(True)} has one; expected one in all series or in none"
        )
    return _list_array(TIME, [np.asarray(index) for index in found])


def first_timestamps(start: Any, count: int) -> Any:
    """Return the first timestamp of each series, given once or for each."""
    one = isinstance(start, str) or np.ndim(start) == 0
    values = [_scalar(value) for value in ([start] * count if one else start)]
    if len(values) != count:
        raise ValueError(f"`start` has {len(values)} timestamps for {count} series")
    if all(isinstance(value, int) for value in values):
        return pa.array(values, pa.int64())
    return pa.array(_as_timestamps(values))
