"""Saving of the state of one process: `save`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, overload

from windeck._util.options import explain_options
from windeck.checkpoint.background import BackgroundSave, settle
from windeck.checkpoint.format.manifests import LONGEST_CHAIN, check_tag
from windeck.checkpoint.maintenance import Retain, check_keep, remove_old, select_kept
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.writing import TablesWriter, check_tables_of_modules
from windeck.checkpoint.write.commits import (
    CHUNK_BYTES,
    SaveOptions,
    begin_save,
    commit_manifest,
    plain_step,
)
from windeck.checkpoint.write.copies import (
    LentTensors,
    check_background,
    copy_tensors,
    start_writing,
)
from windeck.checkpoint.write.incremental import read_base
from windeck.checkpoint.write.local_state import LocalState, StateWriter
from windeck.checkpoint.write.merging import merge_tables

__all__ = ["save"]


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
    chunk_bytes: int = 1048576,
    incremental: bool = False,
    longest_chain: int = 8,
    keep: int | None = None,
    keep_every: int | None = None,
    tag: str | None = None,
    takeover: bool = False,
    lower_step: bool = False,
    group: Any = None,
    verify_replicated: bool = True,
    background: Literal[False] = False,
) -> int: ...


@explain_options  # type: ignore[misc]  # mypy does not compare it with `options` of the first
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
        refer to the others; see the guide on incremental saves.
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
        0 it may be an open store. See the guide on sharded saves.
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
    options = SaveOptions(
        step, namespace, chunk_bytes, incremental, longest_chain, takeover, lower_step
    )
    most = check_background(background, background_bytes)
    retain = None
    if keep is not None:
        check_keep(keep, keep_every)
        retain = partial(select_kept, keep=keep, keep_every=keep_every)
    elif keep_every is not None:
        raise ValueError(f"`keep_every` needs `keep`, got {keep_every!r} alone")
    if group is not None:
        from windeck.checkpoint.group_saving import save_in_group

        return save_in_group(
            store, group, given, embeddings, options, verify_replicated, retain, tag,
            background=background, background_bytes=most,
        )  # fmt: skip
    options.check()
    if tag is not None:
        check_tag(tag)
    state = LocalState(given, alone=True)
    check_tables_of_modules(given, embeddings, "saved")
    with ExitStack() as stack:
        tables = stack.enter_context(TablesWriter(embeddings))

        def write(lent: LentTensors | None, remember: Callable[[int], None]) -> int:
            return _write_and_commit(store, state, tables, lent, retain, tag, options, remember)

        if background:
            lent, memory = copy_tensors(state.tensors, most=most)
            return start_writing(step, write, lent, memory, tables, stack)
        return write(None, tables.remember)


def _write_and_commit(
    store: Store | str,
    state: LocalState,
    tables: TablesWriter,
    lent: LentTensors | None,
    retain: Retain | None,
    tag: str | None,
    options: SaveOptions,
    remember: Callable[[int], None],
) -> int:
    """Write and commit the state of one process, remove old generations; return the generation.

    Parameters
    ----------
    lent
        Tensors to be written first, and then released.
    retain
        Returns the generations that HEAD keeps; the others are removed.
    remember
        Called with the save's number after the commit, before anything is removed.
    """
    step, namespace, chunk_bytes, incremental, longest_chain, takeover, lower_step = options
    with opened(store) as place:
        begun = begin_save(place, namespace, step, takeover=takeover, lower_step=lower_step)
        base = None
        if incremental and begun.head.commits:
            base = read_base(place, namespace, begun.head.commits[0], longest_chain)
        writer = StateWriter(
            namespace, begun.generation, begun.save, state, chunk_bytes=chunk_bytes,
            incremental=incremental, base=base, tables=tables, lent=lent,
        )  # fmt: skip
        writer.write(place)
        manifest = {"chunk_bytes": chunk_bytes, "tensors": writer.entries(), "trees": state.trees}
        if tables:
            merged = merge_tables(
                [(0, writer.table_entries())], generation=begun.generation, save=begun.save,
                base=base.tables if base else {},
            )  # fmt: skip
            manifest["tables"] = [table.as_json() for table in merged]
        head = commit_manifest(place, begun, manifest, tag=tag, retain=retain)
        remember(begun.save)
        if retain is not None:
            remove_old(place, retain, namespace, head=head)
        return begun.generation
