"""Checkpoints in key-value stores: model, optimizer, loader and more, each step in one commit.

Saving and loading
    `save`, `load`; `wait` for a save in the background; `begin`, `save_shard` and `merge` for saves
    by many processes.
Reading parts
    `open` for single tensors and rows, `log` for the list of generations.
Maintenance
    `verify`, `search`, `diff`, `copy`, `gc`; `tag` and `untag` for generations that `gc` keeps.
Files of other frameworks
    `import_`, `import_table`; see also `windeck.checkpoint.safetensors`.
Serving of embedding tables
    `export`, `import_rows`.
Stores
    `windeck.checkpoint.stores`.

Torch is imported on first access to a name that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windeck._util.imports import has_torch, imported, needs_torch

if TYPE_CHECKING:
    from windeck.checkpoint import stores
    from windeck.checkpoint.background import BackgroundSave, wait
    from windeck.checkpoint.copying import copy
    from windeck.checkpoint.foreign.importing import import_
    from windeck.checkpoint.foreign.keyed import import_table
    from windeck.checkpoint.format.boxes import Partition
    from windeck.checkpoint.format.manifests import Commit
    from windeck.checkpoint.format.table_entries import TableInfo
    from windeck.checkpoint.inspecting import Checkpoint, TensorInfo, open
    from windeck.checkpoint.loading import Loaded, load
    from windeck.checkpoint.maintenance import gc, log
    from windeck.checkpoint.read.comparing import diff
    from windeck.checkpoint.read.searching import search
    from windeck.checkpoint.read.verifying import verify
    from windeck.checkpoint.saving import save
    from windeck.checkpoint.sharded_saving import merge, save_shard
    from windeck.checkpoint.tables.reading import SavedTable, TableRows
    from windeck.checkpoint.tables.serving import export, import_rows
    from windeck.checkpoint.tagging import tag, untag
    from windeck.checkpoint.write.plans import Plan, begin

__all__ = [
    "BackgroundSave",
    "Checkpoint",
    "Commit",
    "Loaded",
    "Partition",
    "Plan",
    "SavedTable",
    "TableInfo",
    "TableRows",
    "TensorInfo",
    "begin",
    "copy",
    "diff",
    "export",
    "gc",
    "import_",
    "import_rows",
    "import_table",
    "load",
    "log",
    "merge",
    "open",
    "save",
    "save_shard",
    "search",
    "stores",
    "tag",
    "untag",
    "verify",
    "wait",
]

_MODULE_OF = {
    "BackgroundSave": "background",
    "Checkpoint": "inspecting",
    "Commit": "format.manifests",
    "Loaded": "loading",
    "Partition": "format.boxes",
    "Plan": "write.plans",
    "SavedTable": "tables.reading",
    "TableInfo": "format.table_entries",
    "TableRows": "tables.reading",
    "TensorInfo": "inspecting",
    "begin": "write.plans",
    "copy": "copying",
    "diff": "read.comparing",
    "export": "tables.serving",
    "gc": "maintenance",
    "import_": "foreign.importing",
    "import_rows": "tables.serving",
    "import_table": "foreign.keyed",
    "load": "loading",
    "log": "maintenance",
    "merge": "sharded_saving",
    "open": "inspecting",
    "save": "saving",
    "save_shard": "sharded_saving",
    "search": "read.searching",
    "tag": "tagging",
    "untag": "tagging",
    "verify": "read.verifying",
    "wait": "background",
}
_NEED_TORCH: tuple[str, ...] = (
    "foreign.importing",
    "foreign.keyed",
    "inspecting",
    "loading",
    "saving",
)
_NEED_TORCH += ("sharded_saving", "write.plans")


def __getattr__(name: str) -> Any:
    if name == "stores":
        from importlib import import_module

        return import_module("windeck.checkpoint.stores")
    if name in _MODULE_OF:
        with needs_torch(f"windeck.checkpoint.{name}"):
            return imported(f"windeck.checkpoint.{_MODULE_OF[name]}", name)
    raise AttributeError(f"module 'windeck.checkpoint' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names; without torch those that work, so that `help` of the module does."""
    needing = () if has_torch() else _NEED_TORCH
    return sorted(name for name in __all__ if _MODULE_OF.get(name) not in needing)
