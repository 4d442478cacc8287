"""Real documents that every machine has: the sources of Python's standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from support.corpora import write_batches, write_counts

PACKAGES = {"asyncio": "asyncio", "email": "email", "top": "."}


def sources() -> dict[str, list[Path]]:
    """Return the files of three packages, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    return {name: sorted((library / folder).glob("*.py")) for name, folder in PACKAGES.items()}


def is_text(path: Path) -> bool:
    """Return True if a file is UTF-8."""
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def write_library(root: Path, form: str, *, counts: bool = False) -> list[Path]:
    """Write three datasets of three shards; return the files in the order of documents."""
    rows, files = ["dataset/filename,documents,tokens"], []
    for name, paths in sources().items():
        folder = root / f"dataset={name}" / "py"
        folder.mkdir(parents=True)
        known = [path for path in paths if is_text(path)]
        for part in range(3):
            mine = known[part::3]
            files += mine
            path = folder / f"lib.part{part * 5}.{'parquet' if form == 'text' else 'arrow'}"
            write(form, path, [one.read_bytes() for one in mine])
            size = sum(one.stat().st_size for one in mine)
            rows.append(f"/{path.relative_to(root)},{len(mine)},{size}")
    if counts:
        write_counts(root, rows)
    return files


def write(form: str, path: Path, contents: list[bytes]) -> None:
    """Write documents in one of three forms."""
    tokens = [np.frombuffer(content, np.uint8) for content in contents]
    if form == "batches":
        write_batches(path, tokens, dtype="uint8")  # type: ignore[arg-type]
    elif form == "lists":
        offsets = np.cumsum([0, *map(len, tokens)]).astype(np.int32)
        column = pa.ListArray.from_arrays(offsets, np.concatenate(tokens))
        with pa.ipc.new_file(str(path), pa.schema([("tokens", column.type)])) as writer:
            writer.write_table(pa.table({"tokens": column}))
    else:
        parquet.write_table(pa.table({"text": [one.decode() for one in contents]}), path)
