"""A model of regular series: datetimes of Python, one row at a time.

It shares no code with the library.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

UTC = dt.timezone.utc
Row = dict[str, Any]


@dataclass(frozen=True)
class GridModel:
    """A grid: a number, a timedelta or a number of months as step, its origin, and a zone."""

    step: Any
    origin: Any
    months: int = 0
    zone: str | None = None

    def slot(self, time: Any) -> int:
        """Return the number of the last slot at or before a time."""
        guess = self._guess(time)
        while self.time(guess) > time:
            guess -= 1
        while self.time(guess + 1) <= time:
            guess += 1
        return guess

    def _guess(self, time: Any) -> int:
        if self.months:
            return int((time.year - self.origin.year) * 12 // self.months)
        return int((time - self.origin) // self.step)

    def time(self, slot: int) -> Any:
        """Return the time of a slot, in UTC."""
        if self.months:
            month = self.origin.year * 12 + self.origin.month - 1 + slot * self.months
            local = dt.datetime(month // 12, month % 12 + 1, 1)
        else:
            local = self.origin + slot * self.step
        if self.zone is None:
            return local
        zone = zoneinfo.ZoneInfo(self.zone)
        # The first moment whose local time is not before this one.
        near = local.replace(tzinfo=zone, fold=0).astimezone(UTC) - dt.timedelta(hours=3)
        near = near.replace(minute=0, second=0)
        while near.astimezone(zone).replace(tzinfo=None) < local:
            near += dt.timedelta(minutes=15)
        return near.replace(tzinfo=None)


def regular_rows(
    grid: GridModel,
    times: Sequence[Any],
    rows: Sequence[Row],
    off_grid: str,
    duplicates: str,
    floats: set[str],
) -> list[tuple[Any, Row]] | None:
    """Return times and rows of one series on a grid; None where the options make it an error."""
    slots: dict[int, list[Row]] = {}
    for time, row in zip(times, rows, strict=True):
        slot = grid.slot(time)
        before, after = grid.time(slot), grid.time(slot + 1)
        if time != before and off_grid == "error":
            return None
        if off_grid == "nearest" and time - before > after - time:
            slot += 1
        slots.setdefault(slot, []).append(row)
    found: list[tuple[Any, Row]] = []
    for slot in range(min(slots), max(slots) + 1):
        here = slots.get(slot, [])
        if len(here) > 1 and duplicates == "error":
            return None
        merged = _merged(here, duplicates, floats) if here else dict.fromkeys(rows[0])
        if merged is None:
            return None
        found.append((grid.time(slot), merged))
    return found


def _merged(rows: list[Row], duplicates: str, floats: set[str]) -> Row | None:
    if duplicates != "mean":
        return rows[-1] if duplicates == "last" else rows[0]
    merged: Row = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in floats:
            seen = [value for value in values if value is not None]
            merged[name] = sum(seen) / len(seen) if seen else None
        elif any(value != values[0] for value in values):
            return None
        else:
            merged[name] = values[0]
    return merged
