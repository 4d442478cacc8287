"""accelerate with its state in one windeck checkpoint: killed and resumed, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
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


def load_plain(folder: Path, url: str) -> None:
    accelerator = make_accelerator()
    saving, model, _ = start(accelerator, url)
    checkpoint.save(url, step=1, model=dict(model.state_dict()))
    with pytest.raises(
        ValueError, match=r"step 1> was not saved by Acc.* it has model, expected extra/accelerate"
    ):
        saving.load()


def test_a_checkpoint_of_plain_save_is_refused(tmp_path: Path) -> None:
    assert launch(1, load_plain, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


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


def lose_loader(folder: Path, url: str) -> None:
    """A save and a load are refused while a loader would begin anew after a resume."""
    from windeck.checkpoint.accelerate import AccelerateCheckpoint

    before, loader = make_loader(), make_loader()
    next(iter(before))
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = accelerator.prepare(Scorer(None), loader)[0]
    saving = AccelerateCheckpoint(accelerator, url, model=model)
    saving.save(0)
    next(iter(loader))
    lost = r"position=\d+\) is iterated and not saved, .* expected it as loader= of AccelerateCheck"
    for call in (lambda: saving.save(1), saving.load):
        with pytest.raises(RuntimeError, match=lost):
            call()
    assert [commit.step for commit in checkpoint.log(url)] == [0]
    saving = AccelerateCheckpoint(accelerator, url, model=model, loader=loader)
    next(iter(loader))
    saving.save(2)
    state = loader.state_dict()
    next(iter(loader))
    saving.load()
    assert loader.state_dict() == state
    accelerator.end_training()


def test_a_loader_is_not_lost(tmp_path: Path) -> None:
    assert launch(1, lose_loader, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def make_accelerator() -> Any:
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)


def saving_of(
    accelerator: Any, url: str, model: Any, optimizers: Sequence[Any], schedulers: Sequence[Any]
) -> Any:
    from windeck.checkpoint.accelerate import AccelerateCheckpoint

    return AccelerateCheckpoint(
        accelerator, url, model=model, scheduler=schedulers or None,
        optimizer=optimizers[0] if len(optimizers) == 1 else tuple(optimizers),
    )  # fmt: skip


def start(
    accelerator: Any, url: str, schedulers: int = 0, optimizers: int = 1
) -> tuple[Any, Scorer, list[Any]]:
    """Return a checkpoint of a new model with some optimizers and schedulers, and all of them."""
    torch.manual_seed(7)
    model = Scorer(None)
    groups = (
        ([*model.layer.parameters()],) if optimizers == 1 else ([p] for p in model.parameters())
    )
    plain = [torch.optim.Adam(group, lr=0.01) for group in groups]
    model, *prepared = accelerator.prepare(model, *plain)
    scheduled = [
        accelerator.prepare(torch.optim.lr_scheduler.StepLR(plain[i % len(plain)], 1, 0.5))
        for i in range(schedulers)
    ]
    return saving_of(accelerator, url, model, prepared, scheduled), model, [*prepared, *scheduled]


def train_batches(accelerator: Any, model: Any, parts: list[Any], batches: range) -> None:
    """Train on batches, two to a step of all optimizers and schedulers."""
    loader = make_loader()
    every = list(loader)
    for number in batches:
        with accelerator.accumulate(model):
            batch = every[number % len(every)]
            accelerator.backward(model(batch["sample"], batch["row"])["loss"])
            for part in parts:
                part.step()
            if accelerator.sync_gradients:
                model.user.step()
            model.zero_grad() if accelerator.sync_gradients else None


def contents(model: Any, parts: list[Any]) -> list[Any]:
    optimizers = [part for part in parts if hasattr(part, "optimizer")]
    rates = [group["lr"] for part in optimizers for group in part.param_groups]
    with model.user.core.snapshot() as snapshot:
        rows = snapshot.read(model.user.core.first_bucket, model.user.core.end_bucket)
    found = [digest_of(model, part).hexdigest() for part in optimizers]
    return [*found, rates, model.user.core.clock, *(rows[name].tobytes() for name in sorted(rows))]


def several(folder: Path, url: str) -> None:
    """Two optimizers and schedulers are saved and loaded, also into a model that has rows."""
    accelerator = make_accelerator()
    saving, model, parts = start(accelerator, url, 2, 2)
    train_batches(accelerator, model, parts, range(6))
    saving.save(6)
    saved = contents(model, parts)
    train_batches(accelerator, model, parts, range(6, 8))
    end = contents(model, parts)
    assert saving.load().step == 6
    assert contents(model, parts) == saved
    saving, model, parts = start(accelerator, url, 2, 2)
    saving.load()
    train_batches(accelerator, model, parts, range(6, 8))
    assert contents(model, parts) == end != saved


def test_several_optimizers_and_schedulers(tmp_path: Path) -> None:
    assert launch(1, several, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def resume_sequence(folder: Path, url: str) -> None:
    """`MultiStepLR` has a Counter in its state, which it needs when its turn comes."""
    rates: list[Any] = []
    accelerator = make_accelerator()
    for saves in (True, False):
        _, model, (optimizer,) = start(accelerator, url)
        plain, kinds = optimizer.optimizer, torch.optim.lr_scheduler
        scheduler = kinds.SequentialLR(
            plain, [kinds.ConstantLR(plain, 0.5), kinds.MultiStepLR(plain, [1, 2, 2])], [2]
        )
        saving = saving_of(accelerator, url, model, [optimizer], [scheduler])
        saving.save(0) if saves else saving.load()
        for _ in range(5):
            plain.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr())
    assert rates[:5] == rates[5:]


def test_a_sequence_of_schedulers_is_resumed(tmp_path: Path) -> None:
    assert launch(1, resume_sequence, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def compare(folder: Path, url: str) -> None:
    """A difference from the checkpoint is an error, and everything is as it was."""
    accelerator = make_accelerator()
    saving, model, parts = start(accelerator, url, 1)
    train_batches(accelerator, model, parts, range(1))
    model.user.step()
    with pytest.raises(RuntimeError, match=r"step 1 is between .* accelerator\.sync_gradients is"):
        saving.save(1)
    train_batches(accelerator, model, parts, range(1, 2))
    saving.save(2)
    bare, none, given = start(accelerator, f"{url}-bare")
    train_batches(accelerator, none, given, range(2))
    bare.save(2)
    for saved, schedulers, optimizers, message in (
        (url, 0, 1, "`scheduler` of AccelerateCheckpoint has 0 schedulers, expected 1 as saved"),
        (f"{url}-bare", 1, 1, "has 1 schedulers, expected 0 as saved in <checkpoint windeck, gen"),
        (url, 1, 2, "`optimizer` of AccelerateCheckpoint has 2 optimizers, expected 1 as saved"),
    ):
        saving, model, parts = start(accelerator, saved, schedulers, optimizers)
        train_batches(accelerator, model, parts, range(4))
        before = contents(model, parts)
        with pytest.raises(ValueError, match=message):
            saving.load()
        assert contents(model, parts) == before
    saving, model, parts = start(accelerator, f"{url}-two", 2, 2)
    train_batches(accelerator, model, parts, range(2))
    saving.save(2)
    before = contents(model, parts)
    first, second, *scheduled = parts
    plain, kinds = first.optimizer, torch.optim.lr_scheduler
    other = torch.optim.RMSprop(first.param_groups[0]["params"], lr=0.1)
    with pytest.raises(ValueError, match="optimizer 0 is of another class than in <checkpoint"):
        saving_of(accelerator, f"{url}-two", model, [other, second], scheduled).load()
    assert contents(model, parts) == before
    sequence = kinds.SequentialLR(plain, [kinds.StepLR(plain, 2) for _ in range(2)], [1])
    changed = contents(model, parts)
    with pytest.raises(ValueError, match="scheduler 1 is of another class than in <checkpoint"):
        saving_of(
            accelerator, f"{url}-two", model, [first, second], [scheduled[0], sequence]
        ).load()
    assert contents(model, parts) == changed
    exponential = kinds.ExponentialLR(plain, 0.5)
    with pytest.raises(ValueError, match=r"only the saved one has \['step_size'\]"):
        saving_of(
            accelerator, f"{url}-two", model, [first, second], [scheduled[0], exponential]
        ).load()


def swap(folder: Path, url: str) -> None:
    """Optimizers in another order are refused, whether they have states or not."""
    accelerator = make_accelerator()
    saving, model, parts = start(accelerator, url, optimizers=2)
    train_batches(accelerator, model, parts, range(2))
    saving.save(2)
    for batches in (0, 2):
        saving, model, parts = start(accelerator, url, optimizers=2)
        train_batches(accelerator, model, parts, range(batches))
        saving = saving_of(accelerator, url, model, parts[::-1], [])
        before = contents(model, parts)
        with pytest.raises(ValueError, match=r"optimizer 0/state/0/exp_avg has shape \(1, 4\) in"):
            saving.load()
        assert contents(model, parts) == before


def test_optimizers_in_another_order_are_refused(tmp_path: Path) -> None:
    assert launch(1, swap, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def test_differences_are_found_first(tmp_path: Path) -> None:
    assert launch(1, compare, tmp_path, f"rocksdb://{tmp_path}/run") == [0]
