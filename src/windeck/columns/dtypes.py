"""Dtypes: the table of all that are known, and conversion of their names.

A dtype is called by the name of its attribute in torch, which is NumPy's name where NumPy has it.
A new dtype needs an entry in `DTYPES`; one that columns and batches may have also needs an entry in
`windeck::DType` of the C++ core (``base/dtype.hpp``). NumPy and torch are imported where they are
needed: commands that only list a checkpoint do without both.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = [
    "DTYPES",
    "FLOATS",
    "Array",
    "Bits",
    "Bools",
    "DType",
    "FloatFormat",
    "Int64s",
    "check_dtype",
    "dtype_name",
    "is_bits",
    "is_floating",
    "is_nan",
    "item_bytes",
    "tensor_from_bits",
    "torch_dtype",
]

Array: TypeAlias = "npt.NDArray[Any]"
Bits: TypeAlias = "npt.NDArray[np.uint8]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"
Int64s: TypeAlias = "npt.NDArray[np.int64]"


class FloatFormat(NamedTuple):
    """Binary format of floating-point numbers with a sign bit, an exponent and a fraction."""

    #: Bits of the fraction.
    digits: int
    #: Least exponent of a normal number.
    least: int
    #: Bits of the greatest finite number.
    top: int
    #: Whether the bits after `top` are infinity.
    infinite: bool


class DType(NamedTuple):
    """Properties of a dtype."""

    #: Bytes of an element, as torch counts them.
    itemsize: int
    #: NumPy dtype with the same values; None if NumPy has none.
    numpy: str | None = None
    #: NumPy dtype of the arrays that hold it in columns and batches; None if they cannot have it.
    storage: str | None = None
    #: Binary format of a floating dtype. float8_e8m0fnu has none: its elements are powers of two.
    floating: FloatFormat | None = None


#: Properties by name.
DTYPES = {
    "float64": DType(8, "float64", "float64", FloatFormat(52, -1022, 0x7FEF_FFFF_FFFF_FFFF, True)),
    "float32": DType(4, "float32", "float32", FloatFormat(23, -126, 0x7F7F_FFFF, True)),
    "float16": DType(2, "float16", "float16", FloatFormat(10, -14, 0x7BFF, True)),
    "bfloat16": DType(2, None, "uint16", FloatFormat(7, -126, 0x7F7F, True)),
    "float8_e4m3fn": DType(1, floating=FloatFormat(3, -6, 0x7E, False)),
    "float8_e4m3fnuz": DType(1, floating=FloatFormat(3, -7, 0x7F, False)),
    "float8_e5m2": DType(1, floating=FloatFormat(2, -14, 0x7B, True)),
    "float8_e5m2fnuz": DType(1, floating=FloatFormat(2, -15, 0x7F, False)),
    "float8_e8m0fnu": DType(1),
    "bool": DType(1, "bool", "bool"),
    "int8": DType(1, "int8", "int8"),
    "int16": DType(2, "int16", "int16"),
    "int32": DType(4, "int32", "int32"),
    "int64": DType(8, "int64", "int64"),
    "uint8": DType(1, "uint8", "uint8"),
    "uint16": DType(2, "uint16", "uint16"),
    "uint32": DType(4, "uint32", "uint32"),
    "uint64": DType(8, "uint64", "uint64"),
    "complex32": DType(4),
    "complex64": DType(8, "complex64"),
    "complex128": DType(16, "complex128"),
}
# Elements that are no numbers by themselves: quantized, packed, or plain bits.
DTYPES |= {
    name: DType(itemsize)
    for itemsize, names in {
        1: "float4_e2m1fn_x2 bits8 bits1x8 bits2x4 bits4x2 qint8 quint8 quint2x4 quint4x2 "
        "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7",
        2: "bits16",
        4: "qint32",
    }.items()
    for name in names.split()
}

#: Formats of floating dtypes by name.
FLOATS = {name: known.floating for name, known in DTYPES.items() if known.floating is not None}


def item_bytes(dtype: str) -> int | None:
    """Return the bytes of an element; None for a dtype that is not in the table.

    Examples
    --------
    >>> item_bytes("bfloat16"), item_bytes("float256")
    (2, None)
    """
    return DTYPES[dtype].itemsize if dtype in DTYPES else None


def is_floating(dtype: str) -> bool:
    """Return whether values of a dtype can be NaN."""
    return dtype in FLOATS


def is_bits(dtype: str) -> bool:
    """Return whether arrays of a dtype hold its bits, because NumPy has no such dtype."""
    return dtype in DTYPES and DTYPES[dtype].numpy is None


def dtype_name(dtype: Any) -> str:
    """Return the name of a NumPy dtype, a torch dtype, or a text such as ``"f4"``.

    Raises
    ------
    TypeError
        If it is none of these.

    Examples
    --------
    >>> import numpy as np
    >>> dtype_name(np.float32), dtype_name("f4"), dtype_name("bfloat16")
    ('float32', 'float32', 'bfloat16')
    """
    text = str(dtype)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    if text in DTYPES:
        return text
    import numpy as np

    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise TypeError(f"dtype {dtype!r} is not known, expected one such as 'float32'") from None


@lru_cache
def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name.

    Raises
    ------
    ValueError
        If the installed torch does not have it.

    Examples
    --------
    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    import torch

    found = getattr(torch, name, None) if re.fullmatch(r"[a-z0-9_]+", name) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name!r}, expected one it has")
    return found


def tensor_from_bits(bits: Array, dtype: str) -> torch.Tensor:
    """Return a tensor of a dtype on the memory of an array that holds its bits."""
    import torch

    wanted = torch_dtype(dtype)
    # Signed: torch takes no unsigned 16-bit arrays before 2.3.
    return torch.from_numpy(bits.view(f"i{wanted.itemsize}")).view(wanted)


def check_dtype(what: str, dtype: np.dtype[Any]) -> None:
    """Raise a TypeError for a NumPy dtype that columns cannot have."""
    known = DTYPES.get(dtype.name)
    if known is None or known.storage is None or not dtype.isnative:
        raise TypeError(
            f"{what} has dtype {dtype}; expected bool, an integer of 8 to 64 bits or a float of "
            "16 to 64, in the machine's byte order"
        )


def is_nan(values: Array, dtype: str) -> Bools:
    """Return which elements of an array of a floating dtype, or of its bits, are NaN."""
    if not is_bits(dtype):
        import numpy as np

        return np.isnan(values)
    largest = FLOATS[dtype].top + FLOATS[dtype].infinite
    without_sign = (1 << 8 * values.itemsize - 1) - 1
    found: Bools = (values & without_sign) > largest
    return found
