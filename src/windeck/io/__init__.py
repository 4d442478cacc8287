"""Files: access to the file system, and readers of Arrow IPC, Parquet and CSV."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.io import filesystem
    from windeck.io.blocks import open_parted
    from windeck.io.cache import ObjectCache, checked_cache
    from windeck.io.csv import CsvFile
    from windeck.io.csv_options import CsvOptions, date_formats
    from windeck.io.data_files import list_matching, resolve
    from windeck.io.filesystem import RangeReader
    from windeck.io.footers import parquet_footer
    from windeck.io.json_lines import check_column
    from windeck.io.local_files import atomic_file, create_file, temporary_path
    from windeck.io.objects import ObjectReader, list_objects, write_object
    from windeck.io.options import as_names
    from windeck.io.row_reader import RowReader
    from windeck.io.writing import (
        read_batches,
        remove_directory,
        sha256,
        write_batches,
        write_parquet,
    )

__all__ = [
    "CsvFile",
    "CsvOptions",
    "ObjectCache",
    "ObjectReader",
    "RangeReader",
    "RowReader",
    "as_names",
    "atomic_file",
    "check_column",
    "checked_cache",
    "create_file",
    "date_formats",
    "filesystem",
    "list_matching",
    "list_objects",
    "open_parted",
    "parquet_footer",
    "read_batches",
    "remove_directory",
    "resolve",
    "sha256",
    "temporary_path",
    "write_batches",
    "write_object",
    "write_parquet",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "blocks": ("open_parted",),
        "cache": ("ObjectCache", "checked_cache"),
        "csv": ("CsvFile",),
        "csv_options": ("CsvOptions", "date_formats"),
        "data_files": ("list_matching", "resolve"),
        "filesystem": ("RangeReader",),
        "footers": ("parquet_footer",),
        "json_lines": ("check_column",),
        "local_files": ("atomic_file", "create_file", "temporary_path"),
        "objects": ("ObjectReader", "list_objects", "write_object"),
        "options": ("as_names",),
        "row_reader": ("RowReader",),
        "writing": ("read_batches", "remove_directory", "sha256", "write_batches", "write_parquet"),
    },
)
