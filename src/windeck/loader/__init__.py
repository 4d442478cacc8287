"""Loading of batches: streams, mixtures, sharding over ranks, prefetching and state."""

from windeck._util.imports import needs_torch

with needs_torch("windeck.loader"):
    from windeck.loader.batch import as_tensors
    from windeck.loader.iter_dataset import IterDataset
    from windeck.loader.loader import Loader, iterated_loaders
    from windeck.loader.map_dataset import MapDataset, collate
    from windeck.loader.mixture import Mixture
    from windeck.loader.order_sampler import OrderSampler
    from windeck.loader.served import Served
    from windeck.loader.stream import Stream
    from windeck.loader.transforms import MappedStream
    from windeck.loader.visits import Visit

__all__ = [
    "IterDataset",
    "Loader",
    "MapDataset",
    "MappedStream",
    "Mixture",
    "OrderSampler",
    "Served",
    "Stream",
    "Visit",
    "as_tensors",
    "collate",
    "iterated_loaders",
]
