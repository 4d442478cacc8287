"""The source that cuts a table into windows of past and future steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from windeck import _core
from windeck._util.html import html_table
from windeck._util.imports import needs_torch
from windeck._util.indices import INT64, Int64, as_indices, is_integer
from windeck._util.options import explain_options
from windeck.orders import BlockPermutation
from windeck.sources import Batch, OrderFactory
from windeck.table.table import StreamedTable, Table
from windeck.windows import forecasts, joined, splits, subset
from windeck.windows.balance import Balance
from windeck.windows.balanced import BalancedWindows
from windeck.windows.categories import Categories
from windeck.windows.device_layout import DeviceLayout
from windeck.windows.filters import WindowReport, describe_steps, gap_in_units
from windeck.windows.future import latest
from windeck.windows.index import WindowSpan, pad_sides
from windeck.windows.scaler import Scaler, warn_of_unseen
from windeck.windows.specification import (
    ColumnRoles,
    Layout,
    Names,
    OutputDtypes,
    WindowSpec,
    names_of,
)
from windeck.windows.static_columns import warn_of_varying
from windeck.windows.streamed import BlockedWindows
from windeck.windows.subset import WindowSelection
from windeck.windows.window_set import WindowSet

if TYPE_CHECKING:
    import pyarrow as pa

    from windeck.windows.device import DeviceWindows  # It needs torch.


W = TypeVar("W", bound="Windows")


@explain_options
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
        Rows left out between past and future; without a future they only move the first step of
        `prediction_table`. A negative one lets the future begin before the past ends, as models do
        that start decoding from known labels: ``gap=-48`` repeats the last 48 past steps at the
        start of the future.
    stride
        Rows from the start of one window to the next, counted from the first window of each series.
    dilation
        Rows from one step to the next.
    target_columns
        Columns to predict. Default: every column not named elsewhere, but no text beside floats,
        which with ``layout="columns"`` is a key of its own.
    known_covariates, past_covariates, static_covariates
        Columns known in the future too; known in the past only; constant in a series, of which the
        first row is read. Static columns are read once, to warn of those that vary. A column has
        one role.
    pad
        ``"start"`` (or True): windows may begin before their series, with at least one context step
        inside it. ``"end"``: futures may end after it, with at least one step after the past
        inside it; without a future, contexts may. ``"both"``: both. Steps outside the series are
        `fill` with mask 0.
    fill
        The value of missing elements.
    max_missing
        Drop windows with a larger share of missing target values, past and future. The share is
        that of zeros in the masks of the targets, so steps of padding count.
    max_gap
        Drop windows with neighbouring time stamps that are further apart: a timedelta, a text such
        as ``"1h"``, ``"15min"`` or ``"1h30m"``, or an integer in the unit of the time stamps, which
        `explain` names: 1 is a microsecond of datetime64[us].
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
    min_context_length, min_prediction_length
        Least number of context steps, and of future steps, inside the series, on the side that is
        padded. Default: 1. A future that overlaps the past has one step more than the overlap.
    anchor
        ``"start"``: `stride` is counted from the first possible window of each series; ``"end"``:
        from the last possible one, so that the latest rows are used. The same with a stride of 1.
    keys
        Names of the keys of a batch, such as ``("past_target", "future_target")``; the others cost
        nothing. A mask is a key of its own, named or added by `masks`. Values do not depend on
        `keys`, nor do orders and states: missing ones are `fill` without a mask too. Default: all.
    min_observed_past, min_observed_future
        Drop windows with fewer observed (not missing) target values in the context, and in the
        future: numbers of values, steps times target columns. Steps of padding are not observed.
    masks
        Whether every key of columns has a ``<key>_mask``. Default: True without `keys`; with `keys`
        those masks that are named.
    categorical
        Covariates that are codes for embeddings, in keys of their own: names of columns of text,
        integers or bools; True for all covariates of text; or fitted `Categories`. Names need
        `with_categories` before the first batch.

    Notes
    -----
    **Keys** of a batch: ``past_target``, ``future_target``, ``past_known``, ``future_known``,
    ``past_covariates``, ``static``, as far as there are such columns (and a future). Each has a
    ``<key>_mask`` (bool, 1 = observed), also where nothing is missing: keys and dtypes depend on
    options, never on the data. Covariates that are `categorical` are in ``past_known_categorical``,
    ``future_known_categorical``, ``past_categorical`` and ``static_categorical`` instead, int64.
    ``series_id`` and ``start`` are int64 of shape (batch,): the number
    of the series and the row in the table of the first context step. With padding that row may lie
    before the series.

    **Cost**: O(series) time and memory. With `max_missing`, `max_gap` and the like the rows
    are read once and each window takes one bit.

    Raises
    ------
    KeyError
        If a column or a key does not exist; the message names similar ones.
    TypeError
        If the columns of a key have dtypes that none can hold, such as text beside numbers.
    ValueError
        If sizes are out of range, if no window fits, or if an integer key cannot hold `fill`.

    Warns
    -----
    UserWarning
        If some series are shorter than a window, lose every window to a filter, or are unknown to a
        scaler per series: once each, with their number; if a static covariate varies within a
        series, with names of series.

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
    #: Several batches may be gathered by one call.
    independent_rows = True

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
        pad: bool | Literal["start", "end", "both"] = False,
        fill: float = 0.0,
        max_missing: float = 1.0,
        max_gap: Any = None,
        scaler: Scaler | None = None,
        layout: Layout = "btc",
        dtype: Any = None,
        min_context_length: int | None = None,
        min_prediction_length: int | None = None,
        anchor: Literal["start", "end"] = "start",
        keys: Names = None,
        min_observed_past: int | None = None,
        min_observed_future: int | None = None,
        masks: bool | None = None,
        categorical: Names | bool | Categories = None,
    ) -> None:
        _check_table(table)
        span = WindowSpan(
            context_length,
            prediction_length,
            gap,
            stride,
            dilation,
            pad_sides(pad),
            min_context_length,
            min_prediction_length,
            anchor,
        )
        cast = dtype if isinstance(dtype, Mapping) else ()
        roles = ColumnRoles.from_names(
            table,
            target_columns,
            known_covariates,
            past_covariates,
            static_covariates,
            kept=table.column_names if layout == "columns" else cast,
        )
        roles = roles.with_categorical(categorical, table)
        spec = WindowSpec(
            span=span,
            roles=roles,
            layout=layout,
            fill=fill,
            max_missing=max_missing,
            max_gap=None if max_gap is None else gap_in_units(max_gap, table.timestamps),
            min_observed_past=min_observed_past,
            min_observed_future=min_observed_future,
            dtypes=OutputDtypes.from_dtype(dtype, roles.all),
            keys=None if keys is None else names_of(keys),
            masks=masks,
            scaler=scaler,
            categories=categorical if isinstance(categorical, Categories) else None,
        )
        selection = WindowSelection.of_table(
            table.offsets, span, spec.conditions(table), table.series_names
        )
        if max_gap is None:
            breaks = int(table.report.breaks.sum())
            selection = replace(selection, report=replace(selection.report, breaks=breaks))
        self._set = WindowSet.of(table, spec, selection)
        warn_of_unseen(scaler, table.num_series, [self.unseen_series()])
        warn_of_varying(table, roles.static)

    @classmethod
    def _of(cls: type[W], table: Table, spec: WindowSpec, selection: WindowSelection) -> W:
        """Return windows of these values; pickles name this method."""
        return cls._made(WindowSet.of(table, spec, selection))

    @classmethod
    def _made(cls: type[W], windows: WindowSet, attributes: Mapping[str, Any] | None = None) -> W:
        """Return windows with the attributes of those that they are made of.

        All windows are made here, but for those of the constructor.
        """
        # As `copy.copy`, but a derived class may have parameters in its `__new__` too.
        made = object.__new__(cls)
        vars(made).update(attributes or {}, _set=windows)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # Native objects are made anew, and columns of a mapped table would be copies.
        made_of = self._set.table, self._set.spec, self._set.selection
        return type(self)._of, made_of, self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes that a derived class or a user has set."""
        return {name: value for name, value in vars(self).items() if name != "_set"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    # --- options ---------------------------------------------------------------------------------

    @property
    def table(self) -> Table:
        """The table that holds the rows."""
        return self._set.table

    @property
    def span(self) -> WindowSpan:
        """Context and prediction length, gap, stride, dilation and padding."""
        return self._set.spec.span

    @property
    def roles(self) -> ColumnRoles:
        """The names of the columns of each role."""
        return self._set.spec.roles

    @property
    def layout(self) -> Layout:
        """The layout of batches."""
        return self._set.spec.layout

    @property
    def fill(self) -> float:
        """The value of missing elements."""
        return self._set.spec.fill

    @property
    def max_missing(self) -> float:
        """The largest share of missing target values of a window."""
        return self._set.spec.max_missing

    @property
    def max_gap(self) -> int | None:
        """The largest step in a window, in the unit of the time stamps; None: any."""
        return self._set.spec.max_gap

    @property
    def scaler(self) -> Scaler | None:
        """The scaling inside `gather`."""
        return self._set.spec.scaler

    @property
    def categories(self) -> Categories | None:
        """The codes of categorical columns."""
        return self._set.spec.categories

    # --- window numbers, series and rows ---------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._set.index)

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
            series, rows = self._set.index.locate(np.array([operator.index(index)], dtype=np.int64))
            return int(series[0]), int(rows[0])
        series, rows = self._set.index.locate(as_indices(index))
        return series, rows

    def index_of(self, series: Any, row: Any) -> Any:
        """Return the window of a series that starts at a row, or -1: the inverse of `locate`."""
        if is_integer(series) and is_integer(row):
            return int(self._set.index.index_of(as_indices([series]), as_indices([row]))[0])
        pairs = np.broadcast_arrays(as_indices(series), as_indices(row))
        return self._set.index.index_of(*(np.ascontiguousarray(one) for one in pairs))

    def window_starts(self) -> Int64:
        """Return the start rows of all windows, int64. O(windows) time and memory."""
        starts: Int64 = self._set.index.slice(0, len(self))[1]
        return starts

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Return first rows, last rows + 1 and series of the stretches of rows that windows read.

        int64 each, of shape (stretches,), ascending. Rows that no window reads are left out: those
        of windows that a filter dropped, and those between windows far apart or in the `gap`. There
        is one stretch for each series where there are no such rows.

        O(series) time, or O(rows) where rows are left out; O(stretches) memory.
        """
        return self._set.covered_rows()

    def explain(self) -> WindowReport:
        """Return a report of the number of windows, of those dropped by reason, and of bytes.

        Of a streamed table also of the groups that are read, and of the bytes of an epoch; of one
        in memory also of `unseen_categories`.
        """
        report, blocked = self._set.selection.report, self._set.blocked
        if blocked is not None:
            return replace(report, reading=blocked.explain())
        unseen = {} if self.categories is None or not len(self) else self.unseen_categories()
        return replace(report, device_bytes=self.device_bytes(), unseen_categories=unseen)

    def blocks_of(self, indices: Any) -> tuple[Int64, Int64]:
        """Return pairs (row, block): window ``indices[row]`` of a streamed table is in the block.

        A window that reaches into the next block belongs to that in which it begins: the rows
        after a block are read with it, once.

        Returns
        -------
        two int64 arrays of shape (k,)

        Raises
        ------
        TypeError
            If the table is in memory.
        """
        numbers = as_indices(indices)
        return np.arange(len(numbers)), self._streamed_windows.block_of(numbers)

    @property
    def block_bytes(self) -> Int64:
        """Bytes in the files of the used columns of each block of a streamed table: int64."""
        return self._streamed_windows.block_bytes

    @property
    def bytes_behind_blocks(self) -> Int64:
        """About how many bytes are read with each block, of rows after it: int64.

        They are read once by a process, as far as they can be kept.
        """
        return self._streamed_windows.bytes_behind_blocks

    @property
    def _streamed_windows(self) -> BlockedWindows:
        blocked = self._set.blocked
        if blocked is None:
            raise TypeError("windows of a table in memory read no blocks; expected in_memory=False")
        return blocked

    @property
    def nbytes(self) -> int:
        """Bytes of the index: O(series), and one bit a window where windows were dropped."""
        return self._set.selection.nbytes

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
        if type(indices) is not np.ndarray or indices.dtype is not INT64 or indices.ndim != 1:
            indices = as_indices(indices)  # Its calls take as long as a small batch.
        return self._set.gatherer.gather(indices, out, threads)

    @property
    def default_order(self) -> OrderFactory:
        """The order factory of ``shuffle=True``.

        `Permutation` for a table in memory. For a streamed table a `BlockPermutation`, which
        shuffles the windows of a group of blocks; with windows of the same table in memory it gives
        the same batches.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(8.0)})
        >>> wd.Windows(table, context_length=2).default_order.__name__
        'Permutation'
        """
        blocks = self._set.blocks
        if blocks is None:
            return _core.Permutation
        offsets, in_group = blocks
        return partial(BlockPermutation, block_offsets=offsets, blocks_in_buffer=in_group)

    @property
    def expect(self) -> Callable[..., None] | None:
        """The function that notes where the next windows are; None for a table in memory."""
        return self._set.gatherer.expect

    def check_growth(self, larger: object) -> None:
        """Check that a table has only grown, as `Stream` with ``grown=`` does.

        Raises
        ------
        ValueError
            If a code of a category, or a number of a series (with the key series_id), is another in
            the larger table; or if both tables are streamed and the larger one lacks a file of the
            smaller one, or has another one.
        """
        if isinstance(larger, Windows):
            numbers = "series_id" in self._set.keys.index
            # Codes of categorical columns do not depend on those of the table.
            self.table.check_growth(larger.table, self.roles.numbers, numbers=numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample: arrays without the batch axis. Negative numbers count from the end."""
        if not is_integer(index):
            raise TypeError(f"`index` must be an integer, got {index!r}; for several see gather()")
        number = operator.index(index)
        batch = self.gather([number + len(self) if -len(self) <= number < 0 else number])
        return {key: array[0] for key, array in batch.items()}

    def to(self, device: Any) -> DeviceWindows[Windows]:
        """Return these windows as a source on a device: its batches are tensors, made there.

        The columns are copied once, cast, scaled and filled as batches have them. A `Loader` over
        the result gives the batches of these windows, bit for bit and in the same order, without
        work on the host; states of either resume with the other. Windows with the same columns,
        scaler and dtype, such as the parts of a split, share one copy.

        Parameters
        ----------
        device
            A `torch.device` or its name, such as ``"cuda"``.

        Returns
        -------
        DeviceWindows
            O(rows) time and `device_bytes` of memory on the device, until the last source that
            uses the columns is deleted.

        Raises
        ------
        MemoryError
            If the device has less memory free. Nothing has been copied then.
        RuntimeError
            If torch has no such device.
        TypeError
            For float64 values on MPS.
        ValueError
            If an integer dtype cannot hold a value of a column, also in rows that no window reads.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(100.0)})
        >>> w = wd.Windows(table, context_length=24, prediction_length=12)
        >>> loader = wd.Loader(w.to("cpu"), batch_size=16, shuffle=True)
        >>> next(iter(loader))["past_target"].shape
        torch.Size([16, 24, 1])
        """
        with needs_torch("Windows.to"):
            from windeck.windows.device import DeviceWindows

        self._refuse_streamed("to()")
        return DeviceWindows(self, self._set, device)

    def _refuse_streamed(self, what: str) -> None:
        if isinstance(self.table, StreamedTable):
            raise TypeError(
                f"{what} is not supported for windows of a streamed table, whose columns are not "
                "in memory; expected in_memory=True, or a loader with device="
            )

    def device_bytes(self) -> int:
        """Return the bytes that `to` takes on a device, at most. Reads no rows.

        Values in their dtype in a batch, one byte for each that may be missing (less if none is),
        and the index.
        """
        self._refuse_streamed("device_bytes()")
        return DeviceLayout(self._set).nbytes

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """Keys whose uint16 arrays are the bits of a dtype that NumPy lacks."""
        return self._set.keys.torch_dtypes

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns used: targets, then known, past and static covariates."""
        return self.roles.all

    # --- derived windows -------------------------------------------------------------------------

    def with_scaler(self, scaler: Scaler | None) -> Windows:
        """Return the same windows with another scaler, or none.

        Raises
        ------
        ValueError
            If a series has no values of a column in the fit, and ``unseen="error"``.

        Warns
        -----
        UserWarning
            If such series are scaled by the statistics of all: once, with their number.
        """
        other = self._scaled(scaler)
        warn_of_unseen(scaler, self.table.num_series, [other.unseen_series()])
        return other

    def _scaled(self, scaler: Scaler | None) -> Windows:
        return self._made(self._set.with_options(scaler=scaler), vars(self))

    def with_categories(self, categories: Categories | None) -> Windows:
        """Return the same windows with the codes of fitted categories, or none.

        Parameters
        ----------
        categories
            They have every categorical column of these windows.

        Returns
        -------
        Windows
            O(rows) time and, for each categorical column of a table in memory, 1 byte a row with up
            to 255 values, 2 with up to 65,535, else 8; windows of the table share them. Of a
            streamed table codes are made of the rows that are read. About 100 bytes for each text
            of the table while its code is found.

        Raises
        ------
        KeyError, TypeError
            If a categorical column is not in `categories`, or has values of another kind.
        ValueError
            If these windows have no categorical column.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> columns = {"load": np.arange(6.0), "shop": np.array([7, 7, 7, 30, 30, 9])}
        >>> table = wd.Table.from_columns(columns)
        >>> w = wd.Windows(
        ...     table, context_length=2, past_covariates="shop", categorical="shop")
        >>> train = w.subset(rows=(0, 5))
        >>> w = w.with_categories(wd.Categories.fit(train))
        >>> w.gather([0, 4])["past_categorical"][:, :, 0]  # 9 is not among the rows of training
        array([[1, 1],
               [2, 0]])
        >>> w.unseen_categories()
        {'shop': 1}
        """
        return self._made(self._set.with_options(categories=categories), vars(self))

    def unseen_categories(self) -> dict[str, int]:
        """Return how many rows that windows read have a value without a code, by column.

        Missing values do not count; of static covariates the first row of each series counts. Reads
        the categorical columns: O(rows) time, also of a streamed table.

        Raises
        ------
        ValueError
            If no categories are fitted, or there are no windows.
        """
        return self._set.unseen_categories()

    def unseen_series(self) -> dict[str, Int64]:
        """Return the numbers of the series that the scaler was not fitted on, by column.

        Only series with windows and columns of the scaler count. A series that was fitted may lack
        values of one column. Empty without such series.
        """
        return self._set.unseen_series()

    def joined(self) -> JoinedWindows:
        """Return the same windows with past and future as views of one buffer.

        ``past_target`` and ``future_target`` of a batch are the two parts of an array (batch, past
        + future, channel), and so are the other keys of past and future, and masks. Values, keys
        and fingerprint are those of these windows, so states can be exchanged. The views are not
        contiguous, and autograd counts an in-place change of one as a change of both. With
        ``gap=0`` a window is copied as one stretch of rows.

        Everything derived (`split`, `subset`, `with_scaler`, `balanced`) is joined too. In
        `gather`, `out` has the buffers: ``target``, ``known``, and their masks.

        Raises
        ------
        ValueError
            With ``layout="columns"``, of which the arrays have past and future in one already.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(8)})
        >>> batch = wd.Windows(table, context_length=2, prediction_length=1).joined().gather([3, 0])
        >>> batch["past_target"].base.shape, batch["future_target"][:, :, 0].tolist()
        ((2, 3, 1), [[5], [2]])
        """
        return JoinedWindows._made(self._set.with_options(joined=True), vars(self))

    def balanced(
        self,
        weights: Any = None,
        *,
        epoch_length: int | None = None,
        blocks: tuple[Int64, int] | None = None,
        half_life: Any = None,
        window_weights: Any = None,
    ) -> BalancedWindows[Windows]:
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
        blocks
            The attribute `blocks` of balanced windows of the same data as a streamed table, to have
            the same order in memory. Windows of a streamed table are dealt in the blocks in which
            they are read; others by default not in blocks.
        half_life : int, or duration such as "30D", optional
            Serve recent windows of each series more often. Windows that begin within this number of
            rows before the last window of the series have the weight 1, those of as many rows
            before them 1/2, and so on; the share of a series stays. The counts of these ages are
            whole numbers, equal in all epochs, and each window is served after some epochs: the
            oldest ages, which would have no window in an epoch, are one age, of the sum of their
            weights. A duration is a number of usual steps of each series.
        window_weights : numbers of shape (windows,), optional
            Serve each window in proportion to a weight, instead of `weights` and `half_life`. A
            series has the sum of those of its windows; its count is rounded once, and is the same
            in all epochs. The count of a window differs from its exact share of that of its series
            by less than 1 in every epoch, and is that share on average. Takes 8 bytes a window,
            on a device too, but for MPS, which lacks float64. Not of a streamed table: its windows
            are dealt block by block, each as often as the others of its series.

        Raises
        ------
        KeyError, TypeError, ValueError
            For a weight of an unknown series or of one without windows, for weights that are
            negative or all 0, for a series that would have no window in an epoch, and for a
            half-life of less than a row, or a duration for irregular series.

        Examples
        --------
        >>> import numpy as np
        >>> from windeck.table import Table
        >>> table = Table.from_columns({"load": np.arange(12.0)}, offsets=[0, 9, 12])
        >>> balanced = Windows(table, context_length=2).balanced()
        >>> len(balanced), balanced.counts
        (10, array([5, 5]))
        """
        made_of = self._set
        balance = Balance.of(
            made_of.table, made_of.index, weights, epoch_length, blocks, made_of.blocks,
            half_life, window_weights,
        )  # fmt: skip
        return BalancedWindows(self, balance, made_of.spec.joined)

    def split(
        self,
        validation: Any = 0.1,
        test: Any = 0.1,
        by: Literal["time", "series"] = "time",
        *,
        seed: int | None = None,
        validation_rows: int | None = None,
        test_rows: int | None = None,
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
        seed
            Of ``by="series"``, and an error without it; None means 0.
        validation_rows, test_rows
            Instead of shares: the numbers of last rows of each series that are validation and
            test, test after validation. If only one is given, the other is 0.

        Returns
        -------
        Split
            A named tuple ``(train, validation, test)`` of windows.

        Raises
        ------
        ValueError
            If a part with a share above 0 holds no window.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(100.0)})
        >>> w = wd.Windows(table, context_length=24, prediction_length=12)
        >>> [len(part) for part in w.split(validation_rows=12, test_rows=24)]
        [29, 1, 13]
        """
        parts = splits.split(
            self._set.selection, self.table, validation, test, by, seed, validation_rows, test_rows
        )
        return Split(*map(self._with_selection, parts))

    def folds(
        self,
        k: int,
        *,
        test_rows: int | None = None,
        step_rows: int | None = None,
        train_rows: int | None = None,
        validation_rows: int = 0,
        gap_rows: int = 0,
    ) -> list[Split]:
        """Return the splits of a rolling evaluation, each with a later test part than the last.

        The test part of the last fold is the last `test_rows` rows of each series, that of each
        fold before lies `step_rows` rows earlier. Training is all that comes before, as in
        ``sklearn.model_selection.TimeSeriesSplit``. Parts hold windows as those of `split` do: the
        whole future lies in the part, the context may reach back.

        Parameters
        ----------
        k
            Number of folds, at least 1.
        test_rows
            Rows of each test part. Default: of each series its rows // (k + 1).
        step_rows
            Rows from one test part to the next. Default: `test_rows`, so that they do not overlap.
            With fewer rows test parts overlap, but must not share a window: each is forecast once.
            With `test_rows` of one future any number will do.
        train_rows
            Most rows of training, the latest ones (a sliding window). Default: all earlier rows.
        validation_rows
            Rows between training and test that are the validation part.
        gap_rows
            Rows left out before each test part.

        Returns
        -------
        list of Split
            In order of time. The validation part has no windows without `validation_rows`. O(k
            series) time and memory.

        Raises
        ------
        ValueError
            If a part of a fold holds no window: name and number of the fold. If a window is in the
            test parts of two folds: their numbers, and the least `step_rows`.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(100.0)})
        >>> w = wd.Windows(table, context_length=24, prediction_length=12)
        >>> [(len(train), len(test)) for train, _, test in w.folds(3, test_rows=12)]
        [(29, 1), (41, 1), (53, 1)]
        """
        found = splits.folds(
            self._set.selection, k, test_rows, step_rows, train_rows, validation_rows, gap_rows
        )
        return [Split(*map(self._with_selection, parts)) for parts in found]

    def subset(
        self,
        *,
        series: Any = None,
        rows: Any = None,
        time: Any = None,
        indices: Any = None,
        mask: Any = None,
        last: int | None = None,
    ) -> Windows:
        """Return the windows that meet all conditions given, in the order of these windows.

        Parameters
        ----------
        series
            A name as in ``table.series_names``, or several; also numbers, unless names are
            integers.
        rows, time
            Pair ``(start, stop)`` of table rows or of time stamps, `stop` excluded, None for no
            limit. All rows of a window, past and future, lie in it (padding left out).
        indices
            Numbers of windows, each once, in any order.
        mask
            bool of shape (windows,): true for the windows to keep. With `indices` or `mask` the
            subset has one bit for each window between the first and the last kept of a series.
        last
            Number of windows of each series to keep: its last ones that meet the other conditions.
            The inputs of a forecast are those of `latest`, which no filter drops.

        Raises
        ------
        KeyError, IndexError
            If a series or a window does not exist.
        ValueError
            If no window is left, or a window is named twice.

        Warns
        -----
        UserWarning
            If `last` keeps earlier windows of some series, as a filter dropped their last ones.
        """
        selection = self._set.selection
        selected = subset.select(selection, self.table, series, rows, time, indices, mask, last)
        return self if selected is selection else self._with_selection(selected)

    def latest(self, *, future: Any = False, step: Any = None) -> Windows:
        """Return the last context of each series: the inputs of a forecast.

        A context ends with the last row of its series; of a part of a split or a subset of rows,
        with the last row of the part in that series. Windows are as these in all else, but options
        that choose windows for training do not apply: `max_missing`, `max_gap` and the like drop
        none of them, and `stride` moves none. With ``pad="start"`` shorter series have one too.

        Parameters
        ----------
        future
            What the windows have of the future. False: nothing. True: the rows that follow the
            context in the table, which are the last ones of a series: those of a forecast, appended
            with known covariates and unknown targets. The context ends before them. After a part of
            a split they are the next rows of the table. Where such rows are not in the table, and
            all known covariates are calendar features of `Table.with_calendar`, these are computed
            for the time stamps after the context. A table: its known covariates at the series and
            time stamps of the future; calendar features are computed. In the last two cases the
            windows are those of a table in memory that is made of the rows of the future and of the
            contexts. A frame or other Arrow data, as `Table.from_arrow` takes: like a table, with
            the columns of ids and time that the table has, in any order; numbers become the dtypes
            of the table, floats rounded, integers where that loses nothing. Two texts say which of
            the two is meant by True, such as where the last targets of a sensor are missing:
            ``"appended"``, the last rows of the table, and ``"computed"``, the time after them.
        step
            The time from one row to the next, as for `prediction_table`, where rows of the future
            are not in the table.

        Returns
        -------
        Windows
            At most one window a series. O(series) time and memory; with `future` O(series * rows of
            a window).

        Raises
        ------
        KeyError
            If the table `future` lacks a column or has other ids.
        TypeError
            If a column of `future` has another dtype, or values that the table's cannot hold.
        ValueError
            If no series has a context; if rows of the future are missing, or have known targets at
            the end of a series: the first series and time stamp.

        Warns
        -----
        UserWarning
            If some series are shorter than a context or have no target in it, with their names; if
            targets are unknown for more rows than those of the future, or, where calendar features
            are computed by True, at the end of some series for as long as the future; if known
            covariates have no value in the future: their number, and the first series and time.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(10)}, offsets=[0, 5, 10])
        >>> w = wd.Windows(table, context_length=2, prediction_length=3).latest()
        >>> w.gather([0, 1])["past_target"][:, :, 0]
        array([[3, 4],
               [8, 9]])

        With the temperature of the next day, which is known by a weather forecast:

        >>> hours = np.datetime64("2024-01-01T00") + np.arange(72)
        >>> past = {"load": np.arange(48.0), "temperature": np.zeros(48), "time": hours[:48]}
        >>> table = wd.Table.from_columns(past, timestamp_column="time")
        >>> w = wd.Windows(table, context_length=24, prediction_length=24,
        ...                known_covariates="temperature")
        >>> import pandas
        >>> next_day = pandas.DataFrame({"temperature": np.ones(24), "time": hours[48:]})
        >>> batch = w.latest(future=next_day).gather([0])
        >>> batch["past_target"][0, -1, 0], batch["future_known"].sum()
        (np.float64(47.0), np.float64(24.0))
        """
        made_of = latest(self._set.table, self._set.spec, self._set.selection, future, step)
        return self._made(WindowSet.of(*made_of), vars(self))

    def inverse_transform(
        self, values: Any, indices: Any = None, *, columns: Names = None, series_id: Any = None
    ) -> Any:
        """Return values that are scaled as batches of these windows, in their original units.

        Parameters
        ----------
        values
            Array or tensor on any device, in the layout of batches: (batch, horizon, columns), or
            with ``layout="bct"`` (batch, columns, horizon); of one column also (batch, horizon).
            Or a mapping of columns to (batch, horizon), as with ``layout="columns"``.
        indices
            The window of each row of `values`. Default: all windows, in order.
        columns
            The columns of `values`. Default: the target columns.
        series_id
            Instead of `indices`: the series of each row, as the key of a batch of these windows, or
            names. One of both is needed if the scaler has a scaling for each series.

        Returns
        -------
        array or tensor
            As of `Scaler.inverse_transform`. Columns that the scaler does not have are not changed;
            without a scaler no column is.

        Raises
        ------
        KeyError, IndexError
            If the windows do not have a column, a window or a number of a series.
        ValueError
            If shapes do not match.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> columns = {"load": np.array([0.0, 1.0, 10.0, 30.0])}
        >>> table = wd.Table.from_columns(columns, offsets=[0, 2, 4], series_names=["a", "b"])
        >>> scaler = wd.Scaler.fit(table, kind="minmax", per_series=True)
        >>> w = wd.Windows(table, context_length=2, scaler=scaler)
        >>> batch = w.gather([1, 0])
        >>> w.inverse_transform(batch["past_target"], series_id=batch["series_id"])[:, :, 0]
        array([[10., 30.],
               [ 0.,  1.]])
        """
        return forecasts.inverse_transform(self._set, values, indices, columns, series_id)

    def prediction_table(
        self,
        predictions: Any,
        indices: Any = None,
        *,
        columns: Names = None,
        step: Any = None,
        scaled: bool | None = None,
        quantiles: Any = None,
        samples: bool = False,
        cutoff: bool = False,
    ) -> pa.Table:
        """Return predictions with the series and time stamps that they are for, as an Arrow table.

        Parameters
        ----------
        predictions
            Array or tensor of shape (windows, horizon) or (windows, horizon, columns), with
            ``layout="bct"`` (windows, columns, horizon), with ``layout="columns"`` also a mapping
            of columns to (windows, horizon). The first step is the first one after the past and the
            gap. The horizon is `prediction_length`, less the steps that a negative `gap` repeats;
            of windows without a future, such as those of `latest`, any number of steps. With
            `quantiles` or `samples` arrays have one axis more, the last one. A mapping of levels to
            arrays, such as ``{0.1: low, 0.5: middle}``, has quantiles. Real numbers; NaN is
            allowed, and stays NaN in the table.
        indices
            The window of each row of `predictions`. Default: all windows, in order.
        columns
            A name for each column. Default: the target columns.
        step
            Time from one row to the next where a series has ended: a duration as for `max_gap`, or
            months such as ``np.timedelta64(1, "M")``, ``"MS"`` or ``"QS"``, which keep the day of
            the month, or its last day; or ``"B"`` or ``"2B"`` for days from Monday to Friday. Whole
            days and months are added to local times of the time zone of the table; a local day that
            does not exist is left out. Default: the usual step of each series; series of one row a
            day that leave out the last two weekends, or more, and few other days go on with
            business days. Holidays are not known: where they matter, append the rows of the future
            to the table.
        scaled
            Must be given if these windows have a scaler. True: predictions are scaled as batches
            are, and the table has them in original units, see `inverse_transform`; an error without
            a scaler. False: they are in original units.
        quantiles
            Levels between 0 and 1 of the last axis of `predictions`. The table has a column for
            each, such as ``load_q0.1``.
        samples
            Whether the last axis of `predictions` has samples. The table has a row for each, with
            its number as ``sample``; with `quantiles` it has these quantiles of the samples
            instead.
        cutoff
            Whether the table has the time stamp of the last step of the past, ``cutoff``: the
            moment at which the forecast is made, by which tables of several folds differ.

        Returns
        -------
        pyarrow.Table
            Of windows * horizon rows, window by window: the ids and the time stamp, in the time
            zone of the table, and the columns. Ids and time have the names that they have in the
            data; ``series_id`` (``series_id_0``, ... if names of series are tuples) and
            ``timestamp`` if they have none there. Without time stamps ``row``, int64: the row
            counted from the start of the series. O(rows + series) time and memory.

        Raises
        ------
        TypeError
            If predictions are bools, complex numbers or texts, or levels are texts in a mapping.
        ValueError
            If shapes differ from windows, horizon and columns; if a series has no step, or has
            steps of months or years, and `step` is not given; if `scaled` is not given with a
            scaler; if two columns have one name.

        Warns
        -----
        UserWarning
            If quantiles cross: once, with the number of predictions of each column.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> day = np.datetime64("2024-02-27") + np.arange(3)
        >>> data = {"load": np.arange(3.0), "day": day}
        >>> table = wd.Table.from_columns(data, timestamp_column="day")
        >>> w = wd.Windows(table, context_length=2).latest()
        >>> w.prediction_table(np.array([[0.5, 1.5]])).to_pydict()["day"]
        [datetime.date(2024, 3, 1), datetime.date(2024, 3, 2)]
        >>> bounds = {0.1: np.array([[0.5, 1.5]]), 0.9: np.array([[2.5, 3.5]])}
        >>> w.prediction_table(bounds, cutoff=True).column_names
        ['series_id', 'day', 'cutoff', 'load_q0.1', 'load_q0.9']
        """
        return forecasts.prediction_table(
            self._set, predictions, indices, columns, step, scaled,
            quantiles=quantiles, samples=samples, cutoff=cutoff,
        )  # fmt: skip

    def _with_selection(self, selection: WindowSelection) -> Windows:
        return self._made(self._set.with_selection(selection), vars(self))

    # --- identity --------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, str | int]:
        """Options, sizes and digests for checkpoints, without paths and times."""
        return {**self._set.fingerprint, "windows": len(self)}

    def plot(self, index: int, prediction: Any = None, *, ax: Any = None) -> Any:
        """Draw the targets of a window in the units of the table: past, future, missing steps.

        Needs matplotlib: ``pip install 'windeck[plot]'``. Steps without a value, missing or outside
        of the series, are marked at the bottom.

        Parameters
        ----------
        index
            Number of the window.
        prediction
            Array or tensor of shape (prediction_length, targets), or (prediction_length,) of one
            target, in the units of the table: as `inverse_transform` returns it.
        ax : matplotlib Axes, optional
            Axes to draw on. By default those of a new figure of pyplot, which is not shown.

        Returns
        -------
        Axes

        Raises
        ------
        IndexError, ValueError
            There is no such window; the prediction has another shape.
        TypeError
            The table is streamed.
        ModuleNotFoundError
            matplotlib is not installed.
        """
        self._refuse_streamed("plot()")
        from windeck.windows.plots import plot_window

        return plot_window(self._set, operator.index(index), prediction, ax)

    def __repr__(self) -> str:
        keys = ", ".join(key.name for key in self._set.keys.chosen)
        return f"Windows({len(self):,} windows: {describe_steps(self.span)}; {keys})"

    def _repr_html_(self) -> str:
        rows = [(key.name, key.dtype) for key in self._set.keys.chosen]
        caption = f"Windows: {len(self):,} windows: {describe_steps(self.span)}"
        return html_table(caption, ("key", "dtype"), rows, str(self.explain()))


class JoinedWindows(Windows):
    """Windows whose past and future of a role are views of one buffer; see `Windows.joined`.

    Past and future of a role are one array (batch, past + future, channel), gathered as one field:
    with ``gap=0`` each window is copied as one stretch of rows.
    """

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch; as `Windows.gather`, but `out` has the keys of `gather_rows`."""
        return self.present(self.gather_rows(indices, out, threads))

    def gather_rows(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """Return a batch with buffers: ``target``, ``target_mask``, ``known``, ``known_mask``."""
        return super().gather(indices, out, threads)

    def whole(self, rows: Batch) -> Batch:
        """Return no arrays: all of a batch are rows."""
        return {}

    def present(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with past and future in place of the buffers; for arrays and tensors."""
        return joined.present(batch, self._set.views)

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """As `Windows.torch_dtypes`, with the buffers."""
        bits = super().torch_dtypes
        return bits | joined.dtypes_of_buffers(bits, self._set.views)


#: Methods of a batch that the native gather does alone.
_NATIVE: dict[type, Callable[..., Batch]] = {
    Windows: Windows.gather,
    JoinedWindows: JoinedWindows.gather_rows,
}


def native_gather(source: object, gather: Callable[..., Batch]) -> _core.Gather | None:
    """Return the native gather that a method of a source calls; None if it does anything else.

    None for a table that is not in memory, for a class that is derived from `Windows`, and for
    windows or a class of which the method was replaced: they may gather in their own way.
    """
    method = _NATIVE.get(type(source))
    if method is None or not isinstance(source, Windows) or gather != MethodType(method, source):
        return None
    return source._set.gatherer.native


def _check_table(table: object) -> None:
    if not isinstance(table, Table):
        raise TypeError(f"`table` must be a Table, got a {type(table).__name__}")


class Split(NamedTuple):
    """Training, validation and test windows. A part whose share is 0 has no windows."""

    train: Windows
    validation: Windows
    test: Windows

    def with_scaler(self, scaler: Scaler | None) -> Split:
        """Return all three parts with the same scaler, with one warning of unseen series."""
        parts = Split(*(part._scaled(scaler) for part in self))
        unseen = (part.unseen_series() for part in parts)
        warn_of_unseen(scaler, self.train.table.num_series, unseen)
        return parts

    def with_categories(self, categories: Categories | None) -> Split:
        """Return all three parts with the same categories; see `Windows.with_categories`."""
        return Split(*(part.with_categories(categories) for part in self))

    def _repr_html_(self) -> str:
        total = max(sum(map(len, self)), 1)
        rows = [
            (name, f"{len(part):,}", f"{len(part) / total:.1%}")
            for name, part in zip(self._fields, self, strict=True)
        ]
        return html_table("Split", ("part", "windows", "share"), rows)
