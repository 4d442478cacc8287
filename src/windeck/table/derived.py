"""Tables derived from others: columns added or counted, and calendar features of time stamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from windeck import _core
from windeck.columns.calendar import AGE, CalendarFeature, features_of
from windeck.columns.columns import ColumnData, aligned_empty, from_array
from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import check_zone

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
    zone: str | None,
    columns: Mapping[str, ColumnData],
) -> list[CalendarFeature]:
    """Return descriptions of the columns of calendar features; see `Table.with_calendar`.

    `columns` are those that the table has.
    """
    kinds = (features,) if isinstance(features, str) else tuple(features)
    zones = (zone, None)
    if zone is not None:
        zones = _zone_of(zone, columns)
        if stamps is not None and np.datetime_data(stamps.dtype)[0] in ("Y", "M", "W", "D"):
            raise TypeError(
                f"`time_zone` is {zone!r}, and the timestamps are dates ({stamps.dtype}), which "
                "have no zone; expected times"
            )
    found = features_of(kinds, encoding, dtype, *zones)
    if set(kinds) - {AGE} and (stamps is None or stamps.dtype.kind != "M"):
        given = "none" if stamps is None else str(stamps.dtype)
        raise TypeError(f"calendar features need time stamps of dates or times, got {given}")
    for feature in found:
        if feature.name in columns:
            raise ValueError(
                f"the table has a column {feature.name!r}, the name of a calendar feature; "
                "expected another name, or a feature that the table lacks"
            )
    return found


def _zone_of(zone: str, columns: Mapping[str, ColumnData]) -> tuple[str, None] | tuple[None, str]:
    """Return a zone and None, or None and the column of zones of this name."""
    if zone not in columns:
        check_zone(zone)
        return zone, None
    column = columns[zone]
    if column.categories is None:
        raise TypeError(
            f"column {zone!r}, the `time_zone`, is {column.dtype}; expected names of zones, read "
            "with categories="
        )
    if not column.observed().all() or (column.values < 0).any():
        row = int(np.argmin(column.observed() & (column.values >= 0)))
        raise ValueError(f"column {zone!r} has no zone in row {row}; expected one in each row")
    for name in np.unique(column.values).tolist():
        check_zone(column.categories[name])
    return None, zone


def zones_of(
    feature: CalendarFeature, columns: Mapping[str, ColumnData], rows: slice | Int64s
) -> Array | None:
    """Return the zone of each of some rows, of a feature with a column of zones; else None."""
    if feature.zone_column is None:
        return None
    column = columns[feature.zone_column]
    assert column.categories is not None
    names: Array = np.array(column.categories)[column.values[rows]]
    return names


def calendar_columns(
    features: Sequence[CalendarFeature],
    stamps: Array | None,
    offsets: Int64s,
    old: Mapping[str, ColumnData],
) -> dict[str, Array]:
    """Return the values of calendar features of all rows, by name.

    `old` has the columns of zones.
    """
    num_rows = int(offsets[-1])
    columns = {one.name: aligned_empty((num_rows,), np.dtype(one.dtype)) for one in features}
    for (kind, *_), group in groupby(features, lambda one: (one.kind, one.zone, one.zone_column)):
        alike = list(group)
        for start in range(0, num_rows, ROWS_AT_A_TIME):
            rows = slice(start, min(start + ROWS_AT_A_TIME, num_rows))
            ages = _ages(offsets, rows) if kind == AGE else None
            zones = zones_of(alike[0], old, rows)
            places = alike[0].places(None if stamps is None else stamps[rows], ages, zones)
            for feature in alike:
                columns[feature.name][rows] = feature.encode(places)
    return columns


def _ages(offsets: Int64s, rows: slice) -> Int64s:
    """Return the number of rows since the series began."""
    numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
    series = np.searchsorted(offsets, numbers, side="right") - 1
    return numbers - offsets[series]


def again(
    old: Mapping[str, ColumnData],
    columns: Mapping[str, ColumnData],
    stamps: Array,
    offsets: Int64s,
) -> dict[str, ColumnData]:
    """Return the calendar features among old columns for other rows, whose columns are given.

    A row that was added has the zone of the row before.
    """
    features = [one.calendar for one in old.values() if one.calendar is not None]
    zones = {one.zone_column for one in features if one.zone_column is not None}
    filled = {name: _filled(columns[name]) for name in zones}
    values = calendar_columns(features, stamps, offsets, filled)
    return {
        one.name: ColumnData(one.name, values[one.name], missing=0, calendar=one)
        for one in features
    }


def _filled(column: ColumnData) -> ColumnData:
    """Return codes with those of the row before where they are missing; the first one is not."""
    rows = np.where(column.observed(), np.arange(len(column.values)), 0)
    return replace(column, values=column.values[np.maximum.accumulate(rows)], validity=None)
