"""Columns on arrays and tensors the caller already has: nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData, as_array, from_array
from windeck.columns.dtypes import Array, Int64s, is_floating
from windeck.io import filesystem
from windeck.io.conversion import is_string
from windeck.io.reading import Loaded, id_builder
from windeck.io.request import Categories, Request
from windeck.table.series import Grouping, Move, check_offsets, group, moved
from windeck.table.timestamps import OrderReport, put_in_order

if TYPE_CHECKING:
    from windeck.table.table import Table


def columns_of(matrix: Array, columns: Sequence[ColumnData]) -> list[ColumnData]:
    """The same columns on the columns of a matrix."""
    return [replace(c, values=matrix[:, place]) for place, c in enumerate(columns)]


def from_arrays(columns: Mapping[str, Any], request: Request) -> Loaded:
    """Columns on the caller's own arrays and tensors."""
    if not columns:
        raise ValueError("the mapping of columns is empty; expected at least one column")
    for name in request.index:
        if name not in columns:
            raise unknown_column(name, columns, "the mapping")
    names = [name for name in columns if name not in request.index]
    if not names:
        raise ValueError("no value column is left beside ids and time; expected at least one")
    values = [from_array(name, columns[name]) for name in names]
    ids = [_id_column(name, columns[name]) for name in request.ids]
    time = None if request.time is None else time_column(request.time, columns[request.time])
    rows = len(values[0].values)
    for column in (*values, *ids, *(() if time is None else (time,))):
        if len(column.values) != rows:
            raise ValueError(
                f"column {column.name!r} has {len(column.values)} rows and {names[0]!r} has "
                f"{rows}; expected one length"
            )
    return Loaded(values, ids, time, None, None, owned=False)


def from_matrix(
    matrix: Array, dtype: str, names: Sequence[str], timestamps: Array | None
) -> Loaded:
    """Columns on the caller's own matrix."""
    missing = None if is_floating(dtype) else 0
    columns = [
        ColumnData(name, matrix[:, place], missing=missing, dtype=dtype)
        for place, name in enumerate(names)
    ]
    time = None if timestamps is None else time_column("timestamps", timestamps)
    if time is not None and len(time.values) != len(matrix):
        raise ValueError(
            f"timestamps has {len(time.values)} rows and the matrix has {len(matrix)}; expected "
            "one length"
        )
    by_rows = matrix.strides[1] == matrix.itemsize or matrix.shape[1] == 1
    return Loaded(columns, [], time, matrix if by_rows else None, None, owned=False)


def time_column(name: str, data: Any) -> ColumnData:
    """Time stamps given as an array: datetime64 as it is, integers as int64."""
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
    """Ids given as an array: integers as they are, strings as codes."""
    if isinstance(data, np.ndarray) and data.dtype.kind in "UO" and data.ndim == 1:
        try:
            array = pa.array(data)
        except pa.ArrowException:
            array = None
        if array is None or not is_string(array.type):
            raise TypeError(f"id column {name!r} holds objects; expected strings or integers")
        builder = id_builder(name, array.type, len(array))
        builder.append(array)
        return builder.finish()
    column = from_array(name, data)
    if column.values.dtype.kind not in "iu" or is_floating(column.dtype):
        raise TypeError(
            f"id column {name!r} has dtype {column.dtype}; expected strings or integers"
        )
    return column


class Shape(NamedTuple):
    """Where the series lie, their names, and what was found about the order of rows."""

    offsets: Int64s
    names: tuple[Any, ...]
    report: OrderReport


def arrange(
    loaded: Loaded, sort: bool, offsets: Any = None, series_names: Sequence[Any] | None = None
) -> tuple[Loaded, Shape]:
    """Find the series and bring their rows in order, moving as few rows as that takes."""
    rows = len(loaded.columns[0].values)
    found = _grouping(loaded, rows, sort, offsets, series_names)
    moves = list(found.moves)
    regrouped = bool(moves)
    if loaded.time is None:
        report = OrderReport.without_time(len(found.names), regrouped=regrouped)
        return _with_moves(loaded, moves, None), Shape(found.offsets, found.names, report)
    time = moved(loaded.time, moves, owned=loaded.owned)
    owned = loaded.owned or regrouped
    time, more, report = put_in_order(time, found.offsets, owned=owned, regrouped=regrouped)
    return _with_moves(loaded, moves + more, time), Shape(found.offsets, found.names, report)


def _grouping(
    loaded: Loaded, rows: int, sort: bool, offsets: Any, names: Sequence[Any] | None
) -> Grouping:
    if loaded.ids and (offsets is not None or names is not None):
        raise ValueError("id_columns were given along with offsets; expected one or the other")
    if loaded.ids:
        return group(loaded.ids, rows, sort=sort)
    ends = np.array([0, rows] if rows else [0], dtype=np.int64)
    ends = ends if offsets is None else check_offsets(offsets, rows)
    series = len(ends) - 1
    if names is not None and len(names) != series:
        raise ValueError(f"series_names has {len(names)} names; expected {series}, one a series")
    return Grouping(ends, tuple(range(series) if names is None else names), [])


def _with_moves(loaded: Loaded, moves: list[Move], time: ColumnData | None) -> Loaded:
    """All columns moved, in place where the memory is ours; a matrix stays one matrix."""
    if not moves:
        return loaded._replace(time=time)
    if loaded.origin is not None and loaded.origin.mapped:
        raise ValueError(
            "series are not in order of time, or scattered, and rows of a mapped file are never "
            "moved; expected a file in order, or in_memory=True"
        )
    if loaded.matrix is not None and not loaded.owned:
        matrix = loaded.matrix.copy()
        loaded = loaded._replace(
            columns=columns_of(matrix, loaded.columns), matrix=matrix, owned=True
        )
    columns = [moved(column, moves, owned=loaded.owned) for column in loaded.columns]
    return loaded._replace(columns=columns, time=time)


def arguments(paths: Sequence[str], request: Request, categories: Categories) -> dict[str, Any]:
    """What `Table.read` is to be told to map the same file again, from any directory."""
    return {
        "path": [filesystem.absolute(path) for path in paths],
        "columns": request.columns,
        "id_columns": request.ids,
        "timestamp_column": request.time,
        "categories": categories,
        "rows": request.rows,
        "in_memory": False,
    }


def reduced(table: Table, reopen: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """What pickle keeps of a table: a function and what to call it with."""
    if reopen is not None:
        return _read_again, (dict(reopen),)
    columns = list(table.columns.values())
    if table.matrix is not None:
        columns = [replace(column, values=column.values[:0]) for column in columns]
    time = None if table.timestamps is None else ColumnData("", table.timestamps)
    loaded = Loaded(columns, [], time, table.matrix, table.origin, owned=False)
    return _put_together, (loaded, Shape(table.offsets, table.series_names, table.report))


def _read_again(how: dict[str, Any]) -> Table:
    from windeck.table.table import Table

    return Table.read(how.pop("path"), **how)


def _put_together(loaded: Loaded, shape: Shape) -> Table:
    from windeck.table.table import Table

    if loaded.matrix is not None:
        loaded = loaded._replace(columns=columns_of(loaded.matrix, loaded.columns))
    return Table(loaded, shape)
