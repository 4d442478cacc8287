"""Saved states: a position, and what it is a position in. All of it fit for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windeck._core import ORDER_VERSION
from windeck._util.fingerprints import Explain, check_fingerprint
from windeck._util.validation import LIMIT, check_integer
from windeck.sources import Fingerprint

__all__ = ["explain_change", "fingerprint_at", "load_position", "make_state", "restored", "saved"]


def saved(stream: Any, position: int) -> dict[str, Any]:
    """The state of a stream at a position; see `make_state`."""
    return make_state(position, fingerprint_at(stream, position))


def restored(stream: Any, state: Mapping[str, Any]) -> int:
    """The position in a state of a stream; raises as `load_position`."""
    return load_position(
        state,
        lambda position: fingerprint_at(stream, position),
        lambda field, was, now: explain_change(stream, field, was, now),
    )


def fingerprint_at(stream: Any, position: int) -> Fingerprint:
    """What of a stream a state at a position depends on: all of it, unless the stream knows."""
    at = getattr(stream, "fingerprint_at", None)
    found: Fingerprint = stream.fingerprint if at is None else at(position)
    return found


def explain_change(data: Any, field: str, was: Any, now: Any) -> str | None:
    """What a source or stream has to say of a field that differs; None where it says nothing."""
    explain = getattr(data, "explain_change", None)
    told: str | None = None if explain is None else explain(field, was, now)
    return told


def make_state(position: int, fingerprint: Fingerprint) -> dict[str, Any]:
    """The least a state holds: ``{"position", "fingerprint", "order_version"}``."""
    return {
        "position": position,
        "fingerprint": dict(fingerprint),
        "order_version": ORDER_VERSION,
    }


def load_position(
    state: Mapping[str, Any],
    fingerprint: Fingerprint | Callable[[int], Fingerprint],
    explain: Explain | None = None,
) -> int:
    """The position in a state of the same data, order, seed and order version.

    Parameters
    ----------
    state
        As saved.
    fingerprint
        What is at hand, or a function that says what of it a position depends on.
    explain
        Makes a sentence of a field that differs, or None.

    Raises
    ------
    TypeError
        When the state or its fingerprint is no mapping, or its position no integer.
    KeyError
        When one of the three fields is missing.
    ValueError
        When it belongs to something else, naming what differs with both values.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a state has to be a mapping, got {type(state).__name__}")
    for field in ("position", "fingerprint", "order_version"):
        if field not in state:
            raise KeyError(f"the state has no {field!r}, only {sorted(state)}")
    if state["order_version"] != ORDER_VERSION:
        raise ValueError(
            f"the state was saved with order version {state['order_version']!r}, this is "
            f"version {ORDER_VERSION}: its position would mean other samples here"
        )
    if not isinstance(state["fingerprint"], Mapping):
        found = type(state["fingerprint"]).__name__
        raise TypeError(f"the state's fingerprint has to be a mapping, got {found}")
    position = check_integer("position", state["position"], most=LIMIT - 1)
    current = fingerprint(position) if callable(fingerprint) else fingerprint
    check_fingerprint(state["fingerprint"], current, explain)
    return position
