"""The three kinds of file a table is read from, behind one small interface.

Each kind opens by reading its metadata only; `batches` then yields record batches of just the
columns and rows asked for. Anything pyarrow raises on a damaged file comes out as a ValueError
that names the file.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from windeck.sources.ipcmessage import is_compressed

BATCH_ROWS = 1 << 16
_PAGE_BUFFER = 1 << 18
_COLUMNS, _VALUES = 16, 1 << 22
# Linux's value: Python has had a name for it only since 3.13.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0


class DataFile(Protocol):
    """One file: what it holds, and a way to read some columns of some rows."""

    path: str
    kind: str

    @property
    def schema(self) -> Any:
        """The Arrow schema of all columns."""

    @property
    def num_rows(self) -> int:
        """Rows in the file (exact once `prepared`)."""

    def text_bytes(self, name: str) -> int:
        """Bytes one column takes in the file, uncompressed: for columns of no fixed width."""

    def prepared(self, names: Sequence[str]) -> DataFile:
        """The file with its row count and types known for certain; reads CSV, nothing else."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """The columns in portions, each of which is read in one go with little memory beside."""

    @property
    def beside(self) -> int:
        """Bytes that reading takes for a while beside the columns themselves, where many."""

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        """Record batches of just these columns, which together are rows [start, stop)."""


def open_file(path: str) -> DataFile:
    """Open a file as what its first bytes say it is: Parquet, Arrow IPC, or else CSV.

    Raises
    ------
    ValueError
        The file is empty or damaged; the message names it.
    """
    from windeck.sources.csvfile import CsvFile

    if os.path.getsize(path) == 0:
        raise ValueError(f"{path!r} is empty (0 bytes)")
    with open(path, "rb") as file:
        head = file.read(8)
    name = path.lower()
    if head.startswith(b"PAR1") or name.endswith((".parquet", ".pq")):
        return ParquetFile(path)
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return IpcFile(path, stream=not head.startswith(b"ARROW1"))
    if name.endswith((".arrow", ".arrows", ".feather", ".ipc")):
        raise ValueError(f"{path!r} cannot be read as Arrow IPC: it begins with {head!r}")
    return CsvFile(path)


@contextlib.contextmanager
def naming(path: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow raises on damaged data into a ValueError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except pa.ArrowMemoryError as error:
        raise MemoryError(f"{path!r} cannot be read as {kind}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{path!r} cannot be read as {kind}: {reason}") from error


def places(schema: Any, names: Sequence[str], path: str) -> list[int]:
    """Places of these columns in a schema; each must be there exactly once."""
    found = {name: schema.get_all_field_indices(name) for name in names}
    for name, where in found.items():
        if len(where) != 1:
            raise ValueError(f"{path!r} has {len(where)} columns named {name!r}; expected one")
    return [where[0] for where in found.values()]


def in_portions(names: Sequence[str], rows: int) -> list[list[str]]:
    """A few columns of a long file at a time: each takes some MB of pages while it is read."""
    step = max(_COLUMNS, _VALUES // max(rows, 1))
    return [list(names[place : place + step]) for place in range(0, len(names), step)]


def cut(batches: Iterator[Any], start: int, stop: int) -> Iterator[Any]:
    """Rows [start, stop) of successive batches, checked, in portions of at most BATCH_ROWS."""
    done = 0
    for batch in batches:
        if done >= stop:
            return
        first, last = max(start - done, 0), min(stop - done, batch.num_rows)
        done += batch.num_rows
        if first < last:
            batch.validate(full=_has_offsets(batch.schema))
        for row in range(first, last, BATCH_ROWS):
            yield batch.slice(row, min(BATCH_ROWS, last - row))


def _has_offsets(schema: Any) -> bool:
    """Strings and dictionaries can point outside their data; looking for that costs a pass."""
    fixed = (pa.types.is_primitive, pa.types.is_null)
    return not all(any(test(kind) for test in fixed) for kind in schema.types)


class ParquetFile:
    """Parquet: row groups outside the rows asked for are never read, nor are other columns."""

    kind = "Parquet"

    def __init__(self, path: str) -> None:
        from pyarrow import parquet

        self.path = path
        with naming(path, self.kind), parquet.ParquetFile(path) as file:
            self._metadata, self._schema = file.metadata, file.schema_arrow
            _ = self._schema.names  # which are decoded only here, if they can be
        self._groups = range(self._metadata.num_row_groups)

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return int(self._metadata.num_rows)

    def text_bytes(self, name: str) -> int:
        return sum(
            size
            for path, size in self._sizes.items()
            if path == name or path.startswith(f"{name}.")
        )

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of each leaf column before compression, over all row groups."""
        sizes: dict[str, int] = {}
        for group in map(self._metadata.row_group, self._groups):
            for chunk in map(group.column, range(group.num_columns)):
                path = chunk.path_in_schema
                sizes[path] = sizes.get(path, 0) + chunk.total_uncompressed_size
        return sizes

    def prepared(self, names: Sequence[str]) -> ParquetFile:
        return self

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return in_portions(names, self.num_rows)

    @property
    def beside(self) -> int:
        return 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        from pyarrow import parquet

        places(self._schema, names, self.path)
        groups, skipped = self._overlapping(start, stop)
        texts = [name for name in names if _is_text(self._schema.field(name).type)]
        with (
            naming(self.path, self.kind),
            # So pages are read as they are decoded, not whole row groups beforehand.
            parquet.ParquetFile(
                self.path,
                metadata=self._metadata,
                read_dictionary=texts,
                buffer_size=_PAGE_BUFFER,
                pre_buffer=False,
            ) as file,
        ):
            read = file.iter_batches(BATCH_ROWS, row_groups=groups, columns=list(names))
            for batch in cut(read, start - skipped, stop - skipped):
                yield batch.select(list(names))

    def _overlapping(self, start: int, stop: int) -> tuple[list[int], int]:
        """Row groups that hold any of the rows, and how many rows lie before the first."""
        groups, skipped, row = [], 0, 0
        for group in self._groups:
            rows = self._metadata.row_group(group).num_rows
            if row + rows <= start:
                skipped += rows
            elif row < stop:
                groups.append(group)
            row += rows
        return groups, skipped


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


class IpcFile:
    """Arrow IPC (Feather version 2), file or stream: mapped, so other columns are not touched."""

    kind = "Arrow IPC"

    def __init__(self, path: str, *, stream: bool = False) -> None:
        self.path, self._stream = path, stream
        with naming(path, self.kind), pa.memory_map(path) as source:
            reader = self._open(source)
            self._schema = reader.schema
            _ = self._schema.names  # which are decoded only here, if they can be
            self._num_rows = self._count(source, reader)
            self._batches = 1 if stream else max(int(reader.num_record_batches), 1)
        self.compressed = is_compressed(path, stream=stream)

    def _open(self, source: Any, fields: Sequence[int] = ()) -> Any:
        """A reader of all fields, as views of the source, or of some, which copies batches."""
        options = pa.ipc.IpcReadOptions(included_fields=list(fields))
        opener = pa.ipc.open_stream if self._stream else pa.ipc.open_file
        return opener(source, options=options)

    def _count(self, source: Any, reader: Any) -> int:
        if hasattr(reader, "count_rows"):
            return int(reader.count_rows())
        source.seek(0)
        return sum(int(batch.num_rows) for batch in self._each(self._open(source, [0])))

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def text_bytes(self, name: str) -> int:
        """A guess, as a footer does not say: the file's bytes that fixed widths leave over."""
        fixed = [t.bit_width for t in self._schema.types if pa.types.is_primitive(t)]
        loose = len(self._schema.types) - len(fixed)
        left = os.path.getsize(self.path) - int(sum(fixed)) * self._num_rows // 8
        return max(left, 0) // max(loose, 1)

    def prepared(self, names: Sequence[str]) -> IpcFile:
        return self

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        return [list(names)] if self.compressed else in_portions(names, self.num_rows)

    @property
    def beside(self) -> int:
        """A compressed batch is copied as a whole, and its columns decompressed as a whole."""
        return 2 * os.path.getsize(self.path) // self._batches if self.compressed else 0

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        with naming(self.path, self.kind), open(self.path, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            mapped = pa.py_buffer(pages)
            for batch in cut(self._picked(mapped, names), start, stop):
                yield batch
                if self.compressed:
                    pages.madvise(mmap.MADV_DONTNEED)
                else:
                    _let_go(pages, mapped, batch)

    def _picked(self, pages: Any, names: Sequence[str]) -> Iterator[Any]:
        """All batches with just these columns: views of the pages, if it is not compressed."""
        fields = places(self._schema, names, self.path)
        some = self.compressed and len(fields) < len(self._schema.names)
        reader = self._open(pa.BufferReader(pages), fields if some else ())
        for batch in self._each(reader):
            yield batch.select(list(names) if some else fields)

    def _each(self, reader: Any) -> Iterator[Any]:
        if self._stream:
            yield from reader
        else:
            yield from map(reader.get_batch, range(reader.num_record_batches))

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
            batches = [batch for batch in self._picked(pages, names) if batch.num_rows]
            for batch in batches:
                batch.validate(full=_has_offsets(batch.schema))
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
