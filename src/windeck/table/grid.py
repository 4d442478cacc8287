"""Regular grids of time: which time stamps are on a grid, and which step of it others are at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from windeck.columns.calendar import local_times
from windeck.columns.dtypes import Int64s
from windeck.columns.times import (
    cast_times,
    check_zone,
    duration_text,
    parse_time,
    ticks_of,
    time_text,
)
from windeck.table.frequency import phase_of, step_of, text_of
from windeck.table.local_times import is_utc, skipped_days, utc_times

__all__ = ["DUPLICATES", "OFF_GRID", "Grid", "OffGrid", "grid_of"]

OffGrid = Literal["error", "nearest", "floor"]
OFF_GRID = ("error", "nearest", "floor")
DUPLICATES = ("error", "first", "last", "mean")
_DAY = np.timedelta64(1, "D")
#: Monday 1970-01-05, in days.
_MONDAY = 4


@dataclass(frozen=True)
class Grid:
    """A grid of time in the ticks of a column of time stamps, or of integers.

    Attributes
    ----------
    dtype : str
        datetime64 of the time stamps, or "int64".
    step : int
        Ticks between two slots; months of a grid of months.
    origin : int
        Tick of slot 0; the month of a grid of months, counted from 1970-01.
    months : bool
        Slots are the first days of months.
    zone : str or None
        Slots are counted in local times of this zone, and ticks are in UTC. A day that its clocks
        leave out has no slot.
    off_grid : "error", "nearest" or "floor"
        The slot of a tick that is at none.
    zoned : bool
        Time stamps have a time zone: messages say that they are in UTC.
    """

    dtype: str
    step: int
    origin: int
    months: bool = False
    zone: str | None = None
    off_grid: OffGrid = "error"
    zoned: bool = False

    @property
    def even(self) -> bool:
        """True if all steps have one length in ticks."""
        return not self.months and self.zone is None

    def slots(self, ticks: Int64s, origin: Int64s | None = None) -> tuple[Int64s, Any]:
        """Return the slot of each tick, and which ticks are at none. O(n).

        With ``off_grid="error"`` slots of the latter are those before them.

        Parameters
        ----------
        origin
            Ticks of slot 0, one for each tick, instead of that of the grid.
        """
        local = self._local(ticks)
        if origin is not None:
            local = local - self._local(origin)
        slots, off = self._floor(local, 0 if origin is not None else self.origin)
        if self.zone is not None:
            slots = slots - sum(skipped <= slots for skipped in self._skipped(origin))
            # Clocks that are set back over midnight show the day before again.
            slots = slots + (self.ticks(slots + 1, origin) <= ticks)
            # A day may begin at another time than midnight, which its clocks skip.
            off = self.ticks(slots, origin) != ticks
        if self.off_grid != "nearest" or not off.any():
            return slots, off
        before, after = self.ticks(slots, origin), self.ticks(slots + 1, origin)
        return slots + (ticks - before > after - ticks), off

    def ticks(self, slots: Int64s, origin: Int64s | None = None) -> Int64s:
        """Return the tick of each slot. O(n)."""
        if self.months:
            months = (slots * self.step + self.origin).view("M8[M]")
            local = cast_times(months.astype("M8[D]"), self.dtype).view(np.int64)
        else:
            first = self.origin if origin is None else self._local(origin)
            for skipped in self._skipped(origin):
                slots = slots + (slots >= skipped)
            local = slots * self.step + first
        return local if self.zone is None else self._utc(local)

    def _skipped(self, origin: Int64s | None) -> list[Any]:
        """Return where slots would be on days that clocks leave out, ascending; one per origin."""
        if self.zone is None or self.months:
            return []
        day = ticks_of(_DAY, self.dtype)
        first = (self.origin if origin is None else self._local(origin)) // day
        places = [
            np.divmod(skipped - first, self.step // day) for skipped in skipped_days(self.zone)
        ]
        return [np.where(rest == 0, slot, np.iinfo(np.int64).max) for slot, rest in places]

    def first_tick(self, tick: int) -> int:
        """Return the least tick that has the slot of `tick`."""
        slot = self.slots(np.array([tick]))[0]
        here = int(self.ticks(slot)[0])
        if self.off_grid != "nearest":
            return here
        before = int(self.ticks(slot - 1)[0])
        return before + (here - before) // 2 + 1

    def _floor(self, local: Int64s, origin: int) -> tuple[Int64s, Any]:
        """Return the slot at or before each local tick, and which ticks are after it."""
        if self.months:
            stamps = local.view(self.dtype)
            months = stamps.astype("M8[M]").astype(np.int64)
            slots = (months - origin) // self.step
            begin = (slots * self.step + origin).view("M8[M]").astype("M8[D]")
            return slots, local != cast_times(begin, self.dtype).view(np.int64)
        slots = local // self.step
        rest = local - slots * self.step
        if origin:
            # `origin` is less than a step, so that no difference leaves 64 bits.
            late = rest < origin
            slots -= late
            rest += late * self.step - origin
        return slots, rest != 0

    def _local(self, ticks: Int64s) -> Int64s:
        if self.zone is None:
            return ticks
        return local_times(ticks.view(self.dtype), self.zone).view(np.int64)

    def _utc(self, local: Int64s) -> Int64s:
        assert self.zone is not None
        return utc_times(local.view(self.dtype), self.zone).view(np.int64)

    def stamp(self, tick: int) -> str:
        """Return a tick as text."""
        return self._text(tick) + (" UTC" if self.zoned else "")

    def _text(self, tick: int) -> str:
        return time_text(np.array([tick]).view(self.dtype)[0])

    def describe(self) -> str:
        """Return the grid as text, for messages."""
        if self.months:
            return f"first days of every {self.step} months"
        if self.dtype == "int64":
            return f"steps of {self.step} from {self.origin}"
        step = duration_text(self.step, self.dtype)
        if self.zone is None:
            return f"steps of {step} from {self.stamp(self.origin)}"
        return f"steps of {step} from {self._text(self.origin)} in the zone {self.zone}"


def grid_of(
    dtype: np.dtype[Any],
    step: Any,
    origin: Any,
    off_grid: str,
    zone: str | None,
    stored: str | None = None,
) -> tuple[Grid, bool]:
    """Return the grid of options of `Table.regularize`, and whether series have their own origins.

    `stored` is the time zone of the time stamps.

    Raises
    ------
    TypeError, ValueError
        An option is wrong, or not one of time stamps of `dtype`.
    """
    if off_grid not in OFF_GRID:
        raise ValueError(f"`off_grid` must be 'error', 'nearest' or 'floor', got {off_grid!r}")
    span = step_of(step, "step")
    if isinstance(span, int) == (dtype.kind == "M"):
        kind = "a duration such as '1h'" if dtype.kind == "M" else "an integer"
        raise TypeError(f"`step` must be {kind}, as the timestamps are {dtype}, got {step!r}")
    months = not isinstance(span, int) and np.datetime_data(span.dtype)[0] in "MY"
    own = isinstance(origin, str) and origin == "first"
    if months and own:
        raise ValueError("`origin` must not be 'first' with a step of months, which begin on day 1")
    grid = Grid(str(dtype), _ticks(span, step, dtype, months), 0, months, off_grid=off_grid)  # type: ignore[arg-type]
    grid = replace(grid, zoned=stored is not None)
    if zone is not None:
        zone = _checked_zone(zone, span, dtype, months)
        grid = replace(grid, zone=None if is_utc(zone) else zone)
    elif stored is not None and not is_utc(stored) and (months or _is_days(span)):
        offset = stored[0] in "+-"
        named = "the name of a zone as `time_zone`" if offset else f"time_zone={stored!r}"
        raise ValueError(
            f"`step` is {step!r}, and the timestamps are in the time zone {stored!r}, whose days "
            f"are not those of UTC; expected {named} for days, weeks and months of local "
            "time, or time_zone='UTC'"
        )
    phase = None if isinstance(span, int) else phase_of(step, "step")
    if phase is not None and (own or (origin is None and not months)):
        origin = _first_of_weeks(phase, step, own)
    if own:
        return grid, True
    first = _origin(grid, span, origin)
    if phase is not None:
        _check_phase(grid, phase, step, origin, first)
    return replace(grid, origin=first % grid.step), False


def _ticks(span: Any, step: Any, dtype: np.dtype[Any], months: bool) -> int:
    """Return a step in ticks of time stamps, or in months."""
    if isinstance(span, int):
        return span
    if months:
        return ticks_of(span, "M8[M]")
    fine = np.datetime_data(dtype)[0] not in "MY"
    found = ticks_of(span, dtype) if fine else 0
    unit, count = np.datetime_data(dtype)
    if not found or np.timedelta64(found * count, unit) != span:  # type: ignore[call-overload]
        raise ValueError(
            f"`step` must be a multiple of the unit of the timestamps, {dtype}, got {step!r}"
        )
    return found


def _checked_zone(zone: str, span: Any, dtype: np.dtype[Any], months: bool) -> str:
    check_zone(zone)
    if dtype.kind != "M" or str(np.datetime_data(dtype)[0]) not in ("s", "ms", "us", "ns"):
        raise TypeError(f"`time_zone` is for times of seconds or finer, got {dtype}")
    if not months and not _is_days(span):
        raise ValueError(
            f"`time_zone` is {zone!r}, and `step` is {span}; expected whole days, weeks or months: "
            "shorter steps are counted in UTC, from `origin`"
        )
    return zone


def _is_days(span: Any) -> bool:
    """Return True for whole days and weeks."""
    return not isinstance(span, int) and bool(span % _DAY == np.timedelta64(0))


def _first_of_weeks(day: int, step: Any, own: bool) -> str:
    """Return the origin of weeks that begin on a day; those of each series have their own."""
    if own:
        raise ValueError(
            f"`step` is {step!r}, whose weeks begin on one day; expected a step without it for "
            "origin='first'"
        )
    return str(np.datetime64(_MONDAY + day, "D"))


def _check_phase(grid: Grid, phase: int, step: Any, origin: Any, first: int) -> None:
    """Check that an origin is at the day of weeks, or the month of quarters and years, of a step.

    Those that begin in other months than steps from January on need an origin: a step of several
    years does not say which of them is the first.
    """
    if not grid.months:
        stamp = np.array([first]).view(grid.dtype).astype("M8[D]").astype(np.int64)
        if (int(stamp[0]) - _MONDAY - phase) % 7:
            raise ValueError(
                f"`step` is {step!r}, and `origin` is {origin!r}, another day of the week; "
                "expected one of both"
            )
        return
    unit = 3 if "Q" in text_of(step) else 12
    if (first - phase) % unit:
        raise ValueError(
            f"`step` is {step!r}, and `origin` is {origin!r}; expected step='{grid.step}MS' with a "
            f"first month, such as origin='2024-{phase + 1:02}-01'"
        )


def _origin(grid: Grid, span: Any, origin: Any) -> int:
    """Return the tick, or the month, of an origin; in local time with a zone."""
    if grid.dtype == "int64":
        if origin is None:
            return 0
        if isinstance(origin, bool) or not isinstance(origin, (int, np.integer)):
            raise TypeError(f"`origin` must be an integer or 'first', got {origin!r}")
        return int(origin)
    if origin is None:
        weeks = not grid.months and span % (7 * _DAY) == np.timedelta64(0)
        monday = np.array([_MONDAY], np.int64).view("M8[D]")
        return int(cast_times(monday, grid.dtype).view(np.int64)[0]) if weeks else 0
    try:
        stamp = parse_time(origin)
    except (TypeError, ValueError):
        raise ValueError(
            f"`origin` must be a time such as '2024-01-01T06:00', or 'first', got {origin!r}"
        ) from None
    if grid.months:
        month = stamp.astype("M8[M]")
        if month.astype("M8[D]") != stamp:
            raise ValueError(f"`origin` must be the first day of a month, got {origin!r}")
        return int(month.astype(np.int64))
    return int(cast_times(np.array([stamp]), grid.dtype, "`origin`").view(np.int64)[0])
