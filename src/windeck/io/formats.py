"""One interface to Parquet, Arrow IPC and CSV files.

Opening a file reads its metadata alone. `DataFile.batches` then yields record batches of some
columns and rows. Errors that pyarrow raises for a damaged file become a ValueError that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from windeck._util.parallel import run_in_threads
from windeck.io import filesystem
from windeck.io.conversion import is_string

if TYPE_CHECKING:
    from windeck.io.csv_options import CsvOptions

BATCH_ROWS = 1 << 16
_COLUMNS, _VALUES = 16, 1 << 22
#: Remote files that are opened at the same time.
_OPENED_AT_ONCE = 16


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


def open_file(path: str, csv: CsvOptions | None = None) -> DataFile:
    """Open a file as Parquet or Arrow IPC if its first bytes say so, else as CSV.

    Raises
    ------
    ValueError
        The file is empty or damaged, or not CSV although `csv` has options; the message names it.
    """
    from windeck.io.csv import CsvFile

    file = _open_binary(path)
    if file is None:
        return CsvFile(filesystem.load(path), csv)
    if csv is not None and csv.given:
        raise ValueError(f"{path!r} is {file.kind}, and `{csv.given[0]}` is an option of CSV files")
    return file


def open_files(paths: Sequence[str], csv: CsvOptions | None = None) -> list[DataFile]:
    """Open several files as `open_file` does, remote ones in parallel."""
    if not any(map(filesystem.is_remote, paths)):
        return [open_file(path, csv) for path in paths]
    return run_in_threads(
        lambda place: open_file(paths[place], csv), len(paths), _OPENED_AT_ONCE, portion=1
    )


def _open_binary(path: str) -> DataFile | None:
    """Open a file of Parquet or Arrow IPC, None for another."""
    from windeck.io.arrow import IpcFile
    from windeck.io.parquet import ParquetFile

    with filesystem.RangeReader(path) as file:
        if file.size == 0:
            raise ValueError(f"{path!r} is empty (0 bytes)")
        head = file.read(0, 8)
    name = path.lower()
    if head.startswith(b"PAR1") or name.endswith((".parquet", ".pq")):
        return ParquetFile(path)
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return IpcFile(filesystem.load(path), stream=not head.startswith(b"ARROW1"))
    _check_foreign(path, head)
    if name.endswith((".arrow", ".arrows", ".feather", ".ipc")):
        raise ValueError(f"{path!r} cannot be read as Arrow IPC: it begins with {head!r}")
    return None


_PASS = "and pass the result to Table.from_arrow"
#: First bytes of files of other formats, with their names and what reads them.
_FOREIGN = {
    b"FEA1": (
        "Feather of version 1",
        "write it again with pyarrow.feather.write_feather(pyarrow.feather.read_table(path), path)",
    ),
    b"PK\x03\x04": (
        "an Excel workbook or another zip file",
        f"read it with pandas.read_excel, {_PASS}, or unpack it",
    ),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", f"read it with pandas.read_excel, {_PASS}"),
    b"\x89HDF": ("HDF5", f"read it with pandas.read_hdf or xarray, {_PASS}"),
    b"CDF": ("netCDF", f"read it with xarray, {_PASS}"),
    b"ORC": ("ORC", f"read it with pyarrow.orc.read_table, {_PASS}"),
    b"Obj\x01": ("Avro", f"read it with polars.read_avro, {_PASS}"),
    b"SQLite f": ("an SQLite database", f"read it with polars.read_database, {_PASS}"),
    b"\x93NUMPY": ("a NumPy array", "read it with numpy.load, and pass it to Table.from_columns"),
    b"\x1f\x8b": ("compressed with gzip", "give it a name that ends in .csv.gz, or decompress it"),
    b"BZh": ("compressed with bzip2", "give it a name that ends in .csv.bz2, or decompress it"),
    b"\x28\xb5\x2f\xfd": ("compressed with Zstandard", "decompress it"),
    b"\xfd7zXZ": ("compressed with xz", "decompress it"),
}


def _check_foreign(path: str, head: bytes) -> None:
    """Raise ValueError for a file of another format by its first bytes, with what reads it."""
    for mark, (kind, cure) in _FOREIGN.items():
        if head.startswith(mark) and not path.lower().endswith((".gz", ".bz2")):
            raise ValueError(
                f"{path!r} is {kind}, where Parquet, Arrow IPC or CSV was expected: {cure}"
            )


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
