"""Checkpoints of Lightning: a callback that is also the trainer's CheckpointIO, and FSDP2."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from windeck._util.imports import needs_torch
from windeck._util.options import explain_options
from windeck._util.warning import warn

with needs_torch("windeck.checkpoint.lightning", "lightning"):
    import lightning
    import torch
    from lightning.pytorch.callbacks import StochasticWeightAveraging
    from lightning.pytorch.loops.loop import _Loop
    from lightning.pytorch.plugins.io import CheckpointIO
    from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.model_helpers import is_overridden
    from torch.distributed.checkpoint.state_dict import (
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    from windeck.checkpoint.format.names import affix_hint, check_common_names
    from windeck.checkpoint.format.state_json import encode, restore_types
    from windeck.checkpoint.inspecting import open as open_checkpoint
    from windeck.checkpoint.loading import compare_optimizer, load
    from windeck.checkpoint.maintenance import log
    from windeck.checkpoint.saving import save
    from windeck.checkpoint.training_state import (
        compare_count,
        compare_scheduler,
        emptied,
        find_tables,
        public_name,
        random_states,
        saved_extra,
        set_random_states,
        world_group,
    )

__all__ = ["LightningCheckpoint", "ShardedStrategy"]


@explain_options
class LightningCheckpoint(lightning.Callback, CheckpointIO):  # type: ignore[misc]
    """Saves all of a Lightning run in one commit, and restores it.

    A checkpoint holds Lightning's own state (loops, callbacks, schedulers, hyperparameters), model,
    optimizers, the embedding tables in the model, the loader, and the random generators of each
    rank.

    Parameters
    ----------
    url
        A store, as for `windeck.checkpoint.save`.
    every
        Save after the batch in which the number of optimizer steps reaches or passes a multiple of
        this, and after the validation that follows it; at the end of an epoch, before the next one.
        The steps of several optimizers are added up, as in Lightning's `global_step`.
    loader
        The `Loader` that the trainer trains on, in epochs or with `steps_per_epoch`.
    options
        Options of `windeck.checkpoint.save`, such as ``keep=3`` or ``incremental=True``.

    Raises
    ------
    TypeError
        For a loader without a length.
    ValueError
        If `every` is not at least 1.

    Notes
    -----
    Pass it as ``Trainer(callbacks=[saving], plugins=[saving], enable_checkpointing=False)``, and
    ``fit(..., ckpt_path=saving.resume_path())``. For one process, DDP, and FSDP2 with
    `ShardedStrategy`; other strategies that write files of their own are a ValueError in `fit`.
    Tables have to be stepped in `LightningModule.on_before_optimizer_step`, with the scaler, if
    there is one. An exception while saving leaves the last commit in force.
    """

    def __init__(self, url: str, *, every: int, loader: Any = None, **options: Any) -> None:
        if type(every) is not int or every < 1:
            raise ValueError(f"`every` must be an int of at least 1, got {every!r}")
        if loader is not None:
            len(loader)  # raises for a mixture without `steps_per_epoch`
        self.url, self._every, self._loader, self._options = url, every, loader, options
        self._is_saving = False
        self._state: dict[str, Any] = {}  # of Lightning, on rank 0 while saving
        self._saved_step = 0
        self._trainer: Any = None  # that has this callback, while it runs
        self._loaded: dict[str, Any] | None = None  # until training begins

    def resume_path(self) -> str | None:
        """Return the URL for `ckpt_path` if a checkpoint is there, otherwise None.

        Lightning logs it, so it is without a password.
        """
        try:
            return public_name(self.url) if log(self.url) else None
        except FileNotFoundError:
            return None

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Begin a run of the trainer as its last callback, so that all others have seen a batch.

        At the start of an epoch the first callback saves, before others change anything.

        Raises
        ------
        ValueError
            For a trainer or a strategy that does not save by this CheckpointIO.
        """
        kind = type(trainer.strategy)
        saves = kind.save_checkpoint
        if saves is not Strategy.save_checkpoint and saves is not ShardedStrategy.save_checkpoint:
            raise ValueError(
                f"the strategy {kind.__name__} writes checkpoints of its own, expected one that "
                "saves by CheckpointIO: DDP, or ShardedStrategy of windeck.checkpoint.lightning "
                "for FSDP2"
            )
        if trainer.strategy.checkpoint_io is not self:
            raise ValueError(
                f"the Trainer saves by {type(trainer.strategy.checkpoint_io).__name__}, expected "
                "this LightningCheckpoint: pass plugins=[saving] to the Trainer, as well as "
                "callbacks=[saving]"
            )
        self._trainer, self._loaded = trainer, None
        others = [one for one in trainer.callbacks if one is not self]
        others = [one for one in others if not isinstance(one, _EpochStart)]
        trainer.callbacks = [_EpochStart(self), *others, self]

    def save(self, trainer: Any) -> int:
        """Save now, on all ranks; return the generation."""
        epochs, ended = trainer.fit_loop.epoch_progress.current, None
        if epochs.ready > epochs.started:  # in `on_train_epoch_start`
            ended = True
        elif epochs.started and epochs.processed == epochs.started:  # in the hooks at its end
            ended = None if self._is_epoch_over(trainer) else False
        return self._save(trainer, epoch_ended=ended)

    def _save(self, trainer: Any, *, epoch_ended: bool | None = None) -> int:
        """Save; where Lightning's counts of epochs are between two states, as one of these."""
        tables = find_tables(trainer.lightning_module)
        self._is_saving = True
        try:
            trainer.save_checkpoint(public_name(self.url))
        finally:
            self._is_saving, state, self._state = False, self._state, {}
        given: dict[str, Any] = {"extra": {"random": random_states()}}
        if state:
            given |= {
                "model": state.pop("state_dict"),
                "optimizer": {str(i): own for i, own in enumerate(state.pop("optimizer_states"))},
            }
        if state and trainer.is_global_zero:
            if epoch_ended is not None:
                _settle_epoch(state["loops"]["fit_loop"]["epoch_progress"], ended=epoch_ended)
            given["extra"]["lightning"] = state
            if self._loader is not None:
                trained = trainer.fit_loop.epoch_loop.batch_progress.total.processed
                given["loader"] = self._loader.state_dict(step=trained)
        if epoch_ended is not None or not self._ends_epoch(trainer):  # else another one follows
            self._saved_step = trainer.global_step
        generation: int = save(
            self.url,
            step=trainer.global_step,
            embeddings=tables or None,
            group=world_group(),
            **given,
            **self._options,
        )
        return generation

    def _is_due(self, trainer: Any) -> bool:
        """Return whether the number of steps has reached or passed a multiple of `every`."""
        due: bool = trainer.global_step // self._every > self._saved_step // self._every
        return due

    def _is_epoch_over(self, trainer: Any) -> bool:
        """Return whether the epoch has had all batches that it will have.

        With `limit_train_batches` it ends before them where the loader's epoch ends.
        """
        is_last = trainer.fit_loop.epoch_loop._num_ready_batches_reached()
        return bool(is_last or (self._loader is not None and self._loader._begins_epoch))

    def _ends_epoch(self, trainer: Any) -> bool:
        """Return whether an epoch ends after this batch, or the training, as a callback may ask."""
        stops = trainer.should_stop and trainer.fit_loop._can_stop_early
        is_done = trainer.fit_loop.epoch_loop._is_training_done  # also by `max_steps`
        return bool(stops or is_done or self._is_epoch_over(trainer))

    # From a checkpoint before a validation, or before the end of an epoch, Lightning would resume
    # after it: the hooks that follow would never be called.

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Save if it is due, unless a validation or the end of the epoch follows."""
        if self._is_due(trainer) and not (self._ends_epoch(trainer) or _validates_next(trainer)):
            self._save(trainer)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Save after a validation in the middle of an epoch, if it is due."""
        is_training = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if is_training and self._is_due(trainer) and not self._ends_epoch(trainer):
            self._save(trainer)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """Save if it is due, as `_EpochStart` does at the start of another epoch."""
        if self._is_due(trainer):
            self._save(trainer, epoch_ended=self._is_epoch_over(trainer))

    def on_fit_start(self, trainer: Any, _: Any) -> None:
        """Compare optimizers and schedulers, which exist now, with those that will be loaded.

        Raises
        ------
        ValueError
            For another number or class, or groups of other sizes. Lightning has replaced the
            weights by then.
        """
        if self._loaded is None:
            return
        state, optimizers = self._loaded.pop("state"), trainer.strategy.optimizers
        try:
            self._compare_training(state)
        except ValueError as error:
            raise ValueError(
                f"{error}; the weights were replaced before, as Lightning makes optimizers after "
                "it loads weights"
            ) from error
        states = [trainer.strategy.optimizer_state(optimizer) for optimizer in optimizers]
        state["optimizer_states"] = restore_types(states, state["optimizer_states"])
        _restore_scheduler_types(trainer, state)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Give the loader and the generators their states: nothing is read before.

        Raises
        ------
        TypeError, ValueError
            For hyperparameters or states of callbacks or schedulers that cannot be stored.
        """
        _check_storable(trainer, module)
        self._saved_step = trainer.global_step
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            if self._loader is not None:
                self._loader.load_state_dict(loaded["loader"])
                self._count_batches(trainer)
            if trainer.fit_loop.restarted_on_epoch_end:  # with `max_steps`
                _start_epoch(trainer.fit_loop)
            set_random_states(loaded["random"])

    def _count_batches(self, trainer: Any) -> None:
        """Let Lightning count the batches that the epoch has had among the batches of this run.

        There are more or fewer after a change of batch or world size, and with `drop_last` the
        epoch may be over.
        """
        loops, whole = trainer.fit_loop, len(self._loader)
        current = loops.epoch_loop.batch_progress.current
        if not loops.restarted_mid_epoch:
            return
        if current.processed and self._loader._begins_epoch:
            loops.epoch_progress.increment_processed()
            _start_epoch(loops)
            return
        if trainer.num_training_batches != whole:  # with `limit_train_batches`
            return
        more = whole - self._loader.steps_left - current.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(current, name, getattr(current, name) + more)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Take Lightning's state, on rank 0, or on all ranks of FSDP2; `save` stores it."""
        if not self._is_saving:
            raise RuntimeError(
                f"another callback saves {path}, expected LightningCheckpoint alone: pass "
                "enable_checkpointing=False to the Trainer"
            )
        self._state = dict(checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the tables; return Lightning's state of the checkpoint in force, on each rank.

        Nothing was written to if this raises.

        Raises
        ------
        KeyError, TypeError, ValueError
            For a model, tables or a loader that differ from those saved.
        """
        trees = self._load_trees(path, {"model", "optimizer", "loader"})
        module = self._trainer.lightning_module
        if not _may_change(self._trainer, "load"):  # names and shapes
            _compare_model(module, trees["model"], public_name(path))
        state = self._restore_callback_types(trees["extra"]["lightning"])
        self._load()
        state |= {
            "state_dict": trees["model"],
            "optimizer_states": list(trees["optimizer"].values()),
        }
        if self._trainer.state.fn == TrainerFn.FITTING:
            assert self._loaded is not None
            self._loaded["state"] = state
        return state

    def load_sharded(self, path: Any, strategy: Any) -> dict[str, Any]:
        """Do as `load_checkpoint`, but load model and optimizers in place, each rank its part."""
        trees = self._load_trees(path, {"loader"})
        state = self._restore_callback_types(trees["extra"]["lightning"])
        model = strategy.lightning_module_state_dict()
        optimizers = {
            str(i): strategy.optimizer_state(o) for i, o in enumerate(strategy.optimizers)
        }
        if self._trainer.state.fn == TrainerFn.FITTING:
            self._compare_training(state)
        self._load(model=model, optimizer=optimizers or None)  # none in `validate`
        set_model_state_dict(strategy.model, model)
        for own, saved in zip(strategy.optimizers, optimizers.values(), strict=True):
            set_optimizer_state_dict(strategy.model, own, saved)
        _restore_scheduler_types(self._trainer, state)
        return state

    def _compare_training(self, state: Mapping[str, Any]) -> None:
        """Compare the optimizers and schedulers with those saved.

        A hook may have changed the state, or change the optimizers, on purpose: then nothing is
        compared.
        """
        assert self._loaded is not None
        module = self._trainer.lightning_module
        if _may_change(self._trainer, "load") or is_overridden("on_fit_start", module):
            return
        where, configs = self._loaded["where"], self._trainer.lr_scheduler_configs
        schedulers = state["lr_schedulers"]
        if any(isinstance(one, StochasticWeightAveraging) for one in self._trainer.callbacks):
            configs, schedulers = [], []  # it removes and makes them as it resumes
        optimizers = self._trainer.strategy.optimizers
        for kind, here, there in (
            ("optimizer", len(optimizers), self._loaded["optimizers"]),
            ("scheduler", len(configs), len(schedulers)),
        ):
            compare_count("the module", kind, here, there, where)
        for number, (own, saved) in enumerate(zip(configs, schedulers, strict=True)):
            compare_scheduler(number, own.scheduler, saved, where)
        # `load` compares sharded ones, which are not in the state.
        pairs = zip(optimizers, state.get("optimizer_states", ()), strict=False)
        for number, (own, saved) in enumerate(pairs):
            compare_optimizer(f"optimizer {number}", own, saved, where)

    def _restore_callback_types(self, state: dict[str, Any]) -> dict[str, Any]:
        return {
            **state, "callbacks": restore_types(_callback_states(self._trainer), state["callbacks"])
        }  # fmt: skip

    def _load(self, **given: Any) -> None:
        """Load the tables; let the loader reject its state, which it gets in `on_train_start`."""
        assert self._loaded is not None
        loader = self._loader if self._trainer.state.fn == TrainerFn.FITTING else None
        former = None if loader is None else loader.state_dict()
        tables = find_tables(self._trainer.lightning_module)
        with emptied(tables):
            load(
                self._loaded["url"],
                embeddings=tables or None,
                loader=loader,
                generation=self._loaded["generation"],
                group=world_group(),
                **given,
            )
        if loader is not None:
            loader.load_state_dict(former)

    def _load_trees(self, path: Any, roots: set[str]) -> dict[str, Any]:
        if self._trainer is None:
            raise ValueError(
                f"the LightningCheckpoint of {public_name(self.url)} is not among the callbacks of "
                "the Trainer, expected callbacks=[saving] as well as plugins=[saving]"
            )
        url = self.url if str(path) == public_name(self.url) else str(path)
        with open_checkpoint(url) as found:
            trees = {"extra": saved_extra(found, "lightning", "LightningCheckpoint")}
            trees |= {root: found.tree(root) for root in found.trees if root in roots}
            self._loaded = {
                "url": url, "generation": found.generation, "loader": trees.get("loader"),
                "random": trees["extra"]["random"], "where": repr(found),
                "optimizers": len(found.trees["optimizer"]["dict"]),
            }  # fmt: skip
        return trees

    def remove_checkpoint(self, path: Any) -> None:
        """Do nothing: ``keep=`` removes generations."""

    def teardown(self, *given: Any, **_: Any) -> None:
        """Warn if nothing could be saved; callbacks have this method too, with arguments."""
        if given:
            return
        if self._trainer is None and sys.exc_info()[0] is None:  # after an error, setup may be due
            warn(
                f"nothing was saved to {public_name(self.url)}, expected the LightningCheckpoint "
                "among the callbacks too: pass callbacks=[saving] to the Trainer",
            )
        self._trainer = None


class _EpochStart(lightning.Callback):  # type: ignore[misc]
    """The first callback of a trainer: saves after an epoch, once all of its hooks were called."""

    def __init__(self, saving: LightningCheckpoint) -> None:
        self._saving = saving

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Save if it is due."""
        if self._saving._is_due(trainer):
            self._saving._save(trainer, epoch_ended=True)


def _validates_next(trainer: Any) -> bool:
    """Return whether a validation follows this batch, in the middle of an epoch.

    Ranks may not agree on whether a time has passed, so that is not asked. A scheduler that is
    stepped with the metric of a validation would miss it in a resumed run.
    """
    loop = trainer.fit_loop.epoch_loop
    needs_metric = any(
        config.reduce_on_plateau and config.interval == "step"
        for config in trainer.lr_scheduler_configs
    )
    is_timed = getattr(trainer, "_val_check_time_interval", None) is not None
    if needs_metric or is_timed or loop.val_loop.skip:
        return False
    return bool(loop._should_check_val_fx(trainer.fit_loop._data_fetcher))


def _settle_epoch(progress: dict[str, dict[str, int]], *, ended: bool) -> None:
    """Set saved counts of epochs to those of one that has ended, or was stopped in the middle."""
    for counts in progress.values():
        done = counts["processed"]
        counts.update(ready=done, started=done, completed=done - 1)
        if not ended:
            counts["processed"] = done - 1


def _start_epoch(loops: Any) -> None:
    """Let a fit loop that was loaded start the next epoch, as one that was not."""
    loops.epoch_progress.increment_completed()
    loops.reset_restart_stage()
    _Loop.restarting.fset(loops, False)  # its own is True for a limit of steps


def _check_storable(trainer: Any, module: Any) -> None:
    """Raise the error of a save, unless a hook may change what is saved."""
    if _may_change(trainer, "save"):
        return
    state: dict[str, Any] = {
        own.CHECKPOINT_HYPER_PARAMS_KEY: dict(own.hparams)
        for own in (module, trainer.datamodule)
        if own is not None
    }
    state["callbacks"] = _callback_states(trainer)
    state["lr_schedulers"] = [own.scheduler.state_dict() for own in trainer.lr_scheduler_configs]
    encode(state, "extra/lightning", lambda name, _: name)


def _may_change(trainer: Any, action: str) -> bool:
    """Return whether a hook of the module or a callback may change what is saved or loaded."""
    name = f"on_{action}_checkpoint"
    return is_overridden(name, trainer.lightning_module) or any(
        is_overridden(name, callback, parent=lightning.Callback) for callback in trainer.callbacks
    )


def _callback_states(trainer: Any) -> dict[str, Any]:
    """Return the states of the callbacks that have one already: some get it in later hooks."""
    states = {}
    for callback in trainer.callbacks:
        with suppress(Exception):
            states[callback.state_key] = callback.state_dict()
    return states


def _restore_scheduler_types(trainer: Any, state: dict[str, Any]) -> None:
    own = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
    state["lr_schedulers"] = restore_types(own, state["lr_schedulers"])


def _compare_model(module: Any, saved: Mapping[str, Any], where: str) -> None:
    """Raise an error for other names or shapes, before Lightning would load the rest."""
    own = module.state_dict()
    lost, more = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if module.strict_loading and (lost or more):
        raise KeyError(
            f"the names in the model are not those of {where}: only in the model {lost}; only in "
            f"the checkpoint {more}"
            + (
                affix_hint("model", lost, more)
                or "; strict_loading=False of the module loads the others"
            )
        )
    check_common_names("the model", where, own, saved)
    for name, value in own.items():
        is_shaped = isinstance(value, torch.Tensor) and not torch.nn.parameter.is_lazy(value)
        if is_shaped and name in saved and value.shape != saved[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, expected {tuple(saved[name].shape)} as "
                f"saved in {where}"
            )


class ShardedStrategy(ModelParallelStrategy):  # type: ignore[misc]
    """Lightning's `ModelParallelStrategy`, for FSDP2, with checkpoints of `LightningCheckpoint`.

    Each rank saves and loads its part of model and optimizers. Any number of ranks resumes.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Pass Lightning's state to the `LightningCheckpoint`, on all ranks."""
        self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load model and optimizers in place; return the rest of Lightning's state."""
        found: dict[str, Any] = self.checkpoint_io.load_sharded(checkpoint_path, self)
        return found
