"""Checks of corpus files: magic bytes, footers, schemas and the type of the document column."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.io.arrow import count_batches, read_schema
from windeck.io.conversion import is_string
from windeck.io.filesystem import RangeReader
from windeck.io.json_lines import check_column as check_json_column
from windeck.io.json_lines import is_json_lines
from windeck.io.parquet import ParquetFile
from windeck.io.record_batches import name_in_errors

__all__ = ["ColumnKind", "FileChecker", "FileSummary", "check_column"]


#: The storage of documents in a column: one row each (a list of integers), one record batch each
#: (integers), or one row each as text.
ColumnKind = Literal["lists", "values", "text"]


def check_column(
    schema: Any, column: str, path: str, *, has_tokenizer: bool, is_arrow: bool = True
) -> ColumnKind:
    """Return the kind of a document column, or raise an error if its type is not supported.

    Parameters
    ----------
    schema
        The pyarrow schema of the file.
    column, path
        Name of the column, and path of the file for messages.
    has_tokenizer
        Whether a tokenizer for text is given.
    is_arrow
        Whether the file is an Arrow file, in which a record batch may be a document. In Parquet
        files it may not.

    Raises
    ------
    KeyError
        If the file has no such column; the message lists the columns.
    ValueError
        If it has several columns of that name.
    TypeError
        If the type is not one of documents, if text comes without a tokenizer, or if a tokenizer
        is given for integers.
    """
    places = schema.get_all_field_indices(column)
    if not places:
        raise unknown_column(column, schema.names, repr(path), option="column")
    if len(places) > 1:
        raise ValueError(f"{path!r} has {len(places)} columns named {column!r}; expected one")
    dtype = schema.field(places[0]).type
    where = f"column {column!r} of {path!r} is {dtype}"
    kind = _column_kind(dtype, is_arrow=is_arrow)
    if kind is None:
        expected = (
            "lists of integers, integers, or text" if is_arrow else "lists of integers or text"
        )
        raise TypeError(f"{where}; expected {expected}")
    if kind == "text" and not has_tokenizer:
        raise TypeError(f"{where}, but no `tokenizer` is given; expected a tokenizer or tokens")
    if kind != "text" and has_tokenizer:
        raise TypeError(f"{where}, but a `tokenizer` is given; expected text or no tokenizer")
    return kind


def _column_kind(dtype: Any, *, is_arrow: bool) -> ColumnKind | None:
    if any(test(dtype) for test in (pa.types.is_list, pa.types.is_large_list, _is_fixed_size_list)):
        return "lists" if pa.types.is_integer(dtype.value_type) else None
    if pa.types.is_integer(dtype) and is_arrow:
        return "values"
    return "text" if is_string(dtype) else None


def _is_fixed_size_list(dtype: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(dtype))


#: The first bytes of an Arrow IPC stream, and of each of its messages.
STREAM = b"\xff\xff\xff\xff"
_ARROW, _PARQUET, _STREAM_END = b"ARROW1", b"PAR1", STREAM + bytes(4)
#: Bytes read at the start of a file: the magic and, in nearly all files, the whole schema.
_HEAD_BYTES = 4096
_MAX_SCHEMA_BYTES = 1 << 24


class FileSummary(NamedTuple):
    """Size, modification time and document count of a file.

    Attributes
    ----------
    size
        Size in bytes.
    modified
        Time of the last modification, in nanoseconds.
    documents
        Number of documents; -1 if the metadata of the file do not give it.
    token_bytes
        Bytes of a token: of the stored integers, or 4 for text.
    is_decoded
        True if the file is decoded into memory when it is opened. A compressed Arrow file has
        False: only its record batches say that they are compressed.
    document_bytes
        Bytes of memory that an open file takes for each document, if it is not decoded.
    """

    size: int
    modified: int
    documents: int
    token_bytes: int = 4
    is_decoded: bool = False
    document_bytes: int = 0


class FileChecker:
    """Checks the magic, footer and schema of files. Thread-safe.

    Files of one writer start with the same schema bytes, so each distinct schema is decoded once.

    Parameters
    ----------
    column
        The column that holds the documents.
    has_tokenizer
        Whether a tokenizer for text is given.
    """

    def __init__(self, column: str, *, has_tokenizer: bool) -> None:
        self._column, self._has_tokenizer = column, has_tokenizer
        self._kinds: dict[bytes, tuple[ColumnKind, int]] = {}

    def check(self, path: str) -> FileSummary:
        """Return the summary of a file after checking its metadata. O(1) reads.

        Raises
        ------
        ValueError
            If the file is empty, truncated, or of another format.
        KeyError, ValueError, TypeError
            If its column is missing, duplicated, or of another type.
        OSError
            If it cannot be read.
        """
        with RangeReader(path) as file:
            size, modified = file.size, file.modified
            head, tail = file.read(0, _HEAD_BYTES), file.read(max(size - 10, 0), 10)
            if head.startswith(_ARROW):
                _check_end(path, size, tail, _ARROW, "Arrow IPC")
                kind, width = self._arrow_kind(path, file, head)
                documents = count_batches(path) if kind == "values" else -1
                is_decoded = kind == "text"
            elif head.startswith(STREAM):
                if not tail.endswith(_STREAM_END):
                    raise ValueError(
                        f"{path!r} is truncated: it starts as an Arrow IPC stream and ends with "
                        f"{tail[-8:]!r} after {size:,} bytes, expected {_STREAM_END!r}"
                    )
                kind, width = self._arrow_kind(path, file, head, 0)
                documents, is_decoded = -1, kind == "text"
            elif is_json_lines(path):
                check_json_column(path, self._column, is_text=self._has_tokenizer)
                documents, width, is_decoded = -1, 4, True
            elif head.startswith(_PARQUET):
                _check_end(path, size, tail, _PARQUET, "Parquet")
                documents, width = self._parquet_rows(path)
                is_decoded = True
            else:
                raise _unknown_format(path, size, head)
        return FileSummary(size, modified, documents, width, is_decoded)

    def _arrow_kind(
        self, path: str, file: RangeReader, head: bytes, start: int = 8
    ) -> tuple[ColumnKind, int]:
        """Check the schema of an Arrow file, by its first message where pyarrow writes it.

        Other writers (Polars, arrow-rs, pyarrow before 0.15) write something else there; of their
        files the footer is read.
        """
        if head[start : start + 4] != STREAM:
            return self._check(read_schema(path), path)
        length = int.from_bytes(head[start + 4 : start + 8], "little", signed=True)
        if length > len(head) - start - 8:
            head = file.read(0, start + 8 + min(length, _MAX_SCHEMA_BYTES))
        message = head[start : start + 8 + max(length, 0)]
        if message not in self._kinds:
            with name_in_errors(path, "Arrow IPC"):
                schema = pa.ipc.read_schema(pa.py_buffer(message))
                _ = schema.names  # Names are decoded on access, and fail here if damaged.
            self._kinds[message] = self._check(schema, path)
        return self._kinds[message]

    def _parquet_rows(self, path: str) -> tuple[int, int]:
        file = ParquetFile(path)
        return file.num_rows, self._check(file.schema, path, is_arrow=False)[1]

    def _check(self, schema: Any, path: str, *, is_arrow: bool = True) -> tuple[ColumnKind, int]:
        """Return the kind of the column, and the bytes of a token."""
        kind = check_column(
            schema, self._column, path, has_tokenizer=self._has_tokenizer, is_arrow=is_arrow
        )
        dtype = schema.field(self._column).type
        if kind == "text":
            return kind, 4
        return kind, (dtype.value_type if kind == "lists" else dtype).bit_width // 8


def _check_end(path: str, size: int, tail: bytes, magic: bytes, kind: str) -> None:
    """Check the last bytes of a file: four bytes of footer length, then the magic."""
    if not tail.endswith(magic) or size < 2 * len(magic) + 4:
        raise ValueError(
            f"{path!r} is truncated: it starts as {kind} and ends with {tail[-len(magic) :]!r} "
            f"after {size:,} bytes, expected {magic!r}"
        )
    place = len(tail) - len(magic) - 4
    length = int.from_bytes(tail[place : place + 4], "little", signed=True)
    if not 0 < length <= size - 2 * len(magic) - 4:
        raise ValueError(
            f"{path!r} cannot be read as {kind}: it has {size:,} bytes, but its last bytes state a "
            f"footer length of {length:,}"
        )


def _unknown_format(path: str, size: int, head: bytes) -> ValueError:
    if not size:
        return ValueError(f"{path!r} is empty (0 bytes); expected an Arrow IPC or a Parquet file")
    return ValueError(
        f"{path!r} is neither an Arrow IPC nor a Parquet file: it starts with {head[:8]!r}"
    )
