"""Validation of sample indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def as_indices(indices: Any) -> Int64:
    """Window numbers as int64 of one dimension; a TypeError for anything that is no integer."""
    array = np.asarray(indices)
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(
            f"indices are {array.dtype} of shape {array.shape}, expected integers of shape (batch,)"
        )
    if array.dtype == np.uint64 and array.size and array.max() >= 2**63:
        raise IndexError(f"index {array.max()} is out of range, which ends below 2^63")
    return np.atleast_1d(array).astype(np.int64, copy=False)


def is_one(value: Any) -> bool:
    """Whether a value is a single integer, and not an array."""
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0
