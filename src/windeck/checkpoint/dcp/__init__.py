"""torch.distributed.checkpoint over stores: one line changes, and a save is one commit.

::

    dcp.save(state, storage_writer=StoreWriter("rocksdb:///data/run", step=100))
    dcp.load(state, storage_reader=StoreReader("rocksdb:///data/run"))

What `dcp.save` writes is a checkpoint like any other, which `checkpoint.open` and `checkpoint.load`
read, and `dcp.load` reads what `checkpoint.save` wrote. Nothing is pickled in between.
"""

from windeck.checkpoint.dcp.reader import StoreReader
from windeck.checkpoint.dcp.writer import StoreWriter

__all__ = ["StoreReader", "StoreWriter"]
