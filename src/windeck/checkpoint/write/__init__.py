"""Writing of saves: plans, shards of several writers, merging, incremental saves."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.checkpoint.write.commits import begin_save, commit_manifest
    from windeck.checkpoint.write.copies import LentTensors
    from windeck.checkpoint.write.incremental import find_base, read_base_values
    from windeck.checkpoint.write.merging import merge_tables
    from windeck.checkpoint.write.plans import Plan, begin, discard

__all__ = [
    "LentTensors",
    "Plan",
    "begin",
    "begin_save",
    "commit_manifest",
    "discard",
    "find_base",
    "merge_tables",
    "read_base_values",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "commits": ("begin_save", "commit_manifest"),
        "copies": ("LentTensors",),
        "incremental": ("find_base", "read_base_values"),
        "merging": ("merge_tables",),
        "plans": ("Plan", "begin", "discard"),
    },
)
