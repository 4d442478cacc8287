"""Columns on arrays and tensors the caller already has: nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from windeck.sources.files.conversion import is_string
from windeck.sources.files.loaded import Loaded
from windeck.sources.files.reading import id_builder
from windeck.sources.files.request import Request
from windeck.sources.tables.arraytypes import Array
from windeck.sources.tables.columns import (
    ColumnData,
    as_array,
    from_array,
    is_floating,
    unknown_column,
)


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
    if column.values.dtype.kind not in "iu" or column.dtype == "bfloat16":
        raise TypeError(
            f"id column {name!r} has dtype {column.dtype}; expected strings or integers"
        )
    return column
