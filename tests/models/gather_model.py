"""A readable model of the native gather, which computes one value at a time.

It shares no code with the core. Rounding to bfloat16 and to integers is done with exact integers
and fractions; everything else by NumPy scalars.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ModelColumn:
    """A column as Python values: ``dtype`` is a NumPy name or ``"bfloat16"`` (uint16 bits)."""

    values: np.ndarray[Any, Any]
    dtype: str
    valid: np.ndarray[Any, Any] | None = None
    nan_is_missing: bool = True


@dataclass(frozen=True)
class ModelField:
    columns: list[ModelColumn]
    step_spans: list[tuple[int, int]]
    dtype: str
    layout: str = "btc"
    dilation: int = 1
    mask: bool = False
    fill: float = 0.0
    scale: np.ndarray[Any, Any] | None = None
    shift: np.ndarray[Any, Any] | None = None
    anchor: str = "window"
    fill_nan: bool = False


FLOATS = ("float64", "float32", "float16", "bfloat16")


class DoesNotFit(Exception):
    """An integer type cannot hold a value."""


def bfloat16_to_float(bits: int) -> float:
    return float(np.array([int(bits) << 16], dtype=np.uint32).view(np.float32)[0])


def float_to_bfloat16(value: float | int) -> int:
    """Round to the nearest bfloat16, ties to even, comparing neighbours as exact fractions."""
    sign = 0x8000 if (np.signbit(value) if isinstance(value, float) else value < 0) else 0
    if isinstance(value, float) and np.isnan(value):
        return sign | 0x7FC0
    size = abs(value)
    if size == float("inf"):
        return sign | 0x7F80
    low, high = 0, 0x7F80  # the largest bits whose value is <= size
    while high - low > 1:
        middle = (low + high) // 2
        if bfloat16_to_float(middle) <= size:
            low = middle
        else:
            high = middle
    below = Fraction(bfloat16_to_float(low))
    above = Fraction(2) ** 128 if low + 1 == 0x7F80 else Fraction(bfloat16_to_float(low + 1))
    distance = (Fraction(size) - below) - (above - Fraction(size))
    up = distance > 0 or (distance == 0 and low % 2 == 1)
    return sign | (low + 1 if up else low)


def integer_to_float(value: int, dtype: str) -> Any:
    """Convert an integer to float64, float32 or float16, rounded once."""
    if dtype == "float16":
        return np.float16(max(-65536, min(65536, value)))  # exact, or infinite
    near = np.dtype(dtype).type(value)  # perhaps rounded twice: one off at most
    down, up = (np.nextafter(near, near.dtype.type(to)) for to in (-np.inf, np.inf))

    def rank(candidate: Any) -> tuple[Fraction, int]:
        bits = int(np.asarray(candidate).view(f"u{candidate.itemsize}"))
        return abs(Fraction(float(candidate)) - value), bits % 2

    return min((down, near, up), key=rank)


def to_python(value: Any, dtype: str) -> float | int:
    """Return the exact value: a float for floating types, an int otherwise."""
    if dtype == "bfloat16":
        return bfloat16_to_float(int(value))
    return float(value) if dtype in FLOATS else int(value)


def limits(dtype: str) -> tuple[int, int]:
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def convert(value: float | int, dtype: str) -> Any:
    """Convert a value to the field's type."""
    if dtype == "bfloat16":
        return float_to_bfloat16(value)
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            if isinstance(value, int):
                return integer_to_float(value, dtype)
            return np.float64(value).astype(dtype)
    if isinstance(value, float):
        if not np.isfinite(value):
            raise DoesNotFit
        value = int(np.rint(value))
    low, high = limits(dtype)
    if not low <= value <= high:
        raise DoesNotFit
    return np.dtype(dtype).type(value)


def storage(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def step_rows(model: ModelField, start: int, first_row: int) -> list[int]:
    anchor = start if model.anchor == "window" else first_row
    return [
        anchor + offset + j * model.dilation
        for offset, length in model.step_spans
        for j in range(length)
    ]


def coefficient(array: np.ndarray[Any, Any] | None, series: int, c: int) -> float | None:
    if array is None:
        return None
    return float(array[c] if array.ndim == 1 else array[series, c])


def present_value(column: ModelColumn, row: int, masked: bool) -> Any:
    """Return the value at a row, or None if it is missing."""
    if column.valid is not None and not column.valid[row]:
        return None
    value = column.values[row]
    is_nan = column.dtype in FLOATS and np.isnan(to_python(value, column.dtype))
    if masked and column.nan_is_missing and is_nan:
        return None
    return value


def cell(model: ModelField, column: ModelColumn, row: int, s: float | None, t: float | None) -> Any:
    """Return the value written for a row that is present."""
    value = column.values[row]
    if s is None and t is None:
        if column.dtype == model.dtype:
            return value
        return convert(to_python(value, column.dtype), model.dtype)
    scaled = np.float64(to_python(value, column.dtype))
    with np.errstate(all="ignore"):
        if s is not None:
            scaled = scaled * np.float64(s)
        if t is not None:
            scaled = scaled + np.float64(t)
    return convert(float(scaled), model.dtype)


def gather_field(
    model: ModelField, series: list[int], starts: list[int], bounds: list[int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the values and the mask of one field, in the field's layout."""
    steps = sum(length for _, length in model.step_spans)
    shape = (len(series), steps, len(model.columns))
    values = np.full(shape, convert(float(model.fill), model.dtype), dtype=storage(model.dtype))
    mask = np.zeros(shape, dtype=bool)
    for b, (which, start) in enumerate(zip(series, starts, strict=True)):
        low, high = bounds[which], bounds[which + 1]
        for t, row in enumerate(step_rows(model, start, low)):
            if not low <= row < high:
                continue
            for c, column in enumerate(model.columns):
                if present_value(column, row, model.mask or model.fill_nan) is None:
                    continue
                scale = coefficient(model.scale, which, c)
                shift = coefficient(model.shift, which, c)
                values[b, t, c] = cell(model, column, row, scale, shift)
                mask[b, t, c] = True
    if model.layout == "bct":
        return values.swapaxes(1, 2), mask.swapaxes(1, 2)
    if model.layout == "bt":
        return values[:, :, 0], mask[:, :, 0]
    if model.layout == "bc":
        return values[:, 0, :], mask[:, 0, :]
    if model.layout == "b":
        return values[:, 0, 0], mask[:, 0, 0]
    return values, mask
