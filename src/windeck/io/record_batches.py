"""The interface of data files, and operations on the record batches that they are read in.

`DataFile.batches` yields record batches of some columns and rows. Errors that pyarrow raises for a
damaged file become a ValueError that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from windeck.io.conversion import is_string

BATCH_ROWS = 1 << 16
_COLUMNS, _VALUES = 16, 1 << 22


class FileSchema(Protocol):
    """The columns and types of a file."""

    @property
    def path(self) -> str:
        """Name of the file in messages."""

    @property
    def kind(self) -> str:
        """Name of the format."""

    @property
    def schema(self) -> Any:
        """The Arrow schema of all columns."""


class DataFile(Protocol):
    """A file of columns, of which some columns and rows can be read."""

    path: str
    kind: str

    @property
    def schema(self) -> Any:
        """The Arrow schema of all columns."""

    @property
    def num_rows(self) -> int:
        """Rows in the file; of a CSV file an estimate until `prepare`."""

    def column_bytes(self, name: str) -> int:
        """Return the uncompressed bytes of a column of variable width."""

    def prepare(self, names: Sequence[str]) -> DataFile:
        """Return the file with exact row count and types; parses CSV, and reads nothing else."""

    def column_groups(self, names: Sequence[str]) -> list[list[str]]:
        """Return the columns in groups that are read one after the other, to limit memory."""

    @property
    def overhead_bytes(self) -> int:
        """Temporary memory for reading, in bytes, beside the columns; 0 if it is small."""

    def batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[Any]:
        """Yield record batches of some columns, together rows [start, stop)."""


@contextlib.contextmanager
def name_in_errors(path: str, kind: str) -> Iterator[None]:
    """Replace errors of pyarrow about damaged data by a ValueError that names the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError, ConnectionError):
        raise
    except pa.ArrowMemoryError as error:
        raise MemoryError(f"{path!r} cannot be read as {kind}: {error}") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"{path!r} cannot be read as {kind}: {reason}") from error


def column_indices(schema: Any, names: Sequence[str], path: str) -> list[int]:
    """Return the indices of columns in a schema, which must have each exactly once."""
    found = {name: schema.get_all_field_indices(name) for name in names}
    for name, indices in found.items():
        if len(indices) != 1:
            raise ValueError(f"{path!r} has {len(indices)} columns named {name!r}; expected one")
    return [indices[0] for indices in found.values()]


def split_columns(names: Sequence[str], rows: int) -> list[list[str]]:
    """Return groups of a few columns of a long file: each takes some MB while it is read."""
    step = max(_COLUMNS, _VALUES // max(rows, 1))
    return [list(names[start : start + step]) for start in range(0, len(names), step)]


def overlapping_parts(parts: Sequence[int], start: int, stop: int) -> tuple[list[int], int]:
    """Return the parts that overlap rows [start, stop), and the rows before the first of them.

    `parts` are the row counts of record batches or row groups.
    """
    found, skipped, row = [], 0, 0
    for part, rows in enumerate(parts):
        if row + rows <= start:
            skipped += rows
        elif row < stop:
            found.append(part)
        row += rows
    return found, skipped


def slice_rows(batches: Iterator[Any], start: int, stop: int) -> Iterator[Any]:
    """Yield rows [start, stop) of successive batches, validated, at most BATCH_ROWS at a time."""
    done = 0
    for batch in batches:
        if done >= stop:
            return
        first, last = max(start - done, 0), min(stop - done, batch.num_rows)
        done += batch.num_rows
        if first < last:
            validate(batch)
        for row in range(first, last, BATCH_ROWS):
            yield batch.slice(row, min(BATCH_ROWS, last - row))


def validate(batch: Any) -> None:
    """Raise an error if buffers are too small, or offsets or dictionary codes are out of range.

    O(1) for columns of fixed width, O(rows) for others.
    """
    fixed_width = (pa.types.is_primitive, pa.types.is_null)
    variable = not all(any(test(kind) for test in fixed_width) for kind in batch.schema.types)
    batch.validate(full=variable)


def column_of(table: Any, name: str) -> Any:
    """Return a validated column of a table, as a ChunkedArray with its empty batches."""
    column = table.column(name)
    column.validate(full=is_string(column.type))
    return column
