"""Protocols of orders, sources and streams, and what the library makes of an object that has them.

No base class is needed, only the methods. A source::

    class Squares:
        fingerprint = {"squares": 1000}

        def __len__(self):
            return 1000

        def gather(self, indices, out=None):
            return {"x": indices.astype(np.float32) ** 2}
"""

from windeck._core import empty_rows
from windeck.sources.members import gather_rows, present, whole
from windeck.sources.protocols import (
    Batch,
    BatchedRows,
    BatchOptions,
    BlockSource,
    CountedStream,
    DeviceRowSource,
    DeviceSource,
    DocumentSource,
    DocumentStream,
    EpochSource,
    ExplainedData,
    Fingerprint,
    GrowingSource,
    Indices,
    Order,
    OrderedStream,
    OrderFactory,
    PresentedStream,
    ReadAheadSource,
    ResumableStream,
    RowSource,
    SampleStream,
    ShuffledSource,
    Source,
    Stream,
)

__all__ = [
    "Batch",
    "BatchOptions",
    "BatchedRows",
    "BlockSource",
    "CountedStream",
    "DeviceRowSource",
    "DeviceSource",
    "DocumentSource",
    "DocumentStream",
    "EpochSource",
    "ExplainedData",
    "Fingerprint",
    "GrowingSource",
    "Indices",
    "Order",
    "OrderFactory",
    "OrderedStream",
    "PresentedStream",
    "ReadAheadSource",
    "ResumableStream",
    "RowSource",
    "SampleStream",
    "ShuffledSource",
    "Source",
    "Stream",
    "empty_rows",
    "gather_rows",
    "present",
    "whole",
]
