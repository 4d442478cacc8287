"""Predictions of windows in original units, and as a table with series and time stamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from windeck._util.indices import Int64, as_indices
from windeck._util.text import plural, unknown_column
from windeck.columns.times import arrow_times
from windeck.table.construction import SeriesLayout
from windeck.table.frames import index_names
from windeck.table.table import Table
from windeck.windows.index import WindowSpan
from windeck.windows.origins import channel_axis
from windeck.windows.predictions import predictions_of
from windeck.windows.scaler import in_original_units
from windeck.windows.specification import Names
from windeck.windows.stamps_after import stamps_at
from windeck.windows.window_set import WindowSet

if TYPE_CHECKING:
    import pyarrow as pa


def inverse_transform(
    windows: WindowSet, values: Any, indices: Any, columns: Names, series_id: Any
) -> Any:
    """Return scaled values of windows in original units; see `Windows.inverse_transform`."""
    if isinstance(values, Mapping):
        return {
            name: inverse_transform(windows, array, indices, name, series_id)
            for name, array in values.items()
        }
    spec, names, shape = windows.spec, _column_names(windows, columns), tuple(values.shape)
    axis = None
    if len(shape) != 2 or len(names) != 1:
        axis = channel_axis(shape, names, 1 if spec.layout == "bct" else -1)
    if series_id is not None and indices is not None:
        raise ValueError("`indices` and `series_id` must not both be given")
    if series_id is None and spec.scaler is not None and spec.scaler.series is not None:
        numbers = _window_numbers(windows, indices)
        if len(numbers) != shape[0]:
            raise ValueError(
                f"`values` must have a row for each of {len(numbers)} windows, got shape "
                f"{shape}; expected `indices` or `series_id` of other rows"
            )
        series_id, _ = windows.index.locate(numbers)
    return _in_units(windows, values, names, axis, series_id)


def _column_names(windows: WindowSet, columns: Names) -> tuple[str, ...]:
    """Return the names of columns given, or of the targets."""
    if columns is None:
        return windows.spec.roles.target
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _window_numbers(windows: WindowSet, indices: Any) -> Int64:
    """Return the numbers of windows given, or of all windows."""
    return np.arange(len(windows.index), dtype=np.int64) if indices is None else as_indices(indices)


def _in_units(
    windows: WindowSet, values: Any, columns: Sequence[str], axis: int | None, series_id: Any
) -> Any:
    """Return values of columns of windows in original units."""
    spec = windows.spec
    for name in columns:
        if name not in spec.roles.all:
            raise unknown_column(name, spec.roles.all, "the windows")
    if spec.scaler is None:
        return values
    return in_original_units(spec.scaler, values, columns, axis, series_id, windows.table)


def prediction_table(
    windows: WindowSet,
    given: Any,
    indices: Any,
    columns: Names,
    step: Any,
    scaled: bool | None,
    *,
    quantiles: Any,
    samples: bool,
    cutoff: bool,
) -> pa.Table:
    """Return predictions of windows as an Arrow table; see `Windows.prediction_table`."""
    table, spec = windows.table, windows.spec
    numbers, names = _window_numbers(windows, indices), _column_names(windows, columns)
    _check_names(names)
    series, starts = windows.index.locate(numbers)
    predictions = predictions_of(given, len(numbers), names, spec.layout, quantiles, samples)
    _check_horizon(spec.span, predictions.values.shape[1])
    if scaled is None and spec.scaler is not None:
        raise ValueError(
            "`scaled` must be given, as the windows have a scaler: scaled=True for predictions "
            "that are scaled as batches are, scaled=False for those in original units"
        )
    if scaled and spec.scaler is None:
        raise ValueError(
            "`scaled` is True, but the windows have no scaler: expected predictions in original "
            "units, with scaled=False or without it"
        )
    if scaled:
        predictions = predictions.in_units(
            lambda values: _in_units(windows, values, names, -1, series)
        )
    predictions.warn_of_crossing()
    if step is not None and table.timestamps is None:
        raise ValueError(f"`step` is {step!r}, but the table has no timestamp column")
    import pyarrow as pa

    _, horizon, _, count = predictions.values.shape
    fields = _index_fields(table, spec.span, series, starts, horizon, step, cutoff=cutoff)
    if predictions.samples:
        rows = np.repeat(np.arange(len(series) * horizon), count)
        fields = {name: field.take(rows) for name, field in fields.items()}
        _add_field(fields, "sample", np.tile(np.arange(count), len(series) * horizon))
    for name, values in predictions.named().items():
        _add_field(fields, name, values)
    return pa.table(fields)


def _check_names(names: tuple[str, ...]) -> None:
    """Check that columns of predictions have names, and different ones."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`columns` must be names, got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"`columns` has {name!r} twice, expected different names")


def _check_horizon(span: WindowSpan, horizon: int) -> None:
    """Raise ValueError for another number of steps than the windows have after the past."""
    if not horizon:
        raise ValueError("`predictions` have 0 steps, expected 1 or more")
    if not span.prediction_length or horizon == span.new_steps:
        return
    steps = f"prediction_length={span.prediction_length}"
    if span.overlap_steps:
        steps += f", of which the first {span.overlap_steps} are past steps"
    raise ValueError(
        f"`predictions` have {plural(horizon, 'step')}, expected {span.new_steps}: the windows "
        f"have {steps}; windows.latest() has no future, and takes any number"
    )


def _index_fields(
    table: Table,
    span: WindowSpan,
    series: Int64,
    starts: Int64,
    horizon: int,
    step: Any,
    *,
    cutoff: bool,
) -> dict[str, Any]:
    """Return ids and times of the steps of windows by name, as Arrow arrays."""
    ahead = span.new_first + np.arange(horizon, dtype=np.int64) * span.dilation
    of_row = np.repeat(series, horizon)
    ids, time = index_columns(table)
    fields = _series_ids(table, of_row, ids or ("series_id",))
    rows = (starts[:, None] + ahead).ravel()
    name = "row" if table.timestamps is None else time
    _add_field(fields, name, _times(table, of_row, rows, step))
    if cutoff:
        last = np.repeat(starts + span.past_last, horizon)
        _add_field(fields, "cutoff", _times(table, of_row, last, step))
    return fields


def _add_field(fields: dict[str, Any], name: str, values: Any) -> None:
    """Add a column to those of a table of predictions, which must not have its name."""
    if name in fields:
        raise ValueError(f"column {name!r} is in the table already, expected another name")
    fields[name] = values


def index_columns(table: Table) -> tuple[tuple[str, ...], str]:
    """Return the names of the columns of ids and of time: those of the data, or default ones."""
    layout = SeriesLayout(table.offsets, table.series_names, table.report)
    return index_names(layout, table.id_columns, table.timestamp_column)


def _times(table: Table, series: Int64, rows: Int64, step: Any) -> Any:
    """Return the time stamps of rows, in their time zone; without stamps rows of the series."""
    import pyarrow as pa

    if table.timestamps is None:
        return pa.array(rows - table.offsets[series])
    stamps = pa.array(arrow_times(stamps_at(table, series, rows, step)))
    if table.time_zone is None:
        return stamps
    return stamps.cast(pa.timestamp(stamps.type.unit, table.time_zone))


def _series_ids(table: Table, series: Int64, ids: Sequence[str]) -> dict[str, Any]:
    """Return the ids of each row by name: of one column, or of several."""
    import pyarrow as pa

    names = table.series_names
    parts = [names] if len(ids) == 1 else zip(*names, strict=True)
    return {name: pa.array(part).take(series) for name, part in zip(ids, parts, strict=True)}
