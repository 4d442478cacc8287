"""Checkpoints in key-value stores: model, optimizer, loader and more, all of a step in one commit.

`save`, `load`, `open` for one tensor or one row, `log`, `gc`; `begin`, `save_shard` and `merge`
where many processes save; `search`, `verify`, `diff` and `copy` to look after them; `export` and
`import_rows` for tables that others serve; the stores themselves are in
`windeck.checkpoint.stores`. Torch is imported when something that deals with tensors is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windeck.checkpoint import stores
from windeck.checkpoint.history import gc, log
from windeck.checkpoint.manifests import Commit
from windeck.checkpoint.partition import Partition
from windeck.checkpoint.plans import Plan, begin

if TYPE_CHECKING:
    from windeck.checkpoint.comparing import diff
    from windeck.checkpoint.copying import copy
    from windeck.checkpoint.loading import Loaded, load
    from windeck.checkpoint.reading import Checkpoint, TensorInfo, open
    from windeck.checkpoint.saving import save
    from windeck.checkpoint.searching import search
    from windeck.checkpoint.sharding import merge, save_shard
    from windeck.checkpoint.tables.infos import TableInfo
    from windeck.checkpoint.tables.reading import SavedTable, TableRows
    from windeck.checkpoint.tables.serving import export, import_rows
    from windeck.checkpoint.verifying import verify

__all__ = ["Checkpoint", "Commit", "Loaded", "TensorInfo", "gc", "load", "log", "open", "save"]
__all__ += ["copy", "diff", "search", "stores", "verify"]
__all__ += ["Partition", "Plan", "begin", "merge", "save_shard"]
__all__ += ["SavedTable", "TableInfo", "TableRows", "export", "import_rows"]

_LAZY = {"load": "loading", "Loaded": "loading", "save": "saving"}
_LAZY |= {"copy": "copying", "diff": "comparing", "search": "searching", "verify": "verifying"}
_LAZY |= {"save_shard": "sharding", "merge": "sharding"}
_LAZY |= {"open": "reading", "Checkpoint": "reading", "TensorInfo": "reading"}


_LAZY |= {"SavedTable": "tables.reading", "TableRows": "tables.reading"}
_LAZY |= {"TableInfo": "tables.infos", "export": "tables.serving", "import_rows": "tables.serving"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"windeck.checkpoint.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'windeck.checkpoint' has no attribute {name!r}")
