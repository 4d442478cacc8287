"""Reading of some pages of Parquet files, so that row groups can be read in pieces.

pyarrow decodes a row group from its beginning. Here the pages of some rows of a column are given to
it as a file of their own, of one column and one row group, whose footer is made from that of the
file. Places of pages are in the page index of a file, or else in the headers of its pages.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from windeck.columns.dtypes import Int64s
from windeck.io.filesystem import RangeReader
from windeck.io.footers import ColumnChunk, page_header, page_index
from windeck.io.formats import BATCH_ROWS, slice_rows

__all__ = ["Pages", "cut_rows", "find_pages", "read_pages", "side_by_side"]

#: Bytes that are read to find the header of a page, and of headers that are close together.
HEADER_BYTES, HEADERS_BYTES = 1 << 12, 1 << 20
#: Bytes that are read at a time of a column.
_BUFFER = 1 << 18
#: Of a piece of a row group one part of this number may be read twice, or else the piece grows.
_SHARED_PART = 8
_MAGIC = b"PAR1"


class Pages(NamedTuple):
    """The pages of a column chunk.

    Attributes
    ----------
    chunk
        The column chunk.
    places
        int64 of shape (pages + 1,): first byte of each data page in the file, and the end.
    rows
        int64 of shape (pages + 1,): first row of each data page in the row group, and the end.
    """

    chunk: ColumnChunk
    places: Int64s
    rows: Int64s

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first page of rows [start, stop) and the page behind their last."""
        first = int(np.searchsorted(self.rows, start, side="right")) - 1
        return first, int(np.searchsorted(self.rows, stop, side="left"))

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of bytes in the file of rows [start, stop), with the dictionary."""
        low, high = self.places[list(self.span(start, stop))].tolist()
        dictionary = (self.chunk.start, self.chunk.start + self.chunk.dictionary_bytes)
        return [one for one in (dictionary, (low, high)) if one[0] < one[1]]

    def stored_bytes(self, start: int, stop: int) -> int:
        """Return the bytes that are read for rows [start, stop)."""
        return sum(high - low for low, high in self.ranges(start, stop))


def find_pages(file: RangeReader, chunk: ColumnChunk, rows: int) -> Pages | None:
    """Return the pages of a column chunk of a row group; None if they cannot be told.

    Reads the page index, or about 4 KiB for each page.
    """
    begin, end = chunk.start + chunk.dictionary_bytes, chunk.start + chunk.compressed_bytes
    if not 0 <= begin <= end <= file.size:
        return None
    try:
        found = _indexed(file, chunk) or list(_walk(file, begin, end))
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    places = np.array([*(place for place, _ in found), end], dtype=np.int64)
    firsts = np.array([*(row for _, row in found), rows], dtype=np.int64)
    whole = len(found) > 0 and places[0] == begin and firsts[0] == 0 and chunk.values == rows
    if not whole or (np.diff(places) <= 0).any() or (np.diff(firsts) <= 0).any():
        return None
    return Pages(chunk, places, firsts)


def _indexed(file: RangeReader, chunk: ColumnChunk) -> list[tuple[int, int]]:
    """Return place and first row of each page by the page index, [] without a usable one."""
    start, count = chunk.index_range
    if count <= 0 or not 0 <= start <= file.size - count:
        return []
    pages = page_index(file.read(start, count))
    ends = [place + size for place, size, _ in pages]
    last = chunk.start + chunk.compressed_bytes
    # Other pages may lie between those of data.
    if [place for place, _, _ in pages[1:]] != ends[:-1] or ends[-1:] != [last]:
        return []
    return [(place, row) for place, _, row in pages]


def _walk(file: RangeReader, place: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield place and first row of each data page, by their headers."""
    row, data, begin, window = 0, b"", place, HEADER_BYTES
    while place < end:
        header = page_header(data, place - begin) if begin <= place < begin + len(data) else None
        if header is None:
            if begin == place and data:
                window = 4 * len(data)
            if window > HEADERS_BYTES or (begin == place and begin + len(data) == end):
                raise ValueError(f"the header of the page at {place} is too long")
            begin, data = place, file.read(place, min(window, end - place))
            if not data:
                raise ValueError("the file ends early")
            continue
        size, rows, _ = header
        if size <= 0 or rows < 0:
            raise ValueError(f"the page at {place} has {size} bytes and {rows} rows")
        if rows:
            yield place, row
        row, place = row + rows, place + size
        window = HEADERS_BYTES if size < HEADERS_BYTES // 64 else HEADER_BYTES


def cut_rows(columns: Sequence[Pages], target: int, most: int) -> list[int]:
    """Return the rows at which a row group is cut into pieces, from 0 to all rows.

    The pages with the row at a cut are read for both pieces: windows reach into the second one.
    Pieces have `target` rows or more: they end at the first border of pages where these pages are
    few bytes of the piece, or where they are least up to `most` rows.
    """
    borders = np.unique(np.concatenate([pages.rows for pages in columns]))
    rows, shared = int(borders[-1]), np.zeros(len(borders))
    for pages in columns:
        page = np.minimum(np.searchsorted(pages.rows, borders, side="right"), len(pages.rows) - 1)
        shared += np.diff(pages.places)[page - 1] + pages.chunk.dictionary_bytes
    shared[-1] = 0
    row_bytes = sum(int(pages.places[-1] - pages.places[0]) for pages in columns) / rows
    cuts = [0]
    while cuts[-1] < rows:
        low = cuts[-1]
        first = int(np.searchsorted(borders, low + max(target, 1)))
        last = int(np.searchsorted(borders, low + max(most, 1), side="right"))
        if first >= last:  # A page is larger than the target.
            cuts.append(int(borders[min(first, len(borders) - 1)]))
            continue
        share = shared[first:last] / (row_bytes * (borders[first:last] - low))
        few = np.flatnonzero(share <= 1 / _SHARED_PART)
        cuts.append(int(borders[first + int(few[0] if len(few) else np.argmin(share))]))
    return cuts


_Span: TypeAlias = tuple[int, int]


class _PagesFile:
    """Some ranges of a file behind `_MAGIC`, as a file object."""

    def __init__(self, source: Any, ranges: Sequence[_Span]) -> None:
        self._source, self._ranges, self._place, self.closed = source, ranges, 0, False
        self._size = len(_MAGIC) + sum(stop - start for start, stop in ranges)

    def read(self, count: int = -1) -> bytes:
        left = self._size - self._place
        count = left if count is None or count < 0 else min(count, left)
        chunks = [_MAGIC[self._place : self._place + count]]
        count -= len(chunks[0])
        self._place += len(chunks[0])
        begin = len(_MAGIC)
        for start, stop in self._ranges:
            inside = self._place - begin
            if count and 0 <= inside < stop - start:
                chunk = self._source.read_at(min(count, stop - start - inside), start + inside)
                if not chunk:
                    raise pa.ArrowInvalid("the file ends early")
                chunks.append(chunk)
                self._place, count = self._place + len(chunk), count - len(chunk)
            begin += stop - start
        return b"".join(chunks)

    def seek(self, place: int, whence: int = 0) -> int:
        self._place = place + {0: 0, 1: self._place, 2: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        self.closed = True


def read_pages(
    source: Any,
    pages: Pages,
    field: Any,
    leaf: bytes,
    writer: bytes,
    rows: tuple[int, int],
    *,
    read_dictionary: bool,
) -> Iterator[Any]:
    """Yield arrays of some rows of a column chunk, by reading and decoding their pages alone.

    Parameters
    ----------
    source
        The file, a `pyarrow.NativeFile`.
    field
        The Arrow field of the column.
    leaf
        Its encoded schema element, from `windeck.io.footers.flat_leaves`.
    writer
        The writer that the footer names.
    rows
        First row in the row group, and the row behind the last.
    read_dictionary
        Return texts as dictionaries.
    """
    from pyarrow import parquet

    start, stop = rows
    first, last = pages.span(start, stop)
    begin, end = pages.rows[[first, last]].tolist()
    ranges = pages.ranges(start, stop)
    footer = _footer(pages.chunk, field, leaf, writer, end - begin, sum(b - a for a, b in ranges))
    tail = footer + len(footer).to_bytes(4, "little") + _MAGIC
    file = parquet.ParquetFile(
        pa.PythonFile(_PagesFile(source, ranges), mode="r"),
        metadata=parquet.read_metadata(pa.BufferReader(_MAGIC + tail)),
        read_dictionary=[field.name] if read_dictionary else None,
        buffer_size=_BUFFER,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    read = file.iter_batches(min(BATCH_ROWS, end - begin), use_threads=False)
    for batch in slice_rows(read, start - begin, stop - begin):
        yield batch.column(0)


def side_by_side(columns: Sequence[Iterator[Any]]) -> Iterator[list[Any]]:
    """Yield arrays of equal length of columns whose arrays have other lengths.

    Raises
    ------
    pyarrow.ArrowInvalid
        A column has fewer rows than another.
    """
    none = pa.nulls(0)
    held = [next(column, none) for column in columns]
    while any(map(len, held)):
        rows = min(map(len, held))
        if not rows:
            raise pa.ArrowInvalid("a column has fewer rows than another")
        yield [array.slice(0, rows) for array in held]
        for number, array in enumerate(held):
            left = array.slice(rows)
            held[number] = left if len(left) else next(columns[number], none)


def _footer(
    chunk: ColumnChunk, field: Any, leaf: bytes, writer: bytes, rows: int, size: int
) -> bytes:
    """Return the encoded footer of a file of some pages of one column behind `_MAGIC`."""
    schema = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
    begin = len(_MAGIC)
    dictionary = {11: begin} if chunk.dictionary_bytes else {}
    column = _struct(
        {
            1: _I32(chunk.kind),
            2: [_I32(one) for one in chunk.encodings],
            3: list(chunk.path),
            4: _I32(chunk.codec),
            5: rows,
            6: chunk.uncompressed_bytes,
            7: size,
            9: begin + chunk.dictionary_bytes,
            **dictionary,
        }
    )
    group = _struct({1: [_struct({2: begin, 3: column})], 2: size, 3: rows})
    root = _struct({4: b"schema", 5: _I32(1)})
    return _struct(
        {
            1: _I32(2),
            2: [root, _Struct(leaf)],
            3: rows,
            4: [group],
            5: [_struct({1: b"ARROW:schema", 2: schema})],
            6: writer,
        }
    )


class _Struct(bytes):
    """An encoded struct of Thrift."""


class _I32(int):
    """An integer of 32 bits."""


def _struct(fields: dict[int, Any]) -> _Struct:
    """Encode a struct in the compact protocol of Thrift; fields ascend, by steps of less than 16.

    Values are integers of 64 bits, `_I32`, bytes, structs, and lists of these that are not empty.
    """
    found, last = bytearray(), 0
    for number, value in fields.items():
        found.append((number - last) << 4 | _kind(value))
        found += _value(value)
        last = number
    return _Struct(found + b"\0")


def _kind(value: Any) -> int:
    """Return the number of a type in the compact protocol."""
    kinds = {_I32: 5, int: 6, bytes: 8, list: 9, _Struct: 12}
    return kinds[type(value)]


def _value(value: Any) -> bytes:
    if isinstance(value, _Struct):
        return bytes(value)
    if isinstance(value, list):
        return b"".join([bytes([0xF0 | _kind(value[0])]), _varint(len(value)), *map(_value, value)])
    if isinstance(value, bytes):
        return _varint(len(value)) + value
    return _varint(2 * value if value >= 0 else -2 * value - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
