"""The origin of batches: the table that their numbers of series are of, their axes and columns.

A number of a series means a series of one table, and an axis of an array means channels in one
layout. Windows know both; an array that came through a trainer, a device or a file does not. So
numbers are compared with all tables that they may be of, and used only where these agree.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from windeck._util.indices import Int64
from windeck.table.series import match_names, plain_names
from windeck.table.table import Table
from windeck.windows.scaler_fitting import RowStretches, SeriesName, as_array

# Different origins that a scaler remembers; with more of them numbers alone are not used.
REMEMBERED = 8

# Tables of which the rows of their series are kept.
MATCHED = 8

_CURE = (
    "expected table=windows (or the table whose numbers they are), names of series, or "
    "`windows.inverse_transform`"
)


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


@dataclass(frozen=True, eq=False)
class NotedWindows:
    """Windows of this process, as an origin of batches; each `Windows` holds its own.

    Attributes
    ----------
    origin
        The origin of their batches.
    columns
        All columns that they use.
    scaler
        The origins that their scaler has noted, or None without a scaler.
    """

    origin: BatchOrigin
    columns: tuple[str, ...]
    scaler: ScalerOrigins | None


class TargetRoles(Protocol):
    """Columns by role, as far as scalers and categories use them."""

    @property
    def target(self) -> tuple[str, ...]:
        """The target columns."""

    @property
    def static(self) -> tuple[str, ...]:
        """The static covariates."""

    @property
    def categorical(self) -> tuple[str, ...]:
        """The columns that are codes."""


class TableWindows(Protocol):
    """`Windows`, with what scalers and categories use of them."""

    @property
    def table(self) -> Table:
        """The table."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns used."""

    @property
    def layout(self) -> str:
        """The layout of batches."""

    @property
    def roles(self) -> TargetRoles:
        """The names of the columns of each role."""

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Return first rows, last rows + 1 and series of the stretches of rows that are read."""


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Rows of a table that a scaler or categories are fitted to.

    Attributes
    ----------
    column_names
        The columns used.
    read
        The stretches of rows that are read; None: all rows of the table.
    static, categorical
        The static covariates and the categorical columns of windows.
    """

    table: Table
    column_names: tuple[str, ...]
    read: RowStretches | None = None
    static: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Table | TableWindows | FittedRows) -> FittedRows:
        """Return all rows of a table, or the rows that windows read.

        Raises
        ------
        TypeError
            For anything else.
        """
        if isinstance(data, FittedRows):
            return data
        table = table_of(data)
        if isinstance(data, Table):
            return cls(table, table.column_names)
        read, roles = RowStretches(*data.covered_rows()), data.roles
        return cls(table, data.column_names, read, roles.static, roles.categorical)

    def stretches(self, what: str) -> RowStretches:
        """Return the stretches of rows; a ValueError if windows read none to fit `what` to."""
        if self.read is None:
            return RowStretches.of_table(self.table)
        if not len(self.read.begin):
            raise ValueError(f"there are no windows, expected at least one to fit {what} to")
        return self.read


#: The windows of this process, by the identities of their notes.
_live: WeakValueDictionary[int, NotedWindows] = WeakValueDictionary()


def note_windows(
    origin: BatchOrigin, columns: tuple[str, ...], scaler: ScalerOrigins | None
) -> NotedWindows:
    """Note windows as an origin of batches: of their scaler, and of others while they exist.

    Windows exist as long as the result does.
    """
    noted = NotedWindows(origin, columns, scaler)
    _live[id(noted)] = noted
    if scaler is not None:
        scaler.remember(origin)
    return noted


def table_of(data: Table | TableWindows, name: str = "data") -> Table:
    """Return the table itself, or that of windows or an object like them, argument `name`."""
    try:
        table: object = data if isinstance(data, Table) else data.table
    except AttributeError:
        table = None
    if not isinstance(table, Table):
        raise TypeError(f"`{name}` must be a Table or Windows, got a {type(data).__name__}")
    return table


def _are_numbers(names: Sequence[Any]) -> bool:
    """Return True for the names of series that have none."""
    return all(number == name for number, name in enumerate(names))


class ScalerOrigins:
    """The origins of the batches of one scaler, in this process.

    Parameters
    ----------
    columns
        The columns of the scaler.
    series
        Names of its series, or None where all share one scaling.
    make_digest
        Function that returns a digest of its statistics. It must not refer to the scaler, which
        would then be freed by the garbage collector only.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        series: tuple[SeriesName, ...] | None,
        make_digest: Callable[[], str],
    ) -> None:
        self.columns, self.series, self._make_digest = columns, series, make_digest
        #: The data fitted on, and the windows scaled.
        self.remembered: list[BatchOrigin] = []
        self._matched: list[tuple[tuple[Any, ...], Int64]] = []

    @cached_property
    def digest(self) -> str:
        """A digest of the statistics of the scaler."""
        return self._make_digest()

    @cached_property
    def _series_rows(self) -> dict[SeriesName, int]:
        """The row of each series by name."""
        return {name: row for row, name in enumerate(self.series or ())}

    def remember(self, origin: BatchOrigin) -> None:
        """Note an origin of batches, as long as the scaler exists."""
        if len(self.remembered) <= REMEMBERED and origin not in self.remembered:
            self.remembered.append(origin)

    def rows_of(self, names: tuple[Any, ...]) -> Int64:
        """Return the row of each series of a table, given its names; -1 for an unknown one.

        Kept for some tables: O(1) time after the first call.
        """
        for known, rows in list(self._matched):
            if known is names:
                return rows
        plain = plain_names(names)
        if plain == self.series:
            rows = np.arange(len(names), dtype=np.int64)
        else:
            rows = match_names(plain, self._series_rows)
        self._matched.append((names, rows))
        del self._matched[:-MATCHED]
        return rows

    def find(self, table: Table | TableWindows | None) -> list[BatchOrigin]:
        """Return the origins that a batch may have, or that of `table` if it is given.

        Origins are the windows that the scaler has scaled in this process, or else the data that it
        was fitted on; and other windows that exist and have columns of it, unless a scaler of other
        values scales them. Numbers are the names of series without names, so a table with
        names is no origin for a scaler without, and vice versa.
        """
        if isinstance(table, Table):
            return [BatchOrigin(table.series_names)]
        if table is not None:
            names = table_of(table, "table").series_names  # Raises for anything else.
            return [BatchOrigin(names, table.layout, table.roles.target)]
        names = self.series or ()
        origins = [one for one in self.remembered if one.layout] or list(self.remembered)
        if not origins and _are_numbers(names):
            origins.append(BatchOrigin(names))
        for reference in _live.valuerefs():
            noted = reference()
            if noted is None or noted.scaler is self:
                continue
            if noted.scaler is not None and noted.scaler.digest != self.digest:
                continue
            alike = _are_numbers(noted.origin.names) == _are_numbers(names)
            if (alike or self.series is None) and not set(self.columns).isdisjoint(noted.columns):
                origins.append(noted.origin)
        return origins

    def find_series(
        self, series_id: Any, count: int, table: Table | TableWindows | None
    ) -> BatchSeries:
        """Return the series of a batch, given by names or by numbers.

        Raises
        ------
        IndexError
            For a number that no table has.
        TypeError, ValueError
            If there is not one name or number for each sample, or if numbers may be of several
            tables which number the series differently, or of none that is known.
        """
        if series_id is None:
            raise ValueError("`series_id` must be given: the scaler is per series")
        given = _as_given(series_id)
        if (not isinstance(given, list) and given.ndim != 1) or len(given) != count:
            raise ValueError(
                f"`series_id` must be integers of shape ({count},), or names, one for each sample, "
                f"got shape {(len(given),) if isinstance(given, list) else given.shape}"
            )
        if isinstance(given, list):
            rows = match_names(given, self._series_rows)
            return BatchSeries(rows, given, np.arange(count, dtype=np.int64))
        numbers = given.astype(np.int64, copy=False)
        if table is None and len(self.remembered) > REMEMBERED:
            raise ValueError(
                f"`series_id` has numbers, and the scaler has scaled windows of more than "
                f"{REMEMBERED} tables with other series; {_CURE}"
            )
        found, most = self._agreed(numbers, self.find(table))
        if len(found) > 1:
            # Windows that are no longer used may wait for the garbage collector.
            gc.collect()
            found, most = self._agreed(numbers, self.find(table))
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            raise ValueError(
                "`series_id` has numbers that mean other series in different tables with columns "
                f"of the scaler, such as {_difference(found)}; {_CURE}"
            )
        if most:
            bad = numbers[(numbers < 0) | (numbers >= most)]
            raise IndexError(f"`series_id` must be in [0, {most}), got {bad[0]}")
        raise ValueError(
            "`series_id` has numbers of a table that is not known: the scaler has its series by "
            f"name, and no data in this process that it was fitted on or may scale; {_CURE}"
        )

    def _agreed(
        self, numbers: Int64, origins: Sequence[BatchOrigin]
    ) -> tuple[list[BatchSeries], int]:
        """Return the series that numbers may mean, one entry if all agree, and the most series.

        A table in which a number does not exist is no origin.
        """
        known = list({id(origin.names): origin.names for origin in origins}.values())
        found: list[BatchSeries] = []
        low, high = int(numbers.min(initial=0)), int(numbers.max(initial=-1))
        for names in known:
            if low >= 0 and high < len(names):
                rows = self.rows_of(names)[numbers]
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
                "`axis` must be given: windows of both layouts, 'btc' and 'bct', are in use, and "
                f"both axes of shape {shape} may be those of {count} channels; expected axis=-1, "
                "axis=1, table=windows, or `windows.inverse_transform`"
            )
        place = fits[0] if len(fits) == 1 else 1
    if not shape or not -len(shape) <= place < len(shape) or shape[place] != count:
        hint = ", as layout 'bct' has them" if axis is None and place == 1 else ""
        raise ValueError(
            f"`array` must have {count} channels {tuple(columns)} along axis {place}{hint}, got "
            f"shape {shape}"
        )
    return place
