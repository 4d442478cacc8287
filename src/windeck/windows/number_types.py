"""The dtype of a key of columns of different dtypes, and the check that casts to it are exact.

The dtypes themselves are in `windeck.columns.dtypes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from windeck.columns.columns import ColumnData
from windeck.columns.dtypes import FLOATS, Array, is_floating
from windeck.table.streamed import StreamedColumn

__all__ = ["KeyDtype", "check_exact", "common_dtype"]

# Rows checked at a time.
ROWS_AT_A_TIME = 1 << 18

#: The dtypes that hold every value of a column exactly: columns are read once.
_checked: WeakKeyDictionary[ColumnData, set[str]] = WeakKeyDictionary()


class KeyDtype(NamedTuple):
    """The dtype of a key.

    Attributes
    ----------
    exact
        Columns of integers, some of whose possible values `dtype` cannot hold; see `check_exact`.
    """

    dtype: str
    exact: tuple[str, ...] = ()


def common_dtype(
    key: str,
    dtypes: Mapping[str, str],
    columns: Mapping[str, ColumnData],
    chosen: Collection[str] = (),
) -> KeyDtype:
    """Return a dtype that the columns of a key can be cast to without loss.

    It follows from dtypes alone, not from values: the widest floating one, so that values of
    integers are checked later; else the smallest integer dtype that holds all of them.

    Parameters
    ----------
    dtypes
        The dtype of each column, as asked for or as stored.
    columns
        The columns, of which those of text are not cast.
    chosen
        Columns whose dtype was asked for by name; the others are cast to it.

    Raises
    ------
    TypeError
        If there is no such dtype: a column, and the cure.
    """
    named = {name: dtype for name, dtype in dtypes.items() if name in chosen}
    numbers = {n: d for n, d in dtypes.items() if columns[n].categories is None or n in chosen}
    expected = reduce(_promoted, (named or numbers or dtypes).values())
    for name, found in dtypes.items():
        is_text = name not in numbers
        if found == expected or (name not in chosen and not is_text and _fits(found, expected)):
            continue
        other = next((one for one, d in dtypes.items() if d == expected), "")
        codes = f"make codes of it by categorical={name!r}, " if "target" not in key else ""
        raise TypeError(
            f"column {name!r} of {key} is {found}{' (the codes of a category)' if is_text else ''}"
            f", expected {expected}{f' as column {other!r}' if other else ''}: "
            f"{codes if is_text else ''}give it another role, or ask for the cast by "
            f"dtype={{{name!r}: {expected!r}}}"
        )
    exact = (name for name, found in dtypes.items() if not _always_exact(found, expected))
    return KeyDtype(expected, tuple(exact))


def _promoted(one: str, other: str) -> str:
    """Return the dtype that holds the values of two; the first one if there is none."""
    if one == other or _fits(other, one):
        return one
    if _fits(one, other):
        return other
    if is_floating(one):
        return "float32"  # of float16 and bfloat16
    found = np.promote_types(one, other).name
    return one if is_floating(found) else found


def _fits(found: str, expected: str) -> bool:
    """Return whether values can be cast without loss; of integers to floats, some of them."""
    if is_floating(expected):
        if not is_floating(found):
            return True
        small, large = FLOATS[found], FLOATS[expected]
        return small.digits <= large.digits and small.least >= large.least
    return not is_floating(found) and np.can_cast(found, expected)


def _always_exact(found: str, expected: str) -> bool:
    """Return whether a dtype holds every value of another one, to which it can be cast."""
    if found == "bool" or is_floating(found) or not is_floating(expected):
        return True
    bits = 8 * np.dtype(found).itemsize - (np.dtype(found).kind == "i")
    return bits <= FLOATS[expected].digits + 1


def check_exact(column: ColumnData, key: str, dtype: str) -> None:
    """Raise a ValueError if a floating dtype cannot hold a value of a column of integers.

    O(rows) time, once for each column and dtype; bounded memory.
    """
    known = _checked.setdefault(column, set())
    if dtype in known or isinstance(column, StreamedColumn):
        return
    for start in range(0, len(column.values), ROWS_AT_A_TIME):
        rows = slice(start, start + ROWS_AT_A_TIME)
        lost = _inexact(column.values[rows], dtype)
        if not lost.any() or not (lost := lost & column.observed(rows)).any():
            continue
        raise ValueError(
            f"column {column.name!r} of {key} holds {column.values[rows][int(np.argmax(lost))]}, "
            f"which {dtype} cannot hold exactly: give it another role, or ask for the cast by "
            f"dtype={{{column.name!r}: {dtype!r}}}"
        )
    known.add(dtype)


def _inexact(values: Array, dtype: str) -> Array:
    """Return which integers a floating dtype cannot hold."""
    most = np.uint64(1 << FLOATS[dtype].digits + 1)
    # The absolute value of the least integer is right as an unsigned number.
    sizes = np.abs(values.astype(np.int64, copy=False)).view(np.uint64)
    if values.dtype == np.uint64:
        sizes = values
    if not len(sizes) or sizes.max() <= most:
        return np.zeros(len(sizes), dtype=np.bool_)
    odd = sizes // np.maximum(sizes & (~sizes + np.uint64(1)), np.uint64(1))
    lost: Array = odd >= most
    if dtype == "float16":
        lost |= sizes >= np.uint64(1 << 16)
    return lost
