"""Tables derived from others: columns added or counted, and calendar features of time stamps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from windeck import _core
from windeck._util.text import plural, some_names, unknown_column
from windeck._util.warning import warn
from windeck.columns.calendar import (
    AGE,
    CalendarFeature,
    DateFeature,
    date_features,
    features_of,
)
from windeck.columns.columns import ColumnData, aligned_empty, from_array
from windeck.columns.dtypes import Array, Int64s, is_bits
from windeck.columns.times import cast_times, check_zone, time_text
from windeck.io.options import as_names, pandas_index
from windeck.io.reading import as_arrow_table

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
                f"column {name!r} has {plural(len(column.values), 'row')}, expected {rows}, one "
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
    zones: tuple[str | None, str | None] = (None, None)
    if zone is not None:
        zones = _zone_of(zone, columns)
        check_times(zone, stamps)
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


def check_same_codes(
    columns: Mapping[str, ColumnData], larger: Mapping[str, ColumnData], names: Iterable[str]
) -> None:
    """Raise a ValueError if categories of columns have other codes in a table that has grown."""
    for name in filter(larger.__contains__, names):
        before, after = columns[name].categories, larger[name].categories
        if (after or ())[: len(before or ())] != (before or ()):
            raise ValueError(
                f"the table cannot grow: categories of {name!r} have other codes in the larger "
                f"one; expected categories={{{name!r}: [...]}} with all names"
            )


def dated_stamps(stamps: Array | None, zone: str | None) -> Array:
    """Return time stamps; TypeError if they have no date, or dates that are of no zone."""
    if stamps is None or stamps.dtype.kind != "M":
        given = "none" if stamps is None else str(stamps.dtype)
        raise TypeError(f"dates need time stamps of dates or times, got {given}")
    check_times(zone, stamps)
    return stamps


def check_times(zone: str | None, stamps: Array | None) -> None:
    """Raise TypeError for a zone of time stamps that are dates."""
    if zone is None or stamps is None or stamps.dtype.kind != "M":
        return
    if np.datetime_data(stamps.dtype)[0] in ("Y", "M", "W", "D"):
        raise TypeError(
            f"`time_zone` is {zone!r}, and the timestamps are dates ({stamps.dtype}), which have "
            "no zone; expected times"
        )


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


def context_of(
    feature: CalendarFeature | DateFeature,
    columns: Mapping[str, ColumnData],
    names: Sequence[Any],
    series: Int64s,
    rows: slice | Int64s,
) -> Array | None:
    """Return what a feature needs of rows besides their time: their zones, or groups, or None.

    Parameters
    ----------
    columns, names
        The columns of the table, and the names of its series.
    series, rows
        The number of the series of each row, and rows of these series with their zones.
    """
    if isinstance(feature, DateFeature):
        return feature.groups_of(names)[series]
    if feature.zone_column is None:
        return None
    column = columns[feature.zone_column]
    if column.categories is None:
        raise ValueError(
            f"column {feature.zone_column!r}, the zones of {feature.name!r}, is {column.dtype} "
            "now; expected names of zones, as when the feature was computed"
        )
    zones: Array = np.array(column.categories)[column.values[rows]]
    return zones


def calendar_columns(
    features: Sequence[CalendarFeature | DateFeature],
    stamps: Array | None,
    offsets: Int64s,
    columns: Mapping[str, ColumnData],
    names: Sequence[Any],
) -> dict[str, Array]:
    """Return the values of calendar features of all rows, by name.

    `columns` has the columns of zones, and `names` are those of the series.
    """
    total = int(offsets[-1])
    found = {one.name: aligned_empty((total,), np.dtype(one.dtype)) for one in features}
    for _, group in groupby(features, _kind):
        alike = list(group)
        for start in range(0, total, ROWS_AT_A_TIME):
            rows = slice(start, min(start + ROWS_AT_A_TIME, total))
            series = _series(offsets, rows)
            ages = np.arange(rows.start, rows.stop, dtype=np.int64) - offsets[series]
            context = context_of(alike[0], columns, names, series, rows)
            times = None if stamps is None else stamps[rows]
            places = None
            for one in alike:
                if isinstance(one, DateFeature):
                    found[one.name][rows] = one.values(times, ages, context)
                    continue
                # Sine and cosine have the same places.
                places = one.places(times, ages, context) if places is None else places
                found[one.name][rows] = one.encode(places)
    return found


def _kind(feature: CalendarFeature | DateFeature) -> tuple[Any, ...]:
    """Return what features have in common whose places are the same."""
    if isinstance(feature, DateFeature):
        return (feature.name,)
    return feature.kind, feature.zone, feature.zone_column


def _series(offsets: Int64s, rows: slice) -> Int64s:
    """Return the number of the series of each row."""
    numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
    found: Int64s = np.searchsorted(offsets, numbers, side="right") - 1
    return found


def again(
    old: Mapping[str, ColumnData],
    columns: Mapping[str, ColumnData],
    stamps: Array,
    offsets: Int64s,
    names: Sequence[Any],
) -> dict[str, ColumnData]:
    """Return the calendar features among old columns for other rows, whose columns are given.

    A row that was added has the zone of the row before.
    """
    features = [one.calendar for one in old.values() if one.calendar is not None]
    zones = {one.zone_column for one in features if one.zone_column is not None}
    filled = {name: _filled(columns[name]) for name in zones}
    values = calendar_columns(features, stamps, offsets, filled, names)
    return {
        one.name: ColumnData(one.name, values[one.name], missing=0, calendar=one)
        for one in features
    }


def _filled(column: ColumnData) -> ColumnData:
    """Return codes with those of the row before where they are missing; the first one is not."""
    rows = np.where(column.observed(), np.arange(len(column.values)), 0)
    return replace(column, values=column.values[np.maximum.accumulate(rows)], validity=None)


def dated_features(
    data: Any,
    date: str,
    ids: str | Iterable[str],
    name: str,
    zone: str | None,
    id_columns: Sequence[str],
    columns: Mapping[str, ColumnData],
) -> list[DateFeature]:
    """Return the columns of a table of dates; see `Table.with_dates`.

    `id_columns` and `columns` are those of the table of series.
    """
    ids = as_names("id_columns", ids)
    zone = None if zone is None else check_zone(zone)
    for one in ids:
        if one not in id_columns:
            raise unknown_column(one, id_columns, "the table", "id column")
    table = as_arrow_table(data)
    for one in (date, *ids):
        if one not in table.column_names:
            raise unknown_column(one, table.column_names, "the table of dates")
    days = _days(date, table.column(date))
    values = {
        one: _date_values(one, table.column(one))
        for one in table.column_names
        if one not in (date, *ids, *pandas_index(table.schema))
    } or {name: np.ones(len(days), dtype=np.bool_)}
    for one in values:
        if one in columns:
            raise ValueError(
                f"the table has a column {one!r} already; expected another name in the table of "
                "dates"
            )
    keys = {one: table.column(one).to_pylist() for one in ids}
    return date_features(days, keys, values, id_columns, zone)


def _days(name: str, column: Any) -> Array:
    if not pa.types.is_date(column.type) and not pa.types.is_timestamp(column.type):
        raise TypeError(f"column {name!r} of dates is {column.type}; expected dates")
    if column.null_count:
        raise ValueError(f"column {name!r} of dates has missing values; expected none")
    stamps = np.asarray(column.cast(pa.timestamp("us")) if column.type.bit_width > 32 else column)
    days = cast_times(stamps, "M8[D]", floor=True)
    hours = np.flatnonzero(days != stamps)
    if len(hours):
        raise OverflowError(
            f"column {name!r} of dates is {time_text(stamps[hours[0]])} in row {hours[0]}; "
            "expected dates, or times at midnight"
        )
    return days


def warn_of_dates(
    features: Sequence[DateFeature],
    values: Mapping[str, ColumnData],
    stamps: Array,
    offsets: Int64s,
    names: Sequence[Any],
    zone: str | None,
) -> None:
    """Warn of ids of dates that no series has, or else if no row has one of the dates.

    `values` are the columns made of the dates, and `zone` is that of the table. O(series) time, and
    O(rows * log(dates)) where all values are 0.
    """
    one = features[0]
    ids = [key[0] if len(key) == 1 else key for key in one.groups]
    lacking = np.setdiff1d(np.arange(len(ids)), one.groups_of(names)).tolist()
    if one.places and lacking:
        warn(
            f"{len(lacking)} of {len(ids)} ids in the table of dates are those of no series: "
            f"{some_names(ids, lacking)}"
        )
    if not len(one.keys) or not len(stamps) or len(lacking) == len(ids):
        return
    if any(values[feature.name].values.any() for feature in features):
        return
    dates = replace(one, dtype="bool", found=np.ones(len(one.keys), np.bool_))
    if not calendar_columns([dates], stamps, offsets, values, names)[one.name].any():
        days = np.sort((one.keys & 0xFFFFFFFF) - (1 << 31)).astype("M8[D]")
        first, last = (time_text(stamp) for stamp in (stamps.min(), stamps.max()))
        warn(
            f"no row of the table has one of the dates, {days[0]} to {days[-1]}: its time stamps "
            f"are from {first} to {last}{'' if zone is None else ' in UTC'}, so "
            f"that {', '.join(values)} is 0 in all rows"
        )


def _date_values(name: str, column: Any) -> Array:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise TypeError(f"column {name!r} of the table of dates is {kind}; expected numbers, bools")
    if column.null_count:
        raise ValueError(f"column {name!r} of the table of dates has missing values; expected none")
    values: Array = column.to_numpy()
    return values


def steps_since(name: str, column: ColumnData, offsets: Int64s, dtype: np.dtype[Any]) -> Array:
    """Return the rows since the last event of the series, NaN before the first one. O(rows).

    An event is a row whose value is observed and not 0.
    """
    if column.categories is not None:
        raise TypeError(
            f"column {name!r} has categories; expected bools or numbers, 0 for no event"
        )
    total = len(column.values)
    found = aligned_empty((total,), dtype)
    last = -1
    for start in range(0, total, ROWS_AT_A_TIME):
        rows = slice(start, min(start + ROWS_AT_A_TIME, total))
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
        values = column.values[rows]
        if is_bits(column.dtype):
            values = values & 0x7FFF  # Without the sign of -0.
        events = column.observed(rows) & (values != 0)
        latest = np.maximum.accumulate(np.where(events, numbers, -1))
        latest = np.maximum(latest, last)
        last = int(latest[-1])
        inside = latest >= offsets[_series(offsets, rows)]
        found[rows] = np.where(inside, numbers - latest, np.nan)
    return found
