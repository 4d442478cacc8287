"""Options of reading: columns, ids, time, rows, dtype and categories."""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from windeck._util.text import unknown_column
from windeck._util.validation import check_bytes
from windeck.columns.times import check_zone
from windeck.io import conversion
from windeck.io.committed import folders_hint
from windeck.io.conversion import CategoryNames
from windeck.io.csv_options import CsvOptions

#: The name of a level of an index of pandas without a name; in CSV it is empty.
_UNNAMED = re.compile(r"(__index_level_\d+__)?")
#: Metadata of a schema whose column without a name is an index of pandas.
INDEX_METADATA = {"pandas": json.dumps({"index_columns": [""]})}

Categories: TypeAlias = bool | str | Iterable[str] | Mapping[str, Sequence[str] | None]


@dataclass(frozen=True)
class ReadOptions:
    """Validated options of reading. `columns` is None for all columns but ids and time."""

    columns: tuple[str, ...] | None = None
    ids: tuple[str, ...] = ()
    time: str | None = None
    dtype: np.dtype[Any] | None = None
    rows: tuple[int, int | None] | None = None
    categories: Mapping[str, CategoryNames] = field(default_factory=dict)
    all_categories: bool = False
    sort: bool = False
    zone: str | None = None
    csv: CsvOptions = field(default_factory=CsvOptions)

    @classmethod
    def from_arguments(
        cls,
        columns: str | Iterable[str] | None,
        ids: str | Iterable[str] | None,
        time: str | None,
        dtype: Any = None,
        rows: tuple[int, int | None] | None = None,
        categories: Categories = (),
        *,
        sort: bool = False,
        zone: Any = None,
        csv: tuple[Any, Any, Any, Any, Any, Any] = (None, None, None, None, None, None),
    ) -> ReadOptions:
        """Return the options for a user's arguments; an error names a wrong one."""
        asked = None if columns is None else as_names("columns", columns)
        keys = as_names("id_columns", ids or ())
        if time is not None and time in keys:
            raise ValueError(
                f"`timestamp_column` is {time!r}, which is one of `id_columns` too; expected "
                "different columns"
            )
        every = categories is True
        named = {} if isinstance(categories, bool) else _categories(categories)
        text = CsvOptions.from_arguments(*csv, time, keys, tuple(named))
        local = _zone(zone, time)
        kind = floating_dtype(dtype)
        return cls(asked, keys, time, kind, _rows(rows), named, every, sort, local, text)

    @property
    def named_columns(self) -> tuple[str, ...]:
        """Columns that are named: ids, time, values and categories."""
        return (*self.index_columns, *(self.columns or ()), *self.categories)

    @property
    def index_columns(self) -> tuple[str, ...]:
        """Columns that identify a row and are not values: ids and time."""
        return (*self.ids, *(() if self.time is None else (self.time,)))

    def value_columns(self, schema: Any, where: str) -> tuple[str, ...]:
        """Return the names of value columns. The schema must have each column exactly once."""
        index = pandas_index(schema) if self.columns is None else ()
        self._check_index(index, schema, where)
        asked = schema.names if self.columns is None else self.columns
        wanted = [name for name in asked if name not in index]
        names = tuple(name for name in wanted if name not in self.index_columns)
        known = Counter(schema.names)
        for name in (*self.index_columns, *names, *self.categories):
            if name not in known:
                raise unknown_column(name, known, f"{where}{folders_hint(where)}")
            if known[name] > 1:
                raise ValueError(f"{where} has {known[name]} columns named {name!r}; expected one")
        for name in self.categories:
            if name not in (*self.index_columns, *names):
                raise ValueError(
                    f"categories has {name!r}, which is not among the columns= to read; expected "
                    "it in both, or in neither"
                )
        if self.columns is None and "" in names:
            raise ValueError(
                f"column {schema.names.index('') + 1} of {where} has no name, as an index that "
                "pandas wrote; pass timestamp_column='' if it has times, id_columns='' if it has "
                "ids, or the names to read as columns=, and '' among them if it is a value"
            )
        if not names:
            raise ValueError(
                f"{where} has no value column beside ids and time; expected at least one"
            )
        return names

    def _check_index(self, index: Sequence[str], schema: Any, where: str) -> None:
        """Raise ValueError for an index of pandas that would be lost, unless it numbers the rows.

        One level of integers without a name is left after rows were selected.
        """
        stored = [name for name in index if name in schema.names]
        lost = [name for name in stored if name not in self.index_columns]
        if not lost:
            return
        numbers = _UNNAMED.fullmatch(lost[0]) and pa.types.is_integer(schema.field(lost[0]).type)
        if len(stored) > 1 or not numbers:
            raise ValueError(
                f"{where} has an index of pandas with {', '.join(map(repr, lost))}, which would be "
                "lost; pass id_columns= and timestamp_column= with the names of its levels, or "
                "columns= with those of the values to leave it out"
            )

    def wanted(self, names: Sequence[str], where: str) -> list[str]:
        """Return the columns to read among columns of some names, with ids and time."""
        for name in (*self.index_columns, *(self.columns or ()), *self.categories):
            if name not in names:
                raise unknown_column(name, names, where)
        if self.columns is None:
            return list(names)
        return list(dict.fromkeys((*self.columns, *self.index_columns)))

    def check_zone(self, kind: Any, where: str) -> None:
        """Raise ValueError for `time_zone` of a column of time that has a zone."""
        if self.zone is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
            raise ValueError(
                f"`time_zone` is {self.zone!r}, and timestamp column {self.time!r} of {where} has "
                f"the zone {kind.tz!r} already, and is read in UTC; expected local times, or no "
                "time_zone="
            )

    def typed(self, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the types of columns; categories without any value have the type of text."""
        return {
            name: pa.string() if pa.types.is_null(kind) and name in self.categories else kind
            for name, kind in kinds.items()
        }

    def category_names(self, name: str, kind: Any, where: str) -> CategoryNames | None:
        """Return the category names of a column, None for numbers."""
        if not conversion.is_categorical(kind):
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


def pandas_index(schema: Any) -> tuple[str, ...]:
    """Return the columns that hold the index of a pandas frame, as its metadata says."""
    try:
        index = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
        return tuple(name for name in index if isinstance(name, str))
    except (KeyError, RecursionError, TypeError, ValueError):
        return ()


def as_names(argument: str, names: str | Iterable[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple, in which no name is twice."""
    if not isinstance(names, Iterable):
        raise TypeError(f"`{argument}` must be names of columns, got {names!r}")
    listed = (names,) if isinstance(names, str) else tuple(names)
    seen: set[str] = set()
    for name in listed:
        if not isinstance(name, str):
            raise TypeError(f"`{argument}` must be names of columns, got {name!r} among them")
        if name in seen:
            raise ValueError(f"`{argument}` must name each column once, got {name!r} twice")
        seen.add(name)
    return listed


def _categories(asked: Any) -> dict[str, CategoryNames]:
    if isinstance(asked, str) or not isinstance(asked, Mapping):
        return dict.fromkeys(as_names("categories", asked), True)
    return {
        name: True if names is None else as_names(f"categories[{name!r}]", names)
        for name, names in asked.items()
    }


def _zone(zone: Any, time: str | None) -> str | None:
    """Return the name of a time zone; an error names a wrong one."""
    if zone is None:
        return None
    if time is None:
        raise ValueError(f"`time_zone` is {zone!r}, of timestamp_column=, which is not given")
    return check_zone(zone)


def floating_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the dtype that floating columns are cast to, None for their own."""
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
            f"`dtype` must be float16, float32 or float64, got {dtype!r}; it applies to floating "
            "columns only, all others keep their dtype"
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
        raise TypeError(f"`rows` must be a pair of integers (start, stop), got {rows!r}") from None
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"`rows` must have 0 <= start <= stop, got {rows!r}")
    return start, stop


def budget_bytes(budget: Any) -> int | None:
    """Return a memory budget in bytes, None for no limit."""
    return None if budget is None else check_bytes("memory_budget", budget, least=0)


def is_interleaved(storage: str) -> bool:
    """Return True if `storage` is one row-major matrix."""
    if storage not in ("columns", "rows"):
        raise ValueError(f"`storage` must be 'columns' or 'rows', got {storage!r}")
    return storage == "rows"


def row_range(options: ReadOptions, total: int) -> tuple[int, int]:
    """Return the range of rows to read of `total` rows."""
    start, stop = options.rows or (0, total)
    stop = total if stop is None else stop
    if stop > total or start > total:
        raise ValueError(
            f"`rows` must be within the {total} rows of the data, got ({start}, {stop})"
        )
    return start, stop
