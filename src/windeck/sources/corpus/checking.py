"""A cheap look at every file before training, so that a bad one is named then and not midway.

Of an Arrow file the magic at both ends, the length of its footer and its schema are looked at, of
a Parquet file its footer: some 10 us a file in the cache. What is found tells the number of
documents where each is a record batch, or a row of Parquet. What lies between is looked at when
the file is opened, and by `Documents.verify`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from windeck.sources.corpus.schema import Form, check_column
from windeck.sources.files.formats import naming

__all__ = ["Look", "Seen"]

_ARROW, _PARQUET, _STREAM = b"ARROW1", b"PAR1", b"\xff\xff\xff\xff"
#: The schema of a shard fits, with the magic before it.
_HEAD_BYTES = 4096
_LONGEST_SCHEMA = 1 << 24


class Seen(NamedTuple):
    """What a look tells of a file.

    Attributes
    ----------
    size
        In bytes.
    modified
        When it was last changed, in nanoseconds.
    documents
        How many it holds; -1 where that takes more than a look.
    """

    size: int
    modified: int
    documents: int


class Look:
    """Looks at one file after the other, in any number of threads.

    Files of one writer begin with the same bytes of schema; each such schema is decoded once.

    Parameters
    ----------
    column
        The column that holds the documents.
    tokenizes
        Whether there is a tokenizer for text.
    """

    def __init__(self, column: str, *, tokenizes: bool) -> None:
        self._column, self._tokenizes = column, tokenizes
        self._forms: dict[bytes, Form] = {}

    def __call__(self, path: str) -> Seen:
        """What there is to be seen of a file, which is fine as far as a look goes.

        Raises
        ------
        ValueError
            The file is empty, cut short, or of another kind.
        KeyError, ValueError, TypeError
            Its column is missing, there more than once, or of another type.
        OSError
            It cannot be read.
        """
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            size = status.st_size
            head = os.pread(handle, _HEAD_BYTES, 0)
            tail = os.pread(handle, 10, max(size - 10, 0))
            if head.startswith(_ARROW):
                _check_end(path, size, tail, _ARROW, "Arrow IPC")
                form = self._form(path, lambda count: os.pread(handle, count, 0), head)
                found = _batches_in(path) if form == "values" else None
            elif head.startswith(_PARQUET):
                _check_end(path, size, tail, _PARQUET, "Parquet")
                found = self._parquet_rows(path)
            else:
                raise _foreign(path, size, head)
        finally:
            os.close(handle)
        return Seen(size, max(status.st_mtime_ns, 0), -1 if found is None else found)

    def _form(self, path: str, read: Callable[[int], bytes], head: bytes) -> Form:
        """The message at the beginning of an Arrow file, after eight bytes of magic."""
        marked = 8 if head[8:12] == _STREAM else 4  # Files before Arrow 0.15 have no marker.
        length = int.from_bytes(head[4 + marked : 8 + marked], "little", signed=True)
        if length > len(head) - 8 - marked:
            head = read(8 + marked + min(length, _LONGEST_SCHEMA))
        message = head[8 : 8 + marked + max(length, 0)]
        if message not in self._forms:
            with naming(path, "Arrow IPC"):
                schema = pa.ipc.read_schema(pa.py_buffer(message))
                _ = schema.names  # which are decoded only here, if they can be
            self._forms[message] = check_column(
                schema, self._column, path, tokenizes=self._tokenizes
            )
        return self._forms[message]

    def _parquet_rows(self, path: str) -> int:
        from pyarrow import parquet

        # As bytes, as names of files may be no UTF-8.
        with naming(path, "Parquet"), pa.OSFile(os.fsencode(path)) as file:
            footer = parquet.read_metadata(file)
            schema = footer.schema.to_arrow_schema()
            _ = schema.names
        check_column(schema, self._column, path, tokenizes=self._tokenizes, batches=False)
        return int(footer.num_rows)


def _batches_in(path: str) -> int:
    """The number of record batches that the footer of an Arrow file lists."""
    with naming(path, "Arrow IPC"), pa.OSFile(os.fsencode(path)) as file:
        return int(pa.ipc.open_file(file).num_record_batches)


def _check_end(path: str, size: int, tail: bytes, magic: bytes, kind: str) -> None:
    """The last bytes: the footer's length in four of them, and the magic."""
    if not tail.endswith(magic) or size < 2 * len(magic) + 4:
        raise ValueError(
            f"{path!r} is cut short: it begins as {kind} and ends with {tail[-len(magic) :]!r} "
            f"after {size:,} bytes, expected {magic!r}"
        )
    place = len(tail) - len(magic) - 4
    length = int.from_bytes(tail[place : place + 4], "little", signed=True)
    if not 0 < length <= size - 2 * len(magic) - 4:
        raise ValueError(
            f"{path!r} cannot be read as {kind}: it has {size:,} bytes, and its last ones speak of "
            f"a footer of {length:,}"
        )


def _foreign(path: str, size: int, head: bytes) -> ValueError:
    if not size:
        return ValueError(f"{path!r} is empty (0 bytes); expected an Arrow IPC or a Parquet file")
    if head.startswith(_STREAM):
        return ValueError(
            f"{path!r} is an Arrow IPC stream, which gives no access to its parts; expected a file "
            "as written by pyarrow.ipc.new_file"
        )
    return ValueError(
        f"{path!r} is neither an Arrow IPC nor a Parquet file: it begins with {head[:8]!r}"
    )
