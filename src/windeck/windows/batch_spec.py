"""The keys of a batch: their columns, steps, dtypes, masks and scaling.

Columns get roles, roles give keys, keys become fields of the native gather. All dtypes are checked
here, before the first row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import is_bits, is_floating
from windeck.table.table import Table
from windeck.windows.category_codes import CategoryLookup
from windeck.windows.number_types import check_exact, common_dtype
from windeck.windows.scaler_fitting import Float64
from windeck.windows.specification import FLOATING, WindowSpec
from windeck.windows.subset import WindowSelection

# Keys of a batch beside those of columns.
INDEX_KEYS = ("series_id", "start")


@dataclass(frozen=True)
class BatchKey:
    """One array of a batch.

    Attributes
    ----------
    columns
        Names of its columns, which are its channels.
    step_spans
        Pairs (row of the first step, number of steps), rows counted from the start of the window.
    layout
        The axes as letters: b(atch), t(ime), c(hannel).
    padded
        True where steps may lie outside the series.
    static
        True where the first row of the series is read.
    categorical
        True where the columns are the codes of categories.
    dtype, mask, fill
        The dtype and the value of missing elements, set by `BatchKeys.of`; true if a mask comes
        with it.
    fills_nan
        True where something can be missing, and NaN becomes `fill`, with or without a mask.
    exact
        Columns of integers, every value of which must be in `dtype`.
    """

    name: str
    columns: tuple[str, ...]
    step_spans: tuple[tuple[int, int], ...]
    layout: str
    padded: bool = False
    static: bool = False
    dtype: str = ""
    mask: bool = False
    fill: float = 0.0
    fills_nan: bool = False
    exact: tuple[str, ...] = ()
    categorical: bool = False


@dataclass(frozen=True)
class BatchKeys:
    """The keys of the batches of windows.

    Attributes
    ----------
    every
        All keys of columns that the options give.
    chosen
        The keys of columns that a batch has.
    index
        Which of `INDEX_KEYS` a batch has.
    """

    every: tuple[BatchKey, ...]
    chosen: tuple[BatchKey, ...]
    index: tuple[str, ...]

    @classmethod
    def of(cls, spec: WindowSpec, columns: Mapping[str, ColumnData]) -> BatchKeys:
        """Return the keys of windows of some columns; errors as of the functions called."""
        every = _resolve_dtypes(_keys_of_roles(spec), spec, columns)
        chosen, index = _select_keys(every, spec.keys, spec.masks)
        return cls(tuple(every), tuple(chosen), index)

    @property
    def dtypes(self) -> str:
        """The dtypes of all keys, as text."""
        return ", ".join(f"{key.name}: {key.dtype}" for key in self.every)

    @property
    def torch_dtypes(self) -> dict[str, str]:
        """Keys whose uint16 arrays are the bits of a dtype that NumPy lacks."""
        return {key.name: key.dtype for key in self.chosen if is_bits(key.dtype)}


def _keys_of_roles(spec: WindowSpec) -> list[BatchKey]:
    """Return the keys of a batch in order, without dtypes."""
    roles, span, layout = spec.roles, spec.span, spec.layout
    past = (0, span.context_length)
    future = (span.future_first, span.prediction_length)
    cut = span.needed_rows < span.rows
    padded = span.max_padding > 0 or (cut and not span.prediction_length)
    first_row = ((0, 1),)
    if layout == "columns":
        whole = (past, future) if span.prediction_length else (past,)
        keys = [
            *(BatchKey(name, (name,), whole, "bt", padded or cut) for name in roles.target),
            *(BatchKey(name, (name,), whole, "bt", padded or cut) for name in roles.known),
            *(BatchKey(name, (name,), (past,), "bt", padded) for name in roles.past),
            *(BatchKey(name, (name,), first_row, "b", static=True) for name in roles.static),
        ]
        return [replace(key, categorical=key.name in roles.categorical) for key in keys]
    keys = []
    for categorical, ending in ((False, ""), (True, "_categorical")):
        known, before, static = (
            tuple(name for name in names if (name in roles.categorical) == categorical)
            for names in (roles.known, roles.past, roles.static)
        )
        target = () if categorical else roles.target
        of_role = []
        for name, columns in (("target", target), (f"known{ending}", known)):
            of_role.append(BatchKey(f"past_{name}", columns, (past,), layout, padded))
            if span.prediction_length:
                of_role.append(BatchKey(f"future_{name}", columns, (future,), layout, cut))
        of_past = "past_categorical" if categorical else "past_covariates"
        of_role.append(BatchKey(of_past, before, (past,), layout, padded))
        of_role.append(BatchKey(f"static{ending}", static, first_row, "bc", static=True))
        keys += [replace(key, categorical=categorical) for key in of_role if key.columns]
    return keys


def can_miss(column: ColumnData) -> bool:
    """Return true if a value of the column may be missing."""
    if column.missing is not None:
        return column.missing > 0
    return column.validity is not None or is_floating(column.dtype)


def _resolve_dtypes(
    keys: Sequence[BatchKey], spec: WindowSpec, columns: Mapping[str, ColumnData]
) -> list[BatchKey]:
    """Set dtype and fill of every key.

    Raises
    ------
    TypeError
        If the columns of a key have dtypes that none can hold.
    ValueError
        If an integer key cannot hold `fill`, or a column has the name of one of `INDEX_KEYS`.
    """
    fill, scaled = spec.fill, set() if spec.scaler is None else set(spec.scaler.columns)
    resolved = []
    for key in keys:
        fills_nan = key.padded or any(can_miss(columns[name]) for name in key.columns)
        if key.categorical:
            # Code 0 is that of missing values.
            resolved.append(replace(key, dtype="int64", fill=0.0, fills_nan=fills_nan))
            continue
        by_column = {name: spec.dtypes.of(columns[name], name in scaled) for name in key.columns}
        dtype, exact = common_dtype(key.name, by_column, columns, dict(spec.dtypes.by_column))
        _check_fill(fill, dtype, key.name)
        exact = tuple(name for name in exact if name not in scaled)
        resolved.append(replace(key, dtype=dtype, fill=fill, fills_nan=fills_nan, exact=exact))
    for key in resolved:
        if key.name in INDEX_KEYS:
            raise ValueError(
                f"column {key.name!r} has the name of another key of the batch: rename it"
            )
    return resolved


def _select_keys(
    keys: Sequence[BatchKey], wanted: tuple[str, ...] | None, masks: bool | None
) -> tuple[list[BatchKey], tuple[str, ...]]:
    """Return the keys of columns and those of `INDEX_KEYS` that are asked for, in order.

    They depend on options and names of columns alone, not on what is missing.

    Parameters
    ----------
    wanted
        Names of keys; None for all.
    masks
        Whether every key of columns has a mask; None: those named in `wanted`, or all.

    Raises
    ------
    KeyError
        If a batch has no such key; it names similar ones.
    ValueError
        If a mask is asked for without its key, or with `masks` False, or if a column has its name.
    """
    names = [key.name for key in keys]
    if wanted is None or masks:
        named = [key for key in keys if wanted is None or key.name in wanted]
        for key in named:
            if masks is not False and f"{key.name}_mask" in names:
                raise ValueError(
                    f"column '{key.name}_mask' has the name of the mask of {key.name!r}: rename "
                    "it, or ask for a batch without masks by masks=False"
                )
        if wanted is None:
            return [replace(key, mask=masks is not False) for key in keys], INDEX_KEYS
        wanted = (*wanted, *(f"{key.name}_mask" for key in named))
    of_key = {f"{name}_mask": name for name in names if f"{name}_mask" not in names}
    for name in wanted:
        if name not in (*names, *of_key, *INDEX_KEYS):
            raise unknown_column(name, [*names, *of_key, *INDEX_KEYS], "a batch", "key")
        if of_key.get(name, name) not in (*wanted, *INDEX_KEYS):
            raise ValueError(f"`keys` has {name!r} alone, expected {of_key[name]!r} with it")
        if masks is False and name in of_key:
            raise ValueError(f"`keys` has {name!r}, but `masks` is False: leave one of them out")
    chosen = [
        replace(key, mask=f"{key.name}_mask" in wanted and f"{key.name}_mask" in of_key)
        for key in keys
        if key.name in wanted
    ]
    return chosen, tuple(name for name in INDEX_KEYS if name in wanted)


def _check_fill(fill: float, dtype: str, key: str) -> None:
    """Check that the dtype can hold `fill`."""
    if dtype in FLOATING:
        return
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # A NaN compares unequal to its floor.
    if fill != np.floor(fill) or not low <= fill <= high:
        raise ValueError(
            f"`fill` must be a whole number in [{low}, {high}], as {key} is {dtype}, got {fill!r}"
        )


Batch = dict[str, npt.NDArray[Any]]


class GatherFields:
    """The fields of the native gather for some keys, for columns that are given later.

    Attributes
    ----------
    columns
        Names of all columns with a role.
    index_keys
        Which of `INDEX_KEYS` a batch has.
    used, unseen
        Numbers of the series with windows, and which of their columns the scaler has not seen.
    code_bytes
        Bytes a row of the codes of categories.

    Raises
    ------
    KeyError, TypeError
        If a categorical column has no categories, or values of another kind than they have.
    """

    def __init__(
        self,
        selection: WindowSelection,
        table: Table,
        spec: WindowSpec,
        keys: Sequence[BatchKey],
        index_keys: tuple[str, ...],
    ) -> None:
        self.columns, self._numbers = spec.roles.all, spec.roles.numbers
        scaler, categories = spec.scaler, spec.categories
        codes = dict.fromkeys(name for key in keys if key.categorical for name in key.columns)
        self._unfitted = tuple(codes) if categories is None else ()
        self._lookups: dict[str, CategoryLookup] = {}
        if categories is not None:
            self._lookups = {name: categories._lookup(table.column(name)) for name in codes}
        self.code_bytes = sum(lookup.itemsize for lookup in self._lookups.values())
        self._keys, self.index_keys = tuple(keys), index_keys
        self._dilation = selection.span.dilation
        self._scale = self._shift = None
        self.used = selection.runs.series[:0]
        self.unseen = np.zeros((0, len(self.columns)), dtype=np.bool_)
        if scaler is not None:
            self.used = selection.runs.series[selection.window_counts() > 0]
            found = scaler._for_table(self._numbers, table, self.used)
            self._scale, self._shift, unseen = found
            self.unseen = np.zeros((len(self.used), len(self.columns)), dtype=np.bool_)
            self.unseen[:, [self.columns.index(name) for name in self._numbers]] = unseen
        self._scaled = set() if scaler is None else set(scaler.columns)
        #: Names of the columns that the keys have, which are read.
        self.names = tuple(dict.fromkeys(name for key in keys for name in key.columns))

    def gather_of(
        self,
        index: _core.WindowIndex,
        offsets: Int64,
        columns: Mapping[str, ColumnData],
        series: Int64 | None = None,
    ) -> _core.Gather | UnfittedGather:
        """Return the gather of windows of columns.

        Parameters
        ----------
        series
            The series of the table that each series of `offsets` is a part of; None if they are
            those of the table.
        """
        if self._unfitted:
            return UnfittedGather(self._unfitted)
        read = {name: columns[name] for name in self.names}
        read |= {name: lookup.encode(read[name]) for name, lookup in self._lookups.items()}
        native = {name: _native_column(name, column) for name, column in read.items()}
        fields = []
        for key in self._keys:
            for name in key.exact:
                check_exact(read[name], key.name, key.dtype)
            is_scaled = not key.categorical and not self._scaled.isdisjoint(key.columns)
            own = [self._numbers.index(name) for name in key.columns] if is_scaled else []
            fields.append(
                _core.Field(
                    key.name,
                    [native[name] for name in key.columns],
                    step_spans=list(key.step_spans),
                    dilation=self._dilation,
                    layout=key.layout,
                    dtype=key.dtype,
                    mask=key.mask,
                    fill=key.fill,
                    scale=_of_columns(self._scale, own, series) if is_scaled else None,
                    shift=_of_columns(self._shift, own, series) if is_scaled else None,
                    anchor="series" if key.static else "window",
                    fill_nan=key.fills_nan,
                )
            )
        return _core.Gather(index, offsets, fields, index_keys=self.index_keys)


class UnfittedGather:
    """The gather of windows whose categorical columns have no codes yet."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns

    def gather(self, indices: Int64, out: Batch | None, threads: int) -> Batch:
        """Raise a ValueError."""
        raise ValueError(
            f"the categories of {', '.join(map(repr, self._columns))} are not fitted, expected "
            "windows.with_categories(Categories.fit(train)), or `keys` without their codes"
        )


class Gatherer(Protocol):
    """Makes batches of selected windows; `used` and `unseen` as of `GatherFields`."""

    used: Int64
    unseen: npt.NDArray[np.bool_]

    @property
    def expect(self) -> Callable[..., None] | None:
        """The function that notes where the next windows are; None for a table in memory."""

    @property
    def native(self) -> _core.Gather | None:
        """The native gather that makes all batches; None if there is none."""

    def gather(self, indices: Int64, out: Batch | None, threads: int) -> Batch:
        """Return one batch, written into `out` if it is given."""


class BatchGatherer:
    """Makes batches of selected windows of a table in memory."""

    expect: None = None

    def __init__(
        self,
        index: _core.WindowIndex,
        fields: GatherFields,
        table: Table,
        columns: Mapping[str, ColumnData],
    ) -> None:
        self.used, self.unseen = fields.used, fields.unseen
        found = fields.gather_of(index, table.offsets, columns)
        self.native = found if isinstance(found, _core.Gather) else None
        self.gather = found.gather


def _of_columns(
    factors: Float64 | None, columns: list[int], series: Int64 | None
) -> Float64 | None:
    """Return the factors of some columns, which are the last axis, and of some series."""
    if factors is None:
        return None
    if series is not None and factors.ndim == 2:
        factors = factors[series]
    return np.ascontiguousarray(factors[..., columns])


def _native_column(name: str, column: ColumnData) -> _core.Column:
    return _core.Column(
        column.values,
        validity=None if column.missing == 0 else column.validity,
        validity_offset=column.validity_offset,
        nan_is_missing=column.missing != 0,
        dtype=column.dtype,
        name=name,
    )
