"""Ranks compare what they are about to read: all raise one error if they differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

import windeck as wd
from models.oracle import Numbers
from support.gangs import gang


def tried(action: Any) -> str:
    """Return the message of the ValueError that an action raises, or an empty string."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


def compared(rank: int, ranks: int) -> str:
    loader = wd.Loader(Numbers(12), batch_size=3 if rank == 1 else 2)
    return tried(lambda: next(iter(loader)))


def test_ranks_of_equal_values_are_named_together() -> None:
    found = gang(3, compared)
    assert found == [found[0]] * 3
    assert "must agree on `batch_size`, got 3 on rank 1, 2 on ranks 0, 2; expected" in found[0]


def unlike(rank: int, ranks: int) -> list[str]:
    """Begin loops on loaders of which rank 1's differs in one respect."""
    odd = rank == 1
    found = []
    for options, length in (
        ({"batch_size": 3 if odd else 2}, 12),
        ({"batch_size": 2, "seed": 1 if odd else 0, "shuffle": True}, 12),
        ({"batch_size": 2}, 14 if odd else 12),
        ({"batch_size": 2, "epochs": 1 if odd else None}, 12),
        ({"batch_size": 2, "drop_last": odd}, 12),
    ):
        found.append(tried(lambda o=options, n=length: next(iter(wd.Loader(Numbers(n), **o)))))
    resumed = wd.Loader(Numbers(12), batch_size=2)
    if odd:
        resumed.load_state_dict({**resumed.state_dict(), "position": 4})
    found.append(tried(lambda: next(iter(resumed))))
    excluded = wd.Loader(Numbers(12), batch_size=2)
    if odd:
        excluded.exclude(2, 3)
    return [*found, tried(lambda: next(iter(excluded)))]


def test_every_difference_is_named_on_every_rank() -> None:
    found = gang(2, unlike)
    assert found[0] == found[1]
    for message, name in zip(
        found[0],
        (
            "`batch_size`, got 2 on rank 0, 3 on rank 1",
            "the data's seed, got 0 on rank 0, 1 on rank 1",
            "the data's samples, got 12 on rank 0, 14 on rank 1",
            "`epochs`, got None on rank 0, 1 on rank 1",
            "`drop_last`, got False on rank 0, True on rank 1",
            "`position`, got 0 on rank 0, 4 on rank 1",
            "`excluded`, got [] on rank 0, [[2, 3]] on rank 1",
        ),
        strict=True,
    ):
        assert f"ranks of one run must agree on {name}" in message


def calls(rank: int, ranks: int) -> list[int]:
    """Count all-gathers: of loaders that agree, restart, opt out, or are given their ranks."""
    made: list[int] = []
    real = dist.all_gather

    def counted(*args: Any, **more: Any) -> Any:
        made.append(1)
        return real(*args, **more)

    dist.all_gather = counted
    counts = []
    for options in (
        {},
        {"restart": True},
        {"compare_ranks": False},
        {"rank": rank, "world_size": ranks},
    ):
        made.clear()
        loader = wd.Loader(Numbers(12), batch_size=2, **options)
        samples = sum(len(batch["sample"]) for _ in range(2) for batch in loader)
        assert samples == 12
        counts.append(len(made))
    dist.all_gather = real
    return counts


def test_ranks_are_compared_once_and_not_where_they_are_given() -> None:
    assert gang(2, calls) == [[2, 2, 0, 0]] * 2


def test_a_single_process_does_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_gather", None)
    assert len(list(wd.Loader(Numbers(12), batch_size=2))) == 6
