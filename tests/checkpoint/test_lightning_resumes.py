"""Runs of Lightning that were killed or stopped go on with all hooks, batches and epochs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import windeck as wd
from models.oracle import Numbers
from support.adapted_runs import KILLED
from support.launched import launch
from windeck import checkpoint

lightning = pytest.importorskip("lightning")


def options(**more: Any) -> dict[str, Any]:
    """Return options of a Trainer in one process that logs nothing."""
    return {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, **more,
    }  # fmt: skip


class Eventful(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Notes what is called, with steps and learning rates; killed before the event `kill_at`."""

    def __init__(self, kill_at: int | None, value: Callable[[int], float]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        with torch.no_grad():
            self.layer.weight.fill_(1.0)
        self.kill_at, self.value, self.events = kill_at, value, list[Any]()

    def note(self, kind: str) -> None:
        if len(self.events) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        (optimizer,) = self.trainer.optimizers
        rate = optimizer.param_groups[0]["lr"]
        self.events.append([kind, self.current_epoch, self.trainer.global_step, rate])

    def training_step(self, batch: dict[str, Any], _: int) -> Any:
        self.note("train")
        loss: Any = self.layer(batch["row"].reshape(-1, 1).float() / 40).square().mean()
        return loss

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        self.note("validate")
        self.log("value", self.value(self.trainer.global_step), batch_size=6)

    def on_train_epoch_start(self) -> None:
        self.note("start")

    def on_train_epoch_end(self) -> None:
        self.note("end")

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


def note_events(folder: Path, url: str, kill_at: int | None, every: int, validate: Any) -> None:
    """Train on 4 epochs of 4 batches, of which the stopping leaves 3; write all events.

    With `limit_train_batches` the last batch of an epoch of the loader is an epoch of its own. It
    has no validation, and the stopping, which would ask for one, stops nothing.
    """
    module = Eventful(kill_at, lambda step: {4: 1.0, 8: 2.0, 12: 3.0}.get(step, 0.5 + step / 100))
    stopping = lightning.pytorch.callbacks.EarlyStopping(
        "value", patience=100 if "limit_train_batches" in validate else 2, strict=False
    )
    validating = wd.Loader(Numbers(6), batch_size=6, restart=True)
    more = {"num_sanity_val_steps": 0, "max_epochs": 4, **validate}
    loader = wd.Loader(Numbers(24), batch_size=6, shuffle=True, seed=3)
    from windeck.checkpoint.lightning import LightningCheckpoint

    saving = LightningCheckpoint(url, every=every, loader=loader)
    trainer = lightning.Trainer(
        callbacks=[saving, stopping], plugins=[saving], enable_checkpointing=False,
        **options(**more),
    )  # fmt: skip
    trainer.fit(module, loader, validating, ckpt_path=saving.resume_path())
    end = [module.layer.weight.item(), loader.position]
    (folder / "events.json").write_text(json.dumps([module.events, end]))


@pytest.mark.parametrize(
    ("every", "validate"),
    [
        (4, {}),
        (1, {}),
        (3, {}),
        (2, {"val_check_interval": 2}),
        (1, {"val_check_interval": 3}),
        (4, {"check_val_every_n_epoch": 2}),
        (4, {"max_steps": 12}),
        (1, {"max_steps": 6}),
        (1, {"max_steps": 6, "limit_val_batches": 0, "accumulate_grad_batches": 2}),
        (1, {"max_steps": 100, "max_epochs": 3, "limit_val_batches": 0}),
        (4, {"max_epochs": 3, "limit_val_batches": 0}),
        (1, {"limit_train_batches": 3}),
        (3, {"limit_train_batches": 3}),
        (2, {"limit_train_batches": 3, "val_check_interval": 2}),
        (1, {"limit_train_batches": 3, "max_steps": 7}),
        (1, {"limit_train_batches": 3, "accumulate_grad_batches": 2, "limit_val_batches": 0}),
        (2, {"limit_train_batches": 2}),
    ],
    ids=str,
)
def test_hooks_that_follow_a_save_are_called(every: int, validate: Any, tmp_path: Path) -> None:
    """A run killed twice, anywhere, goes on with what an uninterrupted one does from there on."""

    def read() -> Any:
        return json.loads((tmp_path / "events.json").read_text())

    assert launch(
        1, note_events, tmp_path, f"rocksdb://{tmp_path}/whole", None, every, validate
    ) == [0]
    events, end = read()
    assert len(events) > 10
    for number, kill_at in enumerate(range(3, len(events), 3)):
        url = f"rocksdb://{tmp_path}/{number}"
        run = partial(launch, 1, note_events, tmp_path, url)
        assert run(kill_at, every, validate) == [KILLED]
        if run(4 + number % 3, every, validate) == [KILLED]:
            assert run(None, every, validate) == [0]
        resumed, found = read()
        assert resumed == events[len(events) - len(resumed) :]
        assert found == end


def fit_in_batches(
    folder: Path,
    url: str,
    size: int,
    every: int,
    kill_at: int | None,
    averaged: bool = False,
    drop_last: bool = False,
) -> None:
    """Train on two epochs of 80 samples, and write where the loader and the trainer end."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    loader = wd.Loader(Numbers(80), batch_size=size, shuffle=True, seed=3, drop_last=drop_last)
    saving = LightningCheckpoint(url, every=every, loader=loader)
    averaging = lightning.pytorch.callbacks.StochasticWeightAveraging(0.05, swa_epoch_start=1)
    trainer = lightning.Trainer(
        callbacks=[saving, averaging] if averaged else [saving], plugins=[saving],
        enable_checkpointing=False, **options(max_epochs=2),
    )  # fmt: skip
    module = Eventful(kill_at, lambda step: 0.0)
    trainer.fit(module, loader, ckpt_path=saving.resume_path())
    (folder / "end.json").write_text(json.dumps([loader.position, trainer.current_epoch]))


@pytest.mark.parametrize(
    ("first", "every", "kill_at", "second"),
    [(8, 3, 5, 16), (8, 3, 14, 16), (16, 5, 8, 8), (16, 2, 4, 8), (16, 1, 9, 20), (8, 1, 7, 80)],
)
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_batch_sizes_train_on_whole_epochs(
    first: int, every: int, kill_at: int, second: int, drop_last: bool, tmp_path: Path
) -> None:
    run = partial(launch, 1, partial(fit_in_batches, drop_last=drop_last), tmp_path)
    url = f"rocksdb://{tmp_path}/x"
    assert run(url, first, every, kill_at) == [KILLED]
    assert run(url, second, every, None) == [0]
    position, epoch = json.loads((tmp_path / "end.json").read_text())
    # The last batches of the second epoch may be dropped, but no other epoch is begun.
    assert epoch == 2
    assert 160 - position in range(second if drop_last else 1)


def stop_and_go_on(folder: Path, url: str, stop_at: int | None) -> None:
    """Train on three epochs of 4 batches, without or with a stop in the middle of the second."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    class Stop(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop |= trainer.global_step == stop_at

    class Saves(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.current_epoch == 2:
                saving.save(trainer)

    loader = wd.Loader(Numbers(24), batch_size=6, shuffle=True, seed=3)
    validating = wd.Loader(Numbers(6), batch_size=6, restart=True)
    saving = LightningCheckpoint(url, every=2, loader=loader)
    trainer = lightning.Trainer(
        callbacks=[saving, Stop(), Saves()], plugins=[saving], enable_checkpointing=False,
        **options(max_epochs=3, num_sanity_val_steps=0),
    )  # fmt: skip
    module = Eventful(None, lambda step: 0.0)
    trainer.fit(module, loader, validating, ckpt_path=saving.resume_path())
    (folder / "end.json").write_text(
        json.dumps([loader.position, trainer.current_epoch, module.events])
    )


@pytest.mark.parametrize("stop_at", [5, 6, 7])
def test_a_run_that_was_stopped_in_an_epoch_goes_on_in_it(stop_at: int, tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    assert launch(1, stop_and_go_on, tmp_path, url, stop_at) == [0]
    assert launch(1, stop_and_go_on, tmp_path, url, None) == [0]
    position, epoch, events = json.loads((tmp_path / "end.json").read_text())
    assert (position, epoch) == (72, 3)
    assert [event for event in events if event[0] == "end"][-1][2] == 12
    steps = [(event[1], event[2]) for event in events if event[0] == "train"]
    assert steps == [(step // 4, step) for step in range(steps[0][1], 12)]


def save_at_the_end(folder: Path, url: str, max_steps: int, hook: str) -> None:
    """Train up to a number of steps, or three epochs, and save in a hook of a callback."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    loader = wd.Loader(Numbers(24), batch_size=6, shuffle=True, seed=3)
    saving = LightningCheckpoint(url, every=1000, loader=loader)
    own: Any = lightning.Callback()
    setattr(own, hook, lambda trainer, *_: saving.save(trainer))
    trainer = lightning.Trainer(
        callbacks=[saving, own], plugins=[saving], enable_checkpointing=False,
        **options(max_epochs=3, max_steps=max_steps),
    )  # fmt: skip
    trainer.fit(Eventful(None, lambda step: 0.0), loader, ckpt_path=saving.resume_path())
    (folder / "end.json").write_text(json.dumps([loader.position, trainer.current_epoch]))


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_end"])
@pytest.mark.parametrize("max_steps", [6, 8])
def test_a_save_at_the_end_of_a_run(hook: str, max_steps: int, tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    assert launch(1, save_at_the_end, tmp_path, url, max_steps, hook) == [0]
    assert launch(1, save_at_the_end, tmp_path, url, -1, hook) == [0]
    assert json.loads((tmp_path / "end.json").read_text()) == [72, 3]


def test_a_save_before_an_epoch_starts(tmp_path: Path) -> None:
    """In a callback's hook, when Lightning has counted the epoch: it is trained after a resume."""
    url = f"rocksdb://{tmp_path}/x"
    assert launch(1, stop_and_go_on, tmp_path, url, 9) == [0]
    commits = {commit.generation: commit.step for commit in checkpoint.log(url)}
    own = max(generation for generation, step in commits.items() if step == 8)
    with checkpoint.open(url, generation=own) as found:
        counts = found.tree("extra")["lightning"]["loops"]["fit_loop"]["epoch_progress"]
    assert counts["total"] == {"ready": 2, "started": 2, "processed": 2, "completed": 1}


class Stepwise(Eventful):
    """A scheduler that is stepped with the value of each validation, in the middle of epochs."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        monitored = {"scheduler": plateau, "interval": "step", "frequency": 2, "monitor": "value"}
        return {"optimizer": optimizer, "lr_scheduler": monitored}


def step_a_plateau(folder: Path, url: str, kill_at: int | None) -> None:
    from windeck.checkpoint.lightning import LightningCheckpoint

    loader = wd.Loader(Numbers(24), batch_size=6, shuffle=True, seed=3)
    validating = wd.Loader(Numbers(6), batch_size=6, restart=True)
    saving = LightningCheckpoint(url, every=2, loader=loader)
    trainer = lightning.Trainer(
        callbacks=[saving], plugins=[saving], enable_checkpointing=False,
        **options(max_epochs=2, num_sanity_val_steps=0, val_check_interval=2),
    )  # fmt: skip
    module = Stepwise(kill_at, lambda step: float(step))
    trainer.fit(module, loader, validating, ckpt_path=saving.resume_path())
    (folder / "end.json").write_text(json.dumps(loader.position))


@pytest.mark.parametrize("kill_at", [4, 5, 10, 12])
def test_a_plateau_that_is_stepped_in_epochs_is_resumed(kill_at: int, tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    assert launch(1, step_a_plateau, tmp_path, url, kill_at) == [KILLED]
    assert launch(1, step_a_plateau, tmp_path, url, None) == [0]
    assert json.loads((tmp_path / "end.json").read_text()) == 48


def test_weight_averaging_is_resumed(tmp_path: Path) -> None:
    """The callback of Lightning removes the saved schedulers while it resumes."""
    url = f"rocksdb://{tmp_path}/x"
    assert launch(1, fit_in_batches, tmp_path, url, 8, 1, 15, True) == [KILLED]
    assert launch(1, fit_in_batches, tmp_path, url, 8, 1, None, True) == [0]
    assert json.loads((tmp_path / "end.json").read_text()) == [160, 2]
