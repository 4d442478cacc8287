"""Comparison of two generations: tensors, tables and other state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from windeck._util.options import explain_options
from windeck._util.progress import report_progress
from windeck.checkpoint.format import keys, state_json
from windeck.checkpoint.format.boxes import boxes_in_range, shape_of, shift
from windeck.checkpoint.format.entries import TensorEntry, TensorPart
from windeck.checkpoint.format.manifests import Commit, find_commit, read_manifest
from windeck.checkpoint.format.table_entries import BUCKETS, TableEntry
from windeck.checkpoint.read.scanning import ElementRange, chunk_elements, read_box, read_chunks
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.reading import SavedTable
from windeck.columns.elements import decode_elements, is_numeric

__all__ = [
    "Difference",
    "TableDifference",
    "TensorDifference",
    "ValueDifference",
    "diff",
    "table_difference",
]


#: Buckets of a table that are compared at a time.
_AT_ONCE = 16


@dataclass(frozen=True)
class TableDifference:
    """Difference of a table: ids on one side only, and ids whose row or counts differ."""

    name: str
    only_first: int
    only_second: int
    changed: int
    #: Another difference as text, such as a missing table or another dim.
    note: str = ""


def table_difference(
    name: str,
    views: tuple[tuple[View, str], tuple[View, str]],
    entries: tuple[TableEntry | None, TableEntry | None],
) -> TableDifference | None:
    """Compare a table on both sides; return None if there is no difference.

    Parameters
    ----------
    views
        View and namespace of both sides.
    entries
        Entries of both manifests; None for a missing table.
    """
    one, two = entries
    if one is None or two is None:
        note = "only in the first" if two is None else "only in the second"
        first, second = (0 if side is None else side.rows + side.counted for side in entries)
        return TableDifference(name, first, second, 0, note)
    if one.shape != two.shape:
        note = f"dim {one.shape.dim} with {one.shape.slots} slots, then dim {two.shape.dim} with "
        note += f"{two.shape.slots} slots"
        if one.shape.dtype != two.shape.dtype:
            note += f"; {one.shape.dtype}, then {two.shape.dtype}"
        return TableDifference(name, 0, 0, 0, note)
    ours, theirs = SavedTable(*views[0], one), SavedTable(*views[1], two)
    counts = np.zeros(3, np.int64)
    with report_progress(None, f"comparing {name}", BUCKETS) as advance:
        for first in range(0, BUCKETS, _AT_ONCE):
            buckets = first, first + _AT_ONCE
            counts += _count_differences([*ours.scan(*buckets)], [*theirs.scan(*buckets)])
            advance(_AT_ONCE)
    note = "" if one.config == two.config else "made with another configuration"
    if not counts.any() and not note:
        return None
    a, b, changed = counts.tolist()
    return TableDifference(name, a, b, changed, note)


def _count_differences(ours: list[Any], theirs: list[Any]) -> tuple[int, int, int]:
    """Count the ids of only one side, and the ids on both sides that differ."""
    a, b = _as_records(ours), _as_records(theirs)
    both, i, j = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    changed = np.zeros(len(both), bool)
    for x, y in zip(a[1], b[1], strict=True):
        changed |= (x[i] != y[j]).any(axis=1)
    return len(a[0]) - len(both), len(b[0]) - len(both), int(changed.sum())


def _as_records(parts: list[Any]) -> tuple[Any, list[Any]]:
    """Return ids, and integer arrays of their counts and rows; zeros for a missing row."""
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
    """Difference of a tensor.

    Attributes
    ----------
    name
        Its name, as in `Checkpoint.names`.
    first, second
        Dtype and shape on each side; None where it is missing.
    changed, elements
        Number of elements with different bits, and of all elements; 0 if dtype or shape differ.
    index
        Index of the first different element, in the order of the parts of the first side, or None.
    largest
        Largest absolute difference of finite numbers, or None.
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
    """Difference of a number or text, as JSON; ``...`` where it is missing."""

    name: str
    first: Any
    second: Any


@dataclass
class Difference:
    """Differences of two generations; false if there are none."""

    first: Commit
    second: Commit
    tensors: list[TensorDifference] = field(default_factory=list)
    values: list[ValueDifference] = field(default_factory=list)
    tables: list[TableDifference] = field(default_factory=list)
    #: Number of equal tensors, and bytes read.
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
    def tensors(self) -> dict[str, TensorEntry]:
        """Entries by name, as in `Checkpoint.names`."""
        entries = self.manifest["tensors"]
        roots = self.manifest["trees"].items()
        return {
            place: entries[saved]
            for root, tree in roots
            for place, saved in state_json.iter_tensors(tree, root)
        }

    @property
    def tables(self) -> Mapping[str, Any]:
        found = self.manifest["tables"]
        return found if isinstance(found, Mapping) else {}


@explain_options
def diff(
    store: Store | str,
    first: int | str | None,
    second: int | str | None,
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
        Numbers of the generations, or their tags; None: the current one.
    other
        The store of the second generation, by default the same.
    namespace, other_namespace
        Prefixes of the keys of the first and the second generation, by default the same.

    Raises
    ------
    FileNotFoundError
        When there is no checkpoint, or no such generation.
    OSError
        When data are damaged or cannot be reached.

    Notes
    -----
    Data that both generations refer to by the same key are not read. Otherwise O(bytes) time, and
    memory for some chunks, a sixty-fourth of a table, and the differences.

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
        elements = sum(math.prod(entry.shape) for entry in a.tensors.values())
        with report_progress(None, "comparing", elements) as advance:
            _compare_tensors(a, b, found, advance)
        _compare_values(a, b, found)
        for name in sorted({*a.tables, *b.tables}):
            views = (a.view, a.namespace), (b.view, b.namespace)
            table = table_difference(name, views, (a.tables.get(name), b.tables.get(name)))
            if table is not None:
                found.tables.append(table)
        return found


def _side(view: View, namespace: str, generation: int | str | None) -> _Side:
    commit = find_commit(view, namespace, generation)
    return _Side(view, namespace, commit, read_manifest(view, namespace, commit))


def _compare_tensors(a: _Side, b: _Side, found: Difference, advance: Callable[[int], None]) -> None:
    """Compare all tensors; `advance` is called with the elements of the first side."""
    ours, theirs = a.tensors, b.tensors
    compared: dict[tuple[str, str], TensorDifference | None] = {}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        one, two = ours.get(name), theirs.get(name)
        elements = 0 if one is None else math.prod(one.shape)
        if one is None or two is None or (one.dtype, one.shape) != (two.dtype, two.shape):
            found.tensors.append(
                TensorDifference(name, _dtype_and_shape(one), _dtype_and_shape(two))
            )
            advance(elements)
            continue
        pair = one.name, two.name
        if pair not in compared:  # a tensor may have several names
            compared[pair] = _tensor_difference(a, b, one, two, found, advance)
        else:
            advance(elements)
        tensor = compared[pair]
        if tensor is None:
            found.equal += 1
        else:
            found.tensors.append(dataclasses.replace(tensor, name=name))


def _dtype_and_shape(entry: TensorEntry | None) -> tuple[str, tuple[int, ...]] | None:
    return None if entry is None else (entry.dtype, entry.shape)


def _tensor_difference(
    a: _Side,
    b: _Side,
    one: TensorEntry,
    two: TensorEntry,
    found: Difference,
    advance: Callable[[int], None],
) -> TensorDifference | None:
    changed, index, largest = 0, None, None
    unread = math.prod(one.shape)
    for part, place, ours, theirs in _pairs(a, b, one, two, found):
        advance(len(ours))
        unread -= len(ours)
        unlike = _bytes(ours) != _bytes(theirs)
        if not unlike.any():
            continue
        places = np.flatnonzero(unlike.any(axis=1))
        if index is None:
            index = _index(part, place + int(places[0]))
        changed += len(places)
        far = _largest_difference(one.dtype, ours[places], theirs[places])
        largest = far if largest is None or (far is not None and far > largest) else largest
    advance(unread)
    if not changed:
        return None
    total = math.prod(one.shape)
    return TensorDifference(
        one.name, _dtype_and_shape(one), _dtype_and_shape(two), changed, total, index, largest
    )


def _bytes(values: Any) -> Any:
    return values.view(np.uint8).reshape(len(values), values.dtype.itemsize)


def _index(part: TensorPart, place: int) -> tuple[int, ...]:
    if not part.box:
        return ()
    inside = np.unravel_index(place, shape_of(part.box))
    return tuple(int(i) + first for i, (first, _) in zip(inside, part.box, strict=True))


def _largest_difference(dtype: str, ours: Any, theirs: Any) -> float | None:
    if not is_numeric(dtype):
        return None
    a, b = (decode_elements(dtype, np.ascontiguousarray(side)) for side in (ours, theirs))
    if a.dtype.kind in "iub":  # exact: the difference modulo 2^64 is the distance
        one, two = (side.astype(np.uint64) for side in (a, b))
        return float(np.where(a > b, one - two, two - one).max())
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(wide) - b.astype(wide))
    apart = apart[np.isfinite(apart)]
    return float(apart.max()) if len(apart) else None


def _pairs(
    a: _Side, b: _Side, one: TensorEntry, two: TensorEntry, found: Difference
) -> Iterator[tuple[TensorPart, int, Any, Any]]:
    """Iterate over a part of the first side, a position in it, and raw elements of both sides."""
    same_view = a.view is b.view and a.namespace == b.namespace
    alike = [part.box for part in one.parts] == [part.box for part in two.parts]
    if not alike or chunk_elements(one) != chunk_elements(two):
        yield from _pairs_by_box(a, b, one, two, found)
        return
    others = dict(zip(one.parts, two.parts, strict=True))
    back = {other: part for part, other in others.items()}

    def wanted(part: TensorPart, number: int) -> bool:
        return not same_view or part.source(number) != others[part].source(number)

    def wanted_too(part: TensorPart, number: int) -> bool:
        return wanted(back[part], number)

    ours = read_chunks(a.view, a.namespace, one, wanted)
    theirs = read_chunks(b.view, b.namespace, two, wanted_too)
    for span, other in zip(ours, theirs, strict=True):
        found.bytes += len(span.payload) + len(other.payload)
        yield span.part, span.start, _raw(span), _raw(other)


def _raw(span: ElementRange) -> Any:
    return np.frombuffer(span.payload, f"V{len(span.payload) // (span.stop - span.start)}")


def _pairs_by_box(
    a: _Side, b: _Side, one: TensorEntry, two: TensorEntry, found: Difference
) -> Iterator[tuple[TensorPart, int, Any, Any]]:
    """Iterate as `_pairs` for sides with different parts or chunks, box by box."""
    for span in read_chunks(a.view, a.namespace, one):
        values = _raw(span)
        for inner, place in boxes_in_range(shape_of(span.part.box), span.start, span.stop):
            box = shift(inner, span.part.box)
            other = read_box(b.view, b.namespace, two, box).reshape(-1)
            found.bytes += 2 * other.nbytes
            yield span.part, place, values[place - span.start :][: len(other)], other


def _compare_values(a: _Side, b: _Side, found: Difference) -> None:
    ours, theirs = (_plain(side.manifest["trees"]) for side in (a, b))
    tensors = a.tensors.keys() & b.tensors.keys()
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        name = "/".join(map(str, path))
        pair = [side.get(path, _NOTHING) for side in (ours, theirs)]
        if name not in tensors:  # a tensor on one side only was reported before
            pair = [_NOTHING if leaf.kind == "tensor" else leaf for leaf in pair]
        if not pair[0].equals(pair[1]):
            found.values.append(ValueDifference(name, *(leaf.value for leaf in pair)))


class _Leaf(NamedTuple):
    """The value at a place of a tree: a number or text, or a description of a container."""

    kind: str
    value: Any

    def equals(self, other: _Leaf) -> bool:
        """Compare as text, so that NaN equals itself and -0.0 differs from 0.0."""
        return (self.kind, repr(self.value)) == (other.kind, repr(other.value))


_NOTHING = _Leaf("nothing", ...)

#: The keys on the way to a place. Unlike in names, 1 and "1" are different.
_Path = tuple[str | int, ...]


def _plain(roots: Mapping[str, Any]) -> dict[_Path, _Leaf]:
    return {path: leaf for root, tree in roots.items() for path, leaf in _leaves(tree, (root,))}


def _leaves(tree: Any, path: _Path) -> Iterator[tuple[_Path, _Leaf]]:
    """Iterate over all places, including containers, since they may be empty."""
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
