"""Dtypes by name, without torch: bytes of an element, binary formats, decoding to NumPy arrays.

NumPy is imported when elements are decoded: commands that list tensors need neither library.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["FLOAT_FORMATS", "ITEM_BYTES", "FloatFormat", "decode_elements", "is_numeric"]
__all__ += ["item_bytes", "magnitudes"]

_BY_BYTES = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 bits8 bits1x8 bits2x4 bits4x2 qint8 quint8 quint2x4 quint4x2 "
    "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7",
    2: "float16 bfloat16 int16 uint16 bits16",
    4: "float32 int32 uint32 complex32 qint32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
#: Bytes of an element by the name of its dtype, as in torch.
ITEM_BYTES = {name: size for size, names in _BY_BYTES.items() for name in names.split()}

_NUMPY_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
_NUMPY_NAMES += "complex64 complex128"
#: Dtypes that NumPy has, too.
_NUMPY = frozenset(_NUMPY_NAMES.split())


class FloatFormat(NamedTuple):
    """Binary format of a float dtype."""

    #: Bits of the fraction.
    digits: int
    #: Least exponent of a normal number.
    least: int
    #: Bits of the greatest finite number.
    top: int
    #: True if the bits after `top` are infinity.
    infinite: bool


#: Float dtypes except float8_e8m0fnu, whose elements are powers of two.
FLOAT_FORMATS = {
    "float64": FloatFormat(52, -1022, 0x7FEF_FFFF_FFFF_FFFF, True),
    "float32": FloatFormat(23, -126, 0x7F7F_FFFF, True),
    "float16": FloatFormat(10, -14, 0x7BFF, True),
    "bfloat16": FloatFormat(7, -126, 0x7F7F, True),
    "float8_e4m3fn": FloatFormat(3, -6, 0x7E, False),
    "float8_e4m3fnuz": FloatFormat(3, -7, 0x7F, False),
    "float8_e5m2": FloatFormat(2, -14, 0x7B, True),
    "float8_e5m2fnuz": FloatFormat(2, -15, 0x7F, False),
}


def item_bytes(dtype: str) -> int | None:
    """Return the bytes of an element, or None for an unknown dtype, as of a later torch.

    Examples
    --------
    >>> item_bytes("bfloat16"), item_bytes("float256")
    (2, None)
    """
    return ITEM_BYTES.get(dtype)


def is_numeric(dtype: str) -> bool:
    """Return True if every element of a dtype is a number.

    Examples
    --------
    >>> is_numeric("bfloat16"), is_numeric("quint4x2")
    (True, False)
    """
    return dtype in _NUMPY or dtype in FLOAT_FORMATS or dtype in ("complex32", "float8_e8m0fnu")


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
    if dtype in _NUMPY:
        flat = np.frombuffer(raw, np.uint8)
        kind = np.dtype(dtype).newbyteorder("<")
        found = flat != 0 if dtype == "bool" else flat.view(kind).astype(dtype, copy=False)
    elif dtype == "complex32":
        found = np.frombuffer(raw, "<f2").astype(np.float32).view(np.complex64)
    elif dtype == "bfloat16":
        upper = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        with np.errstate(invalid="ignore"):  # of signalling NaN
            found = upper.view(np.float32).astype(np.float64)
    else:
        found = _float8_values(dtype)[np.frombuffer(raw, np.uint8)]
    return found


@lru_cache
def _float8_values(dtype: str) -> npt.NDArray[np.float64]:
    """Return the values of all 256 elements of a float8 dtype."""
    import numpy as np

    if dtype == "float8_e8m0fnu":
        return np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)
    digits, least, top, infinite = FLOAT_FORMATS[dtype]
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
