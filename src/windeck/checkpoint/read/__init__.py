"""Reading of saved tensors: fetching, scanning, searching, comparing, verifying."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck.checkpoint.read.comparing import ValueDifference, diff
    from windeck.checkpoint.read.predicates import Predicate, nan, near, parse
    from windeck.checkpoint.read.scanning import read_box
    from windeck.checkpoint.read.searching import (
        search,
        search_table,
        search_tensor,
        tensor_statistics,
    )
    from windeck.checkpoint.read.statistics import Statistics
    from windeck.checkpoint.read.verifying import verify

__all__ = [
    "Predicate",
    "Statistics",
    "ValueDifference",
    "diff",
    "nan",
    "near",
    "parse",
    "read_box",
    "search",
    "search_table",
    "search_tensor",
    "tensor_statistics",
    "verify",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "comparing": ("ValueDifference", "diff"),
        "predicates": ("Predicate", "nan", "near", "parse"),
        "scanning": ("read_box",),
        "searching": ("search", "search_table", "search_tensor", "tensor_statistics"),
        "statistics": ("Statistics",),
        "verifying": ("verify",),
    },
)
