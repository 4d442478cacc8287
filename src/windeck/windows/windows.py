"""Windows: a source that cuts a table into samples of past and future, by arithmetic alone."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from windeck._util.fingerprints import digest
from windeck._util.indices import Int64, as_indices, is_integer
from windeck._util.validation import check_number
from windeck.columns.dtypes import is_bits
from windeck.table.table import Table
from windeck.windows import subset
from windeck.windows.batch_spec import (
    LAYOUTS,
    Batches,
    Casts,
    Layout,
    Plan,
    Roles,
    plan_keys,
    settle,
)
from windeck.windows.filters import (
    Filter,
    WindowReport,
    allowed_missing,
    as_integers,
    describe_steps,
    gap_in_units,
)
from windeck.windows.index import Span
from windeck.windows.scaler import Scaler
from windeck.windows.subset import Cut, Split

Batch = dict[str, npt.NDArray[Any]]
Names = str | Iterable[str] | None


class Windows:
    """The windows of a table, as a source of samples.

    A window starts at a row of a series. Past step j is row ``start + j * dilation``, future step
    j is row ``start + (context_length + j) * dilation + gap``; windows never cross a series.

    Parameters
    ----------
    table
        Where the rows come from.
    context_length, prediction_length
        Past and future steps, at least 1 and 0.
    gap
        Rows left out between past and future (without meaning if there is no future).
    stride
        Rows from one window's start to the next, counted from the first window of each series.
    dilation
        Rows from one step to the next.
    target_columns
        What is to be predicted. Default: every column not named elsewhere.
    known_covariates, past_covariates, static_covariates
        Columns known in the future too; known in the past only; constant in a series (the
        series' first row is read). A column has one role.
    pad
        Let windows begin before their series, with one context step at least inside it. Steps
        before it are `fill` with mask 0. The future always lies inside.
    fill
        What missing values become.
    max_missing
        Windows with a larger share of missing target values, past and future, are dropped. It is
        the share of zeros in the target's masks, so padded steps count.
    max_gap
        Windows that span a larger difference of neighbouring time stamps are dropped: a
        timedelta, a text such as ``"1h"``, or an integer in the stamps' own unit.
    scaler
        Applied to its columns on the way; missing values become `fill` unscaled.
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
    ``past_covariates``, ``static``, as far as there are such columns (and a future); for each
    ``<key>_mask`` (bool, 1 = observed) where something can be missing: with padding, with nulls,
    and in floating columns unless the table counted no NaN; then ``series_id`` and ``start``,
    int64 (batch,): number of the series and row of the first context step in the table. With
    padding that row may lie before the series.

    **Cost**: O(series) time and memory. With `max_missing` or `max_gap` the rows are read once
    and each window costs one bit.

    Raises
    ------
    KeyError
        A column that does not exist; the nearest names are given.
    TypeError
        A key whose columns have different dtypes: columns are never cast unasked.
    ValueError
        Sizes out of range, no window fits, or `fill` that an integer key cannot hold.

    Warns
    -----
    UserWarning
        Once, with their number, if some series are shorter than a window.

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
            raise TypeError(f"table is a {type(table).__name__}, expected a Table")
        if layout not in LAYOUTS:
            raise ValueError(f"layout is {layout!r}, expected one of {', '.join(LAYOUTS)}")
        self.table = table
        self.span = Span(context_length, prediction_length, gap, stride, dilation, bool(pad))
        self.roles = Roles.of(
            table, target_columns, known_covariates, past_covariates, static_covariates
        )
        self.layout: Layout = layout
        self.fill = check_number("fill", fill)
        self.max_missing = check_number("max_missing", max_missing)
        self.max_gap = None if max_gap is None else gap_in_units(max_gap, table.timestamps)
        self._casts = Casts(dtype, self.roles.all)
        self._columns = {name: table.column(name) for name in self.roles.all}
        self._cut = Cut.of(table.offsets, self.span, self._filter())
        self._apply(scaler)

    def _filter(self) -> Filter:
        targets = [self._columns[name] for name in self.roles.target]
        stamps = self.table.timestamps
        return Filter(
            targets,
            allowed_missing(self.max_missing, self.span.steps * len(targets)),
            None if stamps is None else as_integers(stamps),
            self.max_gap,
        )

    def _apply(self, scaler: Scaler | None) -> None:
        """Settle keys and dtypes for a scaler, and make the native objects."""
        if scaler is not None and not isinstance(scaler, Scaler):
            raise TypeError(f"scaler is a {type(scaler).__name__}, expected a Scaler")
        if scaler is not None and not set(scaler.columns) & set(self.roles.all):
            raise ValueError(
                f"the scaler knows columns {scaler.columns}, expected some of {self.roles.all}"
            )
        self.scaler = scaler
        keys = plan_keys(self.roles, self.span, self.layout)
        self._plans: list[Plan] = settle(keys, self._columns, self._casts, scaler, self.fill)
        self._make_native()

    def _make_native(self) -> None:
        self._index = self._cut.index()
        self._batches = Batches(
            self._index, self._cut, self.table, self._columns, self._plans, self.scaler
        )

    def __getstate__(self) -> dict[str, Any]:
        made = ("_index", "_batches", "fingerprint")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_native()

    # --- where the windows are ---------------------------------------------------------------

    def __len__(self) -> int:
        """The number of windows."""
        return len(self._index)

    def locate(self, index: Any) -> tuple[Any, Any]:
        """Series number and start row (in the table) of windows.

        Two ints for an int, two int64 arrays for an array. IndexError outside ``[0, len)``.
        """
        if is_integer(index):
            series, rows = self._index.locate(np.array([operator.index(index)], dtype=np.int64))
            return int(series[0]), int(rows[0])
        series, rows = self._index.locate(as_indices(index))
        return series, rows

    def index_of(self, series: Any, row: Any) -> Any:
        """The window of a series that starts at a row: the inverse of `locate`; -1 if none does."""
        if is_integer(series) and is_integer(row):
            return int(self._index.index_of(as_indices([series]), as_indices([row]))[0])
        pairs = np.broadcast_arrays(as_indices(series), as_indices(row))
        return self._index.index_of(*(np.ascontiguousarray(one) for one in pairs))

    def window_starts(self) -> Int64:
        """Start rows of all windows, int64: the one call whose answer grows with their number."""
        starts: Int64 = self._index.slice(0, len(self))[1]
        return starts

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Stretches of rows the windows touch: first rows, last rows + 1, and their series.

        One stretch for each series that has windows; rows between windows far apart are included.
        """
        return self._cut.covered_rows()

    def explain(self) -> WindowReport:
        """How many windows there are, how many were dropped, and why."""
        return self._cut.report

    @property
    def nbytes(self) -> int:
        """Bytes of the index: O(series), and one bit a window where windows were dropped."""
        return self._cut.nbytes

    # --- batches -----------------------------------------------------------------------------

    def gather(self, indices: Any, out: Batch | None = None, threads: int = 1) -> Batch:
        """One batch: row k of every array is window ``indices[k]``.

        Parameters
        ----------
        indices
            Integers of shape (batch,).
        out
            Arrays to write into, by key; new ones if None.
        threads
            How many threads may copy.

        Returns
        -------
        dict of arrays
            Writable, contiguous, and the caller's own; see the keys above.
        """
        return self._batches.gather(as_indices(indices), out, threads)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample: arrays without the batch axis. Negative numbers count from the end."""
        if not is_integer(index):
            raise TypeError(f"windows are indexed by an integer, got {index!r}; see gather()")
        number = operator.index(index)
        batch = self.gather([number + len(self) if -len(self) <= number < 0 else number])
        return {key: array[0] for key, array in batch.items()}

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """Keys whose uint16 arrays are the bits of a dtype that NumPy lacks."""
        return {p.key.name: p.dtype for p in self._plans if is_bits(p.dtype)}

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns used: targets, then known, past and static covariates."""
        return self.roles.all

    # --- other windows out of these ----------------------------------------------------------

    def with_scaler(self, scaler: Scaler | None) -> Windows:
        """The same windows with another scaler, or none."""
        other = self._copy()
        other._apply(scaler)
        return other

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
            after validation; or both are time stamps where these parts begin (0: no such part).
        by
            ``"time"``: a window belongs to the part its future lies in entirely (or the whole
            window, with ``prediction_length=0``); its context may reach back into earlier parts.
            Windows across a border are dropped and counted. ``"series"``: whole series are dealt
            out by a permutation of `seed`.

        Returns
        -------
        Split
            A named tuple ``(train, validation, test)`` of windows.

        Raises
        ------
        ValueError
            A part that was asked for holds no window.
        """
        runs = self._cut.runs
        if by == "time":
            found = subset.by_time(runs, self.span, self.table.timestamps, [validation, test])
        elif by == "series":
            found = subset.by_series(runs, validation, test, seed)
        else:
            raise ValueError(f"by is {by!r}, expected 'time' or 'series'")
        cuts = [self._cut.part(part) for part in found]
        border = len(self) - sum(cut.kept for cut in cuts)
        subset.check_some([cut.kept for cut in cuts], self.span, validation, test, by)
        inside = len(self) - border
        cuts = [cut.drop(border=border, others=inside - cut.kept) for cut in cuts]
        return Split(*map(self._with_cut, cuts))

    def subset(self, *, series: Any = None, rows: Any = None, time: Any = None) -> Windows:
        """Only the windows of some series, or that lie within some rows or some time.

        Parameters
        ----------
        series
            A name as in ``table.series_names``, or several; a number where names are no integers.
        rows, time
            Pair ``(start, stop)`` of table rows or of time stamps, `stop` excluded, None open.
            Windows lie in it whole, past and future (padding left out).

        Raises
        ------
        KeyError, ValueError
            A series that does not exist; no window is left.
        """
        cut, span, stamps = self._cut, self.span, self.table.timestamps
        if series is not None:
            cut = cut.part(subset.of_series(cut.runs, self.table.series_names, series))
        if rows is not None:
            start, stop = subset.row_range(rows, self.table.num_rows)
            cut = cut.part(subset.within_rows(cut.runs, span, np.int64(start), np.int64(stop)))
        if time is not None:
            cut = cut.part(subset.within_time(cut.runs, span, stamps, time))
        if cut.kept == 0:
            raise ValueError("the subset holds no window")
        return self if cut is self._cut else self._with_cut(cut.drop(subset=len(self) - cut.kept))

    def _with_cut(self, cut: Cut) -> Windows:
        other = self._copy()
        other._cut = cut
        other._make_native()
        return other

    def _copy(self) -> Windows:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.pop("fingerprint", None)
        return other

    # --- what they are -----------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> dict[str, str | int]:
        """What these windows are, for checkpoints: options, sizes, digests; no paths, no times."""
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
            "dtypes": ", ".join(f"{p.key.name}: {p.dtype}" for p in self._plans),
            "fill": repr(self.fill),
            "max_missing": repr(self.max_missing),
            "max_gap": repr(self.max_gap),
            "scaler": "none" if self.scaler is None else digest(self.scaler.to_json()),
            "starts": self._cut.digest(),
        }
        return own | {f"table.{name}": value for name, value in self.table.fingerprint.items()}

    def __repr__(self) -> str:
        keys = ", ".join(p.key.name for p in self._plans)
        return f"Windows({len(self):,} windows: {describe_steps(self.span)}; {keys})"
