"""A small state of all kinds, and stores that fail during a save or a load of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from models.table_model import ModelCore, ModelTable
from windeck import checkpoint

WRITES = ("put_many", "bulk_load", "compare_and_set", "sync")
READS = ("get", "get_many")


class Between:
    """Store that calls a function before its n-th call of some kinds.

    `order_writes` counts as a `sync`.
    """

    def __init__(self, store: Any, calls: tuple[str, ...], left: int, act: Any) -> None:
        self.store, self.calls, self.left, self.act = store, calls, left, act
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        name = "sync" if name == "order_writes" else name
        if name not in self.calls:
            return found

        def call(*args: Any, **options: Any) -> Any:
            if len(self.made) == self.left:
                self.act()
            self.made.append(name)
            return found(*args, **options)

        return call


class Position:
    """The part of a loader that a checkpoint uses."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def core(step: int) -> ModelCore:
    """Return a table that is a function of the step."""
    found = ModelCore(2, 1)
    for turn in range(step + 1):
        found.fill(range(turn, 60 + turn), np.random.default_rng(turn))
    return found


def save(place: Any, step: int, *, incremental: bool = True, items: int = 3000) -> None:
    model = {"w": torch.full((items,), float(step)), "b": torch.arange(500)}
    checkpoint.save(
        place, step=step, model=model, loader=Position(step), chunk_bytes=4096,
        embeddings={"t": ModelTable(core(step))}, incremental=incremental,
    )  # fmt: skip


def load(place: Any, *, items: int = 3000) -> int:
    """Return the step of the current checkpoint, after asserting that all of it is of that step."""
    model = {"w": torch.zeros(items), "b": torch.zeros(500, dtype=torch.int64)}
    loader, table = Position(-1), ModelCore(2, 1)
    try:
        found = checkpoint.load(
            place, model=model, loader=loader, embeddings={"t": ModelTable(table)}
        )
    except BaseException:
        assert loader.at == -1
        assert not table.ids
        raise
    assert bool((model["w"] == found.step).all())
    assert torch.equal(model["b"], torch.arange(500))
    assert loader.at == found.step
    assert table.told() == core(found.step).told()
    return found.step


def error_of(call: Callable[[], object]) -> OSError | None:
    """Return the OSError that a call raises, or None."""
    try:
        call()
    except OSError as error:
        return error
    return None
