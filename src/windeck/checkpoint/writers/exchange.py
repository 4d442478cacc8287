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
