"""Checkpoints of Hugging Face's Trainer: all of a run in one commit, in place of folders."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from pathlib import Path
from types import NoneType
from typing import Any

from windeck._util.imports import needs_torch
from windeck._util.warning import warn

with needs_torch("windeck.checkpoint.transformers", "transformers"):
    import transformers
    from transformers.trainer_callback import ExportableState

    from windeck.checkpoint.inspecting import open as open_checkpoint
    from windeck.checkpoint.loading import load
    from windeck.checkpoint.maintenance import log
    from windeck.checkpoint.saving import save
    from windeck.checkpoint.training_state import (
        compare_scheduler,
        emptied,
        find_tables,
        load_state,
        public_name,
        random_states,
        saved_extra,
        set_random_states,
        world_group,
    )

__all__ = ["CheckpointTrainer"]

#: The tag of the checkpoint with the best metric.
_BEST = "best"


class CheckpointTrainer(transformers.Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` whose checkpoints are commits in a store, not folders.

    A checkpoint holds the trainer's state, model, optimizer, scheduler, the embedding tables in the
    model, the loader, and the random generators of each rank. `TrainingArguments` say when it is
    saved. With `metric_for_best_model` the best one has the tag ``best``, which protects it.

    Parameters
    ----------
    url
        A store, as for `windeck.checkpoint.save`.
    loader
        The `Loader` to train on, in epochs or with `steps_per_epoch`; None: `train_dataset`.
    keep
        Generations to keep beside the best one, as for `windeck.checkpoint.save`; None:
        `TrainingArguments.save_total_limit`, or all.
    incremental
        As for `windeck.checkpoint.save`.
    options
        Arguments of `transformers.Trainer`.

    Raises
    ------
    ValueError
        For `push_to_hub` with a `hub_strategy` that uploads folders of checkpoints, and for a
        `keep` that differs from `save_total_limit`.

    Notes
    -----
    For one process, DDP, and FSDP2 (``fsdp=True``). `save_only_model` saves neither optimizer nor
    loader, so such a checkpoint can be loaded but not resumed. `save_model` still writes the model
    as files.
    """

    def __init__(
        self,
        url: str,
        loader: Any = None,
        *,
        keep: int | None = None,
        incremental: bool = False,
        **options: Any,
    ) -> None:
        keep = _check_arguments(options.get("args"), keep)
        super().__init__(**options)
        self.url, self.loader = url, loader
        self._save_options: dict[str, Any] = {"keep": keep, "incremental": incremental}
        self._generation: int | None = None  # the one that training resumes from
        self._random: Any = None
        self._passes = 0  # over the loader, beside those that Trainer computes from `max_steps`
        if loader is not None:
            self.args.ignore_data_skip = True  # the loader has a state: nothing to read again
            self.callback_handler.callbacks.insert(0, _EpochCounter(loader))

    def get_train_dataloader(self) -> Any:
        """Return the loader as it is."""
        return super().get_train_dataloader() if self.loader is None else self.loader

    def train(self, resume_from_checkpoint: bool | str | None = None, **options: Any) -> Any:
        """Train; ``resume_from_checkpoint=True`` continues from the checkpoint in force, if any.

        After a change of batch or world size it ends where the loader's epochs end: `max_steps` is
        set for it.

        Raises
        ------
        TypeError
            For the name of a folder.
        ValueError
            For a checkpoint of `save_only_model`.

        Warns
        -----
        UserWarning
            If there are callbacks whose states are not restored.
        """
        if not isinstance(resume_from_checkpoint, (bool, NoneType)):
            raise TypeError(
                f"`resume_from_checkpoint` must be a bool, got {resume_from_checkpoint!r}: "
                f"checkpoints are in {public_name(self.url)}"
            )
        if not resume_from_checkpoint or not self._has_checkpoint():
            return super().train(**options)
        with open_checkpoint(self.url) as found:  # closed before training: LevelDB has one opener
            self._generation, step = found.generation, found.step
            own = saved_extra(found, "transformers", "CheckpointTrainer")["transformers"]
            loader = found.tree("loader") if "loader" in found.trees else None
        if "scheduler" not in own:
            raise ValueError(
                f"generation {self._generation} (step {step}) of {public_name(self.url)} was saved "
                "with save_only_model=True, expected a checkpoint with an optimizer to resume from"
            )
        saved = json.loads(own["trainer"])
        saved["best_model_checkpoint"] = None  # Trainer looks for a folder
        self._warn_of_callbacks()
        former = self.args.max_steps, self.args.num_train_epochs
        has_epochs = self.loader is not None and self.loader.max_steps is None
        try:
            if self.args.max_steps <= 0 and has_epochs and loader is not None:
                self.args.max_steps = self._steps_of_all(step, loader)
                self._passes = int(self.args.max_steps > step)
            if 0 < self.args.max_steps <= step:  # all are done: Trainer would begin one more
                self.args.max_steps, self.args.num_train_epochs = -1, 0
            with tempfile.TemporaryDirectory() as folder:
                name = transformers.trainer.TRAINER_STATE_NAME
                transformers.TrainerState(**saved).save_to_json(str(Path(folder, name)))
                return super().train(resume_from_checkpoint=folder, **options)
        finally:
            self._passes = 0
            self.args.max_steps, self.args.num_train_epochs = former

    def set_initial_training_values(self, *given: Any, **named: Any) -> Any:
        """Return Trainer's values, with a pass more for the rest of an epoch of another size."""
        epochs, *others = super().set_initial_training_values(*given, **named)
        return epochs + self._passes, *others

    def _steps_of_all(self, done: int, loader: Any) -> int:
        """Return `max_steps` from a state of the loader; -1 if the number of epochs says the same.

        Trainer counts epochs in steps of the present batch and world size.
        """
        former = self.loader.state_dict()
        self.loader.load_state_dict(loader)
        try:
            whole, left = len(self.loader), self.loader._epoch_steps_left
            epochs = self.args.num_train_epochs - self.loader.epoch - 1
        finally:
            self.loader.load_state_dict(former)
        # Trainer steps a short last group of batches of whole epochs only.
        accumulated = self.args.gradient_accumulation_steps
        per_epoch = math.ceil(whole / accumulated)
        steps: int = done + math.ceil(epochs * per_epoch)
        steps += per_epoch if left == whole else left // accumulated
        planned = math.ceil(self.args.num_train_epochs * per_epoch)
        return -1 if done < steps == planned else max(steps, done)

    def _warn_of_callbacks(self) -> None:
        """Warn of callbacks that begin anew, such as EarlyStoppingCallback."""
        found = [one for one in self.callback_handler.callbacks if isinstance(one, ExportableState)]
        if found and not self.args.restore_callback_states_from_checkpoint:
            names = ", ".join(type(one).__name__ for one in found)
            warn(
                f"{names} will begin anew, expected restore_callback_states_from_checkpoint=True "
                "of TrainingArguments to restore their states",
            )

    def _has_checkpoint(self) -> bool:
        try:
            return bool(log(self.url))
        except FileNotFoundError:
            return False

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save one commit, on all ranks."""
        for callback in (*self.callback_handler.callbacks, self.control):
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks[type(callback).__name__] = callback.state()
        is_best = self.state.best_global_step == self.state.global_step > 0
        if is_best:
            self.state.best_model_checkpoint = self._best_name()
        only_model = self.args.save_only_model
        extra: dict[str, Any] = {} if only_model else {"random": random_states()}
        if self.is_world_process_zero():  # the state of the trainer differs between ranks
            extra["transformers"] = {"trainer": json.dumps(dataclasses.asdict(self.state))}
            if not only_model:
                scaler = self.accelerator.scaler
                extra["transformers"] |= {
                    "scheduler": self.lr_scheduler.state_dict(),
                    "scaler": None if scaler is None else scaler.state_dict(),
                }
        own = self.accelerator.unwrap_model(self.model)
        save(
            self.url,
            step=self.state.global_step,
            model=own,
            optimizer=None if only_model else getattr(self.optimizer, "optimizer", self.optimizer),
            embeddings=find_tables(own) or None,
            loader=None if only_model else self.loader,
            extra=extra,
            tag=_BEST if is_best else None,
            group=world_group(),
            **self._save_options,
        )

    def _best_name(self) -> str:
        """Return the name of the best checkpoint for logs; `_load_best_model` loads it."""
        return f"{public_name(self.url)}#{_BEST}"

    def _finalize_training(self, *given: Any) -> Any:
        """Leave folders in `output_dir` alone, which another Trainer may have written."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            return super()._finalize_training(*given)
        finally:
            self.args.save_total_limit = limit

    def _load_best_model(self) -> None:
        """Load model and tables of the best generation, on all ranks."""
        own = self.accelerator.unwrap_model(self.model)
        tables = find_tables(own)
        with emptied(tables):
            load(
                self.url, model=own, embeddings=tables or None, generation=_BEST,
                group=world_group(),
            )  # fmt: skip

    def _load_from_checkpoint(self, *_: Any) -> None:
        """Do nothing: all is loaded at once, when there is an optimizer."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load all that a commit holds, but for the trainer's state."""
        if checkpoint is None:
            return
        with open_checkpoint(self.url, generation=self._generation) as saved:
            state = saved_extra(saved, "transformers", "CheckpointTrainer")["transformers"]
            compare_scheduler(0, self.lr_scheduler, state["scheduler"], repr(saved))
        own = self.accelerator.unwrap_model(self.model)
        tables = find_tables(own)
        with emptied(tables):
            found = load(
                self.url,
                model=own,
                optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
                embeddings=tables or None,
                loader=self.loader,
                generation=self._generation,
                group=world_group(),
            )
        self._random = found.extra["random"]
        load_state(self.lr_scheduler, state["scheduler"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            load_state(self.accelerator.scaler, state["scaler"])
        if json.loads(state["trainer"])["best_model_checkpoint"] is None:
            return
        if any(_BEST in commit.tags for commit in log(self.url)):
            self.state.best_model_checkpoint = self._best_name()
        elif self.args.load_best_model_at_end:
            warn(
                f"no generation of {public_name(self.url)} has the tag {_BEST!r}, expected the "
                "best model of the resumed run: `load_best_model_at_end` loads a later one, if any",
            )

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: the scaler is loaded with the optimizer."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Set the generators, just before the first batch."""
        if checkpoint is not None and self._random is not None:
            set_random_states(self._random)


class _EpochCounter(transformers.TrainerCallback):  # type: ignore[misc]
    """The first callback of a trainer: counts the epochs of its loader.

    Trainer counts the batches of a resumed epoch from 0.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loader = self._loader
        if loader._is_endless:
            batches = loader.max_steps or state.max_steps * args.gradient_accumulation_steps
            state.epoch = loader.step / batches
        else:
            whole = loader._epoch_steps
            state.epoch = loader.epoch + (whole - loader._epoch_steps_left) / whole


def _check_arguments(arguments: Any, keep: int | None) -> int | None:
    """Return the number of generations to keep; raise ValueError for options without effect."""
    if getattr(arguments, "push_to_hub", False) and str(arguments.hub_strategy.value) != "end":
        raise ValueError(
            f"`hub_strategy` must be 'end' with `push_to_hub`, got {arguments.hub_strategy.value!r}"
            ": a CheckpointTrainer writes no folders of checkpoints that could be uploaded"
        )
    limit = getattr(arguments, "save_total_limit", None)
    if limit is None or limit <= 0:
        return keep
    if keep not in (None, limit):
        raise ValueError(
            f"`keep` must be `save_total_limit` or None, got keep={keep} and "
            f"save_total_limit={limit}"
        )
    return int(limit)
