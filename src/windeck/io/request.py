"""What a caller wants of some data: columns, ids, time, rows, dtype, categories."""

from __future__ import annotations

import numbers
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.io import conversion
from windeck.io.conversion import Names

Categories: TypeAlias = bool | str | Iterable[str] | Mapping[str, Sequence[str] | None]


@dataclass(frozen=True)
class Request:
    """What of the data is wanted. `columns` None means every column that is not id or time."""

    columns: tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    time: str | None = None
    dtype: np.dtype[Any] | None = None
    rows: tuple[int, int | None] | None = None
    categories: Mapping[str, Names] = field(default_factory=dict)
    all_categories: bool = False
    sort: bool = False

    @classmethod
    def of(
        cls,
        columns: str | Iterable[str] | None,
        ids: str | Iterable[str] | None,
        time: str | None,
        dtype: Any = None,
        rows: tuple[int, int | None] | None = None,
        categories: Categories = (),
        *,
        sort: bool = False,
    ) -> Request:
        """Take the user's arguments in all the forms they may have."""
        asked = None if columns is None else as_names("columns", columns)
        keys = as_names("id_columns", ids or ())
        every = categories is True
        named = {} if isinstance(categories, bool) else _categories(categories)
        return cls(asked, keys, time, floating(dtype), _rows(rows), named, every, sort)

    @property
    def index(self) -> tuple[str, ...]:
        """Columns that say which row it is, and are not values: ids and time."""
        return (*self.ids, *(() if self.time is None else (self.time,)))

    def values(self, schema: Any, where: str) -> tuple[str, ...]:
        """Names of the value columns; every name asked for must be in the schema, once."""
        wanted = schema.names if self.columns is None else self.columns
        names = tuple(name for name in wanted if name not in self.index)
        known = Counter(schema.names)
        for name in (*self.index, *names, *self.categories):
            if name not in known:
                raise unknown_column(name, known, where)
            if known[name] > 1:
                raise ValueError(f"{where} has {known[name]} columns named {name!r}; expected one")
        if not names:
            raise ValueError(f"no value column is left of {where}; expected at least one")
        return names

    def names_of(self, name: str, kind: Any, where: str) -> Names | None:
        """How the values of a column are named: None for numbers."""
        if not conversion.is_category(kind):
            if name in self.categories:
                raise TypeError(f"column {name!r} of {where} is {kind}; expected strings")
            return None
        if name in self.categories:
            return self.categories[name]
        if self.all_categories or pa.types.is_dictionary(kind):
            return True
        raise TypeError(
            f"column {name!r} of {where} is a string column without a category; pass "
            f"categories=[{name!r}] to read it as codes, or leave it out of columns="
        )


def as_names(what: str, names: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, none of them twice."""
    if not isinstance(names, Iterable):
        raise TypeError(f"{what} is {names!r}; expected names of columns")
    listed = (names,) if isinstance(names, str) else tuple(names)
    for place, name in enumerate(listed):
        if not isinstance(name, str):
            raise TypeError(f"{what} holds {name!r}; expected names of columns")
        if name in listed[:place]:
            raise ValueError(f"{what} names {name!r} twice; expected every column once")
    return listed


def _categories(asked: Any) -> dict[str, Names]:
    if isinstance(asked, str) or not isinstance(asked, Mapping):
        return dict.fromkeys(as_names("categories", asked), True)
    return {
        name: True if names is None else as_names(f"categories[{name!r}]", names)
        for name, names in asked.items()
    }


def floating(dtype: Any) -> np.dtype[Any] | None:
    """The floating dtype that floating columns are cast to."""
    if dtype is None:
        return None
    try:
        found = np.dtype(
            str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else dtype
        )
    except TypeError:
        found = np.dtype(np.void)
    if found.kind != "f" or found.itemsize > 8:
        raise ValueError(
            f"dtype={dtype!r} is not float16, float32 or float64; it applies to floating columns "
            "only, all others are kept as they are"
        )
    return found


def _rows(rows: Any) -> tuple[int, int | None] | None:
    if rows is None:
        return None
    try:
        start, stop = rows
        start = 0 if start is None else operator.index(start)
        stop = None if stop is None else operator.index(stop)
    except (TypeError, ValueError):
        raise TypeError(f"rows={rows!r}; expected a pair of integers (start, stop)") from None
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"rows={rows!r}; expected 0 <= start <= stop")
    return start, stop


def as_bytes(budget: Any) -> float | None:
    """A memory budget: a number of bytes."""
    if budget is None:
        return None
    if isinstance(budget, (bool, str)) or not isinstance(budget, numbers.Real):
        raise TypeError(f"memory_budget={budget!r}; expected a number of bytes, such as 8e9")
    size = float(budget)
    if not size >= 0:  # Nor NaN, below which everything would fit.
        raise ValueError(f"memory_budget={budget!r}; expected 0 bytes or more")
    return size


def is_interleaved(storage: str) -> bool:
    """Tell whether columns are to lie in one row-major matrix."""
    if storage not in ("columns", "rows"):
        raise ValueError(f"storage={storage!r}; expected 'columns' or 'rows'")
    return storage == "rows"


def row_range(request: Request, total: int) -> tuple[int, int]:
    """The range of rows asked for, which must lie within the data."""
    start, stop = request.rows or (0, total)
    stop = total if stop is None else stop
    if stop > total or start > total:
        raise ValueError(f"rows=({start}, {stop}) runs past the {total} rows there are")
    return start, stop
