"""Reading of the indexed data sets of Megatron-LM: a `.bin` file of tokens and its `.idx` file."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from windeck._core import TokenShard
from windeck.documents.checking import FileSummary
from windeck.documents.protocol import Int64s
from windeck.documents.token_files import DOCUMENT_BYTES, map_documents, read_array
from windeck.io import filesystem
from windeck.io.filesystem import RangeReader

__all__ = ["INDEX_SUFFIX", "SUFFIX", "MegatronReader", "find_shards", "index_path"]

#: Suffixes of a file of tokens, and of its index.
SUFFIX, INDEX_SUFFIX = _PAIR = (".bin", ".idx")

_MAGIC = b"MMIDIDX\x00\x00"
#: Magic, version, code of the dtype, sequences, and documents with one more for their end.
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_FLOATS = {6: "float64", 7: "float32"}
#: Entries of the index that are read at a time.
_PORTION = 1 << 20


def index_path(path: str) -> str:
    """Return the path of the index of a `.bin` file."""
    stem = path.rsplit("/", 1)[-1][: -len(SUFFIX)]
    return filesystem.join(filesystem.parent(path), f"{stem}{INDEX_SUFFIX}")


def find_shards(home: str, walked: Sequence[str]) -> list[str]:
    """Return the `.bin` files among the files below a folder; none if none has an index.

    Raises
    ------
    FileNotFoundError
        If some `.bin` file has no index, or an index no `.bin` file.
    """
    data = {path[: -len(SUFFIX)] for path in walked if path.endswith(SUFFIX)}
    indices = {path[: -len(INDEX_SUFFIX)] for path in walked if path.endswith(INDEX_SUFFIX)}
    if not data & indices:
        return []
    for found, suffix, other in ((indices - data, *_PAIR), (data - indices, *_PAIR[::-1])):
        if found:
            name = min(found)
            raise FileNotFoundError(
                f"'{home}/{name}{other}' has no '{name}{suffix}'; expected pairs of *.bin and *.idx"
            )
    return [path for path in walked if path.endswith(SUFFIX)]


class _Index(NamedTuple):
    """The header of an index file.

    Attributes
    ----------
    dtype
        The dtype of the tokens.
    sequences
        Number of sequences. One or more of them are a document.
    bounds
        Number of documents, and one more for their end.
    """

    dtype: str
    sequences: int
    bounds: int


@dataclass(frozen=True)
class MegatronReader:
    """Reader of `.bin` files with an index. A document is the tokens of all its sequences."""

    def check(self, path: str) -> FileSummary:
        with RangeReader(path) as data, RangeReader(index_path(path)) as file:
            header = _read_header(index_path(path), file)
            width = np.dtype(header.dtype).itemsize
            _check_size(path, data.size, data.size // width, header.dtype)
            return FileSummary(
                data.size,
                max(data.modified, file.modified),
                header.bounds - 1,
                width,
                filesystem.is_remote(path),
                DOCUMENT_BYTES,
            )

    def count(self, path: str) -> tuple[int, int] | None:
        summary = self.check(path)
        if not summary.size:
            return None  # A file without tokens is not opened later: it is compared now.
        return summary.documents, summary.size // summary.token_bytes

    def open(self, path: str, filters: Mapping[str, Any]) -> TokenShard:
        where = index_path(path)
        with RangeReader(path) as data, RangeReader(where) as file:
            header, size = _read_header(where, file), data.size
            width = np.dtype(header.dtype).itemsize
            sums = _sequence_sums(where, file, header, width)
            bounds = sums[_document_bounds(where, file, header)]
        _check_size(path, size, int(sums[-1]), header.dtype)
        if not size:
            nothing = np.zeros(0, np.uint8)
            return TokenShard.from_spans(
                nothing, bounds[:-1], np.diff(bounds), dtype=header.dtype, **filters
            )
        return map_documents(path, bounds[:-1] * width, np.diff(bounds), header.dtype, filters)


def _check_size(path: str, size: int, tokens: int, dtype: str) -> None:
    """Compare the size of a file of tokens with the number of tokens in it."""
    expected = tokens * np.dtype(dtype).itemsize
    if size != expected:
        raise ValueError(
            f"{path!r} has {size:,} bytes, expected {expected:,} for {tokens:,} tokens of {dtype}"
        )


def _read_header(path: str, file: RangeReader) -> _Index:
    """Return the header of an index file of the size that it states."""
    head = file.read(0, _HEADER.size)
    if not head.startswith(_MAGIC):
        raise ValueError(
            f"{path!r} is not an index of Megatron-LM: it starts with {head[:9]!r}, expected "
            f"{_MAGIC!r}"
        )
    if len(head) < _HEADER.size:
        raise ValueError(f"{path!r} is truncated: it has {len(head)} bytes, expected 34 or more")
    _, version, code, sequences, bounds = _HEADER.unpack(head)
    if version != 1:
        raise ValueError(f"{path!r} has version {version}, expected 1")
    if code in _FLOATS:
        raise TypeError(f"the tokens of {path!r} are {_FLOATS[code]}; expected integers")
    if code not in _DTYPES:
        raise ValueError(
            f"{path!r} has the dtype code {code}, expected one of {', '.join(map(str, _DTYPES))}"
        )
    size = _HEADER.size + 12 * sequences + 8 * bounds
    # Multimodal data have a byte more for every sequence.
    if not bounds or file.size not in (size, size + sequences):
        raise ValueError(
            f"{path!r} has {file.size:,} bytes, but states {sequences:,} sequences and {bounds:,} "
            f"bounds of documents, which are {size:,} bytes"
        )
    return _Index(_DTYPES[code], sequences, bounds)


def _sequence_sums(path: str, file: RangeReader, header: _Index, width: int) -> Int64s:
    """Return the number of tokens before every sequence, and of all tokens.

    Raises
    ------
    ValueError
        If a length is negative, or if a sequence does not start where the one before it ends.
    """
    sums = np.zeros(header.sequences + 1, np.int64)
    for first in range(0, header.sequences, _PORTION):
        count = min(_PORTION, header.sequences - first)
        start = _HEADER.size + 4 * first
        lengths = read_array(file, path, start, count, "<i4")
        start = _HEADER.size + 4 * header.sequences + 8 * first
        pointers = read_array(file, path, start, count, "<i8")
        sums[first + 1 : first + 1 + count] = sums[first] + np.cumsum(lengths, dtype=np.int64)
        wrong = (lengths < 0) | (pointers != sums[first : first + count] * width)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"sequence {first + place} of {path!r} has {lengths[place]:,} tokens at byte "
                f"{pointers[place]:,}, expected 0 or more at byte {sums[first + place] * width:,}, "
                "where the one before it ends"
            )
    return sums


def _document_bounds(path: str, file: RangeReader, header: _Index) -> Int64s:
    """Return the first sequence of every document, and the number of sequences."""
    start = _HEADER.size + 12 * header.sequences
    bounds = read_array(file, path, start, header.bounds, "<i8")
    # Compared, not subtracted: differences of numbers from a file may overflow.
    if bounds[0] != 0 or bounds[-1] != header.sequences or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(
            f"the documents of {path!r} start at the sequences {bounds[0]:,} to {bounds[-1]:,}, "
            f"expected numbers from 0 to {header.sequences:,} that never decrease"
        )
    return bounds.astype(np.int64)
