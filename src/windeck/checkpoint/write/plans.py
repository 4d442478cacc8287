"""Both ends of a save: a number nobody else has, and the compare-and-set that shows it all."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windeck._core import crc32c
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.keys import drop_parts, list_parts
from windeck.checkpoint.format.manifests import (
    LONGEST_CHAIN,
    Commit,
    encode_head,
    encode_json,
    encode_manifest,
    find_bases,
    read_head,
)
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.stores.urls import opened

__all__ = [
    "CHUNKS",
    "CHUNK_BYTES",
    "LEAST_BYTES",
    "Plan",
    "begin",
    "check_chain",
    "check_numbers",
    "check_options",
    "commit",
    "conflict",
    "discard",
    "finish",
    "give_way",
    "refuse_committed",
    "reserve",
]


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
    payload = encode_manifest(manifest)
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(f"the manifest has {len(payload):,} bytes, expected fewer tensors")
    value = encode(Label(Kind.MANIFEST, generation, save), payload)
    store.put_many([(keys.manifest(namespace, generation), value)])
    store.sync()
    bases = find_bases(manifest, generation)
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
    for prefix in keys.generation_prefixes(namespace, generation):
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


#: Bytes of a chunk, unless asked otherwise.
CHUNK_BYTES = 1 << 20
#: A tensor that several writers share is cut into this many chunks or more, so that whoever reads
#: it in other parts reads little more than its own; but not into smaller ones than that.
CHUNKS = 64
LEAST_BYTES = 16 << 10
#: What one writer has is cut where 8, 4 or 2 ranks would cut its rows, unless parts are smaller.
EVEN_BYTES = 512 << 10
_LIMITS = {
    "generation": (1, (1 << 62) - 1),
    "save": (0, (1 << 63) - 1),
    "step": (0, (1 << 63) - 1),
    "writers": (1, 1 << 24),
    "chunk_bytes": (16, 64 << 20),
    "base": (0, (1 << 62) - 1),
}


@dataclass(frozen=True)
class Plan:
    """What all writers of one save have to know; made by `begin`.

    It goes to them in any way: ``dataclasses.asdict(plan)`` is fit for JSON, ``Plan(**found)``
    makes it again.

    Attributes
    ----------
    generation, save
        The number of the save, which no other has, and a random one.
    step
        What the user called it.
    writers
        How many there are; they are numbered from 0.
    namespace, chunk_bytes
        As given to `begin`.
    base
        The generation in force when the save began; 0 for none.
    incremental, longest_chain
        As given to `begin`.
    digest
        Of all the others: a plan that was changed on the way is a ValueError.
    """

    generation: int
    save: int
    step: int
    writers: int
    namespace: str
    chunk_bytes: int
    base: int
    incremental: bool = False
    longest_chain: int = LONGEST_CHAIN
    digest: str = ""

    def __post_init__(self) -> None:
        check_numbers({name: getattr(self, name) for name in _LIMITS})
        check_chain(self.incremental, self.longest_chain)
        keys.check_namespace(self.namespace)
        said = {name: value for name, value in asdict(self).items() if name != "digest"}
        digest = hashlib.blake2b(encode_json(said), digest_size=16).hexdigest()
        if self.digest not in ("", digest):
            raise ValueError(
                f"the digest of a plan is {self.digest!r}, expected {digest!r} of what it says: "
                "it was changed after begin made it"
            )
        object.__setattr__(self, "digest", digest)

    def chunk_bytes_of(self, shape: Sequence[int], width: int) -> int:
        """Bytes of a chunk of a tensor: the same on all writers, by the shape of the whole alone.

        Parameters
        ----------
        shape, width
            Of the whole tensor; bytes of an element.
        """
        if self.writers == 1:
            return _even_chunk(shape, width, self.chunk_bytes)
        share = math.prod(shape) * width // CHUNKS
        return min(self.chunk_bytes, max(LEAST_BYTES, 1 << max(0, share.bit_length() - 1)))


def _even_chunk(shape: Sequence[int], width: int, most: int) -> int:
    """Bytes of a chunk that ends where 2, 4 or 8 ranks cut the rows, so that each reads its own.

    As few chunks as make such parts; `most` where rows do not divide, or parts would be small.
    """
    size = math.prod(shape)
    for parts in (8, 4, 2):
        part = size // parts
        if shape and shape[0] % parts == 0 and part * width >= EVEN_BYTES:
            least = -(-part * width // most)
            for count in range(least, 2 * least + 1):
                if part % count == 0:
                    return part // count * width
    return most


def check_options(
    *, step: int, namespace: str, chunk_bytes: int, incremental: bool, longest_chain: int
) -> None:
    """TypeError or ValueError for options of a save that cannot be ones."""
    keys.check_namespace(namespace)
    check_numbers({"step": step, "chunk_bytes": chunk_bytes})
    check_chain(incremental, longest_chain)


def check_numbers(given: Mapping[str, Any]) -> None:
    """TypeError or ValueError for a number of a plan that cannot be one."""
    for name, value in given.items():
        low, high = _LIMITS[name]
        if type(value) is not int:
            raise TypeError(f"{name} is of type {type(value).__name__}, expected int")
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}, expected {low} to {high}")


def check_chain(incremental: Any, longest_chain: Any) -> None:
    """TypeError or ValueError for options of incremental saves that cannot be ones."""
    if type(incremental) is not bool:
        raise TypeError(f"incremental is of type {type(incremental).__name__}, expected bool")
    if type(longest_chain) is not int:
        raise TypeError(f"longest_chain is of type {type(longest_chain).__name__}, expected int")
    if not 0 <= longest_chain <= 1000:
        raise ValueError(f"longest_chain is {longest_chain}, expected 0 to 1000")


def begin(
    store: Store | str,
    *,
    step: int,
    writers: int,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
    incremental: bool = False,
    longest_chain: int = LONGEST_CHAIN,
) -> Plan:
    """Begin a save by several writers, who need not know each other.

    Each then calls `save_shard` with the plan and a number of its own, and when all have returned,
    somebody calls `merge`. See docs/sharded.md.

    Parameters
    ----------
    store
        An open store, or the URL of one.
    step
        What `log` shows beside the generation.
    writers
        How many processes write; those that own nothing are not counted.
    namespace, chunk_bytes, incremental, longest_chain
        See `save`.

    Raises
    ------
    TypeError, ValueError
        For an argument that cannot be one.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Notes
    -----
    O(1). Nothing but the next number is written.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> store = checkpoint.stores.open_store("memory://")
    >>> plan = checkpoint.begin(store, step=100, writers=2)
    >>> for writer in range(2):
    ...     rows, first = torch.full((2, 3), writer), (2 * writer, 0)
    ...     part = checkpoint.Partition(rows, offset=first, shape=(4, 3))
    ...     checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
    >>> checkpoint.merge(store, plan)
    1
    >>> checkpoint.open(store).row("model/w", 2)
    tensor([1, 1, 1])
    """
    check_options(
        step=step, namespace=namespace, chunk_bytes=chunk_bytes, incremental=incremental,
        longest_chain=longest_chain,
    )  # fmt: skip
    check_numbers({"writers": writers})
    with opened(store) as place:
        _, commits = read_head(place, namespace)
        generation = reserve(place, namespace, commits)
        base = commits[0].generation if commits else 0
        save = secrets.randbits(63)
        return Plan(
            generation, save, step, writers, namespace, chunk_bytes, base, incremental,
            longest_chain,
        )  # fmt: skip


def finish(store: Store, plan: Plan, manifest: Mapping[str, Any]) -> int:
    """Put a save in force whose data are durable; its generation.

    Raises
    ------
    RuntimeError
        When another one was since this one began; the data of this one are removed then.
    """
    head = read_head(store, plan.namespace)
    in_force = head[1][0].generation if head[1] else 0
    if in_force != plan.base:
        discard(store, plan)
        raise RuntimeError(conflict(plan.namespace, plan.step, head[1]))
    commit(
        store, plan.namespace, manifest,
        generation=plan.generation, save=plan.save, step=plan.step, head=head,
    )  # fmt: skip
    return plan.generation


def discard(store: Store, plan: Plan) -> None:
    """Remove what was written for a save that will not be committed."""
    refuse_committed(plan.namespace, plan.generation, read_head(store, plan.namespace)[1])
    give_way(store, plan.namespace, plan.generation)
    left = list_parts(store, plan.namespace, unfinished=True)
    drop_parts(store, [part for part in left if part.save == plan.save])
