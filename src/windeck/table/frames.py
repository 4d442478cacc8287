"""Tables as Arrow data and as frames of polars and pandas, and frames of pandas as Arrow data."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Bools, Int64s, is_bits, is_floating
from windeck.columns.times import arrow_times, parse_time
from windeck.io.options import Categories, as_names
from windeck.table.construction import SeriesLayout

__all__ = ["as_arrow", "flat_pandas", "index_names", "to_pandas", "value_array"]

#: Names of ids and time of tables whose data has none.
SERIES, TIME = "series_id", "timestamp"


def index_names(
    layout: SeriesLayout, ids: Sequence[str], time: str | None
) -> tuple[tuple[str, ...], str]:
    """Return the names of the columns of ids and of time of a table.

    Series without an id column are named by ``series_id``, tuples by ``series_id_0`` and so on; a
    single series that is only numbered has no column.
    """
    if not ids and layout.names != (0,):
        wide = bool(layout.names) and isinstance(layout.names[0], tuple)
        ids = [f"{SERIES}_{place}" for place in range(len(layout.names[0]))] if wide else [SERIES]
    return tuple(ids), time or TIME


def as_arrow(
    layout: SeriesLayout,
    names: tuple[tuple[str, ...], str],
    stamps: Array | None,
    zone: str | None,
    columns: Mapping[str, ColumnData],
) -> pa.Table:
    """Return the rows of series as an Arrow table: ids, time and values.

    Parameters
    ----------
    names
        Of the columns of ids and of the column of time, as from `index_names`.
    stamps, columns
        Of the rows [0, n) of the layout.

    Raises
    ------
    ValueError
        A value column has the name of an id or of time.
    """
    ids, time = names
    rows = len(next(iter(columns.values())).values)
    fields = _id_arrays(layout, ids, rows)
    if stamps is not None:
        array = pa.array(arrow_times(np.ascontiguousarray(stamps)))
        if zone is not None:
            array = array.cast(pa.timestamp(array.type.unit, zone))
        fields[time] = array
    for name, column in columns.items():
        if name in fields:
            raise ValueError(
                f"column {name!r} has the name of an id or of the time of the table; expected "
                "another name"
            )
        fields[name] = value_array(column)
    return pa.table(fields)


def _id_arrays(layout: SeriesLayout, ids: Sequence[str], rows: int) -> dict[str, Any]:
    if not ids:
        return {}
    series = _series_of(layout.offsets, rows)
    parts = [layout.names] if len(ids) == 1 else list(zip(*layout.names, strict=True))
    parts = parts or [()] * len(ids)
    return {name: _plain_ids(part).take(series) for name, part in zip(ids, parts, strict=True)}


def _plain_ids(names: Sequence[Any]) -> Any:
    """Return ids as an array; texts with offsets of 64 bits, which any number of rows fits."""
    array = pa.array(names)
    return array.cast(pa.large_string()) if pa.types.is_string(array.type) else array


def _series_of(offsets: Int64s, rows: int) -> Any:
    """Return the number of the series of each of the first rows."""
    lengths = np.diff(np.minimum(offsets, rows))
    return pa.array(np.repeat(np.arange(len(lengths), dtype=np.int32), lengths))


def value_array(column: ColumnData) -> Any:
    """Return a column as an Arrow array, without a copy of numbers that are next to each other.

    bfloat16, which Arrow does not have, becomes float32. Missing values, NaN among them, are null.
    """
    values = column.values
    if is_bits(column.dtype):
        values = (values.astype(np.uint32) << 16).view(np.float32)
    array = pa.array(np.ascontiguousarray(values))
    if is_floating(column.dtype) and column.missing != 0:
        return _with_missing(array, column.observed())
    if column.validity is not None:
        array = _with_nulls(array, column)
    if column.categories is None:
        return array
    if column.validity is None and (column.values < 0).any():
        array = pa.array(column.values, mask=column.values < 0)
    return pa.DictionaryArray.from_arrays(array, pa.array(column.categories, pa.string()))


def _with_missing(array: Any, observed: Bools) -> Any:
    """Return an array without nulls with those of a mask; its values are not copied."""
    if observed.all():
        return array
    bits = pa.py_buffer(np.packbits(observed, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bits, *array.buffers()[1:]])


def _with_nulls(array: Any, column: ColumnData) -> Any:
    """Return an array with the validity bitmap of a column."""
    bits, first = pa.py_buffer(column.validity), column.validity_offset
    valid = pa.Array.from_buffers(pa.bool_(), len(array), [None, bits], offset=first)
    if not first and array.offset == 0:
        return pa.Array.from_buffers(array.type, len(array), [bits, *array.buffers()[1:]])
    return pa.compute.if_else(valid, array, pa.scalar(None, array.type))


def to_pandas(table: pa.Table) -> Any:
    """Return an Arrow table as a frame of pandas; nullable dtypes for integers with nulls."""
    pandas = import_module("pandas")
    nullable = {
        **{getattr(pa, name.lower())(): getattr(pandas, f"{name}Dtype")() for name in _INTEGERS},
        pa.bool_(): pandas.BooleanDtype(),
    }
    frame = table.to_pandas()
    for field in table.schema:
        column = table.column(field.name)
        if field.type in nullable and column.null_count:
            frame[field.name] = column.to_pandas(types_mapper=nullable.get)
    return frame


_INTEGERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


def flat_pandas(
    data: Any,
    ids: str | Iterable[str] | None,
    time: str | None,
    columns: str | Iterable[str] | None = None,
    categories: Categories = (),
) -> tuple[Any, tuple[str, ...], str | None]:
    """Return a frame or Series of pandas without index, and the names of its ids and its time.

    Parameters
    ----------
    ids, time
        Names of columns or levels; None for the levels of the index: one of times is the time, and
        all others are ids. One level of integers without a name numbers the rows, and is dropped.
    columns
        Names of values; others are left out of the frame. None for all.
    categories
        As for `Table.from_pandas`: names among them are kept, for the error that they are none of
        `columns`.

    Raises
    ------
    TypeError, ValueError
        It is no frame; two columns, or a level and a column, have one name; a level is of a type
        that neither ids nor times have; there are several levels of time, or several levels without
        one, which make each row a series; times with and without a time zone are in one column.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, (pandas.DataFrame, pandas.Series)):
        raise TypeError(
            f"a {type(data).__name__} is no frame or Series of pandas; expected one, or "
            "Table.from_arrow"
        )
    if isinstance(data, pandas.Series):
        data = data.to_frame("target" if data.name is None else data.name)
    levels = [data.index.get_level_values(place) for place in range(data.index.nlevels)]
    numbers = len(levels) == 1 and data.index.name is None and _is_integer(pandas, levels[0])
    frame = data.reset_index(drop=True).copy(deep=False)
    frame.columns = [
        "" if pandas.api.types.is_scalar(name) and pandas.isna(name) else str(name)
        for name in frame.columns
    ]
    for name, many in Counter(frame.columns).most_common(1):
        if many > 1:
            raise ValueError(f"the data has {many} columns named {name!r}; expected one")
    keys = () if ids is None else as_names("id_columns", ids)
    if not numbers:
        names = _level_names(pandas, data.index.names, levels)
        frame, found_ids, found_time = _with_levels(pandas, frame, names, levels)
        if ids is None:
            keys = tuple(one for one in found_ids if one != time)
            _check_ids(pandas, dict(zip(names, levels, strict=True)), keys)
        time = found_time if time is None and found_time not in keys else time
        if ids is None and time is None:
            _check_series(pandas, data.index, names, levels)
    if columns is not None:
        wanted = [*keys, *(() if time is None else (time,)), *as_names("columns", columns)]
        wanted += () if isinstance(categories, bool) else as_names("categories", categories)
        if set(wanted) <= set(frame.columns):  # Else the error names those that are not there.
            frame = frame[list(dict.fromkeys(wanted))].copy(deep=False)
    for name in frame.columns:
        _check_zones(pandas, name, frame[name])
    for name in [one for one in frame.columns if _is_period(pandas, frame[one])]:
        frame[name] = frame[name].dt.to_timestamp()
    return frame, keys, time


def _check_zones(pandas: Any, name: str, column: Any) -> None:
    """Check that objects are not times with and without a time zone, which Arrow takes for UTC."""
    if column.dtype != object or pandas.api.types.infer_dtype(column, skipna=True) != "datetime":
        return
    times = column.dropna()
    aware = times.map(lambda one: one.tzinfo is not None).to_numpy(dtype=bool)
    if aware.any() and not aware.all():
        raise ValueError(
            f"column {name!r} has times with a time zone, such as {times[aware].iloc[0]}, and "
            f"without one, such as {times[~aware].iloc[0]}; expected all with one or all without"
        )


def _check_ids(pandas: Any, levels: Mapping[str, Any], ids: Sequence[str]) -> None:
    """Check that levels of an index that become ids are of a type that ids have."""
    for name in ids:
        dtype = getattr(levels[name].dtype, "categories", levels[name]).dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "bfcm":
            raise TypeError(
                f"the index has {dtype} in its level {name!r}; expected times, periods, strings or "
                "integers (frame.reset_index() makes it a column, and drop=True leaves it out)"
            )


def _is_integer(pandas: Any, level: Any) -> bool:
    return bool(pandas.api.types.is_integer_dtype(level.dtype))


def _is_period(pandas: Any, data: Any) -> bool:
    return isinstance(getattr(data, "dtype", None), pandas.PeriodDtype)


def _is_time(pandas: Any, level: Any) -> bool:
    if _is_period(pandas, level) or pandas.api.types.is_datetime64_any_dtype(level.dtype):
        return True
    return bool(pandas.api.types.infer_dtype(level, skipna=True) == "date")


def _level_names(pandas: Any, names: Sequence[Any], levels: Sequence[Any]) -> list[str]:
    """Return the names of levels; one without a name is called as a table without names does."""
    unnamed = [place for place, name in enumerate(names) if name is None]
    ids = [place for place in unnamed if not _is_time(pandas, levels[place])]
    found = []
    for place, name in enumerate(names):
        if name is not None:
            found.append(str(name))
        elif place not in ids:
            found.append(TIME)
        else:
            found.append(SERIES if len(ids) == 1 else f"{SERIES}_{ids.index(place)}")
    return found


def _check_series(pandas: Any, index: Any, names: Sequence[str], levels: Sequence[Any]) -> None:
    """Check that levels of ids do not make each row a series, as times that are texts do.

    One level may name series of one row, unless its texts are times.
    """
    if len(index) < 2 or not index.is_unique:
        return
    if len(levels) == 1:
        if not all(isinstance(one, str) and _is_time_text(one) for one in levels[0]):
            return
        raise ValueError(
            f"the index, {names[0]!r}, has texts such as {levels[0][0]!r}, with which each of "
            f"{len(index):,} rows is a series; if they are times, convert them: frame.index = "
            "pd.to_datetime(frame.index); else name `id_columns`"
        )
    texts = [place for place, one in enumerate(levels) if pandas.api.types.is_string_dtype(one)]
    place = texts[-1] if texts else len(levels) - 1
    raise ValueError(
        f"no level of the index, {', '.join(map(repr, names))}, has times, and with all of them as "
        f"ids each of {len(index):,} rows is a series; if {names[place]!r} ({levels[place].dtype}) "
        f"is the time, convert it: frame.index = frame.index.set_levels(pd.to_datetime("
        f"frame.index.levels[{place}]), level={place}); else name `id_columns`"
    )


def _is_time_text(text: str) -> bool:
    """Return True for an ISO 8601 date or time with a day."""
    try:
        return len(text) > 7 and not np.isnat(parse_time(text))
    except ValueError:
        return False


def _with_levels(
    pandas: Any, frame: Any, names: Sequence[str], levels: Sequence[Any]
) -> tuple[Any, list[str], str | None]:
    """Return a frame with levels of an index as columns; the names of ids and of time."""
    times = [name for name, level in zip(names, levels, strict=True) if _is_time(pandas, level)]
    if len(times) > 1:
        raise ValueError(
            f"the index has {len(times)} levels of time, {', '.join(map(repr, times))}; expected "
            "one, and the others as columns"
        )
    for name, level in zip(names, levels, strict=True):
        if name in frame.columns:
            raise ValueError(
                f"the index has a level {name!r}, which is the name of a column too; expected "
                "different names"
            )
        frame[name] = level.to_series(index=frame.index)
    return frame, [name for name in names if name not in times], times[0] if times else None
