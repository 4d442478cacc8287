"""What a generation needs of older ones: how far that may go, and what may be taken away.

A chunk that did not change is not written again: the manifest refers to where it lies. References
are never chained, they name the save that wrote the data. The generations referred to are the
`bases` of a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from windeck.checkpoint import keys
from windeck.checkpoint.entries import Entry
from windeck.checkpoint.manifests import Commit, read_manifest
from windeck.checkpoint.stores import Store, View
from windeck.checkpoint.tables.links import TableEntry

__all__ = ["LONGEST_CHAIN", "Span", "bases_of", "may_grow", "needed_by", "thin"]

#: Generations a save may be based on, unless asked otherwise.
LONGEST_CHAIN = 8
#: Keys removed at once.
_BATCH = 1000


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


def thin(
    store: Store, namespace: str, generation: int, needed: Iterable[Span], *, dry_run: bool = False
) -> bool:
    """Remove what is not needed of a generation that HEAD has forgotten.

    Parameters
    ----------
    needed
        Of this generation.
    dry_run
        Remove nothing, only look.

    Returns
    -------
    bool
        Whether there was anything to be removed.
    """
    key, spans = keys.manifest(namespace, generation), sorted(needed)
    found = store.get(key) is not None
    if found and not dry_run:
        store.delete_many([key])  # first: without it, there is no generation
    for letter in keys.LETTERS[1:]:
        prefix = f"{namespace}/{letter}/{generation:016x}/".encode()
        held = [_range(prefix, span) for span in spans if span.letter == letter]
        gaps = _sought(store, prefix, held) if store.facts.ordered else _listed(store, prefix, held)
        for gap in gaps:
            found = True
            if dry_run:
                return True
            if isinstance(gap, tuple):
                store.delete_range(prefix, start=gap[0], stop=gap[1])
            else:
                store.delete_many(gap)
    return found


def _range(prefix: bytes, span: Span) -> tuple[bytes, bytes]:
    """The first key of a span, and the one after its last."""
    last = (span.item + 1, 0) if span.stop is None else (span.item, span.stop)
    ends = (span.item, span.first), last
    first, stop = (prefix + b"%08x/%08x/%08x" % (span.writer, *end) for end in ends)
    return first, stop


def _sought(
    store: Store, prefix: bytes, held: Sequence[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Ranges of keys between the ranges held, if there is any key in them."""
    at: bytes | None = None
    for first, stop in [*held, (None, None)]:
        if at is None or first is None or at < first:
            found = next(iter(store.keys(prefix, start=at, stop=first)), None)
            if found is not None:
                yield found, first
        at = stop if at is None or stop is None else max(at, stop)


def _listed(
    store: Store, prefix: bytes, held: Sequence[tuple[bytes, bytes]]
) -> Iterator[list[bytes]]:
    """Keys outside the ranges held, where looking for one means looking at all of them."""
    place, batch = 0, []
    for key in store.keys(prefix):
        while place < len(held) and held[place][1] <= key:
            place += 1
        if place == len(held) or key < held[place][0]:
            batch.append(key)
    yield from (batch[at : at + _BATCH] for at in range(0, len(batch), _BATCH))
