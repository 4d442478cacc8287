"""Codes of categories: counts of values, and lookups of the codes of rows.

The code of a value is its place, from 1 on, among the values that were fitted, which ascend. Code 0
is that of missing values and of values that were not fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from windeck._util.fingerprints import digest
from windeck.columns.columns import ColumnData, aligned_empty
from windeck.columns.dtypes import Array, Bools, Int64s, is_floating
from windeck.table.streamed import StreamedColumn
from windeck.windows.scaler_fitting import RowStretches

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "KINDS",
    "CategoryLookup",
    "CategoryValues",
    "category_kind",
    "count_unseen",
    "fit_values",
    "row_portions",
    "text_array",
]

KINDS = ("text", "integer", "bool")

#: Rows that are read at a time.
ROWS_AT_A_TIME = 1 << 18
#: Distinct integers that are counted before they are merged with those before, at least.
MERGED_VALUES = 1 << 18
#: Integers in a range of this length, or of some lengths of the values, are looked up by place.
DENSE_RANGE, DENSE_SHARE = 1 << 16, 8

#: Rows of a column: a range, or ascending numbers.
Rows: TypeAlias = "slice | Int64s"

#: Columns of codes by the column that they are of and the digest of its values, while in use.
_codes: WeakKeyDictionary[ColumnData, WeakValueDictionary[str, Array]] = WeakKeyDictionary()


class CategoryValues(NamedTuple):
    """The values of a column that have codes, in ascending order.

    Attributes
    ----------
    kind
        One of `KINDS`.
    values
        An Arrow array of `large_string` for text, else int64 of shape (values,).
    """

    kind: str
    values: Any

    def names(self) -> tuple[str | int | bool, ...]:
        """Return the values as Python objects."""
        if self.kind == "text":
            return tuple(self.values.to_pylist())
        plain = self.values.tolist()
        return tuple(map(bool, plain)) if self.kind == "bool" else tuple(plain)

    def digest(self) -> str:
        """Return a digest of the values. O(bytes)."""
        if self.kind != "text":
            return digest(self.kind, self.values)
        if not len(self.values):
            return digest(self.kind)
        # Buffers may be longer than their contents.
        _, ends, texts = self.values.buffers()
        offsets = np.frombuffer(ends, np.int64, len(self.values) + 1)
        return digest(self.kind, offsets, np.frombuffer(texts or b"", np.uint8)[: offsets[-1]])


def category_kind(column: ColumnData) -> str:
    """Return the kind of the values of a column; raise a TypeError for floats."""
    if column.categories is not None:
        return "text"
    if is_floating(column.dtype):
        raise TypeError(
            f"column {column.name!r} is {column.dtype}, expected text, integers or bools for codes "
            "of categories"
        )
    return "bool" if column.dtype == "bool" else "integer"


def text_array(texts: Iterable[str]) -> pa.LargeStringArray:
    """Return texts as an Arrow array."""
    import pyarrow as pa

    return pa.array(list(texts), pa.large_string())


# --- fitting ---------------------------------------------------------------------------------


def row_portions(stretches: RowStretches) -> Iterator[Rows]:
    """Yield the rows of stretches, at most twice `ROWS_AT_A_TIME` at a time, long ones first."""
    sizes = stretches.end - stretches.begin
    for place in np.flatnonzero(sizes >= ROWS_AT_A_TIME).tolist():
        begin, end = int(stretches.begin[place]), int(stretches.end[place])
        for start in range(begin, end, ROWS_AT_A_TIME):
            yield slice(start, min(start + ROWS_AT_A_TIME, end))
    short = np.flatnonzero(sizes < ROWS_AT_A_TIME)
    rest = RowStretches(*(array[short] for array in stretches))
    portion_of = (np.cumsum(sizes[short]) - sizes[short]) // ROWS_AT_A_TIME
    bounds = [*np.flatnonzero(np.diff(portion_of, prepend=-1)).tolist(), len(short)]
    for first, stop in pairwise(bounds):
        yield rest.between(first, stop).rows(None, 0, 0)


def fit_values(
    column: ColumnData, portions: Iterable[Rows], min_count: int, most: int | None
) -> CategoryValues:
    """Return the values of a column in some rows that have codes.

    O(rows) time and O(distinct values) memory.

    Parameters
    ----------
    min_count
        Rows that a value has at least.
    most
        Number of values at most, the most frequent ones; of equally frequent ones the first.
    """
    kind = category_kind(column)
    observed = (portion.values[seen] for portion, seen in _read(column, portions))
    if kind == "text":
        import pyarrow.compute as pc

        counts = _count_codes(observed, len(column.categories or ()))
        found = np.flatnonzero(counts >= min_count)
        values: Any = text_array(column.categories or ()).take(found)
        order = np.asarray(pc.sort_indices(values)).astype(np.int64)
        kept = order[_most_frequent(counts[found[order]], most)]
        return CategoryValues(kind, values.take(kept))
    values, counts = _count_integers(observed)
    values, counts = values[counts >= min_count], counts[counts >= min_count]
    return CategoryValues(kind, values[_most_frequent(counts, most)])


def _read(column: ColumnData, portions: Iterable[Rows]) -> Iterator[tuple[ColumnData, Bools]]:
    """Yield some rows of a column, and which of them have a value."""
    for rows in portions:
        if isinstance(column, StreamedColumn):
            portion = column.read(rows)
            yield portion, portion.observed()
        else:
            yield (
                ColumnData(column.name, column.values[rows], dtype=column.dtype),
                column.observed(rows),
            )


def _count_codes(portions: Iterable[Array], size: int) -> Int64s:
    """Return how often each of `size` codes of a table occurs."""
    counts = np.zeros(size, dtype=np.int64)
    for codes in portions:
        if size <= ROWS_AT_A_TIME:
            counts += np.bincount(codes, minlength=size)
        else:
            found, times = np.unique(codes, return_counts=True)
            counts[found] += times
    return counts


def _count_integers(portions: Iterable[Array]) -> tuple[Int64s, Int64s]:
    """Return the distinct integers, ascending, and how often each occurs.

    Integers above those of int64 are left out.
    """
    merged = _distinct([])
    pending: list[tuple[Int64s, Int64s]] = []
    for portion in portions:
        if portion.dtype == np.uint64:
            portion = portion[portion <= np.iinfo(np.int64).max]
        values, counts = np.unique(portion.astype(np.int64), return_counts=True)
        pending.append((values, counts.astype(np.int64)))
        if sum(len(values) for values, _ in pending) > max(len(merged[0]) // 4, MERGED_VALUES):
            merged, pending = _distinct([merged, *pending]), []
    return _distinct([merged, *pending])


def _distinct(counted: list[tuple[Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    """Return the union of distinct integers, with the sums of their counts."""
    none = np.zeros(0, dtype=np.int64)
    values = np.concatenate([none, *(values for values, _ in counted)])
    counts = np.concatenate([none, *(counts for _, counts in counted)])
    # Parts ascend, which a stable sort merges.
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])[: len(values)])
    return values[first], np.add.reduceat(counts, first) if len(first) else none


def _most_frequent(counts: Int64s, most: int | None) -> Int64s:
    """Return the ascending places of the largest counts, of equal ones the first."""
    if most is None or len(counts) <= most:
        return np.arange(len(counts), dtype=np.int64)
    return np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int64)


# --- codes of rows ---------------------------------------------------------------------------


class CategoryLookup:
    """The codes of the values of one column of a table.

    Parameters
    ----------
    column
        The column, whose own numbers of texts are those of the table.
    known
        The values that have codes.

    Raises
    ------
    TypeError
        If the column has values of another kind.
    """

    def __init__(self, column: ColumnData, known: CategoryValues) -> None:
        kind = category_kind(column)
        if kind != known.kind:
            raise TypeError(
                f"column {column.name!r} is of kind {kind}, expected {known.kind} as its "
                "categories were fitted to"
            )
        self._digest: str | None = None
        self._known = known
        # The gather casts one or two bytes faster than it copies eight, and four bytes slower.
        few = len(known.values) <= np.iinfo(np.uint16).max
        self._dtype = np.min_scalar_type(len(known.values)) if few else np.dtype(np.int64)
        #: The code of each place; the last one is that of all other values.
        self._low, self._table = 0, None
        if kind == "text":
            self._table = self._codes_of_texts(column.categories or ())
            return
        low, high = (int(known.values[i]) for i in (0, -1)) if len(known.values) else (0, -1)
        if high - low < max(DENSE_RANGE, DENSE_SHARE * len(known.values)):
            self._low, self._table = low, np.zeros(high - low + 2, dtype=self._dtype)
            self._table[known.values - low] = np.arange(1, len(known.values) + 1)

    @property
    def itemsize(self) -> int:
        """Bytes of a code in a column."""
        return self._dtype.itemsize

    def _codes_of_texts(self, texts: tuple[str, ...]) -> Array:
        import pyarrow.compute as pc

        place = pc.index_in(text_array(texts), value_set=self._known.values).fill_null(-1)
        codes = np.append(np.asarray(place).astype(np.int64) + 1, 0)
        return codes.astype(self._dtype)

    def encode(self, column: ColumnData) -> ColumnData:
        """Return a column of codes with the validity of `column`, which has rows of the table.

        O(rows) time, O(log values) for each row of integers that are far apart; 1 byte a row
        for up to 255 values, 2 for up to 65,535, else 8. The column is kept while it is in use.
        """
        if self._digest is None:
            self._digest = self._known.digest()
        kept = _codes.setdefault(column, WeakValueDictionary())
        found = kept.get(self._digest)
        codes = self._encode(column) if found is None else found
        # Of all columns the same array, which native columns keep: a column may end before them.
        made = ColumnData(
            column.name, codes, column.validity, column.validity_offset, None, column.missing
        )
        kept[self._digest] = made.values
        return made

    def _encode(self, column: ColumnData) -> Array:
        codes = aligned_empty((len(column.values),), self._dtype)
        for start in range(0, len(codes), ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            codes[rows] = self.codes_of(column.values[rows])
            if column.validity is not None:
                codes[rows][~column.observed(rows)] = 0
        return codes

    def codes_of(self, values: Array) -> Array:
        """Return the codes of values, as a column has them; of null rows they mean nothing."""
        if self._known.kind == "text":
            assert self._table is not None
            return self._table.take(values, mode="clip")
        wide = values.astype(np.int64)
        is_large = values > np.iinfo(np.int64).max if values.dtype == np.uint64 else None
        if self._table is None:
            known: Int64s = self._known.values
            # Among many values, numbers in order are found in a fraction of the time.
            order = np.argsort(wide)
            place = np.empty(len(wide), dtype=np.int64)
            place[order] = np.searchsorted(known, wide[order])
            place = np.minimum(place, len(known) - 1)
            found = known[place] == wide
        else:
            most = len(self._table) - 1
            found = (wide >= self._low) & (wide < self._low + most)
        if is_large is not None:
            found &= ~is_large
        if self._table is None:
            return np.where(found, place + 1, 0)
        return self._table.take(np.where(found, wide - self._low, most))


def count_unseen(column: ColumnData, lookup: CategoryLookup, portions: Iterable[Rows]) -> int:
    """Return how many rows have a value without a code; missing ones do not count."""
    return sum(
        int(np.count_nonzero(lookup.codes_of(portion.values[seen]) == 0))
        for portion, seen in _read(column, portions)
    )
