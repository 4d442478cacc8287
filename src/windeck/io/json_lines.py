"""JSON lines: text files with one JSON object a line, also compressed."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from windeck._util.text import unknown_column
from windeck.io import filesystem
from windeck.io.formats import column_of, name_in_errors

__all__ = ["SUFFIXES", "check_column", "is_json_lines", "read_column"]

_KIND = "JSON lines"


def _with_codecs(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"{suffix}{codec}" for suffix in suffixes for codec in ("", *filesystem.CODECS))


#: Suffixes in order of preference: a folder of JSON lines may have a file of settings in JSON.
SUFFIXES = (_with_codecs(".jsonl", ".ndjson"), _with_codecs(".json"))
#: Bytes of text that are parsed at a time, at first; and the bytes that a line may have.
_BLOCK_BYTES, LINE_BYTES = 1 << 24, 1 << 28
_INT32_LISTS = pa.list_(pa.int32())


def is_json_lines(path: str) -> bool:
    """Return True for a name with a suffix of JSON lines."""
    return any(path.lower().endswith(group) for group in SUFFIXES)


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
    except ValueError as error:
        raise ValueError(f"{path!r} cannot be read as {_KIND}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{path!r} cannot be read as {_KIND}: its first line is a {type(found).__name__}, "
            "expected an object"
        )
    if column not in found:
        raise unknown_column(column, list(found), repr(path))
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
    block = _BLOCK_BYTES
    with name_in_errors(path, _KIND):
        while True:
            try:
                with filesystem.open_stream(path) as source:
                    if not source.read(1):
                        return pa.chunked_array([], kind)
                with filesystem.open_stream(path) as source:
                    # Threads read blocks ahead, which are many bytes if they are large.
                    options = reader.ReadOptions(block == _BLOCK_BYTES, block)
                    found = column_of(reader.read_json(source, options, parsing), column)
                break
            except pa.ArrowInvalid as error:
                if "straddling" not in str(error):
                    raise
                if block >= LINE_BYTES:
                    raise _long_line(path) from error
                block *= 4
    if not is_text:
        try:
            return found.cast(_INT32_LISTS)
        except pa.ArrowInvalid:
            return found  # a token that does not fit
    return found
