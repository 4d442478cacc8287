"""Writing of Parquet files and of sorted rows on a local disk, each file in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from windeck.io.arrow import open_reader
from windeck.io.conversion import is_categorical
from windeck.io.filesystem import RangeReader, is_remote, map_file, upload
from windeck.io.local_files import atomic_file
from windeck.io.record_batches import name_in_errors

__all__ = ["publish", "read_batches", "remove_directory", "sha256", "write_batches"]
__all__ += ["write_parquet"]

_READ_BYTES, _REMOTE_READ_BYTES = 1 << 20, 1 << 25
#: Bytes of a page. Windows that reach into the next row group take its first pages.
_PAGE_BYTES = 1 << 15


def write_parquet(path: str, schema: Any, groups: Iterator[Any], compression: str) -> int:
    """Write tables as the row groups of a file; return its bytes.

    Strings are dictionary encoded, and numbers are not: it costs more time than it saves space.
    """
    strings = [field.name for field in schema if is_categorical(field.type)]
    with atomic_file(path) as temporary:
        with parquet.ParquetWriter(
            str(temporary),
            schema,
            compression=compression,
            use_dictionary=strings,
            data_page_size=_PAGE_BYTES,
        ) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=max(group.num_rows, 1))
        return os.path.getsize(temporary)


def write_batches(path: str, schema: Any, batches: Iterator[Any]) -> None:
    """Write record batches as an uncompressed Arrow IPC file."""
    with (
        atomic_file(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write(batch)


def read_batches(
    path: str, rows: int, start: int, stop: int, names: Sequence[str] | None = None
) -> list[Any]:
    """Return rows [start, stop) of a file of `write_batches`, as views of the mapped file.

    Parameters
    ----------
    rows
        Rows of every batch but the last. Only the batches of these rows are read.
    names
        Columns to read, by default all.
    """
    with name_in_errors(path, "Arrow IPC"), map_file(path) as mapped:
        pages = pa.foreign_buffer(mapped.buffer.address, mapped.buffer.size, base=mapped.buffer)
        reader = open_reader(pa.BufferReader(pages))
        found = []
        for number in range(start // rows, -(-stop // rows)):
            batch = reader.get_batch(number)
            batch.validate()
            first, last = max(start - number * rows, 0), min(stop - number * rows, rows)
            if last > batch.num_rows:
                raise ValueError(
                    f"batch {number} of {path!r} has {batch.num_rows} rows, expected {last}"
                )
            batch = batch.slice(first, last - first)
            found.append(batch if names is None else batch.select(list(names)))
        return found


def sha256(path: str) -> str:
    """Return the SHA-256 of a file's bytes as text."""
    hashed, start = hashlib.sha256(), 0
    size = _REMOTE_READ_BYTES if is_remote(path) else _READ_BYTES
    with RangeReader(path) as reader:
        while content := reader.read(start, size):
            hashed.update(content)
            start += len(content)
    return hashed.hexdigest()


def publish(path: str, destination: str) -> None:
    """Move a local file to a path, also of a remote file system, in one step for readers."""
    if is_remote(destination):
        with map_file(path) as mapped:
            upload(destination, mapped.buffer)
        os.unlink(path)
    else:
        os.replace(path, destination)


def remove_directory(path: str) -> None:
    """Remove a local directory with all below it, if there is one."""
    if os.path.isdir(path):
        shutil.rmtree(path)
