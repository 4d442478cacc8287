"""Shared internals: validation, fingerprints, caches, files, threads, text for messages."""

from typing import TYPE_CHECKING

from windeck._util.imports import lazy_attributes

if TYPE_CHECKING:
    from windeck._util import options, retry
    from windeck._util.collectives import gather_bytes
    from windeck._util.file_limit import allow_more_files, allow_open_files, open_with_room
    from windeck._util.fingerprints import check_fingerprint, digest, order_name, sample_rows
    from windeck._util.lru_cache import LRUCache
    from windeck._util.parallel import parallel_map, read_ahead, run_in_threads
    from windeck._util.progress import report_progress
    from windeck._util.schemes import SCHEMES, UNKNOWN, scheme_of
    from windeck._util.threads import (
        Cancelled,
        Pool,
        Task,
        holds_lock,
        reentrant_lock,
        start,
        unheld,
    )
    from windeck._util.validation import LIMIT, check_bytes, check_format, check_integer

__all__ = [
    "Cancelled",
    "LIMIT",
    "LRUCache",
    "Pool",
    "SCHEMES",
    "Task",
    "UNKNOWN",
    "allow_more_files",
    "allow_open_files",
    "check_bytes",
    "check_fingerprint",
    "check_format",
    "check_integer",
    "digest",
    "gather_bytes",
    "holds_lock",
    "open_with_room",
    "options",
    "order_name",
    "parallel_map",
    "read_ahead",
    "reentrant_lock",
    "report_progress",
    "retry",
    "run_in_threads",
    "sample_rows",
    "scheme_of",
    "start",
    "unheld",
]

# Imported on first use: torch, pyarrow and NumPy take long to import.
__getattr__ = lazy_attributes(
    __name__,
    {
        "collectives": ("gather_bytes",),
        "file_limit": ("allow_more_files", "allow_open_files", "open_with_room"),
        "fingerprints": ("check_fingerprint", "digest", "order_name", "sample_rows"),
        "lru_cache": ("LRUCache",),
        "parallel": ("parallel_map", "read_ahead", "run_in_threads"),
        "progress": ("report_progress",),
        "schemes": ("SCHEMES", "UNKNOWN", "scheme_of"),
        "threads": ("Cancelled", "Pool", "Task", "holds_lock", "reentrant_lock", "start", "unheld"),
        "validation": ("LIMIT", "check_bytes", "check_format", "check_integer"),
    },
)
