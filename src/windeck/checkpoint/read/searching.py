"""Search for numbers in saved tensors, and statistics of them, chunk by chunk and without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import shape_of
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.manifests import find_commit, read_manifest
from windeck.checkpoint.format.numbers import numbers, searchable
from windeck.checkpoint.format.payloads import Run, runs_of
from windeck.checkpoint.read.predicates import Search, Where, parse
from windeck.checkpoint.read.statistics import Statistics
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable, TableRows

__all__ = ["Found", "Match", "RowMatch", "search", "search_table", "search_tensor", "statistics"]


@dataclass(frozen=True)
class Match:
    """An element that was sought: its index in the tensor, and its value."""

    index: tuple[int, ...]
    value: Any


@dataclass(frozen=True)
class Found:
    """What a tensor has of what was sought.

    Attributes
    ----------
    name
        That its data are under.
    count, elements
        How many were found, of how many.
    matches
        The first of them, ascending in each part of the tensor.
    skipped
        Why it was not searched; "" otherwise.
    """

    name: str
    count: int = 0
    elements: int = 0
    matches: list[Match] = field(default_factory=list)
    skipped: str = ""


def search(
    store: Store | str,
    where: Where | str,
    *,
    names: Collection[str] | None = None,
    limit: int = 100,
    generation: int | None = None,
    namespace: str = "windeck",
) -> Iterator[Found]:
    """Search the tensors of a checkpoint, in the order they were saved.

    Parameters
    ----------
    store
        An open store or the URL of one.
    where
        A condition such as ``"abs > 1e3 or nan"``, see `windeck.checkpoint.read.predicates.parse`;
        or one that is made by that module.
    names
        Names that data are under, as in a manifest; None: all.
    limit
        Matches given of one tensor; all are counted.

    Yields
    ------
    Found
        Of each tensor, also where nothing was found. One that has no such numbers is skipped, and
        says so.

    Raises
    ------
    FileNotFoundError, KeyError
        When there is no such checkpoint, or no tensor of a name.
    ValueError
        For a condition that cannot be read.
    OSError
        For what is damaged or cannot be reached.

    Notes
    -----
    O(bytes) time, memory of some chunks and of the matches given.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> weight = torch.tensor([[1.0, -9.0], [3.0, 4.0]])
    >>> number = checkpoint.save(store, step=1, model={"w": weight})
    >>> next(search(store, "abs > 3")).matches
    [Match(index=(0, 1), value=-9.0), Match(index=(1, 1), value=4.0)]
    """
    keys.check_namespace(namespace)
    sought = where if isinstance(where, Where) else parse(where)
    with opened(store, reading=True) as view:
        commit = find_commit(view, namespace, generation)
        entries: Mapping[str, Entry] = read_manifest(view, namespace, commit)["tensors"]
        lost = sorted(set(names or ()) - entries.keys())
        if lost:
            raise KeyError(f"there is no tensor {lost[0]!r} in generation {commit.generation}")
        for name, entry in entries.items():
            if names is None or name in names:
                yield search_tensor(view, namespace, entry, sought, limit=limit)


def search_tensor(
    view: View, namespace: str, entry: Entry, where: Where, *, limit: int = 100
) -> Found:
    """Search one tensor of a manifest; see `search`."""
    if not searchable(entry.dtype):
        return Found(entry.name, skipped=f"elements of dtype {entry.dtype} are no numbers")
    try:
        sought = where.search(entry.dtype)
    except TypeError as error:
        return Found(entry.name, skipped=str(error))
    count = elements = 0
    matches: list[Match] = []
    for run in runs_of(view, namespace, entry):
        places, here = sought.find(run.payload, limit=limit - len(matches), base=run.start)
        count, elements = count + here, elements + run.stop - run.start
        if len(places):
            width = len(run.payload) // (run.stop - run.start)
            raw = np.frombuffer(run.payload, f"V{width}")[places - run.start]
            values = numbers(entry.dtype, raw).tolist()
            matches += map(Match, _indices(run.part, places), values)
    return Found(entry.name, count, elements, matches)


def _indices(part: Part, places: Any) -> Iterator[tuple[int, ...]]:
    """The index in the whole tensor of places in a part."""
    if not part.box:
        return iter([()] * len(places))
    inside = np.unravel_index(places, shape_of(part.box))
    axes = (axis + first for axis, (first, _) in zip(inside, part.box, strict=True))
    return zip(*(axis.tolist() for axis in axes), strict=True)


def _indices_of(run: Run, places: Any) -> Iterator[tuple[int, ...]]:
    """The index in the whole tensor of places in a run."""
    return _indices(run.part, places + run.start)


def statistics(
    view: View,
    namespace: str,
    entry: Entry,
    *,
    bins: int = 0,
    largest: int = 0,
) -> dict[str, Any]:
    """Return counts, extremes, moments and a histogram of the values of a tensor.

    The dict is that of `windeck.checkpoint.read.statistics.Statistics.result`.

    Parameters
    ----------
    bins
        Of a histogram between least and greatest value: then the tensor is read twice. 0: none.
    largest
        How many values of largest magnitude to give, as (index, value).

    Raises
    ------
    TypeError
        For elements that are no numbers.
    OSError
        For what is damaged or cannot be reached.

    Notes
    -----
    O(bytes) time, memory of some chunks.
    """
    if not searchable(entry.dtype):
        raise TypeError(f"{entry.name} has elements of dtype {entry.dtype}, expected numbers")
    found = _counted(view, namespace, entry, None, largest)
    if bins and found["min"] is not None:
        edges = _edges(float(found["min"]), float(found["max"]), bins)
        again = _counted(view, namespace, entry, edges, 0)
        for name in ("histogram", "edges", "below", "above"):
            found[name] = again[name]
    return found


def _edges(low: float, high: float, bins: int) -> list[float]:
    """Even bins from the least to the greatest value; of equal ones, around them."""
    if low == high:
        most = float(np.finfo(np.float64).max)
        around = max(0.5, abs(low) * 2.0**-50)
        low, high = max(-most, low - around), min(most, high + around)
    # Not by their distance, which float64 may not hold.
    share = np.arange(1, bins) / bins
    inner = np.clip(low * (1 - share) + high * share, low, high)
    return [float(edge) for edge in np.unique([low, *inner, high])]


def _counted(
    view: View, namespace: str, entry: Entry, edges: list[float] | None, largest: int
) -> dict[str, Any]:
    found = Statistics(entry.dtype, edges=edges, largest=largest)
    for run in runs_of(view, namespace, entry):
        found.add(run.payload, partial(_indices_of, run))
    return found.result()


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
