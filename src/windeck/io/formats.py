"""Opening of Parquet, Arrow IPC and CSV files: the format is known by their first bytes.

Opening a file reads its metadata alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from windeck._util.parallel import run_in_threads
from windeck._util.progress import report_progress
from windeck.io import filesystem
from windeck.io.arrow import IpcFile
from windeck.io.csv import CsvFile
from windeck.io.csv_options import CsvOptions
from windeck.io.parquet import ParquetFile
from windeck.io.record_batches import DataFile

#: Remote files that are opened at the same time.
_OPENED_AT_ONCE = 16


def open_file(path: str, csv: CsvOptions | None = None) -> DataFile:
    """Open a file as Parquet or Arrow IPC if its first bytes say so, else as CSV.

    Raises
    ------
    ValueError
        The file is empty or damaged, or not CSV although `csv` has options; the message names it.
    """
    file = _open_binary(path)
    if file is None:
        return CsvFile(filesystem.load(path), csv)
    if csv is not None and csv.given:
        raise ValueError(f"{path!r} is {file.kind}, and `{csv.given[0]}` is an option of CSV files")
    return file


def open_files(paths: Sequence[str], csv: CsvOptions | None = None) -> list[DataFile]:
    """Open several files as `open_file` does, remote ones in parallel."""
    threads = _OPENED_AT_ONCE if any(map(filesystem.is_remote, paths)) else 0
    with report_progress(None, "opening files", len(paths)) as advance:

        def opened(place: int) -> DataFile:
            file = open_file(paths[place], csv)
            advance(1)
            return file

        if not threads:
            return [opened(place) for place in range(len(paths))]
        return run_in_threads(opened, len(paths), threads, portion=1)


def _open_binary(path: str) -> DataFile | None:
    """Open a file of Parquet or Arrow IPC, None for another."""
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
    if path.lower().endswith(".bin") and (0 in head or not head.isascii()):
        raise ValueError(
            f"{path!r} is binary, where Parquet, Arrow IPC or CSV was expected: Documents reads "
            "files of tokens, such as those of nanoGPT"
        )
