"""Static covariates, of which the first row of a series is read: whether the others agree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from windeck._util.indices import Int64
from windeck._util.text import some_names
from windeck._util.warning import warn
from windeck.columns.columns import ColumnData
from windeck.table.streamed import StreamedColumn
from windeck.table.table import StreamedTable, Table

__all__ = ["warn_of_varying"]

# Rows compared at a time.
ROWS_AT_A_TIME = 1 << 20

#: The series in which a column varies: columns are read once.
_found: WeakKeyDictionary[ColumnData, Int64] = WeakKeyDictionary()


def warn_of_varying(table: Table, names: Sequence[str]) -> None:
    """Warn of columns that vary within a series, with the number of series and their names.

    O(rows) time, once for each column of a table; bounded memory. The columns of a streamed table
    are read once.
    """
    varying = {}
    for name in names:
        column = table.column(name)
        if column not in _found:
            _found[column] = _varying_series(table, name)
        if len(_found[column]):
            varying[name] = _found[column]
    if varying:
        of_columns = "; ".join(
            f"{name!r} in {len(series)} of {len(table.series_names)} series: "
            f"{some_names(table.series_names, series.tolist())}"
            for name, series in varying.items()
        )
        warn(
            f"static covariates vary within a series, of which the first row is read ({of_columns})"
            "; expected one value a series, or the column as known_covariates or past_covariates",
        )


def _varying_series(table: Table, name: str) -> Int64:
    """Return the numbers of the series that have a value other than that of their first row."""
    offsets, column = table.offsets, table.column(name)
    live = np.flatnonzero(np.diff(offsets))
    begin, end = offsets[live], offsets[live + 1]
    edges: Int64 = np.arange(0, table.num_rows + ROWS_AT_A_TIME, ROWS_AT_A_TIME)
    if isinstance(table, StreamedTable):
        first, edges = table.static_values(name), table.block_offsets
        values, seen = first.values, first.observed()
    else:
        values, seen = column.values[begin], column.observed(begin)
    varies = np.zeros(len(live), dtype=np.bool_)
    for low, high in pairwise(edges.tolist()):
        high = min(high, table.num_rows)
        rows, part = slice(low, high), column
        if isinstance(column, StreamedColumn):
            rows, part = slice(None), column.read(rows)  # Read once, for both uses.
        bounds = np.searchsorted(end, [low, high - 1], side="right")
        some = np.arange(bounds[0], bounds[1] + 1)  # the series of these rows
        counts = np.minimum(end[some], high) - np.maximum(begin[some], low)
        place = np.repeat(some, counts)
        other = part.observed(rows) & (~seen[place] | (part.values[rows] != values[place]))
        varies[place[other]] = True
    return live[varies].astype(np.int64)
