"""Checkpoints of other formats: reading, viewing and importing them.

torch's ``.pt`` files and DCP folders, safetensors, NumPy archives, and tables in Parquet files.
"""

from windeck._util.imports import needs_torch

with needs_torch("windeck.checkpoint.foreign"):
    from windeck.checkpoint.foreign.importing import import_
    from windeck.checkpoint.foreign.keyed import import_table
    from windeck.checkpoint.foreign.opening import open_file

__all__ = ["import_", "import_table", "open_file"]
