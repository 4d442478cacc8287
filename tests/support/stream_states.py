"""States of streams, without a loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windeck.loader import IterDataset
from windeck.sources import Stream

__all__ = ["load_stream_position", "stream_state"]


def stream_state(stream: Stream, position: int) -> dict[str, Any]:
    """Return the state of a stream at a position."""
    return dict(IterDataset(stream, batch_size=1, position=position).state_dict())


def load_stream_position(stream: Stream, state: Mapping[str, Any]) -> int:
    """Return the position in a state of a stream; raises as the loader."""
    dataset = IterDataset(stream, batch_size=1)
    dataset.load_state_dict(state)
    return dataset.position
