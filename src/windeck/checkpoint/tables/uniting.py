"""What writers state of a table, united into the table of a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windeck.checkpoint.tables.links import Link, Shard, TableEntry, check_cover, pieces, shard_of
from windeck.checkpoint.tables.shapes import Shape

__all__ = ["united"]

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
    shards: list[Shard] = []
    for writer, entry in stated.items():
        for key in _SHARED:
            if entry[key] != first[key]:
                raise ValueError(
                    f"the table {name} has {key} {entry[key]!r} at writer {writer}, expected "
                    f"{first[key]!r} as at writer {first_writer}"
                )
        shard = shard_of(entry["shard"])
        if shard.writer != writer:
            raise ValueError(
                f"writer {writer} states a shard of writer {shard.writer} of the table {name}, "
                "expected its own"
            )
        shards.append(shard)
    check_cover(name, [shard.buckets for shard in shards])
    link = Link(generation, save, tuple(shards))
    shape = Shape(first["dim"], first["slots"])
    links = (link, *_older(name, link, shape, base))
    clock, rows, counted = (
        [int(entry[key]) for entry in stated.values()] for key in ("clock", "rows", "counted")
    )
    return TableEntry(name, shape, first["config"], max(clock), sum(rows), sum(counted), links)


def _older(name: str, link: Link, shape: Shape, base: TableEntry | None) -> tuple[Link, ...]:
    """The links of the base that the new one does not hide."""
    if all(shard.since == -1 for shard in link.shards):
        return ()
    if base is None or base.shape != shape:
        found = "none" if base is None else f"one of {base.shape}"
        raise ValueError(
            f"the table {name} is written as what changed, expected a table of {shape} in the "
            f"generation in force, found {found}"
        )
    chain = pieces((link, *base.links))
    used = [older for older, own in zip(base.links, chain[1:], strict=True) if own]
    return tuple(used)
