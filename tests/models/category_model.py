"""A readable model of categories: values and codes one at a time, in Python. No code is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from models import reference as ref


def fit(values: Iterable[Any], min_count: int = 1, most: int | None = None) -> list[Any]:
    """Return the values that have the codes 1, 2, ...; None is missing."""
    counts = Counter(value for value in values if value is not None)
    frequent = [value for value in sorted(counts) if counts[value] >= min_count]
    if most is not None:
        frequent = sorted(frequent, key=lambda value: (-counts[value], value))[:most]
    return sorted(frequent)


def code(value: Any, fitted: Sequence[Any]) -> int:
    return fitted.index(value) + 1 if value is not None and value in fitted else 0


def rows_read(case: ref.Case, windows: Iterable[ref.Window]) -> list[int]:
    """Return the rows of the steps of windows inside their series, each once."""
    return sorted(
        {
            row
            for series, start in windows
            for row in ref.rows_of(case, start)
            if case.offsets[series] <= row < case.offsets[series + 1]
        }
    )


def first_rows(case: ref.Case, windows: Iterable[ref.Window]) -> list[int]:
    """Return the first rows of the series of windows."""
    return sorted({case.offsets[series] for series, _ in windows})


def codes_at(
    case: ref.Case, values: Sequence[Any], fitted: Sequence[Any], series: int, rows: Iterable[int]
) -> list[tuple[int, bool]]:
    """Return code and mask of a column in rows, some of them outside of the series."""
    found = []
    for row in rows:
        inside = case.offsets[series] <= row < case.offsets[series + 1]
        value = values[row] if inside else None
        found.append((code(value, fitted), value is not None))
    return found
