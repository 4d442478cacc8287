"""Descriptions of documents, and of tables with lists."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from windeck import Documents, JaggedTable
from windeck._util.imports import has_torch
from windeck._util.text import format_bytes, plural
from windeck.cli.description.description import Code, Column, Description, call, literal
from windeck.cli.description.tables import MOST_FILES, SAMPLE_BYTES, first_rows
from windeck.documents import mds
from windeck.documents.discovery import ShardList, discover
from windeck.io import filesystem
from windeck.io.committed import json_object
from windeck.io.filesystem import RangeReader, open_text
from windeck.io.formats import open_files
from windeck.io.json_lines import is_json_lines
from windeck.jagged.list_columns import is_list

__all__ = ["describe_documents", "describe_lists"]

#: Names of columns of tokens and of text, in lines of JSON.
_TOKENS, _TEXTS = ("tokens", "input_ids", "token_ids"), ("text", "content", "document", "body")
#: End tokens that are looked for in files of nanoGPT: those of GPT-2 and of Llama 3.
_END_TOKENS = (50256, 128001)
#: Tokens of a vocabulary, at most.
_MOST_TOKENS = 1 << 24
#: Bytes of files whose documents are counted, and of a file that is looked at.
_COUNTED_BYTES, _HEAD_BYTES = 64 << 20, 1 << 20
#: Lines of JSON that are looked at.
_FIRST_LINES = 100
#: Rows with lists that are looked at.
_ROWS = 100_000
_MAGIC = (20240520, 20240801)
_TOKENIZER = (
    "def tokenizer(text):  # put yours here: this one makes each byte a token",
    "    return text.encode()",
    "",
)


def describe_documents(
    path: str,
    *,
    column: str = "tokens",
    text: bool = False,
    format: str | None = None,
    files: str | None = None,
) -> Description:
    """Describe documents in files of tokens or of text, of which the first are counted.

    Parameters
    ----------
    path
        A folder, or a file or glob in one.
    column, text
        The column of tokens, or of text.
    format
        "nanogpt", or None for those that are found by their names.
    files
        The file of a pair that Documents takes, for a path that names one of them.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, KeyError
        As `windeck.Documents`.
    """
    root, named = (path, None) if filesystem.is_directory(path) else os.path.split(path)
    root = root or "."
    chosen = files or named
    known: Any = format
    shards = discover(root, None if chosen is None else (chosen,), None, {}, known)
    options: dict[str, Any] = {"files": chosen, "format": format}
    notes: list[str] = []
    if text or is_json_lines(shards.paths[0]):
        is_json = is_json_lines(shards.paths[0])
        options |= _json_options(shards.path(0)) if is_json else {"column": column}
        if options.pop("tokenizer", True):
            options["tokenizer"] = Code("tokenizer")
            notes.append("tokens are counted as bytes of the text: put your tokenizer in")
    elif column != "tokens":
        options["column"] = column
    if format == "nanogpt":
        options |= _nanogpt_options(shards.path(0), notes)
    sizes = [_size(shards.path(number)) for number in range(min(len(shards.paths), MOST_FILES))]
    if shards.paths[0].lower().endswith(mds.SUFFIXES):
        options |= _mds_options(root, shards.path(0), options, notes)
    facts, more = _counted(root, shards, sizes, options)
    about = "" if facts["counted_files"] == len(shards.paths) else "at least "
    total = sum(sizes) * len(shards.paths) // len(sizes)
    summary = f"documents in {plural(len(shards.paths), 'file')}, {format_bytes(total)}"
    if facts["documents"] is not None:
        summary = (
            f"{about}{plural(facts['documents'], 'document')} of {facts['tokens']:,} tokens in "
            f"{plural(len(shards.paths), 'file')}, {format_bytes(total)}"
        )
    facts = {"format": format or _suffix(shards), "files": len(shards.paths), **facts}
    facts["datasets"] = list(shards.dataset_ids)
    lines = ["import windeck as wd", ""]
    lines += _TOKENIZER if "tokenizer" in options else ()
    lines += call("documents", literal(root), "wd.Documents", options)
    length = int(min(1024, max(8, (facts["tokens"] or 1024) // 8)))
    end = options.get("end_token")
    if facts["documents"] is None or facts["tokens"] > 2 * length:
        packing = {"sequence_length": length, "eos": end}
        lines += call("packed", "documents", "wd.PackedSequences", packing)
        if has_torch():
            lines.append("loader = wd.Loader(packed, batch_size=2, shuffle=True)")
    return Description(path, "documents", summary, facts, (), [*more, *notes], lines)


def _size(path: str) -> int:
    with RangeReader(path) as file:
        return file.size


def _suffix(shards: ShardList) -> str:
    return os.path.basename(shards.paths[0]).rpartition(".")[2]


def _json_options(path: str) -> dict[str, Any]:
    """Return the column of text or tokens of lines of JSON, by the first lines."""
    fields = _first_fields(path)
    for name in _TOKENS:
        if isinstance(fields.get(name), list):
            return {"column": name, "tokenizer": False}
    if isinstance(fields.get("target"), list):
        raise ValueError(
            f"{path!r} has entries of GluonTS: read it with polars.read_ndjson, and pass the "
            "result to Table.from_series"
        )
    texts = [name for name, value in fields.items() if isinstance(value, str)]
    if not texts:
        raise ValueError(
            f"{path!r} has no text in its first line, expected an object with a string or with a "
            "list of tokens; for a table read it with polars.read_ndjson, and pass the result to "
            "Table.from_arrow"
        )
    return {"column": next((name for name in texts if name.lower() in _TEXTS), texts[0])}


def _first_fields(path: str) -> dict[str, Any]:
    """Return the first value but null of each field in the first lines, blank ones left out."""
    with open_text(path, whole=False) as file:
        head = bytes(file.read(_HEAD_BYTES))
    if os.path.basename(path) == mds.INDEX and b'"shards"' in head:
        raise ValueError(
            f"{path!r} is an index of MDS: expected the folder that it is in, with its shards"
        )
    lines = [line for line in head.split(b"\n", _FIRST_LINES)[:_FIRST_LINES] if line.strip()]
    fields: dict[str, Any] = {}
    for number, line in enumerate(lines):
        try:
            found = json.loads(line)
        except ValueError as error:
            if number:
                break  # the line is damaged, or is cut off
            raise _no_lines(path, head) from error
        if not isinstance(found, dict):
            raise _no_lines(path, head)
        fields = {name: value for name, value in found.items() if value is not None} | fields
    return fields


def _no_lines(path: str, head: bytes) -> ValueError:
    """Return the error for a file of JSON that is not JSON lines, with what reads it."""
    start = head.lstrip()[:1]
    if start in (b"[", b"{"):
        kind = "an array" if start == b"[" else "an object of several lines"
        return ValueError(
            f"{path!r} is not JSON lines, but {kind}: read a table with polars.read_json or "
            "pandas.read_json, and pass it to Table.from_arrow; documents have one object a line"
        )
    return ValueError(
        f"{path!r} is not JSON lines: expected an object in the first line, of at most "
        f"{_HEAD_BYTES:,} bytes"
    )


def _nanogpt_options(path: str, notes: list[str]) -> dict[str, Any]:
    """Return dtype and end token of flat files of tokens; notes say what was assumed."""
    with RangeReader(path) as file:
        head = file.read(0, _HEAD_BYTES)
    has_header = int.from_bytes(head[:4], "little") in _MAGIC
    dtype = "uint32" if int.from_bytes(head[:4], "little") == _MAGIC[1] else "uint16"
    start = 1024 if has_header else 0
    tokens = np.frombuffer(head[start : len(head) // 4 * 4], dtype)
    ends = [token for token in _END_TOKENS if token <= np.iinfo(dtype).max]
    seen = [token for token in ends if (tokens == token).any()]
    if not has_header:
        notes.append("the files do not state their dtype: uint16 is assumed, as nanoGPT writes it")
    if not seen:
        notes.append(
            f"the first tokens have no end token of GPT-2 ({_END_TOKENS[0]}): put yours in as "
            "end_token="
        )
    return {"end_token": (seen or ends)[0], "dtype": None if has_header else dtype}


def _mds_options(
    root: str, path: str, options: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the dtype of a column of bytes in shards of MDS: the widest with small tokens."""
    index = json_object(filesystem.join(filesystem.parent(path), mds.INDEX))
    shard, column = index["shards"][0], options.get("column", "tokens")
    kinds = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    if kinds.get(column) != "bytes":
        return {}
    known = {name: value for name, value in options.items() if value is not None}
    for dtype in ("int64", "uint32", "uint16"):
        with suppress(ValueError):  # the bytes of a document are not those of whole tokens
            first = Documents(root, **known, dtype=dtype)[0]
            if not len(first) or (first.min() >= 0 and first.max() < _MOST_TOKENS):
                break
    notes.append(f"the index does not state the dtype of the tokens: {dtype} is a guess")
    return {"dtype": dtype}


def _counted(
    root: str, shards: ShardList, sizes: Sequence[int], options: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return documents and tokens of the first files, and notes."""
    last = int(np.searchsorted(np.cumsum(sizes), _COUNTED_BYTES, side="right"))
    every = last == len(shards.paths)
    nothing = {"documents": None, "tokens": None, "counted_files": 0, "longest": None}
    if not last:
        return nothing, [
            f"not counted: the first file has {format_bytes(sizes[0])}; opening the documents "
            "counts them"
        ]
    arguments = {name: value for name, value in options.items() if value is not None}
    if "tokenizer" in arguments:
        arguments["tokenizer"] = str.encode
    if not every:
        arguments["files"] = shards.paths[:last]
    documents = Documents(root, **arguments)
    lengths = [len(documents[number]) for number in range(min(len(documents), 1000))]
    tokens = int(documents.shard_tokens.sum())
    facts = {
        "documents": len(documents),
        "tokens": tokens,
        "counted_files": last,
        "longest": max(lengths, default=0),
    }
    some = "" if len(lengths) == len(documents) else f"the first {len(lengths):,} "
    notes = [f"{some}documents have {min(lengths, default=0):,} to {facts['longest']:,} tokens"]
    if not every:
        notes.append(f"from a sample: {plural(last, 'file')} of {len(shards.paths):,} counted")
    return facts, notes


def describe_lists(path: str, files: Sequence[str], schema: pa.Schema) -> Description:
    """Describe a table with lists of ids, as recommenders have it; from footers and first rows.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError, KeyError
        As `windeck.JaggedTable.read`.
    """
    opened = open_files(files[:MOST_FILES])
    total = sum(file.num_rows for file in opened) * len(files) // len(opened)
    lists = [f.name for f in schema if is_list(f.type) and _is_number(f.type.value_type)]
    scalars = [f.name for f in schema if _is_number(f.type) or pa.types.is_boolean(f.type)]
    names = [*lists, *scalars]
    head = first_rows(opened, names, max(1, min(_ROWS, _rows_that_fit(opened[0], names))))
    nulls = {name: head[name].null_count for name in scalars}
    fill = {
        name: 0
        for name in scalars
        if nulls[name] and not pa.types.is_floating(schema.field(name).type)
    }
    every = len(names) == len(schema)
    options: dict[str, Any] = {
        "lists": None if every else lists,
        "columns": None if every else scalars,
    }
    if not every and not scalars:
        options["columns"] = Code("[]")
    options["fill"] = fill
    sample = JaggedTable.from_arrow(head, fill=fill)
    columns = [
        Column(field.name, str(field.type), _list_role(field.name, lists, scalars), None)
        for field in schema
    ]
    nbytes = sample.nbytes * total // max(1, len(sample))
    notes = [_lengths(sample, name) for name in lists]
    notes += [f"{name}: {count:,} missing" for name, count in nulls.items() if count]
    if len(sample) < total:
        notes.append(f"from a sample: the first {len(sample):,} of {total:,} rows")
    summary = (
        f"a table with lists of {plural(total, 'row')} in {plural(len(files), 'file')}, about "
        f"{format_bytes(nbytes)} in memory"
    )
    facts = {
        "format": opened[0].kind,
        "files": len(files),
        "rows": total,
        "bytes_in_memory": nbytes,
        "sampled_rows": len(sample) if len(sample) < total else None,
    }
    lines = ["import windeck as wd", ""]
    lines += call("table", literal(path), "wd.JaggedTable.read", options)
    if has_torch():
        size = min(16, max(1, total))
        lines.append(f"loader = wd.Loader(table, batch_size={size}, shuffle=True)")
    return Description(path, "lists", summary, facts, columns, notes, lines)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _rows_that_fit(file: Any, names: Sequence[str]) -> int:
    """Return the rows of a file whose lists take about `SAMPLE_BYTES`."""
    nbytes = sum(file.column_bytes(name) for name in names)
    return int(file.num_rows * SAMPLE_BYTES // max(1, nbytes))


def _list_role(name: str, lists: Sequence[str], scalars: Sequence[str]) -> str:
    return "list" if name in lists else "column" if name in scalars else "left out"


def _lengths(table: JaggedTable, name: str) -> str:
    lengths = np.diff(table.list_column(name).offsets)
    if not len(lengths):
        return f"{name}: no lists"
    return (
        f"{name}: lists of {lengths.min():,} to {lengths.max():,}, on average "
        f"{lengths.mean():.3g}, {np.count_nonzero(lengths == 0):,} empty"
    )
