"""Whether a column of a file can be a column of documents, told by its schema alone."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.io.arrow import count_batches
from windeck.io.filesystem import RangeReader
from windeck.io.formats import name_in_errors
from windeck.io.parquet import ParquetFile

__all__ = ["Form", "Look", "Seen", "check_column"]


#: How documents lie in a column: a row each, a record batch each, or a row each as text.
Form = Literal["lists", "values", "text"]


def check_column(
    schema: Any, column: str, path: str, *, tokenizes: bool, batches: bool = True
) -> Form:
    """Tell how documents lie in a column of a file.

    Parameters
    ----------
    schema
        The pyarrow schema of the file.
    column, path
        What is looked for, and where.
    tokenizes
        Whether there is a tokenizer for text.
    batches
        Whether a record batch may be a document: so in Arrow files, not in Parquet.

    Raises
    ------
    KeyError
        The file has no such column; the message says which there are.
    ValueError
        It has several.
    TypeError
        Its type is not one of documents; text without a tokenizer, or a tokenizer without text.
    """
    found = schema.get_all_field_indices(column)
    if not found:
        raise unknown_column(column, schema.names, repr(path))
    if len(found) > 1:
        raise ValueError(f"{path!r} has {len(found)} columns named {column!r}; expected one")
    kind = schema.field(found[0]).type
    where = f"column {column!r} of {path!r} is {kind}"
    form = _form(kind, batches=batches)
    if form is None:
        expected = (
            "lists of integers, integers, or text" if batches else "lists of integers or text"
        )
        raise TypeError(f"{where}; expected {expected}")
    if form == "text" and not tokenizes:
        raise TypeError(f"{where}, and there is no tokenizer; expected tokenizer=, or tokens")
    if form != "text" and tokenizes:
        raise TypeError(f"{where}, and there is a tokenizer; expected text, or no tokenizer=")
    return form


def _form(kind: Any, *, batches: bool) -> Form | None:
    if any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, _is_fixed)):
        return "lists" if pa.types.is_integer(kind.value_type) else None
    if pa.types.is_integer(kind) and batches:
        return "values"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _is_fixed(kind: Any) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


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
        with RangeReader(path) as file:
            size, modified = file.size, file.modified
            head, tail = file.read(0, _HEAD_BYTES), file.read(max(size - 10, 0), 10)
            if head.startswith(_ARROW):
                _check_end(path, size, tail, _ARROW, "Arrow IPC")
                form = self._form(path, file, head)
                found = count_batches(path) if form == "values" else None
            elif head.startswith(_PARQUET):
                _check_end(path, size, tail, _PARQUET, "Parquet")
                found = self._parquet_rows(path)
            else:
                raise _foreign(path, size, head)
        return Seen(size, modified, -1 if found is None else found)

    def _form(self, path: str, file: RangeReader, head: bytes) -> Form:
        """The message at the beginning of an Arrow file, after eight bytes of magic."""
        marked = 8 if head[8:12] == _STREAM else 4  # Files before Arrow 0.15 have no marker.
        length = int.from_bytes(head[4 + marked : 8 + marked], "little", signed=True)
        if length > len(head) - 8 - marked:
            head = file.read(0, 8 + marked + min(length, _LONGEST_SCHEMA))
        message = head[8 : 8 + marked + max(length, 0)]
        if message not in self._forms:
            with name_in_errors(path, "Arrow IPC"):
                schema = pa.ipc.read_schema(pa.py_buffer(message))
                _ = schema.names  # which are decoded only here, if they can be
            self._forms[message] = check_column(
                schema, self._column, path, tokenizes=self._tokenizes
            )
        return self._forms[message]

    def _parquet_rows(self, path: str) -> int:
        file = ParquetFile(path)
        check_column(file.schema, self._column, path, tokenizes=self._tokenizes, batches=False)
        return file.num_rows


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
