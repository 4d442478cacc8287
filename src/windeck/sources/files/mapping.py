"""Columns that lie in a mapped file, whose pages come in as they are used.

Numbers are not copied. Bools, which Arrow keeps as bits, strings and ids are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windeck.sources.files.conversion import number_dtype
from windeck.sources.files.formats import DataFile, open_file
from windeck.sources.files.ipcfile import IpcFile
from windeck.sources.files.loaded import Loaded, Origin
from windeck.sources.files.reading import from_table, origin_of
from windeck.sources.files.request import Request


def read_mapped(paths: Sequence[str], request: Request) -> Loaded:
    """Map one uncompressed Arrow IPC file of one record batch; its values are never copied."""
    if len(paths) != 1:
        raise ValueError(f"in_memory=False maps one file, but {len(paths)} were given")
    file = open_file(paths[0])
    if not isinstance(file, IpcFile):
        raise ValueError(
            f"in_memory=False maps uncompressed Arrow IPC only, and {file.path!r} is {file.kind}; "
            f"{_HOW_TO_WRITE}"
        )
    names = request.values(file.schema, repr(file.path))
    if file.compressed:
        raise ValueError(f"{file.path!r} is compressed and cannot be mapped; {_HOW_TO_WRITE}")
    batches = file.mapped((*names, *request.index))
    if len(batches) > 1:
        raise ValueError(
            f"{file.path!r} holds {len(batches)} record batches and a mapped table needs one; "
            f"{_HOW_TO_WRITE}"
        )
    table = pa.Table.from_batches(batches, only_schema(file, (*names, *request.index)))
    _check_dtype(request, {name: table.schema.field(name).type for name in names})
    origin = origin_of([file], request)
    mapped = Origin(1, (file.kind,), origin.columns, origin.nbytes, mapped=True)
    return from_table(table, request, interleaved=False, origin=mapped)


_HOW_TO_WRITE = (
    "write it with pyarrow.feather.write_feather(table.combine_chunks(), path, "
    "compression='uncompressed', chunksize=len(table))"
)


def only_schema(file: DataFile, names: Sequence[str]) -> Any:
    """The file's schema, limited to these columns."""
    return pa.schema([file.schema.field(name) for name in names])


def _check_dtype(request: Request, kinds: Mapping[str, Any]) -> None:
    """A mapped column cannot be cast."""
    for name, kind in kinds.items():
        if request.dtype is not None and pa.types.is_floating(kind):
            found = number_dtype(kind)
            if found != request.dtype:
                raise ValueError(
                    f"column {name!r} is {found} in the file and dtype={request.dtype} needs a "
                    "copy of it; expected in_memory=True with dtype="
                )
