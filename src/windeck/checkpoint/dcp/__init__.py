"""Storage writer and reader of torch.distributed.checkpoint (dcp) for key-value stores.

::

    dcp.save(state, storage_writer=StoreWriter("rocksdb:///data/run", step=100))
    dcp.load(state, storage_reader=StoreReader("rocksdb:///data/run"))

A save is one commit. `dcp.save` writes a checkpoint that `checkpoint.open` and `checkpoint.load`
read, and `dcp.load` reads checkpoints of `checkpoint.save`. Nothing is pickled.
"""

from windeck._util.imports import needs_torch

with needs_torch("windeck.checkpoint.dcp"):
    from windeck.checkpoint.dcp.reader import StoreReader
    from windeck.checkpoint.dcp.writer import StoreWriter

__all__ = ["StoreReader", "StoreWriter"]
