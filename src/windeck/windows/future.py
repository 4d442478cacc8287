"""The rows of a forecast: the last context of each series, and its known covariates of the future.

The rows of the future follow the context in the table, with unknown targets, or they are those of
another table, matched by series and time stamp, or they have calendar features alone, which are
computed. In the last two cases the windows are those of a table of their own, with the rows of one
window for each series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from windeck._util.indices import Int64
from windeck._util.text import plural, some_names, unknown_column, verb
from windeck._util.warning import warn
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Bools
from windeck.columns.times import time_text
from windeck.io.reading import LoadedColumns
from windeck.table.construction import SeriesLayout
from windeck.table.derived import context_of
from windeck.table.series import match_names, plain_names
from windeck.table.streamed import StreamedColumn
from windeck.table.table import Table
from windeck.windows.filters import WindowReport, describe_steps
from windeck.windows.future_frames import is_frame, table_of
from windeck.windows.index import PAD_START, WindowRuns, WindowSpan
from windeck.windows.specification import ColumnRoles, WindowSpec
from windeck.windows.stamps_after import stamps_at
from windeck.windows.subset import WindowSelection


def latest(
    table: Table, spec: WindowSpec, selection: WindowSelection, future: Any, step: Any
) -> tuple[Table, WindowSpec, WindowSelection]:
    """Return the last contexts of series as table, options and selection; see `Windows.latest`."""
    _check_kind(future)
    is_text = isinstance(future, str)
    if future is not False and not spec.span.prediction_length:
        raise ValueError("`future` is of windows with a future, expected prediction_length > 0")
    targets = [table.column(name) for name in spec.roles.target]
    known = [table.column(name) for name in spec.roles.known]
    computed = table.timestamps is not None and all(one.calendar is not None for one in known)
    if is_text:
        follows = future == "appended"
    else:
        follows = future is True and not (computed and not _is_appended(selection, table, targets))
    if is_text and not follows and not computed:
        _refuse_computed(table, known)
    if step is not None and (future is False or follows):
        raise ValueError(
            f"`step` is {step!r}, expected future=table with it, or future='computed' where all "
            "known covariates are calendar features"
        )
    needed = [one.name for one in known if one.calendar is None and table.timestamps is not None]
    selection = _latest_windows(
        selection, table, targets, needed, future=future is not False, follows=follows
    )
    if future is not False and not follows:
        plain = future is True or is_text
        other = None if plain else _table_of_future(future, table, known)
        table, selection = _add_future(selection, spec.roles, table, other, step)
    elif follows:
        _warn_of_missing_rows(selection, table, spec.roles)
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


def _check_kind(future: Any) -> None:
    """Raise TypeError or ValueError for a `future` of `Windows.latest` that is none."""
    if isinstance(future, str):
        if future not in ("appended", "computed"):
            raise ValueError(f"`future` must be 'appended' or 'computed' as a text, got {future!r}")
    elif not (isinstance(future, (bool, Table)) or is_frame(future)):
        raise TypeError(
            f"`future` must be a bool or a Table, got a {type(future).__name__}; frames of polars, "
            "pandas and Arrow are taken as well"
        )


def _refuse_computed(table: Table, known: Sequence[ColumnData]) -> None:
    """Raise ValueError, as the future cannot be computed."""
    if table.timestamps is None:
        raise ValueError("`future` is 'computed', but the table has no timestamp column")
    names = ", ".join(repr(one.name) for one in known if one.calendar is None)
    raise ValueError(
        f"`future` is 'computed', but known covariates other than calendar features, {names}, "
        f"cannot be computed: expected future=frame with ids, times and {names} of these rows"
    )


def _warn_of_missing_rows(selection: WindowSelection, table: Table, roles: ColumnRoles) -> None:
    """Warn of known covariates without a value in rows of the table; O(series * steps)."""
    span, runs = selection.span, selection.runs
    runs = runs.take(np.flatnonzero(runs.count))
    steps = span.new_first + np.arange(span.new_steps) * span.dilation
    rows = (runs.first[:, None] + steps).ravel()
    columns = [table.column(name) for name in roles.known]
    lacking = {
        column.name: np.flatnonzero(~column.observed(rows))
        for column in columns
        if column.missing != 0
    }
    series, stamps = np.repeat(runs.series, span.new_steps), table.timestamps
    at = rows - table.offsets[series] if stamps is None else stamps[rows]
    _warn_of_missing_known(lacking, table, series, at)


def _warn_of_missing_known(
    lacking: Mapping[str, Int64], table: Table, series: Int64, at: Array
) -> None:
    """Warn of known covariates without a value in the future.

    Parameters
    ----------
    lacking
        Places of the steps without a value, among those after the past, by column.
    series, at
        Series, and time stamp or row in the series, of each step.
    """
    lacking = {name: places for name, places in lacking.items() if len(places)}
    if not lacking:
        return
    counts = ", ".join(f"{name!r} in {len(places)}" for name, places in lacking.items())
    first = int(next(iter(lacking.values()))[0])
    row, utc = "row " * (table.timestamps is None), " UTC" * (table.time_zone is not None)
    warn(
        f"known covariates are missing in the future of the forecast: {counts} of "
        f"{plural(len(series), 'row')}, first of series {table.series_names[series[first]]!r} at "
        f"{row}{time_text(at[first])}{utc}; they are `fill` with mask 0"
    )


def _is_appended(selection: WindowSelection, table: Table, targets: Sequence[ColumnData]) -> bool:
    """Return True if the table has the rows of the future of all series, with unknown targets.

    Series that are shorter than a context before such rows decide nothing.

    Warns
    -----
    UserWarning
        If it has them of some series at most, and the targets of some are unknown for as long.
    """
    runs = selection.runs.take(np.flatnonzero(selection.runs.low < selection.runs.high))
    ahead, total = selection.span.rows - selection.span.past_last - 1, len(runs.series)
    _, _, fits = _last_contexts(runs, selection.span, table.offsets, follows=True)
    if not fits.any():
        return False
    runs = runs.take(np.flatnonzero(fits))
    end = table.offsets[runs.series + 1]
    follow = runs.high + ahead <= end
    at_end = np.flatnonzero(runs.high == end)
    seen = _observed_at_end(table, targets, runs.series[at_end], ahead)[:, 1:]
    follow[at_end] = ~seen.any(axis=1)
    if follow.all():
        return True
    unknown = runs.series[at_end[follow[at_end]]]
    if len(unknown):
        warn(
            f"targets of {len(unknown)} of {total} series are unknown for the last "
            f"{plural(ahead, 'row')}: {some_names(table.series_names, unknown)}; their future "
            "begins after these rows, as that of the other series does; future='computed' says so",
        )
    return False


def _last_contexts(
    runs: WindowRuns, span: WindowSpan, offsets: Int64, *, follows: bool
) -> tuple[Int64, Int64, Bools]:
    """Return the end and the first row of the last context of each window run, and which exist."""
    begin, end = offsets[runs.series], offsets[runs.series + 1]
    ahead = span.rows - span.past_last - 1
    stop = np.where(follows & (runs.high == end), end - ahead, runs.high)
    first = stop - span.past_last - 1
    # The last step of a context, at least, is inside its series.
    fits: Bools = (first >= begin - span.max_padding) & (stop > begin)
    return stop, first, fits


def _observed_at_end(
    table: Table, targets: Sequence[ColumnData], series: Int64, ahead: int
) -> Bools:
    """Return which of the last ``ahead + 1`` rows of series have a target.

    Of a shorter series the first row takes the place of the rows before it.
    """
    begin, end = table.offsets[series], table.offsets[series + 1]
    rows = (end - ahead - 1)[:, None] + np.arange(ahead + 1)
    seen = np.zeros(rows.shape, dtype=np.bool_)
    for column in targets:
        seen |= column.observed(np.maximum(rows, begin[:, None]).ravel()).reshape(rows.shape)
    return seen


def _latest_windows(
    selection: WindowSelection,
    table: Table,
    targets: Sequence[ColumnData],
    needed: Sequence[str],
    *,
    future: bool,
    follows: bool,
) -> WindowSelection:
    """Return one window for each window run: its last context, with or without a future.

    Parameters
    ----------
    needed
        Names of known covariates that cannot be computed, which `future` may have.
    future
        Whether windows have a future.
    follows
        Whether the future is in rows of the table: after a window run that ends before its series,
        else at the end of the series, where targets have to be unknown.

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
    context, ahead = span.past_last + 1, span.rows - span.past_last - 1
    stop, first, fits = _last_contexts(runs, span, offsets, follows=follows)
    series, found = len(fits), int(fits.sum())
    if not found:
        raise ValueError(
            f"no series has a context of {plural(context, 'row')} in these windows"
            + (f" before the {plural(ahead, 'row')} of the future" if follows else "")
        )
    if found < series:
        short = runs.series[~fits]
        warn(
            f"{series - found} of {series} series are shorter than a context of "
            f"{plural(context, 'row')} and have no latest one: {some_names(names, short)}"
            + ("" if sides else "; pad='start' serves them with padding"),
        )
    if follows:
        _check_future(runs.take(np.flatnonzero(fits)), stop[fits], ahead, table, targets, needed)
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
            f"{plural(span.past_last + 1, 'row')}: {names}; all of its values are missing"
        )


def _check_future(
    runs: WindowRuns,
    stop: Int64,
    ahead: int,
    table: Table,
    targets: Sequence[ColumnData],
    needed: Sequence[str],
) -> None:
    """Check that the rows of the future are in the table, with unknown targets at its end."""
    offsets, names = table.offsets, table.series_names
    end = offsets[runs.series + 1]
    beyond = runs.series[stop + ahead > end]
    if len(beyond):
        raise ValueError(
            f"the future of {plural(ahead, 'row')} after this part ends later than {len(beyond)} "
            f"series: {some_names(names, beyond)}; expected these rows in the table, or "
            "future=table"
        )
    at_end = np.flatnonzero(runs.high == end)
    seen = _observed_at_end(table, targets, runs.series[at_end], ahead)
    known = runs.series[at_end[seen[:, 1:].any(axis=1)]]
    if len(known):
        covariates = ", ".join(map(repr, needed))
        cure = (
            f"known covariates other than calendar features, {covariates}, cannot be computed: "
            f"expected future=frame with ids, times and {covariates} of these rows"
            if needed
            else "expected "
            + "future='computed' for the time after them, " * (table.timestamps is not None)
            + "future=table with these rows"
        )
        has, their = verb(len(known), "have"), "its" if len(known) == 1 else "their"
        raise ValueError(
            f"{len(known)} series {has} a target within {their} last {plural(ahead, 'row')}, which "
            f"{verb(ahead, 'are')} the future of the forecast: {some_names(names, known)}; {cure}, "
            "rows with unknown targets appended to each series, or subset(last=1) for the last "
            "windows with a known future"
        )
    longer = runs.series[at_end[~seen[:, 0]]]
    if len(longer):
        warn(
            f"targets of {len(longer)} series are unknown for more than the last "
            f"{plural(ahead, 'row')}: {some_names(names, longer)}; their forecast is of the last "
            f"{plural(ahead, 'row')}, and its context ends with missing targets",
        )


def _add_future(
    selection: WindowSelection,
    roles: ColumnRoles,
    table: Table,
    future: Table | None,
    step: Any,
) -> tuple[Table, WindowSelection]:
    """Return a table of one window for each context of `selection`, and its windows.

    Rows after a context have the known covariates of `future`, and calendar features are computed;
    their targets and past covariates are missing. `future` is None if no column is needed of it.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a table has no time stamps, or `future` lacks a series, a row or a column, or has it
        twice, or in another dtype.
    """
    cut = _cut(selection, table)
    time = stamps_at(table, cut.series, cut.rows, step)
    series, rows, stamps = cut.series[cut.new], cut.rows[cut.new], time[cut.new]
    origin = None if future is None else _rows_at(future, table.series_names, series, stamps)
    columns, lacking = [], {}
    for name in roles.all:
        column = table.column(name)
        texts = column.categories
        first = name in roles.static
        values, seen = _read(column, table.offsets[cut.series] if first else cut.source)
        seen &= first | (cut.source == cut.rows)
        if name in roles.known and column.calendar is not None:
            last, names = table.offsets[series + 1] - 1, table.series_names
            context = context_of(column.calendar, table.columns, names, series, last)
            ages = rows - table.offsets[series]
            values[cut.new] = column.calendar.values(stamps, ages, context)
            seen[cut.new] = True
        elif name in roles.known and future is not None and origin is not None:
            if texts is not None and name in roles.categorical:
                # Codes are found by text: new ones of `future` are values like any other.
                texts = _all_texts(texts, future, name)
                column = replace(column, categories=texts)
            values[cut.new], known = _known(name, column, future, origin)
            seen[cut.new] = known
            lacking[name] = np.flatnonzero(~known)
        bits = np.packbits(seen, bitorder="little")
        columns.append(ColumnData(name, values, bits, 0, texts, None, column.dtype))
    _warn_of_missing_known(lacking, table, series, stamps)
    stamped = ColumnData("time", time, missing=0, time_zone=table.time_zone)
    loaded = LoadedColumns(columns, [], stamped, None, None, owned=True)
    made = Table(loaded, SeriesLayout(cut.offsets, table.series_names, table.report))
    made = made._named(table.id_columns, table.timestamp_column)
    report = replace(
        selection.report, rows=selection.span.rows, steps=describe_steps(selection.span)
    )
    return made, WindowSelection(cut.offsets, selection.span, cut.runs, None, report)


class _Cut(NamedTuple):
    """The rows of one window for each series, as rows of a table of their own.

    Attributes
    ----------
    runs, offsets
        The windows, and the series, in the table of these rows.
    series, rows
        Of each row its series, and its row in the table that it is cut from.
    source
        That row, or for a row after the context the last one of the context.
    new
        Places of the steps of the future after the context.
    """

    runs: WindowRuns
    offsets: Int64
    series: Int64
    rows: Int64
    source: Int64
    new: Int64


def _cut(selection: WindowSelection, table: Table) -> _Cut:
    """Return the rows of the windows of a selection, which has one for each series."""
    span = selection.span
    runs = selection.runs.take(np.flatnonzero(selection.runs.count))
    last = runs.first + span.past_last
    low = np.maximum(runs.first, table.offsets[runs.series])
    lengths = runs.first + span.rows - low
    sizes = np.zeros(table.num_series, dtype=np.int64)
    sizes[runs.series] = lengths
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    place = offsets[runs.series]  # of the first row of each window
    shift = np.repeat(low - place, lengths)
    rows = np.arange(offsets[-1]) + shift
    source = np.minimum(rows, np.repeat(last, lengths))
    steps = span.future_first + np.arange(span.prediction_length) * span.dilation
    wanted = runs.first[:, None] + steps
    new = (wanted - (low - place)[:, None])[wanted > last[:, None]]
    first, ones = runs.first - low + place, np.ones_like(low)
    cut = WindowRuns(first, ones, runs.series, place, offsets[runs.series + 1], 1)
    return _Cut(cut, offsets, np.repeat(runs.series, lengths), rows, source, new)


def _read(column: ColumnData, rows: Int64) -> tuple[Array, Bools]:
    """Return the values of rows as a new array, and which of them are not null."""
    if isinstance(column, StreamedColumn):
        part = column.read(rows)
        return np.array(part.values), part.observed()
    values = column.values[rows]
    if column.validity is None:  # Values are picked once.
        return values, replace(column, values=values).observed()
    return values, column.observed(rows)


def _table_of_future(future: Any, table: Table, known: Sequence[ColumnData]) -> Table:
    """Return a table or frame of the future as a table, with time stamps as `table` has them."""
    found = future
    if table.timestamps is not None and not isinstance(future, Table):
        found = table_of(future, table, [one.name for one in known if one.calendar is None])
    _check_stamps(table, found)
    assert isinstance(found, Table)
    return found


def _check_stamps(table: Table, future: Table) -> None:
    """Check that both tables have time stamps of one kind."""
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


def _numbers_in(future: Table, names: Sequence[Any], series: Int64) -> Int64:
    """Return the numbers in `future` of series, which are matched by name."""
    numbers = {name: number for number, name in enumerate(plain_names(future.series_names))}
    has_rows = np.zeros(len(names), dtype=np.bool_)
    has_rows[series] = True
    used = np.flatnonzero(has_rows)
    found = np.zeros(len(names), dtype=np.int64)
    found[used] = match_names([names[number] for number in used.tolist()], numbers)
    lacking = used[found[used] < 0]
    if len(lacking):
        raise ValueError(
            f"`future` has no rows of {len(lacking)} series: {some_names(names, lacking)}; "
            "expected the ids of the table"
        )
    return found[series]


def _rows_at(future: Table, names: Sequence[Any], series: Int64, time: Array) -> Int64:
    """Return the row of `future` of each series of the table and time stamp.

    The rows of a series are next to each other, in order of time. O(rows) time where those of
    `future` are too, else O(rows log(rows of a series)).
    """
    assert future.timestamps is not None
    stamps = future.timestamps[slice(0, future.num_rows)]
    same_unit, numbers = time.astype(stamps.dtype), _numbers_in(future, names, series)
    end = future.offsets[numbers + 1]
    begins = np.flatnonzero(np.append(True, series[1:] != series[:-1])[: len(series)])
    first = _first_rows(stamps, future.offsets, numbers[begins], same_unit[begins])
    counts = np.diff(np.append(begins, len(series)))
    found = np.repeat(first - begins, counts) + np.arange(len(series))
    there = _are_at(stamps, found, end, same_unit)
    if not there.all():
        lost = np.flatnonzero(~there)
        found[lost] = _first_rows(stamps, future.offsets, numbers[lost], same_unit[lost])
        there[lost] = _are_at(stamps, found[lost], end[lost], same_unit[lost])
    there &= same_unit.astype(time.dtype) == time
    utc = "" if future.time_zone is None else " UTC"
    if not there.all():
        place, lacking = int(np.argmin(there)), int((~there).sum())
        raise ValueError(
            f"`future` has no row of series {names[series[place]]!r} at "
            f"{time_text(time[place])}{utc} ({plural(lacking, 'row')} {verb(lacking, 'are')} "
            "missing in all); expected a row for each future step of each series"
        )
    twice = (found + 1 < end) & (stamps[np.minimum(found + 1, len(stamps) - 1)] == same_unit)
    if twice.any():
        place = int(np.argmax(twice))
        raise ValueError(
            f"`future` has series {names[series[place]]!r} twice at {time_text(time[place])}{utc}, "
            "expected one row for each time stamp"
        )
    return found


def _are_at(stamps: Array, rows: Int64, end: Int64, time: Array) -> Bools:
    """Return which rows, that are before the end of their series, have a time stamp."""
    found: Bools = (stamps[np.minimum(rows, max(len(stamps) - 1, 0))] == time) & (rows < end)
    return found


def _first_rows(stamps: Array, offsets: Int64, series: Int64, time: Array) -> Int64:
    """Return the first row of each series at or after a time stamp, else its end.

    A binary search of all at once: the longest series decides how many rounds it takes.
    """
    low, high = offsets[series], offsets[series + 1]
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        # Rows of an empty range may be after the last one.
        before = (low < high) & (stamps[np.minimum(middle, len(stamps) - 1)] < time)
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    return low


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


def _all_texts(texts: tuple[str, ...], future: Table, name: str) -> tuple[str, ...]:
    """Return the texts of a column, and those of `future` that it does not have."""
    other = future.column(name).categories if name in future.column_names else None
    return tuple(dict.fromkeys((*texts, *(other or ()))))


def _kind(column: ColumnData) -> str:
    return column.dtype if column.categories is None else "a category"
