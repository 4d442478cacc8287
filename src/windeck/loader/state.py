"""States of streams and loaders: a position and the fingerprint it is valid for, fit for JSON.

Further fields of a loader are those of `windeck.Loader.state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windeck._core import ORDER_VERSION
from windeck._util.fingerprints import Explain, check_fingerprint
from windeck._util.validation import LIMIT, check_integer
from windeck.sources import Fingerprint
from windeck.sources.members import StreamMembers

__all__ = [
    "check_fields",
    "load_position",
    "load_stream_position",
    "make_state",
    "stream_state",
]


def stream_state(stream: StreamMembers, position: int) -> dict[str, Any]:
    """Return the state of a stream at a position; see `make_state`."""
    return make_state(position, stream.fingerprint_at(position))


def load_stream_position(stream: StreamMembers, state: Mapping[str, Any]) -> int:
    """Return the position in a state of a stream; raises as `load_position`."""
    return load_position(
        state, stream.fingerprint_at, stream.explain_change, stream.without_retired
    )


def check_fields(state: Any, *fields: str) -> None:
    """Raise a TypeError for a state that is no mapping, and a KeyError for one without a field."""
    if not isinstance(state, Mapping):
        raise TypeError(f"`state` must be a mapping, got {type(state).__name__}")
    for field in fields:
        if field not in state:
            raise KeyError(f"the state has no {field!r}, only {sorted(map(str, state))}")


def make_state(position: int, fingerprint: Fingerprint) -> dict[str, Any]:
    """Return a state of the fields that every state has: position, fingerprint, order version."""
    return {
        "position": position,
        "fingerprint": dict(fingerprint),
        "order_version": ORDER_VERSION,
    }


def load_position(
    state: Mapping[str, Any],
    fingerprint: Fingerprint | Callable[[int], Fingerprint],
    explain: Explain | None = None,
    without_retired: Callable[[Fingerprint, int], Fingerprint] | None = None,
) -> int:
    """Return the position in a state of the same data, order, seed and order version.

    Parameters
    ----------
    state
        The state, as saved.
    fingerprint
        The current fingerprint, or a function from a position to the part of it that a state there
        depends on.
    explain
        Returns a sentence that explains a changed field, or None.
    without_retired
        Returns the saved fingerprint without what it has of data that the position has passed.

    Raises
    ------
    TypeError
        If the state or its fingerprint is not a mapping, or its position not an integer.
    KeyError
        If one of the three fields is missing.
    ValueError
        If the state belongs to other data; the message names the field and both values.
    """
    check_fields(state, "position", "fingerprint", "order_version")
    if state["order_version"] != ORDER_VERSION:
        raise ValueError(
            f"the state has order_version {state['order_version']!r}, expected {ORDER_VERSION}: "
            "its position would mean other samples"
        )
    if not isinstance(state["fingerprint"], Mapping):
        found = type(state["fingerprint"]).__name__
        raise TypeError(f"`fingerprint` of the state must be a mapping, got {found}")
    position = check_integer("position", state["position"], most=LIMIT - 1)
    current = fingerprint(position) if callable(fingerprint) else fingerprint
    saved: Fingerprint = state["fingerprint"]
    if without_retired is not None:
        saved = without_retired(saved, position)
    check_fingerprint(saved, current, explain)
    return position
