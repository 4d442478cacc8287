"""Loading of tables into memory, after everything that can be compared was compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.tables.reading import SavedTable
from windeck.checkpoint.tables.writing import check_table, check_tables, forget_saves, remember_save

__all__ = ["TableTargets", "check_empty"]


class TableTargets:
    """Tables to load into, checked against the saved ones.

    Parameters
    ----------
    where
        Name of the checkpoint, for messages.
    saved
        Its tables.
    embeddings
        Tables by name, without any ids; each takes the buckets it owns.
    strict
        Require the same names on both sides. Otherwise, load those that both have.

    Raises
    ------
    TypeError
        For a value that is not a table.
    KeyError
        For names that only one side has.
    ValueError
        For another dim, other slots or another optimizer, or a table that has ids.
    """

    def __init__(
        self, where: str, saved: Mapping[str, TableEntry], embeddings: Any, strict: bool
    ) -> None:
        if embeddings is None:
            embeddings, strict = {}, False
        check_tables(embeddings)
        lost, more = sorted(embeddings.keys() - saved.keys()), sorted(saved.keys() - embeddings)
        if strict and (lost or more):
            raise KeyError(
                f"the tables are not those of {where}: only in the target {lost}; only in the "
                f"checkpoint {more}; strict=False loads the others"
            )
        self._cores = [
            (name, _check_target(name, table, saved[name]))
            for name, table in embeddings.items()
            if name in saved
        ]

    def read(self, get: Callable[[str], SavedTable]) -> None:
        """Insert the rows block by block; after an error the caller has to call `clear`.

        Parameters
        ----------
        get
            Returns the saved table of a name.
        """
        for name, core in self._cores:
            _fill(core, get(name))

    def clear(self) -> None:
        """Remove all rows again."""
        for _, core in self._cores:
            forget_saves(core)
            core.clear()

    def remember(self, save: int) -> None:
        """Record, after `read`, that the tables are equal to a save: deltas can be based on it."""
        for name, core in self._cores:
            remember_save(core, save, name, core.clock, core.history)


def check_empty(name: str, core: Any) -> None:
    """Raise a ValueError for a table that has ids."""
    if len(core) or core.counted:
        raise ValueError(
            f"the table {name} has {len(core):,} rows and counts {core.counted:,} ids without one, "
            "expected an empty table: make a new one"
        )


def _check_target(name: str, table: Any, saved: TableEntry) -> Any:
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
    forget_saves(core)
    saved.insert(core)
    core.set_clock(saved.info.clock)
