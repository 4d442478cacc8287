"""A model, an optimizer and a table that are trained in place, and copies of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import windeck as wd
from windeck import checkpoint
from windeck.checkpoint.stores import Store

IDS = torch.arange(-400, 1200)


class Training:
    """A training whose state differs after every step, tables with removed rows included."""

    def __init__(self, seed: int = 0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.layer = torch.nn.Linear(40, 30)
        self.optimizer = torch.optim.Adam(self.layer.parameters(), lr=0.1)
        self.tables = {
            name: wd.EmbeddingTable(7, optimizer="adagrad", admit_after=2, threads=2)
            for name in ("a", "b")
        }
        self.loader = {"position": 0}
        self.strided = torch.zeros(20, 6)[:, ::2]

    def step(self) -> None:
        low = int(torch.randint(-300, 900, (), generator=self.random))
        ids = torch.randint(low, low + 300, (400,), generator=self.random)
        seen = torch.cat([table(ids) for table in self.tables.values()], dim=1)
        seen.square().sum().backward()  # type: ignore[no-untyped-call]
        loss: torch.Tensor = self.layer(torch.randn(5, 40, generator=self.random))
        loss.square().sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        for table in self.tables.values():
            table.step()
            table.evict(seen_before=table.core.clock - 6)
        self.loader["position"] += 1
        self.strided += 1

    @property
    def state(self) -> dict[str, Any]:
        """The arguments of `save`."""
        return {
            "model": {"layer": self.layer.state_dict(), "strided": self.strided},
            "optimizer": self.optimizer,
            "loader": self.loader,
            "embeddings": self.tables,
            "extra": {"tied": self.layer.weight},
        }


def values_of(training: Training) -> dict[str, Any]:
    """Return copies of all values, those of tables by lookups instead of by a snapshot."""
    found: dict[str, Any] = {"position": training.loader["position"]}
    found["strided"] = training.strided.clone()
    for name, tensor in training.layer.state_dict().items():
        found[name] = tensor.clone()
    for number, state in training.optimizer.state_dict()["state"].items():
        for name, tensor in state.items():
            found[f"{number}/{name}"] = tensor.clone()
    for name, table in training.tables.items():
        core = table.core
        found[f"{name}/count"] = torch.tensor([len(core), core.counted, core.clock])
        found[f"{name}/rows"] = torch.from_numpy(core.row_values(IDS.numpy()))
        for key, column in core.facts(IDS.numpy()).items():
            found[f"{name}/{key}"] = torch.from_numpy(column)
    return found


def loaded(store: Store | str, generation: int | None = None) -> dict[str, Any]:
    """Return the values of a checkpoint of a training."""
    into = Training()
    into.strided += 7
    state = {name: into.state[name] for name in ("model", "optimizer", "embeddings")}
    checkpoint.load(store, generation=generation, **state)
    with checkpoint.open(store, generation=generation) as found:
        into.loader["position"] = found.tree("loader")["position"]
        assert torch.equal(found.tensor("extra/tied"), into.layer.weight)
    return values_of(into)


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that values are equal, bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            own = found[name]
            assert (own.dtype, own.shape) == (value.dtype, value.shape), name
            assert own.numpy().tobytes() == value.numpy().tobytes(), name
        else:
            assert found[name] == value, name
