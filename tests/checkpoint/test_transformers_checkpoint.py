"""Hugging Face's Trainer with its state in one windeck checkpoint: killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.adapted_runs import (
    EPOCHS,
    KILLS,
    STEPS,
    Scorer,
    check_continued_by_one,
    check_resumed,
    make_loader,
    write_end,
)
from support.launched import launch
from support.pages import named_block

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("transformers.trainer")

#: The documented callback and call.
page = named_block("docs/frameworks.md", "def trainer_of_one_checkpoint")
trainer_of_one_checkpoint = page["trainer_of_one_checkpoint"]


def make_trainer(folder: Path, url: str, kill_at: int | None, every: int) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        num_train_epochs=EPOCHS,
        learning_rate=0.01,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=None,
    )
    return trainer_of_one_checkpoint(url, make_loader(), Scorer(kill_at), arguments)


def fit(folder: Path, url: str, kill_at: int | None, every: int) -> None:
    trainer = make_trainer(folder, url, kill_at, every)
    torch.manual_seed(7)
    # Of a store without a checkpoint, to resume begins at step 0.
    trainer.train(resume_from_checkpoint=kill_at is None)
    assert trainer.state.global_step == STEPS * EPOCHS
    write_end(folder, trainer.model, trainer.optimizer)
    assert not list((folder / "out").glob("checkpoint-*"))


@pytest.mark.parametrize(("count", "every", "kill_at"), KILLS)
def test_killed_and_resumed(count: int, every: int, kill_at: int, tmp_path: Path) -> None:
    check_resumed(fit, tmp_path, count, every, kill_at, table="user")


def test_two_processes_are_continued_by_one(tmp_path: Path) -> None:
    check_continued_by_one(fit, tmp_path)


def refuse(folder: Path, url: str) -> None:
    trainer = make_trainer(folder, url, None, 4)
    with pytest.raises(TypeError, match="`resume_from_checkpoint` must be a bool, got 'checkpoint"):
        trainer.train(resume_from_checkpoint="checkpoint-4")
    trainer.args.load_best_model_at_end = True
    with pytest.raises(ValueError, match="`load_best_model_at_end` must be False, got True"):
        trainer_of_one_checkpoint(url, make_loader(), Scorer(None), trainer.args)


def test_what_is_refused(tmp_path: Path) -> None:
    assert launch(1, refuse, tmp_path, f"rocksdb://{tmp_path}/run") == [0]
