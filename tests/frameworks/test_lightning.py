"""Lightning trains on a Loader: killed, resumed and validated, in one process and in two."""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from models.oracle import Numbers, Run, Turn, steps, turned
from support.launched import launch
from support.pages import named_block
from windeck import Loader, Mixture
from windeck.loader import MapDataset, OrderSampler, collate

lightning = pytest.importorskip("lightning")

KILLED = -signal.SIGKILL
#: Epochs of 7 steps: 40 samples in batches of 6, or in batches of 3 on each of two ranks.
SIZE, EPOCHS, STEPS = 40, 3, 7


def mixture() -> Mixture:
    return Mixture({"a": (Numbers(50), 2), "b": (Numbers(70, "b"), 1)}, seed=4)


#: The documented callback.
LoaderState = named_block("docs/frameworks.md", "class LoaderState(lightning")["LoaderState"]


class Data(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
    def __init__(self, loader: Loader, validating: Loader) -> None:
        super().__init__()
        self.loader, self.validating = loader, validating

    def train_dataloader(self) -> Loader:
        return self.loader

    def val_dataloader(self) -> Loader:
        return self.validating


class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Writes the samples it is trained on; counts them in a buffer, which checkpoints hold."""

    def __init__(self, folder: Path, kill_at: int | None, fail_at: int | None) -> None:
        super().__init__()
        self.folder, self.kill_at, self.fail_at = folder, kill_at, fail_at
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))

    def write(self, kind: str, batch: dict[str, Any]) -> None:
        line = [kind, int(self.trained), batch["sample"].tolist()]
        with open(self.folder / f"rank{self.global_rank}.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        if int(self.trained) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if int(self.trained) == self.fail_at:
            raise RuntimeError("a loss of NaN, say")
        self.write("train", batch)
        self.trained += 1
        loss: torch.Tensor = (self.weight * batch["row"].mean()).sum()
        return loss

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        self.write("validate", batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(
    folder: Path,
    data: str,
    every: int | None,
    kill_at: int | None = None,
    fail_at: int | None = None,
    resume: bool = False,
    **trainer: Any,
) -> None:
    """Fit, saving every so many batches or at the end of epochs; from the last checkpoint."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if data == "mixture":
        loader = Loader(mixture(), batch_size=6 // ranks, steps_per_epoch=STEPS)
    else:
        loader = Loader(Numbers(SIZE), batch_size=6 // ranks, order=Turn)
    validating = Loader(Numbers(10), batch_size=2, restart=True)
    saving = lightning.pytorch.callbacks.ModelCheckpoint(
        folder,
        "{step}",
        save_top_k=-1,
        every_n_train_steps=every,
        every_n_epochs=None if every else 1,
        save_on_train_epoch_end=True if every is None else None,
    )
    failing = lightning.pytorch.callbacks.OnExceptionCheckpoint(folder, "failed")
    options = {"max_epochs": EPOCHS, "limit_val_batches": 2, "num_sanity_val_steps": 2, **trainer}
    fitting = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[LoaderState(loader), saving, *([failing] if fail_at else [])],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    checkpoints = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    fitting.fit(
        Model(folder, kill_at, fail_at),
        datamodule=Data(loader, validating),
        ckpt_path=checkpoints[-1] if resume else None,
    )


def written(folder: Path, rank: int, kind: str = "train") -> list[tuple[int, list[int]]]:
    """Return (batches trained on before, samples) of each batch of a rank, in order."""
    lines = map(json.loads, (folder / f"rank{rank}.jsonl").read_text().splitlines())
    return [(number, samples) for found, number, samples in lines if found == kind]


def trained(folder: Path, rank: int) -> list[list[int]]:
    """Return the samples of each step; those of a step that was trained again are the last."""
    by_step = dict(written(folder, rank))
    assert list(by_step) == sorted(by_step)
    return [by_step[step] for step in range(len(by_step))]


def expected(data: str, ranks: int, rank: int) -> list[list[int]]:
    """Return the samples of each step of a run that nothing interrupts."""
    if data == "mixture":
        samples = [list(pair)[1] for pair in mixture().samples(np.arange(6 * STEPS * EPOCHS))]
        shares = [samples[p : p + 6] for p in range(0, len(samples), 6)]
        return [share[rank * 6 // ranks :][: 6 // ranks] for share in shares]
    run = steps(Run(SIZE, 6 // ranks, ranks))
    return [[turned(SIZE, p) for p in shares[rank]] for shares, _ in (next(run) for _ in range(21))]


@pytest.mark.parametrize(
    ("data", "ranks", "every", "kill_at"),
    [
        pytest.param("mixture", 1, 2, 11, id="middle of an epoch of steps"),
        pytest.param("epochs", 1, None, 9, id="end of an epoch"),
        pytest.param("epochs", 2, 3, 11, id="two processes, middle of an epoch"),
        pytest.param("mixture", 2, None, 16, id="two processes, end of an epoch of steps"),
    ],
)
def test_killed_and_resumed(
    data: str, ranks: int, every: int | None, kill_at: int, tmp_path: Path
) -> None:
    assert KILLED in launch(ranks, fit, tmp_path, data, every, kill_at)
    assert launch(ranks, fit, tmp_path, data, every, None, None, True) == [0] * ranks
    for rank in range(ranks):
        assert trained(tmp_path, rank) == expected(data, ranks, rank)
        assert len(written(tmp_path, rank)) < 21 + 8, "it was resumed"
        seen = [samples for _, samples in written(tmp_path, rank, "validate")]
        first = [[p, p + 1] for p in (2 * rank, 2 * rank + 2 * ranks)]
        assert seen == first * (len(seen) // 2), "the sanity check moves nothing"
        assert len(seen) >= 2 * (1 + EPOCHS)


def fail_and_fit(folder: Path) -> None:
    """Fail in a batch and go on with it; with accumulated gradients, and one process less."""
    with pytest.raises(RuntimeError, match=r"^a loss of NaN, say$"):
        fit(folder, "epochs", 1000, None, 9, accumulate_grad_batches=2)
    fit(folder, "epochs", 1000, None, None, True, accumulate_grad_batches=2)


def test_a_batch_that_failed_is_trained_on_after_the_exceptions_checkpoint(tmp_path: Path) -> None:
    assert launch(1, fail_and_fit, tmp_path) == [0]
    assert trained(tmp_path, 0) == expected("epochs", 1, 0)
    assert [step for step, _ in written(tmp_path, 0)] == list(range(21)), "each once"


class Noting(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """Writes the steps after which it validates; killed before a training step."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        super().__init__()
        self.folder, self.kill_at = folder, kill_at
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        if self.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(self.folder / "trained", "a") as file:
            file.write(f"{self.global_step}\n")
        loss: torch.Tensor = (self.weight * batch["row"].mean()).sum()
        return loss

    def validation_step(self, batch: dict[str, Any], _: int) -> None: ...

    def on_validation_end(self) -> None:
        with open(self.folder / "validated", "a") as file:
            file.write(f"{self.global_step}\n")

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit_validating(folder: Path, interval: int | float, kill_at: int | None) -> None:
    """Train on 3 epochs of 7 steps, as the page says: saving after each validation."""
    loader = Loader(Numbers(SIZE), batch_size=6, order=Turn)
    saving = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1)
    fitting = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[LoaderState(loader), saving], max_epochs=EPOCHS,
        val_check_interval=interval, num_sanity_val_steps=0,
    )  # fmt: skip
    checkpoints = sorted(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    validating = Loader(Numbers(10), batch_size=2, restart=True)
    resumed = checkpoints[-1] if kill_at is None else None
    fitting.fit(Noting(folder, kill_at), loader, validating, ckpt_path=resumed)


@pytest.mark.parametrize(("interval", "kill_at"), [(3, 11), (3, 8), (2, 13), (1.0, 9), (0.5, 19)])
def test_every_validation_is_made_once(interval: int | float, kill_at: int, tmp_path: Path) -> None:
    assert launch(1, fit_validating, tmp_path, interval, kill_at) == [KILLED]
    before = (tmp_path / "trained").read_text().split()
    assert launch(1, fit_validating, tmp_path, interval, None) == [0]
    after = (tmp_path / "trained").read_text().split()[len(before) :]
    assert 0 < int(after[0]) <= kill_at, "it was resumed"
    assert [*range(int(after[0])), *map(int, after)] == list(range(21))
    every = STEPS if interval == 1.0 else int(interval * STEPS) if interval < 1 else int(interval)
    expected = [epoch * STEPS + n for epoch in range(3) for n in range(every, STEPS + 1, every)]
    assert [int(step) for step in (tmp_path / "validated").read_text().split()] == expected


def validate_the_rest(folder: Path) -> None:
    """A validation that is not whole warns, and only that."""
    cases: list[tuple[dict[str, int], bool, bool]] = [
        ({}, True, True),
        ({}, False, False),
        ({"num_sanity_val_steps": 0}, False, True),
        ({"num_sanity_val_steps": 0, "limit_val_batches": 2}, False, False),
    ]
    for limits, restart, whole in cases:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, max_epochs=2,
            enable_model_summary=False, enable_checkpointing=False, **limits,
        )  # fmt: skip
        loader = Loader(Numbers(SIZE), batch_size=6)
        validating = Loader(Numbers(20), batch_size=2, restart=restart)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(Model(folder, None, None), loader, validating)
        found = [str(one.message) for one in caught if "restart=True" in str(one.message)]
        assert bool(found) != whole, found
        if found:
            assert re.match(r"this loop of Lightning will have .* from position 4 on", found[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))
        assert len(list(loader)) == STEPS - 1, "a loop of the user's has the rest without a warning"


def test_a_validation_that_is_not_whole_warns(tmp_path: Path) -> None:
    assert launch(1, validate_the_rest, tmp_path) == [0]


def test_two_processes_are_continued_by_one(tmp_path: Path) -> None:
    assert KILLED in launch(2, fit, tmp_path, "mixture", None, 9)
    assert launch(1, fit, tmp_path, "mixture", None, None, None, True) == [0]
    assert trained(tmp_path, 0)[:STEPS] == expected("mixture", 2, 0)[:STEPS]
    assert dict(written(tmp_path, 1))[STEPS - 1] == expected("mixture", 2, 1)[STEPS - 1]
    assert trained(tmp_path, 0)[STEPS:] == expected("mixture", 1, 0)[STEPS:]


def test_a_loader_without_a_length_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`steps_per_epoch` gives it one$"):
        LoaderState(Loader(mixture(), batch_size=2))


def shard_again(folder: Path) -> None:
    """Lightning shards the DataLoader of a sampler that has shared already, unless told not to."""
    for use in (True, False):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            use_distributed_sampler=use,
        )
        sampler = OrderSampler(SIZE, order=Turn, drop_last=True)
        batches = DataLoader(MapDataset(Numbers(SIZE)), 4, sampler=sampler, collate_fn=collate)
        model = Model(folder, None, None)
        if use:
            with pytest.raises(ValueError, match=r"^OrderSampler serves rank \d of 2, and Distrib"):
                trainer.fit(model, batches)
        else:
            trainer.fit(model, batches)


def test_nothing_is_sharded_twice(tmp_path: Path) -> None:
    assert launch(2, shard_again, tmp_path) == [0, 0]
    served = [p for rank in range(2) for batch in trained(tmp_path, rank) for p in batch]
    assert sorted(served) == list(range(SIZE))
