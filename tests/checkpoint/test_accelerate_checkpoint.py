"""accelerate with its state in one windeck checkpoint: killed and resumed, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import windeck as wd
from support.adapted_runs import (
    EPOCHS,
    KILLED,
    KILLS,
    STEPS,
    Scorer,
    allow_fsdp_on_cpu,
    check_continued_by_one,
    check_resumed,
    digest_of,
    make_loader,
    ranks,
    read_end,
    write_end,
)
from support.launched import launch
from support.pages import named_block
from windeck import checkpoint

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


def prepare_sharded(kill_at: int | None) -> tuple[Any, Scorer, torch.optim.Optimizer]:
    allow_fsdp_on_cpu()
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin if ranks() > 1 else None)
    model = Scorer(kill_at)
    return accelerator, model, torch.optim.Adam(model.parameters(), lr=0.01)


def fit_sharded(folder: Path, url: str, kill_at: int | None, every: int) -> None:
    """Do as `fit` with a model and an optimizer that accelerate shards by FSDP2."""
    torch.manual_seed(7)
    accelerator, model, optimizer = prepare_sharded(kill_at)
    tables = wd.TableOptimizer(model)
    loader = make_loader(epochs=EPOCHS)
    train(accelerator, loader, model, optimizer, tables, url, every=every)
    assert isinstance(model.layer.weight, DTensor)
    write_end(folder, model, optimizer)
    accelerator.end_training()


def load_sharded(folder: Path, url: str) -> None:
    from windeck.checkpoint.accelerate import AccelerateCheckpoint

    accelerator, plain, optimizer = prepare_sharded(None)
    model, prepared = accelerator.prepare(plain, optimizer)
    saving = AccelerateCheckpoint(accelerator, url, model=model, optimizer=prepared)
    saving.load()
    (folder / "loaded").write_text(digest_of(plain, optimizer).hexdigest())
    accelerator.end_training()


def test_sharded_by_fsdp2(tmp_path: Path) -> None:
    """Killed and resumed bit for bit; another number of processes loads the same bits."""
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(2, fit_sharded, tmp_path / "whole", whole, None, 4) == [0, 0]
    assert KILLED in launch(2, fit_sharded, tmp_path, url, 10, 4)
    assert checkpoint.log(url)[0].step == 8
    copied = f"rocksdb://{tmp_path}/three"
    checkpoint.copy(url, copied)
    assert launch(2, fit_sharded, tmp_path, url, None, 4) == [0, 0]
    assert read_end(tmp_path, 2) == read_end(tmp_path / "whole", 2)
    loaded = set()
    for count in (1, 2, 3):
        assert launch(count, load_sharded, tmp_path, copied) == [0] * count
        loaded.add((tmp_path / "loaded").read_text())
    assert len(loaded) == 1
    assert launch(3, fit_sharded, tmp_path, copied, None, 4) == [0, 0, 0]
    assert read_end(tmp_path, 3)[0].startswith(f"{STEPS * EPOCHS} ")
    with checkpoint.open(copied) as found:
        assert found.step == 20
        assert found.tree("model")["layer.weight"].shape == (1, 4)


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
