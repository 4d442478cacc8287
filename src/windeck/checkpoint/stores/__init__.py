"""Key-value stores of bytes: a protocol, and backends for RocksDB, LevelDB, Redis and memory.

``open_store("rocksdb:///path")``, ``leveldb:///path``, ``redis://host:6379/0``, ``memory://name``.
The library of a backend is imported when its first URL is opened. The guide on
stores lists the guarantees of each backend.
"""

from windeck.checkpoint.stores.memory import MappingStore
from windeck.checkpoint.stores.protocol import (
    LARGEST_BATCH,
    LARGEST_KEY,
    LARGEST_VALUE,
    CorruptStoreError,
    Facts,
    PartStore,
    Pieces,
    Snapshot,
    Store,
    View,
)
from windeck.checkpoint.stores.store_url import StoreURL
from windeck.checkpoint.stores.urls import open_store, register, write_part

__all__ = [
    "LARGEST_BATCH",
    "LARGEST_KEY",
    "LARGEST_VALUE",
    "CorruptStoreError",
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
