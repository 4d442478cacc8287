"""Saving of checkpoints: `save` in one call, `save_shard` and `merge` for several writers."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Literal, overload

from windeck.checkpoint.background import BackgroundSave, settle, spare_memory, start
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.keys import PartName, drop_parts, has_parts, list_parts
from windeck.checkpoint.format.manifests import (
    LONGEST_CHAIN,
    check_manifest,
    check_tag,
    encode_json,
)
from windeck.checkpoint.format.values import Kind, Label, decode, encode, save_of
from windeck.checkpoint.maintenance import Retain, check_keep, remove_old, select_kept
from windeck.checkpoint.stores import CorruptStoreError, Store, write_part
from windeck.checkpoint.stores.protocol import Values, follow_writes, order_writes
from windeck.checkpoint.stores.urls import opened, retry_while_open, takes_parts
from windeck.checkpoint.tables.writing import TablesWriter
from windeck.checkpoint.write.copies import LentTensors, check_background, copy_tensors
from windeck.checkpoint.write.incremental import BaseSave, find_base
from windeck.checkpoint.write.merging import merge_shards
from windeck.checkpoint.write.plans import (
    CHUNK_BYTES,
    Plan,
    begin,
    check_base,
    check_options,
    finish,
    plain_step,
)
from windeck.checkpoint.write.shards import LocalState, ShardWriter

__all__ = ["CHUNK_BYTES", "merge", "merge_open_store", "save", "save_shard", "write_shard"]


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
    """Save the state of a step that one writer holds.

    Parameters
    ----------
    store
        An open store, or its URL. With the URL of a RocksDB or LevelDB, parts are written beside
        the database, which `merge` ingests; the database is opened only to read the last save, if
        the plan is incremental.
    plan
        From `begin`.
    writer
        The number of this writer, from 0; each writer has another.
    model, optimizer, loader, extra
        As for `save`. Of a DTensor the shard of this rank is written, by one rank if there are
        replicas; of a `Partition` its tensor. A plain tensor is written whole: give it to one
        writer. Numbers and text have to be equal for all writers that have them.
    embeddings
        Embedding tables by name, each with the buckets that this writer owns. If the plan is
        incremental and the tables were equal to the last merged save once, only what changed since
        is written.

    Warns
    -----
    RuntimeWarning
        When an incremental save finds the last one damaged, or finds a LevelDB, which one process
        at a time can open, held by another process for ten seconds. Everything is written then.

    Raises
    ------
    TypeError, ValueError
        For state that cannot be saved, a number that no writer of the plan has, or a writer that
        has saved already.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Notes
    -----
    O(bytes) time; memory of a few chunks. Nothing is visible before `merge`, and no communication
    with other processes is needed. Replicas of a DTensor are assumed to be equal.
    """
    _check_writer(plan, writer)
    given = {"model": model, "optimizer": optimizer, "loader": loader, "extra": extra}
    with TablesWriter(embeddings) as tables:
        write_shard(store, plan, writer, LocalState(given), tables=tables)
        tables.remember(plan.save)


def merge(store: Store | str, plan: Plan, *, tag: str | None = None) -> int:
    """Merge what the writers of a plan saved into one checkpoint, and commit it.

    Parameters
    ----------
    store
        As for `save`.
    plan
        From `begin`.
    tag
        As for `save`.

    Returns
    -------
    int
        The generation committed. It is durable when this returns.

    Raises
    ------
    ValueError
        For a writer that did not finish, or saved twice, or with another plan; for tensors that
        overlap or have gaps; for values that differ between writers. The message names the tensor,
        the writers, what was found and what was expected. HEAD and the shards are unchanged, so a
        missing writer may still save.
    RuntimeError
        When another save was committed since this one began, or this one was.
    OSError
        `CorruptStoreError` for damaged values, and errors of the store.

    Notes
    -----
    O(tensors x writers) time: the writers' manifests are read, not their data.
    """
    if tag is not None:
        check_tag(tag)
    with opened(store) as place:
        return merge_open_store(place, plan, tag=tag)


def _check_writer(plan: Plan, writer: int) -> None:
    if type(writer) is not int:
        raise TypeError(f"`writer` must be an int, got {type(writer).__name__}")
    if not 0 <= writer < plan.writers:
        raise ValueError(f"`writer` must be in 0 to {plan.writers - 1} as planned, got {writer}")


def write_shard(
    store: Store | str,
    plan: Plan,
    writer: int,
    state: LocalState,
    *,
    is_chosen: Callable[[str, Box], bool] | None = None,
    tables: TablesWriter | None = None,
    lent: LentTensors | None = None,
    base_values: Values | None = None,
) -> None:
    """Write a shard durably, into the store or as parts beside it.

    Parameters
    ----------
    store, plan, writer
        As for `save_shard`.
    state, is_chosen, tables, lent
        As for `ShardWriter`.
    base_values
        The result of `read_base_values` in a process that has the store open; None: the store is
        opened here.
    """

    def make(find: Callable[[], BaseSave | None]) -> ShardWriter:
        base = None
        if plan.incremental:
            base = find() if base_values is None else find_base(base_values, plan)
        return ShardWriter(
            plan, writer, state, is_chosen=is_chosen, base=base, tables=tables, lent=lent
        )

    if isinstance(store, str) and takes_parts(store):
        _write_parts(store, make(partial(_find_base_at_url, store, plan)))
        return
    with opened(store) as place:
        _write_into_store(place, make(partial(find_base, place, plan)))


def _find_base_at_url(url: str, plan: Plan) -> BaseSave | None:
    """Open a store to find the base in it; wait if one process at a time can open it."""

    def find() -> BaseSave | None:
        with opened(url, reading=True) as place:
            return find_base(place, plan)

    try:
        return retry_while_open(find)
    except BlockingIOError as error:
        warnings.warn(f"{error.strerror}: everything is written", RuntimeWarning, stacklevel=2)
        return None


def _write_parts(url: str, shard: ShardWriter) -> None:
    plan, attempt, kinds = shard.plan, secrets.token_hex(4), ""

    def name(kind: str) -> str:
        numbers = plan.generation, plan.save, shard.writer
        return PartName.of(plan.namespace, *numbers, attempt, kind).text

    for kind, items in shard.bulk_loads():
        write_part(url, name(kind), items)
        kinds += kind
    write_part(url, name(f"s{kinds}"), [_encode_manifest(plan, shard.writer, shard.manifest())])


def _write_into_store(store: Store, shard: ShardWriter) -> None:
    plan, writer = shard.plan, shard.writer
    begun = {"plan": plan.digest, "begun": secrets.token_hex(8)}
    key, reserved = _encode_manifest(plan, writer, begun)
    # Reserves this writer's keys: no other process writes under them from here on.
    if not store.compare_and_set(key, None, reserved):
        raise ValueError(
            f"writer {writer} saved its shard of generation {plan.generation} already, or began "
            "to, expected each writer once"
        )
    try:
        shard.write(store)
        order_writes(store, before=key)
        _, value = _encode_manifest(plan, writer, shard.manifest())
        if not store.compare_and_set(key, reserved, value):
            raise RuntimeError(
                f"the data of writer {writer} of generation {plan.generation} were removed while "
                "it saved, expected no gc and no merge of this save meanwhile"
            )
        order_writes(store)
    except BaseException:
        with suppress(OSError):
            store.delete_many([key])  # so that the writer may try again
        raise


def _encode_manifest(plan: Plan, writer: int, manifest: Mapping[str, Any]) -> tuple[bytes, bytes]:
    label = Label(Kind.SHARD, plan.generation, plan.save, part=writer)
    return keys.shard(plan.namespace, plan.generation, writer), encode(label, encode_json(manifest))


def merge_open_store(
    store: Store,
    plan: Plan,
    *,
    tag: str | None = None,
    retain: Retain | None = None,
) -> int:
    """Do as `merge`, in a store that is open; `retain` returns the generations that HEAD keeps."""
    follow_writes(store)
    check_base(store, plan)
    _ingest_parts(store, plan)
    names = [keys.shard(plan.namespace, plan.generation, n) for n in range(plan.writers)]
    found = [_parse_shard(plan, n, store.get(key)) for n, key in enumerate(names)]
    missing = [str(n) for n, shard in enumerate(found) if "begun" in shard]
    if missing:
        raise ValueError(
            f"of {plan.writers} writers of generation {plan.generation} (step {plan.step}), "
            f"{', '.join(missing)} did not save, or did not finish: expected all of them"
        )
    _check_no_extra_writers(store, plan)
    base = find_base(store, plan) if plan.incremental else None
    try:
        manifest = merge_shards(found, plan, base.tables if base else None)
        # Writers' manifests are not trusted: parse the result before it is committed.
        check_manifest(manifest, plan.generation, plan.save)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError) as error:
        prefix = keys.shard(plan.namespace, plan.generation, 0)[:-9].decode()
        raise CorruptStoreError(
            f"the values under {prefix} cannot be read as shards: {error!r}"
        ) from error
    generation = finish(store, plan, manifest, tag=tag, retain=retain)
    with suppress(OSError):  # the save is committed; gc tries again
        drop_parts(store, _parts_of_plan(plan, list_parts(store, plan.namespace, unfinished=True)))
    return generation


def _parts_of_plan(plan: Plan, names: list[PartName]) -> list[PartName]:
    return [name for name in names if (name.generation, name.save) == (plan.generation, plan.save)]


def _ingest_parts(store: Store, plan: Plan) -> None:
    """Ingest the parts of all writers; check that each writer finished one attempt only."""
    names = _parts_of_plan(plan, list_parts(store, plan.namespace))
    if not names or not has_parts(store):
        return
    finished: dict[int, PartName] = {}
    for name in names:
        if not name.kind.startswith("s"):
            continue
        key = keys.shard(plan.namespace, plan.generation, name.writer)
        if finished.setdefault(name.writer, name) is not name or store.get(key) is not None:
            raise ValueError(
                f"writer {name.writer} saved its shard of generation {plan.generation} twice, "
                "expected each writer once"
            )
    data = [one._replace(kind=kind) for one in finished.values() for kind in one.kind[1:]]
    for name in data:
        if name not in names:
            raise CorruptStoreError(
                f"the part {name.text} is missing, expected it since writer {name.writer} "
                "finished its shard"
            )
    try:  # data first: a writer whose manifest is there is complete
        store.ingest_parts([name.text for name in (*data, *finished.values())])
    except BaseException:
        with suppress(OSError):  # so that the merge may be called again, with the parts left
            left = {part.writer for part in _parts_of_plan(plan, list_parts(store, plan.namespace))
                    if part.kind.startswith("s")}  # fmt: skip
            store.delete_many(keys.shard(plan.namespace, plan.generation, one) for one in left)
        raise


def _parse_shard(plan: Plan, writer: int, value: bytes | None) -> dict[str, Any]:
    """Parse a writer's manifest and compare it with the plan.

    The result has ``"begun"`` if the writer did not finish.
    """
    if value is None:
        return {"begun": ""}
    key = keys.shard(plan.namespace, plan.generation, writer)
    # The save's number in the header is compared below, for a message of its own.
    found_save = save_of(value)
    save = plan.save if found_save is None else found_save
    payload = decode(key, value, Label(Kind.SHARD, plan.generation, save, part=writer))
    try:
        found = json.loads(bytes(payload))
        fields = {name: found.get(name) for name in ("plan", "step", "writer")}
    except (AttributeError, RecursionError, ValueError) as error:
        raise CorruptStoreError(f"{key.decode()} cannot be read: {error}") from error
    if found.get("begun") and (save, fields["plan"]) == (plan.save, plan.digest):
        return {"begun": found["begun"]}
    for name, was, expected in (
        ("step", fields["step"], plan.step),
        ("digest", fields["plan"], plan.digest),
        ("save", save, plan.save),
        ("writer", fields["writer"], writer),
    ):
        if was != expected:
            raise ValueError(
                f"writer {writer} saved generation {plan.generation} with another plan: found "
                f"{name} {was}, expected {name} {expected}"
            )
    if type(found.get("tensors")) is not list or type(found.get("trees")) is not dict:
        raise CorruptStoreError(f"{key.decode()} cannot be read: expected tensors and trees in it")
    return dict(found)


def _check_no_extra_writers(store: Store, plan: Plan) -> None:
    """Raise a ValueError for the shard of a writer that the plan does not have."""
    prefix = keys.shard(plan.namespace, plan.generation, 0)[:-8]
    after = keys.shard(plan.namespace, plan.generation, plan.writers - 1) + b"\0"
    if not store.facts.ordered:  # a scan would read all keys, so only the next numbers are tried
        some = [prefix + b"%08x" % n for n in range(plan.writers, plan.writers + 64)]
        more = [key for key, value in zip(some, store.get_many(some), strict=True) if value]
    else:
        more = list(store.keys(prefix, start=after))[:1]
    if more:
        raise ValueError(
            f"writer {int(more[0][-8:], 16)} saved a shard of generation {plan.generation}, "
            f"expected 0 to {plan.writers - 1} as planned"
        )


@overload
def save(store: Store | str, *, background: Literal[True], **options: Any) -> BackgroundSave: ...


@overload
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
    keep: int | None = None,
    keep_every: int | None = None,
    tag: str | None = None,
    takeover: bool = False,
    lower_step: bool = False,
    group: Any = None,
    verify_replicated: bool = True,
    background: Literal[False] = False,
) -> int: ...


def save(  # type: ignore[misc]  # mypy does not compare it with `options` of the first
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
    keep: int | None = None,
    keep_every: int | None = None,
    tag: str | None = None,
    takeover: bool = False,
    lower_step: bool = False,
    group: Any = None,
    verify_replicated: bool = True,
    background: bool = False,
    background_bytes: float | str | None = None,
) -> int | BackgroundSave:
    """Save the state of a step in one commit.

    Parameters
    ----------
    store
        An open store; or the URL of one, which is opened during the call.
    step
        The step that `log` shows beside the generation.
    model, optimizer, loader
        State: a dict of dicts, lists and tuples of tensors, numbers, text, bool and None; or an
        object with a `state_dict()` that returns one. Tensors may have any dtype, shape and
        strides, on any device; tensors with the same memory are stored once.
    embeddings
        Embedding tables by name, saved as they are when this is called: training may go on.
    extra
        Anything else that belongs to the step, of the same types.
    namespace
        Prefix of all keys, so that a store can hold many checkpoints.
    chunk_bytes
        Maximum bytes of one value; 16 up to 64 MiB.
    incremental
        Write only the chunks that changed since the last save, if that was incremental too, and
        refer to the others; see docs/incremental.md.
    longest_chain
        Write everything if the save could refer to more generations than this.
    keep
        Keep this many generations, as `gc` does; None: all. The others are no longer listed with
        the commit, and their data are removed after it: the store holds one generation more during
        the save.
    keep_every
        With `keep`, also keep the generations whose step is a multiple of this.
    tag
        A tag for the generation, such as ``best``, which protects it from `gc` and `keep`. A
        generation that had this tag loses it, in the same commit; see `windeck.checkpoint.tag`.
    takeover
        Save even if another process saved the checkpoint in force, and this one did not load it.
        Pass it for the first save only. The other process is then refused at its next save.
    lower_step
        Save even if `step` is below that of the checkpoint in force.
    group
        A `torch.distributed.ProcessGroup` in which all ranks call this, each with its own state:
        DTensors; `Partition` objects; tensors that several ranks have, which are written once; and
        plain values, which have to be equal on all ranks that have them. `store` is a URL; on rank
        0 it may be an open store. See docs/sharded.md.
    verify_replicated
        In a group, compare the CRC32C of tensors that several ranks have. If False, the tensor of
        one of them is written without comparison.
    background
        Copy the tensors, and write and commit in a background thread while training goes on. What
        is saved is the state at the time of the call. The next save, to any store, and the exit of
        the interpreter wait for the end. An error is raised by the next save or by `wait`.
    background_bytes
        With `background`, maximum bytes of the copies, also as ``"2GB"``; None: the bytes of the
        tensors. Tensors that do not fit are written, uncopied, before this returns.

    Returns
    -------
    int
        The generation committed. It is durable when this returns.
    BackgroundSave
        With `background`; its ``wait()`` returns the generation.

    Raises
    ------
    TypeError, ValueError
        For state that cannot be saved, naming the place, or a `step` below that of the checkpoint
        in force; nothing was written.
    RuntimeError
        When another run saved the checkpoint in force, or another save was committed since this
        one began; that one stays in force.
    Exception
        The error of the last background save, unless it was raised before; nothing was written.
    OSError
        See `windeck.checkpoint.stores.protocol`. The former checkpoint is in force; if the error
        came after HEAD was sent, the new one may be. Either is complete.

    Warns
    -----
    RuntimeWarning
        When older generations could not be removed. The step is saved.

    Notes
    -----
    O(bytes) time; memory of a few chunks beyond the state, whatever its size. In a group, an error
    on one rank is raised on all of them, with the number of the rank.

    A background save also has memory for the copies, and for the blocks of tables (about 256 KiB
    each) that change before the table was written.

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
    settle()
    given = {"model": model, "optimizer": optimizer, "loader": loader, "extra": extra}
    step = plain_step(step)
    options: dict[str, Any] = {
        "step": step, "namespace": namespace, "chunk_bytes": chunk_bytes,
        "incremental": incremental, "longest_chain": longest_chain,
        "takeover": takeover, "lower_step": lower_step,
    }  # fmt: skip
    most = check_background(background, background_bytes)
    retain = None
    if keep is not None:
        check_keep(keep, keep_every)
        retain = partial(select_kept, keep=keep, keep_every=keep_every)
    elif keep_every is not None:
        raise ValueError(f"`keep_every` needs `keep`, got {keep_every!r} alone")
    if group is not None:
        from windeck.checkpoint.process_group import save_in_group

        return save_in_group(
            store, group, given, embeddings, options, verify_replicated, retain, tag,
            background=background, background_bytes=most,
        )  # fmt: skip
    check_options(**options)
    if tag is not None:
        check_tag(tag)
    state = LocalState(given, alone=True)
    with ExitStack() as stack:
        tables = stack.enter_context(TablesWriter(embeddings))
        write = partial(_save_alone, store, state, tables, options, retain, tag)
        if not background:
            return write(None, tables.remember)
        lent, memory = copy_tensors(state.tensors, most=most)
        return start_writing(step, write, lent, memory, tables, stack)


def _save_alone(
    store: Store | str,
    state: LocalState,
    tables: TablesWriter,
    options: Mapping[str, Any],
    retain: Retain | None,
    tag: str | None,
    lent: LentTensors | None,
    remember: Callable[[int], None],
) -> int:
    """Write and commit the state of one process.

    Parameters
    ----------
    retain
        Returns the generations that HEAD keeps; the others are removed.
    remember
        Called with the random number of the save after its commit.
    """
    with opened(store) as place:
        plan = begin(place, writers=1, **options)
        base = find_base(place, plan) if plan.incremental else None
        shard = ShardWriter(plan, 0, state, base=base, tables=tables, lent=lent)
        shard.write(place)
        manifest = merge_shards([shard.manifest()], plan, base.tables if base else None)
        finish(place, plan, manifest, tag=tag, retain=retain)
        remember(plan.save)
        if retain is not None:
            remove_old(place, retain, plan.namespace)
        return plan.generation


def start_writing(
    step: int,
    write: Callable[[LentTensors, Callable[[int], None]], int],
    lent: LentTensors,
    memory: Any,
    tables: TablesWriter,
    stack: ExitStack,
) -> BackgroundSave:
    """Start a save in a background thread; return when its lent tensors were written.

    Parameters
    ----------
    write
        Writes and commits, as `_save_alone` does with its last two arguments.
    lent, memory
        From `copy_tensors`.
    stack
        What to close after the save. It has nothing left to close when this returns.
    """
    held, committed = stack.pop_all(), list[int]()

    def run() -> int:
        try:
            with held:
                return write(lent, committed.append)
        finally:
            spare_memory.append(memory)
            with suppress(RuntimeError):
                lent.release()

    def remember() -> None:
        for save in committed:
            tables.remember(save)

    try:
        saving = start(step, run, remember, held.close)
        lent.wait()
    except BaseException:  # such as KeyboardInterrupt
        lent.abandon()
        raise
    return saving
