"""The three kinds of file a table is read from, behind one small interface.

Each kind opens by reading its metadata only; `batches` then yields record batches of just the
columns and rows asked for. Anything pyarrow raises on a damaged file comes out as a ValueError
that names the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from windeck.io import filesystem

BATCH_ROWS = 1 << 16
_COLUMNS, _VALUES = 16, 1 << 22


class DataFile(Protocol):
    """One file: what it holds, and a way to read some columns of some rows."""

    path: str
    kind: str

    @property
    def schema(self) -> Any:
        """The Arrow schema of all columns."""

    @property
    def num_rows(self) -> int:
        """Rows in the file (exact once `prepared`)."""

    def text_bytes(self, name: str) -> int:
        """Bytes one column takes in the file, uncompressed: for columns of no fixed width."""

    def prepared(self, names: Sequence[str]) -> DataFile:
        """The file with its row count and types known for certain; reads CSV, nothing else."""

    def groups(self, names: Sequence[str]) -> list[list[str]]:
        """The columns in portions, each of which is read in one go with little memory beside."""

    @property
    def beside(self) -> int:
        """Bytes that reading takes for a while beside the columns themselves, where many."""

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        """Record batches of just these columns, which together are rows [start, stop)."""


def open_file(path: str) -> DataFile:
    """Open a file as what its first bytes say it is: Parquet, Arrow IPC, or else CSV.

    Raises
    ------
    ValueError
        The file is empty or damaged; the message names it.
    """
    from windeck.io.arrow import IpcFile
    from windeck.io.csv import CsvFile
    from windeck.io.parquet import ParquetFile

    if filesystem.size(path) == 0:
        raise ValueError(f"{path!r} is empty (0 bytes)")
    with filesystem.RangeReader(path) as file:
        head = file.read(0, 8)
    name = path.lower()
    if head.startswith(b"PAR1") or name.endswith((".parquet", ".pq")):
        return ParquetFile(path)
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return IpcFile(path, stream=not head.startswith(b"ARROW1"))
    if name.endswith((".arrow", ".arrows", ".feather", ".ipc")):
        raise ValueError(f"{path!r} cannot be read as Arrow IPC: it begins with {head!r}")
    return CsvFile(path)


@contextlib.contextmanager
def naming(path: str, kind: str) -> Iterator[None]:
    """Turn what pyarrow raises on damaged data into a ValueError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except pa.ArrowMemoryError as error:
        raise MemoryError(f"{path!r} cannot be read as {kind}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{path!r} cannot be read as {kind}: {reason}") from error


def places(schema: Any, names: Sequence[str], path: str) -> list[int]:
    """Places of these columns in a schema; each must be there exactly once."""
    found = {name: schema.get_all_field_indices(name) for name in names}
    for name, where in found.items():
        if len(where) != 1:
            raise ValueError(f"{path!r} has {len(where)} columns named {name!r}; expected one")
    return [where[0] for where in found.values()]


def in_portions(names: Sequence[str], rows: int) -> list[list[str]]:
    """A few columns of a long file at a time: each takes some MB of pages while it is read."""
    step = max(_COLUMNS, _VALUES // max(rows, 1))
    return [list(names[place : place + step]) for place in range(0, len(names), step)]


def overlapping(parts: Sequence[int], start: int, stop: int) -> tuple[list[int], int]:
    """Parts, told by their rows, that hold any of the rows; and the rows before the first."""
    found, skipped, row = [], 0, 0
    for part, rows in enumerate(parts):
        if row + rows <= start:
            skipped += rows
        elif row < stop:
            found.append(part)
        row += rows
    return found, skipped


def cut(batches: Iterator[Any], start: int, stop: int) -> Iterator[Any]:
    """Rows [start, stop) of successive batches, checked, in portions of at most BATCH_ROWS."""
    done = 0
    for batch in batches:
        if done >= stop:
            return
        first, last = max(start - done, 0), min(stop - done, batch.num_rows)
        done += batch.num_rows
        if first < last:
            check(batch)
        for row in range(first, last, BATCH_ROWS):
            yield batch.slice(row, min(BATCH_ROWS, last - row))


def check(batch: Any) -> None:
    """Refuse a batch whose buffers are too small, or whose strings or codes point outside.

    The former is told at once; the latter costs a pass over columns that have such.
    """
    fixed = (pa.types.is_primitive, pa.types.is_null)
    loose = not all(any(test(kind) for test in fixed) for kind in batch.schema.types)
    batch.validate(full=loose)


def column_of(table: Any, name: str) -> Any:
    """Return a column of a table, checked: buffers are long enough, and text is UTF-8.

    A chunked array keeps empty record batches, and a table does not.
    """
    column = table.column(name)
    column.validate(full=pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
    return column
