"""States of streams, without a loader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.internals import load_stream_position as load_position
from support.internals import stream_members
from support.internals import stream_state as state_of
from windeck.sources import Stream

__all__ = ["load_stream_position", "stream_state"]


def stream_state(stream: Stream, position: int) -> dict[str, Any]:
    """Return the state of a stream at a position."""
    return state_of(stream_members(stream), position)


def load_stream_position(stream: Stream, state: Mapping[str, Any]) -> int:
    """Return the position in a state of a stream; raises as the loader."""
    return load_position(stream_members(stream), state)
