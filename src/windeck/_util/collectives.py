"""Collective calls that exchange bytes between the ranks of a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["bytes_to_tensor", "gather_bytes", "gather_sizes"]


def gather_bytes(data: bytes, group: Any = None) -> list[bytes]:
    """Return the bytes of every rank of a group; a collective call.

    They travel as tensors: torch's collectives for objects unpickle what they receive.
    """
    sizes = gather_sizes(data, group)
    own = bytes_to_tensor(data, max(sizes), group)
    received = [torch.empty_like(own) for _ in sizes]
    dist.all_gather(received, own, group=group)
    return [
        found[:size].cpu().numpy().tobytes() for found, size in zip(received, sizes, strict=True)
    ]


def gather_sizes(data: bytes, group: Any = None) -> list[int]:
    """Return the number of bytes of every rank of a group; a collective call."""
    size = torch.tensor([len(data)], dtype=torch.int64, device=_device(group))
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    return [int(found) for found in sizes]


def bytes_to_tensor(data: bytes, size: int, group: Any = None) -> torch.Tensor:
    """Return bytes, padded with zeros, on the device that a group communicates from."""
    held = torch.zeros(size, dtype=torch.uint8)
    if data:
        held[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return held.to(_device(group))


def _device(group: Any) -> torch.device:
    if dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
