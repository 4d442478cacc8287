"""Columns in memory: values, dtypes and validity bitmaps."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.columns import bitmaps
    from windeck.columns.columns import ColumnData
    from windeck.columns.dtypes import (
        DTYPES,
        dtype_name,
        is_bits,
        item_bytes,
        tensor_from_bits,
        torch_dtype,
    )
    from windeck.columns.elements import decode_elements
    from windeck.columns.times import parse_duration

__all__ = [
    "ColumnData",
    "DTYPES",
    "bitmaps",
    "decode_elements",
    "dtype_name",
    "is_bits",
    "item_bytes",
    "parse_duration",
    "tensor_from_bits",
    "torch_dtype",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "columns": ("ColumnData",),
        "dtypes": (
            "DTYPES",
            "dtype_name",
            "is_bits",
            "item_bytes",
            "tensor_from_bits",
            "torch_dtype",
        ),
        "elements": ("decode_elements",),
        "times": ("parse_duration",),
    },
)
