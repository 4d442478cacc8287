"""A file system of local files as an object store has them, and preparations with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

import windeck as wd

_replace, _unlink = os.replace, os.unlink

OPTIONS: dict[str, Any] = {
    "id_columns": "site",
    "timestamp_column": "time",
    "file_bytes": 4096,
    "threads": 1,
    "scaler": "standard",
    "per_series": True,
}


class AtomicFiles(LocalFileSystem):  # type: ignore[misc]
    """Each object is replaced in one step."""

    cachable = False

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        path = self._strip_protocol(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.new", "wb") as file:
            file.write(value)
        _replace(f"{path}.new", path)

    def rm_file(self, path: str) -> None:
        _unlink(self._strip_protocol(path))


def prepare(source: Path, folder: Path, kind: str, overwrite: bool = False, **more: Any) -> Any:
    """Prepare in `folder`: locally, with a scratch directory, or in an object store."""
    options: dict[str, Any] = {**OPTIONS, **more}
    if kind != "local":
        options["scratch"] = folder / "scratch"
    if kind == "objects":
        options["dest_filesystem"] = AtomicFiles()
    return wd.prepare(source, str(folder / "out"), **options, overwrite=overwrite)
