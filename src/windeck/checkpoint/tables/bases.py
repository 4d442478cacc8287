"""What tables in memory were equal to: the saves that a delta of them may be based on.

A delta holds what a table's clock tells of the time since a save. So it is right only for a save
that the table once was equal to, and as long as all that happened since is something the clock
tells of; `history` counts what is not, such as that all was cleared.
"""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["clock_at", "forget", "remember"]

#: Saves remembered of a table. It keeps the ids of removed rows from the oldest of them on.
_MOST = 8


class _Bases:
    """Of a table, clocks by save and name, oldest first."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.clocks: dict[tuple[int, str], int] = {}


_known: weakref.WeakKeyDictionary[Any, _Bases] = weakref.WeakKeyDictionary()


def remember(core: Any, save: int, name: str, clock: int, history: int) -> None:
    """A table was equal to what a save holds, or will when that is committed.

    Parameters
    ----------
    save, name
        The random number of the save, and the table's name there.
    clock, history
        The table's, then.
    """
    bases = _known.get(core)
    if bases is None or bases.history != history:
        bases = _known[core] = _Bases(history)
    bases.clocks.pop((save, name), None)
    bases.clocks[save, name] = clock
    while len(bases.clocks) > _MOST:
        del bases.clocks[next(iter(bases.clocks))]
    if core.history == history:
        core.forget_dead(min(bases.clocks.values()))
        bases.history = core.history


def forget(core: Any) -> None:
    """A table is equal to nothing that is remembered; the next save of it is full."""
    _known.pop(core, None)


def clock_at(core: Any, save: int, name: str, history: int) -> int | None:
    """The clock of a table when it was equal to a save; None where a delta to it is not right."""
    bases = _known.get(core)
    if bases is None or bases.history != history:
        return None
    return bases.clocks.get((save, name))
