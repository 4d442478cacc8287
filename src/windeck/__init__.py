"""Training batches from tables and token files: shuffled, and resumed exactly from one integer.

    import windeck as wd

Tables       `Table`, `Windows`, `Scaler`, `Categories`; `prepare` and `Prepared` for files in any
             order of rows
Documents    `Documents`, `PackedSequences`; `JaggedTable` for rows with lists
Loading      `Loader`, `Stream`, `Mixture`; for a `DataLoader` of torch `MapDataset`, `IterDataset`,
             `OrderSampler` and `collate`; `doctor` says what a loop waits for
Orders       `Permutation`, `BlockPermutation`, `Lanes`, `Sequential`, `LCG`, `ORDER_VERSION`;
             `quality` measures an order, and returns a `Report`
Embeddings   `EmbeddingTable`, `ShardedEmbeddingTable`, `TableOptimizer`
Checkpoints  `from windeck import checkpoint`: `save`, `load`, ...
Protocols    `windeck.sources`, for sources and streams of your own
Adapters     `windeck.adapters`: batches for models of GluonTS, Darts, pytorch-forecasting,
             NeuralForecast, Time-Series-Library and Chronos-2

`help(wd.Loader)` describes a name, and `windeck --help` lists the commands. The guides
are in the folder `docs` of the source distribution; `make docs` builds their site.
"""

from typing import TYPE_CHECKING, Any

from windeck._core import LCG, ORDER_VERSION, Permutation
from windeck._util.imports import has_torch, imported, needs_torch

if TYPE_CHECKING:
    from windeck.diagnosis.diagnosing import doctor
    from windeck.documents.documents import Documents
    from windeck.embeddings import EmbeddingTable, ShardedEmbeddingTable, TableOptimizer
    from windeck.jagged.jagged_table import JaggedTable
    from windeck.loader import (
        IterDataset,
        Loader,
        MapDataset,
        Mixture,
        OrderSampler,
        Stream,
        collate,
    )
    from windeck.orders import BlockPermutation, Lanes, Sequential
    from windeck.packing.packing import PackedSequences
    from windeck.preparation.manifest import Prepared
    from windeck.preparation.preparing import prepare
    from windeck.shuffle_quality import Report, quality
    from windeck.table.table import Table
    from windeck.windows.categories import Categories
    from windeck.windows.scaler import Scaler
    from windeck.windows.windows import Windows

__version__ = "0.2.0"

__all__ = [
    "LCG",
    "ORDER_VERSION",
    "BlockPermutation",
    "Categories",
    "Documents",
    "EmbeddingTable",
    "IterDataset",
    "JaggedTable",
    "Lanes",
    "Loader",
    "MapDataset",
    "Mixture",
    "OrderSampler",
    "PackedSequences",
    "Permutation",
    "Prepared",
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
    "doctor",
    "prepare",
    "quality",
]

# Imported on first use (PEP 562): torch takes seconds to import, pyarrow and NumPy tenths of one,
# and `windeck view` lists a checkpoint without them.
_NAMES_OF = {
    "diagnosis.diagnosing": ("doctor",),
    "documents.documents": ("Documents",),
    "embeddings": ("EmbeddingTable", "ShardedEmbeddingTable", "TableOptimizer"),
    "jagged.jagged_table": ("JaggedTable",),
    "loader": (
        "Loader",
        "Mixture",
        "Stream",
        "IterDataset",
        "MapDataset",
        "collate",
        "OrderSampler",
    ),
    "orders": ("BlockPermutation", "Lanes", "Sequential"),
    "packing.packing": ("PackedSequences",),
    "preparation.manifest": ("Prepared",),
    "preparation.preparing": ("prepare",),
    "shuffle_quality": ("Report", "quality"),
    "table.table": ("Table",),
    "windows.categories": ("Categories",),
    "windows.scaler": ("Scaler",),
    "windows.windows": ("Windows",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}
_NEED_TORCH = ("embeddings", "loader")


def _plot(self: Permutation, *, ax: Any = None) -> Any:
    """Draw which sample is at each position; see `windeck.orders.plot_order`."""
    from windeck.orders import plot_order

    return plot_order(self, ax=ax)


_plot.__name__, _plot.__qualname__ = "plot", "Permutation.plot"  # for errors
Permutation.plot = _plot  # type: ignore[method-assign]  # it needs Python, unlike the extension


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'windeck' has no attribute {name!r}")
    with needs_torch(f"windeck.{name}"):
        value = globals()[name] = imported(f"windeck.{_MODULE_OF[name]}", name)
    return value


def __dir__() -> list[str]:
    """Return the public names; without torch those that work, so that `help(windeck)` does."""
    needing = () if has_torch() else _NEED_TORCH
    return sorted(name for name in __all__ if _MODULE_OF.get(name) not in needing)
