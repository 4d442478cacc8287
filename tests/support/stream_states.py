"""States of streams, without a loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windeck.loader import state as states
from windeck.sources import Stream
from windeck.sources.members import stream_members

__all__ = ["load_stream_position", "stream_state"]


def stream_state(stream: Stream, position: int) -> dict[str, Any]:
    """Return the state of a stream at a position."""
    return states.stream_state(stream_members(stream), position)


def load_stream_position(stream: Stream, state: Mapping[str, Any]) -> int:
    """Return the position in a state of a stream; raises as the loader."""
    return states.load_stream_position(stream_members(stream), state)
