"""Affine scaling of columns, fitted on a sample of rows; its JSON and its text.

Batches are scaled natively, in ``cpp/src/gather/kernels/scaling.hpp``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from windeck._util.html import html_table
from windeck._util.indices import Int64
from windeck._util.options import explain_options
from windeck._util.terminal import escaped
from windeck._util.text import unknown_column
from windeck._util.validation import check_integer
from windeck._util.warning import warn
from windeck.columns.dtypes import Bools
from windeck.table.series import plain_names
from windeck.table.table import Table
from windeck.windows import origins, scaler_fitting
from windeck.windows.categories import Categories
from windeck.windows.origins import (
    BatchOrigin,
    BatchSeries,
    FittedRows,
    NotedWindows,
    ScalerOrigins,
    TableWindows,
)
from windeck.windows.scaler_fitting import (
    KINDS,
    Estimates,
    Float64,
    SeriesName,
    affine,
)
from windeck.windows.scaler_json import UNSEEN, digest_statistics, parse_scaler, plain_statistics

KindName = Literal["standard", "minmax", "robust", "mean_abs"]
UnseenName = Literal["error", "global", "skip"]
#: Columns that a notebook shows.
_SHOWN = 20


@explain_options
@dataclass(frozen=True, eq=False, repr=False)
class Scaler:
    """An affine scaling of columns: ``scaled = value * scale + shift``.

    Made by `Scaler.fit`, `Scaler.from_json` or `merge`; immutable. Arrays have shape (S, C): C
    columns, and S series, or S = 1 where all series share one scaling.

    Attributes
    ----------
    kind
        ``"standard"``: (x - mean) / std. ``"minmax"``: (x - min) / (max - min).
        ``"robust"``: (x - median) / (q75 - q25). ``"mean_abs"``: x / mean(abs(x)).
        A column of equal values is divided by 1.
    columns
        The names of the C columns.
    statistics, errors
        float64 arrays by name (``"mean"``, ``"std"``, ...), and the standard error of each.
    counts
        int64: observed values that each estimate is from; columns with 0 are divided by 1.
    weights
        float64: number of observed values in the data, estimated where rows were sampled.
    series
        Names of the S series, or None where all share one scaling.
    unseen
        Scaling of a series without observed values in a column, or of an unknown series:
        ``"global"``: by `pooled`. ``"skip"``: none. ``"error"``: a ValueError.
    pooled
        The scaler of all series together, with the options of this one; None where all share one
        scaling.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> table = wd.Table.from_columns({"load": np.array([2.0, 4.0, np.nan, 6.0])})
    >>> scaler = wd.Scaler.fit(table, kind="minmax")
    >>> scaler
    Scaler(kind='minmax')
      load: min 2, max 6, of 3 values, exact
    >>> scaler.transform(np.array([2.0, 6.0]), columns="load")
    array([0., 1.])
    >>> wd.Scaler.from_json(scaler.to_json()) == scaler
    True
    """

    kind: str
    columns: tuple[str, ...]
    statistics: dict[str, Float64]
    errors: dict[str, Float64]
    counts: npt.NDArray[np.int64]
    weights: Float64
    series: tuple[SeriesName, ...] | None = None
    unseen: str = field(default="global", kw_only=True)
    pooled: Scaler | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.unseen not in UNSEEN:
            raise ValueError(f"`unseen` must be one of {', '.join(UNSEEN)}, got {self.unseen!r}")
        if (self.series is None) != (self.pooled is None):
            raise ValueError(
                f"{self._title()} has {'no ' if self.pooled is None else ''}`pooled` statistics, "
                "expected them with `series`, and with these only"
            )
        for array in (*self.statistics.values(), *self.errors.values(), self.counts, self.weights):
            array.setflags(write=False)

    @classmethod
    def fit(
        cls,
        data: Table | TableWindows | FittedRows,
        *,
        kind: KindName = "standard",
        columns: str | Sequence[str] | None = None,
        sample: int | None = 100_000,
        per_series: bool = False,
        seed: int = 0,
        unseen: UnseenName = "global",
    ) -> Scaler:
        """Estimate the scaling of columns from a sample of rows.

        Parameters
        ----------
        data
            A table, or windows. Of windows only the rows of their steps are read, so that
            ``Scaler.fit(w.split().train)`` reads no targets of validation and test, and rows that
            only dropped windows have do not count.
        kind
            The kind of scaling; see the class.
        columns
            Columns to scale. Default: every column of numbers; neither flags nor categories.
        sample
            Number of rows to read, drawn without replacement (of each series, with `per_series`);
            None reads all.
        per_series
            Give each series its own scaling.
        seed
            The seed of the sample.
        unseen
            With `per_series`: scaling of a series that has no observed value of a column among the
            rows read, and of a series of another table. ``"global"``: by the statistics that
            ``per_series=False`` gives; windows warn once, with numbers. ``"skip"``: values stay as
            they are. ``"error"``: a ValueError where such a series is used.

        Raises
        ------
        KeyError, TypeError
            If a column does not exist, or holds no numbers.
        ValueError
            If a column has infinite values, or no observed value at all.

        Notes
        -----
        O(sample) time and memory. With `per_series` the time is O(rows read), and the memory
        O(series) and that of a million rows, or of one longer series.

        Standard errors are those of sampling: 0 where all rows were read. Errors of quantiles
        follow Woodruff, those of min and max the jackknife. The latter are a lower bound only,
        because the extremes of a sample are less extreme than those of all rows.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(5.0)}, offsets=[0, 2, 5])
        >>> wd.Scaler.fit(table, kind="minmax", per_series=True).center.tolist()
        [[0.0], [2.0]]
        """
        if kind not in KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(KINDS)}, got {kind!r}")
        if sample is not None:
            sample = check_integer("sample", sample, least=2)
        rows = FittedRows.of(data)
        table = rows.table
        used = [name for name in rows.column_names if name not in rows.categorical]
        names = scaler_fitting.choose_columns(table, used, columns)
        pooled, by_series = scaler_fitting.estimate_columns(
            table, rows.stretches("a scaler"), names, kind, sample, per_series, seed
        )
        _check_observed(names, pooled if by_series is None else by_series)
        together = cls._of(kind, names, pooled, None, unseen)
        if by_series is None:
            return together
        found = table.series_names
        scaler = cls._of(kind, names, by_series, plain_names(found), unseen, together)
        scaler._origins.remember(BatchOrigin(found))
        return scaler

    @classmethod
    def of_sample(cls, table: Table, *, kind: str, total: int) -> Scaler:
        """Return what `fit` returns for data of `total` rows, from the rows that it would sample.

        Raises
        ------
        TypeError, ValueError
            As for `fit`.
        """
        names = scaler_fitting.choose_columns(table, table.column_names, None)
        found = scaler_fitting.estimate_sample(table, names, kind, total)
        _check_observed(names, found)
        return cls._of(kind, names, found, None, "global")

    @classmethod
    def _of(
        cls,
        kind: str,
        columns: tuple[str, ...],
        found: Estimates,
        series: tuple[SeriesName, ...] | None,
        unseen: str,
        pooled: Scaler | None = None,
    ) -> Scaler:
        arrays = found.statistics, found.errors, found.counts, found.weights
        return cls(kind, columns, *arrays, series, unseen=unseen, pooled=pooled)

    def _estimates(self) -> Estimates:
        return Estimates(self.statistics, self.errors, self.counts, self.weights)

    def merge(self, other: Scaler) -> Scaler:
        """Return the scaler of both samples together, weighted by the values they represent.

        Exact except for rounding: the parts of a table give the scaler of the table.

        Raises
        ------
        ValueError
            If columns, kinds or `unseen` differ, or for kind "robust": the medians of two
            parts do not determine the median of the whole.
        """
        if KINDS[self.kind].merge is None:
            raise ValueError(
                f"scalers of kind {self.kind!r} cannot be merged: fit one on all the data"
            )
        mine = (self.kind, self.columns, self.series is None)
        if mine != (other.kind, other.columns, other.series is None):
            raise ValueError(f"cannot merge {self._title()} with {other._title()}: they differ")
        if self.series is not None and self.unseen != other.unseen:
            raise ValueError(
                f"cannot merge {self._title()} with unseen={self.unseen!r} and {other._title()} "
                f"with unseen={other.unseen!r}, expected the same `unseen`"
            )
        series, found = scaler_fitting.merge_estimates(
            self.kind,
            [(one.series or (None,), one._estimates()) for one in (self, other)],
        )
        if self.series is None:
            return self._of(self.kind, self.columns, found, None, self.unseen)
        assert self.pooled is not None
        assert other.pooled is not None
        pooled = self.pooled.merge(other.pooled)
        merged = self._of(self.kind, self.columns, found, series, self.unseen, pooled)
        for origin in (*self._origins.remembered, *other._origins.remembered):
            merged._origins.remember(origin)
        return merged

    @property
    def center(self) -> Float64:
        """The values subtracted, float64 of shape (S, C)."""
        return self._center_spread[0]

    @property
    def spread(self) -> Float64:
        """The divisors, float64 of shape (S, C): 1 for a column of equal values."""
        return self._center_spread[1]

    @cached_property
    def _center_spread(self) -> tuple[Float64, Float64]:
        """Return center and spread; those of all series together for `unseen` values."""
        center, spread = KINDS[self.kind].center_spread(self.statistics)
        # The inverse of a smaller spread overflows.
        spread = np.where(spread >= np.finfo(np.float64).tiny, spread, 1.0)
        if self._has_fallback:
            assert self.pooled is not None
            empty = self.counts == 0
            center = np.where(empty, self.pooled.center, center)
            spread = np.where(empty, self.pooled.spread, spread)
        center.setflags(write=False)
        spread.setflags(write=False)
        return center, spread

    @property
    def _has_fallback(self) -> bool:
        """True if series without values of a column are scaled by the pooled statistics."""
        return self.unseen == "global" and self.pooled is not None

    @property
    def scale(self) -> Float64:
        """The factors, ``1 / spread``, float64 of shape (S, C)."""
        return 1.0 / self.spread

    @property
    def shift(self) -> Float64:
        """The addends, ``-center / spread``, float64 of shape (S, C)."""
        return -self.center * self.scale

    def transform(
        self,
        array: Any,
        *,
        columns: str | Sequence[str] | None = None,
        series_id: Any = None,
        axis: int | None = None,
        table: Table | TableWindows | None = None,
    ) -> Any:
        """Scale values as windows with this scaler do.

        Parameters
        ----------
        array
            ndarray or tensor of shape (batch, ..., C).
        columns
            The names of the C channels; default: all of `self.columns`. With a single text `array`
            has no axis of channels.
        series_id
            The series of each sample, shape (batch,): their names, or their numbers as in the
            batches of windows. Required with `per_series`. Series without observed values of a
            column, and those that the scaler does not have, are scaled as `unseen` says.
        axis
            The axis of channels. Default: that of the windows that this scaler scales; the last one
            without such windows.
        table
            The windows that `array` and numbers of series are from, or their table. Without it
            numbers are those of the data that the scaler was fitted on, of the windows that it
            scales, and of others in use that have a column of it, if all of them agree. Series
            without names have their numbers as names.

        Returns
        -------
        ndarray or tensor
            The same shape. 16-bit floats become float32, integers float64 (float32 in tensors).

        Raises
        ------
        KeyError, IndexError
            If the scaler does not have a column, or no table the number of a series.
        ValueError
            If shapes do not match; if a series has no scaling (``unseen="error"``); if numbers mean
            other series in those tables, or no table is known that they are of.
        TypeError
            For a batch or list instead of an array.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> columns = {"load": np.array([0.0, 1.0, 10.0, 30.0])}
        >>> table = wd.Table.from_columns(columns, offsets=[0, 2, 4], series_names=["a", "b"])
        >>> scaler = wd.Scaler.fit(table, kind="minmax", per_series=True)
        >>> scaler.transform(np.array([[20.0], [0.5]]), series_id=["b", "a"]).tolist()
        [[0.5], [0.5]]
        >>> scaler.transform(np.array([[20.0], [0.5]]), series_id=[1, 0], table=table).tolist()
        [[0.5], [0.5]]
        """
        center, spread = self._of_batch(array, columns, series_id, axis, table)
        scale = 1.0 / spread
        return affine(array, scale, -center * scale)

    def inverse_transform(
        self,
        array: Any,
        *,
        columns: str | Sequence[str] | None = None,
        series_id: Any = None,
        axis: int | None = None,
        table: Table | TableWindows | None = None,
    ) -> Any:
        """Return scaled values, such as forecasts, in their original units.

        Parameters, results and errors as for `transform`. Tensors keep their gradients.
        `Windows.inverse_transform` knows table, columns and axes.
        """
        center, spread = self._of_batch(array, columns, series_id, axis, table)
        return affine(array, spread, center)

    def _of_batch(
        self, array: Any, columns: Any, series_id: Any, axis: int | None, table: Any
    ) -> tuple[Float64, Float64]:
        """Return center and spread of a batch in a shape that broadcasts to `array`."""
        shape = _shape_of(array)
        names = (columns,) if isinstance(columns, str) else tuple(columns or self.columns)
        for name in names:
            if name not in self.columns:
                raise unknown_column(name, self.columns, "the scaler")
        place = None
        if not isinstance(columns, str):
            found = self._origins.find(table)
            if columns is None:
                origins.check_default_columns(names, found)
            place = origins.channel_axis(shape, names, axis, found)
        series = None
        if self.series is not None:
            count = shape[0] if shape else 0
            series = self._origins.find_series(series_id, count, table)
        return self._center_spread_of(names, series, shape, place)

    def _center_spread_of(
        self,
        columns: Sequence[str],
        series: BatchSeries | None,
        shape: tuple[int, ...],
        axis: int | None,
    ) -> tuple[Float64, Float64]:
        """Return center and spread in a shape that broadcasts to a batch of a shape.

        Columns that the scaler does not have are not scaled.

        Parameters
        ----------
        series
            The series of the samples, with a scaler per series.
        axis
            The axis of the columns; None for a batch of one column without such an axis.
        """
        here = [place for place, name in enumerate(columns) if name in self.columns]
        own = [self.columns.index(columns[place]) for place in here]
        rows = np.zeros(1, dtype=np.int64) if series is None else series.rows
        center, spread = np.zeros((len(rows), len(columns))), np.ones((len(rows), len(columns)))
        unknown = rows < 0
        center[:, here], spread[:, here] = (one[rows][:, own] for one in self._center_spread)
        center[unknown], spread[unknown] = 0.0, 1.0
        if self._has_fallback:
            assert self.pooled is not None
            for place, column in zip(here, own, strict=True):
                center[unknown, place] = self.pooled.center[0, column]
                spread[unknown, place] = self.pooled.spread[0, column]
        if series is not None:
            unseen = (self.counts[rows][:, own] == 0) | unknown[:, None]
            self._check_unseen(unseen, own, series.names, series.numbers)
        broadcast = [1] * len(shape)
        if axis is not None:
            broadcast[axis] = len(columns)
        if series is not None:
            broadcast[0] = len(rows)
        return center.reshape(broadcast), spread.reshape(broadcast)

    @cached_property
    def _origins(self) -> ScalerOrigins:
        """The data fitted on, and the windows scaled, in this process."""
        own = self.columns, self.series
        # Not a method of this object, which would refer to itself.
        return ScalerOrigins(*own, partial(digest_statistics, self.kind, *own, self._estimates()))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_origins"}

    def factors(
        self, columns: Sequence[str], table: Table, used: Int64
    ) -> tuple[Float64 | None, Float64 | None]:
        """Return scale and shift for `columns` of `table`, as the native gather takes them.

        Parameters
        ----------
        columns
            Names of C columns. Columns that the scaler does not have are not scaled.
        table
            The table to scale; its series are matched by name.
        used
            int64: numbers of the series that are read.

        Returns
        -------
        scale, shift
            (None, None) if no column is scaled; else two float64 arrays of shape (C,), or of shape
            (number of series in `table`, C) with `per_series`.

        Raises
        ------
        ValueError
            If a series that is read has no scaling.
        """
        return self._for_table(columns, table, used)[:2]

    def _for_table(
        self, columns: Sequence[str], table: Table, used: Int64
    ) -> tuple[Float64 | None, Float64 | None, Bools]:
        """Return `factors`, and which of the `used` series are `unseen`, by column: (used, C)."""
        here = [place for place, name in enumerate(columns) if name in self.columns]
        own = [self.columns.index(columns[place]) for place in here]
        unseen = np.zeros((len(used), len(columns)), dtype=np.bool_)
        if not here:
            return None, None, unseen
        rows = (
            np.zeros(1, dtype=np.int64)
            if self.series is None
            else self._origins.rows_of(table.series_names)
        )
        known = rows >= 0
        scale = np.ones((len(rows), len(columns)))
        shift = np.zeros((len(rows), len(columns)))
        for place, column in zip(here, own, strict=True):
            if self._has_fallback:
                assert self.pooled is not None
                scale[:, place] = self.pooled.scale[0, column]
                shift[:, place] = self.pooled.shift[0, column]
            scale[known, place] = self.scale[rows[known], column]
            shift[known, place] = self.shift[rows[known], column]
            if self.series is not None:
                observed = known[used] & (self.counts[rows[used], column] > 0)
                unseen[:, place] = ~observed
        if self.series is None:
            return scale[0], shift[0], unseen
        self._check_unseen(unseen[:, here], own, table.series_names, used)
        return scale, shift, unseen

    def _check_unseen(
        self, unseen: Bools, columns: Sequence[int], names: Sequence[Any], series: Int64
    ) -> None:
        """Raise for series without observed values, unless `unseen` says how to scale them.

        `unseen` has shape (len(series), len(columns)); `names` has those of all series.
        """
        if self.unseen == "skip" or not unseen.any():
            return
        expected = "unseen='global' or 'skip'"
        if self.unseen == "global":
            assert self.pooled is not None
            unseen = unseen & (self.pooled.counts[0, columns] == 0)
            expected = "a scaler that was fitted on some, or unseen='skip'"
        bad = unseen.any(axis=1)
        if bad.any():
            first = int(np.argmax(bad))
            column = self.columns[columns[int(np.argmax(unseen[first]))]]
            raise ValueError(
                f"series {names[int(series[first])]!r} has no values of column {column!r} among "
                f"those the scaler was fitted on ({int(bad.sum())} such series in all), expected "
                f"{expected}"
            )

    def to_json(self, *, categories: Categories | None = None) -> str:
        """Return the scaler as JSON text; `from_json` reads the numbers back exactly.

        Parameters
        ----------
        categories
            Those of the same windows, to have all that was fitted in one text: `Scaler.from_json`
            reads the scaler from it, and `Categories.from_json` the categories.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"load": np.arange(3.0), "shop": np.array([7, 30, 9])})
        >>> categories = wd.Categories.fit(table, columns="shop")
        >>> text = wd.Scaler.fit(table, columns="load").to_json(categories=categories)
        >>> wd.Scaler.from_json(text).columns, wd.Categories.from_json(text).columns
        (('load',), ('shop',))
        """
        plain = {**self._plain(), "unseen": None, "pooled": None}
        if self.pooled is not None:
            plain |= {"unseen": self.unseen, "pooled": self.pooled._plain()["columns"]}
        if categories is not None:
            plain["categories"] = _plain_categories(categories)
        return json.dumps(plain, allow_nan=False)

    def _plain(self) -> dict[str, Any]:
        """Return the statistics as lists."""
        return plain_statistics(self.kind, self.columns, self.series, self._estimates())

    @property
    def _digest(self) -> str:
        """A digest of the statistics of each series, without `unseen` and `pooled`."""
        return self._origins.digest

    @classmethod
    def from_json(cls, text: str | bytes) -> Scaler:
        """Return the scaler written by `to_json`. The text is data only; no code in it runs.

        Categories in the text are left to `Categories.from_json`.

        Raises
        ------
        ValueError
            If the text is not the JSON of a scaler.
        """
        found = parse_scaler(text)
        pooled = None if found.pooled is None else cls(**found.pooled, unseen=found.unseen)
        return cls(**found.arguments, unseen=found.unseen, pooled=pooled)

    def __eq__(self, other: object) -> bool:
        """Equal names and equal numbers."""
        return isinstance(other, Scaler) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.columns, self.counts.tobytes()))

    def explain(self) -> str:
        """Return one line a column: estimates, standard errors and number of values.

        Without errors where all rows were read: such estimates are exact.

        With `per_series` the range over series is shown, with the largest error.
        """
        return "\n".join(escaped(self._column_line(i)) for i in range(len(self.columns)))

    def _title(self) -> str:
        series = "" if self.series is None else f", per_series={len(self.series)}"
        return f"Scaler(kind={self.kind!r}{series})"

    def _column_line(self, column: int) -> str:
        fitted = self.counts[:, column] > 0
        parts = []
        for key, values in self.statistics.items():
            value, error = values[fitted, column], self.errors[key][fitted, column]
            text = f"{value.min():.6g}"
            if self.series is not None:
                text += f" to {value.max():.6g}"
            parts.append(f"{key} {text}" + f" ± {error.max():.2g}" * bool(error.max() > 0))
        count, weight = int(self.counts[:, column].sum()), float(self.weights[:, column].sum())
        about = "" if weight <= count else f" out of about {weight:,.0f}"
        series = "" if self.series is None else f" in {int(fitted.sum())} series"
        exact = "" if any("±" in part for part in parts) else ", exact"
        found = f"{', '.join(parts)}, of {count:,} values{about}{series}{exact}"
        return f"{self.columns[column]}: {found}"

    def __repr__(self) -> str:
        lines = self.explain().split("\n")
        if len(lines) > 12:
            lines[11:] = [f"... {len(lines) - 11} more columns"]
        return "\n  ".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        rows = []
        for place, name in enumerate(self.columns[:_SHOWN]):
            _, _, text = self._column_line(place)[len(name) :].partition(": ")
            rows.append((name, text))
        more = len(self.columns) - len(rows)
        notes = f"and {more:,} columns more" if more else ""
        return html_table(self._title(), ("column", "estimates"), rows, notes)


def _plain_categories(categories: Any) -> dict[str, Any]:
    """Return the values of categories as lists; raise TypeError for another type."""
    if not isinstance(categories, Categories):
        found = type(categories).__name__
        raise TypeError(f"`categories` must be Categories, got a {found}")
    return categories._plain()


def note_windows(
    origin: BatchOrigin, columns: tuple[str, ...], scaler: Scaler | None
) -> NotedWindows:
    """Note windows, which use `columns`, as an origin of batches; see `origins.note_windows`."""
    return origins.note_windows(origin, columns, None if scaler is None else scaler._origins)


def in_original_units(
    scaler: Scaler, values: Any, columns: Sequence[str], axis: int | None, series_id: Any, of: Table
) -> Any:
    """Return scaled values of the batches of a table in their original units.

    As `Scaler.inverse_transform`, but columns that the scaler does not have are not changed, and
    `axis` is None for values of one column without an axis of channels.
    """
    shape, series = _shape_of(values), None
    if scaler.series is not None:
        series = scaler._origins.find_series(series_id, shape[0], of)
    center, spread = scaler._center_spread_of(columns, series, shape, axis)
    return affine(values, spread, center)


def _shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array or tensor; raise a TypeError for other objects."""
    try:
        return tuple(values.shape)
    except AttributeError:
        key = ', one of its keys such as batch["past_target"]' if isinstance(values, dict) else ""
        raise TypeError(
            f"got a {type(values).__name__} of values to scale, expected an array or a tensor{key}"
        ) from None


def warn_of_unseen(
    scaler: Scaler | None, num_series: int, parts: Iterable[Mapping[str, Int64]]
) -> None:
    """Warn of series that a scaler per series has no values of and scales by those of all.

    The warning names the caller's caller.

    Parameters
    ----------
    num_series
        The number of series of the table.
    parts
        Numbers of such series by column, of windows of one table.
    """
    if scaler is None or scaler.unseen != "global":
        return
    unseen: dict[str, set[int]] = {}
    for part in parts:
        for column, series in part.items():
            unseen.setdefault(column, set()).update(series.tolist())
    if unseen:
        columns = ", ".join(f"{name!r} in {len(series)}" for name, series in unseen.items())
        warn(
            f"{len(set().union(*unseen.values()))} of {num_series} series have no "
            f"values of a column among those the scaler was fitted on ({columns}), which is scaled "
            "by the statistics of all series together; unseen='error' refuses such series, 'skip' "
            "leaves their values as they are",
        )


def _check_observed(names: Sequence[str], found: Estimates) -> None:
    for column, name in enumerate(names):
        if not found.counts[:, column].any():
            raise ValueError(f"column {name!r} has no observed value in the rows read to fit it")
