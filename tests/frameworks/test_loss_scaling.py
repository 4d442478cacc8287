"""Recipes of tables in frameworks with a GradScaler: rows are those of a loss without a scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import windeck as wd
from models.oracle import Numbers
from support.launched import launch
from support.pages import named_block

#: Trains a model for three steps with this scaler, or without one.
Fit = Callable[[Path, Any, "torch.amp.GradScaler | None"], None]


class Model(torch.nn.Module):
    """The loss of samples. That of step 2 overflows if it is scaled, and is 0 if not."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.table = wd.EmbeddingTable(4, optimizer="adagrad", lr=0.25, scale=1.0, seed=3)
        self.layer = torch.nn.Linear(4, 1)
        for parameter in self.layer.parameters():
            torch.nn.init.ones_(parameter)
        self.steps, self.second = 0, 2.0**120 if scaled else 0.0

    def forward(self, sample: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        self.steps += 1
        loss = self.layer(self.table(sample.to(torch.int64) % 7)).sum() / 64
        return {"loss": loss * self.second if self.steps == 2 else loss}


def compare(folder: Path, fit: Fit) -> None:
    """Assert that training with a scaler does as training without one."""
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**16)):
        torch.manual_seed(0)
        model = Model(scaler is not None)
        first = model.table(torch.arange(7), count=False).detach()
        fit(folder, model, scaler)
        assert model.steps == 3
        assert scaler is None or scaler.get_scale() == 2.0**15
        rows = model.table(torch.arange(7), count=False).detach()
        assert not torch.equal(rows, first)
        found.append([rows, *(p.detach() for p in model.layer.parameters())])
    assert all(torch.equal(plain, scaled) for plain, scaled in zip(*found, strict=True))


def make_loader() -> wd.Loader:
    return wd.Loader(Numbers(18), batch_size=6, shuffle=True, seed=3, epochs=1)


def fit_lightning(folder: Path, model: Model, scaler: Any) -> None:
    import lightning
    from lightning.pytorch.plugins import MixedPrecision

    TablesModule = named_block("docs/frameworks.md", "def fit_in_one_checkpoint")["TablesModule"]

    class Module(TablesModule):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    class Scaled(MixedPrecision):  # type: ignore[misc]
        def autocast_context_manager(self) -> Any:  # computes in float32: results are equal
            return torch.autocast("cpu", enabled=False)

    lightning.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1e6,
        plugins=[] if scaler is None else [Scaled("16-mixed", "cpu", scaler=scaler)],
    ).fit(Module(), make_loader())  # fmt: skip


def fit_accelerate(folder: Path, model: Model, scaler: Any) -> None:
    import accelerate

    page = named_block("docs/frameworks.md", "def train_in_one_checkpoint")
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = scaler  # as with fp16, which accelerate has on GPUs only
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.5)
    url = f"rocksdb://{folder}/{scaler is None}"
    tables = wd.TableOptimizer(model)
    page["train_in_one_checkpoint"](accelerator, make_loader(), model, optimizer, tables, url)


def fit_transformers(folder: Path, model: Model, scaler: Any) -> None:
    import transformers

    page = named_block("docs/frameworks.md", "def trainer_of_one_checkpoint")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), use_cpu=True, report_to=[], disable_tqdm=True,
        max_steps=3, max_grad_norm=0.0, learning_rate=0.01, save_strategy="no",
        lr_scheduler_type="constant", optim="sgd",
    )  # fmt: skip
    url = f"rocksdb://{folder}/{scaler is None}"
    trainer = page["trainer_of_one_checkpoint"](url, make_loader(), model, arguments)
    trainer.accelerator.scaler = scaler
    trainer.train()


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("lightning", fit_lightning),
        ("accelerate", fit_accelerate),
        ("transformers.trainer", fit_transformers),
    ],
)
def test_rows_are_those_of_a_loss_without_a_scale(name: str, fit: Fit, tmp_path: Path) -> None:
    pytest.importorskip(name)
    assert launch(1, compare, tmp_path, fit) == [0]
