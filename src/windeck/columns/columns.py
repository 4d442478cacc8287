"""Columns of tables: values, validity bitmaps and categories."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck.columns import bitmaps
from windeck.columns.calendar import CalendarFeature, DateFeature
from windeck.columns.dtypes import (
    DTYPES,
    Array,
    Bits,
    Bools,
    Int64s,
    check_dtype,
    dtype_name,
    is_bits,
    is_floating,
    is_nan,
    tensor_from_bits,
)

ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class ColumnData:
    """One column, read-only.

    Attributes
    ----------
    name : str
    values : ndarray, shape (rows,)
        Any byte stride. Values of null rows are undefined; see `validity`.
    validity : uint8 ndarray or None
        Arrow bitmap, least significant bit first; bit ``validity_offset + r`` is 1 where row r has
        a value. None: no row is null. In a floating column NaN is missing as well.
    validity_offset : int
    categories : tuple of str or None
        Names of the codes in `values` (int32).
    missing : int or None
        Number of rows that are null or NaN; None if they have not been counted.
    dtype : str
        ``values.dtype.name``, or ``"bfloat16"`` if `values` (uint16) holds bfloat16 bits.
    time_zone : str or None
        The time zone of timestamps, whose values are in UTC then.
    calendar : CalendarFeature, DateFeature or None
        The calendar feature that the column holds.
    """

    name: str
    values: Array
    validity: Bits | None = None
    validity_offset: int = 0
    categories: tuple[str, ...] | None = None
    missing: int | None = None
    dtype: str = ""
    time_zone: str | None = None
    calendar: CalendarFeature | DateFeature | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", read_only(self.values))
        object.__setattr__(self, "dtype", self.dtype or self.values.dtype.name)
        if self.validity is not None:
            object.__setattr__(self, "validity", read_only(self.validity))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of the validity bitmap."""
        return self.values.nbytes + (0 if self.validity is None else self.validity.nbytes)

    def observed(self, rows: slice | Int64s = slice(None)) -> Bools:
        """Return which rows have a value: neither null nor NaN. O(rows) time."""
        picked = self.values[rows]
        known = self._valid(rows)
        if is_floating(self.dtype):
            known &= ~is_nan(picked, self.dtype)
        return known

    def _valid(self, rows: slice | Int64s) -> Bools:
        first = self.validity_offset
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self.values))
            if self.validity is None:
                return np.ones(len(range(start, stop, step)), dtype=np.bool_)
            if step == 1:
                return bitmaps.unpack(self.validity, first + start, first + max(start, stop))
            rows = np.arange(start, stop, step, dtype=np.int64)
        if self.validity is None:
            return np.ones(len(rows), dtype=np.bool_)
        places = np.where(rows < 0, rows + len(self.values), rows) + first
        return bitmaps.take(self.validity, places)


def read_only(array: Array) -> Array:
    """Return a read-only array as it is, and a view of any other one."""
    if not array.flags.writeable:
        return array
    view: Array = array.view()
    view.flags.writeable = False
    return view


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array that is aligned to 64 bytes."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.__array_interface__["data"][0] % ALIGNMENT  # `raw.ctypes` is slower.
    return raw[start : start + size].view(dtype).reshape(shape)


def from_array(name: str, data: Any) -> ColumnData:
    """Wrap a one-dimensional array or CPU tensor as a column, without a copy.

    Raises
    ------
    TypeError
        If it is not an array or tensor, or of an unsupported dtype (strings, objects, complex,
        dates, foreign byte order).
    ValueError
        If it is not one-dimensional, or a tensor that is not in CPU memory.
    """
    array, dtype = as_array(f"column {name!r}", data)
    if array.ndim != 1:
        raise ValueError(f"column {name!r} has shape {array.shape}; expected one dimension")
    return ColumnData(name, array, missing=None if is_floating(dtype) else 0, dtype=dtype)


def as_array(what: str, data: Any) -> tuple[Array, str]:
    """Return `data` as a NumPy array without a copy, and the name of its dtype.

    bfloat16 tensors, for which NumPy has no dtype, become uint16 arrays of their bits.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _as_array_from_tensor(what, data, torch)
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array; expected a plain one, missing values as NaN")
    if not isinstance(data, np.ndarray):
        raise TypeError(
            f"{what} is a {type(data).__name__}; expected a NumPy array or a CPU tensor, "
            "which are taken without a copy"
        )
    check_dtype(what, data.dtype)
    return data, data.dtype.name


def _as_array_from_tensor(what: str, tensor: Any, torch: Any) -> tuple[Array, str]:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"{what} is a tensor on {tensor.device} of layout {tensor.layout}; "
            "expected a dense one in CPU memory"
        )
    name = dtype_name(tensor.dtype)
    storage = DTYPES[name].storage if is_bits(name) else None
    if storage is not None:
        signed = getattr(torch, f"int{8 * tensor.dtype.itemsize}")
        return tensor.detach().view(signed).numpy().view(storage), name
    array: Array = tensor.detach().numpy()
    check_dtype(what, array.dtype)
    return array, array.dtype.name


def as_tensor(column: ColumnData, torch: Any) -> Any:
    """Return the values of a column as a tensor on the same memory."""
    if column.values.strides[0] < 0:
        raise ValueError(
            f"column {column.name!r} runs backwards through its memory, which tensors cannot; "
            "expected a copy of it in the table"
        )
    if is_bits(column.dtype):
        return tensor_from_bits(column.values, column.dtype)
    return torch.from_numpy(column.values)
