"""What a saved table is, for people; made from a manifest alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windeck.checkpoint.tables.links import TableEntry

__all__ = ["LinkInfo", "TableInfo", "info_of"]


@dataclass(frozen=True)
class LinkInfo:
    """One save's share of a table: what changed after `since`, or all where that is -1.

    Where shards differ, `since` is the least of theirs.
    """

    generation: int
    clock: int
    since: int
    rows: int
    dead: int
    bytes: int


@dataclass(frozen=True)
class TableInfo:
    """What a saved table is.

    Attributes
    ----------
    rows, counted
        Ids with a row, and ids that are only counted so far.
    bytes
        Of the values that hold it, of all links.
    slots
        Rows of the optimizer beside each embedding.
    links
        Newest first.
    """

    name: str
    dim: int
    rows: int
    counted: int
    bytes: int
    slots: int
    clock: int
    config: Any
    links: tuple[LinkInfo, ...]


def info_of(entry: TableEntry) -> TableInfo:
    """What a table of a manifest is, for people."""
    links = tuple(
        LinkInfo(
            link.generation,
            max(shard.clock for shard in link.shards),
            min(shard.since for shard in link.shards),
            *(sum(getattr(s, name) for s in link.shards) for name in ("rows", "dead", "bytes")),
        )
        for link in entry.links
    )
    return TableInfo(
        entry.name, entry.shape.dim, entry.rows, entry.counted, entry.bytes, entry.shape.slots,
        entry.clock, entry.config, links,
    )  # fmt: skip
