"""Saving: data under numbers nobody else has, then one compare-and-set that makes it visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windeck.checkpoint.format.references import LONGEST_CHAIN
from windeck.checkpoint.incremental import find_base
from windeck.checkpoint.readers.opened import opened
from windeck.checkpoint.stores import Store
from windeck.checkpoint.tables.writing import Exports
from windeck.checkpoint.writers.merging import merged
from windeck.checkpoint.writers.plans import CHUNK_BYTES, begin, check_options, finish
from windeck.checkpoint.writers.shards import shard_on
from windeck.checkpoint.writers.state import State

__all__ = ["CHUNK_BYTES", "save"]


def save(
    store: Store | str,
    *,
    step: int,
    model: Any = None,
    optimizer: Any = None,
    embeddings: Mapping[str, Any] | None = None,
    loader: Any = None,
    extra: Any = None,
    namespace: str = "windeck",
    chunk_bytes: int = CHUNK_BYTES,
    incremental: bool = False,
    longest_chain: int = LONGEST_CHAIN,
    group: Any = None,
    verify_replicated: bool = True,
) -> int:
    """Save all of a step in one commit.

    Parameters
    ----------
    store
        An open store, or the URL of one, which is opened for the time of the call.
    step
        What `log` shows beside the generation.
    model, optimizer, loader
        State: a dict of dicts, lists and tuples of tensors, numbers, text, bool and None; or an
        object with a `state_dict()` that gives such. Tensors may have any dtype, shape and strides,
        on any device; two that are the same memory are stored once.
    embeddings
        Embedding tables by name, saved as they are when this is called: training may go on.
    extra
        Whatever else belongs to the step, of the same types.
    namespace
        What all keys begin with: a store can hold many checkpoints.
    chunk_bytes
        Bytes of one value at most; 16 up to 64 MiB.
    incremental
        Write only the chunks that changed since the last save, if that was incremental too, and
        refer to the others; see docs/incremental.md.
    longest_chain
        Write all when the save could refer to more generations than that.
    group
        A `torch.distributed.ProcessGroup` all of whose ranks call this, each with what it has:
        DTensors, a `Partition`, tensors that several have, which are written once, and values,
        which have to be the same on all ranks that have them. `store` is a URL, on rank 0 maybe an
        open store. See docs/sharded.md.
    verify_replicated
        In a group: whether tensors that several ranks have are compared, by their CRC32C. Otherwise
        that of one of them is written.

    Returns
    -------
    int
        The generation committed. Durable when this returns.

    Raises
    ------
    TypeError, ValueError
        For state that cannot be kept, naming the place; nothing was written.
    RuntimeError
        When another save was committed since this one began; that one is in force.
    OSError
        See `windeck.checkpoint.stores.errors`. The checkpoint that was in force still is; if what
        failed was to hear that HEAD is set or durable, the new one may be. Either is whole.

    Notes
    -----
    O(bytes) time; memory of a few chunks beyond the state, whatever its size. In a group, what
    fails on one rank is raised on all of them, with the number of the rank.

    Examples
    --------
    >>> import torch
    >>> from windeck import checkpoint
    >>> with checkpoint.stores.open_store("memory://") as store:
    ...     checkpoint.save(store, step=100, model={"w": torch.arange(3.0)}, extra={"note": "hi"})
    ...     model = {"w": torch.zeros(3)}
    ...     loaded = checkpoint.load(store, model=model)
    1
    >>> loaded.step, loaded.extra, model["w"]
    (100, {'note': 'hi'}, tensor([0., 1., 2.]))
    """
    given = {"model": model, "optimizer": optimizer, "loader": loader, "extra": extra}
    options: dict[str, Any] = {
        "step": step, "namespace": namespace, "chunk_bytes": chunk_bytes,
        "incremental": incremental, "longest_chain": longest_chain,
    }  # fmt: skip
    if group is not None:
        from windeck.checkpoint.writers.grouping import save_in_group

        return save_in_group(store, group, given, embeddings, options, verify_replicated)
    check_options(**options)
    state = State(given, alone=True)
    with Exports(embeddings) as tables, opened(store) as place:
        plan = begin(place, writers=1, **options)
        base = find_base(place, plan) if incremental else None
        shard = shard_on(base, plan, 0, state, tables=tables)
        shard.write(place)
        place.sync()
        finish(place, plan, merged([shard.manifest()], plan, base.tables if base else None))
        tables.committed(plan.save)
        return plan.generation
