"""Reading of flat files of tokens: `.bin` files of nanoGPT and of llm.c."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck._core import TokenShard
from windeck.documents.checking import FileSummary
from windeck.documents.protocol import Int64s
from windeck.documents.token_files import (
    DOCUMENT_BYTES,
    map_documents,
    read_array,
    read_exactly,
)
from windeck.io import filesystem
from windeck.io.filesystem import RangeReader

__all__ = ["NanoGPTReader"]

#: Headers of llm.c: magic number, to version and dtype.
_HEADERS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}
#: 256 int32: magic, version, number of tokens, zeros.
_HEADER_BYTES = 1024
#: Bytes that are searched for end tokens at a time.
_PORTION_BYTES = 1 << 22


@dataclass(frozen=True)
class NanoGPTReader:
    """Reader of one flat file of tokens, split into documents at an end token.

    Documents are the tokens between end tokens, without these. An empty range before the first or
    after the last end token is not a document, so that the end token may come before every
    document or after it.

    Attributes
    ----------
    end_token
        The token between documents.
    dtype
        The dtype of the tokens; None for files with the header of llm.c, which states it.
    """

    end_token: int
    dtype: str | None = None

    def check(self, path: str) -> FileSummary:
        with RangeReader(path) as file:
            _, dtype = self._layout(path, file)
            width = np.dtype(dtype).itemsize
            remote = filesystem.is_remote(path)
            return FileSummary(file.size, file.modified, -1, width, remote, DOCUMENT_BYTES)

    def count(self, path: str) -> None:
        return None

    def open(self, path: str, filters: Mapping[str, Any]) -> TokenShard:
        path = filesystem.load(path)
        with RangeReader(path) as file:
            first, dtype = self._layout(path, file)
            width = np.dtype(dtype).itemsize
            count = (file.size - first) // width
            ends = self._find_ends(path, file, first, count, dtype)
        starts = np.concatenate([[0], ends + 1])
        lengths = np.append(ends, count) - starts
        # Neither the place before the first end token nor that after the last is a document.
        kept = slice(int(lengths[0] == 0), len(lengths) - int(lengths[-1] == 0))
        return map_documents(path, first + starts[kept] * width, lengths[kept], dtype, filters)

    def _layout(self, path: str, file: RangeReader) -> tuple[int, str]:
        """Return the byte of the first token, and the dtype."""
        if not file.size:
            raise ValueError(f"{path!r} is empty (0 bytes); expected a file of tokens")
        first, dtype = 0, self.dtype
        head = file.read(0, 12)
        magic, version, tokens = np.frombuffer(head.ljust(12, b"\0"), "<i4").tolist()
        if magic in _HEADERS:
            expected, dtype = _HEADERS[magic]
            first = _HEADER_BYTES
            if version != expected:
                raise ValueError(
                    f"{path!r} starts with magic {magic} of llm.c and version {version}, expected "
                    f"version {expected}"
                )
            if self.dtype not in (None, dtype):
                raise ValueError(
                    f"{path!r} has tokens of {dtype} by its header of llm.c, but `dtype` is "
                    f"{self.dtype!r}"
                )
            read_exactly(file, path, 0, _HEADER_BYTES)
            if file.size != first + tokens * np.dtype(dtype).itemsize:
                raise ValueError(
                    f"{path!r} has {file.size:,} bytes, but its header states {tokens:,} tokens of "
                    f"{dtype} after {first:,} bytes"
                )
        if dtype is None:
            raise ValueError(
                f"{path!r} has no header of llm.c, so that the dtype of its tokens is not known; "
                'expected `dtype`, such as "uint16", which nanoGPT writes'
            )
        kind = np.dtype(dtype)
        if (file.size - first) % kind.itemsize:
            raise ValueError(
                f"{path!r} has {file.size:,} bytes, expected a multiple of {kind.itemsize} for "
                f"tokens of {dtype}"
            )
        limits = np.iinfo(kind)
        if not limits.min <= self.end_token <= limits.max:
            raise ValueError(
                f"`end_token` is {self.end_token}, which tokens of {path!r} cannot be: they are "
                f"{dtype}"
            )
        return first, dtype

    def _find_ends(
        self, path: str, file: RangeReader, first: int, count: int, dtype: str
    ) -> Int64s:
        """Return the numbers of the end tokens among all tokens. One pass in bounded memory."""
        found, step = [np.zeros(0, np.int64)], _PORTION_BYTES // np.dtype(dtype).itemsize
        kind = np.dtype(dtype).newbyteorder("<")
        for start in range(0, count, step):
            size = min(step, count - start)
            tokens = read_array(file, path, first + start * kind.itemsize, size, kind.str)
            found.append(np.flatnonzero(tokens == self.end_token) + start)
        return np.concatenate(found)
