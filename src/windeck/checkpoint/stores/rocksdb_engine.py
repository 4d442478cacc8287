"""Options of the RocksDB engine, and the translation of its errors."""

from __future__ import annotations

import os
from typing import NoReturn

import rocksdict

from windeck._util.file_limit import allow_open_files
from windeck.checkpoint.stores.embedded import translate_engine_error
from windeck.checkpoint.stores.store_url import StoreURL

__all__ = ["COMPRESSIONS", "fail", "options_for"]

COMPRESSIONS = ("none", "lz4", "zstd")
#: Bytes of the log in memory, which the engine then writes to a table.
WRITE_BUFFER_BYTES = 16 << 20


def options_for(url: StoreURL, path: str | None = None) -> rocksdict.Options:
    """Return the options of a database at `path`, or of a table file (None)."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # A record cut off by a crash ends the log; a damaged one is an error. See embedded.Seal.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    compression = url.choice("compression", COMPRESSIONS, "none")
    options.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    # Small tables are merged in the background. Of the styles, only this one deletes tables without
    # reading them, if all their keys were removed. It does not merge them with the largest tables
    # below, which hold the data, to save space: these have no values that were replaced.
    options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    merging = rocksdict.UniversalCompactOptions()
    merging.min_merge_width, merging.max_size_amplification_percent = 3, 1 << 30
    options.set_universal_compaction_options(merging)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_target_file_size_base(256 << 20)
    # Open all tables with the database: a reader, because the writer may remove them; and because
    # `get_unchecked` would open a table without verifying its index, which stays in memory.
    options.set_max_open_files(-1)
    if path is not None:
        count = sum(name.endswith(".sst") for name in os.listdir(path))
        # Readers, and iterators over new tables, keep them open.
        allow_open_files(2 * count + 512)
        # The engine starts all threads that it may use to open tables (default: 16), even for few.
        options.set_max_file_opening_threads(min(max(count, 1), 16))
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(5)  # readable by RocksDB from 6.6 on
    tables.set_checksum_type(rocksdict.ChecksumType.crc32c())
    options.set_block_based_table_factory(tables)
    return options


def fail(error: Exception, doing: str, where: str) -> NoReturn:
    """Raise the built-in error for an error of the engine.

    rocksdict raises plain Exception, and OSError when it creates folders. Other errors are raised
    unchanged.
    """
    if isinstance(error, rocksdict.DbClosedError):
        raise ValueError(f"the store {where} is closed") from None
    if type(error) is not Exception and not isinstance(error, OSError):
        raise error
    raise translate_engine_error(error, doing, where) from error
