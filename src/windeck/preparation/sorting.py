"""Order of rows by ids and time, and conversion of their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windeck.columns.dtypes import Array, Int64s
from windeck.io.conversion import (
    decode_numbers,
    is_categorical,
    number_dtype,
    plain_numbers,
    time_dtype,
    to_dictionary,
    value_type,
    without_views,
)
from windeck.io.options import ReadOptions
from windeck.io.reading import id_builder

__all__ = ["SortKeys", "as_ticks", "cast_column", "gathered", "staged_column"]
__all__ += ["time_type"]

_CODES = pa.dictionary(pa.int32(), pa.string())


class SortKeys(NamedTuple):
    """Sort keys of rows: arrays of ids as integers, the texts of codes, and time.

    Codes ascend as their texts do, by their bytes in UTF-8.
    """

    ids: list[Array]
    texts: list[list[str] | None]
    ticks: Int64s | None
    rows: int

    @classmethod
    def of(cls, batch: Any, read: ReadOptions) -> SortKeys:
        """Return the keys of the rows of a record batch whose codes ascend."""
        columns = [batch.column(name) for name in read.ids]
        coded = [pa.types.is_dictionary(column.type) for column in columns]
        ids = [
            np.asarray(column.indices if codes else column)
            for column, codes in zip(columns, coded, strict=True)
        ]
        texts = [
            column.dictionary.to_pylist() if codes else None
            for column, codes in zip(columns, coded, strict=True)
        ]
        ticks = None if read.time is None else as_ticks(batch.column(read.time))
        return cls(ids, texts, ticks, batch.num_rows)

    def order(self) -> Any:
        """Return the rows by ids and time, as a stable sort has them."""
        keys = {f"id{place}": column for place, column in enumerate(self.ids)}
        if self.ticks is not None:
            keys["time"] = self.ticks
        if not keys:
            return pa.array(np.arange(self.rows, dtype=np.uint64))
        return pc.sort_indices(pa.table(keys), [(name, "ascending") for name in keys])

    def take(self, rows: Any) -> SortKeys:
        """Return the keys of some rows."""
        ticks = None if self.ticks is None else self.ticks[rows]
        return SortKeys([column[rows] for column in self.ids], self.texts, ticks, len(rows))

    def at(self, row: int) -> tuple[Any, ...]:
        """Return the ids of a row."""
        return tuple(
            int(column[row]) if texts is None else texts[column[row]]
            for column, texts in zip(self.ids, self.texts, strict=True)
        )

    def series_starts(self) -> Int64s:
        """Return the first row of each series; the rows are sorted."""
        changed = np.zeros(self.rows, dtype=np.bool_)
        changed[:1] = True
        for column in self.ids:
            changed[1:] |= column[1:] != column[:-1]
        return np.flatnonzero(changed).astype(np.int64)

    def repeated(self) -> Array:
        """Return True for each row with the ids and the time of the row before it."""
        same = np.zeros(self.rows, dtype=np.bool_)
        if self.ticks is not None:
            same[1:] = self.ticks[1:] == self.ticks[:-1]
            for column in self.ids:
                same[1:] &= column[1:] == column[:-1]
        return same


def as_ticks(array: Any) -> Int64s:
    """Return timestamps, dates or integers as int64, in their own unit."""
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    ticks: Int64s = np.asarray(array.cast(pa.int64()))
    return ticks


def time_type(kind: Any) -> Any:
    """Return a type that Parquet has: it has no seconds, and no dates of 64 bits."""
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.timestamp("ms") if pa.types.is_date64(kind) else kind


def staged_column(name: str, array: Any, read: ReadOptions, where: str, row: int) -> Any:
    """Return a column as it is sorted: ids as codes or integers, other strings as text.

    Parameters
    ----------
    where, row
        SourceFile file, and the number of the first row there, for messages.
    """
    array = without_views(array)
    if name in read.index_columns:
        array = _without_nulls(name, array, read, where, row)
        if name == read.time:
            time_dtype(name, array.type, repr(where))
        else:
            id_builder(name, array.type, 0, repr(where))
        if name in read.ids and is_categorical(array.type):
            coded = to_dictionary(array)
            texts = coded.dictionary.cast(pa.string())
            return pa.DictionaryArray.from_arrays(coded.indices.cast(pa.int32()), texts)
        array = decode_numbers(array)
        return _cast_times(name, array, where, row) if name == read.time else array
    if is_categorical(array.type):
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        return plain.cast(pa.string())
    array = plain_numbers(array)
    if read.dtype is not None and pa.types.is_floating(array.type):
        return _cast_floats(name, array, pa.from_numpy_dtype(read.dtype), where, row)
    return array


def _without_nulls(name: str, array: Any, read: ReadOptions, where: str, row: int) -> Any:
    nulls = array.is_null()
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        nulls = array.dictionary_decode().is_null()
    place = pc.index(nulls, True).as_py()
    if place >= 0:
        what = "id" if name in read.ids else "timestamp"
        raise ValueError(
            f"{what} column {name!r} of {where!r} is null in row {row + place}; expected "
            f"{'an id' if name in read.ids else 'a time'} in every row"
        )
    return array


def _cast_times(name: str, array: Any, where: str, row: int) -> Any:
    """Return time stamps in a type that Parquet has."""
    kind = time_type(array.type)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        unit, most = f"datetime64[{array.type.unit}]", np.iinfo(np.int64).max // 1000
        ticks = as_ticks(array)
        place = int(np.argmax((ticks > most) | (ticks < -most)))
        raise OverflowError(
            f"timestamp column {name!r} of {where!r} has {ticks[place : place + 1].view(unit)[0]} "
            f"in row {row + place}, which {kind} cannot hold"
        ) from None


def _cast_floats(name: str, array: Any, kind: Any, where: str, row: int) -> Any:
    """Cast between floating types; a finite value must not become infinite."""
    if array.type == kind:
        return array
    cast = array.cast(kind, safe=False)
    if kind.bit_width < array.type.bit_width:
        # Not `pc.is_inf`, which has no 16-bit floats.
        wide, narrow = (np.isinf(one.to_numpy(zero_copy_only=False)) for one in (array, cast))
        lost = narrow & ~wide
        if lost.any():
            place = int(np.argmax(lost))
            raise OverflowError(
                f"column {name!r} of {where!r} has {array[place].as_py()} in row {row + place}, "
                f"too large for dtype={number_dtype(kind)}"
            )
    return cast


def cast_column(name: str, array: Any, kind: Any, read: ReadOptions) -> Any:
    """Return a staged column in the type that all files have in common."""
    if name in read.index_columns or array.type == kind or pa.types.is_decimal(kind):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), value_type(kind))
    if pa.types.is_integer(array.type) and pa.types.is_floating(kind):
        try:  # Of CSV files, where other files have fractions.
            array = array.cast(pa.float64())
        except pa.ArrowInvalid as error:
            raise OverflowError(
                f"column {name!r} of a CSV file has integers that double, the type of other files, "
                f"does not hold: {str(error).splitlines()[0]}"
            ) from None
        return _cast_floats(name, array, kind, "a CSV file", 0)
    return array.cast(value_type(kind))


def gathered(
    batches: Sequence[Any], kinds: Mapping[str, Any], read: ReadOptions, names: Iterable[str]
) -> Any:
    """Return record batches as one, whose codes of ids ascend as their texts do."""
    columns = {}
    for name in names:
        parts = [cast_column(name, batch.column(name), kinds[name], read) for batch in batches]
        if name in read.ids and pa.types.is_dictionary(parts[0].type):
            columns[name] = _ascending(pa.chunked_array(parts, _CODES))
        else:
            columns[name] = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _ascending(chunked: Any) -> Any:
    """Return codes of strings in one array, equal for equal strings, and ascending."""
    chunks = chunked.unify_dictionaries().chunks
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    # A dictionary of a file may have a text twice.
    texts = array.dictionary.unique()
    texts = texts.take(pc.sort_indices(texts))
    codes = pc.index_in(array.dictionary, texts)
    indices = codes.take(array.indices)
    return pa.DictionaryArray.from_arrays(indices, texts)
