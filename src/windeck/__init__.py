"""A deck of windows: shuffle it, cut it, deal it.

windeck turns columnar data into training batches at memory speed, shuffled by an arithmetic
permutation, and resumable from one integer.
"""

from windeck._core import LCG, ORDER_VERSION, Permutation
from windeck.orders import BlockPermutation, Lanes, Sequential
from windeck.sources.table import Table

__version__ = "0.1.0"

__all__ = [
    "LCG",
    "ORDER_VERSION",
    "BlockPermutation",
    "Lanes",
    "Permutation",
    "Sequential",
    "Table",
    "__version__",
]
