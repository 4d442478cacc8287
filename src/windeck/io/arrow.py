"""Arrow IPC files and streams."""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from windeck.io.footers import ipc_layout
from windeck.io.formats import check, cut, in_portions, naming, overlapping, places

# Linux's value: Python has had a name for it only since 3.13.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


class IpcFile:
    """Arrow IPC (Feather version 2), file or stream: mapped, so other columns are not touched."""

    kind = "Arrow IPC"

    def __init__(self, path: str, *, stream: bool = False) -> None:
        self.path, self._stream = path, stream
        with naming(path, self.kind), pa.memory_map(path) as source:
            reader = self._open(source)
            self._schema = reader.schema
            _ = self._schema.names  # which are decoded only here, if they can be
            listed = None if stream else reader.num_record_batches
            self._rows, self.compressed = ipc_layout(path, listed)
        if listed not in (None, len(self._rows)):
            raise ValueError(
                f"{path!r} cannot be read as Arrow IPC: its footer lists {listed} record batches, "
                f"but {len(self._rows)} are there"
            )

    def _open(self, source: Any, fields: Sequence[int] = ()) -> Any:
        """A reader of all fields, as views of the source, or of some, which copies batches."""
        options = pa.ipc.IpcReadOptions(included_fields=list(fields))
        opener = pa.ipc.open_stream if self._stream else pa.ipc.open_file
        return opener(source, options=options)

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
        left = os.path.getsize(self.path) - int(sum(fixed)) * self.num_rows // 8
        return max(left, 0) // max(loose, 1)

    def prepared(self, names: Sequence[str]) -> IpcFile:
        return self

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)] if self.compressed else in_portions(names, self.num_rows)

    @property
    def beside(self) -> int:
        """A compressed batch is copied as a whole, and its columns decompressed as a whole."""
        return 2 * os.path.getsize(self.path) // max(len(self._rows), 1) if self.compressed else 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        with naming(self.path, self.kind), open(self.path, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            mapped = pa.py_buffer(pages)
            parts, skipped = overlapping(self._rows, start, stop)
            read = self._picked(mapped, names, parts)
            for batch in cut(read, start - skipped, stop - skipped):
                yield batch
                if self.compressed:
                    pages.madvise(mmap.MADV_DONTNEED)
                else:
                    _let_go(pages, mapped, batch)

    def _picked(self, pages: Any, names: Sequence[str], parts: Sequence[int]) -> Iterator[Any]:
        """Batches with just these columns: views of the pages, if they are not compressed."""
        fields = places(self._schema, names, self.path)
        some = self.compressed and len(fields) < len(self._schema.names)
        reader = self._open(pa.BufferReader(pages), fields if some else ())
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
        with naming(self.path, self.kind), open(self.path, "rb") as file:
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _MAP_NORESERVE)
            access = mmap.PROT_READ | mmap.PROT_WRITE
            pages = pa.py_buffer(mmap.mmap(file.fileno(), 0, flags=flags, prot=access))
            # Arrow copies out of memory it may write to; this says that it may not.
            pages = pa.foreign_buffer(pages.address, pages.size, base=pages)
            parts = [part for part, rows in enumerate(self._rows) if rows]
            batches = [batch for batch in self._picked(pages, names, parts) if batch.num_rows]
            for batch in batches:
                check(batch)
            return batches


def _let_go(pages: mmap.mmap, mapped: Any, batch: Any) -> None:
    """Let the system have back the pages of rows that have been copied.

    They are only a view of the file, but would count as this process's memory until it is full.
    """
    for column in batch.columns:
        if pa.types.is_primitive(column.type) and not pa.types.is_boolean(column.type):
            width = column.type.bit_width // 8
            first = column.buffers()[1].address - mapped.address + column.offset * width
            start = first // mmap.PAGESIZE * mmap.PAGESIZE
            if 0 <= start < mapped.size:
                pages.madvise(mmap.MADV_DONTNEED, start, first + len(column) * width - start)
