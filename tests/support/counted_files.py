"""Counters of the bytes that files give: local ones by `open_input`, and a remote file system."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem

from support.internals import plant
from windeck.io import filesystem


class Counted:
    """Counts the bytes that files give through `open_input`, and the reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = self.reads = 0
        opened = filesystem.open_input

        def open_input(path: str, *options: Any) -> Any:
            return pa.PythonFile(_CountedFile(opened(path, *options), self), mode="r")

        plant(monkeypatch, "filesystem.open_input", open_input)


class _CountedFile:
    def __init__(self, source: Any, counted: Counted) -> None:
        self._source, self._counted = source, counted
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        found: bytes = self._source.read(None if count < 0 else count)
        self._counted.bytes += len(found)
        self._counted.reads += 1
        return found

    def seek(self, place: int, whence: int = 0) -> int:
        return int(self._source.seek(place, whence))

    def tell(self) -> int:
        return int(self._source.tell())

    def close(self) -> None:
        self.closed = True


class CountedFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files as those of a remote file system; counts the bytes of its answers."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        found: bytes = super().cat_file(path, start, end, **options)
        self.bytes += len(found)
        return found
