"""Adapters for torch's DataLoader: a map-style dataset, an iterable dataset and a sampler."""

from __future__ import annotations

from windeck.loader.iter_dataset import IterDataset
from windeck.loader.map_dataset import MapDataset, collate
from windeck.loader.order_sampler import OrderSampler

__all__ = ["IterDataset", "MapDataset", "OrderSampler", "collate"]
