"""Tests of background saves in a group, with training's own collectives at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import windeck as wd
from support.gangs import gang
from support.internals import original, replace
from support.store_servers import DURABLE
from windeck import checkpoint

Fresh = Callable[[str], str]
IDS = torch.arange(400)
SAVES = 6


class Training:
    """Training of weights that all ranks have, a part of each rank, and a sharded table."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.weights, self.own = torch.zeros(3000), torch.full((50, 4), float(rank))
        self.table = wd.ShardedEmbeddingTable(4, optimizer="adagrad", threads=1)
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        gradient = torch.full((3000,), float(self.steps + self.rank))
        dist.all_reduce(gradient)
        self.weights += gradient
        self.own += 1
        first = 7 * self.steps % 300
        rows: torch.Tensor = self.table(IDS[first + self.rank : first + 80])
        rows.sum().backward()  # type: ignore[no-untyped-call]
        self.table.step()
        self.table.evict(seen_before=self.table.core.clock - 5)

    @property
    def state(self) -> dict[str, Any]:
        part = checkpoint.Partition(
            self.own, offset=(50 * self.rank, 0), shape=(50 * self.ranks, 4)
        )
        return {
            "step": self.steps,
            "model": {"weights": self.weights, "part": part},
            "embeddings": {"t": self.table},
            "extra": {str(self.rank): self.own[0].sum().item()},
        }

    def values(self) -> dict[str, Any]:
        self.table.eval()
        rows = self.table(IDS).detach().numpy().tobytes()  # of all ranks
        self.table.train()
        return {
            "weights": self.weights.numpy().tobytes(),
            "own": self.own.numpy().tobytes(),
            "rows": rows,
            "count": self.table.rows,
        }


def _train(rank: int, ranks: int, url: str, limit: int | None) -> dict[int, Any]:
    training, expected, group = Training(rank, ranks), dict[int, Any](), dist.group.WORLD
    for _ in range(SAVES):
        for _ in range(3):
            training.step()
        now = training.values()
        saving = checkpoint.save(
            url, **training.state, group=group, background=True, chunk_bytes=1024,
            incremental=True, background_bytes=limit,
        )  # fmt: skip
        for _ in range(4):  # the same number on all ranks, while the save goes on
            training.step()
        expected[saving.wait()] = now
    # Without a wait in between; a plain save goes on after the one in the background.
    now = training.values()
    checkpoint.save(url, **training.state, group=group, background=True)
    training.step()
    expected[SAVES + 1] = now
    expected[SAVES + 2] = training.values()
    assert checkpoint.save(url, **training.state, group=group) == SAVES + 2
    for generation, values in expected.items():
        found = Training(rank, ranks)
        loaded = checkpoint.load(
            url, generation=generation, group=group, model=found.state["model"],
            embeddings=found.state["embeddings"],
        )  # fmt: skip
        own = torch.from_numpy(np.frombuffer(values["own"], np.float32).copy())
        assert loaded.extra[str(rank)] == own[:4].sum().item()
        assert found.values() == values, generation
    return {number: values["own"] for number, values in expected.items()}


@pytest.mark.parametrize("limit", [None, 5000])
@pytest.mark.parametrize("kind", DURABLE)
def test_training_goes_on_with_its_collectives(kind: str, limit: int | None, fresh: Fresh) -> None:
    url = fresh(kind)
    found = gang(2, _train, url, limit)
    assert found[0].keys() == found[1].keys() == set(range(1, SAVES + 3))
    with checkpoint.open(url, generation=3) as saved:  # by one process, from all ranks
        assert saved.tensor("model/part").numpy().tobytes() == found[0][3] + found[1][3]


def _fail(rank: int, ranks: int, url: str) -> list[Any]:
    training, group, said = Training(rank, ranks), dist.group.WORLD, list[Any]()

    def outcome(call: Callable[[], Any]) -> None:
        try:
            said.append(call())
        except Exception as error:
            said.append([type(error).__name__, str(error)])

    def save(**options: Any) -> Any:
        training.step()
        return checkpoint.save(url, **{**training.state, **options}, group=group, background=True)

    # In the call, on all ranks.
    outcome(lambda: save(extra={"x": object()} if rank else {}))
    outcome(lambda: save(model={"w": torch.full((3,), float(rank))}))
    checkpoint.wait(0)
    # While the save goes on, on all ranks, at the next save or wait.
    outcome(lambda: save().wait())
    outcome(lambda: save(step=0).wait())
    outcome(lambda: save(step=0).step)
    outcome(save)
    outcome(lambda: save().wait())
    # A copy that fails on one rank.
    if rank:
        real = original("group_saving.copy_tensors")

        def fail(*given: Any, **options: Any) -> Any:
            raise MemoryError("no memory for the test")

        replace("group_saving.copy_tensors", fail)
        outcome(save)
        replace("group_saving.copy_tensors", real)
    else:
        outcome(save)
    outcome(lambda: save().wait())
    return said


def test_what_fails_on_one_fails_on_all(fresh: Fresh) -> None:
    url = fresh("redis")
    one, two = gang(2, _fail, url)
    lower = [
        "ValueError",
        "rank 0: `step` must be at least 3, the step of the checkpoint of windeck",
    ]
    expected: list[Any] = [
        ["TypeError", "rank 1: extra/x is of type object"],
        ["ValueError", "model/w is not the same on ranks 0 and 1"],
        1,
        lower,
        0,
        lower,
        2,
        ["MemoryError", "rank 1: no memory for the test"],
        3,
    ]
    for said in (one, two):
        for found, wanted in zip(said, expected, strict=True):
            if isinstance(wanted, list):
                assert found[0] == wanted[0], found
                assert found[1].startswith(wanted[1]), found
            else:
                assert found == wanted
    assert one == two
    assert [commit.step for commit in checkpoint.log(url)] == [9, 7, 3]
