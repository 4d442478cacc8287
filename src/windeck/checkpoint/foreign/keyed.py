"""Tables of ids and rows in files, inserted into an embedding table in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from windeck._core import bucket_of
from windeck._util.options import explain_options
from windeck._util.validation import check_integer
from windeck.checkpoint.foreign.opening import TABLE_SUFFIXES, open_file
from windeck.checkpoint.format.table_blocks import TableShape
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.tables.entries import Int64s, convert_values
from windeck.checkpoint.tables.loading import check_empty
from windeck.checkpoint.tables.writing import check_table, forget_saves, table_shape

__all__ = ["import_table", "opened_arrow"]

#: Names of the columns in files that `windeck view URL export` writes.
_ID, _EMBEDDING = "id", "embedding"
#: Bytes of rows that are read at once.
_READ_BYTES = 8 << 20
#: The largest version, frequency and time of a lookup that a table holds.
_LARGEST = 1 << 62

_ROW_WISE = (
    ": it is the state of row-wise Adagrad, which the optimizers of tables do not have; without "
    "`slots` the optimizer begins anew"
)

#: Columns of some ids, by role: int64[n], bool[n] for `admitted`, float32[k, dim] for the rows and
#: slots of the k ids that are admitted.
_Batch = dict[str, npt.NDArray[Any]]


@explain_options
def import_table(
    path: str | os.PathLike[str],
    table: Any,
    *,
    ids: str | None = None,
    rows: str | None = None,
    frequencies: str | None = None,
    versions: str | None = None,
    seen: str | None = None,
    slots: Sequence[str] = (),
    clock: int | None = None,
) -> int:
    """Insert the ids and rows of a file that an empty embedding table owns into it.

    Save the table afterwards, with `checkpoint.save(..., embeddings={"user": table})`, or with
    `import_(..., embeddings=)` together with other tensors of the file.

    Parameters
    ----------
    path
        A Parquet or Arrow IPC file with a row for each id; or a file or folder that `import_`
        reads, with a tensor for each of the following.
    table
        An `EmbeddingTable` or `ShardedEmbeddingTable` without ids. One of bfloat16 gets rows and
        slots rounded to nearest.
    ids
        Name of the ids, any integers. None: ``id`` in a Parquet or Arrow file; in other files the
        ids are the numbers of the rows, as in `torch.nn.Embedding`.
    rows
        Name of the embeddings: float32, float16 or bfloat16 of shape (n, dim), or lists of `dim`
        numbers. A missing list is an id that is counted, but has no row. None: ``embedding`` in a
        Parquet or Arrow file. In other files, names are those that ``windeck view PATH`` prints.
    frequencies, versions, seen
        Names of the numbers of lookups (None: 1 each), of the clock of the last update (None: 0),
        and of the last lookup (None: `versions`). Negative numbers count as 0.
    slots
        Names of the optimizer's slots, of the shape of `rows`. Without them they get the initial
        values of the table's optimizer.
    clock
        Number of steps that the optimizer has made, on which Adam's correction of its moments
        depends. None: the largest version; with Adam's slots and without versions it is needed.

    Returns
    -------
    int
        Number of ids inserted.

    Raises
    ------
    TypeError, ValueError
        For a value that is not a table, a table that has ids, ids that are not unique, and other
        dtypes, shapes or numbers of slots than the table has. The table has no ids then.
    KeyError
        For a name that the file does not have.
    OSError
        If the file cannot be read.

    Notes
    -----
    O(rows) time; some MiB of memory besides the table, and what `import_` needs.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import windeck as wd
    >>> from windeck import checkpoint
    >>> file = f"{tempfile.mkdtemp()}/user.npz"
    >>> np.savez(file, keys=np.array([7, -1]), values=np.ones((2, 3), np.float32))
    >>> table = wd.EmbeddingTable(3, optimizer="adagrad", lr=0.1)
    >>> checkpoint.import_table(file, table, ids="model/keys", rows="model/values")
    2
    >>> table.core.lookup(np.array([7, 8]), insert=False)[0]
    array([1., 1., 1.], dtype=float32)
    """
    core = check_table("table", table)
    check_empty("table", core)
    if len(slots) not in (0, core.slots):
        raise ValueError(
            f"`slots` has {len(slots)} names, expected none, or {core.slots} as the table has slots"
        )
    if clock is not None:
        check_integer("clock", clock, most=_LARGEST)
    elif slots and versions is None and core.slots == 2:  # Adam
        raise ValueError("`clock` must be the number of steps that made the slots, got None")
    is_columns = Path(path).suffix in TABLE_SUFFIXES
    names = {"ids": ids, "rows": rows, "frequencies": frequencies, "versions": versions}
    names |= {"seen": seen} | {f"slot {i}": name for i, name in enumerate(slots)}
    if is_columns:
        names |= {"ids": ids or _ID, "rows": rows or _EMBEDDING}
    elif rows is None:
        raise TypeError(f"`rows` must be the name of a tensor of {path}, got None")
    given = {role: name for role, name in names.items() if name is not None}
    forget_saves(core)
    try:
        batches = _read_columns if is_columns else _read_tensors
        count = sum(_insert(core, batch) for batch in batches(path, given, core.dim))
        core.set_clock(max(core.clock, clock or 0))
    except BaseException:
        core.clear()
        raise
    return count


def _insert(core: Any, batch: _Batch) -> int:
    """Insert the ids that the table owns; return their number."""
    ids = batch["ids"]
    buckets = bucket_of(ids)
    own = (buckets >= core.first_bucket) & (buckets < core.end_bucket)
    admitted = batch["admitted"]
    shape = TableShape(core.dim, core.slots)
    values = np.full((int(admitted.sum()), shape.width), core.slot_value, np.float32)
    values[:, shape.columns_of(0)] = batch["rows"]
    for slot in range(core.slots if "slot 0" in batch else 0):
        values[:, shape.columns_of(1 + slot)] = batch[f"slot {slot}"]
    versions = batch.get("versions", np.zeros(len(ids), np.int64))
    numbers = versions, batch.get("frequencies", np.ones(len(ids), np.int64))
    seen = batch.get("seen", versions)
    for role, found in (("versions", versions), ("frequencies", numbers[1]), ("seen", seen)):
        if len(found) and int(found.max()) > _LARGEST:
            raise ValueError(f"{role} has {found.max()}, expected at most {_LARGEST}")
        np.maximum(found, 0, out=found)
    core.insert(
        ids[own],
        *(found[own] for found in (*numbers, seen)),
        admitted[own],
        convert_values(values[own[admitted]], table_shape(core)),
    )
    latest = max(int(found.max(initial=0)) for found in (versions, seen))
    core.set_clock(max(core.clock, latest))
    return int(own.sum())


def _read_tensors(
    path: str | os.PathLike[str], names: Mapping[str, str], dim: int
) -> Iterator[_Batch]:
    """Yield the rows of tensors."""
    with Checkpoint(open_file(path), "windeck", None) as found:
        infos = {role: found.info(name) for role, name in names.items()}
        count = infos["rows"].shape[0] if infos["rows"].shape else 0
        for role, info in infos.items():
            wanted = (count, dim) if _is_row(role) else (count,)
            if info.shape != wanted:
                is_row_wise = role != "rows" and _is_row(role) and info.shape in (
                    (count,), (count, 1),
                )  # fmt: skip
                raise ValueError(
                    f"{info.name} has shape {info.shape}, expected {wanted}"
                    + _ROW_WISE * is_row_wise
                )
        step = max(1, _READ_BYTES // (4 * dim))
        for first in range(0, count, step):
            stop = min(first + step, count)
            batch: _Batch = {"ids": np.arange(first, stop), "admitted": np.ones(stop - first, bool)}
            for role, name in names.items():
                values = found.slice(name, slice(first, stop))
                read = _floats if _is_row(role) else _integers
                batch[role] = read(name, values)
            yield batch


def _is_row(role: str) -> bool:
    return role == "rows" or role.startswith("slot ")


def _floats(name: str, values: torch.Tensor) -> npt.NDArray[np.float32]:
    if values.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{name} is {values.dtype}, expected float32, float16 or bfloat16")
    found: npt.NDArray[np.float32] = values.to(torch.float32).numpy()
    return found


def _integers(name: str, values: torch.Tensor) -> Int64s:
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise TypeError(f"{name} is {values.dtype}, expected integers")
    return _int64s(name, values.numpy())


def _int64s(name: str, values: npt.NDArray[Any]) -> Int64s:
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} is {values.dtype}, expected integers")
    if values.dtype == np.uint64 and len(values) and int(values.max()) >= 1 << 63:
        raise ValueError(f"{name} has {values.max()}, expected integers below 2^63")
    return values.astype(np.int64)


def _read_columns(
    path: str | os.PathLike[str], names: Mapping[str, str], dim: int
) -> Iterator[_Batch]:
    """Yield the rows of a Parquet or Arrow file."""
    with opened_arrow(path) as (schema, read):
        missing = [name for name in names.values() if name not in schema.names]
        if missing:
            raise KeyError(f"{path} has no column {missing[0]}, expected one of {schema.names}")
        for found in read(list(names.values()), max(1, _READ_BYTES // (4 * dim))):
            batch: _Batch = {"admitted": np.asarray(found.column(names["rows"]).is_valid())}
            for role, name in names.items():
                column = found.column(name)
                if _is_row(role):
                    batch[role] = _lists(name, column, batch["admitted"], dim)
                elif column.null_count:
                    raise ValueError(f"{name} of {path} has missing values, expected integers")
                else:
                    batch[role] = _int64s(name, column.to_numpy(zero_copy_only=False))
            yield batch


def _lists(name: str, column: Any, admitted: npt.NDArray[Any], dim: int) -> npt.NDArray[np.float32]:
    """Return the lists of the ids that are admitted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list and not pa.types.is_fixed_size_list(kind):
        raise TypeError(f"{name} is {kind}, expected lists of {dim} numbers")
    if kind.value_type not in (pa.float32(), pa.float16()):
        raise TypeError(f"{name} has lists of {kind.value_type}, expected float32 or float16")
    if not np.array_equal(np.asarray(column.is_valid()), admitted):
        raise ValueError(f"{name} is missing where the embedding is not, expected both or none")
    lengths = pc.unique(pc.list_value_length(column.drop_null())).to_pylist()
    if lengths not in ([], [dim]):
        raise ValueError(f"{name} has lists of {lengths[:5]} numbers, expected {dim}")
    values = column.flatten()
    if values.null_count:
        raise ValueError(f"{name} has lists with missing numbers, expected numbers")
    numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).astype(np.float32)
    return numbers.reshape(-1, dim)


@contextmanager
def opened_arrow(
    path: str | os.PathLike[str],
) -> Iterator[tuple[Any, Callable[[list[str], int], Iterator[Any]]]]:
    """Give the schema of a Parquet or Arrow IPC file, and a function that reads its batches.

    The function takes the names of columns and the number of rows of a batch, and returns an
    iterator over record batches.
    """
    import pyarrow as pa
    from pyarrow import ipc, parquet

    try:
        if Path(path).suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                yield file.schema_arrow, lambda names, rows: file.iter_batches(rows, columns=names)
        else:
            with pa.memory_map(os.fspath(path)) as mapped, ipc.open_file(mapped) as reader:

                def read(names: list[str], rows: int) -> Iterator[Any]:
                    for number in range(reader.num_record_batches):
                        batch = reader.get_batch(number).select(names)
                        for first in range(0, batch.num_rows, rows):
                            yield batch.slice(first, rows)

                yield reader.schema, read
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error
