"""Frames of future covariates as tables, with ids and time stamps as a table has them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import is_bits
from windeck.io.conversion import is_categorical
from windeck.io.options import ReadOptions
from windeck.io.reading import as_arrow_table
from windeck.table.frames import flat_pandas
from windeck.table.table import Table
from windeck.windows.forecasts import index_columns

__all__ = ["is_frame", "table_of"]

_INTERFACES = ("__arrow_c_stream__", "__arrow_c_array__", "collect_schema", "with_format")


def is_frame(data: Any) -> bool:
    """Return True for data that `Table.from_arrow` takes."""
    return any(hasattr(data, name) for name in _INTERFACES)


def table_of(data: Any, table: Table, names: Sequence[str]) -> Table:
    """Return columns of a frame as a table, with the ids, times and dtypes that `table` has.

    Rows may be in any order. Times without a zone are local ones where `table` was read with
    `time_zone`.

    Raises
    ------
    KeyError, TypeError, ValueError
        The frame lacks a column, or a column has values that its dtype in `table` cannot hold.
    """
    ids, time = index_columns(table)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        data, _, _ = flat_pandas(data, ids, time)
    arrow = as_arrow_table(data, ReadOptions(columns=tuple(names), ids=ids, time=time))
    for name in (*ids, *names):
        if name not in arrow.column_names:
            values = [other for other in arrow.column_names if other not in (*ids, time)]
            if values:
                raise unknown_column(name, values, "`future`")
            raise KeyError(f"`future` has no column {name!r}; it has ids and times alone")
    assert table.timestamps is not None
    _check_times(arrow, time, table.timestamps.dtype.kind == "M")
    fields = {name: arrow[name] for name in (*ids, time)}
    fields |= {name: _as_in(arrow[name], table.column(name)) for name in names}
    if not names:  # A table has one column at least.
        fields[f"{time}, and nothing else"] = pa.array(np.zeros(len(arrow), np.int8))
    stamps = arrow[time].type
    zoned = pa.types.is_timestamp(stamps) and stamps.tz is not None
    return Table.from_arrow(
        pa.table(fields),
        id_columns=ids,
        timestamp_column=time,
        categories=[name for name in names if table.column(name).categories is not None],
        sort=True,
        time_zone=None if zoned else table._local_zone,
    )


def _check_times(arrow: pa.Table, time: str, stamped: bool) -> None:
    """Check that a frame has a column of this name, with times or integers and not texts."""
    if time not in arrow.column_names:
        others = [field.name for field in arrow.schema if pat.is_temporal(field.type)]
        found = f"{', '.join(map(repr, others or arrow.column_names))}"
        raise KeyError(
            f"`future` has no column {time!r}; expected the times of its rows by this name, as in "
            f"the table, and {'its times are' if others else 'it has'} {found}"
        )
    kind = arrow[time].type
    if is_categorical(kind):
        expected = f"column {time!r} of `future` is {kind}, expected"
        if not stamped:
            raise TypeError(f"{expected} integers as in the table: convert it in the frame")
        raise TypeError(
            f"{expected} times as in the table: convert it, such as by pd.to_datetime("
            f"frame[{time!r}]) in pandas or pl.col({time!r}).str.to_datetime() in polars"
        )


def _as_in(array: pa.ChunkedArray, column: ColumnData) -> pa.ChunkedArray:
    """Return numbers in the dtype of a column of a table; other values as they are.

    Floats are rounded to a narrower dtype, as by `dtype` of `Table.read`.

    Raises
    ------
    TypeError
        The dtype cannot hold a value: a finite one would become infinite, say.
    """
    kind = array.type
    numbers = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)
    if is_categorical(kind) != (column.categories is not None) and not pat.is_null(kind):
        expected, cure = column.dtype, "bools" if column.dtype == "bool" else "numbers"
        if column.categories is not None:
            expected, cure = "texts", "texts"
        raise TypeError(
            f"column {column.name!r} of `future` is {kind}, expected {expected} as in the table: "
            f"convert it to {cure} in the frame"
        )
    if column.categories is not None or is_bits(column.dtype) or column.dtype == "bool":
        return array
    if not (numbers or pat.is_boolean(kind) or pat.is_null(kind)):
        return array
    try:
        found = array.cast(pa.from_numpy_dtype(column.values.dtype))
    except pa.ArrowException as error:
        raise TypeError(
            f"column {column.name!r} of `future` is {kind}, expected {column.dtype} as in the "
            f"table: {error}"
        ) from None
    if not pat.is_floating(found.type):
        return found
    large = pc.and_(pc.is_inf(found), pc.invert(pc.is_inf(array.cast(pa.float64()))))
    if pc.any(large).as_py():
        value = array.filter(large)[0].as_py()
        raise TypeError(
            f"column {column.name!r} of `future` has the value {value}, which {column.dtype} as in "
            "the table cannot hold"
        )
    return found
