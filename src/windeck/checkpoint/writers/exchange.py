"""Ranks tell each other how it went, so that what fails on one fails on all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from windeck.checkpoint.stores import CorruptStoreError

__all__ = ["Ranks"]

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
        error: Exception | None = None
        try:
            said: dict[str, Any] = {"value": action()}
        except Exception as raised:
            error, said = raised, {"error": _told(raised)}
        every = [json.loads(zlib.decompress(data)) for data in self._gather(_packed(said))]
        for rank, found in enumerate(every):
            if "error" in found:
                raise _retold(rank, **found["error"]) from error
        return [found["value"] for found in every]

    def first(self, action: Callable[[], T]) -> T:
        """Do something on rank 0; what it gave, on all ranks, or its error."""
        return self.together(lambda: action() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def in_turn(self, action: Callable[[], T]) -> list[T]:
        """`together`, one rank after the other; after an error the others do not begin."""
        found: list[Any] = []
        for turn in range(self.count):
            got = self.together(lambda turn=turn: action() if self.rank == turn else None)  # type: ignore[misc]
            found.append(got[turn])
        return found

    def _gather(self, data: bytes) -> list[bytes]:
        """Bytes of every rank, by tensors: torch's own way for objects unpickles what comes in."""
        device = torch.device("cpu")
        if dist.get_backend(self._group) == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        size = torch.tensor([len(data)], dtype=torch.int64, device=device)
        sizes = [torch.zeros_like(size) for _ in range(self.count)]
        dist.all_gather(sizes, size, group=self._group)
        lengths = [int(found) for found in sizes]
        mine = torch.zeros(max(lengths), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        mine = mine.to(device)
        every = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(every, mine, group=self._group)
        return [
            found[:length].cpu().numpy().tobytes()
            for found, length in zip(every, lengths, strict=True)
        ]


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
