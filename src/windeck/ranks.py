"""Which of how many processes this is."""

from __future__ import annotations

import torch.distributed as dist

from windeck.positions import integer

__all__ = ["check_ranks", "current_ranks"]


def check_ranks(rank: object, world_size: object) -> tuple[int, int] | None:
    """The pair a user gave, or None where it is left to torch.distributed.

    Raises
    ------
    TypeError
        For ranks that are no integers, or one of the two without the other.
    ValueError
        For a rank that is negative or not below the world size.
    """
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise TypeError(
            f"rank and world_size go together, got rank={rank} and world_size={world_size}"
        )
    ranks = integer("world_size", world_size, low=1)
    number = integer("rank", rank)
    if number >= ranks:
        raise ValueError(f"rank has to be below the world_size of {ranks}, got {number}")
    return number, ranks


def current_ranks(given: tuple[int, int] | None) -> tuple[int, int]:
    """(rank, world size): what was given, or torch.distributed's once it is initialised."""
    if given is not None:
        return given
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
