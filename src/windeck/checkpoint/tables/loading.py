"""Loading of tables into memory, after everything that can be compared was compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windeck._util.warning import warn
from windeck.checkpoint.format.names import affix_hint
from windeck.checkpoint.format.table_blocks import ROW
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.tables.entries import Entries, Int64s, convert_values
from windeck.checkpoint.tables.reading import SavedTable
from windeck.checkpoint.tables.writing import (
    check_table,
    check_tables,
    forget_saves,
    remember_save,
    table_shape,
)

__all__ = ["TableLoadOptions", "TableTargets", "check_empty", "insert_snapshot"]

#: Options that decide how rows of new ids begin, and when. Rows that were saved do not depend on
#: them, so that another value is no error: training goes on with it.
_NEW_ROWS = ("initializer", "scale", "seed", "admit_after", "initial_accumulator_value")

#: Buckets of a snapshot that are read at once.
_COPIED_BUCKETS = 16


@dataclass(frozen=True)
class TableLoadOptions:
    """Options of loading tables; see `windeck.checkpoint.load`."""

    cast: bool = False
    reset_slots: bool = False
    merge: str | None = None

    def __post_init__(self) -> None:
        if self.merge not in (None, "keep", "replace"):
            raise ValueError(f"`merge` must be 'keep', 'replace' or None, got {self.merge!r}")


class TableTargets:
    """Tables to load into, checked against the saved ones.

    Parameters
    ----------
    where
        Name of the checkpoint, for messages.
    saved
        Its tables.
    embeddings
        Tables by name, without any ids unless they are merged; each takes the buckets it owns.
    strict
        Require the same names on both sides. Otherwise, load those that both have.

    Raises
    ------
    TypeError
        For a value that is not a table, or another dtype without `cast`.
    KeyError
        For names that only one side has, or none in common.
    ValueError
        For another dim, other slots or another optimizer, or a table that has ids.

    Warns
    -----
    UserWarning
        For other options of rows that do not exist yet, such as the seed; not with `merge`.
    """

    def __init__(
        self,
        where: str,
        saved: Mapping[str, TableEntry],
        embeddings: Any,
        strict: bool,
        options: TableLoadOptions = TableLoadOptions(),
    ) -> None:
        if embeddings is None:
            embeddings, saved, strict = {}, {}, False
        check_tables(embeddings)
        lost, more = sorted(embeddings.keys() - saved.keys()), sorted(saved.keys() - embeddings)
        hint = affix_hint("embeddings", lost, more) if lost or more else ""
        common = len(lost) < len(embeddings) or not embeddings
        if strict and (lost or more):
            hint = hint or ("; strict=False loads the others" if common else "")
            raise KeyError(
                f"the tables are not those of {where}: only in the target {lost}; only in the "
                f"checkpoint {more}{hint}"
            )
        if not common:
            raise KeyError(f"embeddings={lost} was not saved in {where}: it has {more}{hint}")
        self.missing = [f"embeddings/{name}" for name in lost]
        self.unexpected = [f"embeddings/{name}" for name in more]
        self._options = options
        self._cores = [
            (name, _check_target(name, table, saved[name], options))
            for name, table in embeddings.items()
            if name in saved
        ]
        self._former: list[tuple[Any, Any]] | None = None  # snapshots to go back to, in `read`

    def read(self, get: Callable[[str], SavedTable]) -> None:
        """Insert the rows block by block; after an error the caller has to call `clear`.

        Parameters
        ----------
        get
            Returns the saved table of a name.
        """
        merged = self._cores if self._options.merge is not None else ()
        self._former = [(core, core.snapshot()) for _, core in merged]
        for name, core in self._cores:
            _fill(core, get(name), self._options)

    def clear(self) -> None:
        """Put the tables back: remove the rows that `read` inserted."""
        if self._former is None:
            return
        for _, core in self._cores:
            forget_saves(core)
            core.clear()
        for core, snapshot in self._former:
            insert_snapshot(core, snapshot)
        self._close()

    def remember(self, save: int) -> None:
        """Record, after `read`, which tables are equal to a save: deltas can be based on it."""
        self._close()
        for name, core in self._cores if self._options == TableLoadOptions() else ():
            remember_save(core, save, name, core.clock, core.history)

    def _close(self) -> None:
        for _, snapshot in self._former or ():
            snapshot.close()
        self._former = None


def check_empty(name: str, core: Any) -> None:
    """Raise a ValueError for a table that has ids."""
    if len(core) or core.counted:
        raise ValueError(
            f"the table {name} has {len(core):,} rows and counts {core.counted:,} ids without one, "
            "expected an empty table: make a new one, or merge into this one"
        )


def insert_snapshot(core: Any, snapshot: Any) -> None:
    """Insert all that a snapshot has into an empty core, some buckets at a time."""
    for first in range(core.first_bucket, core.end_bucket, _COPIED_BUCKETS):
        core.insert(**snapshot.read(first, min(first + _COPIED_BUCKETS, core.end_bucket)))
    core.set_clock(snapshot.clock)


def _check_target(name: str, table: Any, saved: TableEntry, options: TableLoadOptions) -> Any:
    core = check_table(name, table)
    config = saved.config if isinstance(saved.config, dict) else {}
    shape = table_shape(core)
    compared: list[tuple[str, Any, Any]] = [("dim", shape.dim, saved.shape.dim)]
    if not options.reset_slots:
        optimizers = table.config.get("optimizer"), config.get("optimizer")
        compared += [("optimizer", *optimizers), ("slots", shape.slots, saved.shape.slots)]
    for key, value, wanted in compared:
        if value != wanted:
            raise ValueError(
                f"the table {name} has {key} {value!r}, expected {wanted!r} as saved"
                + ("" if key == "dim" else "; reset_slots=True loads without the optimizer's slots")
            )
    if shape.dtype != saved.shape.dtype and not options.cast:
        raise TypeError(
            f"the table {name} has dtype {shape.dtype}, expected {saved.shape.dtype} as saved; "
            "cast=True casts"
        )
    if options.merge is None:
        check_empty(name, core)
        _warn_of_new_rows(name, table.config, config, options)
    return core


def _warn_of_new_rows(
    name: str, config: Mapping[str, Any], saved: Mapping[str, Any], options: TableLoadOptions
) -> None:
    """Warn of options with which rows of new ids begin otherwise than in the saved table."""
    compared = _NEW_ROWS[:-1] if options.reset_slots else _NEW_ROWS
    shared = [key for key in compared if key in config and key in saved]
    other = [key for key in shared if config[key] != saved[key]]
    if other:
        warn(
            f"the table {name} has {_pairs(config, other)}, expected {_pairs(saved, other)} as "
            "saved: rows of new ids will not begin as those of the saved table would"
        )


def _pairs(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={config[key]!r}" for key in keys)


def _fill(core: Any, saved: SavedTable, options: TableLoadOptions) -> None:
    forget_saves(core)
    # Ages in steps stay: the saved clock becomes `clock`, and all numbers of it move along. A table
    # whose optimizer starts anew, or goes on, keeps its clock; otherwise the later clock is taken.
    clock = core.clock if options.reset_slots else max(core.clock, saved.info.clock)
    if options.merge is None and not options.reset_slots:
        clock = saved.info.clock
    elif clock > core.clock:
        core.advance(clock - core.clock)
    shift = clock - saved.info.clock
    shape = table_shape(core)
    is_plain = options == TableLoadOptions(cast=options.cast)
    if is_plain and shape == saved.shape and saved.insert_blocks(core):
        core.set_clock(clock)
        return
    slots = np.float32(getattr(core, "slot_value", 0.0))
    for found in saved.entries(core.first_bucket, core.end_bucket):
        if options.merge is not None:
            found = found.take(np.flatnonzero(_wins(core, found, options.merge)))
            core.remove(found.keys)
        values = convert_values(found.values, shape)
        if options.reset_slots:
            whole = convert_values(np.full((len(values), shape.width), slots), shape)
            whole[:, shape.columns_of(0)] = values[:, shape.columns_of(0)]
            values = whole
        core.insert(
            found.keys, _shifted(found.versions, shift), found.frequencies,
            _shifted(found.seen, shift), found.states == ROW, values,
        )  # fmt: skip
    if is_plain:
        core.set_clock(clock)


def _shifted(clocks: Int64s, by: int) -> Int64s:
    """Return clocks moved by some steps, at least 0; 0 stays 0, that is none."""
    return np.where(clocks == 0, 0, np.maximum(clocks + by, 0)) if by else clocks


def _wins(core: Any, found: Entries, merge: str) -> npt.NDArray[np.bool_]:
    """Return which entries replace the row or count that a table has of their ids, if any.

    A row wins over a counter. Between two rows or two counters, `merge` decides.
    """
    here, row = core.facts(found.keys), found.states == ROW
    known = here["admitted"] | (here["frequencies"] > 0)
    won = row | ~here["admitted"] if merge == "replace" else ~here["admitted"] & (row | ~known)
    return np.asarray(won, bool)
