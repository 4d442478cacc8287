"""Merging of writers' manifests into the manifest of a save."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windeck.checkpoint.format.boxes import Box, find_gap, find_overlap, shape_of, whole
from windeck.checkpoint.format.state_json import iter_tensors
from windeck.checkpoint.format.table_blocks import TableShape
from windeck.checkpoint.format.table_entries import (
    TableEntry,
    TableLink,
    TableShard,
    check_buckets,
    parse_shard,
    ranges_to_read,
)
from windeck.checkpoint.write.plans import Plan

__all__ = ["merge_shards", "merge_tables"]


#: Fields of a table that have to be equal for all writers.
_EQUAL_KEYS = ("dim", "dtype", "slots", "config")


def merge_tables(
    entries_by_writer: Iterable[tuple[int, Iterable[Mapping[str, Any]]]],
    *,
    generation: int,
    save: int,
    base: Mapping[str, TableEntry],
) -> list[TableEntry]:
    """Merge what each writer wrote of tables; check that each bucket was written once.

    Parameters
    ----------
    entries_by_writer
        Pairs of a writer's number and its `TablesWriter.manifest_entries`.
    generation, save
        Of this save.
    base
        The tables of the generation in force, for deltas.

    Raises
    ------
    ValueError
        Naming the table, the writers, what was found and what was expected.
    """
    tables: dict[str, dict[int, Mapping[str, Any]]] = {}
    for writer, entries in entries_by_writer:
        for entry in entries:
            if tables.setdefault(entry["name"], {}).setdefault(writer, entry) is not entry:
                raise ValueError(f"writer {writer} has the table {entry['name']} twice")
    return [
        _merge_table(name, entries, generation, save, base.get(name))
        for name, entries in tables.items()
    ]


def _merge_table(
    name: str,
    entries: Mapping[int, Mapping[str, Any]],
    generation: int,
    save: int,
    base: TableEntry | None,
) -> TableEntry:
    first_writer, first = next(iter(entries.items()))
    shards: list[TableShard] = []
    for writer, entry in entries.items():
        for key in _EQUAL_KEYS:
            if entry[key] != first[key]:
                raise ValueError(
                    f"the table {name} has {key} {entry[key]!r} with writer {writer}, expected "
                    f"{first[key]!r} as with writer {first_writer}"
                )
        for shard in map(parse_shard, entry["shards"]):
            if shard.writer != writer:
                raise ValueError(
                    f"the manifest of writer {writer} has a shard of writer {shard.writer} of the "
                    f"table {name}, expected its own"
                )
            shards.append(shard)
    check_buckets(name, [shard.buckets for shard in shards])
    link = TableLink(generation, save, tuple(shards))
    shape = TableShape(first["dim"], first["slots"], first["dtype"])
    links = (link, *_visible_links(name, link, shape, base))
    clock, rows, counted = (
        [int(entry[key]) for entry in entries.values()] for key in ("clock", "rows", "counted")
    )
    return TableEntry(name, shape, first["config"], max(clock), sum(rows), sum(counted), links)


def _visible_links(
    name: str, link: TableLink, shape: TableShape, base: TableEntry | None
) -> tuple[TableLink, ...]:
    """Return the links of the base that the new link does not hide."""
    if all(shard.since == -1 for shard in link.shards):
        return ()
    if base is None or base.shape != shape:
        found = "none" if base is None else f"one of {base.shape}"
        raise ValueError(
            f"the table {name} is written as a delta, expected a table of {shape} in the "
            f"generation in force, found {found}"
        )
    chain = ranges_to_read((link, *base.links))
    return tuple(older for older, own in zip(base.links, chain[1:], strict=True) if own)


#: Writers that have a place in a tree, with the value each has there.
_ByWriter = list[tuple[int, Any]]


@dataclass
class _ShardedTensor:
    """A tensor in the manifests of its writers: its fields, as the first has them, and parts."""

    writer: int
    fields: dict[str, Any]
    parts: list[dict[str, Any]] = field(default_factory=list)


def merge_shards(
    shards: Sequence[Mapping[str, Any]],
    plan: Plan,
    base: Mapping[str, TableEntry] | None = None,
) -> dict[str, Any]:
    """Merge the manifests of all writers, in their order, into the manifest of a save.

    Parameters
    ----------
    base
        The embedding tables of the generation in force, which deltas of tables build on.

    Raises
    ------
    ValueError
        For tensors and tables that differ, overlap or have gaps, and plain values that differ:
        naming the place, the writers, what was found and what was expected.

    Notes
    -----
    O(p log p) time for p parts that are cut in one dimension.
    """
    tensors = _collect_tensors(shards)
    roots: dict[str, Any] = {}
    for root in _unique([list(shard["trees"]) for shard in shards]):
        found = [(shard["writer"], shard["trees"]) for shard in shards]
        held = [(writer, trees[root]) for writer, trees in found if root in trees]
        roots[root] = _merge_trees(root, held, tensors)
    used = dict.fromkeys(
        name for root, tree in roots.items() for _, name in iter_tensors(tree, root)
    )
    entries = [_tensor_entry(name, tensors[name]) for name in used]
    manifest = {"chunk_bytes": plan.chunk_bytes, "tensors": entries, "trees": roots}
    of_tables = [(shard["writer"], shard.get("tables", ())) for shard in shards]
    tables = merge_tables(of_tables, generation=plan.generation, save=plan.save, base=base or {})
    return {**manifest, "tables": [table.as_json() for table in tables]} if tables else manifest


def _collect_tensors(shards: Sequence[Mapping[str, Any]]) -> dict[str, _ShardedTensor]:
    found: dict[str, _ShardedTensor] = {}
    for shard in shards:
        writer = shard["writer"]
        for entry in shard["tensors"]:
            fields = {key: value for key, value in entry.items() if key != "parts"}
            tensor = found.setdefault(entry["name"], _ShardedTensor(writer, fields))
            for key in ("dtype", "shape", "chunk_bytes"):
                if tensor.fields.get(key) != fields.get(key):
                    raise ValueError(
                        f"{entry['name']} has {key} {tensor.fields.get(key)} with writer "
                        f"{tensor.writer} and {fields.get(key)} with writer {writer}, expected "
                        f"one {key}"
                    )
            for part in entry["parts"]:
                _check_part(entry, part, writer)
                tensor.parts.append({**part, "writer": writer})
    return found


def _check_part(entry: Mapping[str, Any], part: Mapping[str, Any], writer: int) -> None:
    box, shape = part["box"], entry["shape"]
    if len(box) != len(shape) or any(
        not 0 <= first <= end <= size for (first, end), size in zip(box, shape, strict=True)
    ):
        raise ValueError(
            f"{entry['name']} has elements {_format_box(box)} with writer {writer}, expected some "
            f"of shape {tuple(shape)}"
        )


def _tensor_entry(name: str, tensor: _ShardedTensor) -> dict[str, Any]:
    """Return the manifest's entry of a tensor; check that its parts cover each element once."""
    shape = tuple(tensor.fields["shape"])
    parts = [part for part in tensor.parts if math.prod(shape_of(_box_of(part)))]
    boxes = [_box_of(part) for part in parts]
    pair = find_overlap(boxes)
    if pair is not None:
        one, two = (parts[i] for i in pair)
        raise ValueError(
            f"{name} has elements {_format_box(one['box'])} with writer {one['writer']} and "
            f"{_format_box(two['box'])} with writer {two['writer']}, expected each element once"
        )
    held, size = sum(math.prod(shape_of(box)) for box in boxes), math.prod(shape)
    if held != size:
        writers = ", ".join(str(w) for w in dict.fromkeys(part["writer"] for part in parts))
        missing = find_gap(whole(shape), boxes)
        raise ValueError(
            f"{name} has {held:,} of {size:,} elements with writers [{writers}], expected all of "
            f"shape {shape}: {_format_box(missing)} is missing"
        )
    ordered = [{**{key: part[key] for key in ("box", "writer", "item")}, **part} for part in parts]
    return {**tensor.fields, "parts": ordered}


def _merge_trees(place: str, found: _ByWriter, tensors: dict[str, _ShardedTensor]) -> Any:
    """Merge one tree of several writers: unite dicts, and check that all else is equal."""
    writer, first = found[0]
    kind = _kind_of(first)
    for other, tree in found[1:]:
        if _kind_of(tree) != kind:
            raise _difference(place, writer, first, other, tree)
    if kind == "tensor":
        return {"tensor": _merge_names(place, [(w, tree["tensor"]) for w, tree in found], tensors)}
    if kind == "dict":
        return {"dict": _merge_dicts(place, [(w, tree["dict"]) for w, tree in found], tensors)}
    if kind == "tuple":
        return {"tuple": _merge_lists(place, [(w, tree["tuple"]) for w, tree in found], tensors)}
    if kind == "list":
        return _merge_lists(place, found, tensors)
    for other, tree in found[1:]:
        if repr(tree) != repr(first):
            raise _difference(place, writer, first, other, tree)
    return first


def _kind_of(tree: Any) -> str:
    return next(iter(tree), "") if isinstance(tree, dict) else type(tree).__name__


def _merge_dicts(place: str, found: _ByWriter, tensors: dict[str, _ShardedTensor]) -> list[Any]:
    # With the type of a key: 1 and True are two keys.
    held = [(writer, {(type(key), key): item for key, item in pairs}) for writer, pairs in found]
    merged = []
    for kind, key in _unique([list(pairs) for _, pairs in held]):
        own = [(writer, pairs[kind, key]) for writer, pairs in held if (kind, key) in pairs]
        merged.append([key, _merge_trees(f"{place}/{key}", own, tensors)])
    return merged


def _merge_lists(place: str, found: _ByWriter, tensors: dict[str, _ShardedTensor]) -> list[Any]:
    writer, first = found[0]
    for other, tree in found[1:]:
        if len(tree) != len(first):
            raise ValueError(
                f"{place} has {len(first)} items with writer {writer} and {len(tree)} with writer "
                f"{other}, expected the same everywhere"
            )
    return [
        _merge_trees(f"{place}/{i}", [(w, tree[i]) for w, tree in found], tensors)
        for i in range(len(first))
    ]


def _merge_names(place: str, found: _ByWriter, tensors: dict[str, _ShardedTensor]) -> str:
    """Return the name that a tensor's data are stored under.

    Some writers may hold it in the memory of another tensor, and others not: if they hold no
    elements of it, or if tied tensors were separated.
    """
    names = dict.fromkeys(name for _, name in found)
    own = tensors.get(place)
    if len(names) == 1 or own is None or not own.parts:
        return str(next((name for name in names if name != place), place))
    known = {str(part["box"]) for part in own.parts}
    for writer, name in found:
        parts = [part for part in tensors[name].parts if part["writer"] == writer]
        for part in parts if name != place else ():
            if str(part["box"]) not in known:
                known.add(str(part["box"]))
                own.parts.append(part)
    return place


def _unique(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the items of several lists, each once, in order."""
    return list(dict.fromkeys(item for items in lists for item in items))


def _difference(place: str, writer: int, was: Any, other: int, now: Any) -> ValueError:
    return ValueError(
        f"{place} is {_describe(was)} with writer {writer} and {_describe(now)} with writer "
        f"{other}, expected the same everywhere: save different values under different keys"
    )


def _describe(tree: Any) -> str:
    kind = _kind_of(tree)
    if kind in ("dict", "list", "tuple", "tensor"):
        return f"a {kind}"
    return repr(float(tree["float"]) if kind == "float" and isinstance(tree, dict) else tree)[:80]


def _box_of(part: Mapping[str, Any]) -> Box:
    return tuple((first, end) for first, end in part["box"])


def _format_box(box: Any) -> str:
    return "[" + ", ".join(f"{first}:{end}" for first, end in box) + "]"
