"""The rows of a forecast: the last context of each series, and its known covariates of the future.

The rows of the future follow the context in the table, with unknown targets, or they are those of
another table, matched by series and time stamp. Then the windows are those of a table of their own,
with the rows of one window for each series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from windeck._util.indices import Int64
from windeck._util.text import some_names, unknown_column
from windeck._util.warning import warn
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Bools
from windeck.io.reading import LoadedColumns
from windeck.table.construction import SeriesLayout
from windeck.table.series import match_names, plain_names
from windeck.table.table import Table
from windeck.windows.filters import WindowReport, describe_steps
from windeck.windows.forecasts import stamps_at
from windeck.windows.index import PAD_START, WindowRuns, WindowSpan
from windeck.windows.specification import ColumnRoles, WindowSpec
from windeck.windows.subset import WindowSelection


def latest(
    table: Table, spec: WindowSpec, selection: WindowSelection, future: bool | Table, step: Any
) -> tuple[Table, WindowSpec, WindowSelection]:
    """Return the last contexts of series as table, options and selection; see `Windows.latest`."""
    with_table = isinstance(future, Table)
    if not with_table and not isinstance(future, bool):
        raise TypeError(f"`future` must be a bool or a Table, got a {type(future).__name__}")
    if future is not False and not spec.span.prediction_length:
        raise ValueError("`future` is of windows with a future, expected prediction_length > 0")
    if step is not None and not with_table:
        raise ValueError(f"`step` is {step!r}, expected future=table with it")
    targets = [table.column(name) for name in spec.roles.target]
    selection = _latest_windows(
        selection, table, targets, future=future is not False, follows=future is True
    )
    if isinstance(future, Table):
        table, selection = _add_future(selection, spec.roles, table, future, step)
    keys = spec.keys
    if future is False and keys is not None and spec.layout != "columns":
        keys = tuple(name for name in keys if name[:7] != "future_")
        if not keys:
            raise ValueError(f"`keys` is {spec.keys}, expected a key of windows without a future")
    # Options that choose windows for training do not apply.
    spec = replace(
        spec,
        span=selection.span,
        keys=keys,
        max_missing=1.0,
        max_gap=None,
        min_observed_past=None,
        min_observed_future=None,
    )
    return table, spec, selection


def _latest_windows(
    selection: WindowSelection,
    table: Table,
    targets: Sequence[ColumnData],
    *,
    future: bool,
    follows: bool,
) -> WindowSelection:
    """Return one window for each run: its last context, with or without a future.

    Parameters
    ----------
    future
        Whether windows have a future.
    follows
        Whether the future is in rows of the table: after a run that ends before its series, else
        at the end of the series, where targets have to be unknown.

    Raises
    ------
    ValueError
        If no series has a context, or the future of a series is not in the table.

    Warns
    -----
    UserWarning
        If series are shorter than a context, have no target in it, or have more rows without one at
        their end.
    """
    # A part may have no rows of some series.
    runs = selection.runs.take(np.flatnonzero(selection.runs.low < selection.runs.high))
    offsets, names = selection.offsets, table.series_names
    sides = selection.span.pad & PAD_START
    span = replace(
        selection.span,
        prediction_length=selection.span.prediction_length if future else 0,
        stride=1,
        pad=sides,
        min_context_length=selection.span.min_context_length if sides else None,
        min_prediction_length=None,
        anchor="start",
    )
    begin, end = offsets[runs.series], offsets[runs.series + 1]
    context, ahead = span.past_last + 1, span.rows - span.past_last - 1
    stop = np.where(follows & (runs.high == end), end - ahead, runs.high)
    first = stop - context
    fits = first >= begin - span.max_padding
    # The last step of a context, at least, is inside its series.
    fits &= stop > begin
    series, found = len(fits), int(fits.sum())
    if not found:
        raise ValueError(
            f"no series has a context of {context} rows in these windows"
            + (f" before the {ahead} rows of the future" if follows else "")
        )
    if found < series:
        short = runs.series[~fits]
        warn(
            f"{series - found} of {series} series are shorter than a context of {context} rows "
            f"and have no latest one: {some_names(names, short)}"
            + ("" if sides else "; pad='start' serves them with padding"),
        )
    if follows:
        _check_future(runs.take(np.flatnonzero(fits)), stop[fits], ahead, table, targets)
    _warn_of_missing_contexts(runs.series[fits], first[fits], span, table, targets)
    high = np.maximum(runs.high, first + span.rows) if follows else runs.high
    latest = WindowRuns(first, fits.astype(np.int64), runs.series, runs.low, high, 1)
    report = WindowReport(found, series, series - found, found, {}, span.rows, describe_steps(span))
    return WindowSelection(offsets, span, latest, None, report)


def _warn_of_missing_contexts(
    series: Int64, first: Int64, span: WindowSpan, table: Table, targets: Sequence[ColumnData]
) -> None:
    """Warn of series without a target in any step of their contexts; O(series), and their steps."""

    def are_missing(rows: Int64 | slice) -> Bools:
        missing: Bools = ~np.logical_or.reduce([column.observed(rows) for column in targets])
        return missing

    if any(column.missing == 0 for column in targets):
        return
    last = first + span.past_last
    suspected = np.flatnonzero(are_missing(last))
    stretches = zip(
        np.maximum(first, table.offsets[series])[suspected], last[suspected], strict=True
    )
    missing = [are_missing(slice(begin, end + 1))[:: -span.dilation] for begin, end in stretches]
    empty = suspected[[steps.all() for steps in missing]]
    if len(empty):
        names = some_names(table.series_names, series[empty])
        warn(
            f"{len(empty)} of {len(series)} series have no target in their latest context of "
            f"{span.past_last + 1} rows: {names}; all of its values are missing"
        )


def _check_future(
    runs: WindowRuns, stop: Int64, ahead: int, table: Table, targets: Sequence[ColumnData]
) -> None:
    """Check that the rows of the future are in the table, with unknown targets at its end."""
    offsets, names = table.offsets, table.series_names
    end = offsets[runs.series + 1]
    beyond = runs.series[stop + ahead > end]
    if len(beyond):
        raise ValueError(
            f"the future of {ahead} rows after this part ends later than {len(beyond)} series: "
            f"{some_names(names, beyond)}; expected these rows in the table, or future=table"
        )
    at_end = np.flatnonzero(runs.high == end)
    begin = offsets[runs.series[at_end]]
    # The rows of the future, and the one before it.
    rows = (end[at_end] - ahead - 1)[:, None] + np.arange(ahead + 1)
    seen = np.zeros(rows.shape, dtype=np.bool_)
    for column in targets:
        seen |= column.observed(np.maximum(rows, begin[:, None]).ravel()).reshape(rows.shape)
    known = runs.series[at_end[seen[:, 1:].any(axis=1)]]
    if len(known):
        raise ValueError(
            f"{len(known)} series have a target within their last {ahead} rows, which are the "
            f"future of the forecast: {some_names(names, known)}; expected rows with unknown "
            "targets appended to each series, future=table with these rows, or subset(last=1) for "
            "the last windows with a known future"
        )
    longer = runs.series[at_end[~seen[:, 0]]]
    if len(longer):
        warn(
            f"targets of {len(longer)} series are unknown for more than the last {ahead} rows: "
            f"{some_names(names, longer)}; their forecast is of the last {ahead} rows, and its "
            "context ends with missing targets",
        )


def _add_future(
    selection: WindowSelection,
    roles: ColumnRoles,
    table: Table,
    future: Table,
    step: Any,
) -> tuple[Table, WindowSelection]:
    """Return a table of one window for each context of `selection`, and its windows.

    Rows after a context have the known covariates of `future`; their targets and past covariates
    are missing.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a table has no time stamps, or `future` lacks a series, a row or a column, or has it
        twice, or in another dtype.
    """
    span = selection.span
    runs = selection.runs.take(np.flatnonzero(selection.runs.count))
    begin, stop = table.offsets[runs.series], runs.first + span.past_last + 1
    low = np.maximum(runs.first, begin)
    lengths = runs.first + span.rows - low
    sizes = np.zeros(table.num_series, dtype=np.int64)
    sizes[runs.series] = lengths
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    place = offsets[runs.series]  # of the first row of each window in the new table
    number = np.repeat(np.arange(len(low)), lengths)
    rows = np.arange(offsets[-1]) - place[number] + low[number]
    inside = rows < stop[number]
    stamps = _check_stamps(table, future)
    time = stamps_at(table, runs.series[number], rows, step)
    steps = span.future_first + np.arange(span.prediction_length) * span.dilation
    wanted = runs.first[:, None] + steps
    new = wanted >= stop[:, None]
    to = (wanted - low[:, None] + place[:, None])[new]  # places of the steps after the context
    numbers = _numbers_in(future, table.series_names, runs.series)[np.nonzero(new)[0]]
    origin = _rows_at(future, stamps, numbers, time[to])
    columns = []
    for name in roles.all:
        column = table.column(name)
        if name in roles.static:
            values, seen = _read(column, begin[number])
        else:
            values, seen = _read(column, np.where(inside, rows, low[number]))
            seen &= inside
        if name in roles.known:
            values[to], seen[to] = _known(name, column, future, origin)
        bits = np.packbits(seen, bitorder="little")
        columns.append(ColumnData(name, values, bits, 0, column.categories, None, column.dtype))
    stamped = ColumnData("time", time, missing=0, time_zone=table.time_zone)
    loaded = LoadedColumns(columns, [], stamped, None, None, owned=True)
    made = Table(loaded, SeriesLayout(offsets, table.series_names, table.report))
    first = place + runs.first - low
    ends = offsets[runs.series + 1]
    ones = np.ones_like(first)
    latest = WindowRuns(first, ones, runs.series, place, ends, 1)
    report = replace(selection.report, rows=span.rows, steps=describe_steps(span))
    return made, WindowSelection(offsets, span, latest, None, report)


def _read(column: ColumnData, rows: Int64) -> tuple[Array, Bools]:
    """Return the values of rows as a new array, and which of them are not null."""
    values = np.array(column.values[rows])
    return values, column.observed(rows)


def _check_stamps(table: Table, future: Table) -> Array:
    """Return the time stamps of `future`; both tables must have some of one kind."""
    for name, one in (("the table", table), ("`future`", future)):
        if one.timestamps is None:
            raise ValueError(
                f"{name} has no time stamps, by which rows of the future are matched; expected "
                "timestamp_column= in both tables, or rows appended to the table and future=True"
            )
    assert table.timestamps is not None
    assert future.timestamps is not None
    if table.timestamps.dtype.kind != future.timestamps.dtype.kind:
        raise TypeError(
            f"`future` has time stamps of {future.timestamps.dtype}, expected "
            f"{table.timestamps.dtype} as in the table"
        )
    if (table.time_zone is None) != (future.time_zone is None):
        zoned, plain = ("`future`", "the table")[:: -1 if future.time_zone is None else 1]
        raise ValueError(
            f"{zoned} has time stamps in the time zone {table.time_zone or future.time_zone}, and "
            f"{plain} has some without a zone; expected both with one, by time_zone= where they "
            "are read, or both without"
        )
    return future.timestamps[slice(0, future.num_rows)]


def _numbers_in(future: Table, names: Sequence[Any], series: Int64) -> Int64:
    """Return the numbers in `future` of series, which are matched by name."""
    numbers = {name: number for number, name in enumerate(plain_names(future.series_names))}
    found = match_names([names[number] for number in series.tolist()], numbers)
    lacking = series[found < 0]
    if len(lacking):
        raise ValueError(
            f"`future` has no rows of {len(lacking)} series: {some_names(names, lacking)}; "
            "expected the ids of the table"
        )
    return found


def _rows_at(future: Table, stamps: Array, series: Int64, time: Array) -> Int64:
    """Return the row of `future` of each series and time stamp."""
    same_unit = time.astype(stamps.dtype)
    found = np.zeros(len(series), dtype=np.int64)
    order = np.argsort(series, kind="stable")
    for here in np.split(order, np.flatnonzero(np.diff(series[order])) + 1) if len(order) else []:
        low, high = future.offsets[series[here[0]] :][:2].tolist()
        found[here] = low + np.searchsorted(stamps[low:high], same_unit[here])
    end = future.offsets[series + 1]
    there = stamps[np.minimum(found, max(len(stamps) - 1, 0))] == same_unit
    there &= (found < end) & (same_unit.astype(time.dtype) == time)
    if not there.all():
        first = int(np.argmin(there))
        raise ValueError(
            f"`future` has no row of series {future.series_names[series[first]]!r} at "
            f"{time[first]} ({int((~there).sum())} rows are missing in all); expected a row for "
            "each future step of each series"
        )
    twice = (found + 1 < end) & (stamps[np.minimum(found + 1, len(stamps) - 1)] == same_unit)
    if twice.any():
        first = int(np.argmax(twice))
        raise ValueError(
            f"`future` has series {future.series_names[series[first]]!r} twice at {time[first]}, "
            "expected one row for each time stamp"
        )
    return found


def _known(name: str, column: ColumnData, future: Table, rows: Int64) -> tuple[Array, Bools]:
    """Return the values of a known covariate in rows of `future`, as the table has them."""
    if name not in future.column_names:
        raise unknown_column(name, future.column_names, "`future`")
    other = future.column(name)
    if other.dtype != column.dtype or (other.categories is None) != (column.categories is None):
        raise TypeError(
            f"column {name!r} of `future` is {_kind(other)}, expected {_kind(column)} as in the "
            "table"
        )
    values, seen = _read(other, rows)
    if column.categories is not None and other.categories is not None:
        codes: Mapping[Any, int] = {text: code for code, text in enumerate(column.categories)}
        used = np.unique(values[seen])
        unknown = [other.categories[code] for code in used if other.categories[code] not in codes]
        if unknown:
            raise ValueError(
                f"column {name!r} of `future` has the category {unknown[0]!r}, which the table "
                "does not have"
            )
        recoded = np.zeros(len(other.categories) + 1, dtype=values.dtype)
        recoded[used] = [codes[other.categories[code]] for code in used]
        values = recoded[np.where(seen, values, -1)]
    return values, seen


def _kind(column: ColumnData) -> str:
    return column.dtype if column.categories is None else "a category"
