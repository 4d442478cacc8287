"""Both ends of a save: a number nobody else has, and the compare-and-set that shows it all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from windeck._core import crc32c
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.catalogs import as_lines
from windeck.checkpoint.format.manifests import Commit, encode_head, read_head
from windeck.checkpoint.format.references import bases_of
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError, Store

__all__ = ["commit", "conflict", "give_way", "refuse_committed", "reserve"]


def reserve(store: Store, namespace: str, commits: Sequence[Commit]) -> int:
    """A number no other save has or will get, even one that goes on at the same time.

    Parameters
    ----------
    commits
        What HEAD keeps, from `read_head`.
    """
    key, label = keys.next_generation(namespace), Label(Kind.NEXT)
    while True:
        was = store.get(key)
        number = 1 + max((commit.generation for commit in commits), default=0)
        if was is not None:
            number = max(number, _number(key, decode(key, was, label, length=8)))
        value = encode(label, (number + 1).to_bytes(8, "little"))
        if store.compare_and_set(key, was, value):
            return number


def commit(
    store: Store,
    namespace: str,
    manifest: Mapping[str, Any],
    *,
    generation: int,
    save: int,
    step: int,
    head: tuple[bytes | None, Sequence[Commit]],
) -> Commit:
    """Write the manifest of data that are durable already, then set HEAD to it.

    Parameters
    ----------
    generation, save, step
        Of the save: its number from `reserve`, its random number, what the user called it.
    head
        What `read_head` gave when the save began.

    Raises
    ------
    RuntimeError
        When another save was committed since; the data of this one are removed.
    """
    payload = as_lines(manifest)
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(f"the manifest has {len(payload):,} bytes, expected fewer tensors")
    value = encode(Label(Kind.MANIFEST, generation, save), payload)
    store.put_many([(keys.manifest(namespace, generation), value)])
    store.sync()
    bases = bases_of(manifest, generation)
    now = Commit(generation, save, step, time.time(), len(value), crc32c(value), bases)
    key, (was, commits) = keys.head(namespace), head
    while not store.compare_and_set(key, was, encode_head([now, *commits])):
        # A HEAD that only forgot old generations is no conflict.
        former, (was, commits) = commits, read_head(store, namespace)
        if commits[:1] != former[:1]:
            refuse_committed(namespace, generation, commits)
            give_way(store, namespace, generation)
            raise RuntimeError(conflict(namespace, step, commits))
    store.sync()
    return now


def give_way(store: Store, namespace: str, generation: int) -> None:
    """Remove all of a generation that will not be committed."""
    for prefix in keys.of_generation(namespace, generation):
        store.delete_range(prefix)


def refuse_committed(namespace: str, generation: int, commits: Sequence[Commit]) -> None:
    """RuntimeError for a generation that HEAD keeps: somebody else committed the same save."""
    if generation in {found.generation for found in commits}:
        raise RuntimeError(
            f"generation {generation} of {namespace} was committed already, expected a save that "
            "was not"
        )


def conflict(namespace: str, step: int, commits: Sequence[Commit]) -> str:
    """What to say when HEAD is not what it was."""
    found = "HEAD was removed"
    if commits:
        found = f"generation {commits[0].generation} of step {commits[0].step} was"
    return (
        f"step {step} was not committed to {namespace}, {found} meanwhile: "
        "expected HEAD to stay as it was when this save began; is there a second writer?"
    )


def _number(key: bytes, payload: memoryview) -> int:
    number = int.from_bytes(payload, "little")
    if number >= 1 << 62:
        raise CorruptStoreError(f"{key.decode()} says {number}, expected a number of a generation")
    return number
