"""Files and folders of other formats, opened for the commands of `windeck view`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windeck._util.imports import needs_torch
from windeck.checkpoint.stores import Store, open_store

__all__ = ["open_path"]

#: Optimizers of embedding tables, by their number of slots.
_OPTIMIZERS = ("sgd", "adagrad", "adam")
#: Columns of tables that `export` writes, by the argument of `import_table` that reads them.
_COLUMNS = {"frequencies": "frequency", "versions": "version", "seen": "seen"}


def open_path(path: str) -> Store:
    """Return a store for reading whose only checkpoint has the contents of a file or folder.

    Raises
    ------
    ValueError, OSError
        For a file that cannot be read, or with values or columns of other types.
    """
    with needs_torch(f"reading {path}"):
        from windeck.checkpoint.foreign.opening import TABLE_SUFFIXES, open_file

    try:
        return _open_table(path) if Path(path).suffix in TABLE_SUFFIXES else open_file(path)
    except TypeError as error:  # for a value or column in it, not for an argument
        raise ValueError(str(error)) from error


def _open_table(path: str) -> Store:
    """Return a store in memory with the table of a Parquet or Arrow file."""
    from windeck import checkpoint
    from windeck.checkpoint.foreign.keyed import opened_arrow
    from windeck.embeddings.table import EmbeddingTable

    with opened_arrow(path) as (schema, read):
        dim = _dim(path, schema, read)
        slots = [name for name in ("slot0", "slot1") if name in schema.names]
        columns: dict[str, Any] = {
            role: name for role, name in _COLUMNS.items() if name in schema.names
        }
    optimizer: Any = _OPTIMIZERS[len(slots)]
    name = Path(path).stem
    table = EmbeddingTable(dim, optimizer=optimizer, name=name)
    checkpoint.import_table(path, table, slots=slots, clock=0, **columns)
    store = open_store("memory://")
    checkpoint.save(store, step=0, embeddings={name: table})
    return store


def _dim(path: str, schema: Any, read: Any) -> int:
    """Return the length of the lists in the column ``embedding``."""
    import pyarrow as pa

    for name in ("id", "embedding"):
        if name not in schema.names:
            raise ValueError(f"{path} has no column {name}, expected a table of ids and embeddings")
    kind = schema.field("embedding").type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    for batch in read(["embedding"], 1):
        for row in batch.column("embedding").to_pylist():
            if isinstance(row, list) and row:
                return len(row)
    raise ValueError(f"{path} has no embedding, expected lists of numbers in the column embedding")
