"""Scalers in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from windeck._util.text import unknown_column
from windeck._util.validation import check_integer
from windeck.windows import scaler_fitting
from windeck.windows.scaler_fitting import KINDS, Cell, Cells, Estimate, Float64, Name, affine

if TYPE_CHECKING:
    from windeck.table.table import Table
    from windeck.windows.windows import Windows


def title(scaler: Scaler) -> str:
    """What kind of scaler it is."""
    series = "" if scaler.series is None else f", per_series={len(scaler.series)}"
    return f"Scaler(kind={scaler.kind!r}{series})"


def column_line(scaler: Scaler, place: int) -> str:
    """One column: its estimates, their standard errors, and on how much they rest."""
    seen = scaler.counts[:, place] > 0
    parts = []
    for key, values in scaler.statistics.items():
        value, error = values[seen, place], scaler.errors[key][seen, place]
        text = f"{value.min():.6g}"
        if scaler.series is not None:
            text += f" to {value.max():.6g}"
        parts.append(f"{key} {text} ± {error.max():.2g}")
    count, weight = int(scaler.counts[:, place].sum()), float(scaler.weights[:, place].sum())
    about = "" if weight <= count else f" out of about {weight:,.0f}"
    over = "" if scaler.series is None else f" in {int(seen.sum())} series"
    name = scaler.columns[place]
    return f"{name}: {', '.join(parts)}, of {count:,} values{about}{over}"


FORMAT = 1


def plain_name(name: Any) -> Any:
    """A series' name as JSON can hold it: numbers, texts and tuples as they are, others as text."""
    if isinstance(name, tuple):
        return tuple(plain_name(part) for part in name)
    if isinstance(name, np.generic) and not isinstance(name, (np.datetime64, np.timedelta64)):
        name = name.item()
    return name if name is None or isinstance(name, (str, bool, int, float)) else str(name)


def to_plain(scaler: Scaler) -> dict[str, Any]:
    """A scaler as dicts, lists, texts and numbers."""
    columns = {}
    for place, name in enumerate(scaler.columns):
        entries = {"count": scaler.counts, "weight": scaler.weights, **scaler.statistics}
        entries |= {f"{key}_error": values for key, values in scaler.errors.items()}
        lists = {key: values[:, place].tolist() for key, values in entries.items()}
        columns[name] = {k: v[0] for k, v in lists.items()} if scaler.series is None else lists
    return {
        "format": FORMAT,
        "kind": scaler.kind,
        "series": None if scaler.series is None else list(scaler.series),
        "columns": columns,
    }


def from_text(text: str | bytes) -> dict[str, Any]:
    """The arguments of the scaler written in `text`.

    Raises
    ------
    ValueError
        Naming what is wrong with it.
    """
    try:
        plain = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the scaler's JSON cannot be read: {error}") from None
    _expect(isinstance(plain, dict), "it is no object")
    _expect(plain.get("format") == FORMAT, f"format is {plain.get('format')!r}, expected {FORMAT}")
    kind, columns, series = plain.get("kind"), plain.get("columns"), plain.get("series")
    _expect(isinstance(kind, str) and kind in KINDS, f"kind is {kind!r}")
    _expect(isinstance(columns, dict) and len(columns) > 0, "it names no columns")
    _expect(series is None or isinstance(series, list), "series is no list")
    rows = 1 if series is None else len(series)
    names = KINDS[kind].names
    keys = ("count", "weight", *names, *(f"{name}_error" for name in names))
    arrays = {key: np.zeros((rows, len(columns))) for key in keys}
    for place, (name, entries) in enumerate(columns.items()):
        _expect(isinstance(entries, dict), f"column {name!r} is no object")
        for key in keys:
            arrays[key][:, place] = _numbers(entries, key, name, rows, series is None)
    counts, weights = arrays.pop("count").astype(np.int64), arrays.pop("weight")
    return {
        "kind": kind,
        "columns": tuple(columns),
        "statistics": {name: arrays[name] for name in names},
        "errors": {name: arrays[f"{name}_error"] for name in names},
        "counts": counts,
        "weights": weights,
        "series": None if series is None else tuple(map(_name, series)),
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


def _name(value: Any) -> Any:
    return tuple(map(_name, value)) if isinstance(value, list) else value


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"the scaler's JSON cannot be read: {otherwise}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}")


Kind = Literal["standard", "minmax", "robust", "mean_abs"]


@dataclass(frozen=True, eq=False, repr=False)
class Scaler:
    """An affine scaling of columns: ``scaled = value * scale + shift``.

    Made by `Scaler.fit`, `Scaler.from_json` or `merge`, never changed afterwards. Arrays have shape
    (S, C): C columns, and S series, or S = 1 where all series share one scaling.

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
        int64: observed values the estimates rest on; 0 where there was none (scaled by 1).
    weights
        float64: the observed values they stand for, estimated when rows were sampled.
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
    series: tuple[Name, ...] | None = None

    def __post_init__(self) -> None:
        for array in (*self.statistics.values(), *self.errors.values(), self.counts, self.weights):
            array.setflags(write=False)

    @classmethod
    def fit(
        cls,
        data: Table | Windows,
        *,
        kind: Kind = "standard",
        columns: str | Sequence[str] | None = None,
        sample: int | None = 100_000,
        per_series: bool = False,
        seed: int = 0,
    ) -> Scaler:
        """Estimate the scaling of columns from a sample of rows.

        Parameters
        ----------
        data
            A table, or windows: then only rows that these windows touch are read, so that
            ``Scaler.fit(w.split().train)`` learns nothing of validation and test.
        kind
            See the class.
        columns
            Columns to scale. Default: every column of numbers; neither flags nor categories.
        sample
            Rows to read, drawn without replacement (of each series, with `per_series`);
            None reads all.
        per_series
            Whether each series gets its own scaling.
        seed
            Of the sample.

        Raises
        ------
        KeyError, TypeError
            A column that does not exist, or holds no numbers.
        ValueError
            A column with infinite values, or with no observed value at all.

        Notes
        -----
        O(sample) time and memory. Standard errors are those of the sample: 0 where all rows were
        read. Errors of quantiles are Woodruff's, those of min and max the jackknife's (a hint only:
        extremes of a sample are always too mild).
        """
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
        if sample is not None:
            sample = check_integer("sample", sample, least=2)
        names = scaler_fitting.chosen_columns(data, columns)
        found = {
            (row, place): cell
            for row, place, cell in scaler_fitting.fitted(
                data, names, kind, sample, per_series, seed
            )
        }
        for place, name in enumerate(names):
            if not any(at == place for _, at in found):
                raise ValueError(
                    f"column {name!r} has no observed value in the rows read to fit it"
                )
        series = (
            tuple(map(plain_name, scaler_fitting.table_of(data).series_names))
            if per_series
            else None
        )
        return cls._of(kind, names, series, found)

    @classmethod
    def _of(
        cls, kind: str, columns: tuple[str, ...], series: tuple[Name, ...] | None, cells: Cells
    ) -> Scaler:
        shape = (1 if series is None else len(series), len(columns))
        names = KINDS[kind].names
        statistics = {name: np.zeros(shape) for name in names}
        errors = {name: np.zeros(shape) for name in names}
        counts, weights = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        for at, cell in cells.items():
            counts[at], weights[at] = cell.count, cell.weight
            for name in names:
                statistics[name][at] = cell.estimate.value[name]
                errors[name][at] = cell.estimate.error[name]
        return cls(kind, columns, statistics, errors, counts, weights, series)

    def _cells(self) -> Cells:
        """The estimates one by one, without those that rest on nothing."""
        return {
            (s, c): Cell(
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
        """The scaler of both samples together, each weighted by the rows it stands for.

        Exact but for rounding: the parts of a table give the scaler of the table.

        Raises
        ------
        ValueError
            Other columns or another kind; kind "robust", since the medians of two parts do not
            give the median of the whole.
        """
        if KINDS[self.kind].merge is None:
            raise ValueError(f"scalers of kind {self.kind!r} do not merge: fit one on all the data")
        mine = (self.kind, self.columns, self.series is None)
        if mine != (other.kind, other.columns, other.series is None):
            raise ValueError(f"cannot merge {title(self)} with {title(other)}: they differ")
        series, cells = scaler_fitting.merged(
            self.kind, (self.series, self._cells()), (other.series, other._cells())
        )
        return self._of(self.kind, self.columns, series, cells)

    @property
    def center(self) -> Float64:
        """What is subtracted, float64 of shape (S, C)."""
        return KINDS[self.kind].center_spread(self.statistics)[0]

    @property
    def spread(self) -> Float64:
        """What is divided by, float64 of shape (S, C): 1 for a column of equal values."""
        spread = KINDS[self.kind].center_spread(self.statistics)[1]
        # A spread so small that its inverse overflows is as good as none.
        usable: Float64 = np.where(spread >= np.finfo(np.float64).tiny, spread, 1.0)
        return usable

    @property
    def scale(self) -> Float64:
        """float64 of shape (S, C)."""
        return 1.0 / self.spread

    @property
    def shift(self) -> Float64:
        """float64 of shape (S, C)."""
        return -self.center * self.scale

    def transform(
        self,
        array: Any,
        *,
        columns: str | Sequence[str] | None = None,
        series_id: Any = None,
        axis: int = -1,
    ) -> Any:
        """Scale values, as windows with this scaler do.

        Parameters
        ----------
        array
            ndarray or tensor of shape (batch, ..., C).
        columns
            The names of the C channels; default: all of `self.columns`. One text: `array` has no
            axis of channels.
        series_id
            Shape (batch,): series numbers in the table fitted on. Needed with `per_series`.
        axis
            The axis of channels.

        Returns
        -------
        ndarray or tensor of the same shape; 16-bit floats and integers become float32 and float64.
        """
        scale = self._shaped(self.scale, array, columns, series_id, axis)
        shift = self._shaped(self.shift, array, columns, series_id, axis)
        return affine(array, scale, shift)

    def inverse_transform(
        self,
        array: Any,
        *,
        columns: str | Sequence[str] | None = None,
        series_id: Any = None,
        axis: int = -1,
    ) -> Any:
        """Bring scaled values, such as forecasts, back to their own units: see `transform`.

        Differentiable where `array` is.
        """
        spread = self._shaped(self.spread, array, columns, series_id, axis)
        center = self._shaped(self.center, array, columns, series_id, axis)
        return affine(array, spread, center)

    def _shaped(
        self, values: Float64, array: Any, columns: Any, series_id: Any, axis: int
    ) -> Float64:
        """`values` of some columns and series, in a shape that broadcasts to `array`."""
        shape = [1] * len(array.shape)
        names = (columns,) if isinstance(columns, str) else columns or self.columns
        picked = values[:, [self._place(name) for name in names]]
        picked = picked[self._rows(series_id, array)]  # (1 or batch, C)
        if not isinstance(columns, str):
            if not shape or array.shape[axis] != len(names):
                raise ValueError(
                    f"array has shape {tuple(array.shape)}, expected {len(names)} channels "
                    f"{tuple(names)} along axis {axis}"
                )
            shape[axis] = len(names)
        if self.series is not None:
            shape[0] = len(picked)
        shaped: Float64 = picked.reshape(shape)
        return shaped

    def _place(self, column: str) -> int:
        if column not in self.columns:
            raise unknown_column(column, self.columns, "the scaler")
        return self.columns.index(column)

    def _rows(self, series_id: Any, array: Any) -> Any:
        """Rows of our arrays for the samples of a batch."""
        if self.series is None:
            return slice(None)
        if series_id is None:
            raise ValueError("the scaler is per series, expected series_id for the samples")
        ids = np.asarray(series_id)
        if ids.dtype.kind not in "iu" or ids.shape != tuple(array.shape[:1]):
            raise ValueError(
                f"series_id has dtype {ids.dtype} and shape {ids.shape}, expected integers of "
                f"shape {tuple(array.shape[:1])}"
            )
        bad = (ids < 0) | (ids >= len(self.series))
        if bad.any():
            raise IndexError(f"series_id {ids[bad][0]} is not among {len(self.series)} series")
        self._check_seen(ids.astype(np.int64))
        return ids

    def _check_seen(self, rows: npt.NDArray[np.int64]) -> None:
        unseen = rows[~self.counts[rows].any(axis=1)]
        if len(unseen) and self.series is not None:
            raise ValueError(
                f"series {self.series[unseen[0]]!r} had no rows among those the scaler was fitted "
                f"on ({len(np.unique(unseen))} series in all), expected per_series=False for these"
            )

    def factors(
        self, columns: Sequence[str], table: Table, used: npt.NDArray[np.int64]
    ) -> tuple[Float64 | None, Float64 | None]:
        """Scale and shift for `columns` of `table`, as the native gather takes them.

        Parameters
        ----------
        columns
            Those the scaler does not know stay as they are.
        table
            Its series are matched by name.
        used
            Numbers of the series that are read.

        Returns
        -------
        (None, None) if no column is scaled; else two float64 arrays of shape (C,), or of shape
        (number of series in `table`, C) with `per_series`.
        """
        if not set(columns) & set(self.columns):
            return None, None
        rows = np.zeros(1, dtype=np.int64)
        if self.series is not None:
            rows = self._rows_of(table, used)
        scale = np.ones((len(rows), len(columns)))
        shift = np.zeros((len(rows), len(columns)))
        known = rows >= 0
        for place, name in enumerate(columns):
            if name in self.columns:
                mine = self.columns.index(name)
                scale[known, place] = self.scale[rows[known], mine]
                shift[known, place] = self.shift[rows[known], mine]
        return (scale, shift) if self.series is not None else (scale[0], shift[0])

    def _rows_of(self, table: Table, used: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Our row for each series of `table`; -1 for one we do not know and nobody reads."""
        assert self.series is not None
        mine = {name: row for row, name in enumerate(self.series)}
        names = [plain_name(name) for name in table.series_names]
        rows: npt.NDArray[np.int64] = np.array([mine.get(n, -1) for n in names], dtype=np.int64)
        missing = used[rows[used] < 0]
        if len(missing):
            raise ValueError(
                f"the scaler is per series and does not know series {names[missing[0]]!r} "
                f"({len(missing)} unknown in all)"
            )
        self._check_seen(rows[used])
        return rows

    def to_json(self) -> str:
        """The scaler as JSON text; numbers come back exactly."""
        return json.dumps(to_plain(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Scaler:
        """The scaler written by `to_json`. Nothing in the text is run.

        Raises
        ------
        ValueError
            If the text is no scaler's JSON.
        """
        return cls(**from_text(text))

    def __eq__(self, other: object) -> bool:
        """Equal names and equal numbers."""
        return isinstance(other, Scaler) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.columns, self.counts.tobytes()))

    def explain(self) -> str:
        """One line a column: every estimate with its standard error, and on how much it rests.

        With `per_series` the range over series is shown, with the largest error.
        """
        return "\n".join(column_line(self, place) for place in range(len(self.columns)))

    def __repr__(self) -> str:
        lines = self.explain().split("\n")
        if len(lines) > 12:
            lines[11:] = [f"... {len(lines) - 11} more columns"]
        return "\n  ".join([title(self), *lines])
