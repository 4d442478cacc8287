"""Lightning trains on a loader of an adapter, fails within an epoch, and continues exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.adapted_batches import digest, loader
from support.pages import named_block

lightning = pytest.importorskip("lightning")

#: Steps of an epoch, and of three epochs those that a run makes before it fails.
STEPS, FAILED_AT = 6, 9
#: The documented callback.
LoaderState = named_block("docs/frameworks.md", "class LoaderState(lightning")["LoaderState"]


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Notes the batches that it is trained on; raises in a step."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.seen: list[str] = []
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 4)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        if self.global_step == self.fail_at:
            raise RuntimeError("a loss of NaN, say")
        self.seen.append(digest(batch))
        seq_x, seq_y, *_ = batch
        loss: torch.Tensor = (self.layer(seq_x[..., 0]) - seq_y[..., 0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(model: Model, folder: Path, kind: str) -> Model:
    """Train for three epochs, from a checkpoint if there is one."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    batches = loader("time_series_library")
    assert len(batches) == STEPS
    options: dict[str, Any] = {
        "max_epochs": 3, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False,
    }  # fmt: skip
    if kind == "callback":
        last = lightning.pytorch.callbacks.ModelCheckpoint(
            folder, save_last=True, every_n_train_steps=2
        )
        trainer = lightning.Trainer(callbacks=[LoaderState(batches), last], **options)
        path = folder / "last.ckpt"
        trainer.fit(model, batches, ckpt_path=str(path) if path.exists() else None)
        return model
    saving = LightningCheckpoint(f"rocksdb://{folder}/run", every=2, loader=batches.loader)
    trainer = lightning.Trainer(
        callbacks=[saving], plugins=[saving], enable_checkpointing=False, **options
    )
    trainer.fit(model, batches, ckpt_path=saving.resume_path())
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["callback", "one commit"])
def test_a_run_that_failed_continues_with_the_next_batch(tmp_path: Path, kind: str) -> None:
    if kind == "one commit":
        pytest.importorskip("rocksdict")
    whole = fit(Model(), tmp_path / "whole", kind)
    with pytest.raises(RuntimeError, match="a loss of NaN"):
        fit(failing := Model(FAILED_AT), tmp_path / "failed", kind)
    assert failing.seen == whole.seen[:FAILED_AT]
    resumed = fit(Model(), tmp_path / "failed", kind)
    assert resumed.seen == whole.seen[-len(resumed.seen) :]
    assert len(resumed.seen) == len(whole.seen) - FAILED_AT + FAILED_AT % 2
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
