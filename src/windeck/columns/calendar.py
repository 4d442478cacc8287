"""Calendar features: columns that are functions of the time stamp of a row, or of its place.

Dates of a table, such as holidays, are such a function too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import arrow_times, cast_times

__all__ = ["AGE", "CalendarFeature", "DateFeature", "date_features", "features_of", "local_times"]


class _Cycle(NamedTuple):
    """Units of time that are counted, the larger unit they are counted in, and their number."""

    unit: str
    within: str
    period: int
    offset: int = 0


# Days count from Thursday 1970-01-01, so that Monday is day 0 of the week after 3 days more.
_CYCLES = {
    "minute": _Cycle("m", "h", 60),
    "hour": _Cycle("h", "D", 24),
    "weekday": _Cycle("D", "", 7, 3),
    "day": _Cycle("D", "M", 31),
    "yearday": _Cycle("D", "Y", 366),
    "month": _Cycle("M", "Y", 12),
}
#: The feature that depends on the place of a row in its series, and on no time stamp.
AGE = "age"


@dataclass(frozen=True)
class CalendarFeature:
    """The description of a column of a table that is known for every time stamp, also later ones.

    Attributes
    ----------
    name : str
        Name of the column.
    kind : str
        A feature of `Table.with_calendar`, such as "hour".
    encoding : "sin", "cos", "scaled" or "log"
        "log" is that of the age.
    dtype : str
        Floating dtype of the values.
    zone : str or None
        Zone in whose local time the feature is; time stamps are in UTC then.
    zone_column : str or None
        Column of the table with the names of such zones, instead of one.

    Examples
    --------
    >>> (feature,) = features_of(["hour"], "scaled", "float32")
    >>> feature.values(np.array(["2024-01-01T23:00"], "M8[s]"), np.zeros(1, np.int64))
    array([0.5], dtype=float32)
    """

    name: str
    kind: str
    encoding: str
    dtype: str
    zone: str | None = None
    zone_column: str | None = None

    def values(self, stamps: Array | None, ages: Int64s, zones: Array | None = None) -> Array:
        """Return the values of rows.

        Parameters
        ----------
        stamps : datetime64 ndarray, shape (rows,), or None
            None for the age alone.
        ages : int64 ndarray, shape (rows,)
            Number of rows since the series began.
        zones : array of str, shape (rows,), optional
            The zone of each row, of a feature with a `zone_column`.
        """
        return self.encode(self.places(stamps, ages, zones)).astype(self.dtype)

    def places(
        self, stamps: Array | None, ages: Int64s | None, zones: Array | None = None
    ) -> Int64s:
        """Return the places of rows in the cycle of the feature, from 0; of the age, `ages`."""
        if self.kind == AGE:
            assert ages is not None
            return ages
        assert stamps is not None
        stamps = self._local(stamps, zones)
        cycle = _CYCLES[self.kind]
        units = cast_times(stamps, f"M8[{cycle.unit}]", floor=True)
        if not cycle.within:
            return np.asarray((units.astype(np.int64) + cycle.offset) % cycle.period)
        began = cast_times(stamps.astype(f"M8[{cycle.within}]"), units.dtype)
        since: Int64s = (units - began).astype(np.int64)
        return since

    def _local(self, stamps: Array, zones: Array | None) -> Array:
        """Return time stamps as local times of their zones."""
        if self.zone_column is None:
            return stamps if self.zone is None else local_times(stamps, self.zone)
        assert zones is not None
        found: Array = arrow_times(stamps).copy()
        for zone in np.unique(zones).tolist():
            rows = zones == zone
            found[rows] = local_times(stamps[rows], zone)
        return found

    def encode(self, places: Int64s) -> Array:
        """Return the values of places, in float64."""
        found: Array
        if self.encoding == "log":
            found = np.log10(2.0 + places)
        elif self.encoding == "scaled":
            found = places / (_CYCLES[self.kind].period - 1) - 0.5
        else:
            angle = places * (2 * np.pi / _CYCLES[self.kind].period)
            found = np.sin(angle) if self.encoding == "sin" else np.cos(angle)
        return found


@dataclass(frozen=True, eq=False)
class DateFeature:
    """The description of a column that is a function of the local date, and of ids.

    Attributes
    ----------
    name, dtype : str
        Name of the column, and dtype of its values.
    keys : int64 ndarray, shape (dates,)
        Number of the group of series and day of each date, as from `_date_keys`, ascending.
    found : ndarray, shape (dates,)
        The value of each date; other dates have 0 or False.
    places : tuple of int
        The places of the ids in the name of a series that make its group.
    groups : mapping of ids to int
    zone : str or None
        Zone of the local dates; time stamps are in UTC then.
    """

    name: str
    dtype: str
    keys: Int64s
    found: Array
    places: tuple[int, ...] = ()
    groups: Mapping[Any, int] = field(default_factory=dict)
    zone: str | None = None
    #: As of a `CalendarFeature`.
    zone_column: None = None

    def values(self, stamps: Array | None, ages: Int64s, groups: Array | None = None) -> Array:
        """Return the values of rows; `groups` has the number of the group of each row."""
        assert stamps is not None
        local = stamps if self.zone is None else local_times(stamps, self.zone)
        days = cast_times(local, "M8[D]", floor=True).view(np.int64)
        keys = _date_keys(np.zeros(len(days), np.int64) if groups is None else groups, days)
        rows = np.minimum(np.searchsorted(self.keys, keys), max(len(self.keys) - 1, 0))
        values = np.zeros(len(days), self.dtype)
        if len(self.keys):
            same = self.keys[rows] == keys
            values[same] = self.found[rows[same]]
        return values

    def groups_of(self, names: Sequence[Any]) -> Int64s:
        """Return the number of the group of each series, -1 for one without dates."""
        if not self.places:
            return np.zeros(len(names), dtype=np.int64)
        parts = (name if isinstance(name, tuple) else (name,) for name in names)
        keys = (tuple(part[place] for place in self.places) for part in parts)
        return np.fromiter((self.groups.get(key, -1) for key in keys), np.int64, len(names))


def _date_keys(groups: Array, days: Array) -> Int64s:
    """Return numbers that differ where groups or days of 32 bits do, and ascend with both."""
    found: Int64s = (groups.astype(np.int64) << 32) + (days.astype(np.int64) + (1 << 31))
    return found


def date_features(
    days: Array,
    ids: Mapping[str, Sequence[Any]],
    columns: Mapping[str, Array],
    id_columns: Sequence[str],
    zone: str | None,
) -> list[DateFeature]:
    """Return the columns of a table of dates; see `Table.with_dates`.

    Parameters
    ----------
    days : datetime64[D] ndarray, shape (dates,)
    ids : mapping of an id column to the id of each date
    columns : mapping of name to the value of each date
    id_columns : names
        Those of the table of series.

    Raises
    ------
    ValueError
        A date is there twice.
    """
    keys = list(zip(*ids.values(), strict=True)) if ids else [()] * len(days)
    groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    numbers = np.fromiter((groups[key] for key in keys), np.int64, len(keys))
    composite = _date_keys(numbers, days.view(np.int64))
    order = np.argsort(composite, kind="stable")
    sorted_keys = composite[order]
    twice = np.flatnonzero(sorted_keys[1:] == sorted_keys[:-1])
    if len(twice):
        row = int(order[twice[0] + 1])
        where = f" of {', '.join(map(repr, keys[row]))}" if ids else ""
        raise ValueError(f"the date {days[row]}{where} is there twice; expected each date once")
    places = tuple(list(id_columns).index(name) for name in ids)
    return [
        DateFeature(name, values.dtype.name, sorted_keys, values[order], places, groups, zone)
        for name, values in columns.items()
    ]


def local_times(stamps: Array, zone: str) -> Array:
    """Return time stamps in UTC as local times of a zone, in a unit that Arrow has.

    Examples
    --------
    >>> local_times(np.array(["2024-07-01T23:00"], "M8[s]"), "Europe/Berlin")
    array(['2024-07-02T01:00:00'], dtype='datetime64[s]')
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    times = arrow_times(stamps)
    unit = str(np.datetime_data(times.dtype)[0])
    moments = pa.array(times.view(np.int64)).cast(pa.timestamp(unit, "UTC"))
    local = pc.local_timestamp(moments.cast(pa.timestamp(unit, zone))).cast(pa.int64())
    found: Array = np.array(local).view(times.dtype)
    return found


def features_of(
    kinds: Iterable[str],
    encoding: str,
    dtype: Any,
    zone: str | None = None,
    zone_column: str | None = None,
) -> list[CalendarFeature]:
    """Return the columns of calendar features; options are those of `Table.with_calendar`.

    Raises
    ------
    TypeError, ValueError
        A feature or an encoding is unknown; `dtype` is not a floating one.
    """
    kinds = tuple(kinds)
    for kind in kinds:
        if kind not in _CYCLES and kind != AGE:
            raise ValueError(f"`features` must be of {', '.join(_CYCLES)} and age, got {kind!r}")
    if encoding not in ("sincos", "scaled"):
        raise ValueError(f"`encoding` must be 'sincos' or 'scaled', got {encoding!r}")
    floating = np.dtype(dtype)
    if floating.kind != "f":
        raise TypeError(f"`dtype` must be a floating dtype of NumPy, got {floating}")
    zones = zone, zone_column
    found = []
    for kind in dict.fromkeys(kinds):
        if kind == AGE:
            found.append(CalendarFeature(kind, kind, "log", floating.name))
        elif encoding == "scaled":
            found.append(CalendarFeature(kind, kind, encoding, floating.name, *zones))
        else:
            found += [
                CalendarFeature(f"{kind}_{part}", kind, part, floating.name, *zones)
                for part in ("sin", "cos")
            ]
    return found
