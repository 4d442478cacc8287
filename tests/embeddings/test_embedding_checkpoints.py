"""Tables inside of modules: no checkpoint is saved or loaded without their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import windeck as wd
from windeck import checkpoint
from windeck.checkpoint.stores import open_store


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = wd.EmbeddingTable(4, seed=1)
        self.tower = torch.nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.tower(self.items(ids)).sum()


@pytest.fixture
def model() -> Model:
    model = Model()
    model(torch.arange(5)).backward()
    model.items.step()
    return model


@pytest.mark.parametrize(
    ("place", "given"),
    [
        ("model.items", lambda model: model),
        ("model is", lambda model: model.items),
        ("model.1.items", lambda model: torch.nn.Sequential(torch.nn.ReLU(), model)),
    ],
)
@pytest.mark.parametrize("embeddings", [None, {}, {"other": wd.EmbeddingTable(4)}])
def test_a_table_of_a_module_is_not_left_out_of_a_save(
    model: Model, place: str, given: Callable[[Model], Any], embeddings: Any
) -> None:
    with open_store("memory://") as store:
        with pytest.raises(ValueError, match=f"^{place}.* would not be saved: pass it in `embed"):
            checkpoint.save(store, step=1, model=given(model), embeddings=embeddings)
        plan = checkpoint.begin(store, step=1, writers=1)
        with pytest.raises(ValueError, match=f"^{place}.* would not be saved: pass it in `embed"):
            checkpoint.save_shard(store, plan, writer=0, model=given(model), embeddings=embeddings)
        assert not checkpoint.log(store)


def test_a_table_of_a_module_is_not_left_out_of_a_load(model: Model) -> None:
    with open_store("memory://") as store:
        checkpoint.save(store, step=1, model=model, embeddings={"items": model.items})
        fresh = Model()
        with pytest.raises(ValueError, match=r"^model\.items is .* would not be loaded: pass"):
            checkpoint.load(store, model=fresh)
        checkpoint.load(store, model=fresh, embeddings={"items": fresh.items})
        assert fresh.items.rows == 5
        dense = Model()
        checkpoint.load(store, model=dense, strict=False)
        checkpoint.load(store, model=dict(dense.state_dict()))
        assert torch.equal(dense.tower.weight, model.tower.weight)
        assert dense.items.rows == 0
