"""Arrow IPC files and streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from windeck.io import filesystem
from windeck.io.filesystem import MappedFile
from windeck.io.footers import ipc_layout
from windeck.io.formats import check, column_of, cut, in_portions, naming, overlapping, places

_KIND = "Arrow IPC"


def open_reader(source: Any, fields: Sequence[int] = (), *, stream: bool = False) -> Any:
    """Open a reader of all fields, as views of the source, or of some, which copies batches."""
    options = pa.ipc.IpcReadOptions(included_fields=list(fields))
    opener = pa.ipc.open_stream if stream else pa.ipc.open_file
    return opener(source, options=options)


def count_batches(path: str) -> int:
    """Return the number of record batches that the footer of a file lists."""
    with naming(path, _KIND), filesystem.open_input(path) as source:
        return int(open_reader(source).num_record_batches)


def read_column(path: str, column: str, check_schema: Callable[[Any], object]) -> Any:
    """Read one column of a file into memory, as a ChunkedArray that keeps empty batches."""
    with naming(path, _KIND), filesystem.open_input(path) as source:
        schema = open_reader(source).schema
        check_schema(schema)
        fields = [schema.get_field_index(column)]
        return column_of(open_reader(source, fields).read_all(), column)


def map_column(
    file: MappedFile, path: str, column: str, check_schema: Callable[[Any], object]
) -> Any | None:
    """Return one column as views of a mapped file; None if the file is compressed."""
    with naming(path, _KIND):
        reader = open_reader(pa.BufferReader(file.buffer))
        check_schema(reader.schema)
        if _decompresses(reader, column, file.buffer):
            return None
        # All columns, of which only addresses are used: a reader of some would copy.
        return column_of(reader.read_all(), column)


def _decompresses(reader: Any, column: str, mapped: Any) -> bool:
    """Return True if values of the first batch lie outside of the file."""
    if not reader.num_record_batches:
        return False
    buffers = reader.get_batch(0).column(column).buffers()
    starts = [buffer.address - mapped.address for buffer in buffers if buffer and buffer.size]
    return not all(0 <= start < mapped.size for start in starts)


class IpcFile:
    """Arrow IPC (Feather version 2), file or stream: mapped, so other columns are not touched."""

    kind = _KIND

    def __init__(self, path: str, *, stream: bool = False) -> None:
        self.path, self._stream = path, stream
        with naming(path, self.kind), filesystem.map_file(path) as mapped:
            reader = open_reader(pa.BufferReader(mapped.buffer), stream=stream)
            self._schema = reader.schema
            _ = self._schema.names  # which are decoded only here, if they can be
            listed = None if stream else reader.num_record_batches
            self._rows, self.compressed = ipc_layout(mapped.buffer, listed)
        if listed not in (None, len(self._rows)):
            raise ValueError(
                f"{path!r} cannot be read as Arrow IPC: its footer lists {listed} record batches, "
                f"but {len(self._rows)} are there"
            )

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return sum(self._rows)

    def text_bytes(self, name: str) -> int:
        """A guess, as a footer does not say: the file's bytes that fixed widths leave over."""
        fixed = [t.bit_width for t in self._schema.types if pa.types.is_primitive(t)]
        loose = len(self._schema.types) - len(fixed)
        left = filesystem.size(self.path) - int(sum(fixed)) * self.num_rows // 8
        return max(left, 0) // max(loose, 1)

    def prepared(self, names: Sequence[str]) -> IpcFile:
        return self

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)] if self.compressed else in_portions(names, self.num_rows)

    @property
    def beside(self) -> int:
        """A compressed batch is copied as a whole, and its columns decompressed as a whole."""
        return 2 * filesystem.size(self.path) // max(len(self._rows), 1) if self.compressed else 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        with naming(self.path, self.kind), filesystem.map_file(self.path) as mapped:
            parts, skipped = overlapping(self._rows, start, stop)
            read = self._picked(mapped.buffer, names, parts)
            for batch in cut(read, start - skipped, stop - skipped):
                yield batch
                if self.compressed:
                    mapped.release()
                else:
                    _release(mapped, batch)

    def _picked(self, pages: Any, names: Sequence[str], parts: Sequence[int]) -> Iterator[Any]:
        """Batches with just these columns: views of the pages, if they are not compressed."""
        fields = places(self._schema, names, self.path)
        some = self.compressed and len(fields) < len(self._schema.names)
        reader = open_reader(pa.BufferReader(pages), fields if some else (), stream=self._stream)
        for batch in self._each(reader, parts):
            yield batch.select(list(names) if some else fields)

    def _each(self, reader: Any, parts: Sequence[int]) -> Iterator[Any]:
        """Some batches, in order; a stream has to be read from its beginning for that."""
        if not self._stream:
            yield from map(reader.get_batch, parts)
        elif parts:
            yield from itertools.islice(reader, parts[0], parts[-1] + 1)

    def mapped(self, names: Sequence[str]) -> list[Any]:
        """All batches of an uncompressed file, whole; they keep it mapped as long as they live.

        The mapping is private and writable, so that a write through a tensor made of it changes
        neither the file nor brings the process down.
        """
        with (
            naming(self.path, self.kind),
            filesystem.map_file(self.path, copy_on_write=True) as mapped,
        ):
            pages = mapped.buffer
            # Arrow copies out of memory it may write to; this says that it may not.
            pages = pa.foreign_buffer(pages.address, pages.size, base=pages)
            parts = [part for part, rows in enumerate(self._rows) if rows]
            batches = [batch for batch in self._picked(pages, names, parts) if batch.num_rows]
            for batch in batches:
                check(batch)
            return batches


def _release(mapped: MappedFile, batch: Any) -> None:
    """Return the pages of rows that have been copied to the system."""
    for column in batch.columns:
        if pa.types.is_primitive(column.type) and not pa.types.is_boolean(column.type):
            width = column.type.bit_width // 8
            first = column.buffers()[1].address - mapped.buffer.address + column.offset * width
            mapped.release(first, len(column) * width)
