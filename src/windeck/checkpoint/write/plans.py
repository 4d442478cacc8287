"""Plans of saves by many writers: what the writers share, and the commit of what they wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from windeck._util.options import explain_options
from windeck._util.validation import check_format
from windeck.checkpoint.background import settle
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.chunks import chunk_bytes_of
from windeck.checkpoint.format.keys import drop_parts, list_parts
from windeck.checkpoint.format.manifests import (
    LONGEST_CHAIN,
    Commit,
    Head,
    encode_json,
    read_head,
)
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.write.commits import (
    CHUNK_BYTES,
    LIMITS,
    BegunSave,
    SaveOptions,
    begin_save,
    check_bool,
    check_numbers,
    check_uncommitted,
    commit_manifest,
    conflict_message,
    plain_step,
    remove_generation,
)

__all__ = ["Plan", "begin", "check_base", "discard", "finish"]


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
        check_numbers({name: getattr(self, name) for name in LIMITS})
        check_bool("incremental", self.incremental)
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
        return chunk_bytes_of(shape, width, self.chunk_bytes, self.writers)


@explain_options
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
    process calls `merge`. See the guide on sharded saves.

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
    SaveOptions(
        step, namespace, chunk_bytes, incremental, longest_chain, takeover, lower_step
    ).check()
    check_numbers({"writers": writers})
    with opened(store) as place:
        begun = begin_save(place, namespace, step, takeover=takeover, lower_step=lower_step)
    commits = begun.head.commits
    base = commits[0].generation if commits else 0
    return Plan(
        begun.generation, begun.save, step, writers, namespace, chunk_bytes, base, incremental,
        longest_chain,
    )  # fmt: skip


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
    head = check_base(store, plan)
    begun = BegunSave(plan.namespace, plan.step, plan.generation, plan.save, head)
    commit_manifest(store, begun, manifest, tag=tag, retain=retain)
    return plan.generation


def check_base(store: Store, plan: Plan) -> Head:
    """Return HEAD; raise a RuntimeError, and remove a save, if another one was committed since."""
    head = read_head(store, plan.namespace)
    check_uncommitted(plan.namespace, plan.generation, head)
    if (head.commits[0].generation if head.commits else 0) != plan.base:
        discard(store, plan)
        raise RuntimeError(conflict_message(plan.namespace, plan.step, head.commits))
    return head


def discard(store: Store, plan: Plan) -> None:
    """Remove the data of a save that will not be committed."""
    check_uncommitted(plan.namespace, plan.generation, read_head(store, plan.namespace))
    remove_generation(store, plan.namespace, plan.generation)
    left = list_parts(store, plan.namespace, unfinished=True)
    drop_parts(store, [part for part in left if part.save == plan.save])
