"""Reading of Parquet and Arrow IPC files in parts, by ranges of bytes.

A part is a row group or a record batch. Files are read through `filesystem.open_input` alone, never
mapped, so that memory is bounded and objects of another file system can be read as well.
"""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from windeck._util.parallel import run_in_threads
from windeck.columns.dtypes import Int64s
from windeck.io import filesystem
from windeck.io.arrow import open_reader
from windeck.io.clients import Version
from windeck.io.footers import (
    DICTIONARIES,
    BatchLayout,
    batch_layout,
    check_lengths,
    has_native_order,
    ipc_blocks,
)
from windeck.io.parquet import ParquetFile
from windeck.io.ranges import CONCURRENT_REQUESTS, RemoteReader, merge_ranges
from windeck.io.record_batches import column_indices, name_in_errors, overlapping_parts, validate

#: A column, and True for its validity bitmap.
_Key: TypeAlias = tuple[int, bool]

__all__ = [
    "PartedFile",
    "RangedIpcFile",
    "RangedParquetFile",
    "StoredFile",
    "open_parted",
    "unchanged",
]

#: Rows of an Arrow file that are read at a time.
RANGE_ROWS = 1 << 17
#: Bytes between two ranges of a local file that are read with them: the system reads pages.
GAP_BYTES = 1 << 12
#: The same if they are no more than this share of the bytes of both ranges.
MOST_GAP_BYTES, GAP_SHARE = 1 << 16, 1 / 16
#: Bytes of the columns of a row group, as stored, that are read at once.
GROUP_READ_BYTES = 1 << 24


class PartedFile(Protocol):
    """A file of columns that consists of parts; see `windeck.io.record_batches.DataFile`."""

    path: str
    kind: str

    @property
    def schema(self) -> Any: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def part_rows(self) -> list[int]:
        """Rows of each part."""

    def column_bytes(self, name: str) -> int:
        """Return the bytes of a column of variable width."""

    def stored_bytes(self, name: str) -> list[int]:
        """Return the bytes of a column in each part, as stored."""

    def first_bytes(self, name: str, rows: int) -> list[int]:
        """Return about how many bytes are read for the first rows of a column of each part."""

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column as the file's metadata counts them; None if unknown."""

    def splits(self, names: Sequence[str]) -> bool:
        """Return True if any rows of a part can be read without the others."""

    def content_digest(self) -> str:
        """Return a digest of the file's metadata."""

    def batches(
        self, names: Sequence[str], start: int, stop: int, *, reader: RemoteReader | None = None
    ) -> Iterator[Any]:
        """Yield record batches of some columns, together rows [start, stop).

        A remote file is read by `reader`, whose caller checks for changes, or opened.
        """


class StoredFile(NamedTuple):
    """A file as it was when it was opened.

    Its size in bytes, time of change in nanoseconds, ETag ("" without), and digest of its metadata.
    """

    file: PartedFile
    size: int
    modified: int
    tag: str
    digest: str


def open_parted(path: str) -> StoredFile:
    """Open a Parquet or Arrow IPC file by its first bytes. Reads its metadata.

    Raises
    ------
    ValueError
        The file is empty, damaged, or of another format.
    """
    with filesystem.RangeReader(path) as opened:
        # Of so few bytes as are needed two wrong answers could agree by chance.
        head = opened.read(0, 256)[:8]
        size, modified, tag = opened.size, opened.modified, opened.tag
    if size == 0:
        raise ValueError(f"{path!r} is empty (0 bytes)")
    file: PartedFile
    if head.startswith(b"PAR1"):
        file = RangedParquetFile(path)
    elif head.startswith(b"ARROW1"):
        file = RangedIpcFile(path)
    elif head.startswith(b"\xff\xff\xff\xff"):
        raise ValueError(
            f"{path!r} is an Arrow IPC stream, which has no footer; expected the file format for "
            "in_memory=False with several files or a memory_budget="
        )
    else:
        raise ValueError(
            f"{path!r} begins with {head!r}; expected Parquet or Arrow IPC for in_memory=False, "
            "which `windeck prepare` writes"
        )
    stored = StoredFile(file, size, modified, tag, file.content_digest())
    _check(stored)
    return stored


@contextlib.contextmanager
def unchanged(files: Sequence[StoredFile]) -> Iterator[list[RemoteReader | None]]:
    """Raise an error if one of some files changed since it was opened.

    Size and time of change are compared before and after the block, those of remote files by
    parallel requests. Yields the readers of remote files, which need not check again.

    Raises
    ------
    FileNotFoundError
        The file was deleted.
    ValueError
        The file was replaced, written to or truncated; the message names it.
    """
    readers = _check_all(files)
    try:
        yield readers
    except ValueError:
        _check_all(files)  # A change explains damage.
        raise
    _check_all(files)


def _check_all(files: Sequence[StoredFile]) -> list[RemoteReader | None]:
    remote = any(filesystem.is_remote(stored.file.path) for stored in files)
    threads = CONCURRENT_REQUESTS if remote else 1
    return run_in_threads(lambda number: _check(files[number]), len(files), threads, portion=1)


def _check(stored: StoredFile) -> RemoteReader | None:
    reader = filesystem.remote_reader(stored.file.path)
    if reader is None:
        with filesystem.RangeReader(stored.file.path) as now:
            found = Version(now.size, now.modified, now.tag)
    else:
        found = reader.version
    expected = Version(*stored[1:4])
    if found != expected:
        raise ValueError(
            f"{stored.file.path!r} changed while the table is in use: it has {_version(*found)}, "
            f"expected {_version(*expected)}; read the table again"
        )
    return reader


def _version(size: int, modified: int, tag: str) -> str:
    return f"{size} bytes and time {modified}" + (f" and ETag {tag}" if tag else "")


class RangedParquetFile(ParquetFile):
    """A Parquet file, of which row groups are read one by one: small ones by few requests."""

    def batches(
        self, names: Sequence[str], start: int, stop: int, *, reader: RemoteReader | None = None
    ) -> Iterator[Any]:
        """Yield record batches of some columns, together rows [start, stop)."""
        sizes = [self.stored_bytes(name) for name in names]
        row = 0
        for group, rows in enumerate(self.group_rows):
            first, last = max(start, row), min(stop, row + rows)
            row += rows
            if first >= last:
                continue
            small = sum(size[group] for size in sizes) <= GROUP_READ_BYTES
            # Of the first rows alone, the first pages are enough.
            whole = small and last == row
            yield from self._read(
                names, first, last, reader, whole_groups=whole, use_threads=not small
            )


class RangedIpcFile:
    """An Arrow IPC file, of which only the bytes of the columns and rows in use are read.

    Columns of fixed width are read by rows; of the others whole batches. Batches that are
    compressed, or of another byte order, are read by pyarrow as a whole.
    """

    kind = "Arrow IPC"

    def __init__(self, path: str) -> None:
        self.path = path
        state = hashlib.blake2b(digest_size=16)
        with name_in_errors(path, self.kind), filesystem.open_input(path) as source:
            self._schema = open_reader(source).schema
            _ = self._schema.names  # decodes them: they may not be UTF-8
            size = source.size()
            length = int.from_bytes(source.read_at(4, size - 10), "little")
            footer = source.read_at(length, size - 10 - length)
            state.update(footer)
            self._blocks = ipc_blocks(footer, size)
            self._dictionaries = ipc_blocks(footer, size, DICTIONARIES)
            self._checked: set[int] = set()  # Batches whose compressed buffers were checked.
            layouts = []
            for start, metadata, _ in self._blocks:
                message = source.read_at(metadata, start)
                state.update(message)
                layouts.append(batch_layout(message))
        self._digest = state.hexdigest()
        self._rows = [layout.rows for layout in layouts]
        compressed = any(layout.compressed for layout in layouts)
        self._decoded = compressed or not has_native_order(footer)
        self._places = _places(self._schema)
        for number, layout in enumerate(layouts):
            self._check(number, layout)
        self._layouts = layouts

    def _check(self, number: int, layout: BatchLayout) -> None:
        """Raise ValueError if contents of a batch are outside of it."""
        body = self._blocks[number][2]
        inside = (layout.buffers >= 0).all() and (layout.buffers[:, 0] <= body).all()
        inside = inside and (layout.buffers[:, 1] <= body - layout.buffers[:, 0]).all()
        last = self._places[-1]
        whole = len(layout.nodes) >= last.node and len(layout.buffers) >= last.buffer
        direct = [place.node for place in self._places if place.direct]
        if not (inside and whole and layout.rows >= 0) or (
            (layout.nodes[direct, 0] != layout.rows).any()
        ):
            raise ValueError(
                f"{self.path!r} cannot be read as {self.kind}: record batch {number} has contents "
                "outside of it, or columns of other lengths"
            )

    @property
    def schema(self) -> Any:
        return self._schema

    @property
    def num_rows(self) -> int:
        return sum(self._rows)

    @property
    def part_rows(self) -> list[int]:
        """Rows of each record batch."""
        return self._rows

    def stored_bytes(self, name: str) -> list[int]:
        """Return the bytes of a column in each record batch, as stored."""
        index = self._schema.get_field_index(name)
        place, after = self._places[index], self._places[index + 1]
        if place.buffer < 0 or after.buffer < 0:
            return [body // max(len(self._schema), 1) for _, _, body in self._blocks]
        return [int(one.buffers[place.buffer : after.buffer, 1].sum()) for one in self._layouts]

    def first_bytes(self, name: str, rows: int) -> list[int]:
        return self.stored_bytes(name)

    def column_bytes(self, name: str) -> int:
        return sum(self.stored_bytes(name))

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column by the metadata; None for nested ones."""
        node = self._places[self._schema.get_field_index(name)].node
        if node < 0 or any(node >= len(layout.nodes) for layout in self._layouts):
            return None
        return sum(int(layout.nodes[node, 1]) for layout in self._layouts)

    def splits(self, names: Sequence[str]) -> bool:
        """Return True if any rows of a part can be read without the others."""
        return not self._decoded and all(
            self._places[index].direct for index in column_indices(self._schema, names, self.path)
        )

    def content_digest(self) -> str:
        """Return a digest of the footer and of the metadata of all record batches."""
        return self._digest

    def batches(
        self, names: Sequence[str], start: int, stop: int, *, reader: RemoteReader | None = None
    ) -> Iterator[Any]:
        """Yield record batches of some columns, together rows [start, stop)."""
        fields = column_indices(self._schema, names, self.path)
        direct = [] if self._decoded else [i for i in fields if self._places[i].direct]
        others = [index for index in fields if index not in direct]
        schema = pa.schema([self._schema.field(index) for index in fields])
        # Some rows of an object are not a reason to load it into a cache.
        units = self._units(direct, start, stop) if direct else None
        with (
            name_in_errors(self.path, self.kind),
            filesystem.open_input(self.path, units, False, reader) as source,
        ):
            batches = open_reader(source, others) if others else None
            last, whole = -1, None
            for part, low, high in self._rows_by_part(start, stop):
                if batches is not None and part != last:
                    self._check_lengths(part)
                    last, whole = part, batches.get_batch(part)
                arrays = self._read(source, part, direct, low, high)
                if whole is not None:
                    rows = whole.slice(low, high - low)
                    validate(rows)
                    arrays |= {i: rows.column(self._schema.field(i).name) for i in others}
                yield pa.RecordBatch.from_arrays([arrays[i] for i in fields], schema=schema)

    def _check_lengths(self, part: int) -> None:
        """Check what compressed buffers of a batch and of dictionaries state, once for each."""
        if part in self._checked or not self._layouts[part].compressed:
            return
        with filesystem.RangeReader(self.path) as file:
            blocks = [(self._blocks[part], self._layouts[part])]
            if not self._checked:
                messages = file.read_many([(start, size) for start, size, _ in self._dictionaries])
                blocks += list(zip(self._dictionaries, map(batch_layout, messages), strict=True))
            for (start, metadata, _), layout in blocks:
                places = layout.buffers[layout.buffers[:, 1] >= 8, 0].tolist()
                heads = [(start + metadata + place, 8) for place in places]
                check_lengths(layout, file.read_many(heads))
        self._checked.add(part)

    def _rows_by_part(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, low, high) of rows [start, stop), no more than `RANGE_ROWS` at a time."""
        parts, row = overlapping_parts(self._rows, start, stop)
        for part in parts:
            rows = self._rows[part]
            first, last = max(start - row, 0), min(stop - row, rows)
            row += rows
            for low in range(first, last, RANGE_ROWS):
                yield part, low, min(low + RANGE_ROWS, last)

    def _units(
        self, columns: Sequence[int], start: int, stop: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield the ranges of bytes of columns of fixed width that are read together."""
        for part, low, high in self._rows_by_part(start, stop):
            body = sum(self._blocks[part][:2])
            found = self._ranges(part, columns, low, high).values()
            yield [(body + begin, body + end) for begin, end in found]

    def _ranges(
        self, part: int, columns: Sequence[int], low: int, high: int
    ) -> dict[_Key, tuple[int, int]]:
        """Return the bytes of rows [low, high) of columns of fixed width in the body of a batch."""
        layout = self._layouts[part]
        first = low - low % 8  # Bits are addressed by bytes.
        ranges: dict[_Key, tuple[int, int]] = {}
        for index in columns:
            kind, place = self._schema.field(index).type, self._places[index]
            bits, values = layout.buffers[place.buffer], layout.buffers[place.buffer + 1]
            if layout.nodes[place.node, 1] and bits[1]:
                ranges[index, True] = _range(bits, first // 8, (high + 7) // 8)
            if pa.types.is_boolean(kind):
                ranges[index, False] = _range(values, first // 8, (high + 7) // 8)
            else:
                width = kind.bit_width // 8
                ranges[index, False] = _range(values, first * width, high * width)
        return ranges

    def _read(
        self, source: Any, part: int, columns: Sequence[int], low: int, high: int
    ) -> dict[int, Any]:
        """Return rows [low, high) of columns of fixed width."""
        body, shift = sum(self._blocks[part][:2]), low % 8
        found = _read_ranges(source, body, self._ranges(part, columns, low, high))
        arrays = {}
        for index in columns:
            kind, validity = self._schema.field(index).type, found.get((index, True))
            nulls = -1 if validity is not None else 0
            buffers = [validity, found[index, False]]
            arrays[index] = pa.Array.from_buffers(kind, high - low, buffers, nulls, shift)
        return arrays


def _range(buffer: Int64s, start: int, stop: int) -> tuple[int, int]:
    """Return the bytes in the body of a record batch of bytes [start, stop) of a buffer."""
    offset, length = map(int, buffer)
    if stop > length:
        raise pa.ArrowInvalid(f"a buffer has {length} bytes, expected {stop} or more")
    return offset + start, offset + stop


def _read_ranges(source: Any, body: int, ranges: Mapping[_Key, tuple[int, int]]) -> dict[_Key, Any]:
    """Read ranges of bytes, neighbouring ones at once."""
    found: dict[_Key, Any] = {}
    spans = merge_ranges(ranges.values(), GAP_BYTES, MOST_GAP_BYTES, GAP_SHARE)
    data = []
    for begin, end in spans:
        data.append(pa.py_buffer(source.read_at(end - begin, body + begin)))
        if data[-1].size != end - begin:
            raise pa.ArrowInvalid("the file ends early")
    for key, (start, stop) in ranges.items():
        number = bisect_right(spans, start, key=itemgetter(0)) - 1
        found[key] = data[number].slice(start - spans[number][0], stop - start)
    return found


class _Place(NamedTuple):
    """First node and first buffer of a column in a record batch, -1 if they are unknown."""

    node: int
    buffer: int
    direct: bool


_UNKNOWN = _Place(-1, -1, False)


def _places(schema: Any) -> list[_Place]:
    """Return the place of each column, and the place after the last column."""
    places, counts = [], np.zeros(2, dtype=np.int64)
    known = True
    for kind in schema.types:
        direct = known and pa.types.is_primitive(kind) and kind.bit_width in (1, 8, 16, 32, 64)
        places.append(_place(counts, direct) if known else _UNKNOWN)
        added = _nodes_and_buffers(kind)
        known = known and added is not None
        counts = counts + (0 if added is None else added)
    places.append(_place(counts, False) if known else _UNKNOWN)
    return places


def _place(counts: Int64s, direct: bool) -> _Place:
    return _Place(int(counts[0]), int(counts[1]), direct)


def _nodes_and_buffers(kind: Any) -> Int64s | None:
    """Return the numbers of nodes and buffers of a column; None for types not known here."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _nodes_and_buffers(kind.storage_type)
    if types.is_dictionary(kind):
        return np.array([1, 2])
    if types.is_null(kind):
        return np.array([1, 0])
    fixed = (types.is_primitive, types.is_decimal, types.is_fixed_size_binary)
    if any(test(kind) for test in fixed):
        return np.array([1, 2])
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if any(test(kind) for test in texts):
        return np.array([1, 3])
    own = 2 if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind) else 1
    if own == 1 and not (types.is_struct(kind) or types.is_fixed_size_list(kind)):
        return None
    total = np.array([1, own])
    for number in range(kind.num_fields):
        child = _nodes_and_buffers(kind.field(number).type)
        if child is None:
            return None
        total = total + child
    return total
