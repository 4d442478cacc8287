"""Reading of any rows of many files into columns, in bounded memory."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windeck._util.lru_cache import LRUCache
from windeck._util.parallel import run_in_threads
from windeck._util.threads import Pool
from windeck.columns.columns import ALIGNMENT, ColumnData
from windeck.columns.dtypes import Array, Bools, Int64s
from windeck.io import filesystem
from windeck.io.blocks import StoredFile, unchanged
from windeck.io.conversion import CategoryNames, ColumnBuilder, take_rows
from windeck.io.ranges import CONCURRENT_REQUESTS, RemoteReader
from windeck.io.reading import cast_to_common
from windeck.io.record_batches import BATCH_ROWS

__all__ = ["ColumnForm", "RowReader"]

#: Bytes of decoded columns of parts, or of some rows of large ones, that are kept for the next
#: access to rows beside them.
CACHED_BYTES = 1 << 24
#: Bytes of first rows of parts that are kept, unless there is a memory budget.
HEAD_BYTES = 1 << 28
#: The share of first rows in a memory budget: the budget divided by this number.
HEAD_SHARE = 16
#: Bytes that are read and decoded at a time by one thread, or a whole part.
PORTION_BYTES = 1 << 20
#: Bytes of portions that are in memory while they are read and decoded, as stored and decoded.
READING_BYTES = 1 << 25
#: Threads that read local files: some decode while others wait for a file.
LOCAL_THREADS = 2


#: File, first row of a part in it, and columns.
_HeadKey: TypeAlias = tuple[int, int, tuple[str, ...]]


class _RowPortion(NamedTuple):
    """Rows [start, stop) of a file, and their place in what is read."""

    file: int
    start: int
    stop: int
    place: int


@dataclass(frozen=True)
class ColumnForm:
    """The form of a column in memory: Arrow type in the files, dtype, and names of its codes."""

    kind: Any
    dtype: np.dtype[Any]
    names: CategoryNames | None = None


class _Workers:
    """Threads that read portions for all groups, in turn, and the bytes of these in memory."""

    def __init__(self, threads: int) -> None:
        self.threads, self._used, self._changed = threads, 0, threading.Condition()
        self.pool = Pool(threads)
        self._spare: list[mmap.mmap] = []  # The memory of the last array that was dropped.

    @contextmanager
    def memory(self, size: int) -> Iterator[None]:
        """Wait until a portion fits into `READING_BYTES`, or is the only one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= READING_BYTES)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()

    def array(self, size: int) -> Array:
        """Return `size` bytes or a few more, in the memory of the last array dropped if it fits.

        New memory costs a page fault for each page, and in a virtual machine one of the host too:
        more than reading into it.
        """
        memory = None
        with suppress(IndexError):
            memory = self._spare.pop()
        if memory is None or not size <= len(memory) <= size + size // 8:
            memory = None  # Unmapped before other memory is mapped.
            memory = _mapped(size + size // 16)  # The next one may be a little larger.
        found = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(found, _keep_one, self._spare, memory).atexit = False
        return found


@dataclass(repr=False)
class RowReader:
    """Rows of many files, which are numbered through all files. Thread-safe.

    Parameters
    ----------
    files
        The files, in order.
    forms
        The form of each column that can be read.
    first, rows
        Number of rows of the files before row 0, and of the rows.
    """

    files: Sequence[StoredFile]
    forms: Mapping[str, ColumnForm]
    first: int
    rows: int
    #: Bytes of first rows of parts that are kept.
    head_limit: int = HEAD_BYTES
    _heads: dict[_HeadKey, Any] = field(default_factory=dict)
    _head_bytes: int = 0
    _largest: dict[tuple[str, ...], int] = field(default_factory=dict)
    _by_process: dict[int, _Workers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [stored.file.num_rows for stored in self.files]
        #: First row of each file, and the row after the last; row 0 may be inside a file.
        self._file_rows: Int64s = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._file_rows -= self.first
        parts = [np.asarray(stored.file.part_rows, dtype=np.int64) for stored in self.files]
        ends = np.cumsum(np.concatenate([*parts, np.zeros(0, dtype=np.int64)]))
        borders: Int64s = np.unique(np.concatenate([[0], ends - self.first, [self.rows]]))
        #: Borders of the parts, int64 of shape (parts + 1,), without empty ones.
        self.part_offsets: Int64s = borders[(borders >= 0) & (borders <= self.rows)]
        #: True if a file is remote.
        self.is_remote = any(filesystem.is_remote(stored.file.path) for stored in self.files)
        #: True if row groups of a remote file are fetched as a whole: it is not cached.
        self._fetches_parts = any(
            stored.file.kind == "Parquet" and _is_fetched(stored.file.path) for stored in self.files
        )
        self._drop_parts()

    def _drop_parts(self) -> None:
        """Drop the decoded columns of parts that are kept."""
        self._cache = LRUCache(
            1 << 20,
            total_size=CACHED_BYTES,
            size_of=lambda key: self.row_bytes((key[0],)) * (key[2] - key[1]),
        )

    def __getstate__(self) -> dict[str, Any]:
        kept = ("files", "forms", "first", "rows", "head_limit")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _heads={}, _head_bytes=0, _largest={}, _by_process={})
        self.__post_init__()

    def row_bytes(self, names: Sequence[str]) -> int:
        """Return the bytes of the values of some columns in a row, in memory."""
        return sum(self.forms[name].dtype.itemsize for name in names)

    @property
    def stored_row_bytes(self) -> int:
        """Bytes of a row of all columns in Arrow at least; texts count as their offsets."""
        return max(sum(_arrow_bits(form.kind) for form in self.forms.values()) // 8, 1)

    def splits(self, names: Sequence[str]) -> bool:
        """Return True if any rows of a part can be read without the others."""
        return all(stored.file.splits(names) for stored in self.files)

    def keeps_heads(self, names: Sequence[str]) -> bool:
        """Return True if first rows of parts are kept: they cost a part, or requests."""
        return self.is_remote or not self.splits(names)

    def largest_read(self, names: Sequence[str]) -> int:
        """Return the bytes of the largest part that is read as a whole; 0 if none is.

        Parquet is decoded page by page, Arrow by rows, unless a batch is compressed or has strings.
        Of remote Parquet the columns of a row group are fetched as a whole; small ones are among
        the bytes for reading that come on top of any budget.
        """
        sizes = [0]
        if self._fetches_parts and (size := self._largest_part(tuple(names))) > READING_BYTES:
            sizes.append(size)
        for stored in self.files:
            if stored.file.kind != "Parquet" and not stored.file.splits(names):
                by_part = [stored.file.stored_bytes(name) for name in names]
                rows = max(stored.file.part_rows, default=0)
                sizes.append(max(map(sum, zip(*by_part, strict=True)), default=0))
                sizes[-1] += rows * self.row_bytes(names)
        return max(sizes)

    def _largest_part(self, names: tuple[str, ...]) -> int:
        """Return the bytes of columns in the largest part, as stored; kept."""
        if names not in self._largest:
            self._largest[names] = int(self.stored_parts(names)[0].max(initial=0))
        return self._largest[names]

    def part_name(self, row: int) -> str:
        """Return a text that names the row group or record batch of a row, and its file."""
        number = int(np.searchsorted(self._file_rows, row, side="right")) - 1
        file = self.files[number].file
        ends = np.cumsum(file.part_rows) + self._file_rows[number]
        part = int(np.searchsorted(ends, row, side="right"))
        noun = "row group" if file.kind == "Parquet" else "record batch"
        return f"{noun} {part} of {file.path!r}"

    def stored_bytes(self, names: Sequence[str], wanted: Any) -> int:
        """Return the bytes in the files of columns of the parts that have `wanted` rows.

        Parameters
        ----------
        wanted
            int64 array of shape (parts,), rows to read of each part between `part_offsets`.
        """
        stored, split = self.stored_parts(names)
        share = np.where(split, wanted / np.diff(self.part_offsets), wanted > 0)
        return round(float((stored * share).sum()))

    def stored_parts(self, names: Sequence[str]) -> tuple[NDArray[np.float64], Bools]:
        """Return the bytes of columns of each part, and whether some rows of it can be read alone.

        Two arrays of shape (parts,).
        """
        found = np.zeros(len(self.part_offsets) - 1)
        split = np.zeros(len(found), dtype=np.bool_)
        for stored, low in zip(self.files, self._file_rows[:-1].tolist(), strict=True):
            edges = low + np.concatenate([[0], np.cumsum(stored.file.part_rows)])
            by_part = np.zeros(len(edges) - 1)
            for name in names:
                by_part += stored.file.stored_bytes(name)
            splits = stored.file.splits(names)
            for number in range(len(edges) - 1):
                middle = max(int(edges[number]), 0)
                if edges[number] == edges[number + 1] or not 0 <= middle < self.rows:
                    continue
                part = int(np.searchsorted(self.part_offsets, middle, side="right")) - 1
                found[part], split[part] = by_part[number], splits
        return found, split

    def read(
        self,
        names: Sequence[str],
        lows: Int64s,
        highs: Int64s,
        head_rows: int = 0,
        queued: Callable[[], None] = lambda: None,
    ) -> dict[str, ColumnData]:
        """Read rows [lows[i], highs[i]), ascending and disjoint, end to end into columns.

        Parameters
        ----------
        head_rows
            Where no more than this number of first rows of a part are needed after others, they
            are kept, so that the part is not read for them again.
        queued
            Called when the threads have been given the rows to read, in turn with other calls.

        Raises
        ------
        FileNotFoundError, ValueError
            A file was deleted, changed or is damaged; the message names it.
        """
        if not names:
            return {}
        self._drop_parts()  # Groups of rows need the memory.
        whole = self._builders(names, int((highs - lows).sum()))
        portions = self._portions_of_files(names, lows, highs)

        heads: list[tuple[_HeadKey, list[Any]]] = []

        workers, size = self._workers, self._largest_portion(names, portions)
        used = sorted({portion.file for portion in portions})

        def fill(number: int) -> dict[str, ColumnBuilder]:
            file, start, stop, place = portions[number]
            builders = {name: one.of_rows(place, stop - start) for name, one in whole.items()}
            with workers.memory(size):
                reader = readers[used.index(file)]
                for batch in self._batches(
                    file, tuple(names), start, stop, head_rows, heads, reader
                ):
                    for name, array in zip(names, batch.columns, strict=True):
                        builders[name].append(self._cast(array, name, file))
                    del batch, array
            if number >= len(portions) - workers.threads:
                # Otherwise Arrow's allocator keeps many freed portions for each thread.
                pa.default_memory_pool().release_unused()
            return builders

        with unchanged([self.files[number] for number in used]) as readers:
            found = run_in_threads(
                fill,
                len(portions),
                workers.threads,
                portion=1,
                pool=workers.pool,
                submitted=queued,
            )
            for builders in found:
                for name, builder in builders.items():
                    whole[name].append_filled(builder)
        for key, batches in heads:
            self._keep(key, batches)
        return {name: builder.finish() for name, builder in whole.items()}

    def _builders(self, names: Sequence[str], rows: int) -> dict[str, ColumnBuilder]:
        """Return builders of columns in one memory map, for which huge pages can be used.

        It is mapped, not allocated: freed memory of that size would stay with the allocator.
        """
        forms = [self.forms[name] for name in names]
        sizes = [-(-rows * form.dtype.itemsize // ALIGNMENT) * ALIGNMENT for form in forms]
        memory = self._workers.array(sum(sizes))
        made, start = {}, 0
        for name, form, size in zip(names, forms, sizes, strict=True):
            out = memory[start : start + rows * form.dtype.itemsize].view(form.dtype)
            made[name] = ColumnBuilder(name, rows, form.dtype, names=form.names, out=out)
            start += size
        return made

    def _portions_of_files(
        self, names: Sequence[str], lows: Int64s, highs: Int64s
    ) -> list[_RowPortion]:
        """Cut rows [lows[i], highs[i]) at borders of parts, in `PORTION_BYTES` or more each."""
        least = max(PORTION_BYTES // max(self.row_bytes(names), 1), 1)
        portions: list[_RowPortion] = []
        place = 0
        for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
            first, last = np.searchsorted(self.part_offsets, [low, high]).tolist()
            for number, start, stop in self._in_files(low, high):
                begin = int(self._file_rows[number])
                borders = self.part_offsets[first:last] - begin
                if self.files[number].file.splits(names):
                    borders = np.union1d(borders, np.arange(start, stop, 2 * least))
                for border in (*borders[(borders > start) & (borders < stop)].tolist(), stop):
                    if border - start >= least or border == stop:
                        portions.append(_RowPortion(number, start, border, place))
                        place, start = place + border - start, border
        return portions

    def _largest_portion(self, names: Sequence[str], portions: Sequence[_RowPortion]) -> int:
        """Return the bytes in memory while a portion is read and decoded, at most."""
        rows = max((portion.stop - portion.start for portion in portions), default=0)
        stored = rows * self.row_bytes(names)
        if not self.splits(names):
            stored, rows = self._largest_part(tuple(names)), min(rows, BATCH_ROWS)
        return max(stored + rows * self.row_bytes(names), self.largest_read(names))

    @property
    def threads(self) -> int:
        """Threads that read: for remote files as many as requests in flight."""
        return CONCURRENT_REQUESTS if self.is_remote else LOCAL_THREADS

    def memory(self, size: int) -> AbstractContextManager[None]:
        """Wait until a part of some bytes may be read next to the parts of other threads."""
        return self._workers.memory(size)

    @property
    def _workers(self) -> _Workers:
        """The threads of this process."""
        found = self._by_process.get(os.getpid())
        if found is None:
            made = _Workers(self.threads)
            found = self._by_process.setdefault(os.getpid(), made)
        return found

    def builder(self, name: str, rows: int) -> ColumnBuilder:
        """Return a builder of a column."""
        form = self.forms[name]
        return ColumnBuilder(name, rows, form.dtype, names=form.names)

    def _cast(self, array: Any, name: str, number: int) -> Any:
        return cast_to_common(array, name, self.forms[name].kind, self.files[number].file.path)

    def _in_files(self, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each file of rows [low, high), and its rows."""
        number = int(np.searchsorted(self._file_rows, low, side="right")) - 1
        while low < high:
            begin, end = self._file_rows[number : number + 2].tolist()
            if low < end:
                yield number, low - begin, min(high, end) - begin
            low, number = max(low, end), number + 1

    def scan(self, names: Sequence[str], low: int, high: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield (first row, arrays) of rows [low, high) batch by batch, of one type in all files.

        Nothing is kept.
        """
        for number, start, stop in self._in_files(low, high):
            row = int(self._file_rows[number]) + start
            with unchanged([self.files[number]]) as (reader,):
                for batch in self._batches(number, tuple(names), start, stop, 0, [], reader):
                    arrays = [
                        self._cast(array, name, number)
                        for name, array in zip(names, batch.columns, strict=True)
                    ]
                    yield row, arrays
                    row += batch.num_rows

    def _batches(
        self,
        number: int,
        names: tuple[str, ...],
        start: int,
        stop: int,
        head_rows: int,
        heads: list[tuple[_HeadKey, list[Any]]],
        reader: RemoteReader | None,
    ) -> Iterator[Any]:
        """Yield batches of rows [start, stop) of a file; append first rows to keep to `heads`."""
        stored = self.files[number]
        head = None
        if head_rows and (self.is_remote or not stored.file.splits(names)):
            edges = np.concatenate([[0], np.cumsum(stored.file.part_rows)])
            part = int(np.searchsorted(edges, stop - 1, side="right")) - 1
            border, end = int(edges[part]), int(edges[part + 1])
            # Rows of a part that is needed for its first rows alone.
            if start <= border and stop - border <= head_rows and stop < end:
                head, stop = (border, stop), border
        done = start
        if start < stop:
            for batch in stored.file.batches(names, start, stop, reader=reader):
                done += batch.num_rows
                yield batch
        if head is not None:
            key = (number, head[0], names)
            yield from self._head(key, head[1], head_rows, heads, reader)
        if done != max(stop, start):
            raise ValueError(
                f"{stored.file.path!r} has {stop - done} rows fewer than its metadata says"
            )

    def _head(
        self,
        key: _HeadKey,
        stop: int,
        rows: int,
        heads: list[tuple[_HeadKey, list[Any]]],
        reader: RemoteReader | None,
    ) -> Iterator[Any]:
        """Yield the first rows up to `stop` of a part, kept from an earlier read if possible."""
        number, start, names = key
        kept = self._heads.get(key)
        if kept is None or sum(batch.num_rows for batch in kept) < stop - start:
            stored = self.files[number]
            last = min(start + rows, stored.file.num_rows)
            # Copies: a slice would keep the whole batch in memory.
            kept = [
                take_rows(batch, np.arange(batch.num_rows))
                for batch in stored.file.batches(names, start, last, reader=reader)
            ]
            heads.append((key, kept))
        left = stop - start
        for batch in kept:
            if left > 0:
                yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows

    def _keep(self, key: _HeadKey, batches: list[Any]) -> None:
        size = sum(batch.nbytes for batch in batches)
        before = sum(batch.nbytes for batch in self._heads.get(key, ()))
        if self._head_bytes - before + size <= self.head_limit:
            self._heads[key] = batches
            self._head_bytes += size - before

    def column(self, name: str, rows: slice | Int64s) -> ColumnData:
        """Return rows of one column: a range as a slice, or any rows. Parts are read in order."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(self.rows)
            if step == 1:
                builder = self.builder(name, max(stop - start, 0))
                for _, array in self._arrays_of(name, start, stop):
                    builder.append(array)
                return builder.finish()
            rows = np.arange(start, stop, step, dtype=np.int64)
        places = np.where(rows < 0, rows + self.rows, rows)
        if len(places) and not (places.min() >= 0 and places.max() < self.rows):
            raise IndexError(f"a row is out of range, expected [0, {self.rows})")
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        builder = self.builder(name, len(ordered))
        part = np.searchsorted(self.part_offsets, ordered, side="right")
        for group in np.split(ordered, np.flatnonzero(np.diff(part)) + 1):
            if not len(group):
                continue
            for row, array in self._arrays_of(name, int(group[0]), int(group[-1]) + 1):
                here = group[(group >= row) & (group < row + len(array))]
                builder.append(take_rows(array, here - row))
        found = builder.finish()
        return found if (order[1:] > order[:-1]).all() else _unsorted(found, order)

    def _arrays_of(self, name: str, low: int, high: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, array) of rows [low, high) of a column."""
        if self.splits((name,)):
            for row, (array,) in self.scan((name,), low, high):
                yield row, array
            return
        while low < high:
            begin, end, last = self._kept_rows(name, low)
            found: Iterable[tuple[int, Any]]
            if min(high, last) > end:  # Rows beyond what is kept: all are decoded once.
                end = min(high, last)
                found = self._decoded(name, low, end)
            else:
                found = self._cache.get((name, begin, end), partial(self._kept, name, begin, end))
            for row, array in found:
                first, stop = max(low, row), min(high, row + len(array))
                if first < stop:
                    yield first, array.slice(first - row, stop - first)
            low = end

    def _kept_rows(self, name: str, row: int) -> tuple[int, int, int]:
        """Return the rows that are kept with a row, of a column, and the end of their part.

        They are the part, or as many rows of a larger one as `CACHED_BYTES` hold: a part is decoded
        from its beginning, and series are read one after the other.
        """
        part = int(np.searchsorted(self.part_offsets, row, side="right")) - 1
        first, last = self.part_offsets[part : part + 2].tolist()
        most = max(CACHED_BYTES // self.row_bytes((name,)), 1)
        begin = first + (row - first) // most * most
        return begin, min(begin + most, last), last

    def _kept(self, name: str, low: int, high: int) -> list[tuple[int, Any]]:
        return list(self._decoded(name, low, high))

    def _decoded(self, name: str, low: int, high: int) -> Iterator[tuple[int, Any]]:
        for row, (array,) in self.scan((name,), low, high):
            yield row, array


def _is_fetched(path: str) -> bool:
    """Return True for a remote file that is not read from a local cache."""
    remote = filesystem.remote_path(path)
    return remote is not None and remote.mount.cache is None


def _arrow_bits(kind: Any) -> int:
    try:
        return int(kind.bit_width)
    except ValueError:  # of variable width
        return 32


def _keep_one(spare: list[mmap.mmap], memory: mmap.mmap) -> None:
    """Add memory to a list of at most one. Takes no lock: the garbage collector may call it."""
    spare[:] = [memory]


def _mapped(size: int) -> mmap.mmap:
    """Return private memory of a process, which the system has again once it is not used."""
    memory = mmap.mmap(-1, max(size, 1), access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _unsorted(column: ColumnData, order: Int64s) -> ColumnData:
    """Return a column of which row i of the result's ``order[i]`` is row i of `column`."""
    values: Array = np.empty_like(column.values)
    values[order] = column.values
    if column.validity is None:
        return replace(column, values=values)
    valid = np.empty(len(order), dtype=np.bool_)
    valid[order] = column._valid(slice(None))
    bitmap = np.packbits(valid, bitorder="little")
    return replace(column, values=values, validity=bitmap, validity_offset=0)
