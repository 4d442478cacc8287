"""Checkpoints of Hugging Face's Trainer: all of a run in one commit, in place of folders."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from windeck.checkpoint.inspecting import open as open_checkpoint
from windeck.checkpoint.loading import load
from windeck.checkpoint.maintenance import log
from windeck.checkpoint.saving import save
from windeck.checkpoint.training_state import (
    find_tables,
    random_states,
    set_random_states,
    world_group,
)

__all__ = ["CheckpointTrainer"]


class CheckpointTrainer(transformers.Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` whose checkpoints are commits in a store, not folders.

    A checkpoint holds the trainer's state, model, optimizer, scheduler, the embedding tables in the
    model, the loader, and the random generators of each rank. `TrainingArguments` say when it is
    saved.

    Parameters
    ----------
    url
        A store, as for `windeck.checkpoint.save`.
    loader
        The `Loader` to train on, in epochs or with `steps_per_epoch`; None: `train_dataset`.
    keep
        Generations to keep, as for `windeck.checkpoint.save`; None: all.
    incremental
        As for `windeck.checkpoint.save`.
    options
        Arguments of `transformers.Trainer`.

    Raises
    ------
    ValueError
        For arguments with ``load_best_model_at_end=True``.

    Notes
    -----
    For one process and DDP. `TrainingArguments(save_total_limit=)` has no effect.
    `save_model` still writes the model as files.
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
        if getattr(options.get("args"), "load_best_model_at_end", False):
            raise ValueError(
                "`load_best_model_at_end` must be False, got True: a CheckpointTrainer writes no "
                "folders that Trainer could load the best model from"
            )
        super().__init__(**options)
        self.url, self.loader = url, loader
        self._save_options: dict[str, Any] = {"keep": keep, "incremental": incremental}
        self._generation: int | None = None  # the one that training resumes from
        self._random: Any = None
        if loader is not None:
            self.args.ignore_data_skip = True  # the loader has a state: nothing to read again

    def get_train_dataloader(self) -> Any:
        """Return the loader as it is."""
        return super().get_train_dataloader() if self.loader is None else self.loader

    def train(self, resume_from_checkpoint: bool | str | None = None, **options: Any) -> Any:
        """Train; ``resume_from_checkpoint=True`` continues from the checkpoint in force, if any.

        Raises
        ------
        TypeError
            For the name of a folder.
        """
        if isinstance(resume_from_checkpoint, str):
            raise TypeError(
                f"`resume_from_checkpoint` must be a bool, got {resume_from_checkpoint!r}: "
                f"checkpoints are in {self.url}"
            )
        if not resume_from_checkpoint or not self._has_checkpoint():
            return super().train(**options)
        with open_checkpoint(self.url) as found, tempfile.TemporaryDirectory() as folder:
            self._generation = found.generation
            saved = json.loads(found.tree("extra")["transformers"]["trainer"])
            name = transformers.trainer.TRAINER_STATE_NAME
            transformers.TrainerState(**saved).save_to_json(str(Path(folder, name)))
            return super().train(resume_from_checkpoint=folder, **options)

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
        extra: dict[str, Any] = {"random": random_states()}
        if self.is_world_process_zero():  # the state of the trainer differs between ranks
            scaler = self.accelerator.scaler
            extra["transformers"] = {
                "trainer": json.dumps(dataclasses.asdict(self.state)),
                "scheduler": self.lr_scheduler.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
            }
        own = self.accelerator.unwrap_model(self.model)
        save(
            self.url,
            step=self.state.global_step,
            model=own,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            embeddings=find_tables(own) or None,
            loader=self.loader,
            extra=extra,
            group=world_group(),
            **self._save_options,
        )

    def _load_from_checkpoint(self, *_: Any) -> None:
        """Do nothing: all is loaded at once, when there is an optimizer."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load all that a commit holds, but for the trainer's state."""
        if checkpoint is None:
            return
        own = self.accelerator.unwrap_model(self.model)
        found = load(
            self.url,
            model=own,
            optimizer=getattr(self.optimizer, "optimizer", self.optimizer),
            embeddings=find_tables(own) or None,
            loader=self.loader,
            generation=self._generation,
            group=world_group(),
        )
        state, self._random = found.extra["transformers"], found.extra["random"]
        self.lr_scheduler.load_state_dict(state["scheduler"])
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: the scaler is loaded with the optimizer."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Set the generators, just before the first batch."""
        if checkpoint is not None and self._random is not None:
            set_random_states(self._random)
