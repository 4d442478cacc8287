"""Reading of shards: options, choice of a reader, and opening of Arrow and Parquet files.

A reader of another format is a module of its own, with the methods of
`windeck.documents.token_files.ShardReader`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck._core import TokenShard
from windeck._util.validation import check_integer
from windeck.documents import mds, megatron
from windeck.documents.checking import STREAM, FileChecker, FileSummary, check_column
from windeck.documents.discovery import FORMATS, Format
from windeck.documents.mds import MDSReader
from windeck.documents.megatron import MegatronReader, index_path
from windeck.documents.nanogpt import NanoGPTReader
from windeck.documents.splitting import HashRange
from windeck.documents.token_files import INTEGERS, ShardReader
from windeck.documents.tokenization import (
    Tokenizer,
    check_tokenizer,
    tokenize,
    tokenizer_name,
)
from windeck.io import arrow, filesystem, json_lines, parquet

__all__ = ["DocumentOptions", "open_shard"]


@dataclass(frozen=True)
class DocumentOptions:
    """Validated options for reading documents.

    Attributes
    ----------
    column
        The column that holds the documents.
    tokenizer
        Tokenizer for a column of text.
    min_length
        Documents with fewer tokens are filtered.
    strip
        Token ids removed at both ends of a document, ascending.
    splits
        Splits of the corpus: a document has to be in all of them.
    format
        The format of all files; None if it is found by their names.
    end_token
        The token between documents in files of nanoGPT.
    dtype
        The dtype of tokens in files that do not state it.
    """

    column: str
    tokenizer: Tokenizer | None = None
    min_length: int = 0
    strip: tuple[int, ...] = ()
    splits: tuple[HashRange, ...] = ()
    format: Format | None = None
    end_token: int | None = None
    dtype: str | None = None

    @classmethod
    def validated(
        cls,
        column: str,
        tokenizer: Tokenizer | None,
        min_length: int,
        strip: Iterable[int],
        format: Format | None = None,
        end_token: int | None = None,
        dtype: Any = None,
    ) -> DocumentOptions:
        """Return the options of a user.

        Raises
        ------
        TypeError, ValueError
            If an option is invalid; the message names it.
        """
        if not isinstance(column, str):
            raise TypeError(f"`column` must be a string, got {column!r}")
        if tokenizer is not None:
            check_tokenizer(tokenizer)
        if format is not None and format not in FORMATS:
            raise ValueError(
                f"`format` must be one of {', '.join(map(repr, FORMATS))}, or None to find it by "
                f"the names of files, got {format!r}"
            )
        if (format == "nanogpt") != (end_token is not None):
            raise ValueError(
                "`end_token`, the token between documents, is needed with format='nanogpt' and "
                f"with no other, got format={format!r} and end_token={end_token!r}"
            )
        if format == "nanogpt" and column != "tokens":
            raise ValueError(f"files of nanoGPT have no columns, got column={column!r}")
        return cls(
            column,
            tokenizer,
            check_integer("min_length", min_length),
            _token_ids(strip),
            format=format,
            end_token=None if end_token is None else _end_token(end_token),
            dtype=None if dtype is None else _dtype_name(dtype),
        )

    @property
    def is_unfiltered(self) -> bool:
        """True if tokens are read as stored, so that counts of the files apply."""
        filtered = self.strip or self.min_length or self.splits
        return self.tokenizer is None and not filtered

    @property
    def fingerprint(self) -> dict[str, str | int]:
        """The options as saved states hold them.

        A tokenizer is identified by its name and by its tokens for one text, so that another
        vocabulary is detected.
        """
        return {
            "column": self.column,
            "min_length": self.min_length,
            "strip": ",".join(map(str, self.strip)),
            "tokenizer": "" if self.tokenizer is None else tokenizer_name(self.tokenizer),
            "part": ",".join(map(str, self.splits)),
            "end_token": "none" if self.end_token is None else self.end_token,
            "dtype": "none" if self.dtype is None else self.dtype,
        }

    def checker(self) -> Callable[[str], FileSummary]:
        """Return a function that checks a file and returns its summary. Thread-safe."""
        columns = FileChecker(self.column, has_tokenizer=self.tokenizer is not None)

        def check(path: str) -> FileSummary:
            reader = self._reader(path)
            self._check_applies(path, reader)
            return (reader or columns).check(path)

        return check

    def count(self, path: str) -> tuple[int, int] | None:
        """Return documents and tokens of a file of bare tokens by its metadata, else None."""
        reader = self._reader(path)
        return None if reader is None else reader.count(path)

    def is_read_to_count(self, summary: FileSummary) -> bool:
        """Return True for a file that is read as a whole when its documents are counted."""
        return self.tokenizer is not None or summary.document_bytes > 0

    def companions(self, path: str) -> tuple[str, ...]:
        """Return the other files that hold the documents of a file: the index of Megatron-LM."""
        return (index_path(path),) if isinstance(self._reader(path), MegatronReader) else ()

    def _check_applies(self, path: str, reader: ShardReader | None) -> None:
        """Raise an error for an option that a file of this format does not have."""
        if reader is None:
            if self.dtype is not None:
                raise ValueError(
                    f"{path!r} states the dtype of its tokens, got dtype={self.dtype!r}"
                )
            return
        if self.tokenizer is not None:
            raise TypeError(
                f"{path!r} has tokens, but a `tokenizer` is given; expected text or no tokenizer"
            )
        if isinstance(reader, MegatronReader) and (self.dtype or self.column != "tokens"):
            raise ValueError(
                f"{path!r} has no columns and states its dtype, got column={self.column!r} and "
                f"dtype={self.dtype!r}"
            )

    def _reader(self, path: str) -> ShardReader | None:
        """Return the reader of a file of bare tokens; None for a file of another format."""
        name = path.lower()
        if self.end_token is not None:
            return NanoGPTReader(self.end_token, self.dtype)
        if self.format == "mds" or name.endswith(mds.SUFFIXES):
            return MDSReader(self.column, self.dtype)
        return MegatronReader() if name.endswith(megatron.SUFFIX) else None

    def open(self, path: str) -> TokenShard:
        """Open the documents of a file."""
        reader = self._reader(path)
        if reader is not None:
            return reader.open(path, _filters(path, self.strip, self.min_length))
        return open_shard(
            path,
            self.column,
            tokenizer=self.tokenizer,
            strip=self.strip,
            min_length=self.min_length,
        )


def _end_token(token: int) -> int:
    return check_integer("end_token", token, least=-(2**63), most=2**64 - 1)


def _dtype_name(dtype: Any) -> str:
    try:
        name = str(np.dtype(dtype).name)
    except TypeError as error:
        raise TypeError(f"`dtype` must be a dtype of integers, got {dtype!r}") from error
    if name not in INTEGERS or not np.dtype(dtype).isnative:
        raise TypeError(f"`dtype` must be a dtype of native integers, got {dtype!r}")
    return name


def _filters(path: str, strip: Sequence[int], min_length: int) -> dict[str, Any]:
    """Return the options of `TokenShard` that filter the documents of a file and name it."""
    return {
        "strip": np.array(strip, np.int64),
        "min_length": min_length,
        # File names are bytes and may not be valid UTF-8.
        "name": os.fsencode(path).decode("utf-8", "backslashreplace"),
    }


def _token_ids(strip: Any) -> tuple[int, ...]:
    if isinstance(strip, (str, bytes)) or not isinstance(strip, Iterable):
        example = f", such as ({strip},)" if type(strip) is int else ""
        raise TypeError(f"`strip_tokens` must be a sequence of integers{example}, got {strip!r}")
    found = {check_integer("a token of strip_tokens", one, least=-(2**63)) for one in strip}
    return tuple(sorted(found))


def open_shard(
    path: str,
    column: str,
    *,
    tokenizer: Tokenizer | None = None,
    strip: Sequence[int] = (),
    min_length: int = 0,
) -> TokenShard:
    """Open the documents of an Arrow IPC file or stream, a Parquet file or JSON lines.

    An uncompressed Arrow file is mapped, and only addresses are kept: pages are read from disk
    when documents are. A remote one is read into memory as a whole. Of other files, the column is
    decoded into memory.

    Parameters
    ----------
    path
        An Arrow IPC file (lists of integers, a document per row; or integers, a document per
        record batch), a Parquet file (lists of integers), or either with text, a document per row.
    column
        The column that holds the documents.
    tokenizer
        Tokenizer for a column of text. The whole column is tokenized.
    strip
        Tokens that are removed from the beginning and the end of every document.
    min_length
        Documents with fewer tokens after stripping are filtered.

    Raises
    ------
    KeyError
        If there is no such column; the message lists the columns.
    ValueError
        If the file is truncated, damaged or of another format, if the column is duplicated or has
        null tokens, or if offsets point outside of the file.
    TypeError
        If the column has another type, if text comes without a tokenizer, or if a tokenizer is
        given for integers.
    OSError
        If the file cannot be read or is truncated while it is mapped.

    Notes
    -----
    O(record batches) time for Arrow files, 3 us each, and O(documents) to check offsets. A mapped
    file takes two file descriptors of the process.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import pyarrow as pa
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "web.part0.arrow"
    >>> table = pa.table({"tokens": pa.array([[5, 6], [], [7]], pa.list_(pa.uint16()))})
    >>> with pa.ipc.new_file(path, table.schema) as file:
    ...     file.write_table(table)
    >>> shard = open_shard(str(path), "tokens")
    >>> shard.lengths().tolist(), shard.document(0).tolist(), shard.mapped
    ([2, 0, 1], [5, 6], True)
    """
    path = filesystem.load(path)
    FileChecker(column, has_tokenizer=tokenizer is not None).check(path)
    options = _filters(path, strip, min_length)
    text = tokenizer is not None

    def check_schema(schema: Any) -> None:
        # Checked again: the footer, which pyarrow reads, may have another schema than the head.
        check_column(schema, column, path, has_tokenizer=text)

    with filesystem.RangeReader(path) as file:
        head = file.read(0, 6)
    is_stream = head.startswith(STREAM)
    is_arrow = is_stream or head == b"ARROW1"
    if is_arrow and not text:
        with filesystem.map_file(path) as mapped:
            found = arrow.map_column(mapped, path, column, check_schema, stream=is_stream)
            if found is not None:
                buffer = mapped.buffer
                region = (buffer.address, buffer.size, mapped.descriptor)
                return TokenShard.from_stream(found, region=region, owner=buffer, **options)
    if is_arrow:
        found = arrow.read_column(path, column, check_schema, stream=is_stream)
    elif json_lines.is_json_lines(path):
        found = json_lines.read_column(path, column, is_text=text)
    else:
        found = parquet.read_column(path, column)
    if tokenizer is None:
        return TokenShard.from_stream(found, **options)
    tokens, offsets = tokenize(found, tokenizer, f"column {column!r} of {path!r}")
    return TokenShard.from_arrays(tokens, offsets, **options)
