"""Which values of a tensor a page shows, as blocks of rows, and numbers as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from windeck.checkpoint.format.boxes import pieces
from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.format.numbers import numbers
from windeck.checkpoint.format.payloads import read_box
from windeck.checkpoint.stores import View

__all__ = ["block", "plain", "sample"]

#: Numbers in a line of a vector, and columns of a sampled matrix.
_LINE, _COLUMNS = 8, 12


def plain(value: Any, digits: int = 17) -> Any:
    """A number as JSON that JavaScript reads right; what it could not is text.

    Examples
    --------
    >>> plain(float("nan")), plain(2**60), plain(1 - 2j), plain(0.1 + 0.2, 9), plain(True)
    ('nan', '1152921504606846976', '1-2j', 0.3, True)
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else str(value)
    if isinstance(value, complex):
        return f"{value:.6g}"
    if not math.isfinite(value):
        return str(value)
    return float(f"{value:.{digits}g}")


def digits_of(dtype: str) -> int:
    """Digits that tell the numbers of a dtype apart."""
    return 17 if dtype == "float64" else 9 if dtype == "float32" else 6


def sample(
    view: View, namespace: str, entry: Entry, whole: int
) -> tuple[list[dict[str, Any]], bool]:
    """Blocks of values of a tensor, and whether they are all of it."""
    total = math.prod(entry.shape)
    complete = total <= whole
    if len(entry.shape) < 2:
        runs = [(0, total)] if complete else _spread(total, 64, 32)
        blocks = [_vector(view, namespace, entry, *run) for run in runs]
        return blocks, complete
    rows, columns = math.prod(entry.shape[:-1]), entry.shape[-1]
    width = columns if complete else min(columns, _COLUMNS)
    runs = [(0, rows)] if complete else _spread(rows, 8, 3)
    return [_matrix(view, namespace, entry, *run, width) for run in runs if total], complete


def _spread(size: int, first: int, others: int) -> list[tuple[int, int]]:
    """Some at the beginning, in the middle, at the end, each once."""
    if size <= first + 2 * others:
        return [(0, size)]
    middle = max(first, size // 2 - others // 2)
    end = max(middle + others, size - others)
    return [(0, first), (middle, middle + others), (end, size)]


def _vector(view: View, namespace: str, entry: Entry, start: int, stop: int) -> dict[str, Any]:
    box = ((start, stop),) if entry.shape else ()
    values = block(view, namespace, entry, box)
    lines = range(0, len(values), _LINE)
    return {
        "label": f"[{start}:{stop}]",
        "flat": True,
        "first": 0,
        "at": [[start + i] if entry.shape else [] for i in lines],
        "rows": [values[i : i + _LINE] for i in lines],
    }


def _matrix(
    view: View, namespace: str, entry: Entry, start: int, stop: int, width: int
) -> dict[str, Any]:
    """Rows [start, stop) of all that is before the last dimension, and `width` columns."""
    lead = entry.shape[:-1]
    rows: list[list[Any]] = []
    for box, _ in pieces(lead, start, stop):
        values = block(view, namespace, entry, (*box, (0, width)))
        rows += [values[i : i + width] for i in range(0, len(values), width)]
    return {
        "label": f"{_range(lead, start, stop)} × [0:{width}]",
        "flat": False,
        "first": 0,
        "at": [list(index) for index in _indices(lead, start, stop)],
        "rows": rows,
    }


def _range(lead: Sequence[int], start: int, stop: int) -> str:
    first, last = (list(i) for i in (_index(lead, start), _index(lead, stop - 1)))
    return f"rows {first} to {last}"


def _indices(lead: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, ...]]:
    return (_index(lead, place) for place in range(start, stop))


def _index(lead: Sequence[int], place: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(place, lead))


def block(view: View, namespace: str, entry: Entry, box: Any) -> list[Any]:
    """The values of a box, in row-major order, as JSON has them."""
    raw = np.ascontiguousarray(read_box(view, namespace, entry, box)).reshape(-1)
    digits = digits_of(entry.dtype)
    return [plain(value, digits) for value in numbers(entry.dtype, raw).tolist()]
