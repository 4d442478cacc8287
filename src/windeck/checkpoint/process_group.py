"""Ranks tell each other how it went, so that what fails on one fails on all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from windeck._core import crc32c
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.chunks import cut
from windeck.checkpoint.format.manifests import find_commit
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.loading import Loaded, Loading, other_names
from windeck.checkpoint.saving import merge_in, write_shard
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.stores.opening import opened
from windeck.checkpoint.stores.urls import takes_parts, takes_turns
from windeck.checkpoint.tables.writing import Exports
from windeck.checkpoint.write.incremental import base_values
from windeck.checkpoint.write.plans import CHUNK_BYTES, Plan, begin, check_options, discard
from windeck.checkpoint.write.shards import State
from windeck.columns.dtypes import dtype_name

__all__ = ["Ranks", "assigned", "load_in_group", "save_in_group"]


T = TypeVar("T")

#: What an error of another rank may become here; others are a RuntimeError that names them.
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError, ValueError, KeyError, IndexError, RuntimeError, ImportError, MemoryError,
        OverflowError, NotImplementedError, OSError, FileNotFoundError, FileExistsError,
        NotADirectoryError, PermissionError, BlockingIOError, ConnectionError, TimeoutError,
        ConnectionRefusedError, ConnectionResetError, BrokenPipeError,
    )
}  # fmt: skip


class Ranks:
    """The processes of a group that save or load together.

    Parameters
    ----------
    group
        A `torch.distributed.ProcessGroup`.

    Raises
    ------
    ValueError
        When this process is not in the group.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
            raise ValueError(
                "this process is not in the group, expected a call by its members only: a rank "
                "that owns nothing saves nothing"
            )
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)

    def together(self, action: Callable[[], T]) -> list[T]:
        """Do something on every rank; what each gave, or on all ranks the error of the first that
        has one. What an action gives has to be fit for JSON.

        Only an `Exception` is told to the others. A rank that ends breaks its connections, which is
        a RuntimeError on the others, at the latest when the group's timeout is over.
        """
        said, error = _tried(action)
        every = [json.loads(zlib.decompress(data)) for data in self._gather(_packed(said))]
        for rank, found in enumerate(every):
            if "error" in found:
                raise _retold(rank, **found["error"]) from error
        return [found["value"] for found in every]

    def first(self, action: Callable[[], T]) -> T:
        """Do something on rank 0; what it gave, on all ranks, or its error."""
        said, error = _tried(action) if self.rank == 0 else (None, None)
        data = self._from_first(_packed(said) if self.rank == 0 else b"")
        found = json.loads(zlib.decompress(data))
        if "error" in found:
            raise _retold(0, **found["error"]) from error
        value: T = found["value"]
        return value

    def in_turn(self, action: Callable[[], T]) -> list[T]:
        """`together`, one rank after the other; after an error the others do not begin."""
        found: list[Any] = []
        for turn in range(self.count):
            got = self.together(lambda turn=turn: action() if self.rank == turn else None)  # type: ignore[misc]
            found.append(got[turn])
        return found

    def _gather(self, data: bytes) -> list[bytes]:
        """Bytes of every rank, by tensors: torch's own way for objects unpickles what comes in."""
        sizes = self._sizes(data)
        mine = self._tensor(data, max(sizes))
        every = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(every, mine, group=self._group)
        return [_bytes(found[:size]) for found, size in zip(every, sizes, strict=True)]

    def _from_first(self, data: bytes) -> bytes:
        """Bytes of rank 0, of which there may be many: all ranks' would take as much for each."""
        found = self._tensor(data, self._sizes(data)[0])  # all ranks are here once they know it
        source = dist.get_global_rank(self._group, 0)
        dist.broadcast(found, source, group=self._group)
        return _bytes(found)

    def _sizes(self, data: bytes) -> list[int]:
        size = torch.tensor([len(data)], dtype=torch.int64, device=self._device)
        sizes = [torch.zeros_like(size) for _ in range(self.count)]
        dist.all_gather(sizes, size, group=self._group)
        return [int(found) for found in sizes]

    def _tensor(self, data: bytes, size: int) -> torch.Tensor:
        """Bytes where the group sends from and receives to, with zeros behind them."""
        held = torch.zeros(size, dtype=torch.uint8)
        if data:
            held[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return held.to(self._device)

    @property
    def _device(self) -> torch.device:
        if dist.get_backend(self._group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _tried(action: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
    """How an action went, to be told."""
    try:
        return {"value": action()}, None
    except Exception as error:
        return {"error": _told(error)}, error


def _packed(said: Any) -> bytes:
    # Names of tensors are much alike.
    return zlib.compress(json.dumps(said, allow_nan=False).encode(), 1)


def _told(error: Exception) -> dict[str, Any]:
    code = getattr(error, "errno", None)
    text = str(getattr(error, "strerror", None) or error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    kind = type(error).__name__
    return {"kind": kind, "code": code if type(code) is int else None, "text": text}


def _retold(rank: int, kind: str, code: int | None, text: str) -> Exception:
    message = f"rank {rank}: {text}"
    if kind == "CorruptStoreError":
        return CorruptStoreError(message)
    known = _KINDS.get(kind)
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
) -> int:
    """See `windeck.checkpoint.save`; `options` are those of `begin`."""
    ranks = Ranks(group)
    with ExitStack() as stack:
        state, tables, told = _looked(ranks, stack, store, given, embeddings, options)
        _refuse_other_options([found["options"] for found in told])
        holders = _holders([found["inventory"] for found in told])
        if verify_replicated:
            _verify(ranks, state, holders)
        writers = assigned(holders, ranks.count)

        def chosen(name: str, box: Box) -> bool:
            return writers[name, box] == ranks.rank

        place = store

        def start() -> dict[str, Any]:
            nonlocal place
            place = stack.enter_context(opened(store))
            return asdict(begin(place, writers=ranks.count, **options))

        plan = Plan(**ranks.first(start))
        try:
            last = None
            if plan.incremental and any(found["alone"] for found in told):  # rank 0 has it open
                last = _last_save(ranks, lambda: base_values(_open(place), plan))
            ranks.together(
                lambda: write_shard(place, plan, ranks.rank, state, chosen, tables, last)
            )
            generation = ranks.first(lambda: merge_in(_open(place), plan))
        except BaseException:
            if ranks.rank == 0:
                with suppress(Exception):  # gc removes it too
                    discard(_open(place), plan)
            raise
        tables.committed(plan.save)
        return generation


def _looked(
    ranks: Ranks,
    stack: ExitStack,
    store: Store | str,
    given: Mapping[str, Any],
    embeddings: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[State, Exports, list[dict[str, Any]]]:
    """What this rank has, and what all ranks tell of themselves; `stack` closes the tables."""
    held: list[tuple[State, Exports]] = []

    def look() -> dict[str, Any]:
        check_options(**options)
        state = State(given)
        held.append((state, stack.enter_context(Exports(embeddings))))
        _check_reach(store, ranks)
        alone = isinstance(store, str) and takes_turns(store)
        return {"options": dict(options), "inventory": _inventory(state), "alone": alone}

    told = ranks.together(look)
    return (*held[0], told)


def _open(place: Store | str) -> Store:
    assert not isinstance(place, str)
    return place


def _last_save(ranks: Ranks, find: Callable[[], dict[bytes, bytes]]) -> dict[bytes, bytes]:
    """What rank 0 finds, on all ranks. As characters, a byte each: most of it is text."""

    def told() -> dict[str, str]:
        return {key.decode(): value.decode("latin-1") for key, value in find().items()}

    return {key.encode(): value.encode("latin-1") for key, value in ranks.first(told).items()}


def _check_reach(store: Store | str, ranks: Ranks) -> None:
    """ValueError where what this rank writes would not reach the store of rank 0."""
    if ranks.rank == 0 or (isinstance(store, str) and takes_parts(store)):
        return
    with opened(store) as place:
        if not place.facts.shared:
            raise ValueError(
                f"rank {ranks.rank} was given {place.url}, which no other process can open, "
                "expected a store that all ranks reach, or the URL of a RocksDB or LevelDB"
            )


def _inventory(state: State) -> list[Any]:
    """What is here: of each tensor the name, the dtype and the boxes, and bytes of one element."""
    return [
        [
            name,
            dtype_name(pieces.dtype),
            pieces.dtype.itemsize,
            [[list(run) for run in piece.box] for piece in pieces.parts],
        ]
        for name, pieces in state.tensors.items()
    ]


def _refuse_other_options(told: Sequence[Mapping[str, Any]]) -> None:
    for name, first in told[0].items():
        for rank, found in enumerate(told):
            if found[name] != first:
                raise ValueError(
                    f"{name} is {first!r} on rank 0 and {found[name]!r} on rank {rank}, expected "
                    "the same on all ranks"
                )


def _holders(inventories: list[list[Any]]) -> dict[_Key, tuple[int, list[int]]]:
    """Bytes of each box of each tensor, and the ranks that have it."""
    found: dict[_Key, tuple[int, list[int]]] = {}
    for rank, inventory in enumerate(inventories):
        for name, _, width, boxes in inventory:
            for sides in boxes:
                box = tuple((first, end) for first, end in sides)
                size = width
                for first, end in box:
                    size *= end - first
                found.setdefault((name, box), (size, []))[1].append(rank)
    return found


def assigned(holders: Mapping[_Key, tuple[int, list[int]]], ranks: int) -> dict[_Key, int]:
    """The rank that writes each box: what several have goes to the one with the least, the largest
    first. The same on all ranks: boxes of equal size go by name and place, and of ranks with
    equally much the lowest takes the next.

    Examples
    --------
    >>> a, b, c = ("a", ((0, 9),)), ("b", ((0, 5),)), ("c", ((0, 3),))
    >>> assigned({a: (9, [0, 1]), b: (5, [0, 1]), c: (3, [0, 1])}, 2) == {a: 0, b: 1, c: 1}
    True
    """
    load, found = [0] * ranks, dict[_Key, int]()
    order = sorted(holders.items(), key=lambda item: (len(item[1][1]) > 1, -item[1][0], item[0]))
    for key, (size, having) in order:
        rank = min(having, key=lambda rank: (load[rank], rank))
        load[rank] += size
        found[key] = rank
    return found


def _verify(ranks: Ranks, state: State, holders: Mapping[_Key, tuple[int, list[int]]]) -> None:
    """ValueError on all ranks where copies of one box are not the same bytes."""
    shared = [key for key, (_, having) in holders.items() if len(having) > 1]
    if not shared:
        return
    mine = {
        (name, piece.box): piece.tensor
        for name, pieces in state.tensors.items()
        for piece in pieces.parts
    }
    sums = ranks.together(lambda: [_sum(mine[key]) if key in mine else None for key in shared])
    for i, (name, _) in enumerate(shared):
        having = [(rank, found[i]) for rank, found in enumerate(sums) if found[i] is not None]
        for rank, found in having[1:]:
            if found != having[0][1]:
                raise ValueError(
                    f"{name} is not the same on ranks {having[0][0]} and {rank}, expected equal "
                    "bytes: what differs needs a name of its own on each rank; "
                    "verify_replicated=False keeps that of one of them"
                )


def _sum(tensor: torch.Tensor) -> int:
    total = 0
    for data in cut(tensor, CHUNK_BYTES):
        total = crc32c(data, total)
    return total


def load_in_group(
    store: Store | str, group: Any, loading: Loading, namespace: str, generation: int | None
) -> Loaded:
    """See `windeck.checkpoint.load`. Where only one process can open the store, they take turns."""
    ranks = Ranks(group)
    turns = isinstance(store, str) and takes_turns(store)
    every = ranks.in_turn if turns else ranks.together
    loaded: list[Loaded] = []

    def find() -> int:
        with opened(store, reading=True) as place:
            return find_commit(place, namespace, generation).generation

    def look() -> dict[str, list[str]]:
        with Checkpoint(store, namespace, number) as found:
            return loading.compare(found, alone=False)

    def read() -> None:
        with Checkpoint(store, namespace, number) as found:
            loaded.append(loading.read(found))

    number = ranks.first(find)
    try:
        unclaimed = every(look)
        if loading.strict:
            _refuse_unclaimed(unclaimed, f"generation {number}")
        every(read)
    except BaseException:
        loading.put_back()
        raise
    return loaded[0]


def _refuse_unclaimed(names: list[dict[str, list[str]]], found: str) -> None:
    """KeyError for names in the checkpoint that no rank has."""
    for root in dict.fromkeys(root for roots in names for root in roots):
        lists = [set(roots[root]) for roots in names if root in roots]
        more = sorted(set.intersection(*lists))
        if more:
            raise KeyError(other_names(root, found, [], more))
