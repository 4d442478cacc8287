"""What a saved table differs in from another, some buckets at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from windeck.checkpoint.format import keys, trees
from windeck.checkpoint.format.boxes import pieces, shape_of
from windeck.checkpoint.format.entries import Entry, Part
from windeck.checkpoint.format.manifests import Commit, find_commit, read_manifest
from windeck.checkpoint.format.numbers import numbers, searchable
from windeck.checkpoint.format.payloads import Run, items_of, read_box, runs_of
from windeck.checkpoint.format.table_entries import BUCKETS, TableEntry
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable

__all__ = [
    "Difference",
    "TableDifference",
    "TensorDifference",
    "ValueDifference",
    "diff",
    "table_difference",
]


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


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that is not the same on both sides.

    Attributes
    ----------
    name
        By which `names` lists it.
    first, second
        Dtype and shape on each side; None where it is not there.
    changed, elements
        How many elements have other bits, of how many; 0 where dtype or shape differ.
    index
        Of the first one, by the parts of the first side; None where there is none.
    largest
        The greatest distance of finite numbers; None where there are none.
    """

    name: str
    first: tuple[str, tuple[int, ...]] | None
    second: tuple[str, tuple[int, ...]] | None
    changed: int = 0
    elements: int = 0
    index: tuple[int, ...] | None = None
    largest: float | None = None


@dataclass(frozen=True)
class ValueDifference:
    """A number or text that is not the same; as JSON, ``...`` where it is not there."""

    name: str
    first: Any
    second: Any


@dataclass
class Difference:
    """What two generations differ in; false where it is nothing."""

    first: Commit
    second: Commit
    tensors: list[TensorDifference] = field(default_factory=list)
    values: list[ValueDifference] = field(default_factory=list)
    tables: list[TableDifference] = field(default_factory=list)
    #: Tensors that are the same, and bytes that had to be read.
    equal: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.tensors or self.values or self.tables)


@dataclass(frozen=True)
class _Side:
    view: View
    namespace: str
    commit: Commit
    manifest: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, Entry]:
        """By place, as `names` lists them."""
        entries = self.manifest["tensors"]
        roots = self.manifest["trees"].items()
        return {
            place: entries[saved]
            for root, tree in roots
            for place, saved in trees.tensors_in(tree, root)
        }

    @property
    def tables(self) -> Mapping[str, Any]:
        found = self.manifest["tables"]
        return found if isinstance(found, Mapping) else {}


def diff(
    store: Store | str,
    first: int | None,
    second: int | None,
    *,
    other: Store | str | None = None,
    namespace: str = "windeck",
    other_namespace: str | None = None,
) -> Difference:
    """Compare two generations.

    Parameters
    ----------
    store
        An open store or the URL of one.
    first, second
        Generations; None: the one in force.
    other
        Where the second one is, if it is in another store.
    namespace, other_namespace
        What the keys begin with; of the second one the same unless said otherwise.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    OSError
        For what is damaged or cannot be reached.

    Notes
    -----
    Data that both refer to under one key are not read, others are: O(bytes), with memory of some
    chunks, of a sixty-fourth of a table, and of what differs.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> for step in (1, 2):
    ...     model = {"w": torch.tensor([1.0, float(step)]), "b": torch.zeros(2)}
    ...     number = checkpoint.save(store, step=step, model=model)
    >>> found = diff(store, 1, 2)
    >>> [(tensor.name, tensor.changed, tensor.index, tensor.largest) for tensor in found.tensors]
    [('model/w', 1, (1,), 1.0)]
    """
    spaces = [keys.check_namespace(name) for name in (namespace, other_namespace or namespace)]
    with ExitStack() as stack:
        here = stack.enter_context(opened(store, reading=True))
        there = here if other is None else stack.enter_context(opened(other, reading=True))
        a, b = _side(here, spaces[0], first), _side(there, spaces[1], second)
        found = Difference(a.commit, b.commit)
        _compare_tensors(a, b, found)
        _compare_values(a, b, found)
        for name in sorted({*a.tables, *b.tables}):
            views = (a.view, a.namespace), (b.view, b.namespace)
            table = table_difference(name, views, (a.tables.get(name), b.tables.get(name)))
            if table is not None:
                found.tables.append(table)
        return found


def _side(view: View, namespace: str, generation: int | None) -> _Side:
    commit = find_commit(view, namespace, generation)
    return _Side(view, namespace, commit, read_manifest(view, namespace, commit))


def _compare_tensors(a: _Side, b: _Side, found: Difference) -> None:
    ours, theirs = a.tensors, b.tensors
    done: dict[tuple[str, str], TensorDifference | None] = {}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        one, two = ours.get(name), theirs.get(name)
        if one is None or two is None or (one.dtype, one.shape) != (two.dtype, two.shape):
            found.tensors.append(TensorDifference(name, _kind(one), _kind(two)))
            continue
        pair = one.name, two.name
        if pair not in done:  # tensors of one memory have many names
            done[pair] = _tensor_difference(a, b, one, two, found)
        tensor = done[pair]
        if tensor is None:
            found.equal += 1
        else:
            found.tensors.append(dataclasses.replace(tensor, name=name))


def _kind(entry: Entry | None) -> tuple[str, tuple[int, ...]] | None:
    return None if entry is None else (entry.dtype, entry.shape)


def _tensor_difference(
    a: _Side, b: _Side, one: Entry, two: Entry, found: Difference
) -> TensorDifference | None:
    changed, index, largest = 0, None, None
    for part, place, ours, theirs in _pairs(a, b, one, two, found):
        unlike = _bytes(ours) != _bytes(theirs)
        if not unlike.any():
            continue
        places = np.flatnonzero(unlike.any(axis=1))
        if index is None:
            index = _index(part, place + int(places[0]))
        changed += len(places)
        far = _distance(one.dtype, ours[places], theirs[places])
        largest = far if largest is None or (far is not None and far > largest) else largest
    if not changed:
        return None
    total = math.prod(one.shape)
    return TensorDifference(one.name, _kind(one), _kind(two), changed, total, index, largest)


def _bytes(values: Any) -> Any:
    return values.view(np.uint8).reshape(len(values), values.dtype.itemsize)


def _index(part: Part, place: int) -> tuple[int, ...]:
    if not part.box:
        return ()
    inside = np.unravel_index(place, shape_of(part.box))
    return tuple(int(i) + first for i, (first, _) in zip(inside, part.box, strict=True))


def _distance(dtype: str, ours: Any, theirs: Any) -> float | None:
    if not searchable(dtype):
        return None
    a, b = (numbers(dtype, np.ascontiguousarray(side)) for side in (ours, theirs))
    if a.dtype.kind in "iub":  # exact where float64 is not: modulo 2^64 it is the distance
        one, two = (side.astype(np.uint64) for side in (a, b))
        return float(np.where(a > b, one - two, two - one).max())
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(wide) - b.astype(wide))
    apart = apart[np.isfinite(apart)]
    return float(apart.max()) if len(apart) else None


def _pairs(
    a: _Side, b: _Side, one: Entry, two: Entry, found: Difference
) -> Iterator[tuple[Part, int, Any, Any]]:
    """Runs of elements of both sides: a part of the first side, a place in it, and raw values."""
    same_view = a.view is b.view and a.namespace == b.namespace
    alike = [part.box for part in one.parts] == [part.box for part in two.parts]
    if not alike or items_of(one) != items_of(two):
        yield from _unlike_pairs(a, b, one, two, found)
        return
    others = dict(zip(one.parts, two.parts, strict=True))
    back = {other: part for part, other in others.items()}

    def wanted(part: Part, number: int) -> bool:
        return not same_view or part.source(number) != others[part].source(number)

    def wanted_too(part: Part, number: int) -> bool:
        return wanted(back[part], number)

    ours = runs_of(a.view, a.namespace, one, wanted)
    theirs = runs_of(b.view, b.namespace, two, wanted_too)
    for run, other in zip(ours, theirs, strict=True):
        found.bytes += len(run.payload) + len(other.payload)
        yield run.part, run.start, _raw(run), _raw(other)


def _raw(run: Run) -> Any:
    return np.frombuffer(run.payload, f"V{len(run.payload) // (run.stop - run.start)}")


def _unlike_pairs(
    a: _Side, b: _Side, one: Entry, two: Entry, found: Difference
) -> Iterator[tuple[Part, int, Any, Any]]:
    """Where parts or chunks are cut otherwise: of each run, its boxes of the other side."""
    for run in runs_of(a.view, a.namespace, one):
        values = _raw(run)
        origin = [first for first, _ in run.part.box]
        for inner, place in pieces(shape_of(run.part.box), run.start, run.stop):
            box = tuple((low + o, high + o) for (low, high), o in zip(inner, origin, strict=True))
            other = read_box(b.view, b.namespace, two, box).reshape(-1)
            found.bytes += 2 * other.nbytes
            yield run.part, place, values[place - run.start :][: len(other)], other


def _compare_values(a: _Side, b: _Side, found: Difference) -> None:
    ours, theirs = (_plain(side.manifest["trees"]) for side in (a, b))
    tensors = a.tensors.keys() & b.tensors.keys()
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        name = "/".join(map(str, path))
        pair = [side.get(path, _NOTHING) for side in (ours, theirs)]
        if name not in tensors:  # those of one side have been told of
            pair = [_NOTHING if leaf.kind == "tensor" else leaf for leaf in pair]
        if not pair[0].like(pair[1]):
            found.values.append(ValueDifference(name, *(leaf.value for leaf in pair)))


class _Leaf(NamedTuple):
    """What stands at a place: a number or text, or in words a container or a tensor."""

    kind: str
    value: Any

    def like(self, other: _Leaf) -> bool:
        """As text NaN is equal to itself, and -0.0 not to 0.0."""
        return (self.kind, repr(self.value)) == (other.kind, repr(other.value))


_NOTHING = _Leaf("nothing", ...)

#: The keys that lead to a place. In names 1 and "1" look alike, here they are two.
_Path = tuple[str | int, ...]


def _plain(roots: Mapping[str, Any]) -> dict[_Path, _Leaf]:
    return {path: leaf for root, tree in roots.items() for path, leaf in _leaves(tree, (root,))}


def _leaves(tree: Any, path: _Path) -> Iterator[tuple[_Path, _Leaf]]:
    """All places; containers too, so that an empty one is not overlooked."""
    kind, inside = type(tree).__name__, tree
    if type(tree) is dict:
        ((kind, inside),) = tree.items()
    if kind in ("list", "tuple"):
        yield path, _Leaf(kind, f"{kind} of {len(inside)}")
        for i, item in enumerate(inside):
            yield from _leaves(item, (*path, i))
    elif kind == "dict":
        yield path, _Leaf(kind, "dict")
        for key, item in inside:
            yield from _leaves(item, (*path, key))
    elif kind == "tensor":
        yield path, _Leaf(kind, "tensor")
    else:
        yield path, _Leaf(kind, float(inside) if kind == "float" else inside)
