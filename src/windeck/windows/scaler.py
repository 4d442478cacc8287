"""Affine scaling of columns, fitted on a sample of rows; its JSON and its text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from windeck._util.indices import Int64
from windeck._util.text import unknown_column
from windeck._util.validation import check_integer
from windeck.windows import scaler_fitting
from windeck.windows.scaler_fitting import (
    KINDS,
    ColumnEstimate,
    ColumnEstimates,
    Estimate,
    Float64,
    SeriesName,
    affine,
)

if TYPE_CHECKING:
    from windeck.table.table import Table
    from windeck.windows.windows import Windows


KindName = Literal["standard", "minmax", "robust", "mean_abs"]

# The version of the JSON.
FORMAT = 1


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
        int64: number of observed values behind each estimate; columns with 0 are divided by 1.
    weights
        float64: number of observed values in the data, estimated where rows were sampled.
    series
        Names of the S series, or None where all share one scaling.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> table = wd.Table.from_columns({"load": np.array([2.0, 4.0, np.nan, 6.0])})
    >>> scaler = wd.Scaler.fit(table, kind="minmax")
    >>> scaler
    Scaler(kind='minmax')
      load: min 2 ± 0, max 6 ± 0, of 3 values
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

    def __post_init__(self) -> None:
        for array in (*self.statistics.values(), *self.errors.values(), self.counts, self.weights):
            array.setflags(write=False)

    @classmethod
    def fit(
        cls,
        data: Table | Windows,
        *,
        kind: KindName = "standard",
        columns: str | Sequence[str] | None = None,
        sample: int | None = 100_000,
        per_series: bool = False,
        seed: int = 0,
    ) -> Scaler:
        """Estimate the scaling of columns from a sample of rows.

        Parameters
        ----------
        data
            A table, or windows. Of windows only the rows that they cover are read, so that
            ``Scaler.fit(w.split().train)`` reads no targets of validation and test.
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

        Raises
        ------
        KeyError, TypeError
            If a column does not exist, or holds no numbers.
        ValueError
            If a column has infinite values, or no observed value at all.

        Notes
        -----
        O(sample) time and memory. Standard errors are those of sampling: 0 where all rows were
        read. Errors of quantiles follow Woodruff, those of min and max the jackknife. The latter
        are a lower bound only, because the extremes of a sample are less extreme than those of all
        rows.

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
        names = scaler_fitting.choose_columns(data, columns)
        estimates = dict(
            scaler_fitting.estimate_columns(data, names, kind, sample, per_series, seed)
        )
        observed = {column for _, column in estimates}
        for column, name in enumerate(names):
            if column not in observed:
                raise ValueError(
                    f"column {name!r} has no observed value in the rows read to fit it"
                )
        series = None
        if per_series:
            series = tuple(map(json_name, scaler_fitting.table_of(data).series_names))
        return cls._from_estimates(kind, names, series, estimates)

    @classmethod
    def _from_estimates(
        cls,
        kind: str,
        columns: tuple[str, ...],
        series: tuple[SeriesName, ...] | None,
        estimates: ColumnEstimates,
    ) -> Scaler:
        shape = (1 if series is None else len(series), len(columns))
        names = KINDS[kind].names
        statistics = {name: np.zeros(shape) for name in names}
        errors = {name: np.zeros(shape) for name in names}
        counts, weights = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        for at, found in estimates.items():
            counts[at], weights[at] = found.count, found.weight
            for name in names:
                statistics[name][at] = found.estimate.value[name]
                errors[name][at] = found.estimate.error[name]
        return cls(kind, columns, statistics, errors, counts, weights, series)

    def _estimates(self) -> ColumnEstimates:
        """Return the estimates that have observed values."""
        return {
            (s, c): ColumnEstimate(
                Estimate(
                    {name: float(values[s, c]) for name, values in self.statistics.items()},
                    {name: float(values[s, c]) for name, values in self.errors.items()},
                ),
                int(self.counts[s, c]),
                float(self.weights[s, c]),
            )
            for s, c in np.argwhere(self.counts).tolist()
        }

    def merge(self, other: Scaler) -> Scaler:
        """Return the scaler of both samples together, weighted by the values they represent.

        Exact except for rounding: the parts of a table give the scaler of the table.

        Raises
        ------
        ValueError
            If columns or kinds differ, or for kind "robust": the medians of two parts do not
            determine the median of the whole.
        """
        if KINDS[self.kind].merge is None:
            raise ValueError(
                f"scalers of kind {self.kind!r} cannot be merged: fit one on all the data"
            )
        mine = (self.kind, self.columns, self.series is None)
        if mine != (other.kind, other.columns, other.series is None):
            raise ValueError(f"cannot merge {self._title()} with {other._title()}: they differ")
        one_series: tuple[SeriesName, ...] = (None,)
        series, estimates = scaler_fitting.merge_estimates(
            self.kind, [(one.series or one_series, one._estimates()) for one in (self, other)]
        )
        return self._from_estimates(
            self.kind, self.columns, None if self.series is None else series, estimates
        )

    @property
    def center(self) -> Float64:
        """The values subtracted, float64 of shape (S, C)."""
        return KINDS[self.kind].center_spread(self.statistics)[0]

    @property
    def spread(self) -> Float64:
        """The divisors, float64 of shape (S, C): 1 for a column of equal values."""
        spread = KINDS[self.kind].center_spread(self.statistics)[1]
        # The inverse of a smaller spread overflows.
        usable: Float64 = np.where(spread >= np.finfo(np.float64).tiny, spread, 1.0)
        return usable

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
        axis: int = -1,
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
            Series numbers in the table fitted on, shape (batch,). Required with `per_series`.
        axis
            The axis of channels.

        Returns
        -------
        ndarray or tensor
            The same shape. 16-bit floats become float32, integers float64 (float32 in tensors).

        Raises
        ------
        KeyError, IndexError
            If the scaler does not have a column or a series.
        ValueError
            If shapes do not match, or a series had no rows when the scaler was fitted.
        """
        scale = self._broadcast(self.scale, array, columns, series_id, axis)
        shift = self._broadcast(self.shift, array, columns, series_id, axis)
        return affine(array, scale, shift)

    def inverse_transform(
        self,
        array: Any,
        *,
        columns: str | Sequence[str] | None = None,
        series_id: Any = None,
        axis: int = -1,
    ) -> Any:
        """Return scaled values, such as forecasts, in their original units.

        Parameters, results and errors as for `transform`. Tensors keep their gradients.
        """
        spread = self._broadcast(self.spread, array, columns, series_id, axis)
        center = self._broadcast(self.center, array, columns, series_id, axis)
        return affine(array, spread, center)

    def _broadcast(
        self, values: Float64, array: Any, columns: Any, series_id: Any, axis: int
    ) -> Float64:
        """Return the values of some columns and series in a shape that broadcasts to `array`."""
        shape = [1] * len(array.shape)
        names = (columns,) if isinstance(columns, str) else columns or self.columns
        picked = values[:, [self._column_number(name) for name in names]]
        picked = picked[self._series_rows(series_id, array)]  # (1 or batch, C)
        if not isinstance(columns, str):
            if not shape or array.shape[axis] != len(names):
                raise ValueError(
                    f"`array` must have {len(names)} channels {tuple(names)} along axis {axis}, "
                    f"got shape {tuple(array.shape)}"
                )
            shape[axis] = len(names)
        if self.series is not None:
            shape[0] = len(picked)
        shaped: Float64 = picked.reshape(shape)
        return shaped

    def _column_number(self, column: str) -> int:
        if column not in self.columns:
            raise unknown_column(column, self.columns, "the scaler")
        return self.columns.index(column)

    def _series_rows(self, series_id: Any, array: Any) -> Any:
        """Return the rows of the statistics for the samples of a batch."""
        if self.series is None:
            return slice(None)
        if series_id is None:
            raise ValueError("`series_id` must be given: the scaler is per series")
        ids = np.asarray(series_id)
        if ids.dtype.kind not in "iu" or ids.shape != tuple(array.shape[:1]):
            raise ValueError(
                f"`series_id` must be integers of shape {tuple(array.shape[:1])}, got dtype "
                f"{ids.dtype} and shape {ids.shape}"
            )
        bad = (ids < 0) | (ids >= len(self.series))
        if bad.any():
            raise IndexError(f"`series_id` must be in [0, {len(self.series)}), got {ids[bad][0]}")
        self._check_fitted(ids.astype(np.int64))
        return ids

    def _check_fitted(self, rows: Int64) -> None:
        empty = rows[~self.counts[rows].any(axis=1)]
        if len(empty) and self.series is not None:
            raise ValueError(
                f"series {self.series[empty[0]]!r} had no rows among those the scaler was fitted "
                f"on ({len(np.unique(empty))} series in all), expected per_series=False for these"
            )

    def factors(
        self, columns: Sequence[str], table: Table, used: Int64
    ) -> tuple[Float64 | None, Float64 | None]:
        """Return scale and shift for `columns` of `table`, as the native gather takes them.

        Parameters
        ----------
        columns
            Names of C columns. Those that the scaler does not have are not scaled.
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
            If a series that is read is unknown, or had no rows when the scaler was fitted.
        """
        if not set(columns) & set(self.columns):
            return None, None
        rows = np.zeros(1, dtype=np.int64)
        if self.series is not None:
            rows = self._table_rows(table, used)
        scale = np.ones((len(rows), len(columns)))
        shift = np.zeros((len(rows), len(columns)))
        known = rows >= 0
        for column, name in enumerate(columns):
            if name in self.columns:
                own = self.columns.index(name)
                scale[known, column] = self.scale[rows[known], own]
                shift[known, column] = self.shift[rows[known], own]
        return (scale, shift) if self.series is not None else (scale[0], shift[0])

    def _table_rows(self, table: Table, used: Int64) -> Int64:
        """Return the row of each series of `table`; -1 for an unknown one that is not used."""
        assert self.series is not None
        known = {name: row for row, name in enumerate(self.series)}
        names = [json_name(name) for name in table.series_names]
        rows: Int64 = np.array([known.get(name, -1) for name in names], dtype=np.int64)
        missing = used[rows[used] < 0]
        if len(missing):
            raise ValueError(
                f"the scaler is per series and has no series {names[missing[0]]!r} "
                f"({len(missing)} unknown in all)"
            )
        self._check_fitted(rows[used])
        return rows

    def to_json(self) -> str:
        """Return the scaler as JSON text; `from_json` reads the numbers back exactly."""
        columns = {}
        for column, name in enumerate(self.columns):
            entries = {"count": self.counts, "weight": self.weights, **self.statistics}
            entries |= {f"{key}_error": values for key, values in self.errors.items()}
            lists = {key: values[:, column].tolist() for key, values in entries.items()}
            columns[name] = {k: v[0] for k, v in lists.items()} if self.series is None else lists
        plain = {
            "format": FORMAT,
            "kind": self.kind,
            "series": None if self.series is None else list(self.series),
            "columns": columns,
        }
        return json.dumps(plain, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Scaler:
        """Return the scaler written by `to_json`. The text is data only; no code in it runs.

        Raises
        ------
        ValueError
            If the text is not the JSON of a scaler.
        """
        return cls(**_parse(text))

    def __eq__(self, other: object) -> bool:
        """Equal names and equal numbers."""
        return isinstance(other, Scaler) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.columns, self.counts.tobytes()))

    def explain(self) -> str:
        """Return one line a column: estimates, standard errors and number of values.

        With `per_series` the range over series is shown, with the largest error.
        """
        return "\n".join(self._column_line(column) for column in range(len(self.columns)))

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
            parts.append(f"{key} {text} ± {error.max():.2g}")
        count, weight = int(self.counts[:, column].sum()), float(self.weights[:, column].sum())
        about = "" if weight <= count else f" out of about {weight:,.0f}"
        series = "" if self.series is None else f" in {int(fitted.sum())} series"
        return f"{self.columns[column]}: {', '.join(parts)}, of {count:,} values{about}{series}"

    def __repr__(self) -> str:
        lines = self.explain().split("\n")
        if len(lines) > 12:
            lines[11:] = [f"... {len(lines) - 11} more columns"]
        return "\n  ".join([self._title(), *lines])


def json_name(name: Any) -> Any:
    """Return the name of a series as JSON has it: numbers, texts and tuples, others as text."""
    if isinstance(name, tuple):
        return tuple(json_name(part) for part in name)
    if isinstance(name, np.generic) and not isinstance(name, (np.datetime64, np.timedelta64)):
        name = name.item()
    return name if name is None or isinstance(name, (str, bool, int, float)) else str(name)


def _parse(text: str | bytes) -> dict[str, Any]:
    """Return the arguments of the scaler written in `text`."""
    try:
        plain = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the scaler's JSON cannot be read: {error}") from None
    _expect(isinstance(plain, dict), "it is not an object")
    _expect(plain.get("format") == FORMAT, f"format is {plain.get('format')!r}, expected {FORMAT}")
    kind, columns, series = plain.get("kind"), plain.get("columns"), plain.get("series")
    _expect(isinstance(kind, str) and kind in KINDS, f"kind is {kind!r}")
    _expect(isinstance(columns, dict) and len(columns) > 0, "it names no columns")
    _expect(series is None or isinstance(series, list), "series is not a list")
    rows = 1 if series is None else len(series)
    names = KINDS[kind].names
    keys = ("count", "weight", *names, *(f"{name}_error" for name in names))
    arrays = {key: np.zeros((rows, len(columns))) for key in keys}
    for column, (name, entries) in enumerate(columns.items()):
        _expect(isinstance(entries, dict), f"column {name!r} is not an object")
        for key in keys:
            arrays[key][:, column] = _numbers(entries, key, name, rows, series is None)
    counts, weights = arrays.pop("count").astype(np.int64), arrays.pop("weight")
    return {
        "kind": kind,
        "columns": tuple(columns),
        "statistics": {name: arrays[name] for name in names},
        "errors": {name: arrays[f"{name}_error"] for name in names},
        "counts": counts,
        "weights": weights,
        "series": None if series is None else tuple(map(_tuples, series)),
    }


def _numbers(entries: dict[str, Any], key: str, column: str, rows: int, bare: bool) -> list[float]:
    found = [entries.get(key)] if bare else entries.get(key)
    _expect(
        isinstance(found, list) and len(found) == rows and all(map(_is_number, found)),
        f"{key} of column {column!r} is {str(found)[:60]}, expected {rows} finite numbers",
    )
    assert isinstance(found, list)
    if key in ("count", "weight"):
        _expect(all(0 <= one < 2**53 for one in found), f"{key} of column {column!r} is negative")
    return [float(one) for one in found]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e308


def _tuples(value: Any) -> Any:
    """Turn lists into tuples, also inside of them."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _expect(condition: bool, error: str) -> None:
    if not condition:
        raise ValueError(f"the scaler's JSON cannot be read: {error}")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")
