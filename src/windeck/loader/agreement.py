"""Comparison of what ranks are about to read, before the first batch.

Ranks of one run that differ in data, batch size or position serve samples twice or not at all,
without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["bytes_to_tensor", "check_agreement", "gather_bytes", "gather_sizes"]


def check_agreement(mine: Mapping[str, Any]) -> None:
    """Compare fields of all ranks of the default process group; a collective call.

    Parameters
    ----------
    mine
        Fields of this rank, fit for JSON.

    Raises
    ------
    ValueError
        On every rank, if a field differs between ranks. It names the first such field, the ranks
        and their values.
    """
    found = [json.loads(data) for data in gather_bytes(json.dumps(mine, allow_nan=False).encode())]
    names = [name for fields in found for name in fields]
    for name in dict.fromkeys(names):
        ranks: dict[str, list[int]] = {}
        for rank, fields in enumerate(found):
            ranks.setdefault(_shown(fields, name), []).append(rank)
        if len(ranks) > 1:
            fewest_first = sorted(ranks.items(), key=lambda item: len(item[1]))
            told = ", ".join(f"{value} on {_listed(of)}" for value, of in fewest_first[:4])
            raise ValueError(
                f"ranks of one run must agree on {name}, got {told}; expected the same data, "
                "options and state on all ranks (Loader(..., compare_ranks=False) does not compare)"
            )


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return repr(fields[name]) if name in fields else "none"


def _listed(ranks: list[int]) -> str:
    """Return the text of some ranks.

    Examples
    --------
    >>> _listed([3]), _listed([0, 1, 2]), _listed([*range(9), 11])
    ('rank 3', 'ranks 0, 1, 2', 'ranks 0, 1, 2, 3, 4, 5, 6 and 3 more')
    """
    shown, more = ", ".join(map(str, ranks[:7])), len(ranks) - 7
    return f"rank{'s' * (len(ranks) > 1)} {shown}{f' and {more} more' if more > 0 else ''}"


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
