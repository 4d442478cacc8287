"""Saving and loading in a process group: an error on one rank is raised on all ranks."""

from __future__ import annotations

import json
import math
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from windeck._core import crc32c
from windeck._util.collectives import bytes_to_tensor, gather_bytes, gather_sizes
from windeck.checkpoint.background import BackgroundSave
from windeck.checkpoint.format.boxes import Box, shape_of
from windeck.checkpoint.format.chunks import iter_chunks
from windeck.checkpoint.format.manifests import check_tag, find_commit
from windeck.checkpoint.format.names import name_mismatch_message
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.loading import Loaded, LoadOperation
from windeck.checkpoint.maintenance import Retain, remove_old
from windeck.checkpoint.saving import merge_open_store, start_writing, write_shard
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.stores.urls import opened, takes_parts, takes_turns
from windeck.checkpoint.tables.writing import TablesWriter
from windeck.checkpoint.write.copies import LentTensors, copy_tensors
from windeck.checkpoint.write.incremental import read_base_values
from windeck.checkpoint.write.plans import CHUNK_BYTES, Plan, begin, check_options, discard
from windeck.checkpoint.write.shards import LocalState
from windeck.columns.dtypes import dtype_name

__all__ = ["RankGroup", "assign_writers", "load_in_group", "save_in_group"]


T = TypeVar("T")

#: Types that an error of another rank keeps; errors of other types become a RuntimeError.
_ERROR_TYPES: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError, ValueError, KeyError, IndexError, RuntimeError, ImportError, MemoryError,
        OverflowError, NotImplementedError, OSError, FileNotFoundError, FileExistsError,
        NotADirectoryError, PermissionError, BlockingIOError, ConnectionError, TimeoutError,
        ConnectionRefusedError, ConnectionResetError, BrokenPipeError,
    )
}  # fmt: skip


class RankGroup:
    """The processes of a group that save or load together.

    Parameters
    ----------
    group
        A `torch.distributed.ProcessGroup`.

    Raises
    ------
    ValueError
        If this process is not in the group.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
            raise ValueError(
                "this process is not in the group, expected a call by its members only: a rank "
                "that owns nothing saves nothing"
            )
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)

    def run_on_all(self, action: Callable[[], T]) -> list[T]:
        """Run an action on every rank; return all results, which have to be valid JSON.

        Every rank raises the error of the first rank that has one. Only an `Exception` is sent to
        the others. A rank that exits breaks its connections, which is a RuntimeError on the others,
        at the latest when the group's timeout expires.
        """
        result, error = _attempt(action)
        gathered = gather_bytes(_encode(result), self._group)
        results = [json.loads(zlib.decompress(data)) for data in gathered]
        for rank, found in enumerate(results):
            if "error" in found:
                raise _rebuild_error(rank, **found["error"]) from error
        return [found["value"] for found in results]

    def run_on_first(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0; return its result, or raise its error, on all ranks."""
        result, error = _attempt(action) if self.rank == 0 else (None, None)
        data = self._broadcast(_encode(result) if self.rank == 0 else b"")
        found = json.loads(zlib.decompress(data))
        if "error" in found:
            raise _rebuild_error(0, **found["error"]) from error
        value: T = found["value"]
        return value

    def run_in_turn(self, action: Callable[[], T]) -> list[T]:
        """Do as `run_on_all`, one rank after the other; after an error the others do not start."""
        found: list[Any] = []
        for turn in range(self.count):
            got = self.run_on_all(lambda turn=turn: action() if self.rank == turn else None)  # type: ignore[misc]
            found.append(got[turn])
        return found

    def _broadcast(self, data: bytes) -> bytes:
        """Return the bytes of rank 0, without the memory for those of all ranks."""
        sizes = gather_sizes(data, self._group)  # Waits for all ranks.
        found = bytes_to_tensor(data, sizes[0], self._group)
        dist.broadcast(found, dist.get_global_rank(self._group, 0), group=self._group)
        return found.cpu().numpy().tobytes()


def _attempt(action: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
    """Run an action; return its value or its error as JSON, and the error."""
    try:
        return {"value": action()}, None
    except Exception as error:
        return {"error": _describe_error(error)}, error


def _encode(result: Any) -> bytes:
    # Names of tensors are much alike, so they compress well.
    return zlib.compress(json.dumps(result, allow_nan=False).encode(), 1)


def _describe_error(error: Exception) -> dict[str, Any]:
    code = getattr(error, "errno", None)
    text = str(getattr(error, "strerror", None) or error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    kind = type(error).__name__
    return {"kind": kind, "code": code if type(code) is int else None, "text": text}


def _rebuild_error(rank: int, kind: str, code: int | None, text: str) -> Exception:
    """Return the error of a rank from its description."""
    message = f"rank {rank}: {text}"
    if kind == "CorruptStoreError":
        return CorruptStoreError(message)
    known = _ERROR_TYPES.get(kind)
    if known is None:
        if code is not None:
            return OSError(code, f"rank {rank}: {kind}: {text}")
        return RuntimeError(f"rank {rank}: {kind}: {text}")
    return (
        known(code, message) if issubclass(known, OSError) and code is not None else known(message)
    )


#: A tensor's name and one of its boxes.
_Key: TypeAlias = tuple[str, Box]


def save_in_group(
    store: Store | str,
    group: Any,
    given: Mapping[str, Any],
    embeddings: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    verify_replicated: bool,
    retain: Retain | None = None,
    tag: str | None = None,
    *,
    background: bool = False,
    background_bytes: int | None = None,
) -> int | BackgroundSave:
    """Save on all ranks of a group, for `windeck.checkpoint.save`.

    `options` are those of `begin`, `retain` is made of `keep` and `keep_every`; the others as for
    `save`.
    """
    ranks = RankGroup(group)
    with ExitStack() as stack:
        shared = {**options, "tag": tag, "background": background}
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
        return start_writing(options["step"], write, lent, memory, tables, stack)


def _write_in_group(
    ranks: RankGroup,
    store: Store | str,
    options: Mapping[str, Any],
    exclusive: bool,
    write: Callable[..., None],
    retain: Retain | None,
    tag: str | None,
    remember: Callable[[int], None],
) -> int:
    """Write and commit.

    Parameters
    ----------
    exclusive
        Whether only one process at a time can open the store.
    write
        `write_shard` without the store, the plan and `base_values`.
    remember
        Called with the random number of the save after its commit.
    """
    with ExitStack() as stack:
        place = store

        def start() -> dict[str, Any]:
            nonlocal place
            place = stack.enter_context(opened(store))
            return asdict(begin(place, writers=ranks.count, **options))

        plan = Plan(**ranks.run_on_first(start))
        try:
            base_values = None
            if plan.incremental and exclusive:
                base_values = _share_base_values(ranks, lambda: _opened_store(place), plan)
            ranks.run_on_all(lambda: write(place, plan, base_values=base_values))

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
        remember(plan.save)
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
    options: Mapping[str, Any],
    shared: Mapping[str, Any],
) -> tuple[LocalState, TablesWriter, list[dict[str, Any]]]:
    """Return this rank's state and tables, and descriptions of all ranks' states.

    `stack` closes the tables; `shared` are options to be compared.
    """
    held: list[tuple[LocalState, TablesWriter]] = []

    def describe() -> dict[str, Any]:
        check_options(**options)
        if shared["tag"] is not None:
            check_tag(shared["tag"])
        state = LocalState(given)
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


def load_in_group(
    store: Store | str,
    group: Any,
    operation: LoadOperation,
    namespace: str,
    generation: int | str | None,
) -> Loaded:
    """Load on all ranks of a group, for `windeck.checkpoint.load`.

    Ranks take turns if only one process can open the store.
    """
    ranks = RankGroup(group)
    turns = isinstance(store, str) and takes_turns(store)
    run = ranks.run_in_turn if turns else ranks.run_on_all
    loaded: list[Loaded] = []

    def find() -> int:
        with opened(store, reading=True) as place:
            return find_commit(place, namespace, generation).generation

    def compare() -> dict[str, list[str]]:
        with Checkpoint(store, namespace, number) as found:
            return operation.compare(found, alone=False)

    def read() -> None:
        with Checkpoint(store, namespace, number) as found:
            loaded.append(operation.read(found))

    number = ranks.run_on_first(find)
    try:
        unclaimed = run(compare)
        if operation.strict:
            _check_unclaimed_names(unclaimed, f"generation {number}")
        operation.unexpected = [
            name for own in _unclaimed_names(unclaimed).values() for name in own
        ]
        run(read)
        operation.commit()
    except BaseException:
        operation.roll_back()
        raise
    return loaded[0]


def _check_unclaimed_names(names: list[dict[str, list[str]]], found: str) -> None:
    """Raise a KeyError for names in the checkpoint that no rank has."""
    for root, more in _unclaimed_names(names).items():
        raise KeyError(name_mismatch_message(root, found, [], more))


def _unclaimed_names(names: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return the names in the checkpoint that no rank has, by root."""
    found = dict[str, list[str]]()
    for root in dict.fromkeys(root for roots in names for root in roots):
        lists = [set(roots[root]) for roots in names if root in roots]
        if more := set.intersection(*lists):
            found[root] = sorted(more)
    return found
