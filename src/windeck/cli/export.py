"""`export`: tensors and tables as files for other tools, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from windeck._util.imports import needs_torch
from windeck._util.terminal import escaped
from windeck._util.validation import check_bytes
from windeck.checkpoint.format.boxes import boxes_in_range, shape_of, slices
from windeck.checkpoint.format.entries import TensorEntry
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.read.scanning import read_chunks
from windeck.checkpoint.stores import Store
from windeck.checkpoint.tables.reading import SavedTable
from windeck.cli.catalog import (
    TABLES,
    ManifestContents,
    checkpoint_document,
    find_table,
    opened_checkpoint,
    tensor_names,
    unknown_name,
)
from windeck.cli.output import (
    check_output_file,
    format_size,
    print_json,
    print_lines,
)
from windeck.cli.parser import Namespace, add_command, add_generation, byte_size
from windeck.cli.session import UsageError
from windeck.columns.dtypes import DTYPES
from windeck.io.local_files import atomic_file

__all__ = ["add_parser", "run"]

_SUFFIXES = (".safetensors", ".npy", ".parquet", ".csv")


def add_parser(commands: Any) -> None:
    """Add the command `export`."""
    parser = add_command(
        commands, "export", "Write a state, a tensor or an embedding table to a file.", run
    )
    parser.add_argument(
        "file", type=Path, help="A file that ends in .safetensors, .npy, .parquet or .csv."
    )
    parser.add_argument("name", nargs="?", help="A state, a tensor or a table (default: model).")
    parser.add_argument("--force", action="store_true", help="Replace the file.")
    parser.add_argument(
        "--layout", choices=("file", "huggingface"), default="file",
        help="huggingface: FILE is a folder, for a state as save_pretrained writes it.",
    )  # fmt: skip
    parser.add_argument(
        "--shard-size", metavar="SIZE", type=byte_size,
        help="Most bytes of data in one .safetensors file, such as 5GB (the default): of more, "
        "there are several files and an index.",
    )  # fmt: skip
    add_generation(parser)


def run(arguments: Namespace) -> None:
    """Write a file in the format of its suffix."""
    with opened_checkpoint(arguments) as (store, found):
        file, name, suffix = arguments.file, arguments.name, arguments.file.suffix
        folder = arguments.layout == "huggingface"
        if suffix not in _SUFFIXES and not folder:
            ends = f"ends in {suffix!r}" if suffix else "has no suffix"
            raise UsageError(f"{file} {ends}, expected one of {', '.join(_SUFFIXES)}")
        size = _shard_bytes(arguments.shard_size)
        if size and not folder and suffix != ".safetensors":
            raise UsageError(f"--shard-size is of .safetensors files, {file} ends in {suffix!r}")
        if not folder:
            check_output_file(file, force=arguments.force)
        if folder or suffix == ".safetensors":
            options = {"layout": arguments.layout, **size}
            written = _write_safetensors(store, found, file, name, options)
        elif suffix == ".npy":
            written = [_write_npy(store, found, file, _tensor(found, name))]
        else:
            written = [_write_table(store, found, file, _table(found, name))]
        _print(arguments, found, written)


def _shard_bytes(text: str | None) -> dict[str, int]:
    """Return the option of `safetensors.export` for a size, such as ``5GB``; nothing for None."""
    if text is None:
        return {}
    try:
        return {"shard_bytes": check_bytes("--shard-size", text)}
    except ValueError as error:
        raise UsageError(str(error)) from error


def _print(arguments: Namespace, found: ManifestContents, written: list[Path]) -> None:
    sizes = [(str(path), path.stat().st_size) for path in written]
    if arguments.json:
        files = [{"file": path, "bytes": held} for path, held in sizes]
        print_json({**checkpoint_document(found), "files": files})
    else:
        print_lines(*(f"wrote {escaped(path)}, {format_size(held)}" for path, held in sizes))


def _write_safetensors(
    store: Store, found: ManifestContents, file: Path, name: str | None, options: dict[str, Any]
) -> list[Path]:
    with needs_torch("export to safetensors files"):
        from windeck.checkpoint import safetensors

    root = (name or "model").rstrip("/")
    if root not in found.trees:
        raise UsageError(f"there is no state {root!r}, expected one of {', '.join(found.trees)}")
    generation = found.commit.generation
    try:
        written: list[Path] = safetensors.export(
            store, file, root=root, generation=generation, namespace=found.namespace, **options
        )
    except (FileExistsError, TypeError) as error:
        raise UsageError(str(error)) from error
    return written


def _tensor(found: ManifestContents, name: str | None) -> TensorEntry:
    data = tensor_names(found).get(name or "")
    if data is None:
        if name is None:
            raise UsageError("a .npy file holds one tensor, expected its name")
        raise unknown_name(found, name)
    return found.entries[data]


def _write_npy(store: Store, found: ManifestContents, file: Path, entry: TensorEntry) -> Path:
    """Copy one chunk at a time into the mapped file."""
    # Not what NumPy takes: other packages register more dtypes, which .npy cannot hold.
    if entry.dtype not in DTYPES or DTYPES[entry.dtype].numpy is None:
        raise UsageError(
            f"{entry.name} has dtype {entry.dtype}, which .npy does not have: expected .safetensors"
        )
    dtype = np.dtype(entry.dtype)
    with atomic_file(file) as temporary:
        made = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=entry.shape)
        for span in read_chunks(store, found.namespace, entry):
            values = np.frombuffer(span.payload, dtype)
            inside = made[slices(span.part.box)] if entry.shape else made
            for box, place in boxes_in_range(shape_of(span.part.box), span.start, span.stop):
                shape = shape_of(box)
                count = int(np.prod(shape, dtype=np.int64))
                inside[slices(box)] = values[place - span.start :][:count].reshape(shape)
        made.flush()
        del made
    return file


def _table(found: ManifestContents, name: str | None) -> TableEntry:
    table = None if name is None else find_table(found, name)
    if table is None:
        known = [TABLES + one for one in found.tables]
        if name is None:
            known_text = ", ".join(known) or "none"
            raise UsageError(f"expected the name of an embedding table: it has {known_text}")
        raise unknown_name(found, name, "table", known=known)
    return table


def _write_table(store: Store, found: ManifestContents, file: Path, table: TableEntry) -> Path:
    import pyarrow as pa

    columns = _columns(table, flat=file.suffix == ".csv")
    schema = pa.schema([(name, dtype) for name, dtype, _ in columns])
    with atomic_file(file) as temporary, _writer(temporary, schema, file.suffix) as writer:
        for rows in SavedTable(store, found.namespace, table).scan():
            arrays = [make(rows) for _, _, make in columns]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return file


def _writer(temporary: Path, schema: Any, suffix: str) -> Any:
    if suffix == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(temporary, schema)
    from pyarrow import parquet

    return parquet.ParquetWriter(temporary, schema)


_Column = tuple[str, Any, Callable[[Any], Any]]


def _columns(table: TableEntry, *, flat: bool) -> list[_Column]:
    """Return name and type of each column, and the function that makes it from rows."""
    import pyarrow as pa

    plain: list[_Column] = [
        ("id", pa.int64(), _plain_column("keys")),
        ("version", pa.int64(), _plain_column("versions")),
        ("frequency", pa.int64(), _plain_column("frequencies")),
        ("seen", pa.int64(), _plain_column("seen")),
        ("admitted", pa.bool_(), _plain_column("admitted")),
    ]
    shape = table.shape
    vectors = ["embedding", *(f"slot{i}" for i in range(shape.slots))]
    for at, name in enumerate(vectors):
        if flat:
            for i, column in enumerate(range(shape.width)[shape.columns_of(at)]):
                cell = f"{name}{'_' * (at > 0)}{i}"
                plain.append((cell, pa.float32(), _number_column(column)))
        else:
            read = _list_column(shape.columns_of(at), shape.dim)
            plain.append((name, pa.list_(pa.float32(), shape.dim), read))
    return plain


def _plain_column(name: str) -> Callable[[Any], Any]:
    def make(rows: Any) -> Any:
        import pyarrow as pa

        return pa.array(getattr(rows, name))

    return make


def _number_column(column: int) -> Callable[[Any], Any]:
    def make(rows: Any) -> Any:
        import pyarrow as pa

        values = np.zeros(len(rows), np.float32)
        values[rows.admitted] = rows.values[:, column]
        return pa.array(values, mask=~np.asarray(rows.admitted))

    return make


def _list_column(columns: slice, dim: int) -> Callable[[Any], Any]:
    def make(rows: Any) -> Any:
        import pyarrow as pa

        values = np.zeros((len(rows), dim), np.float32)
        values[rows.admitted] = rows.values[:, columns]
        missing = pa.array(~np.asarray(rows.admitted))
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dim, mask=missing)

    return make
