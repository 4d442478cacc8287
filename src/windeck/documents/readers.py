"""From the texts of a column to tokens in memory."""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from windeck._core import TokenShard
from windeck._util.fingerprints import digest, order_name
from windeck._util.validation import check_integer
from windeck.documents.checking import Look, check_column
from windeck.documents.protocol import Int64s
from windeck.io import arrow, filesystem, parquet

__all__ = ["OpenFiles", "Reading", "Tokenizer", "open_shard", "tokenize"]


_ROWS = 1024
_INT32 = np.iinfo(np.int32)


def tokenize(
    texts: Any, tokenizer: Callable[[str], Any], where: str
) -> tuple[np.ndarray[Any, Any], Int64s]:
    """Tokenize every row of a column.

    Parameters
    ----------
    texts
        pyarrow ChunkedArray of strings; a null is an empty document, and not tokenized.
    tokenizer
        From a text to its tokens: a sequence or an array of integers, or bytes.
    where
        Column and file, for messages.

    Returns
    -------
    tokens : ndarray of integers
        Of the arrays' own dtype; of lists int32 if all tokens fit, else int64.
    offsets : int64 ndarray, shape (rows + 1,)
        Document j is ``tokens[offsets[j] : offsets[j + 1]]``.

    Raises
    ------
    TypeError
        What the tokenizer gave is no flat sequence of integers, or holds integers that no one
        dtype of 64 bits can hold.
    """
    documents: list[np.ndarray[Any, Any]] = []
    for start in range(0, len(texts), _ROWS):
        for text in texts.slice(start, _ROWS).to_pylist():
            place = f"document {len(documents)} in {where}"
            documents.append(_as_integers(_called(tokenizer, text, place), place))
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(tokens) for tokens in documents], out=offsets[1:])
    kept = [tokens for tokens in documents if len(tokens)]
    kind = np.result_type(*{tokens.dtype for tokens in kept}) if kept else np.dtype(np.int32)
    if kind.kind not in "iu":
        raise TypeError(
            f"the tokenizer gave tokens of several dtypes for {where}, which only {kind} could "
            "hold; expected integers of one dtype"
        )
    return (np.concatenate(kept).astype(kind) if kept else np.zeros(0, kind)), offsets


def _called(tokenizer: Callable[[str], Any], text: str | None, where: str) -> Any:
    """The tokens of a text. An error of the tokenizer stays what it is, and is told where."""
    if text is None:
        return b""
    try:
        return tokenizer(text)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"raised by the tokenizer for {where}")
        raise


def _as_integers(tokens: Any, where: str) -> np.ndarray[Any, Any]:
    """What a tokenizer gave for one document, as an array of native integers."""
    if isinstance(tokens, (bytes, bytearray)):
        return np.frombuffer(tokens, np.uint8)
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(tokens, where) from error
    if array.ndim == 1 and not len(array):
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _refused(tokens, where)
    if isinstance(tokens, (list, tuple)) and array.dtype == np.int64:
        low, high = int(array.min()), int(array.max())
        return array.astype(np.int32) if _INT32.min <= low and high <= _INT32.max else array
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _refused(tokens: Any, where: str) -> TypeError:
    found = repr(tokens)
    found = found if len(found) < 60 else f"{found[:60]}..."
    return TypeError(
        f"the tokenizer gave a {type(tokens).__name__} for {where}, {found}; expected a flat "
        "sequence of integers"
    )


#: From the text of a document to its tokens: a sequence or an array of integers, or bytes.
Tokenizer: TypeAlias = Callable[[str], Any]

#: A text whose tokens tell tokenizers of one name apart: letters, digits, accents, scripts, code.
_PROBE = (
    "The quick brown fox jumps over 13 lazy dogs; naïve façade, Straße, ŁÓDŹ, привет, 日本語, 🙂.\n"
    "\tdef f(x):\n        return x ** 2  # 0.5e-3, 'x' != \"y\" unbelievably antidisestablishment\n"
)


@dataclass(frozen=True)
class Reading:
    """Options of reading, checked.

    Attributes
    ----------
    column
        The column that holds the documents.
    tokenizer
        For a column of text.
    min_length
        Documents with fewer tokens are filtered.
    strip
        Token ids left out at both ends of a document, ascending.
    """

    column: str
    tokenizer: Tokenizer | None = None
    min_length: int = 0
    strip: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, column: str, tokenizer: Tokenizer | None, min_length: int, strip: Iterable[int]
    ) -> Reading:
        """Take a user's options.

        Raises
        ------
        TypeError, ValueError
            Naming the option.
        """
        if not isinstance(column, str):
            raise TypeError(f"column is {column!r}; expected the name of a column")
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(
                f"tokenizer is a {type(tokenizer).__name__}; expected a function from a text to "
                "its tokens"
            )
        return cls(column, tokenizer, check_integer("min_length", min_length), _ids(strip))

    @property
    def plain(self) -> bool:
        """Whether tokens are served as they are stored, so that counts hold for any reader."""
        return self.tokenizer is None and not self.strip and not self.min_length

    @property
    def fingerprint(self) -> dict[str, str | int]:
        """The options as a saved state holds them.

        A tokenizer goes by its name and by what it makes of one text, so that another vocabulary
        shows.
        """
        return {
            "column": self.column,
            "min_length": self.min_length,
            "strip": ",".join(map(str, self.strip)),
            "tokenizer": "" if self.tokenizer is None else _tokenizer_name(self.tokenizer),
        }

    def open(self, path: str) -> TokenShard:
        """The documents of a file."""
        return open_shard(
            path,
            self.column,
            tokenizer=self.tokenizer,
            strip=self.strip,
            min_length=self.min_length,
        )


def _ids(strip: Iterable[int]) -> tuple[int, ...]:
    if isinstance(strip, (str, bytes)) or not isinstance(strip, Iterable):
        raise TypeError(f"strip_tokens is {strip!r}; expected token ids")
    found = {check_integer("a token of strip_tokens", one, least=-(2**63)) for one in strip}
    return tuple(sorted(found))


def _tokenizer_name(tokenizer: Tokenizer) -> str:
    name = order_name(tokenizer)
    if len(name) > 200:
        name = f"{name[:60]}... #{digest(name)}"
    return f"{name} #{_probed(tokenizer)}"


def _probed(tokenizer: Tokenizer) -> str:
    """What a tokenizer makes of one text. One that fails at it is known by how it fails."""
    try:
        tokens = tokenizer(_PROBE)
        if isinstance(tokens, (bytes, bytearray)):
            tokens = list(tokens)
        return digest(np.asarray(tokens).astype(np.int64))
    except Exception as error:  # Anything may come out of a user's function.
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

    Of an uncompressed Arrow file only addresses are kept: it stays mapped, and its pages come in
    as documents are read. Other files are decoded into memory, this column alone.

    Parameters
    ----------
    path
        An Arrow IPC file (of lists of integers, a row a document; or of integers, a record batch
        a document) or a Parquet file (of lists of integers); or one of text, a row a document.
    column
        The column that holds the documents.
    tokenizer
        From a text to its tokens, for a column of text: tokenized here and now, all of it.
    strip
        Tokens whose leading and trailing runs are left out of every document.
    min_length
        Documents that are shorter, once stripped, are filtered.

    Raises
    ------
    KeyError
        There is no such column; the message says which there are.
    ValueError
        A file that is cut short, damaged or of another kind; a column that is there twice; null
        tokens; offsets that lead out of the file.
    TypeError
        A column of another type; text without a tokenizer, or the reverse.
    OSError
        The file cannot be read, or was cut short meanwhile.

    Notes
    -----
    O(record batches) for Arrow files, 3 us each, and O(documents) to check offsets. A mapped file
    takes two of the process's file descriptors.

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
    Look(column, tokenizes=tokenizer is not None)(path)
    options: dict[str, Any] = {
        "strip": np.array(strip, np.int64),
        "min_length": min_length,
        # Names of files are bytes, of which text may hold what is no UTF-8.
        "name": os.fsencode(path).decode("utf-8", "backslashreplace"),
    }
    text = tokenizer is not None

    def check_schema(schema: Any) -> None:
        # Once more: the schema of the footer, by which pyarrow goes, may be another.
        check_column(schema, column, path, tokenizes=text)

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


class _Slot:
    """One file: being opened, until `ready` is set."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.shard: TokenShard | None = None


class OpenFiles:
    """The files in use, least recently used first out; for any number of threads.

    Parameters
    ----------
    limit
        How many are kept open, 1 or more. Whoever still holds the shard of a file that is out
        keeps it open.

    Attributes
    ----------
    opened : int
        How many times a file was opened.

    Examples
    --------
    >>> import numpy as np
    >>> files = OpenFiles(1)
    >>> opener = lambda: TokenShard.from_arrays(np.arange(3), np.array([0, 1, 3]))
    >>> files.get("a", opener) is files.get("a", opener)
    True
    >>> _ = files.get("b", opener), files.get("a", opener)
    >>> files.opened, files.live
    (3, 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = check_integer("limit", limit, least=1)
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._lock, self._process = threading.Lock(), os.getpid()
        self.opened = 0

    @property
    def live(self) -> int:
        """How many files are kept open now."""
        return sum(slot.shard is not None for slot in list(self._slots.values()))

    def get(self, key: Hashable, opener: Callable[[], TokenShard]) -> TokenShard:
        """The file of this key, opened by `opener` if it is not open.

        Threads that ask for one file at the same time wait for the first of them to open it.
        What `opener` raises is raised to the thread that called it, and the next one tries again.
        """
        while True:
            slot, mine = self._slot(key)
            if mine:
                return self._open(key, slot, opener)
            slot.ready.wait()
            if slot.shard is not None:
                return slot.shard

    def _slot(self, key: Hashable) -> tuple[_Slot, bool]:
        """The slot of a key, and whether the caller is to fill it."""
        if self._process != os.getpid():
            self._forget_parent()
        with self._lock:
            slot = self._slots.get(key)
            if slot is not None:
                self._slots.move_to_end(key)
                return slot, False
            slot = self._slots[key] = _Slot()
            self._shrink()
            return slot, True

    def _open(self, key: Hashable, slot: _Slot, opener: Callable[[], TokenShard]) -> TokenShard:
        try:
            shard = slot.shard = opener()
        except BaseException:
            with self._lock:
                self._slots.pop(key, None)
            raise
        else:
            with self._lock:
                self.opened += 1
                self._shrink()
            return shard
        finally:
            slot.ready.set()

    def _shrink(self) -> None:
        """Let go of what is too much; a file that is being opened stays, or it would be twice."""
        idle = [key for key, slot in self._slots.items() if slot.shard is not None]
        for key in idle[: max(len(self._slots) - self._limit, 0)]:
            del self._slots[key]

    def _forget_parent(self) -> None:
        """After fork: threads of the parent that were opening files will never be done here."""
        self._lock = threading.Lock()
        for key, slot in list(self._slots.items()):
            if slot.shard is None:
                self._slots.pop(key, None)
        # Last, as other threads of the child may be looking: they would wait for the parent's.
        self._process = os.getpid()
