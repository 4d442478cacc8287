"""Lines of the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._util.plots import new_axes, thin_line
from windeck._util.validation import check_integer
from windeck.columns.columns import ColumnData
from windeck.columns.elements import decode_elements

__all__ = ["plot_columns", "values_at"]

#: Columns that are drawn where none are named.
_MOST_COLUMNS = 5


def plot_columns(table: Any, columns: Sequence[str] | None, series: Any, ax: Any) -> Any:
    """Draw columns of some series of a `Table` over time; see `Table.plot`."""
    if columns is None:
        numbers = [name for name, one in table.columns.items() if one.categories is None]
        columns = numbers[:_MOST_COLUMNS]
    chosen = [table.column(name) for name in columns]
    given = series if isinstance(series, Sequence) else [series]
    numbers_of_series = [check_integer("series", one, most=table.num_series - 1) for one in given]
    ax = new_axes(ax)
    for number in numbers_of_series:
        rows = slice(*table.offsets[number : number + 2].tolist())
        stamps = table.timestamps
        x = np.arange(rows.stop - rows.start) if stamps is None else stamps[rows]
        for column in chosen:
            name = f"{column.name}, {table.series_names[number]}"
            label = name if len(numbers_of_series) > 1 else column.name
            ax.plot(*thin_line(x, values_at(column, rows)), label=label, linewidth=1)
    ax.set_xlabel("row" if table.timestamps is None else "time")
    if len(numbers_of_series) == 1:
        ax.set_title(f"series {table.series_names[numbers_of_series[0]]}")
    ax.legend(loc="upper right")
    return ax


def values_at(column: ColumnData, rows: Any) -> npt.NDArray[np.float64]:
    """Return values of a column as float64, NaN where they are missing."""
    stored = np.ascontiguousarray(column.values[rows])
    if column.dtype == "bfloat16":
        stored = decode_elements("bfloat16", stored)
    found = stored.astype(np.float64)
    found[~column.observed(rows)] = np.nan
    return found
