"""Lightning with its state in one windeck checkpoint: killed and resumed, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from support.adapted_runs import (
    EPOCHS,
    KILLED,
    KILLS,
    STEPS,
    Scorer,
    check_continued_by_one,
    check_resumed,
    make_loader,
    ranks,
    read_end,
    write_end,
)
from support.launched import launch
from support.pages import named_block
from windeck import checkpoint
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


def run(
    url: str, module: Any, *, every: int = 4, callbacks: tuple[Any, ...] = (), **more: Any
) -> Any:
    """Train, and resume if there is a checkpoint."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    loader = make_loader()
    saving = LightningCheckpoint(url, every=every, loader=loader)
    trainer = lightning.Trainer(
        callbacks=[saving, *callbacks], plugins=[saving], enable_checkpointing=False,
        **options(**more),
    )  # fmt: skip
    trainer.fit(module, loader, ckpt_path=saving.resume_path())
    return trainer


class Count(lightning.Callback):  # type: ignore[misc,name-defined]
    """Counts the batches of all processes of a run."""

    batches = 0

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]


def fit_counted(folder: Path, url: str, kill_at: int | None) -> None:
    count = Count()
    run(url, Module(kill_at), callbacks=(count,))
    assert count.batches == STEPS * EPOCHS


def test_callbacks_after_this_one(tmp_path: Path) -> None:
    """Their states are saved after the batch, too."""
    url = f"rocksdb://{tmp_path}/run"
    assert launch(1, fit_counted, tmp_path, url, 10) == [KILLED]
    assert launch(1, fit_counted, tmp_path, url, None) == [0]


class TwoOptimizers(Module):
    """The second optimizer begins one batch late: the trainer counts 1, 3, 5, ... steps."""

    def __init__(self, kill_at: int | None) -> None:
        super().__init__(kill_at)
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Any], _: int) -> None:  # type: ignore[override]
        first, second = self.optimizers()
        self.manual_backward(super().training_step(batch, _))
        first.step()
        if int(self.scorer.steps) > 1:
            second.step()
        self.scorer.user.step()
        first.zero_grad()
        second.zero_grad()

    def optimizer_step(self, *_: Any, **__: Any) -> None:
        raise AssertionError

    def configure_optimizers(self) -> Any:
        layer = self.scorer.layer
        return torch.optim.Adam([layer.weight]), torch.optim.SGD([layer.bias], 0.1, momentum=0.9)


def fit_two(folder: Path, url: str, kill_at: int | None) -> None:
    torch.manual_seed(7)
    module = TwoOptimizers(kill_at)
    trainer = run(url, module)
    write_end(folder, module.scorer, trainer.optimizers[1])
    saved = [found.step for found in checkpoint.log(url)]
    assert saved == list(range(41, 4, -4))


def test_steps_that_pass_over_multiples(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(1, fit_two, tmp_path / "whole", whole, None) == [0]
    assert launch(1, fit_two, tmp_path, url, 10) == [KILLED]
    assert checkpoint.log(url)[0].step == 17
    assert launch(1, fit_two, tmp_path, url, None) == [0]
    assert read_end(tmp_path, 1) == read_end(tmp_path / "whole", 1)


class ShardedModule(Module):
    def configure_model(self) -> None:
        if not isinstance(self.scorer.layer.weight, DTensor):
            fully_shard(self.scorer.layer, mesh=self.device_mesh["data_parallel"])


def fit_sharded(folder: Path, url: str, kill_at: int | None, every: int) -> None:
    """Do as `fit` with a model that is sharded by FSDP2, on two ranks or more."""
    torch.manual_seed(7)
    module = ShardedModule(kill_at)
    given = {k: v for k, v in options().items() if k not in ("devices", "strategy")}
    trainer = page["fit_sharded_in_one_checkpoint"](
        module, make_loader(), url, every, ranks(), **given
    )
    assert isinstance(module.scorer.layer.weight, DTensor)
    write_end(folder, module.scorer, trainer.optimizers[0])


def test_sharded_by_fsdp2(tmp_path: Path) -> None:
    """Killed and resumed bit for bit, and continued by another number of ranks."""
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(2, fit_sharded, tmp_path / "whole", whole, None, 4) == [0, 0]
    assert KILLED in launch(2, fit_sharded, tmp_path, url, 10, 4)
    assert checkpoint.log(url)[0].step == 8
    copied = f"rocksdb://{tmp_path}/three"
    checkpoint.copy(url, copied)
    assert launch(2, fit_sharded, tmp_path, url, None, 4) == [0, 0]
    assert read_end(tmp_path, 2) == read_end(tmp_path / "whole", 2)
    assert launch(3, fit_sharded, tmp_path, copied, None, 4) == [0, 0, 0]
    assert read_end(tmp_path, 3)[0].startswith(f"{STEPS * EPOCHS} ")


def refuse_strategy(folder: Path, url: str) -> None:
    """Lightning's own strategy for FSDP2 would write files, and load none of ours."""
    strategy = lightning.pytorch.strategies.ModelParallelStrategy(2, 1)
    with pytest.raises(ValueError, match="the strategy ModelParallelStrategy writes checkpoints"):
        fit_in_one_checkpoint(
            ShardedModule(None), make_loader(), url, 4, **options(strategy=strategy)
        )


def test_a_strategy_with_files_of_its_own_is_refused(tmp_path: Path) -> None:
    assert launch(2, refuse_strategy, tmp_path, f"rocksdb://{tmp_path}/run") == [0, 0]


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
