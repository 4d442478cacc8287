"""The plan of a save: its generation number, its options, and its commit by compare-and-set."""

from __future__ import annotations

import hashlib
import math
import numbers
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windeck._core import crc32c
from windeck._util.validation import check_format
from windeck.checkpoint.background import settle
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.keys import drop_parts, list_parts
from windeck.checkpoint.format.manifests import (
    LONGEST_CHAIN,
    Commit,
    Head,
    encode_head,
    encode_json,
    encode_manifest,
    encode_next,
    find_bases,
    is_known_save,
    move_tag,
    parse_next,
    read_head,
    remember_save,
)
from windeck.checkpoint.format.values import LARGEST_PAYLOAD, Kind, Label, encode
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.protocol import order_writes
from windeck.checkpoint.stores.urls import opened

__all__ = [
    "CHUNK_BYTES",
    "MIN_CHUNKS",
    "MIN_CHUNK_BYTES",
    "Plan",
    "begin",
    "check_base",
    "check_numbers",
    "check_options",
    "commit_manifest",
    "create_head",
    "discard",
    "finish",
    "plain_step",
    "reserve_generation",
]


def reserve_generation(store: Store, namespace: str, commits: Sequence[Commit]) -> int:
    """Reserve a generation number that no other save has or gets, even a concurrent one.

    Parameters
    ----------
    commits
        The generations that HEAD keeps, from `read_head`.
    """
    key = keys.next_generation(namespace)
    while True:
        was = store.get(key)
        newest = max((commit.generation for commit in commits), default=0)
        number = max(newest + 1, parse_next(namespace, was) or 0)
        if store.compare_and_set(key, was, encode_next(number + 1)):
            return number


def commit_manifest(
    store: Store,
    namespace: str,
    manifest: Mapping[str, Any],
    *,
    generation: int,
    save: int,
    step: int,
    head: Head,
    tag: str | None = None,
    retain: Callable[[list[Commit]], list[Commit]] | None = None,
) -> Commit:
    """Write the manifest of data that are written already, then set HEAD to it, durably.

    Parameters
    ----------
    generation, save, step
        Of the save: its number from `reserve_generation`, its random number, and the user's step.
    head
        The result of `read_head` when the save began.
    tag
        A tag to move to this generation in the same write of HEAD.
    retain
        Returns of all generations those that HEAD keeps, in the same write; None: all of them.

    Raises
    ------
    RuntimeError
        When another save was committed since; the data of this one are removed.
    """
    payload = encode_manifest(manifest)
    if len(payload) > LARGEST_PAYLOAD:
        raise ValueError(
            f"the manifest has {len(payload):,} bytes, expected at most {LARGEST_PAYLOAD:,}: save "
            "fewer tensors"
        )
    value = encode(Label(Kind.MANIFEST, generation, save), payload)
    store.put_many([(keys.manifest(namespace, generation), value)])
    key = keys.head(namespace)
    order_writes(store, before=key)
    bases = find_bases(manifest, generation)
    now = Commit(generation, save, step, time.time(), len(value), crc32c(value), bases)
    while True:
        commits = [now, *head.commits]
        if tag is not None:
            commits = move_tag(commits, tag, generation)
        if retain is not None:
            commits = retain(commits)
        if store.compare_and_set(key, head.value, encode_head(commits)):
            break
        # A HEAD of which only old generations or tags were changed is no conflict.
        former, head = head, read_head(store, namespace)
        _check_uncommitted(namespace, generation, head)
        if _in_force(head) != _in_force(former):
            _remove_generation(store, namespace, generation)
            raise RuntimeError(_conflict_message(namespace, step, head.commits))
    store.sync()
    return now


def _in_force(head: Head) -> tuple[int, int] | None:
    """Return the generation and the save in force; None for none."""
    return (head.commits[0].generation, head.commits[0].save) if head.commits else None


def _remove_generation(store: Store, namespace: str, generation: int) -> None:
    for prefix in keys.generation_prefixes(namespace, generation):
        store.delete_range(prefix)


def _check_uncommitted(namespace: str, generation: int, head: Head) -> None:
    """Raise a RuntimeError for a generation that is committed already, or was removed by `gc`."""
    if generation in {found.generation for found in head.commits}:
        raise RuntimeError(
            f"generation {generation} of {namespace} was committed already, expected a save that "
            "was not"
        )
    if generation <= head.removed:
        raise RuntimeError(
            f"generation {generation} of {namespace} was removed by gc during the save, before the "
            "first commit: save again"
        )


def _conflict_message(namespace: str, step: int, commits: Sequence[Commit]) -> str:
    """Return the error message for a HEAD that changed during a save."""
    found = "HEAD was removed"
    if commits:
        found = f"generation {commits[0].generation} of step {commits[0].step} was"
    return (
        f"step {step} was not committed to {namespace}, {found} meanwhile: "
        "expected HEAD to stay as it was when this save began; is there a second writer?"
    )


#: Default bytes of a chunk.
CHUNK_BYTES = 1 << 20
#: A tensor that several writers share is cut into at least this many chunks, so that a reader of
#: other parts reads little more than its own, but not into chunks below `MIN_CHUNK_BYTES`.
MIN_CHUNKS = 64
MIN_CHUNK_BYTES = 16 << 10
#: A tensor of a single writer is cut where 8, 4 or 2 ranks would cut its rows, unless the parts
#: are smaller than this.
_MIN_EVEN_BYTES = 512 << 10
_LIMITS = {
    "generation": (1, (1 << 62) - 1),
    "save": (0, (1 << 63) - 1),
    "step": (0, (1 << 63) - 1),
    "writers": (1, 1 << 24),
    "chunk_bytes": (16, 64 << 20),
    "base": (0, (1 << 62) - 1),
    "longest_chain": (0, 1000),
}


#: Format of a plan, in its fields.
_FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """The parameters of a save that all its writers share; made by `begin`.

    Send it to the writers in any way: ``dataclasses.asdict(plan)`` can be written as JSON, and
    ``Plan(**found)`` restores it.

    Attributes
    ----------
    format
        1: the writers and the process that merges have to be of the same format.
    generation, save
        Number of the save, which no other save has, and a random number.
    step
        The user's step.
    writers
        Number of writers; they are numbered from 0.
    namespace, chunk_bytes
        As given to `begin`.
    base
        The generation in force when the save began; 0 for none.
    incremental, longest_chain
        As given to `begin`.
    digest
        Hash of all other fields: a plan that was changed on the way is a ValueError.
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
    format: int = _FORMAT
    digest: str = ""

    def __post_init__(self) -> None:
        check_format("the plan", self.format, _FORMAT)
        check_numbers({name: getattr(self, name) for name in _LIMITS})
        _check_bool("incremental", self.incremental)
        keys.check_namespace(self.namespace)
        fields = {name: value for name, value in asdict(self).items() if name != "digest"}
        digest = hashlib.blake2b(encode_json(fields), digest_size=16).hexdigest()
        if self.digest not in ("", digest):
            raise ValueError(
                f"the digest of a plan is {self.digest!r}, expected {digest!r} for its fields: "
                "it was changed after begin made it"
            )
        object.__setattr__(self, "digest", digest)

    def chunk_bytes_of(self, shape: Sequence[int], width: int) -> int:
        """Return the bytes of a chunk of a tensor, which are the same for all writers.

        Parameters
        ----------
        shape, width
            Of the whole tensor; bytes of an element.
        """
        if self.writers == 1:
            return _even_chunk_bytes(shape, width, self.chunk_bytes)
        share = math.prod(shape) * width // MIN_CHUNKS
        return min(self.chunk_bytes, max(MIN_CHUNK_BYTES, 1 << max(0, share.bit_length() - 1)))


def _even_chunk_bytes(shape: Sequence[int], width: int, max_bytes: int) -> int:
    """Return bytes of chunks that end where 2, 4 or 8 ranks cut the rows.

    Each rank then reads only its own rows. The number of chunks is the least that makes such parts;
    the result is `max_bytes` if the rows do not divide or the parts would be small.
    """
    size = math.prod(shape)
    for parts in (8, 4, 2):
        part = size // parts
        if shape and shape[0] % parts == 0 and part * width >= _MIN_EVEN_BYTES:
            least = -(-part * width // max_bytes)
            for count in range(least, 2 * least + 1):
                if part % count == 0:
                    return part // count * width
    return max_bytes


def check_options(
    *,
    step: int,
    namespace: str,
    chunk_bytes: int,
    incremental: bool,
    longest_chain: int,
    takeover: bool,
    lower_step: bool,
) -> None:
    """Raise a TypeError or ValueError for invalid options of a save."""
    keys.check_namespace(namespace)
    check_numbers({"step": step, "chunk_bytes": chunk_bytes, "longest_chain": longest_chain})
    for name, value in (
        ("incremental", incremental),
        ("takeover", takeover),
        ("lower_step", lower_step),
    ):
        _check_bool(name, value)


def plain_step(step: Any) -> Any:
    """Return a step that is an integer of NumPy as an int; other values as they are."""
    is_number = isinstance(step, numbers.Integral) and not isinstance(step, bool)
    return int(step) if is_number else step


def check_numbers(given: Mapping[str, Any]) -> None:
    """Raise a TypeError or ValueError for an invalid number of a plan.

    Only `int` itself is accepted, since plans are hashed and sent as JSON.
    """
    for name, value in given.items():
        low, high = _LIMITS[name]
        if type(value) is not int:
            raise TypeError(f"`{name}` must be an int, got {type(value).__name__}")
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise ValueError(f"`{name}` must be {bound}, got {value}")


def _check_bool(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise TypeError(f"`{name}` must be a bool, got {type(value).__name__}")


def begin(
    store: Store | str,
    *,
    step: int,
    writers: int,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
    incremental: bool = False,
    longest_chain: int = LONGEST_CHAIN,
    takeover: bool = False,
    lower_step: bool = False,
) -> Plan:
    """Begin a save by several writers, which need no connection to each other.

    Each writer calls `save_shard` with the plan and its own number. When all have returned, one
    process calls `merge`. See docs/sharded.md.

    Parameters
    ----------
    store
        An open store, or the URL of one.
    step
        The step that `log` shows beside the generation.
    takeover, lower_step
        See `save`.
    writers
        Number of processes that write; processes that own nothing are not counted.
    namespace, chunk_bytes, incremental, longest_chain
        See `save`.

    Raises
    ------
    TypeError, ValueError
        For an invalid argument, or a step below that of the checkpoint in force.
    RuntimeError
        When another run saved the checkpoint in force.
    Exception
        The error of the last background save, unless it was raised before.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Notes
    -----
    O(1) time. Only the next generation number is written, and an empty HEAD before the first save.

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
    settle()
    step = plain_step(step)
    check_options(
        step=step, namespace=namespace, chunk_bytes=chunk_bytes, incremental=incremental,
        longest_chain=longest_chain, takeover=takeover, lower_step=lower_step,
    )  # fmt: skip
    check_numbers({"writers": writers})
    with opened(store) as place:
        commits = create_head(place, namespace).commits
        if commits:
            _check_order(namespace, commits[0], step, takeover, lower_step)
        generation = reserve_generation(place, namespace, commits)
        base = commits[0].generation if commits else 0
        save = secrets.randbits(63)
        remember_save(save)
        return Plan(
            generation, save, step, writers, namespace, chunk_bytes, base, incremental,
            longest_chain,
        )  # fmt: skip


def create_head(store: Store, namespace: str) -> Head:
    """Return HEAD, and write an empty one first if the namespace has none.

    From then on HEAD exists, so that its absence beside a manifest is damage.
    """
    head = read_head(store, namespace)
    while head.value is None:
        store.compare_and_set(keys.head(namespace), None, encode_head([]))
        order_writes(store)
        head = read_head(store, namespace)
    return head


def _check_order(namespace: str, last: Commit, step: int, takeover: bool, lower_step: bool) -> None:
    """Raise an error for a save that does not continue from the checkpoint in force."""
    if not (takeover or is_known_save(last.save)):
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(last.time))
        raise RuntimeError(
            f"generation {last.generation} (step {last.step}, {when}) of {namespace} was saved by "
            "another run, expected one that this run saved or loaded: load it to continue from it, "
            "or pass takeover=True to save after it; is there a second writer?"
        )
    if step < last.step and not lower_step:
        raise ValueError(
            f"`step` must be at least {last.step}, the step of the checkpoint of {namespace} in "
            f"force, got {step}: pass lower_step=True to go back"
        )


def finish(
    store: Store,
    plan: Plan,
    manifest: Mapping[str, Any],
    *,
    tag: str | None = None,
    retain: Callable[[list[Commit]], list[Commit]] | None = None,
) -> int:
    """Commit a save whose data are written; return its generation.

    Parameters
    ----------
    tag, retain
        As for `commit_manifest`.

    Raises
    ------
    RuntimeError
        When another save was committed since this one began; the data of this one are removed.
    """
    commit_manifest(
        store, plan.namespace, manifest,
        generation=plan.generation, save=plan.save, step=plan.step, head=check_base(store, plan),
        tag=tag, retain=retain,
    )  # fmt: skip
    return plan.generation


def check_base(store: Store, plan: Plan) -> Head:
    """Return HEAD; raise a RuntimeError, and remove a save, if another one was committed since."""
    head = read_head(store, plan.namespace)
    _check_uncommitted(plan.namespace, plan.generation, head)
    if (head.commits[0].generation if head.commits else 0) != plan.base:
        discard(store, plan)
        raise RuntimeError(_conflict_message(plan.namespace, plan.step, head.commits))
    return head


def discard(store: Store, plan: Plan) -> None:
    """Remove the data of a save that will not be committed."""
    _check_uncommitted(plan.namespace, plan.generation, read_head(store, plan.namespace))
    _remove_generation(store, plan.namespace, plan.generation)
    left = list_parts(store, plan.namespace, unfinished=True)
    drop_parts(store, [part for part in left if part.save == plan.save])
