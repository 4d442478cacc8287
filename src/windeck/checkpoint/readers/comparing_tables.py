"""What a saved table differs in from another, some buckets at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck.checkpoint.stores import View
from windeck.checkpoint.tables.links import TableEntry
from windeck.checkpoint.tables.reading import SavedTable
from windeck.checkpoint.tables.shapes import BUCKETS

__all__ = ["TableDifference", "table_difference"]

#: Buckets of a table that are compared at once.
_AT_ONCE = 16


@dataclass(frozen=True)
class TableDifference:
    """A table that is not the same: ids on one side only, and ids whose row or counts differ."""

    name: str
    only_first: int
    only_second: int
    changed: int
    #: What else is not the same, in words: a table that is there once, another dim.
    note: str = ""


def table_difference(
    name: str,
    views: tuple[tuple[View, str], tuple[View, str]],
    entries: tuple[TableEntry | None, TableEntry | None],
) -> TableDifference | None:
    """What a table differs in; None for nothing.

    Parameters
    ----------
    views
        Of both sides, a view and a namespace.
    entries
        What the manifests say; None where there is none.
    """
    one, two = entries
    if one is None or two is None:
        note = "only in the first" if two is None else "only in the second"
        first, second = (0 if side is None else side.rows + side.counted for side in entries)
        return TableDifference(name, first, second, 0, note)
    if one.shape != two.shape:
        note = f"dim {one.shape.dim} with {one.shape.slots} slots, then dim {two.shape.dim} with "
        return TableDifference(name, 0, 0, 0, f"{note}{two.shape.slots} slots")
    ours, theirs = SavedTable(*views[0], one), SavedTable(*views[1], two)
    counts = np.zeros(3, np.int64)
    for first in range(0, BUCKETS, _AT_ONCE):
        buckets = first, first + _AT_ONCE
        counts += _rows_apart([*ours.scan(*buckets)], [*theirs.scan(*buckets)])
    note = "" if one.config == two.config else "made with another configuration"
    if not counts.any() and not note:
        return None
    a, b, changed = counts.tolist()
    return TableDifference(name, a, b, changed, note)


def _rows_apart(ours: list[Any], theirs: list[Any]) -> tuple[int, int, int]:
    """Ids that only one has, and ids of which something differs."""
    a, b = _as_records(ours), _as_records(theirs)
    both, i, j = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    changed = np.zeros(len(both), bool)
    for x, y in zip(a[1], b[1], strict=True):
        changed |= (x[i] != y[j]).any(axis=1)
    return len(a[0]) - len(both), len(b[0]) - len(both), int(changed.sum())


def _as_records(parts: list[Any]) -> tuple[Any, list[Any]]:
    """Ids, and of each what is known as bytes; zeros for a row that is not there."""
    if not parts:
        return np.empty(0, np.int64), [np.empty((0, 1), np.uint8)] * 2
    ids = np.concatenate([part.keys for part in parts])
    admitted = np.concatenate([part.admitted for part in parts])
    numbers_of = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("versions", "frequencies", "seen")
    ]
    values = np.concatenate([part.values for part in parts])
    rows = np.zeros((len(ids), values.shape[1]), np.float32)
    rows[admitted] = values
    return ids, [np.stack([*numbers_of, admitted.astype(np.int64)], 1), rows.view(np.uint32)]
