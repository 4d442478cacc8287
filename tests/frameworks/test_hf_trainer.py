"""Hugging Face's Trainer trains on a Loader: killed and resumed, on one and two ranks."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.oracle import Numbers, Run, Turn, steps, turned
from support.launched import launch
from support.pages import named_block
from windeck import Loader, Mixture, Stream
from windeck.loader import IterDataset

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("transformers.trainer")

KILLED = -signal.SIGKILL
SIZE, EPOCHS, STEPS = 40, 3, 7
#: The documented trainer.
LoaderTrainer = named_block("docs/frameworks.md", "class LoaderTrainer")["LoaderTrainer"]


def mixture() -> Mixture:
    return Mixture({"a": (Numbers(50), 2), "b": (Numbers(70, "b"), 1)}, seed=4)


class Model(torch.nn.Module):
    """Writes the samples it is trained on; counts them in a buffer, which checkpoints hold."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        super().__init__()
        self.folder, self.kill_at = folder, kill_at
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.trained: torch.Tensor
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))

    def forward(self, sample: torch.Tensor, row: torch.Tensor) -> dict[str, torch.Tensor]:
        if int(self.trained) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        rank = os.environ.get("RANK", "0")
        with open(self.folder / f"rank{rank}.jsonl", "a") as file:
            file.write(json.dumps([int(self.trained), sample.tolist()]) + "\n")
        self.trained += 1
        return {"loss": (self.weight * row.mean()).sum()}


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_total_limit=None,
        **options,
    )


def fit(folder: Path, data: str, every: int, kill_at: int | None, resume: bool) -> None:
    options = arguments(folder, save_steps=every)
    batch_size = 6 // options.world_size
    if data == "mixture":
        loader = Loader(mixture(), batch_size=batch_size, steps_per_epoch=STEPS)
    else:
        loader = Loader(Numbers(SIZE), batch_size=batch_size, order=Turn)
    trainer = LoaderTrainer(loader, model=Model(folder, kill_at), args=options)
    trainer.train(resume_from_checkpoint=resume)


def trained(folder: Path, rank: int) -> list[list[int]]:
    """Return the samples of each step; those of a step that was trained again are the last."""
    lines = (folder / f"rank{rank}.jsonl").read_text().splitlines()
    assert len(lines) < STEPS * EPOCHS + 8, "it was resumed"
    by_step = dict(json.loads(line) for line in lines)
    return [by_step[step] for step in range(len(by_step))]


def expected(data: str, ranks: int, rank: int) -> list[list[int]]:
    """Return the samples of each step of a run that nothing interrupts."""
    if data == "mixture":
        samples = [sample for _, sample in mixture().samples(np.arange(6 * STEPS * EPOCHS))]
        shares = [samples[p : p + 6] for p in range(0, len(samples), 6)]
        return [share[rank * 6 // ranks :][: 6 // ranks] for share in shares]
    run = steps(Run(SIZE, 6 // ranks, ranks))
    whole = [next(run)[0] for _ in range(STEPS * EPOCHS)]
    return [[turned(SIZE, p) for p in shares[rank]] for shares in whole]


@pytest.mark.parametrize(
    ("data", "ranks", "every", "kill_at"),
    [
        pytest.param("epochs", 1, 4, 11, id="middle of an epoch"),
        pytest.param("epochs", 2, STEPS, 9, id="two processes, end of an epoch"),
        pytest.param("mixture", 2, 4, 10, id="two processes, middle of an epoch of steps"),
    ],
)
def test_killed_and_resumed(
    data: str, ranks: int, every: int, kill_at: int, tmp_path: Path
) -> None:
    assert KILLED in launch(ranks, fit, tmp_path, data, every, kill_at, False)
    assert launch(ranks, fit, tmp_path, data, every, None, True) == [0] * ranks
    for rank in range(ranks):
        assert trained(tmp_path, rank) == expected(data, ranks, rank)


@pytest.mark.parametrize("data", ["epochs", "endless"])
def test_epochs_are_counted_on_after_a_resume(data: str, tmp_path: Path) -> None:
    run = partial(launch, 1, fit_counting, tmp_path, data)
    assert run(10) == [KILLED]
    assert run(None) == [0]
    steps = (STEPS if data == "epochs" else STEPS * EPOCHS) * 1.0
    lines = (tmp_path / "epochs.jsonl").read_text().splitlines()
    found = dict(json.loads(line) for line in lines)
    assert len(lines) < STEPS * EPOCHS + 4, "it was resumed"
    assert found == {n: pytest.approx(n / steps) for n in range(1, STEPS * EPOCHS + 1)}


def fit_counting(folder: Path, data: str, kill_at: int | None) -> None:
    """Write the number of epochs after each step, as a callback of the user's sees it."""

    class Counting(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            with open(folder / "epochs.jsonl", "a") as file:
                file.write(json.dumps([state.global_step, state.epoch]) + "\n")

    if data == "endless":
        loader = Loader(mixture(), batch_size=6)
        options = arguments(folder, save_steps=4, max_steps=STEPS * EPOCHS)
    else:
        loader = Loader(Numbers(SIZE), batch_size=6, order=Turn)
        options = arguments(folder, save_steps=4)
    trainer = LoaderTrainer(loader, model=Model(folder, kill_at), args=options)
    trainer.add_callback(Counting())
    trainer.train(resume_from_checkpoint=kill_at is None)
    (saved,) = folder.glob(f"checkpoint-{STEPS * EPOCHS}")
    state = json.loads((saved / "trainer_state.json").read_text())
    assert state["epoch"] == trainer.state.epoch == pytest.approx(EPOCHS if data == "epochs" else 1)


def test_two_processes_are_continued_by_one(tmp_path: Path) -> None:
    assert KILLED in launch(2, fit, tmp_path, "epochs", 4, 10, False)
    assert launch(1, fit, tmp_path, "epochs", 4, None, True) == [0]
    assert trained(tmp_path, 0)[8:] == expected("epochs", 1, 0)[8:]
    lines = (tmp_path / "rank1.jsonl").read_text().splitlines()
    assert [samples for _, samples in map(json.loads, lines)][:8] == expected("epochs", 2, 1)[:8]


def skip(folder: Path) -> None:
    """A trainer that skips batches itself is refused, with the recipe's place."""
    trainer = LoaderTrainer(
        Loader(Numbers(SIZE), batch_size=6),
        model=Model(folder, None),
        args=arguments(folder, save_steps=4, max_steps=5),
    )
    trainer.train()
    trainer.args.ignore_data_skip = False
    with pytest.raises(AttributeError, match=r"ignore_data_skip=True.*CheckpointTrainer does$"):
        trainer.train(resume_from_checkpoint=True)


def test_skipping_batches_is_refused(tmp_path: Path) -> None:
    assert launch(1, skip, tmp_path) == [0]


def refuse(folder: Path) -> None:
    dataset = IterDataset(Stream(Numbers(SIZE)), batch_size=3)
    options = arguments(folder, save_steps=4, max_steps=5)
    trainer = transformers.Trainer(Model(folder, None), options, train_dataset=dataset)
    with pytest.raises(ValueError, match=r"^IterDataset serves rank \d of 2, and DataLoaderDisp"):
        trainer.train()


def test_an_iter_dataset_does_not_hang_two_ranks(tmp_path: Path) -> None:
    assert launch(2, refuse, tmp_path) == [0, 0]
