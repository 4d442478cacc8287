"""Calendar features: columns that are functions of the time stamp of a row, or of its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from windeck.columns.dtypes import Array, Int64s
from windeck.columns.times import arrow_times, cast_times

__all__ = ["AGE", "CalendarFeature", "features_of", "local_times"]


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
        found = arrow_times(stamps).copy()
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
