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
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def _with_codecs(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"{suffix}{codec}" for suffix in suffixes for codec in ("", *_CODECS))


#: Suffixes in order of preference: a folder of JSON lines may have a file of settings in JSON.
SUFFIXES = (_with_codecs(".jsonl", ".ndjson"), _with_codecs(".json"))
#: Bytes of text that are parsed at a time, at first; a line may not be longer.
_BLOCK_BYTES, _MAX_BLOCK_BYTES = 1 << 24, 1 << 30
_INT32_LISTS = pa.list_(pa.int32())


def is_json_lines(path: str) -> bool:
    """Return True for a name with a suffix of JSON lines."""
    return any(path.lower().endswith(group) for group in SUFFIXES)


def _open(path: str) -> Any:
    """Open a file for sequential access, decompressed by its suffix."""
    source = filesystem.open_input(path)
    codec = next((name for end, name in _CODECS.items() if path.lower().endswith(end)), None)
    return source if codec is None else pa.CompressedInputStream(source, codec)


def check_column(path: str, column: str, *, is_text: bool) -> None:
    """Check the column in the first object of a file.

    Raises
    ------
    ValueError
        If the first line is not a JSON object.
    KeyError
        If it has no such column; the message lists the columns.
    TypeError
        If it is not a string (`is_text`) or a list of integers, or null.
    """
    chunks: list[bytes] = []
    size = 0
    with name_in_errors(path, _KIND), _open(path) as source:
        while size < _MAX_BLOCK_BYTES and (more := source.read(1 << 16)):
            size += len(more)
            more = more if chunks else more.lstrip()
            line, newline, _ = more.partition(b"\n")
            if line:
                chunks.append(line)
            if newline:
                break
    line = b"".join(chunks)
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
                with _open(path) as source:
                    if not source.read(1):
                        return pa.chunked_array([], kind)
                with _open(path) as source:
                    options = reader.ReadOptions(block_size=block)
                    found = column_of(reader.read_json(source, options, parsing), column)
                break
            except pa.ArrowInvalid as error:
                if "straddling" not in str(error) or block >= _MAX_BLOCK_BYTES:
                    raise
                block *= 4
    if not is_text:
        try:
            return found.cast(_INT32_LISTS)
        except pa.ArrowInvalid:
            return found  # a token that does not fit
    return found
