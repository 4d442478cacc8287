"""Predictions of windows as arrays of one shape: point forecasts, quantiles and samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from windeck._util.warning import warn
from windeck.windows.scaler_fitting import as_array

__all__ = ["Predictions", "predictions_of"]

#: Types that NumPy converts to floats, but which are no real numbers.
_NO_NUMBERS = bool, np.bool_, str, bytes, np.complexfloating, np.datetime64, np.timedelta64


class Predictions(NamedTuple):
    """Predictions of the columns of windows.

    Attributes
    ----------
    values : ndarray, shape (windows, horizon, columns, k)
        k is the number of levels or of samples, 1 for point forecasts.
    columns
        Names of the columns.
    levels
        Levels of quantiles, in the order of `values`; None for point forecasts and samples.
    samples
        Whether the last axis is that of samples.
    """

    values: npt.NDArray[Any]
    columns: tuple[str, ...]
    levels: tuple[float, ...] | None = None
    samples: bool = False

    def in_units(self, unscale: Callable[[npt.NDArray[Any]], Any]) -> Predictions:
        """Return the predictions after a function of arrays (windows, steps, columns)."""
        windows, horizon, columns, count = self.values.shape
        rows = np.moveaxis(self.values, 3, 2).reshape(windows, horizon * count, columns)
        found = np.asarray(unscale(rows)).reshape(windows, horizon, count, columns)
        return self._replace(values=np.moveaxis(found, 2, 3))

    def named(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of a table by name: one for each column and level, of all rows.

        The rows are window by window and step by step; those of samples also sample by sample.
        """
        found = {}
        for place, name in enumerate(self.columns):
            values = self.values[:, :, place]
            if self.levels is None:
                found[name] = np.ascontiguousarray(values).ravel()
                continue
            for number, level in enumerate(self.levels):
                found[f"{name}_q{level}"] = np.ascontiguousarray(values[..., number]).ravel()
        return found

    def warn_of_crossing(self) -> None:
        """Warn of quantiles of a lower level that are above those of a higher one.

        The warning names the caller of `Windows.prediction_table`.
        """
        if self.levels is None:
            return
        ascending = self.values[..., np.argsort(self.levels)]
        counts = (np.diff(ascending, axis=3) < 0).any(axis=3).sum(axis=(0, 1))
        if counts.any():
            windows, horizon = self.values.shape[:2]
            named = zip(self.columns, counts.tolist(), strict=True)
            warn(
                f"quantiles cross, a lower level above a higher one, in some of {windows * horizon}"
                f" predictions: {', '.join(f'{name!r} in {n}' for name, n in named if n)}; they "
                "are in the table as they are",
            )


def predictions_of(
    given: Any,
    windows: int,
    columns: Sequence[str],
    layout: str,
    quantiles: Any = None,
    samples: bool = False,
) -> Predictions:
    """Return predictions as `Windows.prediction_table` takes them.

    Raises
    ------
    KeyError, TypeError, ValueError
        A shape is not that of windows and columns, values are no real numbers, or levels are not
        between 0 and 1.
    """
    names, levels = tuple(columns), None if quantiles is None else _levels(quantiles)
    if isinstance(given, Mapping):
        _check_keys(given, names)
    if isinstance(given, Mapping) and given and all(isinstance(key, Real) for key in given):
        if quantiles is not None or samples:
            raise ValueError(
                "`predictions` is a mapping of levels, expected no `quantiles` and no `samples`"
            )
        levels = _levels(tuple(given))
        arrays = [_array(one, windows, names, layout, None) for one in given.values()]
        if len({array.shape for array in arrays}) > 1:
            raise ValueError(
                "predictions of all levels must have one shape, got "
                + " and ".join(str(array.shape[:3]) for array in arrays)
            )
        return Predictions(np.concatenate(arrays, axis=3), names, levels)
    if samples:
        values = _array(given, windows, names, layout, ("samples", None))
        if levels is None:
            return Predictions(values, names, samples=True)
        return Predictions(np.moveaxis(np.quantile(values, levels, axis=3), 0, 3), names, levels)
    last = None if levels is None else ("quantiles", len(levels))
    return Predictions(_array(given, windows, names, layout, last), names, levels)


def _check_keys(given: Mapping[Any, Any], columns: Sequence[str]) -> None:
    """Check that levels of quantiles, the keys of a mapping, are not texts of numbers."""
    for key in given:
        if isinstance(key, str) and key not in columns and _is_number(key):
            raise TypeError(
                f"`predictions` is a mapping with the key {key!r}; expected levels of quantiles as "
                f"numbers, such as {{{float(key)}: ...}}"
            )


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _levels(given: Any) -> tuple[float, ...]:
    """Return levels of quantiles, checked to be different numbers between 0 and 1.

    A level of float32 is the shortest number that rounds to it: 0.1, not 0.10000000149011612.
    """
    listed = given if isinstance(given, (list, tuple)) else np.atleast_1d(np.asarray(given))
    levels = tuple(float(str(np.asarray(level))) for level in listed)
    if not levels or not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels of quantiles must be between 0 and 1, got {levels}")
    if len(set(levels)) < len(levels):
        raise ValueError(f"levels of quantiles must be different, got {levels}")
    return levels


def _array(
    given: Any,
    windows: int,
    columns: Sequence[str],
    layout: str,
    last: tuple[str, int | None] | None,
) -> npt.NDArray[Any]:
    """Return predictions in the layout of batches as an array (windows, horizon, columns, k).

    `last` has the name and the length of the last axis; None if there is no such axis.
    """
    swapped, more = layout == "bct", last is not None
    if isinstance(given, Mapping):
        values = _of_columns(given, columns, layout, more=more)
    else:
        values = _real(given, "`predictions`")
    if values.ndim == 2 + more:
        values = np.expand_dims(values, 1 if swapped else 2)
    found = values.swapaxes(1, 2) if swapped and values.ndim == 3 + more else values
    fits = found.ndim == 3 + more and found.shape[0] == windows
    fits = fits and found.shape[2] == len(columns)
    if last is not None and last[1] is not None:
        fits = fits and found.shape[-1] == last[1]
    if fits:
        return found if more else found[..., None]
    expected = f"horizon, {len(columns)}", f"steps by columns {', '.join(columns)}"
    if swapped:
        expected = f"{len(columns)}, horizon", f"columns {', '.join(columns)} by steps"
    if last is not None:
        axis, count = last
        expected = f"{expected[0]}, {count or axis}", f"{expected[1]} by {axis}"
    raise ValueError(
        f"`predictions` must have shape ({windows}, {expected[0]}), windows by {expected[1]}, "
        f"got {values.shape}"
        + "; expected prediction_table of the windows that were predicted, or their `indices`"
        * (values.ndim > 0 and values.shape[0] != windows)
    )


def _real(values: Any, what: str) -> npt.NDArray[Any]:
    """Return values as an array, checked to be real numbers; NaN is one.

    Objects, such as those of nullable frames of pandas, become float64, and missing ones NaN.
    """
    array: npt.NDArray[Any] = as_array(values)
    if array.dtype.kind == "O":
        return _real_objects(array, what)
    if array.dtype.kind in "bcSUmM":
        raise TypeError(f"{what} must be real numbers, got {array.dtype}")
    return array


def _real_objects(array: npt.NDArray[Any], what: str) -> npt.NDArray[np.float64]:
    """Return an array of objects as float64, checked to be real numbers or missing."""
    others = [kind for kind in set(map(type, array.flat)) if issubclass(kind, _NO_NUMBERS)]
    if others:
        raise TypeError(f"{what} must be real numbers, got object with {others[0].__name__}")
    pandas = sys.modules.get("pandas")  # It is loaded where there are values of pandas.NA.
    if pandas is not None:
        array = np.where(pandas.isna(array), np.nan, array)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be real numbers, got object: {error}") from None


def _of_columns(
    predictions: Mapping[str, Any], columns: Sequence[str], layout: str, *, more: bool
) -> npt.NDArray[Any]:
    """Return the predictions of each column, as ``layout="columns"`` has them, as one array."""
    if layout != "columns":
        raise TypeError(
            f"`predictions` is a mapping of columns, expected an array as of layout={layout!r}"
        )
    if set(predictions) != set(columns):
        raise KeyError(
            f"`predictions` has the columns {', '.join(map(str, predictions))}, expected "
            f"{', '.join(columns)}"
        )
    arrays = [_real(predictions[name], f"predictions of column {name!r}") for name in columns]
    for name, array in zip(columns, arrays, strict=True):
        if array.ndim != 2 + more or array.shape != arrays[0].shape:
            raise ValueError(
                f"predictions of column {name!r} must have shape (windows, horizon"
                f"{', k' * more}), the same for all columns, got {array.shape}"
            )
    return np.stack(arrays, axis=2)
