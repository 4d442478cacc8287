"""Reading a sample of a table's columns for a scaler: which rows, and the values found there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from windeck import _core
from windeck.sources.scaling.statistics import KINDS, Estimate, Float64
from windeck.sources.table import Table
from windeck.sources.tables.columns import ColumnData, unknown_column

Int64 = npt.NDArray[np.int64]


class WindowSet(Protocol):
    """What a scaler asks of `Windows`."""

    @property
    def table(self) -> Table:
        """The table the windows are cut from."""
        ...

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns used."""
        ...

    def covered_rows(self) -> tuple[Int64, Int64, Int64]:
        """Row ranges the windows touch: first rows, last rows + 1, series."""
        ...


Name = Any  # a series' identity: str, int, float, bool, None, or a tuple of these


@dataclass(frozen=True)
class Cell:
    """Estimates of one column of one series (or of all), and the values they rest on."""

    estimate: Estimate
    count: int
    weight: float


Cells = dict[tuple[int, int], Cell]  # by (series, column)
Named = tuple[tuple[Name, ...] | None, Cells]  # the names of the series, and their cells


def numeric(column: ColumnData) -> bool:
    """Whether a column is a quantity: a number, not a flag and not the code of a category."""
    return column.categories is None and column.dtype != "bool"


def table_of(data: Table | WindowSet) -> Table:
    """The table itself, or the one the windows are cut from."""
    if isinstance(data, Table):
        return data
    if not hasattr(data, "covered_rows"):
        raise TypeError(f"data is a {type(data).__name__}, expected a Table or Windows")
    return data.table


def chosen_columns(data: Table | WindowSet, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns named, or else every quantity among those of `data`."""
    table = table_of(data)
    if columns is None:
        names = tuple(c for c in data.column_names if numeric(table.column(c)))
        if not names:
            raise ValueError("no column holds numbers, expected at least one to fit a scaler to")
        return names
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in table.column_names:
            raise unknown_column(name, table.column_names)
        if not numeric(table.column(name)):
            kind = "a category" if table.column(name).categories is not None else "bool"
            raise TypeError(f"column {name!r} is {kind}, expected numbers to fit a scaler to")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"columns are {names}, expected at least one, and each once")
    return names


def row_ranges(data: Table | WindowSet) -> tuple[Int64, Int64, Int64]:
    """First rows, last rows + 1 and series of the stretches of rows to sample."""
    if isinstance(data, Table):
        offsets = data.offsets
        return offsets[:-1], offsets[1:], np.arange(data.num_series, dtype=np.int64)
    return data.covered_rows()


def sampled_rows(begin: Int64, end: Int64, sample: int | None, seed: int, epoch: int) -> Int64:
    """Rows out of the ranges, without replacement, ascending; all of them if `sample` allows."""
    sizes = end - begin
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    if sample is None or sample >= total:
        places = np.arange(total, dtype=np.int64)
    else:
        places = np.sort(_core.Permutation(total, seed=seed, epoch=epoch).slice(0, sample))
    which = np.searchsorted(ends, places, side="right")
    rows: Int64 = places + (end - ends)[which]
    return rows


def observed_values(column: ColumnData, rows: Int64) -> Float64:
    """The values of `rows` that are not missing, as float64.

    Raises
    ------
    ValueError
        If one of them is infinite.
    """
    rows = rows[column.observed(rows)]
    values: npt.NDArray[Any] = column.values[rows]
    if column.dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    found = values.astype(np.float64)
    if np.isinf(found).any():
        raise ValueError(
            f"column {column.name!r} holds {int(np.isinf(found).sum())} infinite values among "
            f"{len(rows)} sampled rows, expected finite ones to fit a scaler to"
        )
    return found


def fitted(
    data: Table | WindowSet,
    columns: Sequence[str],
    kind: str,
    sample: int | None,
    per_series: bool,
    seed: int,
) -> Iterator[tuple[int, int, Cell]]:
    """Estimate every (series, column) with an observed value; series is 0 for all together."""
    table = table_of(data)
    begin, end, series = row_ranges(data)
    parts = [(int(s), slice(i, i + 1)) for i, s in enumerate(series)] if per_series else []
    for number, part in parts or [(0, slice(None))]:
        total = int((end[part] - begin[part]).sum())
        rows = sampled_rows(begin[part], end[part], sample, seed, number)
        for place, name in enumerate(columns):
            found = observed_values(table.column(name), rows)
            if len(found):
                yield number, place, _cell(kind, name, found, len(rows), total)


def _cell(kind: str, name: str, found: Float64, sampled: int, total: int) -> Cell:
    """Describe values; errors of a sample without replacement are none when all rows were read."""
    with np.errstate(over="ignore", invalid="ignore"):
        estimate = KINDS[kind].describe(found)
        values = {key: np.array([one]) for key, one in estimate.value.items()}
        center, spread = KINDS[kind].center_spread(values)
    if not (np.isfinite(center).all() and np.isfinite(spread).all()):
        raise ValueError(f"column {name!r} holds values too large to fit a scaler to in float64")
    left = math.sqrt((total - sampled) / max(total - 1, 1))
    error = {key: one * left for key, one in estimate.error.items()}
    return Cell(Estimate(estimate.value, error), len(found), len(found) * (total / sampled))


def merged(kind: str, one: Named, other: Named) -> Named:
    """Both sets of cells together: series meet by name, cells by the rows they stand for."""
    merge = KINDS[kind].merge
    assert merge is not None
    alone: tuple[Name, ...] = (None,)
    names = [alone if series is None else series for series, _ in (one, other)]
    together = tuple(dict.fromkeys(names[0] + names[1]))
    rows = {name: row for row, name in enumerate(together)}
    found: Cells = {}
    for known, (_, cells) in zip(names, (one, other), strict=True):
        for (series, column), cell in cells.items():
            at = (rows[known[series]], column)
            before = found.get(at)
            if before is not None:
                estimate = merge(before.estimate, before.weight, cell.estimate, cell.weight)
                cell = Cell(estimate, before.count + cell.count, before.weight + cell.weight)
            found[at] = cell
    return (None if one[0] is None else together), found
