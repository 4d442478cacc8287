"""The source that cuts a table into windows of past and future steps."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np

from windeck._util.fingerprints import digest
from windeck._util.indices import Int64, as_indices, is_integer
from windeck._util.validation import check_number
from windeck.columns.dtypes import is_bits
from windeck.table.table import Table
from windeck.windows import subset
from windeck.windows.balanced import BalancedWindows
from windeck.windows.batch_spec import (
    LAYOUTS,
    Batch,
    BatchGatherer,
    ColumnRoles,
    Layout,
    OutputDtypes,
    batch_keys,
    resolve_dtypes,
)
from windeck.windows.filters import (
    WindowFilter,
    WindowReport,
    allowed_missing,
    as_integers,
    describe_steps,
    gap_in_units,
)
from windeck.windows.index import WindowSpan
from windeck.windows.scaler import Scaler
from windeck.windows.subset import Split, WindowSelection

Names = str | Iterable[str] | None


class Windows:
    """The windows of a table, as a source of samples.

    A window starts at a row of a series. Past step j is row ``start + j * dilation``, future step
    j is row ``start + (context_length + j) * dilation + gap``; windows never cross a series.

    Parameters
    ----------
    table
        The table that holds the rows.
    context_length, prediction_length
        Number of past steps, at least 1, and of future steps, at least 0.
    gap
        Rows left out between past and future; unused without a future.
    stride
        Rows from the start of one window to the next, counted from the first window of each series.
    dilation
        Rows from one step to the next.
    target_columns
        Columns to predict. Default: every column not named elsewhere.
    known_covariates, past_covariates, static_covariates
        Columns known in the future too; known in the past only; constant in a series (the
        series' first row is read). A column has one role.
    pad
        Let windows begin before their series, with at least one context step inside it. Steps
        before the series are `fill` with mask 0. The future always lies inside.
    fill
        The value of missing elements.
    max_missing
        Drop windows with a larger share of missing target values, past and future. The share is
        that of zeros in the masks of the targets, so steps of padding count.
    max_gap
        Drop windows with neighbouring time stamps that are further apart: a timedelta, a text such
        as ``"1h"``, or an integer in the unit of the time stamps.
    scaler
        Scaling of its columns inside `gather`. Missing values become `fill`, which is not scaled.
    layout
        ``"btc"``: arrays (batch, time, channel). ``"bct"``: (batch, channel, time).
        ``"columns"``: one array (batch, time) for each column, under its name, where time is past
        and future together (past only for past covariates), and (batch,) for static columns.
    dtype
        A floating dtype for floating columns (``"bfloat16"`` comes as bits in uint16, see
        `torch_dtypes`), or a mapping of columns to dtypes, which casts any column. Default: as
        stored. A scaled integer column becomes the floating dtype, or else float32.

    Notes
    -----
    **Keys** of a batch: ``past_target``, ``future_target``, ``past_known``, ``future_known``,
    ``past_covariates``, ``static``, as far as there are such columns (and a future). A key has a
    ``<key>_mask`` (bool, 1 = observed) if something in it can be missing: with padding, with nulls,
    and in floating columns unless the table counted no NaN. ``series_id`` and ``start`` are int64
    of shape (batch,): the number of the series and the row in the table of the first context step.
    With padding that row may lie before the series.

    **Cost**: O(series) time and memory. With `max_missing` or `max_gap` the rows are read once
    and each window takes one bit.

    Raises
    ------
    KeyError
        If a column does not exist; the message names similar ones.
    TypeError
        If the columns of a key have different dtypes: columns are cast only on request.
    ValueError
        If sizes are out of range, if no window fits, or if an integer key cannot hold `fill`.

    Warns
    -----
    UserWarning
        If some series are shorter than a window: once, with their number.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(8)}, offsets=[0, 5, 8])
    >>> w = wd.Windows(table, context_length=2, prediction_length=1)
    >>> len(w), w.locate(3)
    (4, (1, 5))
    >>> w.gather([0, 3])["past_target"][:, :, 0]
    array([[0, 1],
           [5, 6]])
    """

    #: `gather` takes ``threads=``.
    supports_threads = True

    def __init__(
        self,
        table: Table,
        *,
        context_length: int,
        prediction_length: int = 0,
        gap: int = 0,
        stride: int = 1,
        dilation: int = 1,
        target_columns: Names = None,
        known_covariates: Names = None,
        past_covariates: Names = None,
        static_covariates: Names = None,
        pad: bool = False,
        fill: float = 0.0,
        max_missing: float = 1.0,
        max_gap: Any = None,
        scaler: Scaler | None = None,
        layout: Layout = "btc",
        dtype: Any = None,
    ) -> None:
        if not hasattr(table, "offsets"):
            raise TypeError(f"`table` must be a Table, got a {type(table).__name__}")
        if layout not in LAYOUTS:
            raise ValueError(f"`layout` must be one of {', '.join(LAYOUTS)}, got {layout!r}")
        self.table = table
        self.span = WindowSpan(context_length, prediction_length, gap, stride, dilation, bool(pad))
        self.roles = ColumnRoles.from_names(
            table, target_columns, known_covariates, past_covariates, static_covariates
        )
        self.layout: Layout = layout
        self.fill = check_number("fill", fill)
        self.max_missing = check_number("max_missing", max_missing)
        self.max_gap = None if max_gap is None else gap_in_units(max_gap, table.timestamps)
        self._dtypes = OutputDtypes(dtype, self.roles.all)
        self._columns = {name: table.column(name) for name in self.roles.all}
        targets = [self._columns[name] for name in self.roles.target]
        conditions = WindowFilter(
            targets,
            allowed_missing(self.max_missing, self.span.steps * len(targets)),
            None if table.timestamps is None else as_integers(table.timestamps),
            self.max_gap,
        )
        self._selection = WindowSelection.of_table(table.offsets, self.span, conditions)
        self._set_scaler(scaler)

    def _set_scaler(self, scaler: Scaler | None) -> None:
        """Resolve the dtypes of keys with a scaler, and make the native objects."""
        if scaler is not None and not isinstance(scaler, Scaler):
            raise TypeError(f"`scaler` must be a Scaler, got a {type(scaler).__name__}")
        if scaler is not None and not set(scaler.columns) & set(self.roles.all):
            raise ValueError(
                f"`scaler` must have some of the columns {self.roles.all}, got {scaler.columns}"
            )
        self.scaler = scaler
        keys = batch_keys(self.roles, self.span, self.layout)
        self._keys = resolve_dtypes(keys, self._columns, self._dtypes, scaler, self.fill)
        self._make_native()

    def _make_native(self) -> None:
        self._index = self._selection.index()
        self._gatherer = BatchGatherer(
            self._index, self._selection, self.table, self._columns, self._keys, self.scaler
        )

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_index", "_gatherer", "fingerprint")  # made anew, not pickled
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_native()

    # --- window numbers, series and rows ---------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._index)

    def locate(self, index: Any) -> tuple[Any, Any]:
        """Return the series number and the start row (in the table) of windows.

        Parameters
        ----------
        index
            A window number, or an array of them.

        Returns
        -------
        series, row
            Two ints for an int, two int64 arrays for an array. O(log series) each.

        Raises
        ------
        IndexError
            If a number is outside ``[0, len)``.
        """
        if is_integer(index):
            series, rows = self._index.locate(np.array([operator.index(index)], dtype=np.int64))
            return int(series[0]), int(rows[0])
        series, rows = self._index.locate(as_indices(index))
        return series, rows

    def index_of(self, series: Any, row: Any) -> Any:
        """Return the window of a series that starts at a row, or -1: the inverse of `locate`."""
        if is_integer(series) and is_integer(row):
            return int(self._index.index_of(as_indices([series]), as_indices([row]))[0])
        pairs = np.broadcast_arrays(as_indices(series), as_indices(row))
        return self._index.index_of(*(np.ascontiguousarray(one) for one in pairs))

    def window_starts(self) -> Int64:
        """Return the start rows of all windows, int64. O(windows) time and memory."""
        starts: Int64 = self._index.slice(0, len(self))[1]
        return starts

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Return first rows, last rows + 1 and series of the stretches of rows that windows read.

        One stretch for each series that has windows; rows between windows far apart are included.
        """
        selection = self._selection
        return selection.runs.covered_rows(selection.span, selection.offsets)

    def explain(self) -> WindowReport:
        """Return a report of the number of windows, and of those dropped by reason."""
        return self._selection.report

    @property
    def nbytes(self) -> int:
        """Bytes of the index: O(series), and one bit a window where windows were dropped."""
        return self._selection.nbytes

    # --- batches ---------------------------------------------------------------------------------

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch: row k of every array is window ``indices[k]``.

        Parameters
        ----------
        indices
            Integers of shape (batch,).
        out
            Arrays to write into, by key; new ones if None.
        threads
            Number of threads that copy.

        Returns
        -------
        dict of arrays
            Writable, contiguous, and owned by the caller; for the keys see the class.
        """
        return self._gatherer.gather(as_indices(indices), out, threads)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample: arrays without the batch axis. Negative numbers count from the end."""
        if not is_integer(index):
            raise TypeError(f"`index` must be an integer, got {index!r}; for several see gather()")
        number = operator.index(index)
        batch = self.gather([number + len(self) if -len(self) <= number < 0 else number])
        return {key: array[0] for key, array in batch.items()}

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """Keys whose uint16 arrays are the bits of a dtype that NumPy lacks."""
        return {key.name: key.dtype for key in self._keys if is_bits(key.dtype)}

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns used: targets, then known, past and static covariates."""
        return self.roles.all

    # --- derived windows -------------------------------------------------------------------------

    def with_scaler(self, scaler: Scaler | None) -> Windows:
        """Return the same windows with another scaler, or none."""
        other = self._copy()
        other._set_scaler(scaler)
        return other

    def balanced(self, weights: Any = None, *, epoch_length: int | None = None) -> BalancedWindows:
        """Return a source that serves each series in proportion to a weight, not to its windows.

        In every epoch each series has the same number of windows, a random sample of its own
        without repetition until all of them have been served; then its next cycle begins. Serve it
        as any source: ``Loader(windows.balanced(), batch_size=256, seed=7)``. Each epoch is
        shuffled, and a position is the whole state, as for windows.

        Parameters
        ----------
        weights
            A number for each series of the table, or a mapping from series names to numbers (0 for
            the others); None: equal shares of all series that have windows.
        epoch_length
            Windows in an epoch; by default about as many as there are, and with equal shares a
            multiple of the number of series. Each series gets its share of it, rounded to a whole
            number by largest remainder.

        Raises
        ------
        KeyError, ValueError
            For a weight of an unknown series or of one without windows, for weights that are
            negative or all 0, and for a series that would have no window in an epoch.

        Examples
        --------
        >>> import numpy as np
        >>> from windeck.table import Table
        >>> table = Table.from_columns({"load": np.arange(12.0)}, offsets=[0, 9, 12])
        >>> balanced = Windows(table, context_length=2).balanced()
        >>> len(balanced), balanced.counts
        (10, array([5, 5]))
        """
        return BalancedWindows(self, weights, epoch_length)

    def split(
        self,
        validation: Any = 0.1,
        test: Any = 0.1,
        *,
        by: Literal["time", "series"] = "time",
        seed: int = 0,
    ) -> Split:
        """Split into training, validation and test windows.

        Parameters
        ----------
        validation, test
            Shares. By time they are the last rows of each series (rounded to whole rows), test
            after validation; or both are time stamps at which these parts begin (0: no such part).
        by
            ``"time"``: a window belongs to the part that its whole future lies in (or the whole
            window, with ``prediction_length=0``); its context may reach back into earlier parts.
            Windows across a border are dropped and counted. ``"series"``: whole series are
            distributed by a permutation of `seed`.

        Returns
        -------
        Split
            A named tuple ``(train, validation, test)`` of windows.

        Raises
        ------
        ValueError
            If a part with a share above 0 holds no window.
        """
        parts = subset.split(self._selection, self.table, validation, test, by, seed)
        return Split(*map(self._with_selection, parts))

    def subset(self, *, series: Any = None, rows: Any = None, time: Any = None) -> Windows:
        """Return the windows of some series, or those that lie within some rows or some time.

        Parameters
        ----------
        series
            A name as in ``table.series_names``, or several; also numbers, unless names are
            integers.
        rows, time
            Pair ``(start, stop)`` of table rows or of time stamps, `stop` excluded, None for no
            limit. All rows of a window, past and future, lie in it (padding left out).

        Raises
        ------
        KeyError, IndexError
            If a series does not exist.
        ValueError
            If no window is left.
        """
        selected = subset.select(self._selection, self.table, series, rows, time)
        return self if selected is self._selection else self._with_selection(selected)

    def _with_selection(self, selection: WindowSelection) -> Windows:
        other = self._copy()
        other._selection = selection
        other._make_native()
        return other

    def _copy(self) -> Windows:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("fingerprint", None)
        return other

    # --- identity --------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """Options, sizes and digests for checkpoints, without paths and times."""
        span, roles = self.span, self.roles
        own: dict[str, str | int] = {
            "source": "Windows",
            "windows": len(self),
            **{name: int(getattr(span, name)) for name in span.__dataclass_fields__},
            "target_columns": ", ".join(roles.target),
            "known_covariates": ", ".join(roles.known),
            "past_covariates": ", ".join(roles.past),
            "static_covariates": ", ".join(roles.static),
            "layout": self.layout,
            "dtypes": ", ".join(f"{key.name}: {key.dtype}" for key in self._keys),
            "fill": repr(self.fill),
            "max_missing": repr(self.max_missing),
            "max_gap": repr(self.max_gap),
            "scaler": "none" if self.scaler is None else digest(self.scaler.to_json()),
            "starts": self._selection.digest(),
        }
        return own | {f"table.{name}": value for name, value in self.table.fingerprint.items()}

    def __repr__(self) -> str:
        keys = ", ".join(key.name for key in self._keys)
        return f"Windows({len(self):,} windows: {describe_steps(self.span)}; {keys})"
