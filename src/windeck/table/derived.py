"""Tables derived from others: columns added or counted, and calendar features of time stamps."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from windeck import _core
from windeck.columns.columns import ColumnData, aligned_empty, from_array
from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import cast_times

# Rows computed at a time, so that temporary memory does not grow with the table.
ROWS_AT_A_TIME = 1 << 18


class _Feature(NamedTuple):
    """A calendar feature: units to count, of which larger unit, and the length of its cycle."""

    unit: str
    within: str
    period: int
    offset: int = 0


# Days count from Thursday 1970-01-01, so that Monday is day 0 of the week after 3 days more.
FEATURES = {
    "minute": _Feature("m", "h", 60),
    "hour": _Feature("h", "D", 24),
    "weekday": _Feature("D", "", 7, 3),
    "day": _Feature("D", "M", 31),
    "yearday": _Feature("D", "Y", 366),
    "month": _Feature("M", "Y", 12),
}
ENCODINGS = ("sincos", "scaled")


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


def calendar_columns(
    stamps: Array | None,
    offsets: Int64s,
    features: str | Iterable[str],
    encoding: str,
    dtype: Any,
    taken: Container[str],
) -> dict[str, Array]:
    """Return calendar features of time stamps as columns; see `Table.with_calendar`.

    `taken` has the names of the columns that the table has.
    """
    names = (features,) if isinstance(features, str) else tuple(features)
    for name in names:
        if name not in FEATURES and name != "age":
            raise ValueError(f"`features` must be of {', '.join(FEATURES)} and age, got {name!r}")
    if encoding not in ENCODINGS:
        raise ValueError(f"`encoding` must be 'sincos' or 'scaled', got {encoding!r}")
    kind = np.dtype(dtype)
    if kind.kind != "f":
        raise TypeError(f"`dtype` must be a floating dtype of NumPy, got {kind}")
    if set(names) - {"age"} and (stamps is None or stamps.dtype.kind != "M"):
        found = "none" if stamps is None else str(stamps.dtype)
        raise TypeError(f"calendar features need time stamps of dates or times, got {found}")
    columns: dict[str, Array] = {}
    num_rows = int(offsets[-1])
    for name in names:
        keys: tuple[str, ...] = (name,)
        if name != "age" and encoding == "sincos":
            keys = (f"{name}_sin", f"{name}_cos")
        for key in keys:
            if key in taken:
                raise ValueError(
                    f"the table has a column {key!r}, the name of a calendar feature; expected "
                    "another name, or a feature that the table lacks"
                )
        columns |= {key: aligned_empty((num_rows,), kind) for key in keys}
        for start in range(0, num_rows, ROWS_AT_A_TIME):
            rows = slice(start, min(start + ROWS_AT_A_TIME, num_rows))
            if name == "age":
                columns[name][rows] = _age(offsets, rows)
                continue
            assert stamps is not None
            turns = _count(stamps[rows], FEATURES[name])
            if encoding == "scaled":
                columns[name][rows] = turns / (FEATURES[name].period - 1) - 0.5
            else:
                angle = turns * (2 * np.pi / FEATURES[name].period)
                columns[keys[0]][rows], columns[keys[1]][rows] = np.sin(angle), np.cos(angle)
    return columns


def _count(stamps: Array, feature: _Feature) -> Int64s:
    """Return the number of units since the larger unit began, from 0."""
    units = cast_times(stamps, f"M8[{feature.unit}]", floor=True)
    if not feature.within:
        return np.asarray((units.astype(np.int64) + feature.offset) % feature.period)
    began = cast_times(stamps.astype(f"M8[{feature.within}]"), units.dtype)
    since: Int64s = (units - began).astype(np.int64)
    return since


def _age(offsets: Int64s, rows: slice) -> Array:
    """Return the logarithm to base 10 of 2 + the rows since the series began."""
    numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
    series = np.searchsorted(offsets, numbers, side="right") - 1
    age: Array = np.log10(2.0 + (numbers - offsets[series]))
    return age
