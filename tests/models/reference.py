"""A readable model of windows: loops over Python integers.

Shares no code with the library. `Case` is a table and the options of `Windows`; `windows(case)`
lists (series, start row), and `batch(case, chosen)` builds every key of a batch value by value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Window = tuple[int, int]


@dataclass
class Column:
    """Values and their validity."""

    values: Array
    valid: list[bool]
    dtype: str  # of the output
    scale: list[float] | None = None  # one for each series
    shift: list[float] | None = None


@dataclass
class Case:
    """A table and the options of `Windows`."""

    columns: dict[str, Column]
    offsets: list[int]
    context_length: int
    prediction_length: int = 0
    gap: int = 0
    stride: int = 1
    dilation: int = 1
    target: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    static: list[str] = field(default_factory=list)
    pad: bool | str = False
    fill: float = 0.0
    max_missing: float = 1.0
    max_gap: int | None = None
    stamps: list[int] | None = None
    layout: str = "btc"
    min_context_length: int | None = None
    min_prediction_length: int | None = None
    anchor: str = "start"
    min_observed_past: int | None = None
    min_observed_future: int | None = None


def past_rows(case: Case, start: int) -> list[int]:
    """Return the rows of the context."""
    return [start + j * case.dilation for j in range(case.context_length)]


def future_rows(case: Case, start: int) -> list[int]:
    """Return the rows of the future."""
    steps = range(case.context_length, case.context_length + case.prediction_length)
    return [start + j * case.dilation + case.gap for j in steps]


def rows_of(case: Case, start: int) -> list[int]:
    """Return the rows of all steps."""
    return past_rows(case, start) + future_rows(case, start)


def fitting(case: Case) -> list[Window]:
    """Return all windows before filters, by trying every possible start of every series."""
    found = []
    for series, (begin, end) in enumerate(pairwise(case.offsets)):
        reach = max(rows_of(case, 0)) + 1
        possible = [s for s in range(begin - reach, end) if fits(case, s, begin, end)]
        if possible:
            anchor = possible[0] if case.anchor == "start" else possible[-1]
            found += [(series, s) for s in possible if (s - anchor) % case.stride == 0]
    return found


def fits(case: Case, start: int, begin: int, end: int) -> bool:
    """Return True if a window lies inside its series, as far as padding requires it."""
    past, future = past_rows(case, start), future_rows(case, start)
    if case.pad == "end" and not future:
        # The first context steps have to be inside.
        past = past[: case.min_context_length or 1]
    if any(row >= end for row in past) or any(row < begin for row in future):
        return False
    if case.pad in (True, "start", "both"):
        # The last context steps have to be inside; earlier ones may lie before the series.
        past = past[-(case.min_context_length or 1) :]
    if case.pad in ("end", "both"):
        # The first future steps have to be inside, one that is not in the past at least.
        future = future[: case.min_prediction_length or least_future(case)]
    return all(begin <= row < end for row in past + future)


def least_future(case: Case) -> int:
    """Return the number of future steps up to the first one after the past."""
    last = past_rows(case, 0)[-1]
    return sum(row <= last for row in future_rows(case, 0)) + 1


def deciding_rows(case: Case, start: int) -> list[int]:
    """Return the rows that decide the part of a split: those after the past, or else the past."""
    future = future_rows(case, start)
    after = [row for row in future if row > past_rows(case, start)[-1]]
    return after or past_rows(case, start)


def is_observed(case: Case, column: str, series: int, row: int) -> bool:
    """Return True if a value is inside the series, not null and not NaN."""
    inside = case.offsets[series] <= row < case.offsets[series + 1]
    return inside and case.columns[column].valid[row]


def enough(case: Case, window: Window) -> bool:
    """Return True if the window passes the filter by missing values."""
    series, start = window
    seen = [is_observed(case, c, series, r) for c in case.target for r in rows_of(case, start)]
    return seen.count(False) / len(seen) <= case.max_missing


def observed_parts(case: Case, window: Window) -> tuple[int, int]:
    """Return the numbers of observed target values in the past and in the future."""
    series, start = window
    past, future = (
        sum(is_observed(case, c, series, row) for c in case.target for row in rows)
        for rows in (past_rows(case, start), future_rows(case, start))
    )
    return past, future


def dropped_for(case: Case, window: Window) -> str | None:
    """Return the first reason to drop a window, or None."""
    past, future = observed_parts(case, window)
    if not enough(case, window):
        return "missing"
    if past < (case.min_observed_past or 0):
        return "past"
    if future < (case.min_observed_future or 0):
        return "future"
    return None if unbroken(case, window) else "gap"


def unbroken(case: Case, window: Window) -> bool:
    """Return True if the time stamps of a window have no gap above `max_gap`.

    All rows from the first to the last are compared, those between steps too.
    """
    if case.max_gap is None:
        return True
    assert case.stamps is not None
    series, start = window
    last = min(max(rows_of(case, start)), case.offsets[series + 1] - 1)
    rows = range(max(start, case.offsets[series]), last + 1)
    return all(case.stamps[b] - case.stamps[a] <= case.max_gap for a, b in pairwise(rows))


def windows(case: Case) -> list[Window]:
    """Return all windows that pass the filters."""
    return [w for w in fitting(case) if dropped_for(case, w) is None]


def value(case: Case, name: str, series: int, row: int) -> Any:
    """Return one output value."""
    column = case.columns[name]
    if not is_observed(case, name, series, row):
        return cast(np.float64(case.fill), column.dtype)
    found = column.values[row]
    if column.scale is not None and column.shift is not None:
        found = np.float64(found) * column.scale[series] + column.shift[series]
    return cast(found, column.dtype)


def cast(found: Any, dtype: str) -> Any:
    """Convert a value to another dtype, rounded once."""
    if dtype == "bfloat16":
        return np.uint16(bfloat16(float(found)))
    with np.errstate(over="ignore"):
        return np.asarray(found).astype(dtype)[()]


def bfloat16(number: float) -> int:
    """Return the bits of the bfloat16 nearest to a number, ties to even."""
    sign = 0x8000 if math.copysign(1.0, number) < 0 else 0
    if math.isnan(number):
        return 0x7FC0
    if math.isinf(number):
        return sign | 0x7F80
    _, exponent = math.frexp(abs(number))
    unit = max(exponent - 8, -133)  # eight significant bits; subnormals end at 2**-133
    # round() goes to the even neighbour, and ldexp by a power of two is exact.
    rounded = math.ldexp(round(math.ldexp(abs(number), -unit)), unit)
    if rounded >= 2.0**128:
        return sign | 0x7F80
    bits = int(np.array(rounded, dtype=np.float32).view(np.uint32)) >> 16
    return sign | bits


def batch(case: Case, chosen: list[Window]) -> dict[str, Array]:
    """Return the batch of some windows, with all its keys."""
    result = by_column(case, chosen) if case.layout == "columns" else by_key(case, chosen)
    result["series_id"] = np.array([series for series, _ in chosen], dtype=np.int64)
    result["start"] = np.array([start for _, start in chosen], dtype=np.int64)
    return result


def by_key(case: Case, chosen: list[Window]) -> dict[str, Array]:
    """Return the keys by role, for layouts "btc" and "bct"."""
    result: dict[str, Array] = {}
    roles = [("target", case.target), ("known", case.known)]
    for role, names in roles:
        put(case, result, f"past_{role}", names, [past_rows(case, s) for _, s in chosen], chosen)
        if case.prediction_length:
            rows = [future_rows(case, s) for _, s in chosen]
            put(case, result, f"future_{role}", names, rows, chosen)
    rows = [past_rows(case, s) for _, s in chosen]
    put(case, result, "past_covariates", case.past, rows, chosen)
    rows = [[case.offsets[series]] for series, _ in chosen]
    put(case, result, "static", case.static, rows, chosen)
    for name in ("static", "static_mask"):
        if name in result:
            result[name] = result[name].reshape(len(chosen), -1)
    return result


def by_column(case: Case, chosen: list[Window]) -> dict[str, Array]:
    """Return one key for each column, for layout "columns"."""
    result: dict[str, Array] = {}
    for name in case.target + case.known:
        put(case, result, name, [name], [rows_of(case, s) for _, s in chosen], chosen)
    for name in case.past:
        put(case, result, name, [name], [past_rows(case, s) for _, s in chosen], chosen)
    for name in case.static:
        rows = [[case.offsets[series]] for series, _ in chosen]
        put(case, result, name, [name], rows, chosen)
    for key, array in result.items():
        static = key.removesuffix("_mask") in case.static
        result[key] = array.reshape((len(chosen),) if static else (len(chosen), -1))
    return result


def put(
    case: Case,
    result: dict[str, Array],
    key: str,
    names: list[str],
    rows: list[list[int]],
    chosen: list[Window],
) -> None:
    """Fill one key and its mask."""
    if not names:
        return
    shape = (len(chosen), len(rows[0]) if rows else 0, len(names))
    dtype = case.columns[names[0]].dtype
    values = np.zeros(shape, dtype="uint16" if dtype == "bfloat16" else dtype)
    mask = np.zeros(shape, dtype=bool)
    for b, (series, _) in enumerate(chosen):
        for t, row in enumerate(rows[b]):
            for c, name in enumerate(names):
                values[b, t, c] = value(case, name, series, row)
                mask[b, t, c] = is_observed(case, name, series, row)
    axes = (0, 2, 1) if case.layout == "bct" else (0, 1, 2)
    result[key] = values.transpose(axes)
    result[f"{key}_mask"] = mask.transpose(axes)
