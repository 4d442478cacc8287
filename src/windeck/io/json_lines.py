"""JSON lines: text files with one JSON object a line, also compressed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.io import filesystem
from windeck.io.record_batches import column_of, name_in_errors

__all__ = ["SUFFIXES", "check_column", "is_json_lines", "read_column"]

_KIND = "JSON lines"


def _with_codecs(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"{suffix}{codec}" for suffix in suffixes for codec in ("", *filesystem.CODECS))


#: Suffixes in order of preference: a folder of JSON lines may have a file of settings in JSON.
SUFFIXES = (_with_codecs(".jsonl", ".ndjson"), _with_codecs(".json"))
#: Bytes of text that a thread parses at a time; and the bytes that a line may have.
_BLOCK_BYTES, LINE_BYTES = 1 << 24, 1 << 28
_INT32_LISTS = pa.list_(pa.int32())


def is_json_lines(path: str) -> bool:
    """Return True for a name with a suffix of JSON lines."""
    return any(path.lower().endswith(group) for group in SUFFIXES)


def _blocks(path: str) -> Iterator[bytes]:
    """Yield the text of a file in blocks of whole lines, about four for parsing in parallel."""
    line = bytearray()
    with filesystem.open_stream(path) as source:
        while more := source.read(4 * _BLOCK_BYTES):
            end = more.rfind(b"\n") + 1
            if end:
                line += more[:end]
                if not line.isspace():
                    yield bytes(line)
                line = bytearray()
            line += more[end:]
            if len(line) > LINE_BYTES:
                raise _long_line(path)
    if line and not line.isspace():
        yield bytes(line)


def _long_line(path: str) -> ValueError:
    return ValueError(
        f"{path!r} has a line of more than {LINE_BYTES:,} bytes; expected one JSON object a line"
    )


def check_column(path: str, column: str, *, is_text: bool) -> None:
    """Check the column in the first object of a file.

    Raises
    ------
    ValueError
        If the first line is not a JSON object, or has more than `LINE_BYTES`.
    KeyError
        If it has no such column; the message lists the columns.
    TypeError
        If it is not a string (`is_text`) or a list of integers, or null.
    """
    line = bytearray()
    with name_in_errors(path, _KIND), filesystem.open_stream(path) as source:
        while more := source.read(1 << 16):
            text, newline, _ = (more if line else more.lstrip()).partition(b"\n")
            line += text
            if newline:
                break
            if len(line) > LINE_BYTES:
                raise _long_line(path)
    if not line:
        return  # no object: no documents
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path!r} cannot be read as {_KIND}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path!r} cannot be read as {_KIND}: its first line is a {type(found).__name__}, "
            "expected an object"
        )
    if column not in found:
        raise unknown_column(column, list(found), repr(path), option="column")
    value = found[column]
    expected = str if is_text else list
    if value is not None and not isinstance(value, expected):
        wanted = "text" if is_text else "a list of integers, or text with a `tokenizer`"
        raise TypeError(
            f"column {column!r} of {path!r} is {type(value).__name__}; expected {wanted}"
        )


def read_column(path: str, column: str, *, is_text: bool) -> Any:
    """Read one column of a file into memory: text, or lists of int32 or int64.

    Returns
    -------
    pyarrow.ChunkedArray
        A missing value and null are null.

    Raises
    ------
    ValueError
        If the file is damaged, or a value has another type.
    """
    from pyarrow import json as reader

    kind = pa.large_string() if is_text else pa.list_(pa.int64())
    parsing = reader.ParseOptions(
        explicit_schema=pa.schema([(column, kind)]), unexpected_field_behavior="ignore"
    )
    chunks: list[Any] = []
    with name_in_errors(path, _KIND):
        for block in _blocks(path):
            # In parallel, unless a line is longer than what a thread takes.
            for size in (_BLOCK_BYTES, len(block)):
                try:
                    options = reader.ReadOptions(block_size=size)
                    table = reader.read_json(pa.BufferReader(block), options, parsing)
                    break
                except pa.ArrowInvalid as error:
                    if "straddling" not in str(error) or size == len(block):
                        raise
            chunks += column_of(table, column).chunks
    found = pa.chunked_array(chunks, kind)
    if not is_text:
        try:
            return found.cast(_INT32_LISTS)
        except pa.ArrowInvalid:
            return found  # a token that does not fit
    return found
