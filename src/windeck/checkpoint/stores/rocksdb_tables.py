"""Table files of RocksDB: written beside a database, for it to take in whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path

import rocksdict

from windeck.checkpoint.stores import checks, embedded
from windeck.checkpoint.stores.lanes import Lanes
from windeck.checkpoint.stores.protocol import Items, Pieces
from windeck.checkpoint.stores.rocksdb_engine import COMPRESSIONS, fail, options_for
from windeck.checkpoint.stores.rocksdb_writer import TableFile
from windeck.checkpoint.stores.urls import StoreURL

__all__ = ["is_empty_part", "write_part", "write_tables"]

#: A part without pairs; RocksDB has no table file without any.
EMPTY_PART = b"windeck: a part without pairs\n"
#: Tables written at the same time, by threads that mostly wait for the kernel or sum up.
LANES = min(2, os.cpu_count() or 1)


def write_part(url: StoreURL, name: str, items: Items) -> int:
    """Write a table file for `RocksDBStore.ingest_parts`."""
    url.only("create", "readonly", "compression")
    embedded.prepare(url, create=True)
    path = embedded.part_path(url, name)
    if name.startswith("bulk-"):
        raise ValueError(f"expected the name of a part not to begin with bulk-, got {name!r}")
    temporary = path.with_name(name + ".tmp")
    try:
        count = write_table(url, temporary, checks.in_pieces(items), None)
        if not count:
            embedded.write_durably(temporary, EMPTY_PART)
        os.replace(temporary, path)
    finally:
        embedded.remove(temporary)
    embedded.fsync_folder(path.parent)
    return count


def write_tables(url: StoreURL, name: str, items: Items, size: int) -> tuple[int, list[Path]]:
    """Write pairs into table files of about `size` bytes, lanes of them at the same time.

    Returns
    -------
    count, files
        How many pairs there were; the files, whose names begin with `name` and ``-``. After an
        error some may be left.
    """
    lanes = items.split(LANES) if isinstance(items, Lanes) else [items]
    stop = threading.Event()

    def write(number: int, lane: Items) -> _Written:
        try:
            return _write_lane(url, f"{name}-{number}", lane, size, stop)
        except BaseException:
            stop.set()
            raise

    if len(lanes) == 1:
        done = [write(0, lanes[0])]
    else:
        with ThreadPoolExecutor(len(lanes), thread_name_prefix="windeck-write") as pool:
            try:
                running = [pool.submit(write, i, lane) for i, lane in enumerate(lanes)]
                wait(running)  # an interrupt of the user's comes out here
            finally:
                stop.set()
        failed = [error for lane in running if (error := lane.exception()) is not None]
        for error in sorted(failed, key=lambda error: isinstance(error, _Stopped)):
            raise error
        done = [lane.result() for lane in running]
    full = [lane for lane in done if lane.files]
    for one, two in pairwise(full):
        if two.first <= one.last:
            raise ValueError(
                f"expected keys in ascending order, got {two.first!r} after {one.last!r}"
            )
    return sum(lane.count for lane in done), [path for lane in done for path in lane.files]


class _Stopped(Exception):
    """Another lane has failed."""


@dataclass
class _Written:
    """What came of a lane."""

    count: int = 0
    files: list[Path] = field(default_factory=list)
    first: bytes = b""
    last: bytes = b""


def _write_lane(
    url: StoreURL, name: str, items: Items, size: int, stop: threading.Event
) -> _Written:
    done = _Written()

    def watched() -> Iterator[tuple[bytes, bytes | Pieces]]:
        for key, value in checks.in_pieces(items):
            if stop.is_set():
                raise _Stopped
            done.first, done.last = done.first or key, key
            yield key, value

    pairs = watched()
    for first in pairs:
        done.files.append(embedded.part_path(url, f"{name}-{len(done.files)}.sst"))
        done.count += write_table(url, done.files[-1], chain([first], pairs), size)
    return done


def write_table(
    url: StoreURL, path: Path, pairs: Iterator[tuple[bytes, bytes | Pieces]], size: int | None
) -> int:
    """Write pairs into a table file until it has `size` bytes; how many there were."""
    table: TableFile | _EngineTable | None = None
    count = written = 0
    try:
        for key, value in pairs:
            embedded.refuse_reserved((key,))
            try:
                table = table or _begun(url, path)
                table.add(key, value)
            except Exception as error:
                fail(error, f"writing the table file {path.name}", str(url))
            count, written = count + 1, written + len(key) + len(value)
            if size is not None and written >= size:
                break
        try:
            if table is not None:
                table.finish()
        except Exception as error:
            fail(error, f"writing the table file {path.name}", str(url))
    finally:
        if table is not None:
            table.abandon()
    return count


def _begun(url: StoreURL, path: Path) -> TableFile | _EngineTable:
    plain = url.choice("compression", COMPRESSIONS, "none") == "none"
    return TableFile(path) if plain else _EngineTable(url, path)


class _EngineTable:
    """A table file as the engine's own writer writes it, which can compress."""

    def __init__(self, url: StoreURL, path: Path) -> None:
        self._writer = rocksdict.SstFileWriter(options_for(url))
        self._writer.open(str(path))

    def add(self, key: bytes, value: bytes | Pieces) -> None:
        self._writer[key] = value if type(value) is bytes else bytes(value)

    def finish(self) -> None:
        self._writer.finish()

    def abandon(self) -> None:
        """Nothing is left to close."""


def is_empty_part(path: Path) -> bool:
    return path.stat().st_size == len(EMPTY_PART) and path.read_bytes() == EMPTY_PART
