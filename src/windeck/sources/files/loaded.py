"""Columns as they were read or given, before their rows are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from windeck.sources.tables.arraytypes import Array
from windeck.sources.tables.columns import ColumnData


@dataclass(frozen=True)
class Origin:
    """Where a table came from, for `explain`."""

    files: int
    kinds: tuple[str, ...]
    columns: int
    nbytes: int
    mapped: bool = False


class Loaded(NamedTuple):
    """Columns as read, before their rows are looked at."""

    columns: list[ColumnData]
    ids: list[ColumnData]
    time: ColumnData | None
    matrix: Array | None
    origin: Origin | None
    owned: bool


def amount(nbytes: float) -> str:
    """A number of bytes in the largest decimal unit that leaves a number above 1."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return (
                f"{nbytes / size:.3g} {unit}"
                if nbytes < 100 * size
                else (f"{nbytes / size:.0f} {unit}")
            )
    return f"{int(nbytes)} bytes"
