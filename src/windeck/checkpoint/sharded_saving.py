"""Saving of checkpoints by many writers: `save_shard` for each of them, then one `merge`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from windeck._util.options import explain_options
from windeck._util.warning import warn
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.keys import PartName, drop_parts, has_parts, list_parts
from windeck.checkpoint.format.manifests import check_manifest, check_tag, encode_json
from windeck.checkpoint.format.values import Kind, Label, decode, encode, save_of
from windeck.checkpoint.maintenance import Retain
from windeck.checkpoint.stores import CorruptStoreError, Store, write_part
from windeck.checkpoint.stores.protocol import Values, follow_writes, order_writes
from windeck.checkpoint.stores.urls import opened, retry_while_open, takes_parts
from windeck.checkpoint.tables.writing import TablesWriter, check_tables_of_modules
from windeck.checkpoint.write.copies import LentTensors
from windeck.checkpoint.write.incremental import BaseSave, find_base
from windeck.checkpoint.write.local_state import LocalState, StateWriter
from windeck.checkpoint.write.merging import merge_shards
from windeck.checkpoint.write.plans import Plan, check_base, finish

__all__ = ["merge", "merge_open_store", "save_shard", "write_shard"]


@explain_options
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
    check_tables_of_modules(given, embeddings, "saved")
    with TablesWriter(embeddings) as tables:
        write_shard(store, plan, writer, LocalState(given), tables=tables)
        tables.remember(plan.save)


@explain_options
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
        As for `StateWriter`.
    base_values
        The result of `read_base_values` in a process that has the store open; None: the store is
        opened here.
    """

    def make(find: Callable[[], BaseSave | None]) -> StateWriter:
        base = None
        if plan.incremental:
            base = find() if base_values is None else find_base(base_values, plan)
        return StateWriter(
            plan.namespace, plan.generation, plan.save, state,
            chunk_bytes=plan.chunk_bytes, writer=writer, writers=plan.writers,
            is_chosen=is_chosen, incremental=plan.incremental, base=base, tables=tables, lent=lent,
        )  # fmt: skip

    if isinstance(store, str) and takes_parts(store):
        values = make(partial(_find_base_at_url, store, plan))
        _write_parts(store, plan, writer, state, values)
        return
    with opened(store) as place:
        values = make(partial(find_base, place, plan))
        _write_into_store(place, plan, writer, state, values)


def describe_shard(
    plan: Plan, writer: int, state: LocalState, values: StateWriter
) -> dict[str, Any]:
    """Return the manifest of a writer, after its values were written."""
    found: dict[str, Any] = {
        "plan": plan.digest,
        "step": plan.step,
        "writer": writer,
        "tensors": values.entries(),
        "trees": state.trees,
    }
    tables = values.table_entries()
    return {**found, "tables": tables} if tables else found


def _find_base_at_url(url: str, plan: Plan) -> BaseSave | None:
    """Open a store to find the base in it; wait if one process at a time can open it."""

    def find() -> BaseSave | None:
        with opened(url, reading=True) as place:
            return find_base(place, plan)

    try:
        return retry_while_open(find)
    except BlockingIOError as error:
        warn(f"{error.strerror}: everything is written", RuntimeWarning)
        return None


def _write_parts(url: str, plan: Plan, writer: int, state: LocalState, values: StateWriter) -> None:
    attempt, kinds = secrets.token_hex(4), ""

    def name(kind: str) -> str:
        numbers = plan.generation, plan.save, writer
        return PartName.of(plan.namespace, *numbers, attempt, kind).text

    for kind, items in values.bulk_loads():
        write_part(url, name(kind), items)
        kinds += kind
    manifest = describe_shard(plan, writer, state, values)
    write_part(url, name(f"s{kinds}"), [_encode_shard(plan, writer, manifest)])


def _write_into_store(
    store: Store, plan: Plan, writer: int, state: LocalState, values: StateWriter
) -> None:
    begun = {"plan": plan.digest, "begun": secrets.token_hex(8)}
    key, reserved = _encode_shard(plan, writer, begun)
    # Reserves this writer's keys: no other process writes under them from here on.
    if not store.compare_and_set(key, None, reserved):
        raise ValueError(
            f"writer {writer} saved its shard of generation {plan.generation} already, or began "
            "to, expected each writer once"
        )
    try:
        values.write(store)
        order_writes(store, before=key)
        manifest = describe_shard(plan, writer, state, values)
        _, value = _encode_shard(plan, writer, manifest)
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


def _encode_shard(plan: Plan, writer: int, manifest: Mapping[str, Any]) -> tuple[bytes, bytes]:
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
