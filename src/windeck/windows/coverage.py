"""Rows that windows read, as contiguous stretches.

Arithmetic where the windows of a series read all rows from the first to the last. Where a filter
drops windows, or no window reads the rows between others, the rows are marked by going through the
windows in order, a bounded number of rows at a time.
"""

from __future__ import annotations

import numpy as np

from windeck import _core
from windeck._util.indices import Int64
from windeck.columns.dtypes import Bits, Bools
from windeck.windows.index import WindowRuns, WindowSpan

# Rows marked at a time, at least. A longer window marks as many rows as it spans.
ROWS_AT_A_TIME = 1 << 20


def covered_rows(
    runs: WindowRuns, keep: Bits | None, span: WindowSpan, offsets: Int64
) -> tuple[Int64, Int64, Int64]:
    """Return first rows, last rows + 1 and series of the stretches that windows read.

    Padding is left out, and so are future steps after a series. Stretches ascend and never cross a
    series. O(runs) time where runs are without holes, else O(rows); O(stretches) memory.
    """
    live = np.flatnonzero(runs.count).astype(np.int64)
    whole = _are_whole(runs.count[live], span) & (keep is None)
    full = runs.take(live[whole])
    begin = np.maximum(full.first, offsets[full.series])
    end = full.first + (full.count - 1) * full.stride + span.rows
    end = np.minimum(end, offsets[full.series + 1])
    if whole.all():
        return begin, end, full.series
    rest = runs.take(live[~whole])
    index = _core.WindowIndex(rest.first, rest.count, rest.stride, series=rest.series, keep=keep)
    found = _marked(index, span, offsets)
    begin, end = (np.concatenate(both) for both in zip((begin, end), found, strict=True))
    if not len(begin):
        return begin, end, begin
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    apart = begin[1:] != end[:-1]
    begin, end = begin[np.append(True, apart)], end[np.append(apart, True)]
    borders = np.unique(offsets)
    at = np.searchsorted(begin, borders) - 1
    inside = borders[(at >= 0) & (borders < end[at])]
    begin, end = (np.sort(np.concatenate([one, inside])) for one in (begin, end))
    return begin, end, np.searchsorted(offsets, begin, side="right").astype(np.int64) - 1


def _are_whole(count: Int64, span: WindowSpan) -> Bools:
    """Return true for runs of `count` windows that surely read all rows from first to last."""
    dilation = span.dilation if span.steps > 1 else 1
    # A negative gap, with which the future overlaps the past, leaves no row out.
    gap = max(span.gap, 0) if span.prediction_length else 0
    if span.stride == 1:
        return count >= dilation + gap
    without_holes = dilation == 1 and gap == 0
    whole: Bools = without_holes & ((count == 1) | (span.stride <= span.rows))
    return whole


def _marked(index: _core.WindowIndex, span: WindowSpan, offsets: Int64) -> tuple[Int64, Int64]:
    """Return first rows and last rows + 1 of the stretches, by a mark for each row."""
    length = max(ROWS_AT_A_TIME, span.rows)
    at, total, low = 0, len(index), 0
    marks: Bools = np.zeros(0, dtype=np.bool_)  # of the rows from `low` on, by earlier windows
    edges = [np.zeros(0, dtype=np.int64)]
    while at < total:
        series, starts = index.slice(at, min(at + length // span.stride + 1, total))
        count = int(np.searchsorted(starts, starts[0] + length))
        series, starts = series[:count], starts[:count]
        at += count
        earlier, low = marks, int(starts[0])
        marks = _touched(starts, offsets[series], offsets[series + 1], span)
        marks[: len(earlier)] |= earlier
        # No later window reads the rows before its own start.
        done = int(index.slice(at, at + 1)[1][0]) - low if at < total else len(marks)
        changes = np.diff(marks[:done].view(np.int8), prepend=0, append=0)
        edges.append(np.flatnonzero(changes).astype(np.int64) + low)
        marks = marks[done:]
    begin, end = np.concatenate(edges).reshape(-1, 2).T
    return begin, end


def _touched(starts: Int64, begin: Int64, end: Int64, span: WindowSpan) -> Bools:
    """Return true for the rows from ``starts[0]`` on that windows read.

    Windows begin at `starts`, ascending, in series of the rows [`begin`, `end`).
    """
    # A window of one step may have a dilation larger than memory, which is not used.
    d = span.dilation if span.steps > 1 else 1
    starts, begin, end = (rows - starts[0] for rows in (starts, begin, end))
    rows = int(starts[-1]) + span.rows
    lines = -(-rows // d) + 1
    # The number of windows that begin to read a row, less those that ended one step before it.
    changes = np.zeros(lines * d, dtype=np.int64)
    padded = np.maximum(-((starts - begin) // d), 0)
    # Steps after the series are not read; the first one of past and future is inside.
    inside = np.minimum(-((starts - end) // d), span.context_length)
    ranges = [(starts + padded * d, starts + inside * d)]
    if span.prediction_length:
        future = starts + span.future_first
        inside = np.minimum(-((future - end) // d), span.prediction_length)
        ranges.append((future, future + inside * d))
    for first, stop in ranges:
        changes += np.bincount(first, minlength=len(changes))
        changes -= np.bincount(stop, minlength=len(changes))
    np.cumsum(changes.reshape(lines, d), axis=0, out=changes.reshape(lines, d))
    touched: Bools = changes[:rows] > 0
    return touched
