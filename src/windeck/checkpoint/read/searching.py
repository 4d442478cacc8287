"""Search and statistics of saved tensors and tables, chunk by chunk and without torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from windeck._util.options import explain_options
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import shape_of
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.format.manifests import find_commit, read_manifest
from windeck.checkpoint.read.predicates import CompiledPredicate, Predicate, parse
from windeck.checkpoint.read.scanning import ElementRange, read_chunks
from windeck.checkpoint.read.statistics import Statistics
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable, TableRows
from windeck.columns.elements import decode_elements, is_numeric

__all__ = [
    "TensorMatches",
    "Match",
    "RowMatch",
    "search",
    "search_table",
    "search_tensor",
    "tensor_statistics",
]


@dataclass(frozen=True)
class Match:
    """An element that matches: its index in the tensor, and its value."""

    index: tuple[int, ...]
    value: Any


@dataclass(frozen=True)
class TensorMatches:
    """Matches in a tensor.

    Attributes
    ----------
    name
        Name of its data.
    count, elements
        Number of matching elements, and of all elements.
    matches
        The first matches, ascending in each part of the tensor.
    skipped
        Reason for which it was not searched, otherwise "".
    """

    name: str
    count: int = 0
    elements: int = 0
    matches: list[Match] = field(default_factory=list)
    skipped: str = ""


@explain_options
def search(
    store: Store | str,
    where: Predicate | str,
    *,
    names: Collection[str] | None = None,
    limit: int = 100,
    generation: int | None = None,
    namespace: str = "windeck",
) -> Iterator[TensorMatches]:
    """Search the tensors of a checkpoint, in the order they were saved.

    Parameters
    ----------
    store
        An open store or the URL of one.
    where
        A condition such as ``"abs > 1e3 or nan"``, see `windeck.checkpoint.read.predicates.parse`,
        or a `Predicate`.
    names
        Names of data, as in a manifest; None: all.
    limit
        Maximum number of matches returned for one tensor; all of them are counted.

    Yields
    ------
    TensorMatches
        One for each tensor, even without matches. A tensor to which the condition does not apply
        is skipped, with a reason.

    Raises
    ------
    FileNotFoundError, KeyError
        When there is no such checkpoint, or no such tensor.
    ValueError
        When the condition cannot be parsed.
    OSError
        When data are damaged or cannot be reached.

    Notes
    -----
    O(bytes) time, and memory for some chunks and for the matches returned.

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
    predicate = where if isinstance(where, Predicate) else parse(where)
    with opened(store, reading=True) as view:
        commit = find_commit(view, namespace, generation)
        entries: Mapping[str, TensorEntry] = read_manifest(view, namespace, commit)["tensors"]
        missing = sorted(set(names or ()) - entries.keys())
        if missing:
            raise KeyError(f"there is no tensor {missing[0]!r} in generation {commit.generation}")
        for name, entry in entries.items():
            if names is None or name in names:
                yield search_tensor(view, namespace, entry, predicate, limit=limit)


def search_tensor(
    view: View,
    namespace: str,
    entry: TensorEntry,
    where: Predicate,
    *,
    limit: int = 100,
    advance: Callable[[int], object] = int,
) -> TensorMatches:
    """Search one tensor of a manifest; see `search`. `advance` is called with elements searched."""
    if not is_numeric(entry.dtype):
        return TensorMatches(entry.name, skipped=f"elements of dtype {entry.dtype} are not numbers")
    try:
        search = where.search(entry.dtype)
    except TypeError as error:
        return TensorMatches(entry.name, skipped=str(error))
    count = elements = 0
    matches: list[Match] = []
    for span in read_chunks(view, namespace, entry):
        places, here = search.find(span.payload, limit=limit - len(matches), base=span.start)
        count, elements = count + here, elements + span.stop - span.start
        advance(span.stop - span.start)
        if len(places):
            width = len(span.payload) // (span.stop - span.start)
            raw = np.frombuffer(span.payload, f"V{width}")[places - span.start]
            values = decode_elements(entry.dtype, raw).tolist()
            matches += map(Match, _indices(span.part, places), values)
    return TensorMatches(entry.name, count, elements, matches)


def _indices(part: TensorPart, places: Any) -> Iterator[tuple[int, ...]]:
    """Iterate over the indices in the tensor of positions in a part."""
    if not part.box:
        return iter([()] * len(places))
    inside = np.unravel_index(places, shape_of(part.box))
    axes = (axis + first for axis, (first, _) in zip(inside, part.box, strict=True))
    return zip(*(axis.tolist() for axis in axes), strict=True)


def _indices_of(span: ElementRange, places: Any) -> Iterator[tuple[int, ...]]:
    """Iterate over the indices in the tensor of positions in a range of elements."""
    return _indices(span.part, places + span.start)


def tensor_statistics(
    view: View,
    namespace: str,
    entry: TensorEntry,
    *,
    bins: int = 0,
    largest: int = 0,
) -> dict[str, Any]:
    """Return counts, extremes, moments and a histogram of the values of a tensor.

    The result is that of `windeck.checkpoint.read.statistics.Statistics.result`.

    Parameters
    ----------
    bins
        Bins of a histogram from the least to the greatest value, for which the tensor is read
        twice. 0: no histogram.
    largest
        Number of values of largest magnitude to return, as (index, value).

    Raises
    ------
    TypeError
        When elements are not numbers.
    OSError
        When data are damaged or cannot be reached.

    Notes
    -----
    O(bytes) time, and memory for some chunks.
    """
    if not is_numeric(entry.dtype):
        raise TypeError(f"{entry.name} has elements of dtype {entry.dtype}, expected numbers")
    found = _counted(view, namespace, entry, None, largest)
    if bins and found["min"] is not None:
        edges = _edges(float(found["min"]), float(found["max"]), bins)
        again = _counted(view, namespace, entry, edges, 0)
        for name in ("histogram", "edges", "below", "above"):
            found[name] = again[name]
    return found


def _edges(low: float, high: float, bins: int) -> list[float]:
    """Return the edges of equal bins from the least to the greatest value, or around equal ones."""
    if low == high:
        most = float(np.finfo(np.float64).max)
        around = max(0.5, abs(low) * 2.0**-50)
        low, high = max(-most, low - around), min(most, high + around)
    # Without high - low, which may overflow.
    share = np.arange(1, bins) / bins
    inner = np.clip(low * (1 - share) + high * share, low, high)
    return [float(edge) for edge in np.unique([low, *inner, high])]


def _counted(
    view: View, namespace: str, entry: TensorEntry, edges: list[float] | None, largest: int
) -> dict[str, Any]:
    found = Statistics(entry.dtype, edges=edges, largest=largest)
    for span in read_chunks(view, namespace, entry):
        found.add(span.payload, partial(_indices_of, span))
    return found.result()


@dataclass(frozen=True)
class RowMatch:
    """A row of a table that matches: its id, its counts, and the matching columns."""

    id: int
    version: int
    frequency: int
    seen: int
    columns: tuple[int, ...]
    values: tuple[float, ...]


def search_table(
    table: SavedTable,
    *,
    values: Predicate | None = None,
    frequency: Predicate | None = None,
    version: Predicate | None = None,
    seen: Predicate | None = None,
    limit: int = 100,
    advance: Callable[[int], object] = int,
) -> tuple[int, list[RowMatch]]:
    """Search a table of `windeck.checkpoint.Checkpoint.table`.

    Parameters
    ----------
    values
        Condition on the numbers of an embedding, without optimizer slots. A row matches if one of
        its numbers does. Ids without a row do not match.
    frequency, version, seen
        Conditions on ids. All conditions given must hold.
    limit
        Maximum number of rows returned; all of them are counted.
    advance
        A function that is called with the number of ids searched, part after part.

    Returns
    -------
    count, rows

    Raises
    ------
    OSError
        When data are damaged or cannot be reached.

    Notes
    -----
    O(bytes) time, and memory for some blocks and for the rows returned.
    """
    given = {"frequencies": frequency, "versions": version, "seen": seen}
    searches = {name: where.search("int64") for name, where in given.items() if where is not None}
    inside = values.search("float32") if values is not None else None
    count, matches = 0, list[RowMatch]()
    for rows in table.scan():
        places = _matching_ids(rows, searches)
        found = _matching_columns(rows, places, table.info.dim, inside)
        count += len(found)
        matches += [_row_match(rows, *match) for match in found[: limit - len(matches)]]
        advance(len(rows.keys))
    return count, matches


def _matching_ids(rows: TableRows, searches: Mapping[str, CompiledPredicate]) -> Any:
    places = np.arange(len(rows.keys))
    for name, search in searches.items():
        column = np.ascontiguousarray(getattr(rows, name), np.int64)
        hits, _ = search.find(column)
        places = np.intersect1d(places, hits, assume_unique=True)
    return places


def _matching_columns(
    rows: TableRows, places: Any, dim: int, inside: CompiledPredicate | None
) -> list[tuple[int, tuple[int, ...], tuple[float, ...]]]:
    """Return the positions of matching embeddings, with matching columns and their values."""
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


def _row_match(
    rows: TableRows, place: int, columns: tuple[int, ...], values: tuple[float, ...]
) -> RowMatch:
    numbers_of = (rows.keys, rows.versions, rows.frequencies, rows.seen)
    key, version, frequency, seen = (int(column[place]) for column in numbers_of)
    return RowMatch(key, version, frequency, seen, columns, values)
