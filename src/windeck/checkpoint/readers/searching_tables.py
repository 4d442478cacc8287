"""Looking for rows of saved tables: by their numbers, how often and when they were used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from windeck.checkpoint.readers.where import Search, Where
from windeck.checkpoint.tables.reading import SavedTable, TableRows

__all__ = ["RowMatch", "search_table"]


@dataclass(frozen=True)
class RowMatch:
    """A row of a table: its id, what is known of it, and which of its columns were sought."""

    id: int
    version: int
    frequency: int
    seen: int
    columns: tuple[int, ...]
    values: tuple[float, ...]


def search_table(
    table: SavedTable,
    *,
    values: Where | None = None,
    frequency: Where | None = None,
    version: Where | None = None,
    seen: Where | None = None,
    limit: int = 100,
) -> tuple[int, list[RowMatch]]:
    """Search a table of `windeck.checkpoint.Checkpoint.table`.

    Parameters
    ----------
    values
        Of embeddings, not of the optimizer's slots: a row is sought if one of its numbers is. Ids
        without a row are not.
    frequency, version, seen
        Of ids. All conditions that are given have to hold.
    limit
        Rows given; all are counted.

    Returns
    -------
    count, rows

    Raises
    ------
    OSError
        For what is damaged or cannot be reached.

    Notes
    -----
    O(bytes) time, memory of some blocks and of the rows given.
    """
    given = {"frequencies": frequency, "versions": version, "seen": seen}
    sought = {name: where.search("int64") for name, where in given.items() if where is not None}
    inside = values.search("float32") if values is not None else None
    count, matches = 0, list[RowMatch]()
    for rows in table.scan():
        places = _rows_of(rows, sought)
        found = _columns_of(rows, places, table.info.dim, inside)
        count += len(found)
        matches += [_row(rows, *one) for one in found[: limit - len(matches)]]
    return count, matches


def _rows_of(rows: TableRows, sought: Mapping[str, Search]) -> Any:
    places = np.arange(len(rows.keys))
    for name, search in sought.items():
        column = np.ascontiguousarray(getattr(rows, name), np.int64)
        hits, _ = search.find(column)
        places = np.intersect1d(places, hits, assume_unique=True)
    return places


def _columns_of(
    rows: TableRows, places: Any, dim: int, inside: Search | None
) -> list[tuple[int, tuple[int, ...], tuple[float, ...]]]:
    """Of each place whose embedding is sought: it, which of its columns are, and their values."""
    if inside is None:
        return [(place, (), ()) for place in places.tolist()]
    row = np.cumsum(rows.admitted) - 1
    places = places[np.asarray(rows.admitted)[places]]
    embedding = np.ascontiguousarray(rows.values[:, :dim][row[places]], np.float32)
    hits, _ = inside.find(embedding)
    found: dict[int, list[int]] = {}
    for hit in hits.tolist():
        found.setdefault(hit // dim, []).append(hit % dim)
    return [
        (int(places[i]), tuple(columns), tuple(embedding[i, columns].tolist()))
        for i, columns in found.items()
    ]


def _row(
    rows: TableRows, place: int, columns: tuple[int, ...], values: tuple[float, ...]
) -> RowMatch:
    numbers_of = (rows.keys, rows.versions, rows.frequencies, rows.seen)
    key, version, frequency, seen = (int(column[place]) for column in numbers_of)
    return RowMatch(key, version, frequency, seen, columns, values)
