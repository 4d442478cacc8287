"""Arrow arrays to NumPy: what each Arrow type becomes, batch by batch or without a copy.

Arrow type                            becomes
floats, integers                      the same dtype; another float if `dtype` asks for one
bool (one bit a row)                  bool (one byte a row)
dictionary of strings, strings        int32 codes and their names
dictionary of numbers                 the numbers
timestamp, date (time column only)    datetime64 of the same unit
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData, aligned_empty
from windeck.columns.dtypes import Array, Bits, Bools

#: A column's categories: True for "as they come", or their names in the order of their codes.
Names = bool | tuple[str, ...]


def is_string(kind: Any) -> bool:
    """Tell whether an Arrow type is one of the string types (dictionaries not counted)."""
    view = getattr(pat, "is_string_view", lambda _: False)(kind)
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or view)


def is_category(kind: Any) -> bool:
    """Tell whether an Arrow type is a string type or a dictionary of one."""
    return is_string(kind.value_type if pat.is_dictionary(kind) else kind)


def plain(kind: Any) -> Any:
    """The type without its encoding, by which columns of several files are compared."""
    kind = kind.value_type if pat.is_dictionary(kind) else kind
    return pa.string() if is_string(kind) else kind


def number_dtype(kind: Any) -> np.dtype[Any]:
    """The NumPy dtype of an Arrow type of numbers or bools; pyarrow's own asks pandas."""
    if pat.is_boolean(kind):
        return np.dtype(np.bool_)
    sort = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{sort}{kind.bit_width // 8}")


def value_dtype(name: str, kind: Any, dtype: np.dtype[Any] | None, where: str) -> np.dtype[Any]:
    """The NumPy dtype a value column of Arrow type `kind` is kept in.

    Raises
    ------
    TypeError
        The type has no place in a table; the message names the column, the file and the type.
    """
    kind = plain(kind)
    if is_string(kind):
        return np.dtype(np.int32)
    if pat.is_floating(kind):
        return number_dtype(kind) if dtype is None else dtype
    if pat.is_integer(kind) or pat.is_boolean(kind):
        return number_dtype(kind)
    raise TypeError(f"column {name!r} of {where} is {kind}; {_way_out(kind)}")


def _way_out(kind: Any) -> str:
    if pat.is_null(kind):
        return "it holds no value at all; leave it out of columns="
    if pat.is_temporal(kind):
        return "name it as timestamp_column=, or leave it out of columns="
    if pat.is_decimal(kind):
        return "expected a number; write it as float64, or leave it out of columns="
    return "expected numbers, bools, or strings as categories; leave it out of columns="


def time_dtype(name: str, kind: Any, where: str) -> np.dtype[Any]:
    """The NumPy dtype of a time column: datetime64 or an integer."""
    if pat.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if pat.is_date(kind):
        return np.dtype("datetime64[D]" if pat.is_date32(kind) else "datetime64[ms]")
    if pat.is_integer(kind) and not pat.is_uint64(kind):
        return np.dtype(np.int64)
    raise TypeError(
        f"timestamp column {name!r} of {where} is {kind}; expected timestamps, dates or integers"
    )


def validity_of(array: Any) -> tuple[Bits | None, int]:
    """The validity bitmap of an Arrow array and the bit its first row has; None without nulls."""
    bitmap = array.buffers()[0]
    if array.null_count == 0 or bitmap is None:
        return None, 0
    return np.frombuffer(bitmap, dtype=np.uint8), array.offset


def valid_rows(array: Any) -> Bools | None:
    """Which rows hold a value, or None if all do."""
    bitmap, offset = validity_of(array)
    return None if bitmap is None else bitmaps.unpack(bitmap, offset, offset + len(array))


def values_of(array: Any) -> Array:
    """The values of a primitive Arrow array: a view, but for bools, whose bits are unpacked."""
    buffer, start, stop = array.buffers()[1], array.offset, array.offset + len(array)
    if pat.is_boolean(array.type):
        if buffer is None:
            return np.zeros(len(array), dtype=np.bool_)
        return bitmaps.unpack(np.frombuffer(buffer, dtype=np.uint8), start, stop)
    dtype = number_dtype(array.type)
    if buffer is None:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=stop)[start:]


def decoded(array: Any) -> Any:
    """Dictionaries of numbers as numbers; anything else as it is."""
    if pat.is_dictionary(array.type) and not is_category(array.type):
        return array.dictionary_decode()
    return array


@dataclass
class Vocabulary:
    """The names of a column's categories, met in the order of their first appearance."""

    name: str
    fixed: bool = False
    codes: dict[str, int] = field(default_factory=dict)
    _last: Any = None
    _last_map: Array | None = None

    @classmethod
    def of(cls, name: str, names: Names) -> Vocabulary:
        """Open (True), or limited to the names given, whose places are their codes."""
        if isinstance(names, bool):
            return cls(name)
        return cls(name, True, {text: code for code, text in enumerate(names)})

    def encode(self, array: Any) -> tuple[Array, Bools | None]:
        """Codes of the rows (int32, -1 where null), and which rows hold a value."""
        array = as_dictionary(array)
        codes = values_of(array.indices).astype(np.int32)
        valid = valid_rows(array.indices)
        if valid is not None:
            codes[~valid] = -1
        mapped = self._mapping(array.dictionary)
        if mapped is not None:
            codes = np.append(mapped, np.int32(-1))[codes]
        if self.fixed and (codes == -2).any():
            self._refuse(array, int(np.argmax(codes == -2)))
        return codes, valid

    def _mapping(self, dictionary: Any) -> Array | None:
        """Codes of a batch's dictionary, kept while batches share it; None if they are ours."""
        if self._last is None or not dictionary.equals(self._last):
            texts = dictionary.to_pylist()
            for text in texts if not self.fixed else ():
                self.codes.setdefault(text, len(self.codes))
            mapped = np.array([self.codes.get(text, -2) for text in texts], dtype=np.int32)
            same = np.array_equal(mapped, np.arange(len(mapped)))
            self._last, self._last_map = dictionary, None if same else mapped
        return self._last_map

    def _refuse(self, array: Any, row: int) -> None:
        known = ", ".join(map(repr, list(self.codes)[:8]))
        raise ValueError(
            f"column {self.name!r} holds {array[row].as_py()!r}; its categories are {known}"
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.codes)


def as_dictionary(array: Any) -> Any:
    """Strings or a dictionary of strings as a dictionary whose own entries are never null."""
    if not pat.is_dictionary(array.type):
        if not (pat.is_string(array.type) or pat.is_large_string(array.type)):
            array = array.cast(pa.large_string())
        return array.dictionary_encode()
    if array.dictionary.null_count:
        return array.dictionary_decode().cast(pa.large_string()).dictionary_encode()
    return array


class ColumnBuilder:
    """Fills one column batch by batch into memory laid out beforehand.

    Parameters
    ----------
    name : str
    rows : int
        How many rows will come.
    out : ndarray, shape (rows,), optional
        Where the values go (a strided column of a row-major matrix); allocated if not given.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        dtype: np.dtype[Any],
        *,
        names: Names | None = None,
        out: Array | None = None,
    ) -> None:
        self.name, self.rows, self.filled, self.missing = name, rows, 0, 0
        self.values = aligned_empty((rows,), dtype) if out is None else out
        self.validity: Bits | None = None
        self.vocabulary = None if names is None else Vocabulary.of(name, names)

    def append(self, array: Any) -> None:
        """Take the next rows. Null slots become NaN, 0, False or code -1, so nothing is garbage."""
        array = decoded(array)
        stop = self.filled + len(array)
        if stop > self.rows:
            raise ValueError(f"column {self.name!r} holds more than the {self.rows} rows promised")
        valid: Bools | None
        if pat.is_null(array.type):
            values, valid = self._nothing(len(array))
        elif self.vocabulary is not None:
            values, valid = self.vocabulary.encode(array)
        else:
            values, valid = values_of(array), valid_rows(array)
        self._store(values, valid, self.values[self.filled : stop])
        self.filled = stop

    def _nothing(self, rows: int) -> tuple[Array, Bools]:
        values = np.full(rows, 0 if self.vocabulary is None else -1, dtype=self.values.dtype)
        return values, np.zeros(rows, dtype=np.bool_)

    def _store(self, values: Array, valid: Bools | None, place: Array) -> None:
        if valid is not None:
            self._mark(valid)
            values = self._without_garbage(values, valid)
        self._copy(values, place)
        if place.dtype.kind == "f":
            self.missing += int(np.count_nonzero(np.isnan(place)))
        elif valid is not None:
            self.missing += len(valid) - int(np.count_nonzero(valid))

    def _mark(self, valid: Bools) -> None:
        if self.validity is None:
            self.validity = bitmaps.all_set(self.rows)
        bitmaps.write(self.validity, self.filled, valid)

    def _without_garbage(self, values: Array, valid: Bools) -> Array:
        blank = np.nan if values.dtype.kind == "f" else 0 if self.vocabulary is None else -1
        return np.where(valid, values, values.dtype.type(blank))

    def _copy(self, values: Array, place: Array) -> None:
        if place.dtype.kind == "M":
            place = place.view(np.int64)
        elif place.dtype.kind == "f" and values.dtype.kind == "f":
            self._cast(values, place)
            return
        np.copyto(place, values, casting="safe")

    def _cast(self, values: Array, place: Array) -> None:
        """Between floating dtypes; a finite value must not become infinite."""
        try:
            with np.errstate(over="raise"):
                np.copyto(place, values, casting="same_kind")
        except FloatingPointError:
            limit = float(np.finfo(place.dtype).max)
            row = int(np.argmax(np.isfinite(values) & (np.abs(values) > limit)))
            raise OverflowError(
                f"column {self.name!r} holds {values[row]} in row {self.filled + row}, too large "
                f"for the dtype asked for, {place.dtype}"
            ) from None

    def finish(self) -> ColumnData:
        """The column, once every row has come."""
        if self.filled != self.rows:
            raise ValueError(
                f"column {self.name!r} ends after {self.filled} of the {self.rows} rows promised"
            )
        names = None if self.vocabulary is None else self.vocabulary.names
        return ColumnData(
            self.name, self.values, self.validity, 0, names, self.missing, self.values.dtype.name
        )


def view(name: str, array: Any, builder: ColumnBuilder) -> ColumnData | None:
    """An Arrow array as a column on the same memory, or None where that takes a conversion."""
    names: tuple[str, ...] | None = None
    array = decoded(array)
    if builder.vocabulary is not None:
        if builder.vocabulary.fixed or not pat.is_dictionary(array.type):
            return None
        texts = array.dictionary.to_pylist()
        if array.type.index_type.bit_width != 32 or None in texts or len(set(texts)) < len(texts):
            return None
        names, array = tuple(texts), array.indices
    if not pat.is_primitive(array.type) or pat.is_boolean(array.type):
        return None
    values = values_of(array)
    values = values.view(np.int32) if names is not None else values
    if builder.values.dtype.kind == "M" and values.dtype == np.int64:
        values = values.view(builder.values.dtype)
    if values.dtype != builder.values.dtype:
        return None
    validity, offset = validity_of(array)
    missing = array.null_count if values.dtype.kind != "f" else None
    return ColumnData(name, values, validity, offset, names, missing)
