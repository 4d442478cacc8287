"""What writers state of a table, united into the table of a manifest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windeck.checkpoint.format.boxes import Box, find_gap, find_overlap, shape_of, whole
from windeck.checkpoint.format.table_entries import (
    TableEntry,
    TableLink,
    TableShape,
    TableShard,
    check_buckets,
    parse_shard,
    ranges_to_read,
)
from windeck.checkpoint.format.trees import iter_tensors
from windeck.checkpoint.write.plans import Plan

__all__ = ["merged", "united"]


#: What has to be the same with all writers of a table.
_SHARED = ("dim", "dtype", "slots", "config")


def united(
    stated: Iterable[tuple[int, Iterable[Mapping[str, Any]]]],
    *,
    generation: int,
    save: int,
    base: Mapping[str, TableEntry],
) -> list[TableEntry]:
    """The tables of a generation, checked: their buckets are complete, nobody's are another's.

    Parameters
    ----------
    stated
        Of each writer its number, and what `Exports.stated` gave there.
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
    for writer, entries in stated:
        for entry in entries:
            if tables.setdefault(entry["name"], {}).setdefault(writer, entry) is not entry:
                raise ValueError(f"writer {writer} has the table {entry['name']} twice")
    return [_united(name, own, generation, save, base.get(name)) for name, own in tables.items()]


def _united(
    name: str,
    stated: Mapping[int, Mapping[str, Any]],
    generation: int,
    save: int,
    base: TableEntry | None,
) -> TableEntry:
    first_writer, first = next(iter(stated.items()))
    shards: list[TableShard] = []
    for writer, entry in stated.items():
        for key in _SHARED:
            if entry[key] != first[key]:
                raise ValueError(
                    f"the table {name} has {key} {entry[key]!r} at writer {writer}, expected "
                    f"{first[key]!r} as at writer {first_writer}"
                )
        shard = parse_shard(entry["shard"])
        if shard.writer != writer:
            raise ValueError(
                f"writer {writer} states a shard of writer {shard.writer} of the table {name}, "
                "expected its own"
            )
        shards.append(shard)
    check_buckets(name, [shard.buckets for shard in shards])
    link = TableLink(generation, save, tuple(shards))
    shape = TableShape(first["dim"], first["slots"])
    links = (link, *_older(name, link, shape, base))
    clock, rows, counted = (
        [int(entry[key]) for entry in stated.values()] for key in ("clock", "rows", "counted")
    )
    return TableEntry(name, shape, first["config"], max(clock), sum(rows), sum(counted), links)


def _older(
    name: str, link: TableLink, shape: TableShape, base: TableEntry | None
) -> tuple[TableLink, ...]:
    """The links of the base that the new one does not hide."""
    if all(shard.since == -1 for shard in link.shards):
        return ()
    if base is None or base.shape != shape:
        found = "none" if base is None else f"one of {base.shape}"
        raise ValueError(
            f"the table {name} is written as what changed, expected a table of {shape} in the "
            f"generation in force, found {found}"
        )
    chain = ranges_to_read((link, *base.links))
    used = [older for older, own in zip(base.links, chain[1:], strict=True) if own]
    return tuple(used)


#: Of a place in a tree: who has it, and what.
_Found = list[tuple[int, Any]]


@dataclass
class _Tensor:
    """A tensor as its writers tell of it."""

    writer: int
    said: dict[str, Any]
    parts: list[dict[str, Any]] = field(default_factory=list)


def merged(
    shards: Sequence[Mapping[str, Any]],
    plan: Plan,
    base: Mapping[str, TableEntry] | None = None,
) -> dict[str, Any]:
    """The manifest of a save, from those of its writers, in their order.

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
    O(p log p) for p parts that are cut in one dimension.
    """
    tensors = _tensors(shards)
    roots: dict[str, Any] = {}
    for root in _keys([list(shard["trees"]) for shard in shards]):
        found = [(shard["writer"], shard["trees"]) for shard in shards]
        held = [(writer, trees[root]) for writer, trees in found if root in trees]
        roots[root] = _tree(root, held, tensors)
    used = dict.fromkeys(
        name for root, tree in roots.items() for _, name in iter_tensors(tree, root)
    )
    entries = [_entry(name, tensors[name]) for name in used]
    manifest = {"chunk_bytes": plan.chunk_bytes, "tensors": entries, "trees": roots}
    stated = [(shard["writer"], shard.get("tables", ())) for shard in shards]
    tables = united(stated, generation=plan.generation, save=plan.save, base=base or {})
    return {**manifest, "tables": [table.as_json() for table in tables]} if tables else manifest


def _tensors(shards: Sequence[Mapping[str, Any]]) -> dict[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    for shard in shards:
        for entry in shard["tensors"]:
            said = {key: value for key, value in entry.items() if key != "parts"}
            tensor = found.setdefault(entry["name"], _Tensor(shard["writer"], said))
            for key in ("dtype", "shape", "chunk_bytes"):
                was, now = tensor.said.get(key), said.get(key)
                if was != now:
                    raise ValueError(
                        f"{entry['name']} has {key} {was} with writer {tensor.writer} and {now} "
                        f"with writer {shard['writer']}, expected one {key}"
                    )
            for part in entry["parts"]:
                _within(entry, part, shard["writer"])
                tensor.parts.append({**part, "writer": shard["writer"]})
    return found


def _within(entry: Mapping[str, Any], part: Mapping[str, Any], writer: int) -> None:
    box, shape = part["box"], entry["shape"]
    if len(box) != len(shape) or any(
        not 0 <= first <= end <= size for (first, end), size in zip(box, shape, strict=True)
    ):
        raise ValueError(
            f"{entry['name']} has elements {_shown(box)} with writer {writer}, expected some of "
            f"shape {tuple(shape)}"
        )


def _entry(name: str, tensor: _Tensor) -> dict[str, Any]:
    """A tensor of the manifest, if its parts make a whole."""
    shape = tuple(tensor.said["shape"])
    parts = [part for part in tensor.parts if math.prod(shape_of(_box(part)))]
    boxes = [_box(part) for part in parts]
    pair = find_overlap(boxes)
    if pair is not None:
        one, two = (parts[i] for i in pair)
        raise ValueError(
            f"{name} has elements {_shown(one['box'])} with writer {one['writer']} and "
            f"{_shown(two['box'])} with writer {two['writer']}, expected each element once"
        )
    held, size = sum(math.prod(shape_of(box)) for box in boxes), math.prod(shape)
    if held != size:
        writers = ", ".join(str(w) for w in dict.fromkeys(part["writer"] for part in parts))
        missing = find_gap(whole(shape), boxes)
        raise ValueError(
            f"{name} has {held:,} of {size:,} elements with writers [{writers}], expected all of "
            f"shape {shape}: {_shown(missing)} is missing"
        )
    return {**tensor.said, "parts": [_ordered(part) for part in parts]}


def _ordered(part: Mapping[str, Any]) -> dict[str, Any]:
    first = {key: part[key] for key in ("box", "writer", "item")}
    return {**first, **part}


def _tree(place: str, found: _Found, tensors: dict[str, _Tensor]) -> Any:
    """One tree of those several writers have: dicts become their union, all else is the same."""
    writer, first = found[0]
    kind = _kind(first)
    for other, tree in found[1:]:
        if _kind(tree) != kind:
            raise _differ(place, writer, first, other, tree)
    if kind == "tensor":
        return {"tensor": _name(place, [(w, tree["tensor"]) for w, tree in found], tensors)}
    if kind == "dict":
        return {"dict": _dict(place, [(w, tree["dict"]) for w, tree in found], tensors)}
    if kind == "tuple":
        return {"tuple": _list(place, [(w, tree["tuple"]) for w, tree in found], tensors)}
    if kind == "list":
        return _list(place, found, tensors)
    for other, tree in found[1:]:
        if repr(tree) != repr(first):
            raise _differ(place, writer, first, other, tree)
    return first


def _kind(tree: Any) -> str:
    return next(iter(tree), "") if isinstance(tree, dict) else type(tree).__name__


def _dict(place: str, found: _Found, tensors: dict[str, _Tensor]) -> list[Any]:
    held = [(writer, _keyed(pairs)) for writer, pairs in found]
    every = _keys([list(pairs) for _, pairs in held])
    return [
        [
            key,
            _tree(
                f"{place}/{key}", [(w, p[kind, key]) for w, p in held if (kind, key) in p], tensors
            ),
        ]
        for kind, key in every
    ]


def _keyed(pairs: Any) -> dict[tuple[type, Any], Any]:
    return {(type(key), key): value for key, value in pairs}


def _list(place: str, found: _Found, tensors: dict[str, _Tensor]) -> list[Any]:
    writer, first = found[0]
    for other, tree in found[1:]:
        if len(tree) != len(first):
            raise ValueError(
                f"{place} has {len(first)} items with writer {writer} and {len(tree)} with writer "
                f"{other}, expected the same everywhere"
            )
    return [
        _tree(f"{place}/{i}", [(w, tree[i]) for w, tree in found], tensors)
        for i in range(len(first))
    ]


def _name(place: str, found: _Found, tensors: dict[str, _Tensor]) -> str:
    """The name a tensor's data are under.

    With some writers it may be the same memory as another tensor, and with others not: where all
    they have of it is no elements, or where tied tensors were torn.
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


def _keys(found: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """All of several lists, each once, as they come."""
    return iter(dict.fromkeys(key for keys in found for key in keys))


def _differ(place: str, writer: int, was: Any, other: int, now: Any) -> ValueError:
    return ValueError(
        f"{place} is {_told(was)} with writer {writer} and {_told(now)} with writer {other}, "
        "expected the same everywhere: what differs needs a name of its own on each"
    )


def _told(tree: Any) -> str:
    kind = _kind(tree)
    if kind in ("dict", "list", "tuple", "tensor"):
        return f"a {kind}"
    return repr(float(tree["float"]) if kind == "float" and isinstance(tree, dict) else tree)[:80]


def _box(part: Mapping[str, Any]) -> Box:
    return tuple((first, end) for first, end in part["box"])


def _shown(box: Any) -> str:
    return "[" + ", ".join(f"{first}:{end}" for first, end in box) + "]"
