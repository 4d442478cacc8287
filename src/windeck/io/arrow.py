"""Arrow IPC files and streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from windeck.io import filesystem
from windeck.io.filesystem import MappedFile
from windeck.io.footers import check_contents, ipc_layout
from windeck.io.record_batches import (
    column_indices,
    column_of,
    name_in_errors,
    overlapping_parts,
    slice_rows,
    split_columns,
    validate,
)

_KIND = "Arrow IPC"


def open_reader(source: Any, fields: Sequence[int] = (), *, stream: bool = False) -> Any:
    """Open a reader of all fields without a copy, or of some fields with a copy of each batch.

    All fields are read of a file with unions or run-end encoded columns. In metadata of version 4
    these have one buffer more, which pyarrow takes for that of another field when it skips them.
    """
    opener = pa.ipc.open_stream if stream else pa.ipc.open_file
    if fields:
        place = source.tell()
        kinds = opener(source).schema.types
        source.seek(place)
        fields = () if any(map(_depends_on_version, kinds)) else fields
    return opener(source, options=pa.ipc.IpcReadOptions(included_fields=list(fields)))


def _depends_on_version(kind: Any) -> bool:
    """Return True for a type whose buffers depend on the version of the metadata."""
    if isinstance(kind, pa.BaseExtensionType):
        return _depends_on_version(kind.storage_type)
    children = (kind.field(number).type for number in range(kind.num_fields))
    own = pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind)
    return own or any(map(_depends_on_version, children))


def count_batches(path: str) -> int:
    """Return the number of record batches in the footer of a file."""
    with name_in_errors(path, _KIND), filesystem.open_input(path) as source:
        return int(open_reader(source).num_record_batches)


def read_schema(path: str) -> Any:
    """Return the schema in the footer of a file."""
    with name_in_errors(path, _KIND), filesystem.open_input(path) as source:
        schema = open_reader(source).schema
        _ = schema.names  # Names are decoded on access, and fail here if damaged.
        return schema


def read_column(
    path: str, column: str, check_schema: Callable[[Any], object], *, stream: bool = False
) -> Any:
    """Read one column of a file into memory.

    Parameters
    ----------
    check_schema
        Called with the schema; raises an error for a column of another type.
    stream
        Whether it is a stream, which has no footer.

    Returns
    -------
    pyarrow.ChunkedArray
        A chunk for each record batch, also for an empty one.
    """
    with name_in_errors(path, _KIND), filesystem.open_input(path) as source:
        schema = open_reader(source, stream=stream).schema
        check_schema(schema)
        with filesystem.map_file(path) as mapped:
            _check_contents(mapped.buffer, stream=stream)
        fields = [schema.get_field_index(column)]
        source.seek(0)
        return column_of(open_reader(source, fields, stream=stream).read_all(), column)


def map_column(
    file: MappedFile,
    path: str,
    column: str,
    check_schema: Callable[[Any], object],
    *,
    stream: bool = False,
) -> Any | None:
    """Return one column as views of a mapped file, None if it is decoded; see `read_column`."""
    with name_in_errors(path, _KIND):
        reader = open_reader(pa.BufferReader(file.buffer), stream=stream)
        check_schema(reader.schema)
        _check_contents(file.buffer, stream=stream)
        if _is_decoded(file.buffer, column, stream=stream):
            return None
        # A reader of all columns makes views; a reader of some would copy.
        return column_of(reader.read_all(), column)


def _check_contents(contents: Any, *, stream: bool) -> None:
    """Raise pyarrow.ArrowInvalid for compressed buffers that state too many bytes."""
    count = None if stream else open_reader(pa.BufferReader(contents)).num_record_batches
    check_contents(contents, count)


def _is_decoded(mapped: Any, column: str, *, stream: bool) -> bool:
    """Return True if the first batch has values outside of the file.

    As decompression makes, and the change of another byte order.
    """
    reader = open_reader(pa.BufferReader(mapped), stream=stream)
    if stream:
        batch = next(iter(reader), None)
    else:
        batch = reader.get_batch(0) if reader.num_record_batches else None
    if batch is None:
        return False
    buffers = batch.column(column).buffers()
    starts = [buffer.address - mapped.address for buffer in buffers if buffer and buffer.size]
    return not all(0 <= start < mapped.size for start in starts)


class IpcFile:
    """An Arrow IPC (Feather version 2) file or stream, mapped: unused columns are not read."""

    kind = _KIND

    def __init__(self, path: str, *, stream: bool = False) -> None:
        self.path, self._stream = path, stream
        with name_in_errors(path, self.kind), filesystem.map_file(path) as mapped:
            reader = open_reader(pa.BufferReader(mapped.buffer), stream=stream)
            self._schema = reader.schema
            _ = self._schema.names  # decodes them: they may not be UTF-8
            listed = None if stream else reader.num_record_batches
            self._rows, self.decoded = ipc_layout(mapped.buffer, listed)

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return sum(self._rows)

    def column_bytes(self, name: str) -> int:
        """Return an equal share of the bytes that columns of fixed width do not take."""
        fixed = [t.bit_width for t in self._schema.types if pa.types.is_primitive(t)]
        variable = len(self._schema.types) - len(fixed)
        left = filesystem.size(self.path) - int(sum(fixed)) * self.num_rows // 8
        return max(left, 0) // max(variable, 1)

    def prepare(self, names: Sequence[str]) -> IpcFile:
        return self

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)] if self.decoded else split_columns(names, self.num_rows)

    @property
    def overhead_bytes(self) -> int:
        # A decoded batch is copied as a whole, and its columns are decoded as a whole.
        return 2 * filesystem.size(self.path) // max(len(self._rows), 1) if self.decoded else 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        with name_in_errors(self.path, self.kind), filesystem.map_file(self.path) as mapped:
            if self.decoded:
                _check_contents(mapped.buffer, stream=self._stream)
            parts, skipped = overlapping_parts(self._rows, start, stop)
            read = self._select(mapped.buffer, names, parts)
            for batch in slice_rows(read, start - skipped, stop - skipped):
                yield batch
                if self.decoded:
                    mapped.release()
                else:
                    _release(mapped, batch)

    def _select(self, pages: Any, names: Sequence[str], parts: Sequence[int]) -> Iterator[Any]:
        """Yield batches of some columns: views of the pages if they are not decoded."""
        fields = column_indices(self._schema, names, self.path)
        some = self.decoded and len(fields) < len(self._schema.names)
        reader = open_reader(pa.BufferReader(pages), fields if some else (), stream=self._stream)
        for batch in self._read(reader, parts):
            yield batch.select(list(names) if some else fields)

    def _read(self, reader: Any, parts: Sequence[int]) -> Iterator[Any]:
        """Yield some batches in order; a stream is read from its beginning."""
        if not self._stream:
            yield from map(reader.get_batch, parts)
        elif parts:
            yield from itertools.islice(reader, parts[0], parts[-1] + 1)

    @property
    def is_mappable(self) -> bool:
        """True if values need no copy: one record batch with rows, or none, not decoded."""
        return not self.decoded and sum(rows > 0 for rows in self._rows) <= 1

    def mapped(self, names: Sequence[str]) -> list[Any]:
        """Return all batches of a file that `is_mappable` as views, which keep it mapped.

        The mapping is private and writable: a write through a tensor neither changes the file nor
        crashes the process.
        """
        with (
            name_in_errors(self.path, self.kind),
            filesystem.map_file(self.path, copy_on_write=True) as mapped,
        ):
            pages = mapped.buffer
            # pyarrow copies from mutable buffers; a foreign buffer is immutable.
            pages = pa.foreign_buffer(pages.address, pages.size, base=pages)
            parts = [part for part, rows in enumerate(self._rows) if rows]
            batches = [batch for batch in self._select(pages, names, parts) if batch.num_rows]
            for batch in batches:
                validate(batch)
            return batches


def _release(mapped: MappedFile, batch: Any) -> None:
    """Return the pages of rows that have been copied to the system."""
    for column in batch.columns:
        if pa.types.is_primitive(column.type) and not pa.types.is_boolean(column.type):
            width = column.type.bit_width // 8
            first = column.buffers()[1].address - mapped.buffer.address + column.offset * width
            mapped.release(first, len(column) * width)
