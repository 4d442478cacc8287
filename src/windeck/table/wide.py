"""Tables of wide data: one row a series, or one column a series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from windeck._util.text import plural
from windeck._util.warning import warn
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Int64s
from windeck.io import reading
from windeck.io.options import ReadOptions, budget_bytes
from windeck.io.reading import LoadedColumns
from windeck.table.frequency import regular_timestamps
from windeck.table.ragged import (
    TIME,
    Ragged,
    check_float64,
    files_of,
    first_timestamps,
    unique_names,
)
from windeck.table.series import group_rows

_READ = ("columns", "dtype", "rows", "time_zone")
_LOCATED = ("filesystem", "storage_options", "cache_dir", "cache_bytes")
_CSV = ("header", "delimiter", "decimal", "encoding", "timestamp_format", "missing")
#: Value columns from which on a table of series of one row is taken for a wide one.
_MANY_COLUMNS = 8


def load(data: Any, ids: Any, time: str | None, given: Mapping[str, Any]) -> LoadedColumns:
    """Read wide data of files or of memory; `given` are arguments of `Table.read`."""
    known = (*_READ, *_CSV, "memory_budget", *_LOCATED)
    for name in given:
        if name not in known:
            raise TypeError(
                f"Table.from_wide has no argument {name!r}; expected {', '.join(known)}"
            )
    options = ReadOptions.from_arguments(
        given.get("columns"),
        ids,
        time,
        given.get("dtype"),
        given.get("rows"),
        zone=given.get("time_zone"),
        csv=(*map(given.get, _CSV),),  # type: ignore[arg-type]
    )
    budget = budget_bytes(given.get("memory_budget"))
    files = files_of(data, {name: given.get(name) for name in _LOCATED})
    if files is not None:
        return reading.read_files(files, options, False, budget)
    if options.csv.given:
        raise ValueError(f"`{options.csv.given[0]}` is an option of CSV files, got data in memory")
    table = reading.as_arrow_table(data, options)
    return reading.from_arrow_table(table, options, interleaved=False)


def starts_of(start: Any, rows: tuple[int, int | None] | None) -> Any:
    """Return the starts of the rows that were read, given one for each row of the data."""
    if rows is None or start is None or isinstance(start, str) or np.ndim(start) == 0:
        return start
    return list(start)[slice(*rows)]


def from_rows(loaded: LoadedColumns, name: str, start: Any, freq: Any) -> Ragged:
    """Return the value columns as steps of one column, each row a series.

    Missing values after the last observed one of a row are not rows of its series.
    """
    if loaded.time is not None:
        raise ValueError(
            "`timestamp_column` must be None with series='rows', whose columns are the steps; pass "
            "start= and freq=, or series='columns' if each column is a series"
        )
    matrix, observed = _matrix(loaded.columns)
    rows, steps = matrix.shape
    last = steps - np.argmax(observed[:, ::-1], axis=1)
    lengths = np.where(observed.any(axis=1), last, 0).astype(np.int64)
    inside = np.arange(steps) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    names = None
    if loaded.ids:
        names = group_rows(loaded.ids, rows, sort=True).names
        if len(names) < rows:
            raise ValueError(
                f"{rows} rows have {plural(len(names), 'id')}; expected one row a series, each "
                "with its own id"
            )
    values = ColumnData(name, matrix[inside])
    return Ragged(_loaded(values, _times(start, freq, offsets)), offsets, names)


def from_columns(loaded: LoadedColumns, name: str, start: Any, freq: Any) -> Ragged:
    """Return the value columns end to end as one column, each of them a series of its name."""
    if loaded.ids:
        raise ValueError("`id_columns` must be None with series='columns': their names are the ids")
    if loaded.time is not None and not (start is None and freq is None):
        raise ValueError("`start` and `freq` must be None with timestamp_column=")
    matrix, _ = _matrix(loaded.columns)
    rows, series = matrix.shape
    offsets = np.arange(series + 1, dtype=np.int64) * rows
    if loaded.time is None:
        time = _times(start, freq, offsets)
    else:
        stamps, valid = loaded.time.values, loaded.time.observed()
        if not valid.all():
            raise ValueError(
                f"timestamp column {loaded.time.name!r} is missing in row {int(np.argmin(valid))}; "
                "expected a timestamp in every row"
            )
        time = replace(loaded.time, values=np.tile(stamps, series), validity=None, missing=0)
    values = ColumnData(name, matrix.T.reshape(-1))
    names = unique_names(tuple(column.name for column in loaded.columns))
    return Ragged(_loaded(values, time), offsets, names)


def warn_if_wide(loaded: LoadedColumns, series: int) -> None:
    """Warn about ids of which each has one row, without time and with many columns."""
    rows = len(loaded.columns[0].values)
    many = sum(column.categories is None for column in loaded.columns)
    if loaded.ids and loaded.time is None and 1 < rows == series and many >= _MANY_COLUMNS:
        warn(
            f"each of the {series:,} series has one row and {many} columns, so no window has a "
            "second step; if the columns are the steps of a series, read it with "
            f"Table.from_wide(..., id_columns={loaded.ids[0].name!r})",
        )


def _matrix(columns: Sequence[ColumnData]) -> tuple[Array, Array]:
    """Return the columns as one matrix, missing values as NaN, and its mask of observed values."""
    for column in columns:
        if column.categories is not None:
            raise TypeError(
                f"column {column.name!r} has strings; expected numbers in all columns of wide "
                "data, and ids in id_columns="
            )
    observed = np.stack([column.observed() for column in columns], axis=1)
    dtype = np.result_type(*(column.values.dtype for column in columns))
    if not observed.all() and dtype.kind != "f":
        dtype = np.dtype(np.float64)  # which has a NaN
    matrix = np.empty(observed.shape, dtype)
    for place, column in enumerate(columns):
        if dtype == np.float64 and column.values.dtype.kind in "iu":
            check_float64(f"column {column.name!r}", column.values[observed[:, place]])
        matrix[:, place] = column.values
    if dtype.kind == "f":
        matrix[~observed] = np.nan
    return matrix, observed


def _times(start: Any, freq: Any, offsets: Int64s) -> ColumnData | None:
    if start is None and freq is None:
        return None
    if start is None or freq is None:
        raise ValueError("`start` and `freq` must be given together, or neither")
    starts = np.asarray(first_timestamps(start, len(offsets) - 1))
    return ColumnData(TIME, regular_timestamps(starts, freq, offsets), missing=0)


def _loaded(values: ColumnData, time: ColumnData | None) -> LoadedColumns:
    if not len(values.values):
        raise ValueError("the data has no observed value; expected one at least")
    return LoadedColumns([values], [], time, None, None, owned=True)
