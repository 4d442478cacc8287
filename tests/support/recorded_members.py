"""Sources and streams that record each of their members that is asked for."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from windeck.sources import Order, OrderFactory, Source

__all__ = ["Recorded", "declared_members"]

#: Members whose result is a source too: it is recorded as well.
_SOURCES = {"at_epoch", "shuffled", "base"}


def declared_members() -> set[str]:
    """Return the members of all protocols of sources and streams."""
    protocols = vars(sys.modules[Source.__module__]).values()
    kinds = [kind for kind in protocols if isinstance(kind, type)]
    kinds = [kind for kind in kinds if Protocol in kind.__bases__ and kind.__module__]
    others = {Order, OrderFactory}
    return {
        name
        for kind in kinds
        if kind not in others
        for name in vars(kind)
        if not name.startswith("_") or name == "__len__"
    }


class Recorded:
    """A source or stream with the members of another one, which records the names asked for."""

    def __init__(self, data: object, asked: set[str]) -> None:
        object.__setattr__(self, "recorded", (data, asked))

    def __getattribute__(self, name: str) -> Any:
        data, asked = object.__getattribute__(self, "recorded")
        if name.startswith("__") and name.endswith("__"):
            return object.__getattribute__(self, name)
        asked.add(name)
        found = getattr(data, name)
        if name not in _SOURCES:
            return found
        if not callable(found):
            return Recorded(found, asked)
        return lambda *given, **named: Recorded(found(*given, **named), asked)

    def __len__(self) -> int:
        return len(object.__getattribute__(self, "recorded")[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorded, object.__getattribute__(self, "recorded")
