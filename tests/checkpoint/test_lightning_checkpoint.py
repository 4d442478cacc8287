"""Lightning with its state in one windeck checkpoint: killed and resumed, bit for bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import windeck as wd
from support.adapted_runs import (
    EPOCHS,
    KILLED,
    KILLS,
    STEPS,
    Scorer,
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
from windeck import Mixture, checkpoint

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


class Rated(Module):
    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        self.scorer(batch["sample"], batch["row"])


class Broken(Rated):
    def on_fit_start(self) -> None:
        raise RuntimeError("broken")


class Wide(Rated):
    def __init__(self) -> None:
        super().__init__(None)
        self.wide = torch.nn.Linear(5, 5)


def fit_after_a_load(folder: Path, url: str) -> None:
    """The loader's state of a checkpoint is for the `fit` that loaded it."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    def make_trainer() -> Any:
        return lightning.Trainer(
            callbacks=[saving], plugins=[saving], enable_checkpointing=False,
            **options(max_epochs=1),
        )  # fmt: skip

    run(url, Module(None), max_epochs=2)
    loader = make_loader()
    saving = LightningCheckpoint(f"{url}-new", every=100, loader=loader)
    trainer = make_trainer()
    trainer.validate(Rated(None), make_loader(restart=True), ckpt_path=url, verbose=False)
    module = Module(None)
    trainer.fit(module, loader)
    assert int(module.scorer.steps) == STEPS

    loader = make_loader()
    saving = LightningCheckpoint(f"{url}-new", every=100, loader=loader)
    with pytest.raises(
        KeyError, match=r"only in the model \['wide.bias', 'wide.weight'\]; only in"
    ):
        make_trainer().fit(Wide(), loader, ckpt_path=url)
    with pytest.raises(RuntimeError, match="broken"):
        make_trainer().fit(Broken(None), loader, ckpt_path=url)
    module = Wide()
    make_trainer().fit(module, loader)
    assert int(module.scorer.steps) == STEPS


def test_a_new_run_begins_at_the_first_batch(tmp_path: Path) -> None:
    assert launch(1, fit_after_a_load, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


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


class Described(Module):
    def __init__(self, described: dict[str, Any]) -> None:
        super().__init__(None)
        self.save_hyperparameters(described)


class Converted(Described):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["hyper_parameters"] = {"folder": str(self.hparams["folder"])}


class DescribedData(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        return make_loader()


class Named(lightning.Callback):  # type: ignore[misc,name-defined]
    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}


def describe(folder: Path, url: str) -> None:
    """State that cannot be saved is an error before the first batch, not at the first save."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    module = Described({"folder": folder, "size": 3})
    words = r"extra/lightning/hyper_parameters/folder is of type pathlib\..*, expected a tensor, di"
    with pytest.raises(TypeError, match=words):
        run(url, module)
    callback = Named()
    words = rf"extra/lightning/callbacks/{callback.state_key}/seen is of type set, expected a tens"
    with pytest.raises(TypeError, match=words):
        run(url, module := Described({"size": 3}), callbacks=(callback,))
    assert int(module.scorer.steps) == 0
    saving = LightningCheckpoint(url, every=4)
    trainer = lightning.Trainer(
        callbacks=[saving], plugins=[saving], enable_checkpointing=False, **options()
    )
    with pytest.raises(TypeError, match="extra/lightning/datamodule_hyper_parameters/kind is of"):
        trainer.fit(Module(None), DescribedData(torch.float32))
    run(url, Converted({"folder": folder}), max_epochs=1)
    with checkpoint.open(url) as found:
        assert found.tree("extra")["lightning"]["hyper_parameters"] == {"folder": str(folder)}


def test_state_that_cannot_be_saved(tmp_path: Path) -> None:
    assert launch(1, describe, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


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


def load_into_rows(folder: Path, url: str) -> None:
    """Rows are replaced; after an error model and rows are as they were."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    module, validating = Rated(None), make_loader(restart=True)
    trainer = run(url, module, max_epochs=1)
    saving, core = trainer.strategy.checkpoint_io, module.scorer.user.core
    rows = len(core)
    trainer.validate(module, validating, ckpt_path=saving.resume_path(), verbose=False)
    assert int(module.scorer.steps) == core.clock == 4
    assert 0 < len(core) < rows
    trainer.fit(module, make_loader(), ckpt_path=saving.resume_path())
    assert int(module.scorer.steps) == core.clock == STEPS

    other = Rated(None)
    other.setup("fit")
    other.scorer.user = wd.EmbeddingTable(4, optimizer="sgd", lr=0.1, seed=5)
    run(f"{url}-other", other, max_epochs=2)
    before = digest_of(module.scorer, trainer.optimizers[0]).hexdigest(), core.clock, len(core)
    with pytest.raises(ValueError, match=r"the table scorer\.user has optimizer 'adam', expected"):
        trainer.validate(module, validating, ckpt_path=f"{url}-other", verbose=False)
    after = digest_of(module.scorer, trainer.optimizers[0]).hexdigest(), core.clock, len(core)
    assert after == before

    saving = LightningCheckpoint(f"{url}-bare", every=4)
    given = options(max_epochs=1, enable_checkpointing=False)
    lightning.Trainer(callbacks=[saving], plugins=[saving], **given).fit(
        Module(None), make_loader()
    )
    module = Module(None)
    with pytest.raises(KeyError, match=r"loader was not saved in .* step 4>, which has model, opt"):
        run(f"{url}-bare", module)
    assert (int(module.scorer.steps), len(module.scorer.user.core)) == (0, 0)


def test_rows_are_replaced(tmp_path: Path) -> None:
    assert launch(1, load_into_rows, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def load_plain(folder: Path, url: str) -> None:
    checkpoint.save(url, step=1, model=torch.nn.Linear(2, 1))
    with pytest.raises(
        ValueError, match=r"step 1> was not saved by Lig.* it has model, expected extra/lightning"
    ):
        run(url, Module(None))


def test_a_checkpoint_of_plain_save_is_refused(tmp_path: Path) -> None:
    assert launch(1, load_plain, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


class ShardedModule(Rated):
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
    trainer.validate(module, make_loader(restart=True), ckpt_path=url, verbose=False)
    assert int(module.scorer.steps) == module.scorer.user.core.clock == 20


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


class Tally(lightning.Callback):  # type: ignore[misc,name-defined]
    """Counts the batches by size."""

    def __init__(self) -> None:
        self.sizes = Counter[int]()

    def on_train_batch_end(self, _: Any, __: Any, ___: Any, batch: Any, ____: int) -> None:
        self.sizes.update([len(batch["row"])])

    def state_dict(self) -> dict[str, Any]:
        return {"sizes": self.sizes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sizes = state["sizes"]


class Sequence(Module):
    """A scheduler with a Counter in its state, which it needs when its turn comes."""

    def configure_optimizers(self) -> Any:
        kinds, optimizer = torch.optim.lr_scheduler, torch.optim.Adam(self.parameters(), lr=0.01)
        parts = [kinds.ConstantLR(optimizer, 0.5), kinds.MultiStepLR(optimizer, [1, 2])]
        scheduler = kinds.SequentialLR(optimizer, parts, [10])
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class ShardedSequence(Sequence, ShardedModule):
    pass


def fit_sequence(folder: Path, url: str) -> None:
    from windeck.checkpoint.lightning import ShardedStrategy

    tallies, kind = (Tally(), Tally()), ShardedSequence if ranks() > 1 else Sequence
    for epochs, tally in enumerate(tallies, 1):
        strategy = ShardedStrategy(data_parallel_size=ranks(), tensor_parallel_size=1)
        more = {"strategy": strategy} if ranks() > 1 else {}
        trainer = run(url, kind(None), max_epochs=epochs, callbacks=(tally,), **more)
    assert tallies[1].sizes.most_common(1) == [(6 // ranks(), 2 * STEPS - 2)]
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0001)


@pytest.mark.parametrize("count", [1, 2])
def test_a_sequence_of_schedulers_is_resumed(count: int, tmp_path: Path) -> None:
    assert launch(count, fit_sequence, tmp_path, f"rocksdb://{tmp_path}/run") == [0] * count


class Made(Rated):
    """A module with the optimizers and schedulers that a function returns."""

    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__(None)
        self.make = make
        self.automatic_optimization = make is not make_two

    def configure_optimizers(self) -> Any:
        return self.make(*self.scorer.layer.parameters())


class ShardedMade(Made, ShardedModule):
    pass


class Hooked(Made):
    """A module that begins with new optimizers and schedulers."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint |= {"optimizer_states": [], "lr_schedulers": []}


def make_one(*parameters: Any, kind: Any = torch.optim.Adam) -> Any:
    return kind(parameters, 0.01)


def make_two(*parameters: Any) -> Any:
    return [make_one(own) for own in parameters]


def make_scheduled(*parameters: Any, kind: Any = torch.optim.lr_scheduler.StepLR) -> Any:
    optimizer = make_one(*parameters)
    return [optimizer], [kind(optimizer, 1)]


class Late(lightning.Callback):  # type: ignore[misc,name-defined]
    """A callback that gets its state when training starts."""

    def on_train_start(self, *_: Any) -> None:
        self.seen = 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


class Restarting(Late):
    """A callback that begins with new schedulers."""

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["lr_schedulers"] = []


class Grouped(Made):
    """A module that adds a group of parameters before it trains."""

    def on_fit_start(self) -> None:
        self.trainer.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


def compare(folder: Path, url: str) -> None:
    """Other optimizers and schedulers are errors, before their states are loaded."""
    from windeck.checkpoint.lightning import ShardedStrategy

    def train(name: str, make: Callable[..., Any]) -> None:
        strategy = ShardedStrategy(data_parallel_size=ranks(), tensor_parallel_size=1)
        more = {"strategy": strategy} if ranks() > 1 else {}
        run(f"{url}-{name}", (ShardedMade if ranks() > 1 else Made)(make), max_epochs=1, **more)

    train("one", make_one)
    train("scheduled", make_scheduled)
    exponential = partial(make_scheduled, kind=torch.optim.lr_scheduler.ExponentialLR)
    for name, make, message in (
        ("one", make_two, "the module has 2 optimizers, expected 1 as saved in <checkpoint"),
        ("one", make_scheduled, "the module has 1 schedulers, expected 0 as saved in <checkpoint"),
        ("scheduled", make_one, "the module has 0 schedulers, expected 1 as saved in <checkpoint"),
        ("scheduled", exponential, r"scheduler 0 is of another class than .* \['step_size'\]"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            train(name, make)
        assert ("weights were replaced" in str(error.value)) == (ranks() == 1)
    if ranks() == 1:
        groups = "optimizer 0 has groups of .1, 1. parameters, expected .2. as in <checkpoint"
        with pytest.raises(ValueError, match=groups):
            train("one", lambda *two: make_one(*({"params": [own]} for own in two)))
        another = "optimizer 0 is of another class than .* weights were replaced before"
        with pytest.raises(ValueError, match=another):
            train("one", partial(make_one, kind=torch.optim.RMSprop))
        trainer = run(f"{url}-one", Hooked(make_scheduled), max_epochs=2)
        assert trainer.global_step == 2 * STEPS
        for module, callback in ((Made, Late), (Made, Restarting), (Grouped, Late)):
            name = f"{url}-{module.__name__}-{callback.__name__}"
            for epochs in (1, 2):
                run(name, module(make_scheduled), max_epochs=epochs, callbacks=(callback(),))


@pytest.mark.parametrize("count", [1, 2])
def test_optimizers_are_compared(count: int, tmp_path: Path) -> None:
    assert launch(count, compare, tmp_path, f"rocksdb://{tmp_path}/run") == [0] * count


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
    stream: Any = endless.stream
    endless = type(endless)(Mixture({"a": (stream.source, 1)}, seed=1), batch_size=2)
    with pytest.raises(TypeError, match="steps_per_epoch"):
        LightningCheckpoint(url, every=1, loader=endless)


def forget(folder: Path, url: str) -> None:
    """`saving` has to be in both arguments of the Trainer."""
    from windeck.checkpoint.lightning import LightningCheckpoint

    saving = LightningCheckpoint(url, every=4)
    given = options(max_epochs=1, enable_checkpointing=False)
    with pytest.raises(
        ValueError, match=r"saves by TorchCheckpointIO, .*: pass plugins=\[saving\]"
    ):
        lightning.Trainer(callbacks=[saving], **given).fit(Module(None), make_loader())
    with pytest.warns(UserWarning, match=r"nothing was saved to .*: pass callbacks=\[saving\]"):
        lightning.Trainer(plugins=[saving], **given).fit(Module(None), make_loader())
    run(url, Rated(None), max_epochs=1)
    with pytest.raises(ValueError, match=r"is not among the callbacks .* callbacks=\[saving\] as"):
        lightning.Trainer(plugins=[saving], **given).validate(
            Rated(None), make_loader(restart=True), ckpt_path=url, verbose=False
        )


def test_what_is_forgotten(tmp_path: Path) -> None:
    assert launch(1, forget, tmp_path, f"rocksdb://{tmp_path}/run") == [0]


def test_what_is_refused(tmp_path: Path) -> None:
    assert launch(1, refuse, tmp_path, f"rocksdb://{tmp_path}/run") == [0]
