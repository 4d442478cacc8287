"""Categories: the values of columns that have codes for embeddings, fitted on rows; their JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from windeck._util.fingerprints import digest
from windeck._util.html import html_table
from windeck._util.options import explain_options
from windeck._util.terminal import escaped
from windeck._util.text import parse_json, plural, some_names, unknown_column
from windeck._util.validation import check_format, check_integer
from windeck.columns.columns import ColumnData
from windeck.table.table import StreamedTable, Table
from windeck.windows.category_codes import (
    KINDS,
    CategoryLookup,
    CategoryValues,
    Rows,
    category_kind,
    fit_values,
    row_portions,
    text_array,
)
from windeck.windows.origins import FittedRows, TableWindows

__all__ = ["Categories", "rows_of_columns"]

#: Format of the JSON.
FORMAT = 1

#: Types of values in JSON, by kind.
_PYTHON_TYPES = {"text": str, "integer": int, "bool": bool}


@explain_options
@dataclass(frozen=True, eq=False, repr=False)
class Categories:
    """The values of columns that have codes, as `torch.nn.Embedding` takes them.

    Made by `Categories.fit` or `Categories.from_json`; immutable. Code 0 is that of missing values
    and of values that are not among those fitted; the others have 1, 2, ... in ascending order, so
    that codes do not depend on the order of rows or on numbers in a file.

    Attributes
    ----------
    fitted
        The values of each column, by its name.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(4.0), "shop": np.array([7, 7, 30, 9])})
    >>> categories = wd.Categories.fit(table, columns="shop")
    >>> categories.cardinalities, categories.names("shop")
    ({'shop': 4}, (None, 7, 9, 30))
    >>> w = wd.Windows(table, context_length=4, past_covariates="shop", categorical=categories)
    >>> w[0]["past_categorical"][:, 0]
    array([1, 1, 3, 2])
    """

    fitted: dict[str, CategoryValues]

    @classmethod
    def fit(
        cls,
        data: Table | TableWindows | FittedRows,
        *,
        columns: str | Sequence[str] | None = None,
        min_count: int = 1,
        max_categories: int | None = None,
    ) -> Categories:
        """Return the values of columns in the rows of a table, or in those that windows read.

        Parameters
        ----------
        data
            A table, or windows. Of windows only the rows of their steps are read, so that values
            of validation and test alone have code 0 with ``Categories.fit(w.split().train)``. Of
            static covariates the first row of each series with windows is read, and counts once.
        columns
            Columns of text, integers or bools. Default: the categorical columns of windows; of a
            table, and of windows without any, those of text.
        min_count
            Rows that a value has at least; rarer ones have code 0.
        max_categories
            Most values of a column, the most frequent ones; the others have code 0.

        Raises
        ------
        KeyError, TypeError
            If a column does not exist, or holds floats.
        ValueError
            If there is no column or no window.

        Notes
        -----
        O(rows) time and O(distinct values) memory: up to 80 bytes for each while they are fitted,
        and afterwards 8 bytes an integer, or the bytes of a text and 8 more. Integers above those
        of int64 have code 0.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"shop": np.array([7, 7, 30, 9, 9])})
        >>> wd.Categories.fit(table, columns="shop", min_count=2).names("shop")
        (None, 7, 9)
        """
        least = check_integer("min_count", min_count, least=1)
        if max_categories is not None:
            max_categories = check_integer("max_categories", max_categories, least=1)
        rows = FittedRows.of(data)
        names = _choose_columns(rows, columns)
        read = rows_of_columns(rows, names)
        return cls({name: fit_values(*read[name], least, max_categories) for name in names})

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.fitted)

    @property
    def cardinalities(self) -> dict[str, int]:
        """The number of codes of each column, code 0 included: `num_embeddings` of an embedding."""
        return {name: 1 + len(known.values) for name, known in self.fitted.items()}

    def names(self, column: str) -> tuple[str | int | bool | None, ...]:
        """Return the value of each code of a column; that of code 0 is None. O(values)."""
        return (None, *self._of(column).names())

    def _of(self, column: str) -> CategoryValues:
        if column not in self.fitted:
            raise unknown_column(column, self.fitted, "`categories`")
        return self.fitted[column]

    def _lookup(self, column: ColumnData) -> CategoryLookup:
        """Return the lookup of the codes of a column of a table; it is matched by name.

        Raises
        ------
        KeyError, TypeError
            If there is no such column, or it has values of another kind.
        """
        found = self._lookups.get(column)
        if found is None:
            found = self._lookups[column] = CategoryLookup(column, self._of(column.name))
        return found

    @cached_property
    def _lookups(self) -> WeakKeyDictionary[ColumnData, CategoryLookup]:
        """The lookups of columns in use, which windows of one table share."""
        return WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"fitted": self.fitted}

    def to_json(self) -> str:
        """Return the values as JSON text, which `from_json` reads.

        `Scaler.to_json` has them in one text with a scaler.
        """
        return json.dumps(self._plain())

    def _plain(self) -> dict[str, Any]:
        """Return the values as lists."""
        columns = {
            name: {"kind": known.kind, "values": list(known.names())}
            for name, known in self.fitted.items()
        }
        return {"format": FORMAT, "columns": columns}

    @classmethod
    def from_json(cls, text: str | bytes) -> Categories:
        """Return the categories written by `to_json`. The text is data only; no code in it runs.

        Also those that `Scaler.to_json` has written with a scaler.

        Raises
        ------
        ValueError
            If the text is not the JSON of categories, or has a scaler alone.

        Examples
        --------
        >>> import numpy as np
        >>> import windeck as wd
        >>> table = wd.Table.from_columns({"shop": np.array([7, 30, 9])})
        >>> categories = wd.Categories.fit(table, columns="shop")
        >>> wd.Categories.from_json(categories.to_json()) == categories
        True
        """
        plain = parse_json(text, "the categories", object_pairs_hook=_unique_keys)
        _expect(isinstance(plain, dict), "it is not an object")
        if "kind" in plain:  # The JSON of a scaler.
            _expect(
                "categories" in plain,
                "it is that of a scaler without categories, expected "
                "scaler.to_json(categories=categories)",
            )
            plain = plain["categories"]
            _expect(isinstance(plain, dict), "its categories are not an object")
        check_format("the categories' JSON", plain.get("format"), FORMAT)
        columns = plain.get("columns")
        _expect(isinstance(columns, dict) and len(columns) > 0, "it names no columns")
        return cls({name: _parse_values(name, entry) for name, entry in columns.items()})

    @cached_property
    def _digests(self) -> dict[str, str]:
        """A digest of the values of each column."""
        return {name: known.digest() for name, known in self.fitted.items()}

    def _digest_of(self, columns: Sequence[str]) -> str:
        """Return a digest of the values of some columns."""
        return digest(*((name, self._digests[name]) for name in columns))

    def __eq__(self, other: object) -> bool:
        """Equal names and equal values."""
        return isinstance(other, Categories) and self._digests == other._digests

    def __hash__(self) -> int:
        return hash(self.columns)

    def explain(self) -> str:
        """Return one line a column: the number of values, and the first ones."""
        return "\n".join(escaped(f"{name}: {self._describe(name)}") for name in self.fitted)

    def _describe(self, column: str) -> str:
        known = self.fitted[column]
        first = CategoryValues(known.kind, known.values[:11]).names()
        return f"{plural(len(known.values), 'value')} {some_names(first, range(len(first)))}"

    def __repr__(self) -> str:
        return "\n  ".join(["Categories", *self.explain().split("\n")])

    def _repr_html_(self) -> str:
        rows = [(name, self._describe(name)) for name in self.fitted]
        return html_table("Categories", ("column", "values"), rows)


def rows_of_columns(
    data: FittedRows, names: Sequence[str]
) -> dict[str, tuple[ColumnData, list[Rows]]]:
    """Return columns with the rows of them that are read, by name.

    Of static covariates of windows the column has one row for each series that is not empty.
    """
    table, stretches = data.table, data.stretches("categories")
    parts = list(row_portions(stretches))
    series = np.unique(stretches.series)
    firsts: Rows = table.offsets[series]
    found = {}
    for name in names:
        column = table.column(name)
        if name not in data.static:
            found[name] = column, parts
        elif isinstance(table, StreamedTable):
            live = np.flatnonzero(np.diff(table.offsets))
            values = replace(table.static_values(name), categories=column.categories)
            found[name] = values, [np.searchsorted(live, series)]
        else:
            found[name] = column, [firsts]
    return found


def _choose_columns(rows: FittedRows, columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names given after a check, or the categorical columns."""
    table = rows.table
    if columns is None:
        texts = (name for name in rows.column_names if table.column(name).categories is not None)
        columns = rows.categorical or tuple(texts)
        if not columns:
            raise ValueError(
                "no column is categorical, expected `columns` with those to fit categories to"
            )
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"`columns` must name at least one column, and each once, got {names}")
    for name in names:
        if name not in table.column_names:
            raise unknown_column(name, table.column_names)
        category_kind(table.column(name))
    return names


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; a ValueError for a key that is repeated."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ValueError(f"the key {twice[:60]!r} is repeated, expected each key once")
    return found


def _parse_values(name: str, entry: Any) -> CategoryValues:
    """Return the values of a column that JSON has; a ValueError for anything else."""
    _expect(isinstance(entry, dict), f"column {name!r} is not an object")
    kind, values = entry.get("kind"), entry.get("values")
    _expect(isinstance(kind, str) and kind in KINDS, f"kind of column {name!r} is {str(kind)[:60]}")
    _expect(isinstance(values, list), f"values of column {name!r} are not a list")
    _expect(
        all(type(value) is _PYTHON_TYPES[kind] for value in values)
        and all(one < other for one, other in pairwise(values)),
        f"values of column {name!r} are not different {kind} values in ascending order",
    )
    try:
        if kind == "text":
            return CategoryValues(kind, text_array(values))
        return CategoryValues(kind, np.array(values, dtype=np.int64))
    except (OverflowError, UnicodeEncodeError) as error:
        raise ValueError(
            f"the categories' JSON cannot be read: column {name!r} has a wrong value: {error}"
        ) from None


def _expect(condition: bool, error: str) -> None:
    if not condition:
        raise ValueError(f"the categories' JSON cannot be read: {error}")
