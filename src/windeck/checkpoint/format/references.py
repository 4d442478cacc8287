"""What a generation needs of older ones, and how far that may go.

A chunk that did not change is not written again: the manifest refers to where it lies. References
are never chained, they name the save that wrote the data. The generations referred to are the
`bases` of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.format.manifests import Commit, read_manifest
from windeck.checkpoint.format.table_entries import TableEntry
from windeck.checkpoint.stores import View

__all__ = ["LONGEST_CHAIN", "Span", "bases_of", "may_grow", "needed_by"]

#: Generations a save may be based on, unless asked otherwise.
LONGEST_CHAIN = 8


class Span(NamedTuple):
    """Values of an older generation: of one letter, one writer's item, numbers [first, stop).

    `stop` None means all from `first` on.
    """

    letter: str
    generation: int
    writer: int
    item: int
    first: int
    stop: int | None


def may_grow(in_force: Commit, longest_chain: int) -> bool:
    """Whether the next save may refer to the generation in force and its bases.

    Otherwise all is written, tensors and tables alike, and a new chain begins.

    Examples
    --------
    >>> may_grow(Commit(7, 0, 70, 0.0, 0, 0, bases=(3, 5)), 3)
    True
    >>> may_grow(Commit(7, 0, 70, 0.0, 0, 0, bases=(3, 5)), 2)
    False
    """
    return len(in_force.bases) + 1 <= longest_chain


def bases_of(manifest: Mapping[str, Any], generation: int) -> tuple[int, ...]:
    """The generations that a manifest, as JSON, refers to beside its own, ascending."""
    runs = (run for tensor in manifest["tensors"] for part in tensor["parts"]
            for run in part.get("kept", ()))  # fmt: skip
    links = (link for table in manifest.get("tables", ()) for link in table["links"])
    found = {run[2] for run in runs} | {link["generation"] for link in links}
    return tuple(sorted(found - {generation}))


def needed_by(view: View, namespace: str, commits: Iterable[Commit]) -> set[Span]:
    """What generations need of others.

    Raises
    ------
    CorruptStoreError
        For a manifest that cannot be read: then nobody knows what it needs.
    """
    needed: set[Span] = set()
    for commit in commits:
        if commit.bases:
            manifest = read_manifest(view, namespace, commit)
            needed.update(_kept(manifest["tensors"]))
            needed.update(_linked(manifest["tables"], commit.generation))
    return needed


def _kept(entries: Mapping[str, Entry]) -> Iterator[Span]:
    for entry in entries.values():
        for part in entry.parts:
            for run in part.kept:
                yield Span("t", run.generation, run.writer, run.item, run.first, run.stop)


def _linked(tables: Mapping[str, TableEntry], own: int) -> Iterator[Span]:
    """Of a table's links, all blocks of a shard and their index."""
    for table in tables.values():
        for link in table.links:
            for shard in link.shards if link.generation != own else ():
                yield Span("e", link.generation, shard.writer, shard.item, 0, None)
                yield Span("i", link.generation, shard.writer, shard.item, 0, None)
