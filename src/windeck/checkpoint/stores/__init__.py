"""One small protocol over key-value stores, and four real ones behind it.

``open_store("rocksdb:///path")``, ``leveldb:///path``, ``redis://host:6379/0``, ``memory://name``.
A backend's library is imported when its first URL is opened. docs/stores.md says what each of
them guarantees.
"""

from windeck.checkpoint.stores.errors import CorruptStoreError
from windeck.checkpoint.stores.memory import MappingStore
from windeck.checkpoint.stores.protocol import (
    LARGEST_BATCH,
    LARGEST_KEY,
    LARGEST_VALUE,
    DirectView,
    Facts,
    PartStore,
    Pieces,
    Snapshot,
    Store,
    View,
)
from windeck.checkpoint.stores.urls import StoreURL, open_store, register, write_part

__all__ = [
    "LARGEST_BATCH",
    "LARGEST_KEY",
    "LARGEST_VALUE",
    "CorruptStoreError",
    "DirectView",
    "Facts",
    "MappingStore",
    "PartStore",
    "Pieces",
    "Snapshot",
    "Store",
    "StoreURL",
    "View",
    "open_store",
    "register",
    "write_part",
]
