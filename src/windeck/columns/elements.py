"""Decoding of raw elements of tensors to NumPy arrays, without torch.

NumPy is imported when elements are decoded: commands that list tensors need neither library.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from windeck.columns.dtypes import DTYPES, FLOATS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["decode_elements", "is_numeric", "magnitudes"]


def is_numeric(dtype: str) -> bool:
    """Return True if every element of a dtype is a number.

    Examples
    --------
    >>> is_numeric("bfloat16"), is_numeric("quint4x2")
    (True, False)
    """
    known = DTYPES.get(dtype)
    in_numpy = known is not None and known.numpy is not None
    return in_numpy or dtype in FLOATS or dtype in ("complex32", "float8_e8m0fnu")


def decode_elements(dtype: str, raw: Any) -> npt.NDArray[Any]:
    """Return the values of elements.

    Parameters
    ----------
    dtype
        Name of the dtype in torch.
    raw
        A contiguous buffer of little-endian elements, such as an array of void.

    Returns
    -------
    array[n]
        With the same dtype if NumPy has it, with complex64 for complex32, otherwise with float64.

    Raises
    ------
    ValueError
        For a dtype that is not numeric, or an incomplete element.

    Examples
    --------
    >>> decode_elements("bfloat16", b"\\x80\\x3f\\xc0\\x7f").tolist()
    [1.0, nan]
    """
    import numpy as np

    found: npt.NDArray[Any]
    if not is_numeric(dtype):
        raise ValueError(f"dtype is {dtype!r}, expected a number")
    if DTYPES[dtype].numpy is not None:
        flat = np.frombuffer(raw, np.uint8)
        kind = np.dtype(dtype).newbyteorder("<")
        found = flat != 0 if dtype == "bool" else flat.view(kind).astype(dtype, copy=False)
    elif dtype == "complex32":
        found = np.frombuffer(raw, "<f2").astype(np.float32).view(np.complex64)
    elif dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # of signalling NaN
            # The bits of a bfloat16 are the upper half of those of a float32.
            wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
            found = wide.view(np.float32).astype(np.float64)
    else:
        found = _float8_values(dtype)[np.frombuffer(raw, np.uint8)]
    return found


@lru_cache
def _float8_values(dtype: str) -> npt.NDArray[np.float64]:
    """Return the values of all 256 elements of a float8 dtype."""
    import numpy as np

    if dtype == "float8_e8m0fnu":
        return np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)
    digits, least, top, infinite = FLOATS[dtype]
    bits = np.arange(128)
    exponent = np.maximum(bits >> digits, 1)
    values = np.ldexp(bits - (exponent - 1.0) * 2**digits, exponent - 1 + least - digits)
    values[top + 1 :] = np.nan
    if infinite:
        values[top + 1] = np.inf
    negative = -values
    if dtype.endswith("fnuz"):
        negative[0] = np.nan
    return np.concatenate([values, negative])


def magnitudes(values: npt.NDArray[Any], center: complex = 0) -> npt.NDArray[np.float64]:
    """Return the distances of complex numbers from a finite center; NaN if a part is NaN."""
    import numpy as np

    double = values.dtype == np.complex128
    with np.errstate(all="ignore"):
        real = values.real.astype(np.float64) - center.real
        imaginary = values.imag.astype(np.float64) - center.imag
        # Squares of float32 neither overflow nor vanish in float64.
        found: npt.NDArray[np.float64]
        found = np.hypot(real, imaginary) if double else np.sqrt(real * real + imaginary**2)
    found[np.isnan(real) | np.isnan(imaginary)] = np.nan
    return found
