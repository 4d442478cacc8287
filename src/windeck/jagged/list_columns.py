"""List columns in memory: values of all rows end to end, and the offsets of each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as pat

from windeck.columns.columns import aligned_empty, read_only
from windeck.columns.dtypes import Array, Int64s
from windeck.io.conversion import decode_numbers, number_dtype, values_of

__all__ = ["ListBuilder", "ListColumn", "is_list"]

_LIST_TYPES = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_LARGEST = 2**63 - 1
#: Values that are gathered at a time.
_PORTION = 1 << 14


def is_list(kind: Any) -> bool:
    """Return True for any list type of Arrow."""
    return any(getattr(pat, f"is_{name}", lambda _: False)(kind) for name in _LIST_TYPES)


@dataclass(frozen=True, eq=False)
class ListColumn:
    """A column of lists, read-only. Row r has ``values[offsets[r]:offsets[r + 1]]``.

    `dtype` is that of batches: int64 for any integers, which are stored as narrow as in the file.
    """

    name: str
    values: Array
    offsets: Int64s

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", read_only(self.values))
        object.__setattr__(self, "offsets", read_only(self.offsets))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype if self.values.dtype.kind == "f" else np.dtype(np.int64)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes

    def lengths(self, rows: Int64s) -> Int64s:
        """Return the lengths of the lists of some rows."""
        starts: Int64s = self.offsets.take(rows)
        return self.offsets.take(rows + 1) - starts

    def gather(self, rows: Int64s, lengths: Int64s, out: Array) -> None:
        """Write the lists of some rows, which have these lengths, end to end into `out`."""
        # Place j of the result is in row k and comes from starts[k] + (j - places before row k).
        ends = np.cumsum(lengths)
        shift = self.offsets.take(rows) - (ends - lengths)
        # In portions, so that the numbers of places stay in the cache.
        for first, last in _portions(ends):
            start = int(ends[first - 1]) if first else 0
            stop = int(ends[last - 1])
            if last - first == 1:  # One list, of any length: a slice.
                begin = int(shift[first])
                out[start:stop] = self.values[begin + start : begin + stop]
                continue
            source = np.repeat(shift[first:last], lengths[first:last])
            source += np.arange(start, stop, dtype=np.int64)
            if out.dtype == self.values.dtype:
                self.values.take(source, out=out[start:stop], mode="clip")  # No other copy.
            else:
                out[start:stop] = self.values.take(source)


def _portions(ends: Int64s) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that have at most _PORTION values together, or are one row."""
    first, total = 0, len(ends)
    while first < total:
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + _PORTION, side="right"))
        yield first, max(last, first + 1)
        first = max(last, first + 1)


class ListBuilder:
    """A list column that is filled batch by batch.

    Parameters
    ----------
    name
        The column, for errors.
    where
        The data, for errors.
    dtype
        Dtype that floating values are cast to; None for their own.
    """

    def __init__(self, name: str, where: str, dtype: np.dtype[Any] | None = None) -> None:
        self.name, self.where, self._dtype = name, where, dtype
        self._rows = 0
        self._values: list[Array] = []
        self._lengths: list[Int64s] = []
        #: Whether the values so far are floats; None while all lists were empty.
        self._is_float: bool | None = None
        #: Dtype of a column whose lists are all empty.
        self._empty_dtype = np.dtype(np.int64)

    def append(self, array: Any) -> None:
        """Append the lists of the next rows; a null list is empty.

        Raises
        ------
        TypeError
            If the rows are not lists of integers or floats, or of the other kind than before.
        ValueError
            For a null inside of a list.
        OverflowError
            For an id that exceeds int64.
        """
        lengths = self._lengths_of(array)
        self._values.append(self._values_of(array, lengths))
        self._lengths.append(lengths)
        self._rows += len(array)
        values = self._values[-1]
        if not len(values):
            if values.dtype.kind == "f":
                self._empty_dtype = values.dtype
            return
        is_float = values.dtype.kind == "f"
        if self._is_float not in (None, is_float):
            raise TypeError(
                f"column {self.name!r} of {self.where} has lists of integers and lists of floats; "
                "expected one type"
            )
        self._is_float = is_float

    def _lengths_of(self, array: Any) -> Int64s:
        if not is_list(array.type):
            raise TypeError(
                f"column {self.name!r} of {self.where} is {array.type}; expected a list of "
                "integers or floats in each row"
            )
        lengths = pc.list_value_length(array).fill_null(0)
        return values_of(lengths).astype(np.int64)

    def _values_of(self, array: Any, lengths: Int64s) -> Array:
        """Return a copy of the values of all lists, without those that null lists hide."""
        inner = decode_numbers(array.flatten())
        if inner.null_count:
            first = int(np.flatnonzero(inner.is_null().to_numpy(zero_copy_only=False))[0])
            row = self._rows + int(np.searchsorted(np.cumsum(lengths), first, side="right"))
            raise ValueError(
                f"column {self.name!r} of {self.where} has a null inside of the list of row "
                f"{row}; expected numbers only (a list itself may be null)"
            )
        if not len(inner):
            if not pat.is_floating(inner.type):
                return np.empty(0, np.int64)
            return np.empty(0, self._dtype or number_dtype(inner.type))
        if not (pat.is_integer(inner.type) or pat.is_floating(inner.type)):
            raise TypeError(
                f"column {self.name!r} of {self.where} has lists of {inner.type}; expected "
                "integers or floats: hash other ids to int64 first"
            )
        assert len(inner) == lengths.sum()
        values = values_of(inner)
        if number_dtype(inner.type) == np.uint64:
            self._check_range(values, lengths)
            values = values.view(np.int64)
        wanted = self._dtype if values.dtype.kind == "f" and self._dtype else values.dtype
        return _cast(values, wanted, self.name)

    def _check_range(self, values: Array, lengths: Int64s) -> None:
        if values.max() > _LARGEST:
            first = int(np.argmax(values > _LARGEST))
            row = self._rows + int(np.searchsorted(np.cumsum(lengths), first, side="right"))
            raise OverflowError(
                f"column {self.name!r} of {self.where} has the id {values[first]} in row {row}, "
                "which exceeds int64; expected at most 2^63 - 1"
            )

    def finish(self) -> ListColumn:
        """Return the column after the last row; its parts are released."""
        offsets = np.zeros(self._rows + 1, np.int64)
        np.cumsum(np.concatenate([np.empty(0, np.int64), *self._lengths]), out=offsets[1:])
        filled = [one for one in self._values if len(one)]
        dtype = np.result_type(*(one.dtype for one in filled)) if filled else self._empty_dtype
        values = aligned_empty((int(offsets[-1]),), dtype)
        start = 0
        self._values.clear()
        for one in filled:
            values[start : start + len(one)] = one
            start += len(one)
        return ListColumn(self.name, values, offsets)


def _cast(values: Array, dtype: np.dtype[Any], name: str) -> Array:
    """Return a copy; a finite value must not become infinite."""
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype, copy=True)
    except FloatingPointError:
        raise OverflowError(
            f"column {name!r} has values that are too large for dtype={dtype}"
        ) from None
