"""From columns as they were read to a table's shape: series together, each in order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from windeck.sources.files.loaded import Loaded
from windeck.sources.tables.arrays import columns_of
from windeck.sources.tables.arraytypes import Int64s
from windeck.sources.tables.columns import ColumnData
from windeck.sources.tables.series import Grouping, Move, check_offsets, group, moved
from windeck.sources.tables.stamps import OrderReport, put_in_order


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
