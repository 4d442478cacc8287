"""A deck of windows: shuffle it, cut it, deal it.

windeck turns columnar data into training batches at memory speed, shuffled by an arithmetic
permutation, and resumable from one integer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windeck._core import LCG, ORDER_VERSION, Permutation

if TYPE_CHECKING:
    from windeck.datasets import IterDataset, MapDataset, collate
    from windeck.embeddings import EmbeddingTable, ShardedEmbeddingTable, TableOptimizer
    from windeck.loader import Loader
    from windeck.mixture import Mixture
    from windeck.orders import BlockPermutation, Lanes, Sequential
    from windeck.sampler import OrderSampler
    from windeck.shuffle_quality import Report, quality
    from windeck.sources.documents import Documents
    from windeck.sources.packing import PackedSequences
    from windeck.sources.scaler import Scaler
    from windeck.sources.table import Table
    from windeck.sources.windows import Windows
    from windeck.streams import Stream

__version__ = "0.1.0"

__all__ = [
    "LCG",
    "ORDER_VERSION",
    "BlockPermutation",
    "Documents",
    "EmbeddingTable",
    "IterDataset",
    "Lanes",
    "Loader",
    "MapDataset",
    "Mixture",
    "OrderSampler",
    "PackedSequences",
    "Permutation",
    "Report",
    "Scaler",
    "Sequential",
    "ShardedEmbeddingTable",
    "Stream",
    "Table",
    "TableOptimizer",
    "Windows",
    "__version__",
    "collate",
    "quality",
]

# Imported when first asked for (PEP 562): torch takes seconds, pyarrow and NumPy tenths of one,
# and `windeck view` needs none of them to list a checkpoint.
_PLACES = {
    "embeddings": ("EmbeddingTable", "ShardedEmbeddingTable", "TableOptimizer"),
    "datasets": ("IterDataset", "MapDataset", "collate"),
    "loader": ("Loader",),
    "mixture": ("Mixture",),
    "orders": ("BlockPermutation", "Lanes", "Sequential"),
    "sampler": ("OrderSampler",),
    "shuffle_quality": ("Report", "quality"),
    "sources.documents": ("Documents",),
    "sources.packing": ("PackedSequences",),
    "sources.scaler": ("Scaler",),
    "sources.table": ("Table",),
    "sources.windows": ("Windows",),
    "streams": ("Stream",),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'windeck' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"windeck.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
