"""Validation of arrays of indices and positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["INT64", "Int64", "as_indices", "as_positions", "is_integer"]

Int64 = npt.NDArray[np.int64]
#: The dtype object that arrays share.
INT64 = np.dtype(np.int64)


def as_indices(indices: Any) -> Int64:
    """Return indices, which may be negative, as a one-dimensional int64 array.

    Raises
    ------
    TypeError
        If they are not integers or have more than one dimension.
    IndexError
        If one is 2^63 or more.
    """
    if type(indices) is np.ndarray and indices.dtype is INT64 and indices.ndim == 1:
        return indices
    array = np.asarray(indices)
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(
            "`indices` must be integers of shape (batch,), got "
            f"{array.dtype} of shape {array.shape}"
        )
    return np.atleast_1d(_as_int64(array, "indices"))


def as_positions(values: Any, name: str = "positions") -> Int64:
    """Return positions as a one-dimensional int64 array.

    Raises
    ------
    TypeError
        If they are not integers.
    ValueError
        If they are not one-dimensional.
    IndexError
        If one is outside [0, 2^63).
    """
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, np.int64)
    # The usual case, by native functions alone: array.min() is one of Python.
    if array.dtype is INT64 and array.ndim == 1 and np.minimum.reduce(array) >= 0:
        return array
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be integers, got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be one-dimensional, got shape {array.shape}")
    if array.min() < 0:
        raise IndexError(f"`{name}` must be at least 0, got {array.min()}")
    return _as_int64(array, name)


def _as_int64(array: npt.NDArray[Any], name: str) -> Int64:
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise IndexError(f"`{name}` must be below 2^63, got {array.max()}")
    return array.astype(np.int64, copy=False)


def is_integer(value: Any) -> bool:
    """Return whether a value is a single integer, and not an array."""
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0
