"""Files of bare tokens: the protocol of their readers, checked reads, and mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from windeck._core import TokenShard
from windeck.documents.checking import FileSummary
from windeck.documents.protocol import Int64s
from windeck.io import filesystem
from windeck.io.filesystem import RangeReader

__all__ = [
    "DOCUMENT_BYTES",
    "INTEGERS",
    "ShardReader",
    "map_documents",
    "read_array",
    "read_exactly",
]

#: Names of the dtypes of tokens.
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
#: Memory of an open shard for each document: its place in the file, and its length.
DOCUMENT_BYTES = 16


class ShardReader(Protocol):
    """A reader of the files of one format. Immutable and thread-safe."""

    def check(self, path: str) -> FileSummary:
        """Return the summary of a file after checking its metadata.

        Raises
        ------
        ValueError, KeyError, TypeError
            If the file is truncated, or of another format, column or dtype.
        OSError
            If it cannot be read.
        """
        ...

    def count(self, path: str) -> tuple[int, int] | None:
        """Return the stored documents and tokens by metadata; None if samples have to be read.

        Both are compared with the documents when the file is opened. For errors see `check`.
        """
        ...

    def open(self, path: str, filters: Mapping[str, Any]) -> TokenShard:
        """Open the documents of a file.

        Parameters
        ----------
        path
            The file.
        filters
            The options `strip`, `min_length` and `name` of `TokenShard`.

        Raises
        ------
        ValueError, KeyError, TypeError
            As for `check`, and if the place of a document is not in the file.
        OSError
            If it cannot be read.
        """
        ...


def read_exactly(file: RangeReader, path: str, start: int, count: int) -> bytes:
    """Return the bytes [start, start + count) of a file.

    Raises
    ------
    ValueError
        If the file ends before.
    """
    found = file.read(start, count)
    while len(found) < count and (more := file.read(start + len(found), count - len(found))):
        found += more  # A system call returns 2 GiB at most.
    if len(found) != count:
        raise ValueError(
            f"{path!r} is truncated: it has {len(found):,} bytes from byte {start:,} on, expected "
            f"{count:,}"
        )
    return found


def read_array(
    file: RangeReader, path: str, start: int, count: int, dtype: str
) -> np.ndarray[Any, Any]:
    """Return `count` values of a little-endian dtype from byte `start` on; see `read_exactly`."""
    kind = np.dtype(dtype)
    return np.frombuffer(read_exactly(file, path, start, count * kind.itemsize), kind)


def map_documents(
    path: str, starts: Int64s, lengths: Int64s, dtype: str, filters: Mapping[str, Any]
) -> TokenShard:
    """Map a file, and return its documents: `lengths[j]` tokens from byte `starts[j]` on.

    Raises
    ------
    ValueError
        If a document is not inside the file.
    """
    with filesystem.map_file(path) as mapped:
        data = np.frombuffer(mapped.buffer, np.uint8)
        return TokenShard.from_spans(
            data, starts, lengths, dtype=dtype, file=mapped.descriptor, **filters
        )
