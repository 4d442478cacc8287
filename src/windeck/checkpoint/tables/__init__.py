"""Embedding tables in checkpoints: blocks of rows, their index, chains of deltas, serving."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.checkpoint.tables.reading import SavedTable, TableRows
    from windeck.checkpoint.tables.serving import export, import_rows
    from windeck.checkpoint.tables.writing import TablesWriter

__all__ = [
    "SavedTable",
    "TableRows",
    "TablesWriter",
    "export",
    "import_rows",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "reading": ("SavedTable", "TableRows"),
        "serving": ("export", "import_rows"),
        "writing": ("TablesWriter",),
    },
)
