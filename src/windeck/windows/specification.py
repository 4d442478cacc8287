"""The options of windows as one frozen value, checked when it is made as far as it needs no table.

`Windows` are a table, a specification and a selection of windows. All that depends on options alone
takes a `WindowSpec`, and other windows are those of ``dataclasses.replace(spec, ...)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from windeck._util.fingerprints import digest
from windeck._util.text import unknown_column
from windeck._util.validation import check_number
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import DTYPES, FLOATS, dtype_name, is_floating
from windeck.columns.times import duration_text
from windeck.table.local_times import TimeSteps
from windeck.table.table import Table
from windeck.windows.categories import Categories
from windeck.windows.category_codes import category_kind
from windeck.windows.filters import (
    WindowFilter,
    allowed_missing,
    allowed_unobserved,
    as_integers,
)
from windeck.windows.index import WindowSpan
from windeck.windows.scaler import Scaler

Names = str | Iterable[str] | None

Layout = Literal["btc", "bct", "columns"]

LAYOUTS = ("btc", "bct", "columns")
FLOATING = tuple(name for name in FLOATS if DTYPES[name].storage is not None)


@dataclass(frozen=True)
class ColumnRoles:
    """The names of the columns of each role, and of those covariates that are categorical."""

    target: tuple[str, ...]
    known: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """The names of all columns that have a role."""
        return (*self.target, *self.known, *self.past, *self.static)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of all columns that have a role and are not categorical."""
        return tuple(name for name in self.all if name not in self.categorical)

    def with_categorical(self, categorical: Any, table: Table) -> ColumnRoles:
        """Return the roles with those covariates that names, categories or True make categorical.

        Raises
        ------
        KeyError, TypeError, ValueError
            If a column does not exist, holds floats, or is no covariate.
        """
        covariates = (*self.known, *self.past, *self.static)
        if isinstance(categorical, Categories):
            named = tuple(name for name in covariates if name in categorical.columns)
            if not named:
                raise ValueError(
                    f"`categorical` has the columns {categorical.columns}, expected some of the "
                    f"covariates {covariates}"
                )
        elif isinstance(categorical, bool):
            texts = (n for n in covariates if table.column(n).categories is not None)
            named = tuple(texts) if categorical else ()
        else:
            named = names_of(categorical)
        for name in named:
            if name not in table.column_names:
                raise _no_value_column(table, "categorical", name)
            if name not in covariates:
                raise ValueError(
                    f"column {name!r} of `categorical` is no covariate: name it in "
                    "known_covariates, past_covariates or static_covariates too"
                )
            category_kind(table.column(name))
        return replace(self, categorical=tuple(name for name in covariates if name in named))

    @classmethod
    def from_names(
        cls,
        table: Table,
        target: Names,
        known: Names,
        past: Names,
        static: Names,
        *,
        kept: Iterable[str] = (),
    ) -> ColumnRoles:
        """Check the names given; targets default to the columns not named elsewhere.

        Text is no target by default where a number beside it is floating, unless it is in `kept`.
        """
        covariates = {
            "known_covariates": names_of(known),
            "past_covariates": names_of(past),
            "static_covariates": names_of(static),
        }
        if target is None:
            taken = {name for names in covariates.values() for name in names}
            found = {n: table.column(n) for n in table.column_names if n not in taken}
            only_numbers = any(is_floating(column.dtype) for column in found.values())
            targets = tuple(
                name
                for name, column in found.items()
                if column.categories is None or not only_numbers or name in kept
            )
        else:
            targets = names_of(target)
        named = {"target_columns": targets, **covariates}
        roles: dict[str, str] = {}
        for role, names in named.items():
            for name in names:
                if name not in table.column_names:
                    raise _no_value_column(table, role, name)
                if name in roles:
                    raise ValueError(
                        f"column {name!r} must have one role, got {roles[name]} and {role}"
                    )
                roles[name] = role
        if not targets:
            raise ValueError(
                "`target_columns` must name at least one column, got none"
                if target is not None
                else "every column of the table is a covariate, expected a target column"
            )
        return cls(*named.values())


def _no_value_column(table: Table, role: str, name: str) -> KeyError:
    """Return the error for a name of no value column: that of an id, of the time, or unknown."""
    if name in table.id_columns:
        return KeyError(
            f"`{role}` has {name!r}, which is an id column of the table and no value column; "
            f"expected a copy of it by another name: data = table.to_arrow(), then "
            f"Table.from_arrow(data.append_column('{name}_value', data[{name!r}]), ...) with "
            f"id_columns={name!r}, and categories='{name}_value' for texts"
        )
    if name == table.timestamp_column:
        return KeyError(
            f"`{role}` has {name!r}, which is the time column of the table and no value column; "
            "expected features of it, such as those of table.with_calendar()"
        )
    return unknown_column(name, table.column_names)


def names_of(given: Names) -> tuple[str, ...]:
    """Return names as a tuple: of one name, of several, or of none."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class OutputDtypes:
    """The dtypes of columns in a batch: those asked for, or else as stored.

    Attributes
    ----------
    floating
        The dtype of floating columns, and of scaled integers; None: as stored, and float32.
    by_column
        Pairs of a column and its dtype.
    """

    floating: str | None = None
    by_column: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_dtype(cls, dtype: Any, columns: tuple[str, ...]) -> OutputDtypes:
        """Check a floating dtype for floating columns, a mapping of columns to dtypes, or None.

        Raises
        ------
        KeyError
            If the mapping has a column that is not one of `columns`.
        TypeError
            If a dtype is none of numbers, or is not a floating one without a column.
        """
        if dtype is None:
            return cls()
        if isinstance(dtype, Mapping):
            for name in dtype:
                if name not in columns:
                    what = "`dtype` must name columns in use: a window"
                    raise unknown_column(name, columns, what)
            return cls(by_column=tuple((name, _value_dtype(one)) for name, one in dtype.items()))
        floating = _value_dtype(dtype)
        if floating not in FLOATING:
            raise TypeError(
                f"`dtype` must be one of {', '.join(FLOATING)}, got {floating}: it applies to "
                "floating columns; name other columns in a mapping {column: dtype}"
            )
        return cls(floating)

    def of(self, column: ColumnData, scaled: bool) -> str:
        """Return the name of the dtype of `column` in a batch."""
        for name, dtype in self.by_column:
            if name == column.name:
                return dtype
        if is_floating(column.dtype):
            return self.floating or column.dtype
        return (self.floating or "float32") if scaled else column.dtype


def _value_dtype(dtype: Any) -> str:
    name = dtype_name(dtype)
    if name not in DTYPES or DTYPES[name].storage is None:
        raise TypeError(f"`dtype` must be a number or bool of up to 64 bits, got {name}")
    return name


def _check_masks(masks: bool | None) -> bool | None:
    """Return `masks`, checked to be a bool or None."""
    if masks not in (None, False, True):
        raise TypeError(f"`masks` must be True, False or None, got {masks!r}; see `keys` for names")
    return None if masks is None else bool(masks)


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """The options of `Windows`, with their names there.

    `WindowSpan`, `ColumnRoles.from_names` and `OutputDtypes.from_dtype` check their part before.
    What depends on the columns of a table is checked later: names of keys, and whether a dtype can
    hold `fill`, by `BatchKeys.of`.

    Attributes
    ----------
    max_gap
        In the unit of the time stamps of the table, checked by `gap_in_units`.
    keys
        Names of the keys of a batch; None: all.
    joined
        True where past and future of a role are views of one buffer; see `Windows.joined`.
    categories
        The codes of categorical columns; None: batches cannot have them yet.

    Raises
    ------
    KeyError
        If `categories` lacks a categorical column.
    TypeError
        If `fill`, `max_missing`, `masks`, the scaler or `categories` has another type.
    ValueError
        If `max_missing` or a least number of observed values is out of range; for an unknown
        layout, no key, a scaler without any of the columns, or joined columns.
    """

    span: WindowSpan
    roles: ColumnRoles
    layout: Layout = "btc"
    fill: float = 0.0
    max_missing: float = 1.0
    max_gap: int | None = None
    min_observed_past: int | None = None
    min_observed_future: int | None = None
    dtypes: OutputDtypes = OutputDtypes()
    keys: tuple[str, ...] | None = None
    masks: bool | None = None
    scaler: Scaler | None = None
    joined: bool = False
    categories: Categories | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"`layout` must be one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        if self.joined and self.layout == "columns":
            raise ValueError(
                "layout='columns' has past and future in one array already, expected 'btc' or 'bct'"
            )
        for name in ("fill", "max_missing"):
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        object.__setattr__(self, "masks", _check_masks(self.masks))
        if self.keys == ():
            raise ValueError("`keys` must name at least one key of a batch, got none")
        self._allowed()  # It raises an error for a number out of range.
        self._check_scaler()
        self._check_categories()

    def _check_categories(self) -> None:
        categorical = self.roles.categorical
        for name, _ in self.dtypes.by_column:
            if name in categorical:
                raise ValueError(
                    f"`dtype` has column {name!r}, which is categorical and has codes of int64: "
                    "leave one of them out"
                )
        if self.categories is None:
            return
        if not isinstance(self.categories, Categories):
            raise TypeError(
                f"`categories` must be Categories, got a {type(self.categories).__name__}"
            )
        if not categorical:
            raise ValueError(
                "`categories` are of categorical columns, expected windows with categorical="
            )
        for name in categorical:
            if name not in self.categories.columns:
                raise unknown_column(name, self.categories.columns, "`categories`")

    def _check_scaler(self) -> None:
        scaler = self.scaler
        if scaler is None:
            return
        if not isinstance(scaler, Scaler):
            raise TypeError(f"`scaler` must be a Scaler, got a {type(scaler).__name__}")
        if not set(scaler.columns) & set(self.roles.numbers):
            raise ValueError(
                f"`scaler` must have some of the columns {self.roles.numbers}, got {scaler.columns}"
            )

    def columns_of(self, table: Table) -> dict[str, ColumnData]:
        """Return the columns used, by name."""
        return {name: table.column(name) for name in self.roles.all}

    def _allowed(self) -> tuple[int | None, int | None, int | None]:
        """Return the most missing values of a window, of its past and of its future; None: any."""
        span, targets = self.span, len(self.roles.target)
        past, future = span.context_length * targets, span.prediction_length * targets
        return (
            allowed_missing(self.max_missing, span.steps * targets),
            allowed_unobserved("min_observed_past", self.min_observed_past, past),
            allowed_unobserved("min_observed_future", self.min_observed_future, future),
        )

    def conditions(self, table: Table) -> WindowFilter:
        """Return the conditions on the rows of windows."""
        targets = [table.column(name) for name in self.roles.target]
        stamps = None if table.timestamps is None else as_integers(table.timestamps)
        missing, past, future = self._allowed()
        gap, steps = "", TimeSteps()
        if self.max_gap is not None and table.timestamps is not None:
            gap = duration_text(self.max_gap, table.timestamps.dtype)
            steps = TimeSteps(str(table.timestamps.dtype), table.time_zone)
        return WindowFilter(targets, missing, stamps, self.max_gap, past, future, gap, steps)

    def fingerprint(self, dtypes: str, *, some_unseen: bool) -> dict[str, str | int]:
        """Return the fields that checkpoints compare: names and values are part of their format.

        Parameters
        ----------
        dtypes
            The dtypes of all keys of a batch, as text.
        some_unseen
            Whether the scaler was not fitted on some of the series, whose statistics then count.
        """
        return {
            **self.span.fingerprint(),
            "target_columns": ", ".join(self.roles.target),
            "known_covariates": ", ".join(self.roles.known),
            "past_covariates": ", ".join(self.roles.past),
            "static_covariates": ", ".join(self.roles.static),
            "layout": self.layout,
            "dtypes": dtypes,
            "fill": repr(self.fill),
            "max_missing": repr(self.max_missing),
            "max_gap": repr(self.max_gap),
            "min_observed_past": int(self.min_observed_past or 0),
            "min_observed_future": int(self.min_observed_future or 0),
            "scaler": _digest_of(self.scaler, some_unseen),
            **self._fingerprint_of_categories(),
        }

    def _fingerprint_of_categories(self) -> dict[str, str | int]:
        """Return the fields of categorical columns; none without them."""
        names, fitted = self.roles.categorical, self.categories
        if not names:
            return {}
        digest_or_none = "none" if fitted is None else fitted._digest_of(names)
        return {"categorical": ", ".join(names), "categories": digest_or_none}


def _digest_of(scaler: Scaler | None, some_unseen: bool) -> str:
    """Return a digest of a scaler, and of its pooled statistics where they are used."""
    if scaler is None:
        return "none"
    if scaler.unseen != "global" or scaler.pooled is None or not some_unseen:
        return scaler._digest
    return digest(scaler._digest, scaler.pooled._digest)
