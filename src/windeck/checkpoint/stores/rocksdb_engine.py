"""RocksDB as it is set up here, and what its errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import rocksdict

from windeck.checkpoint.stores.embedded import CONFIG
from windeck.checkpoint.stores.errors import from_engine
from windeck.checkpoint.stores.urls import StoreURL

__all__ = ["COMPRESSIONS", "fail", "options_for", "readable"]

COMPRESSIONS = ("none", "lz4", "zstd")


def options_for(url: StoreURL, path: str | None = None) -> rocksdict.Options:
    """What a database, or a table file, is opened with; `path` is that of a database."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # A record cut off by a crash ends the log; a damaged one is an error. See embedded.Seal.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    compression = url.choice("compression", COMPRESSIONS, "none")
    options.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    options.set_write_buffer_size(16 << 20)
    options.set_keep_log_file_num(2)
    # Few large tables, and few of them open at a time: processes may open 1,024 files as a rule. A
    # reader holds them all open, since the writer may remove them.
    options.set_target_file_size_base(256 << 20)
    options.set_max_bytes_for_level_base(1 << 30)
    options.set_max_open_files(-1 if url.flag("readonly") else 256)
    if path is not None:
        # As many threads are made to open tables as may be, 16 unless told, for however few.
        count = sum(name.endswith(".sst") for name in os.listdir(path))
        options.set_max_file_opening_threads(min(max(count, 1), 16))
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(5)  # readable by RocksDB from 6.6 on
    tables.set_checksum_type(rocksdict.ChecksumType.crc32c())
    options.set_block_based_table_factory(tables)
    return options


@contextmanager
def readable(path: str) -> Iterator[str]:
    """Where to open a database for reading: its folder, or one of links to its files for a while.

    rocksdict writes a note beside a database at every opening, so it cannot open one that may only
    be read. A reader opens all files at once, and needs none of their names when that is done.
    """
    note = os.path.join(path, CONFIG)
    if os.access(path, os.W_OK) and (os.access(note, os.W_OK) or not os.path.exists(note)):
        yield path
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="windeck-") as folder:
        for name in os.listdir(path):
            if name.startswith(("CURRENT", "IDENTITY", "MANIFEST-", "OPTIONS-")) or name.endswith(
                (".sst", ".log")
            ):
                os.symlink(os.path.join(os.path.abspath(path), name), os.path.join(folder, name))
        yield folder


def fail(error: Exception, doing: str, where: str) -> NoReturn:
    """Raise what the engine's error means. It raises plain Exception, and OSError when it makes
    folders; others pass through."""
    if isinstance(error, rocksdict.DbClosedError):
        raise ValueError(f"the store {where} is closed") from None
    if type(error) is not Exception and not isinstance(error, OSError):
        raise error
    raise from_engine(error, doing, where) from error
