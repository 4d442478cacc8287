"""The keys of a batch: which columns go where, as what dtype, scaled how, masked or not.

Roles of columns -> keys -> native fields. All questions of dtypes are settled here, before the
first row is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck._util.indices import Int64
from windeck._util.text import unknown_column
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import DTYPES, FLOATS, dtype_name, is_floating
from windeck.table.table import Table
from windeck.windows.index import Span
from windeck.windows.scaler import Scaler
from windeck.windows.subset import Cut

Layout = Literal["btc", "bct", "columns"]
Segments = tuple[tuple[int, int], ...]

LAYOUTS = ("btc", "bct", "columns")
FLOATING = tuple(name for name in FLOATS if DTYPES[name].storage is not None)
BATCH_KEYS = ("series_id", "start")


@dataclass(frozen=True)
class Roles:
    """The columns of each role."""

    target: tuple[str, ...]
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    static: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Every column named, each once."""
        return (*self.target, *self.known, *self.past, *self.static)

    @classmethod
    def of(
        cls,
        table: Table,
        target: str | Iterable[str] | None,
        known: str | Iterable[str] | None,
        past: str | Iterable[str] | None,
        static: str | Iterable[str] | None,
    ) -> Roles:
        """Roles from what the caller named; targets default to the columns not named elsewhere."""
        named = {
            "known_covariates": _names(known),
            "past_covariates": _names(past),
            "static_covariates": _names(static),
        }
        elsewhere = {name for names in named.values() for name in names}
        targets = (
            tuple(name for name in table.column_names if name not in elsewhere)
            if target is None
            else _names(target)
        )
        named = {"target_columns": targets, **named}
        _check_names(table.column_names, named)
        if not targets:
            raise ValueError(
                "target_columns is empty, expected at least one column"
                if target is not None
                else "every column of the table is a covariate, expected a target column"
            )
        return cls(*named.values())


def _names(given: str | Iterable[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def _check_names(known: Sequence[str], roles: Mapping[str, tuple[str, ...]]) -> None:
    """Every name exists, and has one role."""
    seen: dict[str, str] = {}
    for role, names in roles.items():
        for name in names:
            if name not in known:
                raise unknown_column(name, known)
            if name in seen:
                raise ValueError(
                    f"column {name!r} is named in {seen[name]} and again in {role}, "
                    "expected one role for each column"
                )
            seen[name] = role


@dataclass(frozen=True)
class Key:
    """One output array: its columns, the steps it takes, and its axes as the native core says."""

    name: str
    columns: tuple[str, ...]
    segments: Segments
    layout: str
    padded: bool = False
    static: bool = False
    flat: bool = False  # no axis but that of the batch


def plan_keys(roles: Roles, span: Span, layout: Layout) -> list[Key]:
    """The keys of a batch in their order."""
    past = (0, span.context_length)
    future = (span.future_first, span.prediction_length)
    if layout == "columns":
        return _plan_columns(roles, span, past, future)
    keys = []
    for name, columns in (("target", roles.target), ("known", roles.known)):
        keys.append(Key(f"past_{name}", columns, (past,), layout, span.lead > 0))
        if span.prediction_length:
            keys.append(Key(f"future_{name}", columns, (future,), layout))
    keys.append(Key("past_covariates", roles.past, (past,), layout, span.lead > 0))
    keys.append(Key("static", roles.static, ((0, 1),), "bc", static=True))
    return [key for key in keys if key.columns]


def _plan_columns(
    roles: Roles, span: Span, past: tuple[int, int], future: tuple[int, int]
) -> list[Key]:
    whole = (past, future) if span.prediction_length else (past,)
    keys = [
        Key(name, (name,), whole, "bt", span.lead > 0) for name in (*roles.target, *roles.known)
    ]
    keys += [Key(name, (name,), (past,), "bt", span.lead > 0) for name in roles.past]
    keys += [Key(name, (name,), ((0, 1),), "bc", static=True, flat=True) for name in roles.static]
    return keys


@dataclass(frozen=True)
class Plan:
    """A key with its dtype and mask settled."""

    key: Key
    dtype: str
    mask: bool
    fill: float


class Casts:
    """What dtype each column leaves as: asked for, by rule, or as it is."""

    def __init__(self, dtype: Any, columns: Iterable[str]) -> None:
        self.floating: str | None = None
        self.by_column: dict[str, str] = {}
        if isinstance(dtype, Mapping):
            known = tuple(columns)
            for name, wanted in dtype.items():
                if name not in known:
                    raise unknown_column(
                        name, known, "dtype names a column the windows do not use:"
                    )
                self.by_column[name] = _value_dtype(wanted)
        elif dtype is not None:
            self.floating = _value_dtype(dtype)
            if self.floating not in FLOATING:
                raise TypeError(
                    f"dtype is {self.floating}, expected one of {', '.join(FLOATING)}: it applies "
                    "to floating columns; name other columns in a mapping {column: dtype}"
                )

    def of(self, column: ColumnData, scaled: bool) -> str:
        """The dtype `column` leaves as."""
        if column.name in self.by_column:
            return self.by_column[column.name]
        if is_floating(column.dtype):
            return self.floating or column.dtype
        return (self.floating or "float32") if scaled else column.dtype


def _value_dtype(dtype: Any) -> str:
    name = dtype_name(dtype)
    if name not in DTYPES or DTYPES[name].storage is None:
        raise TypeError(f"dtype is {name}, expected a number or bool of up to 64 bits")
    return name


def can_miss(column: ColumnData) -> bool:
    """Whether a value of the column may be missing."""
    if column.missing is not None:
        return column.missing > 0
    return column.validity is not None or is_floating(column.dtype)


def settle(
    keys: Sequence[Key],
    columns: Mapping[str, ColumnData],
    casts: Casts,
    scaler: Scaler | None,
    fill: float,
) -> list[Plan]:
    """Give every key its one dtype, or raise a TypeError that names the column in the way."""
    scaled = set() if scaler is None else set(scaler.columns)
    plans = []
    for key in keys:
        dtypes = {name: casts.of(columns[name], name in scaled) for name in key.columns}
        dtype = _one_dtype(key.name, dtypes, columns)
        mask = key.padded or any(can_miss(columns[name]) for name in key.columns)
        plans.append(Plan(key, dtype, mask, _checked_fill(fill, dtype, key.name)))
    names = [*BATCH_KEYS, *(p.key.name for p in plans)]
    names += [f"{p.key.name}_mask" for p in plans if p.mask]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"column {name!r} has the name of another key of the batch: rename it")
    return plans


def _one_dtype(key: str, dtypes: Mapping[str, str], columns: Mapping[str, ColumnData]) -> str:
    """The one dtype of a key's columns."""
    expected = next((d for d in dtypes.values() if d in FLOATING), next(iter(dtypes.values())))
    for name, found in dtypes.items():
        if found != expected:
            kind = " (the codes of a category)" if columns[name].categories is not None else ""
            other = next(one for one, d in dtypes.items() if d == expected)
            raise TypeError(
                f"column {name!r} of {key} is {found}{kind}, expected {expected} as column "
                f"{other!r}: give it another role, or ask for the cast by "
                f"dtype={{{name!r}: {expected!r}}}"
            )
    return expected


def _checked_fill(fill: float, dtype: str, key: str) -> float:
    """`fill` if the dtype can hold it."""
    if dtype in FLOATING:
        return fill
    if fill != fill:
        raise ValueError(f"fill is NaN, but {key} is {dtype}: expected a whole number")
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if fill != np.floor(fill) or not low <= fill <= high:
        raise ValueError(
            f"fill is {fill!r}, but {key} is {dtype}: expected a whole number in [{low}, {high}]"
        )
    return fill


Batch = dict[str, npt.NDArray[Any]]


class Batches:
    """Makes the batches of a cut by the plan of each key."""

    def __init__(
        self,
        index: _core.WindowIndex,
        cut: Cut,
        table: Table,
        columns: Mapping[str, ColumnData],
        plans: Sequence[Plan],
        scaler: Scaler | None,
    ) -> None:
        native = native_columns(columns)
        used = cut.runs.series[cut.runs.count > 0]
        fields = [
            _field(plan, native, _factors(scaler, plan, table, used), cut.span.dilation)
            for plan in plans
        ]
        self._gather = _core.Gather(index, table.offsets, fields)
        flat = [plan.key.name for plan in plans if plan.key.flat]
        # Keys without an axis of channels; the native core gives them one of length 1.
        self._flat = {*flat, *(f"{name}_mask" for name in flat)}

    def gather(self, indices: Int64, out: Batch | None, threads: int) -> Batch:
        """One batch, into `out` if there is one."""
        if out is not None and self._flat:
            out = {key: a[..., None] if key in self._flat else a for key, a in out.items()}
        batch: Batch = self._gather.gather(indices, out=out, threads=threads)
        for key in self._flat & batch.keys():
            batch[key] = batch[key][..., 0]
        return batch


def native_columns(columns: Mapping[str, ColumnData]) -> dict[str, _core.Column]:
    """The native view of each column."""
    return {
        name: _core.Column(
            column.values,
            validity=None if column.missing == 0 else column.validity,
            validity_offset=column.validity_offset,
            nan_is_missing=column.missing != 0,
            dtype=column.dtype,
            name=name,
        )
        for name, column in columns.items()
    }


def _factors(scaler: Scaler | None, plan: Plan, table: Table, used: Int64) -> tuple[Any, Any]:
    return (None, None) if scaler is None else scaler.factors(plan.key.columns, table, used)


def _field(
    plan: Plan, columns: Mapping[str, _core.Column], factors: tuple[Any, Any], dilation: int
) -> _core.Field:
    key = plan.key
    return _core.Field(
        key.name,
        [columns[name] for name in key.columns],
        segments=list(key.segments),
        dilation=dilation,
        layout=key.layout,
        dtype=plan.dtype,
        mask=plan.mask,
        fill=plan.fill,
        scale=factors[0],
        shift=factors[1],
        anchor="series" if key.static else "window",
    )
