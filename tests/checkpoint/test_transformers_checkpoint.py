"""Hugging Face's Trainer with its state in one windeck checkpoint: killed and resumed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import windeck as wd
from models.oracle import Numbers
from support.adapted_runs import (
    EPOCHS,
    KILLED,
    KILLS,
    STEPS,
    Scorer,
    allow_fsdp_on_cpu,
    check_continued_by_one,
    check_resumed,
    make_loader,
    read_end,
    write_end,
)
from support.launched import launch
from support.pages import named_block
from windeck import checkpoint

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


def fit_in_batches(
    folder: Path, url: str, size: int, kill_at: int | None, callbacks: Any = (),
    loader: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """Train on two epochs of 80 samples; saves at even steps."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), use_cpu=True, report_to=[], disable_tqdm=True,
        save_strategy="steps", save_steps=2, **{"num_train_epochs": 2, **more},
    )  # fmt: skip
    if loader is None:
        loader = wd.Loader(Numbers(80), batch_size=size, shuffle=True, seed=3)
    trainer = trainer_of_one_checkpoint(url, loader, Scorer(kill_at), arguments)
    for one in callbacks:
        trainer.add_callback(one)
    trainer.train(resume_from_checkpoint=kill_at is None)
    end = [loader.position, trainer.args.max_steps]
    steps = [trainer.state.global_step, trainer.state.max_steps]
    (folder / "end.json").write_text(json.dumps([end, steps]))
    return trainer


@pytest.mark.parametrize(
    ("first", "kill_at", "second", "accumulate"),
    [
        (8, 15, 16, 1),
        (8, 5, 16, 1),
        (16, 7, 8, 1),
        (8, 13, 8, 1),
        (16, 6, 20, 1),
        (8, 12, 16, 2),
        (8, 7, 16, 2),
        (8, 7, 20, 2),
        (16, 9, 8, 2),
        (8, 19, 16, 3),
        (8, 9, 20, 2),
    ],
)
def test_other_batch_sizes_train_on_whole_epochs(
    first: int, kill_at: int, second: int, accumulate: int, tmp_path: Path
) -> None:
    url = f"rocksdb://{tmp_path}/x"
    fit = partial(fit_in_batches, gradient_accumulation_steps=accumulate)
    run = partial(launch, 1, fit, tmp_path, url)
    assert run(first, kill_at) == [KILLED]
    assert run(second, None) == [0]
    (position, max_steps), (done, planned) = json.loads((tmp_path / "end.json").read_text())
    assert max_steps == -1
    # A short group of batches at the end of a resumed epoch is not stepped.
    assert 160 - position in range(1 if accumulate == 1 else second * accumulate)
    assert planned in (done, 0)  # 0: nothing was left to do


class Counting(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """Writes the steps and the epochs after each step, and those that are logged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *line: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.write("end", state.global_step, state.epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        if "loss" in logs:
            self.write("log", state.global_step, logs["epoch"])


def fit_counting(folder: Path, url: str, size: int, kill_at: int | None, more: Any) -> None:
    counting = [Counting(folder / "epochs.jsonl")]
    options = {**more, "logging_steps": 1}
    loader = None
    if more.pop("endless", False):
        loader = wd.Loader(wd.Mixture({"a": (Numbers(80), 1)}, seed=3), batch_size=size)
        options = {"logging_steps": 1, "max_steps": 20}
    fit_in_batches(folder, url, size, kill_at, counting, loader=loader, **options)


@pytest.mark.parametrize(
    ("more", "sizes", "expected"),
    [
        ({}, (8, 8), {n: n / 10 for n in range(1, 21)}),
        ({"gradient_accumulation_steps": 2}, (8, 8), {n: n / 5 for n in range(1, 11)}),
        ({"max_steps": 15}, (8, 8), {n: n / 10 for n in range(1, 16)}),
        ({"endless": True}, (8, 8), {n: n / 20 for n in range(1, 21)}),
        # 48 samples in the first run, then 32 in two batches of the epoch and 80 in five.
        ({}, (8, 16), {n: n / 10 if n < 7 else (n - 1) / 5 - 0.4 for n in range(1, 14)}),
    ],
    ids=["epochs", "accumulated", "max_steps", "endless", "another batch size"],
)
def test_epochs_are_counted_on_after_a_resume(
    more: Any, sizes: tuple[int, int], expected: dict[int, float], tmp_path: Path
) -> None:
    url = f"rocksdb://{tmp_path}/x"
    run = partial(launch, 1, fit_counting, tmp_path, url)
    assert run(sizes[0], 15 if "gradient_accumulation_steps" in more else 7, more) == [KILLED]
    assert run(sizes[1], None, more) == [0]
    lines = (tmp_path / "epochs.jsonl").read_text().splitlines()
    found = {(kind, step): epoch for kind, step, epoch in map(json.loads, lines)}
    for kind in ("end", "log"):
        own = {step: epoch for (name, step), epoch in found.items() if name == kind}
        assert own == {step: pytest.approx(epoch, abs=1e-4) for step, epoch in expected.items()}


def test_a_whole_run_is_not_continued_in_other_batches(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    fit_in_batches(tmp_path, url, 16, None)
    for size in (16, 8, 24, 7):
        trainer = fit_in_batches(tmp_path, url, size, None)
        assert (trainer.state.global_step, trainer.loader.position) == (10, 160)
        assert trainer.args.num_train_epochs == 2


@pytest.mark.parametrize("more", [{"num_train_epochs": 1.5}, {"max_steps": 6}], ids=str)
def test_a_run_that_ended_in_an_epoch_stays_finished(more: Any, tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/x"
    first = fit_in_batches(tmp_path, url, 20, None, **more)
    steps, position = first.state.global_step, first.loader.position
    for size in (20, 10):
        trainer = fit_in_batches(tmp_path, url, size, None, **more)
        assert (trainer.state.global_step, trainer.loader.position) == (steps, position)


def test_callbacks_that_begin_anew_are_named(tmp_path: Path) -> None:
    from transformers.trainer_callback import ExportableState

    class Patience(transformers.TrainerCallback, ExportableState):  # type: ignore[misc,name-defined]
        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {}}

    url = f"rocksdb://{tmp_path}/x"
    fit_in_batches(tmp_path, url, 16, None, [Patience()])
    with pytest.warns(UserWarning, match="^Patience will begin anew, expected restore_callback"):
        fit_in_batches(tmp_path, url, 16, None, [Patience()])
    more = {"restore_callback_states_from_checkpoint": True}
    fit_in_batches(tmp_path, url, 16, None, [Patience()], **more)


class Rated(Scorer):
    """The loss of an evaluation is the distance from step 9: step 8 is the best of 4, 8, 12, ..."""

    peak = 9.0

    def forward(self, sample: torch.Tensor, row: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(sample, row)
        return found if self.training else {"loss": (self.steps - self.peak).abs()}


def make_rated(folder: Path, url: str, kill_at: int | None, **options: Any) -> Any:
    from windeck.checkpoint.transformers import CheckpointTrainer

    given = {"save_steps": 4, "save_strategy": "steps", "load_best_model_at_end": True}
    given |= {"num_train_epochs": EPOCHS, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.01,
        eval_strategy="steps",
        eval_steps=4,
        label_names=["sample"],
        remove_unused_columns=False,
        **given,
    )
    model = Rated(kill_at)
    return CheckpointTrainer(
        url,
        make_loader(),
        model=model,
        args=arguments,
        callbacks=[page["TableSteps"](wd.TableOptimizer(model))],
        eval_dataset=[{"sample": torch.tensor(i), "row": torch.tensor(i)} for i in range(4)],
    )


def fit_best(folder: Path, url: str, kill_at: int | None, options: dict[str, Any]) -> Any:
    trainer = make_rated(folder, url, kill_at, **options)
    torch.manual_seed(7)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == STEPS * EPOCHS
    assert trainer.state.best_global_step == 8
    assert trainer.state.best_model_checkpoint == f"{url}#best"
    write_end(folder, trainer.model, trainer.optimizer)
    return trainer


@pytest.mark.parametrize(("count", "kill_at"), [(1, 14), (2, 14)])
def test_the_best_model_is_loaded_at_the_end(count: int, kill_at: int, tmp_path: Path) -> None:
    """Model and tables are those of step 8, though later steps were saved, and after a kill."""
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(count, fit_best, tmp_path / "whole", whole, None, {}) == [0] * count
    options = {"save_total_limit": 3}  # as `keep`
    assert KILLED in launch(count, fit_best, tmp_path, url, kill_at, options)
    assert launch(count, fit_best, tmp_path, url, None, options) == [0] * count
    ends = read_end(tmp_path, count)
    assert ends == read_end(tmp_path / "whole", count)
    assert ends[0].startswith("8 ")
    found = [(commit.step, commit.tags) for commit in checkpoint.log(url)]
    assert found == [(21, ()), (20, ()), (16, ()), (8, ("best",))]


def fit_unsaved(folder: Path, url: str, kill_at: int | None) -> None:
    trainer = make_rated(folder, url, kill_at, save_steps=8)
    trainer.model.peak = 13.0
    torch.manual_seed(7)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.best_global_step == 12
    write_end(folder, trainer.model, trainer.optimizer)


def test_the_best_model_of_a_step_that_was_not_saved(tmp_path: Path) -> None:
    """Step 8 is saved and the best, step 12 is better and not saved: both runs end with step 8."""
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(1, fit_unsaved, tmp_path / "whole", whole, None) == [0]
    assert launch(1, fit_unsaved, tmp_path, url, 18) == [KILLED]
    assert launch(1, fit_unsaved, tmp_path, url, None) == [0]
    ends = read_end(tmp_path, 1)
    assert ends == read_end(tmp_path / "whole", 1)
    assert ends[0].startswith("8 ")


def fit_copied(folder: Path, url: str) -> None:
    """The copy has one generation, not that of the best model."""
    trainer = make_rated(folder, url, None)
    with pytest.warns(UserWarning, match=r"no generation of .* has the tag 'best'"):
        trainer.train(resume_from_checkpoint=True)


def test_a_best_model_that_was_not_copied(tmp_path: Path) -> None:
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(1, fit_best, tmp_path, whole, 14, {}) == [KILLED]
    checkpoint.copy(whole, url, generations=[checkpoint.log(whole)[0].generation])
    assert launch(1, fit_copied, tmp_path, url) == [0]


def test_resumed_from_leveldb(tmp_path: Path) -> None:
    """LevelDB has one process with it open, so nothing may hold it open during training."""
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"leveldb://{tmp_path}/two"
    assert launch(1, fit, tmp_path / "whole", whole, None, 4) == [0]
    assert launch(1, fit, tmp_path, url, 10, 4) == [KILLED]
    assert launch(1, fit, tmp_path, url, None, 4) == [0]
    assert read_end(tmp_path, 1) == read_end(tmp_path / "whole", 1)


def train_twice(folder: Path, url: str) -> None:
    """Resuming replaces the rows of a model that has been trained."""
    trainer = make_trainer(folder, url, None, 4)
    torch.manual_seed(7)
    trainer.train()
    write_end(folder, trainer.model, trainer.optimizer)
    end = read_end(folder, 1)
    trainer.url = f"{url}-16"
    checkpoint.copy(url, trainer.url, generations=[checkpoint.log(url)[2].generation])
    assert checkpoint.log(trainer.url)[0].step == 16
    trainer.train(resume_from_checkpoint=True)
    write_end(folder, trainer.model, trainer.optimizer)
    assert read_end(folder, 1) == end


def test_resumed_in_one_process(tmp_path: Path) -> None:
    assert launch(1, train_twice, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def fit_sharded(folder: Path, url: str, kill_at: int | None) -> None:
    allow_fsdp_on_cpu()
    options = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "NO_WRAP"}}
    trainer = fit_best(folder, url, kill_at, options)
    assert isinstance(trainer.model.layer.weight, DTensor)


def test_sharded_by_fsdp2(tmp_path: Path) -> None:
    """Killed, resumed, and with the best model in the end, bit for bit."""
    (tmp_path / "whole").mkdir()
    whole, url = f"rocksdb://{tmp_path}/one", f"rocksdb://{tmp_path}/two"
    assert launch(2, fit_sharded, tmp_path / "whole", whole, None) == [0, 0]
    assert KILLED in launch(2, fit_sharded, tmp_path, url, 14)
    assert launch(2, fit_sharded, tmp_path, url, None) == [0, 0]
    ends = read_end(tmp_path, 2)
    assert ends == read_end(tmp_path / "whole", 2)
    assert ends[0].startswith("8 ")


def fit_only_model(folder: Path, url: str) -> None:
    """Folders that another Trainer left are not removed."""
    (folder / "out" / "checkpoint-4").mkdir(parents=True)
    options = {"save_only_model": True, "save_strategy": "best", "save_total_limit": 1}
    trainer = make_rated(folder, url, None, **options)
    trainer.train()
    assert (folder / "out" / "checkpoint-4").exists()
    assert trainer.args.save_total_limit == 1
    assert int(trainer.model.steps) == 8
    with pytest.raises(
        ValueError, match=r"generation 2 \(step 8\) .* save_only_model=True, expect"
    ):
        trainer.train(resume_from_checkpoint=True)


def test_only_models_are_saved(tmp_path: Path) -> None:
    url = f"rocksdb://{tmp_path}/run"
    assert launch(1, fit_only_model, tmp_path, url) == [0]
    assert [(found.step, found.tags) for found in checkpoint.log(url)] == [(8, ("best",))]
    with checkpoint.open(url) as found:
        assert list(found.trees) == ["model", "extra"]
        assert list(found.tables) == ["user"]


def change_scheduler(folder: Path, url: str) -> None:
    """Another scheduler is refused before model, tables and optimizer are replaced."""
    make_rated(folder, url, None, num_train_epochs=1, load_best_model_at_end=False).train()
    trainer = make_rated(folder, url, None, num_train_epochs=2, load_best_model_at_end=False)
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.01)
    schedulers = torch.optim.lr_scheduler
    for scheduler, words in (
        (schedulers.ExponentialLR(optimizer, 0.9), r"this ExponentialLR has \['gamma'\]"),
        (
            schedulers.SequentialLR(optimizer, [schedulers.LambdaLR(optimizer, float)] * 2, [3]),
            "this SequentialLR has",
        ),
    ):
        trainer.optimizer, trainer.lr_scheduler = optimizer, scheduler
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        with pytest.raises(ValueError, match=f"scheduler 0 is of another class than .*{words}"):
            trainer.train(resume_from_checkpoint=True)
        for name, value in trainer.model.state_dict().items():
            assert torch.equal(value, before[name]), name


def test_another_scheduler_is_refused(tmp_path: Path) -> None:
    assert launch(1, change_scheduler, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def refuse(folder: Path, url: str) -> None:
    trainer = make_trainer(folder, url, None, 4)
    for name in ("checkpoint-4", Path("checkpoint-4")):
        with pytest.raises(
            TypeError, match=r"`resume_from_checkpoint` must be a bool, got .*'chec"
        ):
            trainer.train(resume_from_checkpoint=name)
    checkpoint.save(url, step=1, model=dict(trainer.model.state_dict()), extra={"loss": 0.5})
    with pytest.raises(
        ValueError, match=r"1> was not saved by Che.* has model, extra, expected extra/transformers"
    ):
        trainer.train(resume_from_checkpoint=True)
    trainer.url = "redis://me:secret@localhost:1"
    with pytest.raises(TypeError, match=r"checkpoints are in redis://me:\*\*\*@localhost:1"):
        trainer.train(resume_from_checkpoint="checkpoint-4")
    trainer.args.save_total_limit = 5
    with pytest.raises(ValueError, match="got keep=3 and save_total_limit=5"):
        trainer_of_one_checkpoint(url, make_loader(), Scorer(None), trainer.args)
    trainer.args.push_to_hub = True
    with pytest.raises(ValueError, match=r"`hub_strategy` must be 'end' with .* got 'every_save'"):
        trainer_of_one_checkpoint(url, make_loader(), Scorer(None), trainer.args)


def test_what_is_refused(tmp_path: Path) -> None:
    assert launch(1, refuse, tmp_path, f"rocksdb://{tmp_path}/run") == [0]
