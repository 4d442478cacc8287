"""Rows of a file on a grid of time: rows of missing values between sorted rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windeck._util.text import plural
from windeck.columns.dtypes import Array, Bools, Int64s
from windeck.io.options import ReadOptions
from windeck.preparation.sorting import SortKeys
from windeck.table.grid import Grid, grid_of
from windeck.table.regular import check_rows, mean_rows, too_many_rows
from windeck.table.timestamps import GridReport

__all__ = ["GridOptions", "RegularRows", "SlotKey"]


@dataclass(frozen=True)
class GridOptions:
    """The options of `prepare` that put rows on a grid; see `Table.regularize`."""

    step: Any
    origin: Any = None
    off_grid: str = "error"
    zone: str | None = None
    max_rows: int | None = None

    def grid(self, kind: Any) -> Grid:
        """Return the grid for a column of time of an Arrow type."""
        unit = "D" if pa.types.is_date(kind) else getattr(kind, "unit", None)
        dtype = np.dtype(np.int64) if unit is None else np.dtype(f"M8[{unit}]")
        stored = getattr(kind, "tz", None)
        return grid_of(dtype, self.step, self.origin, self.off_grid, self.zone, stored)[0]

    def most_rows(self, rows: int) -> int:
        """Return the rows that may be written for `rows` that were read."""
        return check_rows(self.max_rows, rows)

    def document(self) -> dict[str, Any]:
        """Return the options as JSON."""
        integer = isinstance(self.step, (int, np.integer)) and not isinstance(
            self.step, np.timedelta64
        )
        return {
            "step": int(self.step) if integer else str(self.step),
            "origin": None if self.origin is None else str(self.origin),
            "off_grid": self.off_grid,
            "time_zone": self.zone,
            "max_rows": self.max_rows,
        }


class SlotKey(NamedTuple):
    """Ids and time of the last row before those of a file."""

    ids: tuple[Any, ...]
    tick: int


@dataclass(frozen=True)
class RegularRows:
    """Rows of a file, in order of series and time, on a grid.

    Attributes
    ----------
    rows
        A record batch, in any order.
    order : int64 ndarray
        Its rows by series and time.
    keys
        The keys of the rows in this order.
    before
        The last row of the files before, None for the first file.
    duplicates : "error", "first", "last" or "mean"
    most_rows
        Rows that may be written.
    """

    rows: Any
    order: Int64s
    keys: SortKeys
    grid: Grid
    read: ReadOptions
    before: SlotKey | None
    duplicates: str
    most_rows: int

    @cached_property
    def _slots_and_moved(self) -> tuple[Int64s, Bools]:
        """Return the slot of each row, and which rows are between two of them."""
        assert self.keys.ticks is not None
        slots, off = self.grid.slots(self.keys.ticks)
        if self.grid.off_grid == "error" and off.any():
            row = int(np.argmax(off))
            raise ValueError(
                f"{self._series(row)} has a row at {self._stamp(row)}, which is not on the grid "
                f"({self.grid.describe()}); expected times on the grid, another `origin`, or "
                "off_grid='nearest' or 'floor'"
            )
        return slots, off

    @property
    def _slots(self) -> Int64s:
        return self._slots_and_moved[0]

    @cached_property
    def _starts(self) -> Bools:
        """Return True for the first row of each series in this file."""
        starts = np.zeros(self.keys.rows, dtype=np.bool_)
        starts[self.keys.series_starts()] = True
        return starts

    @cached_property
    def _ahead(self) -> Int64s:
        """Return the slots from the row before to each row: 1 for the first row of a series."""
        slots = self._slots
        ahead = np.ones(len(slots), dtype=np.int64)
        ahead[1:] = slots[1:] - slots[:-1]
        ahead[self._starts] = 1
        if self.before is not None and self.before.ids == self.keys.at(0):
            ahead[0] = slots[0] - self.grid.slots(np.array([self.before.tick]))[0][0]
        total = ahead.sum(dtype=np.float64)
        if total > self.most_rows:
            row = int(np.argmax(ahead))
            first = row == 0 or bool(self._starts[row])
            before = self.grid.stamp(
                self.before.tick if first and self.before else self._tick(row - 1)
            )
            raise ValueError(
                too_many_rows(self._name(row), int(total), self.most_rows, before, self._stamp(row))
            )
        return ahead

    @cached_property
    def _kept(self) -> Int64s:
        """Return the row of `order` of each slot that has one."""
        repeated = self._ahead == 0
        if not repeated.any():
            return np.arange(len(repeated), dtype=np.int64)
        if self.duplicates == "error":
            row = int(np.argmax(repeated))
            more = int(repeated.sum()) - 1
            others = f", and {plural(more, 'more row')} like these" if more else ""
            slot = self.grid.stamp(int(self.grid.ticks(self._slots[row : row + 1])[0]))
            raise ValueError(
                f"{self._series(row)} has several rows for {slot}, at {self._stamp(row - 1)} and "
                f"{self._stamp(row)}{others}; expected one row for each step (local times repeat "
                "when clocks are set back: write them in UTC), or duplicates='first', 'last' or "
                "'mean'"
            )
        if self.duplicates == "last":
            return np.flatnonzero(~np.append(repeated[1:], False))
        return np.flatnonzero(~repeated)

    def report(self) -> GridReport:
        """Return the counts of rows added, moved and merged."""
        moved, merged = self._slots_and_moved[1], self._ahead == 0
        first_moved = self._place(int(np.argmax(moved))) if moved.any() else None
        # Of two rows the first is left out where the last one is kept.
        row = int(np.argmax(merged)) - (self.duplicates == "last")
        return GridReport(
            self.total - self.kept,
            int(np.count_nonzero(moved)),
            int(np.count_nonzero(merged)),
            self.duplicates,
            first_moved,
            self._place(row) if merged.any() else None,
        )

    @cached_property
    def _places(self) -> Int64s:
        """Return the place in the file of each row that is kept."""
        return (np.cumsum(self._ahead) - 1)[self._kept]

    @property
    def kept(self) -> int:
        """Rows that are kept of those that were read."""
        return len(self._kept)

    @property
    def total(self) -> int:
        """Rows of the file."""
        return int(self._places[-1]) + 1

    def groups(self, group_rows: int) -> Iterator[tuple[Any, Int64s]]:
        """Yield the rows in groups of about equal size, with their ticks."""
        rows, order = self._merged()
        count = -(-self.total // group_rows)
        for group in range(count):
            start, stop = self.total * group // count, self.total * (group + 1) // count
            yield self._group(rows, order, start, stop)

    def ends(self) -> tuple[list[Any], list[Any]]:
        """Return ids and time of the first and the last row of the file."""
        first = self._slots[self._kept[:1]] - self._places[:1]
        last = self._slots[self._kept[-1:]]
        ticks = self.grid.ticks(np.concatenate([first, last])).tolist()
        return [*self.keys.at(0), ticks[0]], [*self.keys.at(self.keys.rows - 1), ticks[1]]

    def _group(self, rows: Any, order: Int64s, start: int, stop: int) -> tuple[Any, Int64s]:
        places = self._places
        low, high = np.searchsorted(places, [start, stop])
        taken = np.full(stop - start, -1, dtype=np.int64)
        taken[places[low:high] - start] = order[low:high]
        # A row that is added is of the series of the next one.
        new = np.arange(start, stop, dtype=np.int64)
        owner = np.searchsorted(places, new)
        ticks = self.grid.ticks(self._slots[self._kept[owner]] - (places[owner] - new))
        found = rows.take(pa.array(taken, mask=taken < 0))
        ids = (
            rows.select(list(self.read.ids)).take(pa.array(order[owner])) if self.read.ids else None
        )
        columns = []
        for name, column in zip(found.schema.names, found.columns, strict=True):
            if name == self.read.time:
                kind = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
                column = pa.array(ticks).cast(kind).cast(column.type)
            elif ids is not None and name in self.read.ids:
                column = ids.column(name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, found.schema.names), ticks

    def _merged(self) -> tuple[Any, Int64s]:
        """Return rows, and the place in them of each row that is kept; with means, if asked for."""
        if self.duplicates != "mean" or self.kept == self.keys.rows:
            return self.rows, self.order[self._kept]
        sorted_rows = self.rows.take(pa.array(self.order))
        columns = []
        for name, column in zip(sorted_rows.schema.names, sorted_rows.columns, strict=True):
            if name not in self.read.index_columns and pa.types.is_floating(column.type):
                columns.append(_means(column, self._kept))
                continue
            if name not in self.read.index_columns:
                self._check_equal(name, column)
            columns.append(column.take(pa.array(self._kept)))
        merged = pa.RecordBatch.from_arrays(columns, sorted_rows.schema.names)
        return merged, np.arange(len(self._kept), dtype=np.int64)

    def _check_equal(self, name: str, column: Any) -> None:
        """Raise a ValueError for rows of one slot with several values."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = np.asarray(pc.fill_null(coded.indices, -1))
        first = np.repeat(self._kept, np.diff(np.append(self._kept, len(codes))))
        differs = codes != codes[first]
        if differs.any():
            row = int(np.argmax(differs))
            raise ValueError(
                f"column {name!r} of {column.type} has several values for the step of "
                f"{self._stamp(row)} in {self._series(row)}, which have no mean; expected a "
                "floating column, or duplicates='first' or 'last'"
            )

    def _name(self, row: int) -> Any:
        ids = self.keys.at(row)
        return ids[0] if len(ids) == 1 else ids

    def _series(self, row: int) -> str:
        return f"series {self._name(row)!r}" if self.read.ids else "the data"

    def _place(self, row: int) -> str:
        return f"{self._series(row)} at {self._stamp(row)}"

    def _tick(self, row: int) -> int:
        assert self.keys.ticks is not None
        return int(self.keys.ticks[row])

    def _stamp(self, row: int) -> str:
        return self.grid.stamp(self._tick(row))


def _means(column: Any, groups: Int64s) -> Any:
    """Return the means of groups of rows of a floating column, null where no row has a value."""
    values: Array = column.to_numpy(zero_copy_only=False)
    seen = ~np.isnan(values)
    means = mean_rows(values, seen, groups)
    return pa.array(means, column.type, mask=np.isnan(means))
