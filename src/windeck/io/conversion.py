"""Conversion of Arrow arrays to NumPy, batch by batch or without a copy.

Arrow type                            becomes
floats, integers                      the same dtype; another float if `dtype` asks for one
bool (one bit a row)                  bool (one byte a row)
dictionary of strings, strings        int32 codes and their names
dictionary of numbers                 the numbers
decimals                              floats, if `dtype` asks for them
null                                  floats, all of them missing
timestamp, date (time column only)    datetime64 of the same unit
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from windeck.columns import bitmaps
from windeck.columns.columns import ColumnData, aligned_empty
from windeck.columns.dtypes import Array, Bits, Bools, Int64s

#: Categories of a column: True for order of first appearance, or names in the order of codes.
CategoryNames = bool | tuple[str, ...]


def is_string(kind: Any) -> bool:
    """Return True for a string type of Arrow, False for a dictionary of strings."""
    view = getattr(pat, "is_string_view", lambda _: False)(kind)
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or view)


def is_categorical(kind: Any) -> bool:
    """Return True for a string type of Arrow, or a dictionary of one."""
    return is_string(kind.value_type if pat.is_dictionary(kind) else kind)


def value_type(kind: Any) -> Any:
    """Return the type without dictionary encoding, and ``string`` for any string type."""
    kind = kind.value_type if pat.is_dictionary(kind) else kind
    return pa.string() if is_string(kind) else kind


def number_dtype(kind: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of an Arrow type of numbers or bools."""
    # Not `to_pandas_dtype`, which imports pandas.
    if pat.is_boolean(kind):
        return np.dtype(np.bool_)
    sort = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{sort}{kind.bit_width // 8}")


def value_dtype(name: str, kind: Any, dtype: np.dtype[Any] | None, where: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a value column of Arrow type `kind`.

    Raises
    ------
    TypeError
        A table cannot hold the type; the message names the column, the file and the type.
    """
    kind = value_type(kind)
    if is_string(kind):
        return np.dtype(np.int32)
    if pat.is_floating(kind):
        return number_dtype(kind) if dtype is None else dtype
    if pat.is_null(kind) or (pat.is_decimal(kind) and dtype is not None):
        return np.dtype(np.float64) if dtype is None else dtype
    if pat.is_integer(kind) or pat.is_boolean(kind):
        return number_dtype(kind)
    raise TypeError(f"column {name!r} of {where} is {kind}; {_unsupported_hint(kind)}")


def value_dtypes(
    kinds: Mapping[str, Any], dtype: np.dtype[Any] | None, where: str
) -> dict[str, np.dtype[Any]]:
    """Return the NumPy dtypes of value columns, as `value_dtype` does.

    A column without any value has the floating dtype of the others, if they have one.
    """
    floats = {
        number_dtype(kind) for kind in map(value_type, kinds.values()) if pat.is_floating(kind)
    }
    common = floats.pop() if dtype is None and len(floats) == 1 else dtype
    return {
        name: value_dtype(name, kind, common if pat.is_null(kind) else dtype, where)
        for name, kind in kinds.items()
    }


def _unsupported_hint(kind: Any) -> str:
    if pat.is_temporal(kind):
        return "name it as timestamp_column=, or leave it out of columns="
    if pat.is_decimal(kind):
        return "pass dtype='float64' to read decimals as floats, or leave it out of columns="
    expected = "expected numbers, bools, or strings as categories; leave it out of columns="
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        expected += "; Table.from_series reads one row a series with its values in lists"
    return expected


def time_dtype(name: str, kind: Any, where: str) -> np.dtype[Any]:
    """Return the NumPy dtype of a time column: datetime64 or int64."""
    if pat.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if pat.is_date(kind):
        return np.dtype("datetime64[D]" if pat.is_date32(kind) else "datetime64[ms]")
    if pat.is_integer(kind) and not pat.is_uint64(kind):
        return np.dtype(np.int64)
    parsed = " (pandas.to_datetime and str.to_datetime of polars parse texts)"
    raise TypeError(
        f"timestamp column {name!r} of {where} is {kind}; expected timestamps, dates or integers"
        + (parsed if is_string(kind) else "")
    )


def time_zone(kind: Any) -> str | None:
    """Return the time zone of an Arrow type, None for times without one and for other types."""
    zone: str | None = kind.tz if pat.is_timestamp(kind) else None
    return zone


def validity_of(array: Any) -> tuple[Bits | None, int]:
    """Return the validity bitmap of an array, None without nulls, and the bit of its first row."""
    bitmap = array.buffers()[0]
    if array.null_count == 0 or bitmap is None:
        return None, 0
    return np.frombuffer(bitmap, dtype=np.uint8), array.offset


def valid_rows(array: Any) -> Bools | None:
    """Return True for each row that has a value, or None if all have."""
    bitmap, offset = validity_of(array)
    return None if bitmap is None else bitmaps.unpack(bitmap, offset, offset + len(array))


def values_of(array: Any) -> Array:
    """Return the values of a primitive Arrow array: a view, or for bools unpacked bits."""
    buffer, start, stop = array.buffers()[1], array.offset, array.offset + len(array)
    if pat.is_boolean(array.type):
        if buffer is None:
            return np.zeros(len(array), dtype=np.bool_)
        return bitmaps.unpack(np.frombuffer(buffer, dtype=np.uint8), start, stop)
    dtype = number_dtype(array.type)
    if buffer is None:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=stop)[start:]


def take_rows(data: Any, rows: Int64s) -> Any:
    """Return some rows of an Arrow array or record batch, as a copy."""
    # Not `pa.array(rows)`, which imports pandas.
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    return data.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)]))


def decode_numbers(array: Any) -> Any:
    """Decode a dictionary of numbers; return any other array as it is."""
    if pat.is_dictionary(array.type) and not is_categorical(array.type):
        return array.dictionary_decode()
    return array


def plain_numbers(array: Any) -> Any:
    """Return a dictionary of numbers as these, and decimals as float64; others as they are."""
    array = decode_numbers(array)
    if pat.is_decimal(array.type):
        # As text, which is rounded once: Arrow's own cast makes 19.990000000000002 of 19.99.
        return array.cast(pa.string()).cast(pa.float64())
    return array


@dataclass
class CategoryEncoder:
    """Encoder of strings as codes: their order of first appearance, or their place in `names`.

    Thread-safe if the names are fixed.
    """

    name: str
    fixed: bool = False
    codes: dict[str, int] = field(default_factory=dict)
    #: A dictionary and our codes of it: one object, which threads replace at once.
    _last: tuple[Any, Array | None] | None = None

    @classmethod
    def of(cls, name: str, names: CategoryNames) -> CategoryEncoder:
        """Return an encoder of any strings (True), or of the given ones alone."""
        if isinstance(names, bool):
            return cls(name)
        return cls(name, True, {text: code for code, text in enumerate(names)})

    def encode(self, array: Any) -> tuple[Array, Bools | None]:
        """Return the codes of the rows, int32 with -1 for null, and the mask of valid rows."""
        array = to_dictionary(array)
        codes = values_of(array.indices).astype(np.int32)
        valid = valid_rows(array.indices)
        if valid is not None:
            codes[~valid] = -1
        mapped = self._mapping(array.dictionary)
        if mapped is not None:
            codes = np.append(mapped, np.int32(-1))[codes]
        if self.fixed and (codes == -2).any():
            self._raise_unknown(array, int(np.argmax(codes == -2)))
        return codes, valid

    def _mapping(self, dictionary: Any) -> Array | None:
        """Return our codes of the entries of a dictionary; None if they equal its own.

        The result is kept for the next batch, which often has the same dictionary.
        """
        last = self._last
        if last is None or not dictionary.equals(last[0]):
            texts = dictionary.to_pylist()
            for text in texts if not self.fixed else ():
                self.codes.setdefault(text, len(self.codes))
            mapped = np.array([self.codes.get(text, -2) for text in texts], dtype=np.int32)
            same = np.array_equal(mapped, np.arange(len(mapped)))
            last = self._last = dictionary, None if same else mapped
        return last[1]

    def _raise_unknown(self, array: Any, row: int) -> None:
        known = ", ".join(map(repr, list(self.codes)[:8]))
        raise ValueError(
            f"column {self.name!r} has {array[row].as_py()!r}; its categories are {known}"
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.codes)


def kind_without_views(kind: Any) -> Any:
    """Return the type of `without_views` of an array."""
    if pat.is_dictionary(kind):
        return pa.dictionary(kind.index_type, kind_without_views(kind.value_type), kind.ordered)
    plain = pat.is_string(kind) or pat.is_large_string(kind)
    return pa.large_string() if is_string(kind) and not plain else kind


def without_views(array: Any) -> Any:
    """Return an array or a chunked array whose strings are no views, also in a dictionary.

    pyarrow has no functions to take or to cast these in a dictionary.
    """
    kind = kind_without_views(array.type)
    if kind == array.type:
        return array
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array(map(without_views, array.chunks), kind)
    if not pat.is_dictionary(kind):
        return array.cast(kind)
    texts = array.dictionary.cast(kind.value_type)
    return pa.DictionaryArray.from_arrays(array.indices, texts, ordered=kind.ordered)


def to_dictionary(array: Any) -> Any:
    """Return strings as a dictionary whose entries are not null."""
    array = without_views(array)
    if not pat.is_dictionary(array.type):
        if not (pat.is_string(array.type) or pat.is_large_string(array.type)):
            array = array.cast(pa.large_string())
        return array.dictionary_encode()
    if array.dictionary.null_count:
        return array.dictionary_decode().cast(pa.large_string()).dictionary_encode()
    return array


class ColumnBuilder:
    """A column that is filled batch by batch, in memory allocated at the beginning.

    Parameters
    ----------
    name : str
    rows : int
        Total number of rows.
    dtype : dtype
    names : bool or tuple of str, optional
        Categories of a string column.
    out : ndarray, shape (rows,), optional
        Memory for the values, such as a column of a row-major matrix; allocated if not given.
    zone : str, optional
        The time zone of timestamps.
    """

    def __init__(
        self,
        name: str,
        rows: int,
        dtype: np.dtype[Any],
        *,
        names: CategoryNames | None = None,
        out: Array | None = None,
        zone: str | None = None,
    ) -> None:
        self.zone = zone
        self.name, self.rows, self.filled, self.missing = name, rows, 0, 0
        self.values = aligned_empty((rows,), dtype) if out is None else out
        self.validity: Bits | None = None
        self.encoder = None if names is None else CategoryEncoder.of(name, names)

    def append(self, array: Any) -> None:
        """Append the next rows. Null becomes NaN, 0, False or code -1."""
        array = plain_numbers(array)
        stop = self.filled + len(array)
        if stop > self.rows:
            raise ValueError(
                f"column {self.name!r} has more than the {self.rows} rows of its metadata"
            )
        valid: Bools | None
        if pat.is_null(array.type):
            values, valid = self._null_rows(len(array))
        elif self.encoder is not None:
            values, valid = self.encoder.encode(array)
        else:
            values, valid = values_of(array), valid_rows(array)
        self._store(values, valid, self.values[self.filled : stop])
        self.filled = stop

    def of_rows(self, start: int, rows: int) -> ColumnBuilder:
        """Return a builder of rows [start, start + rows) in the memory of this one.

        Builders of different rows may be filled by different threads.
        """
        if self.encoder is not None and not self.encoder.fixed:
            raise ValueError(f"column {self.name!r} has categories in order of first appearance")
        out = self.values[start : start + rows]
        made = ColumnBuilder(self.name, rows, self.values.dtype, out=out)
        made.encoder = self.encoder
        return made

    def append_filled(self, builder: ColumnBuilder) -> None:
        """Append the next rows, which a builder of `of_rows` has been filled with."""
        found = builder.finish()
        if found.validity is not None:
            self._mark_valid(bitmaps.unpack(found.validity, 0, builder.rows))
        self.missing += builder.missing
        self.filled += builder.rows

    def _null_rows(self, rows: int) -> tuple[Array, Bools]:
        values = np.full(rows, 0 if self.encoder is None else -1, dtype=self.values.dtype)
        return values, np.zeros(rows, dtype=np.bool_)

    def _store(self, values: Array, valid: Bools | None, place: Array) -> None:
        if valid is not None:
            self._mark_valid(valid)
            values = self._blank_nulls(values, valid)
        self._copy(values, place)
        if place.dtype.kind == "f":
            self.missing += int(np.count_nonzero(np.isnan(place)))
        elif valid is not None:
            self.missing += len(valid) - int(np.count_nonzero(valid))

    def _mark_valid(self, valid: Bools) -> None:
        if self.validity is None:
            self.validity = bitmaps.all_set(self.rows)
        bitmaps.write(self.validity, self.filled, valid)

    def _blank_nulls(self, values: Array, valid: Bools) -> Array:
        blank = np.nan if values.dtype.kind == "f" else 0 if self.encoder is None else -1
        return np.where(valid, values, values.dtype.type(blank))

    def _copy(self, values: Array, place: Array) -> None:
        if place.dtype.kind == "M":
            place = place.view(np.int64)
        elif place.dtype.kind == "f" and values.dtype.kind == "f":
            self._cast(values, place)
            return
        np.copyto(place, values, casting="safe")

    def _cast(self, values: Array, place: Array) -> None:
        """Copy between floating dtypes; a finite value must not become infinite."""
        try:
            with np.errstate(over="raise"):
                np.copyto(place, values, casting="same_kind")
        except FloatingPointError:
            limit = float(np.finfo(place.dtype).max)
            row = int(np.argmax(np.isfinite(values) & (np.abs(values) > limit)))
            raise OverflowError(
                f"column {self.name!r} has {values[row]} in row {self.filled + row}, too large "
                f"for dtype={place.dtype}"
            ) from None

    def finish(self) -> ColumnData:
        """Return the column after the last row."""
        if self.filled != self.rows:
            raise ValueError(
                f"column {self.name!r} ends after {self.filled} rows, and its metadata says "
                f"{self.rows}"
            )
        names = None if self.encoder is None else self.encoder.names
        found = self.name, self.values, self.validity, 0, names, self.missing
        return ColumnData(*found, self.values.dtype.name, self.zone)


def as_view(name: str, array: Any, builder: ColumnBuilder) -> ColumnData | None:
    """Return an Arrow array as a column on the same memory, None if it has to be converted."""
    names: tuple[str, ...] | None = None
    array = plain_numbers(array)
    if builder.encoder is not None:
        if builder.encoder.fixed or not pat.is_dictionary(array.type):
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
    return ColumnData(name, values, validity, offset, names, missing, time_zone=builder.zone)
