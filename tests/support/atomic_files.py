"""A file system of local files as an object store has them, and preparations with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

import windeck as wd

OPTIONS: dict[str, Any] = {
    "id_columns": "site",
    "timestamp_column": "time",
    "file_bytes": 4096,
    "threads": 1,
    "scaler": "standard",
    "per_series": True,
}


def prepare(source: Path, folder: Path, kind: str, overwrite: bool = False, **more: Any) -> Any:
    """Prepare in `folder`: locally, with a scratch directory, or in an object store."""
    options: dict[str, Any] = {**OPTIONS, **more}
    if kind != "local":
        options["scratch"] = folder / "scratch"
    if kind == "objects":
        options["dest_filesystem"] = LocalFileSystem()
    return wd.prepare(source, str(folder / "out"), **options, overwrite=overwrite)
