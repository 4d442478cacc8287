"""Lightning with its state in one windeck checkpoint: killed and resumed, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

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
from windeck.loader.mixture import Mixture

lightning = pytest.importorskip("lightning")

#: The documented module and call.
page = named_block("docs/frameworks.md", "def fit_in_one_checkpoint")
fit_in_one_checkpoint, TablesModule = page["fit_in_one_checkpoint"], page["TablesModule"]


class Module(TablesModule):  # type: ignore[misc,valid-type]
    def __init__(self, kill_at: int | None) -> None:
        super().__init__()
        self.kill_at = kill_at

    def setup(self, stage: str) -> None:
        if not hasattr(self, "scorer"):  # after the process group was made
            self.scorer = Scorer(self.kill_at)

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        loss: torch.Tensor = self.scorer(batch["sample"], batch["row"])["loss"]
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def options(**more: Any) -> dict[str, Any]:
    return {
        "accelerator": "cpu",
        "devices": ranks(),
        "strategy": "ddp" if ranks() > 1 else "auto",
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **more,
    }


def fit(folder: Path, url: str, kill_at: int | None, every: int) -> None:
    torch.manual_seed(7)
    module = Module(kill_at)
    trainer = fit_in_one_checkpoint(module, make_loader(), url, every, **options())
    write_end(folder, module.scorer, trainer.optimizers[0])


@pytest.mark.parametrize(("count", "every", "kill_at"), KILLS)
def test_killed_and_resumed(count: int, every: int, kill_at: int, tmp_path: Path) -> None:
    check_resumed(fit, tmp_path, count, every, kill_at, table="scorer.user")


def test_two_processes_are_continued_by_one(tmp_path: Path) -> None:
    check_continued_by_one(fit, tmp_path)


def refuse(folder: Path, url: str) -> None:
    """Another callback that saves is refused; so is a loader without a length."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    saving = LightningCheckpoint(url, every=1)
    assert saving.resume_path() is None
    trainer = lightning.Trainer(
        **options(default_root_dir=folder, max_epochs=1), callbacks=[saving], plugins=[saving]
    )
    with pytest.raises(RuntimeError, match="enable_checkpointing=False"):
        trainer.fit(Module(None), make_loader())
    with pytest.raises(ValueError, match="`every` must be an int of at least 1, got 0"):
        LightningCheckpoint(url, every=0)
    endless = make_loader()
    endless = type(endless)(Mixture({"a": (endless.stream.source, 1)}, seed=1), batch_size=2)
    with pytest.raises(TypeError, match="steps_per_epoch"):
        LightningCheckpoint(url, every=1, loader=endless)


def test_what_is_refused(tmp_path: Path) -> None:
    assert launch(1, refuse, tmp_path, f"rocksdb://{tmp_path}/run") == [0]
