"""Names for the kinds of array that tables are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Bits: TypeAlias = npt.NDArray[np.uint8]
Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]


def check_dtype(what: str, dtype: np.dtype[Any]) -> None:
    """Refuse dtypes that are not bool, an integer or a float of the machine's own byte order."""
    known = dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8)
    if not known or not dtype.isnative:
        raise TypeError(
            f"{what} has dtype {dtype}; expected bool, an integer of 8 to 64 bits or a float of "
            "16 to 64, in the machine's byte order"
        )


def is_floating(dtype: str) -> bool:
    """Tell whether values of the dtype of this name can be NaN."""
    return "float" in dtype
