"""Bytes of an element of each dtype, by name and without torch, whose import takes seconds."""

from __future__ import annotations

__all__ = ["ITEM_BYTES", "item_bytes"]

_BY_BYTES = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
    "float4_e2m1fn_x2 bits8 bits1x8 bits2x4 bits4x2 qint8 quint8 quint2x4 quint4x2 "
    "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7",
    2: "float16 bfloat16 int16 uint16 bits16",
    4: "float32 int32 uint32 complex32 qint32",
    8: "float64 int64 uint64 complex64",
    16: "complex128",
}
#: What a dtype's name is -> bytes of an element, as torch counts them.
ITEM_BYTES = {name: size for size, names in _BY_BYTES.items() for name in names.split()}


def item_bytes(dtype: str) -> int | None:
    """Bytes of an element; None for a dtype of a later torch, which this windeck does not know.

    Examples
    --------
    >>> item_bytes("bfloat16"), item_bytes("float256")
    (2, None)
    """
    return ITEM_BYTES.get(dtype)
