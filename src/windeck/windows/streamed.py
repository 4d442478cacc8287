"""Windows of a streamed table: groups of blocks of rows, read when their windows are needed.

A window belongs to the block of its first row inside the series. A group is some blocks, with the
rows after them that their windows reach into, end to end in memory. The native gather works on it
with rows renumbered, so batches are those of a table in memory, bit for bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.text import format_bytes, plural
from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData
from windeck.io.row_reader import HEAD_SHARE
from windeck.orders import Sequential, block_group, inner_positions
from windeck.sources import Indices, Order, empty_rows
from windeck.table.group_cache import Blocks, cover
from windeck.table.streamed import BLOCKS_IN_GROUP, blocks_in_group, describe_coarse, row_bits
from windeck.table.table import StreamedTable
from windeck.windows.batch_spec import INDEX_KEYS, Batch, GatherFields
from windeck.windows.index import WindowRuns
from windeck.windows.rows_after import bytes_after
from windeck.windows.subset import RunSubset, WindowSelection

__all__ = ["BlockedWindows", "Group", "StreamedGatherer"]

#: Function of an order and a place: start, end and blocks of the group there, or None.
GroupAt: TypeAlias = "Callable[[Order, int], tuple[int, int, Blocks] | None]"

#: Rows between the rows of two windows that are read with them rather than left out.
SKIPPED_ROWS = 1024


class BlockedWindows:
    """The windows of a streamed table by the blocks in which they begin; reads groups of them.

    Attributes
    ----------
    block_offsets : int64 ndarray, shape (blocks + 1,)
        Block b has the windows [block_offsets[b], block_offsets[b + 1]); none is empty.
    blocks_in_group : int
        Number of blocks that are read together.
    """

    def __init__(
        self,
        selection: WindowSelection,
        fields: GatherFields,
        table: StreamedTable,
        static: Collection[str],
    ) -> None:
        # No table: its cache has references to this object.
        self.selection, self.fields, self.reader = selection, fields, table.reader
        self.names = tuple(name for name in fields.names if name not in static)
        self.static = {name: table.static_values(name) for name in fields.names if name in static}
        before = _windows_before(selection, table.block_offsets)
        used = np.flatnonzero(np.diff(before))
        self._lows, self._highs = table.block_offsets[used], table.block_offsets[used + 1]
        self.block_offsets: Int64 = np.append(before[used], before[-1]).astype(np.int64)
        rows = self._highs - self._lows
        # The order does not depend on `keys`, so it counts all columns.
        every = row_bits(table.reader, fields.columns)
        self.blocks_in_group = blocks_in_group(table.group_bytes, rows, every)
        # A group has its codes of categories besides what was read.
        self._row_bits = row_bits(table.reader, fields.names) + 8 * fields.code_bytes
        self._target_bytes = table.group_bytes
        self._rows_after = min(selection.span.rows, int(selection.offsets[-1]))
        self._sizes = -(-(rows + self._rows_after) * self._row_bits // 8)
        self.group_bytes = int(np.sort(self._sizes)[-self.blocks_in_group :].sum())
        #: Stretches of the order from which groups are read at a time.
        self.lanes = 1

    @property
    def resident_bytes(self) -> int:
        """Bytes of two groups, one of which is dealt while the next one is read; for each lane."""
        return 2 * self.lanes * self.group_bytes

    @cached_property
    def block_bytes(self) -> Int64:
        """Bytes of the columns in the files, of the rows of each block."""
        stored, _ = self.reader.stored_parts(self.names)
        before = np.concatenate([[0.0], np.cumsum(stored)])
        low, high = np.interp([self._lows, self._highs], self.reader.part_offsets, before)
        found: Int64 = np.rint(high - low).astype(np.int64)
        return found

    @property
    def bytes_behind_blocks(self) -> Int64:
        """About how many bytes are read with each block, of rows after it."""
        rows, offsets = self.selection.span.rows, self.selection.offsets
        return bytes_after(self.reader, self.names, rows, self._highs, offsets)

    @property
    def blocks(self) -> tuple[Int64, int]:
        """Offsets of the blocks, and the number of blocks of a group."""
        return self.block_offsets, self.blocks_in_group

    def block_of(self, indices: Int64) -> Int64:
        """Return the block in which each window begins."""
        return np.asarray(np.searchsorted(self.block_offsets, indices, side="right") - 1)

    def bytes_of(self, blocks: Blocks) -> int:
        """Return the bytes of a group at most."""
        return int(self._sizes[list(blocks)].sum())

    def load(self, blocks: Blocks, queued: Callable[[], None]) -> Group:
        """Read a group."""
        return Group(self, blocks, queued)

    @property
    def reading_bytes(self) -> int:
        """Bytes that are resident beside the groups: the part that is read, and kept first rows."""
        kept = self.reader.head_limit if self.reader.keeps_heads(self.names) else 0
        return self.reader.largest_read(self.names) + kept

    @property
    def least_budget(self) -> int:
        """The least memory budget."""
        return self._least_budget_of(self.group_bytes)

    def _least_budget_of(self, group_bytes: int) -> int:
        least = 2 * self.lanes * group_bytes + self.reader.largest_read(self.names)
        if not self.reader.keeps_heads(self.names):
            return least
        return -(-least * HEAD_SHARE // (HEAD_SHARE - 1))

    def check_budget(self, budget: float | None) -> None:
        """Raise MemoryError if two groups are more than the memory budget."""
        if budget is None or self.least_budget <= budget:
            return
        part = self.reader.largest_read(self.names)
        read = f", and {format_bytes(part)} of a part of a file that is read" if part else ""
        raise MemoryError(
            f"windows of {self.selection.span.rows} rows of {plural(len(self.names), 'column')} "
            f"need memory_budget={self.least_budget} ({format_bytes(self.least_budget)}) at least, "
            f"for {2 * self.lanes} groups of {plural(self.blocks_in_group, 'block')} with the rows "
            f"after them, {format_bytes(self.group_bytes)} each{read}, got {int(budget)}; "
            f"{self._cure(int(budget))}"
        )

    def _cure(self, budget: int) -> str:
        """Return what fits a memory budget: row groups of some rows, or smaller groups."""
        more = (
            "a larger memory_budget=" if self.lanes == 1 else "a larger memory_budget=, fewer lanes"
        )
        most_bytes = budget * (HEAD_SHARE - 1) // HEAD_SHARE // (2 * self.lanes)
        most = 8 * most_bytes // self._row_bits - self._rows_after
        if most < 1 or not len(self._lows):
            return f"pass {more}, fewer columns or shorter windows"
        row, count = self._largest_part()
        if not count:  # parts are read in blocks of any size
            return f"pass {more} or a smaller group_bytes="
        # Of a part that is read beside the groups, as many rows are in memory once more.
        of_groups = 2 * self.lanes * self._row_bits
        most = most * of_groups // (of_groups + 8 * self.reader.largest_read(self.names) // count)
        if self._least_budget_of(-(-(count + self._rows_after) * self._row_bits // 8)) <= budget:
            return f"pass {more} or a smaller group_bytes="
        # With these rows, groups of 32 blocks fit, or of as many as long windows allow.
        rows = min(most, 8 * self._target_bytes // self._row_bits) // BLOCKS_IN_GROUP
        rows = max(rows, min(self._rows_after, most // 8), 1)
        # Row groups of prepared files have half of these rows at least, so twice as many blocks.
        group_bytes = max(most_bytes * rows // (2 * (rows + self._rows_after)), 1)
        smaller = "" if self._target_bytes <= group_bytes else f" and group_bytes={group_bytes}"
        return (
            f"{self.reader.part_name(row)} has {count:,} rows, of which up to {most:,} fit: pass "
            f"{more}, or files of `windeck prepare SRC DEST --row-group-bytes "
            f"{rows * self.reader.stored_row_bytes}`{smaller}"
        )

    def _largest_part(self) -> tuple[int, int]:
        """Return first row and rows of the largest part of a file that is in one block."""
        edges = self.reader.part_offsets
        block = np.searchsorted(self._lows, edges[:-1], side="right") - 1
        inside = (block >= 0) & (edges[1:] <= self._highs[block])
        rows = np.where(inside, np.diff(edges), 0)
        largest = int(np.argmax(rows))
        return int(edges[largest]), int(rows[largest])

    def use_lanes(self, lanes: int, budget: float | None) -> None:
        """Keep two groups for each of some lanes; raise MemoryError if the budget is too small."""
        if lanes > self.lanes:
            self.lanes = lanes
            self.check_budget(budget)

    def explain(self) -> str:
        """Return a text: windows and bytes of a group, resident bytes, and bytes of an epoch."""
        blocks, windows = len(self._lows), int(self.block_offsets[-1])
        groups = -(-blocks // self.blocks_in_group)
        stored = self.reader.stored_bytes(self.names, self._rows_by_part())
        every = self.reader.stored_bytes(self.names, np.diff(self.reader.part_offsets))
        coarse = describe_coarse(self.blocks_in_group, blocks)
        return (
            f"streamed: {plural(blocks, 'block')} in {plural(groups, 'group')} of "
            f"{plural(self.blocks_in_group, 'block')}, {windows // max(groups, 1):,} windows and "
            f"{format_bytes(self.group_bytes)} each\n"
            f"resident: two groups, {format_bytes(self.resident_bytes)}; the least memory_budget "
            f"is {self.least_budget:,}\n"
            f"an epoch reads {format_bytes(stored)} of {format_bytes(every)} that these columns "
            "have in the files"
            f"{coarse and chr(10)}{coarse}"
        )

    def _rows_by_part(self) -> Int64:
        """Return the number of rows of each part of a file that windows read."""
        runs, offsets = self.selection.runs, self.selection.offsets
        live = runs.take(np.flatnonzero(runs.count))
        low = np.maximum(live.first, offsets[live.series])
        last = live.first + (live.count - 1) * live.stride
        high = np.minimum(last + self.selection.span.rows, offsets[live.series + 1])
        edges = self.reader.part_offsets
        number = np.searchsorted(low, edges, side="left")
        before = np.concatenate([[0], np.cumsum(high - low)]).astype(np.int64)
        # Of the last range that begins before an edge, the rows after the edge do not count.
        over = np.maximum(np.append(0, high)[number] - edges, 0)
        return np.diff(before[number] - over)

    def windows_of(self, blocks: Sequence[int]) -> WindowSelection:
        """Return the windows of some ascending blocks, as window runs within one block each."""
        selection, runs = self.selection, self.selection.runs
        begin, end = selection.offsets[runs.series], selection.offsets[runs.series + 1]
        lows, highs = self._lows[list(blocks)], self._highs[list(blocks)]
        # Window runs are of ascending series: the ones that overlap a block are neighbours.
        first = np.searchsorted(end, lows, side="right")
        last = np.searchsorted(begin, highs, side="left")
        parents, counts = _ranges(first, last), np.maximum(last - first, 0)
        low, high = np.repeat(lows, counts), np.repeat(highs, counts)
        taken = runs.take(parents)
        # Windows that begin before their series belong to the block of its first row.
        lowest = np.where(begin[parents] >= low, taken.first, low)
        clipped, skipped = taken.clip(lowest, high - 1)
        live = np.flatnonzero(clipped.count > 0)
        return selection.restrict(RunSubset(clipped.take(live), skipped[live], parents[live]))


class StreamedGatherer:
    """Makes batches of selected windows of a streamed table."""

    native: None = None

    def __init__(
        self, index: _core.WindowIndex, windows: BlockedWindows, table: StreamedTable
    ) -> None:
        fields = windows.fields
        self.used, self.unseen = fields.used, fields.unseen
        self.windows = windows
        self._index, self._cache = index, table.groups
        self._budget = table.memory_budget
        windows.check_budget(self._budget)
        weakref.finalize(self, table.groups.drop, windows).atexit = False
        #: Groups that the next windows belong to, and the groups to read after each of them.
        self._expected: dict[Blocks, list[Blocks]] = {}
        #: The group that was used last, if it is in memory.
        self._last: Callable[[], Group | None] = lambda: None
        #: The order of an epoch, and starts and ends of the groups in it that are expected.
        self._stretches: tuple[Order, Int64, Int64] | None = None
        columns = {name: _no_rows(table.column(name)) for name in fields.names}
        none = np.zeros(0, dtype=np.int64)
        no_windows = _core.WindowIndex(none, none, 1, series=none)
        one_series = np.zeros(1, dtype=np.int64)
        self._empty = fields.gather_of(no_windows, np.zeros(2, dtype=np.int64), columns, one_series)

    def gather(self, indices: Int64, out: Batch | None, threads: int) -> Batch:
        """Return one batch, written into `out` if it is given. Reads the groups it needs."""
        series, starts = self._index.locate(indices)  # checks the range
        if not len(indices):
            return self._empty.gather(indices, out, threads)
        windows, expected = self.windows, self._expected
        last = self._last()
        if last is not None and (own := last.numbers(indices)) is not None:
            batch = last.gather(own, out, threads)
            self._set_index_keys(batch, series, starts)
            return batch
        block = windows.block_of(indices)
        needed = {*expected, *chain.from_iterable(expected.values())}
        preferred = (*expected, *self._cache.held(windows))
        groups = cover(np.unique(block).tolist(), preferred, windows.blocks_in_group)
        made = out
        for blocks, wanted in groups:
            after = expected.get(blocks, [])
            group: Group = self._cache.get(windows, blocks, after, needed)
            self._last = weakref.ref(group)
            if after and after[0] in expected:
                needed.discard(blocks)  # The next call begins after it.
            if len(groups) == 1:
                own = group.numbers(indices)
                assert own is not None
                made = group.gather(own, out, threads)
                break
            if made is None or made is out:
                made = self._rows(len(indices)) if out is None else self._checked(out, indices)
            rows = np.flatnonzero(np.isin(block, wanted))
            own = group.numbers(indices[rows])
            assert own is not None
            for key, array in group.gather(own, None, threads).items():
                made[key][rows] = array
            del group  # It may be dropped while the next one is read.
        assert made is not None
        self._set_index_keys(made, series, starts)
        return made

    def _set_index_keys(self, batch: Batch, series: Int64, starts: Int64) -> None:
        """Write series and start rows of the table: a group numbers its own."""
        for key, numbers in zip(INDEX_KEYS, (series, starts), strict=True):
            if key in self.windows.fields.index_keys:
                batch[key][:] = numbers

    def expect(
        self,
        epochs: Sequence[tuple[Order, Indices]],
        following: Callable[[], Order] | None,
        group_at: GroupAt | None = None,
    ) -> None:
        """Note the groups of the next windows, and the groups that come after them.

        Without epochs all groups are dropped. `group_at` returns start, end and blocks of the group
        at a place of an order, by default of one that shuffles these blocks.
        """
        group_at = group_at or self._group_at
        if not epochs:
            self._expected, self._stretches = {}, None
            self._cache.drop(self.windows)
            return
        if len(epochs) == 1 and self._is_inside(*epochs[0]):
            return
        self._expected, self._stretches = {}, None
        expected: dict[Blocks, list[Blocks]] = {}
        stretches: list[tuple[int, int]] = []
        lanes = 1
        for number, (order, places) in enumerate(epochs):
            inner, left, ends = inner_positions(order, places)
            lanes = len(np.unique(ends))
            ahead = self._cache.ahead(self.windows, lanes, self.windows.group_bytes)
            then = following if inner is order and number == len(epochs) - 1 else None
            while len(left):
                first = int(np.argmin(left))
                found = group_at(inner, int(left[first]))
                if found is None:
                    return
                start, stop, blocks = found
                stretches.append((start, stop))
                expected[blocks] = self._groups_after(
                    group_at, inner, stop, int(ends[first]), then, ahead
                )
                later = left >= stop
                left, ends = left[later], ends[later]
        self._expected = expected
        if len(epochs) == 1:
            self._stretches = (epochs[0][0], *np.array(stretches, dtype=np.int64).T)
            self.windows.use_lanes(lanes, self._budget)

    @staticmethod
    def _groups_after(
        group_at: GroupAt,
        order: Order,
        place: int,
        end: int,
        following: Callable[[], Order] | None,
        count: int,
    ) -> list[Blocks]:
        """Return the next groups of an order from a place on, and of the order that follows it."""
        after: list[Blocks] = []
        while len(after) < count:
            if place >= end:
                if following is None:
                    break
                order, _, _ = inner_positions(following(), np.zeros(0, dtype=np.int64))
                place, end, following = 0, len(order), None
            found = group_at(order, place)
            if found is None:
                break
            _, place, blocks = found
            after.append(blocks)
        return after

    def _is_inside(self, order: Order, places: Indices) -> bool:
        """Return True if places are in the groups that are expected already."""
        if self._stretches is None or self._stretches[0] is not order:
            return False
        _, starts, stops = self._stretches
        _, inside, _ = inner_positions(order, places)
        group = np.searchsorted(starts, inside, side="right") - 1
        return bool(group.min() >= 0 and (inside < stops[group]).all())

    def _group_at(self, order: Order, place: int) -> tuple[int, int, Blocks] | None:
        """Return start, end and blocks of the group at a place; None if it is too large."""
        windows = self.windows
        if isinstance(order, Sequential):
            block = int(np.searchsorted(windows.block_offsets, place, side="right")) - 1
            first = block - block % windows.blocks_in_group
            last = min(first + windows.blocks_in_group, len(windows.block_offsets) - 1)
            start, stop = windows.block_offsets[[first, last]].tolist()
            return start, stop, tuple(range(first, last))
        found = block_group(order, windows.block_offsets, place)
        if found is None or len(found[2]) > windows.blocks_in_group:
            return None
        return found[0], found[1], tuple(found[2].tolist())

    def _rows(self, count: int) -> Batch:
        """Return uninitialised arrays of a batch."""
        empty = self._empty.gather(np.zeros(0, dtype=np.int64), None, 1)
        return empty_rows({key: (a.dtype, a.shape[1:]) for key, a in empty.items()}, count)

    def _checked(self, out: Batch, indices: Int64) -> Batch:
        """Return `out` if a batch can be written into it."""
        for key, array in out.items():
            if array.shape[:1] != (len(indices),):
                raise ValueError(
                    f"`out` has {key!r} of shape {array.shape}, expected {len(indices)} rows"
                )
        self._empty.gather(indices[:0], {key: array[:0] for key, array in out.items()}, 1)
        return out


def _windows_before(selection: WindowSelection, rows: Int64) -> Int64:
    """Return the number of windows that belong to rows before each of some rows.

    A window belongs to its start row, or the first row of its series if that is later.
    O(rows log series) time, and O(windows / 8) with a bitmap.
    """
    runs = selection.runs
    before = np.concatenate([[0], np.cumsum(runs.count)]).astype(np.int64)
    begin = selection.offsets[runs.series]
    # Runs of series that begin before each row; only the last one may go on after it.
    number = np.searchsorted(begin, rows, side="left")
    found = before[number]
    inside = np.flatnonzero(number > 0)
    run = number[inside] - 1
    steps = -((runs.first[run] - rows[inside]) // runs.stride)
    found[inside] = before[run] + np.clip(steps, 0, runs.count[run])
    if selection.keep is None:
        return found
    return bitmaps.count_before(selection.keep, found)


def _ranges(first: Int64, last: Int64) -> Int64:
    """Return the concatenated ranges [first[i], last[i]), some of them possibly empty."""
    counts = np.maximum(last - first, 0)
    ends = np.cumsum(counts)
    shift = np.repeat(first - (ends - counts), counts)
    return np.asarray(shift + np.arange(int(ends[-1]) if len(ends) else 0), dtype=np.int64)


def _no_rows(column: ColumnData) -> ColumnData:
    """Return a column like another, without rows."""
    return ColumnData(column.name, np.zeros(0, dtype=column.values.dtype), missing=0)


class Group:
    """The rows of some blocks and of the windows that begin in them, in memory.

    Parameters
    ----------
    windows
        The windows of the table.
    blocks
        Numbers of blocks, ascending.
    queued
        See `GroupSource.load`.
    """

    def __init__(self, windows: BlockedWindows, blocks: Blocks, queued: Callable[[], None]) -> None:
        self._starts = windows.block_offsets[list(blocks)]
        self._stops = windows.block_offsets[np.array(blocks) + 1]
        counts = self._stops - self._starts
        #: What to subtract from the number of a window of each block.
        self._shift: Int64 = self._starts - (np.cumsum(counts) - counts)
        selection = windows.windows_of(blocks)
        assert selection.count == counts.sum()
        runs, span = selection.runs, selection.span
        if selection.count != counts.sum():
            raise AssertionError(f"blocks have {counts.sum()} windows, found {selection.count}")
        low = np.maximum(runs.first, selection.offsets[runs.series])
        last = runs.first + (runs.count - 1) * runs.stride
        high = np.minimum(last + span.rows, selection.offsets[runs.series + 1])
        range_of, lows, highs, series = _merge_ranges(low, high, runs.series)
        read_lows, read_highs = _joined(lows, highs)
        columns = windows.reader.read(
            windows.names, read_lows, read_highs, head_rows=span.rows, queued=queued
        )
        base = np.concatenate([[0], np.cumsum(read_highs - read_lows)]).astype(np.int64)
        # The place in memory of each merged range: they are separated by rows of no window.
        stretch = np.searchsorted(read_lows, lows, side="right") - 1
        moved = base[stretch] - read_lows[stretch]
        offsets = np.concatenate([[0], np.stack([lows, highs], axis=1).ravel(), [0]])
        offsets[1:-1] += np.repeat(moved, 2)
        offsets[-1] = base[-1]
        of_offsets = np.concatenate([np.repeat(series, 2), series[-1:]])
        for name, values in windows.static.items():
            columns[name] = _static_column(values, offsets[1:-1:2], series, int(base[-1]))
        first = runs.first + moved[range_of]
        numbers = 2 * range_of + 1
        here = WindowRuns(first, runs.count, numbers, first, first, runs.stride)
        index = replace(selection, runs=here).index()
        self._gather = windows.fields.gather_of(index, offsets, columns, of_offsets)

    def numbers(self, indices: Int64) -> Int64 | None:
        """Return the numbers of windows in this group; None if one is not in it."""
        place = np.searchsorted(self._starts, indices, side="right") - 1
        if place.min() < 0 or (indices >= self._stops[place]).any():
            return None
        return indices - self._shift[place]

    def gather(self, numbers: Int64, out: Batch | None, threads: int) -> Batch:
        """Return a batch of windows of this group, with its own numbers of series and rows."""
        return self._gather.gather(numbers, out, threads)


def _merge_ranges(low: Int64, high: Int64, series: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Merge overlapping row ranges of one series.

    Returns
    -------
    range_of
        int64 of shape (ranges,): the number of the merged range of each range.
    low, high, series
        int64 of shape (merged ranges,): the merged ranges.
    """
    new = np.ones(len(low), dtype=np.bool_)
    new[1:] = (series[1:] != series[:-1]) | (low[1:] > high[:-1])
    starts = np.flatnonzero(new)
    range_of = np.cumsum(new) - 1
    # Within a series ranges ascend at both ends.
    last = np.append(starts[1:], len(low)) - 1
    return range_of.astype(np.int64), low[starts], high[last], series[starts]


def _joined(lows: Int64, highs: Int64) -> tuple[Int64, Int64]:
    """Return the row ranges to read: neighbours with few rows between them are one."""
    new = np.ones(len(lows), dtype=np.bool_)
    new[1:] = lows[1:] - highs[:-1] > SKIPPED_ROWS
    starts = np.flatnonzero(new)
    return lows[starts], highs[np.append(starts[1:], len(lows)) - 1]


def _static_column(values: ColumnData, firsts: Int64, series: Int64, rows: int) -> ColumnData:
    """Return a column of which only the first row of each series is set."""
    found = np.zeros(rows, dtype=values.values.dtype)
    found[firsts] = values.values[series]
    validity: Any = None
    if values.validity is not None:
        valid = np.zeros(rows, dtype=np.bool_)
        valid[firsts] = values._valid(series)
        validity = np.packbits(valid, bitorder="little")
    return ColumnData(values.name, found, validity, missing=None, dtype=values.dtype)
