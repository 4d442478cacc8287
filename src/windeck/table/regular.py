"""Regular series: rows on a grid of time, with rows of missing values where there were none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from windeck._util.validation import check_integer
from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData, aligned_empty
from windeck.columns.dtypes import Array, Bits, Bools, Int64s, is_bits, is_floating
from windeck.columns.times import duration_text
from windeck.io.reading import LoadedColumns
from windeck.table import derived
from windeck.table.construction import SeriesLayout
from windeck.table.grid import DUPLICATES, Grid, grid_of
from windeck.table.timestamps import GridReport, OrderReport, sort_by_time

__all__ = ["LEAST_ROWS", "MOST_SHARE", "GridArguments", "Regular", "check_rows", "mean_rows"]
__all__ += ["on_grid", "regularize", "too_many_rows"]

#: Rows that are made at most, by default: this multiple of those there are, and at least so many.
MOST_SHARE, LEAST_ROWS = 10, 100_000
#: The bits of a NaN of bfloat16.
_NAN_BITS = 0x7FC0


class Regular(NamedTuple):
    """Columns, time stamps and series of regular rows."""

    columns: list[ColumnData]
    stamps: Array
    layout: SeriesLayout


class _Part(NamedTuple):
    """Rows [start, stop) of the table, and the new row of each; no row after has one of them.

    `off` are the rows between two steps, which move.
    """

    start: int
    stop: int
    rows: Int64s
    off: Bools


@dataclass(frozen=True)
class _Placing:
    """The slots of the series: rows of each, and the slot and the origin of its first row."""

    grid: Grid
    ticks: Int64s
    old: Int64s
    new: Int64s
    first: Int64s
    origins: Int64s | None
    names: Sequence[Any]

    def _of_rows(self, values: Int64s, offsets: Int64s, start: int, stop: int) -> Int64s:
        """Return the value of the series of each of the rows [start, stop)."""
        low = int(np.searchsorted(offsets, start, side="right")) - 1
        high = int(np.searchsorted(offsets, stop, side="left"))
        ends = np.clip(offsets[low : high + 1], start, stop)
        return np.repeat(values[low:high], np.diff(ends))

    def _origins(self, offsets: Int64s, start: int, stop: int) -> Int64s | None:
        if self.origins is None:
            return None
        return self._of_rows(self.origins, offsets, start, stop)

    def rows(self, start: int, stop: int) -> tuple[Int64s, Bools]:
        """Return the new row of each of the rows [start, stop), and which are between steps."""
        slots, off = self.grid.slots(self.ticks[start:stop], self._origins(self.old, start, stop))
        if self.grid.off_grid == "error" and off.any():
            raise self._off_grid(start + int(np.argmax(off)))
        return slots + self._of_rows(self.new[:-1] - self.first, self.old, start, stop), off

    def new_ticks(self, start: int, stop: int) -> Int64s:
        """Return the ticks of the new rows [start, stop)."""
        shift = self._of_rows(self.first - self.new[:-1], self.new, start, stop)
        slots = np.arange(start, stop, dtype=np.int64) + shift
        return self.grid.ticks(slots, self._origins(self.new, start, stop))

    def parts(self) -> Iterator[_Part]:
        """Yield all rows in parts, which do not divide rows with one new row."""
        start, total = 0, len(self.ticks)
        many = derived.ROWS_AT_A_TIME
        while start < total:
            stop = min(start + many, total)
            rows, off = self.rows(start, stop)
            if stop < total:
                # The rows of the last slot may go on: they are of the next part.
                stop = start + int(np.searchsorted(rows, rows[-1]))
                if stop == start:
                    many *= 2
                    continue
            yield _Part(start, stop, rows[: stop - start], off[: stop - start])
            start, many = stop, derived.ROWS_AT_A_TIME

    def series(self, row: int) -> Any:
        """Return the name of the series of a row."""
        return self.names[int(np.searchsorted(self.old, row, side="right")) - 1]

    def stamp(self, row: int) -> str:
        """Return the time stamp of a row as text."""
        return self.grid.stamp(int(self.ticks[row]))

    def place(self, row: int) -> str:
        """Return the series and the time stamp of a row as text."""
        return f"series {self.series(row)!r} at {self.stamp(row)}"

    def _off_grid(self, row: int) -> ValueError:
        where = self.grid.describe()
        if self.origins is not None:
            step = duration_text(self.grid.step, self.grid.dtype)
            where = f"steps of {step} from the first row of the series"
        return ValueError(
            f"series {self.series(row)!r} has a row at {self.stamp(row)}, which is not on the grid "
            f"({where}); expected times on the grid, another `origin`, or off_grid='nearest' or "
            "'floor'"
        )

    def repeated(self, part: _Part, same: Bools) -> ValueError:
        """Return the error for rows of a part that have the slot of the row before."""
        row = part.start + int(np.argmax(same))
        tick = int(self.new_ticks(*(part.rows[row - part.start] + np.array([0, 1])).tolist())[0])
        return ValueError(
            f"series {self.series(row)!r} has several rows for {self.grid.stamp(tick)}, at "
            f"{self.stamp(row - 1)} and {self.stamp(row)}; expected one row for each step (local "
            "times repeat when clocks are set back: read them with time_zone=), or duplicates="
            "'first', 'last' or 'mean'"
        )


class GridArguments(NamedTuple):
    """Arguments of `Table.regularize`."""

    step: Any
    origin: Any
    off_grid: str
    duplicates: str
    time_zone: str | None
    max_rows: int | None


def on_grid(
    loaded: LoadedColumns, layout: SeriesLayout, arguments: GridArguments
) -> tuple[LoadedColumns, SeriesLayout] | None:
    """Return the columns and series of a table on a grid; None if all rows are on it.

    Calendar features are computed for all rows. See `Table.regularize`.
    """
    duplicates, time = arguments.duplicates, loaded.time
    assert time is not None
    if duplicates not in DUPLICATES:
        raise ValueError(f"`duplicates` must be one of {', '.join(DUPLICATES)}, got {duplicates!r}")
    most = arguments.max_rows
    most = None if most is None else check_integer("max_rows", most)
    grid, own = grid_of(
        time.values.dtype,
        arguments.step,
        arguments.origin,
        arguments.off_grid,
        arguments.time_zone,
        time.time_zone,
    )
    before = {column.name: column for column in loaded.columns}
    found = regularize(
        {name: column for name, column in before.items() if column.calendar is None},
        time.values,
        layout,
        grid,
        own_origins=own,
        duplicates=duplicates,
        max_rows=check_rows(most, layout.num_rows),
        time_zone=time.time_zone,
    )
    if found is None:
        return None
    stamps = ColumnData("", found.stamps, missing=0, time_zone=time.time_zone)
    origin = None if loaded.origin is None else replace(loaded.origin, mapped=False)
    after = {column.name: column for column in found.columns}
    after |= derived.again(before, after, found.stamps, found.layout.offsets, layout.names)
    ordered = [after[name] for name in before]
    return LoadedColumns(ordered, [], stamps, None, origin, owned=True), found.layout


def regularize(
    columns: Mapping[str, ColumnData],
    stamps: Array,
    layout: SeriesLayout,
    grid: Grid,
    *,
    own_origins: bool,
    duplicates: str,
    max_rows: int,
    time_zone: str | None,
) -> Regular | None:
    """Return the rows of series on a grid; None if all rows are on it, without gaps.

    See `Table.regularize`.
    """
    placing = _place(stamps, layout, grid, own_origins, max_rows)
    if np.array_equal(placing.new, placing.old) and _is_regular(placing):
        return None
    writers = [_writer(column, int(placing.new[-1])) for column in columns.values()]
    counts = _MovedRows(placing, duplicates)
    for part in placing.parts():
        same = np.zeros(len(part.rows), dtype=np.bool_)
        same[1:] = part.rows[1:] == part.rows[:-1]
        counts.add(part, same)
        if not same.any():
            for writer in writers:
                writer.write(part)
            continue
        if duplicates == "error":
            raise placing.repeated(part, same)
        groups = np.flatnonzero(~same)
        for writer in writers:
            if duplicates == "mean":
                writer.write_means(part, groups, placing)
            else:
                ends = np.append(groups[1:], len(same)) - 1
                writer.write(part, groups if duplicates == "first" else ends)
    times = _times(placing, stamps.dtype)
    report = replace(
        _report(placing, times, time_zone), grids=(*layout.report.grids, counts.report())
    )
    found = SeriesLayout(placing.new, layout.names, report)
    return Regular([writer.finish() for writer in writers], times, found)


class _MovedRows:
    """Counts of the rows that move or are merged, and the first of each."""

    def __init__(self, placing: _Placing, duplicates: str) -> None:
        self.placing, self.duplicates = placing, duplicates
        self.moved = self.merged = 0
        self.first_moved: str | None = None
        self.first_merged: str | None = None

    def add(self, part: _Part, same: Bools) -> None:
        """Count the rows of a part, of which some have the slot of the row before."""
        moved, merged = int(np.count_nonzero(part.off)), int(np.count_nonzero(same))
        if moved and not self.moved:
            self.first_moved = self.placing.place(part.start + int(np.argmax(part.off)))
        if merged and not self.merged:
            # Of two rows the first is left out where the last one is kept.
            row = int(np.argmax(same)) - (self.duplicates == "last")
            self.first_merged = self.placing.place(part.start + row)
        self.moved += moved
        self.merged += merged

    def report(self) -> GridReport:
        """Return the report on all parts."""
        added = int(self.placing.new[-1]) - (len(self.placing.ticks) - self.merged)
        return GridReport(
            added, self.moved, self.merged, self.duplicates, self.first_moved, self.first_merged
        )


def _place(
    stamps: Array, layout: SeriesLayout, grid: Grid, own_origins: bool, max_rows: int
) -> _Placing:
    """Return the slots of all series; ValueError for more than `max_rows`. O(series)."""
    ticks, offsets = stamps.view(np.int64), layout.offsets
    used = np.flatnonzero(np.diff(offsets))
    ends = ticks[offsets[used]], ticks[offsets[used + 1] - 1]
    origins = np.zeros(len(layout.names), dtype=np.int64)
    origins[used] = ends[0]
    own = ends[0] if own_origins else None
    first, last = (grid.slots(end, own)[0] for end in ends)
    # Unsigned: the difference of two ticks may have 64 bits.
    counts = (last - first).view(np.uint64) + 1.0
    if counts.sum() > max_rows:
        raise _too_many(grid, ticks, layout, used, counts, max_rows)
    lengths, firsts = np.zeros((2, len(layout.names)), dtype=np.int64)
    lengths[used], firsts[used] = counts, first
    new = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    kept = origins if own_origins else None
    return _Placing(grid, ticks, offsets, new, firsts, kept, layout.names)


def _too_many(
    grid: Grid, ticks: Int64s, layout: SeriesLayout, used: Int64s, counts: Any, most: int
) -> ValueError:
    """Return the error of too many rows, with the longest gap of the longest series."""
    number = int(used[np.argmax(counts)])
    low, high = layout.offsets[number : number + 2].tolist()
    steps = np.diff(ticks[low:high]).view(np.uint64)
    row = low + int(np.argmax(np.append(steps, np.uint64(0))))
    before, after = (grid.stamp(int(ticks[place])) for place in (row, min(row + 1, high - 1)))
    return ValueError(too_many_rows(layout.names[number], int(counts.sum()), most, before, after))


def too_many_rows(name: Any, rows: int, most: int, before: str, after: str) -> str:
    """Return the message about a grid of too many rows, with the longest gap of a series."""
    return (
        f"the grid would have {rows:,} rows, more than max_rows={most:,}, and the longest gap of "
        f"series {name!r} is from {before} to {after}; expected no wrong time there, a larger "
        "`step`, or a larger `max_rows`"
    )


def check_rows(max_rows: int | None, rows: int) -> int:
    """Return the rows that a grid of a table of `rows` rows may have."""
    return max(MOST_SHARE * rows, LEAST_ROWS) if max_rows is None else max_rows


def _is_regular(placing: _Placing) -> bool:
    """Return True if no row moves, and no two have one slot."""
    for part in placing.parts():
        rows = np.arange(part.start, part.stop)
        if not np.array_equal(part.rows, rows):
            return False
        moved = placing.new_ticks(part.start, part.stop) != placing.ticks[part.start : part.stop]
        if placing.grid.off_grid != "error" and moved.any():
            return False
    return True


def _times(placing: _Placing, dtype: np.dtype[Any]) -> Array:
    total = int(placing.new[-1])
    times = aligned_empty((total,), np.dtype(np.int64))
    for start in range(0, total, derived.ROWS_AT_A_TIME):
        stop = min(start + derived.ROWS_AT_A_TIME, total)
        times[start:stop] = placing.new_ticks(start, stop)
    return times.view(dtype)


def _report(placing: _Placing, times: Array, zone: str | None) -> OrderReport:
    """Return the report on regular rows; steps of days in a zone and months differ in length."""
    if not placing.grid.even:
        column = ColumnData("", times, missing=0, time_zone=zone)
        return sort_by_time(column, placing.new, owned=False, regrouped=False)[2]
    none, lengths = np.zeros(len(placing.names), dtype=np.int64), np.diff(placing.new)
    steps = np.where(lengths > 1, placing.grid.step, 0)
    unit = None
    if times.dtype.kind == "M":
        name, count = np.datetime_data(times.dtype)
        unit = name if count == 1 else f"{count}{name}"
    used, ticks = np.flatnonzero(lengths), times.view(np.int64)
    span = None
    if len(used):
        first, last = ticks[placing.new[used]], ticks[placing.new[used + 1] - 1]
        span = int(first.min()), int(last.max())
    return OrderReport(False, (), none, none, none, none, none, steps, unit, span)


class _Writer:
    """Writer of a column of regular rows, which are missing until they are written."""

    def __init__(self, column: ColumnData, rows: int, blank: Any) -> None:
        self.column, self.blank = column, blank
        self.values = aligned_empty((rows,), column.values.dtype)
        self.values.fill(blank)
        #: Of a floating column NaN is missing, and no bitmap is needed.
        self.validity: Bits | None = None
        if not is_floating(column.dtype):
            self.validity = np.zeros((rows + 7) >> 3, dtype=np.uint8)
        self.written = 0

    def write(self, part: _Part, chosen: Int64s | None = None) -> None:
        """Write the rows of a part, or the chosen ones of them."""
        taken: Any = slice(part.start, part.stop)
        rows = part.rows
        if chosen is not None:
            taken, rows = part.start + chosen, rows[chosen]
        self._put(rows, self.column.values[taken], self._valid(taken))

    def _valid(self, taken: Any) -> Bools | None:
        return None if self.column.validity is None else self.column.observed(taken)

    def _put(self, rows: Int64s, values: Array, valid: Bools | None) -> None:
        low, high = int(rows[0]), int(rows[-1]) + 1
        place: Any = slice(low, high) if high - low == len(rows) else rows
        if self.validity is None:
            if valid is not None:
                values = np.where(valid, values, values.dtype.type(self.blank))
        elif isinstance(place, slice) and valid is None:
            bitmaps.write(self.validity, low, np.ones(len(rows), dtype=np.bool_))
        else:
            bits = np.zeros(high - low, dtype=np.bool_)
            bits[rows - low] = True if valid is None else valid
            bitmaps.write(self.validity, low, bits)
        self.values[place] = values
        self.written += len(rows)

    def write_means(self, part: _Part, groups: Int64s, placing: _Placing) -> None:
        """Write the mean of the rows of each slot; those of other columns have to be equal."""
        values = self.column.values[part.start : part.stop]
        seen = self.column.observed(slice(part.start, part.stop))
        if is_floating(self.column.dtype):
            means = mean_rows(values, seen, groups, bits=is_bits(self.column.dtype))
            self._put(part.rows[groups], means, None)
            return
        first = np.repeat(groups, np.diff(np.append(groups, len(values))))
        differs = (seen != seen[first]) | (seen & (values != values[first]))
        if differs.any():
            row = part.start + int(np.argmax(differs))
            raise ValueError(
                f"column {self.column.name!r} of {self.column.dtype} has several values for the "
                f"step of {placing.stamp(row)} in series {placing.series(row)!r}, which have no "
                "mean; expected a floating column, or duplicates='first' or 'last'"
            )
        self._put(part.rows[groups], values[groups], seen[groups])

    def finish(self) -> ColumnData:
        """Return the column."""
        old, missing = self.column, None
        if self.validity is not None:
            missing = len(self.values) - bitmaps.count(self.validity)
        elif old.missing is not None and self.written == len(old.values):
            missing = old.missing + len(self.values) - self.written
        validity = self.validity if missing != 0 else None
        return ColumnData(old.name, self.values, validity, 0, old.categories, missing, old.dtype)


def _writer(column: ColumnData, rows: int) -> _Writer:
    if is_bits(column.dtype):
        return _Writer(column, rows, _NAN_BITS)
    if is_floating(column.dtype):
        return _Writer(column, rows, np.nan)
    return _Writer(column, rows, 0 if column.categories is None else -1)


def mean_rows(values: Array, seen: Bools, groups: Int64s, *, bits: bool = False) -> Array:
    """Return the mean of the observed values of each group of rows, NaN without one.

    Parameters
    ----------
    groups
        The first row of each group.
    bits
        Whether `values` are the bits of bfloat16, which are rounded to nearest.
    """
    wide = (values.astype(np.uint32) << 16).view(np.float32) if bits else values
    sums = np.add.reduceat(np.where(seen, wide, 0).astype(np.float64), groups)
    counts = np.add.reduceat(seen.astype(np.int64), groups)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    if not bits:
        return means.astype(values.dtype)
    raw = means.astype(np.float32).view(np.uint32)
    rounded = (raw + 0x7FFF + ((raw >> 16) & 1)) >> 16
    found: Array = np.where(counts > 0, rounded, _NAN_BITS).astype(np.uint16)
    return found
