"""Internals of windeck that tests use, and their replacement by faults, limits and recorders.

Tests import what a package offers from the package. What no package offers is named here alone, so
that a module of windeck that moves is followed in this file. `tests/test_faces.py` holds the rule,
and that the list only shrinks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: What tests replace, or read as it is at the time: a name, and the module that has it. The name
#: is the last part of that of the module, and the place in it.
MODULE_OF = {
    "parallel.THREADS": "windeck._util.parallel",
    "progress.clock": "windeck._util.progress",
    "progress.parent_process": "windeck._util.progress",
    "retry.FIRST_ANSWER_SECONDS": "windeck._util.retry",
    "retry.OPENING": "windeck._util.retry",
    "retry.REQUESTS": "windeck._util.retry",
    "retry.SETTLING": "windeck._util.retry",
    "threads.Task.wait": "windeck._util.threads",
    "threads._running": "windeck._util.threads",
    "copying.opened": "windeck.checkpoint.copying",
    "keyed._READ_BYTES": "windeck.checkpoint.foreign.keyed",
    "chunks.wait_for_device": "windeck.checkpoint.format.chunks",
    "values.LARGEST_PAYLOAD": "windeck.checkpoint.format.values",
    "group_saving.copy_tensors": "windeck.checkpoint.group_saving",
    "fetching.wait_for_device": "windeck.checkpoint.read.fetching",
    "verifying.MOST": "windeck.checkpoint.read.verifying",
    "exporting.write_json": "windeck.checkpoint.safetensors.exporting",
    "files._LARGEST_HEADER": "windeck.checkpoint.safetensors.files",
    "sharded_saving.merge_shards": "windeck.checkpoint.sharded_saving",
    "sharded_saving.write_part": "windeck.checkpoint.sharded_saving",
    "embedded.remove": "windeck.checkpoint.stores.embedded",
    "leveldb._open_database": "windeck.checkpoint.stores.leveldb",
    "objects.SEGMENT_BYTES": "windeck.checkpoint.stores.objects",
    "objects.write_object": "windeck.checkpoint.stores.objects",
    "protocol.MIN_SPLIT_BYTES": "windeck.checkpoint.stores.protocol",
    "redis._scan_node": "windeck.checkpoint.stores.redis",
    "rocksdb.RocksDBStore._open_engine": "windeck.checkpoint.stores.rocksdb",
    "rocksdb.TABLE_BYTES": "windeck.checkpoint.stores.rocksdb",
    "rocksdb_bulk.THREADS": "windeck.checkpoint.stores.rocksdb_bulk",
    "rocksdb_sst.BUFFER_BYTES": "windeck.checkpoint.stores.rocksdb_sst",
    "rocksdb_sst.LARGE_BYTES": "windeck.checkpoint.stores.rocksdb_sst",
    "rocksdb_sst.create_file": "windeck.checkpoint.stores.rocksdb_sst",
    "urls._registered": "windeck.checkpoint.stores.urls",
    "writing.MIN_SPLIT_BYTES": "windeck.checkpoint.tables.writing",
    "writing.READ_BYTES": "windeck.checkpoint.tables.writing",
    "writing._BlocksWriter._encode_block": "windeck.checkpoint.tables.writing",
    "copies.LentTensors.wait": "windeck.checkpoint.write.copies",
    "incremental._VALUE_BYTES": "windeck.checkpoint.write.incremental",
    "catalog.find_commit": "windeck.cli.catalog",
    "demo_job.train": "windeck.cli.demo_job",
    "demo_job.train_in_process": "windeck.cli.demo_job",
    "main.find_spec": "windeck.cli.main",
    "corpora._COUNTED_BYTES": "windeck.cli.description.corpora",
    "tables.SAMPLE_CSV": "windeck.cli.description.tables",
    "tables.SAMPLE_ROWS": "windeck.cli.description.tables",
    "device._free_bytes": "windeck.columns.device",
    "device_orders.walk": "windeck.device_orders",
    "diagnosing.uses_gpu": "windeck.diagnosis.diagnosing",
    "loops.synchronize": "windeck.diagnosis.loops",
    "loops.uses_gpu": "windeck.diagnosis.loops",
    "machine._TEMPORARY": "windeck.diagnosis.machine",
    "processes._pids": "windeck.diagnosis.processes",
    "processes._read": "windeck.diagnosis.processes",
    "counts.count_shard": "windeck.documents.counts",
    "documents.file_limit": "windeck.documents.documents",
    "mds._PORTION_BYTES": "windeck.documents.mds",
    "megatron._PORTION": "windeck.documents.megatron",
    "nanogpt._PORTION_BYTES": "windeck.documents.nanogpt",
    "readers.DocumentOptions.open": "windeck.documents.readers",
    "token_files.map_documents": "windeck.documents.token_files",
    "tokenization._BATCH_CHARACTERS": "windeck.documents.tokenization",
    "blocks.GAP_BYTES": "windeck.io.blocks",
    "blocks.RangedIpcFile.batches": "windeck.io.blocks",
    "blocks.RangedIpcFile.stored_bytes": "windeck.io.blocks",
    "blocks.RangedParquetFile.batches": "windeck.io.blocks",
    "cache._verified": "windeck.io.cache",
    "cache._warned": "windeck.io.cache",
    "cache._write": "windeck.io.cache",
    "cache.open": "windeck.io.cache",
    "csv.BATCH_ROWS": "windeck.io.csv",
    "csv._SAMPLE_BYTES": "windeck.io.csv",
    "filesystem._DOWNLOAD_BYTES": "windeck.io.filesystem",
    "filesystem.load": "windeck.io.filesystem",
    "filesystem.open_input": "windeck.io.filesystem",
    "filesystem.upload": "windeck.io.filesystem",
    "ranges.GAP_BYTES": "windeck.io.ranges",
    "ranges.REQUEST_BYTES": "windeck.io.ranges",
    "ranges.RemoteFile._fetch": "windeck.io.ranges",
    "reading._CACHED_BYTES": "windeck.io.reading",
    "record_batches.BATCH_ROWS": "windeck.io.record_batches",
    "record_batches._COLUMNS": "windeck.io.record_batches",
    "record_batches._VALUES": "windeck.io.record_batches",
    "row_reader.CACHED_BYTES": "windeck.io.row_reader",
    "row_reader.PORTION_BYTES": "windeck.io.row_reader",
    "row_reader.READING_BYTES": "windeck.io.row_reader",
    "row_reader.RowReader.scan": "windeck.io.row_reader",
    "writing.upload": "windeck.io.writing",
    "device.POSITIONS_AT_A_TIME": "windeck.loader.device",
    "prefetch.Prefetcher.get": "windeck.loader.prefetch",
    "prefetch._stop_all": "windeck.loader.prefetch",
    "prefetch.perf_counter": "windeck.loader.prefetch",
    "device.TOKENS_AT_A_TIME": "windeck.packing.device",
    "global_shuffle.LARGE_BLOCK": "windeck.packing.global_shuffle",
    "epochs.epoch_layout": "windeck.packing.epochs",
    "layout.MAX_PARTS": "windeck.packing.epochs",
    "prepared_files.write_parquet": "windeck.preparation.prepared_files",
    "sorted_files.write_batches": "windeck.preparation.sorted_files",
    "derived.ROWS_AT_A_TIME": "windeck.table.derived",
    "first_pass.COUNTED_STEPS": "windeck.table.first_pass",
    "group_cache.GroupCache.get": "windeck.table.group_cache",
    "timestamps.ROWS_AT_A_TIME": "windeck.table.timestamps",
    "coverage.ROWS_AT_A_TIME": "windeck.windows.coverage",
    "device.STRIDED": "windeck.windows.device",
    "device.VALUES_AT_A_TIME": "windeck.windows.device",
    "device._DeviceRows": "windeck.windows.device",
    "device._DeviceRows.lookups": "windeck.windows.device",
    "device.resolve_device": "windeck.windows.device",
    "device_balanced.DeviceBalancedEpoch._check": "windeck.windows.device_balanced",
    "device_balanced.DeviceBalancedEpoch.base_samples": "windeck.windows.device_balanced",
    "filters.ROWS_AT_A_TIME": "windeck.windows.filters",
    "origins._live": "windeck.windows.origins",
    "scaler_fitting.ROWS_AT_A_TIME": "windeck.windows.scaler_fitting",
    "scaler_fitting.SAMPLE_BYTES": "windeck.windows.scaler_fitting",
    "static_columns.ROWS_AT_A_TIME": "windeck.windows.static_columns",
    "streamed.BlockedWindows.load": "windeck.windows.streamed",
    "streamed.SKIPPED_ROWS": "windeck.windows.streamed",
}


def _place(name: str) -> tuple[Any, str]:
    """Return the module or class, and the attribute, of a name of `MODULE_OF`."""
    *path, attribute = name.split(".")[1:]
    owner = import_module(MODULE_OF[name])
    for part in path:
        owner = getattr(owner, part)
    return owner, attribute


def original(name: str) -> Any:
    """Return the value of a name of `MODULE_OF`."""
    return getattr(*_place(name))


def plant(patch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """Replace the value of a name of `MODULE_OF` until the patch ends."""
    patch.setattr(*_place(name), value, raising=name != "cache.open")


@contextmanager
def planted(name: str, value: object) -> Iterator[None]:
    """Replace the value of a name of `MODULE_OF` in a block."""
    former = original(name)
    replace(name, value)
    try:
        yield
    finally:
        replace(name, former)


def replace(name: str, value: object) -> None:
    """Replace the value of a name of `MODULE_OF` for the rest of the process."""
    setattr(*_place(name), value)
