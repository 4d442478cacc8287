"""Saved states: a position, and what it is a position in. All of it fit for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windeck._core import ORDER_VERSION
from windeck.fingerprint import check
from windeck.positions import LIMIT, integer
from windeck.protocols import Fingerprint

__all__ = ["load_position", "make_state"]


def make_state(position: int, fingerprint: Fingerprint) -> dict[str, Any]:
    """The least a state holds: ``{"position", "fingerprint", "order_version"}``."""
    return {
        "position": position,
        "fingerprint": dict(fingerprint),
        "order_version": ORDER_VERSION,
    }


def load_position(state: Mapping[str, Any], fingerprint: Fingerprint) -> int:
    """The position in a state of the same data, order, seed and order version.

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
    check(state["fingerprint"], fingerprint)
    return integer("position", state["position"], high=LIMIT - 1)
