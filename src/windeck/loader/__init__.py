"""Loading of batches: streams, mixtures, sharding over ranks, prefetching and state."""

from windeck.loader.loader import Loader
from windeck.loader.mixture import Mixture
from windeck.loader.stream import Stream
from windeck.loader.torch_adapters import IterDataset, MapDataset, OrderSampler, collate

__all__ = ["Loader", "Mixture", "Stream", "IterDataset", "MapDataset", "OrderSampler", "collate"]
