"""Tables in checkpoints: those of modules are not left out, and other options of new rows warn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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


def saved_table(url: str, **options: Any) -> None:
    table = wd.EmbeddingTable(4, **options)
    table(torch.arange(9)).sum().backward()
    table.step()
    checkpoint.save(url, step=1, embeddings={"user": table})


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("seed", 3, "seed=0, expected seed=3"),
        ("scale", 0.5, "scale=0.01, expected scale=0.5"),
        ("initializer", "uniform", "initializer='normal', expected initializer='uniform'"),
        ("admit_after", 2, "admit_after=1, expected admit_after=2"),
        (
            "initial_accumulator_value",
            0.1,
            "initial_accumulator_value=0.0, expected initial_accumulator_value=0.1",
        ),
    ],
)
def test_other_options_of_rows_that_do_not_exist_yet_warn(
    option: str, value: Any, found: str, tmp_path: Path
) -> None:
    url = f"rocksdb://{tmp_path}/run"
    saved_table(url, **{option: value})
    table = wd.EmbeddingTable(4)
    message = f"^the table user has {found} as saved: rows of new ids will not begin as those of "
    with pytest.warns(UserWarning, match=message) as caught:
        checkpoint.load(url, embeddings={"user": table})
    assert [warning.filename for warning in caught] == [__file__]
    checkpoint.load(url, embeddings={"user": wd.EmbeddingTable(4, **{option: value})})
    checkpoint.load(url, embeddings={"user": table}, merge="keep")
    assert table.rows == (0 if option == "admit_after" else 9)


def test_other_options_of_the_optimizer_do_not_warn(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/run"
    saved_table(url, lr=0.5, weight_decay=0.1, eps=1e-3, threads=1, name="a")
    checkpoint.load(url, embeddings={"user": wd.EmbeddingTable(4)})
    saved_table(f"{url}2", initial_accumulator_value=0.1)
    sgd = wd.EmbeddingTable(4, optimizer="sgd")
    checkpoint.load(f"{url}2", embeddings={"user": sgd}, reset_slots=True)
