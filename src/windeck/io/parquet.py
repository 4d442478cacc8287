"""Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from windeck._util.fingerprints import digest
from windeck.columns.dtypes import Int64s
from windeck.columns.times import time_text
from windeck.io import filesystem
from windeck.io.filesystem import DECOMPRESSED_BYTES
from windeck.io.footers import ColumnChunk, check_chunks, footer_bytes, parquet_footer
from windeck.io.ranges import RemoteReader
from windeck.io.record_batches import (
    BATCH_ROWS,
    column_indices,
    column_of,
    name_in_errors,
    overlapping_parts,
    slice_rows,
    split_columns,
)

_KIND = "Parquet"
_PAGE_BUFFER = 1 << 18
#: Bytes that are read at a time of a column of which only the first pages are needed.
_FIRST_PAGES_BUFFER = 1 << 15
#: The same of a remote file: a request costs more than the bytes of a page that are not needed.
_REMOTE_PAGES_BUFFER = 1 << 18
#: Numbers of the encodings DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY.
_DELTA_BYTES = {6, 7}
#: Rows of a page if nothing else is known.
_PAGE_ROWS = 1 << 12


def read_column(path: str, name: str) -> Any:
    """Read one column of a file into memory, as a ChunkedArray."""
    from pyarrow import parquet

    with name_in_errors(path, _KIND), filesystem.open_input(path) as source:
        file = parquet.ParquetFile(source)
        groups = range(file.metadata.num_row_groups)
        if _large_groups(file.metadata, groups):
            footer = parquet_footer(path)
            chunks = [] if footer is None else footer.groups  # pyarrow says what is damaged.
            check_chunks(one for group in chunks for one in group if one.path[0] == name.encode())
        return column_of(file.read(columns=[name]), name)


def _large_groups(metadata: Any, groups: Iterable[int]) -> list[int]:
    """Return those row groups of which a column may have too many bytes, see `check_chunks`.

    The column chunks of others need not be decoded, which takes longer than to read some.
    """
    return [i for i in groups if metadata.row_group(i).total_byte_size > DECOMPRESSED_BYTES]


def first_pages(chunk: ColumnChunk, count: int, rows: int, buffer: int) -> int:
    """Return about how many bytes the first `rows` of `count` rows take, with some for a page."""
    size = chunk.compressed_bytes
    if rows >= count:
        return size
    dictionary = chunk.dictionary_bytes
    return min(size, dictionary + (size - dictionary) * rows // count + buffer)


class ParquetFile:
    """A Parquet file, of which only the row groups and columns in use are read."""

    kind = _KIND

    def __init__(self, path: str) -> None:
        from pyarrow import parquet

        self.path = path
        #: Row groups and columns of which INT96 time stamps were checked.
        self._checked: set[tuple[int, str]] = set()
        with name_in_errors(path, self.kind), filesystem.open_input(path) as source:
            file = parquet.ParquetFile(source)
            self._metadata, self._schema = file.metadata, file.schema_arrow
            _ = self._schema.names  # decodes them: they may not be UTF-8

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return int(self._metadata.num_rows)

    def column_bytes(self, name: str) -> int:
        leaves = [chunk for group in self._chunks for chunk in group]
        return sum(leaf.uncompressed_bytes for leaf in leaves if leaf.path[:1] == (name.encode(),))

    @property
    def part_rows(self) -> list[int]:
        """Rows of each part, here of each row group."""
        return self.group_rows

    @cached_property
    def group_rows(self) -> list[int]:
        """Rows of each row group."""
        groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        return [int(group.num_rows) for group in groups]

    @cached_property
    def _chunks(self) -> list[list[ColumnChunk]]:
        """The column chunks of each row group."""
        footer = parquet_footer(self.path)
        if footer is None:
            raise ValueError(f"{self.path!r} cannot be read as Parquet: its footer is damaged")
        return footer.groups

    @cached_property
    def _delta_texts(self) -> set[bytes]:
        """Columns of an encoding that pyarrow does not decode as a dictionary."""
        chunks = chain.from_iterable(self._chunks)
        return {chunk.path[0] for chunk in chunks if _DELTA_BYTES.intersection(chunk.encodings)}

    def _reads_dictionary(self, name: str) -> bool:
        """Return True for texts that are decoded as a dictionary."""
        return _is_text(self._schema.field(name).type) and name.encode() not in self._delta_texts

    @cached_property
    def _stored_bytes(self) -> dict[bytes, list[int]]:
        """The bytes of every column in each row group, as stored."""
        found: dict[bytes, list[int]] = {}
        for number, group in enumerate(self._chunks):
            for chunk in group:
                sizes = found.setdefault(b"".join(chunk.path[:1]), [0] * len(self._chunks))
                sizes[number] += chunk.compressed_bytes
        return found

    def stored_bytes(self, name: str) -> list[int]:
        """Return the bytes of a column in each row group, as stored."""
        return self._stored_bytes.get(name.encode(), [0] * len(self._chunks))

    def first_bytes(self, name: str, rows: int) -> list[int]:
        """Return about how many bytes are read for the first rows of a column of each row group.

        They are the bytes of the dictionary and of pages.
        """
        buffer = _FIRST_PAGES_BUFFER
        if filesystem.is_remote(self.path):
            buffer = _REMOTE_PAGES_BUFFER
        return [
            sum(
                first_pages(chunk, count, max(rows, _PAGE_ROWS), buffer)
                for chunk in group
                if chunk.path[:1] == (name.encode(),)
            )
            for group, count in zip(self._chunks, self.group_rows, strict=True)
        ]

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column by the statistics in the footer; None if unknown."""
        total = 0
        for group in self._chunks:
            for chunk in group:
                if chunk.path[:1] == (name.encode(),):
                    if chunk.nulls is None:
                        return None
                    total += chunk.nulls
        return total

    def splits(self, names: Sequence[str]) -> bool:
        """Return False: pages of a row group are decoded from its beginning."""
        return False

    def _check_int96(
        self, names: Sequence[str], groups: Sequence[int], reader: RemoteReader | None
    ) -> None:
        """Raise OverflowError for a time stamp of 96 bits that nanoseconds of 64 bits cannot hold.

        pyarrow lets it wrap. Seconds hold it, and are compared, once for each row group.
        """
        for name in sorted(self._int96.intersection(names)):
            new = [group for group in groups if (group, name) not in self._checked]
            for group in new:
                units = self._units([name], [group], self.group_rows[group])
                with filesystem.open_input(self.path, units, True, reader) as source:
                    self._compare_int96(source, name, group)
            self._checked.update((group, name) for group in new)

    @cached_property
    def _int96(self) -> frozenset[str]:
        """Names of columns with time stamps of 96 bits, and of what these may be a part of."""
        schema = self._metadata.schema
        found: set[str] = set()
        for leaf in map(schema.column, range(len(schema))):
            if leaf.physical_type == "INT96":
                parts = leaf.path.split(".")
                found.update(".".join(parts[:stop]) for stop in range(1, len(parts) + 1))
        return frozenset(found)

    def _compare_int96(self, source: Any, name: str, group: int) -> None:
        from pyarrow import parquet

        row = sum(self.group_rows[:group])
        files = [
            parquet.ParquetFile(source, coerce_int96_timestamp_unit=unit, pre_buffer=False)
            for unit in ("ns", "s")
        ]
        read = [
            (batch.column(0) for batch in file.iter_batches(row_groups=[group], columns=[name]))
            for file in files
        ]
        for fine, coarse in zip(*read, strict=True):
            ticks, seconds = map(_flat_ticks, (fine, coarse))
            lost = ticks // 10**9 != seconds
            if lost.any():
                stamp = time_text(np.datetime64(int(seconds[np.argmax(lost)]), "s"))
                where = f"row {row + int(np.argmax(lost))}" if len(ticks) == len(fine) else "a list"
                raise OverflowError(
                    f"column {name!r} of {self.path!r} has the INT96 time stamp {stamp} in {where},"
                    " outside of the years 1677 to 2262 that nanoseconds hold; expected it in "
                    "microseconds, as Spark writes with "
                    "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"
                )
            row += len(fine)

    def content_digest(self) -> str:
        """Return a digest of the footer: schema, rows, sizes and statistics of all columns."""
        return digest(footer_bytes(self.path))

    def prepare(self, names: Sequence[str]) -> ParquetFile:
        return self

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        return split_columns(names, self.num_rows)

    @property
    def overhead_bytes(self) -> int:
        return 0

    def _units(
        self, names: Sequence[str], groups: Sequence[int], stop: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield the ranges of the columns, a unit for row groups with a batch of rows together.

        Of the last row group, of which rows up to `stop` are needed, about the first pages.
        """
        wanted, unit, rows = {name.encode() for name in names}, [], 0
        for group in groups:
            count = self.group_rows[group]
            for chunk in self._chunks[group]:
                if chunk.path[0] in wanted:
                    size = first_pages(chunk, count, stop, _REMOTE_PAGES_BUFFER)
                    unit.append((chunk.start, chunk.start + size))
            rows, stop = rows + count, stop - count
            if rows >= BATCH_ROWS:
                yield unit
                unit, rows = [], 0
        yield unit

    def batches(
        self, names: Sequence[str], start: int, stop: int, *, reader: RemoteReader | None = None
    ) -> Iterator[Any]:
        """Yield record batches of some columns, together rows [start, stop).

        A remote file is read by `reader`, whose caller checks for changes, or opened.
        """
        return self._read(names, start, stop, reader)

    def _read(
        self,
        names: Sequence[str],
        start: int,
        stop: int,
        reader: RemoteReader | None,
        *,
        whole_groups: bool = False,
        use_threads: bool = True,
    ) -> Iterator[Any]:
        """Yield record batches, as `batches` does.

        Parameters
        ----------
        whole_groups
            Read the column chunks of a row group as a whole before they are decoded, by this
            thread alone if they are small. Otherwise pages are read as they are decoded.
        use_threads
            Decode columns by Arrow's threads, each of which keeps memory.
        """
        from pyarrow import parquet

        column_indices(self._schema, names, self.path)
        groups, skipped = overlapping_parts(self.group_rows, start, stop)
        with name_in_errors(self.path, self.kind):
            self._check_int96(names, groups, reader)
        # Pages after the last row are neither read nor decoded.
        rows = max(min(BATCH_ROWS, stop - skipped), 1)
        buffer = _PAGE_BUFFER if rows == BATCH_ROWS else _FIRST_PAGES_BUFFER
        strings = [name for name in names if self._reads_dictionary(name)]
        with (
            name_in_errors(self.path, self.kind),
            filesystem.open_input(
                self.path, self._units(names, groups, stop - skipped), True, reader
            ) as source,
        ):
            wanted = {name.encode() for name in names}
            check_chunks(
                chunk
                for group in _large_groups(self._metadata, groups)
                for chunk in self._chunks[group]
                if chunk.path[0] in wanted
            )
            file = parquet.ParquetFile(
                source,
                metadata=self._metadata,
                read_dictionary=strings,
                buffer_size=0 if whole_groups else buffer,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            read: Iterator[Any]
            if whole_groups and all(self.group_rows[group] <= BATCH_ROWS for group in groups):
                # Half of the processor time of `iter_batches`, which starts threads.
                read = chain.from_iterable(
                    file.read_row_group(group, columns=list(names), use_threads=False).to_batches()
                    for group in groups
                )
            else:
                read = file.iter_batches(
                    rows, row_groups=groups, columns=list(names), use_threads=use_threads
                )
            for batch in slice_rows(read, start - skipped, stop - skipped):
                yield batch.select(list(names))


def _flat_ticks(array: Any) -> Int64s:
    """Return the time stamps of an array, or of its lists; null as 0."""
    while not pa.types.is_timestamp(array.type):
        array = array.flatten()
    return np.asarray(array.cast(pa.int64()).fill_null(0))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
