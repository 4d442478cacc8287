"""Tables into memory: what can be compared is compared before any row is put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.tables.entries import ROW
from windeck.checkpoint.tables.reading import SavedTable
from windeck.checkpoint.tables.writing import check_table, forget, remember

__all__ = ["Targets", "check_empty"]


class Targets:
    """Tables to load into, checked against what was saved.

    Parameters
    ----------
    where
        What is loaded, for messages.
    saved
        Its tables.
    embeddings
        Tables by name, without any ids; each takes the buckets it owns.
    strict
        The names have to be the same on both sides. Otherwise, those on both sides are loaded.

    Raises
    ------
    TypeError
        For what is no table.
    KeyError
        For names that are on one side only.
    ValueError
        For another dim, other slots or another optimizer, or a table that has ids.
    """

    def __init__(
        self, where: str, saved: Mapping[str, TableEntry], embeddings: Any, strict: bool
    ) -> None:
        if embeddings is None:
            embeddings, strict = {}, False
        if not isinstance(embeddings, Mapping):
            raise TypeError(
                f"embeddings is of type {type(embeddings).__name__}, expected a dict of tables"
            )
        lost, more = sorted(embeddings.keys() - saved.keys()), sorted(saved.keys() - embeddings)
        if strict and (lost or more):
            raise KeyError(
                f"the tables are not those of {where}: only in the target {lost}; only in the "
                f"checkpoint {more}; strict=False loads the others"
            )
        self._jobs = [
            (name, _checked(name, table, saved[name]))
            for name, table in embeddings.items()
            if name in saved
        ]

    def read(self, get: Callable[[str], SavedTable]) -> None:
        """Put the rows in, block by block; after an error, `clear` is for the caller to call.

        Parameters
        ----------
        get
            Gives the saved table of a name.
        """
        for name, core in self._jobs:
            _fill(core, get(name))

    def clear(self) -> None:
        """Take all out again."""
        for _, core in self._jobs:
            forget(core)
            core.clear()

    def loaded(self, save: int) -> None:
        """All is read: the next delta may be based on it."""
        for name, core in self._jobs:
            remember(core, save, name, core.clock, core.history)


def check_empty(name: str, core: Any) -> None:
    """ValueError for a table that has ids."""
    if len(core) or core.counted:
        raise ValueError(
            f"the table {name} has {len(core):,} rows and counts {core.counted:,} ids without one, "
            "expected a table without any: make a new one"
        )


def _checked(name: str, table: Any, saved: TableEntry) -> Any:
    core = check_table(name, table)
    config = saved.config if isinstance(saved.config, dict) else {}
    for key, value, wanted in (
        ("dim", core.dim, saved.shape.dim),
        ("optimizer", table.config.get("optimizer"), config.get("optimizer")),  # why slots differ
        ("slots", core.slots, saved.shape.slots),
    ):
        if value != wanted:
            raise ValueError(f"the table {name} has {key} {value!r}, expected {wanted!r} as saved")
    check_empty(name, core)
    return core


def _fill(core: Any, saved: SavedTable) -> None:
    forget(core)
    for found in saved.entries(core.first_bucket, core.end_bucket, reuse=True):
        core.insert(
            found.keys, found.versions, found.frequencies, found.seen, found.states == ROW,
            found.values,
        )  # fmt: skip
    core.set_clock(saved.info.clock)
