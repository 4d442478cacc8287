"""Saving by all ranks of a process group, for `windeck.checkpoint.save`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from windeck._core import crc32c
from windeck.checkpoint.background import BackgroundSave
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.chunks import iter_chunks
from windeck.checkpoint.format.manifests import check_tag
from windeck.checkpoint.maintenance import Retain, remove_old
from windeck.checkpoint.process_group import RankGroup
from windeck.checkpoint.sharded_saving import merge_open_store, write_shard
from windeck.checkpoint.stores import Store
from windeck.checkpoint.stores.urls import opened, takes_parts, takes_turns
from windeck.checkpoint.tables.writing import TablesWriter, check_tables_of_modules
from windeck.checkpoint.write.commits import CHUNK_BYTES, SaveOptions
from windeck.checkpoint.write.copies import LentTensors, copy_tensors, start_writing
from windeck.checkpoint.write.incremental import read_base_values
from windeck.checkpoint.write.local_state import LocalState
from windeck.checkpoint.write.plans import Plan, begin, discard
from windeck.columns.dtypes import dtype_name

__all__ = ["assign_writers", "save_in_group"]


#: A tensor's name and one of its boxes.
_Key: TypeAlias = tuple[str, Box]


def save_in_group(
    store: Store | str,
    group: Any,
    given: Mapping[str, Any],
    embeddings: Mapping[str, Any] | None,
    options: SaveOptions,
    verify_replicated: bool,
    retain: Retain | None = None,
    tag: str | None = None,
    *,
    background: bool = False,
    background_bytes: int | None = None,
) -> int | BackgroundSave:
    """Save on all ranks of a group, for `windeck.checkpoint.save`.

    `retain` is made of `keep` and `keep_every`; the others are as for `save`.
    """
    ranks = RankGroup(group)
    with ExitStack() as stack:
        shared = {**options._asdict(), "tag": tag, "background": background}
        state, tables, exchanged = _exchange_state(
            ranks, stack, store, given, embeddings, options, shared
        )
        _check_equal_options([found["options"] for found in exchanged])
        holders = _find_holders([found["inventory"] for found in exchanged])
        if verify_replicated:
            _check_replicas(ranks, state, holders)
        writers = assign_writers(holders, ranks.count)
        exclusive = any(found["exclusive"] for found in exchanged)

        def is_chosen(name: str, box: Box) -> bool:
            return writers[name, box] == ranks.rank

        def write(lent: LentTensors | None, remember: Callable[[int], None]) -> int:
            shard = partial(
                write_shard, writer=own.rank, state=state, is_chosen=is_chosen, tables=tables,
                lent=lent,
            )  # fmt: skip
            return _write_in_group(own, store, options, exclusive, shard, retain, tag, remember)

        own = ranks
        if not background:
            return write(None, tables.remember)
        own = RankGroup(_background_group(group))
        copies = list[Any]()
        ranks.run_on_all(
            lambda: copies.extend(
                copy_tensors(state.tensors, is_chosen=is_chosen, most=background_bytes)
            )
        )
        lent, memory = copies
        return start_writing(options.step, write, lent, memory, tables, stack)


def _write_in_group(
    ranks: RankGroup,
    store: Store | str,
    options: SaveOptions,
    exclusive: bool,
    write: Callable[..., None],
    retain: Retain | None,
    tag: str | None,
    remember: Callable[[int], None],
) -> int:
    """Write and commit, and remove old generations; return the generation.

    Parameters
    ----------
    exclusive
        Whether only one process at a time can open the store.
    write
        `write_shard` without the store, the plan and `base_values`.
    remember
        Called with the save's number when all ranks have written.
    """
    with ExitStack() as stack:
        place = store

        def start() -> dict[str, Any]:
            nonlocal place
            place = stack.enter_context(opened(store))
            return asdict(begin(place, writers=ranks.count, **options._asdict()))

        plan = Plan(**ranks.run_on_first(start))
        try:
            base_values = None
            if plan.incremental and exclusive:
                base_values = _share_base_values(ranks, lambda: _opened_store(place), plan)
            ranks.run_on_all(lambda: write(place, plan, base_values=base_values))
            remember(plan.save)

            def commit() -> int:
                generation = merge_open_store(_opened_store(place), plan, tag=tag, retain=retain)
                if retain is not None:
                    remove_old(_opened_store(place), retain, plan.namespace)
                return generation

            generation = ranks.run_on_first(commit)
        except BaseException:
            if ranks.rank == 0:
                with suppress(Exception):  # gc removes it too
                    discard(_opened_store(place), plan)
            raise
        return generation


#: A group for background saves by the group that `save` is given.
_background_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _background_group(group: Any) -> Any:
    """Return a group of the same ranks for collectives of background threads. Collective once.

    Collectives of one group have to be called in the same order on all ranks, which a thread beside
    training does not keep. The group is of gloo, whose connections are independent of others.
    """
    found = _background_groups.get(group)
    if found is None:
        found = _background_groups[group] = dist.new_group(
            dist.get_process_group_ranks(group), backend="gloo", use_local_synchronization=True
        )
    return found


def _exchange_state(
    ranks: RankGroup,
    stack: ExitStack,
    store: Store | str,
    given: Mapping[str, Any],
    embeddings: Mapping[str, Any] | None,
    options: SaveOptions,
    shared: Mapping[str, Any],
) -> tuple[LocalState, TablesWriter, list[dict[str, Any]]]:
    """Return this rank's state and tables, and descriptions of all ranks' states.

    `stack` closes the tables; `shared` are options to be compared.
    """
    held: list[tuple[LocalState, TablesWriter]] = []

    def describe() -> dict[str, Any]:
        options.check()
        if shared["tag"] is not None:
            check_tag(shared["tag"])
        state = LocalState(given)
        check_tables_of_modules(given, embeddings, "saved")
        held.append((state, stack.enter_context(TablesWriter(embeddings))))
        _check_reachable(store, ranks)
        exclusive = isinstance(store, str) and takes_turns(store)
        inventory = _describe_state(state)
        return {"options": dict(shared), "inventory": inventory, "exclusive": exclusive}

    exchanged = ranks.run_on_all(describe)
    return (*held[0], exchanged)


def _opened_store(place: Store | str) -> Store:
    assert not isinstance(place, str)
    return place


def _share_base_values(
    ranks: RankGroup, get_store: Callable[[], Store], plan: Plan
) -> dict[bytes, bytes]:
    """Return on all ranks the values of the base that rank 0 reads, which has the store open."""

    def read() -> dict[str, str]:
        # As characters of a byte each: most of it is text.
        found = read_base_values(get_store(), plan)
        return {key.decode(): value.decode("latin-1") for key, value in found.items()}

    found = ranks.run_on_first(read)
    return {key.encode(): value.encode("latin-1") for key, value in found.items()}


def _check_reachable(store: Store | str, ranks: RankGroup) -> None:
    """Raise a ValueError if this rank cannot write to the store of rank 0."""
    if ranks.rank == 0 or (isinstance(store, str) and takes_parts(store)):
        return
    with opened(store) as place:
        if not place.facts.shared:
            raise ValueError(
                f"rank {ranks.rank} was given {place.url}, which no other process can open, "
                "expected a store that all ranks reach, or the URL of a RocksDB or LevelDB"
            )


def _describe_state(state: LocalState) -> list[Any]:
    """Return for each tensor its name, its dtype, bytes of one element, and its boxes."""
    return [
        [
            name,
            dtype_name(local.dtype),
            local.dtype.itemsize,
            [[list(side) for side in piece.box] for piece in local.pieces],
        ]
        for name, local in state.tensors.items()
    ]


def _check_equal_options(options: Sequence[Mapping[str, Any]]) -> None:
    for name, first in options[0].items():
        for rank, found in enumerate(options):
            if found[name] != first:
                raise ValueError(
                    f"`{name}` must be the same on all ranks, got {first!r} on rank 0 and "
                    f"{found[name]!r} on rank {rank}"
                )


def _find_holders(inventories: list[list[Any]]) -> dict[_Key, tuple[int, list[int]]]:
    """Return the bytes of each box of each tensor, and the ranks that hold it."""
    found: dict[_Key, tuple[int, list[int]]] = {}
    for rank, inventory in enumerate(inventories):
        for name, _, width, boxes in inventory:
            for sides in boxes:
                box = tuple((first, end) for first, end in sides)
                size = width * math.prod(shape_of(box))
                found.setdefault((name, box), (size, []))[1].append(rank)
    return found


def assign_writers(holders: Mapping[_Key, tuple[int, list[int]]], ranks: int) -> dict[_Key, int]:
    """Assign each box to a rank: the holder with the least bytes so far, largest boxes first.

    The result is the same on all ranks: boxes of equal size are sorted by name and place, and of
    ranks with equal bytes the lowest is chosen.

    Examples
    --------
    >>> a, b, c = ("a", ((0, 9),)), ("b", ((0, 5),)), ("c", ((0, 3),))
    >>> assign_writers({a: (9, [0, 1]), b: (5, [0, 1]), c: (3, [0, 1])}, 2) == {a: 0, b: 1, c: 1}
    True
    """
    load, found = [0] * ranks, dict[_Key, int]()
    order = sorted(holders.items(), key=lambda item: (len(item[1][1]) > 1, -item[1][0], item[0]))
    for key, (size, holding) in order:
        rank = min(holding, key=lambda rank: (load[rank], rank))
        load[rank] += size
        found[key] = rank
    return found


def _check_replicas(
    ranks: RankGroup, state: LocalState, holders: Mapping[_Key, tuple[int, list[int]]]
) -> None:
    """Raise a ValueError on all ranks if copies of a box differ in their bytes."""
    shared = [key for key, (_, holding) in holders.items() if len(holding) > 1]
    if not shared:
        return
    own = {
        (name, piece.box): piece.tensor
        for name, local in state.tensors.items()
        for piece in local.pieces
    }
    sums = ranks.run_on_all(lambda: [_checksum(own[key]) if key in own else None for key in shared])
    for i, (name, _) in enumerate(shared):
        holding = [(rank, found[i]) for rank, found in enumerate(sums) if found[i] is not None]
        for rank, found in holding[1:]:
            if found != holding[0][1]:
                raise ValueError(
                    f"{name} is not the same on ranks {holding[0][0]} and {rank}, expected equal "
                    "bytes: save different tensors under different names; verify_replicated=False "
                    "keeps that of one rank"
                )


def _checksum(tensor: torch.Tensor) -> int:
    total = 0
    for data in iter_chunks(tensor, CHUNK_BYTES):
        total = crc32c(data, total)
    return total
