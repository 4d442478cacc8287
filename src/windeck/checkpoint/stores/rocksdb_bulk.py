"""Bulk loads of RocksDB: table files written beside a database and ingested by it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import rocksdict

from windeck._util.threads import Pool
from windeck.checkpoint.stores import embedded
from windeck.checkpoint.stores.protocol import Items, Pieces, iter_ascending_pieces
from windeck.checkpoint.stores.rocksdb_engine import COMPRESSIONS, fail, options_for
from windeck.checkpoint.stores.rocksdb_sst import TableWriter
from windeck.checkpoint.stores.store_url import StoreURL
from windeck.io.local_files import (
    create_file,
    fsync_folder,
    temporary_path,
    temporary_target,
    write_buffers,
)

__all__ = ["is_empty_part", "write_part", "write_removals", "write_tables"]

#: Content of a part without pairs, since RocksDB has no empty table files.
EMPTY_PART = b"windeck: a part without pairs\n"
#: Threads that write tables; most of the time they run without the interpreter's lock.
THREADS = min(2, os.cpu_count() or 1)


def write_part(url: StoreURL, name: str, items: Items) -> int:
    """Write a table file for `RocksDBStore.ingest_parts`.

    See `windeck.checkpoint.stores.write_part`.
    """
    url.only("create", "readonly", "compression")
    embedded.prepare_folder(url, create=True)
    path = embedded.part_path(url, name)
    if name.startswith("bulk-"):
        raise ValueError(f"expected the name of a part not to begin with bulk-, got {name!r}")
    temporary = Path(temporary_path(path))
    try:
        count = write_table(url, temporary, iter_ascending_pieces(items), None)
        if not count:
            write_buffers(path, [EMPTY_PART])
        else:
            os.replace(temporary, path)
    finally:
        embedded.remove(temporary)
    fsync_folder(path.parent)
    return count


def write_tables(url: StoreURL, name: str, items: Items, size: int) -> tuple[int, list[Path]]:
    """Write pairs into table files of about `size` bytes, with several threads if possible.

    Returns
    -------
    count, files
        The number of pairs, and the files; their names begin with `name` and ``-``. After an error
        some files may exist.
    """
    split: Callable[[int], list[Items]] | None = getattr(items, "split", None)
    ranges = split(THREADS) if split else [items]
    stops: list[bool] = []  # not empty: a thread has failed, or the caller was interrupted

    def write(number: int, pairs: Items) -> _Written:
        try:
            return _write_range(url, f"{name}-{number}", pairs, size, stops)
        except BaseException:
            stops.append(True)
            raise

    if len(ranges) == 1:
        done = [write(0, ranges[0])]
    else:
        with Pool(len(ranges)) as pool:
            try:
                running = [pool.submit(partial(write, i, one)) for i, one in enumerate(ranges)]
                for call in running:
                    call.wait()  # raises KeyboardInterrupt
            finally:
                stops.append(True)
        done = [call.result() for call in running]
    full = [written for written in done if written.files]
    for one, two in pairwise(full):
        if two.first <= one.last:
            raise ValueError(
                f"expected keys in ascending order, got {two.first!r} after {one.last!r}"
            )
    return sum(part.count for part in done), [path for part in done for path in part.files]


def write_removals(url: StoreURL, name: str, ranges: Sequence[tuple[bytes, bytes]]) -> list[Path]:
    """Write a table file for each range of keys, which removes these when it is ingested.

    A compaction deletes tables with removed keys alone without reading them, if the removal is the
    only entry of its table.
    """
    files = list[Path]()
    for number, (first, stop) in enumerate(ranges):
        files.append(embedded.part_path(url, f"{name}-{number}.sst"))
        table = TableWriter(files[-1])
        try:
            table.remove_range(first, stop)
            table.finish()
        finally:
            table.abandon()
    return files


@dataclass
class _Written:
    """Number of pairs, files, and first and last key of a range of keys that was written."""

    count: int = 0
    files: list[Path] = field(default_factory=list)
    first: bytes = b""
    last: bytes = b""


def _write_range(url: StoreURL, name: str, items: Items, size: int, stops: list[bool]) -> _Written:
    done = _Written()

    def checked() -> Iterator[tuple[bytes, bytes | Pieces]]:
        for key, value in iter_ascending_pieces(items):
            if stops:  # the call fails in any case
                return
            done.first, done.last = done.first or key, key
            yield key, value

    pairs = checked()
    for first in pairs:
        done.files.append(embedded.part_path(url, f"{name}-{len(done.files)}.sst"))
        done.count += write_table(url, done.files[-1], chain([first], pairs), size)
    return done


def write_table(
    url: StoreURL, path: Path, pairs: Iterator[tuple[bytes, bytes | Pieces]], size: int | None
) -> int:
    """Write pairs into a table file until it has `size` bytes; return the number of pairs."""
    table: TableWriter | _EngineTableWriter | None = None
    name = temporary_target(path.name) or path.name
    count = written = 0
    try:
        for key, value in pairs:
            embedded.refuse_reserved((key,))
            try:
                table = table or _table_writer(url, path)
                table.add(key, value)
            except Exception as error:
                fail(error, f"writing the table file {name}", str(url))
            count, written = count + 1, written + len(key) + len(value)
            if size is not None and written >= size:
                break
        try:
            if table is not None:
                table.finish()
        except Exception as error:
            fail(error, f"writing the table file {name}", str(url))
    finally:
        if table is not None:
            table.abandon()
    return count


def _table_writer(url: StoreURL, path: Path) -> TableWriter | _EngineTableWriter:
    plain = url.choice("compression", COMPRESSIONS, "none") == "none"
    return TableWriter(path) if plain else _EngineTableWriter(url, path)


class _EngineTableWriter:
    """Writer of table files that uses the engine, which supports compression."""

    def __init__(self, url: StoreURL, path: Path) -> None:
        os.close(create_file(path))
        self._writer = rocksdict.SstFileWriter(options_for(url))
        self._writer.open(str(path))

    def add(self, key: bytes, value: bytes | Pieces) -> None:
        self._writer[key] = value if type(value) is bytes else bytes(value)

    def finish(self) -> None:
        self._writer.finish()

    def abandon(self) -> None:
        """Do nothing: the engine closes its file."""


def is_empty_part(path: Path) -> bool:
    """Return True if a part has no pairs."""
    return path.stat().st_size == len(EMPTY_PART) and path.read_bytes() == EMPTY_PART
