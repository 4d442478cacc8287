"""Checkpoints of other formats: reading, viewing and importing them.

torch's ``.pt`` files and DCP folders, safetensors, NumPy archives, and tables in Parquet files.
"""

from windeck.checkpoint.foreign.importing import import_
from windeck.checkpoint.foreign.keyed import import_table

__all__ = ["import_", "import_table"]
