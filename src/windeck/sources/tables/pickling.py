"""Tables between processes: a mapped one as its path, one in memory with its values.

Worker processes of a data loader so share the pages of a mapped file, and a row-major matrix
arrives as one matrix again, the columns views of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windeck.sources.files.loaded import Loaded
from windeck.sources.files.request import Categories, Request
from windeck.sources.tables.arranging import Shape
from windeck.sources.tables.arrays import columns_of
from windeck.sources.tables.columns import ColumnData

if TYPE_CHECKING:
    from windeck.sources.table import Table


def arguments(paths: Sequence[str], request: Request, categories: Categories) -> dict[str, Any]:
    """What `Table.read` is to be told to map the same file again, from any directory."""
    return {
        "path": [os.path.abspath(path) for path in paths],
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
    from windeck.sources.table import Table

    return Table.read(how.pop("path"), **how)


def _put_together(loaded: Loaded, shape: Shape) -> Table:
    from windeck.sources.table import Table

    if loaded.matrix is not None:
        loaded = loaded._replace(columns=columns_of(loaded.matrix, loaded.columns))
    return Table(loaded, shape)
