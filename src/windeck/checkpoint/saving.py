"""A save by several writers: each writes its shard, one merges them and commits."""

from __future__ import annotations

import json
import secrets
import struct
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.keys import PartName, drop_parts, has_parts, list_parts
from windeck.checkpoint.format.manifests import (
    LONGEST_CHAIN,
    Commit,
    encode_json,
    encode_manifest,
    find_bases,
    parse_manifest,
    read_head,
)
from windeck.checkpoint.format.values import HEADER_BYTES, Kind, Label, decode, encode
from windeck.checkpoint.stores import CorruptStoreError, Store, write_part
from windeck.checkpoint.stores.protocol import Values
from windeck.checkpoint.stores.urls import opened, retry_while_open, takes_parts
from windeck.checkpoint.tables.writing import Exports
from windeck.checkpoint.write.incremental import Base, find_base
from windeck.checkpoint.write.merging import merged
from windeck.checkpoint.write.plans import (
    CHUNK_BYTES,
    Plan,
    begin,
    check_options,
    conflict,
    discard,
    finish,
    refuse_committed,
)
from windeck.checkpoint.write.shards import Shard, State, shard_on

__all__ = ["CHUNK_BYTES", "merge", "merge_in", "save", "save_shard", "write_shard"]


#: To wait for a store that one process at a time can open, to look at the save in force.
WAIT_SECONDS = 10.0


def save_shard(
    store: Store | str,
    plan: Plan,
    *,
    writer: int,
    model: Any = None,
    optimizer: Any = None,
    embeddings: Mapping[str, Any] | None = None,
    loader: Any = None,
    extra: Any = None,
) -> None:
    """Save what one writer has of a step.

    Parameters
    ----------
    store
        An open store; or its URL. Parts are written beside RocksDB and LevelDB then, which `merge`
        takes in; they are opened only to look at the last save, if the plan is incremental.
    plan
        From `begin`.
    writer
        The number of this writer, from 0; no other may have it.
    model, optimizer, loader, extra
        As for `save`. Of a DTensor, this rank's shard is written, once where there are replicas;
        of a `Partition`, what is in it. A plain tensor is written whole: give it to one writer.
        Numbers and text have to be the same with all writers that have them.
    embeddings
        Embedding tables by name, with the buckets that are this writer's. Where the
        plan is incremental, and the last save that was merged had the same of them, only what
        changed is written.

    Warns
    -----
    RuntimeWarning
        When an incremental save finds the last one damaged, or a LevelDB, which one process at a
        time can open, held by another for ten seconds. Then all is written.

    Raises
    ------
    TypeError, ValueError
        For state that cannot be kept; a number no writer of the plan has; one that has saved.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Notes
    -----
    O(bytes) time; memory of a few chunks. Nothing is visible, and no other process is asked.
    Replicas of a DTensor are trusted to be equal.
    """
    check_writer(plan, writer)
    given = {"model": model, "optimizer": optimizer, "loader": loader, "extra": extra}
    with Exports(embeddings) as tables:
        write_shard(store, plan, writer, State(given), tables=tables)
        tables.committed(plan.save)


def merge(store: Store | str, plan: Plan) -> int:
    """Make one checkpoint of what the writers of a plan saved, and put it in force.

    Parameters
    ----------
    store
        As for `save`.
    plan
        From `begin`.

    Returns
    -------
    int
        The generation committed. Durable when this returns.

    Raises
    ------
    ValueError
        For a writer that did not finish, or saved twice, or by another plan; tensors that overlap
        or have gaps; anything that is not the same with two writers. It names the tensor, the
        writers, what was found and what was expected. HEAD is as it was, and so are the shards: a
        writer that is missing may still save.
    RuntimeError
        When another save was committed since this one began, or this one was.
    OSError
        `CorruptStoreError` for what is damaged, and what stores raise.

    Notes
    -----
    O(tensors x writers): what they say of their data is read, not the data.
    """
    with opened(store) as place:
        return merge_in(place, plan)


def check_writer(plan: Plan, writer: int) -> None:
    """TypeError or ValueError for a writer that a plan does not have."""
    if type(writer) is not int:
        raise TypeError(f"writer is of type {type(writer).__name__}, expected int")
    if not 0 <= writer < plan.writers:
        raise ValueError(f"writer is {writer}, expected 0 to {plan.writers - 1} as planned")


def write_shard(
    store: Store | str,
    plan: Plan,
    writer: int,
    state: State,
    chosen: Callable[[str, Box], bool] | None = None,
    tables: Exports | None = None,
    told: Values | None = None,
) -> None:
    """Write a shard in the way the store has for it, durably.

    `told` is what `base_values` gave to a process that has the store open, where others cannot.
    """

    def shard(look: Callable[[], Base | None]) -> Shard:
        base = None
        if plan.incremental:
            base = look() if told is None else find_base(told, plan)
        return shard_on(base, plan, writer, state, chosen, tables)

    if isinstance(store, str) and takes_parts(store):
        _write_parts(store, shard(partial(_look, store, plan)))
        return
    with opened(store) as place:
        _write(place, shard(partial(find_base, place, plan)))


def _look(url: str, plan: Plan) -> Base | None:
    """Open a store only to find the base in it, in turns where one process at a time can."""

    def look() -> Base | None:
        with opened(url, reading=True) as place:
            return find_base(place, plan)

    try:
        return retry_while_open(look, seconds=WAIT_SECONDS)
    except BlockingIOError as error:
        warnings.warn(f"{error.strerror}: all is written anew", RuntimeWarning, stacklevel=2)
        return None


def _write_parts(url: str, shard: Shard) -> None:
    plan, attempt, kinds = shard.plan, secrets.token_hex(4), ""

    def name(kind: str) -> str:
        numbers = plan.generation, plan.save, shard.writer
        return PartName.of(plan.namespace, *numbers, attempt, kind).text

    for kind, items in shard.loads():
        write_part(url, name(kind), items)
        kinds += kind
    write_part(url, name(f"s{kinds}"), [_pair(shard.plan, shard.writer, shard.manifest())])


def _write(store: Store, shard: Shard) -> None:
    plan, writer = shard.plan, shard.writer
    key, begun = _pair(plan, writer, {"plan": plan.digest, "begun": secrets.token_hex(8)})
    # Nobody else writes under this writer's keys from here on.
    if not store.compare_and_set(key, None, begun):
        raise ValueError(
            f"writer {writer} saved its shard of generation {plan.generation} already, or began "
            "to, expected each writer once"
        )
    try:
        shard.write(store)
        store.sync()
        store.put_many([_pair(plan, writer, shard.manifest())])
        store.sync()
    except Exception:
        store.delete_many([key])  # so it may try again
        raise


def _pair(plan: Plan, writer: int, said: Mapping[str, Any]) -> tuple[bytes, bytes]:
    label = Label(Kind.SHARD, plan.generation, plan.save, part=writer)
    return keys.shard(plan.namespace, plan.generation, writer), encode(label, encode_json(said))


def merge_in(store: Store, plan: Plan) -> int:
    """`merge`, in a store that is open."""
    commits = read_head(store, plan.namespace)[1]
    refuse_committed(plan.namespace, plan.generation, commits)
    if (commits[0].generation if commits else 0) != plan.base:
        discard(store, plan)
        raise RuntimeError(conflict(plan.namespace, plan.step, commits))
    _take_in(store, plan)
    names = [keys.shard(plan.namespace, plan.generation, n) for n in range(plan.writers)]
    found = [_shard(plan, n, store.get(key)) for n, key in enumerate(names)]
    missing = [str(n) for n, shard in enumerate(found) if "begun" in shard]
    if missing:
        raise ValueError(
            f"of {plan.writers} writers of generation {plan.generation} (step {plan.step}), "
            f"{', '.join(missing)} did not save, or did not finish: expected all of them"
        )
    _refuse_more(store, plan)
    base = find_base(store, plan) if plan.incremental else None
    try:
        manifest = merged(found, plan, base.tables if base else None)
        # What nobody could read is not put in force: a writer may say anything.
        bases = find_bases(manifest, plan.generation)
        now = Commit(plan.generation, plan.save, plan.step, 0.0, 0, 0, bases)
        parse_manifest(encode_manifest(manifest), now)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError) as error:
        where = keys.shard(plan.namespace, plan.generation, 0)[:-9].decode()
        raise CorruptStoreError(f"what lies under {where} is no shards: {error!r}") from error
    generation = finish(store, plan, manifest)
    with suppress(OSError):  # committed it is; gc tries again
        drop_parts(store, _own(plan, list_parts(store, plan.namespace, unfinished=True)))
    return generation


def _own(plan: Plan, names: list[PartName]) -> list[PartName]:
    return [name for name in names if (name.generation, name.save) == (plan.generation, plan.save)]


def _take_in(store: Store, plan: Plan) -> None:
    """The parts of all writers, if each has one attempt that was finished."""
    names = _own(plan, list_parts(store, plan.namespace))
    if not names or not has_parts(store):
        return
    done: dict[int, PartName] = {}
    for name in names:
        if not name.kind.startswith("s"):
            continue
        key = keys.shard(plan.namespace, plan.generation, name.writer)
        if done.setdefault(name.writer, name) is not name or store.get(key) is not None:
            raise ValueError(
                f"writer {name.writer} saved its shard of generation {plan.generation} twice, "
                "expected each writer once"
            )
    taken = []
    for last in done.values():
        own = [last, *(last._replace(kind=kind) for kind in last.kind[1:])]
        for name in own:
            if name not in names:
                raise CorruptStoreError(
                    f"the part {name.text} is missing, expected it since writer {name.writer} "
                    "finished its shard"
                )
        taken += own
    store.ingest_parts([name.text for name in taken])


def _shard(plan: Plan, writer: int, value: bytes | None) -> dict[str, Any]:
    """What a writer says it wrote, compared with the plan; ``{"begun": ...}`` of one that does not
    say so yet."""
    if value is None:
        return {"begun": ""}
    key = keys.shard(plan.namespace, plan.generation, writer)
    # The save's number may be another: then its plan was, which is an error of its own.
    save = struct.unpack_from("<Q", value, 32)[0] if len(value) >= HEADER_BYTES else plan.save
    payload = decode(key, value, Label(Kind.SHARD, plan.generation, save, part=writer))
    try:
        found = json.loads(bytes(payload))
        said = {name: found.get(name) for name in ("plan", "step", "writer")}
    except (AttributeError, RecursionError, ValueError) as error:
        raise CorruptStoreError(f"{key.decode()} cannot be read: {error}") from error
    if found.get("begun") and (save, said["plan"]) == (plan.save, plan.digest):
        return {"begun": found["begun"]}
    for name, was, expected in (
        ("step", said["step"], plan.step),
        ("digest", said["plan"], plan.digest),
        ("save", save, plan.save),
        ("writer", said["writer"], writer),
    ):
        if was != expected:
            raise ValueError(
                f"writer {writer} saved generation {plan.generation} by another plan: found {name} "
                f"{was}, expected {name} {expected}"
            )
    if type(found.get("tensors")) is not list or type(found.get("trees")) is not dict:
        raise CorruptStoreError(f"{key.decode()} cannot be read: expected tensors and trees in it")
    return dict(found)


def _refuse_more(store: Store, plan: Plan) -> None:
    """ValueError for a shard of a writer the plan does not have."""
    prefix = keys.shard(plan.namespace, plan.generation, 0)[:-8]
    after = keys.shard(plan.namespace, plan.generation, plan.writers - 1) + b"\0"
    if not store.facts.ordered:  # a scan looks at every key there is: the next numbers will do
        some = [prefix + b"%08x" % n for n in range(plan.writers, plan.writers + 64)]
        more = [key for key, value in zip(some, store.get_many(some), strict=True) if value]
    else:
        more = list(store.keys(prefix, start=after))[:1]
    if more:
        raise ValueError(
            f"writer {int(more[0][-8:], 16)} saved a shard of generation {plan.generation}, "
            f"expected 0 to {plan.writers - 1} as planned"
        )


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
        See `windeck.checkpoint.stores.protocol`. The checkpoint that was in force still is; if what
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
        from windeck.checkpoint.process_group import save_in_group

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
