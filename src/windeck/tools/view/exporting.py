"""`export`: tensors and tables as files that other tools read, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.stores import Store
from windeck.checkpoint.tables.links import TableEntry
from windeck.tools.view import output
from windeck.tools.view.listing import described
from windeck.tools.view.naming import TABLES, places_of, table_called, unknown
from windeck.tools.view.output import say, size
from windeck.tools.view.session import Catalog, Wrong, shown

__all__ = ["export"]

_SUFFIXES = (".safetensors", ".npy", ".parquet", ".csv")


def export(
    store: Store, found: Catalog, file: Path, name: str | None, *, force: bool, json: bool
) -> None:
    """Writes a file; its suffix says what: see docs/viewer.md."""
    kind = file.suffix
    if kind not in _SUFFIXES:
        ends = f"ends in {kind!r}" if kind else "has no suffix"
        raise Wrong(f"{file} {ends}, expected one of {', '.join(_SUFFIXES)}")
    if file.exists() and not force:
        raise Wrong(f"{file} is there already, expected a new file, or --force")
    if kind == ".safetensors":
        written = _safetensors(store, found, file, name)
    elif kind == ".npy":
        written = [_npy(store, found, file, _tensor(found, name))]
    else:
        written = [_table(store, found, file, _named_table(found, name), kind)]
    sizes = [(str(path), path.stat().st_size) for path in written]
    if json:
        files = [{"file": path, "bytes": held} for path, held in sizes]
        output.write_json({**described(found), "files": files})
    else:
        say(*(f"wrote {shown(path)}, {size(held)}" for path, held in sizes))


@contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """A file beside it that takes its name when it is finished."""
    if not file.parent.is_dir():
        raise Wrong(f"there is no folder {file.parent}, expected one to write {file.name} into")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _safetensors(store: Store, found: Catalog, file: Path, name: str | None) -> list[Path]:
    from windeck.checkpoint import safetensors

    root = (name or "model").rstrip("/")
    if root not in found.trees:
        raise Wrong(f"there is no state {root!r}, expected one of {', '.join(found.trees)}")
    generation = found.commit.generation
    try:
        written: list[Path] = safetensors.export(
            store, file, root=root, generation=generation, namespace=found.namespace
        )
    except TypeError as error:
        raise Wrong(str(error)) from error
    return written


def _tensor(found: Catalog, name: str | None) -> Entry:
    data = places_of(found).get(name or "")
    if data is None:
        if name is None:
            raise Wrong("a .npy file holds one tensor, expected its name")
        raise unknown(found, name)
    return found.entries[data]


def _npy(store: Store, found: Catalog, file: Path, entry: Entry) -> Path:
    """Chunk by chunk into the mapped file, whose pages are the system's to keep or drop."""
    import numpy as np

    from windeck.checkpoint.format.boxes import pieces, shape_of, slices
    from windeck.checkpoint.format.payloads import runs_of

    try:
        dtype = np.dtype(entry.dtype)
    except TypeError:
        raise Wrong(
            f"{entry.name} has dtype {entry.dtype}, which .npy has not: expected .safetensors"
        ) from None
    with _whole(file) as part:
        made = np.lib.format.open_memmap(part, mode="w+", dtype=dtype, shape=entry.shape)
        for run in runs_of(store, found.namespace, entry):
            values = np.frombuffer(run.payload, dtype)
            inside = made[slices(run.part.box)] if entry.shape else made
            for box, place in pieces(shape_of(run.part.box), run.start, run.stop):
                shape = shape_of(box)
                count = int(np.prod(shape, dtype=np.int64))
                inside[slices(box)] = values[place - run.start :][:count].reshape(shape)
        made.flush()
        del made
    return file


def _named_table(found: Catalog, name: str | None) -> TableEntry:
    table = None if name is None else table_called(found, name)
    if table is None:
        known = [TABLES + one for one in found.tables]
        if name is None:
            told = f"it has {', '.join(known)}" if known else "it has none"
            raise Wrong(f"expected the name of an embedding table: {told}")
        raise unknown(found, name, "table", others=known)
    return table


def _table(store: Store, found: Catalog, file: Path, table: TableEntry, kind: str) -> Path:
    import pyarrow as pa

    from windeck.checkpoint.tables.reading import SavedTable

    columns = _columns(table, flat=kind == ".csv")
    schema = pa.schema([(name, dtype) for name, dtype, _ in columns])
    with _whole(file) as part, _writer(part, schema, kind) as writer:
        for rows in SavedTable(store, found.namespace, table).scan():
            arrays = [make(rows) for _, _, make in columns]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return file


def _writer(part: Path, schema: Any, kind: str) -> Any:
    if kind == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(part, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(part, schema)


_Column = tuple[str, Any, Callable[[Any], Any]]


def _columns(table: TableEntry, *, flat: bool) -> list[_Column]:
    """Name and type of each column, and how it is made of some rows."""
    import pyarrow as pa

    plain: list[_Column] = [
        ("id", pa.int64(), _plain_column("keys")),
        ("version", pa.int64(), _plain_column("versions")),
        ("frequency", pa.int64(), _plain_column("frequencies")),
        ("seen", pa.int64(), _plain_column("seen")),
        ("admitted", pa.bool_(), _plain_column("admitted")),
    ]
    dim = table.shape.dim
    parts = ["embedding", *(f"slot{i}" for i in range(table.shape.slots))]
    for at, name in enumerate(parts):
        if flat:
            for i in range(dim):
                cell = f"{name}{'_' * (at > 0)}{i}"
                plain.append((cell, pa.float32(), _number_column(at * dim + i)))
        else:
            plain.append((name, pa.list_(pa.float32(), dim), _list_column(at * dim, dim)))
    return plain


def _plain_column(name: str) -> Callable[[Any], Any]:
    def make(rows: Any) -> Any:
        import pyarrow as pa

        return pa.array(getattr(rows, name))

    return make


def _number_column(column: int) -> Callable[[Any], Any]:
    def make(rows: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        values = np.zeros(len(rows), np.float32)
        values[rows.admitted] = rows.values[:, column]
        return pa.array(values, mask=~np.asarray(rows.admitted))

    return make


def _list_column(first: int, dim: int) -> Callable[[Any], Any]:
    def make(rows: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        values = np.zeros((len(rows), dim), np.float32)
        values[rows.admitted] = rows.values[:, first : first + dim]
        missing = pa.array(~np.asarray(rows.admitted))
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dim, mask=missing)

    return make
