"""The origin of batches: the table that their numbers of series are of, their axes and columns.

A number of a series means a series of one table, and an axis of an array means channels in one
layout. Windows know both; an array that came through a trainer, a device or a file does not. So
whatever is said of a batch alone is compared with the windows of this process that may have made
it, and used only where they agree.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from windeck._util.indices import Int64
from windeck.table.series import match_names
from windeck.table.table import Table
from windeck.windows.scaler_fitting import as_array, table_of

if TYPE_CHECKING:
    from windeck.windows.scaler import Scaler
    from windeck.windows.windows import Windows

# Different origins that a scaler remembers; with more of them numbers alone are not used.
REMEMBERED = 8

#: The windows of this process by their identities, and its scalers per series by number.
_live: WeakValueDictionary[int, Windows] = WeakValueDictionary()
_scalers: WeakValueDictionary[int, Scaler] = WeakValueDictionary()
_numbers = itertools.count()
#: Mixtures whose batches have numbers of series, of one table or several.
_mixtures: WeakValueDictionary[int, Any] = WeakValueDictionary()


class BatchOrigin(NamedTuple):
    """The names of series by number, the layout, and the target columns of windows.

    Of a table alone the layout is empty, and there are no columns.
    """

    names: tuple[Any, ...]
    layout: str = ""
    columns: tuple[str, ...] = ()


class BatchSeries(NamedTuple):
    """The series of the samples of a batch.

    Attributes
    ----------
    rows
        int64 of shape (batch,): the row of each in a scaler, -1 for a series that it does not have.
    names, numbers
        For messages: the name of sample k is ``names[numbers[k]]``.
    """

    rows: Int64
    names: Sequence[Any]
    numbers: Int64


def note_windows(windows: Windows) -> None:
    """Note windows as a possible origin of batches, as long as they exist."""
    _live[id(windows)] = windows
    if windows.scaler is not None:
        _remember(windows.scaler._remembered, windows)


def note_scaler(scaler: Scaler) -> None:
    """Note a scaler, as long as it exists."""
    if scaler.series is not None:
        _scalers[next(_numbers)] = scaler


def note_mixture(mixture: Any) -> None:
    """Note a mixture as a possible origin of batches, as long as it exists."""
    _mixtures[id(mixture)] = mixture


def note_batch(windows: Windows) -> None:
    """Have scalers remember windows that make a batch for them, which may outlive the windows.

    Batches of columns that another scaler has scaled are not for them. O(scalers) time after the
    first batch.
    """
    for reference in _scalers.valuerefs():
        scaler = reference()
        if scaler is not None and reference.key not in windows._noted_by:
            windows._noted_by.add(reference.key)
            if _shared(windows, scaler) and not _is_of_another(windows, scaler):
                _remember(scaler._heard_of, windows)


def _remember(remembered: list[BatchOrigin], windows: Windows) -> None:
    origin = _origin_of(windows)
    if len(remembered) <= REMEMBERED and origin not in remembered:
        remembered.append(origin)


def _shared(windows: Windows, scaler: Scaler) -> set[str]:
    """Return the columns of windows that a scaler has."""
    return set(scaler.columns).intersection(windows.roles.all)


def _is_of_another(windows: Windows, scaler: Scaler) -> bool:
    """Return True for windows whose columns a scaler of other numbers has scaled."""
    own = windows.scaler
    if own is None or own is scaler or not _shared(windows, scaler) <= set(own.columns):
        return False
    return own._digest != scaler._digest


def _origin_of(windows: Windows) -> BatchOrigin:
    return BatchOrigin(windows.table.series_names, windows.layout, windows.roles.target)


def find_origins(scaler: Scaler, table: Table | Windows | None) -> list[BatchOrigin]:
    """Return the origins that a batch for a scaler may have, or that of `table` if it is given.

    Those of the windows that the scaler has scaled in this process, or that have made batches of
    its columns since it was made, and of other windows that exist and have columns of it. A table
    of another model is none: one that another scaler scales, without a series of this one, while no
    mixture makes batches of both. Series without names have their numbers as names.
    """
    if isinstance(table, Table):
        return [BatchOrigin(table.series_names)]
    if table is not None:
        table_of(table, "table")  # Raises for anything else.
        return [_origin_of(table)]
    names = scaler.series or ()
    windows = [one for reference in _live.valuerefs() if (one := reference()) is not None]
    live = [one for one in windows if one.scaler is not scaler and _shared(one, scaler)]
    others = [*scaler._heard_of, *map(_origin_of, live)]
    foreign = {
        id(one.table.series_names)
        for one in live
        if names
        and not _mixtures
        and _is_of_another(one, scaler)
        and (scaler._rows_of(one.table.series_names) < 0).all()
    }
    origins = list(scaler._remembered)
    if not origins and names == tuple(range(len(names))):
        origins.append(BatchOrigin(names))
    return origins + [origin for origin in others if id(origin.names) not in foreign]


# --- series --------------------------------------------------------------------------------------


def find_series(
    scaler: Scaler, series_id: Any, count: int, table: Table | Windows | None
) -> BatchSeries:
    """Return the series of a batch, given by names or by numbers.

    Raises
    ------
    IndexError
        For a number that no table has.
    TypeError, ValueError
        If there is not one name or number for each sample, or if numbers may be of several tables
        which number the series differently, or of none that is known.
    """
    if series_id is None:
        raise ValueError("`series_id` must be given: the scaler is per series")
    given = _as_given(series_id)
    if (not isinstance(given, list) and given.ndim != 1) or len(given) != count:
        raise ValueError(
            f"`series_id` must be integers of shape ({count},), or names, one for each sample, got "
            f"shape {(len(given),) if isinstance(given, list) else given.shape}"
        )
    if isinstance(given, list):
        rows = match_names(given, scaler._series_rows)
        return BatchSeries(rows, given, np.arange(count, dtype=np.int64))
    numbers = given.astype(np.int64, copy=False)
    if table is None and max(map(len, (scaler._remembered, scaler._heard_of))) > REMEMBERED:
        raise ValueError(
            f"`series_id` has numbers, and windows of more than {REMEMBERED} tables with other "
            f"series have made batches for the scaler; {_CURE}"
        )
    found, most = _agreed(scaler, numbers, find_origins(scaler, table))
    if len(found) > 1:
        # Windows that are no longer used may wait for the garbage collector.
        gc.collect()
        found, most = _agreed(scaler, numbers, find_origins(scaler, table))
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        raise ValueError(
            "`series_id` has numbers that mean other series in different tables with windows in "
            f"this process, such as {_difference(found)}; {_CURE}"
        )
    if most:
        bad = numbers[(numbers < 0) | (numbers >= most)]
        raise IndexError(f"`series_id` must be in [0, {most}), got {bad[0]}")
    raise ValueError(
        "`series_id` has numbers of a table that is not known, and the scaler has its series by "
        f"name: no windows of this process have columns of it; {_CURE}"
    )


_CURE = (
    "expected table=windows (or the table whose numbers they are), names of series, or "
    "`windows.inverse_transform`"
)


def _agreed(
    scaler: Scaler, numbers: Int64, origins: Sequence[BatchOrigin]
) -> tuple[list[BatchSeries], int]:
    """Return the series that numbers may mean, one entry if all agree, and the most series.

    A table in which a number does not exist is no origin.
    """
    known = list({id(origin.names): origin.names for origin in origins}.values())
    found: list[BatchSeries] = []
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=-1))
    for names in known:
        if low >= 0 and high < len(names):
            rows = scaler._rows_of(names)[numbers]
            if not any(np.array_equal(rows, other.rows) for other in found):
                found.append(BatchSeries(rows, names, numbers))
    return found, max(map(len, known), default=0)


def _difference(found: Sequence[BatchSeries]) -> str:
    """Return a text of a number that means two series."""
    one, other = found[:2]
    place = int(np.argmax(one.rows != other.rows))
    number = int(one.numbers[place])
    return f"{number}, which is {one.names[number]!r} in one and {other.names[number]!r} in another"


def _as_given(series_id: Any) -> Any:
    """Return an array of integers, or a list of names."""
    if isinstance(series_id, (list, tuple)) and any(isinstance(one, tuple) for one in series_id):
        return list(series_id)  # Several ids for each series.
    array = as_array(series_id)
    if array.dtype.kind == "O" and all(isinstance(one, (int, np.integer)) for one in array.flat):
        array = array.astype(np.int64)
    if array.dtype.kind in "OUSM" and array.ndim == 1:
        return list(array) if array.dtype.kind == "M" else list(array.tolist())
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(
            f"`series_id` must be integers or names of series, got dtype {array.dtype} and shape "
            f"{array.shape}"
        )
    return array


# --- axes and columns ----------------------------------------------------------------------------


def check_default_columns(columns: Sequence[str], origins: Sequence[BatchOrigin]) -> None:
    """Raise a ValueError if the columns of a scaler are not in the order of those of windows."""
    for origin in origins:
        if len(origin.columns) == len(columns) > 1 and tuple(columns) != origin.columns:
            raise ValueError(
                f"`columns` must be given: the scaler has the columns {tuple(columns)}, and "
                f"windows have the targets {origin.columns}, in another order"
            )


def channel_axis(
    shape: tuple[int, ...],
    columns: Sequence[str],
    axis: int | None,
    origins: Sequence[BatchOrigin] = (),
) -> int:
    """Return the axis of channels of an array: `axis`, or that of the layout of windows.

    Raises
    ------
    ValueError
        If the axis does not have one channel for each column, or if it may be either of two.
    """
    count = len(columns)
    layouts = {origin.layout for origin in origins} & {"btc", "bct"}
    place = -1 if axis is None else axis
    if axis is None and len(shape) > 2 and "bct" in layouts:
        fits = [one for one in (1, -1) if shape[one] == count]
        if len(layouts) > 1 and len(fits) > 1:
            raise ValueError(
                f"`axis` must be given: windows of both layouts, 'btc' and 'bct', are in use, and "
                f"both axes of shape {shape} may be those of {count} channels; expected axis=-1, "
                "axis=1, table=windows, or `windows.inverse_transform`"
            )
        place = fits[0] if len(layouts) > 1 and fits else 1
    if not shape or not -len(shape) <= place < len(shape) or shape[place] != count:
        hint = ", as layout 'bct' has them" if axis is None and place == 1 else ""
        raise ValueError(
            f"`array` must have {count} channels {tuple(columns)} along axis {place}{hint}, got "
            f"shape {shape}; expected columns= with the names of its channels if it has others"
        )
    return place
