"""The processes of a group: an error on one rank is raised on all ranks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from windeck._util.collectives import bytes_to_tensor, gather_bytes, gather_sizes
from windeck.checkpoint.stores import CorruptStoreError

__all__ = ["RankGroup"]


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
