"""Tables derived from others: columns added or counted, and calendar features of time stamps."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from windeck import _core
from windeck.columns.calendar import AGE, CalendarFeature, features_of
from windeck.columns.columns import ColumnData, aligned_empty, from_array
from windeck.columns.dtypes import Array, Int64s

# Rows computed at a time, so that temporary memory does not grow with the table.
ROWS_AT_A_TIME = 1 << 18


def add_columns(
    old: Mapping[str, ColumnData], columns: Mapping[str, Any], rows: int
) -> dict[str, ColumnData]:
    """Return old columns and new ones of `rows` rows, which replace those of the same names."""
    if not isinstance(columns, Mapping) or not columns:
        raise TypeError(
            f"`columns` must be a mapping of one name or more to arrays, got {columns!r}"
        )
    found = dict(old)
    for name, data in columns.items():
        column = from_array(name, data)
        if len(column.values) != rows:
            raise ValueError(
                f"column {name!r} has {len(column.values)} rows, expected {rows}, one "
                "for each row of the table"
            )
        found[name] = column
    return found


def count_missing(column: ColumnData) -> ColumnData:
    """Return the column with its missing values counted. O(rows) time, O(1) memory."""
    if column.missing is not None:
        return column
    native = _core.Column(
        column.values,
        validity=column.validity,
        validity_offset=column.validity_offset,
        dtype=column.dtype,
        name=column.name,
    )
    return replace(column, missing=native.count_missing())


def calendar_features(
    stamps: Array | None,
    features: str | Iterable[str],
    encoding: str,
    dtype: Any,
    taken: Container[str],
) -> list[CalendarFeature]:
    """Return descriptions of the columns of calendar features; see `Table.with_calendar`.

    `taken` has the names of the columns that the table has.
    """
    kinds = (features,) if isinstance(features, str) else tuple(features)
    found = features_of(kinds, encoding, dtype)
    if set(kinds) - {AGE} and (stamps is None or stamps.dtype.kind != "M"):
        given = "none" if stamps is None else str(stamps.dtype)
        raise TypeError(f"calendar features need time stamps of dates or times, got {given}")
    for feature in found:
        if feature.name in taken:
            raise ValueError(
                f"the table has a column {feature.name!r}, the name of a calendar feature; "
                "expected another name, or a feature that the table lacks"
            )
    return found


def calendar_columns(
    features: Sequence[CalendarFeature], stamps: Array | None, offsets: Int64s
) -> dict[str, Array]:
    """Return the values of calendar features of all rows, by name."""
    num_rows = int(offsets[-1])
    columns = {one.name: aligned_empty((num_rows,), np.dtype(one.dtype)) for one in features}
    for kind, group in groupby(features, lambda feature: feature.kind):
        alike = list(group)
        for start in range(0, num_rows, ROWS_AT_A_TIME):
            rows = slice(start, min(start + ROWS_AT_A_TIME, num_rows))
            ages = _ages(offsets, rows) if kind == AGE else None
            places = alike[0].places(None if stamps is None else stamps[rows], ages)
            for feature in alike:
                columns[feature.name][rows] = feature.encode(places)
    return columns


def _ages(offsets: Int64s, rows: slice) -> Int64s:
    """Return the number of rows since the series began."""
    numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
    series = np.searchsorted(offsets, numbers, side="right") - 1
    return numbers - offsets[series]
