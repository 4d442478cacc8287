"""Series: row offsets from id columns, and reordering of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import Array, Int64s

#: Rows that are compared at a time, to limit temporary memory.
ROWS_AT_A_TIME = 1 << 22


class Reordering(NamedTuple):
    """A permutation of rows [start, start + len(rows)): row start + i gets row ``rows[i]``."""

    start: int
    rows: Int64s


class Grouping(NamedTuple):
    """Offsets of the series, int64 of shape (series + 1,), names, and reorderings of rows."""

    offsets: Int64s
    names: tuple[Any, ...]
    reorderings: list[Reordering]


def group_rows(ids: Sequence[ColumnData], rows: int, *, sort: bool) -> Grouping:
    """Find the series of id columns. Rows of a series must be contiguous without `sort`.

    Parameters
    ----------
    ids : sequence of ColumnData, each of `rows` rows
        Integers, or codes with categories. A series is one combination of their values.
    sort : bool
        Group rows by series, in order of first appearance. Rows of a series keep their order.

    Raises
    ------
    ValueError
        A series is not contiguous and `sort` is False, or an id is null.
    """
    if rows == 0:
        return Grouping(np.zeros(1, dtype=np.int64), (), [])
    for column in ids:
        _refuse_nulls(column)
    starts = _stretch_starts(ids, rows)
    keys, first, key_of_stretch = _distinct([column.values[starts] for column in ids])
    if len(first) == len(starts):
        return Grouping(_closed(starts, rows), _names(ids, keys), [])
    if not sort:
        raise _not_contiguous(ids, keys, key_of_stretch, starts, rows)
    order = np.argsort(key_of_stretch, kind="stable")
    lengths = np.diff(_closed(starts, rows))
    sizes = np.bincount(key_of_stretch, weights=lengths).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows_in_order = _ranges(starts[order], lengths[order])
    return Grouping(offsets, _names(ids, keys), [Reordering(0, rows_in_order)])


def _refuse_nulls(column: ColumnData) -> None:
    if column.validity is not None:
        observed = column.observed()
        if not observed.all():
            raise ValueError(
                f"id column {column.name!r} is null in row {int(np.argmin(observed))}; "
                "expected an id in every row"
            )


def _stretch_starts(ids: Sequence[ColumnData], rows: int) -> Int64s:
    """Return the first rows of stretches of equal ids."""
    changed = np.zeros(rows, dtype=np.bool_)
    changed[0] = True
    for column in ids:
        changed[1:] |= column.values[1:] != column.values[:-1]
    return np.flatnonzero(changed).astype(np.int64)


def _distinct(keys: list[Array]) -> tuple[list[Array], Int64s, Int64s]:
    """Return keys in order of first appearance, the first stretch of each, and keys by stretch."""
    if len(keys) == 1:
        _, first, inverse = np.unique(keys[0], return_index=True, return_inverse=True)
    else:
        codes = np.stack([np.unique(key, return_inverse=True)[1] for key in keys], axis=1)
        _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    appearance = np.argsort(first, kind="stable")
    rank = np.empty_like(appearance)
    rank[appearance] = np.arange(len(appearance))
    first = first[appearance].astype(np.int64)
    return [key[first] for key in keys], first, rank[inverse.reshape(-1)].astype(np.int64)


def _closed(starts: Int64s, rows: int) -> Int64s:
    return np.append(starts, np.int64(rows)).astype(np.int64)


def _names(ids: Sequence[ColumnData], keys: list[Array]) -> tuple[Any, ...]:
    """Return the id of each series, or a tuple of ids for several id columns."""
    parts = [_texts(column, key) for column, key in zip(ids, keys, strict=True)]
    return tuple(parts[0]) if len(parts) == 1 else tuple(zip(*parts, strict=True))


def _texts(column: ColumnData, key: Array) -> list[Any]:
    if column.categories is None:
        return list(key.tolist())
    return [column.categories[code] for code in key.tolist()]


def plain_names(names: Sequence[Any]) -> tuple[Any, ...]:
    """Return the names of series as JSON has them: numbers, texts and tuples, others as text."""
    if set(map(type, names)) <= {str, int, float, bool, type(None)}:
        return tuple(names)
    return tuple(map(_plain_name, names))


def _plain_name(name: Any) -> Any:
    if isinstance(name, (tuple, list)):
        return tuple(map(_plain_name, name))
    if isinstance(name, np.generic) and not isinstance(name, (np.datetime64, np.timedelta64)):
        name = name.item()
    return name if name is None or isinstance(name, (str, bool, int, float)) else str(name)


def match_names(names: Sequence[Any], numbers: Mapping[Any, int]) -> Int64s:
    """Return the number of each name, -1 for an unknown one. Keys of `numbers` are plain names."""
    found = (numbers.get(name, -1) for name in plain_names(names))
    return np.fromiter(found, np.int64, len(names))


def places_of(names: Sequence[Any], known: Sequence[Any], unknown: int | None) -> Int64s:
    """Return the place of each name in a list of names; see `Table.match_series`."""
    places = {name: place for place, name in enumerate(plain_names(known))}
    if len(places) < len(known):
        twice = next(name for name, count in Counter(plain_names(known)).items() if count > 1)
        raise ValueError(f"`names` has {twice!r} more than once, expected different names")
    found = match_names(names, places)
    lacking = found < 0
    if unknown is None and lacking.any():
        raise KeyError(
            f"series {names[int(np.argmax(lacking))]!r} is not among the {len(known)} `names` "
            f"({int(lacking.sum())} such series in all); expected them there, or `unknown`"
        )
    found[lacking] = 0 if unknown is None else unknown
    return found


def _not_contiguous(
    ids: Sequence[ColumnData], keys: list[Array], key_of_stretch: Int64s, starts: Int64s, rows: int
) -> ValueError:
    """Return the error for the first series that is not contiguous."""
    seen = np.zeros(len(keys[0]), dtype=np.int64)
    np.add.at(seen, key_of_stretch, 1)
    key = int(key_of_stretch[np.argmax(seen[key_of_stretch] > 1)])
    one, two = np.flatnonzero(key_of_stretch == key)[:2]
    ends = _closed(starts, rows)[1:]
    return ValueError(
        f"series {_names(ids, keys)[key]!r} is not contiguous: it has rows "
        f"[{starts[one]}, {ends[one]}) and [{starts[two]}, {ends[two]}) with other series between "
        "them; pass sort=True to group rows by series"
    )


def _ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the concatenated ranges [start, start + length)."""
    ends = np.cumsum(lengths)
    shift = np.repeat(starts - (ends - lengths), lengths)
    return np.asarray(shift + np.arange(int(ends[-1]), dtype=np.int64), dtype=np.int64)


def check_offsets(offsets: Any, rows: int) -> Int64s:
    """Return offsets as int64; they must ascend from 0 to the number of rows."""
    array = np.asarray(offsets)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 1:
        raise ValueError(
            "`offsets` must be integers of shape (series + 1,), got dtype "
            f"{array.dtype} and shape {array.shape}"
        )
    result = array.astype(np.int64)
    if (array.dtype.kind == "u" and (result < 0).any()) or result[0] != 0 or result[-1] != rows:
        raise ValueError(
            f"`offsets` must ascend from 0 to {rows}, the number of rows, got {array[0]} to "
            f"{array[-1]}"
        )
    falls = np.flatnonzero(np.diff(result) < 0)
    if len(falls):
        at = int(falls[0]) + 1
        raise ValueError(
            f"`offsets` must not decrease, got {result[at]} at index {at} after {result[at - 1]}"
        )
    result.flags.writeable = False
    return result


def reorder(column: ColumnData, reorderings: Sequence[Reordering], *, owned: bool) -> ColumnData:
    """Return the column with its rows reordered, in place if the memory is owned."""
    if not reorderings:
        return column
    values = column.values.view() if owned else column.values.copy()
    if owned:
        values.flags.writeable = True
    _permute(values, reorderings)
    if column.validity is None:
        return replace(column, values=values)
    rows, offset = len(values), column.validity_offset
    valid = bitmaps.unpack(column.validity, offset, offset + rows)
    _permute(valid, reorderings)
    bitmap = np.packbits(valid, bitorder="little")
    return replace(column, values=values, validity=bitmap, validity_offset=0)


def _permute(values: Array, reorderings: Sequence[Reordering]) -> None:
    for start, rows in reorderings:
        values[start : start + len(rows)] = values[rows]


def check_same_numbers(names: tuple[Any, ...], larger: tuple[Any, ...]) -> None:
    """Raise a ValueError if series have other numbers in a table that has grown."""
    if larger[: len(names)] != names:
        raise ValueError(
            "the table cannot grow: series have other numbers in the larger one, as where new "
            "series come before old ones; expected names that sort after the old ones, or "
            "`keys` without 'series_id'"
        )
