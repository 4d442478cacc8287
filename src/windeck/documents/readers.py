"""Reading of shards: options, tokenization, and opening of Arrow and Parquet files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from windeck._core import TokenShard
from windeck._util.fingerprints import digest, order_name
from windeck._util.validation import check_integer
from windeck.documents.checking import FileChecker, check_column
from windeck.documents.protocol import Int64s
from windeck.io import arrow, filesystem, parquet

__all__ = ["ReadOptions", "Tokenizer", "open_shard", "tokenize"]


_CHUNK_ROWS = 1024
_INT32 = np.iinfo(np.int32)


def tokenize(
    texts: Any, tokenizer: Callable[[str], Any], where: str
) -> tuple[np.ndarray[Any, Any], Int64s]:
    """Tokenize every row of a column.

    Parameters
    ----------
    texts
        pyarrow ChunkedArray of strings. A null is an empty document and is not tokenized.
    tokenizer
        Function from a text to its tokens: a sequence or an array of integers, or bytes.
    where
        Column and file, for messages.

    Returns
    -------
    tokens : ndarray of integers
        Of the dtype of the arrays. For lists int32 if all tokens fit, else int64.
    offsets : int64 ndarray, shape (rows + 1,)
        Document j is ``tokens[offsets[j] : offsets[j + 1]]``.

    Raises
    ------
    TypeError
        If the tokenizer returns anything but a flat sequence of integers, or integers that do not
        fit into one 64-bit dtype.
    """
    documents: list[np.ndarray[Any, Any]] = []
    for start in range(0, len(texts), _CHUNK_ROWS):
        for text in texts.slice(start, _CHUNK_ROWS).to_pylist():
            place = f"document {len(documents)} in {where}"
            documents.append(_as_integers(_call(tokenizer, text, place), place))
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(tokens) for tokens in documents], out=offsets[1:])
    kept = [tokens for tokens in documents if len(tokens)]
    kind = np.result_type(*{tokens.dtype for tokens in kept}) if kept else np.dtype(np.int32)
    if kind.kind not in "iu":
        raise TypeError(
            f"the tokenizer returned tokens of several dtypes for {where}, which only {kind} can "
            "hold; expected integers of one dtype"
        )
    return (np.concatenate(kept).astype(kind) if kept else np.zeros(0, kind)), offsets


def _call(tokenizer: Callable[[str], Any], text: str | None, where: str) -> Any:
    """Tokenize a text; add the location as a note to an error of the tokenizer."""
    if text is None:
        return b""
    try:
        return tokenizer(text)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"raised by the tokenizer for {where}")
        raise


def _as_integers(tokens: Any, where: str) -> np.ndarray[Any, Any]:
    """Return the tokens of one document as an array of native integers."""
    if isinstance(tokens, (bytes, bytearray)):
        return np.frombuffer(tokens, np.uint8)
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise _not_tokens(tokens, where) from error
    if array.ndim == 1 and not len(array):
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _not_tokens(tokens, where)
    if isinstance(tokens, (list, tuple)) and array.dtype == np.int64:
        low, high = int(array.min()), int(array.max())
        return array.astype(np.int32) if _INT32.min <= low and high <= _INT32.max else array
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _not_tokens(tokens: Any, where: str) -> TypeError:
    found = repr(tokens)
    found = found if len(found) < 60 else f"{found[:60]}..."
    return TypeError(
        f"the tokenizer returned a {type(tokens).__name__} for {where}, {found}; expected a flat "
        "sequence of integers"
    )


#: Function from a text to its tokens: a sequence or an array of integers, or bytes.
Tokenizer: TypeAlias = Callable[[str], Any]

#: Text whose tokens distinguish tokenizers of one name: letters, digits, accents, scripts, code.
_PROBE = (
    "The quick brown fox jumps over 13 lazy dogs; naïve façade, Straße, ŁÓDŹ, привет, 日本語, 🙂.\n"
    "\tdef f(x):\n        return x ** 2  # 0.5e-3, 'x' != \"y\" unbelievably antidisestablishment\n"
)


@dataclass(frozen=True)
class ReadOptions:
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
    """

    column: str
    tokenizer: Tokenizer | None = None
    min_length: int = 0
    strip: tuple[int, ...] = ()

    @classmethod
    def validated(
        cls, column: str, tokenizer: Tokenizer | None, min_length: int, strip: Iterable[int]
    ) -> ReadOptions:
        """Return the options of a user.

        Raises
        ------
        TypeError, ValueError
            If an option is invalid; the message names it.
        """
        if not isinstance(column, str):
            raise TypeError(f"`column` must be a string, got {column!r}")
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(
                "`tokenizer` must be a function from a text to its tokens, got "
                f"{type(tokenizer).__name__}"
            )
        return cls(column, tokenizer, check_integer("min_length", min_length), _token_ids(strip))

    @property
    def is_unfiltered(self) -> bool:
        """True if tokens are read as stored, so that counts of the files apply."""
        return self.tokenizer is None and not self.strip and not self.min_length

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
            "tokenizer": "" if self.tokenizer is None else _tokenizer_name(self.tokenizer),
        }

    def open(self, path: str) -> TokenShard:
        """Open the documents of a file."""
        return open_shard(
            path,
            self.column,
            tokenizer=self.tokenizer,
            strip=self.strip,
            min_length=self.min_length,
        )


def _token_ids(strip: Iterable[int]) -> tuple[int, ...]:
    if isinstance(strip, (str, bytes)) or not isinstance(strip, Iterable):
        raise TypeError(f"`strip_tokens` must be integers, got {strip!r}")
    found = {check_integer("a token of strip_tokens", one, least=-(2**63)) for one in strip}
    return tuple(sorted(found))


def _tokenizer_name(tokenizer: Tokenizer) -> str:
    name = order_name(tokenizer)
    if len(name) > 200:
        name = f"{name[:60]}... #{digest(name)}"
    return f"{name} #{_probe_digest(tokenizer)}"


def _probe_digest(tokenizer: Tokenizer) -> str:
    """Return a digest of a tokenizer's tokens for one text, or of the type of error it raises."""
    try:
        tokens = tokenizer(_PROBE)
        if isinstance(tokens, (bytes, bytearray)):
            tokens = list(tokens)
        return digest(np.asarray(tokens).astype(np.int64))
    except Exception as error:  # A user's function may raise anything.
        return digest(type(error).__name__)


def open_shard(
    path: str,
    column: str,
    *,
    tokenizer: Callable[[str], Any] | None = None,
    strip: Sequence[int] = (),
    min_length: int = 0,
) -> TokenShard:
    """Open the documents of an Arrow IPC or a Parquet file.

    An uncompressed Arrow file is mapped, and only addresses are kept: pages are read from disk
    when documents are. Of other files, the column is decoded into memory.

    Parameters
    ----------
    path
        An Arrow IPC file (lists of integers, a document per row; or integers, a document per
        record batch), a Parquet file (lists of integers), or either with text, a document per row.
    column
        The column that holds the documents.
    tokenizer
        Function from a text to its tokens, for a column of text. The whole column is tokenized.
    strip
        Tokens whose leading and trailing runs are removed from every document.
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
    FileChecker(column, has_tokenizer=tokenizer is not None).check(path)
    options: dict[str, Any] = {
        "strip": np.array(strip, np.int64),
        "min_length": min_length,
        # File names are bytes and may not be valid UTF-8.
        "name": os.fsencode(path).decode("utf-8", "backslashreplace"),
    }
    text = tokenizer is not None

    def check_schema(schema: Any) -> None:
        # Checked again: the footer, which pyarrow reads, may have another schema than the head.
        check_column(schema, column, path, has_tokenizer=text)

    with filesystem.RangeReader(path) as file:
        is_arrow = file.read(0, 6) == b"ARROW1"
    if is_arrow and not text:
        with filesystem.map_file(path) as mapped:
            found = arrow.map_column(mapped, path, column, check_schema)
            if found is not None:
                buffer = mapped.buffer
                region = (buffer.address, buffer.size, mapped.descriptor)
                return TokenShard.from_stream(found, region=region, owner=buffer, **options)
    if is_arrow:
        found = arrow.read_column(path, column, check_schema)
    else:
        found = parquet.read_column(path, column)
    if tokenizer is None:
        return TokenShard.from_stream(found, **options)
    tokens, offsets = tokenize(found, tokenizer, f"column {column!r} of {path!r}")
    return TokenShard.from_arrays(tokens, offsets, **options)
