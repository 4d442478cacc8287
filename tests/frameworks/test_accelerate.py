"""accelerate trains on a Loader and on a DataLoader: killed and resumed, on one and two ranks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from models.oracle import Numbers, Run, Turn, steps, turned
from support.launched import launch
from support.pages import named_block
from windeck import Loader, Stream
from windeck.checkpoint.accelerate import require_registered_loaders
from windeck.loader import IterDataset, MapDataset, OrderSampler, collate

accelerate = pytest.importorskip("accelerate")

KILLED = -signal.SIGKILL
SIZE, EPOCHS = 40, 3
#: The documented loops.
PAGE = "docs/frameworks.md"
train = named_block(PAGE, "def train_with_accelerate")["train_with_accelerate"]
sampled = named_block(PAGE, "def sampled_with_accelerate")["sampled_with_accelerate"]


class Model(torch.nn.Module):
    """Writes the samples it is trained on; counts them in a buffer, which checkpoints hold."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        super().__init__()
        self.folder, self.kill_at = folder, kill_at
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.trained: torch.Tensor
        self.register_buffer("trained", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        if int(self.trained) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self.folder, int(self.trained), batch["sample"].tolist())
        self.trained += 1
        loss: torch.Tensor = (self.weight * batch["row"].mean()).sum()
        return loss


def write(folder: Path, step: int, samples: list[int]) -> None:
    rank = os.environ.get("RANK", "0")
    with open(folder / f"rank{rank}.jsonl", "a") as file:
        file.write(json.dumps([step, samples]) + "\n")


def trained(folder: Path, rank: int) -> list[list[int]]:
    """Return the samples of each step; those of a step that was trained again are the last."""
    lines = (folder / f"rank{rank}.jsonl").read_text().splitlines()
    by_step = dict(json.loads(line) for line in lines)
    return [by_step[step] for step in range(len(by_step))]


def fit(folder: Path, kill_at: int | None) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model(folder, kill_at)
    batch_size = 6 // accelerator.num_processes
    loader = Loader(Numbers(SIZE), batch_size=batch_size, order=Turn, epochs=EPOCHS)
    train(accelerator, loader, model, torch.optim.SGD(model.parameters()), folder, every=4)
    accelerator.end_training()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loader_killed_and_resumed(ranks: int, tmp_path: Path) -> None:
    assert KILLED in launch(ranks, fit, tmp_path, 11)
    assert launch(ranks, fit, tmp_path, None) == [0] * ranks
    run = steps(Run(SIZE, 6 // ranks, ranks))
    whole = [next(run)[0] for _ in range(7 * EPOCHS)]
    for rank in range(ranks):
        assert trained(tmp_path, rank) == [[turned(SIZE, p) for p in step[rank]] for step in whole]
        assert len((tmp_path / f"rank{rank}.jsonl").read_text().splitlines()) < 21 + 5


def prepared(folder: Path, kill_at: int | None) -> None:
    """Do as `fit` with a loader that is prepared as well, and with one of validation."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model(folder, kill_at)
    loader = Loader(Numbers(SIZE), batch_size=6, order=Turn, epochs=EPOCHS)
    validation = Loader(Numbers(5), batch_size=2, restart=True)
    prepared_loader, prepared_validation = accelerator.prepare(loader, validation)
    assert (prepared_loader, prepared_validation) == (loader, validation)
    assert [batch["sample"].tolist() for batch in validation] == [[0, 1], [2, 3], [4]]
    train(accelerator, loader, model, torch.optim.SGD(model.parameters()), folder, every=4)
    accelerator.end_training()


def test_a_loader_that_is_prepared_is_the_same(tmp_path: Path) -> None:
    assert KILLED in launch(1, prepared, tmp_path, 11)
    assert launch(1, prepared, tmp_path, None) == [0]
    run = steps(Run(SIZE, 6, 1))
    whole = [next(run)[0][0] for _ in range(7 * EPOCHS)]
    assert trained(tmp_path, 0) == [[turned(SIZE, p) for p in step] for step in whole]
    assert len((tmp_path / "rank0.jsonl").read_text().splitlines()) < 21 + 5


class Both:
    """An object of a user that saves two loaders."""

    def __init__(self, first: Loader, second: Loader) -> None:
        self.loaders = [first, second]

    def state_dict(self) -> dict[str, Any]:
        return {"loaders": [loader.state_dict() for loader in self.loaders]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for loader, saved in zip(self.loaders, state["loaders"], strict=True):
            loader.load_state_dict(saved)


def loader_of(size: int, **options: Any) -> Loader:
    return Loader(Numbers(size), batch_size=3, **options)


@pytest.mark.parametrize("prepares", [False, True])
def test_an_iterated_loader_that_is_not_registered_is_refused(
    prepares: bool, tmp_path: Path
) -> None:
    before = loader_of(SIZE)
    next(iter(before))  # as for the statistics of its first batch
    accelerator = accelerate.Accelerator(cpu=True)
    require_registered_loaders(accelerator)
    loader, validation = loader_of(SIZE), loader_of(7, restart=True)
    if prepares:
        loader, validation = accelerator.prepare(loader, validation)
    for batch in validation:
        assert set(batch) == {"sample", "row"}
    next(iter(loader_of(9)))  # gone, so nothing resumes it
    accelerator.save_state(tmp_path / "first")  # nothing is lost yet
    next(iter(loader))
    lost = (
        r"^Loader\(.* position=3\) is iterated and not saved, so a resumed run would begin at its "
        r"first batch; expected it as an argument of accelerator.register_for_checkpointing\(\), "
        r"or with restart=True, as for validation$"
    )
    for call in (accelerator.save_state, accelerator.load_state):
        with pytest.raises(RuntimeError, match=lost):
            call(tmp_path / "first")
    accelerator.register_for_checkpointing(loader)
    accelerator.save_state(tmp_path / "second")
    second, third = loader_of(SIZE), loader_of(SIZE)
    for other in (second, third):
        next(iter(other))
    accelerator.register_for_checkpointing(Both(second, third))
    accelerator.save_state(tmp_path / "third")
    saved = [one.state_dict() for one in (loader, second, third)]
    for one in (loader, second, third):
        next(iter(one))
    accelerator.load_state(tmp_path / "third")
    assert [one.state_dict() for one in (loader, second, third)] == saved
    next(iter(before))
    with pytest.raises(RuntimeError, match=r"position=6\) is iterated and not saved"):
        accelerator.save_state(tmp_path / "fourth")
    with pytest.raises(AttributeError, match="'Loader' object has no attribute 'dataset'"):
        accelerator.prepare_data_loader(loader)
    accelerator.end_training()


def sample(folder: Path, kill_at: int | None) -> None:
    """Two epochs of a DataLoader with a sampler; its state is written after each batch."""
    accelerator = accelerate.Accelerator(cpu=True)
    sampler = OrderSampler(SIZE, order=Turn, rank=0, world_size=1)
    path = folder / "state.json"
    step, saved = json.loads(path.read_text()) if path.exists() else (0, None)
    while step < 2 * (13 // accelerator.num_processes):
        for batch, state in sampled(accelerator, Rows(), sampler, 3, saved):
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            write(folder, step, batch.tolist())
            step, saved = step + 1, state
            if accelerator.is_main_process:
                (folder / "new").write_text(json.dumps([step, saved]))
                os.replace(folder / "new", path)
            accelerator.wait_for_everyone()
    accelerator.end_training()


class Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(("ranks", "kill_at"), [(1, 15), (2, 8)])
def test_a_sampler_killed_and_resumed(ranks: int, kill_at: int, tmp_path: Path) -> None:
    assert KILLED in launch(ranks, sample, tmp_path, kill_at)
    assert launch(ranks, sample, tmp_path, None) == [0] * ranks
    for rank in range(ranks):
        assert trained(tmp_path, rank) == [
            [turned(SIZE, SIZE * epoch + p) for p in range(3 * batch, 3 * batch + 3)]
            for epoch in range(2)
            for batch in range(rank, 13 // ranks * ranks, ranks)
        ]


def twice(folder: Path) -> None:
    """Samplers and datasets that would be sharded twice raise on every rank."""
    accelerator = accelerate.Accelerator(cpu=True)
    source = Numbers(SIZE)
    for workers in (0, 2):
        sampler = OrderSampler(SIZE)
        again = accelerator.prepare(
            DataLoader(
                MapDataset(source), 3, sampler=sampler, num_workers=workers, collate_fn=collate
            )
        )
        with pytest.raises(ValueError, match=r"^OrderSampler serves rank \d of 2, and BatchSa"):
            next(iter(again))
    dataset = IterDataset(Stream(source), batch_size=3)
    with pytest.raises(ValueError, match=r"^IterDataset serves rank \d of 2, and DataLoaderDisp"):
        next(iter(accelerator.prepare(DataLoader(dataset, batch_size=None))))
    # As it is, it reads the share of each rank.
    for step, batch in enumerate(DataLoader(dataset, batch_size=None)):
        write(folder, step, batch["sample"].tolist())
    accelerator.end_training()


def test_nothing_is_sharded_twice(tmp_path: Path) -> None:
    assert launch(2, twice, tmp_path) == [0, 0]
    served = [p for rank in range(2) for batch in trained(tmp_path, rank) for p in batch]
    assert sorted(served) == list(range(SIZE))
