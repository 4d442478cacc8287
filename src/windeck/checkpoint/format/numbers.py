"""Raw elements as numbers of NumPy, without torch: floats that NumPy has not become float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._core import real_values

__all__ = ["numbers", "searchable"]

_PLAIN = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64"
_PLAIN += " complex128"
_SMALL = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"


def searchable(dtype: str) -> bool:
    """Whether elements of a dtype are numbers by themselves.

    Examples
    --------
    >>> searchable("bfloat16"), searchable("quint4x2")
    (True, False)
    """
    return dtype == "complex32" or dtype in _PLAIN.split() or dtype in _SMALL.split()


def numbers(dtype: str, raw: Any) -> npt.NDArray[Any]:
    """The values of elements.

    Parameters
    ----------
    dtype
        As torch calls it.
    raw
        A contiguous buffer of little-endian elements, such as an array of void.

    Returns
    -------
    array[n]
        Of the dtype itself where NumPy has it, of complex64 for complex32, else of float64.

    Raises
    ------
    ValueError
        For a dtype that is no number, or bytes that are no whole elements.

    Examples
    --------
    >>> numbers("bfloat16", b"\\x80\\x3f\\xc0\\x7f").tolist()
    [1.0, nan]
    """
    found: npt.NDArray[Any]
    if dtype in _PLAIN.split():
        flat = np.frombuffer(raw, np.uint8)
        kind = np.dtype(dtype).newbyteorder("<")
        found = flat != 0 if dtype == "bool" else flat.view(kind).astype(dtype, copy=False)
    elif dtype == "complex32":
        found = np.frombuffer(raw, "<f2").astype(np.float32).view(np.complex64)
    else:
        found = real_values(dtype, raw)
    return found
