"""accelerate with its state in one windeck checkpoint: killed and resumed, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import windeck as wd
from support.adapted_runs import (
    EPOCHS,
    KILLS,
    Scorer,
    check_continued_by_one,
    check_resumed,
    make_loader,
    ranks,
    write_end,
)
from support.launched import launch
from support.pages import named_block

accelerate = pytest.importorskip("accelerate")

#: The documented loop.
train = named_block("docs/frameworks.md", "def train_in_one_checkpoint")["train_in_one_checkpoint"]


def fit(folder: Path, url: str, kill_at: int | None, every: int) -> None:
    torch.manual_seed(7)
    accelerator = accelerate.Accelerator(cpu=True)
    model, loader = Scorer(kill_at), make_loader(epochs=EPOCHS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tables = wd.TableOptimizer(model)
    train(accelerator, loader, model, optimizer, tables, url, every=every)
    write_end(folder, model, optimizer)
    accelerator.end_training()


@pytest.mark.parametrize(("count", "every", "kill_at"), KILLS)
def test_killed_and_resumed(count: int, every: int, kill_at: int, tmp_path: Path) -> None:
    check_resumed(fit, tmp_path, count, every, kill_at, table="user")


def test_two_processes_are_continued_by_one(tmp_path: Path) -> None:
    check_continued_by_one(fit, tmp_path)


def lose(folder: Path, url: str) -> None:
    """A save between backward and step is refused; tables may have been forgotten."""
    from windeck.checkpoint.accelerate import AccelerateCheckpoint

    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = Scorer(None)
    saving = AccelerateCheckpoint(accelerator, url, model=model)
    assert saving.load() is None
    batch = next(iter(make_loader()))
    model(batch["sample"], batch["row"])["loss"].backward()
    with pytest.raises(RuntimeError, match="the table user has gradients of 1 backward passes"):
        saving.save(1)
    model.user.step()
    saving.save(1)
    assert ranks() == 1
    accelerator.end_training()


def test_gradients_are_not_lost(tmp_path: Path) -> None:
    assert launch(1, lose, tmp_path, f"rocksdb://{tmp_path}/run") == [0]
